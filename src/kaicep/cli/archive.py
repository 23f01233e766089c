"""`kaicep archive`: what an archive holds, and its upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import duration, group, moment, say
from kaicep.errors import Failure, Mistake

if TYPE_CHECKING:
    from kaicep.archive.archive import Archive
    from kaicep.archive.stream_table import UpkeepReport

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
