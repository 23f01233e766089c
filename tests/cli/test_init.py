"""`kaicep init`: a folder that works as it is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kaicep.api import open_run
from kaicep.deployment.config import load_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder as the command makes it, and the commands that it prints."""
    folder = tmp_path_factory.mktemp("init") / "my store"
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", "init", str(folder)],
        env=with_path(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return folder, [line[2:] for line in done.stdout.splitlines() if line.startswith("  ")]


def with_path() -> dict[str, str]:
    """The environment, with what these tests import and with the command of this Python."""
    paths = os.pathsep.join(each for each in sys.path if each)
    return {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}


def matches(folder: Path, *names: str) -> list[Any]:
    run = open_run(
        queries=[folder / "queries" / f"{name}.chi" for name in names],
        streams=[(name, folder / "data" / f"{name}.jsonl") for name in ("temperature", "door")],
        knowledge=[folder / "knowledge.ttl"],
        annotations=sorted((folder / "annotations").glob("*.json")),
    )
    assert (run.dead, run.diagnostics) == ([], ())
    return run.matches()


def records(folder: Path, stream: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / f"{stream}.jsonl").read_text().splitlines()]


def warm(folder: Path) -> list[tuple[str, float]]:
    found = [
        (each["freezer"], each.get("celsius", each.get("temp_c"))) for each in records(folder, "temperature")
    ]
    return [(freezer, celsius) for freezer, celsius in found if celsius > -15]


def test_it_prints_where_to_go_and_two_commands(made: tuple[Path, list[str]]) -> None:
    folder, (change, *commands) = made
    assert shlex.split(change) == ["cd", str(folder)]
    assert len(commands) == 2
    readme = (folder / "README.md").read_text("utf-8")
    assert all(f"```sh\n{command}\n```" in readme for command in commands)


def follow(folder: Path, command: str) -> str:
    """What a printed command prints."""
    program, *words = shlex.split(command)
    assert program == "kaicep"
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", *words],
        cwd=folder, env=with_path(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_command_shows_the_vaccine(made: tuple[Path, list[str]]) -> None:
    folder, (_, command, _) = made
    header, _, *rows = follow(folder, command).splitlines()
    assert header.split()[4:] == ["freezer", "temperature", "goods", "events"]
    assert len(rows) == len([each for each in warm(folder) if each[0] == "F3"])
    assert all("cold-store#lot17" in row for row in rows)


@pytest.mark.slow
def test_the_second_command_runs_the_deployment(made: tuple[Path, list[str]], tmp_path: Path) -> None:
    """It answers all five queries, as they are answered over the files."""
    folder, (_, _, command) = made
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    follow(copy, command)
    told = [json.loads(line)["id"] for line in (copy / "matches.jsonl").read_text().splitlines()]
    names = [path.stem for path in sorted((folder / "queries").iterdir())]
    assert len(names) == 5
    assert sorted(told) == sorted(each.id for each in matches(folder, *names))


def test_its_own_tests_pass(made: tuple[Path, list[str]]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=made[0], env=with_path(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout


def test_what_the_deployment_needs_is_named_where_it_is_missing(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaicep.cli.first_steps.find_spec", lambda name: None)
    *_, install, start = run("init", "new").stdout.splitlines()
    assert (install, start) == ("  pip install 'kaicep[delta]'", "  kaicep run kaicep.toml")


def test_the_deployment_is_well_formed(made: tuple[Path, list[str]]) -> None:
    config = load_config(made[0] / "kaicep.toml")
    assert list(config.streams) == ["temperature", "door"]
    assert [each.stream for each in config.annotations] == ["temperature", "door"]


def test_a_filter_finds_what_both_makers_call_temperature(made: tuple[Path, list[str]]) -> None:
    found = [(each.select["freezer"], each.select["temperature"]) for each in matches(made[0], "too-warm")]
    assert sorted(found) == sorted(warm(made[0]))
    assert {freezer for freezer, _ in found} == {"F3", "F4"}


def test_knowledge_leaves_the_ice_cream_out(made: tuple[Path, list[str]]) -> None:
    found = matches(made[0], "vaccine-at-risk")
    assert [("F3", each.select["temperature"]) for each in found] == [
        e for e in warm(made[0]) if e[0] == "F3"
    ]
    assert {each.select["goods"] for each in found} == {"http://example.org/cold-store#lot17"}


def test_the_planted_door_is_found_by_absence_and_by_sequence(made: tuple[Path, list[str]]) -> None:
    found = matches(made[0], "left-open", "warming")
    assert [(each.query, each.select["freezer"]) for each in found] == [
        ("left-open", "F3"),
        ("warming", "F3"),
    ]


def test_the_average_of_half_an_hour(made: tuple[Path, list[str]]) -> None:
    found = [(each.select["freezer"], each.select["average"]) for each in matches(made[0], "average")]
    assert {freezer for freezer, _ in found} == {"F3", "F4"}
    at_half_past = [
        each["temp_c"]
        for each in records(made[0], "temperature")
        if each["freezer"] == "F3" and "T07:00" <= each["ts"][10:16] < "T07:30"
    ]
    [average] = [value for freezer, value in found if freezer == "F3"]
    assert average == pytest.approx(sum(at_half_past) / len(at_half_past))


def test_the_same_seed_gives_the_same_bytes(made: tuple[Path, list[str]], tmp_path: Path) -> None:
    def again(seed: int) -> bytes:
        command = [
            sys.executable,
            str(made[0] / "generate.py"),
            "--seed",
            str(seed),
            "--folder",
            str(tmp_path),
        ]
        subprocess.run(command, check=True, timeout=300)
        return (tmp_path / "temperature.jsonl").read_bytes()

    assert again(1) == (made[0] / "data" / "temperature.jsonl").read_bytes()
    assert again(2) != again(1)


def test_nothing_but_the_files_is_there(made: tuple[Path, list[str]]) -> None:
    left = {path.name for path in made[0].iterdir()} - {"__pycache__", ".pytest_cache"}
    assert left == {
        "README.md", "annotations", "data", "generate.py", "kaicep.toml", "knowledge.ttl", "queries",
        "test_queries.py",
    }  # fmt: skip


def test_a_folder_with_something_in_it_is_refused(run: Callable[..., Any], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    result = run("init", str(there))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {there} is not empty" in result.stderr
    assert [each.name for each in there.iterdir()] == ["mine.txt"]


def test_a_file_is_refused(run: Callable[..., Any]) -> None:
    result = run("init", "air.jsonl")
    assert result.exit_code == 2
    assert "error: air.jsonl is a file" in result.stderr


def test_an_empty_folder_will_do(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("init", "empty").exit_code == 0
    assert (tmp_path / "empty" / "queries" / "too-warm.chi").is_file()
