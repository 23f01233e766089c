"""Whole queries as one query of a database: section 5.2 of the SCEPter paper.

A resolved plan enters. `logical` says which events it binds and what must hold between them; `sparql`
writes that down as one SPARQL query over the archive's RDF view (`view`).
"""
