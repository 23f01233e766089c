"""Matches in all forms, and files that appear whole or not at all."""

# ruff: noqa: E501 (the expected output stands here as it is)

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from kaicep.cli.formats import (
    FORMATS,
    WrittenColumn,
    WrittenColumns,
    atomic,
    columns_of,
    refuse_overwriting,
)
from kaicep.errors import Mistake
from kaicep.plan.events import Match
from kaicep.plan.expressions import Const
from kaicep.plan.nodes import Bgp, ChiPlan, EpPlan, OutputColumn, Pattern, Program, Solutions, Triples
from kaicep.plan.types import Type

NOTHING = Bgp(())
PATTERN = Pattern((), (), ())
IRI = {"type": "uri", "value": "urn:a"}
NUMBER = {"type": "literal", "value": "5", "datatype": "http://www.w3.org/2001/XMLSchema#integer"}
BLANK = {"type": "bnode", "value": "b0"}


def chi(name: str, *columns: tuple[str, Type | None] | tuple[str, Type | None, bool]) -> ChiPlan:
    selected = tuple(OutputColumn(each[0], Const(None, None), each[1], *each[2:]) for each in columns)
    return ChiPlan(name, "", PATTERN, selected)


def place(seq: int) -> dict[str, object]:
    return {"stream": "air", "part": 0, "seq": seq}


PROGRAM = Program(
    (
        chi("rise", ("sensor", Type.STRING), ("rise", Type.FLOAT64), ("at", Type.TIMESTAMP)),
        chi("loop", ("sensor", Type.STRING), ("x", Type.INT64, True), ("end", Type.INT64), ("loc", None)),
        EpPlan("pairs", "", Solutions(NOTHING, ("sensor", "n"))),
        EpPlan("made", "", Triples(NOTHING, ())),
    )
)
MATCHES = [
    Match("rise", "01", 0, 1, {"sensor": "s1", "rise": 60.5, "at": "1970-01-01T00:00:00.000000Z"},
          {"a": place(0), "b": place(3)}),
    Match("loop", "02", 1, 2, {"sensor": 'two\nlines, "x"', "x": [1, None], "end": 7, "loc": "urn:東京"},
          {"b": [place(1), place(2)], "c": {"stream": "rise", "id": "01"}}),
    Match("loop", "03", 1, 2, {"sensor": None, "x": [], "end": None, "loc": None},
          {"e": {"first": place(4), "last": place(9), "count": 3}}),
    Match("pairs", "04", 2, 3, {"sensor": IRI, "n": NUMBER}),
    Match("pairs", "05", 2, 3, {"sensor": BLANK}),
    Match("made", "06", 3, 4, triples=('<urn:a> <urn:p> "x" .', "<urn:b> <urn:p> <urn:c> .")),
]  # fmt: skip


def written(form: str, matches: list[Match] = MATCHES, program: Program = PROGRAM) -> bytes:
    return b"".join(FORMATS[form](matches, columns_of(program)))


def test_columns_are_those_of_all_queries_in_order() -> None:
    assert columns_of(PROGRAM) == WrittenColumns(
        (
            WrittenColumn("sensor"),  # text for one query, a term for another
            WrittenColumn("rise", Type.FLOAT64),
            WrittenColumn("at", Type.TIMESTAMP),
            WrittenColumn("x", Type.INT64, many=True),
            WrittenColumn("end", Type.INT64),
            WrittenColumn("loc"),
            WrittenColumn("n"),
        ),
        events=True,
        triples=True,
    )
    assert columns_of(PROGRAM).names == [
        "query", "id", "start", "end", "sensor", "rise", "at", "x", "select.end", "loc", "n", "events", "triples",
    ]  # fmt: skip
    assert columns_of(Program((PROGRAM.queries[2],))).names[-2:] == ["sensor", "n"]


def test_jsonl() -> None:
    assert written("jsonl", MATCHES[:1]).decode() == (
        '{"query": "rise", "id": "01", "start": "1970-01-01T00:00:00.000000Z", '
        '"end": "1970-01-01T00:00:00.000001Z", '
        '"select": {"sensor": "s1", "rise": 60.5, "at": "1970-01-01T00:00:00.000000Z"}, '
        '"events": {"a": {"stream": "air", "part": 0, "seq": 0}, "b": {"stream": "air", "part": 0, "seq": 3}}}\n'
    )
    assert [json.loads(each)["id"] for each in written("jsonl").splitlines()] == [each.id for each in MATCHES]
    assert "東京" in written("jsonl").decode()


def test_csv() -> None:
    start = "1970-01-01T00:00:00.00000"
    assert written("csv").decode() == (
        "query,id,start,end,sensor,rise,at,x,select.end,loc,n,events,triples\n"
        f"rise,01,{start}0Z,{start}1Z,s1,60.5,{start}0Z,,,,,"
        '"{""a"": {""stream"": ""air"", ""part"": 0, ""seq"": 0}, '
        '""b"": {""stream"": ""air"", ""part"": 0, ""seq"": 3}}",\n'
        f'loop,02,{start}1Z,{start}2Z,"two\nlines, ""x""",,,"[1, null]",7,urn:東京,,'
        '"{""b"": [{""stream"": ""air"", ""part"": 0, ""seq"": 1}, {""stream"": ""air"", ""part"": 0, ""seq"": 2}], '
        '""c"": {""stream"": ""rise"", ""id"": ""01""}}",\n'
        f"loop,03,{start}1Z,{start}2Z,,,,[],,,,"
        '"{""e"": {""first"": {""stream"": ""air"", ""part"": 0, ""seq"": 4}, '
        '""last"": {""stream"": ""air"", ""part"": 0, ""seq"": 9}, ""count"": 3}}",\n'
        f"pairs,04,{start}2Z,{start}3Z,urn:a,,,,,,5,,\n"
        f"pairs,05,{start}2Z,{start}3Z,_:b0,,,,,,,,\n"
        f'made,06,{start}3Z,{start}4Z,,,,,,,,,"[""<urn:a> <urn:p> \\""x\\"" ."", ""<urn:b> <urn:p> <urn:c> .""]"\n'
    )


def test_table() -> None:
    program = Program((chi("rise", ("sensor", Type.STRING), ("rise", Type.FLOAT64)),))
    matches = [
        Match("rise", "01", 0, 1, {"sensor": "東", "rise": 60.5}, {"a": place(0), "b": [place(3), place(12)]}),
        Match("rise", "02", 0, 1, {"sensor": "a\nb", "rise": -7}, {"a": {"stream": "q", "id": "f3"}}),
        Match("rise", "03", 0, 1, {"sensor": None, "rise": None},
              {"e": {"first": place(4), "last": place(9), "count": 3}}),
    ]  # fmt: skip
    assert written("table", matches, program).decode() == (
        "query  id  start                        end                          sensor  rise  events\n"
        "-----  --  ---------------------------  ---------------------------  ------  ----  ------------------------------\n"
        "rise   01  1970-01-01T00:00:00.000000Z  1970-01-01T00:00:00.000001Z  東      60.5  a=air/0/0 b=[air/0/3 air/0/12]\n"
        "rise   02  1970-01-01T00:00:00.000000Z  1970-01-01T00:00:00.000001Z  a\\nb      -7  a=q/f3\n"
        "rise   03  1970-01-01T00:00:00.000000Z  1970-01-01T00:00:00.000001Z                e=air/0/4..air/0/9 (3)\n"
    )  # fmt: skip
    assert "<urn:a> <urn:p> \"x\" . <urn:b> <urn:p> <urn:c> ." in written("table").decode()  # fmt: skip


def test_parquet() -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(written("parquet")))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "query": "string",
        "id": "string",
        "start": "timestamp[us, tz=UTC]",
        "end": "timestamp[us, tz=UTC]",
        "sensor": "string",
        "rise": "double",
        "at": "timestamp[us, tz=UTC]",
        "x": "list<element: int64>",
        "select.end": "int64",
        "loc": "string",
        "n": "string",
        "events": "string",
        "triples": "list<element: string>",
    }
    column = {name: table.column(name).to_pylist() for name in types}
    assert [each.microsecond for each in column["end"]] == [1, 2, 2, 3, 3, 4]
    assert column["sensor"] == ["s1", 'two\nlines, "x"', None, "urn:a", "_:b0", None]
    assert column["rise"] == [60.5, None, None, None, None, None]
    assert column["x"] == [None, [1, None], [], None, None, None]
    assert column["n"] == [None, None, None, "5", None, None]
    assert json.loads(column["events"][0]) == MATCHES[0].events
    assert column["events"][3:] == [None] * 3
    assert column["triples"][5] == list(MATCHES[5].triples or ())


def test_parquet_without_matches_has_the_same_columns() -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    empty, full = (pq.read_table(io.BytesIO(written("parquet", each))) for each in ([], MATCHES))
    assert empty.num_rows == 0
    assert empty.schema == full.schema


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_matches_give_the_same_bytes(form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    of_select = form in ("srj", "sparql-xml", "sparql-csv")  # which take the solutions of EP-SPARQL alone
    matches = [each for each in MATCHES if each.query == "pairs" or not of_select]
    assert written(form, matches) == written(form, matches)


@pytest.mark.parametrize(("form", "lines"), [("jsonl", 0), ("csv", 1), ("table", 2)])
def test_without_matches_there_is_the_header_alone(form: str, lines: int) -> None:
    assert written(form, []).count(b"\n") == lines


def test_a_triple_among_the_terms_is_written_as_sparql_1_2_has_it() -> None:
    term = {"type": "triple", "value": '<<( <urn:s> <urn:p> <<( _:b <urn:q> "x"@en )>> )>>'}
    matches = [Match("pairs", "04", 2, 3, {"sensor": term, "n": NUMBER})]
    found = json.loads(written("srj", matches))["results"]["bindings"][0]["sensor"]
    assert found["value"]["subject"] == {"type": "uri", "value": "urn:s"}
    assert found["value"]["object"]["value"]["object"] == {"type": "literal", "value": "x", "xml:lang": "en"}
    xml = written("sparql-xml", matches).decode()
    assert "<triple><subject><uri>urn:s</uri></subject><predicate><uri>urn:p</uri></predicate><object>" in xml
    assert str(term["value"]) in written("csv", matches).decode().replace('""', '"')


# --- files ------------------------------------------------------------------------------------------


def test_a_file_appears_when_the_work_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with atomic(path, "--output") as file:
        file.write(b"one\n")
        assert not path.exists()
    assert path.read_bytes() == b"one\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old\n")

    def work() -> None:
        with atomic(path, "--output") as file:
            file.write(b"half")
            raise failure

    with pytest.raises(failure):
        work()
    assert path.read_bytes() == b"old\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with atomic(link, "--output") as file:
        file.write(b"new")
    assert link.is_symlink()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)


def test_a_device_is_written_and_not_replaced() -> None:
    with atomic(Path(os.devnull), "--output") as file:
        file.write(b"gone")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_place_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        with pytest.raises(Mistake) as caught, atomic(path, "--output"):
            raise AssertionError("the work must not start")
        return str(caught.value).replace(str(tmp_path), "DIR")

    assert said(tmp_path / "none" / "out") == (
        "error: --output: cannot write DIR/none/out: No such file or directory\n"
        "  = help: there is no folder DIR/none"
    )
    assert said(tmp_path) == "error: --output: DIR is a folder\n  = help: name a file in it"
    (tmp_path / "file").touch()
    assert said(tmp_path / "file" / "out") == "error: --output: cannot write DIR/file/out: Not a directory"


def test_nothing_that_is_read_is_written_over(tmp_path: Path) -> None:
    data, folder = tmp_path / "s.jsonl", tmp_path / "parts"
    data.touch()
    folder.mkdir()
    for output, wrong in ((data, data), (tmp_path / "x" / ".." / "s.jsonl", data), (folder / "new", folder)):
        with pytest.raises(Mistake, match="would write over what is read") as caught:
            refuse_overwriting({"--output": output}, [data, folder])
        assert str(caught.value).endswith(str(wrong))
    with pytest.raises(Mistake, match="--output and --late both write"):
        refuse_overwriting({"--output": tmp_path / "o", "--late": tmp_path / "o"}, [])
    refuse_overwriting({"--output": tmp_path / "o", "--late": tmp_path / "l"}, [data, folder])
