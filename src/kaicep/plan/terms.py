"""RDF terms: IRIs, blank nodes and literals, and the variables of a pattern."""

from __future__ import annotations

from dataclasses import dataclass

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
OWL = "http://www.w3.org/2002/07/owl#"
XSD = "http://www.w3.org/2001/XMLSchema#"
_STRING = XSD + "string"


@dataclass(frozen=True, slots=True)
class Iri:
    """A name of the web."""

    value: str

    @property
    def local(self) -> str:
        """What stands after the last `#`, `/` or `:`."""
        return self.value[max(self.value.rfind(mark) for mark in "#/:") + 1 :] or self.value

    def __str__(self) -> str:
        return f"<{self.value}>"


@dataclass(frozen=True, slots=True)
class Blank:
    """A node without a name, known by a label."""

    label: str

    def __str__(self) -> str:
        return f"_:{self.label}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as RDF writes it: its text, its datatype, and its language where it has one."""

    lexical: str
    datatype: str = XSD + "string"
    language: str | None = None

    def __str__(self) -> str:
        text = f'"{self.lexical.translate(_ESCAPES)}"'
        if self.language:
            return f"{text}@{self.language}"
        return text if self.datatype == _STRING else f"{text}^^<{self.datatype}>"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a pattern, by its name without the question mark."""

    name: str

    def __str__(self) -> str:
        return f"?{self.name}"


@dataclass(frozen=True, slots=True)
class TripleTerm:
    """A triple that another one speaks of (RDF 1.2): that it is spoken of does not state it."""

    triple: Triple

    def __str__(self) -> str:
        s, p, o = self.triple
        return f"<<( {s} {p} {o} )>>"


Term = Iri | Blank | Literal | TripleTerm
"""What a triple is made of."""
Triple = tuple[Term, Term, Term]
"""Subject, predicate, object."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def n_triples(triple: Triple) -> str:
    """A triple as a line of N-Triples, without the line end.

    >>> n_triples((Iri("urn:a"), Iri("urn:p"), Literal("x", language="en")))
    '<urn:a> <urn:p> "x"@en .'
    """
    return f"{triple[0]} {triple[1]} {triple[2]} ."


def sparql_json(term: Term) -> dict[str, str]:
    """A term as the SPARQL 1.1 JSON results format writes it; a triple by its text.

    >>> sparql_json(Literal("x", language="en"))
    {'type': 'literal', 'value': 'x', 'xml:lang': 'en'}
    """
    if isinstance(term, TripleTerm):
        return {"type": "triple", "value": str(term)}
    if isinstance(term, Iri):
        return {"type": "uri", "value": term.value}
    if isinstance(term, Blank):
        return {"type": "bnode", "value": term.label}
    plain = {"type": "literal", "value": term.lexical}
    if term.language:
        return {**plain, "xml:lang": term.language}
    if term.datatype == XSD + "string":
        return plain
    return {**plain, "datatype": term.datatype}
