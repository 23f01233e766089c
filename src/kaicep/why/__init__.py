"""Why there is a match, and why there is none: events, numbers and statements of the knowledge base.

A match's id, or a time, enters. `again` knows where events and matches are, and finds the match again.
`match` explains what made it a match, down to the statements that make its PATHs true. `misses` says how far
events near a time came and what stopped them. `text` writes all that. The code of the reference decides.
"""
