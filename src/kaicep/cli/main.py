"""The command `kaicep`: its greeting, its version, and the list of its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from kaicep import __version__
from kaicep.cli.archive import archive, ingest
from kaicep.cli.arguments import guarded
from kaicep.cli.deployment import console, follow, lsp, run, status
from kaicep.cli.first_steps import bench, demo, doctor, init
from kaicep.cli.knowledge import knowledge
from kaicep.cli.live import live
from kaicep.cli.match import check, explain, match, query
from kaicep.cli.why import why

GREETING = """\
kaicep finds patterns in streams of events, and knows what the events are about.

  kaicep demo                                       see what it does, on a simulated campus
  kaicep match QUERY.chi --stream NAME=FILE.jsonl   run a query over a file of events
  kaicep doctor                                     check that this machine has everything it needs

`kaicep --help` lists all commands, `kaicep match --help` the options of one."""

app = typer.Typer(
    name="kaicep",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def greet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Find patterns in streams of events, using what is known about them.

    Example: kaicep match rise.chi --stream air=air.jsonl --knowledge campus.ttl --out table
    """
    if version:
        typer.echo(f"kaicep {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(GREETING)


COMMANDS = (
    *(match, check, explain, ingest, query, demo, init, run, status, follow, console),
    *(doctor, bench, why, lsp),
)

for command in COMMANDS:
    app.command()(guarded(command))

app.add_typer(knowledge)
app.add_typer(live)
app.add_typer(archive)


def main() -> None:
    """Runs the command line and ends the process with its exit status."""
    app(prog_name="kaicep")
