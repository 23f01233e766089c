"""A compiled query: `kaicep.compile` returns it, and everything that runs queries takes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kaicep.errors import Diagnostic, Mistake, a_kind_of
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import ChiQuery
from kaicep.plan.events import Event, html_text
from kaicep.plan.nodes import Program
from kaicep.plan.program import build_program
from kaicep.plan.sparql import EpQuery

if TYPE_CHECKING:
    from kaicep.knowledge.store import Knowledge

EXAMPLE_TYPES = '{"sensor": "string", "flow": "float64"}'
"""What a message shows as the attributes of a stream."""


@dataclass(frozen=True, repr=False)
class Query:
    """One query or several, resolved against streams and knowledge: what hosts run.

    It is made by `kaicep.compile`.
    """

    program: Program
    catalog: Catalog
    knowledge: Knowledge

    def __repr__(self) -> str:
        languages = " and ".join(dict.fromkeys(each.language for each in self.program.queries))
        reads = f", reads {', '.join(self.streams)}" if self.streams else ""
        return f"<Query {', '.join(self.names)}: {languages}{reads}>"

    def _repr_html_(self) -> str:
        return html_text(repr(self)[1:-1], self.explain())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the queries."""
        return tuple(each.name for each in self.program.queries)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the queries, which do not keep them from running."""
        return tuple(each.render() for each in self.said())

    def said(self, name: str | None = None) -> tuple[Diagnostic, ...]:
        """What there is to say about the queries, or about one of them, which keeps none from running."""
        from kaicep.optimize import path_warnings

        found: list[Diagnostic] = []
        for each in self.program.queries:
            if name in (None, each.name):
                found += (*each.warnings, *path_warnings(each, self.catalog, self.knowledge))
        return tuple(found)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams whose events the queries need."""
        if self.program.ep_plans:
            return tuple(each.name for each in self.catalog.streams.values() if not each.derived)
        read = dict.fromkeys(name for each in self.program.queries for name in each.reads)
        known = self.catalog.streams
        return tuple(name for name in read if name not in known or not known[name].derived)

    def explain(self) -> str:
        """The plans of the queries, as written and as optimised."""
        from kaicep.api import explanations
        from kaicep.plan.explain import explain_text

        return explain_text(explanations(self))


@dataclass(frozen=True, repr=False)
class FiniteQuery(Query):
    """Queries and all events there are, in the batches in which they came."""

    batches: Sequence[Sequence[Event]] = ()


def require_query(given: object) -> None:
    """Refuses what is no compiled query, and one of a stream whose attributes nobody named."""
    if not isinstance(given, Query):
        said = f"this needs a compiled query, not {a_kind_of(given)}"
        raise Mistake(said, hint="kai.compile(text, streams=...) makes one")
    for name in given.streams:
        if name not in given.catalog.streams:
            types = EXAMPLE_TYPES[:-1] + ", ...}"
            hint = f'name them when you compile the query, such as streams={{"{name}": {types}}}'
            raise Mistake(f"the attributes of {name} are not known", hint=hint)


def resolve_queries(
    queries: Sequence[ChiQuery | EpQuery], catalog: Catalog, knowledge: Knowledge, now: int | None = None
) -> Query:
    """Parsed queries, resolved against a catalogue; `now` is an instant in microseconds, by default this one.

    What is wrong with any of them is told at once, in one `Mistake`.
    """
    moment = time.time_ns() // 1_000 if now is None else now
    program, complete = build_program(queries, catalog, moment)
    return Query(program, complete, knowledge)
