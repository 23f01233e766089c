"""Matches written down: as JSON Lines, a table, CSV, Parquet, or in forms of SPARQL and RDF.

The same matches give the same bytes. Beside JSON Lines, a row has the columns query, id, start and end,
then the selected ones of all queries, then `events` and `triples` where some query has them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from kaicep.errors import Mistake
from kaicep.plan.events import Match
from kaicep.plan.nodes import ChiPlan, EpPlan, Program, QueryPlan, Solutions, Triples
from kaicep.plan.rdf_text import read_triples
from kaicep.plan.terms import TripleTerm, sparql_json
from kaicep.plan.time import format_time
from kaicep.plan.types import Type

if TYPE_CHECKING:
    import pyarrow

_FIXED = ("query", "id", "start", "end")
_RESERVED = (*_FIXED, "events", "triples")


# --- columns ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenColumn:
    """A selected column: its key in the match, its type where all queries agree on one, whether a list."""

    key: str
    type: Type | None = None
    many: bool = False

    @property
    def name(self) -> str:
        """Its name in a table, where it must not be mistaken for a column that every match has."""
        return f"select.{self.key}" if self.key in _RESERVED else self.key


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """What the matches of a program can have: selected columns, events, triples."""

    selected: tuple[WrittenColumn, ...] = ()
    events: bool = False
    triples: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all columns in their order."""
        last = [name for name, there in (("events", self.events), ("triples", self.triples)) if there]
        return [*_FIXED, *(each.name for each in self.selected), *last]


def columns_of(program: Program) -> WrittenColumns:
    """The columns of all queries, each once, in the order of their first appearance."""
    found: dict[str, WrittenColumn] = {}
    for query in program.queries:
        for each in _selected(query):
            known = found.setdefault(each.key, each)
            if known != each:
                found[each.key] = WrittenColumn(each.key)
    return WrittenColumns(
        tuple(found.values()),
        events=bool(program.chi_plans),
        triples=any(isinstance(each.root, Triples) for each in program.ep_plans),
    )


def _selected(plan: QueryPlan) -> list[WrittenColumn]:
    if isinstance(plan, ChiPlan):
        return [WrittenColumn(each.name, each.type, each.many) for each in plan.columns]
    return [WrittenColumn(name) for name in plan.root.names] if isinstance(plan.root, Solutions) else []


# --- forms ------------------------------------------------------------------------------------------


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row of JSON Lines."""
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def as_jsonl(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """One JSON object for each match."""
    for match in matches:
        yield (match.to_json() + "\n").encode()


def as_csv(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """Comma-separated values with a header; null is empty, what is no plain value is JSON."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns.names)
    for match in matches:
        rows.writerow(_cells(match, columns))
        if text.tell() > 1 << 20:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _cells(match: Match, columns: WrittenColumns) -> list[str]:
    """A match as a row of texts."""
    cells = [match.query, match.id, format_time(match.start_us), format_time(match.end_us)]
    cells += [_plain(match.select.get(each.key)) or "" for each in columns.selected]
    if columns.events:
        cells.append("" if match.events is None else _json_text(match.events))
    if columns.triples:
        cells.append("" if match.triples is None else _json_text(match.triples))
    return cells


def _plain(value: object) -> str | None:
    """A selected value as text, an RDF term as in SPARQL's own CSV: an IRI or a literal by its text alone.

    >>> _plain("a"), _plain(2.5), _plain([1, None]), _plain({"type": "uri", "value": "urn:a"})
    ('a', '2.5', '[1, null]', 'urn:a')
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ("_:" if value["type"] == "bnode" else "") + str(value["value"])
    return _json_text(value)


def as_table(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """Plain text in aligned columns, numbers to the right; nothing is cut off."""
    rows = [columns.names]
    for match in matches:
        cells = _cells(match, columns)
        if columns.events:
            cells[len(_FIXED) + len(columns.selected)] = _events_text(match.events or {})
        if columns.triples:
            cells[-1] = " ".join(match.triples or ())
        rows.append([_on_one_line(each) for each in cells])
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    right = [False] * len(widths)
    for place, column in enumerate(columns.selected, len(_FIXED)):
        right[place] = column.type is not None and column.type.numeric and not column.many
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        padded = (
            " " * (width - _width(cell)) + cell if to_right else cell + " " * (width - _width(cell))
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        yield ("  ".join(padded).rstrip() + "\n").encode()


def _events_text(events: Mapping[str, Any]) -> str:
    """The events of a match in short: `e1=airflowReport/0/12 e2=airflowReport/0/15`.

    >>> _events_text({"a": {"stream": "s", "part": 0, "seq": 1}, "b": [{"stream": "q", "id": "f3"}]})
    'a=s/0/1 b=[q/f3]'
    """

    def short(value: Any) -> str:
        if isinstance(value, list):
            return f"[{' '.join(map(short, value))}]"
        if "first" in value:
            return f"{short(value['first'])}..{short(value['last'])} ({value['count']})"
        place = [value["id"]] if "id" in value else [value["part"], value["seq"]]
        return "/".join(map(str, (value["stream"], *place)))

    return " ".join(f"{name}={short(value)}" for name, value in events.items() if value is not None)


def _on_one_line(text: str) -> str:
    """The text with its line ends and other control characters written out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _width(text: str) -> int:
    """How many places a text takes on a terminal.

    >>> _width("abc"), _width("\u6771\u4eac")
    (3, 4)
    """
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def as_parquet(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """A Parquet file with typed columns; where queries disagree on a type, text."""
    try:
        import pyarrow
        import pyarrow.json
        import pyarrow.parquet
    except ImportError:
        raise Mistake("--out parquet needs pyarrow", hint="pip install 'kaicep[parquet]'") from None
    time = pyarrow.timestamp("us", "UTC")
    fields = [("query", pyarrow.string()), ("id", pyarrow.string()), ("start", time), ("end", time)]
    fields += [(each.name, _arrow_type(each)) for each in columns.selected]
    fields += [("events", pyarrow.string())] * columns.events
    fields += [("triples", pyarrow.list_(pyarrow.string()))] * columns.triples
    schema = pyarrow.schema(fields)
    rows = b"".join(json_line(_arrow_row(each, columns)) for each in matches)
    table = pyarrow.Table.from_batches([], schema)
    if rows:
        # By way of JSON, since arrays made of Python lists would import pandas, which takes a second.
        parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        read = pyarrow.json.ReadOptions(block_size=len(rows) + 1)
        table = pyarrow.json.read_json(io.BytesIO(rows), read_options=read, parse_options=parse)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    yield sink.getvalue().to_pybytes()


def _arrow_row(match: Match, columns: WrittenColumns) -> dict[str, Any]:
    """A match as a row of JSON whose values are of the columns' types."""
    row: dict[str, Any] = {
        "query": match.query,
        "id": match.id,
        "start": format_time(match.start_us),
        "end": format_time(match.end_us),
    }
    row |= {each.name: _arrow_value(match.select.get(each.key), each) for each in columns.selected}
    if columns.events:
        row["events"] = None if match.events is None else _json_text(match.events)
    if columns.triples:
        row["triples"] = None if match.triples is None else list(match.triples)
    return row


def _arrow_type(column: WrittenColumn) -> pyarrow.DataType:
    import pyarrow

    kinds = {
        Type.BOOL: pyarrow.bool_(),
        Type.INT64: pyarrow.int64(),
        Type.FLOAT64: pyarrow.float64(),
        Type.TIMESTAMP: pyarrow.timestamp("us", "UTC"),
    }
    kind = kinds.get(column.type, pyarrow.string()) if column.type else pyarrow.string()
    return pyarrow.list_(kind) if column.many else kind


def _arrow_value(value: Any, column: WrittenColumn) -> Any:
    if column.many and value is not None:
        return [_arrow_value(each, WrittenColumn(column.key, column.type)) for each in value]
    return _plain(value) if column.type in (None, Type.STRING) else value


# --- the forms of SPARQL and RDF --------------------------------------------------------------------


def as_srj(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """SPARQL 1.1 Query Results JSON: the solutions, without their times."""
    names = [each.key for each in columns.selected]
    yield f'{{"head": {{"vars": {_json_text(names)}}}, "results": {{"bindings": ['.encode()
    for i, match in enumerate(matches):
        row = {name: _sparql_term(term) for name, term in match.select.items()}
        yield (("," if i else "") + "\n  " + _json_text(row)).encode()
    yield b"\n]}}\n"


def _sparql_term(term: dict[str, Any]) -> dict[str, Any]:
    """A term as the forms of SPARQL have it: of a triple its parts, as in SPARQL 1.2."""
    if term["type"] != "triple":
        return term
    ((_, _, of),) = read_triples(f"<urn:s> <urn:p> {term['value']} .")
    assert isinstance(of, TripleTerm)
    parts = (_sparql_term(sparql_json(each)) for each in of.triple)
    return {"type": "triple", "value": dict(zip(("subject", "predicate", "object"), parts, strict=True))}


def as_sparql_xml(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """The SPARQL Query Results XML Format: the solutions, without their times."""
    from xml.sax.saxutils import escape, quoteattr

    def element(term: dict[str, Any]) -> str:
        kind, value = term["type"], term["value"]
        if kind == "triple":
            inside = "".join(f"<{name}>{element(each)}</{name}>" for name, each in value.items())
            return f"<triple>{inside}</triple>"
        attributes = f" xml:lang={quoteattr(term['xml:lang'])}" if "xml:lang" in term else ""
        attributes += f" datatype={quoteattr(term['datatype'])}" if "datatype" in term else ""
        return f"<{kind}{attributes}>{escape(value, {chr(13): '&#13;'})}</{kind}>"

    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<sparql xmlns="http://www.w3.org/2005/sparql-results#">\n'
    names = "".join(f"<variable name={quoteattr(each.key)}/>" for each in columns.selected)
    yield f"<head>{names}</head>\n<results>\n".encode()
    for match in matches:
        found = ((quoteattr(name), element(_sparql_term(term))) for name, term in match.select.items())
        cells = "".join(f"<binding name={name}>{term}</binding>" for name, term in found)
        yield f"<result>{cells}</result>\n".encode()
    yield b"</results>\n</sparql>\n"


def as_sparql_csv(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """SPARQL 1.1 Query Results CSV: the text of each term, and nothing of its type."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\r\n")
    names = [each.key for each in columns.selected]
    rows.writerow(names)
    rows.writerows([_plain(match.select.get(name)) or "" for name in names] for match in matches)
    yield text.getvalue().encode()


def as_nt(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """N-Triples: each triple that was constructed, once, without its times."""
    for line in dict.fromkeys(each for match in matches for each in match.triples or ()):
        yield (line + "\n").encode()


def as_trig(matches: Sequence[Match], columns: WrittenColumns) -> Iterator[bytes]:
    """TriG: a graph for each match, named after it; the default graph says when it started and ended."""
    yield b"@prefix prov: <http://www.w3.org/ns/prov#> .\n"
    yield b"@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .\n"
    for match in matches:
        name = f"<urn:kaicep:match:{match.id}>"
        start, end = (f'"{format_time(at)}"^^xsd:dateTime' for at in (match.start_us, match.end_us))
        inside = "".join(f"  {each}\n" for each in match.triples or ())
        said = f"{name} prov:startedAtTime {start} ; prov:generatedAtTime {end} ."
        yield f"\n{said}\n{name} {{\n{inside}}}\n".encode()


FORMATS: Mapping[str, Callable[[Sequence[Match], WrittenColumns], Iterator[bytes]]] = {
    "jsonl": as_jsonl,
    "table": as_table,
    "csv": as_csv,
    "parquet": as_parquet,
    "srj": as_srj,
    "sparql-xml": as_sparql_xml,
    "sparql-csv": as_sparql_csv,
    "nt": as_nt,
    "trig": as_trig,
}

_OF_SELECT, _OF_CONSTRUCT = ("srj", "sparql-xml", "sparql-csv"), ("nt", "trig")


def refuse_form(form: str, plans: Iterable[QueryPlan]) -> None:
    """A mistake where the matches of a query cannot be written in a form: SPARQL's own and RDF take RDF."""
    wanted = "SELECT" if form in _OF_SELECT else "CONSTRUCT" if form in _OF_CONSTRUCT else None
    for each in plans:
        kind = "chi-CEP" if isinstance(each, ChiPlan) else "CONSTRUCT"
        kind = "SELECT" if isinstance(each, EpPlan) and isinstance(each.root, Solutions) else kind
        if wanted not in (None, kind):
            hint = "use --out jsonl, or name the queries that it is for with --only"
            said = f"--out {form} is for {wanted} of EP-SPARQL, and {each.name} is {kind}"
            raise Mistake(said, hint=hint)


# --- places -----------------------------------------------------------------------------------------


def to_stdout(chunks: Iterable[bytes]) -> None:
    """Writes bytes to standard output: what comes out does not depend on the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.writelines(chunks)
    sys.stdout.buffer.flush()


@contextmanager
def atomic(path: Path, option: str) -> Iterator[BinaryIO]:
    """A file that appears under its name, whole, when the work inside is done, and not at all otherwise.

    That it can be written is found out at once. A device or a pipe is written directly.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise Mistake(f"{option}: {path} is a folder", hint="name a file in it")
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                yield device
            return
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is write-protected")
        # Beside its target, so that the last step is a rename and not a copy.
        beside = target.with_name(f".kaicep-{secrets.token_hex(8)}.tmp")
        mode = target.stat().st_mode & 0o777 if target.exists() else None
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise _unwritable(path, option, error) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def _unwritable(path: Path, option: str, error: OSError) -> Mistake:
    hint = None
    if isinstance(error, FileNotFoundError):
        hint = f"there is no folder {path.parent}"
    return Mistake(f"{option}: cannot write {path}: {error.strerror}", hint=hint)


def refuse_overwriting(outputs: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    """A mistake where two outputs are one file, or one is an input (or inside an input folder)."""
    taken = {Path(os.path.realpath(each)): each for each in inputs}
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_file():
            continue
        if real in seen:
            raise Mistake(f"{seen[real]} and {option} both write {path}")
        for each in (real, real.parent):
            if each in taken:
                raise Mistake(f"{option} {path} would write over what is read: {taken[each]}")
        seen[real] = option
