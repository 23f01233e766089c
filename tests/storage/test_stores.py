"""Archive, knowledge, matches and states on a store, by URI; and nothing is ever a folder called `s3:`."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from tests.spark.deployed import described, laid_out, rows
from typer.testing import CliRunner

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import TableShape
from kaicep.archive.stream_table import compact, expire
from kaicep.cli.main import app
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.plan.types import Type
from kaicep.storage.places import StorePath, local_path, place_of

QUERY = "SELECT ?e.x FROM (?e, meter) FILTER (?e.x > 7)"


# --- places ---


def test_a_scheme_of_no_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("nonsense://a", Path("nonsense://a"), "ftp://host/a", "s3n://bucket/a"):
        with pytest.raises(Mistake, match="there is no store for"):
            Archive(given)
    with pytest.raises(Mistake, match="no bucket or host is named"):
        Archive("s3://")
    with pytest.raises(Mistake, match="must be on a disk of this machine"):
        local_path("gs://bucket/state", "state")
    assert list(tmp_path.iterdir()) == []


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    uri = (tmp_path / "my archive").as_uri()
    assert place_of(uri, "x") == place_of(Path(uri), "x") == tmp_path / "my archive"


def test_a_place_on_a_store_is_a_path() -> None:
    place = place_of(Path("s3://bucket/a b"), "x")
    below = Path("/home") / place / "c.parquet"
    assert isinstance(below, StorePath)
    assert str(below) == f"{below}" == below.as_posix() == "s3://bucket/a b/c.parquet"
    assert (below.parent, below.name, below.absolute()) == (place, "c.parquet", below.resolve())
    assert str(below.relative_to(place)) == "c.parquet"
    assert str(pickle.loads(pickle.dumps(below))) == str(below)
    for use in (os.fspath, open, os.mkdir):
        with pytest.raises(TypeError, match="is on a store"):
            use(below)  # type: ignore[operator]
    with pytest.raises(OSError, match="is not renamed"):
        below.rename(place)
    with pytest.raises(OSError, match="is not opened with w"):
        below.open("w")


def test_a_deployment_is_refused_at_the_line(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    source = 'source = {kind = "files", path = "s3://bucket/s.jsonl"}'
    sink = '[sinks.all]\nkind = "files"\npath = "s3://bucket/m.jsonl"'
    storage = '[storage]\noptions = {AWS_SECRET_ACCESS_KEY_env = "KAICEP_NO_SUCH"}'
    text = f'state = "s3://bucket/state"\n[archive]\nfolder = "ftp://b/a"\n[streams.s]\n{source}\n{sink}\n{storage}\n'
    (tmp_path / "kaicep.toml").write_text(text)
    with pytest.raises(Mistake) as found:
        load_config(tmp_path / "kaicep.toml")
    said = {line.strip() for line in str(found.value).splitlines()}
    assert "error: state s3://bucket/state: this must be on a disk of this machine" in said
    assert "error: folder ftp://b/a: there is no store for ftp" in said
    assert "error: stream s: path: s3://bucket/s.jsonl: this must be on a disk of this machine" in said
    assert "error: sink all: path: s3://bucket/m.jsonl: this must be on a disk of this machine" in said
    assert "error: storage: the environment variable KAICEP_NO_SUCH is not set" in said
    for line in (1, 3, 5, 8, 10):
        assert any(each.startswith(f"--> {tmp_path / 'kaicep.toml'}:{line}:") for each in said)


# --- on a store ---


@pytest.mark.servers
def test_files_on_a_store(bucket: str) -> None:
    folder = place_of(f"{bucket}/some", "x")
    assert not folder.exists()
    assert (list(folder.iterdir()), list(folder.glob("*"))) == ([], [])
    (folder / "below").mkdir(parents=True)
    (folder / "a.ttl").write_bytes(b"one")
    (folder / "below" / "b.ttl").write_bytes(b"two")
    assert sorted(each.name for each in folder.iterdir()) == ["a.ttl", "below"]
    assert [str(each) for each in folder.glob("*.ttl")] == [f"{bucket}/some/a.ttl"]
    assert [each.read_text() for each in folder.glob("*/*.ttl")] == ["two"]
    assert (folder.is_dir(), folder.is_file(), (folder / "a.ttl").is_file()) == (True, False, True)
    assert (folder / "a.ttl").stat().st_size == 3
    (folder / "a.ttl").write_bytes(b"three")
    assert (folder / "a.ttl").read_bytes() == b"three"
    (folder / "a.ttl").unlink()
    (folder / "a.ttl").unlink(missing_ok=True)
    for gone in ((folder / "a.ttl").unlink, (folder / "a.ttl").read_bytes, (folder / "a.ttl").stat):
        with pytest.raises(FileNotFoundError):
            gone()


def some(first: int, after: int) -> list[Event]:
    return [Event("meter", 0, seq, seq * 1_000_000, {"x": seq}) for seq in range(first, after)]


@pytest.mark.servers
def test_an_archive_on_a_store(bucket: str) -> None:
    archive = Archive(f"{bucket}/archive")
    assert archive.streams() == []
    table = archive.made("meter", TableShape((("x", Type.INT64),)))
    other = archive.stream("meter")
    table.append(some(0, 10), {0: (0, 10)})
    assert other.append(some(5, 12), {0: (5, 12)}).rows == 2  # another writer was quicker: it looks again
    table.append(some(10, 14), {0: (10, 14)})
    assert archive.streams() == ["meter"]
    assert list(Archive(f"{bucket}/archive").snapshot().events("meter")) == some(0, 14)
    assert len(compact(archive.stream("meter")).after) == 1
    assert expire(archive.stream("meter"), 4_000_000).removed == 4
    assert list(archive.snapshot().events("meter")) == some(4, 14)
    letter = {"stream": "meter", "part": 0, "seq": 3, "line": 4, "file": "f", "reason": "r", "record": "x"}
    assert archive.dead_letters.append("meter", [letter], {0: (0, 4)}) == 1
    assert archive.dead_letters.append("meter", [letter], {0: (0, 4)}) == 0
    assert archive.dead_letters.read() == [letter]
    assert (list(archive.damages()), archive.mend()) == ([], [])
    for each in (place_of(f"{bucket}/archive", "x") / "meter").glob("*.parquet"):
        each.write_bytes(b"not what it was")
    assert any("cannot read" in problem for _, problem in archive.damages())


@pytest.mark.servers
def test_the_commands_take_uris(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    Path("big.chi").write_text(QUERY)
    Path("meter.jsonl").write_text("".join(json.dumps({"ts": at, "x": at}) + "\n" for at in range(12)))
    found = []
    for archive in ("here", f"{bucket}/there"):
        run = CliRunner().invoke(app, ["ingest", "--stream", "meter=meter.jsonl", "--archive", archive])
        assert run.exit_code == 0, run.output
        run = CliRunner().invoke(
            app, ["query", "big.chi", "--archive", archive, "--now", "1970-01-01T00:00:00Z"]
        )
        assert run.exit_code == 0, run.output
        found.append(run.stdout)
        assert CliRunner().invoke(app, ["archive", "status", archive]).exit_code == 0
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["big.chi", "here", "meter.jsonl"]


def on_a_store(folder: Path, bucket: str, s3: dict[str, str], engine: str = "", follow: bool = False) -> Path:
    """The small deployment with everything that can be there on a store."""
    described(folder, follow, engine, "20s")
    toml = (folder / "kaicep.toml").read_text()
    options = ", ".join(f'{name} = "{value}"' for name, value in s3.items() if "SECRET" not in name)
    toml = toml.replace('folder = "archive"', f'folder = "{bucket}/archive"')
    toml = toml.replace('"knowledge/*.ttl"', f'"{bucket}/knowledge/*.ttl"')
    toml = toml.replace('path = "sunk"', f'path = "{bucket}/sunk"')
    toml += f'[storage]\noptions = {{{options}, AWS_SECRET_ACCESS_KEY_env = "SOME_KEY"}}\n'
    (folder / "kaicep.toml").write_text(toml)
    for each in (folder / "knowledge").glob("*.ttl"):
        place_of(f"{bucket}/knowledge/{each.name}", "x").write_bytes(each.read_bytes())
    return folder / "kaicep.toml"


@pytest.mark.servers
@pytest.mark.parametrize("engine", ["inprocess", pytest.param("spark", marks=[pytest.mark.spark])])
def test_a_deployment_on_a_store(
    engine: str,
    bucket: str,
    s3: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Archive, knowledge, matches, states: what comes out is what comes out on this disk."""
    monkeypatch.setenv("SOME_KEY", s3["AWS_SECRET_ACCESS_KEY"])
    local, folder = tmp_path / "local", tmp_path / "stored"
    laid_out(local, lateness="20s")
    Deployment(load_config(local / "kaicep.toml")).run()
    wanted = rows(local / "sunk")
    assert len({each["query"] for each in wanted}) == 7
    laid_out(folder)
    if engine == "spark":
        from kaicep.deployment import spark_step
        from kaicep.deployment.on_spark import SparkDeployment

        request.getfixturevalue("spark")
        monkeypatch.setattr(spark_step, "SMALL", 0)
        engine = f'[engine]\nkind = "spark"\nbuckets = 2\ncheckpoint = "{bucket}/checkpoint"'
        toml = on_a_store(folder, bucket, s3, engine)
        SparkDeployment(load_config(toml)).run()
        assert rows(place_of(f"{bucket}/checkpoint/matches", "x")) == wanted
        assert not (folder / "state" / "matches").exists()
    else:
        Deployment(load_config(on_a_store(folder, bucket, s3))).run()
    assert rows(place_of(f"{bucket}/sunk", "x")) == wanted
    assert {each.name for each in folder.iterdir()} == {
        "air",
        "annotations",
        "kaicep.toml",
        "knowledge",
        "queries",
        "state",
    }
