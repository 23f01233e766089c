"""Order and ties: (ts, place of the stream, part, seq), and strictly increasing time in SEQ."""

from __future__ import annotations

from dataclasses import replace

from tests.reference.chi_letters import S, answers, events, found, pattern

from kaicep.plan.events import Event

A_THEN_B = pattern("?a, ?b")


def test_the_order_of_arrival_changes_nothing():
    given = events("a1@0 b1@5 a2@3 b2@1")
    in_turn = [each.match for each in answers(A_THEN_B, given)]
    assert [each.match for each in answers(A_THEN_B, given[::-1])] == in_turn
    assert found(A_THEN_B, given) == ["a1 b1", "a1 b2", "a2 b1"]


def test_events_at_one_instant_do_not_follow_each_other():
    assert found(A_THEN_B, "a1@0 b1@0 b2@0.000001") == ["a1 b2"]


def test_next_passes_over_an_event_at_the_same_instant_and_strict_breaks_there():
    assert found(A_THEN_B + "MATCH next", "a1@0 b1@0 b2@1 b3@2") == ["a1 b2"]
    assert found(A_THEN_B + "MATCH strict", "a1@0 b1@0 b2@1") == []


def test_at_one_instant_position_in_the_part_decides_what_is_adjacent():
    # in order: a1 z1 b1, and a2 b2
    assert found(A_THEN_B + "MATCH strict", "a1@0 z1@0 b1@1 a2@5 b2@6") == ["a2 b2"]
    # z1 comes before a1, so nothing stands between a1 and b1
    assert found(A_THEN_B + "MATCH strict", "z1@0 a1@0 b1@1") == ["a1 b1"]


def test_at_one_instant_a_lower_part_comes_first():
    low, high = events("a1@0", part=0), events("z1@0 b1@1", part=1)
    assert found(A_THEN_B + "MATCH strict", low + high) == []
    low, high = events("z1@0", part=0), events("a1@0 b1@1", part=1)
    assert found(A_THEN_B + "MATCH strict", low + high) == ["a1 b1"]


def test_at_one_instant_the_stream_mentioned_first_comes_first():
    # Both orders of FROM; u1 is adjacent to whatever comes last at its instant.
    given = events("a1@0 u1@1", "s") + events("c1@0", "t")
    query = """SELECT ?p.label FROM {} WHERE FILTER (?q.kind = 'u') FILTER (?p.kind != 'u')
               SEQ (?p, ?q) MATCH strict"""
    assert found(query.format("(?p, s, t), (?q, s)"), given) == ["c1 u1"]
    assert found(query.format("(?p, t, s), (?q, s)"), given) == ["a1 u1"]


def test_time_comes_before_the_place_of_the_stream():
    given = events("b1@2", "s") + events("a1@1", "t")
    query = "SELECT ?a.label FROM (?b, s), (?a, t) SEQ (?a, ?b)"
    assert found(query, given) == ["b1 a1"]


def test_derived_events_at_one_instant_are_ordered_by_id():
    given = [replace(each, id=name) for each, name in zip(events("a1@0 z1@0"), ("f0", "0f"), strict=True)]
    later = replace(events("b1@1")[0], id="aa")
    # z1 (0f) comes before a1 (f0), so that b1 follows a1 immediately
    assert len(answers(A_THEN_B + "MATCH strict", [*given, later])) == 1
    swapped = [replace(given[0], id="00"), given[1], later]
    assert answers(A_THEN_B + "MATCH strict", swapped) == []


def test_matches_come_in_the_order_of_their_end_then_of_their_id():
    matches = [each.match for each in answers(A_THEN_B, "a1@0 a2@1 b1@5 b2@7 a3@8 b3@9")]
    keys = [(each.end_us, each.id) for each in matches]
    assert keys == sorted(keys)
    assert [each.end_us for each in matches] == [5 * S] * 2 + [7 * S] * 2 + [9 * S] * 3


def test_start_and_end_are_those_of_the_first_and_the_last_event():
    (answer,) = answers(A_THEN_B, "a1@1 b1@4")
    assert (answer.match.start_us, answer.match.end_us) == (S, 4 * S)


def test_within_bounds_the_input():
    query = "SELECT ?e.label FROM (?e, s) WITHIN {}"
    given = "a@0 b@1 c@2 d@3"
    low, high = "1970-01-01T00:00:01Z", "1970-01-01T00:00:03Z"
    assert found(query.format(f"[{low}, {high})"), given) == ["b", "c"]
    assert found(query.format(f"({low}, {high}]"), given) == ["c", "d"]
    assert found(query.format(f"[{low}, )"), given) == ["b", "c", "d"]
    # what is outside is not seen, so it does not stand between others either
    inside = pattern("?a, ?b", "MATCH strict").replace("WHERE", f"WITHIN [{low}, {high}] WHERE")
    assert found(inside, "a1@0 z1@0.5 a2@1 b1@2 b2@3.5") == ["a2 b1"]


def test_a_match_needs_an_event():
    assert found(pattern("?a?"), []) == []
    assert found(pattern("?a*"), "z@0") == []


def test_an_event_of_a_stream_that_nobody_reads_is_not_seen():
    assert found("SELECT ?e.label FROM (?e, s)", [*events("a@0"), Event("t", 0, 0, 0, {"label": "x"})]) == [
        "a"
    ]
