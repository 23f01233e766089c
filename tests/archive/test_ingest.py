"""`kaicep ingest` with a topic, with another host, and going on with what comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kaicep.archive.archive import Archive
from kaicep.archive.stream_table import Appended, StreamTable
from kaicep.cli.main import app
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent.parent


def kaicep(*words: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--stream", "m=kafka://broker:9092"), "m=kafka://broker:9092: servers and a topic are needed"),
        (("--stream", "m=kafka:///t"), "m=kafka:///t: servers and a topic are needed"),
        (("--stream", "m=m.jsonl", "--host", "sprak"), "did you mean spark?"),
    ],
)
def test_what_cannot_be_meant_is_told(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = kaicep("ingest", *words, "--archive", tmp_path / "A")
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.slow
def test_it_goes_on_with_what_comes(tmp_path: Path) -> None:
    """Half a line waits for the rest; a new file keeps the others where they are."""
    folder = tmp_path / "meter"
    folder.mkdir()
    (folder / "b.jsonl").write_text('{"ts": 1, "x": 1}\n{"ts": 2')
    words = ["ingest", "--stream", f"meter={folder}", "--archive", str(tmp_path / "A"), "--follow"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(
        bound([sys.executable, "-m", "kaicep", *words]), env=env, stderr=subprocess.PIPE
    )
    try:
        reach(tmp_path / "A", {0: 1})
        (folder / "a.jsonl").write_text('{"ts": 5, "x": 7}\n')
        with (folder / "b.jsonl").open("a") as file:
            file.write(', "x": 2}\n')
        reach(tmp_path / "A", {0: 2, 1: 1})
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"meter: 3 new" in errors


def interrupt_as_spark_does(number: int, frame: FrameType | None) -> None:
    """A session of Spark puts a handler like this one into place, which stops its jobs first."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, interrupt_as_spark_does])
def test_an_interrupt_in_the_middle_of_a_commit_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Callable[[int, FrameType | None], Any]
) -> None:
    """What the archive has is also what is reported."""
    append = StreamTable.append

    def interrupted(self: StreamTable, rows: Any, *rest: Any, **named: Any) -> Appended:
        if not len(rows):
            return append(self, rows, *rest, **named)
        signal.raise_signal(signal.SIGINT)
        added = append(self, rows, *rest, **named)
        assert added.rows == 2
        return added

    monkeypatch.setattr(StreamTable, "append", interrupted)
    (tmp_path / "m.jsonl").write_text('{"ts": 1, "x": 1}\n{"ts": 2, "x": 2}\n')
    words = ("--stream", f"m={tmp_path / 'm.jsonl'}", "--archive", tmp_path / "A")
    before = signal.signal(signal.SIGINT, handler)
    try:
        done = kaicep("ingest", *words, "--follow")
    finally:
        assert signal.signal(signal.SIGINT, before) is handler
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, "m: 2 new")


def reach(folder: Path, positions: dict[int, int]) -> None:
    deadline = time.monotonic() + 300
    while True:
        if (
            "meter" in (archive := Archive(folder)).streams()
            and archive.stream("meter").positions == positions
        ):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def day(folder: Path, name: str, *times: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("".join(f'{{"ts": {ts}, "x": {ts}}}\n' for ts in times))
    return path


def test_files_of_history_come_one_by_one_and_are_deleted_afterwards(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "A")
    for number in (3, 1, 2):
        path = day(tmp_path / "days", f"2012-05-0{number}.jsonl", number, number + 10)
        for new in (2, 0):  # the second time, it is there already
            done = kaicep("ingest", "--stream", f"s={path}", "--archive", tmp_path / "A", "--history")
            assert done.exit_code == 0, done.stderr
            assert f"s: {new} new" in done.stderr
        path.unlink()
    events = list(archive.snapshot().events("s"))
    assert [each.ts // 1_000_000 for each in events] == [1, 2, 3, 11, 12, 13]
    assert len({each.part for each in events}) == 3
    whole = Archive(tmp_path / "whole")
    for number in (1, 2, 3):
        day(tmp_path / "days", f"2012-05-0{number}.jsonl", number, number + 10)
    words = ("--archive", tmp_path / "whole", "--history")
    assert kaicep("ingest", "--stream", f"s={tmp_path / 'days'}", *words).exit_code == 0
    assert list(whole.snapshot().events("s")) == events  # identity is a function of the files


def test_another_file_of_the_same_name_is_not_taken_for_the_one_that_was_there(tmp_path: Path) -> None:
    words = ("--archive", tmp_path / "A", "--history")
    first = day(tmp_path / "2011", "01.jsonl", 1, 2)
    second = day(tmp_path / "2012", "01.jsonl", 100_001, 100_002, 100_003)
    assert kaicep("ingest", "--stream", f"s={first}", *words).exit_code == 0
    done = kaicep("ingest", "--stream", f"s={second}", *words)
    assert done.exit_code == 2
    assert "01.jsonl" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--stream", "s=s.jsonl", "--follow"), "leave out --follow"),
        (("--stream", "s=s.jsonl", "--host", "spark"), "leave out --host"),
        (("--stream", "s=kafka://broker/t"), "leave out --history"),
    ],
)
def test_what_cannot_be_history_is_told(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    day(tmp_path, "s.jsonl", 1)
    given = [each.replace("s=s", f"s={tmp_path}/s") for each in words]
    done = kaicep("ingest", *given, "--archive", tmp_path / "A", "--history")
    assert done.exit_code == 2
    assert told in done.stderr
