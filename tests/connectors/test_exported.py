"""Data as people export it, read by every way there is: with the same events and the same dead letters."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import kaicep as kai
from kaicep.archive.archive import Archive
from kaicep.cli.main import app
from kaicep.connectors import parts as reading
from kaicep.connectors.files import read_stream
from kaicep.connectors.parts import read_events, read_stretch, stretches
from kaicep.connectors.shape import Form, Schema
from kaicep.connectors.sources.files import FileSource, FileSourceOptions
from kaicep.errors import Mistake
from kaicep.ingest.files import ingest
from kaicep.knowledge.annotation import parse_annotations
from kaicep.plan.time import format_time

WIDE = {
    "stream": "s",
    "time": "Time",
    "nulls": ["No Data"],
    "wide": {"columns": "*", "point": "name", "value": "reading"},
}


def form_of(said):
    (annotation,) = parse_annotations({"stream": "s", **said})
    return Form.of("s", annotation)


def read_every_way(path: Path, said, growing: bool = False):
    """The events of a file, by (seq, time, values), and the dead letters, after all ways agreed on them."""
    form = form_of(said)
    whole = read_stream("s", path, form.time, form.types, True, notation=form.notation)
    events = {each.seq: (format_time(each.ts), dict(each.values)) for each in whole.events}
    dead = sorted((each.seq, each.line, each.reason) for each in whole.dead)
    schema = Schema(whole.attributes)
    with FileSource(form, FileSourceOptions(path)) as source:
        source.open({}, schema)
        batch = source.next_batch(0)
    assert {each.seq: (format_time(each.ts), dict(each.values)) for each in batch.events} == events
    assert sorted((each.seq, each.line, each.reason) for each in batch.dead) == dead
    pieces = list(stretches(form, schema, 0, path))
    for read in (by_columns, by_records):
        found = [read(each, form, schema) for each in pieces]
        assert dict(chain.from_iterable(rows for rows, _ in found)) == filled(events, schema)
        assert sorted(each for _, some in found for each in some) == dead
    end = batch.position[0]
    if pieces:
        assert pieces[-1].after == end
    with FileSource(form, FileSourceOptions(path)) as source:
        source.open({0: end}, schema)
        assert not source.next_batch(0)
    return events, dead


def filled(events, schema):
    return {
        seq: {name: values.get(name) for name, _ in schema.attributes} for seq, (_, values) in events.items()
    }


def by_columns(piece, form, schema):
    columns = read_stretch(piece, form, schema)
    lists = {
        name: column.cast(pyarrow.int64()).to_pylist()
        if pyarrow.types.is_timestamp(column.type)
        else column.to_pylist()
        for name, column in columns.values.items()
    }
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    dead = [(each.seq, each.line, each.reason) for each in columns.dead]
    return list(zip(columns.seq.to_pylist(), rows, strict=True)), dead


def by_records(piece, form, schema):
    events, dead = read_events(piece, form, schema)
    rows = {each.seq: ("", dict(each.values)) for each in events}
    return list(filled(rows, schema).items()), [(each.seq, each.line, each.reason) for each in dead]


def written(tmp_path, text, encoding="utf-8", name="s.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


# --- wide tables -------------------------------------------------------------------------------------------

EXPORT = """Time,AHU1 supply,AHU1 "zone, 2",Meter
2026-03-02T08:00,13.5,No Data,100
2026-03-02T08:15,,21,oops

2026-03-02T08:30,14,22.5,102
later,15,23,103
2026-03-02T08:45,No Data,No Data,104
""".replace('AHU1 "zone, 2"', '"AHU1 zone, 2"')


def test_every_filled_cell_of_a_wide_table_is_an_event(tmp_path):
    events, dead = read_every_way(written(tmp_path, EXPORT), {**WIDE, "types": {"reading": "float64"}})
    shown = {seq: (ts[11:16], values["name"], values["reading"]) for seq, (ts, values) in events.items()}
    assert shown == {
        1: ("08:00", "AHU1 supply", 13.5),
        3: ("08:00", "Meter", 100.0),
        6: ("08:15", "AHU1 zone, 2", 21.0),
        13: ("08:30", "AHU1 supply", 14.0),
        14: ("08:30", "AHU1 zone, 2", 22.5),
        15: ("08:30", "Meter", 102.0),
        23: ("08:45", "Meter", 104.0),
    }
    assert dead == [
        (7, 3, 'reading: "oops" is not a float64'),
        (16, 6, 'Time: "later" is neither an ISO 8601 time nor epoch seconds'),
    ]


def test_whole_numbers_in_some_columns_say_nothing_of_the_others(tmp_path):
    text = "Time,a,b\n1,1,2\n2,1,2\n3,1.5,2\n"
    events, dead = read_every_way(written(tmp_path, text), WIDE)
    assert [values["reading"] for _, values in events.values()] == [1.0, 2.0, 1.0, 2.0, 1.5, 2.0]
    assert not dead


def test_columns_may_be_kept_and_chosen(tmp_path):
    text = "Time,site,a,b,unit no\n1,HQ,1,2,x\n2,HQ,3,4,7\n3,,5,,8\n"
    said = {
        **WIDE,
        "wide": {"columns": ["a", "b"], "point": "name", "value": "reading", "keep": ["site", "unit no"]},
        "types": {"unit no": "int64"},
    }
    events, dead = read_every_way(written(tmp_path, text), said)
    assert {seq: (v["site"], v["name"], v["reading"], v["unit no"]) for seq, (_, v) in events.items()} == {
        2: ("HQ", "a", 1.0, None),
        3: ("HQ", "b", 2.0, None),
        7: ("HQ", "a", 3.0, 7),
        8: ("HQ", "b", 4.0, 7),
        12: (None, "a", 5.0, 8),
    }
    assert dead == [(4, 2, 'unit no: "x" is not an int64')]


def test_wide_parquet(tmp_path):
    path = tmp_path / "s.parquet"
    table = pyarrow.table(
        {
            "Time": pyarrow.array([0, 60], pyarrow.timestamp("s")),
            "a": pyarrow.array([1.5, float("nan")]),
            "b": pyarrow.array([None, 2.5]),
        }
    )
    pyarrow.parquet.write_table(table, path)
    events, _ = read_every_way(path, WIDE)
    assert {seq: (v["name"], v["reading"]) for seq, (_, v) in events.items()} == {
        1: ("a", 1.5),
        5: ("b", 2.5),
    }


def test_wide_objects_have_their_columns_by_name(tmp_path):
    text = '{"Time": 1, "b": 2, "a": 1}\n\n{"Time": 2, "a": "No Data", "b": 3}\n'
    path = written(tmp_path, text, name="s.jsonl")
    events, _ = read_every_way(path, {**WIDE, "wide": {"columns": ["a", "b"]}})
    assert {seq: (v["name"], v["reading"]) for seq, (_, v) in events.items()} == {
        0: ("a", 1.0),
        1: ("b", 2.0),
        5: ("b", 3.0),
    }
    with pytest.raises(Mistake, match="needs its columns by name"):
        read_stream("s", path, "Time", notation=form_of(WIDE).notation)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_followed_table_goes_on_where_it_stopped(tmp_path, batch):
    form = form_of({**WIDE, "types": {"reading": "float64"}})
    folder = tmp_path / "s"
    folder.mkdir()
    path = folder / "a.csv"
    path.write_text("Time,a,b\n1,1,2\n2,3,")
    seen, position = [], None
    for more in ("4\n3,,5\n", "4,6,7\n"):
        with FileSource(form, FileSourceOptions(folder, follow=True, batch=batch)) as source:
            source.open(position)
            while some := source.next_batch(0):
                seen += [(each.seq, each.values["reading"]) for each in some.events]
            position = source.position
        path.open("a").write(more)
    with FileSource(form, FileSourceOptions(folder, follow=True, batch=batch)) as source:
        source.open(position)
        while some := source.next_batch(0):
            seen += [(each.seq, each.values["reading"]) for each in some.events]
    assert seen == [(1, 1), (2, 2), (4, 3), (5, 4), (8, 5), (10, 6), (11, 7)]


# --- how values are written --------------------------------------------------------------------------------

GERMAN = {
    "time": "Zeit",
    "csv": {"delimiter": ";", "decimal": ",", "thousands": ".", "encoding": "latin-1"},
    "time_format": "%d.%m.%Y %H:%M",
    "time_zone": "Europe/Berlin",
    "nulls": ["k. A."],
    "types": {"kW": "float64"},
}
GERMAN_FILE = """Zeit;Raum;kW;Zähler
02.03.2026 08:00;"Büro; 1";1,5;1.234
02.03.2026 08:15;Büro 2;k. A.;12.345.678
02.03.2026 08:30;k. A.;-1.234,25;1
02.03.2026 08:45;Büro 3;1.5;1
2026-03-02T09:00;Büro 4;1;1
"""


def test_a_dialect_of_csv(tmp_path):
    events, dead = read_every_way(written(tmp_path, GERMAN_FILE, "latin-1"), GERMAN)
    assert [(v["Raum"], v["kW"], v["Zähler"]) for _, v in events.values()] == [
        ("Büro; 1", 1.5, 1234),
        ("Büro 2", None, 12345678),
        (None, -1234.25, 1),
    ]
    assert events[0][0] == "2026-03-02T07:00:00.000000Z"
    assert [each[2].partition(":")[0] for each in dead] == ["kW", "Zeit"]


def test_numbers_with_commas_between_thousands(tmp_path):
    text = 'ts,kW\n1,"1,234.5"\n2,7\n3,"12,34"\n'
    said = {"csv": {"thousands": ","}, "types": {"kW": "float64"}}
    events, dead = read_every_way(written(tmp_path, text), said)
    assert [v["kW"] for _, v in events.values()] == [1234.5, 7.0]
    assert [each[0] for each in dead] == [2]


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", None])
def test_hours_that_come_twice_and_times_that_do_not_exist(tmp_path, form):
    text = "ts,n\n2026-03-29 01:59,1\n2026-03-29 02:30,2\n2026-03-29 03:00,3\n2026-10-25 02:30,4\n"
    said = {"time_zone": "Europe/Berlin", **({"time_format": form} if form else {})}
    events, _ = read_every_way(written(tmp_path, text), said)
    assert [ts[:16] for ts, _ in events.values()] == [
        "2026-03-29T00:59",
        "2026-03-29T01:30",  # moved on by the gap: 03:30
        "2026-03-29T01:00",
        "2026-10-25T00:30",  # the first of the two
    ]


def test_a_zone_is_for_times_without_an_offset(tmp_path):
    text = "ts,n\n2026-07-01T12:00Z,1\n2026-07-01T12:00+05:00,2\n2026-07-01T12:00,3\n1,4\n"
    events, _ = read_every_way(written(tmp_path, text), {"time_zone": "America/New_York"})
    assert [ts[:16] for ts, _ in events.values()] == [
        "2026-07-01T12:00",
        "2026-07-01T07:00",
        "2026-07-01T16:00",
        "1970-01-01T00:00",
    ]


def test_days_of_a_spreadsheet_are_of_the_zone(tmp_path):
    said = {"time_unit": "excel", "time_zone": "America/New_York"}
    events, _ = read_every_way(written(tmp_path, "ts,n\n45000.5,1\n"), said)
    assert events[0][0][:16] == "2023-03-15T16:00"


def test_times_of_parquet_without_a_zone_are_of_the_zone(tmp_path):
    path = tmp_path / "s.parquet"
    ts = pyarrow.array([0, 60_000_000], pyarrow.timestamp("us"))
    table = pyarrow.table({"ts": ts, "at": ts.cast(pyarrow.timestamp("us", "UTC")), "k": ["a", "-"]})
    pyarrow.parquet.write_table(table, path)
    events, _ = read_every_way(path, {"time_zone": "Europe/Berlin", "nulls": ["-"]})
    assert [(ts[:19], v["at"], v["k"]) for ts, v in events.values()] == [
        ("1969-12-31T23:00:00", 0, "a"),
        ("1969-12-31T23:01:00", 60_000_000, None),
    ]


def test_objects_with_nulls_zones_and_formats(tmp_path):
    text = """{"ts": "02.03.2026 08:00", "k": "-", "n": "-", "m": 1}
{"ts": "02.03.2026 09:00", "k": "a", "n": 2, "m": 1.5}
{"ts": "-", "k": "a", "n": 2, "m": 1}
"""
    said = {"time_format": "%d.%m.%Y %H:%M", "time_zone": "Europe/Berlin", "nulls": ["-"]}
    events, dead = read_every_way(written(tmp_path, text, name="s.jsonl"), said)
    assert [(ts[11:16], v["k"], v["n"], v["m"]) for ts, v in events.values()] == [
        ("07:00", None, None, 1.0),
        ("08:00", "a", 2, 1.5),
    ]
    assert dead == [(2, 3, "no time: ts is null")]


# --- from Python -------------------------------------------------------------------------------------------


def matches(said, events, query="SELECT ?e.kW FILTER (?e.kW > 1)", lateness=None):
    compiled = kai.compile(query, streams={"s": {"kW": "float64"}}, annotations=[{"stream": "s", **said}])
    return [(f"{each.start:%H:%M}", each.select) for each in kai.run(compiled, events, lateness=lateness)]


@pytest.mark.parametrize("lateness", [None, "0s"])
def test_dicts_and_tables_are_read_as_files_are(lateness):
    said = {
        "time": "at",
        "time_format": "%d.%m.%Y %H:%M",
        "time_zone": "Europe/Berlin",
        "nulls": ["-"],
        "csv": {"decimal": ","},
    }
    rows = [{"at": "02.03.2026 08:00", "kW": "1,5"}, {"at": "02.03.2026 08:15", "kW": "-"}]
    expected = [("07:00", {"kW": 1.5})]
    assert matches(said, rows, lateness=lateness) == expected
    assert matches(said, pyarrow.Table.from_pylist(rows), lateness=lateness) == expected


def test_wide_tables_from_python():
    said = {"time": "at", "wide": {"columns": "*", "point": "name", "value": "kW"}}
    table = pyarrow.table({"at": ["2026-03-02T08:00", "2026-03-02T08:15"], "a": [1.0, 2.0], "b": [3.0, None]})
    query = "SELECT ?e.name, ?e.kW FILTER (?e.kW > 1)"
    streams = {"s": {"name": "string", "kW": "float64"}}
    compiled = kai.compile(query, streams=streams, annotations=[{"stream": "s", **said}])
    found = [(each.events["e"]["seq"], each.select["name"]) for each in kai.run(compiled, table)]
    assert found == [(2, "b"), (4, "a")]


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"time_zone": "Europe/Berlim"}, "did you mean Europe/Berlin"),
        ({"time_format": "%H:%M"}, "does not say the year"),
        ({"time_format": "%d.%m.%Y %Q"}, "is no format of a time"),
        ({"csv": {"delimiter": ";;"}}, "a delimiter is one character"),
        ({"csv": {"decimal": ",", "thousands": ","}}, "another than"),
        ({"csv": {"encoding": "utf-16"}}, "cannot be read in the encoding utf-16"),
        ({"csv": {"encodin": "utf-8"}}, "did you mean encoding"),
        ({"nulls": "No Data"}, "a list of texts"),
        ({"wide": {"columns": "*", "point": "x", "value": "x"}}, "two attributes x"),
        (
            {"entities": {"x": {"property": "rdfs:label", "iri": "urn:{value}", "datatype": "xsd:int"}}},
            "goes with",
        ),
        (
            {"entities": {"x": {"property": "rdfs:label", "lookup": "rdfs:label//rdfs:label"}}},
            "no property path",
        ),
        (
            {"entities": {"x": {"property": "rdfs:label", "lookup": ["rdfs:label", "rdfs:label"]}}},
            "one lookup for",
        ),
    ],
)
def test_mistakes_of_an_annotation(said, complaint):
    with pytest.raises(Mistake, match=complaint):
        parse_annotations({"stream": "s", **said})


def test_a_wide_table_does_not_come_from_a_topic(tmp_path):
    from kaicep.connectors.http import HttpOptions, HttpSource

    with pytest.raises(Mistake, match="read from files"):
        HttpSource(replace(form_of(WIDE)), HttpOptions(log=tmp_path, port=0))


# --- into an archive, and from the command line ------------------------------------------------------------


def test_the_archive_gets_the_same_events_whatever_the_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BYTES", 60)
    monkeypatch.setattr(reading, "_LONGEST", 60)
    said = {**WIDE, "types": {"reading": "float64"}}
    form = form_of(said)
    file = tmp_path / "s.csv"
    lines = EXPORT.splitlines(keepends=True)
    archive = Archive(tmp_path / "A")
    for end in (4, 5, len(lines)):
        file.write_text("".join(lines[:end]))
        ingest(archive, form, file)
    whole = read_stream("s", file, form.time, form.types, True, notation=form.notation)
    table = archive.stream("s")
    assert table.positions == {0: 24}
    assert [(each.seq, each.values) for each in archive.snapshot().events("s")] == [
        (each.seq, each.values) for each in sorted(whole.events, key=lambda each: (each.ts, each.seq))
    ]
    assert [each["seq"] for each in archive.dead_letters.read()] == [each.seq for each in whole.dead]


@pytest.mark.parametrize("command", ["match", "ingest"])
def test_a_run_in_which_most_records_are_bad_fails_and_says_why(tmp_path, command):
    (tmp_path / "s.csv").write_text("ts,kW\n1,2\n2,No Data\n3,No Data\n4,-\n")
    (tmp_path / "s.json").write_text('{"stream": "s", "types": {"kW": "float64"}}')
    (tmp_path / "q.chi").write_text("SELECT ?e.kW FROM (?e, s)")
    rest = [str(tmp_path / "q.chi")] if command == "match" else ["--archive", str(tmp_path / "A")]
    words = ["--stream", f"s={tmp_path / 's.csv'}", "--annotation", str(tmp_path / "s.json")]
    done = CliRunner().invoke(app, [command, *rest, *words])
    assert done.exit_code == 1
    assert "most records of s could not be read (3 of 4)" in done.stderr
    assert 'mostly because of kW: "No Data" is not a float64' in done.stderr
    assert command == "ingest" or done.stdout.count("\n") == 1
