"""Knowledge that a SPARQL server keeps: Apache Jena Fuseki, as it is."""

from __future__ import annotations

import time

import pytest

from kaicep.errors import Mistake
from kaicep.knowledge.watching import Copy, Endpoint, KnowledgeFiles
from kaicep.plan.terms import Iri

FIRST = """
    INSERT DATA {
        <urn:s1> <urn:in> <urn:r1> ; <urn:has> [ <urn:size> 7.50 ] .
        GRAPH <urn:plan> { <urn:s2> <urn:in> <urn:r2> }
        GRAPH <urn:then> { <urn:s3> <urn:in> <urn:r3> }
        <urn:then> <https://kaicep.org/ns#validTo>
            "2012-05-08T00:00:00Z"^^<http://www.w3.org/2001/XMLSchema#dateTime> .
    }"""
MOVE = "DELETE DATA { <urn:s1> <urn:in> <urn:r1> } ; INSERT DATA { <urn:s1> <urn:in> <urn:r9> }"


def rooms(files: KnowledgeFiles, at: int | None = None) -> list[str]:
    knowledge = files.knowledge if at is None else files.knowledge.at(at)
    return sorted(room.value for _, _, room in knowledge.match(None, Iri("urn:in"), None))


def polled(files: KnowledgeFiles):
    """The next change, however long the server takes."""
    deadline = time.monotonic() + 60
    while (change := files.poll()) is None:
        assert time.monotonic() < deadline, files.trouble
        time.sleep(0.01)
    return change


@pytest.mark.servers
def test_what_a_server_has_is_known_and_followed(fuseki, tmp_path, caplog):
    fuseki.start()
    fuseki.update(FIRST)
    everything = Copy.begun(Endpoint(fuseki.url), tmp_path / "all")
    files = KnowledgeFiles([], "rdfs", [everything])
    assert rooms(files) == ["urn:r1", "urn:r2"]
    assert rooms(files, 0) == ["urn:r1", "urn:r2", "urn:r3"]  # graphs have their names, and their times
    assert len(files.knowledge.epochs) == 1

    graph = Copy.begun(Endpoint(fuseki.url, graph="urn:plan"), tmp_path / "graph")
    assert rooms(KnowledgeFiles([], "rdfs", [graph])) == ["urn:r2"]
    made = Endpoint(fuseki.url, construct="PREFIX : <urn:> CONSTRUCT {?r :in :site} WHERE {?s :in ?r}")
    assert rooms(KnowledgeFiles([], "rdfs", [Copy.begun(made, tmp_path / "made")])) == ["urn:site"]

    fuseki.update(MOVE)
    files.notify()
    assert sorted(row[2].value for row in polled(files).added) == ["urn:r9"]
    assert rooms(files) == ["urn:r2", "urn:r9"]
    assert files.trouble is None

    fuseki.stop()
    files.notify()
    deadline = time.monotonic() + 60
    while files.trouble is None and time.monotonic() < deadline:
        assert files.poll() is None
        time.sleep(0.01)
    assert "cannot be reached" in (files.trouble or "")
    assert rooms(files) == ["urn:r2", "urn:r9"]

    again = KnowledgeFiles([], "rdfs", [Copy.begun(Endpoint(fuseki.url), tmp_path / "all")])
    assert rooms(again) == ["urn:r2", "urn:r9"]
    assert "continuing with its answer of" in caplog.text
    assert again.trouble is not None

    fuseki.start()  # without its data, which it kept in memory
    fuseki.update(FIRST)
    again.notify()
    assert polled(again).version == 1
    assert rooms(again) == ["urn:r1", "urn:r2"]
    while again.trouble is not None:  # the thread says so after it has written the file
        assert time.monotonic() < deadline + 60
        time.sleep(0.01)


def test_the_first_start_needs_the_server(tmp_path):
    with pytest.raises(Mistake, match="cannot be reached"):
        Copy.begun(Endpoint("http://user:secret@127.0.0.1:9/ds"), tmp_path)


def test_a_password_is_never_shown(tmp_path):
    with pytest.raises(Mistake) as raised:
        Copy.begun(Endpoint("http://user:secret@127.0.0.1:9/ds"), tmp_path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("file:///etc/passwd"), "is no address"),
        (Endpoint("http://h/ds", "urn:g", "CONSTRUCT {?s ?p ?o} WHERE {?s ?p ?o}"), "leave one of them out"),
        (Endpoint("http://h/ds", "urn:g> {} GRAPH <urn:h"), "is no IRI"),
        (Endpoint("http://h/ds", construct="SELECT * {?s ?p ?o}"), "begins with CONSTRUCT"),
    ],
)
def test_what_is_wrong_with_an_endpoint(endpoint, said):
    assert said in (endpoint.problem() or "")


def test_what_is_right_with_one():
    text = "PREFIX : <urn:> # ours\nCONSTRUCT {?s :in ?r} WHERE {?s :in ?r}"
    assert Endpoint("https://h:1/ds?x=1", construct=text).problem() is None
