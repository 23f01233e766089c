"""Files as streams: JSON Lines, CSV, Parquet, or a folder of them, read whole.

A file's place among the stream's files (by name) is the `part` of its events, the number of the line
or row in it, from 0, their `seq` (semantics 1 and 5). A record that cannot be read becomes a dead
letter and still uses up its number, so that mending one line changes the identity of no other event.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kaicep.connectors.parquet import parquet_columns, read_parquet
from kaicep.connectors.records import Record, read_csv, read_json_lines
from kaicep.errors import Diagnostic, Mistake
from kaicep.plan.convert import Unfit, convert, guess, guess_text, json_text, widen
from kaicep.plan.events import Event
from kaicep.plan.literals import normalise
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Value

__all__ = ["SAMPLE", "DeadLetter", "StreamData", "files_of", "mark_late", "near_files", "read_stream"]

SAMPLE = 1_000
"""How many records are looked at to infer the types (semantics 1)."""

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_SUFFIXES = (*_JSON_LINES, ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be read: where it stands, why, and its text. `line` counts from 1."""

    stream: str
    part: int
    seq: int
    line: int
    file: str
    reason: str
    record_text: str

    def to_dict(self) -> dict[str, Any]:
        """The dead letter as the command line writes it down."""
        return {
            "stream": self.stream,
            "part": self.part,
            "seq": self.seq,
            "line": self.line,
            "file": self.file,
            "reason": self.reason,
            "record": self.record_text,
        }


@dataclass(frozen=True)
class StreamData:
    """A finite stream: its attributes in order of first appearance, its events in order of arrival.

    `rdf` marks a stream of triples with intervals, which has no attributes.
    """

    name: str
    attributes: tuple[tuple[str, Type], ...]
    events: Sequence[Event]
    dead: Sequence[DeadLetter] = ()
    rdf: bool = False


def read_stream(
    name: str,
    path: Path,
    time: str = "ts",
    types: Mapping[str, Type] | None = None,
    explicit_time: bool = False,
) -> StreamData:
    """Reads a file, or a folder of files, as a stream.

    `time` is the attribute that holds the event time, `types` are the declared ones. Of what is not
    declared, the type is inferred from the first records. With `explicit_time`, somebody said which
    attribute is the time, so that the stream is one of records even if they look like triples.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "meter.jsonl"
    ...     _ = file.write_text('{"ts": 1, "kW": 2}' + chr(10) + '{"ts": 2, "kW": 2.5}' + chr(10) + "oops")
    ...     meter = read_stream("meter", file)
    >>> meter.attributes
    (('ts', Type.TIMESTAMP), ('kW', Type.FLOAT64))
    >>> [event.values["kW"] for event in meter.events], [(each.seq, each.reason) for each in meter.dead]
    ([2.0, 2.5], [(2, 'not JSON: expecting value at column 1')])
    """
    files = files_of(name, path)
    shape = _Shape(time, types or {}, explicit_time)
    records = (record for part, file in enumerate(files) for record in _read(name, part, file, shape))
    sample = []
    for record in records:
        sample.append(record)
        if record.fields is not None and shape.learn(record.fields, record.file) >= SAMPLE:
            break
    for file in files:
        if file.suffix.lower() == ".parquet":
            shape.columns(parquet_columns(name, file))
    shape.settled = True
    build = _triple_event(name) if shape.rdf else _record_event(name, shape)
    events: list[Event] = []
    dead: list[DeadLetter] = []
    for record in chain(sample, records):
        try:
            if record.fields is None:
                raise Unfit(record.reason)
            events.append(build(record, record.fields))
        except Unfit as unfit:
            text = json_text(record.fields) if record.text is None else record.text
            place = (name, record.part, record.seq, record.line, record.file)
            dead.append(DeadLetter(*place, str(unfit), text))
    return StreamData(name, () if shape.rdf else shape.attributes(), events, dead, shape.rdf)


def mark_late(events: Iterable[Event], lateness: int | None) -> list[Event]:
    """The events, with those marked that come too late in their own part (semantics 1).

    >>> [each.late for each in mark_late([Event("s", 0, 0, 100), Event("s", 0, 1, 80)], 10)]
    [False, True]
    >>> [each.late for each in mark_late([Event("s", 0, 0, 100), Event("s", 1, 0, 80)], 10)]
    [False, False]
    """
    if lateness is None:
        return list(events)
    marked = []
    newest: dict[tuple[str, int], int] = {}
    for event in events:
        key = (event.stream, event.part)
        before = newest.get(key, event.ts)
        marked.append(replace(event, late=True) if event.ts < before - lateness else event)
        newest[key] = max(before, event.ts)
    return marked


# --- which files ------------------------------------------------------------------------------------


def files_of(name: str, path: Path) -> list[Path]:
    """The files of a stream in the order of their parts; a mistake where there is none to read."""
    try:
        if not path.is_dir():
            _check_suffix(name, path)
            with path.open("rb"):
                return [path]
        files = sorted(
            (each for each in path.iterdir() if not each.name.startswith((".", "_"))),
            key=lambda each: each.name,
        )
    except OSError as error:
        raise _unreadable(name, path, error) from None
    if not files:
        raise Mistake(
            Diagnostic(
                f"stream {name}: the folder {path} has no file to read",
                hint="an empty stream is a folder with an empty .jsonl file in it, or such a file itself",
            )
        )
    for each in files:
        if each.is_dir():
            raise Mistake(
                Diagnostic(
                    f"stream {name}: {each} is a folder inside the stream's folder",
                    hint="a stream is one file, or one folder of files",
                )
            )
        _check_suffix(name, each)
    return files


def _check_suffix(name: str, path: Path) -> None:
    if path.suffix.lower() in _SUFFIXES or not path.exists():
        return
    kind = f"files that end in {path.suffix}" if path.suffix else "files without an ending"
    raise Mistake(
        Diagnostic(
            f"stream {name}: cannot tell how to read {path}",
            hint=f"a stream is read from .jsonl, .csv or .parquet, not from {kind}",
        )
    )


def near_files(path: Path, suffixes: Sequence[str]) -> str | None:
    """A hint for a file that is not there: those of the same folder whose names are nearly the same."""
    try:
        stems = {each.stem: each for each in path.parent.iterdir() if each.suffix.lower() in suffixes}
    except OSError:
        return None
    near = [str(stems[each]) for each in difflib.get_close_matches(path.stem, sorted(stems), n=2)]
    return f"did you mean {' or '.join(near)}?" if near else None


def _unreadable(name: str, path: Path, error: Exception) -> Mistake:
    hint = near_files(path, _SUFFIXES) if isinstance(error, FileNotFoundError) else None
    reason = getattr(error, "strerror", None) or str(error)
    return Mistake(Diagnostic(f"stream {name}: cannot read {path}: {reason}", hint=hint))


def _read(name: str, part: int, path: Path, shape: _Shape) -> Iterator[Record]:
    """The records of one file, good and bad."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            yield from read_parquet(name, part, path)
        elif suffix == ".csv":
            yield from read_csv(part, path, shape.time, shape.header)
        else:
            yield from read_json_lines(part, path)
    except OSError as error:
        raise _unreadable(name, path, error) from None


# --- what the attributes are ------------------------------------------------------------------------


class _Shape:
    """What is known of a stream's attributes: first what the records suggest, then, settled, their types."""

    def __init__(self, time: str, declared: Mapping[str, Type], explicit_time: bool) -> None:
        self.time = time
        self.explicit_time = explicit_time
        self.declared = declared
        self.seen: dict[str, Type | None] = {}
        self.settled = False
        self._records = self._timed = self._triples = 0

    def columns(self, columns: Iterable[tuple[str, Type | None]]) -> None:
        """Takes note of the columns that a file declares, whatever is in them."""
        if not self.settled:
            for name, suggested in columns:
                self.seen[name] = widen(self.seen.get(name), suggested)

    def header(self, names: list[str]) -> None:
        """Takes note of columns that a file names without saying what is in them."""
        self.columns((each, None) for each in names)

    def learn(self, fields: Mapping[str, object], file: str) -> int:
        """Takes note of a record; says how many there were so far."""
        suggest: Callable[[Any], Type | None] = guess_text if file.lower().endswith(".csv") else guess
        for name, value in fields.items():
            known = self.seen.get(name)
            if known is not Type.STRING or name not in self.seen:
                self.seen[name] = widen(known, suggest(value))
        if fields.get(self.time) is not None:
            self._timed += 1
        elif "triple" in fields or "triples" in fields:
            self._triples += 1
        self._records += 1
        return self._records

    @property
    def rdf(self) -> bool:
        """Whether the records are triples with intervals, rather than records with a time."""
        return not self.explicit_time and self._triples > self._timed

    def attributes(self) -> tuple[tuple[str, Type], ...]:
        """The attributes with their types: those that appear in the data, then those only declared.

        An attribute `ts` beside another that holds the time is out of reach, since `?e.ts` is always the
        event time.
        """
        names = list(dict.fromkeys((*self.seen, *self.declared)))
        if self.time not in names:
            names.insert(0, self.time)
        types = {each: self.declared.get(each) or self.seen.get(each) or Type.STRING for each in names}
        types[self.time] = Type.TIMESTAMP
        if self.time != "ts":
            types.pop("ts", None)
        return tuple(types.items())


# --- from records to events -------------------------------------------------------------------------

_Build = Callable[[Record, Mapping[str, object]], Event]


def _record_event(stream: str, shape: _Shape) -> _Build:
    """How a record becomes an event of a stream with attributes."""
    types = dict(shape.attributes())
    missing = f"no time: it has no attribute {shape.time}"
    if not shape.explicit_time:
        missing += ", and no annotation names another"

    def build(record: Record, fields: Mapping[str, object]) -> Event:
        if shape.time not in fields:
            raise Unfit(missing)
        values: dict[str, Value] = {}
        for name, raw in fields.items():
            if (wanted := types.get(name)) is not None:
                values[name] = _convert(name, raw, wanted)
        ts = values[shape.time]
        if ts is None:
            raise Unfit(f"no time: {shape.time} is null")
        assert isinstance(ts, int)
        return Event(stream, record.part, record.seq, ts, values)

    return build


def _convert(name: str, raw: object, type: Type) -> Value:
    try:
        return convert(raw, type)
    except Unfit as unfit:
        raise Unfit(f"{name}: {unfit}") from None


def _triple_event(stream: str) -> _Build:
    """How a record becomes an event of an RDF stream: triples that hold from start to end."""

    def build(record: Record, fields: Mapping[str, object]) -> Event:
        start = _convert("start", fields.get("start"), Type.TIMESTAMP)
        if not isinstance(start, int):
            raise Unfit("no time: it has no start")
        end = _convert("end", fields.get("end"), Type.TIMESTAMP)
        end = end if isinstance(end, int) else start
        if end < start:
            raise Unfit(f"it ends at {format_time(end)}, before it starts at {format_time(start)}")
        triples = tuple(each for text in _triple_texts(fields) for each in _triples(stream, text))
        if not triples:
            raise Unfit("it has no triple")
        return Event(stream, record.part, record.seq, end, start=start, triples=triples)

    return build


def _triple_texts(fields: Mapping[str, object]) -> Iterator[str]:
    for name in ("triple", "triples"):
        value = fields.get(name)
        for text in value if isinstance(value, list) else () if value is None else (value,):
            if not isinstance(text, str):
                raise Unfit(f"{name}: {json_text(text)} is no text")
            yield text


def _triples(stream: str, text: str) -> Iterator[Triple]:
    """The triples of a text of N-Triples."""
    import pyoxigraph

    def term(node: object) -> Term:
        if isinstance(node, pyoxigraph.NamedNode):
            return Iri(node.value)
        if isinstance(node, pyoxigraph.BlankNode):
            return Blank(_blank_label(stream, node.value))
        if isinstance(node, pyoxigraph.Literal):
            return normalise(Literal(node.value, node.datatype.value, node.language))
        raise Unfit(f"triple: a triple inside a triple is not known here: {text.strip()}")

    try:
        for quad in pyoxigraph.parse(text, format=pyoxigraph.RdfFormat.N_TRIPLES):
            yield (term(quad.subject), term(quad.predicate), term(quad.object))
    except SyntaxError as error:
        raise Unfit(f"triple: {error.msg}") from None


def _blank_label(stream: str, label: str) -> str:
    """A blank node is one node within its stream; the stream's name keeps it apart from all others.

    >>> _blank_label("trucks 1", "b0")
    'trucks_20_1.b0'
    """
    safe = re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", stream)
    return f"{safe}.{label}"
