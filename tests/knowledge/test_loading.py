"""Files of every format, and what is said of broken ones."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.knowledge.words import iri, known

from kaicep.errors import Mistake
from kaicep.knowledge.store import Knowledge
from kaicep.plan.terms import RDF, XSD, Blank, Iri, Literal, n_triples

S, P, OBJECT, G = "urn:s", "urn:p", "urn:o", "urn:g"

TEXTS = {
    "ttl": f"<{S}> <{P}> <{OBJECT}> .",
    "turtle": f"<{S}> <{P}> <{OBJECT}> .",
    "nt": f"<{S}> <{P}> <{OBJECT}> .\n",
    "nq": f"<{S}> <{P}> <{OBJECT}> <{G}> .\n",
    "trig": f"<{G}> {{ <{S}> <{P}> <{OBJECT}> . }}",
    "rdf": f'<rdf:RDF xmlns:rdf="{RDF}" xmlns:u="urn:"><rdf:Description rdf:about="{S}">'
    f'<u:p rdf:resource="{OBJECT}"/></rdf:Description></rdf:RDF>',
    "jsonld": json.dumps({"@id": S, P: {"@id": OBJECT}}),
}
TEXTS["owl"] = TEXTS["xml"] = TEXTS["rdf"]


@pytest.mark.parametrize("suffix", TEXTS)
def test_every_format_by_its_suffix(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"k.{suffix}"
    file.write_text(TEXTS[suffix])
    assert list(Knowledge.load(file).match()) == [(Iri(S), Iri(P), Iri(OBJECT))]
    assert list(Knowledge.parse(TEXTS[suffix], suffix).match()) == [(Iri(S), Iri(P), Iri(OBJECT))]


def test_a_folder_stands_for_its_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.ttl").write_text("[] <urn:p> 2 .")
    (tmp_path / "a.nt").write_text('_:x <urn:p> "1" .\n')
    (tmp_path / "README.md").write_text("no knowledge")
    found = [n_triples(each) for each in Knowledge.load(tmp_path).match()]
    assert found == ['_:b0 <urn:p> "1" .', f'_:b1 <urn:p> "2"^^<{XSD}integer> .']


def test_one_label_in_two_files_is_two_nodes(tmp_path: Path) -> None:
    for name in ("a.ttl", "b.ttl"):
        (tmp_path / name).write_text("_:x <urn:p> _:y .")
    knowledge = Knowledge.load(tmp_path / "b.ttl", tmp_path / "a.ttl")
    assert list(knowledge.match()) == [
        (Blank("b0"), Iri("urn:p"), Blank("b1")),
        (Blank("b2"), Iri("urn:p"), Blank("b3")),
    ]


def test_blank_labels_are_the_same_every_time() -> None:
    text = ":a :p [ :q ( 1 2 [ :r :s ] ) ] . _:z :p _:y ."
    first, second = (list(known(text).match()) for _ in range(2))
    assert first == second
    labels = {term.label for row in first for term in row if isinstance(term, Blank)}
    assert labels == {f"b{n}" for n in range(len(labels))}


def test_relative_names_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    (tmp_path / "k.ttl").write_text("<#x> <#p> <> .")
    base = "file:///k.ttl"
    assert list(Knowledge.load(tmp_path / "k.ttl").match()) == [
        (Iri(base + "#x"), Iri(base + "#p"), Iri(base))
    ]


def test_literals_are_normal() -> None:
    knowledge = known(':a :p "05"^^xsd:integer, 5, 5.0, "5e0"^^xsd:double, "x"@EN .', "none")
    assert {row[2] for row in knowledge.match()} == {
        Literal("5", XSD + "integer"),
        Literal("5.0", XSD + "decimal"),
        Literal("5.0", XSD + "double"),
        Literal("x", language="en"),
    }


def mistake(*paths: Path) -> str:
    with pytest.raises(Mistake) as caught:
        Knowledge.load(*paths)
    return str(caught.value)


def test_syntax_error_is_underlined(tmp_path: Path) -> None:
    file = tmp_path / "k.ttl"
    file.write_text("<urn:a> <urn:p> 1 .\n<urn:é> <urn:p> zz:c .\n", encoding="utf-8")
    assert mistake(file).splitlines() == [
        "error: The prefix zz: has not been declared",
        f" --> {file}:2:17",
        "  |",
        "2 | <urn:é> <urn:p> zz:c .",
        "  |                 ^^^^",
    ]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("nt", "<urn:a> <urn:p> .\n"),
        ("trig", "<urn:g> { <urn:a> "),
        ("rdf", "<rdf:RDF><oops></rdf:RDF>"),
        ("jsonld", '{"@id": "urn:a", '),
        ("ttl", b"<urn:a> <urn:p> '\xff' .".decode("latin-1")),
    ],
)
def test_broken_files_are_named(suffix: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"k.{suffix}"
    file.write_bytes(text.encode("latin-1"))
    assert str(file) in mistake(file)


def test_missing_file_unknown_suffix_empty_folder(tmp_path: Path) -> None:
    assert "cannot read the knowledge file" in mistake(tmp_path / "none.ttl")
    assert "No such file" in mistake(tmp_path / "none.ttl")
    (tmp_path / "k.txt").write_text("")
    told = mistake(tmp_path / "k.txt")
    assert "unknown suffix .txt" in told
    assert ".ttl, .turtle, .nt, .nq, .trig, .rdf, .owl, .xml, .jsonld" in told
    assert "has no knowledge in it" in mistake(tmp_path)


def test_unknown_level_and_format() -> None:
    with pytest.raises(Mistake, match="known: none, owl-rl, rdfs"):
        Knowledge.parse("", reasoning="x")
    with pytest.raises(Mistake, match="did you mean owl-rl"):
        Knowledge.load(reasoning="owlrl")
    with pytest.raises(Mistake, match="unknown format txt"):
        Knowledge.parse("", "txt")


def test_triples_about_triples_are_refused() -> None:
    with pytest.raises(Mistake, match="a triple that speaks of a triple"):
        known(":a :says <<( :b :p :c )>> .")


def test_imports_are_named_and_not_fetched() -> None:
    knowledge = known(
        "<urn:o> a owl:Ontology ; owl:imports <urn:missing>, <urn:here> . <urn:here> a owl:Ontology ."
    )
    (warning,) = knowledge.warnings
    assert warning.message == "<urn:o> imports <urn:missing>, which is not loaded"
    assert warning.severity == "warning"


def test_every_pattern_is_answered() -> None:
    knowledge = known(":a :p :b, :c . :b :p :c ; :q :c .", "none")
    everything = set(knowledge.match())
    assert len(everything) == len(knowledge) == knowledge.asserted == knowledge.closed == 4
    choices = [None, *map(iri, ("a", "b", "c", "p", "q", "nowhere"))]
    for s in choices:
        for p in choices:
            for o in choices:
                wanted = {
                    row
                    for row in everything
                    if all(w in (None, t) for w, t in zip((s, p, o), row, strict=True))
                }
                found = list(knowledge.match(s, p, o))
                assert len(found) == len(set(found))
                assert set(found) == wanted


def test_what_is_known() -> None:
    knowledge = known(":a :p :b . :p rdfs:range :C .")
    assert [name for name in ("a", "b", "p", "C", "z", "a") if knowledge.knows(iri(name))] == [
        "a",
        "b",
        "p",
        "C",
        "a",
    ]
    assert not known(":a :p :b .").knows(iri("p"))  # only ever a predicate
    assert not Knowledge.empty().knows(iri("a"))


def test_the_same_after_pickling() -> None:
    knowledge = known(":A rdfs:subClassOf :B . :x a :A . :i owl:inverseOf :p .", "owl-rl")
    again = pickle.loads(pickle.dumps(knowledge))
    assert list(again.match()) == list(knowledge.match())
    more = [(iri("y"), iri("p"), iri("x")), (iri("y"), iri("rdf:type"), iri("A"))]
    assert again.entails_with(more) == knowledge.entails_with(more)
    assert again.classes_below(iri("B")) == {iri("A"), iri("B")}


@pytest.mark.parametrize("reasoning", ["none", "rdfs", "owl-rl"])
def test_vocabulary_holds_at_any_reasoning(reasoning: str) -> None:
    knowledge = known(
        """:airflow rdfs:subPropertyOf :flow . :flow rdfs:subPropertyOf :measure .
        :debit owl:equivalentProperty :flow . :volume owl:sameAs :debit . :flow rdfs:subPropertyOf :airflow .
        :Office rdfs:subClassOf :Room . :Bureau owl:equivalentClass :Office . :Buro owl:sameAs :Bureau .""",
        reasoning,
    )
    assert {each.local for each in knowledge.properties_below(iri("measure"))} == {
        "measure",
        "flow",
        "airflow",
        "debit",
        "volume",
    }
    assert {each.local for each in knowledge.properties_below(iri("volume"))} == {
        "flow",
        "airflow",
        "debit",
        "volume",
    }
    assert {each.local for each in knowledge.classes_below(iri("Room"))} == {
        "Room",
        "Office",
        "Bureau",
        "Buro",
    }
    assert knowledge.properties_below(iri("nowhere")) == {iri("nowhere")}


def test_entities_by_value() -> None:
    knowledge = known(
        """:a :tag "A1" . :b :tag 7 . :c :tag "7" . :d :tag 7.0 . :e :name "Lobby"@en . :f :tag true .
        :g :at :a . :code rdfs:subPropertyOf :tag . :h :code "H" ."""
    )

    def names(property: str, value: Literal | Iri) -> list[str]:
        return [each.local for each in knowledge.entities_by(iri(property), value) if isinstance(each, Iri)]

    assert names("tag", Literal("A1")) == ["a"]
    assert names("tag", Literal("7", XSD + "integer")) == ["b", "d"]
    assert names("tag", Literal("7")) == ["c"]
    assert names("tag", Literal("1", XSD + "integer")) == []
    assert names("name", Literal("Lobby")) == ["e"]
    assert names("at", iri("a")) == ["g"]
    assert names("tag", Literal("H")) == ["h"]
    assert names("nowhere", Literal("H")) == []


def _bomb() -> str:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE rdf:RDF [<!ENTITY e0 "aaaaaaaaaa">{entities}]>' + RDF_XML.format("&e9;")


RDF_XML = (
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:x="urn:x:">'
    '<rdf:Description rdf:about="urn:a"><x:b>{}</x:b></rdf:Description></rdf:RDF>'
)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.rdf", _bomb(), "the entity e1 is more than a short text"),
        (
            "b.rdf",
            '<!DOCTYPE r [<!ENTITY e SYSTEM "/etc/passwd">]>' + RDF_XML.format("&e;"),
            "the entity e is",
        ),
        ("c.rdf", "<r>" * 20_000 + "</r>" * 20_000, "nested more than 500 deep"),
        ("d.jsonld", '{"@id":"urn:a","urn:b":' * 20_000 + '"x"' + "}" * 20_000, "nested more than 500 deep"),
        ("e.jsonld", "[" * 20_000 + "]" * 20_000, "nested more than 500 deep"),
        ("f.nt", f"<urn:a> <urn:b> {'<<( <urn:a> <urn:b> ' * 50_000}<urn:c>{' )>>' * 50_000} .", "50 deep"),
    ],
)
def test_what_would_end_the_process_is_a_mistake(tmp_path: Path, name: str, text: str, why: str) -> None:
    """The parser's library gives up, and the process with it, at entities of entities and at great depth."""
    (tmp_path / name).write_text(text)
    with pytest.raises(Mistake, match=why):
        Knowledge.load(tmp_path / name)


def test_entities_for_namespaces_and_braces_in_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.rdf").write_text('<!DOCTYPE r [<!ENTITY e "urn:c">]>' + RDF_XML.format("&e;"))
    (tmp_path / "b.jsonld").write_text('{"@id": "urn:a", "urn:b": "' + '[{\\"' * 2_000 + '"}')
    assert len(Knowledge.load(tmp_path / "a.rdf")) == 1
    assert len(Knowledge.load(tmp_path / "b.jsonld")) == 1
