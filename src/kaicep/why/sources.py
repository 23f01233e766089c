"""The input of an explanation: a match in a file of results, and the events that it needs."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kaicep.api import FiniteRun
from kaicep.connectors.files import StreamData
from kaicep.connectors.shape import DeadLetter
from kaicep.errors import Mistake
from kaicep.history.hybrid import both
from kaicep.join.handoff import reach_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import EpPlan, Interval, Pattern, Program, QueryPlan
from kaicep.plan.time import parse_time
from kaicep.storage.places import options_of

if TYPE_CHECKING:
    from kaicep.archive.archive import Snapshot
    from kaicep.history.strategies import History

# ----------------------------------------------------------------------------------------------------------
# A match where somebody saw it: in a file of results, or in what a file or Delta sink has written.

# Of CSV and Parquet no other column: there, selected ones have names of their own choice.
_COLUMNS = ("query", "id", "start", "end", "events")
_FORMS = "results are JSON Lines, CSV, Parquet, or the folder of a Delta sink"


def seen_in(places: Iterable[Path], id: str) -> list[Match]:
    """The matches there whose id begins with `id`, each once. Of all others nothing is made."""
    wanted = id.lower()
    found: dict[str, Match] = {}
    for path in places:
        for row in _rows(path, wanted):
            if str(row.get("id", "")).startswith(wanted):
                match = match_of(row, path)
                found[match.id] = match
    return list(found.values())


def only_one(matches: Sequence[Match], id: str) -> Match | None:
    """The one match of these; None where there is none, a mistake where it could be several.

    >>> only_one([Match("hot", "f3a1", 0, 0)], "f3").id
    'f3a1'
    """
    if len(matches) > 1:
        raise Mistake(f"{len(matches)} matches have an id that begins with {id}", hint="give more of it")
    return matches[0] if matches else None


def match_of(row: Mapping[str, Any], path: Path | str) -> Match:
    """The match of a row of results; the selected values only where they are together, as in JSON Lines.

    >>> row = {"query": "hot", "id": "f3", "start": "1970-01-01", "end": "1970-01-01T00:00:01"}
    >>> match_of(row, "matches.jsonl").end_us
    1000000
    """
    try:
        times = [parse_time(row[name]) for name in ("start", "end")]
        query, id = str(row["query"]), str(row["id"])
    except (KeyError, TypeError):
        raise _no_results(path) from None
    start, end = times
    if start is None or end is None:
        raise _no_results(path)
    given = row.get("select")
    select = dict(given) if isinstance(given, Mapping) else {}
    return Match(query, id, start, end, select, _events(row, path), version=row.get("knowledge"))


def _events(row: Mapping[str, Any], path: Path | str) -> Any:
    """The events by variable; tables and CSV have them as JSON."""
    value = row.get("events") or None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise _no_results(path) from None


def _no_results(path: Path | str) -> Mistake:
    return Mistake(f"{path} holds no matches that can be read", hint=_FORMS)


def _rows(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    """The rows that may be the one; times are texts in all of them."""
    try:
        if path.is_dir():
            yield from _delta(path, wanted)
        elif path.suffix.lower() == ".parquet":
            yield from _parquet(path, wanted)
        elif path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {name: row.get(name) for name in _COLUMNS}
        else:
            yield from _json_lines(path, wanted)
    except OSError as error:
        raise Mistake(f"cannot read the results {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _no_results(path) from None
    except ImportError as error:
        hint = "pip install 'kaicep[delta]'"
        raise Mistake(f"the results {path} need the package {error.name}", hint=hint) from None


def _json_lines(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    needle = f'"{wanted}'.encode()
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0 and not line.lstrip().startswith(b"{"):
                raise _no_results(path)
            if needle not in line:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a line that a running sink has not finished
            if isinstance(row, dict):
                yield row


def _parquet(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.dataset

    try:
        yield from _filtered(pyarrow.dataset.dataset(str(path), format="parquet"), _COLUMNS, wanted)
    except pyarrow.ArrowException:
        raise _no_results(path) from None


def _delta(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        raise _no_results(path)
    table = DeltaTable(str(path), storage_options=options_of(path))
    yield from _filtered(table.to_pyarrow_dataset(), (*_COLUMNS, "knowledge"), wanted)


def _filtered(rows: Any, columns: Sequence[str], wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow.compute as pc

    names = [name for name in columns if name in rows.schema.names]
    if "id" not in names:
        return
    found = rows.to_table(columns=names, filter=pc.starts_with(pc.field("id"), wanted))
    for row in found.to_pylist():
        yield {**row, **{name: row[name].isoformat() for name in ("start", "end") if row.get(name)}}


# ----------------------------------------------------------------------------------------------------------
# Where events are read again from: the files of a run, or an archive; as much of it as a reason needs.


class EventSource(Protocol):
    """Resolved queries, and the events that they are about."""

    @property
    def program(self) -> Program:
        """The queries."""
        ...

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        ...

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        ...

    @property
    def uses_late(self) -> bool:
        """Whether a match may have an event that came too late: a query back in time takes them."""
        ...

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        ...

    def part(self, program: Program, within: Interval) -> FiniteRun:
        """Some of the queries over the events inside the bounds, late ones with their mark."""
        ...

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        ...

    def expired(self) -> Mapping[str, int]:
        """The times before which the events of streams were removed."""
        ...


@dataclass(frozen=True)
class Streams:
    """The files of a run."""

    run: FiniteRun
    uses_late = False

    @property
    def program(self) -> Program:
        """The queries."""
        return self.run.program

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        return self.run.catalog

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        return self.run.knowledge

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        return self.run.matches()

    def part(self, program: Program, within: Interval) -> FiniteRun:
        """Some of the queries over the events inside the bounds."""
        return _run(self, program, self.run.data, [e for e in events_of(self.run) if e.ts in within])

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        return self.run.dead

    def expired(self) -> Mapping[str, int]:
        """Nothing was removed from files."""
        return {}


@dataclass(frozen=True)
class Archived:
    """The archive, as it was when somebody looked."""

    history: History
    snapshot: Snapshot
    uses_late = True

    @property
    def program(self) -> Program:
        """The queries."""
        return self.history.program

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        return self.history.catalog

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        return self.history.knowledge

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        from kaicep.history.strategies import past_matches

        return past_matches(self.history, "auto", as_seen, self.snapshot)

    def part(self, program: Program, within: Interval) -> FiniteRun:
        """Some of the queries over the events inside the bounds; no other file is opened."""
        own = replace(self.history, program=program).spans()
        data = [self._stream(name, both(bounds, within)) for name, bounds in own.items()]
        return _run(self, program, data, [event for each in data for event in each.events])

    def _stream(self, name: str, within: Interval) -> StreamData:
        shape = self.snapshot.shape(name)
        events = list(self.snapshot.events(name, within))
        return StreamData(name, shape.attributes, events, rdf=shape.rdf)

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        own = self.history.spans()
        names = ("stream", "part", "seq", "line", "file", "reason", "record")
        rows = self.history.archive.dead_letters.read()
        return [DeadLetter(*(row[each] for each in names)) for row in rows if row["stream"] in own]

    def expired(self) -> Mapping[str, int]:
        """The times before which the events of streams were removed."""
        found = {name: self.snapshot.expired(name) for name in self.history.spans()}
        return {name: ts for name, ts in found.items() if ts is not None}


def _run(
    source: EventSource, program: Program, data: Sequence[StreamData], events: Sequence[Event]
) -> FiniteRun:
    return FiniteRun(program, source.catalog, source.knowledge, (events,), tuple(data))


def events_of(run: FiniteRun) -> list[Event]:
    """All events of a run."""
    return [each for batch in run.batches for each in batch]


def unmarked(run: FiniteRun, late: Sequence[Event] | None = None) -> FiniteRun:
    """The run as if some events, or all, had come in time."""
    chosen = None if late is None else set(late)
    events = [
        replace(each, late=False) if each.late and (chosen is None or each in chosen) else each
        for each in events_of(run)
    ]
    return replace(run, batches=(events,))


# --- how much is needed ------------------------------------------------------------------------------------


def upstream_of(program: Program, name: str) -> Program:
    """A query, and before it all whose output it needs; an EP-SPARQL query may read everybody's."""
    by_name = {each.name: each for each in program.queries}
    found = {name}
    waiting = [name]
    while waiting:
        plan = by_name[waiting.pop()]
        reads = set(by_name) if isinstance(plan, EpPlan) else {each for each in plan.reads if each in by_name}
        waiting += reads - found
        found |= reads
    return Program(tuple(each for each in program.queries if each.name in found))


def needed(program: Program, match: Match) -> Interval:
    """The range of time whose events decide about a match (including those of absences, before its end)."""
    own = next(each for each in program.queries if each.name == match.query)
    low = None if _depends_on_all_before(own) else match.start_us
    return stretch_of(program, match.query, low, match.end_us)


def stretch_of(program: Program, name: str, low: int | None, high: int) -> Interval:
    """The events for what a query reads from `low` to `high`: other queries' outputs reach back further."""
    below = reach_of(Program(tuple(each for each in program.queries if each.name != name)))
    if low is None or below == math.inf:
        return Interval(None, True, high, True)
    return Interval(low - int(below), True, high, True)


def _depends_on_all_before(plan: QueryPlan) -> bool:
    if isinstance(plan, EpPlan):
        return True
    if isinstance(plan.body, Pattern):
        return plan.body.skip != "none"
    return plan.body.window.width is None and plan.body.window.kind != "sliding"
