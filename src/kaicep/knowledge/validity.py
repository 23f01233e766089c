"""When a statement holds: sets of half-open intervals, and what named graphs say of themselves.

The statements of a named graph hold from its `kai:validFrom` (included) to its `kai:validTo` (not
included), both said of the graph's name in the default graph, as xsd:dateTime; one that is missing is
without end on that side. A graph of which neither is said holds always, like the default graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kaicep.errors import Diagnostic, Mistake, Source
from kaicep.knowledge.graph import Ids, Terms
from kaicep.knowledge.loading import Said
from kaicep.plan.terms import XSD, Iri, Literal
from kaicep.plan.time import format_time, parse_time

__all__ = [
    "ALWAYS",
    "KAI",
    "NEVER",
    "VALID_FROM",
    "VALID_TO",
    "Validity",
    "before",
    "holds_at",
    "intersection",
    "minus",
    "odd_validity",
    "since",
    "union",
    "with_validity",
]

KAI = "https://kaicep.org/ns#"
"""The namespace of our own words."""
VALID_FROM = Iri(KAI + "validFrom")
"""From when on the statements of a graph hold."""
VALID_TO = Iri(KAI + "validTo")
"""Until when the statements of a graph hold."""

# In order, without overlap, and without two that touch: one spelling for every set of instants.
Validity = tuple[tuple[int, int], ...]
"""Half-open intervals, in order."""

_BEGIN, _END = -(1 << 63), 1 << 63
ALWAYS: Validity = ((_BEGIN, _END),)
"""From the beginning of time to its end."""
NEVER: Validity = ()
"""At no time."""


def since(ts: int) -> Validity:
    """From that instant on."""
    return ((ts, _END),)


def before(ts: int) -> Validity:
    """Until that instant, without it."""
    return ((_BEGIN, ts),)


def holds_at(validity: Validity, ts: int) -> bool:
    """Whether the instant is one of these.

    >>> [holds_at(((1, 3), (5, 6)), ts) for ts in (0, 1, 3, 5)]
    [False, True, False, True]
    """
    return any(start <= ts < end for start, end in validity)


def union(one: Validity, other: Validity) -> Validity:
    """The instants of either.

    >>> union(((1, 3), (7, 9)), ((3, 5),))
    ((1, 5), (7, 9))
    """
    if not one or not other or one == other:
        return one or other
    merged: list[tuple[int, int]] = []
    for start, end in sorted(one + other):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


def intersection(one: Validity, other: Validity) -> Validity:
    """The instants of both.

    >>> intersection(((1, 5), (7, 9)), ((3, 8),))
    ((3, 5), (7, 8))
    """
    if one in (ALWAYS, other):
        return other
    if other == ALWAYS:
        return one
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((start, end) for start, end in pairs if start < end))


def minus(one: Validity, other: Validity) -> Validity:
    """The instants of the one that the other does not have.

    >>> minus(ALWAYS, since(5)) == before(5)
    True
    """
    if not other or not one:
        return one
    if other == ALWAYS or one == other:
        return NEVER
    edges = (_BEGIN, *(edge for interval in other for edge in interval), _END)
    gaps = tuple((edges[at], edges[at + 1]) for at in range(0, len(edges), 2) if edges[at] < edges[at + 1])
    return intersection(one, gaps)


def boundaries(validity: Validity) -> Iterator[int]:
    """The instants at which it begins or ends."""
    for interval in validity:
        for edge in interval:
            if _BEGIN < edge < _END:
                yield edge


def starts(validity: Validity) -> int | None:
    """Its first instant; None where it has no beginning."""
    return validity[0][0] if validity and validity[0][0] > _BEGIN else None


def with_validity(read: Iterable[Said], terms: Terms) -> dict[Ids, Validity]:
    """Every statement that was read, and when it holds."""
    texts = tuple(read)
    graphs = _graphs(texts, terms)
    held: dict[Ids, Validity] = {}
    for said in texts:
        held |= dict.fromkeys(said.triples, ALWAYS) if not said.graphs else {}
        for at, ids in enumerate(said.triples if said.graphs else ()):
            graph = said.graphs.get(at)
            when = ALWAYS if graph is None else graphs.get(graph, ALWAYS)
            held[ids] = union(held.get(ids, NEVER), when)
    return held


def odd_validity(read: Iterable[Said], terms: Terms) -> Iterator[Diagnostic]:
    """Validity that is said where it has no effect."""
    texts = tuple(read)
    links = {terms.known(VALID_FROM), terms.known(VALID_TO)} - {None}
    named = {graph for said in texts for graph in said.graphs.values()}
    for said in texts if links else ():
        for at, (s, p, _) in enumerate(said.triples):
            if p not in links or (s in named and at not in said.graphs):
                continue
            reason = "said inside a graph" if at in said.graphs else "no graph has that name"
            hint = "say it in the default graph, of the name of a graph: kai:validFrom and kai:validTo"
            message = f"the validity of {terms.term(s)} has no effect: {reason}"
            yield Diagnostic(message, None, Source(said.name, ""), hint, "warning")


def _graphs(texts: tuple[Said, ...], terms: Terms) -> dict[int, Validity]:
    """The validity of every graph that has one."""
    sides = {terms.known(VALID_FROM): 0, terms.known(VALID_TO): 1}
    sides.pop(None, None)
    named = {graph for said in texts for graph in said.graphs.values()}
    found: dict[int, list[int | None]] = {}
    for said in texts if sides and named else ():
        for at, (s, p, o) in enumerate(said.triples):
            if p not in sides or s not in named or at in said.graphs:
                continue
            link, moment = terms.term(p), _moment(terms, s, o, said.name)
            edges = found.setdefault(s, [None, None])
            if edges[sides[p]] not in (None, moment):
                raise _mistake(f"the graph {terms.term(s)} has two times for {link}", said.name)
            edges[sides[p]] = moment
    return {graph: _interval(terms, graph, *edges) for graph, edges in found.items()}


def _interval(terms: Terms, graph: int, start: int | None, end: int | None) -> Validity:
    if start is not None and end is not None and start >= end:
        times = f"from {format_time(start)} to {format_time(end)}"
        raise Mistake(Diagnostic(f"the graph {terms.term(graph)} is valid {times}: it never holds"))
    return ((_BEGIN if start is None else start, _END if end is None else end),)


def _moment(terms: Terms, graph: int, number: int, name: str) -> int:
    term = terms.term(number)
    moment = None
    if isinstance(term, Literal) and term.datatype in (XSD + "dateTime", XSD + "dateTimeStamp"):
        moment = parse_time(term.lexical) if "T" in term.lexical else None
    if moment is None:
        raise _mistake(f"the validity of the graph {terms.term(graph)} is not an xsd:dateTime: {term}", name)
    return moment


def _mistake(message: str, name: str) -> Mistake:
    hint = 'such as "2012-05-08T00:00:00Z"^^xsd:dateTime'
    return Mistake(Diagnostic(message, None, Source(name, ""), hint))
