"""The event service under load: the two experiments of the CPEP paper (its section V), and a query.

Experiment 1 lets the middle level grow, with and without priorities. Experiment 2 deploys more and more
copies of a graph whose levels share operators, with and without sharing and shedding. Experiment 3 runs a
query of the SCEPter paper above spectra that need the same supplier. How many copies make which load is
measured first, so that every machine goes through the same loads.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

from kaicep.knowledge.store import Knowledge
from kaicep.live import ticking
from kaicep.live.graph import Consumer, Node, Operator, Supplier
from kaicep.live.sharing import LiveQuery
from kaicep_bench.campus import prepared, reports, turtle
from kaicep_bench.live_load import KEY, Run, apart, run_once
from kaicep_bench.table import Cell, Report, Table

__all__ = ["Bench", "figure5", "figure7", "measure"]

HIGH, MIDDLE, LOW = 3, 2, 1
LEVELS = {HIGH: "high", MIDDLE: "middle", LOW: "low"}
MS = 1000

# Query 7 of the SCEPter paper (its section 3.2).
QUERY7 = """SELECT ?e1.sensorID
FILTER (?e1.flowrate > 500)
JOIN (?e2.sensorID = ?e1.sensorID) JOIN (?e2.flowrate - ?e1.flowrate > 50)
SEQ (?e1, ?e2) WINDOW (?e1, ?e2, 5min)
PATH {?e1 evt:hasSource ?src1 . ?src1 rdf:type ee:AirflowSensor . ?src1 bd:hasLocation ?loc1 .
  ?loc1 rdf:type bd:MeetingRoom .
  ?e2 evt:hasSource ?src2 . ?src2 rdf:type ee:AirflowSensor . ?src2 bd:hasLocation ?loc2 .
  ?loc2 rdf:type bd:MeetingRoom}"""

# Student's t for 95%, by the number of runs.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class Size:
    """How much is measured: loads, repeats, and the seconds of a run, without those to warm up."""

    loads: Sequence[float]
    factors: Sequence[float]
    overloads: Sequence[float]
    repeats: int
    seconds: float
    warm_up: float


FULL = Size(
    (0.45, 0.6, 0.75, 0.85, 0.95, 1.2), (0.25, 0.5, 0.75, 1.0, 1.5, 2.0), (1.2, 1.5, 2.0), 10, 3.0, 1.5
)
QUICK = Size((0.45, 0.95), (0.5, 2.0), (1.5,), 1, 0.5, 0.3)


@dataclass(frozen=True)
class Bench:
    """Runs graphs, each as often as the size says, and keeps a row for every run and level."""

    size: Size
    raw: list[dict[str, Cell]] = field(default_factory=list)

    def run(self, nodes: Sequence[Node], discard: bool, **settings: Any) -> Run:
        """One run, to find out how much makes which load."""
        return run_once(nodes, self.size.warm_up, self.size.seconds, discard, **settings)

    def repeat(
        self, about: Mapping[str, Cell], nodes: Sequence[Node], discard: bool, **settings: Any
    ) -> list[Run]:
        """The runs of a point; `about` says which point it is."""
        runs = []
        for number in range(self.size.repeats):
            runs.append(self.run(nodes, discard, **settings))
            self.raw.extend(_raw({**about, "run": number + 1}, runs[-1]))
        return runs


def _raw(about: Mapping[str, Cell], run: Run) -> Iterator[dict[str, Cell]]:
    for found in run.figures["levels"].values():
        latency = {f"{name} us": found["latency_us"][name] for name in ("p50", "p99", "max")}
        counts = {name: found[name] for name in ("delivered", "timely", "late", "lost", "bytes")}
        yield {**about, "load": run.load, "seconds": run.seconds, "level": found["name"], **latency, **counts}


def measure(quick: bool = False) -> Report:
    """Runs the experiments; `kaicep bench figures` draws them."""
    size = QUICK if quick else FULL
    bench = Bench(size)
    with apart() as (_, inside):
        cable = bool(inside)
    first, second, third = _prioritisation(bench), _sharing(bench), _query(bench)
    fourth, fifth = _locking(bench), _leaving_out(bench)
    tables = [
        Table("experiment 1: latency under growing load of the middle level (figure 6)", first),
        Table("experiment 2: latency with and without sharing (figure 8)", [r for r in second if r["level"]]),
        Table("experiment 2: timely throughput (figure 9)", [r for r in second if not r["level"]]),
        Table("experiment 3: query 7 above three streams of spectra", third),
        Table("experiment 4: the high level beside an operator that keeps the interpreter lock", fourth),
        Table("experiment 5: timely deliveries of a run under overload, all on and one off", fifth),
        Table("goals", _goals(first, second, third, fourth, fifth)),
    ]
    notes = [
        f"runs: {size.repeats} of {size.seconds:g} s after {size.warm_up:g} s; +- is 95% of confidence",
        f"order by {'SCHED_FIFO' if ticking.allowed() else 'queues'}",
        "load is the CPU time of workers and movers, of the cores for operators",
        "suppliers and consumers are other processes, on the last core; the service keeps to the others",
        "they are connected " + ("by a cable between network namespaces" if cable else "over loopback"),
        "latency is from the push in the supplier's process to the receipt in the consumer's",
    ]
    return Report("live", tables, notes, raw=bench.raw)


# --- the graphs --------------------------------------------------------------------------------------------


def figure5(copies: int, middle: int) -> list[Node]:
    """Three levels, 200 Hz of 512 bytes, 100 Hz of 1024, 50 Hz of 2048: copies, and more of the middle."""
    nodes: list[Node] = []
    for number in range(copies):
        nodes += _stream(f"h{number}", HIGH, 5, 512, 2, ("ekf", "aes"))
        nodes += _stream(f"l{number}", LOW, 20, 2048, 2, ("ekf", "fft"))
    for number in range(copies + middle):
        nodes += _branches(f"m{number}", MIDDLE, 10, 1024)
    return nodes


def _stream(name: str, level: int, period: int, size: int, sensors: int, kinds: Sequence[str]) -> list[Node]:
    suppliers = [_supplier(f"{name}.s{each}", period, size) for each in range(sensors)]
    nodes: list[Node] = [*suppliers]
    inputs = tuple(each.name for each in suppliers)
    for kind in kinds:
        nodes.append(Operator(f"{name}.{kind}", kind, inputs, _settings(kind)))
        inputs = (f"{name}.{kind}",)
    return [*nodes, Consumer(f"{name}.c", inputs[0], level)]


def _branches(name: str, level: int, period: int, size: int) -> list[Node]:
    nodes: list[Node] = []
    for side in "ab":
        suppliers = [_supplier(f"{name}.{side}{each}", period, size) for each in range(2)]
        inputs = tuple(each.name for each in suppliers)
        nodes += [*suppliers, Operator(f"{name}.ekf{side}", "ekf", inputs)]
        nodes.append(Operator(f"{name}.fft{side}", "fft", (f"{name}.ekf{side}",)))
    nodes.append(Operator(f"{name}.cat", "cat", (f"{name}.ffta", f"{name}.fftb")))
    return [*nodes, Consumer(f"{name}.c", f"{name}.cat", level)]


def figure7(copies: int) -> list[Node]:
    """Three consumers, high, middle and low, each of which shares a spectrum with the next; 100 Hz."""
    nodes: list[Node] = []
    for copy in range(copies):
        for each in range(1, 6):
            nodes.append(_supplier(f"g{copy}.s{each}", 10, 1024))
            nodes.append(Operator(f"g{copy}.ekf{each}", "ekf", (f"g{copy}.s{each}",)))
            nodes.append(Operator(f"g{copy}.fft{each}", "fft", (f"g{copy}.ekf{each}",)))
        for level, parts in ((HIGH, (1, 2)), (MIDDLE, (2, 3, 4)), (LOW, (4, 5))):
            name = f"g{copy}.{LEVELS[level]}"
            nodes.append(Operator(f"{name}.cat", "cat", tuple(f"g{copy}.fft{each}" for each in parts)))
            nodes.append(Consumer(name, f"{name}.cat", level))
    return nodes


def _supplier(name: str, period: int, size: int) -> Supplier:
    return Supplier(name, 10 * MS, period * MS, source={"size": size})


def _settings(kind: str) -> Mapping[str, Any]:
    return {"key_env": KEY} if kind == "aes" else {}


def _spread(values: Sequence[float]) -> float | None:
    """Half the width of the interval that holds the mean with 95% of confidence."""
    if len(values) < 2:
        return None
    return float(_T.get(len(values), 1.96) * statistics.stdev(values) / math.sqrt(len(values)))


# --- the experiments ---------------------------------------------------------------------------------------


def _prioritisation(bench: Bench) -> list[dict[str, Cell]]:
    base = bench.run(figure5(3, 0), False).load
    more = max((bench.run(figure5(3, 4), False).load - base) / 4, 0.005)
    rows: list[dict[str, Cell]] = []
    for load in bench.size.loads:
        middle = max(0, round((load - base) / more))
        for prioritised in (True, False):
            about: dict[str, Cell] = {
                "wanted load": load,
                "middle streams": 3 + middle,
                "priorities": "yes" if prioritised else "no",
            }
            point = {"experiment": 1, **about}
            runs = bench.repeat(point, figure5(3, middle), False, prioritised=prioritised)
            about["load"] = round(statistics.mean(each.load for each in runs), 3)
            for level, name in LEVELS.items():
                rows.append({**about, "level": name, **_latency([each.level(level) for each in runs])})
    return rows


def _latency(found: Sequence[Mapping[str, Any]]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name in ("p50", "p99", "max"):
        values = [each["latency_us"][name] for each in found if each["delivered"]]
        cells[f"{name} us"] = round(statistics.mean(values), 1) if values else None
        if name == "p99":
            spread = _spread(values)
            cells["+-"] = None if spread is None else round(spread, 1)
    cells["delivered"] = sum(each["delivered"] for each in found)
    return cells


def _sharing(bench: Bench) -> list[dict[str, Cell]]:
    one = (
        bench.run(figure7(3), False, sharing=False).load - bench.run(figure7(1), False, sharing=False).load
    ) / 2
    saturating = max(2, round(0.95 / max(one, 0.01)))
    rows: list[dict[str, Cell]] = []
    for factor in bench.size.factors:
        copies = max(1, round(factor * saturating))
        for sharing, shedding in product((True, False), repeat=2):
            about: dict[str, Cell] = {
                "of saturation": factor,
                "copies": copies,
                "sharing": "yes" if sharing else "no",
                "shedding": "yes" if shedding else "no",
            }
            runs = bench.repeat({"experiment": 2, **about}, figure7(copies), shedding, sharing=sharing)
            rows += _rows2(about, runs)
    return rows


def _rows2(about: dict[str, Cell], runs: Sequence[Run]) -> Iterator[dict[str, Cell]]:
    about["load"] = round(statistics.mean(each.load for each in runs), 3)
    for level, name in LEVELS.items():
        found = [each.level(level) for each in runs]
        timely, late = (sum(each[key] for each in found) for key in ("timely", "late"))
        lost = sum(each["lost"] for each in found)
        yield {**about, "level": name, **_latency(found), "timely": timely, "late": late, "shed": lost}
    rates = [each.mbps for each in runs]
    spread = _spread(rates)
    yield {
        **about,
        "level": "",
        "timely Mbps": round(statistics.mean(rates), 2),
        "+-": None if spread is None else round(spread, 2),
    }


def _query(bench: Bench) -> list[dict[str, Cell]]:
    """Query 7 alone, and above three streams of spectra of the same supplier that fill the machine."""
    query, supplier = _query7()
    alone: list[Node] = [
        supplier,
        Operator("query7", "query", (supplier.name,), {"query": "query7.chi"}, query),
        Consumer("alarm", "query7", HIGH),
    ]
    first = bench.run(alone, False)
    seconds = max(0.95 - first.load, 0.05) * first.cores / 3 * (supplier.period or 1) / 1e6
    spectra: list[Node] = []
    for number in range(3):
        spectra.append(Operator(f"spectrum{number}", "python", (supplier.name,), {}, _spectra(seconds)))
        spectra.append(Consumer(f"report{number}", f"spectrum{number}", LOW))
    rows: list[dict[str, Cell]] = []
    for name, nodes in (("alone", alone), ("beside spectra", [*alone, *spectra])):
        runs = bench.repeat({"experiment": 3, "query 7": name}, nodes, False)
        load = round(statistics.mean(each.load for each in runs), 3)
        rows.append({"query 7": name, "load": load, **_latency([each.level(HIGH) for each in runs])})
    return rows


@cache
def _unsorted() -> list[float]:
    chance = random.Random(7)
    return [chance.random() for _ in range(200_000)]


def keep_lock(payload: Any) -> None:
    """Keeps the interpreter lock for about 50 ms: sorting is one call of C code."""
    sorted(_unsorted())


def _locking(bench: Bench) -> list[dict[str, Cell]]:
    """The high level alone, and beside a low operator that keeps the lock: in the service, and apart."""
    rows: list[dict[str, Cell]] = []
    for name, isolate in (("alone", None), ("in the service", False), ("isolated", True)):
        nodes = _stream("h", HIGH, 5, 512, 2, ("ekf", "aes"))
        if isolate is not None:
            nodes += [
                Supplier("slow", 200 * MS, 100 * MS, source={"size": 64}),
                Operator("keeper", "python", ("slow",), {}, keep_lock, isolate=isolate),
                Consumer("report", "keeper", LOW),
            ]
        runs = bench.repeat({"experiment": 4, "keeper": name}, nodes, True)
        rows.append({"keeper": name, **_latency([each.level(HIGH) for each in runs])})
    return rows


SWITCHED: Mapping[str, tuple[bool, Mapping[str, bool]]] = {
    "all on": (True, {}),
    "no admission": (True, {"admission": False}),
    "no sharing": (True, {"sharing": False}),
    "no priorities": (True, {"prioritised": False}),
    "no shedding": (False, {}),
}
"""Whether outdated events are shed, and the settings that are not as they are by themselves."""


def _leaving_out(bench: Bench) -> list[dict[str, Cell]]:
    one = (bench.run(figure7(3), False).load - bench.run(figure7(1), False).load) / 2
    rows: list[dict[str, Cell]] = []
    for factor in bench.size.overloads:
        copies = max(1, round(factor / max(one, 0.01)))
        for name, (discard, settings) in SWITCHED.items():
            about: dict[str, Cell] = {"of saturation": factor, "with": name}
            runs = bench.repeat(
                {"experiment": 5, "copies": copies, **about}, figure7(copies), discard, **settings
            )
            timely = [[each.level(level)["timely"] for level in LEVELS] for each in runs]
            means = {
                LEVELS[level]: statistics.mean(some)
                for level, some in zip(LEVELS, zip(*timely, strict=True), strict=True)
            }
            spread = _spread([sum(each) for each in timely])
            rows.append({**about, **means, "all": sum(means.values()), "+-": spread and round(spread, 1)})
    return rows


def _query7() -> tuple[LiveQuery, Supplier]:
    """The query over a campus where every sensor is in a meeting room, so that there is much to find."""
    rooms, sensors = range(12), range(60)
    known = turtle(len(sensors)) + "".join(f"\nbd:R{each} a bd:MeetingRoom ." for each in rooms)
    known += "".join(f"\nee:S{each} a ee:AirflowSensor ." for each in sensors)
    events = reports(len(sensors), 2_000, 200)
    compiled = prepared(QUERY7, Knowledge.parse(known), events[:10], "query7")
    rows = [{**each.values, "flowrate": float(each.values["flowrate"] or 0) + 200} for each in events]
    supplier = Supplier("airflowReport", 50 * MS, 5 * MS, type="records", source={"rows": rows})
    return LiveQuery.of(compiled), supplier


def _spectra(seconds: float) -> Callable[[Any], Any]:
    """Spectra for about so long, without the interpreter's lock."""
    import numpy as np
    import scipy.fft

    wave = np.cos(np.arange(8192, dtype=np.float32))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        scipy.fft.fft(wave)
        times.append(time.perf_counter() - began)
    turns = max(1, round(seconds / statistics.median(times)))

    def run(row: Mapping[str, Any]) -> Any:
        found = None
        for _ in range(turns):
            found = scipy.fft.fft(wave * np.float32(row["flowrate"]))
        return found

    return run


# --- what it says ------------------------------------------------------------------------------------------


def _goals(
    first: Sequence[Mapping[str, Cell]],
    second: Sequence[Mapping[str, Cell]],
    third: Sequence[Mapping[str, Cell]],
    fourth: Sequence[Mapping[str, Cell]],
    fifth: Sequence[Mapping[str, Cell]],
) -> list[dict[str, Cell]]:
    def p99(load: float, priorities: str) -> float:
        return next(
            float(each["p99 us"] or 0)
            for each in first
            if each["wanted load"] == load and each["priorities"] == priorities and each["level"] == "high"
        )

    def total(factor: float) -> float:
        return next(
            float(each["timely Mbps"] or 0)
            for each in second
            if each["of saturation"] == factor
            and not each["level"]
            and each["sharing"] == each["shedding"] == "yes"
        )

    factors = list(dict.fromkeys(float(each["of saturation"] or 0) for each in second))
    missed = sum(
        int(each["late"] or 0) + int(each["shed"] or 0)
        for each in second
        if each["level"] == "high" and each["sharing"] == each["shedding"] == "yes"
    )
    with_, without = (_ratio(p99(0.95, answer), p99(0.45, answer)) for answer in ("yes", "no"))
    beside = _ratio(float(third[-1]["p99 us"] or 0), float(third[0]["p99 us"] or 0))
    by_load = [fifth[at : at + len(SWITCHED)] for at in range(0, len(fifth), len(SWITCHED))]
    shares = [_share("all", rows[0], rows[1:]) for rows in by_load]
    levels = [_share(level, rows[0], rows[1:2]) for rows in by_load for level in ("high", "middle")]
    low = [
        float(each["p99 us"] or 0) / 1000
        for each in first
        if (each["wanted load"], each["priorities"], each["level"]) == (0.75, "yes", "low")
    ]
    return [
        {"goal": "high p99 at 95% load, of that at 45%", "wanted": "<= 1.2", "found": with_},
        {"goal": "the same without priorities", "wanted": "grows", "found": without},
        {"goal": "high p99 at 95% load, ms", "wanted": "<= 2", "found": round(p99(0.95, "yes") / 1000, 2)},
        {
            "goal": "timely throughput at twice saturation, of the peak",
            "wanted": ">= 0.9",
            "found": _ratio(total(max(factors)), max(map(total, factors))),
        },
        {"goal": "high events late or shed with shedding", "wanted": "0", "found": missed},
        {"goal": "query 7 p99 beside spectra, of that alone", "wanted": "<= 1.2", "found": beside},
        {
            "goal": "high p99 beside an isolated keeper of the lock, ms",
            "wanted": "<= 3",
            "found": round(float(fourth[-1]["p99 us"] or 0) / 1000, 2),
        },
        {
            "goal": "timely deliveries with all on, of the best with one off, the worst of the overloads",
            "wanted": ">= 1",
            "found": round(min(shares), 2),
        },
        {
            "goal": "the same of the high and the middle level, of those without admission",
            "wanted": ">= 1",
            "found": round(min(levels), 2),
        },
        {"goal": "low p99 at 75% load, ms", "wanted": "<= 10", "found": round(low[0], 2) if low else None},
    ]


def _share(column: str, on: Mapping[str, Cell], others: Sequence[Mapping[str, Cell]]) -> float:
    """What all together gives, of the best of the others."""
    return float(on[column] or 0) / max(1.0, *(float(each[column] or 0) for each in others))


def _ratio(value: float, of: float) -> float | None:
    """None where there is nothing to compare with: a short run may deliver nothing at a level."""
    return round(value / of, 2) if of else None
