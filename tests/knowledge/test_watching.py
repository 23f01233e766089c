"""Files that are edited while queries run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.knowledge.words import PREFIXES, SPACE, iri, triple

from kaicep.errors import Mistake
from kaicep.knowledge.closure import Change
from kaicep.knowledge.loading import KAI
from kaicep.knowledge.queries import operations, quads_of
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.terms import XSD, Triple
from kaicep.plan.time import parse_time

HEAD = f"PREFIX : <{SPACE}> PREFIX kai: <{KAI}> PREFIX xsd: <{XSD}>\n"


def write(file: Path, text: str) -> None:
    file.write_text(PREFIXES + text if file.suffix != ".ru" else HEAD + text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "campus.ttl", ":s1 :in :r1 . :s2 :in :r2 .")
    write(tmp_path / "schema.ttl", ":in <http://www.w3.org/2000/01/rdf-schema#range> :Room .")
    return tmp_path


def changed(files: KnowledgeFiles) -> tuple[set[Triple], set[Triple]]:
    change = files.poll()
    assert isinstance(change, Change), change
    return set(change.added), set(change.removed)


def mistake(files: KnowledgeFiles) -> str:
    found = files.poll()
    assert isinstance(found, Mistake), found
    return str(found)


def test_a_file_that_changes_comes_and_goes(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    assert files.knowledge.version == 0
    assert list(files.knowledge.match()) == list(Knowledge.load(folder).match())
    assert files.poll() is None
    write(folder / "campus.ttl", ":s1 :in :r2 . :s2 :in :r2 .")
    assert changed(files) == ({triple("s1 in r2")}, {triple("s1 in r1"), triple("r1 a Room")})
    assert files.poll() is None
    write(folder / "more.ttl", ":s3 :in :r2 . :s1 :in :r2 .")
    assert changed(files) == ({triple("s3 in r2")}, set())
    (folder / "campus.ttl").unlink()  # the other file still says where s1 is
    assert changed(files) == (set(), {triple("s2 in r2")})
    assert files.knowledge.version == 3
    assert files.poll() is None


def test_a_file_of_the_same_size_and_time(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    file = folder / "campus.ttl"
    stamp = file.stat()
    write(file, ":s1 :in :r9 . :s2 :in :r2 .")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert triple("s1 in r9") in changed(files)[0]


def test_a_file_that_is_only_touched(folder: Path) -> None:
    files = KnowledgeFiles([folder / "campus.ttl"])
    os.utime(folder / "campus.ttl", (1, 1))
    assert files.poll() is None
    assert files.poll() is None
    # Once it has settled, a look does not read it: only its stamp tells.
    write(folder / "campus.ttl", ":s1 :in :r9 . :s2 :in :r2 .")
    os.utime(folder / "campus.ttl", (1, 1))
    assert files.poll() is None
    os.utime(folder / "campus.ttl", (2, 2))
    assert triple("s1 in r9") in changed(files)[0]


def test_an_invalid_file_is_told_once_and_the_old_one_stays(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    write(folder / "campus.ttl", ":s1 :in")
    write(folder / "more.ttl", ":s3 :in :r3 .")
    told = mistake(files)
    assert "campus.ttl:2" in told
    assert files.knowledge.version == 0
    assert files.knowledge.holds(triple("s1 in r1"))
    # The other file is followed all the same.
    assert changed(files) == ({triple("s3 in r3"), triple("r3 a Room")}, set())
    assert files.poll() is None
    assert files.poll() is None
    write(folder / "campus.ttl", ":s1 :in :")
    write(folder / "schema.ttl", "oops")
    assert "schema.ttl" in mistake(files)
    assert files.poll() is None
    write(folder / "campus.ttl", ":s1 :in :r1 .")
    assert changed(files) == (set(), {triple("s2 in r2"), triple("r2 a Room")})
    write(folder / "schema.ttl", "")
    assert triple("r1 a Room") in changed(files)[1]
    assert files.poll() is None


def test_mended_to_what_it_was(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    text = (folder / "campus.ttl").read_text()
    for _ in range(2):
        (folder / "campus.ttl").write_text("oops")
        assert "campus.ttl" in mistake(files)
        (folder / "campus.ttl").write_text(text)
        assert files.poll() is None
    assert files.knowledge.version == 0


def test_a_named_file_that_is_gone(folder: Path) -> None:
    files = KnowledgeFiles([folder / "campus.ttl", folder / "schema.ttl"])
    text = (folder / "campus.ttl").read_text()
    (folder / "campus.ttl").unlink()
    assert "cannot read the knowledge file" in mistake(files)
    assert files.poll() is None
    assert files.knowledge.holds(triple("s1 in r1"))
    (folder / "campus.ttl").write_text(text)
    assert files.poll() is None
    with pytest.raises(Mistake, match="unknown suffix"):
        KnowledgeFiles([folder / "campus.ttl", Path(__file__)])
    with pytest.raises(Mistake, match="unknown reasoning"):
        KnowledgeFiles([folder], "magic")


def test_blank_nodes_stay_the_same(folder: Path) -> None:
    write(folder / "blank.ttl", "[] :p 1 . [] :p 2 .")
    write(folder / "other.ttl", "[] :p 1 .")
    files = KnowledgeFiles([folder])
    before = set(files.knowledge.match(None, iri("p")))
    write(folder / "blank.ttl", "[] :p 1 . [] :p 2 . [] :p 3 . ")
    added, removed = changed(files)
    assert len(added) == 1
    assert not removed
    write(folder / "blank.ttl", "[] :p 1 . [] :p 2 .")
    assert changed(files) == (set(), added)
    assert set(files.knowledge.match(None, iri("p"))) == before


def test_what_an_update_said_stays(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    files.knowledge.update([triple("s1 in r7")], [triple("s2 in r2")])
    write(folder / "campus.ttl", ":s1 :in :r1 . :s2 :in :r2 . :s3 :in :r2 .")
    assert changed(files)[0] == {triple("s3 in r2"), triple("r2 a Room")}
    assert files.knowledge.holds(triple("s1 in r7"))
    assert not files.knowledge.holds(triple("s2 in r2"))


def test_validity_in_another_file(folder: Path) -> None:
    write(folder / "g.trig", "GRAPH :g { :s9 :in :r9 . }")
    files = KnowledgeFiles([folder])
    assert files.knowledge.holds(triple("s9 in r9"))
    edge = '"1970-01-01T00:00:01Z"^^xsd:dateTime'
    write(folder / "when.ttl", f":g <{KAI}validFrom> {edge} .")
    assert triple("s9 in r9") in changed(files)[1]
    assert files.knowledge.at(1_000_000).holds(triple("r9 a Room"))
    assert not files.knowledge.at(999_999).knows(iri("r9"))
    write(folder / "when.ttl", f":g <{KAI}validFrom> 5 .")
    assert "the validity of the graph" in mistake(files)
    assert files.poll() is None
    write(folder / "more.ttl", ":s3 :in :r3 .")  # with that, it is another attempt
    assert "the validity of the graph" in mistake(files)
    assert files.poll() is None
    assert files.knowledge.epochs == (1_000_000,)
    write(folder / "when.ttl", "")
    assert {triple("s9 in r9"), triple("s3 in r3")} <= changed(files)[0]
    assert files.knowledge.epochs == ()


def test_an_update_file_is_applied_once(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    write(folder / "move.ru", "DELETE DATA { :s1 :in :r1 } ;\nINSERT DATA { :s1 :in :r3 , [] } # moved")
    added, removed = changed(files)
    assert removed == {triple("s1 in r1"), triple("r1 a Room")}
    assert {triple("s1 in r3"), triple("r3 a Room")} < added
    assert len(added) == 4
    assert files.knowledge.version == 1
    assert files.poll() is None
    (folder / "move.ru").unlink()
    assert files.poll() is None
    assert files.knowledge.holds(triple("s1 in r3"))


def test_an_update_finds_what_follows(folder: Path) -> None:
    write(folder / "move.ru", "DELETE { ?s :in ?r } INSERT { ?s :in :hall } WHERE { ?s :in ?r . ?r a :Room }")
    files = KnowledgeFiles([folder])
    assert files.knowledge.version == 0
    assert set(files.knowledge.match(None, iri("in"))) == {triple("s1 in hall"), triple("s2 in hall")}
    write(folder / "move.ru", "DELETE WHERE { ?s :in :hall } ; INSERT { :s5 :in ?r } WHERE { ?r a :Room }")
    assert changed(files) == (set(), set(map(triple, ("s1 in hall", "s2 in hall", "hall a Room"))))
    write(folder / "move.ru", "DELETE DATA { :a :b :c }")
    change = files.poll()
    assert isinstance(change, Change)
    assert change.missing == {triple("a b c")}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("LOAD <http://localhost/x>", "LOAD is not possible"),
        ("CLEAR ALL", "CLEAR is not possible"),
        ("DROP DEFAULT", "DROP is not possible"),
        ("WITH :g DELETE { ?s ?p ?o } WHERE { ?s ?p ?o }", "WITH is not possible"),
        ("DELETE { ?s ?p ?o } USING :g WHERE { ?s ?p ?o }", "USING is not possible"),
        ("DELETE { graph ?g { :a :p :b } } WHERE { graph ?g { :a :p :c } }", "is named, not found"),
        ("INSERT { :a :p ?o } WHERE { SERVICE <http://localhost/> { ?s ?p ?o } }", "SERVICE is not possible"),
        (r"INSERT DATA { :a :it\'s :b } ; LOAD <http://localhost/'>", "LOAD is not possible"),
        (r"INSERT DATA { :a :p :b \u007D ; LOAD <http://localhost/>", "is not possible"),
        ("INSERT DATA { :a :p }", "update.ru:2:21"),
        ("INSERT DATA { :a :p :b", "update.ru:2"),
        ("DELETE DATA { [] :p :b }", "update.ru:2"),
    ],
)
def test_what_an_update_file_may_not_say(text: str, told: str, folder: Path) -> None:
    files = KnowledgeFiles([folder])
    write(folder / "update.ru", text)
    assert told in mistake(files)
    assert files.poll() is None
    assert files.knowledge.version == 0
    write(folder / "update.ru", "INSERT DATA { :s7 :in :r1 }")
    assert changed(files) == ({triple("s7 in r1")}, set())


def test_words_inside_texts_are_no_keywords() -> None:
    (only,) = operations("INSERT DATA { <urn:a> <urn:graph> \"} GRAPH { é\" , '''; LOAD''' }", "<update>")
    assert only.add.count("LOAD") == 1


PATCH = f"""
H id <urn:uuid:1> .
TX .
PA "" "{SPACE}" .
D :s1 :in :r1 .
A :s1 :in :r2 .   # moved
A :s3 :in <{SPACE}r3> .
TC .
TX .
A :s4 :in :r4 .
TA .
A :s3 :in :r5 .
D :s3 :in :r5 .
"""


def test_an_rdf_patch_is_applied_once_and_in_its_order(folder: Path) -> None:
    files = KnowledgeFiles([folder])
    (folder / "change.rdfp").write_text(PATCH)
    added, removed = changed(files)
    assert {triple("s1 in r2"), triple("s3 in r3")} <= added
    assert triple("s1 in r1") in removed
    assert not {each for each in added if each[2] in (iri("r4"), iri("r5"))}
    assert files.poll() is None


GRAPHS = f"""
    @prefix kai: <{KAI}> .
    :old kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
    :s1 :in :r1 . :old {{ :s1 :in :r1 . :s2 :in :r2 . }} :plan {{ :s3 :in :r3 . }}
"""
TUESDAY = parse_time("2012-05-08") or 0


def with_graphs(folder: Path) -> KnowledgeFiles:
    (folder / "campus.ttl").unlink()
    write(folder / "graphs.trig", GRAPHS)
    return KnowledgeFiles([folder])


def stated(knowledge: Knowledge, text: str, ts: int = TUESDAY) -> bool:
    return knowledge.at(ts).holds(triple(text))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (
            "change.ru",
            """DELETE DATA { GRAPH :old { :s1 :in :r1 } GRAPH :plan { :s2 :in :r2 } } ;
            INSERT DATA { GRAPH :old { :s4 :in :r4 } . :s5 :in :r5 } ;
            DELETE { GRAPH :plan { ?s :in ?r } } INSERT { GRAPH :old { ?s :in ?r } }
            WHERE { GRAPH :plan { ?s :in ?r } }""",
        ),
        (
            "change.rdfp",
            f"""TX .\nPA "" "{SPACE}" .\nD :s1 :in :r1 :old .\nD :s2 :in :r2 :plan .
A :s4 :in :r4 :old .\nA :s5 :in :r5 .\nD :s3 :in :r3 <{SPACE}plan> .\nA :s3 :in :r3 :old .\nTC .""",
        ),
    ],
)
def test_changes_of_named_graphs(folder: Path, name: str, change: str) -> None:
    files = with_graphs(folder)
    knowledge = files.knowledge
    write(folder / name, change) if name.endswith("ru") else (folder / name).write_text(change)
    found = files.poll()
    assert isinstance(found, Change)
    assert found.missing == {triple("s2 in r2")}  # it is in another graph
    assert stated(knowledge, "s1 in r1")  # the default graph has it still
    assert stated(knowledge, "s5 in r5")
    # What stands in a graph holds as long as the graph does.
    for each in ("s2 in r2", "s3 in r3", "s4 in r4"):
        assert stated(knowledge, each, TUESDAY - 1)
        assert not stated(knowledge, each)


def test_the_validity_of_a_graph_changes(folder: Path) -> None:
    files = with_graphs(folder)
    date = 'kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime'
    write(folder / "a.ru", f"DELETE DATA {{ :old {date} }} ; INSERT DATA {{ :plan {date} }}")
    files.poll()
    assert stated(files.knowledge, "s2 in r2")
    assert not stated(files.knowledge, "s3 in r3")
    assert stated(files.knowledge, "s3 in r3", TUESDAY - 1)
    write(folder / "b.ru", 'INSERT DATA { :plan kai:validTo "2013-01-01T00:00:00Z"^^xsd:dateTime }')
    assert "two times" in mistake(files)
    assert not stated(files.knowledge, "s3 in r3")


@pytest.mark.parametrize(
    "update",
    [
        "INSERT DATA { _:new :in :r3 GRAPH :plan { _:new a :Spare } GRAPH :more { _:new a :Lamp } }",
        (
            "INSERT { _:new :in ?r GRAPH :plan { _:new a :Spare } GRAPH :more { _:new a :Lamp } }"
            " WHERE { GRAPH :plan { ?s :in ?r } }"
        ),
    ],
)
def test_a_blank_node_is_one_node_in_all_graphs_of_an_update(folder: Path, update: str) -> None:
    files = with_graphs(folder)
    write(folder / "a.ru", update)
    files.poll()
    about = {(quad.subject, quad.object.value) for quad in quads_of(files.knowledge)}
    for kind in ("Spare", "Lamp"):
        ((node, _),) = (each for each in about if each[1] == SPACE + kind)
        assert (node, f"{SPACE}r3") in about


def test_a_statement_that_another_graph_has_now_is_a_change(folder: Path) -> None:
    files = with_graphs(folder)
    write(folder / "a.ru", "INSERT DATA { GRAPH :plan { :s1 :in :r1 } }")
    assert changed(files) == ({triple("s1 in r1")}, {triple("s1 in r1")})
    assert files.knowledge.version == 1
    write(folder / "graphs.trig", GRAPHS.replace(":s1 :in :r1 . :old", ":old"))
    files.poll()
    assert not stated(files.knowledge, "s1 in r1")  # the file says again where it stands


@pytest.mark.parametrize(
    "line",
    [
        "A <urn:a> <urn:p> .",
        "A <urn:a> <urn:p> <urn:b> _:g .",
        "A <urn:a> <urn:p> <urn:b> <urn:g> <urn:h> .",
        "D _:b <urn:p> 1 .",
        "X <urn:a>",
        "A } ; {",
    ],
)
def test_what_an_rdf_patch_may_not_say(folder: Path, line: str) -> None:
    files = KnowledgeFiles([folder])
    (folder / "change.rdfp").write_text(f"H version 1 .\n{line}\n")
    assert "change.rdfp:2:1" in mistake(files)
    assert files.poll() is None
