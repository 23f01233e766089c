"""The queries of `pattern` beside Esper, Siddhi and Flink CEP, on the same data in one run.

Each engine delivers every match. All must have the same ones, by number and checksum, before a ratio is
given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaicep.errors import Failure
from kaicep_bench import jvm
from kaicep_bench.data import SETS, Columns, write
from kaicep_bench.engine import Result, compiled, run_columns
from kaicep_bench.pattern import CASES, QUERIES, Case, about, check, columns
from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

# Every partial match of Flink is an object in a state that it copies: a case that would take it a quarter of
# an hour gets the first events only, for kaicep as well.
SHORT = {(jvm.FLINK, Case("3 any", "C")): 200_000}

# How many times as fast as the fastest peer kaicep means to be.
GOALS = {"1": 3.0, "2": 5.0, "3 any": 20.0, "3 next": 30.0, "loop": 20.0, "absence": 10.0}


@dataclass(frozen=True)
class Compared:
    """A case, how many events of it, what kaicep found and what the peers did."""

    case: Case
    events: int
    own: Result
    peers: Sequence[jvm.Taken]


def measure(quick: bool = False) -> Report:
    """Runs everything and compares it."""
    jvm.build()
    found = [each for name in SETS for each in _on(name, quick)]
    versions = {taken.engine: taken.version for each in found for taken in each.peers}
    return Report(
        "peers",
        [
            Table("events a second", [_speeds(each) for each in found]),
            Table("most memory, MB", [_memory(each) for each in found]),
        ],
        [
            *map(about, SETS.values()),
            "engines: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            "every engine delivered the same matches, by number and checksum",
            "kaicep makes the ids of matches when they are read: here nobody does, and the peers have none",
            "of fastest: kaicep's events a second as a multiple of those of the fastest peer in that row",
            "the peers are warm: each ran the query over a part of the data first",
            "memory: of kaicep what the run added, of a peer its whole process with all runs before",
        ],
    )


def _on(name: str, quick: bool) -> Iterator[Compared]:
    """All cases on a data set."""
    data = columns(SETS[name], quick)
    cases = [each for each in CASES if each.data == name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "columns"
        write(data, file)
        taken = [(case, each) for peer in jvm.PEERS for case, each in _taken(peer, cases, file, data, quick)]
    for case in cases:
        check(case.query, data)
        mine = [each for of, each in taken if of == case]
        for events in sorted({each.events for each in mine}, reverse=True):
            own = run_columns(compiled(QUERIES[case.query]), data.first(events))
            yield _compared(case, events, own, [each for each in mine if each.events == events])


def _taken(
    peer: jvm.Peer, cases: Sequence[Case], file: Path, data: Columns, quick: bool
) -> Iterator[tuple[Case, jvm.Taken]]:
    """What a peer says of the cases; those with the same number of events share a process."""
    sizes: dict[int, list[Case]] = {}
    for case in cases:
        if case.query in peer.queries:
            events = min(len(data), SHORT.get((peer, case), len(data)))
            sizes.setdefault(events, []).append(case)
    for events, some in sizes.items():
        found = jvm.run(peer, "pattern", file, events, [each.query for each in some], quick)
        yield from zip(some, found, strict=True)


def _compared(case: Case, events: int, own: Result, peers: Sequence[jvm.Taken]) -> Compared:
    for each in peers:
        if (each.matches, each.checksum) != (own.matches, own.checksum):
            raise Failure(
                f"query {case.query} on {case.data}: {each.engine} has {each.matches:,} matches, kaicep "
                f"{own.matches:,}{'' if each.matches != own.matches else ', and they are others'}"
            )
    return Compared(case, events, own, peers)


def _speeds(compared: Compared) -> dict[str, Cell]:
    speed = compared.events / compared.own.seconds
    theirs = {each.engine: each.events / each.seconds for each in compared.peers}
    return {
        **_head(compared),
        "matches": compared.own.matches,
        "kaicep": round(speed, 1),
        **{peer.name: round(theirs[peer.name], 1) if peer.name in theirs else None for peer in jvm.PEERS},
        "of fastest": round(speed / max(theirs.values()), 2),
        "goal": GOALS.get(compared.case.query),
    }


def _memory(compared: Compared) -> dict[str, Cell]:
    theirs = {each.engine: round(each.max_rss / 1e6) for each in compared.peers}
    return {
        **_head(compared),
        "kaicep": round(compared.own.memory / 1e6, 1),
        **{peer.name: theirs.get(peer.name) for peer in jvm.PEERS},
    }


def _head(compared: Compared) -> dict[str, Cell]:
    return {"query": compared.case.query, "data": compared.case.data, "events": compared.events}
