"""Windows of RSP-QL: what is in them, when they are evaluated, and what is reported."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers, plan

from kaicep.errors import Mistake

ROWS = "1 a v 1\n2 b v 5\n3 a v 3\n11 a v 7\n12 a v 7"


def window(size: str, select: str, pattern: str, rest: str = "") -> str:
    return f"SELECT {select} FROM NAMED WINDOW :w ON :s [{size}] WHERE {{ {pattern} }} {rest}"


def values(size: str, select: str = "?y", rows: str = ROWS) -> list[str]:
    return answers(rows, window(size, select, "WINDOW :w { ?x v ?y }"))


def test_a_window_of_time_is_evaluated_at_whole_multiples_of_its_step() -> None:
    assert values("RANGE PT4S STEP PT2S") == sorted(
        [
            "y=1 [-2-2]",
            "y=5 [-2-2]",
            "y=1 [0-4]",
            "y=5 [0-4]",
            "y=3 [0-4]",
            "y=3 [2-6]",
            "y=7 [8-12]",
            "y=7 [10-14]",
        ]
    )


def test_order_and_limit_are_of_one_evaluation() -> None:
    query = window("RANGE PT4S STEP PT4S", "?y", "WINDOW :w { ?x v ?y }", "ORDER BY DESC(?y) LIMIT 1")
    assert answers(ROWS, query) == ["y=5 [0-4]", "y=7 [8-12]"]
    second = window("RANGE PT4S STEP PT4S", "?x", "WINDOW :w { ?x v ?y }", "ORDER BY ?x ?y LIMIT 1 OFFSET 2")
    assert answers(ROWS, second) == ["x=b [0-4]"]
    grouped = "(SUM(?y) AS ?n) ?x"
    most = window("RANGE PT4S STEP PT4S", grouped, "WINDOW :w { ?x v ?y }", "GROUP BY ?x ORDER BY ?n LIMIT 1")
    assert answers(ROWS, most) == ["n=4 x=a [0-4]", "n=7 x=a [8-12]"]


def test_ask_is_answered_by_each_evaluation() -> None:
    query = "ASK FROM NAMED WINDOW :w ON :s [RANGE PT4S STEP PT4S] WHERE { WINDOW :w { ?x v 3 } }"
    assert answers(ROWS, query) == ["ask=false [8-12]", "ask=true [0-4]"]


@pytest.mark.parametrize("rest", ["ORDER BY ?y", "LIMIT 3", "OFFSET 1"])
def test_a_stream_has_no_order_and_no_last_match(rest: str) -> None:
    with pytest.raises(Mistake, match="is not possible on a stream"):
        plan(f"SELECT ?y WHERE {{ ?x v ?y }} {rest}")


def test_the_older_end_is_outside_and_the_newer_one_inside() -> None:
    assert values("RANGE PT2S STEP PT2S", rows="2 a v 1\n4 a v 2") == ["y=1 [0-2]", "y=2 [2-4]"]


def test_without_a_step_it_is_evaluated_whenever_a_triple_ends() -> None:
    assert values("RANGE PT1S", rows="1 a v 1\n5 a v 2\n5 a v 3") == ["y=1 [0-1]", "y=2 [4-5]", "y=3 [4-5]"]


def test_a_triple_has_its_time_at_its_end() -> None:
    assert values("RANGE PT2S STEP PT2S", rows="1-5 a v 1") == ["y=1 [4-6]"]


def test_what_was_sent_twice_is_there_once() -> None:
    query = window("RANGE PT10S STEP PT10S", "(SUM(?y) AS ?t)", "WINDOW :w { ?x v ?y }")
    assert answers("1 a v 4\n2 a v 4", query) == ["t=4 [0-10]"]


def test_istream_gives_what_the_evaluation_before_did_not_have() -> None:
    assert values("RANGE PT4S STEP PT2S", "ISTREAM ?y") == sorted(
        ["y=1 [-2-2]", "y=5 [-2-2]", "y=3 [0-4]", "y=7 [8-12]"]
    )


def test_dstream_gives_what_only_the_evaluation_before_had() -> None:
    assert values("RANGE PT4S STEP PT2S", "DSTREAM ?y") == sorted(
        ["y=1 [2-6]", "y=5 [2-6]", "y=3 [4-8]", "y=7 [12-16]"]
    )


def test_after_empty_windows_everything_is_new() -> None:
    assert values("RANGE PT1S STEP PT1S", "ISTREAM ?y", "1 a v 1\n5 a v 1") == ["y=1 [0-1]", "y=1 [4-5]"]


def test_the_last_triples() -> None:
    assert values("ROWS 2", rows="1 a v 1\n2 a v 2\n4 a v 3") == sorted(
        ["y=1 [1]", "y=1 [1-2]", "y=2 [1-2]", "y=2 [2-4]", "y=3 [2-4]"]
    )


def test_the_last_triples_at_every_third_one() -> None:
    rows = "\n".join(f"{at} a v {at}" for at in range(1, 8))
    assert values("ROWS 2 STEP 3", rows=rows) == ["y=2 [2-3]", "y=3 [2-3]", "y=5 [5-6]", "y=6 [5-6]"]


def test_triples_of_one_instant_are_evaluated_one_after_the_other() -> None:
    query = window("ROWS 2", "(COUNT(*) AS ?n) (SUM(?y) AS ?t)", "WINDOW :w { ?x v ?y }")
    assert answers("1 a v 1\n1 a v 2\n1 a v 4", query) == ["n=1 t=1 [1]", "n=2 t=3 [1]", "n=2 t=6 [1]"]


def test_aggregates_are_those_of_one_evaluation() -> None:
    query = window("RANGE PT4S STEP PT4S", "?x (AVG(?y) AS ?m)", "WINDOW :w { ?x v ?y }", "GROUP BY ?x")
    assert answers(ROWS, query) == ["x=a m=2.0 [0-4]", "x=a m=7.0 [8-12]", "x=b m=5.0 [0-4]"]


def test_a_count_of_nothing_in_a_window_that_is_not_empty() -> None:
    query = window("RANGE PT4S STEP PT4S", "(COUNT(*) AS ?n)", "WINDOW :w { ?x v ?y FILTER (?y > 3) }")
    assert answers(ROWS, query) == ["n=1 [0-4]", "n=1 [8-12]"]
    assert answers("1 a v 1", query) == ["n=0 [0-4]"]


def test_having_judges_groups() -> None:
    query = window("RANGE PT4S STEP PT4S", "?x", "WINDOW :w { ?x v ?y }", "GROUP BY ?x HAVING (AVG(?y) > 4)")
    assert answers(ROWS, query) == ["x=a [8-12]", "x=b [0-4]"]


def test_the_knowledge_is_there_too_and_alone_suffices() -> None:
    pattern = "WINDOW :w { ?x v ?y . ?x in ?room }"
    query = window("RANGE PT4S STEP PT4S", "?x ?room", pattern)
    assert answers("1 a v 1", query, knowledge=":a :in :r .") == ["x=a room=r [0-4]"]
    alone = window("RANGE PT4S STEP PT4S", "?room", "WINDOW :w { ?x in ?room }")
    assert answers("1 a v 1", alone, knowledge=":b :in :r .") == ["room=r [0-4]"]


def test_inside_it_is_plain_sparql() -> None:
    pattern = "WINDOW :w { ?x p ?y OPTIONAL { ?x q ?z } FILTER NOT EXISTS { ?x r ?u } }"
    query = window("RANGE PT4S STEP PT4S", "?x ?z", pattern)
    rows = "1 a p 1\n2 a q 2\n1 b p 1\n3 c p 1\n1 c r 1"
    assert answers(rows, query) == ["x=a z=2 [0-4]", "x=b [0-4]"]


def test_each_window_sees_its_own_stream() -> None:
    query = (
        "SELECT ?y ?z FROM NAMED WINDOW :w ON :s [RANGE PT2S STEP PT2S] "
        "FROM NAMED WINDOW :u ON :t [RANGE PT6S STEP PT3S] "
        "WHERE { WINDOW :w { ?x v ?y } WINDOW :u { ?x v ?z } }"
    )
    assert answers("1 a v 1\nt 2 a v 2\n5 a v 3\nt 6 a v 4", query) == ["y=3 z=2 [0-6]", "y=3 z=4 [0-6]"]


def test_filter_and_bind_stand_beside_windows() -> None:
    pattern = "WINDOW :w { ?x v ?y } BIND (?y * 2 AS ?d) FILTER (?d > 8)"
    assert answers(ROWS, window("RANGE PT4S STEP PT4S", "?d", pattern)) == ["d=10 [0-4]", "d=14 [8-12]"]


def test_a_window_stands_in_time_like_any_group() -> None:
    pattern = "{ WINDOW :w { ?x v ?y } } SEQ { ?x v 7 }"
    query = window("RANGE PT4S STEP PT4S", "?y", pattern)
    assert answers(ROWS, query) == ["y=1 [0-11]", "y=1 [0-12]", "y=3 [0-11]", "y=3 [0-12]"]


def test_what_a_rule_makes_of_a_window_joins_the_stream() -> None:
    rule = window("RANGE PT4S STEP PT4S", "", "WINDOW :w { ?x v ?y }").replace(
        "SELECT", "CONSTRUCT { ?x w ?y }"
    )
    assert answers(ROWS, rule, "SELECT ?x ?y { ?x w ?y }") == [
        "x=a y=1 [0-4]", "x=a y=3 [0-4]", "x=a y=7 [8-12]", "x=b y=5 [0-4]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT ?x WHERE { WINDOW :w { ?x v ?y } }", "no window is called <urn:kaicep:w>"),
        (window("RANGE PT0S", "?x", "WINDOW :w { ?x v ?y }"), "a window needs a duration of days and time"),
        (window("ROWS 0", "?x", "WINDOW :w { ?x v ?y }"), "a window has at least one triple"),
        (window("RANGE PT1S", "ISTREAM ?x", "{ ?x v ?y }"), "ISTREAM compares evaluations of windows"),
        (window("RANGE PT1S", "ISTREAM ?x", "WINDOW :w { ?x v ?y } ?x p 1"), "ISTREAM compares evaluations"),
        (
            window("RANGE PT1S", "?x", "WINDOW :w { { ?x v ?y } SEQ { ?x v ?z } }"),
            "what is in a window has no",
        ),
        (window("RANGE PT1S", "(getENDTIME() AS ?t)", "WINDOW :w { ?x v ?y }"), "inside of a window nothing"),
    ],
)
def test_mistakes(query: str, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        plan(query)


# Seven questions in the manner of CSRBench, of weather observations, in the window clause and nothing else.
WEATHER = """
1 s1 temperature 91
1 s2 temperature 60
2 s1 humidity 40
3 s2 temperature 93
4 s1 temperature 89
5 s1 windSpeed 80
6 s2 humidity 95
7 s2 temperature 70
8 s1 windSpeed 20
9 s1 temperature 92
"""
TWO_WINDOWS = """SELECT ?s (MAX(?t) - MIN(?u) AS ?d)
    FROM NAMED WINDOW :w ON :s [RANGE PT2S STEP PT3S]
    FROM NAMED WINDOW :long ON :s [RANGE PT9S STEP PT9S]
    WHERE { WINDOW :w { ?s temperature ?t } WINDOW :long { ?s temperature ?u } } GROUP BY ?s"""
CSRBENCH = {
    "simple filter, tumbling": (
        window("RANGE PT10S STEP PT10S", "?s ?t", "WINDOW :w { ?s temperature ?t FILTER (?t > 90) }"),
        ["s=s1 t=91 [0-10]", "s=s1 t=92 [0-10]", "s=s2 t=93 [0-10]"],
    ),
    "simple filter, short windows": (
        window("RANGE PT1S STEP PT1S", "?s ?t", "WINDOW :w { ?s temperature ?t FILTER (?t > 90) }"),
        ["s=s1 t=91 [0-1]", "s=s1 t=92 [8-9]", "s=s2 t=93 [2-3]"],
    ),
    "average of a window": (
        window(
            "RANGE PT4S STEP PT4S",
            "?s (AVG(?t) AS ?m)",
            "WINDOW :w { ?s temperature ?t }",
            "GROUP BY ?s HAVING (AVG(?t) > 80)",
        ),
        ["s=s1 m=90.0 [0-4]", "s=s1 m=92.0 [8-12]"],
    ),
    "two kinds of observation of one sensor": (
        window("RANGE PT4S STEP PT4S", "?s ?t ?h", "WINDOW :w { ?s temperature ?t . ?s humidity ?h }"),
        ["s=s1 t=89 h=40 [0-4]", "s=s1 t=91 h=40 [0-4]", "s=s2 t=70 h=95 [4-8]"],
    ),
    "no other observation, sliding": (
        window(
            "RANGE PT5S STEP PT5S",
            "ISTREAM ?s ?t",
            "WINDOW :w { ?s temperature ?t FILTER NOT EXISTS { ?s windSpeed ?o FILTER (?o > 50) } }",
        ),
        ["s=s1 t=92 [5-10]", "s=s2 t=60 [0-5]", "s=s2 t=70 [5-10]", "s=s2 t=93 [0-5]"],
    ),
    "a difference between two windows": (
        TWO_WINDOWS,
        ["s=s1 d=3 [0-9]"],
    ),
    "overlapping windows": (
        window("RANGE PT5S STEP PT1S", "DSTREAM ?s ?t", "WINDOW :w { ?s temperature ?t FILTER (?t > 91) }"),
        ["s=s1 t=92 [9-14]", "s=s2 t=93 [3-8]"],
    ),
}


@pytest.mark.parametrize("question", CSRBENCH)
def test_csrbench(question: str) -> None:
    query, expected = CSRBENCH[question]
    assert answers(WEATHER, query) == expected
