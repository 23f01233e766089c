"""PATH in patterns and windows: what the knowledge decides, what is selected from it."""

from __future__ import annotations

from dataclasses import replace

from tests.reference.chi_letters import S

from kaicep.errors import SourceText
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.language.parse_chicep import parse_chi
from kaicep.plan.catalog import Catalog, Entity, Stream
from kaicep.plan.events import Event
from kaicep.plan.resolve import resolve_chi
from kaicep.plan.terms import Iri
from kaicep.plan.types import Type
from kaicep.reference.chicep import run_chi

X = "urn:x:"
KNOWLEDGE = """
    @prefix : <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :MeetingRoom rdfs:subClassOf :Room . :Office rdfs:subClassOf :Room .
    :r1 a :MeetingRoom ; :seats 8 . :r2 a :Office ; :seats 1 .
    :s1 :in :r1 . :s2 :in :r2 . :s3 :in :r1 , :r2 . :s4 :tag "lonely" .
"""
STREAM = Stream(
    "s",
    (("label", Type.STRING), ("sensor", Type.STRING), ("x", Type.INT64)),
    event_class=Iri(X + "Report"),
    concepts=(("x", Iri(X + "reading")),),
    entities=(("sensor", Entity(Iri(X + "source"), X + "{value}")),),
)
PREFIX = "PREFIX : <urn:x:> "


def events(text, stream="s"):
    """`a:s1:5@0` is an event labelled a, of the sensor s1, with x = 5, at second 0."""
    made = []
    for seq, token in enumerate(text.split()):
        what, _, ts = token.partition("@")
        label, sensor, *x = what.split(":")
        values = {"label": label, "sensor": sensor or None, "x": int(x[0]) if x else None}
        made.append(Event(stream, 0, seq, int(float(ts) * S), values))
    return made


def selected(query, given, unknown=None, knowledge=KNOWLEDGE):
    known = Knowledge.parse(knowledge)
    catalog = Catalog({"s": STREAM, "t": replace(STREAM, name="t")}, vocabulary=known)
    plan = resolve_chi(parse_chi(SourceText("query.chi", PREFIX + query)), catalog, 0)
    answers = run_chi(plan, events(given) if isinstance(given, str) else given, catalog, known, unknown)
    assert len({each.match.id for each in answers}) == len(answers)
    return sorted((tuple(each.match.select.values()) for each in answers), key=str)


def test_a_path_keeps_the_events_for_which_it_holds():
    query = "SELECT ?e.label FROM (?e, s) PATH {{?e :source/:in ?r . ?r a :{}}}"
    given = "a:s1@0 b:s2@1 c:s3@2"
    assert selected(query.format("MeetingRoom"), given) == [("a",), ("c",)]
    assert selected(query.format("Room"), given) == [("a",), ("b",), ("c",)]


def test_the_event_has_a_class_a_time_and_its_readings():
    query = "SELECT ?e.label FROM (?e, s) PATH {?e a :Report ; :reading ?x . FILTER (?x > 3)}"
    assert selected(query, "a:s1:3@0 b:s1:4@1 c:s1@2") == [("b",)]


def test_there_is_one_match_for_each_distinct_solution():
    query = "SELECT ?e.label, ?r FROM (?e, s) PATH {?e :source ?s . ?s :in ?r}"
    assert selected(query, "a:s1@0 c:s3@1") == [
        ("a", "urn:x:r1"),
        ("c", "urn:x:r1"),
        ("c", "urn:x:r2"),
    ]


def test_without_selecting_the_test_is_existential():
    assert selected("SELECT ?e.label FROM (?e, s) PATH {?e :source/:in ?r}", "c:s3@0") == [("c",)]


def test_selected_literals_are_values():
    query = "SELECT ?e.label, ?n FROM (?e, s) PATH {?e :source/:in/:seats ?n}"
    assert selected(query, "a:s1@0 b:s2@1") == [("a", 8), ("b", 1)]


def test_an_unbound_selected_variable_is_null():
    query = "SELECT ?e.label, ?n FROM (?e, s) PATH {?e :source ?s . OPTIONAL {?s :in/:seats ?n}}"
    assert selected(query, "a:s1@0 d:s4@1") == [("a", 8), ("d", None)]


def test_a_path_may_tie_two_events():
    query = """SELECT ?a.label AS one, ?b.label AS two FROM (?a, s), (?b, s) SEQ (?a, ?b)
               PATH {?a :source/:in ?r . ?b :source/:in ?r}"""
    assert selected(query, "a:s1@0 b:s2@1 c:s3@2") == [("a", "c"), ("b", "c")]


def test_two_conditions_that_select_give_every_combination():
    query = """SELECT ?p, ?q FROM (?a, s), (?b, s) SEQ (?a, ?b)
               PATH {?a :source/:in ?p} PATH {?b :source/:in ?q}"""
    assert selected(query, "a:s3@0 b:s3@1") == [
        ("urn:x:r1", "urn:x:r1"),
        ("urn:x:r1", "urn:x:r2"),
        ("urn:x:r2", "urn:x:r1"),
        ("urn:x:r2", "urn:x:r2"),
    ]


def test_blocks_joined_by_or():
    query = """SELECT ?e.label FROM (?e, s)
               PATH {?e :source/:in ?r . ?r a :Office} OR PATH {?e :reading ?x . FILTER (?x > 5)}"""
    assert selected(query, "a:s1:1@0 b:s2:1@1 c:s1:9@2") == [("b",), ("c",)]


def test_what_was_left_out_makes_its_path_not_apply():
    query = """SELECT ?a.label AS one, ?b.label AS two, ?r FROM (?a, s), (?b, s), (?c, s)
               FILTER (?a.label = 'a') FILTER (?b.label = 'b') FILTER (?c.label = 'c')
               SEQ (?a, (?b | ?c)) PATH {?b :source/:in ?r}"""
    assert selected(query, "a:s1@0 b:s2@1 c:s4@2") == [("a", "b", "urn:x:r2"), ("a", None, None)]


def test_a_path_on_a_loop_holds_for_every_round():
    query = """SELECT COUNT(?b) AS n FROM (?a, s), (?b, s) FILTER (?a.label = 'a') FILTER (?b.label = 'b')
               SEQ (?a, ?b+) PATH {?a :source/:in ?r . ?b :source/:in ?r} MATCH {}"""
    given = "a:s1@0 b:s1@1 b:s2@2 b:s3@3"
    # b at 1 and 3 share a room with a: both alone, and together
    assert selected(query.replace("MATCH {}", ""), given) == [(1,), (1,), (2,)]
    assert selected(query.replace("MATCH {}", "MATCH next"), given) == [(1,), (2,)]


def test_an_absent_event_is_one_for_which_its_path_holds():
    query = """SELECT ?a.label AS one FROM (?a, s), (?n, s), (?b, s) FILTER (?a.label = 'a')
               FILTER (?b.label = 'b') FILTER (?n.label = 'n') SEQ (?a, !?n, ?b) PATH {}"""
    office = query.replace("{}", "{?n :source/:in ?r . ?r a :Office}")
    assert selected(office, "a:s1@0 n:s1@1 b:s1@2") == [("a",)]
    assert selected(office, "a:s1@0 n:s2@1 b:s1@2") == []
    together = query.replace("{}", "{?n :source/:in ?r . ?a :source/:in ?r}")
    assert selected(together, "a:s1@0 n:s2@1 b:s1@2") == [("a",)]
    assert selected(together, "a:s1@0 n:s3@1 b:s1@2") == []


def test_only_events_whose_path_holds_count_for_contiguity():
    query = """SELECT ?a.label AS one, ?b.label AS two FROM (?a, s), (?b, s) FILTER (?a.label = 'a')
               FILTER (?b.label = 'b') SEQ (?a, ?b) MATCH strict PATH {}"""
    both = "{?a :source/:in ?r . ?r a :MeetingRoom . ?b :source/:in ?q . ?q a :MeetingRoom}"
    only_a = "{?a :source/:in ?r . ?r a :MeetingRoom}"
    tied = "{?a :source/:in ?r . ?b :source/:in ?r}"
    given = "a:s1@0 z:s2@1 b:s1@2"
    assert selected(query.replace("{}", both), given) == [("a", "b")]
    # ?b has no PATH: all events count, and z stands between
    assert selected(query.replace("{}", only_a), given) == []
    # ... even one of a stream that only a variable with a PATH reads
    other = query.replace("(?b, s)", "(?b, t)").replace("{}", "{?b :source/:in ?r . ?r a :MeetingRoom}")
    mixed = [*events("a:s1@0"), *events("z:s2@1 b:s1@2", "t")]
    assert selected(other, mixed) == []
    assert selected(other, [mixed[0], mixed[2]]) == [("a", "b")]
    # a PATH that ties both takes no part in what counts
    assert selected(query.replace("{}", tied), given) == []
    # one that is selected from does
    chosen = query.replace("{}", both).replace("SELECT", "SELECT ?r, ?q,")
    assert selected(chosen, given) == [("urn:x:r1", "urn:x:r1", "a", "b")]


def test_matches_of_one_event_with_several_solutions_stand_or_fall_together():
    query = """SELECT ?e.label, ?r FROM (?e, s) AFTER MATCH SKIP PAST LAST PATH {?e :source/:in ?r}"""
    assert selected(query, "c:s3@0") == [("c", "urn:x:r1"), ("c", "urn:x:r2")]


def test_an_unknown_entity_makes_the_path_untrue_even_when_negated():
    unknown = UnknownEntities()
    query = "SELECT ?e.label FROM (?e, s) PATH {?e a :Report . FILTER NOT EXISTS {?e :source/:in :r1}}"
    assert selected(query, "a:s1@0 b:s2@1 u:s99@2 v:s99@3", unknown) == [("b",)]
    assert unknown.counts == {("s.sensor", "s99"): 2}
    # a PATH that does not look at the source is not touched by it
    assert selected("SELECT ?e.label FROM (?e, s) PATH {?e a :Report}", "u:s99@2") == [("u",)]


def test_without_knowledge_only_the_event_speaks():
    query = "SELECT ?e.label FROM (?e, s) PATH {?e :reading 4}"
    assert selected(query, "a:s1:4@0 b:s1:5@1", knowledge="") == [("a",)]


def test_a_window_aggregates_what_passes_the_path_and_selects_from_the_newest():
    query = """SELECT ?r, SUM(?e.x) AS total FROM (?e, s) WINDOW (?e, sliding, 10s)
               PATH {?e :source/:in ?r}"""
    # s4 is in no room; s3 is in two
    assert selected(query, "a:s1:1@0 d:s4:100@1 c:s3:2@2") == [
        ("urn:x:r1", 1),
        ("urn:x:r1", 3),
        ("urn:x:r2", 3),
    ]


def test_a_window_aggregates_what_passes_the_path():
    query = "SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 10s) PATH {}"
    given = "a:s1:1@0 b:s2:9@1 c:s4:9@2 d:s4:1@3"
    assert selected(query.replace("{}", "{?e :source/:in ?r}"), given) == [(2,)]
    either = "{?e :source/:in ?r} OR PATH {?e :reading 9}"
    assert selected(query.replace("{}", either), given) == [(3,)]


def test_a_concept_is_an_attribute_too():
    query = "SELECT ?e.:reading AS x FROM (?e, s) FILTER (?e.:reading > 1)"
    assert selected(query, "a:s1:1@0 b:s1:2@1") == [(2,)]
