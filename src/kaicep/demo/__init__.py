"""The demo: a campus from a seed, its morning archived, thirteen queries back in time and live.

A scale and a seed enter, a folder that `kaicep` commands work on and a view of the matches leave. `campus`
has buildings and equipment, `ontology` what is known of them, `morning` their events, and `folder` writes
them down; `archiving` has the way into the archive, `watching` the queries, `telling` the words for a match,
`views` the terminal and the plain lines; `run` is the demo itself.
"""
