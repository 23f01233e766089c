"""The data sets of the pattern benchmarks: airflow reports in columns, from a seed.

| set | events | sensors | events a second | what it is like |
|---|--:|--:|--:|---|
| A | 1,000,000 | 20,000 | 1,000 | many sensors, few reports of each |
| B | 200,000 | 20 | 20 | few sensors, 300 reports of each in five minutes: dense |
| C | 2,000,000 | 2,000 | 10,000 | everything is in the window at once |

A flow rate is anything below 1,000, so that in one pair of reports out of ten the first is above 500 and
the second at least 50 higher: on B, query 3 has thirty matches an event. The numbers come from SplitMix64,
counted rather than drawn, so that they are the same with every version of NumPy and in every prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.plan.events import Event

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SETS", "Columns", "Shape", "arrow_batches", "events", "make", "mix", "write"]

STREAM = "airflowReport"
START = 1_336_381_200_000_000  # 2012-05-07T09:00:00Z
_MAGIC = int.from_bytes(b"KAICOLS1", "little")


@dataclass(frozen=True)
class Shape:
    """How large a data set is."""

    name: str
    events: int
    sensors: int
    rate: int
    """Events a second of event time."""


SETS: Mapping[str, Shape] = {
    "A": Shape("A", 1_000_000, 20_000, 1_000),
    "B": Shape("B", 200_000, 20, 20),
    "C": Shape("C", 2_000_000, 2_000, 10_000),
}
"""The data sets by name."""


@dataclass(frozen=True)
class Columns:
    """A data set: times in microseconds, sensors by number, flow rates; an event's `seq` is its index."""

    shape: Shape
    ts: NDArray[np.int64]
    sensor: NDArray[np.int32]
    flowrate: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ts)

    def first(self, events: int) -> Columns:
        """The beginning of it."""
        return Columns(self.shape, self.ts[:events], self.sensor[:events], self.flowrate[:events])

    def names(self) -> list[str]:
        """What the sensors are called, by number."""
        return [f"s{number:05}" for number in range(self.shape.sensors)]


def make(shape: Shape, seed: int = 7) -> Columns:
    """A data set of that shape.

    >>> small = make(Shape("small", 4, 3, 2))
    >>> (small.ts - small.ts[0]).tolist(), small.sensor.tolist(), small.flowrate.round(1).tolist()
    ([0, 500000, 1000000, 1500000], [0, 2, 1, 0], [895.2, 11.8, 897.5, 86.3])
    """
    count = np.arange(shape.events, dtype=np.int64)
    sensor = (_uniform(shape.events, 2 * seed) * shape.sensors).astype(np.int32)
    flowrate = _uniform(shape.events, 2 * seed + 1) * 1_000.0
    return Columns(shape, START + count * 1_000_000 // shape.rate, sensor, flowrate)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64, of every word: each input bit reaches each output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _uniform(count: int, stream: int) -> NDArray[np.float64]:
    """Numbers from 0 up to 1: the 53 upper bits of words that a counter gives."""
    (offset,) = mix(np.array([stream + 1], np.uint64))
    words = mix((np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + offset)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def write(data: Columns, path: Path) -> None:
    """Writes the columns, little end first, as the peers read them."""
    with path.open("wb") as file:
        file.write(np.array([_MAGIC, len(data), data.shape.sensors], "<u8").tobytes())
        file.write(data.ts.astype("<i8").tobytes())
        file.write(data.flowrate.astype("<f8").tobytes())
        file.write(data.sensor.astype("<i4").tobytes())


def arrow_batches(data: Columns, size: int = 65_536) -> Iterator[Any]:
    """The data set as Arrow record batches of so many rows, the sensors dictionary-coded."""
    import pyarrow as pa

    names = pa.array(data.names(), pa.string())
    for start in range(0, len(data), size):
        rows = slice(start, start + size)
        yield pa.RecordBatch.from_arrays(
            [
                pa.DictionaryArray.from_arrays(pa.array(data.sensor[rows]), names),
                pa.array(data.flowrate[rows]),
                pa.array(data.ts[rows]).cast(pa.timestamp("us", "UTC")),
            ],
            ["sensorID", "flowrate", "ts"],
        )


def events(data: Columns) -> Iterator[Event]:
    """The data set as events, one by one."""
    names = data.names()
    rows = zip(data.ts.tolist(), data.sensor.tolist(), data.flowrate.tolist(), strict=True)
    for seq, (ts, sensor, flowrate) in enumerate(rows):
        yield Event(STREAM, 0, seq, ts, {"sensorID": names[sensor], "flowrate": flowrate})
