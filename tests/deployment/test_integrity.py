"""What was promised is on the disk; what is damaged or missing is named, and nobody goes on from it."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.archive.support import append as append_readings
from tests.archive.support import held, meter, readings
from tests.deployment.processes import matches, write
from tests.deployment.test_deployment import (
    PAIR,
    _impatient,
    append,
    deployed,
    event,
    folder,
    look_again,
    settle,
    told,
    toml,
    wanted,
)
from typer.testing import CliRunner

from kaicep.archive.archive import Archive
from kaicep.cli.main import app
from kaicep.deployment.check import repair, verify
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.errors import Failure
from kaicep.storage import delta, disk

pytestmark = pytest.mark.slow


def _entries(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


# --- what a power loss leaves ---------------------------------------------------------------------------


def _synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is waited for, in order."""
    found: list[Path] = []
    real = os.fsync

    def fsync(file: int) -> None:
        found.append(Path(f"/proc/self/fd/{file}").readlink())
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_an_append_returns_when_file_entry_and_folders_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = meter(tmp_path / "A")
    synced = _synced(monkeypatch)
    append_readings(table, readings(0, 3))
    place = tmp_path / "A" / "meter"
    data = next(each for each in synced if each.suffix == ".parquet")
    entry = place / "_delta_log" / "00000000000000000001.json"
    assert synced.index(data) < synced.index(place) < synced.index(entry) < synced.index(entry.parent)


def test_the_newest_entry_is_settled_before_anybody_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_readings(meter(tmp_path / "A"), readings(0, 3))
    synced = _synced(monkeypatch)
    table = Archive(tmp_path / "A").writable("meter")
    assert table is not None
    assert synced[0].name == "00000000000000000001.json"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_torn_entry_is_no_commit(tmp_path: Path, share: float) -> None:
    table = meter(tmp_path / "A")
    append_readings(table, readings(0, 3))
    noted = (tmp_path / "A/meter/_delta_log/_checksums").read_bytes()
    append_readings(table, readings(3, 5))
    last = _entries(tmp_path / "A" / "meter")[-1]
    data = last.read_bytes()
    last.write_bytes(data[: int(len(data) * share)])
    (tmp_path / "A/meter/_delta_log/_checksums").write_bytes(noted)
    with pytest.raises(Failure, match=f"{last.name} is torn"):
        held(tmp_path / "A")
    assert Archive(tmp_path / "A").mend() == [f"{last}: a commit that was not on the disk yet"]
    assert [each.seq for each in held(tmp_path / "A")] == [0, 1, 2]
    again = Archive(tmp_path / "A").writable("meter")
    assert again is not None
    append_readings(again, readings(3, 6))
    assert [each.seq for each in held(tmp_path / "A")] == [0, 1, 2, 3, 4, 5]


def test_an_entry_that_lacks_its_last_lines_is_torn(tmp_path: Path) -> None:
    table = meter(tmp_path / "A")
    append_readings(table, readings(0, 3))
    (tmp_path / "A/meter/_delta_log/_checksums").unlink()
    last = _entries(tmp_path / "A" / "meter")[-1]
    last.write_bytes(b"\n".join(last.read_bytes().splitlines()[:-1]))
    with pytest.raises(Failure, match="is torn"):
        held(tmp_path / "A")


def test_half_a_line_of_checksums_does_not_spoil_the_next(tmp_path: Path) -> None:
    """A write that fails may leave half of it, and the process goes on."""
    table = meter(tmp_path / "A")
    append_readings(table, readings(0, 3))
    with (tmp_path / "A/meter/_delta_log/_checksums").open("ab") as file:
        file.write(b"00000000000000000002.json 4")
    append_readings(table, readings(3, 6))
    assert list(delta.damages(tmp_path / "A" / "meter", [])) == []


def test_a_checkpoint_that_was_not_on_the_disk_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_EVERY", 4)
    table = meter(tmp_path / "A")
    log = tmp_path / "A/meter/_delta_log"
    for n in range(6):
        noted = (log / "_checksums").read_bytes()
        append_readings(table, readings(n, n + 1))
        if list(log.glob("*.checkpoint.parquet")):
            break
    checkpoint = next(log.glob("*.checkpoint.parquet"))
    (log / "_checksums").write_bytes(noted)
    checkpoint.write_bytes(b"")
    assert "a checkpoint that was not on the disk yet" in Archive(tmp_path / "A").mend()[0]
    assert len(held(tmp_path / "A")) == n + 1


def _lose_last_commits(table: Path, count: int) -> None:
    """As a power loss would, had nobody waited for the disk."""
    for each in _entries(table)[-count:]:
        each.unlink()
    notes = table / "_delta_log" / "_checksums"
    notes.write_bytes(b"".join(notes.read_bytes().splitlines(keepends=True)[:-count]))


def test_progress_ahead_of_the_archive_is_an_error_and_repaired_from_the_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"queries/pair.chi": PAIR})
    with deployed(folder) as made:
        for second in range(2, 8):
            settle(made)
            append(folder, event(second, second + 4))
        settle(made)
    before = matches(folder / "out.jsonl")
    _lose_last_commits(folder / "state/archive/s", 3)
    with pytest.raises(Failure) as raised, deployed(folder):
        pass
    said = str(raised.value)
    assert "the sink out has answers to s up to position 7 of part 0" in said
    assert f"the archive {folder / 'state/archive'} has it up to 4" in said
    assert f"kaicep archive repair {folder / 'kaicep.toml'}" in said
    assert matches(folder / "out.jsonl") == before
    lines: list[str] = []
    assert repair(load_config(folder / "kaicep.toml"), lines.append)
    assert lines == ["s: part 0 is there up to position 7 now"]
    with deployed(folder) as made:
        append(folder, event(9, 9))
        settle(made)
    for query in ("high", "pair"):
        assert [each for each in matches(folder / "out.jsonl") if each["query"] == query] == wanted(
            folder, query
        )


def test_what_the_source_has_no_more_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaicep.deployment.check._PATIENCE", 0.2)
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 9))
        settle(made)
    _lose_last_commits(folder / "state/archive/s", 1)
    (folder / "s.jsonl").write_text("".join((folder / "s.jsonl").read_text().splitlines(keepends=True)[:2]))
    lines: list[str] = []
    assert not repair(load_config(folder / "kaicep.toml"), lines.append)
    assert "the source has not sent positions 2 to 2" in lines[0]


# --- folders that were there ------------------------------------------------------------------------------


def test_an_archive_that_is_gone_is_trouble_and_matches_do_not_come_twice(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
    shutil.move(folder / "state" / "archive", folder / "elsewhere")
    with pytest.raises(Failure, match=r"the archive .* has it up to -1"), deployed(folder):
        pass
    shutil.move(folder / "elsewhere", folder / "state" / "archive")
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == [{"x": 7}]


def test_an_archive_that_goes_while_it_runs_stops_the_stream_until_it_is_back(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        shutil.move(folder / "state" / "archive", folder / "elsewhere")
        append(folder, event(2, 9))
        made.tick()
        assert not (folder / "state" / "archive").exists()
        made.feeds["s"]._again = 0.0
        made.tick()
        assert "is gone" in str(made.status()["streams"]["s"]["trouble"])
        assert not (folder / "state" / "archive" / "s").exists()
        shutil.rmtree(folder / "state" / "archive", ignore_errors=True)
        shutil.move(folder / "elsewhere", folder / "state" / "archive")
        made.feeds["s"]._again = 0.0
        made.tick()  # the source is opened again
        settle(made)
    assert told(folder) == [{"x": 7}, {"x": 9}]


def test_a_state_folder_that_is_gone_is_trouble(folder: Path) -> None:
    write(folder, {"kaicep.toml": toml() + '[archive]\nfolder = "A"\n'})
    with deployed(folder) as made:
        settle(made)
    shutil.rmtree(folder / "state")
    with pytest.raises(Failure, match="no longer says of which queries"), deployed(folder):
        pass
    assert told(folder) == [{"x": 7}]


def test_folders_of_queries_and_knowledge_that_go_change_nothing(folder: Path) -> None:
    ttl = "<urn:a> <urn:b> <urn:c> ."
    write(folder, {"kaicep.toml": toml() + '[knowledge]\nfiles = ["kb/*.ttl"]\n', "kb/a.ttl": ttl})
    with deployed(folder) as made:
        settle(made)
        for each in ("queries", "kb"):
            shutil.move(folder / each, folder / f"{each}-away")
        append(folder, event(2, 9))
        look_again(made)
        status = made.status()
        assert status["queries"]["high"]["state"] == "live"
        assert "there is no folder" in status["trouble"]
        assert status["knowledge"]["statements"] == 1
        assert "there is no folder" in status["knowledge"]["trouble"]
        for each in ("queries", "kb"):
            shutil.move(folder / f"{each}-away", folder / each)
        look_again(made)
        assert made.status()["trouble"] is None
        assert made.status()["knowledge"]["trouble"] is None
    assert told(folder) == [{"x": 7}, {"x": 9}]


# --- retention --------------------------------------------------------------------------------------------


def test_an_event_of_the_year_3000_does_not_remove_the_others(folder: Path) -> None:
    now = time.time()
    lines = [json.dumps({"ts": now + n, "x": 1, "k": "p"}) + "\n" for n in range(10)]
    lines.insert(5, json.dumps({"ts": 32_503_680_000, "x": 1, "k": "p"}) + "\n")
    kept = toml(stream='ahead = "0s"') + '[archive]\nretention = "30d"\n'
    write(folder, {"kaicep.toml": kept, "s.jsonl": "".join(lines)})
    with deployed(folder) as made:
        settle(made)
        made._keep(made.feeds["s"])
    assert len(list(Archive(folder / "state/archive").snapshot().events("s"))) == 11


def test_retention_removes_a_share_at_once_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    lines = [json.dumps({"ts": now + n - 3_600, "x": 1, "k": "p"}) + "\n" for n in range(1_000)]
    kept = toml() + '[archive]\nretention = "5min"\n'
    write(folder, {"kaicep.toml": kept, "s.jsonl": "".join(lines)})
    counts = []
    with deployed(folder) as made:
        settle(made)
        for _ in range(30):
            made._keep(made.feeds["s"])
            counts.append(len(list(Archive(folder / "state/archive").snapshot().events("s"))))
    assert counts[0] == 900
    assert "s: 100 events before" in caplog.text
    assert counts[-1] == 301, "those of the last five minutes"


# --- damage -------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that a deployment may keep: data, log with a checkpoint, progress, a saved state, two sinks."""
    monkeypatch.setattr(delta, "_EVERY", 4)
    monkeypatch.setattr("kaicep.deployment.sessions._SAVE_EVERY", 0.0)
    ever = "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b)"
    sinks = '[sinks.table]\nkind = "delta"\npath = "T"\n'
    write(folder, {"kaicep.toml": toml(sinks=sinks), "queries/ever.chi": ever})
    with deployed(folder) as made:
        for second in range(2, 8):
            settle(made)
            append(folder, event(second, second + 4))
        settle(made)
    return folder


def _places(folder: Path) -> list[Path]:
    state = folder / "state"
    found = [
        *(each for each in (state / "archive/s").rglob("*") if each.is_file()),
        *(each for each in (folder / "T").rglob("*") if each.is_file()),
        *(state / "marks").glob("*.json"),
        *(state / "states").glob("*.state"),
        state / "registered.json",
        folder / ".out.jsonl.commit",
    ]
    assert {each.suffix for each in found} >= {".parquet", ".json", ".state", ".commit"}
    return found


def flipped(paths: list[Path], seed: int, count: int) -> Iterator[tuple[Path, int, Callable[[], None]]]:
    """Files, each with one other bit of it flipped, and what flips it back. Every bit is as likely."""
    chosen = random.Random(seed)
    for _ in range(count):
        path = chosen.choice(paths)
        data = path.read_bytes()
        at = chosen.randrange(8 * len(data))
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        path.write_bytes(wrong)
        yield path, at, lambda path=path, data=data: path.write_bytes(data)


def _flips(folder: Path, count: int) -> None:
    config = load_config(folder / "kaicep.toml")
    assert list(verify(config)) == []
    for path, bit, restore in flipped(_places(folder), 23, count):
        found = list(verify(config))
        assert found, f"bit {bit} of {path}"
        assert any(path.name in each for each in found), (path, bit, found)
        restore()
    assert list(verify(config)) == []


def test_every_flipped_bit_is_found(kept: Path) -> None:
    _flips(kept, 60)


@pytest.mark.night
def test_each_of_a_thousand_flipped_bits_is_found(kept: Path) -> None:
    _flips(kept, 1_000)


def test_verify_says_which_query_a_damage_affects(kept: Path) -> None:
    file = next((kept / "state/archive/s").glob("*.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:40] + bytes([data[40] ^ 4]) + data[41:])
    ran = CliRunner().invoke(app, ["archive", "verify", str(kept / "kaicep.toml")])
    assert ran.exit_code == 1
    assert (
        f"{file} is damaged: its checksum is not that of its content; that affects ever, high" in ran.output
    )
    ran = CliRunner().invoke(app, ["archive", "verify", str(kept / "state/archive")])
    assert ran.exit_code == 1
    assert str(file) in ran.output


def test_a_damaged_file_stops_what_reads_it(tmp_path: Path) -> None:
    table = meter(tmp_path / "A")
    append_readings(table, readings(0, 50))
    good = held(tmp_path / "A")
    file = next((tmp_path / "A/meter").glob("*.parquet"))
    for _, _, restore in flipped([file], 5, 200):
        with pytest.raises(Failure, match=file.name):
            held(tmp_path / "A")
        restore()
    assert held(tmp_path / "A") == good


def test_pages_have_checksums(tmp_path: Path) -> None:
    """For those who do not know what a name says, and for what goes bad after it was looked at."""
    import pyarrow.parquet

    append_readings(meter(tmp_path / "A"), readings(0, 5_000))
    file = next((tmp_path / "A/meter").glob("*.parquet"))
    found = pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0)
    data = bytearray(file.read_bytes())
    data[found.data_page_offset + found.total_compressed_size - 3] ^= 1
    file.with_name("other.parquet").write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        delta.parquet_dataset([file.with_name("other.parquet")]).to_table()


@pytest.mark.parametrize("name", ["state/registered.json", "state/marks/out.json", ".out.jsonl.commit"])
def test_damaged_progress_keeps_a_deployment_from_starting(folder: Path, name: str) -> None:
    with deployed(folder) as made:
        settle(made)
    for _, _, restore in flipped([folder / name], 1, 20):
        with pytest.raises(Failure, match=f"{Path(name).name} is damaged"), deployed(folder):
            pass
        restore()
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == [{"x": 7}]
