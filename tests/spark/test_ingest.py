"""Ingest by Spark: the same tables as in process, whatever the rounds and the tasks are."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kaicep.archive.archive import Archive
from kaicep.cli.main import app
from kaicep.connectors import parts
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake
from kaicep.ingest import files as inprocess
from kaicep.ingest import on_spark
from kaicep.knowledge.annotation import parse_annotations
from kaicep.plan.types import Type

pytestmark = pytest.mark.spark

FORM = Form("meter")
LATENESS = 3_000_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small rounds, tasks and stretches."""
    monkeypatch.setattr(parts, "BYTES", 500)
    monkeypatch.setattr(parts, "_LONGEST", 500)
    monkeypatch.setattr(parts, "ROWS", 30)
    monkeypatch.setattr(on_spark, "ROUND", 90)
    monkeypatch.setattr(on_spark, "TASK", 20)


def lines(count: int, seed: int = 1) -> list[str]:
    """Readings, some of them late, some of them bad."""
    draw = random.Random(seed)
    made = [
        json.dumps({"ts": at - draw.choice((0, 0, 2, 9)), "kW": at / 8, "room": f"r{at % 3}"})
        for at in range(count)
    ]
    for at in range(7, count, 31):
        made[at] = draw.choice(["oops", "", '{"kW": 1}', '{"ts": 5, "kW": "warm"}', '{"ts": "x"}'])
    return made


def contents(folder: Path, stream: str = "meter") -> tuple[list[Any], list[dict[str, Any]], dict[int, int]]:
    """All that an archive says of a stream."""
    archive = Archive.open(folder)
    events = [(each, each.late, each.values, each.triples) for each in archive.snapshot().events(stream)]
    return events, archive.dead_letters.read(), archive.stream(stream).positions


def both(spark: Any, tmp_path: Path, source: Path, form: Form = FORM) -> on_spark.Ingested:
    """Ingests by Spark and in process; the archives hold the same."""
    done = on_spark.ingest(spark, Archive(tmp_path / "S"), form, source, LATENESS)
    wanted = inprocess.ingest(Archive(tmp_path / "P"), form, source, LATENESS)
    assert contents(tmp_path / "S", form.stream) == contents(tmp_path / "P", form.stream)
    assert done == wanted
    return done


@pytest.mark.usefixtures("small")
class TestTheSameAsInProcess:
    def test_lines_of_json(self, spark: Any, tmp_path: Path) -> None:
        source = tmp_path / "meter.jsonl"
        source.write_text("\n".join(lines(150)))
        done = both(spark, tmp_path, source)
        assert done.rows > 100
        assert done.late
        assert done.dead

    def test_a_folder_of_csv_that_grows(self, spark: Any, tmp_path: Path) -> None:
        source = tmp_path / "meter"
        source.mkdir()
        rows = [
            f"{at - (9 if at % 5 == 0 else 0)},{'x' if at % 37 == 3 else at / 8},r{at}" for at in range(120)
        ]
        (source / "a.csv").write_text("ts,kW,room\n" + "\n".join(rows[:80]) + "\n")
        (source / "b.csv").write_text('ts,kW,room\n1,2.5,"two\nlines"\n2,3.5,plain\n')
        both(spark, tmp_path, source, Form("meter", "ts", {"kW": Type.FLOAT64}))
        with (source / "b.csv").open("a") as file:
            file.write("9,4.5,more\n1,4.5,late\n")
        (source / "c.csv").write_text("ts,kW,room\n" + "\n".join(rows[80:]) + "\n")
        done = both(spark, tmp_path, source, Form("meter", "ts", {"kW": Type.FLOAT64}))
        assert done.rows == 41
        assert done.positions == {0: 80, 1: 4, 2: 40}

    def test_parquet(self, spark: Any, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        source = tmp_path / "meter"
        source.mkdir()
        times = pyarrow.array(
            [at * 1_000 - (9_000 if at % 50 == 20 else 0) for at in range(90)], pyarrow.timestamp("ms")
        )
        rows = pyarrow.table({"ts": times, "kW": [at / 8 for at in range(90)]})
        pyarrow.parquet.write_table(rows, source / "a.parquet", row_group_size=25)
        odd = pyarrow.table({"ts": ["5", None, "2012-05-07"], "kW": ["1", "2", "warm"]})
        pyarrow.parquet.write_table(odd, source / "b.parquet")
        done = both(spark, tmp_path, source, Form("meter", "ts", {"kW": Type.FLOAT64}))
        assert (done.rows, done.late, len(done.dead)) == (91, 2, 2)

    def test_a_wide_table_as_a_building_exports_it(self, spark: Any, tmp_path: Path) -> None:
        source = tmp_path / "meter.csv"
        rows = [
            f"{at % 28 + 1:02}.03.2026 02:30;{at},5;{'No Data' if at % 7 else f'1.{at:03}'};x{at}\n"
            for at in range(40)
        ]
        source.write_bytes(f"Zeit;Zähler;b;c\n{''.join(rows)}".encode("latin-1"))
        (said,) = parse_annotations(
            {
                "stream": "meter",
                "time": "Zeit",
                "types": {"kW": "float64"},
                "nulls": ["No Data"],
                "csv": {"delimiter": ";", "decimal": ",", "thousands": ".", "encoding": "latin-1"},
                "time_format": "%d.%m.%Y %H:%M",
                "time_zone": "Europe/Berlin",
                "wide": {"columns": ["Zähler", "b"], "point": "point", "value": "kW", "keep": ["c"]},
            }
        )
        done = both(spark, tmp_path, source, Form.of("meter", said))
        assert (done.rows, done.positions) == (46, {0: 160})

    def test_triples(self, spark: Any, tmp_path: Path) -> None:
        source = tmp_path / "trucks.jsonl"
        made = [{"triple": f"<urn:t> <urn:at> <urn:p{at}> .", "start": at, "end": at + 2} for at in range(30)]
        source.write_text("\n".join(map(json.dumps, made)) + '\n{"triple": "oops", "start": 1}\n')
        done = both(spark, tmp_path, source, Form("trucks"))
        assert (done.rows, len(done.dead)) == (30, 1)


def test_the_same_files_twice_are_there_once(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "meter.jsonl"
    source.write_text("\n".join(lines(50)))
    archive = Archive(tmp_path / "S")
    on_spark.ingest(spark, archive, FORM, source, LATENESS)
    before = contents(tmp_path / "S"), archive.stream("meter").table.version
    again = on_spark.ingest(spark, archive, FORM, source, LATENESS)
    assert (again.rows, again.dead) == (0, ())
    assert (contents(tmp_path / "S"), archive.stream("meter").table.version) == before


@pytest.mark.usefixtures("small")
def test_another_writer_gets_in_between(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other has appended by then is left to it, and the rest comes in."""
    source = tmp_path / "meter.jsonl"
    source.write_text("\n".join(lines(400)))
    monkeypatch.setattr(inprocess, "BATCH", 50)
    rounds, waited = [], []

    class Enough(Exception):
        pass

    def stop(done: inprocess.Ingested) -> None:
        if done.rows > 60:
            raise Enough

    def other(done: inprocess.Ingested) -> None:
        if not rounds:
            with pytest.raises(Enough):
                inprocess.ingest(Archive(tmp_path / "S"), FORM, source, LATENESS, stop)
        rounds.append(done.rows)

    on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, source, LATENESS, other, waited.append)
    inprocess.ingest(Archive(tmp_path / "P"), FORM, source, LATENESS)
    assert contents(tmp_path / "S") == contents(tmp_path / "P")
    assert len(waited) == 1
    assert "cannot be cut; looking again" in waited[0]
    table = Archive(tmp_path / "S").stream("meter").table  # and no file lies about
    held = {each.path for each in table.files()}
    assert held == {each.relative_to(table.folder).as_posix() for each in table.folder.rglob("*.parquet")}


def test_a_corrupt_parquet_file_is_named(spark: Any, tmp_path: Path) -> None:
    """And so is one that goes bad after it was looked at; what was there stays."""
    import pyarrow
    import pyarrow.parquet

    source = tmp_path / "meter"
    source.mkdir()
    rows = pyarrow.table({"ts": pyarrow.array(range(1_000), pyarrow.timestamp("us")), "kW": [1.5] * 1_000})
    pyarrow.parquet.write_table(rows, source / "a.parquet")
    archive = Archive(tmp_path / "S")
    on_spark.ingest(spark, archive, FORM, source)
    (source / "b.parquet").write_bytes(b"PAR1 this is none PAR1")
    with pytest.raises(Mistake, match=r"cannot read .*b\.parquet"):
        on_spark.ingest(spark, archive, FORM, source)
    pyarrow.parquet.write_table(rows, source / "b.parquet")
    whole = (source / "b.parquet").read_bytes()
    (source / "b.parquet").write_bytes(whole[:4] + b"\0" * 200 + whole[204:])
    with pytest.raises((Failure, Mistake), match=r"b\.parquet"):
        on_spark.ingest(spark, archive, FORM, source)
    assert archive.stream("meter").positions == {0: 1_000}
    (source / "b.parquet").write_bytes(whole)
    assert on_spark.ingest(spark, archive, FORM, source).rows == 1_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(spark: Any, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, then told; the table stays readable, and with room it goes on."""
    source = tmp_path / "meter.jsonl"
    source.write_text("\n".join(lines(50)))
    archive = Archive(small_disk / "S")
    on_spark.ingest(spark, archive, FORM, source)
    before = contents(small_disk / "S")
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 1_500_000)
    monkeypatch.setattr(on_spark, "_WAITS", (0.0, 0.0))
    draw = random.Random(3)
    more = [
        json.dumps({"ts": 100 + at, "kW": draw.random(), "room": str(draw.random())}) for at in range(40_000)
    ]
    with source.open("a") as file:
        file.write("\n" + "\n".join(more) + "\n")
    with pytest.raises(Failure, match=r"cannot write to .*No space left on device; nothing was appended"):
        on_spark.ingest(spark, archive, FORM, source)
    assert contents(small_disk / "S") == before
    assert len(list((small_disk / "S" / "meter").glob("round-*"))) == 1
    monkeypatch.setattr(on_spark, "_WAITS", (1.0,))
    freed = []

    def free(seconds: float) -> None:
        filler.unlink()
        freed.append(seconds)

    # Not the sleep of everybody: Spark's own threads sleep too.
    monkeypatch.setattr(on_spark, "time", SimpleNamespace(sleep=free))
    assert on_spark.ingest(spark, archive, FORM, source).rows == 40_000
    assert freed == [1.0]


def test_as_one_types_it(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "meter.jsonl"
    source.write_text("\n".join(lines(50)))
    inprocess.ingest(Archive(tmp_path / "P"), FORM, source, LATENESS)
    words = ["ingest", "--stream", f"meter={source}", "--archive", str(tmp_path / "S"), "--lateness", "3s"]
    done = CliRunner().invoke(
        app, [*words, "--host", "spark", "--dead-letters", str(tmp_path / "dead.jsonl")]
    )
    assert done.exit_code == 0, done.output
    assert "meter: 48 new" in done.stderr
    assert contents(tmp_path / "S") == contents(tmp_path / "P")
    assert len((tmp_path / "dead.jsonl").read_text().splitlines()) == len(contents(tmp_path / "P")[1])


@pytest.mark.parametrize("java", ["missing", "too old"])
def test_without_java_it_says_what_is_needed(tmp_path: Path, java: str) -> None:
    source = tmp_path / "meter.jsonl"
    source.write_text('{"ts": 1}\n')
    (tmp_path / "bin").mkdir()
    if java == "too old":
        # What an old Java says of classes that it cannot know.
        program = tmp_path / "bin" / "java"
        program.write_text(
            "#!/bin/sh\necho 'UnsupportedClassVersionError: class file version 61.0' >&2\nexit 1\n"
        )
        program.chmod(0o755)
    # The launcher is a script that needs a shell's own tools, and no Java beside them.
    for tool in ("bash", "env", "dirname", "head", "cat", "sed", "grep", "uname", "tr", "ps", "ls"):
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    env = {each: value for each, value in os.environ.items() if each not in ("JAVA_HOME", "SPARK_HOME")}
    words = ["ingest", "--stream", f"meter={source}", "--archive", str(tmp_path / "S"), "--host", "spark"]
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", *words],
        env={**env, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Spark does not start" in done.stderr
    assert "it needs Java 17 or later; `kaicep doctor` says what is missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "S").exists()


def test_a_task_may_run_twice(tmp_path: Path) -> None:
    """Late marks that hang on other tasks: what a file is made of is there for a retry, or a second copy."""
    inprocess.ingest(Archive(tmp_path / "P"), FORM, written(tmp_path), LATENESS)
    table = Archive(tmp_path / "P").stream("meter").table
    (file,) = (each.path for each in table.files())
    first, second = (on_spark._with_marks(table.folder, file, {0: 50_000_000}) for _ in range(2))
    assert len(first) == len(second) == 1
    assert first != second


def written(folder: Path) -> Path:
    source = folder / "meter.jsonl"
    source.write_text("\n".join(lines(90)) + "\n")
    return source


@pytest.mark.usefixtures("small")
def test_only_what_is_committed_is_left(spark: Any, tmp_path: Path) -> None:
    both(spark, tmp_path, written(tmp_path))
    table = Archive(tmp_path / "S").stream("meter").table
    assert {
        each.relative_to(table.folder).as_posix() for each in table.folder.rglob("round-*/*.parquet")
    } == {each.path for each in table.files()}
