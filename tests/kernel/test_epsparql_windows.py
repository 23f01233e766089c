"""Windows, by the kernel as by the reference: at random, cut, saved and restored."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import both, operator
from tests.reference.epsparql_support import knowledge_of, named_stream, plan

from kaicep.kernel.epsparql.windows import slide
from kaicep.plan.terms import XSD, Iri, Literal, Term

KNOWLEDGE = ":a :k :b . :b :p 2 . :p rdfs:subPropertyOf :q ."
SIZES = ("RANGE PT3S", "RANGE PT4S STEP PT2S", "RANGE PT1S STEP PT3S", "RANGE PT5S STEP PT5S")
ROWS = ("ROWS 3", "ROWS 4 STEP 3", "ROWS 1 STEP 2")
PATTERNS = (
    "?x p ?y",
    "?x ?p ?y FILTER (?p != <urn:kaicep:p>)",
    "?x p ?y . ?x q ?z",
    "?x p ?y OPTIONAL { ?x r ?z FILTER (?z > ?y) }",
    "?x q ?y FILTER NOT EXISTS { ?x r ?u }",
    "{ ?x p ?y } UNION { ?x r ?z }",
    "?x p ?y MINUS { ?x r ?y }",
    "?x p ?y . ?x k ?z",
    "?x (p|r)+ ?y",
    "{ SELECT ?x (COUNT(*) AS ?y) { ?x p ?z } GROUP BY ?x }",
)
OUTSIDE = (
    "{ BLOCKS } SEQ { ?x r ?o }",
    "{ BLOCKS } OPTIONAL { ?x p ?o }",
    "{ BLOCKS } ?x q ?o",
    "{ ?x p ?o } NOT { BLOCKS }",
)
SELECTS = (
    ("*", ""),
    ("?x (COUNT(*) AS ?n) (MAX(?y) AS ?m)", "GROUP BY ?x"),
    ("(SUM(?y) AS ?n) (AVG(?y) AS ?m)", ""),
    ("?y (MIN(?x) AS ?n)", "GROUP BY ?y HAVING (COUNT(*) > 1)"),
    ("DISTINCT ?y", ""),
)


def rows_of(random: Random) -> str:
    lines, at = [], 1
    for _ in range(random.randint(1, 14)):
        at += random.choice([0, 0, 1, 1, 2, 7])
        start = at - random.choice([0, 0, 1])
        name = random.choice(["", "", "t "])
        thing, property = random.choice("abc"), random.choice("pqr")
        lines.append(f"{name}{start}-{at} {thing} {property} {random.choice(['1', '2', '3', 'a'])}")
    return "\n".join(lines)


def query_of(random: Random) -> str:
    several = random.random() < 0.3
    size = random.choice(SIZES if several else SIZES + ROWS)
    declared = f"FROM NAMED WINDOW :w ON :s [{size}] FROM NAMED WINDOW :u ON :t [{random.choice(SIZES)}]"
    blocks = f"WINDOW :w {{ {random.choice(PATTERNS)} }}"
    if several:
        blocks += f" WINDOW :u {{ {random.choice(PATTERNS)} }}"
    columns, rest = random.choice(SELECTS)
    report = random.choice(["", "RSTREAM ", "ISTREAM ", "DSTREAM "])
    beside = random.choice(["", "", "FILTER (?y > 1)", "BIND (STR(?y) AS ?text)"])
    if random.random() < 0.3:
        whole = random.choice(OUTSIDE).replace("BLOCKS", blocks)
        return f"SELECT * {declared} WHERE {{ {whole} {beside} }}"
    order = random.choice(
        ["", "", "ORDER BY DESC(?y) ?x LIMIT 2", "LIMIT 1 OFFSET 1", "ORDER BY (STR(?y)) LIMIT 3"]
    )
    if "(" in columns and "ORDER" in order:
        order = "ORDER BY ?n DESC(COUNT(*)) LIMIT 1"
    if random.random() < 0.05:
        return f"ASK {declared} WHERE {{ {blocks} {beside} }}"
    return f"SELECT {report}{columns} {declared} WHERE {{ {blocks} {beside} }} {rest} {order}"


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_windows_at_random(seed: int) -> None:
    random = Random(seed)
    rows, query = rows_of(random), query_of(random)
    note(f"{rows}\n{query}")
    expected, found = both(rows, query, knowledge=KNOWLEDGE, seed=seed)
    assert found == expected


VALUES = ("1", "-7", "2.5", "0.1", "1e0", "0.1e0", "1e100", "-1e100", "12345678901234567890", "x")
AGGREGATES = ("SUM(?y)", "AVG(?y)", "MIN(?y)", "MAX(?y)", "SAMPLE(?y)", "COUNT(?y)", "COUNT(DISTINCT ?y)")
AGGREGATES += ("SUM(DISTINCT ?y)", "COUNT(*)", "GROUP_CONCAT(STR(?y))", "SUM(?y / ?y)", "COUNT(DISTINCT *)")


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_what_enters_and_leaves_a_window_makes_the_aggregates_of_what_is_in_it(seed: int) -> None:
    random = Random(seed)
    rows = [
        ((Iri(f"urn:kaicep:{random.choice('ab')}"), Iri("urn:kaicep:p"), value_of(random)), at, at, "s")
        for at in sorted(random.randrange(12) * 1_000_000 for _ in range(12))
    ]
    chosen = " ".join(f"({each} AS ?n{i})" for i, each in enumerate(random.sample(AGGREGATES, 4)))
    declared = f"FROM NAMED WINDOW :w ON :s [{random.choice(SIZES + ROWS)}]"
    query = (
        f"SELECT {chosen} {declared} WHERE {{ WINDOW :w {{ ?x p ?y }} }} {random.choice(['', 'GROUP BY ?x'])}"
    )
    note(f"{rows}\n{query}")
    expected, found = both(rows, query, seed=seed)
    assert found == expected
    assert slide(plan(query).root.input) is not None


def value_of(random: Random) -> Term:
    text = random.choice(VALUES)
    if text == "x":
        return Iri("urn:kaicep:x")
    kind = "double" if "e" in text else "decimal" if "." in text else "integer"
    return Literal(text, XSD + kind)


def test_a_window_is_answered_when_the_watermark_passes_although_nothing_comes() -> None:
    query = "SELECT ?y FROM NAMED WINDOW :w ON :s [RANGE PT4S STEP PT2S] WHERE { WINDOW :w { ?x v ?y } }"
    running = operator([plan(query)], knowledge_of(""))
    assert not running.feed(named_stream("1 a v 1"))
    assert not running.advance(2_000_000)
    assert running.promise(2_000_001) == 2_000_000
    assert [each.end_us for each in running.advance(2_000_001)] == [2_000_000]
    assert [each.end_us for each in running.advance(9_000_000)] == [4_000_000]
    assert not running.finish()


def test_a_window_forgets() -> None:
    query = "SELECT ?y FROM NAMED WINDOW :w ON :s [RANGE PT4S] WHERE { WINDOW :w { ?x v ?y } }"
    running = operator([plan(query)], knowledge_of(""))
    for at in range(100):
        running.feed(named_stream(f"{at} a v {at}"))
    assert running.size <= 6
