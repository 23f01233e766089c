"""Queries over columns answer as the reference, however the input is cut, saved and handed over."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import Rows, both, operator, sorted_matches
from tests.reference.epsparql_support import BASE, SECOND, knowledge_of, plan, stream, term

from kaicep.errors import Failure
from kaicep.kernel.epsparql import EpOperator
from kaicep.kernel.epsparql.dictionary import TripleColumns
from kaicep.plan.events import Match
from kaicep.plan.terms import RDF, XSD, Iri, Literal

KNOWN = """
:a :p :b . :p rdfs:subPropertyOf :q . :c :r :a . :b :r 2 . :q rdfs:domain :Thing . :r rdfs:range :Place .
:Oak rdfs:subClassOf :Tree . :Tree rdfs:subClassOf :Plant . :c a :Tree .
"""
OPERATORS = ["SEQ", "SEQ", "SEQ", "EQUALS", "DURING", "MEETS", "STARTS", "FINISHES", "PAR"]
OPERATORS += ["OPTIONALSEQ", "OPTIONALSEQ", "EQUALSOPTIONAL", "NOT"]
NUMBERS = [
    Literal("1", XSD + "integer"),
    Literal("2", XSD + "integer"),
    Literal("0.1", XSD + "decimal"),
    Literal("1.0E-1", XSD + "double"),
    Literal("2.0", XSD + "double"),
    Literal("NaN", XSD + "double"),
    Literal("two"),
    Literal("9007199254740993", XSD + "integer"),
    Literal("9007199254740992", XSD + "integer"),
]


class Maker:
    """Makes streams and queries that can be run over columns."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def stream(self, most: int, until: int) -> Rows:
        rows: Rows = []
        for _ in range(self.random.randrange(2, most)):
            s, p = term(self.random.choice("abc")), term(self.random.choice("pqr"))
            o = self.random.choice([term("a"), term("b"), term("c"), *NUMBERS])
            if self.random.random() < 0.25:
                p, o = Iri(RDF + "type"), Iri(BASE + self.pick("Oak", "Tree", "Plant", "Thing"))
            start = self.random.randrange(until)
            end = start + self.random.choice([0, 0, 0, 1, 2, 5])
            rows += [((s, p, o), start * SECOND, end * SECOND)] * self.random.choice([1, 1, 1, 2])
        return rows

    def triple(self) -> str:
        ends = ("?x", "?y", "?z", "?x", "?y", ":a")
        if self.random.random() < 0.25:
            return (
                f"{self.pick('?x', '?y', ':c')} a {self.pick(':Plant', ':Tree', ':Thing', ':Place', '?c')} ."
            )
        return (
            f"{self.pick(*ends)} {self.pick(':p', ':q', ':q', ':r', '?w')} {self.pick(*ends, '2', '0.1')} ."
        )

    def condition(self) -> str:
        number = self.pick("1", "0.1", "0.3", "1.0E-1", "2", "9007199254740992", ":a", '"two"')
        value = self.pick("?x", "?y", "?z", number, "?y + 1", "?y * 3", "?z - ?y", "?z / 3", "1 / ?y")
        plain = f"{value} {self.pick('<', '<=', '>', '>=', '=', '!=')} {self.pick('?y', '?z', number)}"
        length = f'getDURATION() {self.pick("<", "<=", ">")} "PT{self.random.randrange(1, 6)}S"^^xsd:duration'
        return self.pick(
            plain, plain, length, f"!({plain})", f"{plain} || {length}", f"{plain} && ?x != ?y", "isIRI(?y)"
        )

    def group(self, depth: int) -> str:
        if depth and self.random.random() < 0.75:
            pair = f"{self.group(depth - 1)} {self.random.choice(OPERATORS)} {self.group(depth - 1)}"
            body = f"{{ {pair} }}" if self.random.random() < 0.85 else self.pair(depth)
        else:
            body = " ".join(self.triple() for _ in range(self.random.choice([1, 1, 1, 2, 3])))
        filters = [f"FILTER ({self.condition()})" for _ in range(self.random.choice([0, 0, 1, 2]))]
        if depth and self.random.random() < 0.3:
            word = self.pick("OPTIONAL", "OPTIONAL", "MINUS", "UNION", "FILTER EXISTS", "FILTER NOT EXISTS")
            other = f"{word} {self.group(depth - 1)}"
            body = f"{{ {body} }} {other}" if word == "UNION" else f"{body} {other}"
        return f"{{ {body} {' '.join(filters)} }}"

    def pair(self, depth: int) -> str:
        return f"{self.group(depth - 1)} {self.group(depth - 1)}"

    def select(self, bounded: bool = False) -> str:
        group = self.group(2)
        if bounded:
            group = f'{{ {group} FILTER (getDURATION() < "PT4S"^^xsd:duration) }}'
        shown = self.pick("*", "*", "?x", "?x ?y", "?x (?y + 1 AS ?more)", "?z (getDURATION() AS ?long)")
        return f"SELECT {shown} WHERE {group}"


def agree(rows: Rows, queries: list[str], seed: int | None) -> None:
    note("\n".join(queries))
    expected, found = both(rows, *queries, knowledge=KNOWN, seed=seed)
    assert found == expected


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_query(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(25, 12), [maker.select()], None)


@pytest.mark.slow
@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_cut_and_a_state_that_is_saved(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(25, 12), [maker.select(), maker.select()], seed)


@pytest.mark.slow
@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_what_is_forgotten_is_never_missed(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(40, 40), [maker.select(bounded=True)], seed)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_beside_rules_and_other_queries(seed: int) -> None:
    maker = Maker(seed)
    rule = f"CONSTRUCT {{ ?x :r ?y }} WHERE {{ {{ ?x {maker.pick(':p', ':q')} ?y }} SEQ {{ ?y ?w ?z }} }}"
    other = "SELECT ?x WHERE { ?x :p ?y OPTIONAL { ?x :r ?z } }"
    agree(maker.stream(15, 10), [rule, maker.select(), other], seed)


# --- columns in, terms that are forgotten ------------------------------------------------

WITHIN = 'getDURATION() < "PT9S"^^xsd:duration'
PAIR = f"SELECT * WHERE {{ {{ ?x :p ?v }} SEQ {{ ?x :q ?w }} FILTER (?w > ?v && {WITHIN}) }}"


def readings(count: int) -> Rows:
    random = Random(count)
    return [
        (
            (term(f"x{random.randrange(5)}"), term(random.choice("pq")), term(str(i % 50))),
            i * SECOND,
            i * SECOND,
        )
        for i in range(count)
    ]


def answered(running: EpOperator, rows: Rows, size: int) -> list[Match]:
    found: list[Match] = []
    for first in range(0, len(rows), size):
        found += running.feed(rows[first : first + size])
    return sorted_matches([*found, *running.finish()])


def test_columns_with_a_list_of_terms_that_grows() -> None:
    rows = readings(300)
    terms: list[str] = []
    running, found = operator([plan(PAIR)], knowledge_of("")), list[Match]()
    for first in range(0, len(rows), 70):
        codes = []
        for (s, p, o), start, end in rows[first : first + 70]:
            texts = (str(s), str(p), str(o))
            terms += [each for each in texts if each not in terms]
            codes.append((*map(terms.index, texts), start, end))
        found += running.feed_columns(TripleColumns(terms, *np.array(codes).T))
    found += running.finish()
    assert len(found) > 50
    assert sorted_matches(found) == answered(operator([plan(PAIR)], knowledge_of("")), rows, 300)


def test_terms_that_nothing_kept_has_are_forgotten() -> None:
    rows = [
        ((s, p, Literal(str(i), XSD + "integer")), a, b)
        for i, ((s, p, _), a, b) in enumerate(readings(2_000))
    ]
    running = EpOperator([plan(PAIR)], knowledge_of(""))
    found: list[Match] = []
    for first in range(0, len(rows), 50):
        running._batches.most_terms = 200
        found += running.feed(rows[first : first + 50])
        assert len(running._batches.dictionary) < 300
    found += running.finish()
    assert sorted_matches(found) == answered(operator([plan(PAIR)], knowledge_of("")), rows, 300)


def test_ids_of_long_texts_other_letters_and_times_before_1970() -> None:
    long = Literal("ü\n" * 5_000)
    rows: Rows = [((term("a"), term("p"), long), -5, -5), ((term("a"), term("p"), term("β")), 0, 7)]
    expected, found = both(rows, "SELECT * WHERE { ?x :p ?y }")
    assert len(found["q0"]) == 2
    assert found == expected


@pytest.mark.parametrize(
    "where",
    [
        "{ ?x :q ?y FILTER EXISTS { { ?y :q ?y } UNION { ?y :q ?y . ?x :q ?y } FILTER (isIRI(?y)) } }",
        "{ ?x :q ?y OPTIONAL { ?z :p ?y } } { ?y :q ?y OPTIONAL { ?z :r ?y } }",
        "{ ?x :q ?y } MINUS { { ?y :q ?y } UNION { ?y :q ?y . ?x :q ?y } }",
    ],
)
def test_a_key_that_may_be_unbound_still_has_to_agree_where_it_is_bound(where: str) -> None:
    rows = stream("1 c q c\n2 d p c\n3 c q d\n4 e r d\n5 d q d\n6 a q c")
    expected, found = both(rows, f"SELECT * WHERE {{ {where} }}")
    assert expected["q0"]
    assert found == expected


def test_what_comes_too_late_is_refused() -> None:
    running = operator([plan(PAIR)], knowledge_of(""))
    rows = readings(3)
    with pytest.raises(Failure, match=r"ends at 1970-01-01T00:00:00.* comes after 1970-01-01T00:00:02"):
        running.feed([rows[2], rows[0]])


def test_what_is_calculated_of_many_solutions_is_what_is_calculated_of_each() -> None:
    numbers = [*NUMBERS, *(Literal(each, XSD + "integer") for each in ("999999999999999", "-7", "07", "+7"))]
    rows: Rows = []
    for at, number in enumerate(numbers):
        rows += [((term("a"), term(p), number), at * SECOND, at * SECOND) for p in "pq"]
    query = """SELECT ?n ?m ?k WHERE { ?x :p ?y . ?x :q ?z BIND (?y + ?z AS ?n) BIND (3 - ?y * ?z AS ?m)
        BIND (?y * ?z * ?y * ?z AS ?k) }"""
    expected, found = both(rows, query)
    assert found == expected
    assert len(found["q0"]) > len(numbers)
