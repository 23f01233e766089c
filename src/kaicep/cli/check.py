"""`kaicep check`: what is wrong with queries, and what is worth knowing about them, without running them."""

from __future__ import annotations

import sys

import typer

from kaicep.cli.arguments import (
    Annotations,
    DeploymentFile,
    KnowledgeFiles,
    Queries,
    Reasoning,
    Streams,
    inputs_of,
)
from kaicep.cli.guard import has_colour, warn
from kaicep.errors import painted

__all__ = ["check"]


def check(
    queries: Queries = None,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    deployment: DeploymentFile = None,
    reasoning: Reasoning = None,
) -> None:
    """Parse, resolve and type-check queries.

    Streams and annotations are optional, and help.

    Example: kaicep check rise.chi --stream air=air.jsonl

    Example: kaicep check --deployment campus/kaicep.toml
    """
    given = inputs_of(queries, stream, knowledge, annotation, reasoning, deployment)

    from kaicep.api import open_run

    with given.looked_beside():
        run = open_run(given.queries, given.streams, given.knowledge, given.annotations, given.reasoning)
    warn(run.diagnostics, hints=True)
    for query in run.program.queries:
        reads = f", reads {', '.join(query.reads)}" if query.reads else ""
        ok = painted("ok", "32" if has_colour(sys.stdout) else "")
        typer.echo(f"{query.name}: {ok} ({query.language}{reads})")
