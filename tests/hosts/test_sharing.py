"""Equal subplans of different queries are searched once, and stay right when the knowledge parts them."""

from __future__ import annotations

from kaicep import testing
from kaicep.api import explanations
from kaicep.hosts.inprocess import Engine
from kaicep.plan.events import Event

ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow"},
    "types": {"x": "float64"},
}
KNOWLEDGE = "@prefix : <urn:kaicep:> . :limit :value 500 ."
BY_NUMBER = "SELECT ?a.x AS {column} SEQ (?a, ?b) WINDOW (?a, ?b, 1min) FILTER (?a.x > 500)"
BY_CONCEPT = """
    SELECT ?a.x SEQ (?a, ?b) WINDOW (?a, ?b, 1min)
    PATH {?a :flow ?v . :limit :value ?l . FILTER (?v > ?l)}
"""


def prepared(**queries: str):
    return testing.prepare(
        {f"{name}.chi": text for name, text in queries.items()},
        "ts | x\n 0 | 1.0",
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
    )


def event(seq: int, x: float) -> Event:
    return Event("s", 0, seq, seq * 1_000_000, {"x": x})


def test_two_queries_with_one_pattern_hold_its_events_once():
    one = prepared(p=BY_NUMBER.format(column="low"))
    two = prepared(p=BY_NUMBER.format(column="low"), q=BY_NUMBER.format(column="first"))
    sizes = []
    for run in (one, two):
        engine = Engine(run, lateness=0)
        assert engine.push([event(0, 600.0), event(1, 700.0)]) != []
        sizes.append(engine.size)
    assert sizes[0] == sizes[1]
    assert ("share_subplans", "it is found together with p, in one search") in explanations(two)[1].notes


def test_each_query_selects_for_itself():
    run = prepared(p=BY_NUMBER.format(column="low"), q=BY_NUMBER.format(column="first"))
    engine = Engine(run, lateness=0)
    found = engine.push([event(0, 600.0), event(1, 100.0)])
    assert sorted((match.query, *match.select.items()) for match in found) == [
        ("p", ("low", 600.0)),
        ("q", ("first", 600.0)),
    ]


def test_what_the_knowledge_made_equal_it_can_part_again():
    run = prepared(number=BY_NUMBER.format(column="x"), concept=BY_CONCEPT)
    engine = Engine(run, lateness=0)
    assert {match.query for match in engine.push([event(0, 600.0), event(1, 0.0)])} == {"number", "concept"}
    run.knowledge.update(
        remove="<urn:kaicep:limit> <urn:kaicep:value> 500 .",
        add="<urn:kaicep:limit> <urn:kaicep:value> 800 .",
    )
    engine.push([event(2, 700.0)])
    found = [(match.query, match.select["x"]) for match in engine.push([event(3, 0.0)])]
    # the 600 was judged under the old bound and still waits for partners; the 700 is one for `number` only
    assert sorted(found) == [("concept", 600.0), ("number", 600.0), ("number", 700.0)]


def test_many_filters_that_differ_in_a_level_each_have_their_own_matches():
    levels = range(10)
    run = prepared(**{f"q{level}": f"SELECT ?e.x FILTER (?e.x > {level}.5)" for level in levels})
    engine = Engine(run, lateness=0)
    found = engine.push([event(seq, float(seq)) for seq in range(12)]) + engine.finish()
    assert sorted((match.query, match.select["x"]) for match in found) == [
        (f"q{level}", float(x)) for level in levels for x in range(level + 1, 12)
    ]


def test_a_state_is_of_the_same_groups_whatever_is_known_by_then():
    queries = {"number": BY_NUMBER.format(column="x"), "concept": BY_CONCEPT}
    for before, after in ((600, 800), (800, 600)):
        old, new = prepared(**queries), prepared(**queries)
        for run, value in ((old, before), (new, after)):
            run.knowledge.update(
                remove="<urn:kaicep:limit> <urn:kaicep:value> 500 .",
                add=f"<urn:kaicep:limit> <urn:kaicep:value> {value} .",
            )
        engine = Engine(old, lateness=0)
        engine.push([event(0, 900.0)])
        again = Engine(new, lateness=0)
        again.restore(engine.snapshot())
        found = again.push([event(1, 0.0)])
        assert sorted((match.query, match.version) for match in found) == [("concept", 1), ("number", None)]
