"""Where a plan runs: in this process, in a Spark stream, in Spark over the archive.

A plan and its sources enter; matches leave, the same ones from every host. Empty so far: the one host
there is is `reference`.
"""
