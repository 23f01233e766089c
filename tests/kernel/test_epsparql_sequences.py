"""SEQ of three groups and more: the answers of the reference in any order of joins, and when that changes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import Rows, both, operator
from tests.reference.epsparql_support import SECOND, plan

from kaicep.kernel.epsparql import EpOperator, sequences
from kaicep.kernel.epsparql.sequences import SequenceColumns
from kaicep.knowledge.store import Knowledge
from kaicep.plan.terms import XSD, Iri, Literal

WITHIN = 'FILTER (getDURATION() < "PT9S"^^xsd:duration)'
THREE = f"SELECT * WHERE {{ {{ ?x :p ?u }} SEQ {{ ?x :q ?v }} SEQ {{ ?x :r ?w }} {WITHIN} }}"


def of(running: EpOperator) -> SequenceColumns:
    """The only sequence of an operator."""
    [found] = [e for each in running._contexts for e in each.keepers if isinstance(e, SequenceColumns)]
    return found


def ticks(random: Random, count: int, first: int, weights: tuple[int, ...], length: int = 0) -> Rows:
    """One triple a second, of predicates that are more or less frequent."""
    rows: Rows = []
    for i in range(first, first + count):
        [p] = random.choices("pqrs"[: len(weights)], weights)
        subject, end = Iri(f"urn:kaicep:{random.choice('xy')}"), i + random.randrange(length + 1)
        value = Literal(str(random.randrange(9)), XSD + "integer")
        rows.append(((subject, Iri(f"urn:kaicep:{p}"), value), i * SECOND, end * SECOND))
    return sorted(rows, key=lambda row: row[2])


@pytest.mark.parametrize(
    ("weights", "shape"),
    [((50, 50, 1), (0, (1, 2))), ((1, 50, 50), ((0, 1), 2)), ((50, 1, 1, 50), (0, ((1, 2), 3)))],
)
def test_the_rare_ones_are_joined_first(
    monkeypatch: pytest.MonkeyPatch, weights: tuple[int, ...], shape: object
) -> None:
    monkeypatch.setattr(sequences, "_GAIN", 1.0)
    text = THREE if len(weights) == 3 else THREE.replace(WITHIN, "SEQ { ?x :s ?z } " + WITHIN)
    running = operator([plan(text)], Knowledge.empty())
    running.feed(ticks(Random(1), 9_000, 0, weights))
    order = of(running)._orders[-1].shape
    assert order == shape or {order, shape} == {(0, ((1, 2), 3)), ((0, (1, 2)), 3)}


def test_what_a_condition_lets_pass_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ticks(Random(1), 9_000, 0, (1, 1, 1))
    for condition, shape in (("?w > ?v + 7", (0, (1, 2))), ("?v > ?u + 7", ((0, 1), 2))):
        running = operator([plan(THREE.replace(WITHIN, f"{WITHIN} FILTER ({condition})"))], Knowledge.empty())
        running.feed(rows)
        assert of(running)._orders[-1].shape == shape


def test_another_order_takes_over_when_rates_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "_OFTEN", 60)
    random = Random(2)
    rows = [*ticks(random, 300, 0, (50, 50, 1)), *ticks(random, 300, 300, (1, 50, 50))]
    seen, joins = [], SequenceColumns._joins

    def made(self: SequenceColumns, shape: object) -> object:
        seen.append(shape)
        return joins(self, shape)

    monkeypatch.setattr(SequenceColumns, "_joins", made)
    running = operator([plan(THREE, "q0")], Knowledge.empty())
    found = [match for at in range(0, 600, 5) for match in running.feed(rows[at : at + 5])]
    found += running.finish()
    assert seen == [((0, 1), 2), (0, (1, 2)), ((0, 1), 2)]
    assert len(of(running)._orders) == 1
    expected, _ = both(rows, THREE)
    assert sorted(found, key=lambda m: (m.end_us, m.id)) == expected["q0"]


def test_another_order_takes_over_right_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "_OFTEN", 60)
    monkeypatch.setattr(sequences, "_GAIN", 1.0)
    rows = [(row, start // 20, end // 20) for row, start, end in ticks(Random(3), 300, 0, (50, 50, 5))]
    expected, _ = both(rows, THREE)
    overlapping = 0
    for cut in range(20, 50, 3):
        first, again = (operator([plan(THREE, "q0")], Knowledge.empty()) for _ in range(2))
        found = [*first.feed(rows[:cut]), *first.advance(rows[cut][2])]
        again.restore(first.snapshot())
        found += again.feed(rows[cut : cut + 80])
        overlapping += len(of(again)._orders) == 2
        found += [*again.feed(rows[cut + 80 :]), *again.finish()]
        assert sorted(found, key=lambda m: (m.end_us, m.id)) == expected["q0"]
    assert overlapping > 3


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (THREE, [("SEQ ?x ?u ?v ?w", "for less than 9s")]),
        (THREE.replace(WITHIN, ""), [("SEQ ?x ?u", "for ever"), ("SEQ ?x ?u ?v", "for ever")]),
        ("SELECT * WHERE { { ?x :p ?u } EQUALS { ?x :q ?v } }", [("EQUALS ?x ?u", "for one instant")]),
        (
            f"SELECT ?x (SUM(?u) AS ?s) WHERE {{ {{ ?x :p ?u }} SEQ {{ ?x :q ?v }} {WITHIN} }} GROUP BY ?x",
            [("SEQ ?x ?u", "for less than 9s"), ("an aggregate ?x", "a row for each group")],
        ),
    ],
)
def test_it_says_what_is_kept_for_how_long(text: str, kept: list[tuple[str, str]]) -> None:
    assert operator([plan(text)], Knowledge.empty()).kept()[: len(kept)] == kept


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_sequence_in_any_order(seed: int) -> None:
    random = Random(seed)
    some = [tuple(random.choices([1, 9], k=4)) for _ in range(2)]
    length = random.choice([0, 0, 3])
    rows = [*ticks(random, 40, 0, some[0], length), *ticks(random, 40, 40, some[1], length)]
    a, b, c, d = (
        f"{{ {random.choice(['?x', '?x', '?y'])} :{p} ?{v} }}" for p, v in zip("pqrs", "uvwz", strict=True)
    )
    body = random.choice(
        [
            f"{a} SEQ {b} SEQ {c}",
            f"{a} SEQ {{ {b} SEQ {c} }}",
            f"{a} SEQ {b} SEQ {c} SEQ {d}",
            f"{{ {{ {a} SEQ {b} FILTER (?u < ?v) }} SEQ {c} }} SEQ {d}",
            f"{{ {a} OPTIONALSEQ {b} }} SEQ {c} SEQ {d}",
        ]
    )
    conditions = ["", "FILTER (?u != ?w)", "FILTER (?v > 3)", "FILTER (?u < ?v && ?v < ?w)"]
    chosen = " ".join(random.sample(conditions, 2))
    bound = f'FILTER (getDURATION() <= "PT{random.choice([3, 6])}S"^^xsd:duration)'
    text = f"SELECT * WHERE {{ {body} {chosen} {bound} }}"
    note(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "_OFTEN", 12)
        patch.setattr(sequences, "_GAIN", random.choice([0.1, 1.0]))
        patch.setattr(SequenceColumns, "_cheapest", _any_shape(random))
        expected, found = both(rows, text, seed=random.choice([None, seed]))
    assert found == expected


def _any_shape(random: Random) -> object:
    def chosen(self: SequenceColumns, work: object) -> object:
        shapes: list[object] = list(range(len(self._sides)))
        while len(shapes) > 1:
            at = random.randrange(len(shapes) - 1)
            shapes[at : at + 2] = [(shapes[at], shapes[at + 1])]
        return shapes[0]

    return chosen
