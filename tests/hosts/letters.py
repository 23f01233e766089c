"""A short way to an engine: queries as text, events as rows, over one stream `s` or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kaicep.api import build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import SourceText
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.types import Type

S = 1_000_000
ATTRIBUTES = (("k", Type.STRING), ("x", Type.INT64))


def engine(
    *texts: str,
    streams: Sequence[str] = ("s",),
    lateness: int | None = 0,
    knowledge: Knowledge | None = None,
    annotations: Sequence[dict[str, Any]] = (),
    settings: Settings | None = None,
    **options: Any,
) -> Engine:
    """An engine of queries that are called q0, q1, ..."""
    known = tuple(found for each in annotations for found in parse_annotations(each))
    prefixes = {name: iri for each in known for name, iri in each.prefixes}
    parsed = [parse_query(SourceText(f"q{number}.chi", text), prefixes) for number, text in enumerate(texts)]
    # One event each, so that the streams are known to have these attributes and no others.
    data = [StreamData(name, ATTRIBUTES, [Event(name, 0, 0, 0)], []) for name in streams]
    run = build_run(parsed, data, known, knowledge or Knowledge.empty(), None, 0)
    return Engine(run, lateness=lateness, settings=settings, **options)


def event(
    seq: int, ts: float, k: str | None = None, x: int | None = None, stream: str = "s", part: int = 0
) -> Event:
    return Event(stream, part, seq, round(ts * S), {"k": k, "x": x})


def ends(matches: Sequence[Match]) -> list[float]:
    return [each.end_us / S for each in matches]
