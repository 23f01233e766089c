"""Order, ties, bounds and lateness."""

from __future__ import annotations

import pytest

PAIR = """
    SELECT ?a.ts AS at FROM (?a, s), (?b, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') SEQ (?a, ?b) WINDOW (?a, ?b, {width})
"""


def test_seq_needs_a_strictly_greater_time(check):
    check(
        PAIR.format(width="1min"),
        events="event | ts | kind\n a1 | 5 | a\n b1 | 5 | b\n b2 | 5.000001 | b",
        expect="?a | ?b\n a1 | b2",
    )


def test_a_window_between_events_includes_its_width(check):
    check(
        PAIR.format(width="5min"),
        events="event | ts | kind\n a1 | 0 | a\n b1 | 300 | b\n b2 | 300.000001 | b",
        expect="?a | ?b | start | end\n a1 | b1 | 0 | 300",
    )


def test_several_windows_must_all_hold(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, ?b, ?c) WINDOW (?a, ?b, 2s) WINDOW (?b, ?c, 3s)
        """,
        events="event | ts | kind\n a1 | 0 | a\n b1 | 2 | b\n b2 | 3 | b\n c1 | 5 | c\n c2 | 6 | c",
        expect="?a | ?b | ?c\n a1 | b1 | c1",
    )


BOUNDED = "SELECT ?e.x FROM (?e, s) WITHIN {bounds}"
MINUTES = """
    event | ts                  | x
    m0    | 2012-05-07T09:00:00 | 0
    m1    | 2012-05-07T09:01:00 | 1
    m2    | 2012-05-07T09:02:00 | 2
"""


def test_square_brackets_include_a_bound_and_round_ones_exclude_it(check):
    low, high = "2012-05-07T09:00", "2012-05-07T09:02"
    for bounds, rows in {
        f"[{low}, {high})": "m0 m1",
        f"({low}, {high}]": "m1 m2",
        f"({low}, {high})": "m1",
        f"[{low}, {high}]": "m0 m1 m2",
        f"[{high}, )": "m2",
        f"(, {low}]": "m0",
    }.items():
        check(BOUNDED.format(bounds=bounds), events=MINUTES, expect="?e\n" + "\n".join(rows.split()))


def test_now_is_read_once_and_may_be_set(check):
    query = BOUNDED.format(bounds="[now - 1min, now)")
    check(query, events=MINUTES, now="2012-05-07T09:02", expect="?e\n m1")


def test_without_within_a_finite_input_is_seen_whole(check):
    check("SELECT ?e.x FROM (?e, s)", events=MINUTES, expect="?e\n m0\n m1\n m2")


def test_a_late_event_is_used_by_no_match(check):
    # l1 is 11 s behind the latest event of its part, and 10 s are allowed; o1 is just in time
    check(
        "SELECT ?e.x FROM (?e, s)",
        events="event | ts | x\n e1 | 20 | 1\n o1 | 10 | 2\n l1 | 9 | 3",
        lateness="10s",
        expect="?e\n o1\n e1",
    )


def test_lateness_is_judged_inside_each_part(check):
    check(
        "SELECT ?e.x FROM (?e, s)",
        events="event | ts | part | x\n e1 | 20 | 0 | 1\n f1 | 5 | 1 | 2\n f2 | 4 | 1 | 3",
        lateness="0s",
        expect="?e\n e1\n f1",
    )


def test_the_order_across_streams_is_time_then_place_in_from(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?b, second), (?a, first), (?n, second)
        FILTER (?n.kind = 'n') FILTER (?b.kind = 'b')
        SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 1min)
        """,
        # `second` is mentioned first, so n1 comes before a1 at the same time and is not between a1 and b1
        events={
            "first": "event | ts\n a1 | 0",
            "second": "event | ts | kind\n n1 | 0 | n\n b1 | 1 | b",
        },
        expect="?a | ?b\n a1 | b1",
    )


SILENT = """
    SELECT ?a.x FROM (?a, s), (?n, s)
    FILTER (?a.x = 1) FILTER (?n.x = 0) SEQ (?a, !?n) WINDOW (?a, ?n, {})
"""


@pytest.mark.parametrize(
    ("window", "end", "rows"),
    [
        ("5s", "closed", "a1 a2"),
        ("5s", "open", "a1"),  # a2 waits until 13
        ("2s", "open", "a1"),  # its deadline is the newest event's time: one of that time may still come
        ("1999ms", "open", "a1 a2"),
    ],
)
def test_at_an_open_end_a_trailing_absence_is_decided_before_the_newest_event(check, window, end, rows):
    check(
        SILENT.format(window),
        events="event | ts | x\n a1 | 0 | 1\n a2 | 8 | 1\n z1 | 10 | 2",
        end=end,
        expect="?a\n" + "\n".join(rows.split()),
    )


@pytest.mark.parametrize(("newest", "rows"), [("9", ""), ("10", "3"), ("11", "3")])
def test_at_an_open_end_a_batch_is_reported_that_does_not_end_after_the_newest_event(check, newest, rows):
    check(
        "SELECT SUM(?e.x) AS total FROM (?e, s) FILTER (?e.x < 9) WINDOW (?e, batch, 10s)",
        events=f"event | ts | x\n e1 | 0 | 1\n e2 | 5 | 2\n z1 | {newest} | 9",
        end="open",
        expect="total\n" + rows,
    )


def test_an_open_end_is_that_of_the_streams_that_a_query_reads(check):
    check(
        {"one.chi": SILENT.format("5s"), "two.chi": SILENT.format("5s").replace(", s)", ", t)")},
        events={
            "s": "event | ts | x\n a1 | 0 | 1\n z1 | 9 | 2",
            "t": "event | ts | x\n b1 | 0 | 1\n z2 | 4 | 2",
        },
        end="open",
        expect="query\n one",
    )
