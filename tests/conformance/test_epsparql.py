"""EP-SPARQL: each operator on a handful of triples, its solutions worked out by hand."""

from __future__ import annotations

import pytest

A_AND_B = "SELECT ?x ?y WHERE {{ ?x :a ?v }} {op} {{ ?y :b ?v }}"

# :a1 [1,3]  :a2 [5,9]  :b1 [4,9]  :b2 [9,12]  :b3 [5,9]  :b4 [6,7]  :b5 [3,4]
INTERVALS = """
    triple   | start | end
    :a1 :a 0 | 1     | 3
    :a2 :a 0 | 5     | 9
    :b1 :b 0 | 4     | 9
    :b2 :b 0 | 9     | 12
    :b3 :b 0 | 5     | 9
    :b4 :b 0 | 6     | 7
    :b5 :b 0 | 3     | 4
"""


@pytest.mark.parametrize(
    ("op", "pairs"),
    [
        # end(left) < start(right): a1 ends at 3
        ("SEQ", "a1 b1 1 9; a1 b2 1 12; a1 b3 1 9; a1 b4 1 7"),
        ("EQUALS", "a2 b3 5 9"),
        # left inside right, both bounds strictly: nothing lies strictly inside; b-sides tested below
        ("DURING", ""),
        ("MEETS", "a1 b5 1 4; a2 b2 5 12"),
        ("STARTS", "a2 b3 5 9"),
        # same end, left begins no earlier
        ("FINISHES", "a2 b1 4 9; a2 b3 5 9"),
        # the intervals share a point
        ("PAR", "a1 b5 1 4; a2 b1 4 9; a2 b2 5 12; a2 b3 5 9; a2 b4 5 9"),
    ],
)
def test_temporal_operators(check, op, pairs):
    rows = [
        "{} | {} | {} | {}".format(*(f":{x}" if x[0] in "ab" else x for x in each.split()))
        for each in pairs.split(";")
        if each
    ]
    check(
        {"q.epsparql": A_AND_B.format(op=op)},
        events={"t": INTERVALS},
        expect="?x | ?y | start | end\n" + "\n".join(rows),
    )


def test_during_is_strict_on_both_sides(check):
    check(
        {"q.epsparql": "SELECT ?x ?y WHERE { ?y :b ?v } DURING { ?x :a ?v }"},
        events={"t": INTERVALS},
        expect="?x | ?y | start | end\n :a2 | :b4 | 5 | 9",
    )


def test_not_wants_no_compatible_solution_inside_bounds_included(check):
    # a1 [1,3]: nothing lies inside. a2 [5,9]: b3 and b4 lie inside.
    check(
        {"q.epsparql": "SELECT ?x WHERE { ?x :a ?v } NOT { ?y :b ?v }"},
        events={"t": INTERVALS},
        expect="?x | start | end\n :a1 | 1 | 3",
    )


def test_optionalseq_keeps_the_right_side_alone_where_nothing_came_before(check):
    check(
        {"q.epsparql": "SELECT ?c ?r ?p WHERE { ?c :rated ?r } OPTIONALSEQ { ?c :price ?p }"},
        events={
            "t": """
                triple             | start
                :acme :price 9     | 1
                :acme :rated :good | 2
                :acme :price 8     | 3
                :ibm :price 7      | 3
            """
        },
        expect="""
            ?c    | ?r    | ?p | start | end
            :acme |       | 9  | 1     | 1
            :acme | :good | 8  | 2     | 3
            :ibm  |       | 7  | 3     | 3
        """,
    )


def test_equalsoptional_joins_what_has_the_same_interval(check):
    check(
        {"q.epsparql": "SELECT ?c ?p ?v WHERE { ?c :price ?p } EQUALSOPTIONAL { ?c :volume ?v }"},
        events={
            "t": "triple | start | end\n :c :price 1 | 1 | 2\n :c :volume 5 | 1 | 2\n :c :price 2 | 3 | 4\n"
            " :c :volume 6 | 3 | 5"
        },
        expect="?c | ?p | ?v | start | end\n :c | 1 | 5 | 1 | 2\n :c | 2 | | 3 | 4",
    )


def test_optional_joins_what_ends_no_later(check):
    check(
        {"q.epsparql": "SELECT ?p ?r WHERE { ?c :price ?p OPTIONAL { ?c :rated ?r } }"},
        events={
            "t": "triple | start\n :c :price 1 | 1\n :c :rated :x | 2\n :c :price 2 | 2\n :c :price 3 | 3"
        },
        # the price of 1 was an answer before the rating came, and stays one
        expect="?p | ?r | start | end\n 1 | | 1 | 1\n 2 | :x | 2 | 2\n 3 | :x | 2 | 3",
    )


def test_a_filter_in_an_optional_group_judges_the_joined_interval(check):
    check(
        {
            "q.epsparql": """
                SELECT ?p ?r WHERE { ?c :rated ?r FILTER (getDURATION() < "PT3S"^^xsd:duration) }
                OPTIONALSEQ { ?c :price ?p }
            """
        },
        events={"t": "triple | start\n :c :rated :x | 0\n :c :price 1 | 2\n :c :price 2 | 5"},
        expect="?p | ?r | start | end\n 1 | :x | 0 | 2\n 2 | | 5 | 5",
    )


def test_operators_in_a_flat_list_go_from_left_to_right(check):
    # ({a} SEQ {b}) OPTIONALSEQ {c}
    check(
        {"q.epsparql": "SELECT ?x ?y ?z WHERE { :n :a ?x } SEQ { :n :b ?y } OPTIONALSEQ { :n :c ?z }"},
        events={"t": "triple | start\n :n :c 0 | 0\n :n :a 1 | 1\n :n :b 2 | 2\n :n :c 3 | 3"},
        expect="?x | ?y | ?z | start | end\n | | 0 | 0 | 0\n 1 | 2 | 3 | 1 | 3",
    )


def test_times_and_durations_can_be_selected(check):
    check(
        {
            "q.epsparql": """
                SELECT (getDURATION() AS ?d) (getSTARTTIME() AS ?s) (getENDTIME() AS ?e)
                WHERE { { :n :a ?x } SEQ { :n :b ?y } }
            """
        },
        events={"t": "triple | start\n :n :a 1 | 1\n :n :b 2 | 91.5"},
        expect="?d | ?s | ?e\n PT90.5S | 1970-01-01T00:00:01Z | 1970-01-01T00:01:31.5Z",
    )


KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Oak rdfs:subClassOf :Tree . :Tree rdfs:subClassOf :Plant . :grew rdfs:subPropertyOf :changed .
    :t1 a :Oak . :t1 :in :Garden .
"""


def test_knowledge_has_no_time_and_adds_nothing_to_the_interval(check):
    check(
        {"q.epsparql": "SELECT ?t ?p WHERE { ?t :grew ?v . ?t :in ?p }"},
        events={"t": "triple | start | end\n :t1 :grew 3 | 1 | 4"},
        knowledge=KNOWLEDGE,
        expect="?t | ?p | start | end\n :t1 | :Garden | 1 | 4",
    )


def test_knowledge_alone_is_no_answer_and_satisfies_no_temporal_operator(check):
    for where in ("{ ?t :in ?p }", "{ ?t :in ?p } SEQ { ?t :grew ?v }"):
        check(
            {"q.epsparql": f"SELECT ?t WHERE {where}"},
            events={"t": "triple | start\n :t1 :grew 3 | 1"},
            knowledge=KNOWLEDGE,
            expect="?t",
        )


def test_a_pattern_met_by_stream_and_knowledge_gives_both_solutions(check):
    check(
        {"q.epsparql": "SELECT ?t WHERE { ?t :grew ?v . ?t :in :Garden }"},
        events={"t": "triple | start\n :t1 :in :Garden | 1\n :t1 :grew 3 | 5"},
        knowledge=KNOWLEDGE,
        expect="?t | start | end\n :t1 | 5 | 5\n :t1 | 1 | 5",
    )


def test_stream_triples_are_read_under_the_hierarchies(check):
    check(
        {"q.epsparql": "SELECT ?t ?c WHERE { ?t a :Plant . ?t a ?c } EQUALS { ?t :changed ?v }"},
        events={"t": "triple | start\n :t7 a :Oak | 1\n :t7 :grew 3 | 1"},
        knowledge=KNOWLEDGE,
        expect="?t | ?c\n :t7 | :Oak\n :t7 | :Tree\n :t7 | :Plant",
    )


def test_constructed_triples_join_the_stream_with_their_interval(check):
    check(
        {
            "path.epsparql": "CONSTRUCT { ?x :reaches ?y } WHERE { ?x :edge ?y }",
            "longer.epsparql": "CONSTRUCT { ?x :reaches ?z } WHERE {?x :edge ?y} SEQ {?y :reaches ?z}",
            "asked.epsparql": "SELECT ?y WHERE { :a :reaches ?y }",
        },
        events={
            "t": "triple | start\n :a :edge :b | 1\n :b :edge :c | 2\n :c :edge :d | 3\n :a :edge :d | 9"
        },
        expect="""
            query  | ?y | start | end
            path   |    | 1     | 1
            path   |    | 2     | 2
            path   |    | 3     | 3
            path   |    | 9     | 9
            longer |    | 1     | 2
            longer |    | 2     | 3
            longer |    | 1     | 3
            asked  | :b | 1     | 1
            asked  | :c | 1     | 2
            asked  | :d | 1     | 3
            asked  | :d | 9     | 9
        """,
    )


def test_groups_aggregate_what_has_ended_so_far(check):
    check(
        {
            "q.epsparql": """
                SELECT ?c (SUM(?p) AS ?total) WHERE { ?c :price ?p } GROUP BY ?c HAVING (COUNT(?p) > 1)
            """
        },
        events={
            "t": "triple | start\n :c :price 1 | 1\n :c :price 5 | 2\n :d :price 7 | 3\n :c :price 2 | 4"
        },
        expect="?c | ?total | start | end\n :c | 6 | 1 | 2\n :c | 8 | 1 | 4",
    )


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        ("unrestricted", "1 3; 2 3; 1 4; 2 4"),
        ("recent", "2 3; 2 4"),
        ("chronological", "1 3; 2 4"),
    ],
)
def test_consumption_policies(check, policy, rows):
    expect = "\n".join(" | ".join(each.split()) for each in rows.split(";"))
    check(
        {"q.epsparql": f"CONSUMPTION {policy} SELECT ?x ?y WHERE {{ :n :a ?x }} SEQ {{ :n :b ?y }}"},
        events={"t": "triple | start\n :n :a 1 | 1\n :n :a 2 | 2\n :n :b 3 | 3\n :n :b 4 | 4"},
        expect="?x | ?y\n" + expect,
    )


def test_an_annotated_record_is_its_event_graph_at_its_time(check):
    check(
        {
            "q.epsparql": """
                SELECT ?a ?b WHERE { ?e1 :flow ?a ; :from ?s } SEQ { ?e2 :flow ?b ; :from ?s }
                FILTER (?b > ?a)
            """
        },
        events="event | ts | sensor | x\n e1 | 0 | s1 | 1.0\n e2 | 1 | s2 | 5.0\n e3 | 2 | s1 | 2.0",
        annotations=[
            {
                "stream": "s",
                "prefixes": {"": "urn:kaicep:"},
                "attributes": {"x": ":flow"},
                "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
            }
        ],
        knowledge="@prefix : <urn:kaicep:> . :s1 a :Sensor . :s2 a :Sensor .",
        expect="?a | ?b | start | end\n 1.0 | 2.0 | 0 | 2",
    )


def test_a_triple_may_be_what_another_speaks_of(check):
    """Such a term is equal to itself; it has no kind of SPARQL 1.1, and is no subject."""
    check(
        {
            "q.epsparql": "SELECT ?who WHERE { { ?who :says ?it } SEQ { ?other :says ?it } "
            "FILTER (!isIRI(?it) && !isLiteral(?it) && !isBlank(?it)) }",
            "heard.epsparql": "CONSTRUCT { ?who :heard ?it . ?it :of ?who } WHERE { ?who :says ?it }",
            "once.epsparql": "SELECT ?who WHERE { ?who :heard ?it . ?who :says ?it }",
            "none.epsparql": "SELECT ?who WHERE { ?it :of ?who }",
        },
        events={
            "t": """
                triple                        | start
                :a :says <<( :s :p "x"@en )>> | 1
                :b :says <<( :s :p "y"@en )>> | 2
                :c :says <<( :s :p "x"@en )>> | 3
            """
        },
        expect="""
            query | ?who | start | end
            q     | :a   | 1     | 3
            heard |      | 1     | 1
            heard |      | 2     | 2
            heard |      | 3     | 3
            once  | :a   | 1     | 1
            once  | :b   | 2     | 2
            once  | :c   | 3     | 3
        """,
    )
