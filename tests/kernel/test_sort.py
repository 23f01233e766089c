"""The sort stage: what is late, what may be released, and when (semantics 1)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaicep.kernel.sort import Parts, Sorter
from kaicep.plan.events import Event


def push(parts: Parts, sorter: Sorter, *events: Event) -> list[tuple[str, int, int]]:
    sorter.offer([each for each in map(parts.arrive, events) if not each.late])
    return [(each.stream, each.ts, each.part) for each in sorter.release()]


def test_one_part_in_order_is_released_at_once():
    parts = Parts(lateness=0)
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 5)) == [("s", 5, 0)]
    assert push(parts, sorter, Event("s", 0, 1, 5)) == [("s", 5, 0)]
    assert sorter.watermark == 5


def test_without_lateness_only_the_end_settles_the_order():
    parts = Parts(lateness=None)
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 9), Event("s", 0, 1, 3)) == []
    assert sorter.watermark == -math.inf
    parts.finished = True
    assert [each.ts for each in sorter.release()] == [3, 9]
    assert sorter.watermark == math.inf


def test_an_event_waits_for_what_may_still_stand_before_it():
    parts = Parts(lateness=2)
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 10)) == []
    assert push(parts, sorter, Event("s", 0, 1, 8)) == [("s", 8, 0)]  # nothing below 8 is in time any more
    assert push(parts, sorter, Event("s", 0, 2, 12)) == [("s", 10, 0)]


def test_a_part_that_is_expected_holds_the_others_back_until_it_is_idle():
    parts = Parts(lateness=0, expected=[("s", 0), ("s", 1)])
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 5)) == []
    parts.idle("s", 1)
    assert [each.ts for each in sorter.release()] == [5]
    # it wakes up behind the others: what they went past is late, what they did not is not
    assert sorter.has_passed(Event("s", 1, 0, 4))
    assert not sorter.has_passed(Event("s", 1, 0, 5))
    assert push(parts, sorter, Event("s", 1, 0, 5)) == []  # part 0 may still have another one at 5
    assert push(parts, sorter, Event("s", 0, 1, 6)) == [("s", 5, 1)]


def test_where_all_parts_are_silent_the_furthest_of_them_counts():
    parts = Parts(lateness=0, expected=[("s", 0), ("s", 1)])
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 5), Event("s", 1, 0, 3)) == [("s", 3, 1)]
    parts.idle("s", 0)
    parts.idle("s", 1)
    assert [each.ts for each in sorter.release()] == [5]
    assert sorter.watermark == 5  # the time stands still with them: what comes later is in time
    assert push(parts, sorter, Event("s", 0, 1, 6)) == [("s", 6, 0)]


def test_at_one_time_the_place_of_the_stream_decides_who_must_wait():
    parts = Parts(lateness=0, expected=[("a", 0), ("b", 0)])
    first, second = Sorter(["a", "b"], parts), Sorter(["b", "a"], parts)
    for each in (Event("a", 0, 0, 5), Event("b", 0, 0, 5)):
        parts.arrive(each)
        first.offer([each])
        second.offer([each])
    # after ("b", 5) only ("b", 5) again may come before anything else of that time where b is last
    assert [each.stream for each in first.release()] == ["a"]
    assert [each.stream for each in second.release()] == ["b"]


def test_a_derived_stream_waits_for_its_promise():
    parts = Parts(lateness=0)
    parts.derive("q", 5)
    sorter = Sorter(["q"], parts)
    sorter.offer([Event("q", 0, 0, 5, id="b"), Event("q", 0, 0, 4, id="c")])
    assert [each.id for each in sorter.release()] == ["c"]  # a match that ends at 5 may have a smaller id
    sorter.offer([Event("q", 0, 0, 5, id="a")])
    parts.derive("q", 6)
    assert [each.id for each in sorter.release()] == ["a", "b"]


def test_no_event_below_a_time_that_was_reached():
    parts = Parts(lateness=5, expected=[("s", 0)])
    sorter = Sorter(["s"], parts)
    assert push(parts, sorter, Event("s", 0, 0, 10)) == []
    parts.reach(11)
    assert [each.ts for each in sorter.release()] == [10]
    assert sorter.watermark == 11


@pytest.mark.parametrize("lateness", [0, 3, None])
@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 9)), max_size=30),
    seed=st.integers(0, 1000),
)
def test_any_arrival_is_released_in_order_and_late_is_what_the_source_says(lateness, rows, seed):
    chance = random.Random(seed)
    parts = Parts(lateness, {(stream, part) for stream, part, _ in rows})
    sorter = Sorter(["b", "a"], parts)
    positions: dict[tuple[str, int], int] = {}
    newest: dict[tuple[str, int], int] = {}
    out: list[Event] = []
    wanted = []
    for stream, part, ts in rows:
        seq = positions[stream, part] = positions.get((stream, part), -1) + 1
        event = parts.arrive(Event(stream, part, seq, ts))
        before = newest.get((stream, part), ts)
        assert event.late == (lateness is not None and ts < before - lateness)
        newest[stream, part] = max(before, ts)
        if not event.late:
            assert not sorter.has_passed(event)
            sorter.offer([event])
            wanted.append(event)
        if chance.random() < 0.6:
            out += sorter.release()
        if chance.random() < 0.2:
            saved, sorter = sorter.document(), Sorter(["b", "a"], parts)
            sorter.load(saved)
    parts.finished = True
    out += sorter.release()
    assert out == sorted(wanted, key=lambda each: (each.ts, "ba".index(each.stream), each.part, each.seq))
