"""Queries whose answers are short and hang on nothing outside of them: time may be cut into slices."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.test_epsparql_random import KNOWN, Maker
from tests.reference.epsparql_support import SECOND, knowledge_of, plan

from kaicep.plan.algebra import looks_inside
from kaicep.plan.events import Match
from kaicep.plan.nodes import EpPlan
from kaicep.plan.program import longest
from kaicep.reference.sparql import run_epsparql

SHORT = 'FILTER (getDURATION() < "PT3S"^^xsd:duration)'
A, B = '{ ?x :p ?y FILTER (getDURATION() < "PT3S"^^xsd:duration) }', "{ ?x :q ?y }"


def inside(query: EpPlan) -> bool:
    return looks_inside(query.root.input)


@pytest.mark.parametrize(
    ("where", "micros"),
    [
        (B, None),
        (A, 3 * SECOND - 1),
        (f"{A} SEQ {B}", None),
        (f"{{ {A} SEQ {B} }} {SHORT}", 3 * SECOND - 1),
        (f"{A} MEETS {A}", 6 * SECOND - 2),
        (f"{A} PAR {B}", None),
        (f"{A} EQUALS {B}", 3 * SECOND - 1),
        (f"{A} DURING {B}", None),
        (f"{B} DURING {A}", 3 * SECOND - 1),
        (f"{A} NOT {B}", 3 * SECOND - 1),
        (f"{A} UNION {B}", None),
        (f"{A} UNION {A}", 3 * SECOND - 1),
        (f"{{ {A} VALUES ?x {{ :a }} }}", 3 * SECOND - 1),
        (f"{{ {A} {B} }}", None),
    ],
)
def test_the_longest_answer(where: str, micros: int | None) -> None:
    assert longest(plan(f"SELECT * WHERE {where}").root) == micros


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (f"{A} NOT {B}", True),
        (f"{{ {A} OPTIONAL {B} }}", False),
        (f"{{ {A} MINUS {B} }}", False),
        (f"{{ {A} FILTER EXISTS {B} }}", False),
        (f"{A} OPTIONALSEQ {B}", False),
        ("{ ?x :p* ?y }", False),
        ("{ ?x :p+ ?y }", True),
        ("{ SELECT ?x (COUNT(*) AS ?n) WHERE { ?x :p ?y } GROUP BY ?x }", False),
    ],
)
def test_what_an_answer_hangs_on(where: str, expected: bool) -> None:
    assert inside(plan(f"SELECT * WHERE {where}")) is expected


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans())
def test_slices_give_the_answers_of_the_whole(seed: int, rules: bool) -> None:
    maker = Maker(seed)
    texts = [f"SELECT * WHERE {maker.bounded(2)}"]
    if rules:
        body = f"{{ {{ ?x :p ?y }} {maker.pick('SEQ', 'PAR', 'NOT')} {{ ?y :q ?z }} }} {SHORT}"
        texts.append(f"CONSTRUCT {{ ?x :q ?y }} WHERE {{ {body} }}")
    plans = [plan(text, f"q{number}") for number, text in enumerate(texts)]
    if not all(inside(each) for each in plans):
        return
    note("\n".join(texts))
    widths = [longest(each.root) for each in plans]
    window = max(each for each in widths if each is not None)
    rows, known = maker.stream(25, 40), knowledge_of(KNOWN)
    size = maker.random.randrange(2, 12) * SECOND
    found: dict[str, list[Match]] = {each.name: [] for each in plans}
    for low in range(0, 46 * SECOND, size):
        own = [row for row in rows if low - window <= row[2] < low + size]
        for name, matches in run_epsparql(plans, own, known).items():
            found[name] += [each for each in matches if low <= each.end_us < low + size]
    assert found == run_epsparql(plans, rows, known)
