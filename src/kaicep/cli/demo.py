"""`kaicep demo`: a campus comes alive, and the queries find what happens there."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import choose
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from kaicep.demo.views import View

__all__ = ["demo"]

_SCALES = ("small", "campus", "city")


def demo(
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="|".join(_SCALES),
            help="60, 10,200 or 51,000 airflow sensors; the last takes minutes.",
        ),
    ] = "campus",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed, another campus.")] = 7,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="How long it goes on live; Ctrl-C ends it too.")
    ] = 20.0,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Leave everything in this folder, new or empty."),
    ] = None,
) -> None:
    """Show what kaicep does, on a campus made from a seed.

    Its morning is archived, by Spark where there is Java. Thirteen queries run back in time over it and go
    on live; each match tells its room, its department, and why it is one.

    Example: kaicep demo --scale small --keep my-campus
    """
    began = time.perf_counter()
    choose("--scale", scale, _SCALES)
    if not seconds > 0:
        raise Mistake(Diagnostic(f"--seconds: {seconds:g} is no time to look at anything", hint="such as 20"))

    from kaicep.cli.progress import compile_kernel
    from kaicep.demo.run import Options, run

    compile_kernel()
    run(Options(scale, seed, seconds, keep, _called()), _view(), began)


def _view() -> View:
    from kaicep.demo.views import Plain, Terminal

    if not sys.stdout.isatty():
        return Plain()
    try:
        from rich.console import Console
    except ImportError:
        return Plain()
    return Terminal(Console())


def _called() -> str:
    """How this command is called here."""
    if shutil.which("kaicep"):
        return "kaicep"
    name = sys.argv[0]
    return name if Path(name).name == "kaicep" else f"{shlex.quote(sys.executable)} -m kaicep"
