"""Each operator of EP-SPARQL on a small table, worked out by section 4.2 of the paper."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers

# One left side and right sides in all positions to it; the left one is [3-6].
LEFT = "3-6 l p x"
RIGHT = """
1-2 before q x
1-3 meets_start q x
3-6 same q x
3-8 starts q x
1-6 finishes q x
2-7 around q x
4-5 inside q x
6-9 meets_end q x
7-8 after q x
5-9 overlaps q x
"""


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # end(left) = 6 < start(right)
        ("SEQ", ["b=after [3-8]"]),
        # [3-6] on both sides
        ("EQUALS", ["b=same [3-6]"]),
        # start(right) < 3 and 6 < end(right)
        ("DURING", ["b=around [2-7]"]),
        # start(right) = 6
        ("MEETS", ["b=meets_end [3-9]"]),
        # start(right) = 3 and 6 <= end(right)
        ("STARTS", ["b=same [3-6]", "b=starts [3-8]"]),
        # end(right) = 6 and 3 >= start(right)
        ("FINISHES", ["b=finishes [1-6]", "b=same [3-6]"]),
        # a point in common: all but before and after
        (
            "PAR",
            [
                "b=around [2-7]",
                "b=finishes [1-6]",
                "b=inside [3-6]",
                "b=meets_end [3-9]",
                "b=meets_start [1-6]",
                "b=overlaps [3-9]",
                "b=same [3-6]",
                "b=starts [3-8]",
            ],
        ),
    ],
)
def test_pairs_in_a_relation(op: str, expected: list[str]) -> None:
    assert answers(LEFT + RIGHT, f"SELECT ?b WHERE {{ l p ?x }} {op} {{ ?b q ?x }}") == expected


def test_pairs_must_be_compatible() -> None:
    table = """
    1 a p x
    2 b q x
    3 c q y
    """
    assert answers(table, "SELECT ?s ?t WHERE { ?s p ?o } SEQ { ?t q ?o }") == ["s=a t=b [1-2]"]


def test_a_flat_list_reads_from_left_to_right() -> None:
    # ({a} SEQ {b}) is [1-2], and [1-2] SEQ c needs c to start after 2. ({b} SEQ {c}) does not arise.
    table = """
    1 a p x
    2 b p x
    3 c p x
    """
    query = "SELECT ?o WHERE { a p ?o } SEQ { b p ?o } SEQ { c p ?o }"
    assert answers(table, query) == ["o=x [1-3]"]
    # (a SEQ c) is [1-3], which b at 2 lies inside of; PAR with b gives the same span.
    assert answers(table, "SELECT ?o WHERE { a p ?o } SEQ { c p ?o } PAR { b p ?o }") == ["o=x [1-3]"]
    assert answers(table, "SELECT ?o WHERE { a p ?o } PAR { b p ?o } SEQ { c p ?o }") == []


# --- basic graph patterns, join, union ---------------------------------------------------------------


def test_a_basic_graph_pattern_spans_its_triples() -> None:
    # from min(2, 1) to max(3, 5)
    assert answers("2-3 a p b\n1-5 b q c", "SELECT ?x WHERE { ?x p ?y . ?y q ?z }") == ["x=a [1-5]"]


def test_each_occurrence_counts() -> None:
    table = "1 a p b\n4 a p b\n2 b q c"
    assert answers(table, "SELECT ?x { ?x p ?y . ?y q ?z }") == ["x=a [1-2]", "x=a [2-4]"]


def test_one_match_for_each_distinct_solution_and_interval() -> None:
    # Both ways to meet the pattern span [1-4] and bind x alike.
    table = "1-4 a p b\n2 a q c\n3 a q d"
    assert answers(table, "SELECT ?x { ?x p ?y . ?x q ?z }") == ["x=a [1-4]"]


def test_union_keeps_the_intervals_of_its_sides() -> None:
    assert answers("1 a p b\n2-3 c q d", "SELECT ?x { { ?x p ?y } UNION { ?x q ?y } }") == [
        "x=a [1]",
        "x=c [2-3]",
    ]


def test_a_path_spans_the_triples_on_its_way() -> None:
    table = "1 a p b\n3 b p c\n2 a p c"
    assert answers(table, "SELECT ?y { a p+ ?y }") == ["y=b [1]", "y=c [1-3]", "y=c [2]"]
    assert answers(table, "SELECT ?y { a p/p ?y }") == ["y=c [1-3]"]
    assert answers(table, "SELECT ?y { ?y ^p a }") == ["y=b [1]", "y=c [2]"]


def test_an_empty_path_has_no_time() -> None:
    # From a named node it is met at any time, and is no answer by itself.
    table = "1 a p b\n5 c r d"
    assert answers(table, "SELECT ?y { a p* ?y }") == ["y=b [1]"]
    assert answers(table, "SELECT ?y { a p* ?y . c r d }") == ["y=a [5]", "y=b [1-5]"]
    # Between two variables a node is there when it occurs.
    assert answers(table, "SELECT ?x { ?x p* ?y FILTER (?x = d) }") == ["x=d [5]"]


def test_an_empty_path_takes_its_ends_from_the_patterns_beside_it() -> None:
    # x is bound by `?x ?w ?z` at 1 and at 5; that it occurs at another time too adds no interval.
    table = "1 a p b\n5 a r c"
    query = "SELECT ?z { ?x p* ?y . ?x ?w ?z FILTER (?x = ?y) }"
    assert answers(table, query) == ["z=b [1]", "z=c [5]"]


# --- what looks at the past only ---------------------------------------------------------------------


def test_optional_joins_what_ends_no_later() -> None:
    # t' <= t: 3 ends no later than [2-3], 4 does.
    table = "2-3 a p b\n1 a q one\n3 a q three\n4 a q four"
    query = "SELECT ?x ?z { ?x p ?y OPTIONAL { ?x q ?z } }"
    assert answers(table, query) == ["x=a z=one [1-3]", "x=a z=three [2-3]"]
    assert answers("2-3 a p b\n4 a q four", query) == ["x=a [2-3]"]


def test_a_filter_in_optional_judges_the_joined_solution_and_its_interval() -> None:
    # Joined with q at 1 the interval is [1-9], 8 s; with q at 7 it is [5-9], 4 s.
    table = "5-9 a p b\n1 a q one\n7 a q seven"
    query = (
        'SELECT ?z { ?x p ?y OPTIONAL { ?x q ?z FILTER (getDURATION() < "PT5S"^^xsd:duration && ?y = b) } }'
    )
    assert answers(table, query) == ["z=seven [5-9]"]
    assert answers("5-9 a p b\n1 a q one", query) == ["[5-9]"]


def test_minus_knows_only_what_has_ended() -> None:
    query = "SELECT ?x { ?x p ?y MINUS { ?x q ?z } }"
    table = "2 a p b\n5 a p c\n3 a q d"
    assert answers(table, query) == ["x=a [2]"]


def test_minus_needs_a_variable_in_common() -> None:
    assert answers("2 a p b\n1 c q d", "SELECT ?x { ?x p ?y MINUS { ?w q ?z } }") == ["x=a [2]"]


@pytest.mark.parametrize(("word", "expected"), [("", ["x=a [5]"]), ("NOT ", ["x=a [2]"])])
def test_exists_knows_only_what_has_ended(word: str, expected: list[str]) -> None:
    table = "2 a p b\n5 a p c\n3 a q d"
    assert answers(table, f"SELECT ?x {{ ?x p ?y FILTER {word}EXISTS {{ ?x q ?z }} }}") == expected


def test_exists_sees_the_bindings_outside() -> None:
    table = "1 a v 3\n2 b v 5\n3 c v 4"
    query = "SELECT ?x { ?x v ?n FILTER NOT EXISTS { ?y v ?m FILTER (?m > ?n) } }"
    # When a came there was nothing larger, nor for b; c at 3 has b before it.
    assert answers(table, query) == ["x=a [1]", "x=b [2]"]


# --- optional temporal operators ---------------------------------------------------------------------

SEQ_RIGHT = "SELECT ?a ?b WHERE { ?a p ?x } OPTIONALSEQ { ?b q ?x }"


def test_optionalseq_joins_what_came_before() -> None:
    # For b at [4-5]: a ends at 2 < 4 and joins to [1-5]; late ends at 4, which is not before 4.
    assert answers("1-2 a p x\n3-4 late p x\n4-5 b q x", SEQ_RIGHT) == ["a=a b=b [1-5]"]


def test_optionalseq_keeps_what_has_no_predecessor() -> None:
    assert answers("3-4 late p x\n4-5 b q x", SEQ_RIGHT) == ["b=b [4-5]"]
    assert answers("1 a p y\n4-5 b q x", SEQ_RIGHT) == ["b=b [4-5]"]


def test_the_filter_of_the_optional_side_decides_whether_it_joins() -> None:
    table = "1 a v 7\n4 b w 5\n6 c w 9"
    inside = "SELECT ?s ?t WHERE { ?s v ?n FILTER (?n < ?m) } OPTIONALSEQ { ?t w ?m }"
    assert answers(table, inside) == ["s=a t=c [1-6]", "t=b [4]"]
    # Outside it judges the whole, and b, which has a partner, is lost.
    outside = "SELECT ?s ?t WHERE { { ?s v ?n } OPTIONALSEQ { ?t w ?m } FILTER (?n < ?m) }"
    assert answers(table, outside) == ["s=a t=c [1-6]"]


def test_equalsoptional() -> None:
    query = "SELECT ?a ?b WHERE { ?a p ?x } EQUALSOPTIONAL { ?b q ?x }"
    assert answers("1-2 a p x\n1-2 b q x\n1-3 c q x", query) == ["a=a b=b [1-2]"]
    assert answers("1-2 a p x\n1-3 c q x", query) == ["a=a [1-2]"]
    filtered = "SELECT ?a ?b WHERE { ?a p ?x } EQUALSOPTIONAL { ?b q ?x FILTER (?a != a) }"
    assert answers("1-2 a p x\n1-2 b q x", filtered) == ["a=a [1-2]"]


def test_not_looks_inside_the_interval() -> None:
    query = "SELECT ?x WHERE { { ?x p ?y } NOT { ?x q ?z } }"
    for when, expected in [("2", []), ("5", []), ("3-4", []), ("1-3", ["x=a [2-5]"]), ("6", ["x=a [2-5]"])]:
        assert answers(f"2-5 a p b\n{when} a q c", query) == expected
    # Another subject is not compatible.
    assert answers("2-5 a p b\n3 c q d", query) == ["x=a [2-5]"]


def test_not_between_the_parts_of_a_sequence() -> None:
    query = "SELECT ?x WHERE { { { ?x p ?y } SEQ { ?x r ?z } } NOT { ?x q ?w } }"
    assert answers("1 a p b\n3 a r c", query) == ["x=a [1-3]"]
    assert answers("1 a p b\n2 a q d\n3 a r c", query) == []


# --- time in expressions -----------------------------------------------------------------------------


def test_the_functions_of_time() -> None:
    query = "SELECT (getDURATION() AS ?d) (getSTARTTIME() AS ?s) (getENDTIME() AS ?e) { ?x p ?y }"
    assert answers("60-90 a p b", query) == [
        "d=PT30S s=1970-01-01T00:01:00.000000Z e=1970-01-01T00:01:30.000000Z [60-90]"
    ]
    bound = "SELECT ?d { { ?x p ?y BIND (getDURATION() AS ?d) } SEQ { ?x q ?z } }"
    assert answers("1-3 a p b\n5 a q c", bound) == ["d=PT2S [1-5]"]


def test_a_duration_bounds_a_sequence() -> None:
    query = 'SELECT ?y { { ?x p ?y } SEQ { ?x q ?z } FILTER (getDURATION() <= "PT2S"^^xsd:duration) }'
    assert answers("1 a p far\n3 a p near\n5 a q b", query) == ["y=near [3-5]"]


def test_a_subquery_hides_its_variables_and_keeps_its_interval() -> None:
    query = "SELECT ?x ?y { { SELECT ?x WHERE { ?x p ?y } } SEQ { ?x q ?y } }"
    assert answers("1 a p b\n2 a q c", query) == ["x=a y=c [1-2]"]
