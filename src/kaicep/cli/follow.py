"""`kaicep follow`: the matches of a query of a running deployment, as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["follow"]

_ALL = 1_000_000


def follow(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="The name of a query; or the file of one, which is registered first, or replaced.",
        ),
    ],
    deployment: Annotated[
        Path, typer.Option("--deployment", metavar="TOML", help="The file that describes the deployment.")
    ] = Path("kaicep.toml"),
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=0,
            help="Begin with so many of the matches so far: none by default; of a file, all that are known.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the matches of a running query as they come.

    The query is one of a running deployment; each match is one JSON object on a line of its own. A query
    that is given as a file is answered back in time first, if its WITHIN says so, and stays registered.

    Example: kaicep follow query7 --deployment campus/kaicep.toml --last 5
    """
    from kaicep.endtoend.config import load_config
    from kaicep.endtoend.registered import SUFFIXES
    from kaicep.server.client import Client

    languages = {suffix: language for language, suffix in SUFFIXES.items()}
    file = Path(query)
    if file.suffix not in languages:
        for line in Client(load_config(deployment)).matches(query, last or 0):
            typer.echo(line)
        return

    from kaicep.plan.toml import read_source

    text = read_source(file, "query").text
    client = Client(load_config(deployment))
    client.register(file.stem, languages[file.suffix], text)
    for line in client.matches(file.stem, _ALL if last is None else last):
        typer.echo(line)
