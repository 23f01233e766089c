"""Queries over the past: an archive's snapshot enters, matches leave, by one of three strategies.

`replay` runs the engine over everything, `hybrid` over what filters and relations leave, `rewrite` asks one
query of a database.
"""
