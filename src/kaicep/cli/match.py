"""What is found in finite streams and archives: `kaicep match`, `query`, `check` and `explain`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.api import explanations
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
    has_colour,
    inputs_of,
    moment,
    progress,
    progress_of,
    say,
    warn,
)
from kaicep.errors import Mistake, did_you_mean, painted

if TYPE_CHECKING:
    from kaicep.api import FiniteRun
    from kaicep.history.strategies import History
    from kaicep.plan.events import Event

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


# ----------------------------------------------------------------------------------------------------------
# `kaicep match`: queries over finite streams, and all their matches.

_HOSTS = ("inprocess", "reference", "spark-batch", "spark-stream")
_FORMS = ("jsonl", "table", "csv", "parquet")
_RDF_FORMS = (*_FORMS, "srj", "sparql-xml", "sparql-csv", "nt", "trig")
_FEW, _MANY = 3, 20
_ENDS = ("closed", "open")

Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Where the matches go, instead of stdout.")
]


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
            help="How far an event may be behind the newest of its source partition, such as 5min. "
            "Without it, nothing is late.",
        ),
    ] = None,
    now: Now = None,
    reasoning: Reasoning = None,
    out: Annotated[
        str, typer.Option("--out", metavar="|".join(_RDF_FORMS), help="The format of the matches.")
    ] = "jsonl",
    output: Output = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option("--dead-letters", metavar="FILE", help="Write unreadable records to this file."),
    ] = None,
    late: Annotated[
        Path | None, typer.Option("--late", metavar="FILE", help="Write late events to this file.")
    ] = None,
    end: Annotated[
        str,
        typer.Option(
            "--end",
            metavar="|".join(_ENDS),
            help="Whether the streams are complete, or may go on: then undecided matches are left out.",
        ),
    ] = "closed",
    ahead: Annotated[
        str | None,
        typer.Option(
            "--ahead",
            metavar="DURATION",
            help="How far in the future an event may be, by the wall clock; a later one is a bad "
            "record. Without it, or with 0s, there is no limit.",
        ),
    ] = None,
    derived: Annotated[
        int | None,
        typer.Option(
            "--derived",
            metavar="N",
            min=1,
            help="How many triples CONSTRUCT rules may derive at one instant before they are stopped.",
            show_default="10,000, or what the deployment says",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="QUERY",
            help="Print only the matches of this query; it may read the others. May be given several times.",
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
    from kaicep.cli.formats import FORMATS, atomic, columns_of, refuse_form, refuse_overwriting, to_stdout
    from kaicep.plan.nodes import Program

    inputs = inputs_of(queries, stream, knowledge, annotation, reasoning, deployment)
    if not inputs.streams:
        hint = "such as --stream NAME=FILE.jsonl, or --deployment kaicep.toml"
        raise Mistake("no stream is given", hint=hint)
    choose("--out", out, _RDF_FORMS)
    choose("--end", end, _ENDS)
    allowed, instant = duration("--lateness", lateness), moment("--now", now)
    future, wanted = duration("--ahead", ahead), _wanted(only, inputs.queries)
    _check_host(host)
    choose_cluster(master, remote, conf, host.startswith("spark"), "such as --host spark-batch")
    places = {"--output": output, "--dead-letters": dead_letters, "--late": late}
    given = {option: path for option, path in places.items() if path is not None}
    refuse_overwriting(given, inputs.files)
    _refuse_parquet(out, output)

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


def _refuse_parquet(form: str, output: Path | None) -> None:
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise Mistake("Parquet is not for a terminal", hint="write it to a file: --output FILE")


def _wanted(only: Sequence[str] | None, queries: Sequence[Path]) -> set[str]:
    """The names of the queries whose matches are printed; all of them, where nothing is said."""
    names = [path.stem for path in queries]
    for each in only or ():
        if each not in names and Path(each) not in queries:
            raise Mistake(f"--only {each}: no query of that name is given", hint=did_you_mean(each, names))
    return {name if name in names else Path(name).stem for name in only or names}


def _check_host(host: str) -> None:
    from kaicep.api import HOSTS

    if host in HOSTS:
        return
    raise Mistake(f"--host {host}: there is no such host", hint=did_you_mean(host, HOSTS))


def _open(
    given: Inputs, lateness: int | None, now: int | None, end: str, ahead: int | None, derived: int | None
) -> FiniteRun:
    """Reads everything, with a bar that follows the bytes of the streams."""
    from kaicep.api import open_run

    # Unknown entities are told at the end, with their counts; the log would tell them again.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    with progress_of("reading", given.streams), given.looked_beside():
        return open_run(given.queries, given.streams, *given.known, lateness, now, end, ahead, derived)


def _dead_rows(run: FiniteRun) -> Iterator[bytes]:
    """The dead letters as JSON Lines."""
    from kaicep.cli.formats import json_line

    for each in run.dead:
        yield json_line(each.to_dict())


def _late_rows(run: FiniteRun) -> Iterator[bytes]:
    """The late events as JSON Lines."""
    from kaicep.cli.formats import json_line

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
    yield from _unknown(run.unknown)


def _unknown(values: Mapping[tuple[str, str], int], counted: bool = True) -> Iterator[str]:
    """The values that no entity was known for, each with how often it came where that is `counted`."""
    if values:
        many = _counted(len(values), "value")
        yield f"unknown: {many} with no entity in the knowledge base, so that no PATH holds for them"
        for (attribute, value), count in list(values.items())[:_MANY]:
            yield f"  {attribute}: {value}" + (f" ({_counted(count, 'time')})" if counted else "")
        if len(values) > _MANY:
            yield f"  and {len(values) - _MANY} more"


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


# ----------------------------------------------------------------------------------------------------------
# `kaicep query`: queries over an archive, back in time, and on with what it gets.

_STRATEGIES = ("auto", "replay", "rewrite", "hybrid")
_POLL = 0.5


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
            help="How to search the past. auto: the cheapest; replay: all events through the kernel; "
            "rewrite: one SPARQL or Spark SQL query; hybrid: filters on columns, then the kernel. "
            "All find the same matches.",
        ),
    ] = "auto",
    now: Now = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events of the archive, until interrupted.")
    ] = False,
    lateness: Annotated[
        str,
        typer.Option(
            "--lateness",
            metavar="DURATION",
            help="With --follow: how far an event may be behind the newest of its source partition.",
        ),
    ] = "0s",
    idle: Annotated[
        str,
        typer.Option(
            "--idle",
            metavar="DURATION",
            help="With --follow: how long to wait for a source partition that is silent.",
        ),
    ] = "30s",
    as_seen: Annotated[
        bool, typer.Option("--as-seen", help="Leave out late events, as a live query did.")
    ] = False,
    reasoning: Reasoning = None,
    out: Annotated[
        str, typer.Option("--out", metavar="|".join(_FORMS), help="The format of the matches.")
    ] = "jsonl",
    output: Output = None,
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
        raise Mistake("no archive is given", hint="such as --archive DIR")
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
        raise Mistake("--follow prints lines of JSON as they come", hint="leave --out and --output")
    _refuse_parquet(out, output)

    from kaicep.archive.archive import Archive
    from kaicep.cli.formats import refuse_overwriting
    from kaicep.history.strategies import open_history

    # Unknown entities are told at the end; the log would tell them again.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    refuse_overwriting({"--output": output} if output else {}, given.files)
    history = open_history(given.queries, Archive.open(archive), *given.known, instant)
    warn(history.diagnostics(history.archive.snapshot()))
    compile_kernel()
    if follow:
        _follow(history, "hybrid" if strategy == "auto" else strategy, as_seen, allowed, silence)
    else:
        _search(history, strategy, as_seen, out, output)


def _search(history: History, strategy: str, as_seen: bool, out: str, output: Path | None) -> None:
    from kaicep.cli.formats import FORMATS, atomic, columns_of, to_stdout
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
    for note in _unknown(history.unknown.counts, counted=False):
        say(note)


def _follow(history: History, strategy: str, as_seen: bool, lateness: int, idle: float) -> None:
    import time

    from kaicep.cli.formats import FORMATS, columns_of, to_stdout
    from kaicep.history.strategies import follow

    def wait() -> bool:
        time.sleep(_POLL)
        return True

    columns = columns_of(history.program)
    for found in follow(history, strategy, as_seen, lateness, wait, idle):
        if found:
            to_stdout(FORMATS["jsonl"](found, columns))
            sys.stdout.flush()
