"""The state of an engine as bytes: how far the sources have come, what waits in order, what queries hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaicep.errors import Failure
from kaicep.hosts.columnar import CompiledQuery
from kaicep.hosts.interpreted import Query, TripleQueries
from kaicep.kernel.codec import decode_with, encode_with
from kaicep.kernel.sort import Lateness, Parts, Sorter

if TYPE_CHECKING:
    from kaicep.kernel.batches import ColumnSorter

__all__ = ["Saved", "SavedQuery", "read_saved", "written"]


@dataclass(frozen=True)
class SavedQuery:
    """What a query holds, and whether its operator was a compiled one."""

    text: str
    compiled: bool
    state: bytes


@dataclass(frozen=True)
class Saved:
    """The state of an engine: its parts, its sort stages with the queries that they feed, its queries."""

    parts: Any
    sorters: Sequence[tuple[Sequence[str], Any]]
    queries: Mapping[str, SavedQuery]


def written(
    parts: Parts,
    sorters: Sequence[Sorter | ColumnSorter],
    steps: Sequence[Query | CompiledQuery | TripleQueries],
) -> bytes:
    """The state of all queries, and of the sort stages before them."""
    waiting = [
        [[name for query in steps if query.sorter is sorter for name in query.names], sorter.document()]
        for sorter in sorters
    ]
    states = [query.operator.snapshot() for query in steps]
    queries = {
        query.names[0]: [query.text, isinstance(query, CompiledQuery), len(state)]
        for query, state in zip(steps, states, strict=True)
    }
    document = {
        "lateness": _plain(parts.lateness),
        "parts": parts.document(),
        "sorters": waiting,
        "queries": queries,
    }
    return encode_with("engine", document, b"".join(states))


def read_saved(state: bytes, texts: Mapping[str, str], lateness: Lateness) -> Saved:
    """The state of an engine that has queries of these texts."""
    document, data = decode_with("engine", state)
    rows = document["queries"]
    if list(rows) != list(texts) or document["lateness"] != _plain(lateness):
        raise Failure(
            f"the saved state is of the queries {', '.join(rows)} with lateness {document['lateness']}"
        )
    queries = dict(zip(rows, _queries(rows, data), strict=True))
    for name, each in queries.items():
        if each.text != texts[name]:
            raise Failure(f"the saved state is of another text of {name}")
    return Saved(document["parts"], document["sorters"], queries)


def _plain(lateness: Lateness) -> Any:
    """The lateness as JSON holds it."""
    return dict(sorted(lateness.items())) if isinstance(lateness, Mapping) else lateness


def _queries(rows: Mapping[str, list[Any]], data: bytes) -> Iterator[SavedQuery]:
    at = 0
    for text, *rest in rows.values():
        if len(rest) == 1:  # as format 1 had it: all queries interpreted, their states as texts
            yield SavedQuery(text, False, rest[0].encode())
        else:
            compiled, length = rest
            yield SavedQuery(text, compiled, data[at : at + length])
            at += length
