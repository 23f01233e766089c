"""Knowledge that changes: always what a fresh one would be, and told exactly."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge.test_reasoning import LISTS, OWL_ROWS, RDFS_ROWS, loaded
from tests.knowledge.words import PREFIXES, iri, known, triple

from kaicep.errors import Mistake
from kaicep.knowledge.closure import Change
from kaicep.knowledge.store import Knowledge, Reason
from kaicep.plan.terms import XSD, Blank, Literal, Triple

LEVEL = st.sampled_from(["none", "rdfs", "owl-rl"])
Step = tuple[set[Triple], set[Triple]]


def told(triples: frozenset[Triple]) -> set[str]:
    return {" ".join(getattr(term, "local", str(term)) for term in each) for each in triples}


def test_a_sensor_moves() -> None:
    knowledge = known(
        """:in rdfs:range :Room . :Room rdfs:subClassOf :Space . :in rdfs:subPropertyOf :near .
        :s1 :in :r1 . :s2 :in :r2 ."""
    )
    assert knowledge.version == 0
    change = knowledge.update(add=[triple("s1 in r3")], remove=[triple("s1 in r1")])
    assert knowledge.version == change.version == 1
    assert told(change.added) == {"s1 in r3", "s1 near r3", "r3 type Room", "r3 type Space"}
    assert told(change.removed) == {"s1 in r1", "s1 near r1", "r1 type Room", "r1 type Space"}
    assert change.missing == frozenset()
    assert not knowledge.knows(iri("r1"))
    # The room stays a room while another sensor is in it.
    change = knowledge.update(PREFIXES + ":s1 :in :r2 .", PREFIXES + ":s1 :in :r3 .")
    assert told(change.added) == {"s1 in r2", "s1 near r2"}
    assert told(change.removed) == {"s1 in r3", "s1 near r3", "r3 type Room", "r3 type Space"}


def test_what_is_not_stated_cannot_be_removed() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :x a :A .")
    change = knowledge.update(remove=[triple("x a B"), triple("x a C")])
    assert change == Change(0, missing=frozenset({triple("x a B"), triple("x a C")}))
    assert knowledge.holds(triple("x a B"))
    assert knowledge.update(add=[triple("x a A")]) == Change(0)


def test_a_statement_that_is_inferred_too() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :x a :A .")
    assert knowledge.update(add=[triple("x a B")]) == Change(1)
    assert told(knowledge.update(remove=[triple("x a A")]).removed) == {"x type A"}
    assert knowledge.holds(triple("x a B"))


def test_removed_and_added_at_once_stays() -> None:
    knowledge = known(":x a :A .")
    assert knowledge.update([triple("x a A")], [triple("x a A")]) == Change(0)
    assert knowledge.holds(triple("x a A"))


def test_a_cycle_does_not_hold_itself_up() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :B rdfs:subClassOf :A . :x a :A .")
    assert told(knowledge.update(remove=[triple("x a A")]).removed) == {"x type A", "x type B"}
    knowledge = known(":p owl:inverseOf :q . :p a owl:SymmetricProperty . :x :p :y .", "owl-rl")
    knowledge.update(remove=[triple("x p y")])
    assert not list(knowledge.match(iri("x"))) + list(knowledge.match(iri("y")))


def test_a_transitive_triple_that_was_stated_is_a_step_when_the_others_go() -> None:
    knowledge = known(":a rdfs:subClassOf :b . :b rdfs:subClassOf :c . :a rdfs:subClassOf :c .")
    knowledge.update(remove=[triple("a rdfs:subClassOf b")])
    change = knowledge.update(add=[triple("c rdfs:subClassOf d")])
    assert told(change.added) == {f"{each} subClassOf d" for each in "abc"}


def test_lists_are_read_again() -> None:
    knowledge = known(":U owl:unionOf (:A :B) . :x a :A . :y a :B . :z a :C .", "owl-rl")
    second = next(s for s, _, _ in knowledge.match(None, iri("rdf:first"), iri("B")))
    change = knowledge.update([(second, iri("rdf:first"), iri("C"))], [(second, iri("rdf:first"), iri("B"))])
    assert "z type U" in told(change.added)
    assert "y type U" in told(change.removed)
    assert knowledge.holds(triple("x a U"))
    assert told(knowledge.update(remove=[triple("x a A")]).removed) == {"x type A", "x type U"}


def test_what_was_remembered_is_forgotten() -> None:
    knowledge = known(':A rdfs:subClassOf :B . :p rdfs:subPropertyOf :q . :x a :A ; :tag "1" .', "owl-rl")
    assert knowledge.classes_below(iri("B")) == {iri("A"), iri("B")}
    assert knowledge.properties_below(iri("q")) == {iri("p"), iri("q")}
    assert knowledge.entities_by(iri("tag"), Literal("1")) == (iri("x"),)
    assert knowledge.why(triple("x a B")) is not None
    text = ':C rdfs:subClassOf :B . :r rdfs:subPropertyOf :q . :y :tag "1" . :A owl:disjointWith :B .'
    knowledge.update(PREFIXES + text, [triple("A rdfs:subClassOf B"), triple("x a A")])
    assert knowledge.classes_below(iri("B")) == {iri("C"), iri("B")}
    assert knowledge.properties_below(iri("q")) == {iri("p"), iri("q"), iri("r")}
    assert knowledge.entities_by(iri("tag"), Literal("1")) == (iri("x"), iri("y"))
    assert knowledge.why(triple("x a B")) is None
    assert knowledge.why(triple("C rdfs:subClassOf B")) == Reason("asserted", ())
    assert knowledge.contradictions == ()
    knowledge.update(PREFIXES + ":z a :A, :B . <urn:o> owl:imports <urn:i> .")
    assert [each.message for each in knowledge.contradictions] == [
        "contradiction: <urn:t:z> is of the classes <urn:t:A> and <urn:t:B>, which are disjoint (cax-dw)"
    ]
    assert [each.message for each in knowledge.warnings] == ["<urn:o> imports <urn:i>, which is not loaded"]


def test_blank_nodes() -> None:
    knowledge = known("[] :p 1 .")
    change = knowledge.update("[] <urn:t:p> 2 . _:b0 <urn:t:p> 3 .")
    labels = {str(s) for s, _, _ in change.added}
    assert len(labels) == 2
    assert "_:b0" not in labels
    with pytest.raises(Mistake, match="blank node"):
        knowledge.update(remove="[] <urn:t:p> 1 .")
    one = (Blank("b0"), iri("p"), Literal("01", XSD + "integer"))
    assert told(knowledge.update(remove=[one]).removed) == {'_:b0 p "1"^^<' + XSD + "integer>"}


@pytest.mark.parametrize("bad", ["<urn:a> <urn:p> .", [(Literal("x"), iri("p"), iri("y"))]])
def test_a_bad_update_changes_nothing(bad: str | list[Triple]) -> None:
    knowledge = known(":x :p :y .")
    with pytest.raises(Mistake):
        knowledge.update(bad, [triple("x p y")])
    assert knowledge.version == 0
    assert knowledge.holds(triple("x p y"))


def test_the_same_after_pickling() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :x a :A .")
    knowledge.update([triple("y a A")])
    again = pickle.loads(pickle.dumps(knowledge))
    assert again.version == 1
    assert again.update(remove=[triple("y a A")]) == knowledge.update(remove=[triple("y a A")])
    assert list(again.match()) == list(knowledge.match())


def check_steps(level: str, stated: set[Triple], steps: list[Step]) -> None:
    knowledge = loaded(stated, level)
    for add, remove in steps:
        before, version = set(knowledge.match()), knowledge.version
        change = knowledge.update(add, remove)
        wanted = (stated - remove) | add
        fresh = loaded(wanted, level)
        after = set(fresh.match())
        assert set(knowledge.match()) == after
        assert knowledge.asserted == fresh.asserted
        assert (change.added, change.removed) == (after - before, before - after)
        assert change.missing == remove - stated
        assert change.version == knowledge.version == version + (wanted != stated)
        stated = wanted


@settings(max_examples=150, deadline=None)
@given(
    st.sets(RDFS_ROWS, max_size=10),
    st.lists(st.tuples(st.sets(RDFS_ROWS, max_size=3), st.sets(RDFS_ROWS, max_size=6)), max_size=4),
)
def test_after_updates_it_is_what_a_fresh_one_is(stated: set[Triple], steps: list[Step]) -> None:
    check_steps("rdfs", stated, steps)


@settings(max_examples=200, deadline=None)
@given(LEVEL, st.data())
def test_after_removing_what_was_stated_too(level: str, data: st.DataObject) -> None:
    everything = data.draw(st.sets(OWL_ROWS, max_size=10)) | LISTS
    choice = st.sets(st.sampled_from(sorted(everything, key=str)), max_size=4)
    steps = data.draw(st.lists(st.tuples(choice, choice), max_size=4))
    check_steps(level, everything, steps)


def test_one_sensor_of_many() -> None:
    """Only what depends on the change is looked at: the same rules fire however large the rest is."""
    lines = [":in rdfs:range :Room . :in rdfs:domain :Sensor . :Room rdfs:subClassOf :Space ."]
    lines += [f":s{n} :in :r{n % 50} ." for n in range(3_000)]
    knowledge = known("\n".join(lines))
    change = knowledge.update([triple("s7 in r8")], [triple("s7 in r7")])
    assert told(change.added) == {"s7 in r8"}
    assert told(change.removed) == {"s7 in r7"}


def test_updates_are_for_the_whole() -> None:
    knowledge = Knowledge.parse("")
    assert knowledge.update("<urn:a> <urn:p> <urn:b> .", valid_from=5).since == 5
    with pytest.raises(Mistake, match="cannot be changed"):
        knowledge.at(5).update("<urn:a> <urn:p> <urn:c> .")
