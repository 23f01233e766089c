"""What comes out of the archive: by time, by version, by cut; and its upkeep."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.archive.support import append, held, meter, reading, readings

from kaicep.archive.archive import Archive, Cut
from kaicep.archive.parquet import TableShape
from kaicep.archive.stream_table import compact, expire
from kaicep.errors import Failure, Mistake
from kaicep.plan.nodes import Interval

SECOND = 1_000_000


def hours(folder: Path, count: int = 10) -> Archive:
    """An archive with a file for every ten seconds of events."""
    table = meter(folder)
    for first in range(0, count * 10, 10):
        append(table, readings(first, first + 10))
    return Archive(folder)


class TestTime:
    def test_a_stretch_of_time_touches_only_its_files(self, tmp_path: Path) -> None:
        snapshot = hours(tmp_path).snapshot()
        within = Interval(25 * SECOND, True, 42 * SECOND, False)
        assert len(snapshot.files("meter")) == 10
        assert len(snapshot.files("meter", within)) == 3
        # The others are not even opened.
        for each in set(snapshot.files("meter")) - set(snapshot.files("meter", within)):
            (tmp_path / "meter" / each.path).unlink()
        assert list(snapshot.events("meter", within)) == readings(25, 42)

    @pytest.mark.parametrize(
        ("within", "found"),
        [
            (Interval(3 * SECOND, True, 5 * SECOND, True), [3, 4, 5]),
            (Interval(3 * SECOND, False, 5 * SECOND, False), [4]),
            (Interval(None, True, 2 * SECOND, False), [0, 1]),
            (Interval(8 * SECOND, True), [8, 9]),
        ],
    )
    def test_bounds_are_as_within_says(self, tmp_path: Path, within: Interval, found: list[int]) -> None:
        snapshot = hours(tmp_path, 1).snapshot()
        assert [each.seq for each in snapshot.events("meter", within)] == found

    def test_files_that_overlap_come_out_in_order(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(0, 10), reading(1, 30), reading(2, 20)])
        append(table, [reading(3, 25), reading(4, 15)])
        append(table, [reading(5, 40)])
        assert [each.ts for each in held(tmp_path)] == [10, 15, 20, 25, 30, 40]

    def test_one_file_ends_where_the_next_begins(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(0, 10), reading(0, 20, part=1)])
        append(table, [reading(1, 20), reading(2, 30)])
        assert [(each.ts, each.part) for each in held(tmp_path)] == [(10, 0), (20, 0), (20, 1), (30, 0)]


class TestMoments:
    def test_a_version_stays_what_it_was(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        version = append(table, readings(0, 5)).version
        append(table, readings(5, 9))
        then = Archive(tmp_path).snapshot(versions={"meter": version})
        assert list(then.events("meter")) == readings(0, 5)
        assert then.cut == Cut({"meter": {0: 5}})
        assert Archive(tmp_path).snapshot().cut == Cut({"meter": {0: 9}})

    def test_a_snapshot_does_not_see_what_comes_later(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, readings(0, 5))
        before = Archive(tmp_path).snapshot()
        append(table, readings(5, 9))
        assert list(before.events("meter")) == readings(0, 5)

    def test_a_cut_is_exact(self, tmp_path: Path) -> None:
        append(meter(tmp_path), [*readings(0, 9), *readings(0, 6, part=1)])
        cut = Cut({"meter": {0: 4, 1: 6}})
        found = list(Archive(tmp_path).snapshot(cut=cut).events("meter"))
        assert sorted((each.part, each.seq) for each in found) == [
            *((0, seq) for seq in range(4)),
            *((1, seq) for seq in range(6)),
        ]

    def test_a_part_that_a_cut_does_not_name_is_not_in_it(self, tmp_path: Path) -> None:
        append(meter(tmp_path), [*readings(0, 2), *readings(0, 2, part=1)])
        found = Archive(tmp_path).snapshot(cut=Cut({"meter": {1: 1}})).events("meter")
        assert [(each.part, each.seq) for each in found] == [(1, 0)]

    def test_a_cut_beyond_the_archive_is_refused(self, tmp_path: Path) -> None:
        append(meter(tmp_path), readings(0, 5))
        with pytest.raises(
            Failure, match="the cut is at position 7 of part 0, and the archive holds up to 5"
        ):
            Archive(tmp_path).snapshot(cut=Cut({"meter": {0: 7}}))


class TestUpkeep:
    def test_compaction_keeps_rows_order_and_positions(self, tmp_path: Path) -> None:
        archive = hours(tmp_path)
        table = archive.stream("meter")
        kept = compact(table)
        assert (len(kept.before), len(kept.after)) == (10, 1)
        assert held(tmp_path) == readings(0, 100)
        assert append(table, readings(95, 105)).rows == 5

    def test_compaction_parts_files_that_overlap(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(seq) for seq in range(60)])
        append(table, [reading(seq, part=1) for seq in range(60)])
        before = held(tmp_path)
        kept = compact(table, most=40)
        assert len(kept.after) == 3
        ranges = [(each.low, each.high) for each in kept.after]
        assert all(high < low for (_, high), (low, _) in pairwise(ranges))
        assert held(tmp_path) == before

    def test_compaction_of_what_is_in_order_does_nothing(self, tmp_path: Path) -> None:
        table = hours(tmp_path).stream("meter")
        compact(table)
        version = table.table.version
        compact(table)
        assert table.table.version == version

    def test_compaction_keeps_late_marks(self, tmp_path: Path) -> None:
        table = meter(tmp_path)
        append(table, [reading(0, 100)], lateness=10)
        append(table, [reading(1, 5)], lateness=10)
        compact(table)
        assert [(each.ts, each.late) for each in held(tmp_path)] == [(5, True), (100, False)]

    def test_what_is_expired_is_gone_and_does_not_come_back(self, tmp_path: Path) -> None:
        archive = hours(tmp_path)
        table = archive.stream("meter")
        expire(table, 25 * SECOND)
        assert held(tmp_path) == readings(25, 100)
        assert append(table, readings(0, 100)).rows == 0
        assert archive.snapshot().expired("meter") == 25 * SECOND

    def test_files_that_lie_wholly_before_are_not_read_to_expire_them(self, tmp_path: Path) -> None:
        archive = hours(tmp_path)
        first = archive.snapshot().files("meter")[0]
        (tmp_path / "meter" / first.path).unlink()
        expire(archive.stream("meter"), 20 * SECOND)
        assert held(tmp_path) == readings(20, 100)

    def test_vacuum_gives_space_back(self, tmp_path: Path) -> None:
        table = hours(tmp_path).stream("meter")
        compact(table)
        assert len(table.table.vacuum(0)) == 10
        assert held(tmp_path) == readings(0, 100)
        assert append(table, readings(100, 101)).rows == 1


def test_any_reader_of_delta_tables_can_read_it(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    archive = hours(tmp_path)
    frame = polars.read_delta(str(tmp_path / "meter"))
    assert frame.height == 100
    assert frame.columns == ["_part", "_seq", "_late", "ts", "kW", "room"]
    compact(archive.stream("meter"))
    expire(archive.stream("meter"), 50 * SECOND)
    assert sorted(polars.read_delta(str(tmp_path / "meter"))["_seq"]) == list(range(50, 100))


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    append(meter(tmp_path), readings(0, 5))
    (file,) = (tmp_path / "meter").glob("*.parquet")
    file.write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(Failure, match=file.name):
        held(tmp_path)


def test_a_table_of_somebody_else_is_not_taken_for_an_archive(tmp_path: Path) -> None:
    import pyarrow
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "meter", pyarrow.table({"x": [1]}))
    with pytest.raises(Failure, match="not of an archive"):
        append(meter(tmp_path), readings(0, 5))


def test_streams_are_found_by_their_names(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for name in ("air flow/2", "_own", ".hidden", "50%~"):
        archive.made(name, TableShape())
    assert sorted(archive.streams()) == sorted(("air flow/2", "_own", ".hidden", "50%~"))
    with pytest.raises(Mistake, match="has no stream air flow/3"):
        archive.stream("air flow/3")


def test_there_must_be_an_archive(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="there is no archive in"):
        Archive.open(tmp_path / "nowhere")


def test_dead_letters_are_kept_once(tmp_path: Path) -> None:
    letter = {"stream": "meter", "part": 0, "line": 4, "file": "m.csv", "reason": "no time", "record": "x"}
    letters = Archive(tmp_path).dead_letters
    assert letters.read() == []
    assert letters.append("meter", [{**letter, "seq": 3}], {0: (0, 10)}) == 1
    assert letters.append("meter", [{**letter, "seq": 3}], {0: (0, 10)}) == 0
    assert letters.append("meter", [{**letter, "seq": 3}, {**letter, "seq": 12}], {0: (0, 15)}) == 1
    assert letters.append("other", [{**letter, "stream": "other", "seq": 3}], {0: (3, 4)}) == 1
    assert [each["seq"] for each in letters.read()] == [3, 12, 3]
