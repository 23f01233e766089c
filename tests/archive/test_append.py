"""What goes into the archive goes in once, whatever happens while it does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.archive.support import METER, append, held, meter, reading, readings

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import TableShape
from kaicep.archive.stream_table import StreamTable, compact
from kaicep.archive.table import ArchiveTable
from kaicep.connectors.files import mark_late
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.terms import Blank, Iri, Literal
from kaicep.plan.types import Type


def test_what_is_appended_is_read_again_as_it_was(tmp_path: Path) -> None:
    events = [reading(0), reading(1, kw=None), reading(2, kw=-0.0)]
    assert append(meter(tmp_path), events).rows == 3
    again = held(tmp_path)
    assert again == events
    assert [each.values for each in again] == [each.values for each in events]


def test_the_same_batch_twice_is_there_once(tmp_path: Path) -> None:
    table = meter(tmp_path)
    append(table, readings(0, 10))
    version = table.table.version
    assert append(table, readings(0, 10)).rows == 0
    assert table.table.version == version
    assert held(tmp_path) == readings(0, 10)


def test_a_batch_that_overlaps_is_cut(tmp_path: Path) -> None:
    table = meter(tmp_path)
    append(table, readings(0, 10))
    assert append(table, readings(4, 15)).rows == 5
    assert held(tmp_path) == readings(0, 15)


def test_a_batch_that_would_leave_a_hole_is_refused(tmp_path: Path) -> None:
    table = meter(tmp_path)
    append(table, readings(0, 10))
    with pytest.raises(Failure, match="up to position 10, and this batch begins at 12"):
        append(table, readings(12, 15))
    assert held(tmp_path) == readings(0, 10)


def test_positions_without_a_row_are_used_up(tmp_path: Path) -> None:
    table = meter(tmp_path)
    table.append([reading(1)], {0: (0, 5)})
    table.append([], {0: (5, 8)})
    assert table.positions == {0: 8}
    assert append(table, readings(8, 9)).rows == 1
    assert [each.seq for each in held(tmp_path)] == [1, 8]


def test_parts_go_their_own_ways(tmp_path: Path) -> None:
    table = meter(tmp_path)
    append(table, [*readings(0, 3), *readings(0, 2, part=1)])
    append(table, [*readings(2, 4), *readings(2, 5, part=1)])
    assert table.positions == {0: 4, 1: 5}
    assert len(held(tmp_path)) == 9


class TestLateMarks:
    def test_an_event_behind_the_newest_of_its_part_is_marked(self, tmp_path: Path) -> None:
        events = [reading(0, 100), reading(1, 95), reading(2, 89), reading(0, 89, part=1)]
        assert append(meter(tmp_path), events, lateness=10).late == 1
        assert {(each.part, each.seq): each.late for each in held(tmp_path)} == {
            (0, 0): False,
            (0, 1): False,
            (0, 2): True,
            (1, 0): False,
        }

    def test_the_newest_is_remembered_from_batch_to_batch(self, tmp_path: Path) -> None:
        append(meter(tmp_path), [reading(0, 100)], lateness=10)
        append(meter(tmp_path), [reading(1, 50)], lateness=10)
        append(meter(tmp_path), [reading(2, 95)], lateness=10)
        assert [each.seq for each in held(tmp_path) if each.late] == [1]

    def test_it_is_remembered_by_a_batch_without_rows(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(0, 100)], lateness=10)
        table.append([], {0: (1, 2)})
        append(table, [reading(2, 50)], lateness=10)
        assert [each.late for each in held(tmp_path)] == [True, False]

    def test_marks_that_a_row_has_already_stay(self, tmp_path: Path) -> None:
        marked = Event("meter", 0, 0, 5, {}, late=True)
        append(meter(tmp_path), [marked])
        assert [each.late for each in held(tmp_path)] == [True]

    def test_as_seen_leaves_late_events_out(self, tmp_path: Path) -> None:
        append(meter(tmp_path), [reading(0, 100), reading(1, 50)], lateness=10)
        seen = Archive(tmp_path).snapshot().events("meter", as_seen=True)
        assert [each.seq for each in seen] == [0]


class TestTwoWriters:
    def test_both_get_their_rows_in_once(self, tmp_path: Path) -> None:
        meter(tmp_path)
        wrong: list[BaseException] = []

        def write() -> None:
            try:
                mine = meter(tmp_path)
                for first in range(0, 40, 5):
                    append(mine, readings(first, first + 5))
            except BaseException as error:
                wrong.append(error)

        writers = [threading.Thread(target=write) for _ in range(3)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        assert not wrong
        assert held(tmp_path) == readings(0, 40)

    def test_one_that_looked_too_early_looks_again(self, tmp_path: Path) -> None:
        one, other = meter(tmp_path), meter(tmp_path)
        append(one, readings(0, 5))
        assert append(other, readings(0, 8)).rows == 3
        assert held(tmp_path) == readings(0, 8)

    def test_what_the_slower_one_wrote_does_not_stay_behind(self, tmp_path: Path) -> None:
        table, quicker = meter(tmp_path), meter(tmp_path)
        commit = table.table.commit

        def overtaken(*args: object, **more: object) -> None:
            append(quicker, readings(0, 5))
            commit(*args, **more)  # type: ignore[arg-type]

        table.table.commit = overtaken  # type: ignore[method-assign]
        append(table, readings(0, 8))
        assert held(tmp_path) == readings(0, 8)
        folder = table.table.folder
        assert {each.name for each in folder.glob("*.parquet")} == {each.path for each in table.table.files()}


CRASH = """
import os, sys
from pathlib import Path
from kaicep.archive.table import ArchiveTable
from tests.archive.support import append, meter, readings
ArchiveTable.commit = lambda *args, **more: os._exit(9)
append(meter(Path(sys.argv[1])), readings(5, 10))
"""

FULL = """
import resource, signal, sys
from pathlib import Path
from kaicep.errors import Failure
from kaicep.archive.stream_table import StreamTable
from kaicep.archive.table import ArchiveTable
from tests.archive.support import append, meter, reading
table = meter(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
try:
    append(table, [reading(seq, kw=seq ** 0.5) for seq in range(5, 5000)])
except Failure as failure:
    print(failure)
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent.parent
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=env, capture_output=True, text=True, check=False
    )


def test_a_crash_before_the_commit_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    append(meter(tmp_path), readings(0, 5))
    assert run(CRASH, tmp_path).returncode == 9
    assert held(tmp_path) == readings(0, 5)
    table = meter(tmp_path)
    assert len(list(table.table.folder.glob("*.parquet"))) == 2
    append(table, readings(5, 10))
    assert held(tmp_path) == readings(0, 10)
    table.table.vacuum(0)
    assert len(list(table.table.folder.glob("*.parquet"))) == 2
    assert held(tmp_path) == readings(0, 10)


def test_a_full_disk_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    append(meter(tmp_path), readings(0, 5))
    done = run(FULL, tmp_path)
    assert "nothing was appended" in done.stdout, done.stderr
    assert held(tmp_path) == readings(0, 5)
    table = meter(tmp_path)
    assert len(list(table.table.folder.glob("*.parquet"))) == 1
    append(table, readings(5, 10))
    assert held(tmp_path) == readings(0, 10)


class TestColumns:
    def test_a_new_attribute_is_null_in_what_was_there(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(0)])
        wider = TableShape((*METER.attributes, ("ok", Type.BOOL)))
        table.append([Event("meter", 0, 1, 9, {"ok": True})], {0: (1, 2)}, wider)
        assert [each.values["ok"] for each in held(tmp_path)] == [None, True]
        assert [each.values["room"] for each in held(tmp_path)] == ["r0", None]

    def test_an_attribute_keeps_its_type(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        with pytest.raises(Mistake, match=r"kW is float64 in the archive, and int64 here"):
            table.append([], {0: (0, 1)}, TableShape((("kW", Type.INT64),)))

    @pytest.mark.parametrize("name", ["_seq", "_PART", "KW"])
    def test_an_attribute_that_cannot_be_told_from_another_column_is_refused(
        self, tmp_path: Path, name: str
    ) -> None:
        with pytest.raises(Mistake, match=f"the attribute {name} cannot be told"):
            meter(tmp_path).append([], {0: (0, 1)}, TableShape(((name, Type.FLOAT64),)))

    def test_attributes_may_be_called_part_and_seq(self, tmp_path: Path) -> None:
        shape = TableShape((("part", Type.STRING), ("seq", Type.INT64), ("at", Type.TIMESTAMP)), time="at")
        table = StreamTable.create(tmp_path / "bolts", "bolts", shape)
        table.append([Event("bolts", 0, 0, 7, {"part": "M8", "seq": 70, "at": 7})], {0: (0, 1)})
        assert table.shape == shape
        (event,) = Archive(tmp_path).snapshot().events("bolts")
        assert event.values == {"part": "M8", "seq": 70, "at": 7}
        assert (event.part, event.seq, event.ts) == (0, 0, 7)

    def test_triples_are_archived_too(self, tmp_path: Path) -> None:
        triples = (
            (Iri("urn:a"), Iri("urn:p"), Literal('say "hi"\n', language="en")),
            (Blank("s.b0"), Iri("urn:p"), Literal("5", "http://www.w3.org/2001/XMLSchema#integer")),
        )
        event = Event("trucks", 0, 0, 20, start=10, triples=triples)
        table = Archive(tmp_path).made("trucks", TableShape(rdf=True))
        table.append([event], {0: (0, 1)})
        (again,) = Archive(tmp_path).snapshot().events("trucks")
        assert (again, again.start, again.triples) == (event, 10, triples)

    def test_records_do_not_go_where_triples_are(self, tmp_path: Path) -> None:
        table = Archive(tmp_path).made("trucks", TableShape(rdf=True))
        with pytest.raises(Mistake, match="the archive holds triples, and these are records"):
            table.append([], {0: (0, 1)}, METER)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_however_the_input_is_cut_the_table_is_the_same(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Batches that overlap, of any length, over two parts, with upkeep in between."""
    times = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), max_size=20))
    seqs = [0, 0]
    events: list[Event] = []
    for part, ts in times:
        events.append(reading(seqs[part], ts, part))
        seqs[part] += 1
    folder = tmp_path_factory.mktemp("cut")
    table = meter(folder)
    while table.positions != {part: count for part, count in enumerate(seqs) if count}:
        batch = {}
        for part, count in enumerate(seqs):
            held_to = table.positions.get(part, 0)
            first = data.draw(st.integers(0, held_to))
            batch[part] = first, data.draw(st.integers(max(first, min(held_to + 1, count)), count))
        rows = [each for each in events if batch[each.part][0] <= each.seq < batch[each.part][1]]
        table.append(rows, {part: found for part, found in batch.items() if found[0] < found[1]}, lateness=5)
        if data.draw(st.booleans()):
            compact(table, most=data.draw(st.integers(1, 5)))
    wanted = sorted(mark_late(events, 5), key=lambda each: each.order_within())
    assert held(folder) == wanted
    assert [each.late for each in held(folder)] == [each.late for each in wanted]


def test_a_part_keeps_its_source(tmp_path: Path) -> None:
    table = meter(tmp_path)
    table.append(readings(0, 2), {0: (0, 2)}, sources={0: "monday.csv"})
    with pytest.raises(Mistake, match=r"part 0 is monday.csv in the archive, and friday.csv here"):
        table.append(readings(0, 2), {0: (0, 2)}, sources={0: "friday.csv"})


class TestFilesOfOthers:
    """Spark writes the files of a batch; the archive commits them."""

    def written(self, table: StreamTable, events: list[Event]) -> list[Path]:
        import pyarrow.parquet

        from kaicep.archive.parquet import rows_of

        path = table.table.folder / "spark" / "one.parquet"
        path.parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(rows_of(events, METER), path)
        return [path]

    def test_are_committed_with_their_statistics(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        assert table.commit_files(self.written(table, readings(0, 5)), {0: (0, 5)}).rows == 5
        (file,) = table.table.files()
        assert (file.low, file.high, file.rows) == (0, 4_000_000, 5)
        assert table.newest == {0: 4_000_000}
        assert held(tmp_path) == readings(0, 5)

    def test_are_dropped_where_all_of_it_is_there(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, readings(0, 5))
        paths = self.written(table, readings(0, 5))
        assert table.commit_files(paths, {0: (0, 5)}).rows == 0
        assert not paths[0].exists()

    def test_cannot_be_cut(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, readings(0, 3))
        with pytest.raises(Failure, match="cannot be cut"):
            table.commit_files(self.written(table, readings(0, 5)), {0: (0, 5)})
        assert held(tmp_path) == readings(0, 3)

    def test_hold_what_they_cover(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        with pytest.raises(Failure, match="positions 0 to 4 of part 0, and shall cover 0 to 2"):
            table.commit_files(self.written(table, readings(0, 5)), {0: (0, 3)})
        assert held(tmp_path) == []

    def test_of_other_columns_are_refused(self, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        table = meter(tmp_path)
        path = table.table.folder / "other.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"kW": ["text"]}), path)
        with pytest.raises(Mistake, match="kW as string"):
            table.commit_files([path], {0: (0, 1)})


def test_an_interruption_right_after_the_commit_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = meter(tmp_path)
    commit = ArchiveTable.commit

    def interrupted(self: ArchiveTable, *given: Any, **named: Any) -> None:
        commit(self, *given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveTable, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append(table, readings(0, 5))
    monkeypatch.undo()
    assert held(tmp_path) == readings(0, 5)
    assert append(meter(tmp_path), readings(0, 5)).rows == 0
