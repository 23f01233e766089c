"""CONSTRUCT rules: their triples join the stream, recursively (the Q-closure of section 4.2)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.reference.epsparql_support import answers, knowledge_of, plan, run, shown, stream

from kaicep.errors import Failure
from kaicep.plan.algebra import only_grows
from kaicep.reference.sparql import _body, _grown, _settled, _TripleReader

CLOSURE = "CONSTRUCT { ?x reaches ?y } WHERE { ?x link ?y }"
STEP = "CONSTRUCT { ?x reaches ?z } WHERE { ?x reaches ?y . ?y link ?z }"


def test_a_constructed_triple_has_the_interval_of_its_solution() -> None:
    rule = "CONSTRUCT { ?c falls ?p } WHERE { ?c price ?o } SEQ { ?c price ?p } FILTER (?p < ?o)"
    found = run("1 acme price 9\n2 acme price 7", rule, "SELECT ?c ?p { ?c falls ?p }")
    assert [each.to_dict() for each in found["q0"]] == [
        {
            "query": "q0",
            "id": found["q0"][0].id,
            "start": "1970-01-01T00:00:01.000000Z",
            "end": "1970-01-01T00:00:02.000000Z",
            "triples": [
                '<urn:kaicep:acme> <urn:kaicep:falls> "7"^^<http://www.w3.org/2001/XMLSchema#integer> .'
            ],
        }
    ]
    assert [shown(each) for each in found["q1"]] == ["c=acme p=7 [1-2]"]


def test_transitive_closure() -> None:
    table = "1 a link b\n2 b link c\n3 c link d"
    assert answers(table, CLOSURE, STEP, "SELECT ?x ?y { ?x reaches ?y }") == [
        "x=a y=b [1]",
        "x=a y=c [1-2]",
        "x=a y=d [1-3]",
        "x=b y=c [2]",
        "x=b y=d [2-3]",
        "x=c y=d [3]",
    ]


def test_the_closure_of_a_circle_ends() -> None:
    table = "1 a link b\n1 b link a"
    assert answers(table, CLOSURE, STEP, "SELECT ?x ?y { ?x reaches ?y }") == [
        "x=a y=a [1]",
        "x=a y=b [1]",
        "x=b y=a [1]",
        "x=b y=b [1]",
    ]


def test_rules_may_stand_in_any_order() -> None:
    table = "1 a link b\n2 b link c"
    query = "SELECT ?x ?y { ?x reaches ?y }"
    assert answers(table, STEP, CLOSURE, query) == answers(table, CLOSURE, STEP, query)


def test_a_rule_that_reads_strictly_earlier_triples_counts() -> None:
    first = "CONSTRUCT { ?s count 1 } WHERE { ?s tick ?t FILTER NOT EXISTS { ?s tick ?u FILTER (?u < ?t) } }"
    more = (
        "CONSTRUCT { ?s count ?m } WHERE { { ?s count ?n } SEQ { ?s tick ?t } "
        "FILTER (?n + 1 = ?t) BIND (?n + 1 AS ?m) }"
    )
    table = "\n".join(f"{each} s tick {each}" for each in range(1, 7))
    found = answers(table, first, more, "SELECT ?n { s count ?n }")
    assert found == ["n=1 [1]", *(f"n={each} [1-{each}]" for each in range(2, 7))]


def test_a_blank_node_is_one_node_for_each_rule_and_solution() -> None:
    rule = "CONSTRUCT { _:e of ?x . _:e at ?y } WHERE { ?x p ?y }"
    other = "CONSTRUCT { _:e of ?x } WHERE { ?x p ?y }"
    table = "1 a p b\n2 a p b\n3 c p d"
    joined = answers(table, rule, "SELECT ?x ?y { ?e of ?x . ?e at ?y }")
    assert joined == ["x=a y=b [1]", "x=a y=b [2]", "x=c y=d [3]"]
    first, second = run(table, rule)["q0"], run(table, rule)["q0"]
    assert first == second
    labels = {line.split()[0] for each in first for line in each.triples or ()}
    assert len(labels) == 3
    both = run(table, rule, other)
    assert not labels & {line.split()[0] for each in both["q1"] for line in each.triples or ()}


def test_what_nobody_can_name_makes_no_second_match() -> None:
    rule = "CONSTRUCT { _:e of ?x . ?x has ?y } WHERE { ?x p [ q ?y ] }"
    assert len(run("1 a p b\n1 a p c\n1 b q d\n1 c q d", rule)["q0"]) == 1


def test_triples_are_sorted_and_told_once() -> None:
    rule = "CONSTRUCT { ?x z ?y . ?x b ?y . ?x b ?y } WHERE { ?x p ?y }"
    (match,) = run("1 a p b", rule)["q0"]
    assert match.triples == (
        "<urn:kaicep:a> <urn:kaicep:b> <urn:kaicep:b> .",
        "<urn:kaicep:a> <urn:kaicep:z> <urn:kaicep:b> .",
    )


def test_a_solution_that_leaves_a_variable_of_the_template_unbound_gives_nothing() -> None:
    rule = "CONSTRUCT { ?x kept ?y . ?x has ?z } WHERE { ?x p ?y OPTIONAL { ?x q ?z } }"
    assert run("1 a p b", rule)["q0"] == []


def test_what_is_no_triple_is_left_out() -> None:
    rule = "CONSTRUCT { ?y is ?x . ?x kept ?y } WHERE { ?x p ?y }"
    (match,) = run("1 a p 5", rule)["q0"]
    assert match.triples is not None
    assert len(match.triples) == 1


def test_matches_come_by_end_and_then_by_id() -> None:
    found = run("1-4 a p b\n2 c p d\n3-4 e p f", "SELECT ?x { ?x p ?y }")["q0"]
    assert [(each.end_us, each.id) for each in found] == sorted((each.end_us, each.id) for each in found)
    assert len({each.id for each in found}) == 3


def test_ids_depend_on_name_text_and_solution_alone() -> None:
    alone = run("2 a p b", "SELECT ?x { ?x p ?y }")["q0"]
    among = run("1 z p b\n2 a p b", "SELECT ?x { ?x p ?y }")["q0"]
    assert alone[0] in among


def test_a_runaway_rule_is_stopped_and_named() -> None:
    rule = "CONSTRUCT { ?x n ?m } WHERE { ?x n ?k BIND (?k + 1 AS ?m) }"
    with pytest.raises(Failure, match=r"rule q1 runs away: more than 50 triples .* 1970-01-01T00:00:03"):
        run("3 a n 1", CLOSURE, rule, limit=50)


def test_a_runaway_rule_is_noticed_soon() -> None:
    # Ten thousand rounds of one triple each, and a new node in every round.
    with pytest.raises(Failure, match=r"rule q0 runs away: more than 10,000 triples"):
        run("3 a next b", "CONSTRUCT { ?y next _:more } WHERE { VALUES ?p { next } ?x ?p ?y }")


def test_the_limit_is_for_each_end() -> None:
    rule = "CONSTRUCT { ?x n ?m } WHERE { ?x n ?k BIND (?k + 1 AS ?m) FILTER (?m < 30) }"
    table = "\n".join(f"{each} s{each} n 0" for each in range(1, 5))
    assert len(run(table, rule, limit=50)["q0"]) == 4 * 29


def test_a_rule_that_takes_back_what_it_derives_is_named() -> None:
    # b follows from the absence of b at the same instant.
    rule = "CONSTRUCT { ?x b ?y } WHERE { ?x a1 ?y FILTER NOT EXISTS { ?x b ?y } }"
    with pytest.raises(Failure, match="rule q0 never settles"):
        run("1 x a1 y", rule)


def test_absence_of_what_is_derived_earlier_settles() -> None:
    # A tick marks its subject, unless it was marked strictly before.
    rule = (
        "CONSTRUCT { ?x first ?t } WHERE { { ?o first ?u } OPTIONALSEQ { ?x tick ?t } FILTER (!BOUND(?u)) }"
    )
    assert answers("1 a tick 1\n2 b tick 2\n3 c tick 3", rule, "SELECT ?x { ?x first ?t }") == ["x=a [1]"]


# --- two ways to the closure -------------------------------------------------------------------------


def random_rule(random: Random) -> str:
    """A rule that only grows, and makes no new terms, so that it ends."""

    def group() -> str:
        ends = ["?x", "?y", "?z"]
        triples = [
            f"{random.choice(ends)} {random.choice([':p', ':q', ':p+', '?w'])} {random.choice(ends)} ."
            for _ in range(random.choice([1, 2]))
        ]
        more = ["FILTER (?x != ?y)", "BIND (?x AS ?v)", "VALUES ?x { :a :b }", ""]
        return f"{{ {' '.join(triples)} {random.choice(more)} }}"

    shapes = [
        f"{{ {group()} SEQ {group()} }}",
        f"{{ {group()} PAR {group()} }}",
        f"{{ {group()} UNION {group()} }}",
        f"{{ {group()} {group()} }}",
        f"{{ {{ SELECT ?x ?y WHERE {group()} }} }}",
        group(),
    ]
    return f"CONSTRUCT {{ ?x {random.choice([':p', ':q'])} ?y }} WHERE {random.choice(shapes)}"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_deriving_from_what_is_new_and_deriving_all_anew_agree(seed: int) -> None:
    random = Random(seed)
    rules = [plan(random_rule(random), f"q{index}") for index in range(2)]
    note("\n".join(each.text for each in rules))
    rows = "\n".join(
        f"{random.randrange(4)} {random.choice('abc')} {random.choice('pq')} {random.choice('abc')}"
        for _ in range(5)
    )
    occurrences = {(triple, (start, end)) for triple, start, end in stream(rows)}
    assert all(only_grows(_body(each)) for each in rules)
    reader = _TripleReader(knowledge_of(":p rdfs:subPropertyOf :q . :a :p :b ."))
    ways = [way(rules, occurrences, {}, reader, 10_000) for way in (_grown, _settled)]
    assert len({frozenset(each.match(None, None, None)) for each in ways}) == 1
