"""What a PATH can tell of events: numbers and verdicts are those of each event by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES

from kaicep import testing
from kaicep.api import FiniteRun
from kaicep.kernel.columns import Strings, Table, column_of
from kaicep.kernel.operator import Nobody, Row
from kaicep.kernel.roots import RootIds
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.types import Type
from kaicep.reference.chicep import KnowledgeSemantics

pytestmark = pytest.mark.random
ANNOTATIONS = [
    {
        "stream": name,
        "class": ":Report",
        "prefixes": {"": "urn:kaicep:", "evt": "http://cei.usc.edu/Event.owl#"},
        "types": {"sensor": "string", "tag": "int64", "n": "int64", "x": "float64", "note": "string"},
        "attributes": {"n": ":size"} if name == "s" else {"x": ":size"},
        "entities": {
            "sensor": {"property": ":from", "iri": ":{value}"},
            **({"tag": {"property": ":by", "lookup": ":tag"}} if name == "s" else {}),
        },
    }
    for name in ("s", "t")
]
KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Office rdfs:subClassOf :Room . :s0 :tag 1 . :s1 :tag 2 . :Office :limit 2 .
    :s0 :in :r0 . :s1 :in :r1 . :s2 :in :r0, :r1 . :r0 a :Office . :r1 a :Lab . :r0 :size 2 . :r1 :size 3.0 .
    :r0 :since "1970-01-01T00:00:05Z"^^<http://www.w3.org/2001/XMLSchema#dateTime> .
"""
PATHS = {
    "one string": "?e :from ?s . ?s :in ?r . ?r a :Office .",
    "two roots": "?e :from ?s . ?s :in ?r . ?e :by ?b . ?b :in ?r .",
    "a number": "?e :from ?s . ?s :in ?r . ?e :size ?n . ?r :size ?n .",
    "compared": "?e :from ?s . ?s :in ?r . ?r :size ?m . ?e :size ?n . FILTER (?n >= ?m)",
    "an option": "?e :from ?s . OPTIONAL {?s :in ?r . ?e :by ?s} FILTER (!BOUND(?r))",
    "the time": "?e :from ?s . ?s :in ?r . ?e evt:hasTime ?t . ?r :since ?f . FILTER (?t >= ?f)",
    "any property": "?e ?p ?v . FILTER (?v = 3 || ?v = '1970-01-01T00:00:05Z'^^xsd:dateTime)",
    "its name": "?e :from ?s . ?s :in ?r . FILTER (STRENDS(STR(?e), '2'))",
    "in disguise": "?e :from ?s . ?x :size ?n . ?x :by ?s .",
}


def events_of(rows: list[tuple[str, int, object, object, object, object]]) -> list[Event]:
    return [
        Event(stream, 0, seq, ts * 1_000_000, {"sensor": sensor, "n": n, "x": x, "tag": tag})
        for seq, (stream, ts, sensor, n, x, tag) in enumerate(rows)
    ]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("sst"),
        st.sampled_from((0, 5, 10, 20)),
        st.sampled_from(("s0", "s1", "s2", "s9", None)),
        st.sampled_from((2, 3, None)),
        st.sampled_from((2.0, 3.0, None)),
        st.sampled_from((1, 2, 9, None)),
    ),
    max_size=5,
).map(events_of)
TYPES = {"sensor": Type.STRING, "n": Type.INT64, "x": Type.FLOAT64, "tag": Type.INT64}


def table_of(events: list[Event], strings: Strings, untyped: bool = False) -> Table:
    count = len(events)
    return Table(
        ("t", "s"),
        np.array([each.ts for each in events], np.int64),
        np.array(["ts".index(each.stream) for each in events], np.int16),
        np.zeros(count, np.int64),
        np.array([each.seq for each in events], np.int64),
        {
            name: column_of(None if untyped else type, [each.values[name] for each in events], strings)
            for name, type in TYPES.items()
        },
        strings,
    )


def prepared(path: str, reasoning: str = "rdfs") -> tuple[FiniteRun, Semantic, Semantic]:
    """A run, and the condition of its PATH: as it is written, and as it is looked up if it can be."""
    query = f"SELECT ?e.sensor FROM (?e, s, t) PATH {{ {path} }}"
    rows = "stream | ts | sensor | n | tag | x\ns | 0 | s0 | 2 | 1 | 1.5\nt | 0 | s0 | 2 | 1 | 1.5"
    run = testing.prepare(query, rows, knowledge=KNOWLEDGE, annotations=ANNOTATIONS, reasoning=reasoning)
    (written,) = run.program.chi_plans
    plans = (written, optimize(written, run.catalog, run.knowledge)[0])
    asked, looked_up = (plan.body.chains[0].semantics[0] for plan in plans)
    return run, asked, looked_up


def said_by_reference(run: FiniteRun, condition: Semantic, events: list[Event]) -> list[bool]:
    semantics = KnowledgeSemantics(run.catalog, run.knowledge)
    return [bool(semantics.solutions(condition, {"e": each})) for each in events]


WHEN = st.sampled_from((None, 4_000_000, 10_000_000))
CHANGES = (":s0 :in :r1 .", ":s9 :in :r0 .", ":r1 a :Office .")


@pytest.mark.parametrize("reasoning", ["rdfs", "owl-rl"])
@pytest.mark.parametrize("name", PATHS)
def test_a_verdict_is_that_of_each_event(name: str, reasoning: str) -> None:
    @settings(
        max_examples=max(EXAMPLES // 15, 10),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(
        st.lists(EVENTS, min_size=1, max_size=3),
        st.lists(
            st.tuples(st.sampled_from(CHANGES), st.sampled_from((None, 4_000_000, 10_000_000))), max_size=2
        ),
        st.randoms(use_true_random=False),
    )
    def agree(batches: list[list[Event]], changes: list[tuple[str, int | None]], chance: Random) -> None:
        run, written, looked_up = prepared(PATHS[name], reasoning)
        for condition in (written, looked_up):
            strings, relations = Strings(), Relations(run.catalog, run.knowledge)
            roots = RootIds(condition, "e", run.catalog, semantics=relations)
            left = list(changes)
            for number, batch in enumerate(batches):
                events = [replace(each, seq=each.seq + 10 * number) for each in batch]
                if left and chance.random() < 0.5:
                    text, since = left.pop()
                    run.knowledge.update(add="@prefix : <urn:kaicep:> . " + text, valid_from=since)
                    relations.renew()
                    roots.renew()
                if chance.random() < 0.3:
                    document = json.loads(json.dumps(roots.save()))
                    known = relations if chance.random() < 0.8 else None
                    roots, strings = RootIds(condition, "e", run.catalog, semantics=known), Strings()
                    roots.load(document)
                table = table_of(events, strings, untyped=chance.random() < 0.2)
                wanted = np.array([chance.random() < 0.8 for _ in events], np.bool_)
                found = roots.verdicts(table, run.knowledge.epochs, relations, wanted)
                truth = np.array(said_by_reference(run, condition, events), np.bool_)
                assert found.tolist() == (truth & wanted).tolist()

    agree()


# --- events of which many are alike ------------------------------------------------------------------------


def many(streams: str, sensors: str, times: list[int]) -> list[Event]:
    rows = zip(streams, sensors, times, strict=True)
    return [
        Event(stream, 0, seq, ts, {"sensor": f"s{sensor}", "n": 2, "x": 2.0, "tag": 1})
        for seq, (stream, sensor, ts) in enumerate(rows)
    ]


def test_events_have_one_number_where_the_path_sees_no_difference() -> None:
    run, _, condition = prepared(PATHS["one string"])
    roots, strings = RootIds(condition, "e", run.catalog), Strings()
    assert roots.attributes == ("sensor",)
    events = many("sssst", "01000", [0, 1, 2, 9, 2])
    ids = roots.ids(table_of(events, strings), ()).tolist()
    assert ids[0] == ids[2] == ids[3]
    assert len(roots.events) == len(set(ids)) == 3
    for event, number in zip(events, ids, strict=True):
        known = roots.events[number]
        assert (known.stream, known.values) == (event.stream, {"sensor": event.values["sensor"]})


def test_the_knowledge_may_change_between_two_events() -> None:
    run, _, condition = prepared(PATHS["one string"])
    roots, strings = RootIds(condition, "e", run.catalog), Strings()
    table = table_of(many("sssss", "00000", [0, 4, 5, 9, 20]), strings)
    before = roots.ids(table, (5,))
    assert before.tolist() == [0, 0, 1, 1, 1]
    # A boundary more tells two events apart that had one number.
    assert roots.ids(table, (5, 10)).tolist() == [0, 0, 1, 1, 2]
    assert roots.moved(before, table.ts, table, (5, 10)).tolist() == [0, 0, 1, 1, 2]


def test_each_number_is_asked_about_once() -> None:
    run, _, condition = prepared(PATHS["one string"])
    roots, strings, asked = RootIds(condition, "e", run.catalog), Strings(), Counting(run)
    table = table_of(many("ssss", "0120", [0, 1, 2, 3]), strings)
    wanted = np.array([True, True, False, True])
    assert roots.verdicts(table, (), asked, wanted).tolist() == [True, False, False, True]
    assert roots.verdicts(table, (), asked, wanted).tolist() == [True, False, False, True]
    assert asked.count == 2
    roots.renew()
    roots.verdicts(table, (), asked, np.ones(4, np.bool_))
    assert asked.count == 5


class Counting:
    """Decides PATHs one event at a time, and counts the questions."""

    def __init__(self, run: FiniteRun) -> None:
        self.relations = Relations(run.catalog, run.knowledge)
        self.count = 0

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        self.count += 1
        return self.relations.solutions(condition, binding)


def test_numbers_that_nobody_uses_are_given_again() -> None:
    run, _, condition = prepared(PATHS["one string"])
    roots, strings, asked = RootIds(condition, "e", run.catalog), Strings(), Counting(run)
    everything = np.ones(3, np.bool_)
    first = table_of(many("sss", "012", [0, 1, 2]), strings)
    assert roots.verdicts(first, (), asked, everything).tolist() == [True, False, True]
    roots.forget(np.array([1, 1]))
    other = table_of(many("sss", "291", [3, 4, 5]), strings)
    ids = roots.ids(other, ())
    assert sorted(ids.tolist()) == [0, 1, 2]
    assert ids[2] == 1
    assert [roots.events[each].values["sensor"] for each in ids.tolist()] == ["s2", "s9", "s1"]
    assert roots.verdicts(other, (), asked, everything).tolist() == [True, False, False]


def test_conditions_on_variables_of_the_path_are_part_of_the_verdict() -> None:
    query = "SELECT ?e.x FROM (?e, s) FILTER (?e.x > ?m * 2) PATH {?e :from ?s . ?s :in ?r . ?r :size ?m}"
    rows = "ts | sensor | n | tag | x\n0 | s0 | 2 | 1 | 1.5"
    run = testing.prepare(query, rows, knowledge=KNOWLEDGE, annotations=ANNOTATIONS[:1])
    plan = optimize(run.program.chi_plans[0], run.catalog, run.knowledge)[0]
    (condition,) = plan.body.chains[0].semantics
    values = [("s0", 4.0), ("s0", 4.5), ("s1", 4.5), ("s1", 7.0), ("s1", None), ("s9", 9.0), ("s2", 5.0)]
    events = [
        Event("s", 0, seq, 0, {"sensor": sensor, "n": 1, "x": x, "tag": 1})
        for seq, (sensor, x) in enumerate(values)
    ]
    roots, relations = RootIds(condition, "e", run.catalog), Relations(run.catalog, run.knowledge)
    assert {"sensor", "x"} <= set(roots.attributes)
    found = roots.verdicts(table_of(events, Strings()), (), relations, np.ones(7, np.bool_))
    assert found.tolist() == said_by_reference(run, condition, events)
    assert found.tolist() == [False, True, False, True, False, False, True]


def test_a_path_that_nothing_fulfils_is_not_asked() -> None:
    run, _, _ = prepared(PATHS["one string"])
    roots = RootIds(Semantic((), ("e",)), "e", run.catalog)
    table = table_of(many("st", "00", [0, 1]), Strings())
    assert roots.ids(table, ()).tolist() == [0, 1]
    assert not roots.verdicts(table, (), Nobody(), np.ones(2, np.bool_)).any()
    assert not roots.ids(table.take(slice(0, 0)), ()).size


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("a number", ()),
        ("an option", ()),
        ("the time", ("ts",)),
        ("any property", ("ts",)),
        ("its name", ("ts", "seq")),
    ],
)
def test_what_a_path_sees_of_the_identity_of_events(name: str, seen: tuple[str, ...]) -> None:
    run, written, _ = prepared(PATHS[name])
    relations = Relations(run.catalog, run.knowledge)
    assert relations.identity_seen(written, "e") == seen
    roots = RootIds(written, "e", run.catalog, semantics=relations)
    roots.ids(table_of(many("sss", "000", [0, 0, 1]), Strings()), ())
    assert len(roots.events) == 1 + len(seen)
