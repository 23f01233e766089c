"""Aggregates over sliding and batch windows, of time and of events; GROUP BY and HAVING."""

from __future__ import annotations

from tests.reference.chi_letters import S, answers

COLUMNS = "COUNT(?e) AS n, SUM(?e.x) AS total"


def rows(query, given, *names):
    return [tuple(each.match.select[name] for name in names) for each in answers(query, given)]


def spans(query, given):
    return [(each.match.start_us / S, each.match.end_us / S) for each in answers(query, given)]


def at(seq):
    return {"stream": "s", "part": 0, "seq": seq}


SLIDING = f"SELECT ?e.label, {COLUMNS} FROM (?e, s) WINDOW (?e, sliding, 5s)"


def test_a_sliding_window_of_time_is_open_at_its_beginning():
    # at 5 the event at 0 is out, since its ts is not above 5 - 5
    given = "e1@0:1 e2@3:2 e3@5:4 e4@7.999999:8 e5@8:16"
    assert rows(SLIDING, given, "label", "n", "total") == [
        ("e1", 1, 1),
        ("e2", 2, 3),
        ("e3", 2, 6),
        ("e4", 3, 14),
        ("e5", 3, 28),
    ]


def test_a_sliding_window_goes_up_to_the_triggering_event_in_order():
    # both at one instant: the first does not see the second
    assert sorted(rows(SLIDING, "e1@0:1 e2@0:2", "label", "n", "total")) == [("e1", 1, 1), ("e2", 2, 3)]


def test_a_sliding_match_starts_at_the_oldest_event_in_its_window():
    assert spans(SLIDING, "e1@0 e2@3 e3@5") == [(0, 0), (0, 3), (3, 5)]
    assert [each.match.events for each in answers(SLIDING, "e1@0 e2@3")] == [{"e": at(0)}, {"e": at(1)}]


def test_a_sliding_window_of_events():
    query = f"SELECT ?e.label, {COLUMNS} FROM (?e, s) WINDOW (?e, sliding, 2)"
    assert rows(query, "e1@0:1 e2@100:2 e3@200:4", "label", "n", "total") == [
        ("e1", 1, 1),
        ("e2", 2, 3),
        ("e3", 2, 6),
    ]
    assert spans(query, "e1@0 e2@100 e3@200") == [(0, 0), (0, 100), (100, 200)]


BATCH = f"SELECT {COLUMNS} FROM (?e, s) WINDOW (?e, batch, 5s)"


def test_batches_of_time_are_aligned_to_the_epoch():
    given = "e1@-0.5:1 e2@0:2 e3@4.999999:4 e4@5:8 e5@21:16"
    assert rows(BATCH, given, "n", "total") == [(1, 1), (2, 6), (1, 8), (1, 16)]
    assert spans(BATCH, given) == [(-5, 0), (0, 5), (5, 10), (20, 25)]


def test_a_batch_carries_its_first_and_last_event_and_their_number():
    (answer,) = answers(BATCH, "e1@0 e2@1 e3@2")
    assert answer.match.events == {"e": {"first": at(0), "last": at(2), "count": 3}}


def test_batches_of_events_are_full():
    query = f"SELECT {COLUMNS} FROM (?e, s) WINDOW (?e, batch, 2)"
    given = "e1@0:1 e2@1:2 e3@7:4 e4@9:8 e5@10:16"
    assert rows(query, given, "n", "total") == [(2, 3), (2, 12)]
    assert spans(query, given) == [(0, 1), (7, 9)]


def test_filters_come_before_the_window():
    query = f"SELECT {COLUMNS} FROM (?e, s) FILTER (?e.kind = 'e') WINDOW (?e, batch, 2)"
    assert rows(query, "e1@0:1 z1@1:100 e2@2:2", "n", "total") == [(2, 3)]


def test_within_comes_before_the_window():
    query = BATCH.replace("WINDOW", "WITHIN [1970-01-01T00:00:01Z, ) WINDOW")
    assert rows(query, "e1@0:1 e2@1:2", "n", "total") == [(1, 2)]


def test_groups_inside_a_sliding_window():
    query = f"SELECT ?e.label, ?e.k, {COLUMNS} FROM (?e, s) GROUP BY ?e.k WINDOW (?e, sliding, 3)"
    given = "e1@0:1:x e2@1:2:y e3@2:4:x e4@3:8:x e5@4:16"
    # the window is of three events of any group; the group of the newest answers
    assert rows(query, given, "label", "k", "n", "total") == [
        ("e1", "x", 1, 1),
        ("e2", "y", 1, 2),
        ("e3", "x", 2, 5),
        ("e4", "x", 2, 12),
        ("e5", None, 1, 16),
    ]
    assert spans(query, given)[3:] == [(1, 3), (2, 4)]


def test_groups_inside_a_batch():
    query = f"SELECT ?e.k, {COLUMNS} FROM (?e, s) GROUP BY ?e.k WINDOW (?e, batch, 5s)"
    given = "e1@0:1:x e2@1:2 e3@2:4:x e4@6:8:x"
    assert sorted(rows(query, given, "k", "n", "total"), key=str) == [("x", 1, 8), ("x", 2, 5), (None, 1, 2)]
    by_count = {each.match.events["e"]["count"]: each.match.events["e"] for each in answers(query, given)[:2]}
    assert by_count == {
        1: {"first": at(1), "last": at(1), "count": 1},
        2: {"first": at(0), "last": at(2), "count": 2},
    }


def test_groups_of_a_batch_of_events_span_the_whole_batch():
    query = f"SELECT ?e.k, {COLUMNS} FROM (?e, s) GROUP BY ?e.k WINDOW (?e, batch, 3)"
    given = "e1@0:1:x e2@1:2:y e3@2:4:x"
    assert sorted(rows(query, given, "k", "n", "total")) == [("x", 2, 5), ("y", 1, 2)]
    assert spans(query, given) == [(0, 2), (0, 2)]


def test_having_and_a_column_that_compares_an_aggregate():
    given = "e1@0:1 e2@1:9 e3@2:5"
    query = "SELECT AVG(?e.x) {} AS mean FROM (?e, s) {} WINDOW (?e, sliding, 5s)"
    assert rows(query.format("> 2", ""), given, "mean") == [(5.0,), (5.0,)]
    assert rows(query.format("", "HAVING (AVG(?e.x) > 2 AND COUNT(?e) < 3)"), given, "mean") == [(5.0,)]
    # an aggregate of nothing is null, and a null is not above 2
    assert rows(query.format("> 2", ""), "e1@0", "mean") == []


def test_a_plain_attribute_in_having_is_that_of_the_triggering_event():
    query = "SELECT ?e.label FROM (?e, s) HAVING (?e.x > AVG(?e.x)) WINDOW (?e, sliding, 5s)"
    assert rows(query, "e1@0:1 e2@1:3 e3@2:1", "label") == [("e2",)]


def test_every_aggregate():
    query = """SELECT COUNT(?e.x) AS n, COUNT(DISTINCT ?e.x) AS d, MIN(?e.x) AS low, MAX(?e.x) AS high,
               STDDEV(?e.x) AS s, FIRST(?e.x) AS f, LAST(?e.x) AS l, MAX(?e.ts) AS t, MIN(?e.k) AS k
               FROM (?e, s) WINDOW (?e, batch, 10s)"""
    (answer,) = answers(query, "e1@0:2:b e2@1:4:a e3@2:4 e4@3")
    # n = 3, the sum 10, the squares 36: (3 * 36 - 100) / 6 = 4/3
    assert answer.match.select == {
        "n": 3,
        "d": 2,
        "low": 2,
        "high": 4,
        "s": (4 / 3) ** 0.5,
        "f": 2,
        "l": None,
        "t": "1970-01-01T00:00:03.000000Z",
        "k": "a",
    }
    assert answer.values["t"] == 3 * S


def test_ids_tell_windows_and_groups_apart():
    query = f"SELECT {COLUMNS} FROM (?e, s) GROUP BY ?e.k WINDOW (?e, {{}})"

    def ids(window, given):
        return [each.match.id for each in answers(query.format(window), given)]

    for window in ("sliding, 5s", "sliding, 2", "batch, 5s", "batch, 2"):
        found = ids(window, "e1@0::x e2@0::y e3@6::x e4@6::y")
        assert len(set(found)) == len(found) == 4
    # all at one instant, in one group: the events make the difference
    for window, number in (("sliding, 5s", 4), ("sliding, 1", 4), ("batch, 2", 2)):
        found = ids(window, "e1@0::x e2@0::x e3@0::x e4@0::x")
        assert len(set(found)) == len(found) == number
