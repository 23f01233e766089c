"""The console: pages about a running deployment, for people.

The board and the answers of the worker process enter (`questions`, which run there); pages leave, rendered
here, readable without scripts. `static` has what the browser loads, built from the repository's `console/`.
"""
