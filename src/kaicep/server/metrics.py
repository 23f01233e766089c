"""The figures of a deployment as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kaicep.plan.time import parse_time

__all__ = ["as_prometheus"]

_STATES = ("waiting", "catching up", "live", "complete", "failed", "wrong")


def as_prometheus(status: Mapping[str, Any]) -> str:
    """The status of a deployment as metrics.

    >>> print(as_prometheus({"streams": {"air": {"events": 3}}, "queries": {}, "sinks": {}}).splitlines()[2])
    kaicep_stream_events_total{stream="air"} 3
    """
    lines: list[str] = []
    for name, kind, help, samples in _families(status):
        rows = [(labels, value) for labels, value in samples if value is not None]
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" for labels, value in rows]
    return "\n".join(lines) + "\n"


def _families(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[tuple[str, Any]]]]:
    streams, queries, sinks = status["streams"], status["queries"], status["sinks"]

    def of(what: str, rows: Mapping[str, Mapping[str, Any]], key: str) -> list[tuple[str, Any]]:
        return [(_label(what, name), each.get(key)) for name, each in rows.items()]

    yield (
        "kaicep_stream_events_total",
        "counter",
        "Events taken in since the start.",
        of("stream", streams, "events"),
    )
    yield (
        "kaicep_stream_late_total",
        "counter",
        "Events that came too late.",
        of("stream", streams, "late"),
    )
    yield (
        "kaicep_stream_dead_total",
        "counter",
        "Records that are no events.",
        of("stream", streams, "dead"),
    )
    yield "kaicep_stream_lag_seconds", "gauge", "Age of the newest event.", of("stream", streams, "lag")
    yield (
        "kaicep_stream_watermark_seconds",
        "gauge",
        "The time below which only late events come.",
        [(_label("stream", name), _seconds(each.get("watermark"))) for name, each in streams.items()],
    )
    yield "kaicep_query_matches_total", "counter", "Matches so far.", of("query", queries, "matches")
    yield "kaicep_query_held", "gauge", "Events and partial matches held.", of("query", queries, "held")
    yield (
        "kaicep_query_state",
        "gauge",
        "1 for the state that a query is in.",
        [
            (f'{_label("query", name)},state="{state}"', int(each.get("state") == state))
            for name, each in queries.items()
            for state in _STATES
        ],
    )
    yield "kaicep_sink_written_total", "counter", "Matches made final.", of("sink", sinks, "written")
    yield "kaicep_sink_backlog", "gauge", "Matches that wait.", of("sink", sinks, "backlog")


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def _seconds(text: str | None) -> float | None:
    micros = parse_time(text) if text else None
    return micros / 1_000_000 if micros is not None else None
