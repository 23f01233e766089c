"""`kaicep console`: a browser on a running deployment."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from kaicep.cli.run import DeploymentFile

__all__ = ["console"]


def console(
    deployment: DeploymentFile = Path("kaicep.toml"),
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open nothing.", show_default=False)
    ] = False,
) -> None:
    """Open the console of a running deployment in a browser.

    Example: kaicep console campus/kaicep.toml
    """
    from kaicep.endtoend.config import load_config
    from kaicep.server.client import Client

    url = f"{Client(load_config(deployment)).url}/console"
    typer.echo(url)
    if not no_browser and not webbrowser.open(url):
        typer.echo("no browser opens here: visit the address", err=True)
