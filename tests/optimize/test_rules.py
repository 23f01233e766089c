"""Each rule by itself: what it does, what it says it did, and where it keeps its hands off."""

from __future__ import annotations

import pytest

from kaicep import testing
from kaicep.knowledge.relations import Relations
from kaicep.optimize import RULES, optimize
from kaicep.plan.events import Event
from kaicep.plan.nodes import Pattern
from kaicep.plan.text import resolved_text

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Office rdfs:subClassOf :Room . :r1 a :Office . :r2 a :Lab . :s1 :in :r1 . :s2 :in :r2 . :s3 :in :r1 .
    :limit :value 500 . :many :value 1, 2 . :flow rdfs:subPropertyOf :measure .
"""
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow", "y": ":flow"},
    "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
    "types": {"x": "float64", "y": "float64", "sensor": "string"},
}
EVENTS = "ts | sensor | x | y\n 0 | s1 | 510.0 | "


def optimised(query: str, rules=RULES, knowledge: str = KNOWLEDGE, reasoning: str = "rdfs"):
    """The pattern after the rules, and what they noted."""
    run = testing.prepare(query, EVENTS, knowledge=knowledge, reasoning=reasoning, annotations=[ANNOTATION])
    plan, notes = optimize(run.program.chi_plans[0], run.catalog, run.knowledge, rules)
    return plan.body, [f"{note.rule}: {note.text}" for note in notes], notes


def test_a_constant_of_the_knowledge_takes_the_place_of_the_question():
    query = "SELECT ?e.x PATH {?e :flow ?v . :limit :value ?l . FILTER (?v > ?l)}"
    pattern, said, notes = optimised(query)
    assert said == [
        "prune_constants: :limit :value ?l . gives ?l = 500",
        "transform_paths: the PATH asks the event itself: ?e.x > 500.0 || ?e.y > 500.0",
    ]
    assert [str(term) for triple in notes[0].depends for term in triple] == [
        "<urn:kaicep:limit>",
        "<urn:kaicep:value>",
        '"500"^^<http://www.w3.org/2001/XMLSchema#integer>',
    ]
    assert not pattern.all_semantics


def test_a_question_without_an_answer_makes_the_path_never_true():
    _, said, _ = optimised("SELECT ?e.x PATH {?e :from ?s . :limit :unknown ?l}")
    assert said[0] == "prune_constants: :limit :unknown ?l . has no answer: the PATH never holds"


def test_a_question_with_several_answers_stays():
    _, said, _ = optimised("SELECT ?e.x PATH {?e :flow ?v . :many :value ?l . FILTER (?v > ?l)}")
    assert not [each for each in said if each.startswith(("prune", "transform"))]


def test_strict_counts_events_by_their_path_so_nothing_is_moved():
    query = "SELECT ?e.x MATCH strict PATH {?e :flow ?v . FILTER (?v > 4)}"
    _, said, _ = optimised(query)
    assert not [each for each in said if each.startswith("transform")]


@pytest.mark.parametrize(
    ("filter", "moved"),
    [
        ("?v > 4 && ?v < 9", True),
        ("?v = 4.5", True),
        ("?v + 1 > 4", False),  # SPARQL's arithmetic is not that of float64
        ("STR(?v) = 'x'", False),
        ("?v > 9007199254740993", False),  # no float64 is this number
    ],
)
def test_only_comparisons_that_mean_the_same_are_moved(filter, moved):
    _, said, _ = optimised(f"SELECT ?e.x PATH {{?e :flow ?v . FILTER ({filter})}}")
    assert bool([each for each in said if each.startswith("transform")]) is moved


def test_what_concerns_one_event_goes_to_that_event():
    query = """
        SELECT ?a.x FROM (?a, s), (?b, s) WINDOW (?a, ?b, 1min)
        JOIN (?a.x > 5 && ?b.x > ?a.x && (?b.y < 3 || ?a.y < 3)) SEQ ({sequence})
    """
    pattern, said, _ = optimised(query.format(sequence="?a, ?b"))
    assert said == ["push_filters: ?a.x > 5.0 concerns one event alone"]
    assert [resolved_text(each) for each in pattern.conditions] == [
        "?b.x > ?a.x",
        "?b.y < 3.0 || ?a.y < 3.0",
    ]
    with_c = query.replace("(?b, s)", "(?b, s), (?c, s)")
    for left_alone in (
        query.format(sequence="?a, ?b?"),
        query.format(sequence="?a+, ?b"),
        with_c.format(sequence="?a, !?b, ?c"),
    ):
        assert optimised(left_alone)[1] == []


def test_a_concept_becomes_the_attributes_that_carry_it():
    pattern, said, _ = optimised("SELECT ?e.x FILTER (?e.:measure > 5)")
    assert said == ["normalise_concepts: measure is x or y on s"]
    (condition,) = pattern.chains[0].conditions
    assert resolved_text(condition) == "coalesce(?e.x, ?e.y) > 5.0"


def test_a_key_is_found_where_joins_tie_all_variables():
    query = (
        "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) JOIN (?a.sensor = ?b.sensor) WINDOW (?a, ?b, 1min)"
    )
    pattern, said, _ = optimised(query)
    assert isinstance(pattern, Pattern)
    assert [name for name, _ in pattern.key] == ["a", "b"]
    assert said == ["partition_from_equality: all events of a match agree in ?a.sensor = ?b.sensor"]
    for left_alone in (" MATCH strict", " MATCH next", " AFTER MATCH SKIP PAST LAST"):
        pattern, _, _ = optimised(query + left_alone)
        assert pattern.key == ()
    for sequence in ("?a, ?b?", "?a, !?b", "?a, ?b*"):
        pattern, _, _ = optimised(query.replace("?a, ?b)", sequence + ")", 1))
        assert pattern.key == ()


def test_constants_fold():
    _, said, _ = optimised("SELECT ?e.x FILTER (true && ?e.x > -(5)) FILTER (false || !false)")
    assert said == [
        "fold_constants: true && ?e.x > -(5) is ?e.x > -5.0",
        "fold_constants: false || !false is true",
    ]


def test_what_is_left_becomes_a_table_with_its_size():
    _, said, _ = optimised("SELECT ?e.x PATH {?e :from ?s . ?s :in ?r . ?r a :Office}")
    assert said == ["relate_paths: the PATH about ?e is a table from :from of ?e: 2 entries"]


def test_inside_a_partition_each_event_is_looked_up_by_itself():
    query = """SELECT ?r, ?a.x PATH {?a :from ?s . ?s :in ?r . ?b :from ?t . ?t :in ?r}
    SEQ (?a, ?b) PARTITION BY ?r"""
    pattern, _, _ = optimised(query)
    assert [each.variables for each in pattern.semantics] == [("a",), ("b",)]
    assert [each.selected for each in pattern.semantics] == [("r",), ()]
    assert all(each.relation is not None for each in (*pattern.semantics, *pattern.ties))


@pytest.mark.parametrize(
    "path",
    [
        "?a :from ?s . ?s :in ?r . ?b :from ?t . ?t :in ?r . FILTER (?s != ?t)",
        "?a :from ?s . ?s :in ?r . ?b :from ?t . ?t :in ?r . ?s :near ?t",
    ],
)
def test_what_ties_events_beside_their_partition_is_asked_of_both(path):
    pattern, _, _ = optimised(f"SELECT ?a.x PATH {{{path}}} SEQ (?a, ?b) PARTITION BY ?r")
    assert [each.variables for each in pattern.semantics] == [("a", "b")]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("?e ?p :s1", "the event's property is a variable or a path"),
        ("?e :from ?s . OPTIONAL {?e :flow ?v} ?s :in ?r", "the event is inside a nested group"),
        ("?e :flow ?v . FILTER (?v + 1 > 4)", "flow is only compared, not looked up"),
        ("?e :from ?s . ?r :flow ?v . ?s :in ?r", None),
        ("?e :from ?s . ?z :flow ?v", "?z may stand for the event itself"),
        ("?e a ?c", "the class of the event is asked for"),
    ],
)
def test_what_cannot_be_cut_is_asked_for_at_run_time(path, why):
    _, said, _ = optimised(f"SELECT ?e.x PATH {{{path}}}")
    asked = [each for each in said if "evaluated when values first occur" in each]
    assert bool(asked) is (why is not None)
    assert why is None or why in asked[0]


def test_a_range_that_says_something_of_the_root_is_taken_into_account():
    ranged = KNOWLEDGE + ":from rdfs:range :Source . :Source rdfs:subClassOf :Thing ."
    _, said, _ = optimised("SELECT ?e.x PATH {?e :from ?s . ?s a :Thing . ?s :in ?r}", knowledge=ranged)
    assert said == ["relate_paths: the PATH about ?e is a table from :from of ?e: 3 entries"]


OWL = "http://www.w3.org/2002/07/owl#"
LOOKED_UP = "relate_paths: the PATH about ?e is a table from :from of ?e: 3 entries"


@pytest.mark.parametrize(
    "axiom",
    [
        "",
        f":from <{OWL}inverseOf> :sourceOf .",
        f":from a <{OWL}FunctionalProperty> . :flow a <{OWL}DatatypeProperty>, <{OWL}FunctionalProperty> .",
        f":s1 <{OWL}sameAs> :s9 .",
        f":from <{OWL}equivalentProperty> :source .",
        f":Busy <{OWL}onProperty> :from ; <{OWL}someValuesFrom> :Sensor . :s1 a :Sensor .",
        f":reach <{OWL}propertyChainAxiom> (:from :in) .",
    ],
)
def test_under_owl_rl_what_an_event_cannot_add_to_is_looked_up(axiom):
    _, said, _ = optimised(
        "SELECT ?e.x PATH {?e :from ?s . ?s :in ?r}", knowledge=KNOWLEDGE + axiom, reasoning="owl-rl"
    )
    entries = 4 if "sameAs" in axiom else 3
    assert said == [LOOKED_UP.replace("3", str(entries))]


@pytest.mark.parametrize(
    ("path", "axiom", "why"),
    [
        ("?s :sourceOf ?o", ":from owl:inverseOf :sourceOf .", "what follows from an event may be a step"),
        ("?s :in ?r", ":from a owl:InverseFunctionalProperty .", "what things are the same"),
        ("?s :in ?r", ":from a owl:TransitiveProperty . :s1 :from :s2 .", "also follows from other things"),
        ("?e :reach ?r", ":reach owl:propertyChainAxiom (:from :in) .", "also follows from other things"),
        (
            "?e a :Busy",
            ":Busy owl:onProperty :from ; owl:someValuesFrom :Sensor . :s1 a :Sensor .",
            "depends on",
        ),
    ],
)
def test_under_owl_rl_what_an_event_may_add_to_is_asked_for(path, axiom, why):
    knowledge = f"@prefix owl: <{OWL}> . {KNOWLEDGE} {axiom}"
    query = f"SELECT ?e.x PATH {{?e :from ?s . {path}}}"
    _, said, _ = optimised(query, knowledge=knowledge, reasoning="owl-rl")
    assert "evaluated when values first occur" in said[-1]
    assert why in said[-1]


def test_a_table_follows_the_knowledge():
    run = testing.prepare(
        "SELECT ?e.x, ?r PATH {?e :from ?s . ?s :in ?r}",
        EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
    )
    plan, _ = optimize(run.program.queries[0], run.catalog, run.knowledge)
    (condition,) = plan.body.semantics
    relations = Relations(run.catalog, run.knowledge)
    event = {"e": Event("s", 0, 0, 0, {"sensor": "s1"})}

    def rooms():
        return {row[0].local for row in relations.solutions(condition, event)}

    assert rooms() == {"r1"}
    run.knowledge.update(add="<urn:kaicep:s1> <urn:kaicep:in> <urn:kaicep:r2> .")
    assert rooms() == {"r1", "r2"}
    run.knowledge.update(remove="<urn:kaicep:s1> <urn:kaicep:in> <urn:kaicep:r1> .")
    assert rooms() == {"r2"}
