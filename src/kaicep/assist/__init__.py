"""Help while you write a query: mistakes, completion, and what a word means.

A text and an offset in it enter, with what is known of a deployment (`Situation`); diagnostics, completions,
a text to hover and a place leave. The console and the language server (`lsp`) ask the same functions.
"""
