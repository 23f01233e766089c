"""Queries are compiled while they run, and nobody can tell from the answers."""

from __future__ import annotations

import random
import re

import pytest
from tests.hosts.letters import engine, event

from kaicep.hosts import inprocess
from kaicep.hosts.columnar import CompiledQuery
from kaicep.hosts.inprocess import Engine, Settings
from kaicep.plan.events import Event

PAIR = "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) FILTER (?a.x > 1) JOIN (?a.k = ?b.k) SEQ (?a, ?b)"
SHAPES = [
    PAIR + " WINDOW (?a, ?b, 9s)",
    PAIR + " MATCH next WINDOW (?a, ?b, 3s)",
    PAIR.replace(", ?b.x", "").replace("SEQ (?a, ?b)", "SEQ (?a, !?b)") + " WINDOW (?a, ?b, 2s)",
    """SELECT ?a.x, COUNT(?b) AS n FROM (?a, s), (?b, s) FILTER (?b.x > 2)
       SEQ (?a, ?b{1,2}) WINDOW (?a, ?b, 3s)""",
    "SELECT AVG(?e.x) AS mean, ?e.k FROM (?e, s) WINDOW (?e, sliding, 9s) PARTITION BY ?e.k",
    "SELECT SUM(?e.x) AS total FROM (?e, s) WINDOW (?e, batch, 7)",
    "SELECT MAX(?e.x) AS most, ?e.k FROM (?e, s) WINDOW (?e, batch, 5s) GROUP BY ?e.k",
]


def some_events(count: int) -> list[Event]:
    chance = random.Random(count)
    return [
        event(
            seq, seq / 2 - chance.choice((0, 0, 0.6)), chance.choice("pq"), chance.choice((None, *range(5)))
        )
        for seq in range(count)
    ]


def is_compiled(running: Engine) -> bool:
    return all(isinstance(each, CompiledQuery) for each in running._steps)


def let_grow(running: Engine) -> None:
    assert running._growth is not None
    running._growth.wait()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_is_compiled_when_many_events_have_come(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inprocess, "MANY", 40)
    events = some_events(160)
    growing, small = (
        engine(shape, lateness=1_000_000, settings=Settings(kernel=kernel))
        for kernel in ("auto", "interpreted")
    )
    found, wanted = [], []
    for at in range(0, 160, 20):
        found += growing.push(events[at : at + 20])
        wanted += small.push(events[at : at + 20])
        if at == 60:
            let_grow(growing)
    if "next" in shape or "!" in shape:  # it moves once it holds nothing
        quiet = [event(200 + seq, 500 + seq * 100, "p", 0) for seq in range(3)]
        found += growing.push(quiet)
        wanted += small.push(quiet)
    assert is_compiled(growing)
    more = [event(300 + seq, 1000 + seq / 2, "p", seq % 5) for seq in range(30)]
    for running, answers in ((growing, found), (small, wanted)):
        answers += running.push(more)
        answers += running.finish()
    assert [each.to_json() for each in found] == [each.to_json() for each in wanted]
    assert len(found) > 5


def test_those_that_share_a_sort_stage_and_those_that_read_them_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inprocess, "MANY", 40)
    texts = SHAPES[0], SHAPES[4], "SELECT COUNT(?m) AS n FROM (?m, q0) WINDOW (?m, batch, 5)"
    growing, small = (engine(*texts, settings=Settings(kernel=kernel)) for kernel in ("auto", "interpreted"))
    events = [event(seq, seq / 2, "pq"[seq % 2], seq % 5) for seq in range(160)]
    answers = []
    for running in (growing, small):
        found = running.push(events[:80])
        if running is growing:
            let_grow(growing)
        found += [match for each in events[80:] for match in running.push([each])] + running.finish()
        answers.append([each.to_json() for each in found])
    assert answers[0] == answers[1]
    assert [isinstance(each, CompiledQuery) for each in growing._steps] == [True, True, False]


def test_a_saved_state_remembers_who_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inprocess, "MANY", 40)
    events = [event(seq, seq / 2, "p", seq % 5) for seq in range(160)]
    growing = engine(SHAPES[0])
    growing.push(events[:60])
    let_grow(growing)
    growing.push(events[60:80])
    assert is_compiled(growing)
    again = engine(SHAPES[0])
    again.restore(growing.snapshot())
    assert is_compiled(again)
    assert [each.to_json() for each in again.push(events[80:])] == [
        each.to_json() for each in growing.push(events[80:])
    ]


def grown(shape: str, events: list[Event]) -> Engine:
    """An engine that compiled its query at about half of these events, and has seen them all."""
    running = engine(shape)
    running.push(events[: len(events) // 2])
    let_grow(running)
    for each in events[len(events) // 2 :]:
        running.push([each])
    assert is_compiled(running)
    return running


RISING = SHAPES[0] + " JOIN (?b.x - ?a.x > {})"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SHAPES[0], SHAPES[0].replace("9s", "4s")),
        (SHAPES[0], SHAPES[0] + " FILTER (?b.x > 2)"),
        (RISING.format(0), RISING.format(1)),
    ],
)
def test_an_edit_keeps_what_a_query_held_that_was_compiled_while_it_ran(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inprocess, "MANY", 40)
    events = [event(seq, seq / 2, "pq"[seq % 2], seq % 5) for seq in range(120)]
    edited, always = grown(before, events[:80]), engine(after, settings=Settings(kernel="interpreted"))
    always.push(events[:80])
    assert edited.edit(always._queries["q0"].plan) is None
    assert is_compiled(edited)
    found, wanted = edited.push(events[80:]), always.push(events[80:])
    assert [each.to_json() for each in found] == [each.to_json() for each in wanted]
    assert any(each.start < events[80].ts for each in found)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (SHAPES[0].replace("9s", "20s"), "wider than before"),
        (SHAPES[0].replace("?a.x > 1", "?a.x > 2"), "not the last"),
        (SHAPES[0] + " JOIN (?b.k <= ?a.k)", "cannot be any more: strings of two events"),
    ],
)
def test_an_edit_begins_anew_where_what_is_compiled_cannot_go_on(
    after: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inprocess, "MANY", 40)
    events = [event(seq, seq / 2, "pq"[seq % 2], seq % 5) for seq in range(120)]
    edited, fresh = grown(SHAPES[0], events[:80]), engine(after, settings=Settings(kernel="interpreted"))
    assert re.search(reason, edited.edit(fresh._queries["q0"].plan) or "")
    assert edited.size == 0
    found, wanted = ([each.to_json() for each in some.push(events[80:])] for some in (edited, fresh))
    assert found == wanted
    assert len(found) > 5
