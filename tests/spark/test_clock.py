"""The clock of streams in Spark: lateness part by part, whichever way the rows of a micro-batch come."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kaicep.hosts.spark.clock import EVENT_ROW, Clock, clocked

Row = tuple[int, int, int, int]
"""The stream of an event, its part, its position and its time."""

LATENESS = 3


@st.composite
def micro_batches(draw: st.DrawFn) -> list[list[Row]]:
    """Events of up to four parts, in micro-batches that go on where the last ended."""
    times = st.lists(st.integers(0, 20), max_size=12)
    batches: list[list[Row]] = [[] for _ in range(3)]
    for stream, part in ((0, 0), (0, 1), (1, 0), (1, 7)):
        at = 0
        for batch in batches:
            for ts in draw(times):
                batch.append((stream, part, at, ts))
                at += draw(st.integers(1, 3))
    return batches


def late_by_the_book(batches: list[list[Row]]) -> list[set[Row]]:
    """The events behind the newest before them in their part by more than the lateness."""
    newest: dict[tuple[int, int], int] = {}
    found: list[set[Row]] = []
    for batch in batches:
        late = set()
        for row in sorted(batch):
            stream, part, _, ts = row
            if ts < newest.get((stream, part), ts) - LATENESS:
                late.add(row)
            newest[stream, part] = max(newest.get((stream, part), ts), ts)
        found.append(late)
    return found


def rows_of(batch: list[Row]) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {
        name: [row[place] for row in batch] for place, name in enumerate(("_stream", "_part", "_seq", "_ts"))
    }
    return pa.RecordBatch.from_pydict(
        {
            **{name: pa.array(values, pa.int64()) for name, values in columns.items()},
            "_kind": pa.array([EVENT_ROW] * len(batch), pa.int32()),
            "_to": pa.array([[0]] * len(batch), pa.list_(pa.int32())),
        }
    )


def picked(rows: pa.RecordBatch, late: list[bool]) -> set[Row]:
    columns = [rows.column(name).to_pylist() for name in ("_stream", "_part", "_seq", "_ts")]
    return {row for row, is_late in zip(zip(*columns, strict=True), late, strict=True) if is_late}


def late_in_a_bucket(clock: Clock, sent: list[pa.RecordBatch]) -> set[Row]:
    """What a bucket takes for late of the stretches that it is sent."""
    if not sent:
        return set()
    (rows,) = pa.Table.from_batches(sent).combine_chunks().to_batches()
    return picked(rows, list(clock.late(rows)))


@given(micro_batches(), st.randoms(use_true_random=False))
def test_a_whole_micro_batch_in_any_order_knows_its_late_events(
    batches: list[list[Row]], chance: random.Random
) -> None:
    clock, found = Clock(LATENESS, ()), []
    for batch in batches:
        rows = rows_of(chance.sample(batch, len(batch)))
        found.append(picked(rows, list(clock.late_of_all(rows))))
    assert found == late_by_the_book(batches)


@given(micro_batches(), st.integers(1, 5))
def test_stretches_of_a_micro_batch_say_the_same_to_a_bucket(batches: list[list[Row]], size: int) -> None:
    clock, found = Clock(LATENESS, ()), []
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        ordered = sorted(batch)
        stretches = [rows_of(ordered[at : at + size]) for at in range(0, len(ordered), size)]
        sent = list(send(iter(stretches)))
        found.append(late_in_a_bucket(clock, sent))
    assert found == late_by_the_book(batches)


@given(micro_batches(), st.integers(1, 4))
def test_tasks_may_have_every_other_file(batches: list[list[Row]], size: int) -> None:
    clock, found = Clock(LATENESS, ()), []
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        ordered = sorted(batch)
        files = [ordered[at : at + size] for at in range(0, len(ordered), size)]
        tasks = [[row for file in files[first::2] for row in file] for first in (0, 1)]
        sent = list(send(rows_of(task) for task in tasks if task))
        found.append(late_in_a_bucket(clock, sent))
    assert found == late_by_the_book(batches)


@given(micro_batches())
def test_both_ways_leave_the_same_watermark(batches: list[list[Row]]) -> None:
    whole, stretched = Clock(LATENESS, [(0, 0)]), Clock(LATENESS, [(0, 0)])
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        if batch:
            whole.late_of_all(rows_of(batch))
            stretched.late(next(send(iter([rows_of(batch)]))))
        assert whole.watermark == stretched.watermark
