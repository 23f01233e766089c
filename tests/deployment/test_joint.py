"""Past, present and future: whatever lags behind what, the answer is that of the whole stream."""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kaicep.api import FiniteRun, build_run, parse_query
from kaicep.archive.archive import Archive, Cut
from kaicep.archive.parquet import TableShape
from kaicep.connectors.files import StreamData, mark_late
from kaicep.deployment.sessions import choose_plan, joined
from kaicep.errors import Failure, SourceText
from kaicep.history.strategies import History, history_of
from kaicep.hosts.queries import Settings
from kaicep.join.handoff import HandOff, JoinedRun, Mark, PositionRange, why_not_concurrent
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.types import Type

S = 1_000_000
ATTRIBUTES = (("ts", Type.TIMESTAMP), ("k", Type.STRING), ("x", Type.INT64))
QUERIES = {
    "one": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)",
    "pair": "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 6s)",
    "next": "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?b.x > 2) SEQ (?a, ?b) WINDOW (?a, ?b, 6s) MATCH next",
    "strict": "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 6s) MATCH strict",
    "loop": "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?b.x > PREV(?b.x)) SEQ (?a, ?b+) WINDOW (?a, ?b, 4s)",
    "between": (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, s) FILTER (?n.x = 0) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 5s)"
    ),
    "two streams": "SELECT ?a.x, ?b.x FROM (?a, s), (?b, t) SEQ (?a, ?b) WINDOW (?a, ?b, 5s)",
    "sliding": "SELECT SUM(?e.x) AS total FROM (?e, s) WINDOW (?e, sliding, 5s) GROUP BY ?e.k",
    "batch": "SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 4s)",
    "trailing": "SELECT ?a.x FROM (?a, s), (?n, s) FILTER (?n.x > 2) SEQ (?a, !?n) WINDOW (?a, ?n, 5s)",
    "skip": "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 6s) AFTER MATCH SKIP PAST LAST",
    "counted": "SELECT SUM(?e.x) AS total FROM (?e, s) WINDOW (?e, sliding, 3)",
    "unbounded": "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) FILTER (?a.x = 4) JOIN (?a.k = ?b.k) SEQ (?a, ?b)",
}
LATENESS = 2 * S
pytestmark = [pytest.mark.random, pytest.mark.slow]
EFFORT = int(os.environ.get("KAICEP_EXAMPLES", "200")) // 100
PARTS = Settings(parts={"s": (0, 1), "t": (0,)})


def drawn(chance: random.Random, count: int) -> dict[tuple[str, int], list[Event | None]]:
    """Sources by part, in their order; None is a record that could not be read."""
    parts: dict[tuple[str, int], list[Event | None]] = {("s", 0): [], ("s", 1): [], ("t", 0): []}
    skew = {each: chance.choice((0, 0, 0, -7, 9)) for each in parts}  # whose clock is wrong
    for number in range(count):
        stream, part = chance.choice([("s", 0), ("s", 0), ("s", 1), ("t", 0)])
        here = parts[stream, part]
        if chance.random() < 0.1:
            here.append(None)
            continue
        ts = int((number + skew[stream, part] + chance.choice((0, 0, 0, -1, -2, -5))) * S / 2)
        values = {"ts": ts, "k": chance.choice("pq"), "x": chance.randrange(5)}
        here.append(Event(stream, part, len(here), ts, values))
    return parts


class World:
    """A source, an archive that lags behind it, and a live consumer that lags in its own way."""

    def __init__(
        self, folder: Path, parts: dict[tuple[str, int], list[Event | None]], since: int | None = None
    ) -> None:
        self.parts = parts
        self.since = since
        self.archive = Archive(folder)
        for stream in ("s", "t"):
            self.archive.made(stream, TableShape(ATTRIBUTES))

    def archive_to(self, share: float) -> None:
        for (stream, part), records in self.parts.items():
            table = self.archive.stream(stream)
            low, high = table.positions.get(part, 0), int(len(records) * share)
            if high > low:
                events = [each for each in records[low:high] if each is not None]
                table.append(events, {part: (low, high)}, lateness=LATENESS)

    def stretches(self, low: float, high: float) -> list[PositionRange]:
        found = []
        for (stream, part), records in self.parts.items():
            first, after = int(len(records) * low), int(len(records) * high)
            events = [each for each in records[first:after] if each is not None]
            if after > first:
                found.append(PositionRange(stream, part, first, after, events))
        return found

    def text(self, name: str) -> str:
        """A query, which begins where this world says."""
        if self.since is None:
            return QUERIES[name]
        within = f"WITHIN [1970-01-01T00:00:{self.since:02d}Z, )"
        return re.sub(r"FROM \(\?\w+, \w\)(, \(\?\w+, \w\))*", rf"\g<0> {within}", QUERIES[name])

    def events(self) -> list[Event]:
        return [each for records in self.parts.values() for each in records if each is not None]


def history(world: World, name: str) -> History:
    return history_of(
        [parse_query(SourceText("q.chi", world.text(name)), {})], world.archive, Knowledge.empty(), (), 0
    )


def wanted(world: World, name: str) -> list[str]:
    """What the reference says of the whole stream, late events left out."""
    data = [
        StreamData(stream, ATTRIBUTES, [each for each in world.events() if each.stream == stream], [])
        for stream in ("s", "t")
    ]
    run: FiniteRun = build_run(
        [parse_query(SourceText("q.chi", world.text(name)), {})], data, (), Knowledge.empty(), LATENESS, 0
    )
    return [each.to_json() for each in run.matches("reference")]


def lived(world: World, name: str, plan: str, chance: random.Random) -> list[str]:
    """The answer of a query that is asked at some moment, whatever is archived and live by then."""
    archived = chance.choice((0.0, 0.3, 0.6, 1.0))
    world.archive_to(archived)
    live = chance.choice((0.0, max(0.0, archived - 0.2), archived, min(1.0, archived + 0.3)))
    made: JoinedRun = joined(history(world, name), world.archive.snapshot(), LATENESS, plan, PARTS)
    found: list[Match] = []
    past = made.past()
    while live < 1.0 or past is not None or archived < 1.0:
        step = chance.choice(("past", "live", "archive", "poll"))
        if step == "past" and past is not None:
            some = next(past, None)
            found += some or ()
            past = None if some is None else past
        elif step == "live" and live < 1.0:
            after = min(1.0, live + chance.choice((0.1, 0.4, 1.0)))
            again = max(0.0, live - chance.choice((0.0, 0.0, 0.2)))  # a source may repeat itself
            for stretch in world.stretches(again, after):
                found += made.live(stretch)
            live = after
        elif step == "archive" and archived < 1.0:
            archived = min(1.0, archived + 0.3)
            world.archive_to(archived)
        elif step == "poll":
            found += made.poll(world.archive.snapshot())
    found += made.poll(world.archive.snapshot())
    found += made.finish()
    assert len({each.id for each in found}) == len(found), "a match was told twice"
    return [each.to_json() for each in sorted(found, key=lambda match: (match.end_us, match.id))]


@pytest.mark.parametrize("plan", ["hand-off", "concurrent"])
@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_the_whole_stream(name: str, plan: str) -> None:
    @settings(max_examples=EFFORT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    @example(1428167)  # events come while those that waited are worked through
    def agree(seed: int) -> None:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), drawn(chance, 40), chance.choice((None, 0, 7, 15)))
            reason = why_not_concurrent(history(world, name).program, LATENESS)
            if plan == "concurrent" and reason is not None:
                with pytest.raises(Failure, match="not possible"):
                    joined(history(world, name), world.archive.snapshot(), LATENESS, plan)
                return
            assert lived(world, name, plan, chance) == wanted(world, name)

    agree()


def test_what_is_late_is_left_out() -> None:
    events = [Event("s", 0, seq, ts * S) for seq, ts in enumerate((10, 9, 3))]
    assert [each.late for each in mark_late(events, LATENESS)] == [False, False, True]


def test_nothing_is_answered_before_what_is_missing_has_come(tmp_path: Path) -> None:
    records: Sequence[Event | None] = [
        Event("s", 0, seq, seq * S, {"ts": seq * S, "k": "p", "x": 3}) for seq in range(4)
    ]
    world = World(tmp_path, {("s", 0): list(records)})
    made = joined(history(world, "one"), world.archive.snapshot(), 0)
    assert [match for some in made.past() for match in some] == []
    (late_half,) = world.stretches(0.5, 1.0)
    assert made.live(late_half) == []
    assert made.cut == Cut({})
    world.archive_to(0.5)
    assert len(made.poll(world.archive.snapshot())) == 4
    assert made.cut == Cut({"s": {0: 4}})


def test_an_event_keeps_its_values_on_both_sides(tmp_path: Path) -> None:
    first = Event("s", 0, 0, 0, {"ts": 0, "k": "p", "x": 4})
    world = World(
        tmp_path, {("s", 0): [first, replace(first, seq=1, ts=S, values={"ts": S, "k": "p", "x": 1})]}
    )
    world.archive_to(0.5)
    made = joined(history(world, "pair"), world.archive.snapshot(), 0)
    found = [match for some in made.past() for match in some]
    for stretch in world.stretches(0.5, 1.0):
        found += made.live(stretch)
    assert [each.select for each in found] == [{"a.x": 4, "b.x": 1}]


def crashed(world: World, name: str, chance: random.Random) -> list[str]:
    """The answer of a query whose process is lost now and then, also while it catches up.

    What was found becomes known together with the mark, in one step. Archive and live source are never at
    the same place; the source may repeat itself, as a broker does that was started again.
    """
    told: list[Match] = []
    mark: Mark | None = None
    saved: tuple[Mark, bytes] | None = None
    live = 0.0
    while True:
        made = asked_again(world, name, mark, saved, chance)
        found: list[Match] | None = []
        past: Iterator[list[Match]] | None = made.past()
        while past is not None or live < 1.0:
            step = chance.random()
            if step < 0.08:
                found = None
                break  # lost, with all that was not told
            if past is not None and step < 0.5:
                some = next(past, None)
                found += some or ()
                past = None if some is None else past
            elif live < 1.0:
                after, again = min(1.0, live + chance.choice((0.05, 0.3))), chance.choice((0.0, 0.0, 0.2))
                world.archive_to(after)  # what is not archived by then is read again
                found += made.live_all(world.stretches(max(0.0, live - again), after))
                live = after
            if past is None and chance.random() < 0.7:
                told += found
                found, mark = [], Mark.from_json(json.loads(json.dumps(made.mark.to_json())))
                if isinstance(made, HandOff) and chance.random() < 0.5:
                    saved = mark, made.engine.snapshot()
        if found is not None:
            told += [*found, *made.finish()]
            break
    assert len({each.id for each in told}) == len(told), "a match was told twice"
    return [each.to_json() for each in sorted(told, key=lambda match: (match.end_us, match.id))]


def asked_again(
    world: World, name: str, mark: Mark | None, saved: tuple[Mark, bytes] | None, chance: random.Random
) -> JoinedRun:
    """A query by any plan that there is for it; one that stood somewhere goes on from there."""
    asked, snapshot = history(world, name), world.archive.snapshot()
    if mark is not None:
        return HandOff(asked, snapshot, LATENESS, PARTS, mark, saved)
    possible = why_not_concurrent(asked.program, LATENESS) is None
    plan = chance.choice(("concurrent", "hand-off")) if possible else "hand-off"
    return joined(asked, snapshot, LATENESS, plan, PARTS)


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_lost_in_a_crash_is_found_again_and_told_once(name: str) -> None:
    @settings(max_examples=EFFORT, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    @example(1623046)  # a part that sends nothing for a while, and then something early
    def agree(seed: int) -> None:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), drawn(chance, 40), chance.choice((None, 0, 7, 15)))
            world.archive_to(chance.choice((0.0, 0.0, 0.4)))
            assert crashed(world, name, chance) == wanted(world, name)

    agree()


def test_the_plan_is_chosen_by_range_window_and_urgency(tmp_path: Path) -> None:
    world = World(tmp_path, drawn(random.Random(1), 400))
    world.archive_to(1.0)
    snapshot = world.archive.snapshot()

    def chosen(name: str, urgency: int) -> str:
        return str(choose_plan(history(world, name), snapshot, LATENESS, urgency))

    count = len(world.events()) - len(world.parts["t", 0]) + world.parts["t", 0].count(None)
    assert chosen("pair", 1_000_000) == f"hand-off: {count} events of the past take little time"
    assert chosen("pair", 0).startswith(f"concurrent: {count} events of the past would delay live matches")
    assert "since q skips after a match" in chosen("skip", 0)
    assert "no WINDOW says how far back" in chosen("unbounded", 0)
    wide = QUERIES["pair"].replace("6s", "1h")
    asked = history_of([parse_query(SourceText("q.chi", wide), {})], world.archive, Knowledge.empty(), (), 0)
    assert "the window of 1h is a large part" in str(choose_plan(asked, snapshot, LATENESS, 0))
