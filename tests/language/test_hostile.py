"""Whatever the text: a query or a `Mistake` comes out, soon, and nothing else."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.language.papers import CHI, EP, PREFIXES

from kaicep.errors import Mistake, SourceText
from kaicep.language import parse_chi, parse_ep
from kaicep.plan.text import chi_text, ep_text

PRINTERS = {parse_chi: chi_text, parse_ep: ep_text}
RICH_CHI = """PREFIX a: <urn:a#> SELECT COUNT(DISTINCT ?b.x) AS n, ?l FROM (?a, s, a:C), (?b, `t t`)
WITHIN [2012-05-07T09:00, now - 1h) WHERE FILTER (!(?a.x IN (1, 2.5e3, 'a')) || -?a.a:y % 3 >= 5min)
SEQ (?a, ?b{2,3}, !?c, (?d | (?e & ?f+))) WINDOW (?a, ?b, 5min) PATH {?a a:p/^a:q* [a a:C], (1 "x"@en)
OPTIONAL {?x !(a:p|^a) ?y} VALUES (?x ?y) {(1 UNDEF)} {SELECT (SUM(?x) AS ?s) WHERE {?x ?y ?z} GROUP BY ?z}}
OR PATH {?b a a:C} MATCH next AFTER MATCH SKIP TO FIRST ?b PARTITION BY ?a.x HAVING (PREV(?b.x) > 1)"""


def attempt(parse, text):
    """The query, or None where the text is told to be wrong; nothing else may be raised."""
    try:
        query = parse(SourceText("hostile", text), prefixes=PREFIXES)
    except Mistake as mistake:
        str(mistake)
        return None
    hash(query)
    return query


def outcome(parse, text):
    """Parses; what comes out must print, and parse again to the same."""
    query = attempt(parse, text)
    if query is not None:
        assert parse(SourceText("printed", PRINTERS[parse](query)), prefixes=PREFIXES) == query
    return query


parsers = st.sampled_from([parse_chi, parse_ep])


@settings(deadline=None)
@given(parsers, st.text())
def test_any_text(parse, text):
    outcome(parse, text)


_WORDS = """
    SELECT FROM WITHIN WHERE FILTER JOIN SEQ WINDOW PATH AND OR MATCH AFTER SKIP TO NEXT PARTITION GROUP BY
    HAVING AS NOT IN CONSTRUCT UNION OPTIONAL MINUS BIND VALUES UNDEF EXISTS PREFIX BASE a: <urn:a> a:b
    ?e ?e.x . , ; ( ) [ ] { } | & && || ! = < > + - * / % ^ ^^ 1 1.5 1e3 5min 2012-05-07T09:00 now 'a' "b"
    @en _:c [] true COUNT ( ( { { ) ) } } abs( getDURATION() SUM( DISTINCT ` \\ # \'\'\'
"""
pieces = st.sampled_from(_WORDS.split())


@settings(deadline=None)
@given(parsers, st.lists(pieces, max_size=40), st.sampled_from([" ", ""]))
def test_any_tokens(parse, tokens, between):
    outcome(parse, "SELECT * " + between.join(tokens))


@settings(deadline=None)
@given(st.data())
def test_mutated_queries(data):
    parse, text = data.draw(
        st.sampled_from(
            [(parse_chi, text) for text in (*CHI.values(), RICH_CHI)]
            + [(parse_ep, text) for text in EP.values()]
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        until = data.draw(st.integers(at, min(len(text), at + 6)))
        text = text[:at] + data.draw(st.one_of(st.just(""), pieces, st.text(max_size=3))) + text[until:]
    outcome(parse, text)


def test_the_rich_query_is_valid():
    assert outcome(parse_chi, RICH_CHI) is not None


@pytest.mark.parametrize(
    "opening", ["(", "!", "-", "- ", "abs(", "NOT ", "1+(", "1 || 2 && 3 = 4 + 5 * (", "if("]
)
def test_deep_expressions(opening):
    for depth in (60, 100, 5000):
        closing = ")" * opening.count("(") * depth
        attempt(parse_chi, f"SELECT * FILTER ({opening * depth}?e.x{closing})")
        attempt(parse_ep, f"SELECT * {{ FILTER ({opening * depth}?x{closing}) }}")
    with pytest.raises(Mistake):
        parse_chi(SourceText("deep", f"SELECT * FILTER ({opening * 5000}?e.x{closing})"))


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("{", "}"),
        ("OPTIONAL {", "}"),
        ("{ SELECT * WHERE {", "}}"),
        ("FILTER EXISTS {", "}"),
        ("{} UNION {", "}"),
        ("?x ?y [ ?z ", "]"),
        ("?x ?y (", ")"),
        ("?x (", ")"),
        ("?x ^(", ")"),
        ("{ SELECT (EXISTS {", "} AS ?x) WHERE {} }"),
    ],
)
def test_deep_groups(opening, closing):
    for depth in (30, 70, 100, 5000):
        attempt(parse_ep, f"SELECT * WHERE {{ {opening * depth} {closing * depth} }}")
        attempt(parse_chi, f"SELECT * PATH {{ {opening * depth} {closing * depth} }}")


@pytest.mark.parametrize("link", [" + ", " || ", " = 1 && "])
def test_long_chains_are_refused_and_not_overflowed(link):
    short = link.join(["?e.x"] * 50)
    assert outcome(parse_chi, f"SELECT * FILTER ({short})") is not None
    with pytest.raises(Mistake, match="chained or nested"):
        parse_chi(SourceText("long", f"SELECT * FILTER ({link.join(['?e.x'] * 5000)})"))


def test_long_chains_of_groups():
    with pytest.raises(Mistake, match="chained or nested"):
        parse_ep(SourceText("long", "SELECT * { " + " SEQ ".join(["{ ?x ?y ?z }"] * 5000) + "}"))
    with pytest.raises(Mistake, match="more than 100 parts"):
        parse_ep(SourceText("long", "SELECT * { " + "OPTIONAL { ?x ?y ?z } " * 5000 + "}"))


REPEATED = [
    "a", "a-", "a-a:", "1", "1.", "(", "[", "{", "<", "<a", '"', "'''", "`", "?e.x + ", "-", "a:b-c", "a:.",
    "\\", "\0", "é", "#", "\n", " ", "PATH {", "}", "FILTER (", "FILTER (?e.x > 3) ", "?b{", "&&", "_:a.",
    "2012-05-07", "1     ", "{ ?x ?y ?z } ", "SUM(", "\ud800", "NOT ", "EXISTS {", "[ a ", "( 1 ",
    "?x ?y ?z . ",
]  # fmt: skip
HEADS = {
    parse_chi: ["", "SELECT ?e.x FILTER (", "SELECT ?e.x PATH {", "SELECT ?e.x SEQ ("],
    parse_ep: ["", "SELECT ", "SELECT ?x WHERE {", "SELECT ?x WHERE { FILTER (", "CONSTRUCT {"],
}


@pytest.mark.slow
@pytest.mark.parametrize("piece", REPEATED)
def test_many_kilobytes_of_anything_take_linear_time(piece):
    """A quadratic parser would need many seconds; the limit is wide because machines are busy."""
    text = piece * (25_000 // len(piece))
    for parse, heads in HEADS.items():
        for head in heads:
            started = time.process_time()
            attempt(parse, head + text)
            assert time.process_time() - started < 1


def test_a_hundred_kilobytes_of_noise():
    dice = random.Random(7)
    for parse in (parse_chi, parse_ep):
        for _ in range(3):
            text = "".join(
                dice.choice("SELECT?e.x(){}[]<>\"'` \n:;,.+-*/|&!^@#_0123") for _ in range(100_000)
            )
            started = time.process_time()
            outcome(parse, text)
            assert time.process_time() - started < 4
