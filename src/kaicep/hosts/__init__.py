"""Where a plan runs: in this process, in a Spark stream, in Spark over the archive.

A plan and its sources enter; matches leave, the same ones from every host: `inprocess`, and `spark` over
finite and endless data. `kaicep.reference` judges them all.
"""
