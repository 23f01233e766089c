"""Small random ontologies and PATHs: the compiled plan gives what the judge gives."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.optimize.compiled import compiled

from kaicep import testing
from kaicep.errors import Mistake
from kaicep.knowledge.relations import RuntimeSettings
from kaicep.plan.terms import OWL

pytestmark = pytest.mark.random

ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow", "y": ":flow", "n": ":count", "code": ":code"},
    "entities": {
        "sensor": {"property": ":from", "iri": ":{value}"},
        "tag": {"property": ":by", "lookup": ":tag"},
    },
}
SCHEMA = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    :Office rdfs:subClassOf :Room . :Lab rdfs:subClassOf :Room . :flow rdfs:subPropertyOf :measure .
    :inside rdfs:subPropertyOf :in . :limit :value 5 . :near rdfs:domain :Place .
"""
THINGS = ["s0", "s1", "s2", "r0", "r1", "d0"]
FACTS = [
    *(f":{s} :{p} :{r} ." for s in ("s0", "s1", "s2") for p in ("in", "inside") for r in ("r0", "r1")),
    *(f":{r} a :{c} ." for r in ("r0", "r1", "s0") for c in ("Office", "Lab", "Room")),
    *(f":{r} :of :d0 ." for r in ("r0", "r1")),
    *(f":{a} :near :{b} ." for a in ("r0", "r1") for b in ("r0", "r1", "s1")),
    ':s0 :tag "T0" .',
    ':s1 :tag "T1" .',
    ':r0 :code "a" .',
    ':r1 :code "a"@en .',
    ":r0 :size 3 .",
    ":r1 :size 3.0 .",
    ":r0 :size 3.0e0 .",
    "_:b :in :r0 . :s2 :in _:c . _:c a :Lab .",
    ":from rdfs:range :Source .",
    ":from rdfs:range :Lab .",
    ":limit :value 6 .",
]
AXIOMS = [
    ":s0 owl:sameAs :s1 .",
    ":s1 owl:sameAs :s3 . :s3 :in :r1 .",
    ":r0 owl:sameAs :r1 .",
    ":from owl:inverseOf :sourceOf .",
    ":from a owl:FunctionalProperty .",
    ":from a owl:InverseFunctionalProperty .",
    ":by a owl:FunctionalProperty . :tag a owl:FunctionalProperty .",
    ":by owl:equivalentProperty :from .",
    ":by rdfs:subPropertyOf :from .",
    ":in a owl:TransitiveProperty . :r0 :in :r1 .",
    ":from a owl:TransitiveProperty .",
    ":near a owl:SymmetricProperty .",
    ":from a owl:SymmetricProperty .",
    ":reach owl:propertyChainAxiom (:from :in) . :reach rdfs:subPropertyOf :near .",
    ":through owl:propertyChainAxiom ([owl:inverseOf :from] :by) . :through rdfs:subPropertyOf :near .",
    ":Lab owl:onProperty :from ; owl:someValuesFrom :Source .",
    ":Lab owl:onProperty :in ; owl:someValuesFrom :Source .",
    ":Report owl:onProperty :from ; owl:allValuesFrom :Lab .",
    ":Report owl:onProperty :flow ; owl:hasValue 8.0e0 .",
    ":Report owl:onProperty :from ; owl:hasValue :s1 .",
    ":Office owl:intersectionOf (:Lab :Source) .",
    ":Report owl:equivalentClass :Place .",
    ":flow owl:sameAs :count .",
    ":Report owl:hasKey (:code) .",
]
PARTS = [
    "?e :from ?s .",
    "?e :by ?t .",
    "?e :from/:in ?r .",
    "?s :in ?r .",
    "?t :in ?r .",
    "?r a :Office .",
    "?r a :Lab .",
    "?s a :Lab .",
    "?s a :Source .",
    "?r :of :d0 .",
    "?r :near+ ?q .",
    "?q a :Lab .",
    "?e :flow ?v . FILTER (?v > 4)",
    "?e :measure ?m . FILTER (?m <= 7 || ?m > 9)",
    "?e :count ?n . FILTER (?n != 2)",
    "?e :count ?n . ?r :size ?n .",
    "?e :code ?c . ?r :code ?c .",
    "?e :code 'a' .",
    "?e :flow ?w . :limit :value ?l . FILTER (?w > ?l)",
    "?e a :Report .",
    "?e a :Place .",
    "OPTIONAL {?r :of ?d} FILTER (!BOUND(?d))",
    "{?r a :Lab} UNION {?r a :Office}",
    "MINUS {?r :of :d0}",
    "FILTER NOT EXISTS {?r :near ?r}",
    "FILTER NOT EXISTS {?e :from ?z . ?z :in :r0}",
    "VALUES ?r {:r0}",
    "BIND (?r AS ?k) ?k a :Room .",
    "?e ?p :s1 .",
    "?e :from [ :in ?r ] .",
    "?s :near* ?q .",
    "?e :count ?n . ?n :near? ?q .",
    "?r :size ?z . FILTER (?z = 3)",
    "?e :from ?s , :s1 .",
    "?s ^:from ?e .",
    "?s :sourceOf ?a . ?a :count ?o .",
    "?e :reach ?r .",
    "?s owl:sameAs ?w .",
    "FILTER (?s != :s1)",
    "{ SELECT ?r (COUNT(?s) AS ?many) WHERE { ?s :in ?r } GROUP BY ?r HAVING (COUNT(?s) > 1) }",
]
VALUES = st.sampled_from(["", "3.0", "5.0", "8.0", "10.0"])
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["s0", "s1", "s9", ""]),
        st.sampled_from(["T0", "T1", "T9", ""]),
        VALUES,
        VALUES,
        st.sampled_from(["2", "3", ""]),
        st.sampled_from(["a", "b", ""]),
    ),
    min_size=1,
    max_size=4,
)
BLOCKS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4, unique=True).map(" ".join)


def table(rows) -> str:
    lines = ["ts | sensor | tag | x | y | n | code"]
    return "\n".join(lines + [f"{ts} | " + " | ".join(row) for ts, row in enumerate(rows)])


def judge_and_compiled(query, rows, facts, reasoning, settings=None):
    types = {
        "x": "float64",
        "y": "float64",
        "n": "int64",
        "code": "string",
        "sensor": "string",
        "tag": "string",
    }
    try:
        case = testing.prepare(
            query,
            table(rows),
            knowledge=SCHEMA + "\n".join(facts),
            reasoning=reasoning,
            annotations=[{**ANNOTATION, "types": types}],
        )
    except Mistake:
        reject()  # two blocks that bind one name, say
    assert [each.to_json() for each in compiled(case, settings=settings)] == [
        each.to_json() for each in case.matches("reference")
    ]


QUIET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@QUIET
@given(
    BLOCKS,
    st.lists(BLOCKS, max_size=1),
    ROWS,
    st.lists(st.sampled_from(FACTS), max_size=10, unique=True),
    st.sampled_from(["none", "rdfs", "owl-rl", "owl-rl"]),
    st.lists(st.sampled_from(AXIOMS), max_size=3, unique=True),
    st.sampled_from(["", ", ?r", ", ?s"]),
    st.sampled_from(["AND", "OR"]),
)
def test_one_event(block, more, rows, facts, reasoning, axioms, selected, word):
    paths = f" {word} ".join(f"PATH {{ {each} }}" for each in (block, *more))
    if selected and f"{selected[2:]} " not in paths:
        selected = ""
    query = f"PREFIX owl: <{OWL}> SELECT ?e.sensor{selected} FROM (?e, s) {paths}"
    judge_and_compiled(query, rows, facts + axioms, reasoning)


@QUIET
@given(
    BLOCKS,
    BLOCKS,
    ROWS,
    st.lists(st.sampled_from(FACTS), max_size=10, unique=True),
    st.sampled_from(["SEQ (?e, ?f)", "SEQ (?e, ?f?)", "SEQ (?e, !?f)", "SEQ (?e+, ?f)", ""]),
    st.sampled_from(["any", "next", "strict"]),
    st.booleans(),
    st.sampled_from(["rdfs", "owl-rl"]),
    st.lists(st.sampled_from(AXIOMS), max_size=3, unique=True),
)
def test_two_events(first, second, rows, facts, sequence, match, tied, reasoning, axioms):
    second = second.replace("?e", "?f")
    if not tied:
        for name in "srtqvmnclwdkpz":
            second = second.replace(f"?{name} ", f"?{name}2 ").replace(f"?{name})", f"?{name}2)")
    query = f"""
        PREFIX owl: <{OWL}>
        SELECT COUNT(?e) AS n FROM (?e, s), (?f, s) {sequence} WINDOW (?e, ?f, 1min) MATCH {match}
        PATH {{ {first} }} PATH {{ {second} }}
    """
    if "?e+" not in sequence:
        query = query.replace("COUNT(?e) AS n", "?e.sensor")
    judge_and_compiled(query, rows, facts + axioms, reasoning)


@pytest.mark.parametrize("cache", [0, 1, 100])
@QUIET
@given(block=BLOCKS, rows=ROWS, facts=st.lists(st.sampled_from(FACTS), max_size=10, unique=True))
def test_the_run_time_path_with_any_cache(cache, block, rows, facts):
    judge_and_compiled(
        f"PREFIX owl: <{OWL}> SELECT ?e.sensor FROM (?e, s) PATH {{ {block} }}",
        rows,
        facts,
        "owl-rl",
        RuntimeSettings(cache=cache),
    )
