"""What of an event travels to the kernel: the attributes that its queries read, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from kaicep.hosts.spark.physical import Part
from kaicep.hosts.spark.wire import Layout
from kaicep.plan.catalog import Catalog
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import EpPlan, Root, Semantic, walk_objects
from kaicep.plan.types import Type

__all__ = ["layouts_of", "sources_of"]


def sources_of(part: Part, catalog: Catalog) -> tuple[str, ...]:
    """The streams whose data the queries of a part need, in an order that never changes."""
    if any(isinstance(each, EpPlan) for each in part.queries):
        read = [name for name, each in catalog.streams.items() if each.rdf or each.annotated]
        return tuple(
            name for name in dict.fromkeys((*read, *part.streams)) if not catalog.streams[name].derived
        )
    return tuple(name for name in part.streams if not catalog.streams[name].derived)


def layouts_of(
    parts: Sequence[Part], catalog: Catalog, known: dict[tuple[str, Type], int] | None = None, first: int = 0
) -> tuple[list[Layout], Layout]:
    """The columns of the events of each part, and those of all of them together.

    `known` are columns that there are already; streams are numbered from `first` on.
    """
    columns = {} if known is None else known
    streams = tuple(dict.fromkeys(name for part in parts for name in sources_of(part, catalog)))
    rdf = frozenset(name for name in streams if catalog.streams[name].rdf)
    own = [[_attributes(part, name, catalog) for name in streams] for part in parts]
    numbered = [
        tuple(tuple((each[0], columns.setdefault(each, len(columns))) for each in some) for some in part)
        for part in own
    ]
    types = tuple(type for _, type in columns)
    every = tuple(
        tuple(dict.fromkeys(each for part in numbered for each in part[place]))
        for place in range(len(streams))
    )
    return [Layout(streams, types, each, rdf, first) for each in numbered], Layout(
        streams, types, every, rdf, first
    )


def _attributes(part: Part, name: str, catalog: Catalog) -> list[tuple[str, Type]]:
    """The attributes of a stream that a part needs."""
    if name not in sources_of(part, catalog):
        return []
    stream, needed = catalog.streams[name], _needed(part)
    wanted = needed.get(name, set())
    if "*" in needed:
        wanted = wanted | set(stream.graph_attributes)
    wanted = set(stream.reads(*wanted))
    return [each for each in stream.attributes if each[0] in wanted and each[0] != "ts"]


def _needed(part: Part) -> dict[str, set[str]]:
    """The attributes by stream; `*` where the whole graph of an event is asked for."""
    needed: dict[str, set[str]] = {}
    for query in (*part.queries, *part.optimised):
        if isinstance(query, EpPlan):
            needed["*"] = set()
        for each in walk_objects(query):
            if isinstance(each, Field):
                for stream, names in each.sources:
                    needed.setdefault(stream, set()).update(names)
            elif isinstance(each, Root):
                for stream, names in (*each.literals, *each.entities):
                    needed.setdefault(stream, set()).update(names)
            elif isinstance(each, Semantic) and each.relation is None:
                needed["*"] = set()
    return needed
