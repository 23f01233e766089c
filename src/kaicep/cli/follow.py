"""`kaicep follow`: the matches of a query of a running deployment, as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["follow"]


def follow(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The name of a query.")],
    deployment: Annotated[
        Path, typer.Option("--deployment", metavar="TOML", help="The file that describes the deployment.")
    ] = Path("kaicep.toml"),
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Begin with so many of the matches so far.")
    ] = 0,
) -> None:
    """Print the matches of a running query as they come.

    The query is one of a running deployment; each match is one JSON object on a line of its own.

    Example: kaicep follow query7 --deployment campus/kaicep.toml --last 5
    """
    from kaicep.endtoend.config import load_config
    from kaicep.server.client import Client

    for line in Client(load_config(deployment)).matches(query, last):
        typer.echo(line)
