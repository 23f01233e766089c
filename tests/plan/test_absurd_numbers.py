"""Numbers of absurd size are values or nulls; nothing else comes out of an expression."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from kaicep import testing
from kaicep.plan.expressions import Call, TermConst
from kaicep.plan.functions import _FORMS, _OPERATORS, SPARQL_FUNCTIONS, SolutionScope, evaluate_expression
from kaicep.plan.terms import XSD, Blank, Iri, Literal
from kaicep.plan.values import ExpressionError, native

LONG = "9" * 400
LONGEST = "9" * 5000
POOL = [
    *(Literal(text, XSD + "integer") for text in ("7", LONG, f"-{LONG}", LONGEST)),
    *(Literal(text, XSD + "decimal") for text in (f"{LONG}.5", f"-{LONG}.5", f"0.{LONG}", LONGEST)),
    *(Literal(text, XSD + "double") for text in ("1e308", "1e400", "-INF", "NaN", f"{LONG}", "4.9e-324")),
    *(Literal(text, XSD + "float") for text in ("1e39", LONG)),
    *(Literal(text, XSD + "dayTimeDuration") for text in (f"P{LONG}D", f"PT{LONG}S", f"P{LONGEST}D", "PT1S")),
    *(Literal(text, XSD + "duration") for text in (f"-P{LONG}DT{LONG}.5S", f"P{LONGEST}Y")),
    *(Literal(text, XSD + "yearMonthDuration") for text in (f"P{LONG}Y", f"P{LONGEST}M")),
    Literal("9999-12-31T23:59:59Z", XSD + "dateTime"),
    Literal(f"{LONG}-01-01T00:00:00Z", XSD + "dateTime"),
    Literal(LONG),
    Literal(LONGEST),
    Literal("true", XSD + "boolean"),
    Iri("urn:a"),
]


def calls() -> Iterator[tuple[str, int]]:
    for name, own in SPARQL_FUNCTIONS.items():
        if own.refused is None and not own.temporal and name != "bound":
            for count in range(own.least, min(own.most or 2, 3) + 1):
                yield name, count
    yield from ((name, 1 if name in ("not", "neg") else 2) for name in (*_FORMS, *_OPERATORS))


@pytest.mark.parametrize(("name", "count"), list(calls()))
def test_every_function_gives_a_value_or_an_error_of_sparql(name: str, count: int) -> None:
    pool = POOL if count < 3 else POOL[::3]
    for args in product(pool, repeat=count):
        call = Call(name, tuple(map(TermConst, args)))
        try:
            found = evaluate_expression(call, SolutionScope({}))
        except ExpressionError:
            continue
        assert isinstance(found, Literal | Iri | Blank)


def test_what_is_rounded_stays_exact() -> None:
    for op, text, wanted in (
        ("round", f"{LONG}.5", "1" + "0" * 400),
        ("ceil", f"{LONG}.1", "1" + "0" * 400),
        ("floor", f"-{LONG}.1", "-1" + "0" * 400),
    ):
        call = Call(op, (TermConst(Literal(text, XSD + "decimal")),))
        assert evaluate_expression(call, SolutionScope({})).lexical == f"{wanted}.0"
    call = Call("round", (TermConst(Literal(LONG, XSD + "integer")),))
    assert evaluate_expression(call, SolutionScope({})) == Literal(LONG, XSD + "integer")


@pytest.mark.parametrize("term", POOL)
def test_a_selected_term_is_json(term: Literal | Iri) -> None:
    assert native(term) is None or isinstance(native(term), int | float | str | bool)


RECORDS = f"""
    triple              | start | end
    :a :p {LONG}        | 0     | 0
    :b :p -{LONG}.5     | 1     | 1
    :c :p 1e308         | 2     | 2
    :d :p 7             | 3     | 3
"""


@pytest.mark.parametrize(
    "query",
    [
        *(
            f"SELECT ?s ({each} AS ?v) WHERE {{ ?s :p ?x }}"
            for each in (
                "ROUND(?x)",
                "ABS(?x)",
                "?x * 2 + 0.5",
                "<http://www.w3.org/2001/XMLSchema#double>(?x)",
            )
        ),
        *(
            f"SELECT ?s WHERE {{ ?s :p ?x FILTER ({each}) }}"
            for each in ("?x > 1e300", "?x * 1e0 > 8", "?x / 0 > 1")
        ),
        *(f"SELECT ({each}(?x) AS ?v) WHERE {{ ?s :p ?x }}" for each in ("SUM", "AVG", "MIN", "MAX")),
    ],
)
def test_a_record_with_a_number_of_400_digits_ends_no_run(query: str) -> None:
    found = [
        [
            (each.select, each.start, each.end)
            for each in testing.run({"q.epsparql": query}, {"t": RECORDS}, host=host)
        ]
        for host in ("reference", "inprocess")
    ]
    assert found[0] == found[1]
    assert found[0]
