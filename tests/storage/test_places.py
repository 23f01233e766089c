"""What somebody writes as a place never becomes a folder called `s3:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaicep.archive.archive import Archive
from kaicep.endtoend.config import load_config
from kaicep.errors import Mistake
from kaicep.storage.places import local_path


@pytest.mark.parametrize(
    "place", ["s3://bucket/a", "abfss://x@y/a", "gs://b/a", "hdfs://n/a", "nonsense://a"]
)
def test_a_store_that_cannot_be_reached_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (place, Path(place)):
        with pytest.raises(Mistake, match="there is no store for"):
            Archive(given)
    assert list(tmp_path.iterdir()) == []


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    uri = (tmp_path / "my archive").as_uri()
    assert local_path(uri, "x") == local_path(Path(uri), "x") == tmp_path / "my archive"


def test_a_deployment_is_refused_at_the_line(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    source = 'source = {kind = "files", path = "s.jsonl"}'
    text = f'state = "s3://bucket/state"\n[archive]\nfolder = "gs://b/a"\n[streams.s]\n{source}\n'
    (tmp_path / "kaicep.toml").write_text(text)
    with pytest.raises(Mistake) as found:
        load_config(tmp_path / "kaicep.toml")
    said = str(found.value)
    assert "kaicep.toml:1:1" in said
    assert "there is no store for s3" in said
    assert "kaicep.toml:3:1" in said
