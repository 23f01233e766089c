"""An example run in a copy of its folder: as its README says, or as its `kaicep.toml` does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
LEFT_OUT = shutil.ignore_patterns("made", "made.jsonl", "state", "__pycache__")


def script(folder: Path, name: str, *arguments: str) -> None:
    """Runs a script of a folder, in that folder."""
    subprocess.run([sys.executable, name, *arguments], cwd=folder, check=True, timeout=120)


def copied(example: str, folder: Path) -> Path:
    """A copy of an example without what it made."""
    return Path(shutil.copytree(EXAMPLES / example, folder / example, ignore=LEFT_OUT))


def as_its_readme_says(example: str, folder: Path) -> tuple[Path, list[str]]:
    """The copy of an example after all commands of its README, and the lines that they printed."""
    copy = copied(example, folder / "examples")
    programs = folder / "bin"
    programs.mkdir()
    for name, call in (("python", ""), ("kaicep", "-m kaicep")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    blocks = re.findall(r"^```sh\n(.*?)^```$", (copy / "README.md").read_text("utf-8"), re.M | re.S)
    assert blocks
    said = []
    for block in blocks:
        env = environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        command = ["bash", "-e", "-c", block]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said += done.stdout.splitlines()
    return copy, said


def environment() -> dict[str, str]:
    """The environment of this process, with what it imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def deployed(folder: Path, matches: str) -> list[dict[str, Any]]:
    """What `kaicep run` leaves in the file of matches."""
    command = [sys.executable, "-m", "kaicep", "run", "kaicep.toml"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return read(folder / matches)


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
