"""Whether what a deployment keeps is whole, and fits together: progress, sinks, states and archive.

The archive gets events first, and progress counts what is on the disk. So progress that is ahead of the
archive means that something was lost that had been promised, and nobody goes on from there in silence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kaicep.archive.archive import Archive, table_damages
from kaicep.archive.cut import Cut
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.catalogue import may_read
from kaicep.endtoend.config import Config, SinkConfig
from kaicep.endtoend.feeds import Feed
from kaicep.endtoend.outlets import Entry, NoSink, Outlet
from kaicep.endtoend.registered import Registry
from kaicep.errors import Failure, KaicepError, Mistake
from kaicep.knowledge.annotation import prefixes_of
from kaicep.storage.disk import read_sealed
from kaicep.storage.places import place_of

__all__ = ["check_progress", "repair", "verify"]

_PATIENCE = 10.0

Entries = Mapping[str, Mapping[str, Entry]]
"""By sink, how far each session was told."""


def check_progress(config: Config, archive: Archive, told: Entries) -> None:
    """A failure where a sink was told of more than the archive has, or where the state folder was lost."""
    begun = [name for name, entries in told.items() if entries]
    if begun and not (config.state / "registered.json").exists():
        raise Failure(
            f"the sink {begun[0]} has matches of this deployment, but {config.state} no longer says of "
            "which queries: restore that folder; to start over, give the sink another place"
        )
    missing = next(_missing(archive, told), None)
    if missing is not None:
        sink, stream, part, at, held = missing
        raise Failure(
            f"the sink {sink} has answers to {stream} up to position {at - 1} of part {part}, but the "
            f"archive {config.archive} has it up to {held - 1}: events that were archived are gone. "
            f"Restore the archive, or read what is missing from the sources again: kaicep archive repair "
            f"{config.path}"
        )


def _missing(archive: Archive, told: Entries) -> Iterator[tuple[str, str, int, int, int]]:
    """What sinks were told of and the archive has not: sink, stream, part, position there, and here."""
    held = Cut({name: table.positions for name, table in _snapshot(archive).tables.items()})
    for sink, entries in told.items():
        for entry in entries.values():
            for stream, part, at in Cut.parse(json.dumps(entry["mark"]["cut"])).beyond(held):
                yield sink, stream, part, at, held.next(stream, part)


def _snapshot(archive: Archive) -> Snapshot:
    archive.mend()
    return archive.snapshot()


def repair(config: Config, say: Callable[[str], None]) -> bool:
    """Reads what the archive lacks from the sources again; whether all is well then."""
    archive = Archive(config.archive)
    for each in archive.mend():
        say(f"removed what a crash had left half-written: {each}")
    told = _told(config)
    wanted: dict[str, dict[int, int]] = {}
    for _, stream, part, at, _ in _missing(archive, told):
        parts = wanted.setdefault(stream, {})
        parts[part] = max(at, parts.get(part, 0))
    for stream, parts in wanted.items():
        if stream not in config.streams:
            say(f"{stream}: no stream of {config.path} any more")
            continue
        _read_again(Feed(config.streams[stream], archive), parts)
        held = archive.stream(stream).positions if stream in archive.streams() else {}
        for part, at in parts.items():
            reached = held.get(part, 0)
            missing = "" if reached >= at else f"; the source has not sent positions {reached} to {at - 1}"
            say(f"{stream}: part {part} is there up to position {reached - 1} now{missing}")
    return next(_missing(archive, told), None) is None


def _read_again(feed: Feed, wanted: Mapping[int, int]) -> None:
    """Takes in until the positions are reached, or nothing came for a while."""
    try:
        feed.open()
        last = time.monotonic()
        while time.monotonic() - last < _PATIENCE and not feed.ended and feed.failed is None:
            if feed.take(0.1, lambda event: False):
                last = time.monotonic()
            held = feed.table.positions if feed.table is not None else {}
            if all(held.get(part, 0) >= at for part, at in wanted.items()):
                return
    finally:
        feed.close()


def _told(config: Config) -> dict[str, Mapping[str, Entry]]:
    """How far each sink was told, without a word to it."""
    sinks = config.sinks or {"none": SinkConfig("none", {})}
    found: dict[str, Mapping[str, Entry]] = {}
    for name, each in sinks.items():
        outlet = Outlet(each, config.state / "marks", None if config.sinks else NoSink())
        try:
            found[name] = outlet.look()
        finally:
            outlet.close(0.0)
    return found


def verify(config: Config) -> Iterator[str]:
    """All that is damaged, and which queries that affects. Reads everything and changes nothing."""
    registry: Registry | None = None
    try:
        registry = Registry(config.state / "registered.json")
    except KaicepError as error:
        yield f"{error}; that affects all queries"
    for stream, problem in Archive(config.archive).damages():
        affected = _readers(config, registry, stream)
        yield f"{problem}; that affects {affected}"
    for path in sorted((config.state / "marks").glob("*.json")):
        yield from _sealed(path, f"what the sink {unquote(path.stem)} was told")
    for path in sorted((config.state / "states").glob("*.state")):
        names = ", ".join(each.split("#")[0] for each in unquote(path.stem).split("+"))
        yield from _sealed(path, f"the query {names}")
    for path in sorted(each for each in (config.state / "versions").glob("*") if each.suffix != ".tmp"):
        yield from _sealed(path, "what is found again after a restart by older knowledge")
    for name, each in config.sinks.items():
        yield from (f"sink {name}: {problem}" for problem in _sink(each.options))


def _sealed(path: Path, affects: str) -> Iterator[str]:
    try:
        read_sealed(path)
    except Failure as failure:
        yield f"{failure}; that affects {affects}"
    except OSError as error:
        yield f"cannot read {path}: {error.strerror}; that affects {affects}"


def _sink(options: Mapping[str, Any]) -> Iterator[str]:
    """What a sink on a disk or a store keeps: the commit of a file, or a table."""
    place = place_of(str(options.get("path", "")), "a sink")
    commit = place.with_name(f".{place.name}.commit") if place.name else place
    if options.get("kind") == "files" and commit.is_file():
        yield from _sealed(commit, "all that it was told")
    elif options.get("kind") == "delta" and place.is_dir():
        yield from table_damages(place)


def _readers(config: Config, registry: Registry | None, stream: str) -> str:
    """The queries that read a stream, or may."""
    if registry is None:
        return "all queries that read it"
    prefixes = prefixes_of(config.annotations)
    found = []
    for each in registry.queries.values():
        try:
            reads = may_read([each.parse(prefixes)], stream)
        except Mistake:
            reads = True
        if reads:
            found.append(each.name)
    return ", ".join(found) or "no query that is registered"
