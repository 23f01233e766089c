"""The graph of an event, and which PATHs an unknown entity makes untrue."""

from __future__ import annotations

import logging

import pytest
from tests.knowledge.words import SPACE, iri, known

from kaicep.errors import Mistake
from kaicep.knowledge.event_graph import HAS_TIME, UnknownEntities, evaluates, event_node, event_triples
from kaicep.plan.catalog import Entity, Stream
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Exists, TermConst
from kaicep.plan.sparql import (
    Alternative,
    Bind,
    Element,
    Filter,
    Group,
    GroupOperation,
    Inverse,
    MinusGroup,
    Negated,
    Optional,
    Predicate,
    Projection,
    Repeat,
    Select,
    Steps,
    SubSelect,
    TripleBlock,
    TriplePattern,
)
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Triple, Variable
from kaicep.plan.types import Type, Value

KNOWLEDGE = known(
    """:s1 :in :r1 ; :tag "A", 7 . :s2 :tag "B" . :s3 :tag "B" . <urn:t:a%20b> :in :r1 .
    :hasSource rdfs:subPropertyOf :involves ."""
)
STREAM = Stream(
    "air",
    (
        ("flow", Type.FLOAT64),
        ("id", Type.STRING),
        ("tag", Type.STRING),
        ("ok", Type.BOOL),
        ("at", Type.TIMESTAMP),
    ),
    event_class=iri("Report"),
    concepts=(("flow", iri("airflow")), ("ok", iri("fine")), ("at", iri("since"))),
    entities=(
        ("id", Entity(iri("hasSource"), template=SPACE + "{value}")),
        ("tag", Entity(iri("hasTag"), lookup=(iri("tag"),))),
    ),
)


def triples(stream: Stream = STREAM, **values: Value) -> set[Triple]:
    """The triples of an event, but for its class and its time."""
    graph = event_triples(Event("air", 0, 1, 0, values), stream, KNOWLEDGE)
    time = (graph.node, HAS_TIME, Literal("1970-01-01T00:00:00.000000Z", XSD + "dateTime"))
    kind = (graph.node, Iri(RDF + "type"), iri("Report"))
    assert time in graph.triples
    return set(graph.triples) - {time, kind}


NODE = Iri("urn:kaicep:event:air/0/1")


def test_nodes() -> None:
    assert event_node(Event("air", 0, 1, 5)) == NODE
    assert event_node(Event("a/b é", 2, 3, 5)) == Iri("urn:kaicep:event:a%2Fb%20%C3%A9/2/3")
    assert event_node(Event("rise", 0, 0, 5, id="abc")) == Iri("urn:kaicep:event:rise/abc")


def test_literals_by_type() -> None:
    assert triples(flow=510, ok=False, at=1) == {
        (NODE, iri("airflow"), Literal("510.0", XSD + "double")),
        (NODE, iri("fine"), Literal("false", XSD + "boolean")),
        (NODE, iri("since"), Literal("1970-01-01T00:00:00.000001Z", XSD + "dateTime")),
    }


def test_missing_values_give_nothing() -> None:
    assert triples() == set()
    assert triples(flow=None, id=None, tag=None) == set()


def test_a_stream_without_annotation_has_its_time_only() -> None:
    graph = event_triples(Event("x", 0, 0, 0, {"a": 1}), Stream("x"), KNOWLEDGE)
    assert [row[1] for row in graph.triples] == [HAS_TIME]


def test_an_undeclared_attribute_shows_its_type() -> None:
    bare = Stream("air", concepts=(("a", iri("p")),))
    assert {row[2] for value in (True, 1, 1.0, "1") for row in triples(bare, a=value)} == {
        Literal("true", XSD + "boolean"),
        Literal("1", XSD + "integer"),
        Literal("1.0", XSD + "double"),
        Literal("1"),
    }


def test_several_attributes_of_one_concept_are_all_there() -> None:
    two = Stream("air", concepts=(("a", iri("p")), ("b", iri("p")), ("c", iri("p"))))
    assert {row[2] for row in triples(two, a=1, b=2, c=2)} == {
        Literal("1", XSD + "integer"),
        Literal("2", XSD + "integer"),
    }


def test_entities() -> None:
    own = iri("hasSource"), iri("involves")  # wider properties too, at every reasoning level
    assert triples(id="s1") == {(NODE, each, iri("s1")) for each in own}
    assert triples(id="a b") == {(NODE, each, Iri("urn:t:a%20b")) for each in own}
    assert triples(tag="A") == {(NODE, iri("hasTag"), iri("s1"))}
    by_number = Stream(
        "air", (("n", Type.FLOAT64),), entities=(("n", Entity(iri("p"), lookup=(iri("tag"),))),)
    )
    assert triples(by_number, n=7.0) == {(NODE, iri("p"), iri("s1"))}


def test_unknown_entities_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownEntities()
    with caplog.at_level(logging.WARNING, "kaicep.knowledge"):
        graphs = [
            event_triples(Event("air", 0, n, 0, {"id": name, "tag": "Z"}), STREAM, KNOWLEDGE, unknown)
            for n, name in enumerate(["s1", "s9", "s9"])
        ]
    assert [{each.local for each in graph.unknown} for graph in graphs] == [
        {"hasTag"},
        {"hasTag", "hasSource"},
        {"hasTag", "hasSource"},
    ]
    assert unknown.counts == {("air.tag", "Z"): 3, ("air.id", "s9"): 2}
    assert caplog.messages == ["no entity is known for air.tag = Z", "no entity is known for air.id = s9"]
    assert not any(row[1] in (iri("hasTag"), iri("hasSource")) for row in graphs[1].triples)


def test_an_ambiguous_lookup_names_the_entities_to_who_asks_for_it() -> None:
    graph = event_triples(Event("air", 0, 1, 0, {"tag": "B"}), STREAM, KNOWLEDGE)
    asked = [block(TriplePattern(Variable("e"), iri(each), Variable("x"))) for each in ("hasTag", "other")]
    with pytest.raises(Mistake, match="= B names several entities: <urn:t:s2>, <urn:t:s3>"):
        graph.answers(asked[0], "e", KNOWLEDGE)
    assert graph.answers(asked[1], "e", KNOWLEDGE)


E, X, Y = Variable("e"), Variable("x"), Variable("y")
SOURCE, OTHER = iri("hasSource"), iri("other")


def block(*patterns: TriplePattern) -> Group:
    return Group((TripleBlock(patterns),))


def on(predicate: Predicate, subject: Variable = E, object: Variable = X) -> TriplePattern:
    return TriplePattern(subject, predicate, object)


@pytest.mark.parametrize(
    ("pattern", "looks"),
    [
        (on(SOURCE), True),
        (on(iri("involves")), True),  # its subproperty
        (on(OTHER), False),
        (on(SOURCE, X, Y), False),
        (on(SOURCE, X, E), False),
        (on(Variable("p")), True),
        (on(Steps((OTHER, SOURCE))), False),  # of what the event leads to, not of the event
        (on(Steps((SOURCE, OTHER))), True),
        (on(Alternative((OTHER, SOURCE))), True),
        (on(Inverse(SOURCE)), False),
        (on(Repeat(OTHER, 1, True)), False),
        (on(Repeat(OTHER, 0, True)), True),
        (on(Inverse(SOURCE), X, E), True),
        (on(Steps((OTHER, Inverse(SOURCE))), X, E), True),
        (on(Alternative((OTHER, Repeat(Inverse(SOURCE), 1, True))), X, E), True),
        (on(Negated((), (OTHER,)), X, E), True),
        (on(Negated((OTHER,), ()), X, E), False),
        (on(Repeat(OTHER, 1, True), X, E), False),
    ],
)
def test_which_patterns_look_at_the_property(pattern: TriplePattern, looks: bool) -> None:
    assert evaluates(block(on(OTHER, X, Y), pattern), "e", SOURCE, KNOWLEDGE) is looks


WHERE = block(on(SOURCE))
EXISTS = Call("not", (Exists(WHERE),))
NOTHING = block(on(OTHER, X, Y))


@pytest.mark.parametrize(
    "element",
    [
        WHERE,
        Optional(WHERE),
        MinusGroup(WHERE),
        GroupOperation("UNION", NOTHING, WHERE),
        GroupOperation("UNION", WHERE, NOTHING),
        Filter(EXISTS),
        Filter(Exists(Group((Optional(WHERE),)), negated=True)),
        Bind(EXISTS, "b"),
        SubSelect(Select((Projection("x"),), WHERE)),
        SubSelect(Select((Projection("x", EXISTS),), NOTHING)),
        SubSelect(Select(None, NOTHING, having=(EXISTS,))),
    ],
)
def test_it_looks_wherever_the_pattern_stands(element: Element) -> None:
    assert evaluates(Group((element,)), "e", SOURCE, KNOWLEDGE)
    assert not evaluates(Group((element,)), "other", SOURCE, KNOWLEDGE)


def test_other_elements_do_not_look() -> None:
    harmless = Filter(Call("=", (TermConst(iri("a")), TermConst(iri("b")))))
    assert not evaluates(Group((harmless, NOTHING)), "e", SOURCE, KNOWLEDGE)
