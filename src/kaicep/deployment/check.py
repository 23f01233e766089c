"""Checks of a deployment that does not run: its file, and whether everything that it keeps is undamaged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from kaicep.api import read_query
from kaicep.archive.archive import Archive, Cut, Snapshot, table_damages
from kaicep.deployment.catalogue import may_read
from kaicep.deployment.config import Config, SinkConfig, read_token
from kaicep.deployment.registered import SUFFIXES, Registry, check_name
from kaicep.deployment.sinks import Entry, NoSink, Outlet
from kaicep.deployment.streams import Feed
from kaicep.errors import Diagnostic, Failure, KaicepError, Mistake
from kaicep.knowledge.annotation import build_catalog, prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.watching import Copy, shapes_of
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import ChiQuery
from kaicep.plan.sparql import EpQuery
from kaicep.query import resolve_queries
from kaicep.storage.disk import read_sealed
from kaicep.storage.places import StorePath, place_of

# ----------------------------------------------------------------------------------------------------------
# A deployment checked without being started: `kaicep run --check`.

_ARCHIVE = ("deltalake", "pyarrow")
_SERVER = ("uvicorn", "httptools", "starlette", "jinja2", "prometheus_client")


def check_deployment(config: Config) -> Iterator[str]:
    """Checks all that can be checked without starting anything; a line for each thing that is in order.

    Raises `Mistake` with all that is wrong. Sources and sinks are not connected to.
    """
    wrong = missing_packages(config)
    if wrong:
        raise Mistake(wrong)  # without them nobody can look at the rest
    lines: list[str] = []
    try:
        read_token(config.listen)
    except Mistake as mistake:
        wrong += mistake.diagnostics
    for folder in (each for each in (config.state, config.archive) if not isinstance(each, StorePath)):
        near = next(each for each in (folder, *folder.resolve().parents) if each.exists())
        if not os.access(near, os.W_OK):
            wrong.append(Diagnostic(f"{folder} cannot be made: {near} is not writable"))
    with TemporaryDirectory() as place:
        copied = Copy.begun(config.endpoint, Path(place)).file if config.endpoint is not None else None
        paths = (*((copied,) if copied else ()), *config.knowledge)
        knowledge = Knowledge.load(*paths, reasoning=config.reasoning)
    if config.shapes:
        wrong += shapes_of(config.shapes)(knowledge) if config.violations == "refuse" else ()
    lines.append(f"knowledge: {len(knowledge):,} statements, reasoning {config.reasoning}")
    lines += [f"stream {name}: {each.source['kind']}" for name, each in config.streams.items()]
    lines += [f"sink {name}: {each.options['kind']}" for name, each in config.sinks.items()]
    queries, problems = _queries(config)
    wrong += problems
    try:
        query = resolve_queries(queries, catalog_of(config, knowledge), knowledge, 0)
        for plan in query.program.queries:
            notes = [each.message for each in query.said(plan.name) if each.severity == "warning"]
            lines.append(f"query {plan.name}: {'; '.join(notes) or 'ok'}")
    except Mistake as mistake:
        wrong += mistake.diagnostics
    there = {each.name for each in queries}
    named = {name for each in config.sinks.values() for name in each.queries or ()}
    for name in sorted(named - there):
        lines.append(f"note: a sink takes matches of {name}, and there is no such query yet")
    for name in sorted(config.asked.keys() - there):
        lines.append(f"note: something is said of the query {name}, and there is no such query yet")
    if wrong:
        raise Mistake(wrong)
    yield from lines
    yield f"{config.name}: ok"


def missing_packages(config: Config | None = None) -> list[Diagnostic]:
    """What is not installed and is needed to run a deployment, this one or any.

    Connectors look for what they need themselves.
    """
    needs = [
        ("the archive of a deployment", _ARCHIVE, "delta"),
        ("the service of a deployment", _SERVER, "server"),
    ]
    if config is not None and config.engine.kind == "spark":
        needs.append(("a deployment on Spark", ("pyspark",), "spark"))
    return [
        Diagnostic(
            f"{who} needs the package {package}, which is not installed",
            hint=f"pip install 'kaicep[{extra}]'",
        )
        for who, packages, extra in needs
        for package in packages
        if find_spec(package) is None
    ]


def _queries(config: Config) -> tuple[list[ChiQuery | EpQuery], list[Diagnostic]]:
    prefixes = prefixes_of(config.annotations)
    found: list[ChiQuery | EpQuery] = []
    wrong: list[Diagnostic] = []
    for path in sorted(config.queries.iterdir()):
        if path.suffix in SUFFIXES.values():
            try:
                check_name(path.stem, config.streams)
                found.append(read_query(path, prefixes))
            except Mistake as mistake:
                wrong += mistake.diagnostics
    return found, wrong


def catalog_of(config: Config, knowledge: Knowledge, snapshot: Snapshot | None = None) -> Catalog:
    """The streams as the archive has them, or, where it has nothing yet, as they are described."""
    held = snapshot or Archive(config.archive).snapshot()
    streams: list[Stream] = []
    for name, each in config.streams.items():
        shape = held.shape(name) if name in held.tables else None
        attributes = shape.attributes if shape else tuple(each.types.items())
        streams.append(Stream(name, attributes, rdf=shape.rdf if shape else False, open=shape is None))
    return build_catalog(streams, config.annotations, knowledge)


# ----------------------------------------------------------------------------------------------------------
# Whether what a deployment keeps is whole, and fits together: progress, sinks, states and archive.
#
# The archive gets events first, and progress counts what is on the disk. So progress that is ahead of the
# archive means that something was lost that had been promised, and nobody goes on from there in silence.

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
