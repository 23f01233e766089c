"""What the EP-SPARQL operator keeps: it forgets by the bound, refuses above the cap, and can be saved."""

from __future__ import annotations

import math

import pytest
from tests.kernel.epsparql_support import Rows, both, operator, run_kernel
from tests.reference.epsparql_support import SECOND, knowledge_of, plan, stream, term

from kaicep.errors import Failure
from kaicep.kernel.epsparql import EpOperator
from kaicep.plan.terms import XSD, Literal

WITHIN = 'FILTER (getDURATION() < "PT10S"^^xsd:duration)'
PAIR = f"SELECT ?x ?v ?w WHERE {{ {{ ?x :p ?v }} SEQ {{ ?x :q ?w }} {WITHIN} }}"


def ticks(count: int, keys: int) -> Rows:
    """One triple in each second: `x0 p 0`, `x1 q 1`, `x2 p 2`, ..."""
    return [
        ((term(f"x{i % keys}"), term("pq"[i % 2]), term(str(i))), i * SECOND, i * SECOND)
        for i in range(count)
    ]


def most_kept(query: str, rows: Rows, knowledge: str = "") -> tuple[int, int]:
    """The most that was kept at any time, and what is left in the end."""
    running = operator([plan(query)], knowledge_of(knowledge))
    most = 0
    for row in rows:
        running.feed([row])
        most = max(most, running.size)
    running.finish()
    return most, running.size


@pytest.mark.parametrize(
    "where",
    [
        "{ ?x :p ?v } SEQ { ?x :q ?w }",
        "{ ?x :p ?v . ?y :q ?w }",
        "{ { ?x :p ?v } { ?y :q ?w } }",
        "{ ?x :p ?v } PAR { ?x :q ?w }",
        "{ ?x :p ?v } NOT { ?x :q ?w }",
        "{ ?x :p ?v } EQUALS { ?x :q ?w }",
        "{ { ?x :p ?v } SEQ { ?x :q ?w } } SEQ { ?x :p ?z }",
        "{ ?x :p+ ?v . ?y :q ?w }",
    ],
)
def test_a_bound_of_ten_seconds_keeps_what_ten_seconds_bring(where: str) -> None:
    most, _ = most_kept(f"SELECT * WHERE {{ {where} {WITHIN} }}", ticks(1_500, 750))
    assert most <= 60


def test_a_long_stream_of_keys_that_never_come_back_leaves_nothing() -> None:
    most, _ = most_kept(PAIR, ticks(10_000, 10_000))
    assert most <= 30


def test_without_a_bound_everything_is_kept() -> None:
    most, _ = most_kept("SELECT * WHERE { ?x :p ?v } SEQ { ?x :q ?w }", ticks(1_000, 500))
    assert most >= 500


@pytest.mark.parametrize(
    "where", ["{ ?x :p ?v } OPTIONALSEQ { ?x :q ?w }", "{ ?x :q ?w OPTIONAL { ?x :p ?v } }"]
)
def test_of_an_optional_side_one_witness_for_each_key_stays(where: str) -> None:
    # A partner that is too old for an answer still is a partner: the other side does not stand alone.
    query = f"SELECT * WHERE {{ {where} {WITHIN} }}"
    most, _ = most_kept(query, ticks(2_000, 7))
    assert most <= 30
    expected, found = both(ticks(60, 7), query)
    assert found == expected


def test_a_filter_inside_the_optional_side_bounds_it() -> None:
    query = f"SELECT * WHERE {{ ?x :p ?v {WITHIN} }} OPTIONALSEQ {{ ?x :q ?w }}"
    assert most_kept(query, ticks(2_000, 500))[0] <= 30


def test_time_alone_frees_what_is_kept() -> None:
    running = operator([plan(PAIR)], knowledge_of(""))
    running.feed(ticks(20, 20))
    running.advance(20 * SECOND)
    assert running.size > 0
    running.advance(60 * SECOND)
    assert running.size == 0


def test_above_the_cap_the_operator_is_named_and_the_way_out() -> None:
    running = EpOperator(
        [plan("SELECT * WHERE { ?x :p ?v } SEQ { ?x :q ?w }", "mine")],
        knowledge_of(""),
        held=100,
    )
    with pytest.raises(Failure, match=r"SEQ in mine keeps more than 100 solutions: .*getDURATION\(\) <"):
        running.feed(ticks(1_000, 500))


@pytest.mark.parametrize(
    ("query", "way"),
    [
        ("SELECT ?v (COUNT(*) AS ?n) WHERE { ?x :p ?v FILTER } GROUP BY ?v", "group by fewer keys"),
        ("SELECT * WHERE { ?x :q ?v OPTIONAL { ?x :p ?w FILTER (?w > ?v) } FILTER }", "FILTER inside of it"),
        ("SELECT * WHERE { ?x :q ?v MINUS { ?x :p ?v } FILTER }", "or use NOT"),
        ("SELECT * WHERE { ?x :q ?v FILTER EXISTS { ?x :p ?v } FILTER }", "or use NOT"),
        (
            "CONSUMPTION recent SELECT * WHERE { { ?x :p ?v } SEQ { ?y :q ?w } FILTER }",
            r"SEQ \(CONSUMPTION recent\) .* leave the policy out",
        ),
    ],
)
def test_a_bound_that_the_query_has_already_is_not_what_helps(query: str, way: str) -> None:
    bounded = query.replace("FILTER }", f"{WITHIN} }}")
    running = EpOperator([plan(bounded, "q")], knowledge_of(""), held=100)
    with pytest.raises(Failure, match=f"more than 100 solutions: .*{way}" if "SEQ" not in way else way):
        running.feed(ticks(1_000, 500))


def test_a_runaway_rule_is_stopped_and_named() -> None:
    rule = plan("CONSTRUCT { ?x n ?m } WHERE { ?x n ?k BIND (?k + 1 AS ?m) }", "counts")
    with pytest.raises(Failure, match=r"rule counts runs away: more than 50 triples .* 1970-01-01T00:00:03"):
        run_kernel([rule], stream("3 a n 1"), knowledge_of(""), limit=50)


def test_a_runaway_rule_whose_triples_are_read_later_is_stopped_and_named() -> None:
    rule = plan("CONSTRUCT { ?y n ?x } WHERE { ?x p ?y MINUS { { ?x n ?y } SEQ { ?x q ?y } } }", "pairs")
    rows = stream("1 a p b\n1 a p c\n2 a p b\n2 b p c\n2 c p d")
    with pytest.raises(Failure, match=r"rule pairs runs away: more than 2 triples .* 1970-01-01T00:00:02"):
        run_kernel([rule], rows, knowledge_of(""), limit=2)
    assert len(run_kernel([rule], rows, knowledge_of(""), limit=3)["pairs"]) == 5


def test_a_rule_that_takes_back_what_it_derives_is_named() -> None:
    rule = plan("CONSTRUCT { ?x b ?y } WHERE { ?x a1 ?y FILTER NOT EXISTS { ?x b ?y } }", "wavers")
    with pytest.raises(Failure, match="rule wavers never settles"):
        run_kernel([rule], stream("1 x a1 y"), knowledge_of(""))


def test_what_is_derived_must_be_derived_from_something() -> None:
    # `first` holds of the first tick alone; that a later one has it for a round must leave nothing behind.
    first = (
        "CONSTRUCT { ?x first ?t } WHERE { { ?o first ?u } OPTIONALSEQ { ?x tick ?t } FILTER (!BOUND(?u)) }"
    )
    kept = ["CONSTRUCT { ?x kept ?t } WHERE { ?x first ?t }", "CONSTRUCT { ?x kept ?t } WHERE { ?x kept ?t }"]
    plans = [plan(text, f"q{i}") for i, text in enumerate([first, *kept, "SELECT ?x { ?x kept ?t }"])]
    found = run_kernel(plans, stream("1 a tick 1\n2 b tick 2\n3 c tick 3"), knowledge_of(""))
    assert [each.select["x"]["value"] for each in found["q3"]] == ["urn:kaicep:a"]


# --- instants ----------------------------------------------------------------------------------------


GROWING = [
    "{ ?x :p ?v } EQUALS { ?x :q ?w }",
    "{ ?x :p ?v . ?x :q ?w }",
    "{ { ?x :p ?v } UNION { ?x :r ?v } } { ?x :q ?w }",
    "{ ?x (:p|:r)/:s ?v . ?x :q ?w }",
]
MADE = "CONSTRUCT { ?x :q ?w } WHERE { ?x :made ?w }"


@pytest.mark.parametrize("where", GROWING)
@pytest.mark.parametrize("rules", [[], [MADE]], ids=["alone", "with a rule"])
def test_what_nothing_can_change_is_answered_at_once_and_once(where: str, rules: list[str]) -> None:
    plans = [plan(f"SELECT * WHERE {where}"), *(plan(each, "rule") for each in rules)]
    running = operator(plans, knowledge_of(":b :s 7 ."))
    rows = stream(f"1 a p b\n1 a {'made' if rules else 'q'} c\n1 a p b\n1 a p c\n2 z z z")

    def answered(row: Rows) -> int:
        again = operator(plans, knowledge_of(":b :s 7 ."))
        again.restore(running.snapshot())  # what was answered before a state is saved is not answered again
        found = [sum(each.query == "q" for each in one.feed(row)) for one in (again, running)]
        assert found[0] == found[1]
        return found[0]

    last = 0 if "/" in where else 1  # c has no s
    assert [answered([row]) for row in rows] == [0, 1, 0, last, 0]
    assert [each for each in running.finish() if each.query == "q"] == []


@pytest.mark.parametrize(
    "where", ["{ ?x :p ?v } EQUALSOPTIONAL { ?x :q ?w }", "{ ?x :p ?v OPTIONAL { ?x :q ?w } }"]
)
def test_what_can_change_is_answered_when_the_instant_is_over(where: str) -> None:
    running = operator([plan(f"SELECT * WHERE {where}")], knowledge_of(""))
    rows = stream("1 a p b\n1 a q c\n2 a z b")
    assert list(running.feed(rows[:1])) == []
    assert list(running.advance(1 * SECOND)) == []  # more may come at the watermark itself
    assert running.promise(1 * SECOND) == SECOND
    assert list(running.feed(rows[1:2])) == []
    assert len(running.feed(rows[2:])) == 1
    assert list(running.advance(math.inf)) == []


def test_what_comes_out_of_order_is_refused() -> None:
    running = operator([plan(PAIR)], knowledge_of(""))
    with pytest.raises(Failure, match="comes after"):
        running.feed(stream("2 a p b\n1 a p b"))


# --- saving ------------------------------------------------------------------------------------------


def test_the_state_of_other_queries_is_refused() -> None:
    state = operator([plan(PAIR)], knowledge_of("")).snapshot()
    with pytest.raises(Failure, match="other EP-SPARQL queries"):
        operator([plan(PAIR, "another")], knowledge_of("")).restore(state)


def test_a_saved_state_does_not_depend_on_the_cuts() -> None:
    states = []
    for size in (1, 3, 50):
        running = operator([plan(PAIR)], knowledge_of(""))
        rows = ticks(50, 20)
        for begin in range(0, len(rows), size):
            running.feed(rows[begin : begin + size])
        states.append(running.snapshot())
    assert len(set(states)) == 1
    assert states[0].startswith(b"kaicep epsparql ")


@pytest.mark.parametrize(
    "of", ["SUM(?v)", "AVG(DISTINCT ?v)", "MAX(?v)", "COUNT(*)", "GROUP_CONCAT(STR(?v))"]
)
def test_running_aggregates_survive(of: str) -> None:
    query = f"SELECT ?x ({of} AS ?n) WHERE {{ ?x ?p ?v }} GROUP BY ?x"
    for seed in range(5):
        expected, found = both(ticks(30, 3), query, knowledge=":x1 :p 7 .", seed=seed)
        assert found == expected


def test_sums_of_doubles_are_rounded_once() -> None:
    # 1e100 + 1 - 1e100 is 1, whatever came in between.
    texts = ["1e100", "1", "-1e100", "0.1"]
    rows: Rows = [
        ((term("a"), term("p"), Literal(text, XSD + "double")), i, i) for i, text in enumerate(texts)
    ]
    expected, found = both(rows, "SELECT (SUM(?v) AS ?n) WHERE { ?x p ?v }", seed=1)
    assert found == expected
    assert [each.select["n"]["value"] for each in found["q0"]] == ["1e+100", "1e+100", "1.0", "1.1"]
