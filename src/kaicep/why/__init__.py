"""Why there is a match, and why there is none: events, numbers and statements of the knowledge base.

`match` tells of a match what made it one, `misses` tells near a time how far events came and what stopped
them, `proof` finds the statements that make a PATH true. The judge's own pieces decide.
"""
