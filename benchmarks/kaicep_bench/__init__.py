"""Benchmarks: what kaicep costs, measured on the machine that asks.

One benchmark a file, with a function `measure` that takes whether to be quick and gives a `Report`. Its
input is made from a seed, in memory. Answers are compared before any number is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaicep_bench.table import Report

__all__ = ["BENCHMARKS", "run"]

BENCHMARKS: Mapping[str, str] = {
    "epsparql": "a SEQ b on a key; sums over time and count windows; a class with 40,080 below it",
    "semantic": "a query with knowledge against its syntactic twin: compiled, and by the run-time path",
    "relation": "50,000 sensors: loading, the table of a relation, and its refresh when a sensor moves",
    "building": "two points of one piece of equipment in one PATH, against the same rule in stages by hand",
    "pattern": "queries 1, 2 and 3, a loop and an absence, on three data sets of up to two million events",
    "constructs": "one query for each construct of chi-CEP, with about one match in ten events",
    "peers": "the same beside Esper, Siddhi and Flink CEP, with equal matches (needs Java and Maven)",
    "latency": "one event at a time, from push to match, with 20,000 live sensors",
    "queries": "1 to 1,000 standing queries at once, and ten shapes mixed",
    "deployment": "a deployment of 1 to 1,000 mixed queries: events/s by source, delay, catching up",
    "scaling": "the cost of an event against events, sensors, window and knowledge, with plots",
    "spark": "the Spark hosts: history by scan, filter, shuffle and kernel; streams by rate and delay",
    "startup": "how long the command line takes to start, as a multiple of a bare Python",
    "recovery": "back after an outage of 10 to 115 minutes at 600 events/s: first match, and caught up",
    "live": "the event service under load: priorities, sharing and shedding, a query above spectra",
    "figures": "the figures of the three papers from these, as pictures, rows and a page of numbers",
}
"""The benchmarks by name, and what each measures."""


def run(name: str, quick: bool = False, folder: Path | None = None, peers: bool = False) -> Report:
    """Runs a benchmark; `quick` is with little input, to see that it works.

    `figures` leaves files in a folder, `constructs` may be given `peers`.
    """
    options: dict[str, Any] = {} if folder is None else {"folder": folder}
    if peers:
        options["peers"] = True
    found: Report = import_module(f"kaicep_bench.{name}").measure(quick, **options)
    return found
