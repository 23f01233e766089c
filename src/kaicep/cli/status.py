"""`kaicep status`: how a running deployment is doing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kaicep.cli.run import DeploymentFile

__all__ = ["status"]


def status(
    deployment: DeploymentFile = Path("kaicep.toml"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the streams, queries and sinks of a running deployment.

    Example: kaicep status campus/kaicep.toml
    """
    from kaicep.endtoend.config import load_config
    from kaicep.server.client import Client

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
