"""Which way through the past is the cheapest: by how many events there are to read, before any is read.

What fits into one process is quickest there, filters first; SPARQL pays for a store of all events and is for
small archives; Spark has to be started, and then takes any size. The bounds are estimates, not measurements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kaicep.archive.rewrite.sparql import rewrite_to_sparql
from kaicep.endtoend.prefilter import spans
from kaicep.endtoend.sql_rewriting import sql_of
from kaicep.errors import Unsupported

if TYPE_CHECKING:
    from kaicep.archive.snapshot import Snapshot
    from kaicep.knowledge.store import Knowledge
    from kaicep.plan.catalog import Catalog
    from kaicep.plan.nodes import QueryPlan

__all__ = ["SMALL", "SPARK_FROM", "Way", "chosen", "explained", "rows_to_read"]

SMALL = 20_000
"""Up to so many events a rewritten query is SPARQL on a store; above, Spark SQL on the tables."""

SPARK_FROM = 20_000_000
"""From so many events on it pays to start Spark."""


@dataclass(frozen=True)
class Way:
    """A strategy, where it runs (`process`, `store` or `spark`), and why."""

    strategy: str
    place: str
    why: str

    def __str__(self) -> str:
        places = {
            "process": "in this process",
            "store": "as SPARQL on a store in memory",
            "spark": "on Spark",
        }
        return f"{self.strategy} {places[self.place]}, {self.why}"


def rows_to_read(plans: Iterable[QueryPlan], catalog: Catalog, snapshot: Snapshot) -> int:
    """How many events the files have that the queries may have to read."""
    bounds = spans(plans, catalog)
    return sum(each.rows for stream, within in bounds.items() for each in snapshot.files(stream, within))


def chosen(strategy: str, rows: int, on_spark: bool) -> Way:
    """The way for a strategy, `auto` included; `on_spark` says that Spark can take the queries.

    >>> print(chosen("auto", 4_000, True))
    hybrid in this process, since 4,000 events are fewer than 20,000,000
    >>> chosen("rewrite", 4_000_000, True).place
    'spark'
    """
    if strategy == "replay":
        return Way("replay", "process", "as always")
    if strategy == "rewrite":
        if rows <= SMALL:
            return Way("rewrite", "store", f"since {rows:,} events are at most {SMALL:,}")
        return Way("rewrite", "spark", f"since {rows:,} events are more than {SMALL:,}")
    if rows < SPARK_FROM:
        return Way("hybrid", "process", f"since {rows:,} events are fewer than {SPARK_FROM:,}")
    if not on_spark:
        return Way("hybrid", "process", "since Spark does not take these queries, or is not installed")
    return Way("hybrid", "spark", f"since there are {rows:,} events, {SPARK_FROM:,} or more")


def explained(plan: QueryPlan, catalog: Catalog, knowledge: Knowledge) -> str:
    """How a query over an archive would be answered, for a reader."""
    text = f"hybrid, in process below {SPARK_FROM:,} events and on Spark above"
    refused: list[str] = []
    for language, write in (
        ("SPARQL", lambda: rewrite_to_sparql(plan, catalog)),
        ("Spark SQL", lambda: sql_of(plan, catalog, knowledge)),
    ):
        try:
            write()
        except Unsupported as error:
            refused.append(f"no rewriting to {language}: {str(error).removeprefix(f'{plan.name}: ')}")
    return "; ".join([text, *refused])
