"""`kaicep console` and `kaicep lsp`: help for people at a browser and in an editor."""

from __future__ import annotations

import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kaicep.cli.run import DeploymentFile
from kaicep.errors import Diagnostic, Mistake

__all__ = ["lsp", "console"]


# ----------------------------------------------------------------------------------------------------------
# `kaicep lsp`: the language server for editors.


def lsp(
    deployment: Annotated[
        Path | None,
        typer.Option(
            "--deployment",
            metavar="TOML",
            help="The deployment that the queries belong to; else the nearest kaicep.toml above them.",
        ),
    ] = None,
) -> None:
    """Start the language server for editors.

    Example: kaicep lsp --deployment campus/kaicep.toml
    """
    for each in ("pygls", "deltalake"):
        if find_spec(each) is None:
            hint = "pip install 'kaicep[lsp,delta]'"
            raise Mistake(Diagnostic(f"the language server needs the package {each}", hint=hint))

    from kaicep.assist.lsp import serve

    serve(deployment)


# ----------------------------------------------------------------------------------------------------------
# `kaicep console`: a browser on a running deployment.


def console(
    deployment: DeploymentFile = Path("kaicep.toml"),
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open nothing.", show_default=False)
    ] = False,
) -> None:
    """Open the console of a running deployment in a browser.

    Example: kaicep console campus/kaicep.toml
    """
    from kaicep.deployment.config import load_config
    from kaicep.server.service import Client

    url = f"{Client(load_config(deployment)).url}/console"
    typer.echo(url)
    if not no_browser and not webbrowser.open(url):
        typer.echo("no browser opens here: visit the address", err=True)
