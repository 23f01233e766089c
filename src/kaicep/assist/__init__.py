"""Help while a query is being written: what is wrong, what could come next, what a word means.

A text and an offset in it enter, with what is known of a deployment (`Situation`); diagnostics, completions,
a text to hover and a place leave. The console and the language server (`lsp`) ask the same functions.
"""
