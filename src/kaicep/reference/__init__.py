"""The reference: what a query means, computed by brute force over a finite input.

A query and its events enter; its matches leave, in order. Every other
host must give, byte for byte, what this one gives. It is written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kaicep.knowledge.event_graph import UnknownEntities, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.nodes import ChiPlan
from kaicep.plan.program import is_undecided, open_ends
from kaicep.plan.results import derived_event, term_answer
from kaicep.plan.terms import Triple
from kaicep.query import Query
from kaicep.reference.chicep import KnowledgeSemantics, answers
from kaicep.reference.sparql import run_epsparql

__all__ = ["evaluate"]


def evaluate(
    query: Query,
    batches: Iterable[Sequence[Event]],
    unknown: UnknownEntities | None = None,
    end: str = "closed",
) -> list[Match]:
    """All matches of all queries, in the order of their end, then of their id (semantics 2).

    A late event is used by no match. A value that no entity of the knowledge base is known for is
    counted in `unknown`. At an `open` end, what is still undecided is left out.
    """
    catalog, unknown = query.catalog, unknown or UnknownEntities()
    streams: dict[str, list[Event]] = {name: [] for name in catalog.streams}
    for batch in batches:
        for event in batch:
            if not event.late:
                streams[event.stream].append(event)
    semantics = KnowledgeSemantics(catalog, query.knowledge, unknown)
    newest = {name: max(event.ts for event in events) for name, events in streams.items() if events}
    ends = open_ends(query.program, newest)
    matches: list[Match] = []
    answered = False
    for plan in query.program.queries:
        if isinstance(plan, ChiPlan):
            events = [event for name in plan.reads for event in streams[name]]
            for answer in answers(plan, events, semantics):
                if end == "open" and is_undecided(plan, answer.match, ends[plan.name]):
                    continue
                matches.append(answer.match)
                streams[plan.name].append(derived_event(answer, catalog))
        elif not answered:
            answered = True
            for found in _answer_epsparql(query, streams, unknown):
                matches.append(found)
                streams[found.query].append(derived_event(term_answer(found), catalog))
    return sorted(matches, key=by_end)


def _answer_epsparql(
    query: Query, streams: Mapping[str, list[Event]], unknown: UnknownEntities
) -> Iterator[Match]:
    """All EP-SPARQL queries at once: what one of them constructs, all of them read."""
    occurrences = list(_occurrences(streams, query.catalog, query.knowledge, unknown))
    for found in run_epsparql(query.program.ep_plans, occurrences, query.knowledge).values():
        yield from found


def _occurrences(
    streams: Mapping[str, list[Event]], catalog: Catalog, knowledge: Knowledge, unknown: UnknownEntities
) -> Iterator[tuple[Triple, int, int, str]]:
    """Every stream as triples with intervals; an annotated record is its event graph at its time."""
    for name, events in streams.items():
        stream = catalog.streams[name]
        for event in events:
            if stream.rdf:
                start = event.start if event.start is not None else event.ts
                yield from ((triple, start, event.ts, name) for triple in event.triples)
            elif stream.annotated:
                graph = event_triples(event, stream, knowledge, unknown)
                for mistake in filter(None, graph.unknown.values()):
                    raise mistake
                yield from ((triple, event.ts, event.ts, name) for triple in graph.triples)
