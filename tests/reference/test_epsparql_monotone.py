"""Timewise monotonicity (section 4.2 of the paper): no answer is taken back by what comes later.

The answers over the part of a stream that ends by t are the answers over the whole that end by t.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.reference.epsparql_support import SECOND, run, term

from kaicep.plan.events import Match
from kaicep.plan.sparql import TEMPORAL_OPERATORS
from kaicep.plan.terms import Triple

KNOWN = ":a :p :b . :p rdfs:subPropertyOf :q . :c :r :a ."
Rows = list[tuple[Triple, int, int]]


class Maker:
    """Makes streams and queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def stream(self) -> Rows:
        rows: Rows = []
        for _ in range(self.random.randrange(2, 9)):
            s, p, o = self.random.choice("abc"), self.random.choice("pqr"), self.random.choice("abc12")
            start = self.random.randrange(6)
            end = start + self.random.choice([0, 0, 1, 2, 3])
            rows.append(((term(s), term(p), term(o)), start * SECOND, end * SECOND))
        return rows

    def triple(self) -> str:
        ends = ["?x", "?y", "?z", "?x", "?y", "<urn:kaicep:a>"]
        predicates = [":p", ":q", ":r", ":p", ":q", ":p+", ":q*", "(:p/:r)", "^:r", "(:p|:r)", "?w"]
        pick = self.random.choice
        return f"{pick(ends)} {pick(predicates)} {pick(ends)} ."

    def condition(self, depth: int) -> str:
        choices = ["?x != ?y", "BOUND(?z)", "!BOUND(?y)", 'getDURATION() < "PT3S"^^xsd:duration', "?y = 1"]
        if depth:
            choices += [f"EXISTS {self.group(depth - 1)}", f"NOT EXISTS {self.group(depth - 1)}"]
        return self.random.choice(choices)

    def element(self, depth: int) -> str:
        kinds = ["triple", "triple", "filter"]
        if depth:
            kinds += ["optional", "minus", "union", "temporal", "temporal", "temporal", "select"]
        match self.random.choice(kinds):
            case "filter":
                return f"FILTER ({self.condition(depth)})"
            case "optional":
                return f"OPTIONAL {self.group(depth - 1)}"
            case "minus":
                return f"MINUS {self.group(depth - 1)}"
            case "union":
                return f"{self.group(depth - 1)} UNION {self.group(depth - 1)}"
            case "temporal":
                op = self.random.choice(TEMPORAL_OPERATORS)
                return f"{{ {self.group(depth - 1)} {op} {self.group(depth - 1)} }}"
            case "select":
                aggregate = self.random.choice(["COUNT(*)", "SAMPLE(?y)", "MAX(?y)"])
                return f"{{ SELECT ?x ({aggregate} AS ?n{depth}) WHERE {self.group(depth - 1)} GROUP BY ?x }}"
            case _:
                return self.triple()

    def group(self, depth: int) -> str:
        parts = [self.element(depth) for _ in range(self.random.choice([1, 1, 2]))]
        return f"{{ {self.triple() if self.random.random() < 0.8 else ''} {' '.join(parts)} }}"

    def queries(self) -> list[str]:
        policy = self.random.choice(["unrestricted", "recent", "chronological"])
        select = f"CONSUMPTION {policy} SELECT * WHERE {self.group(2)}"
        # The rule reads only what ended strictly before, so it settles whatever the group says.
        rule = f"CONSTRUCT {{ ?x :r ?y }} WHERE {{ {self.group(1)} SEQ {{ ?x :q ?y }} }}"
        return [rule, select] if self.random.random() < 0.5 else [select]


def seen(found: dict[str, list[Match]], until: int) -> list[Match]:
    return sorted(
        (m for each in found.values() for m in each if m.end_us <= until), key=lambda m: (m.end_us, m.id)
    )


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_answers_are_never_taken_back(seed: int) -> None:
    maker = Maker(seed)
    rows, queries = maker.stream(), maker.queries()
    note("\n".join(queries))
    whole = run(rows, *queries, knowledge=KNOWN)
    for until in sorted({end for _, _, end in rows}):
        known = [row for row in rows if row[2] <= until]
        assert seen(run(known, *queries, knowledge=KNOWN), until) == seen(whole, until)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_answers_do_not_depend_on_the_order_of_arrival(seed: int) -> None:
    maker = Maker(seed)
    rows, queries = maker.stream(), maker.queries()
    note("\n".join(queries))
    assert run(rows, *queries, knowledge=KNOWN) == run(rows[::-1], *queries, knowledge=KNOWN)
