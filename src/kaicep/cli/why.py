"""`kaicep why`: what made a match, or what kept events from being one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import (
    REASONING,
    Annotations,
    KnowledgeFiles,
    Now,
    Reasoning,
    Streams,
    choose,
    duration,
    files,
    moment,
    named_streams,
    query_files,
)
from kaicep.cli.guard import warn
from kaicep.errors import Diagnostic, Mistake, did_you_mean

if TYPE_CHECKING:
    from kaicep.api import Run

__all__ = ["why"]


def why(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MATCH_ID QUERY...",
            help="The id of a match, or its beginning, and the query files; with --not only these.",
            show_default=False,
        ),
    ],
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = "rdfs",
    now: Now = None,
    lateness: Annotated[
        str | None,
        typer.Option("--lateness", metavar="DURATION", help="As it was given to `kaicep match`."),
    ] = None,
    negated: Annotated[
        bool, typer.Option("--not", help="Why there is no match: needs --near TIME.", show_default=False)
    ] = False,
    near: Annotated[
        str | None, typer.Option("--near", metavar="TIME", help="The time near which one was expected.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="VALUE", help="Only events that have this value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The reasons as JSON.")] = False,
) -> None:
    """Tell why there is a match, or why there is none.

    Example: kaicep why 3f2a07 query7.chi --stream air=air.jsonl --knowledge campus.ttl

    Example: kaicep why --not query7.chi --near 2012-05-07T09:30 --key B-204 --stream air=air.jsonl
    """
    id, paths = ("", words) if negated else (words[0], words[1:])
    if not paths:
        raise Mistake(
            Diagnostic("no query is given", hint="such as kaicep why 3f2a07 QUERY.chi --stream NAME=FILE")
        )
    streams = named_streams(stream or ())
    queries = query_files([Path(each) for each in paths], streams)
    choose("--reasoning", reasoning, REASONING)
    known, annotations = files("--knowledge", knowledge, folders=True), files("--annotation", annotation)
    instant, allowed, wanted = moment("--now", now), duration("--lateness", lateness), moment("--near", near)

    from kaicep.api import open_run

    run = open_run(queries, streams, known, annotations, reasoning, allowed, instant)
    warn(run.warnings)
    typer.echo(_not(run, wanted, key, as_json) if negated else _why(run, id, as_json))


def _why(run: Run, id: str, as_json: bool) -> str:
    from kaicep.why.match import find_match, why
    from kaicep.why.text import why_json, why_text

    matches = run.matches()
    match = find_match(matches, id)
    events = [each for batch in run.batches for each in batch if not each.late]
    reason = why(match, run.program, run.catalog, run.knowledge, events, matches)
    if as_json:
        return json.dumps(why_json(reason), ensure_ascii=False, indent=2)
    return why_text(reason, dict(run.catalog.known_prefixes(reason.plan.prefixes)))


def _not(run: Run, near: int | None, key: str | None, as_json: bool) -> str:
    from kaicep.why.misses import why_not
    from kaicep.why.text import why_not_json, why_not_text

    if near is None:
        raise Mistake(Diagnostic("--not needs to know when", hint="such as --near 2012-05-07T09:30"))
    if len(run.program.queries) > 1:
        names = [each.name for each in run.program.queries]
        raise Mistake(Diagnostic("--not is about one query", hint=did_you_mean(names[0], names)))
    events = [each for batch in run.batches for each in batch]
    reason = why_not(run.program.queries[0], run.catalog, run.knowledge, events, near, key)
    if as_json:
        return json.dumps(why_not_json(reason), ensure_ascii=False, indent=2)
    dead = len(run.dead)
    note = f"\n\n{dead} records of the run could not be read at all" if dead else ""
    return why_not_text(reason) + note
