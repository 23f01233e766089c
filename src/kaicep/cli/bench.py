"""`kaicep bench`: what kaicep costs on this machine."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kaicep.cli.arguments import choose
from kaicep.errors import Diagnostic, Failure, Mistake

__all__ = ["bench"]


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The benchmark. Without it: the list.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Little input: to see that it works.")] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="`constructs` beside Esper, which needs Java and Maven.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Where `figures` leaves its files (default: benchmarks/results).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure how fast kaicep is on this machine. Needs a clone of the repository.

    Without a name, list what can be measured.

    Example: kaicep bench startup --json
    """
    if find_spec("kaicep_bench") is None:
        raise Mistake(
            Diagnostic(
                "the benchmarks are not installed: they are in kaicep's repository, not in its package",
                hint="clone the repository and run `pip install -e '.[all]'` in it",
            )
        )
    from kaicep_bench import BENCHMARKS, run
    from kaicep_bench.table import as_json as for_machines
    from kaicep_bench.table import as_text

    if name is None:
        width = max(map(len, BENCHMARKS))
        for each, what in BENCHMARKS.items():
            typer.echo(f"{each:{width}}  {what}")
        typer.echo("\n`kaicep bench NAME` runs one of them.")
        return
    choose("bench", name, BENCHMARKS)
    if output is not None and name != "figures":
        raise Mistake(Diagnostic(f"{name} leaves no files", hint="--output is for `kaicep bench figures`"))
    if peers and name != "constructs":
        raise Mistake(
            Diagnostic(f"{name} has no choice of peers", hint="--peers is for `kaicep bench constructs`")
        )
    report = run(name, quick, output, peers)
    typer.echo(json.dumps(for_machines(report), indent=2) if as_json else as_text(report))
    if report.failures:
        raise Failure("not everything could be measured:\n" + "\n".join(report.failures))
