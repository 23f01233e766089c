"""`kaicep run`: a whole deployment, from one file."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

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

__all__ = ["DeploymentFile", "run", "stopped_by_signals"]

_LOGS = ("text", "json")

DeploymentFile = Annotated[
    Path, typer.Argument(metavar="TOML", help="The file that describes the deployment.")
]
"""The file of a deployment, as an argument."""


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
        str, typer.Option("--log", metavar="|".join(_LOGS), help="The form of the messages on stderr.")
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
    Ctrl-C lets it finish what it has begun; a second one stops it at once, and loses nothing either.

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
