"""A query's output is a stream that other queries read."""

from __future__ import annotations

HIGH = "SELECT ?e.k, ?e.x FROM (?e, s) FILTER (?e.x > 10)"
EVENTS = """
    event | ts | k | x
    e1    | 0  | p | 11
    e2    | 1  | p | 5
    e3    | 2  | q | 12
    e4    | 3  | p | 15
"""


def test_a_query_reads_the_matches_of_another(check):
    check(
        {
            "twice.chi": """
                SELECT ?b.x - ?a.x AS rise FROM (?a, high), (?b, high)
                JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)
            """,
            "high.chi": HIGH,
        },
        events=EVENTS,
        expect="""
            query | start | end | x  | rise
            high  | 0     | 0   | 11 |
            high  | 2     | 2   | 12 |
            high  | 3     | 3   | 15 |
            twice | 0     | 3   |    | 4
        """,
    )


def test_an_output_is_ordered_by_the_end_of_its_matches(check):
    # the match of `pair` that starts first ends last: as an event it comes last
    check(
        {
            "pair.chi": """
                SELECT ?a.x AS first FROM (?a, s), (?b, s) JOIN (?b.x = ?a.x + 100)
                SEQ (?a, ?b) WINDOW (?a, ?b, 1min)
            """,
            "counted.chi": "SELECT COUNT(?p) AS n, ?p.first FROM (?p, pair) WINDOW (?p, sliding, 1min)",
        },
        events="event | ts | x\n e1 | 0 | 1\n e2 | 1 | 2\n e3 | 2 | 102\n e4 | 3 | 101",
        expect="""
            query   | end | first | n
            pair    | 2   | 2     |
            pair    | 3   | 1     |
            counted | 2   | 2     | 1
            counted | 3   | 1     | 2
        """,
    )


def test_an_annotated_output_is_read_by_epsparql(check):
    check(
        {"high.chi": HIGH, "seen.epsparql": "SELECT ?k WHERE { ?h a :High ; :key ?k }"},
        events=EVENTS,
        annotations=[
            {"stream": "high", "class": ":High", "prefixes": {"": "urn:kaicep:"}, "attributes": {"k": ":key"}}
        ],
        expect="""
            query | end | k | x
            high  | 0   | p | 11
            high  | 2   | q | 12
            high  | 3   | p | 15
            seen  | 0   | p |
            seen  | 2   | q |
            seen  | 3   | p |
        """,
    )


def test_the_solutions_of_epsparql_are_read_by_chi_cep(check):
    check(
        {
            "drop.epsparql": "SELECT ?c ?p WHERE { ?c :price ?p } FILTER (?p < 5)",
            "low.chi": "SELECT ?d.c, ?d.p FROM (?d, drop) FILTER (?d.p < 3)",
        },
        events={"ticks": "triple | start\n :acme :price 4 | 1\n :acme :price 2 | 2\n :acme :price 9 | 3"},
        annotations=[{"stream": "drop", "types": {"p": "int64"}}],
        expect="query | end | p\n drop | 1 | 4\n drop | 2 | 2\n low | 2 | 2",
    )
