"""Worked examples that ship with the package and use its public names only.

Nothing enters; data, knowledge and queries leave. `start` is the folder that `kaicep init` copies: a cold
store, its events, and one query for each idea. Larger examples lie in `examples/` beside the package.
"""
