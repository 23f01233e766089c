"""Stretches of files, read by columns, give what the readers of records give: events, letters, positions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from kaicep.connectors import parts as module
from kaicep.connectors.columnar import ColumnEvents, EventColumns, value_events
from kaicep.connectors.files import read_stream
from kaicep.connectors.kafka import kafka_record
from kaicep.connectors.parts import FileRange, read_events, read_stretch, stretches
from kaicep.connectors.records import Record
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper
from kaicep.errors import Failure
from kaicep.plan.types import USUAL, Notation, Type

TYPES = {
    "ts": Type.TIMESTAMP,
    "n": Type.INT64,
    "x": Type.FLOAT64,
    "b": Type.BOOL,
    "s": Type.STRING,
    "at": Type.TIMESTAMP,
}
FORM = Form("meter", "ts", TYPES)
SCHEMA = Schema(tuple(TYPES.items()))

# Values as files have them: plain ones, and all that looks nearly like one.
NUMBERS = [
    "0",
    "-0",
    "7",
    "-7",
    "007",
    "+7",
    "7.",
    ".5",
    "7.0",
    "7e0",
    "1E3",
    "-0.0",
    "0x1F",
    "1_000",
    "9" * 17,
]
NUMBERS += ["9" * 19, "9007199254740993", "0.1", "1e400", "1e-400", "4.9e-324", "NaN", "-Infinity", "inf"]
TIMES = ["1336381200", "1336381200.1", "1336381200.123456", "1336381200.1234567", "2199999999.999999", "-5"]
TIMES += ["0.0000005", "253402300799", "253402300800", "1e9"]
ISO = ["2012-05-07T09:00:00Z", "2012-05-07 09:00:00.25", "2012-05-07T09:00", "2012-02-30T00:00:00Z"]
ISO += ["2012-05-07T09:00:00+00:00", "2012-05-07T09:00:00+02:00", "0001-01-01T00:00:00", "2012-05-07"]
ISO += ["2012-05-07T09:00:60", "2012-05-07T24:00:00", "2012-05-07T09:00:00.1234567Z", "2012-05-07T09:00:00z"]
WORDS = ["", " ", "a", "warm", "true", "True", "false", "null", "é", "\x7f", "\u2028", "tab\there"]
TEXTS = [*NUMBERS, *TIMES, *ISO, *WORDS]

plain = st.sampled_from([*TIMES, *(f'"{each}"' for each in ISO)])
odd = st.sampled_from(
    [*TEXTS, *(f'"{each}"' for each in TEXTS), '"a\\nb"', '"\\ud800"', "[1]", '{"q":1}', "'a'", '"', "tru"]
)
blank = st.sampled_from(["", " ", "\t"])
keys = st.sampled_from(['"ts"', '"n"', '"x"', '"b"', '"s"', '"at"', '"other"', '"t\\u0073"', "n"])


@st.composite
def objects(draw: st.DrawFn) -> str:
    """A line that is an object, more or less."""
    pairs = [f'"ts"{draw(blank)}:{draw(plain)}'] if draw(st.integers(0, 9)) else []
    pairs += [f"{draw(keys)}:{draw(blank)}{draw(odd)}" for _ in range(draw(st.integers(0, 3)))]
    return draw(blank) + "{" + f"{draw(blank)},".join(pairs) + "}" + draw(blank)


good = st.builds(
    '{{"ts": {}, "n": {}, "x": {}, "b": {}, "s": "{}"}}'.format,
    st.sampled_from(TIMES[:3]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["true", "false", "null"]),
    st.text("abc é", max_size=3),
)
json_lines = st.lists(
    st.one_of(
        good.map(str.encode),
        objects().map(str.encode),
        st.sampled_from(
            [b"", b"  ", b"\r", b"{}", b"{} x", b"[]", b'{"ts":1,"ts":2}', b'{"ts":1,"s":"\xff"}']
        ),
    ),
    max_size=12,
)
cells = st.sampled_from([*TEXTS, '"a"', '""', '"a,b"', '"a""b"', 'a"b', '"a"b', ' "a"', '"open'])
rows = st.one_of(
    st.tuples(st.sampled_from([*TIMES, *ISO]), st.lists(cells, max_size=6)).map(
        lambda each: [each[0], *each[1]]
    ),
    st.lists(cells, max_size=8),
)
csv_lines = st.lists(
    st.one_of(
        rows.map(",".join).map(str.encode),
        st.sampled_from([b"", b" ", b"1,\xff", b"1,2\r", b"1,\r2", b"1,\0", b'1,1,1,0,"two\nlines"', b'"']),
    ),
    max_size=12,
)


def taken(path: Path, first: int = 0) -> tuple[list[tuple[int, dict[str, object]]], list[DeadLetter], int]:
    """Events as pairs, letters, and the position after them, stretch by stretch."""
    events: list[tuple[int, dict[str, object]]] = []
    dead: list[DeadLetter] = []
    position = first
    for each in stretches(FORM, SCHEMA, 3, path, first):
        assert each.first == position < each.after
        position = each.after
        columns = read_stretch(each, FORM, SCHEMA)
        events += pairs(columns)
        dead += columns.dead
        same_one_by_one(each, columns)
    return sorted(events, key=lambda each: each[0]), dead, position


def pairs(columns: EventColumns) -> list[tuple[int, dict[str, object]]]:
    import pyarrow

    plain = {
        name: (column.cast(pyarrow.int64()) if TYPES[name] is Type.TIMESTAMP else column).to_pylist()
        for name, column in columns.values.items()
    }
    made = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return list(zip(columns.seq.to_pylist(), made, strict=True))


def same_one_by_one(stretch: FileRange, columns: EventColumns) -> None:
    events, dead = read_events(stretch, FORM, SCHEMA)
    assert {each.seq for each in events} == set(columns.seq.to_pylist())
    assert dead == list(columns.dead)


def wanted(path: Path, first: int = 0) -> tuple[list[tuple[int, dict[str, object]]], list[DeadLetter]]:
    """The same as the judge reads it: record by record."""
    from dataclasses import replace

    data = read_stream("meter", path, types=TYPES)
    events = [(each.seq, {name: each.values.get(name) for name in TYPES}) for each in data.events]
    dead = [replace(each, part=3) for each in data.dead]
    return [each for each in events if each[0] >= first], [each for each in dead if each.seq >= first]


def texts(events: list[tuple[int, dict[str, object]]]) -> list[tuple[int, str]]:
    """For comparisons that tell 0 from 0.0 and from -0.0."""
    return [(seq, repr(values)) for seq, values in events]


def check(path: Path, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BYTES", data.draw(st.integers(1, 400)))
        patch.setattr(module, "_LONGEST", 200)
        events, dead, end = taken(path)
        first = data.draw(st.integers(0, end))
        again, letters, _ = taken(path, first)
    judged, told = wanted(path)
    assert texts(events) == texts(judged)
    assert dead == told
    judged, told = wanted(path, first)
    assert texts(again) == texts(judged)
    assert letters == told


@settings(deadline=None, max_examples=150)
@given(json_lines, st.sampled_from([b"", b"\xef\xbb\xbf"]), st.sampled_from([b"\n", b"\r\n", b""]), st.data())
def test_lines_of_json(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], bom: bytes, end: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_bytes(bom + b"\n".join(lines) + end)
    check(path, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(csv_lines, st.sampled_from([b"", b"\xef\xbb\xbf"]), st.sampled_from([b"\n", b"\r\n", b""]), st.data())
def test_rows_of_csv(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], bom: bytes, end: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(bom + b"ts,n,x,b,s,at\n" + b"\n".join(lines) + end)
    check(path, data)


@pytest.mark.parametrize("unit", ["ms", "us", "ns", "excel"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_times_count_what_the_annotation_says(tmp_path: Path, name: str, unit: str) -> None:
    """Whether they are read by columns or one by one."""
    counts = ["1336381200500", "41036.375", "1336381200500000", "1336381200500000500", "-5", "", "0", "999"]
    form = replace(FORM, types={"ts": Type.TIMESTAMP, "n": Type.INT64}, notation=Notation(unit))
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("ts,n\n" + "".join(f"{each},1\n" for each in counts))
    else:
        path.write_text("".join(f'{{"ts": {each or "null"}, "n": 1}}\n' for each in counts))
    schema = Schema(tuple(form.types.items()))
    (stretch,) = stretches(form, schema, 0, path)
    columns = read_stretch(stretch, form, schema)
    times = columns.values["ts"].cast("int64").to_pylist()
    wanted = read_stream("meter", path, types=form.types, notation=Notation(unit))
    assert sorted(zip(columns.seq.to_pylist(), times, strict=True)) == [
        (each.seq, each.ts) for each in wanted.events
    ]
    assert [each.seq for each in columns.dead] == [each.seq for each in wanted.dead]
    assert len(times) > 1


def test_a_file_that_ends_before_the_position_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ts": 1}\n')
    with pytest.raises(Failure, match=r"the position is record 5 of .* but the file has only 1"):
        list(stretches(FORM, SCHEMA, 0, path, 5))


def test_of_a_growing_file_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"ts": 1}\n{"ts"')
    (found,) = stretches(FORM, SCHEMA, 0, path, growing=True)
    assert (found.first, found.after) == (0, 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_that_grows_is_read_from_where_it_ended(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is the same file; the stretches are those that a look at all of it gives."""
    path, begins = tmp_path / name, []
    blocks = module._blocks
    monkeypatch.setattr(
        module,
        "_blocks",
        lambda path, offset, growing: begins.append(offset) or blocks(path, offset, growing),
    )
    line = '{"ts": 1, "n": 2}\n' if name == "a.jsonl" else "1,2\n"
    head = "" if name == "a.jsonl" else "ts,n\n"

    def found(first: int, growing: bool = True) -> list[FileRange]:
        made = stretches(FORM, SCHEMA, 0, path, first, growing)
        return [
            replace(each, line=each.line if each.way == "csv" else 0) for each in made
        ]  # or it says nothing

    path.write_text(head + line * 3 + line[:2])
    assert [(each.first, each.after) for each in found(0)] == [(0, 3)]
    path.write_text(head + line * 5)
    assert found(3) == found(3, growing=False)
    assert begins == [len(head), len(head + line * 3), len(head)]
    assert found(2) == found(2, growing=False), "a commit that failed is planned again from where it began"
    path.write_text(head + line * 4)
    with pytest.raises(Failure, match="the position is record 5 of"):
        found(5)
    other = tmp_path / "other"
    other.write_text(head + (" " + line) * 7)
    found(4)
    other.replace(path)
    assert found(4) == found(4, growing=False), "another file in its place is looked at from its beginning"


@pytest.mark.parametrize("direct", [True, False])
def test_rows_of_parquet(tmp_path: Path, direct: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    kind = pyarrow.timestamp("ms") if direct else pyarrow.timestamp("ns")
    table = pyarrow.table(
        {"ts": pyarrow.array([1, 2, 3, 4, 5], kind), "x": [1.5, float("nan"), None, float("inf"), -0.0]}
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    for first in range(6):
        events, dead, end = taken(path, first)
        judged, _ = wanted(path, first)
        assert texts(events) == texts(judged)
        assert (dead, end) == ([], 5)
    (found,) = stretches(FORM, SCHEMA, 0, path, 0)
    assert found.way == ("columns" if direct else "records")


VALUES = (
    b'{"ts": 1336381200, "x": 1.5, "k": "a"}',
    b'{"ts": "2012-05-07T09:00:01Z", "x": 2, "k": null}',
    b'{"ts": 1336381202, "x": "3", "k": "\\u00e4"}',
    b'{"ts": 1336381203}',
    b'{"x": 4.0, "k": "no time"}',
    b'{"ts": 1336381204, "x": 5.0, "k": {"deep": 1}}',
    b"[1, 2]",
    b"oops",
    b"\xff\xfe",
    b"",
    b'{"ts": 1336381205,\n "x": 6.0}',
    None,
)


@pytest.mark.parametrize("seed", range(5))
def test_values_of_a_topic_are_the_same_events_by_columns_and_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    parts = {}
    for part in range(3):
        plain = chance.random()
        some = [VALUES[0] if chance.random() < plain else chance.choice(VALUES) for _ in range(80)]
        parts[part] = (sorted(chance.sample(range(1000), 80)), some)

    def exact(part: int, at: int) -> Record:
        seq, values = parts[part]
        return kafka_record("t", part, seq[at], values[at], USUAL)

    kinds = (("ts", Type.TIMESTAMP), ("x", Type.FLOAT64), ("k", Type.STRING))
    answers = []
    for few in (0, 1_000):
        monkeypatch.setattr("kaicep.connectors.columnar._FEW", few)
        events, dead = value_events(Shaper(Form("s"), Schema(kinds)), parts, exact)
        assert isinstance(events, ColumnEvents) == (few == 0)
        answers.append((list(events), sorted(dead, key=lambda each: (each.part, each.seq))))
    assert answers[0] == answers[1]
    assert len(answers[0][0]) > 10
    assert len(answers[0][1]) > 10
