"""`kaicep query`: queries over an archive, back in time, and on with what it gets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import (
    Annotations,
    Conf,
    DeploymentFile,
    KnowledgeFiles,
    Master,
    Now,
    Queries,
    Reasoning,
    Remote,
    choose,
    choose_cluster,
    compile_kernel,
    duration,
    inputs_of,
    moment,
    progress,
    say,
    warn,
)
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from kaicep.history.strategies import History

__all__ = ["query"]

_STRATEGIES = ("auto", "replay", "rewrite", "hybrid")
_FORMS = ("jsonl", "table", "csv", "parquet")
_POLL = 0.5
_MANY = 20


def query(
    queries: Queries = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="DIR", help="The folder of the archive.")
    ] = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    deployment: DeploymentFile = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="|".join(_STRATEGIES),
            help="How the past is searched: the cheapest way; all events through the kernel; one SPARQL or "
            "Spark SQL query; or filters on the columns first, the kernel then. The matches are the same.",
        ),
    ] = "auto",
    now: Now = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what the archive gets, until interrupted.")
    ] = False,
    lateness: Annotated[
        str,
        typer.Option(
            "--lateness",
            metavar="DURATION",
            help="With --follow: how far behind its part's newest event an event may come.",
        ),
    ] = "0s",
    idle: Annotated[
        str,
        typer.Option(
            "--idle",
            metavar="DURATION",
            help="With --follow: a part that gets nothing for so long holds the others back no more.",
        ),
    ] = "30s",
    as_seen: Annotated[
        bool, typer.Option("--as-seen", help="Leave out the events that came too late when they came.")
    ] = False,
    reasoning: Reasoning = None,
    out: Annotated[
        str, typer.Option("--out", metavar="|".join(_FORMS), help="The form of the matches.")
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where the matches go, instead of stdout.")
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Run queries over an archive and print their matches.

    They come in the order of their end, then of their id. WITHIN says how far back a query reaches.

    Example: kaicep query rise.chi --archive morning --out table

    Example: kaicep query rise.chi --deployment campus/kaicep.toml
    """
    if archive is None and deployment is None:
        raise Mistake(Diagnostic("no archive is given", hint="such as --archive DIR"))
    given = inputs_of(queries, (), knowledge, annotation, reasoning, deployment)
    archive = archive or given.archive
    assert archive is not None, "a deployment has one"
    if deployment is not None and archive == given.archive and not archive.is_dir():
        from kaicep.deployment.config import load_config

        raise load_config(deployment).not_run
    choose("--out", out, _FORMS)
    choose("--strategy", strategy, _STRATEGIES)
    choose_cluster(master, remote, conf)
    instant, allowed = moment("--now", now), duration("--lateness", lateness) or 0
    silence = (duration("--idle", idle) or 0) / 1_000_000
    if follow and (out != "jsonl" or output is not None):
        raise Mistake(
            Diagnostic("--follow prints lines of JSON as they come", hint="leave --out and --output")
        )
    if out == "parquet" and output is None and sys.stdout.isatty():
        raise Mistake(Diagnostic("Parquet is not for a terminal", hint="write it to a file: --output FILE"))

    from kaicep.archive.archive import Archive
    from kaicep.cli.output import refuse_overwriting
    from kaicep.history.strategies import open_history

    # Unknown entities are told at the end; the log would tell them again.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    refuse_overwriting({"--output": output} if output else {}, given.files)
    known = given.knowledge, given.annotations, given.reasoning
    history = open_history(given.queries, Archive.open(archive), *known, instant)
    warn(history.diagnostics(history.archive.snapshot()))
    compile_kernel()
    if follow:
        _follow(history, "hybrid" if strategy == "auto" else strategy, as_seen, allowed, silence)
    else:
        _search(history, strategy, as_seen, out, output)


def _search(history: History, strategy: str, as_seen: bool, out: str, output: Path | None) -> None:
    from kaicep.cli.output import FORMATS, atomic, columns_of, to_stdout
    from kaicep.history.strategies import past_matches, way_of

    snapshot = history.archive.snapshot()
    way = way_of(history, strategy, snapshot)
    if way.place == "spark":
        say(f"strategy: {way}")  # it takes a while to start
    with ExitStack() as stack:
        target = stack.enter_context(atomic(output, "--output")) if output is not None else None
        with progress("searching"):
            found = past_matches(history, strategy, as_seen, snapshot)
        chunks = FORMATS[out](found, columns_of(history.program))
        if target is not None:
            target.writelines(chunks)
    if output is None:
        to_stdout(chunks)
    for note in _notes(history):
        say(note)


def _follow(history: History, strategy: str, as_seen: bool, lateness: int, idle: float) -> None:
    import time

    from kaicep.cli.output import FORMATS, columns_of, to_stdout
    from kaicep.history.strategies import follow

    def wait() -> bool:
        time.sleep(_POLL)
        return True

    columns = columns_of(history.program)
    for found in follow(history, strategy, as_seen, lateness, wait, idle):
        if found:
            to_stdout(FORMATS["jsonl"](found, columns))
            sys.stdout.flush()


def _notes(history: History) -> Iterator[str]:
    """The values that no entity was known for."""
    unknown = list(history.unknown.counts)
    if unknown:
        many = f"{len(unknown):,} value{'' if len(unknown) == 1 else 's'}"
        yield f"unknown: {many} with no entity in the knowledge base, so that no PATH holds for them"
        yield from (f"  {attribute}: {value}" for attribute, value in unknown[:_MANY])
        if len(unknown) > _MANY:
            yield f"  and {len(unknown) - _MANY} more"
