"""Files and topics enter, the archive has each of their records once; here, or by tasks of Spark."""
