"""`kaicep lsp`: the language server for editors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kaicep.errors import Diagnostic, Mistake

__all__ = ["lsp"]


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
