"""`kaicep match`: queries over finite streams, and all their matches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import (
    FAILED,
    Annotations,
    Conf,
    DeploymentFile,
    Inputs,
    KnowledgeFiles,
    Master,
    Now,
    Queries,
    Reasoning,
    Remote,
    Streams,
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
from kaicep.errors import Diagnostic, Mistake, did_you_mean

if TYPE_CHECKING:
    from kaicep.api import FiniteRun
    from kaicep.plan.events import Event

__all__ = ["match"]

_HOSTS = ("inprocess", "reference", "spark-batch", "spark-stream")
_FORMS = ("jsonl", "table", "csv", "parquet", "srj", "sparql-xml", "sparql-csv", "nt", "trig")
_FEW, _MANY = 3, 20
_ENDS = ("closed", "open")


def match(
    queries: Queries = None,
    stream: Streams = None,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    deployment: DeploymentFile = None,
    host: Annotated[
        str, typer.Option("--host", metavar="|".join(_HOSTS), help="Where the queries run.")
    ] = "inprocess",
    lateness: Annotated[
        str | None,
        typer.Option(
            "--lateness",
            metavar="DURATION",
            help="How far behind its part's newest event an event may come, such as 5min. Without it, "
            "nothing is late.",
        ),
    ] = None,
    now: Now = None,
    reasoning: Reasoning = None,
    out: Annotated[
        str, typer.Option("--out", metavar="|".join(_FORMS), help="The form of the matches.")
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where the matches go, instead of stdout.")
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option("--dead-letters", metavar="FILE", help="Where records go that cannot be read."),
    ] = None,
    late: Annotated[
        Path | None, typer.Option("--late", metavar="FILE", help="Where events go that come too late.")
    ] = None,
    end: Annotated[
        str,
        typer.Option(
            "--end",
            metavar="|".join(_ENDS),
            help="Whether the streams are over, or may go on: what is undecided at an open end is left out.",
        ),
    ] = "closed",
    ahead: Annotated[
        str | None,
        typer.Option(
            "--ahead",
            metavar="DURATION",
            help="How far in the future an event may be, by the clock on the wall; a later one is a bad "
            "record. Without it, or with 0s, as far as it likes.",
        ),
    ] = None,
    derived: Annotated[
        int | None,
        typer.Option(
            "--derived",
            metavar="N",
            min=1,
            help="How many triples the CONSTRUCT rules may derive at one instant; more are a runaway.",
            show_default="10,000, or what the deployment says",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="QUERY",
            help="Print the matches of this query alone; the others work for it. May be given several times.",
        ),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Run queries over streams and print their matches.

    Matches come in the order of their end, then of their id.

    Example: kaicep match rise.chi --stream air=air.jsonl --knowledge campus.ttl --out table

    Example: kaicep match rise.chi --deployment campus/kaicep.toml
    """
    from kaicep.cli.output import FORMATS, atomic, columns_of, refuse_form, refuse_overwriting, to_stdout
    from kaicep.plan.nodes import Program

    inputs = inputs_of(queries, stream, knowledge, annotation, reasoning, deployment)
    if not inputs.streams:
        hint = "such as --stream NAME=FILE.jsonl, or --deployment kaicep.toml"
        raise Mistake(Diagnostic("no stream is given", hint=hint))
    choose("--out", out, _FORMS)
    choose("--end", end, _ENDS)
    allowed, instant = duration("--lateness", lateness), moment("--now", now)
    future, wanted = duration("--ahead", ahead), _wanted(only, inputs.queries)
    _check_host(host)
    choose_cluster(master, remote, conf, host.startswith("spark"), "such as --host spark-batch")
    places = {"--output": output, "--dead-letters": dead_letters, "--late": late}
    given = {option: path for option, path in places.items() if path is not None}
    refuse_overwriting(given, inputs.files)
    if out == "parquet" and output is None and sys.stdout.isatty():
        raise Mistake(Diagnostic("Parquet is not for a terminal", hint="write it to a file: --output FILE"))

    with ExitStack() as stack:
        targets = {option: stack.enter_context(atomic(path, option)) for option, path in given.items()}
        run = _open(inputs, allowed, instant, end, future, derived)
        warn(run.diagnostics)
        shown = [each for each in run.program.queries if each.name in wanted]
        refuse_form(out, shown)
        if host == "inprocess":
            compile_kernel()
        with progress("matching"):
            found = [each for each in run.matches(host) if each.query in wanted]
        chunks = FORMATS[out](found, columns_of(Program(tuple(shown))))
        rows = {"--output": chunks, "--dead-letters": _dead_rows(run), "--late": _late_rows(run)}
        for option, target in targets.items():
            target.writelines(rows[option])
    # The files are complete by now, even if the reader of stdout goes away.
    if output is None:
        to_stdout(chunks)
    for note in _notes(run, dead_letters is not None, late is not None):
        say(note)
    if run.unread:
        raise typer.Exit(FAILED)  # most of a stream could not be read: the answer says little


def _wanted(only: Sequence[str] | None, queries: Sequence[Path]) -> set[str]:
    """The names of the queries whose matches are printed; all of them, where nothing is said."""
    names = [path.stem for path in queries]
    for each in only or ():
        if each not in names and Path(each) not in queries:
            raise Mistake(
                Diagnostic(f"--only {each}: no query of that name is given", hint=did_you_mean(each, names))
            )
    return {name if name in names else Path(name).stem for name in only or names}


def _check_host(host: str) -> None:
    from kaicep.api import HOSTS

    if host in HOSTS:
        return
    raise Mistake(Diagnostic(f"--host {host}: there is no such host", hint=did_you_mean(host, HOSTS)))


def _open(
    given: Inputs, lateness: int | None, now: int | None, end: str, ahead: int | None, derived: int | None
) -> FiniteRun:
    """Reads everything, with a bar that follows the bytes of the streams."""
    from kaicep.api import open_run
    from kaicep.connectors.files import files_of
    from kaicep.connectors.records import watching

    # Unknown entities are told at the end, with their counts; the log would tell them again.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    total = sum(file.stat().st_size for name, path in given.streams for file in files_of(name, path))
    read: dict[Path, int] = {}
    with progress("reading", total) as advance:

        def follow(path: Path, position: int) -> None:
            read[path] = position
            advance(sum(read.values()))

        known = given.knowledge, given.annotations, given.reasoning
        with watching(follow), given.looked_beside():
            return open_run(given.queries, given.streams, *known, lateness, now, end, ahead, derived)


def _dead_rows(run: FiniteRun) -> Iterator[bytes]:
    """The dead letters as JSON Lines."""
    from kaicep.cli.output import json_line

    for each in run.dead:
        yield json_line(each.to_dict())


def _late_rows(run: FiniteRun) -> Iterator[bytes]:
    """The late events as JSON Lines."""
    from kaicep.cli.output import json_line

    types = {each.name: dict(each.attributes) for each in run.data}
    for each in run.late:
        yield json_line(_late_row(each, types[each.stream]))


def _late_row(event: Event, types: dict[str, Any]) -> dict[str, Any]:
    """A late event as it is written down; of an RDF stream, its triples and their start."""
    from kaicep.plan.terms import n_triples
    from kaicep.plan.time import format_time
    from kaicep.plan.types import Type

    values: dict[str, Any] = {
        name: format_time(value) if types[name] is Type.TIMESTAMP and isinstance(value, int) else value
        for name, value in event.values.items()
    }
    if event.triples:
        values = {
            "start": format_time(event.ts if event.start is None else event.start),
            "triples": [n_triples(each) for each in event.triples],
        }
    return {**event.identity, "ts": format_time(event.ts), "values": values}


def _notes(run: FiniteRun, dead_kept: bool, late_kept: bool) -> Iterator[str]:
    """What was left out of the matches, and why; nothing where nothing was."""
    if dead := run.dead:
        way = "" if dead_kept else "; --dead-letters FILE keeps them"
        yield f"dead letters: {_counted(len(dead), 'record')} could not be read{way}"
        for each in dead[:_FEW]:
            yield f"  {each.file}:{each.line}: {each.reason}"
        if len(dead) > _FEW:
            yield f"  and {len(dead) - _FEW} more"
    if run.late:
        way = "" if late_kept else "; --late FILE keeps them"
        yield f"late: {_counted(len(run.late), 'event')} came too late to be used{way}"
        for stream in run.data:
            if count := sum(each.stream == stream.name for each in run.late):
                yield f"  {stream.name}: {count}"
    if run.unknown:
        many = _counted(len(run.unknown), "value")
        yield f"unknown: {many} with no entity in the knowledge base, so that no PATH holds for them"
        for (attribute, value), count in list(run.unknown.items())[:_MANY]:
            yield f"  {attribute}: {value} ({_counted(count, 'time')})"
        if len(run.unknown) > _MANY:
            yield f"  and {len(run.unknown) - _MANY} more"


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")
