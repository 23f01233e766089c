"""`kaicep ingest`: files and topics into an archive; `kaicep archive`: what it holds, and its upkeep."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import (
    FAILED,
    Annotations,
    Conf,
    KnowledgeFiles,
    Master,
    Reasoning,
    Remote,
    Streams,
    choose_cluster,
    duration,
    files,
    group,
    moment,
    named_streams,
    progress_of,
    reasoning_level,
    say,
    warn,
)
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean

if TYPE_CHECKING:
    from kaicep.archive.archive import Archive
    from kaicep.archive.stream_table import UpkeepReport
    from kaicep.connectors.shape import Form
    from kaicep.ingest.files import Ingested, Origin
    from kaicep.ingest.materialise import Materialise

# ----------------------------------------------------------------------------------------------------------
# `kaicep ingest`: files and topics into an archive, each record once.

_HOSTS = ("inprocess", "spark")
_KAFKA = "kafka://"
_EVERY = 1.0


def ingest(
    stream: Streams = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="DIR", help="The folder of the archive.")
    ] = None,
    annotation: Annotations = None,
    knowledge: KnowledgeFiles = None,
    materialise: Annotated[
        list[str] | None,
        typer.Option(
            "--materialise",
            metavar="COLUMN=PATH",
            help="A column with knowledge about the events, such as 'room=?e evt:hasSource/bd:hasLocation "
            "?room'. May be given several times.",
        ),
    ] = None,
    reasoning: Reasoning = None,
    lateness: Annotated[
        str | None,
        typer.Option(
            "--lateness",
            metavar="DURATION",
            help="How far an event may be behind the newest of its source partition, such as 5min, "
            "before it is late. Without it, nothing is late.",
        ),
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            "--dead-letters",
            metavar="FILE",
            help="Write unreadable records to this file too, besides the archive.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="|".join(_HOSTS), help="Where the work is done.")
    ] = "inprocess",
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with what is added, until interrupted.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="The files are history of a stream whose live source is something else, such as a topic. "
            "You may add them one by one, and delete them afterwards; their names identify them.",
        ),
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Append files or a Kafka topic to an archive, each record once.

    Run it again whenever files have grown or new ones have been added: only new records
    come in. If there is no archive yet, it is created.

    For a topic, write kafka://SERVER:PORT/TOPIC instead of a file.

    Example: kaicep ingest --stream air=air.jsonl --archive morning
    """
    streams = _origins(stream or ())
    if host not in _HOSTS:
        raise Mistake(f"--host {host}: there is no such host", hint=did_you_mean(host, _HOSTS))
    choose_cluster(master, remote, conf, host == "spark", "such as --host spark")
    if not streams:
        raise Mistake("no stream is given", hint="such as --stream NAME=FILE.jsonl")
    if archive is None:
        raise Mistake("no archive is given", hint="such as --archive DIR")
    if history:
        _refuse_history(streams, host, follow)
    annotations = files("--annotation", annotation)
    known = files("--knowledge", knowledge, folders=True)
    level = reasoning_level(reasoning)
    if bool(known) != bool(materialise):
        missing = "--materialise" if known else "--knowledge"
        hint = "a column is what the knowledge says of the events: --knowledge FILE --materialise COLUMN=PATH"
        raise Mistake(f"{missing} is not given", hint=hint)
    allowed = duration("--lateness", lateness)

    from kaicep.cli.formats import atomic, json_line, refuse_overwriting
    from kaicep.connectors.shape import mostly_bad

    inputs = [*annotations, *known, *(each for _, each in streams if isinstance(each, Path))]
    refuse_overwriting({"--dead-letters": dead_letters} if dead_letters else {}, inputs)
    with ExitStack() as stack:
        target = stack.enter_context(atomic(dead_letters, "--dead-letters")) if dead_letters else None
        started = time.monotonic()
        wanted = _materialised(materialise or (), known, annotations, level)
        done = _ingested(archive, streams, annotations, allowed, host, follow, wanted, history)
        seconds = time.monotonic() - started
        if target is not None:
            target.writelines(json_line(each.to_dict()) for some in done for each in some.dead)
    for note in _notes(done, seconds):
        say(note)
    unread = [mostly_bad(each.stream, each.dead, each.rows) for each in done]
    if any(unread):
        warn(Diagnostic(each, severity="warning") for each in unread if each)
        raise typer.Exit(FAILED)


def _origins(given: Sequence[str]) -> list[tuple[str, Origin]]:
    """The streams of `NAME=FILE` and `NAME=kafka://SERVERS/TOPIC`."""
    found: list[tuple[str, Origin]] = []
    for (name, path), text in zip(named_streams(given), given, strict=True):
        place = text.partition("=")[2]
        if not place.startswith(_KAFKA):
            found.append((name, path))
            continue
        from kaicep.connectors.kafka import KafkaSourceOptions

        servers, _, topic = place.removeprefix(_KAFKA).partition("/")
        if not servers or not topic or "/" in topic:
            hint = f"such as {name}=kafka://broker:9092/{name}"
            raise Mistake(f"--stream {text}: servers and a topic are needed", hint=hint)
        found.append((name, KafkaSourceOptions(servers, topic)))
    return found


def _refuse_history(streams: Sequence[tuple[str, Origin]], host: str, follow: bool) -> None:
    """History is of whole files, and taken in by this process."""
    if follow:
        hint = "leave out --follow, or let a deployment follow the files as its source"
        raise Mistake("--history is of files that are whole: they are not followed", hint=hint)
    if host != "inprocess":
        raise Mistake(f"--history is not for --host {host}", hint="leave out --host")
    for name, origin in streams:
        if not isinstance(origin, Path):
            hint = "a topic keeps its own positions: leave out --history"
            raise Mistake(f"stream {name}: --history is of files", hint=hint)


def _ingested(
    archive: Path,
    streams: Sequence[tuple[str, Origin]],
    annotations: Sequence[Path],
    lateness: int | None,
    host: str,
    follow: bool,
    materialise: Materialise | None,
    history: bool,
) -> list[Ingested]:
    """Reads everything, with a bar that follows the bytes of the files; or a line now and then."""
    from kaicep.archive.archive import Archive

    names, target, speaking = [name for name, _ in streams], Archive(archive), _Speaking(follow)
    if follow:
        forms = _forms(names, annotations)
        given = [(forms[name], origin) for name, origin in streams]
        return _followed(host, target, given, lateness, speaking, materialise)
    heard = speaking.batch, speaking.trouble
    append = _appender(host, target, lateness, *heard, materialise, False, history)
    with progress_of("ingesting", [(name, each) for name, each in streams if isinstance(each, Path)]):
        forms = _forms(names, annotations)
        return [append(forms[name], origin) for name, origin in streams]


def _followed(
    host: str,
    archive: Archive,
    streams: Sequence[tuple[Form, Origin]],
    lateness: int | None,
    speaking: _Speaking,
    materialise: Materialise | None,
) -> list[Ingested]:
    """Goes on until it is interrupted; then, what came in."""
    from kaicep.ingest.files import Ingested

    done = {form.stream: Ingested(form.stream) for form, _ in streams}

    try:
        while True:
            for form, origin in streams:
                # By batch, since an interrupt may come before the last of them.
                def batch(new: Ingested, before: Ingested = done[form.stream]) -> None:
                    more = before.plus(new.rows, new.late, new.dead)
                    done[new.stream] = replace(more, positions=new.positions, behind=new.behind)
                    speaking.batch(done[new.stream])

                append = _appender(host, archive, lateness, batch, speaking.trouble, materialise, True)
                append(form, origin)
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        pass
    return list(done.values())


def _appender(
    host: str,
    archive: Archive,
    lateness: int | None,
    batch: Callable[[Ingested], None],
    trouble: Callable[[str], None],
    materialise: Materialise | None,
    growing: bool = False,
    history: bool = False,
) -> Callable[[Form, Origin], Ingested]:
    """What takes in what is there of a stream, in this process or by Spark, and tells how it goes."""
    heard = batch, trouble, growing
    if host == "spark":
        from kaicep.hosts.spark.session import own_session
        from kaicep.ingest.on_spark import ingest as by_spark

        spark = own_session()
        return lambda form, origin: by_spark(
            spark, archive, form, origin, lateness, *heard, materialise=materialise
        )
    from kaicep.ingest.files import ingest as append

    return lambda form, origin: append(
        archive, form, origin, lateness, *heard, materialise=materialise, history=history
    )


def _materialised(
    given: Sequence[str], knowledge: Sequence[Path], annotations: Sequence[Path], reasoning: str
) -> Materialise | None:
    """The columns to add."""
    if not given:
        return None
    from kaicep.ingest.materialise import Materialise, wanted_columns
    from kaicep.knowledge.annotation import load_annotations
    from kaicep.knowledge.store import Knowledge

    wanted = wanted_columns(given)
    said = [each for path in annotations for each in load_annotations(path)]
    return Materialise(wanted, Knowledge.load(*knowledge, reasoning=reasoning), said)


class _Speaking:
    """Says how it goes: of a topic and of what is followed now and then, of trouble once."""

    def __init__(self, follow: bool) -> None:
        self._follow = follow
        self._since = self._said = time.monotonic()
        self._trouble = ""

    def batch(self, done: Ingested) -> None:
        """Some rows more."""
        now = time.monotonic()
        if now - self._said >= _EVERY and (self._follow or done.behind is not None):
            behind = f", {done.behind:,} behind" if done.behind is not None else ""
            say(f"{done.stream}: {done.rows:,} new, {done.rows / (now - self._since):,.0f}/s{behind}")
            self._said = now

    def trouble(self, text: str) -> None:
        """Something is waited for."""
        if text != self._trouble:
            say(text)
        self._trouble = text


def _forms(streams: Sequence[str], annotations: Sequence[Path]) -> dict[str, Form]:
    from kaicep.connectors.shape import Form
    from kaicep.knowledge.annotation import load_annotations

    known = {each.stream: each for path in annotations for each in load_annotations(path)}
    return {name: Form.of(name, known.get(name)) for name in streams}


def _notes(done: Sequence[Ingested], seconds: float) -> Iterator[str]:
    """What came in, and what did not."""
    for each in done:
        late = f", {each.late:,} late" if each.late else ""
        dead = f", {len(each.dead):,} that could not be read" if each.dead else ""
        yield f"{each.stream}: {each.rows:,} new{late}{dead}"
    rows = sum(each.rows for each in done)
    if rows and sys.stderr.isatty():
        yield f"{rows:,} events in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f}/s)"


# ----------------------------------------------------------------------------------------------------------
# `kaicep archive`: what an archive holds, and its upkeep.

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the archive.", show_default=False)]
Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE", help="The folder of the archive, or a deployment's file.", show_default=False
    ),
]
Keep = Annotated[
    str,
    typer.Option("--keep", metavar="DURATION", help="How long replaced and removed files stay readable."),
]


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the streams of an archive.

    For each stream: its size, its first and last time, and its positions.

    Example: kaicep archive status morning
    """
    import json

    found = [_status(_opened(folder), name) for name in _opened(folder).streams()]
    dead = len(_opened(folder).dead_letters.read())
    if as_json:
        typer.echo(json.dumps({"streams": found, "deadLetters": dead}, ensure_ascii=False, indent=2))
        return
    for each in found:
        typer.echo(_shown(each))
    if dead:
        typer.echo(f"dead letters: {dead:,} (in {folder / '_dead_letters'})")


def compact(folder: Folder, keep: Keep = "7d") -> None:
    """Merge small files, and put them in order of time.

    Files that are no longer needed are removed after --keep.

    Example: kaicep archive compact morning --keep 1d
    """
    from kaicep.archive import stream_table

    hours = _hours(keep)
    for name in _opened(folder).streams():
        table = _opened(folder).stream(name)
        did = _told(stream_table.compact(table))
        say(f"{name}: {did}; {len(table.table.vacuum(hours)):,} removed from disk")


def expire(
    folder: Folder,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Remove events before this time.")
    ] = None,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Remove events that are this much older than the newest of their stream, such as 48h.",
        ),
    ] = None,
    keep: Keep = "7d",
) -> None:
    """Remove old events.

    Their positions stay used, so they do not come in again.

    Example: kaicep archive expire morning --older-than 48h
    """
    from kaicep.archive import stream_table

    instant, age, hours = moment("--before", before), duration("--older-than", older), _hours(keep)
    if (instant is None) == (age is None):
        raise Mistake("say which events are old", hint="--before TIME or --older-than DURATION, one of them")
    for name in _opened(folder).streams():
        table = _opened(folder).stream(name)
        newest = max(table.newest.values(), default=None)
        limit = instant if instant is not None else None if newest is None else newest - (age or 0)
        if limit is not None:
            kept = stream_table.expire(table, limit)
            say(f"{name}: {_told(kept)}; {len(table.table.vacuum(hours)):,} removed from disk")


def verify(place: Place) -> None:
    """Read everything, and say what is damaged.

    For a deployment, also check its progress, states and sinks, and name the affected queries. It changes
    nothing; the exit status is 1 if something is damaged.

    Example: kaicep archive verify kaicep.toml
    """
    if place.is_dir():
        found = [f"{stream}: {each}" for stream, each in _opened(place).damages()]
    else:
        from kaicep.deployment.check import verify
        from kaicep.deployment.config import load_config

        found = list(verify(load_config(place)))
    for each in found:
        typer.echo(each)
    if found:
        raise Failure(f"{len(found)} of what {place} keeps is damaged")
    typer.echo("all is as it was written")


def repair(place: Place) -> None:
    """Remove what a crash left half-written; read what is missing from the sources again.

    To read again, give the file of a deployment, which must not be running. If a sink has matches of events
    that the archive lacks, those events are read from the sources again.

    Example: kaicep archive repair kaicep.toml
    """
    if place.is_dir():
        for each in _opened(place).mend():
            say(f"removed what a crash had left half-written: {each}")
        return
    from kaicep.deployment.check import repair
    from kaicep.deployment.config import load_config
    from kaicep.deployment.running import locked

    config = load_config(place)
    with locked(config.state):
        whole = repair(config, say)
    if not whole:
        raise Failure("the archive still lacks events that a sink needs: restore a copy of it")
    say("the archive has all events that the sinks need")


def _opened(folder: Path) -> Archive:
    from kaicep.archive.archive import Archive

    return Archive.open(folder)


def _hours(keep: str) -> int:
    return -(-(duration("--keep", keep) or 0) // 3_600_000_000)


def _told(kept: UpkeepReport) -> str:
    removed = f", {kept.removed:,} events removed" if kept.removed else ""
    return f"{len(kept.before):,} files are {len(kept.after):,} now{removed}"


def _status(held: Archive, name: str) -> dict[str, Any]:
    from kaicep.plan.time import format_time

    snapshot = held.snapshot()
    files = snapshot.files(name)
    shape = snapshot.shape(name)
    lows = [each.low for each in files if each.low is not None]
    highs = [each.high for each in files if each.high is not None]
    expired = snapshot.expired(name)
    return {
        "stream": name,
        "events": sum(each.rows for each in files),
        "files": len(files),
        "bytes": sum(each.size for each in files),
        "from": format_time(min(lows)) if lows else None,
        "to": format_time(max(highs)) if highs else None,
        "version": snapshot.versions[name],
        "next": {str(part): at for part, at in sorted(snapshot.cut.positions[name].items())},
        "expiredBefore": format_time(expired) if expired is not None else None,
        "attributes": "triples" if shape.rdf else {each: str(type) for each, type in shape.attributes},
    }


def _shown(found: dict[str, Any]) -> str:
    return "\n".join([f"{found['stream']}: {found['events']:,} events", *_details(found)])


def _details(found: dict[str, Any]) -> Iterator[str]:
    if found["from"]:
        yield f"  from {found['from']} to {found['to']}"
    yield f"  {found['files']:,} files, {found['bytes']:,} bytes, version {found['version']}"
    positions = ", ".join(f"part {part} at {at:,}" for part, at in found["next"].items())
    yield f"  next: {positions or 'nothing yet'}"
    if found["expiredBefore"]:
        yield f"  expired before {found['expiredBefore']}"
    if found["attributes"] != "triples":
        yield "  " + ", ".join(f"{name} {type}" for name, type in found["attributes"].items())


archive = group(
    "archive",
    "Show what is in an archive, and maintain it.\n\nExample: kaicep archive status morning",
    status,
    compact,
    expire,
    verify,
    repair,
)
