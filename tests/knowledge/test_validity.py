"""Statements that hold for a time: every instant sees what held then, and what followed from it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge.test_reasoning import LISTS, OWL_ROWS, loaded
from tests.knowledge.words import PREFIXES, iri, triple

from kaicep.errors import Mistake
from kaicep.knowledge.closure import Change
from kaicep.knowledge.loading import KAI
from kaicep.knowledge.reasoning import LISTED
from kaicep.knowledge.store import Knowledge, Reason
from kaicep.plan.terms import Literal, Triple
from kaicep.plan.time import format_time, parse_time

KAI_PREFIX = f"@prefix kai: <{KAI}> .\n"


def ts(text: str) -> int:
    micros = parse_time(text)
    assert micros is not None
    return micros


def trig(text: str, reasoning: str = "rdfs") -> Knowledge:
    return Knowledge.parse(PREFIXES + KAI_PREFIX + text, "trig", reasoning)


MONDAY, TUESDAY, WEDNESDAY = ts("2012-05-07"), ts("2012-05-08"), ts("2012-05-09")
CAMPUS = """
    :in rdfs:range :Room . :in rdfs:subPropertyOf :near . :s1 a :Sensor .
    :old kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
    :new kai:validFrom "2012-05-08T02:00:00+02:00"^^xsd:dateTime .
    GRAPH :old { :s1 :in :r1 . }
    GRAPH :new { :s1 :in :r2 . }
    GRAPH :plain { :s2 :in :r3 . }
"""


def rooms(knowledge: Knowledge, sensor: str = "s1", link: str = "in") -> list[str]:
    return [str(each).split(":")[-1][:-1] for _, _, each in knowledge.match(iri(sensor), iri(link))]


def test_a_sensor_that_moved_on_tuesday() -> None:
    knowledge = trig(CAMPUS)
    assert knowledge.epochs == (TUESDAY,)
    for instant, room, other in ((MONDAY, "r1", "r2"), (TUESDAY - 1, "r1", "r2"), (TUESDAY, "r2", "r1")):
        view = knowledge.at(instant)
        assert rooms(view) == rooms(view, link="near") == [room]
        assert view.holds(triple(f"{room} a Room"))
        assert not view.knows(iri(other))
        assert rooms(view, "s2") == ["r3"]
        assert view.holds(triple("s1 a Sensor"))
        assert view.version == 0
        assert (view.asserted, len(view)) == (7, 11)
    # Asked without a time, it tells what holds always.
    assert rooms(knowledge) == []
    assert rooms(knowledge, "s2") == ["r3"]
    assert knowledge.warnings == ()


def test_the_same_by_an_update() -> None:
    knowledge = Knowledge.parse(PREFIXES + ":in rdfs:range :Room . :s1 :in :r1 .")
    change = knowledge.update([triple("s1 in r2")], [triple("s1 in r1")], valid_from=TUESDAY)
    assert change.added == {triple("s1 in r2"), triple("r2 a Room")}
    assert change.removed == {triple("s1 in r1"), triple("r1 a Room")}
    assert change.since == TUESDAY
    assert rooms(knowledge.at(MONDAY)) == rooms(knowledge.at(TUESDAY - 1)) == ["r1"]
    assert rooms(knowledge.at(TUESDAY)) == ["r2"]
    assert knowledge.at(MONDAY).holds(triple("r1 a Room"))
    assert not knowledge.at(TUESDAY).holds(triple("r1 a Room"))
    # Back again on Wednesday.
    change = knowledge.update([triple("s1 in r1")], [triple("s1 in r2")], valid_from=WEDNESDAY)
    assert change.since == WEDNESDAY
    assert knowledge.epochs == (TUESDAY, WEDNESDAY)
    assert [rooms(knowledge.at(each)) for each in (MONDAY, TUESDAY, WEDNESDAY)] == [["r1"], ["r2"], ["r1"]]
    # What was not stated then is missing; what was stated until then is, too.
    nothing = knowledge.update(remove=[triple("s1 in r2")], valid_from=WEDNESDAY)
    assert nothing == Change(2, missing=frozenset({triple("s1 in r2")}))
    # Without a time it never was.
    assert knowledge.update(remove=[triple("s1 in r2")]).since == TUESDAY
    assert [rooms(knowledge.at(each)) for each in (MONDAY, TUESDAY, WEDNESDAY)] == [["r1"], [], ["r1"]]
    knowledge.update([triple("s1 in r1")])
    assert knowledge.epochs == ()
    assert knowledge.at(TUESDAY) is knowledge


def test_two_overlapping_validities_of_one_statement() -> None:
    knowledge = trig("""
        :g kai:validFrom "2012-05-07T00:00:00Z"^^xsd:dateTime .
        :g kai:validTo "2012-05-09T00:00:00Z"^^xsd:dateTime .
        :h kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime .
        :h kai:validTo "2012-05-10T00:00:00Z"^^xsd:dateTime .
        GRAPH :g { :s1 :in :r1 . } GRAPH :h { :s1 :in :r1 . }""")
    assert knowledge.epochs == (MONDAY, TUESDAY, WEDNESDAY, ts("2012-05-10"))  # of each graph
    assert [rooms(knowledge.at(each)) for each in (MONDAY - 1, MONDAY, TUESDAY, WEDNESDAY)] == [
        [],
        ["r1"],
        ["r1"],
        ["r1"],
    ]
    assert rooms(knowledge.at(ts("2012-05-10"))) == []


def test_a_statement_that_also_holds_always() -> None:
    knowledge = trig(
        ':g kai:validTo "2012-05-09T00:00:00Z"^^xsd:dateTime . :x :p :y . GRAPH :g { :x :p :y . }'
    )
    assert knowledge.epochs == (WEDNESDAY,)  # when it leaves the graph
    assert [knowledge.at(each).holds(triple("x p y")) for each in (TUESDAY, WEDNESDAY)] == [True, True]
    assert knowledge.holds(triple("x p y"))


def test_everything_is_read_through_a_view() -> None:
    knowledge = trig(
        """:g kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime .
        :A rdfs:subClassOf :B . :x a :A ; :tag "1" .
        GRAPH :g { :B rdfs:subClassOf :C . :y :tag "1" ; :code "2" . :q rdfs:subPropertyOf :p . }"""
    )
    monday, tuesday = knowledge.at(MONDAY), knowledge.at(TUESDAY)
    assert knowledge.at(TUESDAY + 5) is tuesday
    assert (knowledge.epoch(MONDAY), knowledge.epoch(TUESDAY)) == (0, 1)
    assert knowledge.in_epoch(1) is tuesday
    assert tuesday.at(MONDAY) is tuesday
    assert monday.classes_below(iri("C")) == {iri("C")}
    assert tuesday.classes_below(iri("C")) == {iri("C"), iri("B"), iri("A")}
    assert monday.properties_below(iri("p")) == {iri("p")}
    assert tuesday.properties_below(iri("p")) == {iri("p"), iri("q")}
    assert monday.entities_by(iri("tag"), Literal("1")) == (iri("x"),)
    assert tuesday.entities_by(iri("tag"), Literal("1")) == (iri("x"), iri("y"))
    more = [triple("z a B"), triple("z q x")]
    assert monday.entails_with(more) == set(more)
    assert tuesday.entails_with(more) == {*more, triple("z a C"), triple("z p x")}
    assert monday.why(triple("x a C")) is None
    assert tuesday.why(triple("x a C")) is not None
    assert tuesday.why(triple("q rdfs:subPropertyOf p")) == Reason("asserted", ())
    assert tuesday.why(triple("z a C"), more) is not None
    assert len(list(tuesday.match())) == len(set(tuesday.match())) == len(tuesday) == tuesday.closed
    assert set(tuesday.match(iri("y"), None, Literal("2"))) == {(iri("y"), iri("code"), Literal("2"))}


def test_a_contradiction_of_a_day() -> None:
    knowledge = trig(
        """:g kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime . :A owl:disjointWith :B .
        :x a :A . GRAPH :g { :x a :B . }""",
        "owl-rl",
    )
    assert knowledge.contradictions == knowledge.at(MONDAY).contradictions == ()
    assert len(knowledge.at(TUESDAY).contradictions) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (':g kai:validFrom "2012-05-08"^^xsd:date .', "of the graph <urn:t:g> is not an xsd:dateTime"),
        (":g kai:validTo 5 .", "of the graph <urn:t:g> is not an xsd:dateTime"),
        (':g kai:validTo "soon"^^xsd:dateTime .', "of the graph <urn:t:g> is not an xsd:dateTime"),
        (
            """:g kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime .
            :g kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .""",
            "the graph <urn:t:g> is valid from 2012-05-08T00:00:00.000000Z to 2012-05-08T00:00:00.000000Z",
        ),
        (
            ':g kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime, "2012-05-09T00:00:00Z"^^xsd:dateTime .',
            "the graph <urn:t:g> has two times for <https://kaicep.org/ns#validFrom>",
        ),
    ],
)  # fmt: skip
def test_bad_validity(text: str, told: str) -> None:
    with pytest.raises(Mistake) as caught:
        trig(text + " GRAPH :g { :x :p :y . }")
    assert told in str(caught.value)


def test_validity_without_effect_is_told() -> None:
    valid = 'kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime'
    knowledge = trig(f":typo {valid} . GRAPH :g {{ :x :p :y . :g {valid} . }}")
    assert [each.message for each in knowledge.warnings] == [
        "the validity of <urn:t:typo> has no effect: no graph has that name",
        "the validity of <urn:t:g> has no effect: said inside a graph",
    ]
    assert knowledge.holds(triple("x p y"))


def test_owl_lists_hold_always() -> None:
    text = ':g kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime . GRAPH :g { :U owl:unionOf (:A :B) . }'
    with pytest.raises(Mistake, match="holds always"):
        trig(text, "owl-rl")
    assert trig(text, "rdfs").at(MONDAY).holds(triple("U owl:unionOf U")) is False
    knowledge = trig(":U owl:unionOf (:A :B) .", "owl-rl")
    (said,) = knowledge.match(iri("U"), iri("owl:unionOf"))
    with pytest.raises(Mistake, match="holds always"):
        knowledge.update(remove=[said], valid_from=5)
    assert knowledge.version == 0
    assert knowledge.holds(said)


def test_many_epochs_are_not_kept_all() -> None:
    knowledge = Knowledge.parse(PREFIXES + ":in rdfs:range :Room .")
    for n in range(200):
        remove = [triple(f"s1 in r{n - 1}")] if n else []
        knowledge.update([triple(f"s1 in r{n}")], remove, valid_from=n)
    assert len(knowledge.epochs) == 200
    assert [rooms(knowledge.at(n)) for n in range(200)] == [[f"r{n}"] for n in range(200)]
    assert len(knowledge._views) <= 32
    last = knowledge.at(199)
    assert knowledge.at(500) is last
    # The one that was used last is the last to go.
    for n in range(31):
        knowledge.at(n)
        assert knowledge.at(199) is last


def test_views_after_pickling() -> None:
    again = pickle.loads(pickle.dumps(trig(CAMPUS)))
    assert rooms(again.at(MONDAY)) == ["r1"]
    view = pickle.loads(pickle.dumps(again.at(TUESDAY)))
    assert rooms(view) == ["r2"]
    assert view.entails_with([triple("s9 in r9")]) == {
        triple(each) for each in ("s9 in r9", "s9 near r9", "r9 a Room")
    }


# The definition: an instant sees what a fresh knowledge base does of the statements of that instant.

INSTANTS = st.integers(0, 5)
OWL_PLAIN = OWL_ROWS.filter(lambda row: row[1] not in LISTED)
Held = dict[int, set[Triple]]
LEVEL = st.sampled_from(["none", "rdfs", "owl-rl"])


def seen(knowledge: Knowledge) -> Held:
    return {instant: set(knowledge.at(instant).match()) for instant in range(-1, 7)}


def fresh(held: Held, level: str) -> Held:
    return {instant: set(loaded(triples, level).match()) for instant, triples in held.items()}


def test_a_property_is_transitive_from_now_on_and_what_holds_for_a_time_is_a_step() -> None:
    knowledge = Knowledge.parse("@prefix : <urn:t:> . :x :p :y .", reasoning="owl-rl")
    declared = "@prefix : <urn:t:> . @prefix owl: <http://www.w3.org/2002/07/owl#> . :p a owl:"
    knowledge.update(f"{declared}SymmetricProperty .", valid_from=MONDAY)
    knowledge.update(f"{declared}TransitiveProperty .")
    assert [knowledge.at(each).holds(triple("y p y")) for each in (MONDAY - 1, MONDAY)] == [False, True]


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    LEVEL,
    st.sets(OWL_ROWS, max_size=6),
    st.lists(
        st.tuples(
            st.sets(OWL_PLAIN, max_size=3), st.sets(OWL_PLAIN, max_size=3), st.one_of(st.none(), INSTANTS)
        ),
        max_size=6,
    ),
)
def test_every_instant_is_what_a_fresh_one_is(
    level: str, always: set[Triple], steps: list[tuple[set[Triple], set[Triple], int | None]]
) -> None:
    stated: Held = dict.fromkeys(range(-1, 7), always | LISTS)
    knowledge = loaded(always | LISTS, level)
    before = seen(knowledge)
    for add, remove, start in steps:
        change = knowledge.update(add, remove, start)
        for instant in stated:
            if start is None or instant >= start:
                stated[instant] = (stated[instant] - remove) | add
        after = fresh(stated, level)
        assert seen(knowledge) == after
        assert change.added == set().union(*(after[each] - before[each] for each in after))
        assert change.removed == set().union(*(before[each] - after[each] for each in after))
        differing = [each for each in after if after[each] != before[each]]
        if differing:
            assert change.since == (None if differing[0] == -1 else differing[0])
        before = after


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    LEVEL,
    st.sets(OWL_PLAIN, max_size=5),
    st.lists(st.tuples(st.sets(OWL_PLAIN, max_size=4), INSTANTS, INSTANTS), max_size=4),
    st.sets(OWL_PLAIN, max_size=3),
)
def test_graphs_are_what_a_fresh_one_is(
    level: str, always: set[Triple], graphs: list[tuple[set[Triple], int, int]], more: set[Triple]
) -> None:
    """Also what follows from a few triples more, at every instant."""
    lines = [f"{s} {p} {o} ." for s, p, o in always | LISTS]
    for n, (triples, start, length) in enumerate(graphs):
        name = f"<urn:g{n}>"
        for link, edge in (("From", start), ("To", start + length + 1)):
            lines.append(f'{name} kai:valid{link} "{format_time(edge)}"^^xsd:dateTime .')
        lines.append(f"GRAPH {name} {{ {' '.join(f'{s} {p} {o} .' for s, p, o in triples)} }}")
    knowledge = trig("\n".join(lines), level)
    about = {row for row in knowledge.match() if str(row[1]).startswith(f"<{KAI}")}
    for instant in range(-1, 12):
        held = always | LISTS | about
        for triples, start, length in graphs:
            held |= triples if start <= instant < start + length + 1 else set()
        assert set(knowledge.at(instant).match()) == set(loaded(held, level).match())
        assert knowledge.at(instant).entails_with(more) == loaded(held, level).entails_with(more)
