"""`kaicep check`: what is wrong with queries, and what is worth knowing about them, without running them."""

from __future__ import annotations

import typer

from kaicep.cli.arguments import (
    REASONING,
    Annotations,
    KnowledgeFiles,
    Queries,
    Reasoning,
    Streams,
    choose,
    files,
    named_streams,
    query_files,
)
from kaicep.cli.guard import warn

__all__ = ["check"]


def check(
    queries: Queries,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = "rdfs",
) -> None:
    """Parse, resolve and type-check queries.

    Streams and annotations are optional, and help.

    Example: kaicep check rise.chi --stream air=air.jsonl
    """
    streams = named_streams(stream or ())
    paths = query_files(queries, streams)
    choose("--reasoning", reasoning, REASONING)
    known, annotations = files("--knowledge", knowledge, folders=True), files("--annotation", annotation)

    from kaicep.api import open_run

    run = open_run(paths, streams, known, annotations, reasoning)
    warn(run.diagnostics, hints=True)
    for query in run.program.queries:
        reads = f", reads {', '.join(query.reads)}" if query.reads else ""
        typer.echo(f"{query.name}: ok ({query.language}{reads})")
