"""`kaicep ingest`, `kaicep archive`, `kaicep query` and `kaicep explain --sparql`, as one types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kaicep.archive.archive import Archive
from kaicep.cli.main import app

QUERY = "SELECT ?a.x FROM (?a, meter), (?b, meter) JOIN (?b.x > ?a.x) SEQ (?a, ?b) WINDOW (?a, ?b, 2s)\n"
LINES = [{"ts": at, "x": at * 7 % 5, "name": f"n{at}"} for at in range(20)]


def kaicep(*words: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in words])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a query and a stream of two files, one of them with a bad line."""
    (tmp_path / "rise.chi").write_text(QUERY)
    folder = tmp_path / "meter"
    folder.mkdir()
    write(folder / "a.jsonl", LINES[:10])
    write(folder / "b.jsonl", LINES[10:15])
    with (folder / "a.jsonl").open("a") as file:
        file.write("oops\n")
    return tmp_path


def write(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))


def ingest(place: Path, *more: object) -> Result:
    return kaicep("ingest", "--stream", f"meter={place / 'meter'}", "--archive", place / "A", *more)


def seqs(place: Path) -> list[tuple[int, int]]:
    return [(each.part, each.seq) for each in Archive(place / "A").snapshot().events("meter")]


class TestIngest:
    def test_twice_gives_the_same_table_once(self, place: Path) -> None:
        first = ingest(place)
        assert first.exit_code == 0, first.output
        assert "meter: 15 new, 1 that could not be read" in first.stderr
        before = seqs(place)
        again = ingest(place)
        assert "meter: 0 new" in again.stderr
        assert seqs(place) == before
        assert len(before) == len(set(before)) == 15

    def test_what_has_grown_and_what_is_new_is_added(self, place: Path) -> None:
        ingest(place)
        with (place / "meter" / "b.jsonl").open("a") as file:
            file.write(json.dumps(LINES[15]) + "\n")
        write(place / "meter" / "c.jsonl", LINES[16:])
        assert "meter: 5 new" in ingest(place).stderr
        assert len(seqs(place)) == 20

    def test_a_new_attribute_appears_in_a_new_file(self, place: Path) -> None:
        ingest(place)
        write(place / "meter" / "c.jsonl", [{**LINES[15], "ok": True}])
        assert ingest(place).exit_code == 0
        values = [each.values for each in Archive(place / "A").snapshot().events("meter")]
        assert [each["ok"] for each in values][-2:] == [None, True]

    def test_a_value_that_does_not_fit_the_archived_type_is_a_dead_letter(self, place: Path) -> None:
        ingest(place)
        write(place / "meter" / "c.jsonl", [{**LINES[15], "x": 1.5}])
        assert "meter: 0 new, 1 that could not be read" in ingest(place).stderr

    def test_a_file_that_comes_before_the_others_is_refused(self, place: Path) -> None:
        ingest(place)
        write(place / "meter" / "0.jsonl", LINES[15:])
        done = ingest(place)
        assert done.exit_code == 2
        assert "part 0 is a.jsonl in the archive, and 0.jsonl here" in done.stderr

    def test_dead_letters_go_into_the_archive_and_into_a_file(self, place: Path) -> None:
        ingest(place, "--dead-letters", place / "dead.jsonl")
        ingest(place)
        (letter,) = Archive(place / "A").dead_letters.read()
        assert (letter["stream"], letter["part"], letter["seq"]) == ("meter", 0, 10)
        assert json.loads((place / "dead.jsonl").read_text()) == letter

    def test_late_events_are_marked(self, place: Path) -> None:
        write(place / "meter" / "c.jsonl", [{"ts": 100, "x": 1}, {"ts": 90, "x": 1}])
        assert "1 late" in ingest(place, "--lateness", "5s").stderr

    def test_parquet_gives_the_same_rows_as_json(self, place: Path, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        ingest(place)
        other = tmp_path / "columns"
        other.mkdir()
        for name, lines in (("a", LINES[:10]), ("b", LINES[10:15])):
            rows = pyarrow.table(
                {
                    "ts": pyarrow.array([each["ts"] for each in lines], pyarrow.timestamp("s")),
                    "x": pyarrow.array([each["x"] for each in lines], pyarrow.int16()),
                    "name": [each["name"] for each in lines],
                }
            )
            pyarrow.parquet.write_table(rows, other / f"{name}.parquet")
        done = kaicep("ingest", "--stream", f"meter={other}", "--archive", tmp_path / "B")
        assert "meter: 15 new" in done.stderr
        found = [list(Archive(tmp_path / name).snapshot().events("meter")) for name in ("A", "B")]
        assert found[0] == found[1]
        assert [each.values for each in found[0]] == [each.values for each in found[1]]
        assert (
            "meter: 0 new"
            in kaicep("ingest", "--stream", f"meter={other}", "--archive", tmp_path / "B").stderr
        )

    def test_of_parquet_only_the_new_rows_are_added(self, tmp_path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        def grown(count: int) -> Result:
            times = pyarrow.array(range(count), pyarrow.timestamp("us", "UTC"))
            rows = pyarrow.table({"ts": times, "y": [float("nan")] * count})
            pyarrow.parquet.write_table(rows, tmp_path / "m.parquet")
            return kaicep("ingest", "--stream", f"m={tmp_path / 'm.parquet'}", "--archive", tmp_path / "A")

        assert "m: 4 new" in grown(4).stderr
        assert "m: 3 new" in grown(7).stderr
        events = list(Archive(tmp_path / "A").snapshot().events("m"))
        assert [(each.seq, each.values["y"]) for each in events] == [(seq, None) for seq in range(7)]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--archive", "A"), "no stream is given"),
            (("--stream", "m=x.jsonl"), "no archive is given"),
            (("--stream", "m=nowhere.jsonl", "--archive", "A"), "cannot read nowhere.jsonl"),
        ],
    )
    def test_mistakes_are_told(self, words: tuple[str, ...], message: str) -> None:
        done = kaicep("ingest", *words)
        assert done.exit_code == 2
        assert message in done.stderr


class TestArchive:
    def test_status_says_what_there_is(self, place: Path) -> None:
        ingest(place)
        done = kaicep("archive", "status", place / "A")
        assert "meter: 15 events" in done.stdout
        assert "next: part 0 at 11, part 1 at 5" in done.stdout
        assert "dead letters: 1" in done.stdout
        told = json.loads(kaicep("archive", "status", place / "A", "--json").stdout)
        assert told["streams"][0]["attributes"] == {"ts": "timestamp", "x": "int64", "name": "string"}

    def test_compact_and_expire(self, place: Path) -> None:
        ingest(place)
        write(place / "meter" / "c.jsonl", LINES[15:])
        ingest(place)
        assert "2 files are 1 now" in kaicep("archive", "compact", place / "A").stderr
        done = kaicep("archive", "expire", place / "A", "--older-than", "4s", "--keep", "0s")
        assert "15 events removed" in done.stderr
        assert len(seqs(place)) == 5
        assert "meter: 0 new" in ingest(place).stderr

    def test_expire_asks_which(self, place: Path) -> None:
        ingest(place)
        done = kaicep("archive", "expire", place / "A")
        assert done.exit_code == 2
        assert "say which events are old" in done.stderr

    def test_there_must_be_one(self, tmp_path: Path) -> None:
        done = kaicep("archive", "status", tmp_path / "nowhere")
        assert done.exit_code == 2
        assert "there is no archive in" in done.stderr


class TestQuery:
    def test_three_strategies_one_output(self, place: Path) -> None:
        ingest(place)
        wanted = kaicep(
            "match", place / "rise.chi", "--stream", f"meter={place / 'meter'}", "--host", "reference"
        ).stdout
        assert wanted
        for strategy in ("replay", "rewrite", "hybrid"):
            done = kaicep("query", place / "rise.chi", "--archive", place / "A", "--strategy", strategy)
            assert done.exit_code == 0, done.output
            assert done.stdout == wanted

    def test_expired_events_are_spoken_of(self, place: Path) -> None:
        ingest(place)
        kaicep("archive", "expire", place / "A", "--before", "5")
        done = kaicep("query", place / "rise.chi", "--archive", place / "A")
        assert "events before 1970-01-01T00:00:05.000000Z have been removed" in done.stderr

    def test_a_time_before_the_archive_begins_is_spoken_of(self, place: Path) -> None:
        ingest(place)
        early = "SELECT ?a.x FROM (?a, meter) WITHIN [{}, 1970-01-01T00:01:00)\n"
        (place / "early.chi").write_text(early.format("1969-12-31T23:00:00"))
        (place / "known.chi").write_text(early.format("1970-01-01T00:00:00"))
        warned, quiet = (
            kaicep("query", place / each, "--archive", place / "A") for each in ("early.chi", "known.chi")
        )
        assert "meter: the archive begins at 1970-01-01T00:00:00.000000Z" in warned.stderr
        assert "begins" not in quiet.stderr
        assert len(warned.stdout.splitlines()) == len(quiet.stdout.splitlines()) == 15

    def test_a_strategy_that_cannot_says_why(self, place: Path) -> None:
        ingest(place)
        (place / "loop.chi").write_text("SELECT ?a.x FROM (?a, meter), (?b, meter) SEQ (?a, ?b+)")
        done = kaicep("query", place / "loop.chi", "--archive", place / "A", "--strategy", "rewrite")
        assert done.exit_code == 2
        assert "a loop without a fixed number of rounds (?b)" in done.stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((), "no archive is given"),
            (("--archive", "nowhere"), "there is no archive in nowhere"),
            (("--archive", "A", "--strategy", "magic"), "choose one of auto, replay, rewrite, hybrid"),
            (("--archive", "A", "--follow", "--out", "csv"), "--follow prints lines of JSON"),
        ],
    )
    def test_mistakes_are_told(self, place: Path, words: tuple[str, ...], message: str) -> None:
        done = kaicep("query", place / "rise.chi", *words)
        assert done.exit_code == 2
        assert message in done.stderr


@pytest.mark.slow
def test_follow_goes_on_with_what_the_archive_gets(place: Path) -> None:
    ingest(place)
    words = ["query", place / "rise.chi", "--archive", place / "A", "--follow", "--idle", "0s"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "kaicep", *map(str, words)], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            before = sum("}" in process.stdout.readline() for _ in range(12))
            write(place / "meter" / "c.jsonl", LINES[15:])
            ingest(place)
            after = json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert before == 12
    assert after["events"]["b"]["part"] == 2


def test_explain_shows_the_rewritten_query(place: Path) -> None:
    done = kaicep("explain", place / "rise.chi", "--stream", f"meter={place / 'meter'}", "--sparql")
    assert "FILTER (?b_x > ?a_x)" in done.stdout
    assert "ORDER BY ?b_ts" in done.stdout
