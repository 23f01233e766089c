"""Triples as the archive keeps them: a line of N-Triples each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kaicep.errors import Failure
from kaicep.plan.terms import Blank, Iri, Term, Triple, literal

__all__ = ["read_triple"]


@lru_cache(maxsize=100_000)
def read_triple(text: str) -> Triple:
    """The triple that a line of N-Triples says.

    >>> read_triple('<urn:s> <urn:p> "5"^^<http://www.w3.org/2001/XMLSchema#integer> .')[2].lexical
    '5'
    """
    import pyoxigraph

    try:
        (quad,) = pyoxigraph.parse(text, format=pyoxigraph.RdfFormat.N_TRIPLES)
    except (SyntaxError, ValueError):
        raise Failure(f"the archive has a record that is not a triple: {text[:80]}") from None
    return _term(quad.subject), _term(quad.predicate), _term(quad.object)


def _term(node: Any) -> Term:
    import pyoxigraph

    if isinstance(node, pyoxigraph.NamedNode):
        return Iri(node.value)
    if isinstance(node, pyoxigraph.BlankNode):
        return Blank(node.value)
    return literal(node.value, node.datatype.value, node.language)
