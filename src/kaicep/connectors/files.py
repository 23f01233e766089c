"""Files as streams: JSON Lines, CSV, Parquet, RDF, or a folder of them, read whole.

A file's place among the stream's files (by name) is the `part` of its events, the number of the line
or row in it, from 0, their `seq` (semantics 1 and 5). A record that cannot be read becomes a dead
letter and still uses up its number, so that mending one line changes the identity of no other event.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from kaicep.connectors.parts import in_order, kind_of, note_of, records_of
from kaicep.connectors.records import Record, parquet_columns
from kaicep.connectors.shape import SAMPLE, DeadLetter, Form, Shaper
from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.types import USUAL, Notation, Type

_JSON_LINES = (".jsonl", ".ndjson", ".json")
SUFFIXES = (*_JSON_LINES, ".csv", ".parquet", *(f".{each}" for each in FORMATS))
"""The endings of files that can be read as a stream."""
_MAGIC = b"PAR1"


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
    latest: int | None = None,
    notation: Notation = USUAL,
) -> StreamData:
    """Reads a file, or a folder of files, as a stream.

    `time` is the attribute that holds the event time, `types` are the declared ones. Of what is not
    declared, the type is inferred from the first records. With `explicit_time`, somebody said which
    attribute is the time, so that the stream is one of records even if they look like triples. A record
    of a time after `latest` is a bad one.

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
    files = parts_of(name, path)
    shaper = Shaper(Form(name, time, types or {}, explicit_time, latest, notation))
    records = (record for part, file in files.items() for record in _read(name, part, file, shaper))
    sample = []
    for record in records:
        sample.append(record)
        if shaper.learn(record) >= SAMPLE:
            break
    for file in files.values():
        if file.suffix.lower() == ".parquet":
            shaper.columns(parquet_columns(name, file))
    shaper.settle()
    assert shaper.schema is not None
    events, dead = shaper.shape(chain(sample, records), widening=True)
    return StreamData(name, shaper.schema.attributes, events, dead, shaper.schema.rdf)


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
    return list(parts_of(name, path).values())


def parts_of(name: str, path: Path) -> dict[int, Path]:
    """The files of a stream by part; a mistake where there is none to read.

    The part of a file is its place by name, or the one that the folder's own note gives it
    (`kaicep.connectors.parts`).
    """
    try:
        if not path.is_dir():
            check_suffix(name, path)
            with path.open("rb"):
                now = in_order(note_of(path), [path.name]).values()
                return {each.part: path for each in now if each.now == path.name}
        names = [each.name for each in path.iterdir() if not each.name.startswith((".", "_"))]
        inside = next((each for each in sorted(names) if (path / each).is_dir()), None)
        if inside is not None:
            raise Mistake(
                f"stream {name}: {path / inside} is a folder inside the stream's folder",
                hint="a stream is one file, or one folder of files",
            )
        found = in_order(note_of(path), names)
        parts = {part: path / each.now for part, each in found.items() if each.now in names}
    except OSError as error:
        raise _unreadable(name, path, error) from None
    if not parts:
        raise Mistake(
            f"stream {name}: the folder {path} has no file to read",
            hint="for an empty stream, name an empty .jsonl file, or a folder with one",
        )
    for each in parts.values():
        check_suffix(name, each)
    return parts


def growing_names(folder: Path) -> list[str]:
    """The names of the files of a folder that is followed; what cannot be one of them is passed over."""
    return [
        each.name
        for each in folder.iterdir()
        if each.suffix.lower() in SUFFIXES and not each.name.startswith((".", "_"))
    ]


def is_whole(path: Path) -> bool:
    """Whether a file can be read by now: one of Parquet cannot before it has its footer."""
    if path.suffix.lower() != ".parquet":
        return True
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(_MAGIC)))
        return file.read() == _MAGIC


def check_suffix(name: str, path: Path) -> None:
    """A mistake where the ending of a file says that it is nothing to read."""
    if path.suffix.lower() in SUFFIXES or not path.exists():
        return
    kind = f"files that end in {path.suffix}" if path.suffix else "files without an ending"
    raise Mistake(
        f"stream {name}: the format of {path} is unknown",
        hint=f"a stream is read from .jsonl, .csv, .parquet or RDF, not from {kind}",
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
    hint = near_files(path, SUFFIXES) if isinstance(error, FileNotFoundError) else None
    reason = getattr(error, "strerror", None) or str(error)
    return Mistake(f"stream {name}: cannot read {path}: {reason}", hint=hint)


def _read(name: str, part: int, path: Path, shaper: Shaper) -> Iterator[Record]:
    """The records of one file, good and bad."""
    try:
        yield from records_of(shaper.form, part, path, kind_of(path.name), header=shaper.header)
    except OSError as error:
        raise _unreadable(name, path, error) from None
