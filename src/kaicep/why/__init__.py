"""Why there is a match, and why there is none: events, numbers and statements of the knowledge base.

A match's id, or a time, comes in; `sources`, `results` and `deployed` know where events and matches are,
`again` finds the match again. `match` tells what made it one, `misses` and `left_out` tell near a time
how far events came and what stopped them, `proof` finds the statements that make a PATH true. The judge's
own pieces decide.
"""
