"""Files as a source: positions, resuming, following, parts that stay."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kaicep.connectors.contract import Position, SourceBatch
from kaicep.connectors.files import parts_of, read_stream
from kaicep.connectors.parts import NOTE
from kaicep.connectors.records import Record
from kaicep.connectors.registry import Count
from kaicep.connectors.shape import SAMPLE, Form, Schema
from kaicep.connectors.sources.files import FileSource, FileSourceOptions
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.types import Type


def append(path: Path, *lines: str, end: str = "\n") -> Path:
    with path.open("a") as file:
        file.write("".join(each + end for each in lines))
    return path


def row(second: int) -> str:
    return f'{{"ts": {second}, "x": {second}}}'


@contextmanager
def source(
    path: Path,
    position: Position | None = None,
    *,
    follow: bool = False,
    batch: int = 10_000,
    schema: Schema | None = None,
) -> Iterator[FileSource]:
    with FileSource(Form("s"), FileSourceOptions(path, follow, Count(batch))) as opened:
        opened.open(position, schema)
        yield opened


def drain(opened: FileSource) -> list[SourceBatch]:
    batches = [opened.next_batch(0)]
    while not batches[-1].ended:
        batches.append(opened.next_batch(0))
    return batches


def ids(*batches: SourceBatch) -> list[tuple[int, int]]:
    return [(each.part, each.seq) for batch in batches for each in batch.events]


def parquet(path: Path, seconds: range, group: int = 2) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"ts": pa.array(list(seconds), pa.timestamp("s", "UTC")), "x": list(seconds)})
    pq.write_table(table, path, row_group_size=group)
    return path


def three_kinds(folder: Path) -> Path:
    append(folder / "a.jsonl", row(0), "", "oops", row(3))
    append(folder / "b.csv", "ts,x,note", "10,1,", '11,2,"two\nlines"', "", "12,3,", "no time,4,")
    parquet(folder / "c.parquet", range(20, 25))
    return folder


def written(folder: Path, kind: str, count: int) -> Path:
    """So many rows as a file of a kind."""
    if kind == "parquet":
        return parquet(folder / "a.parquet", range(count))
    if kind == "csv":
        return append(folder / "a.csv", "ts,x", *(f"{each},{each}" for each in range(count)))
    return append(folder / "a.jsonl", *rows(0, count))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_no_event_is_made_where_columns_do(
    tmp_path: Path, kind: str, follow: bool, objects: Counter[type]
) -> None:
    file = written(tmp_path, kind, 5_000)
    with source(file, follow=follow) as opened:
        batch = opened.next_batch(0)
    assert len(batch.events) == 5_000
    assert objects[Event] == 0
    assert objects[Record] <= SAMPLE  # which the types are inferred from
    assert seconds(batch) == list(range(5_000))
    assert objects[Event] == 5_000  # for whoever looks at them


# --- finite -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_batches_of_any_size_hold_what_reading_it_whole_gives(tmp_path: Path, batch: int) -> None:
    whole = read_stream("s", three_kinds(tmp_path))
    with source(tmp_path, batch=batch) as opened:
        batches = drain(opened)
    assert [each for one in batches for each in one.events] == list(whole.events)
    found = [dict(each.values) for one in batches for each in one.events]
    names = dict.fromkeys(name for name, _ in whole.attributes)
    assert found == [{**names, **each.values} for each in whole.events]
    assert [each for one in batches for each in one.dead] == list(whole.dead)
    assert opened.schema is not None
    assert opened.schema.attributes == whole.attributes
    assert batches[-1].position == {0: 4, 1: 5, 2: 5}


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_opened_at_a_position_it_gives_the_record_there_first(tmp_path: Path, batch: int) -> None:
    """Wherever it stopped, what comes before and what comes after make the whole, each record once."""
    with source(three_kinds(tmp_path), batch=batch) as opened:
        batches = drain(opened)
    for cut in range(len(batches)):
        with source(tmp_path, batches[cut].position) as again:
            rest = drain(again)
        assert ids(*batches[: cut + 1], *rest) == ids(*batches)
        assert [each for one in (*batches[: cut + 1], *rest) for each in one.dead] == [
            each for one in batches for each in one.dead
        ]


def test_a_position_names_the_next_record_not_the_last(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", row(0), row(1), row(2))
    with source(file, {0: 2}) as opened:
        batch = opened.next_batch(0)
    assert ids(batch) == [(0, 2)]
    assert batch.position == {0: 3}


def test_the_position_comes_back_from_json_with_texts_for_keys(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", row(0), row(1))
    with source(file, {"0": 1}) as opened:  # type: ignore[dict-item]
        assert ids(opened.next_batch(0)) == [(0, 1)]


def test_types_are_those_of_the_beginning_wherever_it_is_opened(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", '{"ts": 0, "x": 1.5}', '{"ts": 1, "x": 2}')
    with source(file, {0: 1}) as opened:
        [event] = opened.next_batch(0).events
    assert repr(event.values["x"]) == "2.0"


def test_a_file_that_was_cut_short_is_said(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", row(0))
    with pytest.raises(Failure, match=r"the position is record 5 of .*, but the file has only 1"):
        FileSource(Form("s"), FileSourceOptions(file)).open({0: 5})


def test_a_position_of_more_files_than_there_are_is_said(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", row(0))
    with pytest.raises(Failure, match=r"speaks of part 3, but .* has only 1 file"):
        FileSource(Form("s"), FileSourceOptions(file)).open({3: 5})


def test_row_groups_before_the_position_are_skipped(tmp_path: Path) -> None:
    file = parquet(tmp_path / "s.parquet", range(10), group=3)
    for start in range(11):
        with source(file, {0: start}) as opened:
            assert ids(*drain(opened)) == [(0, seq) for seq in range(start, 10)]


def test_a_corrupt_parquet_file_is_a_mistake_that_names_it(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "s.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(Mistake, match=r"s\.parquet"), source(tmp_path / "s.parquet") as opened:
        drain(opened)


# --- followed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "before", "half", "other_half"),
    [
        ("s.jsonl", row(0) + "\n", '{"ts": 1, "x"', ": 1}\n"),
        ("s.jsonl", row(0) + "\n", row(1), "\n"),
        ("s.csv", "ts,x\n0,0\n", "1,", "1\n"),
        ("s.csv", "ts,x\n0,0\n", "1,1", "\n"),
        ("s.csv", "ts,x\n0,a\n", '1,"a\n', 'b"\n'),
        ("s.csv", "ts,x\n0,a\n", '1,"a\nb\n', '"\n'),
    ],
)
def test_half_a_line_waits_for_its_other_half(
    tmp_path: Path, name: str, before: str, half: str, other_half: str
) -> None:
    file = append(tmp_path / name, before + half, end="")
    with source(file, follow=True) as opened:
        assert ids(opened.next_batch(0)) == [(0, 0)]
        assert not opened.next_batch(0)
        append(file, other_half, end="")
        batch = opened.next_batch(0)
        assert ids(batch) == [(0, 1)]
        assert batch.position == {0: 2}
        assert not batch.dead


def test_half_a_header_waits_too(tmp_path: Path) -> None:
    file = append(tmp_path / "s.csv", "ts,", end="")
    with source(file, follow=True) as opened:
        assert not opened.next_batch(0)
        append(file, "x\n1,2\n", end="")
        [event] = opened.next_batch(0).events
    assert event.values == {"ts": 1_000_000, "x": 2}


def test_new_files_get_the_next_part(tmp_path: Path) -> None:
    append(tmp_path / "2024.jsonl", row(0))
    with source(tmp_path, follow=True) as opened:
        assert ids(opened.next_batch(0)) == [(0, 0)]
        append(tmp_path / "2025.jsonl", row(1))
        append(tmp_path / "2024.jsonl", row(2))
        assert sorted(ids(opened.next_batch(1), opened.next_batch(0.1))) == [(0, 1), (1, 0)]


def test_a_file_that_sorts_first_takes_nobodys_part(tmp_path: Path) -> None:
    """Neither now, nor after a restart, nor for somebody who reads the folder as a finite stream."""
    append(tmp_path / "b.jsonl", row(0))
    with source(tmp_path, follow=True) as opened:
        first = opened.next_batch(0)
        append(tmp_path / "a.jsonl", row(1))
        second = opened.next_batch(1)
    assert ids(first, second) == [(0, 0), (1, 0)]
    with source(tmp_path, second.position, follow=True) as again:
        append(tmp_path / "b.jsonl", row(2))
        assert ids(again.next_batch(1)) == [(0, 1)]
    assert [each.name for each in parts_of("s", tmp_path).values()] == ["b.jsonl", "a.jsonl"]
    assert [(each.part, each.seq) for each in read_stream("s", tmp_path).events] == [(0, 0), (0, 1), (1, 0)]


def test_a_file_that_is_removed_leaves_the_parts_of_the_others(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", row(0))
    append(tmp_path / "b.jsonl", row(1))
    with source(tmp_path, follow=True) as opened:
        position = opened.next_batch(0).position
    (tmp_path / "a.jsonl").unlink()
    append(tmp_path / "b.jsonl", row(2))
    with source(tmp_path, position, follow=True) as again:
        batch = again.next_batch(1)
    assert ids(batch) == [(1, 1)]
    assert batch.position == {0: 1, 1: 2}
    assert [each.part for each in read_stream("s", tmp_path).events] == [1, 1]


def test_half_a_line_in_the_note_of_parts_is_written_anew(tmp_path: Path) -> None:
    append(tmp_path / "b.jsonl", row(0))
    with source(tmp_path, follow=True):
        pass
    append(tmp_path / NOTE, '{"part": 1, "name": "a.js', end="")
    append(tmp_path / "a.jsonl", row(1))
    with source(tmp_path, follow=True) as opened:
        assert ids(opened.next_batch(0)) == [(0, 0), (1, 0)]
    assert [json.loads(each.rpartition(" ")[0])["name"] for each in (tmp_path / NOTE).open()] == [
        "b.jsonl",
        "a.jsonl",
    ]


def test_a_flipped_bit_in_the_note_of_parts_is_a_mistake(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", row(0))
    with source(tmp_path, follow=True):
        pass
    data = (tmp_path / NOTE).read_bytes()
    for at in range(0, 8 * len(data) - 8, 13):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        (tmp_path / NOTE).write_bytes(wrong)
        with pytest.raises(Mistake, match="it is damaged"):
            read_stream("s", tmp_path)


# --- rotation: every record once, whatever happens to the name of its file --------------------------------


def rows(first: int, after: int) -> list[str]:
    return [row(each) for each in range(first, after)]


def seconds(*batches: SourceBatch) -> list[int]:
    return [int(each.values["x"]) for batch in batches for each in batch.events]


@pytest.fixture(params=["log.jsonl", "folder"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What is followed: one file, or the folder that it is in."""
    append(tmp_path / "log.jsonl", *rows(0, 3))
    return tmp_path / "log.jsonl" if request.param == "log.jsonl" else tmp_path


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("old", ["log.jsonl.1", "log-1.jsonl"])
def test_a_file_that_is_renamed_is_read_to_its_end_and_the_new_one_whole(
    followed: Path, tmp_path: Path, old: str, restart: bool
) -> None:
    file = tmp_path / "log.jsonl"
    with source(followed, follow=True) as opened:
        first = opened.next_batch(0)
        append(file, *rows(3, 5))
        file.rename(tmp_path / old)
        append(tmp_path / old, *rows(5, 6))
        append(file, *rows(10, 20))
        if not restart:
            second = opened.next_batch(0)
    if restart:
        with source(followed, first.position, follow=True, schema=opened.schema) as opened:
            second = opened.next_batch(0)
    assert sorted(seconds(first, second)) == [*range(6), *range(10, 20)]
    assert sorted(ids(first, second)) == [*((0, n) for n in range(6)), *((1, n) for n in range(10))]
    assert second.position == {0: 6, 1: 10}
    assert not second.dead


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_is_copied_and_emptied_is_read_from_its_copy(
    followed: Path, tmp_path: Path, restart: bool, longer: bool
) -> None:
    file = tmp_path / "log.jsonl"
    with source(followed, follow=True) as opened:
        first = opened.next_batch(0)
        append(file, *rows(3, 5))
        shutil.copy(file, tmp_path / "log.jsonl.1")
        file.open("w").close()
        append(file, *rows(10, 20 if longer else 11))
        if not restart:
            second = opened.next_batch(0)
    if restart:
        with source(followed, first.position, follow=True, schema=opened.schema) as opened:
            second = opened.next_batch(0)
    assert seconds(first, second) == [*range(5), *range(10, 20 if longer else 11)]


def test_a_file_that_is_emptied_waits_for_what_comes(followed: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    with source(followed, follow=True) as opened:
        opened.next_batch(0)
        file.open("w").close()
        assert not opened.next_batch(0)
        append(file, *rows(10, 12))
        batch = opened.next_batch(0)
        assert (seconds(batch), batch.position) == ([10, 11], {0: 3, 1: 2})


def test_what_is_replaced_before_it_was_read_is_lost_and_said(
    followed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, size = tmp_path / "log.jsonl", len(row(0)) + 1
    for name in ("BYTES", "_LONGEST"):  # two rows at a time
        monkeypatch.setattr(f"kaicep.connectors.parts.{name}", 2 * size)
    with source(followed, follow=True, batch=2) as opened:
        first = opened.next_batch(0)
        append(tmp_path / "new", *rows(10, 20))
        (tmp_path / "new").replace(file)
        found = [first]
        while batch := opened.next_batch(0):
            found.append(batch)
    assert seconds(*found) == [0, 1, *range(10, 20)]
    assert f"lost are its records from 2 on, bytes {2 * size} to {3 * size - 1}" in caplog.text


def test_a_file_that_is_gone_is_trouble_until_it_is_there_again(tmp_path: Path) -> None:
    file = append(tmp_path / "log.jsonl", *rows(0, 3))
    with source(file, follow=True) as opened:
        opened.next_batch(0)
        file.rename(tmp_path / "away")
        opened.next_batch(0)
        assert opened.trouble == f"{file} is gone"
        (tmp_path / "away").rename(file)
        append(file, *rows(3, 4))
        assert ids(opened.next_batch(0)) == [(0, 3)]
        assert opened.trouble is None


def test_a_file_that_is_put_there_again_is_the_same(tmp_path: Path) -> None:
    file = append(tmp_path / "log.jsonl", *rows(0, 3))
    with source(file, follow=True) as opened:
        first = opened.next_batch(0)
    append(tmp_path / "copy", *rows(0, 5))
    file.unlink()
    (tmp_path / "copy").rename(file)
    with source(file, first.position, follow=True, schema=opened.schema) as opened:
        assert ids(opened.next_batch(0)) == [(0, 3), (0, 4)]


def test_another_file_that_comes_while_one_is_read_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a file and its opening, the name comes to mean another one."""
    file = append(tmp_path / "log.jsonl", *rows(0, 3))
    with source(file, follow=True) as opened:
        first = opened.next_batch(0)
        append(file, *rows(3, 4))
        look = opened._look

        def rotated_after() -> None:
            look()
            if not (tmp_path / "log.jsonl.1").exists():
                file.rename(tmp_path / "log.jsonl.1")
                append(file, *rows(10, 20))

        monkeypatch.setattr(opened, "_look", rotated_after)
        batches = [first, opened.next_batch(0), opened.next_batch(0), opened.next_batch(0)]
    assert seconds(*batches) == [*range(4), *range(10, 20)]
    assert not any(each.dead for each in batches)


def test_whoever_reads_a_rotated_file_later_gives_its_events_the_same_identity(tmp_path: Path) -> None:
    file = append(tmp_path / "log.jsonl", *rows(0, 3))
    with source(file, follow=True) as opened:
        opened.next_batch(0)
        file.rename(tmp_path / "log.jsonl.1")
        append(file, *rows(10, 12))
        followed = ids(opened.next_batch(0))
    assert [(each.part, each.seq) for each in read_stream("s", file).events] == followed == [(1, 0), (1, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_rotated_at_random_every_record_comes_once(tmp_path: Path, seed: int) -> None:
    """Renamed or copied and emptied, in any order with appends, looks and restarts."""
    chosen = random.Random(seed)
    file = append(tmp_path / "log.jsonl", row(0))
    written, found, rotations = 1, [], 0
    position: Position | None = None
    schema: Schema | None = None
    for _ in range(6):
        with source(file, position, follow=True, schema=schema) as opened:
            for _ in range(8):
                match chosen.choice(["append", "append", "look", "rename", "copy"]):
                    case "append":
                        count = chosen.randrange(1, 9)
                        append(file, *rows(written, written + count))
                        written += count
                    case "look":
                        found.append(opened.next_batch(0))
                    case "rename" if file.stat().st_size:
                        rotations += 1
                        found.append(
                            opened.next_batch(0)
                        )  # a rotation nobody has seen the file before is lost
                        file.rename(tmp_path / f"log.{rotations}")
                        append(file, row(written))
                        written += 1
                    case "copy" if file.stat().st_size:
                        rotations += 1
                        found.append(opened.next_batch(0))
                        shutil.copy(file, tmp_path / f"log.{rotations}")
                        file.write_text("")
            found.append(opened.next_batch(0))
            position, schema = opened.position, opened.schema
    assert sorted(seconds(*found)) == list(range(written))


def test_an_empty_folder_can_be_followed(tmp_path: Path) -> None:
    with source(tmp_path, follow=True) as opened:
        assert not opened.next_batch(0)
        assert opened.schema is None
        append(tmp_path / "s.jsonl", "oops")
        assert [each.reason for each in opened.next_batch(1).dead] == [
            "not JSON: expecting value at column 1"
        ]
        assert opened.schema is None
        append(tmp_path / "s.jsonl", row(1))
        assert ids(opened.next_batch(1)) == [(0, 1)]
        assert opened.schema == Schema((("ts", Type.TIMESTAMP), ("x", Type.INT64)))


def test_a_schema_that_is_given_back_stands(tmp_path: Path) -> None:
    """What was inferred on the first day holds on the second, whatever came in between."""
    file = append(tmp_path / "s.jsonl", row(0))
    with source(file, follow=True) as opened:
        position = opened.next_batch(0).position
        schema = opened.schema
    append(file, '{"ts": 1, "x": 2.5}', '{"ts": 2, "x": 3, "y": 1}')
    with source(file, position, follow=True, schema=schema) as again:
        batch = again.next_batch(0)
    assert [each.reason for each in batch.dead] == ["x: 2.5 is not an int64: it has a fraction"]
    assert [dict(each.values) for each in batch.events] == [{"ts": 2_000_000, "x": 3}]


def test_a_parquet_file_without_its_footer_waits(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole", range(3)).read_bytes()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "s.parquet").write_bytes(whole[:-20])
    with source(folder, follow=True) as opened:
        assert not opened.next_batch(0)
        (folder / "s.parquet").write_bytes(whole)
        assert ids(opened.next_batch(1)) == [(0, 0), (0, 1), (0, 2)]
        assert not opened.next_batch(0)


def test_a_bad_file_stops_nobody_else(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no footer here PAR1")
    append(tmp_path / "b.csv", "ts,ts", "1,1")
    append(tmp_path / "c.jsonl", row(0))
    append(tmp_path / "d.txt", "what")
    append(tmp_path / "e.jsonl.tmp", "not finished")
    with source(tmp_path, follow=True) as opened:
        batch = opened.next_batch(0)
        assert ids(batch) == [(2, 0)]
        assert sorted(Path(each.file).name for each in batch.dead) == ["a.parquet", "b.csv", "d.txt"]
        assert not opened.next_batch(0.1), "each is said once"
        (tmp_path / "b.csv").write_text("ts,x\n1,1\n")
        assert ids(opened.next_batch(1)) == [(3, 0)], "it begins with other bytes: another file"


def test_a_followed_file_that_becomes_shorter_is_said(tmp_path: Path) -> None:
    file = append(tmp_path / "s.jsonl", row(0), row(1))
    with source(file, follow=True) as opened:
        opened.next_batch(0)
        file.write_text(row(0) + "\n")
        with pytest.raises(Failure, match="has become shorter: 2 records"):
            opened.next_batch(0)


def test_a_missing_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="No such file"):
        FileSource(Form("s"), FileSourceOptions(tmp_path / "none", follow=True)).open()
