"""Files that come and grow, taken in by Spark: what the in-process ingest gives, whatever comes when."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_ingest import LATENESS, contents, lines
from typer.testing import CliRunner

import kaicep as kai
from kaicep.api import parse_query
from kaicep.archive.archive import Archive
from kaicep.cli import archive as cli
from kaicep.cli.main import app
from kaicep.connectors import parts
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake, SourceText
from kaicep.history.hybrid import spark_history
from kaicep.history.strategies import history_of, past_matches
from kaicep.ingest import files as inprocess
from kaicep.ingest import on_spark
from kaicep.ingest.files import Ingested
from kaicep.ingest.materialise import Materialise
from kaicep.knowledge.annotation import parse_annotations
from kaicep.plan.types import Type
from kaicep.processes import bound

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
FORM = Form("meter", "ts", {"kW": Type.FLOAT64, "room": Type.STRING}, True)
ANNOTATION = """{"stream": "meter", "time": "ts", "types": {"kW": "float64", "room": "string"}}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the stream. Its types are declared: what is there first may not tell them."""
    (tmp_path / "meter.json").write_text(ANNOTATION)
    made = tmp_path / "meter"
    made.mkdir()
    return made


def taken(spark: Any, folder: Path, archive: str = "S") -> list[Ingested]:
    """Takes in what is there by now, in rounds of a file or two; what it told."""
    told: list[Ingested] = []
    place = Archive(folder.parent / archive)
    on_spark.ingest(spark, place, FORM, folder, LATENESS, told.append, growing=True)
    return told


def in_process(folder: Path) -> Any:
    """What the in-process ingest makes of the files as they are now."""
    inprocess.ingest(Archive(folder.parent / "P"), FORM, folder, LATENESS, growing=True)
    return contents(folder.parent / "P")


def parquet(path: Path, begin: int, count: int = 40) -> None:
    import pyarrow
    import pyarrow.parquet

    at = range(begin, begin + count)
    times = pyarrow.array([each * 1_000_000 - (9_000_000 if each % 9 == 5 else 0) for each in at])
    rows = {
        "ts": times.cast(pyarrow.timestamp("us")),
        "kW": [each / 8 for each in at],
        "room": [f"r{each % 3}" for each in at],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), path)


def test_files_of_every_kind_that_come_and_grow(spark: Any, folder: Path, tmp_path: Path) -> None:
    """Run after run: one grows in the middle of a line, new ones appear, one of them before the others."""
    made = lines(90)
    (folder / "b.jsonl").write_text("\n".join(made[:40]) + "\n" + made[40][:9])
    (folder / "c.csv").write_text('ts,kW,room\n1,2.5,"two\nlines"\n30,x,bad\n2,3.5,late\n')
    first = taken(spark, folder)
    assert contents(tmp_path / "S") == in_process(folder)
    assert first[-1].rows + len(first[-1].dead) == 43
    assert first[-1].late
    (folder / "b.jsonl").write_text("\n".join(made) + "\n")
    parquet(folder / "a.parquet", 50)
    (folder / "d.jsonl").write_text("oops\n")
    taken(spark, folder)
    assert contents(tmp_path / "S") == in_process(folder)
    positions = Archive(tmp_path / "S").stream("meter").positions
    assert positions == {0: 90, 1: 3, 2: 40, 3: 1}, "a.parquet came later, and has part 2"


def test_nothing_comes_in_twice(spark: Any, folder: Path, tmp_path: Path) -> None:
    """Nor by another way: in process, or as files that do not grow."""
    (folder / "a.jsonl").write_text("\n".join(lines(40)) + "\n")
    inprocess.ingest(Archive(tmp_path / "S"), FORM, folder, LATENESS)
    (folder / "b.jsonl").write_text("\n".join(lines(30, seed=2)) + "\n")
    taken(spark, folder)
    before = contents(tmp_path / "S"), Archive(tmp_path / "S").stream("meter").table.version
    assert before[0] == in_process(folder)
    taken(spark, folder)
    assert on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, folder, LATENESS).rows == 0
    after = contents(tmp_path / "S"), Archive(tmp_path / "S").stream("meter").table.version
    assert after == before


def test_a_corrupt_file_stops_it_and_is_named(spark: Any, folder: Path, tmp_path: Path) -> None:
    """As it stops the others; what was there stays, and with the file mended it goes on."""
    parquet(folder / "a.parquet", 0)
    taken(spark, folder)
    (folder / "b.parquet").write_bytes(b"PAR1 this is none PAR1")
    for growing in (False, True):
        with pytest.raises(Mistake, match=r"cannot read .*b\.parquet"):
            inprocess.ingest(Archive(tmp_path / "P"), FORM, folder, LATENESS, growing=growing)
    with pytest.raises(Exception, match=r"cannot read .*b\.parquet"):
        taken(spark, folder)
    assert Archive(tmp_path / "S").stream("meter").positions == {0: 40}
    parquet(folder / "b.parquet", 40)
    taken(spark, folder)
    assert contents(tmp_path / "S") == in_process(folder)


def test_records_that_tell_nothing_wait_for_the_first_that_does(
    spark: Any, folder: Path, tmp_path: Path
) -> None:
    """No table can be made of bad records; when there is one, they are dead letters of it."""
    (folder / "a.jsonl").write_text("oops\n")
    taken(spark, folder)
    assert Archive(tmp_path / "S").streams() == []
    (folder / "b.jsonl").write_text('{"ts": 1, "kW": 2}\n')
    taken(spark, folder)
    assert [each["file"] for each in contents(tmp_path / "S")[1]] == [str(folder / "a.jsonl")]
    assert contents(tmp_path / "S") == in_process(folder)
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"ts": 2, "kW": 2, "new": true}\n')
    taken(spark, folder)
    assert contents(tmp_path / "S") == in_process(folder)
    assert contents(tmp_path / "S")[0][-1][2]["new"] is True


def test_a_file_that_was_cut_short_is_refused(spark: Any, folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"ts": 1, "kW": 2}\n')
    taken(spark, folder)
    (folder / "a.jsonl").write_text("")
    with pytest.raises(Exception, match="it was cut short, or it is another one"):
        taken(spark, folder)


def test_columns_of_what_is_known_are_the_same_on_every_way(
    spark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In process and by Spark: the same types and values; and queries do not see them."""
    monkeypatch.setattr(on_spark, "TASK", 20)
    monkeypatch.setattr(parts, "BYTES", 500)
    monkeypatch.setattr(parts, "_LONGEST", 500)
    said = {
        **json.loads(ANNOTATION),
        "prefixes": {"x": "urn:x:"},
        "entities": {"room": {"property": "x:at", "iri": "x:{value}"}},
    }
    (tmp_path / "meter.json").write_text(json.dumps(said))
    annotations = parse_annotations(said)
    knowledge = kai.Knowledge.parse("@prefix x: <urn:x:> . x:r0 x:of x:a, x:b . x:r1 x:of x:a .")
    columns = {"owner": "?e x:at/x:of ?owner"}
    wanted = Materialise(columns, knowledge, annotations)
    (folder / "a.jsonl").write_text("\n".join(lines(60)) + "\n")
    inprocess.ingest(Archive(tmp_path / "P"), FORM, folder, LATENESS, materialise=wanted)
    on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, folder, LATENESS, materialise=wanted)

    def table(name: str) -> tuple[Any, list[dict[str, Any]]]:
        held = Archive.open(tmp_path / name)
        rows = [row for batch in held.snapshot().batches("meter") for row in batch.to_pylist()]
        return held.stream("meter").table.schema, rows

    found = table("P")
    assert found == table("S")
    owners = {row["room"]: row["owner"] for row in found[1]}
    assert owners == {"r0": ["urn:x:a", "urn:x:b"], "r1": ["urn:x:a"], "r2": []}
    parsed = parse_query(
        SourceText("q.chi", "SELECT * FROM (?e, meter) PATH {?e x:at/x:of x:b}"), {"x": "urn:x:"}
    )
    history = history_of([parsed], Archive.open(tmp_path / "S"), knowledge, annotations, now=0)
    snapshot = history.archive.snapshot()
    matches = spark_history(history, snapshot)
    assert [each.to_json() for each in matches] == [
        each.to_json() for each in past_matches(history, "replay")
    ]
    assert matches


class Steps:
    """Does the steps of a test while a job runs, each when it is due, and then interrupts it."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, *steps: Callable[[], bool]) -> None:
        self._steps = list(steps)
        self._deadline = time.monotonic() + 300

    def sleep(self, seconds: float) -> None:
        """What is called whenever somebody waits for the job."""
        time.sleep(seconds)
        while self._steps and self._steps[0]():
            self._steps.pop(0)
        if not self._steps:
            raise KeyboardInterrupt
        assert time.monotonic() < self._deadline


@pytest.mark.usefixtures("spark")
def test_as_one_types_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams, one of them a single file; it says how it goes and, interrupted, what came in."""
    (folder / "a.jsonl").write_text("\n".join(lines(40)) + "\n")
    other = tmp_path / "other.jsonl"
    other.write_text('{"ts": 1, "x": 1}\n{"ts": 2')
    archive = Archive(tmp_path / "S")

    def held(stream: str, *positions: int) -> bool:
        return stream in archive.streams() and archive.stream(stream).positions == dict(enumerate(positions))

    def first() -> bool:
        if not (held("meter", 40) and held("other", 1)):
            return False
        parquet(folder / "b.parquet", 0)
        return True

    monkeypatch.setattr(cli, "_EVERY", 0.0)
    monkeypatch.setattr(cli, "time", Steps(first, lambda: held("meter", 40, 40)))
    words = ["ingest", "--archive", tmp_path / "S", "--lateness", "3s", "--host", "spark", "--follow"]
    words += ["--stream", f"meter={folder}", "--stream", f"other={other}"]
    words += ["--annotation", tmp_path / "meter.json", "--dead-letters", tmp_path / "dead.jsonl"]
    done = CliRunner().invoke(app, [str(each) for each in words])
    assert done.exit_code == 0, done.stderr
    assert contents(tmp_path / "S") == (wanted := in_process(folder))
    assert f"meter: {len(wanted[0])} new" in done.stderr
    assert re.search(r"^other: 1 new, [\d,]+/s$", done.stderr, re.MULTILINE)
    letters = [json.loads(each) for each in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert letters == wanted[1]


@pytest.mark.usefixtures("spark")
def test_a_job_that_fails_ends_the_command_with_its_reason(folder: Path, tmp_path: Path) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1 this is none PAR1")
    (folder / "b.jsonl").write_text('{"ts": 1}\n')
    words = [
        "ingest",
        "--archive",
        tmp_path / "S",
        "--host",
        "spark",
        "--follow",
        "--stream",
        f"meter={folder}",
    ]
    done = CliRunner().invoke(app, [str(each) for each in words])
    assert done.exit_code == 2
    assert f"cannot read {folder / 'a.parquet'}" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 5


@pytest.mark.night
def test_a_process_that_is_interrupted(folder: Path, tmp_path: Path) -> None:
    """By a signal, as from a keyboard: it ends in order."""
    (folder / "a.jsonl").write_text("\n".join(lines(40)) + "\n")
    words = ["ingest", "--archive", "S", "--lateness", "3s", "--host", "spark", "--follow"]
    words += ["--stream", "meter=meter", "--annotation", "meter.json"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(
        bound([sys.executable, "-m", "kaicep", *words]), env=env, cwd=tmp_path, stderr=subprocess.PIPE
    )
    archive = Archive(tmp_path / "S")
    try:
        deadline = time.monotonic() + 300
        while "meter" not in archive.streams() or archive.stream("meter").positions != {0: 40}:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors.decode()
    assert f"meter: {len(in_process(folder)[0])} new" in errors.decode()
