"""Tables of relations while the knowledge changes, and events that are evaluated together."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kaicep import testing
from kaicep.knowledge.queries import ClosedStore, closed_store
from kaicep.knowledge.relations import Relations, RuntimeSettings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.reference.chicep import KnowledgeSemantics, answers

ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "types": {"sensor": "string", "tag": "int64", "n": "int64"},
    "attributes": {"n": ":size"},
    "entities": {
        "sensor": {"property": ":from", "iri": ":{value}"},
        "tag": {"property": ":by", "lookup": ":tag"},
    },
}
SCHEMA = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Office rdfs:subClassOf :Room . :in rdfs:range :Room . :s0 :tag 1 . :s1 :tag 2 .
"""
FACTS = [
    *(f":s{s} :in :r{r} ." for s in range(3) for r in range(3)),
    *(f":r{r} a :{c} ." for r in range(3) for c in ("Office", "Lab")),
    *(f":r{r} :of :d0 ." for r in range(3)),
    *(f":r{r} :near :r{q} ." for r in range(3) for q in range(3)),
    *(f":r{r} :size {n} ." for r in range(3) for n in ("2", "3", "3.0")),
]
# What a property that the PATH does not mention may say of the event, or of its entity.
AXIOMS = [
    ":by rdfs:range :Lab .",
    ":size rdfs:domain :Sized .",
    ":by <http://www.w3.org/2002/07/owl#inverseOf> :named .",
]
EVENTS = """
    ts  | sensor | n | tag
    0   | s0     | 2 |
    5   | s1     | 3 | 1
    10  | s2     |   | 9
    15  | s9     | 3 | 2
    20  | s0     | 3 | 1
    25  | s1     | 2 | 2
    26  | s0     |   |
"""
PATHS = [
    "?e :from ?s . ?s :in ?r . ?r a :Office .",
    "?e :from ?s . ?s :in ?r . ?r a :Room . ?r :of :d0 .",
    "?e :from ?s . ?s :in ?r . ?r :near ?q . ?q a :Lab .",
    "?e :from ?s . ?s :in ?r . ?r :near ?r .",
    "?e :from ?s . ?s :in ?r . ?r :near+ ?q . ?q a :Lab .",
    "?e :from ?s . ?s :in ?r . FILTER NOT EXISTS {?r a :Lab}",
    "?e :from ?s . ?s :in ?r . OPTIONAL {?r :of ?d} FILTER (!BOUND(?d))",
    "?e :from ?s . ?s :in ?r . ?e :size ?n . ?r :size ?n .",
    "?e :from ?s . ?s :in ?r . ?e :size 3 .",
    "?e :from :s1 . :s1 :in ?r .",
    "?e :from ?s . ?s :in ?r . ?x :size ?y . ?x a :Report .",
    "?e :from ?s . ?s :in ?r . ?s ^:from ?x . ?x :size ?n .",
    "?e :from ?s . ?s :in ?r . ?s a :Lab .",
    "?e :from ?s . ?s :in ?r . ?e a :Sized .",
    "?e :from ?s . ?s :in ?r . ?s :named ?x . ?x a :Report .",
]
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CHANGES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(FACTS), max_size=3),
        st.lists(st.sampled_from(FACTS), max_size=3),
        st.sampled_from([None, None, 0, 7_000_000, 18_000_000]),
    ),
    max_size=4,
)


def turtle(facts: list[str]) -> str:
    return "@prefix : <urn:kaicep:> .\n" + "\n".join(facts)


def prepared(path: str, facts: list[str], selected: str = "?r", reasoning: str = "rdfs"):
    query = f"SELECT ?e.sensor, {selected} FROM (?e, s) PATH {{ {path} }}"
    knowledge = SCHEMA + "\n".join(facts)
    return testing.prepare(query, EVENTS, knowledge=knowledge, reasoning=reasoning, annotations=[ANNOTATION])


def judged(run, plan, semantics) -> list[str]:
    return [each.match.to_json() for each in answers(plan, run.batches[0], semantics)]


@QUIET
@given(
    st.sampled_from(PATHS),
    st.lists(st.sampled_from(FACTS), max_size=12, unique=True),
    st.lists(st.sampled_from(AXIOMS), unique=True),
    CHANGES,
)
@example("?e :from ?s . ?s :in ?r . ?e a :Sized .", [":s0 :in :r0 ."], [":size rdfs:domain :Sized ."], [])
def test_tables_follow_every_change(path, facts, axioms, changes):
    run = prepared(path, facts + axioms)
    (query,) = run.program.queries
    plan, _ = optimize(query, run.catalog, run.knowledge)
    relations = Relations(run.catalog, run.knowledge)
    for add, remove, valid_from in [((), (), None), *changes]:
        run.knowledge.update(turtle(add), turtle(remove), valid_from)
        judge = KnowledgeSemantics(run.catalog, run.knowledge)
        assert judged(run, plan, relations) == judged(run, query, judge)


@pytest.mark.slow
@pytest.mark.parametrize("cache", [0, 1, 100])
@QUIET
@given(
    st.sampled_from(PATHS),
    st.lists(st.sampled_from(FACTS), max_size=12, unique=True),
    st.lists(st.sampled_from(AXIOMS), unique=True),
    st.sampled_from(["rdfs", "owl-rl"]),
    CHANGES,
)
def test_events_that_are_evaluated_together(cache, path, facts, axioms, reasoning, changes):
    run = prepared(path, facts + axioms, "?e.n", reasoning)
    (query,) = run.program.queries
    relations = Relations(run.catalog, run.knowledge, settings=RuntimeSettings(cache, buffer=True))
    for add, remove, valid_from in [((), (), None), *changes]:
        run.knowledge.update(turtle(add), turtle(remove), valid_from)
        for condition in query.body.chains[0].semantics:
            relations.runtime.buffer(condition, run.batches[0])
        judge = KnowledgeSemantics(run.catalog, run.knowledge)
        assert judged(run, query, relations) == judged(run, query, judge)


def test_a_buffer_asks_once():
    run = prepared(PATHS[0], [":s0 :in :r0 .", ":r0 a :Office ."], "?e.n")
    (query,) = run.program.queries
    runtime = Relations(run.catalog, run.knowledge, settings=RuntimeSettings(0, buffer=True)).runtime
    (condition,) = query.body.chains[0].semantics
    known = [event for event in run.batches[0] if event.values["sensor"] in ("s0", "s1")][:4]
    runtime.buffer(condition, known)
    assert runtime.counters.evaluations == 1
    assert [bool(runtime.solutions(condition, {"e": each})) for each in known] == [True, False, True, False]
    assert runtime.counters.evaluations == 1


def test_a_store_follows_changes_without_being_made_again():
    knowledge = Knowledge.parse(SCHEMA + ":s0 :in :r0 .")
    store = closed_store(knowledge)
    knowledge.update(turtle([":s0 :in :r1 ."]), turtle([":s0 :in :r0 ."]))
    knowledge.update(turtle([":s1 :in :r2 ."]), valid_from=5)
    assert closed_store(knowledge) is store
    assert set(store._store) == set(ClosedStore(knowledge)._store)


def test_changes_of_long_ago_are_forgotten():
    knowledge = Knowledge.parse(SCHEMA)
    for number in range(40):
        knowledge.update(turtle([f":s0 :in :r{number} ."]))
    assert knowledge.touched_since(0) is None
    assert len(knowledge.touched_since(39)) == 2
