"""The clock of streams in Spark: lateness part by part, whichever way the rows of a micro-batch come."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaicep.errors import Failure
from kaicep.hosts.spark.clock import EVENT_ROW, StreamClock, clocked

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


def late_in_a_bucket(clock: StreamClock, sent: list[pa.RecordBatch]) -> set[Row]:
    """What a bucket takes for late of the stretches that it is sent."""
    if not sent:
        return set()
    (rows,) = pa.Table.from_batches(sent).combine_chunks().to_batches()
    return picked(rows, list(clock.judge(rows)[0]))


@given(micro_batches(), st.randoms(use_true_random=False))
def test_a_whole_micro_batch_in_any_order_knows_its_late_events(
    batches: list[list[Row]], chance: random.Random
) -> None:
    clock, found = StreamClock(LATENESS, ()), []
    for batch in batches:
        rows = rows_of(chance.sample(batch, len(batch)))
        found.append(picked(rows, list(clock.judge_all(rows)[0])))
    assert found == late_by_the_book(batches)


@pytest.mark.slow
@given(micro_batches(), st.integers(1, 5))
def test_stretches_of_a_micro_batch_say_the_same_to_a_bucket(batches: list[list[Row]], size: int) -> None:
    clock, found = StreamClock(LATENESS, ()), []
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        ordered = sorted(batch)
        stretches = [rows_of(ordered[at : at + size]) for at in range(0, len(ordered), size)]
        sent = list(send(iter(stretches)))
        found.append(late_in_a_bucket(clock, sent))
    assert found == late_by_the_book(batches)


def scattered(batch: list[Row], tasks: int, chance: random.Random) -> list[list[Row]]:
    """The rows of a micro-batch in any order, over tasks as chance has it."""
    found: list[list[Row]] = [[] for _ in range(tasks)]
    for row in chance.sample(batch, len(batch)):
        chance.choice(found).append(row)
    return [each for each in found if each]


@pytest.mark.slow
@given(micro_batches(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_rows_of_a_part_may_be_anywhere_and_come_twice(
    batches: list[list[Row]], tasks: int, chance: random.Random
) -> None:
    clock, found = StreamClock(LATENESS, ()), []
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        twice = [*batch, *(each for each in batch if chance.random() < 0.3)]
        sent = list(send(rows_of(task) for task in scattered(twice, tasks, chance)))
        if not sent:
            found.append(set())
            continue
        (rows,) = pa.Table.from_batches(sent).combine_chunks().to_batches()
        late, again = clock.judge(rows)
        found.append(picked(rows, list(late & ~again)))
        events = [kind == EVENT_ROW for kind in rows.column("_kind").to_pylist()]
        assert sum(events) - again.sum() == len(batch)
    assert found == late_by_the_book(batches)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([(0, 3, 7, 5), (0, 3, 7, 6)], [], "position 7 of part 3 of air comes several times, with different"),
        ([(0, 3, 7, 5)], [(0, 3, 6, 6)], "position 6 of part 3 of air comes after position 7, which"),
    ],
)
def test_what_contradicts_itself_is_named(first: list[Row], second: list[Row], message: str) -> None:
    for clock, judge in ((StreamClock(3, (), names={0: "air"}), name) for name in ("judge", "judge_all")):
        with pytest.raises(Failure, match=message):  # noqa: PT012
            for batch in (first, second):
                sent = list(clocked({0: [0]})(rows_of([row]) for row in batch))
                (rows,) = pa.Table.from_batches(sent).combine_chunks().to_batches()
                getattr(clock, judge)(rows)


def test_a_copy_that_another_bucket_has_is_missed() -> None:
    """Copies that differ may be of different keys: then no bucket has all of them, and each knows it."""
    sent = list(clocked({0: [0]})(rows_of([row]) for row in [(0, 0, 7, 5), (0, 0, 7, 5)]))
    rows = pa.Table.from_batches(sent).combine_chunks()
    (rows,) = rows.filter([True, True, False, True]).to_batches()  # the second copy is elsewhere
    with pytest.raises(Failure, match="position 7 of part 0 of 0 comes several times"):
        StreamClock(LATENESS, ()).judge(rows)


@given(micro_batches())
def test_both_ways_leave_the_same_watermark(batches: list[list[Row]]) -> None:
    whole, stretched = StreamClock(LATENESS, [(0, 0)]), StreamClock(LATENESS, [(0, 0)])
    send = clocked({0: [0], 1: [0]})
    for batch in batches:
        if batch:
            whole.judge_all(rows_of(batch))
            stretched.judge(next(send(iter([rows_of(batch)]))))
        assert whole.watermark == stretched.watermark
