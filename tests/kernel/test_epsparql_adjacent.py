"""`P SEQ Q` with nothing in between, as the paper's queries (5) and (6) say it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import Rows, both, operator
from tests.reference.epsparql_support import SECOND, knowledge_of, plan, term

from kaicep.plan.terms import XSD, Iri, Literal

BEFORE = ["?x :p ?y", "?x :p ?z", "?x :p ?y . ?x :q ?u"]
AFTER = ["?x :q ?z", "?z :q ?w", ":a :q ?z"]
INSIDE = ["?x :i ?v", "?v :i ?k", "?y :i ?v", ":a :i ?v", "?z :i ?v", "?v :p ?k"]
LENGTHS = ["", ' && getDURATION() < "PT5S"^^xsd:duration', ' && getDURATION() > "PT3S"^^xsd:duration']


def stream(random: Random) -> Rows:
    rows: Rows = []
    for _ in range(random.randrange(4, 22)):
        start = random.randrange(12)
        end = start + random.choice([0, 0, 1, 2, 4])
        triple = term(random.choice("ab")), term(random.choice("pqi")), term(random.choice("ab1"))
        rows.append((triple, start * SECOND, end * SECOND))
    return rows


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_as_the_reference_has_it(seed: int) -> None:
    random = Random(seed)
    before, after, inside = (random.choice(each) for each in (BEFORE, AFTER, INSIDE))
    where = f"""{{ {{ {{ {before} }} SEQ {{ {after} }} }}
        EQUALSOPTIONAL {{ {{ {before} }} SEQ {{ {inside} }} SEQ {{ {after} }} }}
        FILTER (!BOUND(?v){random.choice(LENGTHS)}) }}"""
    queries = [f"SELECT * WHERE {where}"]
    if random.random() < 0.4:
        queries.append(f"CONSTRUCT {{ ?x :p ?z }} WHERE {where}")
    note("\n".join(queries))
    knowledge = random.choice(["", ":a :i :b . :a :p :a ."])
    expected, found = both(stream(random), *queries, knowledge=knowledge, seed=random.choice([None, seed]))
    assert found == expected


def test_the_search_ends_at_the_first_one_in_between() -> None:
    price = Iri("urn:kaicep:price")
    query = """SELECT * WHERE { { { ?x :price ?v } SEQ { ?x :price ?w } }
        EQUALSOPTIONAL { { ?x :price ?v } SEQ { ?x :price ?u } SEQ { ?x :price ?w } } FILTER (!BOUND(?u)) }"""
    running = operator([plan(query)], knowledge_of(""))
    rows: Rows = [
        ((term("a"), price, Literal(str(i), XSD + "integer")), i * SECOND, i * SECOND) for i in range(3_000)
    ]
    # All pairs would be millions, and what could be between them billions.
    assert len([*running.feed(rows), *running.finish()]) == 2_999
