"""The metrics of a running service: for programs, for Prometheus, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kaicep.live.bindings import REASONS, Counters, Histogram, RunningOperator, RunningReader
from kaicep.live.event_service import Service
from kaicep.live.graph import inputs_of, priority_name
from kaicep.live.kinds import Isolated

_PERCENTILES = (50, 90, 99, 99.9)


def figures(service: Service) -> dict[str, Any]:
    """Everything that is counted, as JSON can hold it."""
    graph = service.graph
    with service.dispatcher.lock:
        queues = service.dispatcher.queues()
        return {
            "graph": graph.name,
            "seconds": (service.clock() - service.started) / 1e9 if service.started else 0.0,
            "order": "SCHED_FIFO" if service.real_time else "queues",
            "cores": service.dispatcher.cores,
            "outdated": "discard" if graph.discard else "mark",
            "admitted": len(service.consumers) - len(service.admission.hopeless),
            "hopeless": [
                f"{each.consumer}: {each.missed} events in a row ended at {each.node}"
                for each in service.admission.hopeless.values()
            ],
            "failed": service.failed,
            "hanging": len(service.hanging),
            "connected": [
                {"name": name, "ahead_us": clock.ahead / 1000, "bound_us": clock.bound / 1000}
                for name, clock in service.connected.values()
            ],
            "levels": {
                str(priority): {
                    "name": priority_name(priority),
                    **_of(counters),
                    "queues": queues.get(priority, {}),
                }
                for priority, counters in sorted(service.by_priority.items(), reverse=True)
            },
            "consumers": {
                name: {
                    "priority": each.priority,
                    "admitted": each.admitted,
                    "recall": round(recall(service, name), 4),
                    "blocked": each.counters.blocked,
                    **_of(each.counters),
                }
                for name, each in service.consumers.items()
            },
            "operators": {
                name: {
                    "kind": graph.operators[name].kind,
                    "priority": each.priority,
                    "ran": each.counters.ran,
                    "recall": round(recall(service, name), 4),
                    "shed": {reason: each.counters.shed[reason] for reason in REASONS},
                    "locked": each.counters.locked,
                    "isolated": isinstance(each.function, Isolated),
                    "mean_us": round(each.counters.busy / max(1, each.counters.ran) / 1000, 1),
                }
                for name, each in service.operators.items()
            },
            "rings": {
                name: {"size": ring.size, "events": len(ring), "overwritten": ring.overwritten}
                for name, ring in service.store.rings.items()
            },
        }


def _of(counters: Counters) -> dict[str, Any]:
    return {
        "offered": counters.offered,
        "delivered": counters.delivered,
        "timely": counters.timely,
        "late": counters.late,
        "bytes": counters.bytes,
        "lost": counters.lost,
        "shed": {reason: counters.shed[reason] for reason in REASONS},
        "latency_us": _micros(counters.latency),
        "inside_us": _micros(counters.inside),
    }


def _micros(found: Histogram) -> dict[str, float | None]:
    """The percentiles in microseconds; where nothing was delivered there are none."""
    if not found.count:
        return dict.fromkeys([*(f"p{share:g}" for share in _PERCENTILES), "max"])
    shares = {f"p{share:g}": found.percentile(share) / 1000 for share in _PERCENTILES}
    return {**shares, "max": found.largest / 1000}


def recall(service: Service, name: str) -> float:
    """The share of its events that a node got or made, of what it would have had nothing been shed.

    An estimate: losses are taken to be independent, and a match needs all of its events.
    """
    if name in service.suppliers:
        counters = service.suppliers[name].counters
        return 1 - counters.lost / counters.offered if counters.offered else 1.0
    reader: RunningReader = service.operators[name] if name in service.operators else service.consumers[name]
    done, lost = reader.counters.ran + reader.counters.delivered, reader.counters.lost
    found = 1 - lost / (done + lost) if lost else 1.0
    for each in inputs_of(service.graph.node(name)):
        found *= recall(service, each)
    return float(found**reader.places) if isinstance(reader, RunningOperator) else found


# --- Prometheus --------------------------------------------------------------------------------------------


def prometheus(found: Mapping[str, Any]) -> str:
    """Figures in the text format of Prometheus.

    >>> found = {"admitted": 2, "failed": 0, "hanging": 0, "levels": {}, "consumers": {}}
    >>> prometheus(found).splitlines()[-1]
    'kaicep_live_hanging_total 0'
    """
    rows: list[str] = []
    for name, help, type, samples in _families(found):
        rows += [f"# HELP kaicep_live_{name} {help}", f"# TYPE kaicep_live_{name} {type}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
            rows.append(
                f"kaicep_live_{name}{{{shown}}} {value:g}" if shown else f"kaicep_live_{name} {value:g}"
            )
    return "\n".join(rows) + "\n"


Samples = list[tuple[Mapping[str, str], float]]


def _families(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Samples]]:
    parts: list[tuple[dict[str, str], Mapping[str, Any]]] = [
        *(({"priority": name}, each) for name, each in found["levels"].items()),
    ]
    consumers = [({"consumer": name}, each) for name, each in found["consumers"].items()]
    for key, help in (
        ("offered", "Events that suppliers pushed."),
        ("delivered", "Events that consumers got."),
        ("timely", "Events that consumers got while they were valid."),
        ("late", "Events that consumers got when they were outdated."),
    ):
        yield f"{key}_total", help, "counter", [(labels, each[key]) for labels, each in parts]
    yield (
        "shed_total",
        "Events that were thrown away, by reason.",
        "counter",
        [({**labels, "reason": why}, n) for labels, each in parts for why, n in each["shed"].items()],
    )
    yield (
        "queue_length",
        "What waits in the queues of a level.",
        "gauge",
        [({**labels, "queue": name}, n) for labels, each in parts for name, n in each["queues"].items()],
    )
    for key, help in (
        ("latency", "Time from the supplier's latest push to the consumer's receipt, wherever they are."),
        ("inside", "The part of the latency within the service."),
    ):
        yield (
            f"{key}_seconds",
            help,
            "summary",
            [
                ({**labels, "quantile": f"{float(name[1:]) / 100:g}"}, us / 1e6)
                for labels, each in parts
                for name, us in each[f"{key}_us"].items()
                if name != "max" and us is not None
            ],
        )
    yield (
        "consumer_delivered_total",
        "Events that a consumer got.",
        "counter",
        [(labels, each["delivered"]) for labels, each in consumers],
    )
    yield (
        "consumer_recall_ratio",
        "Estimated share of what a consumer would have got had nothing been shed.",
        "gauge",
        [(labels, each["recall"]) for labels, each in consumers],
    )
    yield "consumers_admitted", "Consumers that are served.", "gauge", [({}, found["admitted"])]
    yield "failed_total", "Operators and consumers that raised.", "counter", [({}, found["failed"])]
    yield "hanging_total", "Operators and consumers that hung.", "counter", [({}, found["hanging"])]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- for a person ------------------------------------------------------------------------------------------


def shown(found: Mapping[str, Any]) -> str:
    """The figures by level and by consumer, in columns."""
    head = (
        f"{found['graph']}: {found['seconds']:.1f} s, {found['cores']} core{'s' * (found['cores'] > 1)} for "
        f"operators, order by {found['order']}, "
        f"{found['admitted']} of {len(found['consumers'])} consumers admitted, {found['failed']} failed, "
        f"{found['hanging']} hanging"
    )
    levels = [
        [each["name"], *_numbers(each), "/".join(str(n) for n in each["queues"].values())]
        for each in found["levels"].values()
    ]
    consumers = [
        [name, *_numbers(each), f"{each['recall']:.1%}"]
        for name, each in sorted(found["consumers"].items(), key=lambda one: -one[1]["priority"])
    ]
    columns = ["timely", "late", "shed", "p50 us", "p99 us", "max us"]
    return "\n".join(
        [
            head,
            "",
            *_aligned([["level", *columns, "queues"], *levels]),
            "",
            *_aligned([["consumer", *columns, "recall"], *consumers]),
            *(f"\nleft out for now: {each}" for each in found["hopeless"]),
            *(
                f"\n{name} has kept the interpreter lock {each['locked']:,} times: isolate = true helps"
                for name, each in found["operators"].items()
                if each["locked"] and not each["isolated"]
            ),
        ]
    )


def _numbers(each: Mapping[str, Any]) -> list[str]:
    us = each["latency_us"]
    return [
        f"{each['timely']:,}",
        f"{each['late']:,}",
        f"{each['lost']:,}",
        *("" if us[name] is None else f"{us[name]:,.0f}" for name in ("p50", "p99", "max")),
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
