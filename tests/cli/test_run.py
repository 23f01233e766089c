"""`kaicep run`, `status` and `follow`: what a person sees."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deployment.processes import SECONDS, kaicep, matches, running, spawn, stopped, wait_for, write
from typer.testing import CliRunner, Result

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import TableShape
from kaicep.cli.main import app
from kaicep.plan.types import Type

CAMPUS = Path(__file__).parents[2] / "examples" / "campus"
HIGH = "SELECT ?e.x FROM (?e, s) WITHIN [2012-05-07T09:00, ) FILTER (?e.x > 5)"
TOML = """\
name = "tried"
tick = "20ms"

[streams.s]
source = {kind = "files", path = "s.jsonl", follow = true}

[sinks.out]
kind = "files"
path = "out.jsonl"
"""


def event(second: float, x: int) -> str:
    return json.dumps({"ts": 1336381200 + second, "x": x}) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(
        tmp_path,
        {"kaicep.toml": TOML, "queries/high.chi": HIGH, "s.jsonl": event(0, 1) + event(1, 7)},
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), prog_name="kaicep")


def test_check_starts_nothing(folder: Path) -> None:
    done = call("run", "--check")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "tried: ok"
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (
            'tick = "20ms"',
            'tack = "20ms"',
            ["has no tack", "kaicep.toml:2:1", "did you mean tick?"],
        ),
        ('tick = "20ms"', 'tick = "soon"', ["tick is not a duration", "kaicep.toml:2:1"]),
        ('"20ms"', "20ms", ["this is not TOML", "kaicep.toml:2:"]),
        ('kind = "files", path', 'kind = "flies", path', ["no source of kind flies", "kaicep.toml:5:"]),
        (
            "follow = true",
            "folow = true",
            ["unknown option folow", "kaicep.toml:5:45", "did you mean follow?"],
        ),
        ('kind = "files"\npath', 'kind = "files"\nthrough', ["unknown option through", "kaicep.toml:9:1"]),
        (
            "[streams.s]",
            '[queries]\nfolder = "none"\n[streams.s]',
            ["there is no folder none", "kaicep.toml:5:1"],
        ),
        ("[streams.s]", "[streams.s]\nlateness = 5", ["lateness is not a duration", "kaicep.toml:5:1"]),
        ("[streams.s]", '[streams.s]\ntypes = {x = "whole"}', ["unknown type whole", "kaicep.toml:5:"]),
        ("[streams.s]", '[streams.s]\nannotation = "no.json"', ["cannot read the annotation file", "5:1"]),
        (
            "[streams.s]",
            '[engine]\nkind = "sparc"\n[streams.s]',
            ["there is no kind sparc", "kaicep.toml:5:1", "did you mean spark?"],
        ),
        (
            "[streams.s]",
            "[engine]\nbuckets = 4\n[streams.s]",
            ["buckets is for Spark", "kaicep.toml:5:1", 'kind = "spark"'],
        ),
        (
            "[streams.s]",
            '[engine]\nkind = "spark"\nmaster = "local"\nremote = "sc://a"\n[streams.s]',
            ["there is a master and a remote", "kaicep.toml:7:1"],
        ),
        (
            "[streams.s]",
            '[queries]\nfoldr = "q"\n[streams.s]',
            ["queries has no foldr", "did you mean folder?"],
        ),
        ('tick = "20ms"', 'listen = "everywhere"', ["everywhere is not an address", "kaicep.toml:2:1"]),
        (
            "[streams.s]",
            '[knowledge]\nfiles = ["no.ttl"]\n[streams.s]',
            ["there is no knowledge file", "5:1"],
        ),
    ],
)
def test_mistakes_are_shown_at_their_line(folder: Path, old: str, new: str, shown: list[str]) -> None:
    assert old in TOML
    write(folder, {"kaicep.toml": TOML.replace(old, new)})
    done = call("run", "--check")
    assert done.exit_code == 2, done.output
    for each in shown:
        assert each in done.stderr


def test_a_wrong_query_is_found_by_check(folder: Path) -> None:
    write(folder, {"queries/bad.chi": "SELECT ?e.x FROM (?e, nowhere)"})
    done = call("run", "--check")
    assert done.exit_code == 2
    assert "bad.chi:1:" in done.stderr


def test_without_a_file_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["run"], ["status"], ["follow", "high"]):
        done = call(*command)
        assert done.exit_code == 2
        assert "cannot read the deployment kaicep.toml" in done.stderr


def test_of_a_deployment_that_does_not_run_there_is_nothing_to_show(folder: Path) -> None:
    for command in (["status"], ["follow", "high"]):
        done = call(*command)
        assert done.exit_code == 1
        assert "tried is not running: start it with kaicep run kaicep.toml" in done.stderr


def test_a_source_that_ends_ends_the_run_and_all_matches_are_counted(folder: Path) -> None:
    write(folder, {"kaicep.toml": TOML.replace(", follow = true", "")})
    with logging_to_stderr_undone():
        done = call("run")
    assert done.exit_code == 0
    assert "high: complete, 1 matches" in done.stderr
    assert "all sources have ended" in done.stderr


@contextmanager
def logging_to_stderr_undone() -> Iterator[None]:
    """A run adds a handler for its stderr, which here is not that of the process."""
    logger = logging.getLogger("kaicep")
    before = logger.handlers[:]
    try:
        yield
    finally:
        logger.handlers[:] = before


@pytest.mark.parametrize(
    ("old", "new", "status", "shown"),
    [
        (
            'path = "s.jsonl"',
            'path = "nowhere/s.jsonl"',
            2,
            "stream s: cannot read nowhere/s.jsonl: No such file",
        ),
        ('path = "out.jsonl"', 'path = "nowhere/out.jsonl"', 2, "there is no folder nowhere"),
        ('tick = "20ms"', 'state = "kaicep.toml/state"', 2, "cannot make the state folder"),
        ('tick = "20ms"', 'listen = "127.0.0.1:{port}"', 2, "another program listens there"),
        ('tick = "20ms"', 'archive.folder = "newer"', 1, "Unsupported minimum reader version 99"),
    ],
)
def test_what_keeps_a_deployment_from_starting_is_told(
    folder: Path, old: str, new: str, status: int, shown: str
) -> None:
    """A folder that is missing, a port in use, an archive of a version that this one cannot read."""
    table = Archive(folder / "newer").made("s", TableShape((("ts", Type.TIMESTAMP), ("x", Type.INT64)))).table
    first = table.folder / "_delta_log" / f"{0:020d}.json"
    first.write_text(first.read_text().replace('"minReaderVersion":1', '"minReaderVersion":99'))
    (first.parent / "_checksums").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken, logging_to_stderr_undone():
        port = str(taken.getsockname()[1])
        write(folder, {"kaicep.toml": TOML.replace(old, new.replace("{port}", port))})
        done = call("run", "--seconds", "0")
    assert done.exit_code == status, done.output
    assert shown in done.stderr


@pytest.mark.slow
def test_it_runs_is_shown_and_followed_and_stops_when_asked_to(folder: Path) -> None:
    with running(folder, "--log", "json") as process:
        wait_for(lambda: matches(folder / "out.jsonl"), folder, process)
        wait_for(lambda: "1 matches written" in call("status").stdout, folder, process)
        shown = call("status")
        assert "stream s: 2 events, 0 late, 0 dead" in shown.stdout
        assert "query high: live, 1 matches, the last at 2012-05-07T09:00:01.000000Z" in shown.stdout
        assert json.loads(call("status", "--json").stdout)["streams"]["s"]["positions"] == {"0": 2}
        following = spawn(folder, "follow", "high", "--last", "5")
        wait_for(lambda: '"x": 7' in (folder / "log.txt").read_text(), folder, following)
        with (folder / "s.jsonl").open("a") as file:
            file.write(event(2, 9))
        wait_for(lambda: len(matches(folder / "out.jsonl")) == 2, folder, process)
        assert stopped(process) == 0
        assert following.wait(300) == 0
    log = (folder / "log.txt").read_text().splitlines()
    followed = [json.loads(each)["select"]["x"] for each in log if each.startswith('{"query"')]
    assert followed == [7, 9]
    assert any(json.loads(each).get("message") == "high: registered" for each in log if each.startswith("{"))
    assert not (folder / "state" / "address.json").exists()


@pytest.mark.slow
def test_asked_twice_it_stops_at_once_and_loses_nothing(folder: Path) -> None:
    port = 'url = "http://127.0.0.1:9/"'  # nobody is there, so that there is something to wait for
    write(folder, {"kaicep.toml": f'{TOML}\n[sinks.hook]\nkind = "webhook"\n{port}\npatience = "1h"\n'})
    with running(folder) as process:
        wait_for(lambda: matches(folder / "out.jsonl"), folder, process)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "press again to stop at once" in (folder / "log.txt").read_text(), folder, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 1
    write(folder, {"kaicep.toml": TOML.replace(", follow = true", "")})
    assert kaicep(folder, "run").returncode == 0
    assert [each["select"]["x"] for each in matches(folder / "out.jsonl")] == [7]


@pytest.mark.slow
def test_a_query_that_is_followed_by_its_file_is_registered_answered_and_edited(folder: Path) -> None:
    log, registered = folder / "log.txt", folder / "state" / "registered.json"
    write(folder, {"all.chi": HIGH.replace("> 5", "> 0"), "wrong.chi": "SELECT ?e.y FROM (?e, s)"})
    with running(folder) as process:
        wait_for(lambda: matches(folder / "out.jsonl"), folder, process)
        refused = kaicep(folder, "follow", "wrong.chi")
        assert (refused.returncode, "wrong.chi:1:8" in refused.stderr) == (2, True)
        first = spawn(folder, "follow", "all.chi")
        wait_for(lambda: _followed(log) == [1, 7], folder, first)  # back in time
        _append(folder, event(2, 9))
        wait_for(lambda: _followed(log) == [1, 7, 9], folder, first)  # and on
        first.kill()
        write(folder, {"all.chi": HIGH.replace("> 5", "> 8")})
        second = spawn(folder, "follow", "all.chi")
        wait_for(lambda: "> 8" in registered.read_text(), folder, second)
        _append(folder, event(3, 5), event(4, 10))
        wait_for(lambda: 10 in _followed(log), folder, second)
        assert stopped(process) == 0
        assert second.wait(300) == 0
    assert "all: changed, and starts over" in log.read_text()
    # No sink says `guests = true`, so those who follow are the only ones who get them.
    assert {each["query"] for each in matches(folder / "out.jsonl")} == {"high"}


def _append(folder: Path, *lines: str) -> None:
    with (folder / "s.jsonl").open("a") as file:
        file.writelines(lines)


def _followed(log: Path) -> list[int]:
    found = [each for each in log.read_text().splitlines() if each.startswith('{"query"')]
    return [json.loads(each)["select"]["x"] for each in found]


@pytest.mark.slow
def test_the_campus_is_killed_started_again_and_has_every_match_once(tmp_path: Path) -> None:
    folder = tmp_path / "campus"
    shutil.copytree(CAMPUS, folder, ignore=shutil.ignore_patterns("run"))
    with running(folder, state="run") as process:
        wait_for(lambda: matches(folder / "run" / "matches.jsonl"), folder, process)
        process.kill()
    with running(folder, state="run") as process:
        found = wait_for(lambda: _caught_up(folder), folder, process)
        assert len(found["queries"]) == 3
        assert stopped(process) == 0
    told = matches(folder / "run" / "matches.jsonl")
    data = [f"{name}=data/{name}.jsonl" for name in ("airflowReport", "roomOccupancy")]
    words = [word for each in data for word in ("--stream", each)]
    words += [
        word for each in sorted(folder.glob("data/knowledge/*.ttl")) for word in ("--knowledge", str(each))
    ]
    for each in sorted(folder.glob("data/annotations/*.json")):
        words += ["--annotation", str(each)]
    queries = [str(each) for each in sorted((folder / "live").glob("*.chi"))]
    whole = kaicep(folder, "match", *queries, *words, "--lateness", "5min")
    assert whole.returncode == 0, whole.stderr
    reached = min(str(each["watermark"]) for each in found["queries"].values())
    certain = [each for each in map(json.loads, whole.stdout.splitlines()) if each["end"] < reached]
    assert [each for each in sorted(told, key=_order) if each["end"] < reached] == certain
    assert len(certain) > 50


def _order(match: dict[str, str]) -> tuple[str, str]:
    return match["end"], match["id"]


def _caught_up(folder: Path) -> dict[str, dict[str, dict[str, object]]] | None:
    done: subprocess.CompletedProcess[str] = kaicep(folder, "status", "--json")
    if done.returncode:
        return None
    found: dict[str, dict[str, dict[str, object]]] = json.loads(done.stdout)
    live = all(each["state"] == "live" for each in found["queries"].values())
    return found if live and found["streams"]["airflowReport"]["positions"] == {"0": 2792} else None
