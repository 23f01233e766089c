"""The walks in docs/internals.md: each function that they name is called, in that order, by the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kaicep

PACKAGE = Path(kaicep.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "internals.md"

# Writes down the functions of the package that a command calls, each once, in the order of the first call.
TRACED = """
import json, sys, threading
from pathlib import Path

package, out, *words = sys.argv[1:]
called = {}

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        called.setdefault((Path(code.co_filename).relative_to(package).as_posix(), code.co_qualname))

from kaicep.cli.main import app

threading.setprofile(note)
sys.setprofile(note)
try:
    app(words, standalone_mode=False)
finally:
    sys.setprofile(None)
    Path(out).write_text(json.dumps(list(called)))
"""
MATCH = [
    "match", "queries/vaccine-at-risk.chi", "--stream", "temperature=data/temperature.jsonl",
    "--annotation", "annotations/temperature.json", "--knowledge", "knowledge.ttl",
]  # fmt: skip


def walk_of(command: str) -> list[tuple[str, str]]:
    """The files of a walk, each with its function, in the order of the page."""
    _, section = PAGE.read_text("utf-8").split(f"\n`kaicep {command}`, ")
    lines = section.split("\n\n")[1].splitlines()
    found = [re.match(r"\d+\. `([\w/.]+)`, `([\w.]+)`: ", line) for line in lines]
    assert all(found)
    return [(each[1], each[2]) for each in found if each]


def traced(folder: Path, words: list[str]) -> list[tuple[str, str]]:
    out = folder / "called.json"
    program = [sys.executable, "-c", TRACED, str(PACKAGE), str(out), *words]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=500)
    assert out.is_file(), done.stderr
    return [(file, function) for file, function in json.loads(out.read_text("utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words", "most", "rooms"),
    [
        ("match", MATCH, 15, "cli api.py connectors language knowledge plan optimize hosts kernel"),
        ("run", ["run"], 20, "cli deployment server archive connectors query.py join hosts kernel"),
    ],
)
def test_a_walk_is_what_a_command_does(
    command: str, words: list[str], most: int, rooms: str, tmp_path: Path
) -> None:
    for package in ("deltalake", "starlette", "uvicorn") if command == "run" else ():
        pytest.importorskip(package)
    walk = walk_of(command)
    assert len({file for file, _ in walk}) == len(walk) <= most
    assert {file.split("/")[0] for file, _ in walk} == set(rooms.split())

    subprocess.run([sys.executable, "-m", "kaicep", "init", str(tmp_path)], check=True, capture_output=True)
    for query in (tmp_path / "queries").iterdir():
        if query.stem != "vaccine-at-risk":
            query.unlink()
    called = traced(tmp_path, words)
    assert set(walk) <= set(called)
    assert sorted(walk, key=called.index) == walk
