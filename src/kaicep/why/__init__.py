"""Why there is a match, and why there is none: events, numbers and statements of the knowledge base.

A match's id, or a time, enters. `sources`, `results` and `deployed` know where events and matches are, and
`again` finds the match again. `match` explains what made it a match. `misses` and `left_out` say how far
events near a time came and what stopped them. `proof` finds the statements that make a PATH true. The code
of the reference decides.
"""
