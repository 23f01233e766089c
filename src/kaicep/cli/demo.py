"""`kaicep demo`: a campus comes alive, and the queries find what happens there."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
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
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            help="How long it goes on live, by default 20; Ctrl-C ends it too.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Leave everything in this folder, new or empty."),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console", help="Keep the campus alive, and open its console in a browser.", show_default=False
        ),
    ] = False,
) -> None:
    """Show what kaicep does, on a simulated campus.

    Its morning is archived, by Spark where there is Java. Thirteen queries run back in time over it and go
    on live; each match tells its room, its department, and why it is one.

    Example: kaicep demo --scale small --keep my-campus

    Example: kaicep demo --console
    """
    began = time.perf_counter()
    choose("--scale", scale, _SCALES)
    if seconds is not None and not seconds > 0:
        raise Mistake(Diagnostic(f"--seconds: {seconds:g} is not more than 0", hint="such as 20"))

    from kaicep.cli.arguments import compile_kernel
    from kaicep.demo.run import Options, run

    compile_kernel()
    if console:
        _keep_alive(keep, scale, seed, seconds)
    else:
        run(Options(scale, seed, seconds or 20.0, keep, _called()), _view(), began)


def _keep_alive(keep: Path | None, scale: str, seed: int, seconds: float | None) -> None:
    from kaicep.cli.run import stopped_by_signals
    from kaicep.deployment.check import missing_packages

    if missing := missing_packages():
        raise Mistake(missing)
    from kaicep.demo.run import keep_alive

    def say(text: str) -> None:
        typer.echo(text)
        if "http" in text and sys.stdout.isatty():
            webbrowser.open(text[text.index("http") :])

    with TemporaryDirectory(prefix="kaicep-demo-") as made:
        folder = keep if keep is not None else Path(made)
        keep_alive(folder, scale, seed, seconds, say, stopped_by_signals)


def _view() -> View:
    from kaicep.demo.views import PlainView, Terminal

    if not sys.stdout.isatty():
        return PlainView()
    try:
        from rich.console import Console
    except ImportError:
        return PlainView()
    return Terminal(Console())


def _called() -> str:
    """How this command is called here."""
    if shutil.which("kaicep"):
        return "kaicep"
    name = sys.argv[0]
    return name if Path(name).name == "kaicep" else f"{shlex.quote(sys.executable)} -m kaicep"
