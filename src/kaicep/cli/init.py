"""`kaicep init`: a folder to start from, with events, knowledge, queries and a test, all of it working."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kaicep.cli.arguments import choose
from kaicep.errors import Diagnostic, Mistake

__all__ = ["init"]

_TEMPLATES = ("start", "building")
_UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc")
_MATCH = (
    "kaicep match queries/vaccine-at-risk.chi --stream temperature=data/temperature.jsonl "
    "--annotation annotations/temperature.json --knowledge knowledge.ttl --out table"
)
_RUN = "kaicep run kaicep.toml"
_RULES = "kaicep match --deployment kaicep.toml --out table"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default=False)
    ],
    template: Annotated[
        str, typer.Option("--template", metavar="|".join(_TEMPLATES), help="What the folder is about.")
    ] = "start",
) -> None:
    """Create a working project to start from.

    Events, knowledge, annotations, queries, a test of them, and a deployment: of a cold store, or of a
    building with a model, an export and sixteen rules.

    Example: kaicep init cold-store
    """
    from importlib.resources import as_file, files

    choose("--template", template, _TEMPLATES)
    _check_empty(folder)
    with as_file(files("kaicep.examples") / template) as start:
        # Not their modes: where the package is read-only, the folder is not.
        shutil.copytree(start, folder, ignore=_UNWANTED, copy_function=shutil.copyfile, dirs_exist_ok=True)

    if template == "start":
        from kaicep.examples.start.generate import write

        write(folder / "data")
        what, command = "four freezers, what lies in them, and five queries", _MATCH
    else:
        from kaicep.examples.building.generate import write as write_building

        write_building(folder)
        what, command = "two air handlers, four rooms, a day of 54 points, and sixteen rules", _RULES
    typer.echo(f"{folder} has {what}: see its README.md. Next:\n")
    for each in (f"cd {shlex.quote(str(folder))}", command, *_install(), _RUN):
        typer.echo(f"  {each}")


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
