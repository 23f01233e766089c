"""The incremental operators: a plan and ordered events enter, matches leave; the state can be saved.

`operator` is what all of them can do. `batches` brings events into order, as columns; `patterns` and
`windowing` find what a query of chi-CEP asks for, `epsparql` what one of EP-SPARQL does.
"""
