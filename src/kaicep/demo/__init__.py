"""The demo: a campus from a seed, its morning archived, thirteen queries back in time and live.

A scale and a seed enter, a folder that `kaicep` commands work on and a view of the matches leave. `campus`
has buildings and equipment, what is known of them, their events, and writes them down; `morning` archives
them, runs the queries, and shows what they find.
"""
