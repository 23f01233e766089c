"""Windows of aggregates: sliding and batch, by time and by count."""

from __future__ import annotations

READINGS = """
    event | ts | k | x
    r1    | 0  | p | 1
    r2    | 5  | q | 2
    r3    | 5  | p | 3
    r4    | 10 | p |
    r5    | 12 | p | 5
"""


def test_a_sliding_window_answers_on_every_event_and_excludes_its_far_end(check):
    # at 10 the window is (0, 10]: r1 is out
    check(
        "SELECT SUM(?e.x) AS total, COUNT(?e) AS n, COUNT(?e.x) AS values WINDOW (?e, sliding, 10s)",
        events=READINGS,
        expect="""
            ?e | start | end | total | n | values
            r1 | 0     | 0   | 1     | 1 | 1
            r2 | 0     | 5   | 3     | 2 | 2
            r3 | 0     | 5   | 6     | 3 | 3
            r4 | 5     | 10  | 5     | 3 | 2
            r5 | 5     | 12  | 10    | 4 | 3
        """,
    )


def test_a_sliding_group_is_that_of_the_triggering_event(check):
    check(
        "SELECT ?e.k, AVG(?e.x) AS mean GROUP BY ?e.k WINDOW (?e, sliding, 10s)",
        events=READINGS,
        expect="""
            ?e | k | mean
            r1 | p | 1
            r2 | q | 2
            r3 | p | 2
            r4 | p | 3
            r5 | p | 4
        """,
    )


def test_a_batch_is_aligned_to_the_epoch_and_stamped_with_its_end(check):
    check(
        "SELECT ?e.k, SUM(?e.x) AS total GROUP BY ?e.k WINDOW (?e, batch, 10s)",
        events=READINGS,
        expect="""
            ?e     | k | start | end | total
            r1..r3 | p | 0     | 10  | 4
            r2..r2 | q | 0     | 10  | 2
            r4..r5 | p | 10    | 20  | 5
        """,
    )


def test_a_count_window_slides_over_the_last_events(check):
    check(
        "SELECT SUM(?e.x) AS total WINDOW (?e, sliding, 2)",
        events=READINGS,
        expect="?e | start | total\n r1 | 0 | 1\n r2 | 0 | 3\n r3 | 5 | 5\n r4 | 5 | 3\n r5 | 10 | 5",
    )


def test_a_count_batch_is_every_full_number_of_events(check):
    check(
        "SELECT MIN(?e.x) AS low, MAX(?e.x) AS high WINDOW (?e, batch, 2)",
        events=READINGS,
        expect="?e | start | end | low | high\n r1..r2 | 0 | 5 | 1 | 2\n r3..r4 | 5 | 10 | 3 | 3",
    )


def test_partitions_have_windows_of_their_own(check):
    check(
        "SELECT ?e.k, COUNT(?e) AS n PARTITION BY ?e.k WINDOW (?e, sliding, 2)",
        events=READINGS,
        expect="?e | k | n\n r1 | p | 1\n r2 | q | 1\n r3 | p | 2\n r4 | p | 2\n r5 | p | 2",
    )


def test_a_compared_aggregate_is_the_value_where_the_comparison_holds(check):
    check(
        "SELECT AVG(?e.x) > 2 AS mean WINDOW (?e, sliding, 10s)",
        events=READINGS,
        # r1: 1, r2: 1.5, r3: 2, r4: 2.5, r5: 10/3
        expect="?e | mean\n r4 | 2.5\n r5 | 3.3333333333333335",
    )


def test_having_and_filter(check):
    check(
        "SELECT COUNT(?e) AS n FILTER (?e.x > 1) HAVING (COUNT(?e) > 1 && MAX(?e.x) < 5)"
        " WINDOW (?e, sliding, 1min)",
        events=READINGS,
        expect="?e | n\n r3 | 2",
    )


def test_first_and_last_take_nulls_and_the_others_skip_them(check):
    check(
        "SELECT FIRST(?e.x) AS f, LAST(?e.x) AS l, COUNT(DISTINCT ?e.k) AS ks, STDDEV(?e.x) AS sd"
        " WINDOW (?e, sliding, 4) HAVING (COUNT(?e) = 4)",
        events=READINGS,
        # r1..r4: x 1 2 3 null: sd 1. r2..r5: x 2 3 null 5: mean 10/3, variance 7/3
        expect="?e | f | l | ks | sd\n r4 | 1 | | 2 | 1\n r5 | 2 | 5 | 2 | 1.5275252316519468",
    )


def test_sums_do_not_depend_on_the_order(check):
    check(
        "SELECT SUM(?e.x) AS total HAVING (COUNT(?e) = 4) WINDOW (?e, batch, 1min)",
        events="event | ts | x\n e1 | 0 | 1e16\n e2 | 1 | 1.0\n e3 | 2 | -1e16\n e4 | 3 | 1.0",
        expect="total\n 2.0",
    )


def test_an_int64_sum_that_overflows_is_null(check):
    check(
        "SELECT SUM(?e.x) AS total WINDOW (?e, batch, 1min)",
        events="event | ts | x\n e1 | 0 | 9223372036854775807\n e2 | 1 | 1",
        expect="?e | total\n e1..e2 |",
    )
