"""The state of an engine as bytes: how far the sources have come, what waits in order, what queries keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaicep.errors import Failure
from kaicep.hosts.queries import ChiSearch, TripleQueries
from kaicep.kernel.batches import ColumnSorter
from kaicep.kernel.sort import Lateness, Parts, Sorter
from kaicep.kernel.state import read_state, write_state

__all__ = ["Saved", "read_saved", "written"]


@dataclass(frozen=True)
class Saved:
    """The state of an engine: its parts, its sort stages with the queries that they feed, its operators'."""

    parts: Any
    sorters: Sequence[tuple[Sequence[str], Any]]
    queries: Mapping[str, bytes]


def written(
    parts: Parts,
    sorters: Sequence[Sorter | ColumnSorter],
    steps: Sequence[ChiSearch | TripleQueries],
    only: Collection[str] | None = None,
) -> bytes:
    """The state of all queries, or `only` of some, and of the sort stages before them."""
    if only is not None:
        steps = [each.without(set(each.names) - set(only)) for each in steps if set(each.names) & set(only)]
        sorters = [each for each in sorters if any(query.sorter is each for query in steps)]
    waiting = [
        [[name for query in steps if query.sorter is sorter for name in query.names], sorter.document()]
        for sorter in sorters
    ]
    document = {
        "lateness": _plain(parts.lateness),
        "parts": parts.document(),
        "sorters": waiting,
        "queries": [[query.names[0], query.text] for query in steps],
    }
    states = {query.names[0]: np.frombuffer(query.operator.snapshot(), np.uint8) for query in steps}
    return write_state("engine", document, states)


def read_saved(state: bytes, texts: Mapping[str, str], lateness: Lateness) -> Saved:
    """The state of an engine that has queries of these texts."""
    document, states = read_state("engine", state)
    saved = dict(document["queries"])
    if saved.keys() != texts.keys() or document["lateness"] != _plain(lateness):
        raise Failure(
            f"the saved state is of the queries {', '.join(saved)} with lateness {document['lateness']}"
        )
    for name, text in saved.items():
        if text != texts[name]:
            raise Failure(f"the saved state is of another text of {name}")
    queries = {name: states[name].tobytes() for name in saved}
    return Saved(document["parts"], document["sorters"], queries)


def _plain(lateness: Lateness) -> Any:
    """The lateness as JSON holds it."""
    return dict(sorted(lateness.items())) if isinstance(lateness, Mapping) else lateness
