"""Larger worked examples that ship with the package and use its public names only.

Nothing enters; data, knowledge and queries leave. Empty so far: the campus lies in `examples/` beside
the package.
"""
