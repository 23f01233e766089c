"""A tiny harness for EP-SPARQL: queries and a stream as text in, answers as text out.

A line of a stream is `1-3 a p b`: the triple `a p b` from second 1 to second 3 (`2 a p 5` is one instant).
Where a query has windows, the stream is called `s`, unless a line begins with another name: `t 1-3 a p b`.
An answer is written `x=a y=5 [1-3]`. Bare names are read with the empty prefix, as in queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kaicep.errors import SourceText
from kaicep.knowledge.store import Knowledge
from kaicep.language.parse_epsparql import parse_ep
from kaicep.plan.algebra import ep_plan
from kaicep.plan.events import Match
from kaicep.plan.nodes import EpPlan
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Term, Triple
from kaicep.reference.sparql import run_epsparql

Rows = Sequence[tuple[Triple, int, int] | tuple[Triple, int, int, str]]
BASE = "urn:kaicep:"
SECOND = 1_000_000


def term(text: str) -> Term:
    if text.lstrip("-").isdigit():
        return Literal(text, XSD + "integer")
    return Iri(BASE + text)


def stream(text: str) -> list[tuple[Triple, int, int]]:
    found: list[tuple[Triple, int, int]] = []
    for line in text.strip().splitlines():
        when, s, p, o = line.split()
        first, _, last = when.partition("-")
        triple = (Iri(BASE + s), Iri(RDF + "type") if p == "a" else term(p), term(o))
        found.append((triple, int(first) * SECOND, int(last or first) * SECOND))
    return found


def named_stream(text: str) -> list[tuple[Triple, int, int, str]]:
    found: list[tuple[Triple, int, int, str]] = []
    for line in text.strip().splitlines():
        *name, when, s, p, o = line.split()
        [row] = stream(f"{when} {s} {p} {o}")
        found.append((*row, name[0] if name else "s"))
    return found


def rows_of(text: str, queries: Iterable[str]) -> Rows:
    return named_stream(text) if any("WINDOW" in each for each in queries) else stream(text)


def plan(text: str, name: str = "q") -> EpPlan:
    return EpPlan(name, text, ep_plan(parse_ep(SourceText(name, text), name)))


def knowledge_of(text: str) -> Knowledge:
    return Knowledge.parse(
        f"@prefix : <{BASE}> .\n@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n{text}", "trig"
    )


def run(
    occurrences: Rows | str,
    *queries: str,
    knowledge: str = "",
    limit: int = 10_000,
) -> dict[str, list[Match]]:
    """The matches of the queries, which are called q0, q1, ..."""
    plans = [plan(text, f"q{index}") for index, text in enumerate(queries)]
    rows = rows_of(occurrences, queries) if isinstance(occurrences, str) else occurrences
    return run_epsparql(plans, rows, knowledge_of(knowledge), limit)


def shown(match: Match) -> str:
    values = [f"{name}={short(value['value'])}" for name, value in match.select.items()]
    start, end = match.start_us // SECOND, match.end_us // SECOND
    when = f"[{start}]" if start == end else f"[{start}-{end}]"
    return " ".join([*values, when])


def short(text: str) -> str:
    return text.removeprefix(BASE)


def answers(occurrences: str, *queries: str, knowledge: str = "") -> list[str]:
    """The answers of the last query, in the order of their text."""
    found = run(occurrences, *queries, knowledge=knowledge)
    return sorted(shown(each) for each in found[f"q{len(queries) - 1}"])
