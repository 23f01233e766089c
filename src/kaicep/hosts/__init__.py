"""Where a plan runs: in this process, in a Spark stream, in Spark over the archive.

A plan and its sources enter; matches leave, the same ones from every host. So far there is `inprocess`,
and `kaicep.reference`, which judges them all.
"""
