"""Small ontologies in a few characters: names stand in the space of the empty prefix."""

from __future__ import annotations

from kaicep.knowledge.store import Knowledge
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Triple

SPACE = "urn:t:"
PREFIXES = (
    f"@prefix : <{SPACE}> . @prefix rdf: <{RDF}> . @prefix rdfs: <{RDFS}> . "
    f"@prefix owl: <{OWL}> . @prefix xsd: <{XSD}> .\n"
)


def known(text: str, reasoning: str = "rdfs") -> Knowledge:
    """The knowledge of a Turtle text without its prefixes."""
    return Knowledge.parse(PREFIXES + text, reasoning=reasoning)


def iri(name: str) -> Iri:
    """`owl:sameAs` and the like; without a prefix it is a name of ours."""
    prefix, colon, local = name.partition(":")
    spaces = {"rdf": RDF, "rdfs": RDFS, "owl": OWL, "xsd": XSD, "": SPACE}
    return Iri(spaces[prefix] + local) if colon else Iri(SPACE + name)


def triple(text: str) -> Triple:
    """A triple of three names; `a` stands for rdf:type as in Turtle."""
    s, p, o = text.split()
    return iri(s), iri("rdf:type" if p == "a" else p), iri(o)
