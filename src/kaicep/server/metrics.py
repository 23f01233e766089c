"""The figures of a deployment as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kaicep.plan.time import parse_time

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["as_prometheus"]

_STATES = ("waiting", "catching up", "live", "complete", "failed", "wrong")
_FIGURES = (
    ("stream", "kaicep_stream_events", "counter", "events", "Events taken in since the start."),
    ("stream", "kaicep_stream_late", "counter", "late", "Events that came too late."),
    ("stream", "kaicep_stream_dead", "counter", "dead", "Records that are not events."),
    ("stream", "kaicep_stream_lag_seconds", "gauge", "lag", "Age of the newest event."),
    (
        "stream",
        "kaicep_stream_watermark_seconds",
        "gauge",
        "watermark",
        "The time below which only late events come.",
    ),
    ("query", "kaicep_query_matches", "counter", "matches", "Matches so far."),
    ("query", "kaicep_query_held", "gauge", "held", "Events and partial matches held."),
    ("sink", "kaicep_sink_written", "counter", "written", "Matches made final."),
    ("sink", "kaicep_sink_backlog", "gauge", "backlog", "Matches that wait."),
)
_TABLES = {"stream": "streams", "query": "queries", "sink": "sinks"}


def as_prometheus(status: Mapping[str, Any]) -> str:
    """The status of a deployment as metrics.

    >>> print(as_prometheus({"streams": {"air": {"events": 3}}, "queries": {}, "sinks": {}}).splitlines()[2])
    kaicep_stream_events_total{stream="air"} 3.0
    """
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        """The figures of one moment."""

        def collect(self) -> Iterable[Metric]:
            return _families(status)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


def _families(status: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for what, name, kind, key, help in _FIGURES:
        make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        family = make(name, help, labels=[what])
        for label, row in status.get(_TABLES[what], {}).items():
            value = _seconds(row.get(key))
            if value is not None:
                family.add_metric([label], value)
        yield family
    states = GaugeMetricFamily(
        "kaicep_query_state", "1 for the state that a query is in.", labels=["query", "state"]
    )
    for label, row in status.get("queries", {}).items():
        for state in _STATES:
            states.add_metric([label, state], float(row.get("state") == state))
    yield states


def _seconds(value: Any) -> float | None:
    micros = parse_time(value) if isinstance(value, str) else None
    return micros / 1_000_000 if micros is not None else value
