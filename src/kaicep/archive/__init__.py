"""The archive: a folder with one Delta table for each stream, and every event of the past exactly once.

Batches of events with the source positions that they cover enter; snapshots leave: the events up to a
version or a cut, read by time. `as_sparql` and `as_sql` turn a plan into one query over all
of it.
"""
