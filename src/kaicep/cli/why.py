"""`kaicep why`: what made a match, or what kept events from being one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import (
    Annotations,
    Inputs,
    KnowledgeFiles,
    Now,
    Reasoning,
    Streams,
    duration,
    files,
    inputs_of,
    moment,
    warn,
)
from kaicep.errors import Mistake

if TYPE_CHECKING:
    from kaicep.why.again import EventSource
    from kaicep.why.match import Why

_EXAMPLE = (
    "such as kaicep why 3f2a07 QUERY.chi --stream NAME=FILE, or kaicep why 3f2a07 --deployment kaicep.toml"
)


def why(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MATCH_ID QUERY...",
            help="The id of a match, or its beginning, then the query files. With --not: only the files, "
            "the one in question first. With --deployment: no files; --not takes the name of a query.",
            show_default=False,
        ),
    ],
    stream: Streams = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="DIR", help="The archive, instead of streams.")
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="Where you saw the match: a file of matches, or the folder of a Delta sink. Then only the "
            "events from its start to its end are read. May be given several times.",
        ),
    ] = None,
    deployment: Annotated[
        Path | None,
        typer.Option(
            "--deployment",
            metavar="TOML",
            help="A deployment, running or not: use its queries, knowledge, archive and sinks.",
        ),
    ] = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = None,
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
    """Explain why there is a match, or why there is none.

    Example: kaicep why 3f2a07 query7.chi --stream air=air.jsonl --knowledge campus.ttl

    Example: kaicep why 3f2a07 query7.chi --archive morning --results matches.jsonl --knowledge campus.ttl

    Example: kaicep why 3f2a07 --deployment campus/kaicep.toml

    Example: kaicep why --not query7.chi --near 2012-05-07T09:30 --key B-204 --stream air=air.jsonl

    Example: kaicep why --not query7 --near 2012-05-07T09:30 --deployment campus/kaicep.toml
    """
    given = {
        "--stream": stream,
        "--archive": archive,
        "--results": results,
        "--knowledge": knowledge,
        "--annotation": annotation,
        "--now": now,
        "--lateness": lateness,
    }
    _agree(given, deployment, negated)
    instant = _when(near) if negated else None
    # Entities that nobody knows were told when the match was; here they would only be in the way.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    if deployment is not None:
        typer.echo(_of_deployment(deployment, words, instant, key, as_json))
        return
    id, paths = ("", words) if negated else (words[0].lower(), words[1:])
    if not paths:
        raise Mistake("no query is given", hint=_EXAMPLE)
    inputs = inputs_of([Path(each) for each in paths], stream, knowledge, annotation, reasoning, None)
    if archive is not None:
        source = _archived(inputs, archive, moment("--now", now))
    else:
        source = _streams(inputs, duration("--lateness", lateness), moment("--now", now))
    if instant is not None:
        typer.echo(_not(source, inputs.queries[0].stem, instant, key, as_json))
    else:
        typer.echo(_told(source, _why(source, id, files("--results", results, folders=True)), as_json))


def _agree(given: Mapping[str, object], deployment: Path | None, negated: bool) -> None:
    """A mistake where options contradict each other."""
    there = [option for option, value in given.items() if value]
    if deployment is not None and there:
        hint = f"leave {there[0]}: what it says stands in {deployment}, or in what the deployment remembers"
        raise Mistake(f"{there[0]} does not go with --deployment", hint=hint)
    if given["--archive"] is not None:
        for option, hint in (
            ("--stream", "events come from the one or the other"),
            ("--lateness", "an archive remembers which events were late"),
        ):
            if given[option]:
                raise Mistake(f"{option} does not go with --archive", hint=hint)
    if negated and given["--results"]:
        raise Mistake("--results does not go with --not", hint="--near says when to look")


def _when(near: str | None) -> int:
    found = moment("--near", near)
    if found is None:
        raise Mistake("--not needs to know when", hint="such as --near 2012-05-07T09:30")
    return found


# --- where events are --------------------------------------------------------------------------------------


def _streams(given: Inputs, lateness: int | None, now: int | None) -> EventSource:
    from kaicep.api import open_run
    from kaicep.why import again

    with given.looked_beside():
        run = open_run(given.queries, given.streams, *given.known, lateness, now)
    warn(run.diagnostics)
    return again.Streams(run)


def _archived(given: Inputs, archive: Path, now: int | None) -> EventSource:
    from kaicep.archive.archive import Archive
    from kaicep.history.strategies import open_history
    from kaicep.why.again import Archived

    history = open_history(given.queries, Archive.open(archive), *given.known, now)
    snapshot = history.archive.snapshot()
    warn(history.diagnostics(snapshot))
    return Archived(history, snapshot)


def _of_deployment(path: Path, words: Sequence[str], near: int | None, key: str | None, as_json: bool) -> str:
    from kaicep.deployment.config import load_config
    from kaicep.why.again import Deployed

    if len(words) > 1:
        hint = "the queries are those of the deployment; with --not, one of them is named"
        raise Mistake(f"{words[1]} does not go with --deployment", hint=hint)
    deployed = Deployed.of(load_config(path))
    if near is not None:
        return _not(deployed.source(words[0]), words[0], near, key, as_json)
    reason = deployed.why(words[0].lower())
    return _told(deployed.source(reason.match.query), reason, as_json)


# --- what is told ------------------------------------------------------------------------------------------


def _why(source: EventSource, id: str, results: Sequence[Path]) -> Why:
    from kaicep.why.again import explained, only_one, searched, seen_in

    if results:
        match = only_one(seen_in(results, id), id)
        where = f" in {', '.join(map(str, results))}"
        hint = "without --results it is looked for among all matches"
    else:
        match, where, hint = searched(source, id), "", "`kaicep match` and `kaicep query` show the ids"
    if match is None:
        raise Mistake(f"no match{where} has the id {id}", hint=hint)
    return explained(source, match)


def _told(source: EventSource, reason: Why, as_json: bool) -> str:
    from kaicep.why.text import why_json, why_text

    if as_json:
        return json.dumps(why_json(reason), ensure_ascii=False, indent=2)
    return why_text(reason, dict(source.query.catalog.known_prefixes(reason.plan.prefixes)))


def _not(source: EventSource, name: str, near: int, key: str | None, as_json: bool) -> str:
    from kaicep.why.again import why_not_near
    from kaicep.why.text import why_not_json, why_not_text

    reason = why_not_near(source, name, near, key)
    if as_json:
        return json.dumps(why_not_json(reason), ensure_ascii=False, indent=2)
    return why_not_text(reason)
