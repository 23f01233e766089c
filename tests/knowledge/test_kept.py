"""What is kept of a large ontology between two runs: the same knowledge, from a folder that is safe."""

from __future__ import annotations

import pickle

import pytest

from kaicep.errors import Mistake
from kaicep.knowledge import store
from kaicep.knowledge.closure import Change
from kaicep.knowledge.kept import KeptGraph
from kaicep.knowledge.store import Knowledge, fingerprint
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.terms import Blank, Iri, Literal

ONTOLOGY = """
    @prefix : <urn:k:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    @prefix kai: <https://kaicep.org/ns#> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :Office rdfs:subClassOf :Room . :Room rdfs:subClassOf :Place ; rdfs:label "Raum"@de, "room" .
    :r1 a :Office ; :size 7.50 ; :near [ a :Lab ; :size 3 ] . :Lab owl:disjointWith :Office . :r1 a :Lab .
    :in a owl:TransitiveProperty . :s1 :in :r1 . :r1 :in :floor . :r1 owl:sameAs :r2 .
    :reach owl:propertyChainAxiom ( :by [ owl:inverseOf :of ] ) . :s1 :by :x . :y :of :x .
    :monday { :s1 :in :r3 . } :monday kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
"""


@pytest.fixture(autouse=True)
def kept_however_small(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "_LARGE", 0)
    monkeypatch.setattr(store, "_MANY", 0)
    monkeypatch.setenv("KAICEP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "ontology.trig"
    made.write_text(ONTOLOGY)
    return made


def is_kept(knowledge: Knowledge) -> bool:
    return isinstance(knowledge._closure.graph, KeptGraph)


def told(knowledge: Knowledge) -> list[object]:
    instants = [0, *knowledge.epochs]
    return [
        sorted(map(str, knowledge.match())),
        [sorted(map(str, knowledge.at(ts).match())) for ts in instants],
        (knowledge.asserted, knowledge.statements, knowledge.closed, knowledge.prefixes),
        [each.message for each in (*knowledge.warnings, *knowledge.contradictions)],
        knowledge.properties(),
        knowledge.classes(),
        [graphs(knowledge.at(ts)) for ts in instants],
    ]


def graphs(knowledge: Knowledge) -> dict[str, list[str]]:
    return {
        str(name): sorted(map(str, each.match(None, None, None))) for name, each in knowledge.graphs().items()
    }


def asked(knowledge: Knowledge) -> list[object]:
    """Everything that may be asked of the triples, by one place or two."""
    triples = sorted(knowledge.match(), key=str)
    found: list[object] = []
    for s, p, o in triples:
        for wanted in ((s, None, None), (None, p, None), (None, None, o), (s, p, None), (None, p, o)):
            found.append(sorted(map(str, knowledge.match(*wanted))))
        found += [
            sorted(map(str, knowledge.match(s, None, o))),
            knowledge.holds((s, p, o)),
            knowledge.knows(s),
        ]
    return found


@pytest.mark.parametrize("level", ["none", "rdfs", "owl-rl"])
def test_the_second_load_says_what_the_first_said(file, level):
    first, second = (Knowledge.load(file, reasoning=level) for _ in "12")
    assert (is_kept(first), is_kept(second)) == (False, True)
    assert told(second) == told(first)
    assert asked(second) == asked(first)
    assert list(graphs(second.at(0))) == ["<urn:k:monday>"]
    assert fingerprint(second) == fingerprint(first)
    assert second.why((Iri("urn:k:r1"), Iri("urn:k:near"), Blank("b0"))) == first.why(
        (Iri("urn:k:r1"), Iri("urn:k:near"), Blank("b0"))
    )
    assert not second.knows(Iri("urn:k:nobody"))
    assert not second.knows(Literal("7.5", "urn:k:unit"))


@pytest.mark.parametrize("level", ["rdfs", "owl-rl"])
@pytest.mark.parametrize(
    ("add", "remove"),
    [
        ("<urn:k:s2> <urn:k:in> <urn:k:r1> .", ""),
        ("[] <urn:k:in> <urn:k:r1> .", "<urn:k:s1> <urn:k:in> <urn:k:r1> ."),
        ("", "<urn:k:Office> <http://www.w3.org/2000/01/rdf-schema#subClassOf> <urn:k:Room> ."),
        ("", "<urn:k:in> a <http://www.w3.org/2002/07/owl#TransitiveProperty> ."),
        ("<urn:k:new> <http://www.w3.org/2002/07/owl#unionOf> (<urn:k:Room> <urn:k:Hall>) .", ""),
    ],
)
def test_what_was_kept_can_be_changed(file, level, add, remove):
    first, second = (Knowledge.load(file, reasoning=level) for _ in "12")
    for each in (first, second):
        each.update(add, remove)
    assert told(second) == told(first)


def test_new_facts_are_reasoned_about_as_ever(file):
    first, second = (Knowledge.load(file, reasoning="owl-rl") for _ in "12")
    event = [(Iri("urn:k:s9"), Iri("urn:k:in"), Iri("urn:k:s1"))]
    assert second.entails_with(event) == first.entails_with(event)


def test_it_travels_to_another_process(file):
    first, second = (Knowledge.load(file) for _ in "12")
    assert told(pickle.loads(pickle.dumps(second))) == told(first)


def test_another_text_or_level_is_another_knowledge(file):
    Knowledge.load(file)
    assert not is_kept(Knowledge.load(file, reasoning="owl-rl"))
    file.write_text(ONTOLOGY.replace(":Office rdfs", ":Studio rdfs"))
    changed = Knowledge.load(file)
    assert not is_kept(changed)
    assert Iri("urn:k:Studio") in (changed.classes() or ())


def test_a_damaged_file_is_not_believed(file, tmp_path):
    first = Knowledge.load(file)
    (made,) = (tmp_path / "cache" / "knowledge").iterdir()
    data = bytearray(made.read_bytes())
    data[-1] ^= 1
    made.write_bytes(data)
    again = Knowledge.load(file)
    assert not is_kept(again)
    assert told(again) == told(first)


@pytest.mark.parametrize("place", ["cache/knowledge", "cache"])
def test_a_folder_that_others_may_write_to_is_not_used(file, tmp_path, place):
    Knowledge.load(file)
    (tmp_path / place).chmod(0o777)
    assert not is_kept(Knowledge.load(file))
    (tmp_path / place).chmod(0o700)
    assert is_kept(Knowledge.load(file))


def test_a_link_in_the_place_of_the_folder_is_not_followed(file, tmp_path):
    Knowledge.load(file)
    folder = tmp_path / "cache" / "knowledge"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert not is_kept(Knowledge.load(file))


def test_files_that_are_watched_are_kept_and_followed(file, tmp_path):
    other = tmp_path / "other.ttl"
    other.write_text("<urn:k:s7> <urn:k:in> [ <urn:k:size> 1 ], <urn:k:r1> .")
    first, second = (KnowledgeFiles([tmp_path]) for _ in "12")
    assert (is_kept(first.knowledge), is_kept(second.knowledge)) == (False, True)
    first.knowledge.update("<urn:k:s8> <urn:k:in> <urn:k:r1> .")
    second.knowledge.update("<urn:k:s8> <urn:k:in> <urn:k:r1> .")
    file.write_text(ONTOLOGY.replace(":in :r3", ":in :r4").replace(":size 7.50", ":size 8"))
    one, two = (each.poll() for each in (first, second))
    assert isinstance(one, Change)
    assert isinstance(two, Change)
    assert (two.added, two.removed) == (one.added, one.removed)
    assert told(second.knowledge) == told(first.knowledge)
    other.unlink()
    assert [isinstance(each.poll(), Change) for each in (first, second)] == [True, True]
    assert told(second.knowledge) == told(first.knowledge)


def test_a_watched_file_that_becomes_wrong_stands_as_it_was(file, tmp_path):
    other = tmp_path / "other.ttl"
    other.write_text("<urn:k:s7> <urn:k:in> <urn:k:r1> .")
    first, second = (KnowledgeFiles((file, other)) for _ in "12")
    file.write_text("nonsense")
    other.write_text("<urn:k:s7> <urn:k:in> <urn:k:r2> .")
    for each in (first, second):
        assert isinstance(each.poll(), Mistake)
        assert isinstance(each.poll(), Change)
    assert told(second.knowledge) == told(first.knowledge)
