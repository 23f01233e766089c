"""The campus of the Spark benchmarks: five queries of the SCEPter paper, and events of any number."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep_bench.campus import QUERY1, QUERY5

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BEGIN", "IN_ROOM", "QUERIES", "STREAM", "TYPES", "reports", "tell", "write"]

STREAM = "airflowReport"
"""The stream of all reports."""

BEGIN = 1_336_381_200_000_000
"""When the first report is: 9 in the morning of 7 May 2012."""

TYPES = {"sensorID": "string", "flowrate": "float64", "timestamp": "timestamp"}
"""The attributes of the reports."""

IN_ROOM = """?{0} evt:hasSource ?src{0} . ?src{0} rdf:type ee:AirflowSensor .
  ?src{0} bd:hasLocation ?loc{0} . ?loc{0} rdf:type bd:{1}"""
"""That an event comes from an airflow sensor in a room of a kind."""
_PAIR = """SELECT ?e1.sensorID
  FILTER (?e1.flowrate > 500)
  JOIN (?e2.sensorID = ?e1.sensorID) JOIN (?e2.flowrate - ?e1.flowrate > 50)
  SEQ (?e1, ?e2) WINDOW (?e1, ?e2, 5min)"""

QUERIES: Mapping[str, str] = {
    "1": QUERY1,
    "3": _PAIR,
    "5": QUERY5,
    "6": "SELECT AVG(?e.flowrate) > 500 AS avgrate WINDOW (?e, sliding, 5min) PATH {"
    + IN_ROOM.format("e", "Office")
    + " . ?loce bd:belongsTo org:EEDepartment}",
    "7": _PAIR
    + " PATH {"
    + IN_ROOM.format("e1", "MeetingRoom")
    + " . "
    + IN_ROOM.format("e2", "MeetingRoom")
    + "}",
}
"""The queries of section 3.2 of the paper, by their numbers."""

_BEGAN = time.monotonic()


def tell(what: str) -> None:
    """Says on standard error what is measured next: all of it takes minutes."""
    print(f"{time.monotonic() - _BEGAN:4.0f} s: {what}", file=sys.stderr, flush=True)


def reports(first: int, last: int, rate: float, sensors: int, begin: int = BEGIN) -> pyarrow.Table:
    """The reports of some positions, in the order of time, so many a second."""
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(first)
    seq = np.arange(first, last)
    names = pa.array([f"S{number}" for number in range(sensors)])
    chosen = pa.DictionaryArray.from_arrays(chance.integers(0, sensors, len(seq)), names)
    columns = {
        "seq": seq,
        "timestamp": pa.array(
            begin + (seq * 1_000_000 / rate).astype(np.int64), pa.timestamp("us", tz="UTC")
        ),
        "sensorID": chosen.cast(pa.string()),
        "flowrate": chance.normal(400.0, 80.0, len(seq)).round(1),
    }
    return pa.table(columns)


def write(folder: Path, files: int, events: pyarrow.Table) -> None:
    """Events in several Parquet files."""
    import pyarrow.parquet as pq

    folder.mkdir()
    edges = [len(events) * number // files for number in range(files + 1)]
    for number, (low, high) in enumerate(pairwise(edges)):
        pq.write_table(events.slice(low, high - low), folder / f"{number:04}.parquet")
