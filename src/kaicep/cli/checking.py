"""`kaicep check` and `kaicep explain`: what is wrong with queries, and how they will run."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from kaicep.api import explanations
from kaicep.cli.arguments import (
    Annotations,
    DeploymentFile,
    KnowledgeFiles,
    Now,
    Queries,
    Reasoning,
    Streams,
    has_colour,
    inputs_of,
    moment,
    warn,
)
from kaicep.errors import painted

# ----------------------------------------------------------------------------------------------------------
# `kaicep check`: what is wrong with queries, and what is worth knowing about them, without running them.


def check(
    queries: Queries = None,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    deployment: DeploymentFile = None,
    reasoning: Reasoning = None,
) -> None:
    """Parse, resolve and type-check queries.

    Streams and annotations are optional; with them, more mistakes are found.

    Example: kaicep check rise.chi --stream air=air.jsonl

    Example: kaicep check --deployment campus/kaicep.toml
    """
    given = inputs_of(queries, stream, knowledge, annotation, reasoning, deployment)

    from kaicep.api import open_run

    with given.looked_beside():
        run = open_run(given.queries, given.streams, *given.known)
    warn(run.diagnostics, hints=True)
    for query in run.program.queries:
        reads = f", reads {', '.join(query.reads)}" if query.reads else ""
        ok = painted("ok", "32" if has_colour(sys.stdout) else "")
        typer.echo(f"{query.name}: {ok} ({query.language}{reads})")


# ----------------------------------------------------------------------------------------------------------
# `kaicep explain`: the plan of queries, as a person or a machine reads it.


def explain(
    queries: Queries = None,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    deployment: DeploymentFile = None,
    reasoning: Reasoning = None,
    now: Now = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
    sparql: Annotated[
        bool, typer.Option("--sparql", help="Each query as one SPARQL query over the archive's RDF view.")
    ] = False,
    spark_sql: Annotated[
        bool, typer.Option("--spark-sql", help="Each query as one Spark SQL query over the archive's tables.")
    ] = False,
) -> None:
    """Show the plans of queries.

    Example: kaicep explain rise.chi --stream air=air.jsonl --knowledge campus.ttl
    """
    given = inputs_of(queries, stream, knowledge, annotation, reasoning, deployment)
    instant = moment("--now", now)

    from kaicep.api import open_run
    from kaicep.plan.explain import explain_json, explain_text

    with given.looked_beside():
        run = open_run(given.queries, given.streams, *given.known, now=instant)
    warn(run.diagnostics)
    if sparql:
        from kaicep.archive.as_sparql import rewrite_to_sparql

        for each in run.program.queries:
            typer.echo(f"# {each.name}\n{rewrite_to_sparql(each, run.catalog).text}")
    elif spark_sql:
        from kaicep.history.rewrite import sql_of

        for each in run.program.queries:
            typer.echo(f"-- {each.name}\n{sql_of(each, run.catalog, run.knowledge).text}")
    elif as_json:
        typer.echo(json.dumps(explain_json(explanations(run)), ensure_ascii=False, indent=2))
    else:
        typer.echo(explain_text(explanations(run)).rstrip("\n"))
