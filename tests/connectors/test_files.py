"""Files as streams: identity, types, bad records, lateness."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kaicep.connectors.files import StreamData, mark_late, read_stream
from kaicep.connectors.records import watching
from kaicep.connectors.shape import SAMPLE
from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.plan.terms import XSD, Blank, Iri, Literal
from kaicep.plan.types import Notation, Type

B, I, F, S, T = Type.BOOL, Type.INT64, Type.FLOAT64, Type.STRING, Type.TIMESTAMP  # noqa: E741


def write(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((each.encode() if isinstance(each, str) else each) + b"\n" for each in lines))
    return path


def rows(stream: StreamData) -> list[tuple[int, int, int, dict[str, object]]]:
    """The events as (part, seq, seconds, values without the time)."""
    return [
        (each.part, each.seq, each.ts // 1_000_000, {k: v for k, v in each.values.items() if k != "ts"})
        for each in stream.events
    ]


def reasons(stream: StreamData) -> list[tuple[int, str]]:
    return [(each.seq, each.reason) for each in stream.dead]


def mistake(name: str, path: Path) -> str:
    with pytest.raises(Mistake) as caught:
        read_stream(name, path)
    return str(caught.value).replace(str(path.parent), "DIR")


# --- JSON Lines -------------------------------------------------------------------------------------


def test_json_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s.jsonl",
        b'\xef\xbb\xbf{"ts": 1, "x": 1, "name": "a"}\r',
        "",
        '{"ts": "1970-01-01T00:00:02Z", "x": 2.5, "y": true}',
        "   ",
        '{"x": null, "ts": 3, "z": {"a": [1]}, "x": 7}',
    )
    stream = read_stream("s", file)
    assert stream.attributes == (("ts", T), ("x", F), ("name", S), ("y", B), ("z", S))
    assert rows(stream) == [
        (0, 0, 1, {"x": 1.0, "name": "a"}),
        (0, 2, 2, {"x": 2.5, "y": True}),
        (0, 4, 3, {"x": 7.0, "z": '{"a":[1]}'}),
    ]
    assert (stream.name, stream.dead, stream.rdf) == ("s", [], False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops}", "not JSON: expecting property name enclosed in double quotes at column 2"),
        ('{"ts": 1', "not JSON: expecting ',' delimiter at column 9"),
        ('{"ts": 1} {"ts": 2}', "not JSON: extra data at column 11"),
        ("[1, 2]", "not a JSON object but a list"),
        ("null", "not a JSON object but null"),
        ('"text"', "not a JSON object but a text"),
        ("17", "not a JSON object but a single value"),
        ("{}", "no time: it has no attribute ts, and no annotation names another"),
        ('{"ts": null}', "no time: ts is null"),
        ('{"ts": NaN}', "no time: ts is null"),
        ('{"ts": "soon"}', 'ts: "soon" is neither an ISO 8601 time nor epoch seconds'),
        ('{"ts": 1, "x": "warm"}', 'x: "warm" is not an int64'),
        (b'{"ts": 1, "x": "\xff"}', "not UTF-8: byte 0xff at column 17"),
        ('{"ts": 1, "x": "\\ud800"}', "not Unicode: half of a surrogate pair"),
        ("[" * 100_000, "not JSON that can be read: nested too deeply"),
        ('{"ts": ' + "9" * 10_000 + "}", "not JSON that can be read: a number with too many digits"),
    ],
)
def test_a_bad_line_is_a_dead_letter_and_uses_up_its_number(
    tmp_path: Path, line: str | bytes, reason: str
) -> None:
    file = write(tmp_path / "s.jsonl", '{"ts": 1, "x": 1}', line, '{"ts": 3, "x": 3}')
    stream = read_stream("s", file, types={"x": I})
    assert [(each.seq, each.ts // 1_000_000) for each in stream.events] == [(0, 1), (2, 3)]
    [dead] = stream.dead
    assert (dead.stream, dead.part, dead.seq, dead.line, dead.file) == ("s", 0, 1, 2, str(file))
    assert dead.reason == reason
    expected = line.decode(errors="replace") if isinstance(line, bytes) else line
    assert dead.record_text == expected


def test_an_explicit_time_is_named_in_the_reason(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", '{"x": 1}')
    stream = read_stream("s", file, time="when", explicit_time=True)
    assert reasons(stream) == [(0, "no time: it has no attribute when")]


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "json", "JSONL"])
def test_an_empty_file_is_an_empty_stream(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"s.{suffix}"
    file.touch()
    stream = read_stream("s", file, types={"x": F})
    assert (stream.attributes, stream.events, stream.dead) == ((("ts", T), ("x", F)), [], [])


def test_the_time_attribute_by_another_name(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", '{"id": 1, "timestamp": 5, "ts": "shadowed"}')
    stream = read_stream("s", file, time="timestamp")
    assert stream.attributes == (("id", I), ("timestamp", T))
    assert stream.events[0].values == {"id": 1, "timestamp": 5_000_000}
    assert stream.events[0].value("ts") == 5_000_000


@pytest.mark.parametrize(
    ("values", "declared", "expected"),
    [
        (["1", "2"], {}, (I, [1, 2])),
        (["1", "2.5"], {}, (F, [1.0, 2.5])),
        (["1", '"a"'], {}, (S, ["1", "a"])),
        (["true", "1"], {}, (S, ["true", "1"])),
        (["null", "null"], {}, (S, [None, None])),
        (["null", "3"], {}, (I, [None, 3])),
        (["1", "2"], {"x": F}, (F, [1.0, 2.0])),
        (["1", "2"], {"x": S}, (S, ["1", "2"])),
        (["1.0", '"2"'], {"x": I}, (I, [1, 2])),
        (["0", '"1970-01-02"'], {"x": T}, (T, [0, 86_400_000_000])),
        (["1e999", "NaN"], {}, (F, [None, None])),
        (["[1, 2]", "{}"], {}, (S, ["[1,2]", "{}"])),
    ],
)
def test_types_are_declared_or_inferred(
    tmp_path: Path, values: list[str], declared: Mapping[str, Type], expected: tuple[Type, list[object]]
) -> None:
    file = write(tmp_path / "s.jsonl", *(f'{{"ts": 0, "x": {each}}}' for each in values))
    stream = read_stream("s", file, types=declared)
    assert (dict(stream.attributes)["x"], [each.values["x"] for each in stream.events]) == expected


def test_a_declared_attribute_that_never_appears_comes_last(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", '{"b": 1, "ts": 0}')
    assert read_stream("s", file, types={"a": S}).attributes == (("b", I), ("ts", T), ("a", S))


def test_only_the_first_records_decide(tmp_path: Path) -> None:
    lines = ['{"ts": 0, "x": 1}'] * (SAMPLE - 1)
    inside = read_stream("s", write(tmp_path / "a.jsonl", "bad", *lines, '{"ts": 0, "x": 0.5}'))
    assert dict(inside.attributes)["x"] is F
    after = read_stream("s", write(tmp_path / "b.jsonl", *lines, lines[0], '{"ts": 0, "x": "a", "y": 1}'))
    assert after.attributes == (("ts", T), ("x", I))
    assert reasons(after) == [(SAMPLE, 'x: "a" is not an int64')]


# --- CSV --------------------------------------------------------------------------------------------


def test_csv(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s.csv",
        b"\xef\xbb\xbfts,n,x,ok,code,note,none",
        "1,1,1,true,007,plain,",
        '2,2,2.5,FALSE,012,"two',
        'lines, ""quoted""",',
        "",
        "3,,,,,,",
        "4,4",
    )
    stream = read_stream("s", file)
    types = (T, I, F, B, S, S, S)
    assert stream.attributes == tuple(zip(("ts", "n", "x", "ok", "code", "note", "none"), types, strict=True))
    assert rows(stream) == [
        (0, 0, 1, {"n": 1, "x": 1.0, "ok": True, "code": "007", "note": "plain", "none": None}),
        (
            0,
            1,
            2,
            {"n": 2, "x": 2.5, "ok": False, "code": "012", "note": 'two\nlines, "quoted"', "none": None},
        ),
        (0, 3, 3, dict.fromkeys(("n", "x", "ok", "code", "note", "none"))),
        (0, 4, 4, {"n": 4}),
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2,2,2", "3 cells, but the header names 2 columns"),
        (b"2,\xe9", "not UTF-8: x"),
        (",2", "no time: ts is null"),
        ("noon,2", 'ts: "noon" is neither an ISO 8601 time nor epoch seconds'),
        ("2,warm", 'x: "warm" is not an int64'),
        ('2,"a"b', "not CSV: ',' expected after '\"'"),
    ],
)
def test_a_bad_row_is_a_dead_letter(tmp_path: Path, row: str | bytes, reason: str) -> None:
    file = write(tmp_path / "s.csv", "ts,x", '"1","1"', row, "3,3")
    stream = read_stream("s", file, types={"x": I})
    assert [(each.seq, each.values["x"]) for each in stream.events] == [(0, 1), (2, 3)]
    [dead] = stream.dead
    assert (dead.seq, dead.line, dead.reason) == (1, 3, reason)
    assert dead.record_text == (row.decode(errors="replace") if isinstance(row, bytes) else row)


def test_a_quote_that_never_ends_is_one_bad_row(tmp_path: Path) -> None:
    file = write(tmp_path / "s.csv", "ts,x", "1,1", '2,"open', "3,3")
    stream = read_stream("s", file)
    assert len(stream.events) == 1
    assert reasons(stream) == [(1, "not CSV: unexpected end of data")]
    assert stream.dead[0].record_text == '2,"open\n3,3'


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("ts,,x", "error: DIR/s.csv: column 2 has no name"),
        ("ts,x,x", "error: DIR/s.csv: two columns are named x"),
        ("2012-05-07,a,b", "error: DIR/s.csv: there is no header: the first row has the value 2012-05-07"),
        ("a,17", "error: DIR/s.csv: there is no header: the first row has the value 17"),
    ],
)  # fmt: skip
def test_a_header_must_name_the_columns(tmp_path: Path, header: str, expected: str) -> None:
    said = mistake("s", write(tmp_path / "s.csv", header, "1,2,3"))
    assert said == f"{expected}\n  = help: the first row must name every column, each differently"


def test_a_header_that_is_not_utf_8(tmp_path: Path) -> None:
    said = mistake("s", write(tmp_path / "s.csv", b"ts,temp\xe9rature"))
    assert "the name of column 2 is not UTF-8" in said


@pytest.mark.parametrize("lines", [(), ("ts,x",)])
def test_csv_without_rows(tmp_path: Path, lines: tuple[str, ...]) -> None:
    stream = read_stream("s", write(tmp_path / "s.csv", *lines))
    assert stream.attributes == (("ts", T), ("x", S))[: 1 + len(lines)]
    assert (stream.events, stream.dead) == ([], [])


# --- Parquet ----------------------------------------------------------------------------------------


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "ts": pa.array([1_000, 2_500, None], pa.timestamp("ns")),
        "n": pa.array([1, None, 3], pa.int32()),
        "u": pa.array([1, 2, 2**63 - 1], pa.uint64()),
        "x": pa.array([0.5, float("nan"), 1.0], pa.float64()),
        "ok": pa.array([True, None, False]),
        "name": pa.array(["a", "b", "a"]).dictionary_encode(),
        "day": pa.array([1, None, 2], pa.date32()),
        "wait": pa.array([5, None, 1], pa.duration("ms")),
        "sum": pa.array([1, 2, 3], pa.decimal128(5, 2)),
        "tags": pa.array([["p"], [], None], pa.list_(pa.string())),
        "raw": pa.array([b"ok", None, b"ok"]),
        "none": pa.nulls(3),
    }
    file = tmp_path / "s.parquet"
    pq.write_table(pa.table(columns), file)
    stream = read_stream("s", file)
    types = (T, I, I, F, B, S, T, I, F, S, S, S)
    assert stream.attributes == tuple(zip(columns, types, strict=True))
    first, second = (dict(each.values) for each in stream.events)
    day = 86_400_000_000
    assert first == {
        "ts": 1, "n": 1, "u": 1, "x": 0.5, "ok": True, "name": "a", "day": day, "wait": 5_000, "sum": 1.0,
        "tags": '["p"]', "raw": "ok", "none": None,
    }  # fmt: skip
    assert (second["ts"], second["n"], second["x"], second["tags"]) == (2, None, None, "[]")
    assert reasons(stream) == [(2, "no time: ts is null")]
    assert stream.dead[0].line == 3
    assert '"n":3' in stream.dead[0].record_text


def test_parquet_files_decide_by_their_columns_together(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ts": [0] * (SAMPLE + 1), "x": [1] * (SAMPLE + 1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ts": [0.5], "x": [1.5]}), tmp_path / "b.parquet")
    stream = read_stream("s", tmp_path)
    assert stream.attributes == (("ts", T), ("x", F))
    assert [(each.part, each.seq, each.ts, each.values["x"]) for each in stream.events[-2:]] == [
        (0, SAMPLE, 0, 1.0),
        (1, 0, 500_000, 1.5),
    ]


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    said = mistake("s", write(tmp_path / "s.parquet", "this is no parquet"))
    assert said.startswith("error: stream s: cannot read DIR/s.parquet: Parquet magic bytes not found")


# --- folders and files that cannot be read ----------------------------------------------------------


def test_a_folder_is_a_stream_with_a_part_for_each_file_by_name(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", "ts,x", "9,2.5")
    write(tmp_path / "a.jsonl", "bad", '{"ts": 5, "x": 1}')
    write(tmp_path / "B.jsonl", '{"ts": 7}')
    write(tmp_path / "_SUCCESS", "")
    write(tmp_path / ".a.jsonl.crc", "")
    stream = read_stream("s", tmp_path)
    assert stream.attributes == (("ts", T), ("x", F))
    assert rows(stream) == [(0, 0, 7, {}), (1, 1, 5, {"x": 1.0}), (2, 0, 9, {"x": 2.5})]
    assert [(each.part, each.seq, each.line) for each in stream.dead] == [(1, 0, 1)]


def test_an_empty_folder(tmp_path: Path) -> None:
    said = mistake("s", tmp_path)
    assert f"stream s: the folder DIR/{tmp_path.name} has no file to read" in said


def test_a_folder_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    assert "DIR/in/deeper is a folder inside the stream's folder" in mistake("s", tmp_path / "in")


@pytest.mark.parametrize(
    ("name", "kind"), [("s.txt", "files that end in .txt"), ("s", "files without an ending")]
)
def test_an_unknown_kind_of_file(tmp_path: Path, name: str, kind: str) -> None:
    assert mistake("s", write(tmp_path / name, "1")) == (
        f"error: stream s: the format of DIR/{name} is unknown\n"
        f"  = help: a stream is read from .jsonl, .csv, .parquet or RDF, not from {kind}"
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "meter.jsonl", "")
    assert mistake("s", tmp_path / "metre.jsonl") == (
        "error: stream s: cannot read DIR/metre.jsonl: No such file or directory\n"
        "  = help: did you mean DIR/meter.jsonl?"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", "{}")
    file.chmod(0)
    assert "cannot read DIR/s.jsonl: Permission denied" in mistake("s", file)


# --- RDF streams ------------------------------------------------------------------------------------


def test_an_rdf_stream(tmp_path: Path) -> None:
    file = write(
        tmp_path / "my-s.jsonl",
        f'{{"triple": "<urn:a> <urn:p> \\"05\\"^^<{XSD}integer> .", "start": 1, "end": 2}}',
        '{"triples":["<urn:a> <urn:p> _:b0 .", "_:b0 <urn:q> \\"x\\"@en ."], "start": "1970-01-01T00:00:03"}',
        '{"triples": "<urn:a> <urn:p> <urn:b> .\\n<urn:a> <urn:p> <urn:c> .", "start": 4}',
    )
    stream = read_stream("my-s", file)
    assert (stream.rdf, stream.attributes, stream.dead) == (True, (), [])
    assert [(each.seq, each.start, each.ts) for each in stream.events] == [
        (0, 1_000_000, 2_000_000),
        (1, 3_000_000, 3_000_000),
        (2, 4_000_000, 4_000_000),
    ]
    assert stream.events[0].triples == ((Iri("urn:a"), Iri("urn:p"), Literal("05", XSD + "integer")),)
    [blank, english] = [triple[2] for triple in stream.events[1].triples]
    assert blank == Blank("my_2d_s_20_0_20_1.b0")
    assert isinstance(english, Literal)
    assert (english.lexical, english.language) == ("x", "en")
    assert [triple[2] for triple in stream.events[2].triples] == [Iri("urn:b"), Iri("urn:c")]


def test_a_label_is_one_node_in_one_record_or_in_the_stream(tmp_path: Path) -> None:
    rows = [f'{{"triple": "_:b0 <urn:p> <urn:b> .", "start": {at}}}' for at in (1, 2)]
    file = write(tmp_path / "s.jsonl", *rows)
    for notation, nodes in ((Notation(), 2), (Notation(blank_nodes="stream"), 1)):
        stream = read_stream("s", file, notation=notation)
        assert len({subject for each in stream.events for subject, _, _ in each.triples}) == nodes


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"triple": "<urn:a> <urn:p> <urn:b> .", "start": 2, "end": 1}',
         "it ends at 1970-01-01T00:00:01.000000Z, before it starts at 1970-01-01T00:00:02.000000Z"),
        ('{"triple": "<urn:a> <urn:p> <urn:b> ."}', "no time: it has no start"),
        ('{"triple": "<urn:a> <urn:p> <urn:b> .", "start": "x"}',
         'start: "x" is neither an ISO 8601 time nor epoch seconds'),
        ('{"triple": "<urn:a> <urn:p> <urn:b> .", "start": 1, "end": []}',
         "end: [] is neither an ISO 8601 time nor epoch seconds"),
        ('{"start": 1}', "it has no triple"),
        ('{"triples": [], "start": 1}', "it has no triple"),
        ('{"triple": 5, "start": 1}', "triple: 5 is not text"),
        ('{"triple": "<urn:a> <urn:p>", "start": 1}', "triple: Parser error at line 1"),
        (f'{{"triple": "<urn:a> <urn:p> {"<<( <urn:a> <urn:p> " * 60}<urn:b>{" )>>" * 60} .", "start": 1}}',
         "triple: it is nested more than 50 deep"),
    ],
)  # fmt: skip
def test_a_bad_record_of_an_rdf_stream(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"triple": "<urn:a> <urn:p> <urn:b> .", "start": 1}'
    stream = read_stream("s", write(tmp_path / "s.jsonl", good, line, good))
    assert [each.seq for each in stream.events] == [0, 2]
    [(seq, found)] = reasons(stream)
    assert seq == 1
    assert found.startswith(reason)


def test_records_with_a_time_are_no_rdf_stream_whatever_their_attributes(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", '{"ts": 1, "triple": 3}', '{"triple": 4}', '{"ts": 2, "triple": 5}')
    stream = read_stream("s", file)
    assert (stream.rdf, stream.attributes, len(stream.events)) == (False, (("ts", T), ("triple", I)), 2)
    assert not read_stream("s", write(file, '{"triple": 1, "t": 2}'), time="t").rdf
    assert not read_stream("s", write(file, '{"triple": 1}'), time="t", explicit_time=True).rdf


# --- lateness ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "lateness", "late"),
    [
        ([10, 20, 15, 30], None, []),
        ([10, 20, 15, 30], 0, [2]),
        ([10, 20, 15, 30], 5, []),
        ([10, 20, 14, 30, 24, 25], 5, [2, 4]),
        # A late event does not set the clock back.
        ([100, 10, 20, 30], 5, [1, 2, 3]),
        ([5, 5, 5], 0, []),
        ([], 0, []),
    ],
)
def test_late(times: list[int], lateness: int | None, late: list[int]) -> None:
    events = [Event("s", 0, seq, ts) for seq, ts in enumerate(times)]
    marked = mark_late(events, lateness)
    assert [each.seq for each in marked if each.late] == late
    assert [each.ts for each in marked] == times


def test_late_is_judged_in_each_part_and_stream_alone() -> None:
    events = [Event("s", 0, 0, 100), Event("s", 1, 0, 1), Event("t", 0, 0, 1), Event("s", 0, 1, 1)]
    assert [each.late for each in mark_late(events, 0)] == [False, False, False, True]


# --- types that turn out wider ----------------------------------------------------------------------


def test_an_inferred_int64_is_a_float64_where_a_fraction_comes_later(tmp_path: Path) -> None:
    lines = ['{"ts": 1, "x": 7, "y": 1}'] * SAMPLE + ['{"ts": 2, "x": 2.5, "y": 2}', '{"ts": 3, "x": 3}']
    found = read_stream("s", write(tmp_path / "s.jsonl", *lines))
    assert found.attributes == (("ts", T), ("x", F), ("y", I))
    values = [each.values["x"] for each in found.events]
    assert (values[0], values[-2:], found.dead) == (7.0, [2.5, 3.0], [])
    assert {type(each) for each in values} == {float}


def test_of_a_declared_int64_a_fraction_is_a_bad_record(tmp_path: Path) -> None:
    declared = read_stream("s", write(tmp_path / "s.jsonl", '{"ts": 1, "x": 2.5}'), types={"x": I})
    assert reasons(declared) == [(0, "x: 2.5 is not an int64: it has a fraction")]


def test_a_record_of_a_time_too_far_ahead_is_a_bad_one(tmp_path: Path) -> None:
    found = read_stream("s", write(tmp_path / "s.jsonl", '{"ts": 10}', '{"ts": 11}'), latest=10_000_000)
    assert [each.ts for each in found.events] == [10_000_000]
    reason = "its time, 1970-01-01T00:00:11.000000Z, is too far ahead: after 1970-01-01T00:00:10.000000Z"
    assert reasons(found) == [(1, reason)]


# --- how far the reading has come -------------------------------------------------------------------


def test_a_watcher_hears_of_the_bytes_that_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "s.jsonl", *['{"ts": 1}'] * 5_000)
    heard: list[int] = []
    with watching(lambda path, position: heard.append(position)):
        read_stream("s", file)
    assert heard == sorted(heard)
    assert 0 < heard[-1] <= file.stat().st_size
    before = len(heard)
    read_stream("s", file)
    assert len(heard) == before
