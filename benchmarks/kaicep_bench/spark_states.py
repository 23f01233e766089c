"""What a deployment on Spark writes of its states: by micro-batch, against the window and the rate.

One bucket, without Spark: the same rows come to its engine, and its state is written as a task writes it.
Micro-batches are a second long, and are counted once the window is full.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow
import pyarrow.compute as pc

import kaicep as kai
from kaicep.deployment import spark_step
from kaicep.hosts.inprocess import Engine
from kaicep_bench.spark_campus import BEGIN, STREAM, TYPES, reports, tell
from kaicep_bench.table import Cell, Table

__all__ = ["measure_states"]

_QUERY = """SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport)
  WHERE FILTER (?a.flowrate > 500) FILTER (?b.flowrate > 620)
  JOIN (?b.sensorID = ?a.sensorID) SEQ (?a, ?b) WINDOW (?a, ?b, {window}s)"""
_SENSORS = 20_000
_COUNTED = 600


def measure_states(quick: bool = False) -> Table:
    """The bytes that a micro-batch writes, beside those of the whole state."""
    cases = ((10, 500), (20, 500)) if quick else ((60, 2_000), (300, 2_000), (300, 500), (900, 500))
    counted = 10 if quick else _COUNTED
    return Table(
        "state written by a micro-batch of a second, one bucket",
        [_case(window, rate, counted) for window, rate in cases],
    )


def _case(window: int, rate: int, counted: int) -> dict[str, Cell]:
    from kaicep.hosts.spark.layout import layouts_of
    from kaicep.hosts.spark.physical import physical

    tell(f"states, a window of {window} s, {rate:,} events/s")
    query = kai.compile(_QUERY.format(window=window), name="pair", streams={STREAM: TYPES})
    (layout,), _ = layouts_of(list(physical(query)), query.catalog)
    engine, state = Engine(query), None
    written: list[int] = []
    sent = 0
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name:
        for second in range(window + counted):
            rows = _rows(reports(second * rate, (second + 1) * rate, rate, _SENSORS), layout)
            watermark = BEGIN + (second + 1) * 1_000_000
            spark_step._taken(engine, rows, layout, watermark)
            state, size = spark_step._saved(engine, state, rows, layout, watermark, Path(name))
            if second >= window:
                written.append(size)
                sent += rows.num_rows
        files = len(list(Path(name).iterdir()))
    whole = len(engine.snapshot())
    return {
        "window s": window,
        "events/s": rate,
        "sent/s": round(sent / counted),
        "kept": engine.size,
        "whole state": whole,
        "written": round(sum(written) / counted),
        "of whole": round(sum(written) / counted / whole, 3),
        "files": files,
    }


def _rows(events: pyarrow.Table, layout: object) -> pyarrow.Table:
    """The events as Spark sends them: those that a filter lets through, in the columns of a layout."""
    from kaicep.hosts.spark.layout import Layout

    assert isinstance(layout, Layout)
    some = events.filter(pc.greater(events["flowrate"], 500.0))
    numbers = layout.of_stream(STREAM)
    columns = {
        "_stream": pyarrow.repeat(pyarrow.scalar(0, pyarrow.int32()), len(some)),
        "_part": pyarrow.repeat(pyarrow.scalar(0, pyarrow.int64()), len(some)),
        "_seq": some["seq"],
        "_ts": some["timestamp"].cast(pyarrow.int64()),
        **{f"a{number}": some[name] for name, number in numbers.items()},
    }
    return pyarrow.table(columns).select(layout.names()).combine_chunks()
