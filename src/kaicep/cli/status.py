"""`kaicep status` and `kaicep follow`: a running deployment, seen from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kaicep.cli.run import DeploymentFile

__all__ = ["status", "follow"]


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
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    archive = found["archive"]
    yield f"{found['name']}: running since {found['since']}"
    yield f"archive {archive['folder']}: {archive['events']:,} events, {archive['bytes']:,} bytes"
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


def _reasons(query: Mapping[str, Any]) -> Iterator[str]:
    """From when on a query looks, how far events came, what it waits for, what was left out."""
    if "from" in query:
        until = f" until {query['until']}" if query["until"] else ""
        yield f"  looks from {query['from'] or 'the beginning'} on{until}"
    if query.get("steps"):
        came, filters, paths = (query["steps"][each] for each in ("in", "filter", "path"))
        yield f"  {came:,} events in, {filters:,} passed a FILTER, {paths:,} a PATH, {query['held']:,} kept"
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
    return f", {query['matches']:,} matches{last}, {query['held']:,} held"


# ----------------------------------------------------------------------------------------------------------
# `kaicep follow`: the matches of a query of a running deployment, as they come.

_ALL = 1_000_000


def follow(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="The name of a query; or the file of one, which is registered first, or replaced.",
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
            help="Begin with so many of the matches so far: none by default; of a file, all that are known.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the matches of a running query as they come.

    The query is one of a running deployment; each match is one JSON object on a line of its own. A query
    that is given as a file is answered back in time first, if its WITHIN says so, and stays registered.

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
