"""`kaicep init`: a folder to start from, with events, knowledge, queries and a test, all of it working."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kaicep.errors import Diagnostic, Mistake

__all__ = ["init"]

_UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")
_MATCH = (
    "kaicep match queries/vaccine-at-risk.chi --stream temperature=data/temperature.jsonl "
    "--annotation annotations/temperature.json --knowledge knowledge.ttl --out table"
)
_RUN = "kaicep run kaicep.toml"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default=False)
    ],
) -> None:
    """Create a working project to start from.

    Events, knowledge, annotations, five queries, a test of them, and a deployment.

    Example: kaicep init cold-store
    """
    from importlib.resources import as_file, files

    _check_empty(folder)
    with as_file(files("kaicep.examples") / "start") as start:
        # Not their modes: where the package is read-only, the folder is not.
        shutil.copytree(start, folder, ignore=_UNWANTED, copy_function=shutil.copyfile, dirs_exist_ok=True)

    from kaicep.examples.start.generate import write

    write(folder / "data")
    typer.echo(f"{folder} has four freezers, what lies in them, and five queries: see its README.md. Next:\n")
    for command in (f"cd {shlex.quote(str(folder))}", _MATCH, *_install(), _RUN):
        typer.echo(f"  {command}")


def _install() -> list[str]:
    """What a deployment keeps its archive with, where it is not here yet."""
    return [] if find_spec("deltalake") else ["pip install 'kaicep[delta]'"]


def _check_empty(folder: Path) -> None:
    if folder.is_symlink() or folder.exists():
        if not folder.is_dir():
            raise Mistake(Diagnostic(f"{folder} is a file", hint="name a new or empty folder"))
        if any(folder.iterdir()):
            hint = "nothing is overwritten: name a new or empty folder"
            raise Mistake(Diagnostic(f"{folder} is not empty", hint=hint))
