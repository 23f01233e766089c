"""The testing kit itself: it must be able to fail, and say why."""

from __future__ import annotations

import random

import pytest

from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.testing import arrivals, check, in_batches, parse_table, renumbered, run

QUERY = "SELECT ?b.x - ?a.x AS rise SEQ (?a, ?b) WINDOW (?a, ?b, 5min)"
EVENTS = """
    event | ts | x
    e1    | 0  | 1
    e2    | 60 | 3
"""


def test_a_difference_shows_what_is_missing_and_what_is_too_much():
    with pytest.raises(AssertionError) as caught:
        check(QUERY, EVENTS, "?a | ?b | rise\n e1 | e2 | 3\n e2 | e1 | 0")
    assert str(caught.value) == (
        "missing:\n?a | ?b | rise\ne1 | e2 | 3.0\ne2 | e1 | 0.0\n\n"
        "not expected:\n?a | ?b | rise\ne1 | e2 | 2.0"
    )


def test_an_unexpected_match_fails_where_none_is_expected():
    with pytest.raises(AssertionError, match="not expected"):
        check(QUERY, EVENTS, "?a | ?b")


def test_a_wrong_query_is_a_mistake():
    with pytest.raises(Mistake, match="has no attribute y"):
        run("SELECT ?e.y", EVENTS)


def test_run_gives_the_matches():
    (match,) = run(QUERY, EVENTS)
    assert match.select == {"rise": 2}
    assert match.events == {
        "a": {"stream": "s", "part": 0, "seq": 0},
        "b": {"stream": "s", "part": 0, "seq": 1},
    }


def test_arrivals_keep_ties_in_order_and_make_nothing_late():
    events = [Event("s", 0, index, ts) for index, ts in enumerate([5, 5, 7, 9, 20])]
    orders = list(arrivals(events, 3, 20, seed=1))
    assert orders[0] == [0, 1, 2, 3, 4]
    assert len({tuple(order) for order in orders}) > 2
    for order in orders:
        assert order.index(0) < order.index(1)
        assert order[-1] == 4
        assert [event.seq for event in renumbered(events, order)] == [0, 1, 2, 3, 4]


def test_where_an_event_is_late_its_order_is_the_only_one():
    events = [Event("s", 0, 0, 10), Event("s", 0, 1, 1)]
    assert list(arrivals(events, 5, 20, seed=1)) == [[0, 1]]


def test_batches_hold_every_event_once_and_in_order():
    events = [Event("s", 0, index, index) for index in range(9)]
    for seed in range(50):
        batches = in_batches(events, random.Random(seed))
        assert [event for batch in batches for event in batch] == events


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="3 cells under 2 columns"):
        parse_table("a | b\n 1 | 2 | 3")
