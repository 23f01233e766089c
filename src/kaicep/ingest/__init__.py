"""Files and topics enter, and each of their records is in the archive once; in this process or by Spark."""
