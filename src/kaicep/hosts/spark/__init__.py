"""The Spark hosts: Spark filters, joins and moves events, the kernel of every other host finds the matches.

Rows of events enter, one DataFrame for each stream; rows of matches leave, the same ones as from every
host. A query is taken apart by `physical` (what may run side by side), its events are thinned out by
`prefilter` (in the JVM), and `batch` and `stream` carry an engine to where the events are.
"""
