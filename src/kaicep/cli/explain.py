"""`kaicep explain`: the plan of queries, as a person or a machine reads it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kaicep.api import explanations
from kaicep.cli.arguments import (
    REASONING,
    Annotations,
    KnowledgeFiles,
    Now,
    Queries,
    Reasoning,
    Streams,
    choose,
    files,
    moment,
    named_streams,
    query_files,
)
from kaicep.cli.guard import warn

__all__ = ["explain"]


def explain(
    queries: Queries,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = "rdfs",
    now: Now = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
    sparql: Annotated[
        bool, typer.Option("--sparql", help="Each query as one SPARQL query over the archive's RDF view.")
    ] = False,
    spark_sql: Annotated[
        bool, typer.Option("--spark-sql", help="Each query as one Spark SQL query over the archive's tables.")
    ] = False,
) -> None:
    """Show how queries are understood: their plans, as trees.

    Example: kaicep explain rise.chi --stream air=air.jsonl --knowledge campus.ttl
    """
    streams = named_streams(stream or ())
    paths = query_files(queries, streams)
    choose("--reasoning", reasoning, REASONING)
    known, annotations = files("--knowledge", knowledge, folders=True), files("--annotation", annotation)
    instant = moment("--now", now)

    from kaicep.api import open_run
    from kaicep.plan.explain import explain_json, explain_text

    run = open_run(paths, streams, known, annotations, reasoning, now=instant)
    warn(run.diagnostics)
    if sparql:
        from kaicep.archive.rewrite.sparql import rewrite_to_sparql

        for each in run.program.queries:
            typer.echo(f"# {each.name}\n{rewrite_to_sparql(each, run.catalog).text}")
    elif spark_sql:
        from kaicep.endtoend.sql_rewriting import sql_of

        for each in run.program.queries:
            typer.echo(f"-- {each.name}\n{sql_of(each, run.catalog, run.knowledge).text}")
    elif as_json:
        typer.echo(json.dumps(explain_json(explanations(run)), ensure_ascii=False, indent=2))
    else:
        typer.echo(explain_text(explanations(run)).rstrip("\n"))
