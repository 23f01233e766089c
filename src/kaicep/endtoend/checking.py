"""A deployment checked without being started: `kaicep run --check`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from kaicep.api import read_query
from kaicep.archive.archive import Archive
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.config import Config, read_token
from kaicep.endtoend.registered import SUFFIXES, check_name
from kaicep.errors import Diagnostic, Mistake
from kaicep.knowledge.annotation import build_catalog, prefixes_of
from kaicep.knowledge.endpoint import Copy
from kaicep.knowledge.shapes import shapes_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import ChiQuery
from kaicep.plan.sparql import EpQuery
from kaicep.query import resolve_queries
from kaicep.storage.places import StorePath

__all__ = ["catalog_of", "check_deployment", "missing_packages"]

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
