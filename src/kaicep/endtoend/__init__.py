"""Past, present and future as one answer: cuts by source position, hand-off, recovery.

A plan, an archive and a live source enter; ordered matches leave, each exactly once. Empty so far.
"""
