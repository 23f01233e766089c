"""The archive of past events: append once per source position, snapshot, prune, expire.

Events with their positions enter; the events of a snapshot and of a stretch of time leave. Empty so far.
"""
