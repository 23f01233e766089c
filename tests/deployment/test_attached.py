"""The history of a stream in a table that is there already: read where it is, known by file or by columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.errors import Mistake
from kaicep.ingest.files import ingest

PAIR = """SELECT ?a.n AS n, ?b.n AS m, ?b.kind FROM (?a, meter), (?b, meter) WITHIN [, )
    WHERE JOIN (?b.n > ?a.n) SEQ (?a, ?b) WINDOW (?a, ?b, 4s)"""


def record(at: int) -> dict[str, Any]:
    return {"ts": at, "n": at * 7 % 10, "kind": "ab"[at % 2]}


def history(first: int, after: int, **more: Any) -> pyarrow.Table:
    rows = [record(at) for at in range(first, after)]
    times = pyarrow.array([each["ts"] * 1_000_000 for each in rows], pyarrow.timestamp("us", "UTC"))
    columns = {"n": [each["n"] for each in rows], "kind": [each["kind"] for each in rows]}
    return pyarrow.table({"ts": times, **columns, **more})


def deployed(folder: Path, stream: str, live: range, engine: str = "") -> Path:
    """A deployment with a live file beside its history; the path of what describes it."""
    (folder / "queries").mkdir(parents=True)
    (folder / "queries" / "pair.chi").write_text(PAIR)
    (folder / "meter.jsonl").write_text("".join(json.dumps(record(at)) + "\n" for at in live))
    toml = f"""state = "state"
{engine}
[streams.meter]
lateness = "0s"
source = {{kind = "files", path = "meter.jsonl"}}
{stream}
[sinks.all]
kind = "files"
path = "all.jsonl"
"""
    (folder / "kaicep.toml").write_text(toml)
    return folder / "kaicep.toml"


def matches(folder: Path) -> list[str]:
    return sorted((folder / "all.jsonl").read_text().splitlines())


def events_in(archive: Archive) -> int:
    """How many events the archive has, read anew."""
    return len(list(Archive(archive.folder).snapshot().events("meter")))


def taken(folder: Path) -> list[str]:
    """The matches where the files of `folder / "again"` were taken into the archive as history."""
    own = folder / "taken"
    toml = deployed(own, "", range(20, 30))
    ingest(Archive(own / "state" / "archive"), Form("meter"), folder / "again", history=True)
    Deployment(load_config(toml)).run()
    return matches(own)


def test_files_of_a_delta_table_are_parts(tmp_path: Path) -> None:
    """The same bytes as if its files had been taken in as history; and nothing is copied."""
    for first in (0, 10):
        write_deltalake(tmp_path / "lake", history(first, first + 10), mode="append")
    toml = deployed(tmp_path / "run", 'table = "../lake"', range(20, 30))
    deployment = Deployment(load_config(toml))
    deployment.run()
    (tmp_path / "again").mkdir()
    for each in DeltaTable(tmp_path / "lake").file_uris():
        (tmp_path / "again" / Path(each).name).write_bytes(Path(each).read_bytes())
    wanted = taken(tmp_path)
    assert matches(tmp_path / "run") == wanted
    assert len(wanted) > 20
    table = deployment.archive.stream("meter")
    assert sum(each.rows for each in table.table.files()) == 10
    assert deployment.status()["archive"]["events"] == 30
    table.table.vacuum(0)
    assert events_in(deployment.archive) == 30
    # A second run looks at no other table, and what was appended to it meanwhile is no history.
    write_deltalake(tmp_path / "lake", history(0, 5), mode="append")
    again = Deployment(load_config(toml))
    assert again.archive.stream("meter").attached == table.attached
    again.close()


def test_columns_say_where_the_source_goes_on(tmp_path: Path) -> None:
    """A table with part and offset is the beginning of the live source, which is read from there on."""
    seq = pyarrow.array(range(12), pyarrow.int64())
    whole = history(0, 12, shard=pyarrow.array([0] * 12), offset=seq)
    write_deltalake(tmp_path / "lake", whole, partition_by=["kind", "shard"])
    stream = 'table = "../lake"\nidentity = ["shard", "offset"]'
    deployment = Deployment(load_config(deployed(tmp_path / "run", stream, range(25))))
    deployment.run()
    assert sum(each.rows for each in deployment.archive.stream("meter").table.files()) == 13
    Deployment(load_config(deployed(tmp_path / "plain", "", range(25)))).run()
    assert matches(tmp_path / "run") == matches(tmp_path / "plain")
    assert len(matches(tmp_path / "run")) > 20


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ('table = "../none"', "there are no Parquet files"),
        ('table = "../lake"\nidentity = ["shard", "offest"]', "there is no column shard"),
        ('table = "sales.meter"', "is a table of Spark's catalog"),
        ('identity = ["shard", "offset"]', "identity is of a table"),
        ('table = "../lake"\nidentity = ["offset"]', "identity is the columns of part and seq"),
        ('table = "../lake"\nidentity = "delta"', "delta-rs does not read the row ids of Delta"),
    ],
)
def test_a_table_that_is_none_is_a_mistake(tmp_path: Path, stream: str, said: str) -> None:
    write_deltalake(tmp_path / "lake", history(0, 5))
    toml = deployed(tmp_path / "run", stream, range(5, 9))
    with pytest.raises(Mistake, match=said):
        Deployment(load_config(toml))


def test_another_table_is_refused(tmp_path: Path) -> None:
    for name in ("lake", "other"):
        write_deltalake(tmp_path / name, history(0, 5))
    toml = deployed(tmp_path / "run", 'table = "../lake"', range(5, 9))
    Deployment(load_config(toml)).run()
    toml.write_text(toml.read_text().replace("../lake", "../other"))
    with pytest.raises(Mistake, match=r"the history of stream meter is .*lake, and not .*other"):
        Deployment(load_config(toml))
