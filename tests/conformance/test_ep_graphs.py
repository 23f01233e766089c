"""GRAPH in EP-SPARQL: what is stated in a named graph of the knowledge, as it is stated, without a time."""

from __future__ import annotations

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :in rdfs:subPropertyOf :near . :s1 :in :r1 . :r1 :on :ground .
    :plan { :s1 :in :r2 . :s2 :in :r2 . :r2 :on :top . }
    :survey { :s2 :in :r3 . :s3 :in :r3 . :r3 :on :top . }
"""
TICKS = """
    triple    | start
    :s1 :v 1  | 1
    :s2 :v 2  | 2
    :s3 :v 3  | 3
    :s3 :in :r9 | 3
"""


def found(check, query, expect):
    check({"q.epsparql": query}, events={"t": TICKS}, expect=expect, knowledge=KNOWLEDGE)


def test_a_graph_by_its_name_joins_and_adds_no_time(check):
    found(
        check,
        "SELECT ?s ?r WHERE { ?s :v ?v GRAPH :plan { ?s :in ?r . ?r :on :top } }",
        "?s | ?r | start | end\n :s1 | :r2 | 1 | 1\n :s2 | :r2 | 2 | 2",
    )


def test_the_graph_that_states_it(check):
    found(
        check,
        "SELECT ?s ?g WHERE { ?s :v ?v GRAPH ?g { ?s :in ?r } }",
        """
        ?s  | ?g      | start | end
        :s1 | :plan   | 1     | 1
        :s2 | :plan   | 2     | 2
        :s2 | :survey | 2     | 2
        :s3 | :survey | 3     | 3
        """,
    )


def test_a_graph_alone_has_no_time_and_is_no_answer(check):
    found(check, "SELECT ?s WHERE { GRAPH :plan { ?s :in ?r } }", "?s | start | end")
    found(check, "SELECT ?s WHERE { { GRAPH :plan { ?s :in ?r } } SEQ { ?s :v ?v } }", "?s | start | end")


def test_what_follows_and_what_is_sent_are_outside_of_the_graph(check):
    found(check, "SELECT ?s WHERE { ?s :v ?v GRAPH :plan { ?s :near ?r } }", "?s | start | end")
    found(
        check,
        "SELECT ?s ?r WHERE { ?s :v ?v GRAPH ?g { ?s :in ?r } ?s :in ?r }",
        """
        ?s  | ?r  | start | end
        :s1 | :r2 | 1     | 1
        :s2 | :r2 | 2     | 2
        :s2 | :r3 | 2     | 2
        :s3 | :r3 | 3     | 3
        """,
    )


def test_a_graph_in_optional_minus_exists_and_union(check):
    found(
        check,
        "SELECT ?s ?r WHERE { ?s :v ?v OPTIONAL { GRAPH :survey { ?s :in ?r } } }",
        "?s | ?r | start | end\n :s1 | | 1 | 1\n :s2 | :r3 | 2 | 2\n :s3 | :r3 | 3 | 3",
    )
    found(
        check,
        "SELECT ?s WHERE { ?s :v ?v MINUS { GRAPH :survey { ?s :in ?r } } }",
        "?s | start | end\n :s1 | 1 | 1",
    )
    found(
        check,
        """SELECT ?s WHERE { ?s :v ?v FILTER NOT EXISTS { GRAPH :plan { ?s :in ?r } }
           { GRAPH :survey { ?s :in ?q } } UNION { GRAPH :nowhere { ?s :in ?q } } }""",
        "?s | start | end\n :s3 | 3 | 3",
    )


def test_inside_of_a_graph_is_plain_sparql(check):
    found(
        check,
        """SELECT ?s ?n WHERE { ?s :v ?v
           GRAPH ?g { { SELECT ?r (COUNT(?x) AS ?n) WHERE { ?x :in ?r } GROUP BY ?r } ?s :in/:on ?o ; :in ?r
                      FILTER NOT EXISTS { :s1 :in ?r } } }""",
        "?s | ?n | start | end\n :s2 | 2 | 2 | 2\n :s3 | 2 | 3 | 3",
    )


def test_a_rule_and_a_sequence_ask_a_graph(check):
    check(
        {
            "r.epsparql": "CONSTRUCT { ?r :seen ?v } WHERE { ?s :v ?v GRAPH :survey { ?s :in ?r } }",
            "q.epsparql": """SELECT ?r ?v ?w WHERE {
                { ?r :seen ?v } SEQ { { ?r :seen ?w GRAPH ?g { ?r :on :top } } } }""",
        },
        events={"t": TICKS},
        expect="""
            query | ?r  | ?v | ?w | start | end
            r     |     |    |    | 2     | 2
            r     |     |    |    | 3     | 3
            q     | :r3 | 2  | 3  | 2     | 3
        """,
        knowledge=KNOWLEDGE,
    )


def test_a_graph_beside_a_window_and_in_it(check):
    clause = "FROM NAMED WINDOW :w ON :t [RANGE PT2S STEP PT2S]"
    for where in (
        "WINDOW :w { ?s :v ?v } GRAPH :survey { ?s :in ?r }",
        "WINDOW :w { ?s :v ?v GRAPH :survey { ?s :in ?r } }",
    ):
        found(
            check,
            f"SELECT ?s {clause} WHERE {{ {where} }}",
            "?s | start | end\n :s2 | 0 | 2\n :s3 | 2 | 4",
        )
