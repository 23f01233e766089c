"""A file as a sink: every match once, whatever is killed when."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.connectors.matches import matches, write_and_kill

from kaicep.connectors.sinks.files import FileSink, FileSinkOptions
from kaicep.errors import Failure, Mistake


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_matches_and_mark_are_committed_together(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() is None
        sink.write(matches(0, 1))
        sink.commit({"s": {"0": 7}})
        sink.commit({"s": {"0": 9}})
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() == {"s": {"0": 9}}
    assert path.read_text() == "".join(each.to_json() + "\n" for each in matches(0, 1))


def test_what_was_not_committed_is_gone_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0))
        sink.commit({"n": 1})
        sink.write(matches(*range(1, 20_000)))
    assert len(ids(path)) > 1, "a large part was written already"
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() == {"n": 1}
        assert ids(path) == ["00000"]
        sink.write(matches(1))
        sink.commit({"n": 2})
    assert ids(path) == ["00000", "00001"]


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine\n")
    with pytest.raises(Mistake, match="no sink wrote it"):
        FileSink("out", FileSinkOptions(path)).open()
    assert path.read_text() == "mine\n"


def test_a_file_that_was_cut_short_is_said(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0))
        sink.commit({})
    path.write_text("")
    with pytest.raises(Failure, match=r"has 0 bytes, but \d+ were committed"):
        FileSink("out", FileSinkOptions(path)).open()


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("one", FileSinkOptions(path)) as sink:
        sink.open()
        with pytest.raises(Mistake, match="another process writes"):
            FileSink("two", FileSinkOptions(path)).open()


def test_a_missing_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="there is no folder"):
        FileSink("out", FileSinkOptions(tmp_path / "none" / "out.jsonl")).open()


@pytest.mark.parametrize("how", ["renamed", "copied and emptied"])
def test_a_rotated_file_goes_on_in_a_new_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0, 1))
        sink.commit({"n": 1})
        if how == "renamed":
            path.rename(tmp_path / "out.1")
        else:
            shutil.copy(path, tmp_path / "out.1")
            path.open("w").close()
        sink.write(matches(2))
        sink.commit({"n": 2})
        sink.write(matches(3))
        sink.commit({"n": 3})
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() == {"n": 3}
    assert (ids(tmp_path / "out.1"), ids(path)) == (["00000", "00001"], ["00002", "00003"])


def test_a_file_that_was_renamed_after_a_crash_has_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0))
        sink.commit({"n": 1})
        sink.write(matches(1))
        sink._flush()
    path.rename(tmp_path / "out.1")
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() == {"n": 1}
        sink.write(matches(1))
        sink.commit({"n": 2})
    with FileSink("out", FileSinkOptions(path)) as sink:
        assert sink.open() == {"n": 2}
    assert (ids(tmp_path / "out.1"), ids(path)) == (["00000"], ["00001"])


def test_a_file_that_somebody_put_in_the_place_of_the_old_one_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0))
        sink.commit({"n": 1})
        path.rename(tmp_path / "out.1")
        path.write_text("precious")
        sink.write(matches(1))
        with pytest.raises(Failure, match="no sink wrote"):
            sink.commit({"n": 2})
    assert path.read_text() == "precious"


def test_a_full_disk_is_said_and_the_commit_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "out.jsonl"
    with FileSink("out", FileSinkOptions(path)) as sink:
        sink.open()
        sink.write(matches(0))
        with monkeypatch.context() as patch:
            patch.setattr("kaicep.storage.disk.os.pwrite", full)
            with pytest.raises(Failure, match="No space left"):
                sink.commit({"n": 1})
        sink.commit({"n": 1})
    assert ids(path) == ["00000"]


def test_what_the_disk_did_not_take_is_written_again_from_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system forgets what it could not write: a second try would succeed without having written it."""

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "out.jsonl"
    sink = FileSink("out", FileSinkOptions(path))
    with sink:
        sink.open()
        sink.write(matches(0))
        sink.commit({"n": 1})
        sink.write(matches(1))
        with monkeypatch.context() as patch:
            patch.setattr("kaicep.connectors.sinks.files.os.fsync", failing)
            with pytest.raises(Failure, match="the disk did not take"):
                sink.commit({"n": 2})
        with pytest.raises(Failure, match="the disk did not take"):
            sink.commit({"n": 2})
    with sink:
        assert sink.open() == {"n": 1}
        sink.write(matches(1))
        sink.commit({"n": 2})
    assert ids(path) == ["00000", "00001"]


STEPS = """
    # Dies before the nth thing that it does to the disk, for every n there is; tells what is left.
    import json, os, signal, sys
    from pathlib import Path
    from kaicep.connectors.sinks.files import FileSinkOptions, FileSink
    from tests.connectors.matches import matches

    def work(path):
        sink = FileSink("out", FileSinkOptions(path))
        mark = sink.open() or {"n": 0}
        for n in range(mark["n"], 4):
            sink.write(matches(2 * n, 2 * n + 1))
            sink.commit({"n": n + 1})
        sink.close()

    def dying(n):
        left = [n]
        def wrap(module, name):
            real = getattr(module, name)
            def step(*arguments, **named):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)
            setattr(module, name, step)
        for name in ("pwrite", "fsync", "ftruncate", "open"):
            wrap(os, name)
        wrap(Path, "replace")
        wrap(Path, "open")

    n = 0
    while True:
        n += 1
        path = Path(sys.argv[1]) / f"{n}.jsonl"
        child = os.fork()
        if child == 0:
            dying(n)
            work(path)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        work(path)
        print(json.dumps([json.loads(line)["id"] for line in path.open()]))
        if not killed:
            break
"""


def test_killed_at_every_step_it_still_has_every_match_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STEPS), str(tmp_path)], capture_output=True, text=True
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 20, done.stderr
    assert all(each == [f"{number:05}" for number in range(8)] for each in results)


@pytest.mark.slow
def test_killed_at_random_moments_it_has_every_match_once(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    committed = write_and_kill("files", path, turns=10, commits=60)
    with FileSink("out", FileSinkOptions(path)) as sink:
        mark = sink.open()
    assert mark is not None
    assert mark["s"]["0"] >= committed
    assert ids(path) == [f"{number:05}" for number in range(mark["s"]["0"])]
