"""The compiled pattern operator finds what the interpreted one finds, however it is fed and saved."""

from __future__ import annotations

import math
import os
import random
import re
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hosts.random_runs import ATTRIBUTES, Drawn, S, events, patterns
from tests.kernel import plain_numba

import kaicep.kernel.compiled.operator as compiled
from kaicep.api import Run
from kaicep.errors import Failure
from kaicep.kernel.columns import Strings, Table, column_of
from kaicep.kernel.compiled import block
from kaicep.kernel.operator import Limits
from kaicep.kernel.pattern import PatternOperator
from kaicep.kernel.project import Projection
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.events import Event
from kaicep.plan.identity import event_words
from kaicep.plan.nodes import Pattern, Project, QueryPlan

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "60"))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Generated source runs as Python, so that no shape has to be compiled."""
    memory = plain_numba.memory()
    helpers = plain_numba.helpers(memory)
    monkeypatch.setattr(compiled, "memory", memory)
    monkeypatch.setattr(compiled, "compile_source", plain_numba.compiler(helpers))
    monkeypatch.setattr(block, "HELPERS", helpers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ids are made of numbers that overflow
        yield


def table_of(rows: Sequence[Event], streams: tuple[str, ...], strings: Strings) -> Table:
    words = [event_words(each) for each in rows]
    return Table(
        streams,
        np.array([each.ts for each in rows], np.int64),
        np.array([streams.index(each.stream) for each in rows], np.int8),
        np.array([each.part for each in rows], np.int64),
        np.array([each.seq for each in rows], np.int64),
        np.array([low for low, _ in words], np.uint64),
        np.array([high for _, high in words], np.uint64),
        {name: column_of(type, [each.value(name) for each in rows], strings) for name, type in ATTRIBUTES},
        strings,
    )


class Case:
    """A query over events, ready to be run by both operators."""

    def __init__(self, text: str, rows: Sequence[Event]) -> None:
        self.run: Run | None = Drawn({"one": text}, tuple(rows), None).run()
        self.reason: str | None = "a mistake"
        if self.run is not None:
            self.plan, _ = optimize(self.run.program.queries[0], self.run.catalog, self.run.knowledge)
            self.reason = compiled.compilable(self.plan, self.run.catalog)
            streams = self.pattern.streams
            self.rows = sorted(
                (each for each in rows if each.stream in streams),
                key=lambda each: (each.ts, streams.index(each.stream), each.part, each.seq),
            )

    plan: QueryPlan
    rows: list[Event]

    @property
    def pattern(self) -> Pattern:
        assert isinstance(self.plan.root, Project)
        assert isinstance(self.plan.root.input, Pattern)
        return self.plan.root.input

    @property
    def relations(self) -> Relations:
        assert self.run is not None
        return Relations(self.run.catalog, self.run.knowledge)

    def operator(self, strings: Strings, limits: Limits | None = None) -> compiled.CompiledPattern:
        assert self.run is not None
        return compiled.CompiledPattern(self.plan, self.run.catalog, self.relations, strings, limits)

    def interpreted(self) -> list[str]:
        operator = PatternOperator(self.pattern, self.relations)
        found = [*operator.feed(self.rows), *operator.advance(math.inf)]
        return sorted(each.match.to_json() for each in Projection(self.plan).answers(found))

    def compiled(self, chance: random.Random, sizes: Sequence[int] = (1, 1, 2, 1000)) -> list[str]:
        """In batches of these sizes, saved and loaded now and then, also where strings have other codes."""
        strings = Strings()
        operator = self.operator(strings)
        found: list[str] = []
        left = list(self.rows)
        while left:
            size = chance.choice(sizes)
            table = table_of(left[:size], self.pattern.streams, strings)
            found += [match.to_json() for some in operator.feed(table) for match in some]
            del left[:size]
            if left and chance.random() < 0.4:
                watermark = chance.choice((left[0].ts, left[0].ts - 1))
                found += [match.to_json() for some in operator.advance(watermark) for match in some]
            if chance.random() < 0.3:
                strings = chance.choice((strings, Strings()))
                saved = operator.snapshot()
                operator = self.operator(strings)
                operator.restore(saved)
                assert operator.snapshot() == saved
        found += [match.to_json() for some in operator.advance(math.inf) for match in some]
        return sorted(found)


@pytest.mark.usefixtures("plain")
def test_random_patterns_are_found_as_the_interpreter_finds_them() -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(patterns(), events(14), st.integers(0, 2**32))
    def agree(text: str, rows: tuple[Event, ...], seed: int) -> None:
        case = Case(re.sub(r"AFTER MATCH (NO SKIP|SKIP TO (FIRST|LAST) \?\w|SKIP \w+ \w+)", "", text), rows)
        if case.reason is None:
            assert case.compiled(random.Random(seed)) == case.interpreted()

    agree()


def many(count: int, seed: int, keys: str = "pqz") -> list[Event]:
    chance = random.Random(seed)
    made = []
    for seq in range(count):
        values = {
            "x": chance.choice((None, 0, 1, 2, 3, 4)),
            "y": chance.choice((None, chance.random(), -0.0, 2.5)),
            "k": chance.choice((*keys, None)),
        }
        made.append(Event(chance.choice("ssst"), 0, seq, (seq // 2) * S // 2, values))
    return made


SHAPES = {
    "a rise": """SELECT ?b.x - ?a.x AS rise, ?a.k AS k FROM (?a, s), (?b, s, t) FILTER (?a.x > 0)
        JOIN (?a.k = ?b.k) JOIN (?b.x - ?a.x > 1) SEQ (?a, ?b) WINDOW (?a, ?b, 8s)""",
    "a silence": """SELECT ?a.y AS y FROM (?a, s), (?b, s), (?n, t)
        PATH {?a :from ?e1 . ?e1 :in ?room . ?room a :Office}
        SEQ (?a, ?b, !?n) WINDOW (?a, ?b, ?n, 4s) JOIN (?b.x >= ?a.x) JOIN (?n.x = ?a.x) PARTITION BY ?a.k""",
    "a climb": """SELECT ?a.k AS k, ?b.x AS xs, SUM(?b.y) AS total, MAX(?b.x) AS top
        FROM (?a, s), (?b, s), (?c, t) SEQ (?a, ?b+, ?c)
        FILTER (?b.x >= PREV(?b.x)) JOIN (COUNT(?b) > ?a.x) WINDOW (?a, ?b, ?c, 5s)
        PARTITION BY ?a.k MATCH next""",
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_with_many_events_when_it_is_really_compiled(name: str) -> None:
    case = Case(SHAPES[name], many(400, len(name)))
    assert case.reason is None
    wanted = case.interpreted()
    assert len(wanted) > 40
    for seed in range(3):
        assert case.compiled(random.Random(seed), (1, 7, 50, 300)) == wanted


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("match", ["any", "next", "strict"])
def test_a_loop_that_goes_on_in_memory_that_moves(match: str) -> None:
    text = """SELECT ?a.k AS k, ?b.x AS xs, FIRST(?b.x) AS first FROM (?a, s), (?b, s)
        SEQ (?a, ?b+) WINDOW (?a, ?b, 4s) PARTITION BY ?a.k MATCH """
    case = Case(text + match, many(60, 2))
    assert case.reason is None
    assert case.compiled(random.Random(1), (60,)) == case.interpreted()


def test_kernels_in_one_process_keep_their_functions_apart() -> None:
    names = {Case(SHAPES[name], []).operator(Strings())._run.py_func.__module__ for name in SHAPES}
    assert len(names) == len(SHAPES)


def test_matches_come_in_pieces_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CHUNK", 5)
    case = Case(SHAPES["a rise"], many(200, 3))
    strings = Strings()
    found = case.operator(strings).feed(table_of(case.rows, ("s", "t"), strings))
    pieces = [[each.to_json() for each in some] for some in found]
    assert len(pieces) > 5
    assert sorted(each for some in pieces for each in some) == case.interpreted()


def test_a_key_that_never_comes_back_leaves_nothing_behind() -> None:
    rows = [Event("s", 0, seq, seq * S, {"x": 1, "y": 0.0, "k": f"k{seq}"}) for seq in range(2000)]
    case = Case(SHAPES["a rise"], rows)
    strings = Strings()
    operator = case.operator(strings)
    for at in range(0, len(rows), 100):
        list(operator.feed(table_of(rows[at : at + 100], ("s", "t"), strings)))
    assert operator.size <= 9
    assert len(operator.snapshot()) < 4000


def test_a_state_of_many_keys_is_loaded_where_none_of_them_is_known() -> None:
    rows = [Event("s", 0, seq, 0, {"x": 1, "y": 0.0, "k": f"k{seq}"}) for seq in range(3000)]
    case = Case(SHAPES["a rise"], rows)
    strings = Strings()
    operator = case.operator(strings)
    list(operator.feed(table_of(rows, ("s", "t"), strings)))
    again = case.operator(Strings())
    again.restore(operator.snapshot())
    assert again.size == 3000
    assert again.slots(again.kernel.bases[0]).shape[0] > 3000


def test_an_operator_that_holds_too_much_says_what_to_write_instead() -> None:
    text = """SELECT ?a.x AS x FROM (?a, s), (?b, s, t) FILTER (?a.x > 0)
        JOIN (?a.k = ?b.k) JOIN (?b.x - ?a.x > 100) SEQ (?a, ?b)"""
    case = Case(text, many(400, 1))
    operator = case.operator(strings := Strings(), Limits(held=20))
    with pytest.raises(Failure, match=r"one .MATCH any. holds 21 .* add a WINDOW"):
        list(operator.feed(table_of(case.rows, ("s", "t"), strings)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST", "AFTER MATCH SKIP"),
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b+) FILTER (SUM(?b.y) > 1)", "a loop with SUM"),
        (
            "SELECT ?b.x FROM (?a, s), (?b, s) SEQ (?a+, ?b) JOIN (?a.x < ?b.x)",
            "a condition on every round of ?a that is tested later",
        ),
    ],
)
def test_what_is_not_compiled_is_told_in_words(text: str, reason: str) -> None:
    assert Case(text, []).reason == reason
