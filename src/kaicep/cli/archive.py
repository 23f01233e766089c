"""`kaicep archive`: what an archive holds, and its upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import duration, guarded, moment, say
from kaicep.errors import Diagnostic, Failure, Mistake

if TYPE_CHECKING:
    from kaicep.archive.archive import Archive
    from kaicep.archive.stream import UpkeepReport

__all__ = ["archive"]

archive = typer.Typer(
    name="archive",
    help="Show what is in an archive, and maintain it.\n\nExample: kaicep archive status morning",
    no_args_is_help=True,
)
"""The commands `kaicep archive ...`."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the archive.", show_default=False)]
Place = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE", help="The folder of the archive, or a deployment's file.", show_default=False
    ),
]
Keep = Annotated[
    str,
    typer.Option(
        "--keep", metavar="DURATION", help="How long what was replaced or removed can still be read."
    ),
]


@archive.command()
@guarded
def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the streams of an archive.

    How much there is of each, from when to when, up to which position.

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


@archive.command()
@guarded
def compact(folder: Folder, keep: Keep = "7d") -> None:
    """Put small files together and in order of time.

    The space of what is not read any more is given back.

    Example: kaicep archive compact morning --keep 1d
    """
    from kaicep.archive import stream

    hours = _hours(keep)
    for name in _opened(folder).streams():
        table = _opened(folder).stream(name)
        say(f"{name}: {_told(stream.compact(table))}; {len(table.table.vacuum(hours)):,} removed from disk")


@archive.command()
@guarded
def expire(
    folder: Folder,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Events before this time are removed.")
    ] = None,
    older: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Events further behind the newest of their stream are removed, such as 48h.",
        ),
    ] = None,
    keep: Keep = "7d",
) -> None:
    """Remove old events.

    Their positions stay taken, so that they do not come in again.

    Example: kaicep archive expire morning --older-than 48h
    """
    from kaicep.archive import stream

    instant, age, hours = moment("--before", before), duration("--older-than", older), _hours(keep)
    if (instant is None) == (age is None):
        raise Mistake(
            Diagnostic("say which events are old", hint="--before TIME or --older-than DURATION, one of them")
        )
    for name in _opened(folder).streams():
        table = _opened(folder).stream(name)
        newest = max(table.newest.values(), default=None)
        limit = instant if instant is not None else None if newest is None else newest - (age or 0)
        if limit is not None:
            kept = stream.expire(table, limit)
            say(f"{name}: {_told(kept)}; {len(table.table.vacuum(hours)):,} removed from disk")


@archive.command()
@guarded
def verify(place: Place) -> None:
    """Read everything, and say what is damaged.

    Of a deployment also its progress, states and sinks, and which queries a damage affects. Changes nothing;
    exit status 1 where something is damaged.

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


@archive.command()
@guarded
def repair(place: Place) -> None:
    """Remove what a crash left half-written; read what is missing from the sources again.

    The latter needs the file of a deployment, which must not run meanwhile. Where a sink has answers to more
    events than the archive has, they are read again.

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
        raise Failure("the archive still lacks events that a sink has answers to: restore a copy of it")
    say("the archive has all events that the sinks have answers to")


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
