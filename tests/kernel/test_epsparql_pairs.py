"""GROUP BY over a SEQ without its pairs: the answers of the reference, at a cost that no bound changes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import Rows, both, operator
from tests.reference.epsparql_support import SECOND, plan

from kaicep.kernel.epsparql.pairs import GroupedPairs, apart
from kaicep.knowledge.store import Knowledge
from kaicep.plan.nodes import Grouping
from kaicep.plan.terms import XSD, Iri, Literal, Term

WITHIN = 'FILTER (getDURATION() < "PT10S"^^xsd:duration)'
TICKS = """
0 x p 5
2 x q 1
3 x p 7
3 y p 100
4 x q 2
12 x q 3
20 x q 4
"""
NUMBERS = ["1", "2", "-3", "7", "12", "999999999999999"]


def grouping(text: str) -> Grouping:
    [found] = [each for each in plan(text).root.walk() if isinstance(each, Grouping)]
    return found


def solutions(text: str, occurrences: str = TICKS) -> list[tuple[int, int, dict[str, str]]]:
    """The answers by the kernel, which are those of the reference: start, end and values."""
    expected, found = both(occurrences, text)
    assert found == expected
    return [
        (each.start_us // SECOND, each.end_us // SECOND, {k: v["value"] for k, v in each.select.items()})
        for each in found["q0"]
    ]


def test_a_group_takes_what_stands_before_each_solution() -> None:
    found = solutions(
        f"""SELECT ?x (COUNT(*) AS ?n) (SUM(?u) AS ?s) (SUM(?v) AS ?t) (MAX(?u) AS ?m)
        WHERE {{ {{ ?x :p ?u }} SEQ {{ ?x :q ?v }} {WITHIN} }} GROUP BY ?x"""
    )
    assert found == [
        (0, 2, {"x": "urn:kaicep:x", "n": "1", "s": "5", "t": "1", "m": "5"}),
        (0, 4, {"x": "urn:kaicep:x", "n": "3", "s": "17", "t": "5", "m": "7"}),
        (0, 12, {"x": "urn:kaicep:x", "n": "4", "s": "24", "t": "8", "m": "7"}),
    ]


def test_groups_by_their_end_are_windows() -> None:
    found = solutions(
        f"""SELECT (AVG(?u) AS ?mean) (MIN(?u) AS ?least) WHERE {{
        {{ :x :p ?u }} SEQ {{ :x :q ?v }} {WITHIN} }} GROUP BY (getENDTIME() AS ?t)"""
    )
    assert found == [
        (0, 2, {"mean": "5.0", "least": "5"}),
        (0, 4, {"mean": "6.0", "least": "5"}),
        (3, 12, {"mean": "7.0", "least": "7"}),
    ]


@pytest.mark.parametrize(
    ("text", "is_apart"),
    [
        ("SELECT ?x (SUM(?u) AS ?s) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } } GROUP BY ?x", True),
        ("SELECT (COUNT(*) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } FILTER (?u > 1 && ?v < 5) }", True),
        ("SELECT (SUM(?u * 2) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } BIND (?v + 1 AS ?w) }", True),
        ("SELECT (MIN(DISTINCT ?u) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", True),
        ("SELECT (SUM(DISTINCT ?v) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", True),
        ("SELECT (SUM(DISTINCT ?u) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", False),
        ("SELECT ?u (COUNT(*) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } } GROUP BY ?u", False),
        ("SELECT (SUM(?u + ?v) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", False),
        ("SELECT (COUNT(*) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } FILTER (?u < ?v) }", False),
        ("SELECT (COUNT(*) AS ?n) WHERE { { ?x :p ?u } PAR { ?x :q ?v } }", False),
        ("SELECT (MIN(getSTARTTIME()) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", False),
        ("SELECT (MAX(getENDTIME()) AS ?n) WHERE { { ?x :p ?u } SEQ { ?x :q ?v } }", True),
    ],
)
def test_each_value_and_key_is_of_one_side(text: str, is_apart: bool) -> None:
    assert (apart(grouping(text)) is not None) is is_apart


def test_nobody_makes_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    step = GroupedPairs._with

    def counted(self: GroupedPairs, rows: object, *others: object) -> object:
        seen.append(len(rows))  # type: ignore[arg-type]
        return step(self, rows, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupedPairs, "_with", counted)
    text = f"SELECT (COUNT(*) AS ?n) WHERE {{ {{ ?x :p ?u }} SEQ {{ ?x :q ?v }} {WITHIN} }}"
    rows = "\n".join(f"{i} x p {i}\n{i} x q {i}" for i in range(9))
    assert len(both(rows, text)[1]["q0"]) == 8
    assert sum(seen) == 8


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_what_an_instant_takes_back_was_never_there(seed: int | None) -> None:
    rules = [
        f"""CONSTRUCT {{ ?x :r ?n }} WHERE {{ SELECT ?x (COUNT(*) AS ?n) (SUM(?u) AS ?s) WHERE {{
        {{ ?x :s ?u }} SEQ {{ ?x :q ?v }} {WITHIN} }} GROUP BY ?x }}""",
        "CONSTRUCT { ?x :s ?u } WHERE { ?x :p ?u MINUS { ?x :r 1 } }",
    ]
    ticks = "0 x p 5\n2 x q 1\n2 x p 9\n3 y p 7\n4 x q 2\n5 y q 1\n6 x q 3"
    expected, found = both(ticks, *rules, seed=seed)
    assert found == expected
    made = [each.triples[0].split('"')[1] for each in found["q0"]]
    assert made == ["1", "2", "1", "3"]


def test_what_a_bound_has_passed_is_forgotten_and_groups_of_one_instant_too() -> None:
    text = f"""SELECT (SUM(?u) AS ?s) WHERE {{ {{ ?x :p ?u }} SEQ {{ ?x :q ?v }} {WITHIN} }}
    GROUP BY (getENDTIME() AS ?t)"""
    running = operator([plan(text)], Knowledge.empty())
    p, q, x = (Iri(f"urn:kaicep:{each}") for each in "pqx")
    for i in range(5_000):
        at = i * SECOND
        running.feed([((x, p, Literal(str(i), XSD + "integer")), at, at), ((x, q, x), at, at)])
        running.advance(at)
    assert running.size < 1_000


class Maker:
    """Makes streams and queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.kinds = self.random.choice([["integer"], ["integer"], ["integer", "decimal", "double", "text"]])
        self.longest = self.random.choice([0, 0, 3])

    def number(self) -> Term:
        match self.random.choice(self.kinds):
            case "integer":
                return Literal(self.random.choice(NUMBERS), XSD + "integer")
            case "decimal":
                return Literal(self.random.choice(["1.50", "0.1", "-2.25"]), XSD + "decimal")
            case "double":
                return Literal(self.random.choice(["1.0E0", "0.1", "INF", "-1.0E300"]), XSD + "double")
        return Literal(self.random.choice("kl"), XSD + "string")

    def stream(self) -> Rows:
        rows: Rows = []
        for _ in range(self.random.randrange(4, 30)):
            s, p = (Iri(f"urn:kaicep:{self.random.choice(some)}") for some in ("xy", "ppq"))
            start = self.random.randrange(20)
            end = start + (self.random.randrange(self.longest) if self.longest else 0)
            rows.append(((s, p, self.number()), start * SECOND, end * SECOND))
        return rows

    def query(self) -> str:
        pick = self.random.choice
        left = pick(["{ ?x :p ?u }", "{ ?x :p ?u }", "{ ?y :p ?u }", "{ { ?x :q ?w } SEQ { ?x :p ?u } }"])
        right = pick(["{ ?x :q ?v }", "{ ?x :q ?v }", "{ ?x :p ?v }", "{ ?x :p ?v ; :q ?w }"])
        ofs = [
            f"{op}({'DISTINCT ' if self.random.random() < 0.1 else ''}{of})"
            for op in ("COUNT", "SUM", "AVG", "MIN", "MAX", "SAMPLE")
            for of in ("?u", "?v", "?u * 2")
        ]
        shown = " ".join(f"({pick(['COUNT(*)', *ofs, *ofs])} AS ?n{i})" for i in range(3))
        keys = pick(["", "?x", "?x", "?v", "?t", "?x ?t"])
        bound = f'FILTER (getDURATION() {pick(["<", "<="])} "PT{pick([2, 5, 9])}S"^^xsd:duration)'
        parts = [pick([bound, bound, ""]), pick(["", "", "FILTER (?u > 1)", "FILTER (?v != 2)"])]
        parts.append("BIND (getENDTIME() AS ?t)" if "?t" in keys else "")
        grouped = f"GROUP BY {keys}" if keys else ""
        return f"SELECT {keys} {shown} WHERE {{ {left} SEQ {right} {' '.join(parts)} }} {grouped}"


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_aggregate_of_any_sequence(seed: int) -> None:
    maker = Maker(seed)
    rows, queries = maker.stream(), [maker.query(), maker.query()]
    note("\n".join(queries))
    expected, found = both(rows, *queries, seed=maker.random.choice([None, seed]))
    assert found == expected
