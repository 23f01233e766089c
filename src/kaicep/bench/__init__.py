"""Benchmarks: what kaicep costs, measured on the machine that asks.

One benchmark a file, with a function `measure` that takes whether to be quick and gives a `Report`. Its
input is made from a seed, in memory. Answers are compared before any number is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaicep.bench.table import Report

__all__ = ["BENCHMARKS", "run"]

BENCHMARKS: Mapping[str, str] = {
    "semantic": "a query with knowledge against its syntactic twin: compiled, and by the run-time path",
    "relation": "50,000 sensors: loading, the table of a relation, and its refresh when a sensor moves",
    "startup": "how long the command line takes to start, as a multiple of a bare Python",
}
"""The benchmarks by name, and what each measures."""


def run(name: str, quick: bool = False) -> Report:
    """Runs a benchmark; `quick` is with little input, to see that it works."""
    found: Report = import_module(f"kaicep.bench.{name}").measure(quick)
    return found
