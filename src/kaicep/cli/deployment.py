"""A whole deployment from one file: `kaicep run`, and `status`, `follow`, `console` and `lsp` beside it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import (
    FAILED,
    Conf,
    Master,
    Remote,
    choose,
    choose_cluster,
    compile_kernel,
    moment,
    say,
)
from kaicep.errors import Mistake

if TYPE_CHECKING:
    from kaicep.deployment.on_spark import SparkDeployment
    from kaicep.deployment.running import Deployment


# ----------------------------------------------------------------------------------------------------------
# `kaicep run`: a whole deployment, from one file.

_LOGS = ("text", "json")

DeploymentFile = Annotated[
    Path, typer.Argument(metavar="TOML", help="The file that describes the deployment.")
]


def run(
    deployment: DeploymentFile = Path("kaicep.toml"),
    check: Annotated[bool, typer.Option("--check", help="Check everything and start nothing.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", help="Stop after N seconds.", show_default=False)
    ] = None,
    now: Annotated[
        str | None,
        typer.Option("--now", metavar="TIME", help="The time that `now` means in new queries."),
    ] = None,
    log: Annotated[
        str, typer.Option("--log", metavar="|".join(_LOGS), help="The format of the messages on stderr.")
    ] = "text",
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="inprocess|spark",
            help="The engine to use, instead of the one in the file.",
        ),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Run a deployment: everything that one file describes.

    Its sources, archive, knowledge, queries and sinks.
    Ctrl-C lets it finish what it has begun. A second one stops it at once; nothing is lost.

    Example: kaicep run campus/kaicep.toml --check
    """
    choose("--log", log, _LOGS)
    instant = moment("--now", now)

    from kaicep.deployment.config import ENGINES, load_config

    config = load_config(deployment)
    kind = choose("--engine", engine, ENGINES) if engine is not None else config.engine.kind
    cluster = choose_cluster(master, remote, conf, kind == "spark", "such as --engine spark")
    config = replace(
        config, engine=replace(config.engine, kind=kind, cluster=cluster or config.engine.cluster)
    )
    if check:
        from kaicep.deployment.check import check_deployment

        for line in check_deployment(config):
            typer.echo(line)
        return

    from kaicep.deployment.check import missing_packages

    if missing := missing_packages(config):
        raise Mistake(missing)
    from kaicep.deployment.on_spark import SparkDeployment
    from kaicep.deployment.running import Deployment
    from kaicep.server.service import Service

    _log_to_stderr(log)
    compile_kernel()
    running = SparkDeployment(config, instant) if kind == "spark" else Deployment(config, instant)
    with Service(running), stopped_by_signals(running):
        running.run(seconds)


@contextmanager
def stopped_by_signals(running: Deployment | SparkDeployment) -> Iterator[None]:
    """The first signal lets it come to an end, the second ends it here and now."""
    signals = (signal.SIGINT, signal.SIGTERM)
    asked = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(FAILED)
        say("stopping: finishing what came in; press again to stop at once")
        running.stop()

    before = [signal.signal(each, stop) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _log_to_stderr(form: str) -> None:
    from kaicep.server.service import JsonLines, PlainLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    logger = logging.getLogger("kaicep")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


# ----------------------------------------------------------------------------------------------------------
# `kaicep status`: how a running deployment is doing.


def status(
    deployment: DeploymentFile = Path("kaicep.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the streams, queries and sinks of a running deployment.

    Example: kaicep status campus/kaicep.toml
    """
    from kaicep.deployment.config import load_config
    from kaicep.server.service import Client

    found = Client(load_config(deployment)).status()
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines_of(found)))


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """The status of a deployment for people."""
    archive = found["archive"]
    yield f"{found['name']}: running since {found['since']}"
    yield f"archive {archive['folder']}: {archive['events']:,} events, {archive['bytes']:,} bytes"
    yield from _engine(found["engine"])
    yield ""
    for name, each in found["streams"].items():
        yield f"stream {name}: {each['events']:,} events, {each['late']:,} late, {each['dead']:,} dead"
        places = ", ".join(f"part {part} at {at:,}" for part, at in each["positions"].items())
        yield f"  {places or 'no records yet'}" + ("; ended" if each["ended"] else "")
        if each["newest"]:
            watermark = f"watermark {each['watermark']}, " if each["watermark"] else ""
            yield f"  newest {each['newest']}, {watermark}lag {each['lag']:,.1f} s"
        for lost in each["lost"]:
            yield f"  lost: part {lost['part']}, positions {lost['from']:,} to {lost['to'] - 1:,}"
        if each["trouble"]:
            yield f"  trouble: {each['trouble']}"
        if "address" in each:
            yield f"  events are posted to {each['address']}"
    yield ""
    if found["trouble"]:
        yield f"trouble: {found['trouble']}"
    for name, each in found["queries"].items():
        yield f"query {name}: {each['state']}" + _matches(each)
        if each.get("watermark"):
            yield f"  watermark {each['watermark']}, {each['plan']}"
        if each.get("problem"):
            yield from (f"  {line}" for line in each["problem"].splitlines())
        yield from _reasons(each)
    for name, each in found["sinks"].items():
        waiting = f", {each['backlog']:,} waiting" if each["backlog"] else ""
        yield f"sink {name}: {each['written']:,} matches written{waiting}"
        if each["trouble"]:
            yield f"  trouble: {each['trouble']}"


def _engine(engine: Mapping[str, Any]) -> Iterator[str]:
    """How long the steps take; on Spark, also what the last one moved."""
    if engine["newest"] is None:
        return
    name = "on Spark, micro-batches" if engine["kind"] == "spark" else "in process, steps"
    took = (f"{what} {engine[what]:,.2f} s" for what in ("newest", "median", "longest"))
    yield f"{name}: {', '.join(took)}"
    if "sent" in engine:
        yield (
            f"  the newest: {engine['events']:,} events, {engine['sent']:,} sent to engines, "
            f"{engine['widest']:,} to one, {engine['written']:,} bytes of state written"
        )


def _reasons(query: Mapping[str, Any]) -> Iterator[str]:
    """From which time a query reads events, how far they came, what it waits for, what was left out."""
    if "from" in query:
        until = f" until {query['until']}" if query["until"] else ""
        yield f"  reads events from {query['from'] or 'the beginning'} on{until}"
    if query.get("steps"):
        came, filters, paths = (query["steps"][each] for each in ("in", "filter", "path"))
        kept = f"{query['held']:,} buffered"
        yield f"  {came:,} events in, {filters:,} passed a FILTER, {paths:,} a PATH, {kept}"
    if "sent" in query:
        yield f"  {query['sent']:,} events sent to its engines"
    if query.get("behind"):
        behind = query["behind"]
        reached = f"is at {behind['reached']}" if behind["reached"] else "has sent nothing"
        silent = f", silent for {behind['silent']:,.0f} s" if behind["silent"] is not None else ""
        yield f"  waits for {behind['stream']} part {behind['part']}, which {reached}{silent}"
    dropped = [f"{count:,} {what}" for what, count in query.get("dropped", {}).items() if count]
    if dropped:
        yield f"  left out: {', '.join(dropped)}"
    if query.get("note"):
        yield f"  {query['note']}"


def _matches(query: Mapping[str, Any]) -> str:
    if "matches" not in query:
        return ""
    last = f", the last at {query['last']}" if query["last"] else ""
    return f", {query['matches']:,} matches{last}, {query['held']:,} buffered"


# ----------------------------------------------------------------------------------------------------------
# `kaicep follow`: the matches of a query of a running deployment, as they come.

_ALL = 1_000_000


def follow(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="The name of a query; or the file of one, which registers it first, or replaces it.",
        ),
    ],
    deployment: Annotated[
        Path, typer.Option("--deployment", metavar="TOML", help="The file that describes the deployment.")
    ] = Path("kaicep.toml"),
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=0,
            help="Begin with the last N matches so far. Default: none; for a file, all.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the matches of a running query as they come.

    The query is one of a running deployment; each match is one JSON object on a line of its own. A query
    that you give as a file first finds its matches in the past, if its WITHIN asks for them, and stays
    registered.

    Example: kaicep follow query7 --deployment campus/kaicep.toml --last 5
    """
    from kaicep.deployment.config import load_config
    from kaicep.deployment.registered import SUFFIXES
    from kaicep.server.service import Client

    languages = {suffix: language for language, suffix in SUFFIXES.items()}
    file = Path(query)
    if file.suffix not in languages:
        for line in Client(load_config(deployment)).matches(query, last or 0):
            typer.echo(line)
        return

    from kaicep.plan.toml import read_source

    text = read_source(file, "query").text
    client = Client(load_config(deployment))
    client.register(file.stem, languages[file.suffix], text)
    for line in client.matches(file.stem, _ALL if last is None else last):
        typer.echo(line)


# ----------------------------------------------------------------------------------------------------------
# `kaicep lsp`: the language server for editors.


def lsp(
    deployment: Annotated[
        Path | None,
        typer.Option(
            "--deployment",
            metavar="TOML",
            help="The deployment that the queries belong to; else the nearest kaicep.toml above them.",
        ),
    ] = None,
) -> None:
    """Start the language server for editors.

    Example: kaicep lsp --deployment campus/kaicep.toml
    """
    for each in ("pygls", "deltalake"):
        if find_spec(each) is None:
            hint = "pip install 'kaicep[lsp,delta]'"
            raise Mistake(f"the language server needs the package {each}", hint=hint)

    from kaicep.assist.lsp import serve

    serve(deployment)


# ----------------------------------------------------------------------------------------------------------
# `kaicep console`: a browser on a running deployment.


def console(
    deployment: DeploymentFile = Path("kaicep.toml"),
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open nothing.", show_default=False)
    ] = False,
) -> None:
    """Open the console of a running deployment in a browser.

    Example: kaicep console campus/kaicep.toml
    """
    from kaicep.deployment.config import load_config
    from kaicep.server.service import Client

    url = f"{Client(load_config(deployment)).url}/console"
    typer.echo(url)
    if not no_browser and not webbrowser.open(url):
        typer.echo("no browser opens here: visit the address", err=True)
