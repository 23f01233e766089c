"""The incremental operators: a plan and events in order enter, matches leave, the state can be saved.

`operator` is what all of them can do. `sort` brings events into order, `pattern` and `windows` find what a
query asks for, `project` makes matches of it. They are interpreted, in plain Python.
"""
