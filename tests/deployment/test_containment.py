"""What fails, fails alone: a query, a stream, a sink, a follower; the others go on."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.processes import SECONDS, environment, matches, write
from tests.deployment.test_deployment import (
    HIGH,
    PAIR,
    _impatient,
    append,
    deployed,
    event,
    folder,
    look_again,
    settle,
    told,
    toml,
    wanted,
)

from kaicep.connectors.contract import Source, SourceBatch
from kaicep.connectors.shape import Schema
from kaicep.deployment.config import StreamConfig, load_config
from kaicep.deployment.registered import Suspects
from kaicep.deployment.running import Deployment
from kaicep.errors import Failure
from kaicep.hosts.queries import ChiSearch
from kaicep.plan.types import Type


def _fails(monkeypatch: pytest.MonkeyPatch, error: BaseException, name: str = "high") -> None:
    """Whatever comes from now on, a query fails on it, as a defect of ours would make it."""
    whole = ChiSearch.answers

    def answers(self: ChiSearch, table: Any) -> Any:
        if name in self.names and table is not None:
            raise error
        return whole(self, table)

    monkeypatch.setattr(ChiSearch, "answers", answers)


@pytest.mark.parametrize("error", [KeyError("x"), OverflowError(), RecursionError(), MemoryError()])
def test_a_query_that_fails_in_any_way_fails_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    write(folder, {"queries/pair.chi": PAIR})
    with deployed(folder) as made:
        settle(made)
        _fails(monkeypatch, error)
        append(folder, event(2, 8))
        settle(made)
        append(folder, event(3, 9))
        settle(made)
        status = made.status()["queries"]
        assert status["high"]["state"] == "failed"
        assert type(error).__name__ in status["high"]["problem"]
        assert "s part 0, positions 2 to 2" in status["high"]["problem"]
        assert status["pair"]["state"] == "live"
    assert "Traceback" in caplog.text
    found = [each for each in matches(folder / "out.jsonl") if each["query"] == "pair"]
    assert found == wanted(folder, "pair")
    monkeypatch.undo()
    with deployed(folder) as made:
        settle(made)
    assert told(folder, query="high") == [{"x": 7}, {"x": 8}, {"x": 9}]


def test_a_query_that_cannot_be_set_up_for_a_reason_of_ours_fails_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, {"queries/pair.chi": PAIR})
    from kaicep.deployment import catalogue

    whole = catalogue.history_of

    def history_of(queries: Sequence[Any], *rest: Any) -> Any:
        if queries[0].name == "high":
            raise RecursionError("maximum recursion depth exceeded")
        return whole(queries, *rest)

    monkeypatch.setattr(catalogue, "history_of", history_of)
    with deployed(folder) as made:
        settle(made)
        status = made.status()["queries"]
        assert (status["high"]["state"], status["pair"]["state"]) == ("wrong", "live")
        assert "RecursionError" in status["high"]["problem"]
    assert "Traceback" in caplog.text


class _Faulty(Source):
    """Gives an event at each look, and fails at some of them."""

    finite = False
    guarantee: Any = None

    def __init__(self, form: Any, failing: set[int]) -> None:
        super().__init__(form)
        self.at = self.looks = 0
        self.failing = failing

    @property
    def schema(self) -> Schema:
        return Schema((("ts", Type.TIMESTAMP), ("x", Type.INT64), ("k", Type.STRING)))

    @property
    def position(self) -> dict[int, int]:
        return {0: self.at}

    def open(self, position: Any = None, schema: Any = None) -> None:
        self.at = dict(position or {}).get(0, 0)

    def next_batch(self, timeout: float) -> SourceBatch:
        from kaicep.plan.events import Event

        self.looks += 1
        if self.looks in self.failing:
            raise ZeroDivisionError("a defect")
        if self.at == 4:
            return SourceBatch(self.position, [], [])
        ts = (1336381200 + self.at) * 1_000_000
        self.at += 1
        return SourceBatch(
            self.position, [Event("t", 0, self.at - 1, ts, {"ts": ts, "x": self.at, "k": "p"})], []
        )

    def close(self) -> None:
        pass


@pytest.fixture
def faulty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A second stream whose source fails at its second look."""
    write(
        folder,
        {
            "kaicep.toml": toml() + '[streams.t]\nsource = {kind = "generator", path = "t.toml"}\n',
            "queries/other.chi": HIGH.replace("s)", "t)").replace("> 5", "> 0"),
        },
    )
    whole = StreamConfig.open_source
    monkeypatch.setattr("kaicep.deployment.streams._RETRY", 0.0)
    monkeypatch.setattr(
        StreamConfig, "open_source", lambda self: _Faulty(self.form, {2}) if self.name == "t" else whole(self)
    )
    return folder


def test_a_stream_that_fails_is_opened_again_and_the_others_go_on(
    faulty: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with deployed(faulty) as made:
        for _ in range(8):
            made.tick()
        append(faulty, event(2, 8))
        for _ in range(8):
            made.tick()
        assert made.status()["streams"]["t"]["trouble"] is None
        settle(made)
    assert told(faulty, query="high") == [{"x": 7}, {"x": 8}]
    assert told(faulty, query="other") == [{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}]
    assert "t: ZeroDivisionError: a defect" in caplog.text
    assert "Traceback" in caplog.text


def test_what_was_archived_before_a_stream_failed_is_answered(
    faulty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit came to pass, and what was to come after it did not."""
    from kaicep.archive.stream_table import StreamTable

    whole, failed = StreamTable.append, []

    def append_and_fail(self: StreamTable, *args: Any, **named: Any) -> Any:
        done = whole(self, *args, **named)
        if self.stream == "t" and not failed:
            failed.append(True)
            raise OSError(5, "Input/output error")
        return done

    monkeypatch.setattr(StreamTable, "append", append_and_fail)
    with deployed(faulty) as made:
        for _ in range(16):
            made.tick()
        settle(made)
    assert told(faulty, query="other") == [{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}]


def test_a_finite_stream_that_fails_ends_the_run_with_its_reason(folder: Path) -> None:
    from kaicep.connectors.sources.files import FileSource

    write(folder, {"kaicep.toml": toml(follow=False)})
    with pytest.MonkeyPatch.context() as patch:

        def fail(self: FileSource, timeout: float) -> SourceBatch:
            raise ZeroDivisionError("a defect")

        patch.setattr(FileSource, "next_batch", fail)
        with pytest.raises(Failure, match="stream s: ZeroDivisionError: a defect"):
            Deployment(load_config(folder / "kaicep.toml")).run()
    Deployment(load_config(folder / "kaicep.toml")).run()
    assert told(folder) == [{"x": 7}]


def test_a_stream_whose_last_records_are_not_archived_has_not_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would say that nothing comes any more: nobody would find what comes after a restart."""
    from kaicep.archive.stream_table import StreamTable

    append(folder, *(event(n, 9) for n in range(2, 8)))
    write(folder, {"kaicep.toml": toml(follow=False).replace('"s.jsonl"', '"s.jsonl", batch = 4')})
    whole, calls = StreamTable.append, iter((True, False))

    def append_once(self: StreamTable, *args: Any, **named: Any) -> Any:
        if not next(calls):
            raise OSError(28, "No space left on device")
        return whole(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(StreamTable, "append", append_once)
        with pytest.raises(Failure, match="No space left on device"):
            Deployment(load_config(folder / "kaicep.toml")).run()
    assert len(told(folder)) < 7
    Deployment(load_config(folder / "kaicep.toml")).run()
    assert told(folder) == [{"x": 7}] + [{"x": 9}] * 6


def test_a_sink_that_fails_for_a_reason_of_ours_is_left_out_and_told_the_rest_next_time(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from kaicep.connectors.sinks.files import FileSink

    write(folder, {"kaicep.toml": toml(sinks='[sinks.two]\nkind = "files"\npath = "two.jsonl"\n')})
    whole = FileSink.write

    def fail(self: FileSink, found: Any) -> None:
        if self._path.name == "two.jsonl" and found:
            raise TypeError("a defect")
        whole(self, found)

    monkeypatch.setattr(FileSink, "write", fail)
    with deployed(folder, lose=True) as made:
        while made.tick():
            pass
        append(folder, event(2, 8))
        for _ in range(5):
            made.tick()
        assert made.outlets["out"].wait(made._moment, SECONDS)
        assert "TypeError" in made.status()["sinks"]["two"]["trouble"]
    assert "Traceback" in caplog.text
    assert (told(folder), matches(folder / "two.jsonl")) == ([{"x": 7}, {"x": 8}], [])
    monkeypatch.setattr(FileSink, "write", whole)
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == told(folder, "two.jsonl") == [{"x": 7}, {"x": 8}]


def test_a_listener_that_fails_stops_nobody(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(news: object) -> None:
        raise ValueError("a defect")

    with deployed(folder) as made:
        made.listeners.append(fail)
        settle(made)
    assert told(folder) == [{"x": 7}]
    assert "Traceback" in caplog.text


def test_knowledge_that_cannot_be_looked_at_stays_as_it_was(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RecursionError("a defect")

    with deployed(folder) as made, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(made.knowledge, "poll", fail)
        look_again(made)
        append(folder, event(2, 8))
        settle(made)
    assert told(folder) == [{"x": 7}, {"x": 8}]
    assert "the knowledge stays unchanged: RecursionError" in caplog.text


DEADLY = """
import ctypes, os, signal, sys, time
from kaicep.hosts.queries import ChiSearch

whole = ChiSearch.answers

def answers(self, released):
    if "high" in self.names and released is not None and len(released.table):
        {what}
    return whole(self, released)

ChiSearch.answers = answers
from kaicep.cli.main import main
main()
"""
FAULT = "ctypes.string_at(0)"
LONG = """begun = time.process_time()
        while time.process_time() < begun + 3.5:
            pass
        os.kill(os.getpid(), signal.SIGKILL)"""


@pytest.mark.slow
@pytest.mark.parametrize("what", [FAULT, LONG], ids=["a fault", "killed in a long step"])
def test_a_query_that_the_process_died_of_twice_is_set_aside(folder: Path, what: str) -> None:
    deadly = DEADLY.format(what=what)
    write(folder, {"queries/pair.chi": PAIR, "deadly.py": deadly, "kaicep.toml": toml(follow=False)})

    def run(script: bool) -> str:
        command = ["deadly.py"] if script else ["-m", "kaicep"]
        done = subprocess.run(
            [sys.executable, *command, "run"],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stderr + done.stdout

    for _ in range(2):
        run(True)
    said = run(True)
    assert "high: set aside: the process died 2 times while it worked" in said, said
    found = [each for each in matches(folder / "out.jsonl") if each["query"] == "pair"]
    assert found == wanted(folder, "pair")
    # With another text it is tried again, and its matches come, each once.
    write(folder, {"queries/high.chi": HIGH.replace("> 5", "> 6")})
    run(False)
    assert told(folder, query="high") == [{"x": 7}]


def test_a_death_that_says_nothing_about_a_query_counts_for_nothing(tmp_path: Path) -> None:
    texts = {"a": "1", "b": "2"}

    def died(how: str, names: tuple[str, ...] = ("a", "b")) -> Suspects:
        made = Suspects(tmp_path)
        made.look(texts)
        made.begin(names)
        if how == "long":
            made._map[0:1] = b"l"
        elif how == "fault":
            (tmp_path / "fault.txt").write_text("Fatal Python error: Segmentation fault\n")
        elif how == "closed":
            made.close()
        found = Suspects(tmp_path)
        (tmp_path / "fault.txt").unlink(missing_ok=True)
        found.look(texts)
        return found

    assert died("killed").deaths == {}
    assert died("closed").deaths == {}
    first = died("long")
    assert first.deaths == {"a": 1, "b": 1}
    assert first.aside("a") is None
    second = died("fault", ("a",))
    assert "died 2 times" in (second.aside("a") or "")
    assert second.aside("b") is None
    second.clear(["a", "b"])
    assert second.deaths == {"a": 2}  # which stays until it is changed
    texts["a"] = "3"
    second.look(texts)
    assert second.aside("a") is None
    assert Suspects(tmp_path).deaths == {}


def test_a_query_with_another_text_is_tried_after_a_restart_too(tmp_path: Path) -> None:
    for _ in range(2):
        died = Suspects(tmp_path)
        died.look({"a": "1"})
        died.begin(["a"])
        died._map[0:1] = b"l"
    found = Suspects(tmp_path)
    found.look({"a": "1"})
    assert found.aside("a") is not None
    found.close()
    found = Suspects(tmp_path)
    found.look({"a": "2"})
    assert found.aside("a") is None
