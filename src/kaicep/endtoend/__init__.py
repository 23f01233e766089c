"""Past, present and future as one answer: cuts by source position, hand-off, recovery; and deployments.

A plan, an archive and a live source enter; ordered matches leave, each exactly once. `deployment` is what
`kaicep run` runs: feeds (source into archive), runs of sessions (a query each), outlets (sinks and marks).
"""
