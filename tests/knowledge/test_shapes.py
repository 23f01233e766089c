"""Shapes of the knowledge, tested when it is loaded and when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers import need

from kaicep.errors import Mistake
from kaicep.knowledge.closure import Change
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.terms import Iri

need("pyshacl")
from kaicep.knowledge.watching import shapes_of  # noqa: E402

SHAPES = """
    @prefix sh: <http://www.w3.org/ns/shacl#> . @prefix : <urn:k:> .
    :PointShape a sh:NodeShape ; sh:targetClass :Point ;
        sh:property [ sh:path :in ; sh:minCount 1 ; sh:maxCount 1 ; sh:message "a point is in one room" ] .
"""
GOOD = """
    @prefix : <urn:k:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Sensor rdfs:subClassOf :Point . :s1 a :Sensor ; :in :r1 .
"""
BAD = GOOD + " :s2 a :Sensor . :s1 :in :r9 ."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "points.ttl").write_text(SHAPES)
    (tmp_path / "campus.ttl").write_text(GOOD)
    return tmp_path


def opened(folder: Path, refuse: bool) -> KnowledgeFiles:
    return KnowledgeFiles([folder / "campus.ttl"], validate=shapes_of([folder / "shapes"]), refuse=refuse)


def rooms(files: KnowledgeFiles) -> list[str]:
    return sorted(row[2].local for row in files.knowledge.match(None, Iri("urn:k:in"), None))


def test_violations_are_warnings(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(folder, refuse=False)
    assert not files.violations
    (folder / "campus.ttl").write_text(BAD)
    assert isinstance(files.poll(), Change)
    assert rooms(files) == ["r1", "r9"]
    assert [each.message for each in files.violations] == [
        "<urn:k:s1>, <urn:k:in>: a point is in one room",
        "<urn:k:s2>, <urn:k:in>: a point is in one room",
    ]
    assert caplog.text.count("violates its shapes") == 2


def test_violations_are_refused(folder: Path) -> None:
    files = opened(folder, refuse=True)
    (folder / "campus.ttl").write_text(BAD)
    found = files.poll()
    assert isinstance(found, Mistake)
    assert "a point is in one room" in str(found)
    assert files.poll() is None
    assert (rooms(files), files.knowledge.version) == (["r1"], 0)
    (folder / "campus.ttl").write_text(GOOD.replace("r1", "r2"))
    assert isinstance(files.poll(), Change)
    assert (rooms(files), files.knowledge.version) == (["r2"], 1)


def test_knowledge_that_begins_with_a_violation_is_refused(folder: Path) -> None:
    (folder / "campus.ttl").write_text(BAD)
    with pytest.raises(Mistake, match="a point is in one room"):
        opened(folder, refuse=True)


def test_shapes_that_are_none(folder: Path) -> None:
    (folder / "shapes" / "points.ttl").write_text("nonsense")
    with pytest.raises(Mistake, match=r"points\.ttl"):
        opened(folder, refuse=True)
