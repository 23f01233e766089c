"""What follows, rule by rule; and the engine against its definition, the naive fixpoint."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge.words import SPACE, iri, known, triple

from kaicep.knowledge.graph import TermTable, TripleIndex, match
from kaicep.knowledge.reasoning import RULES, TRANSITIVE, Rule, solutions, unrolled
from kaicep.knowledge.store import Knowledge, Reason
from kaicep.plan.terms import OWL, RDF, Iri, Literal, Term, Triple, Variable, n_triples

RDFS_CASES = [
    (":A rdfs:subClassOf :B . :B rdfs:subClassOf :C . :x a :A .", ["A rdfs:subClassOf C", "x a B", "x a C"]),
    (
        ":p rdfs:subPropertyOf :q . :q rdfs:subPropertyOf :r . :x :p :y .",
        ["x q y", "x r y", "p rdfs:subPropertyOf r"],
    ),
    (":p rdfs:domain :A . :x :p 1 .", ["x a A"]),
    (":p rdfs:range :A . :x :p :y .", ["y a A"]),
    (":p rdfs:range :A . :x :p 1 .", []),
    (
        ":p rdfs:subPropertyOf :q . :q rdfs:domain :A . :A rdfs:subClassOf :B . :x :p :y .",
        ["x q y", "x a A", "x a B"],
    ),
    (
        ":A rdfs:subClassOf :B . :B rdfs:subClassOf :A . :x a :A .",
        ["x a B", "A rdfs:subClassOf A", "B rdfs:subClassOf B"],
    ),
    (":x :mine :y . :mine rdfs:subPropertyOf rdf:type . :y rdfs:subClassOf :z .", ["x a y", "x a z"]),
    (":p owl:inverseOf :q . :x :p :y . :p owl:equivalentProperty :r .", []),
    (
        ":A owl:equivalentClass :B . :B rdfs:subClassOf :C .",
        [f"{each} rdfs:subClassOf {wider}" for each, wider in ("AB", "BA", "AC", "AA", "BB")],
    ),
]

OWL_CASES = [
    (":A owl:equivalentClass :B . :x a :A . :y a :B .", ["x a B", "y a A"]),
    (":p owl:equivalentProperty :q . :x :p :y . :y :q :z .", ["x q y", "y p z"]),
    (":p owl:inverseOf :q . :x :p :y . :x :q :z . :x :p 1 .", ["y q x", "z p x"]),
    (":p a owl:SymmetricProperty . :x :p :y .", ["y p x"]),
    (":x :p :y . :y :p :z . :z :p :w . :p a owl:TransitiveProperty .", ["x p z", "x p w", "y p w"]),
    (":p a owl:TransitiveProperty . :q rdfs:subPropertyOf :p . :x :q :y . :y :q :z .", ["x p z"]),
    (":p a owl:FunctionalProperty . :x :p :y, :z .", ["y owl:sameAs z", "z owl:sameAs y"]),
    (":p a owl:InverseFunctionalProperty . :x :p 1 . :y :p 1 .", ["x owl:sameAs y"]),
    (":x owl:sameAs :y . :y owl:sameAs :z .", ["z owl:sameAs x", "x owl:sameAs z"]),
    (":x owl:sameAs :y . :x :p :a . :b :p :x . :y a :A .", ["y p a", "b p y", "x a A"]),
    (":p owl:sameAs :q . :x :p :y .", ["x q y"]),
    (":p owl:propertyChainAxiom (:q :r :s) . :a :q :b . :b :r :c . :c :s :d .", ["a p d"]),
    (":p owl:propertyChainAxiom (:q [ owl:inverseOf :r ]) . :a :q :b . :c :r :b .", ["a p c"]),
    (":R owl:onProperty :p ; owl:hasValue :v . :x a :R . :y :p :v .", ["x p v", "y a R"]),
    (":R owl:onProperty :p ; owl:hasValue 5 . :y :p 5 .", ["y a R"]),
    (":R owl:onProperty :p ; owl:someValuesFrom :C . :x :p :y . :y a :C .", ["x a R"]),
    (":R owl:onProperty :p ; owl:someValuesFrom owl:Thing . :x :p :y .", ["x a R"]),
    (":R owl:onProperty :p ; owl:allValuesFrom :C . :x a :R ; :p :y .", ["y a C"]),
    (":I owl:intersectionOf (:A :B) . :x a :A, :B . :y a :I .", ["x a I", "y a A", "y a B"]),
    (":A owl:equivalentClass [ owl:intersectionOf (:B [ owl:onProperty :p; owl:hasValue 1])]. :x a :B; :p 1.",
     ["x a A"]),
    (":U owl:unionOf (:A :B) . :x a :A . :y a :B .", ["x a U", "y a U"]),
    (":O owl:oneOf (:x :y) .", ["x a O", "y a O"]),
    (":C owl:hasKey (:p :q) . :x a :C ; :p 1 ; :q 2 . :y a :C ; :p 1 ; :q 2 . :z a :C ; :p 1 ; :q 3 .",
     ["x owl:sameAs y"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "follows"), RDFS_CASES)
def test_rdfs(text: str, follows: list[str]) -> None:
    """Exactly these follow, no axiomatic triples and no typing of everything."""
    knowledge = known(text)
    new = set(knowledge.match()) - set(known(text, "none").match())
    assert new == {triple(each) for each in follows}


@pytest.mark.parametrize(("text", "follows"), OWL_CASES)
def test_owl(text: str, follows: list[str]) -> None:
    knowledge = known(text, "owl-rl")
    assert [each for each in follows if not knowledge.holds(triple(each))] == []
    assert not any(isinstance(s, Literal) for s, _, _ in knowledge.match())
    assert not any(s == o for s, _, o in knowledge.match(None, iri("owl:sameAs")))
    assert knowledge.contradictions == ()


@pytest.mark.parametrize("text", [text for text, _ in RDFS_CASES])
def test_none_adds_nothing(text: str) -> None:
    knowledge = known(text, "none")
    assert knowledge.closed == knowledge.asserted


def test_none_knows_that_equivalent_classes_have_the_same_members() -> None:
    knowledge = known(":A owl:equivalentClass :B . :B owl:equivalentClass :C . :x a :A . :y a :C .", "none")
    new = set(knowledge.match()) - {triple("A owl:equivalentClass B"), triple("B owl:equivalentClass C")}
    assert new == {triple(f"{each} a {kind}") for each in "xy" for kind in "ABC"}


def test_what_does_not_follow() -> None:
    assert not known(":z a :C . :x :p :z . :R owl:onProperty :q ; owl:someValuesFrom :C .", "owl-rl").holds(
        triple("x a R")
    )
    assert not known(OWL_CASES[-1][0], "owl-rl").holds(triple("x owl:sameAs z"))
    assert not known(":I owl:intersectionOf (:A :B) . :x a :A .", "owl-rl").holds(triple("x a I"))


@pytest.mark.parametrize("broken", ["[ rdf:first :A ]", "_:l . _:l rdf:first :A ; rdf:rest _:l", ":A", "()"])
def test_broken_lists_say_nothing(broken: str) -> None:
    knowledge = known(f":U owl:unionOf {broken} . :x a :A .", "owl-rl")
    assert not knowledge.holds(triple("x a U"))


# The definition: apply every rule to everything until nothing new comes.


def naive(triples: set[Triple], level: str) -> set[Triple]:
    def graph_of(facts: set[Triple]) -> tuple[TripleIndex, TermTable]:
        graph, terms = TripleIndex(), TermTable()
        for each in facts:
            graph.add(*terms.ids(each))
        return graph, terms

    said = graph_of(triples)
    x, y, z, p = map(Variable, "xyzp")
    rules = list(RULES[level]) + [
        Rule(name, ((x, each, y), (y, each, z)), ((x, each, z),)) for each, name in TRANSITIVE[level].items()
    ]
    if level == "owl-rl":
        transitive = (p, Iri(RDF + "type"), Iri(OWL + "TransitiveProperty"))
        rules.append(Rule("prp-trp", (transitive, (x, p, y), (y, p, z)), ((x, p, z),)))
        rules += unrolled(lambda *wanted: match(*said, *wanted))
    facts = set(triples)
    while True:
        graph = graph_of(facts)
        new: set[Triple] = set()
        for rule in rules:
            for found in solutions(lambda *wanted: match(*graph, *wanted), rule.premises, {}):  # noqa: B023
                for conclusion in rule.conclusions:
                    s, q, o = (found[each] if isinstance(each, Variable) else each for each in conclusion)
                    same = q == Iri(OWL + "sameAs") and (s == o or isinstance(o, Literal))
                    if not isinstance(s, Literal) and isinstance(q, Iri) and not same:
                        new.add((s, q, o))
        if new <= facts:
            return facts
        facts |= new


def loaded(triples: set[Triple], level: str) -> Knowledge:
    return Knowledge.parse("\n".join(sorted(map(n_triples, triples))), "nt", level)


CLASSES, PROPERTIES, THINGS = ["A", "B", "C"], ["p", "q"], ["x", "y", "z"]


def pick(*words: list[str]) -> st.SearchStrategy[Term]:
    return st.sampled_from([iri(word) for some in words for word in some])


def rows(s: list[str], p: list[str], o: list[str]) -> st.SearchStrategy[Triple]:
    return st.tuples(pick(s), pick(p), pick(o))


RDFS_ROWS = st.one_of(
    rows(THINGS, PROPERTIES, THINGS),
    rows(THINGS, ["rdf:type"], CLASSES),
    rows(CLASSES, ["rdfs:subClassOf"], CLASSES),
    rows(PROPERTIES, ["rdfs:subPropertyOf"], PROPERTIES),
    rows(PROPERTIES, ["rdfs:domain", "rdfs:range"], CLASSES),
    st.tuples(pick(THINGS), pick(PROPERTIES), st.sampled_from([Literal("1"), Literal("2")])),
)
OWL_ROWS = st.one_of(
    RDFS_ROWS,
    rows(CLASSES, ["owl:equivalentClass"], CLASSES),
    rows(PROPERTIES, ["owl:equivalentProperty", "owl:inverseOf"], PROPERTIES),
    rows(
        PROPERTIES,
        ["rdf:type"],
        ["owl:" + k + "Property" for k in ("Symmetric", "Transitive", "Functional", "InverseFunctional")],
    ),
    rows(THINGS, ["owl:sameAs"], THINGS),
    rows(CLASSES, ["owl:onProperty"], PROPERTIES),
    rows(CLASSES, ["owl:someValuesFrom", "owl:allValuesFrom"], [*CLASSES, "owl:Thing"]),
    rows(CLASSES, ["owl:hasValue"], THINGS),
    rows(CLASSES, ["owl:intersectionOf", "owl:unionOf"], ["l1"]),
    rows(PROPERTIES, ["owl:propertyChainAxiom"], ["m1"]),
)
LISTS = {
    *map(triple, ("l1 rdf:first A", "l1 rdf:rest l2", "l2 rdf:first B", "l2 rdf:rest rdf:nil")),
    *map(triple, ("m1 rdf:first p", "m1 rdf:rest m2", "m2 rdf:first q", "m2 rdf:rest rdf:nil")),
}


@settings(max_examples=150, deadline=None)
@given(st.sets(RDFS_ROWS, max_size=12))
def test_rdfs_closure_is_the_naive_fixpoint(triples: set[Triple]) -> None:
    assert set(loaded(triples, "rdfs").match()) == naive(triples, "rdfs")


@settings(max_examples=60, deadline=None)
@given(st.sets(OWL_ROWS, max_size=9))
def test_owl_closure_is_the_naive_fixpoint(triples: set[Triple]) -> None:
    assert set(loaded(triples | LISTS, "owl-rl").match()) == naive(triples | LISTS, "owl-rl")


@settings(max_examples=150, deadline=None)
@given(
    st.sets(OWL_ROWS, max_size=10),
    st.sets(RDFS_ROWS, max_size=4),
    st.sampled_from(["none", "rdfs", "owl-rl"]),
)
def test_a_few_triples_more_give_what_loading_them_gives(
    base: set[Triple], more: set[Triple], level: str
) -> None:
    """`entails_with` is the closure of both without that of the base; the given ones are always in it."""
    knowledge = loaded(base | LISTS, level)
    before = set(knowledge.match())
    after = set(loaded(base | LISTS | more, level).match())
    assert knowledge.entails_with(more) == (after - before) | more
    assert set(knowledge.match()) == before


def test_a_property_may_become_transitive_by_an_event() -> None:
    knowledge = known(":x :p :y . :y :p :z .", "owl-rl")
    more = knowledge.entails_with([triple("p a owl:TransitiveProperty")])
    assert more == {triple("p a owl:TransitiveProperty"), triple("x p z")}


def proof(knowledge: Knowledge, wanted: Triple, extra: tuple[Triple, ...] = ()) -> list[str]:
    """The rules of the whole proof, from the conclusion on; it must come to an end."""
    reason = knowledge.why(wanted, extra)
    assert reason is not None
    return [reason.rule, *(each for premise in reason.premises for each in proof(knowledge, premise, extra))]


def test_why() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :B rdfs:subClassOf :A . :p rdfs:domain :A . :x :p :y .")
    assert knowledge.why(triple("x p y")) == Reason("asserted", ())
    assert knowledge.why(triple("x a A")) == Reason("prp-dom", (triple("p rdfs:domain A"), triple("x p y")))
    assert proof(knowledge, triple("x a B")) == ["cax-sco", "asserted", "prp-dom", "asserted", "asserted"]
    assert knowledge.why(triple("y a A")) is None
    extra = (triple("z p y"),)
    assert knowledge.why(triple("z a B")) is None
    assert proof(knowledge, triple("z a B"), extra)[0] == "cax-sco"


def test_why_of_a_list_names_what_said_it() -> None:
    knowledge = known(":U owl:unionOf (:A :B) . :x a :A .", "owl-rl")
    reason = knowledge.why(triple("A rdfs:subClassOf U"))
    assert reason is not None
    assert reason.rule == "scm-uni"
    assert reason.premises[0][:2] == (iri("U"), iri("owl:unionOf"))
    assert proof(knowledge, triple("x a U")) == ["cax-sco", "scm-uni", "asserted", "asserted"]


@settings(max_examples=40, deadline=None)
@given(st.sets(OWL_ROWS, max_size=8))
def test_every_proof_ends_at_what_was_said(triples: set[Triple]) -> None:
    knowledge = loaded(triples | LISTS, "owl-rl")
    reasons = {each: knowledge.why(each) for each in knowledge.match()}
    proven: set[Triple] = set()
    while True:
        more = {
            t for t, why in reasons.items() if t not in proven and why and proven.issuperset(why.premises)
        }
        if not more:
            break
        proven |= more
    assert proven == set(reasons)


CLASHES = [
    (
        ":A owl:disjointWith :B . :x a :A, :B .",
        ["<x> is of the classes <A> and <B>, which are disjoint (cax-dw)"],
    ),
    (
        ":A owl:disjointWith :B . :B owl:disjointWith :A . :C rdfs:subClassOf :A, :B .",
        ["the class <C> is below <A> and <B>, which are disjoint: it can have no members (cax-dw)"],
    ),
    (
        ":A owl:disjointWith :B . :A rdfs:subClassOf :B .",
        ["the class <A> is below <B>, and they are disjoint: it can have no members (cax-dw)"],
    ),
    (
        "[] a owl:AllDisjointClasses ; owl:members (:A :B :C) . :x a :A, :C .",
        ["<x> is of the classes <A> and <C>, which are disjoint (cax-adc)"],
    ),
    (
        ":A owl:complementOf :B . :x a :A, :B .",
        ["<x> is of the class <A> and of <B>, its complement (cls-com)"],
    ),
    (":x a owl:Nothing .", ["<x> is of class owl:Nothing, which has no members (cls-nothing2)"]),
    (
        ":x owl:sameAs :y ; owl:differentFrom :y .",
        ["<x> and <y> are said to be the same and to be different (eq-diff1)"],
    ),
    (
        ":x owl:sameAs :z . [] a owl:AllDifferent ; owl:distinctMembers (:x :y :z) .",
        ["<x> and <z> are said to be the same and to be different (eq-diff2)"],
    ),
    (":p a owl:IrreflexiveProperty . :x :p :x .", ["<x> has itself for <p>, which is irreflexive (prp-irp)"]),
    (
        ":p a owl:AsymmetricProperty . :x :p :y . :y :p :x .",
        ["<x> and <y> have each other for <p>, which is asymmetric (prp-asyp)"],
    ),
    (
        ":p owl:propertyDisjointWith :q . :x :p :y ; :q :y .",
        ["<x> has <y> for <p> and for <q>, which are disjoint (prp-pdw)"],
    ),
    (
        "[] a owl:AllDisjointProperties ; owl:members (:p :q) . :x :p :y ; :q :y .",
        ["<x> <y> is of the properties <p> and <q>, which are disjoint (prp-adp)"],
    ),
    (
        "[] owl:sourceIndividual :x ; owl:assertionProperty :p ; owl:targetIndividual :y . :x :p :y .",
        ["<x> has <y> for <p>, which is said not to be so (prp-npa1)"],
    ),
    (
        '[] owl:sourceIndividual :x ; owl:assertionProperty :p ; owl:targetValue "v" . :x :p "v" .',
        ['<x> has "v" for <p>, which is said not to be so (prp-npa2)'],
    ),
    (
        ':p a owl:FunctionalProperty . :x :p "a", "b" .',
        ['<x> has "a" and "b" for <p>, which is functional (prp-fp)'],
    ),
]


@pytest.mark.parametrize(("text", "told"), CLASHES)
def test_contradictions_are_told_and_loading_goes_on(text: str, told: list[str]) -> None:
    knowledge = known(text + " :D rdfs:subClassOf :E . :fine a :D .", "owl-rl")
    found = [
        each.message.removeprefix("contradiction: ").replace(SPACE, "") for each in knowledge.contradictions
    ]
    assert found == told
    assert {each.severity for each in knowledge.contradictions} == {"warning"}
    assert knowledge.holds(triple("fine a E"))


def test_very_many_contradictions_are_cut_short() -> None:
    many = " ".join(f":x{n} a :A, :B ." for n in range(150))
    knowledge = known(":A owl:disjointWith :B . " + many, "owl-rl")
    assert len(knowledge.contradictions) == 101
    assert knowledge.contradictions[-1].message == "there are more contradictions than these"


@pytest.mark.parametrize("level", ["rdfs", "owl-rl"])
def test_a_campus_closes(level: str) -> None:
    """20,000 triples; with the quadratic mistakes that are easy to make here this would not end."""
    lines = [":Airflow rdfs:subClassOf :Sensor . :Sensor rdfs:subClassOf :Device . :in rdfs:range :Space ."]
    lines += [f":s{n} a :Airflow ; :in :r{n % 500} ." for n in range(9_000)]
    lines += [f":c{n} rdfs:subClassOf :c{n // 4} ." for n in range(1, 2_000)]
    lines += [f":d{n} rdfs:subClassOf :d{n + 1} ." for n in range(200)]
    knowledge = known("\n".join(lines), level)
    assert knowledge.asserted == 20_202
    assert sum(1 for _ in knowledge.match(None, iri("rdf:type"), iri("Device"))) == 9_000
    assert sum(1 for _ in knowledge.match(iri("d0"), iri("rdfs:subClassOf"))) == 200
