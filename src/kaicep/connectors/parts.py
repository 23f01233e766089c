"""Files as source partitions, and ranges of them that can be read independently."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.connectors.columnar import (
    EventColumns,
    EventRows,
    arrow_types,
    csv_columns,
    event_columns,
    has_arrow,
    json_columns,
)
from kaicep.connectors.documents import read_document
from kaicep.connectors.records import (
    Record,
    TextPosition,
    begin_csv,
    csv_record,
    json_columns_of,
    json_record,
    open_parquet,
    read_csv,
    read_json_lines,
    read_parquet,
    row_width,
    tell,
)
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.rdf_text import FORMATS

if TYPE_CHECKING:
    import numpy

# ----------------------------------------------------------------------------------------------------------
# Which file is which part of a stream, and the note that keeps it so.
#
# The part of a file is its place among the stream's files, by name. Files that are followed come and go: a
# new one may sort before those that are known, an old one may be removed, a log is rotated. So whoever
# follows writes a note, `.kaicep-parts` in a folder, `.NAME.kaicep-parts` beside a single file, before any
# event of a file is given away. It lies beside the files and is part of the source: every reader goes by
# it, and so every reader gives an event the same identity (semantics 1). Files that it does not mention
# come after those it does, by name.
#
# A name is not what a file is known by: a rotated log has another one, and a new file has its name. A file
# is known by its device and inode and by its first bytes. So these are told apart:
#
# * renamed: the same inode elsewhere in the folder. It stays the part that it was, and the rest of it is
#   read.
# * another file of the name, whether the old one was renamed, replaced or removed: a new part.
# * emptied in place after it was copied (`copytruncate`): the same inode begins with other bytes. A new
#   part;
#   the copy, known by its first bytes, is the old one.
# * copied as a whole to another disk, or put there again by an editor: the name and the bytes tell that it
#   is
#   the same.

NOTE = ".kaicep-parts"
"""The name of the note."""

_HEAD = 256
_HISTORY = 1 << 30


def history_part(name: str) -> int:
    """The part of a file that is history of a stream whose live source is something else.

    It follows from the file's name alone, so that files may come one by one and be deleted afterwards, and
    is beyond all parts that a live source has.

    >>> history_part("2012-05-07.parquet"), is_history(history_part("2012-05-07.parquet")), is_history(7)
    (1096015292, True, False)
    """
    return _HISTORY + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % _HISTORY


def is_history(part: int) -> bool:
    """Whether a part is such a file: it is whole, sends nothing more, and holds nobody back."""
    return part >= _HISTORY


@dataclass(frozen=True)
class Located:
    """A file as it is known: its part, its first name (which tells its format), what it begins with.

    `now` is its name at present; None in the note.
    """

    part: int
    name: str
    device: int
    inode: int
    head: bytes
    now: str | None = None

    def is_at(self, path: Path) -> bool:
        """Whether it is this file that a path leads to."""
        found = _look(path)
        return found is not None and found[:2] == (self.device, self.inode) and self.begins(found[2])

    def begins(self, head: bytes) -> bool:
        """Whether a file with such a beginning may be it, grown or cut short."""
        return head.startswith(self.head) or self.head.startswith(head)

    def line(self) -> bytes:
        """How the note says it."""
        found = {
            "part": self.part,
            "name": self.name,
            "device": self.device,
            "inode": self.inode,
            "head": self.head.decode("latin-1"),
        }
        text = json.dumps(found).encode()
        return b"%s %08x\n" % (text, zlib.crc32(text))


def note_of(path: Path) -> Path:
    """The note of a folder, or of a single file."""
    return path / NOTE if path.is_dir() else path.with_name(f".{path.name}{NOTE}")


def in_order(note: Path, names: Iterable[str]) -> dict[int, Located]:
    """The files by part, and where they are; those that are gone are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.jsonl", "c.jsonl"):
    ...         _ = (Path(folder) / name).write_text(name)
    ...     _ = remember(Path(folder) / NOTE, ["b.jsonl", "c.jsonl"])
    ...     _ = (Path(folder) / "b.jsonl").rename(Path(folder) / "b.jsonl.1")
    ...     _ = (Path(folder) / "b.jsonl").write_text("other")
    ...     found = in_order(Path(folder) / NOTE, ["a.jsonl", "b.jsonl", "c.jsonl"])
    ...     {part: each.now for part, each in found.items()}
    {0: 'b.jsonl.1', 1: 'c.jsonl', 2: 'b.jsonl'}
    """
    try:
        known = _known(note, note.read_bytes())
    except FileNotFoundError:
        known = {}
    return _located(note.parent, known, names)


def remember(note: Path, names: Iterable[str]) -> dict[int, Located]:
    """`in_order`, after what is new of it was added to the note.

    It returns when the note is on the disk. Several processes may follow one folder: each waits its turn.
    """
    try:
        descriptor = os.open(note, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        hint = f"what follows files writes {note.name} there, so that they keep their parts: make it writable"
        raise Mistake(f"cannot write {note}: {error.strerror}", hint=hint) from None
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.read()
        known = _known(note, content)
        found = _located(note.parent, known, names)
        new = [each for part, each in found.items() if known.get(part) != replace(each, now=None)]
        if new:
            # A line that a crash cut short was never relied upon.
            file.seek(content.rfind(b"\n") + 1)
            file.truncate()
            file.write(b"".join(each.line() for each in new))
            file.flush()
            os.fsync(file.fileno())
        return found


def _known(note: Path, content: bytes) -> dict[int, Located]:
    """What a note says, without a last line that has no end; of a part the last line counts."""
    found: dict[int, Located] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        text, _, checksum = line.rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            hint = "its lines carry checksums, and are not written by hand; bring a copy of it back"
            raise Mistake(f"{note} cannot be read: it is damaged", hint=hint)
        said = json.loads(text)
        made = Located(
            said["part"], said["name"], said["device"], said["inode"], said["head"].encode("latin-1")
        )
        found[made.part] = made
    return found


_Look = tuple[int, int, bytes]


def _look(path: Path) -> _Look | None:
    """Device, inode and first bytes of a file; None where there is none."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            return stat.st_dev, stat.st_ino, file.read(_HEAD)
    except (FileNotFoundError, IsADirectoryError):
        return None


def _located(folder: Path, known: dict[int, Located], names: Iterable[str]) -> dict[int, Located]:
    """Where the known files are, and those that are new, which get the next parts by name."""
    free = {name: look for name in set(names) if (look := _look(folder / name)) is not None}
    found: dict[int, Located] = {}
    lost: list[Located] = []
    for each in sorted(known.values(), key=lambda it: -it.part):
        look = free.get(each.name)
        if look is not None and look[:2] == (each.device, each.inode) and each.begins(look[2]):
            found[each.part] = _at(each, each.name, free.pop(each.name))
        else:
            lost.append(each)
    if lost:
        taken = {each.now for each in found.values()}
        others = {name: look for name, look in _files(folder) if name not in taken}
        for each in lost:
            name = next(_candidates(each, others), None)
            if name is not None:
                found[each.part] = _at(each, name, others.pop(name))
                free.pop(name, None)
    after = 1 + max(known, default=-1)
    for part, name in enumerate(sorted(free), after):
        device, inode, head = free[name]
        found[part] = Located(part, name, device, inode, head, name)
    return dict(sorted(found.items()))


def _candidates(each: Located, others: dict[str, _Look]) -> Iterator[str]:
    """Where a file that is not where it was may be: best first."""
    for name, (device, inode, head) in others.items():
        if (device, inode) == (each.device, each.inode) and each.begins(head):
            yield name  # renamed
    own = others.get(each.name)
    if own is not None and own[:2] != (each.device, each.inode) and own[2].startswith(each.head):
        yield each.name  # put there again
    if own is not None and own[:2] == (each.device, each.inode) and each.head:
        for name, (_, _, head) in others.items():
            if name != each.name and head.startswith(each.head):
                yield name  # copied, and emptied then


def _at(each: Located, name: str, look: _Look) -> Located:
    device, inode, head = look
    return replace(each, device=device, inode=inode, head=max(head, each.head, key=len), now=name)


def _files(folder: Path) -> Iterator[tuple[str, _Look]]:
    for each in sorted(folder.iterdir()):
        if each.is_file() and not each.name.endswith(NOTE) and (look := _look(each)) is not None:
            yield each.name, look


# ----------------------------------------------------------------------------------------------------------
# Stretches of files: pieces that can be read by themselves, in any order and on any machine.
#
# Whoever plans looks at the text only to find its lines; a stretch then says where it stands, in bytes and
# in positions. So the number of a line is known before anybody has read what is in the lines before it.

BYTES = 16_000_000
"""So much text is in one stretch, about."""

ROWS = 500_000
"""So many rows of Parquet are in one stretch, about."""

_LONGEST = 131_072  # of a cell, for the reader of single rows
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileRange:
    """Positions `first` to `after` (not included) of a part, and where in its file they are.

    `way` is how they are read: lines of `json`; `csv` with a row in each line, or `rows` of CSV that go over
    several; `columns` of Parquet that are as they should be, or `records` of Parquet; or a format of RDF.
    """

    way: str
    part: int
    file: str
    first: int
    after: int
    offset: int = 0
    size: int = 0
    line: int = 1
    header: tuple[str, ...] = ()
    blank: int = 0  # so many blank rows stand at the offset, before the first position
    width: int = 1  # so many positions has a row

    def scaled(self, width: int) -> FileRange:
        """Of rows, with the positions that they use up."""
        return replace(self, first=self.first * width, after=self.after * width, width=width)

    @property
    def rows(self) -> tuple[int, int]:
        """The numbers of its first row and of the one after it."""
        return self.first // self.width, self.after // self.width


def kind_of(name: str) -> str:
    """The format of a file, by how its name ends.

    >>> kind_of("a.csv"), kind_of("a.ndjson"), kind_of("a.TTL")
    ('csv', 'json', 'ttl')
    """
    suffix = Path(name).suffix.lower().removeprefix(".")
    return suffix if suffix in ("csv", "parquet", *FORMATS) else "json"


def is_read_whole(kind: str) -> bool:
    """Whether files of a kind are whole once they are there: nothing is appended to them."""
    return kind == "parquet" or kind in FORMATS


def stretches(
    form: Form,
    schema: Schema | None,
    part: int,
    path: Path,
    first: int = 0,
    growing: bool = False,
    kind: str | None = None,
    cursor: TextPosition | None = None,
) -> Iterator[FileRange]:
    """The stretches of a file from a position on, in order.

    Of a `growing` file, a last line without its end is left for later: it may be half of one. `kind` is the
    format where the name does not tell it any more. Of text, reading begins at the `cursor`, which is moved
    along to the end of each stretch.
    """
    kind = kind or kind_of(path.name)
    try:
        if kind == "parquet":
            yield from _of_parquet(form, schema, part, path, first)
        elif kind == "csv":
            yield from _of_csv(form, part, path, first, growing, cursor)
        elif kind in FORMATS:
            count = len(read_document(part, path, kind, form.notation))
            _reaches(form, path, first, count)
            if count > first:
                yield FileRange(kind, part, str(path), first, count)
        else:
            width = row_width(form.notation, json_columns_of(form.notation))
            for each in _of_json(form, part, path, first // width, growing, cursor):
                yield each.scaled(width)
    except OSError as error:
        raise Failure(f"stream {form.stream}: cannot read {path}: {error.strerror}") from None


def records_of(
    form: Form,
    part: int,
    path: Path,
    kind: str,
    growing: bool = False,
    header: Callable[[list[str]], None] = lambda names: None,
) -> Iterator[Record]:
    """The records of a whole file one by one, the good and the bad; `header` gets to see that of CSV."""
    if kind == "parquet":
        return read_parquet(form.stream, part, path, notation=form.notation)
    if kind == "csv":
        return read_csv(part, path, form.time, header, growing=growing, notation=form.notation)
    if kind in FORMATS:
        return iter(read_document(part, path, kind, form.notation))
    return read_json_lines(part, path, growing=growing, notation=form.notation)


def read_some(stretch: FileRange, form: Form, schema: Schema | None) -> EventColumns | EventRows:
    """The events of a stretch: by columns, but those of triples, and where nobody knows the types yet."""
    if schema is None or schema.rdf or not has_arrow():
        return EventRows(*read_events(stretch, form, schema))
    return read_stretch(stretch, form, schema)


def read_stretch(stretch: FileRange, form: Form, schema: Schema) -> EventColumns:
    """The events of a stretch by columns, and the dead letters of what is none."""
    shaper = Shaper(form, schema)
    path = Path(stretch.file)
    try:
        if stretch.way == "columns":
            return _read_columns(stretch, form, schema)
        if stretch.way in ("rows", "records") or form.notation.wide is not None:
            events, dead = read_events(stretch, form, schema)
            return replace(event_columns(shaper, events), dead=dead)
        with path.open("rb") as file:
            file.seek(stretch.offset)
            block = file.read(stretch.size)
    except OSError as error:
        raise Failure(f"stream {form.stream}: cannot read {path}: {error.strerror}") from None
    return _read_lines(stretch, shaper, block)


# --- text ---------------------------------------------------------------------------------------------


def _blocks(path: Path, offset: int, growing: bool) -> Iterator[tuple[int, bytes, numpy.ndarray[Any, Any]]]:
    """Blocks of whole lines: where each begins, its bytes, and where in it its lines end."""
    import numpy

    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while True:
            read = file.read(max(BYTES - len(rest), _LONGEST))
            block = rest + read
            cut = len(block) if not read and not growing else block.rfind(b"\n") + 1
            block, rest = block[:cut], block[cut:]
            if block:
                ends = numpy.flatnonzero(numpy.frombuffer(block, numpy.uint8) == 10) + 1
                if not len(ends) or ends[-1] != len(block):
                    ends = numpy.append(ends, len(block))
                yield offset, block, ends
                offset += len(block)
                tell(path, offset)
            if not read:
                return


def _of_json(
    form: Form, part: int, path: Path, first: int, growing: bool, cursor: TextPosition | None
) -> Iterator[FileRange]:
    known = cursor or (_ended_at(path, first) if growing else TextPosition())
    for offset, block, ends in _blocks(path, known.offset, growing):
        found = FileRange("json", part, str(path), known.seq, known.seq + len(ends), offset, len(block))
        known.offset, known.seq = offset + len(block), found.after
        if growing and cursor is None:
            _remember(path, replace(known))
        if known.seq > first:
            yield _from(found, first, ends)
    _reaches(form, path, first, known.seq)


def _of_csv(
    form: Form, part: int, path: Path, first: int, growing: bool, cursor: TextPosition | None
) -> Iterator[FileRange]:
    known = cursor or TextPosition()
    if known.header is None:
        begun = begin_csv(path, form.time, growing, form.notation.csv)
        if begun.header is None:
            return
        known.offset, known.line, known.header = begun.offset, begun.line, begun.header
    header = tuple(known.header)
    width = row_width(form.notation, header)
    first //= width
    if growing and cursor is None:
        known = _ended_at(path, first, known)
    for offset, block, ends in _blocks(path, known.offset, growing):
        seq, line = known.seq, known.line
        if not _a_row_a_line(block, ends, form.notation.csv.delimiter):
            rows = FileRange("rows", part, str(path), seq, seq, offset, 0, line, header)
            for each in _of_rows(form, rows, first, growing, known):
                yield each.scaled(width)
            return
        found = FileRange("csv", part, str(path), seq, seq + len(ends), offset, len(block), line, header)
        known.offset, known.seq, known.line = offset + len(block), found.after, line + len(ends)
        if growing and cursor is None:
            _remember(path, replace(known))
        if known.seq > first:
            yield _from(found, first, ends).scaled(width)
    _reaches(form, path, first, known.seq)


# Where the whole lines of files that grow ended when they were last looked at, so that a file of gigabytes
# is not read from its beginning for every line that comes to it.
_ENDS: dict[Path, tuple[int, TextPosition]] = {}
_MOST_ENDS = 10_000


def _ended_at(path: Path, first: int, begin: TextPosition | None = None) -> TextPosition:
    """Where to look for what comes from a position on: where the file ended, else where it begins."""
    begin = begin or TextPosition()
    inode, end = _ENDS.get(path, (0, begin))
    found = path.stat()
    known = end.seq == first and found.st_ino == inode and found.st_size >= end.offset
    return replace(end) if known else begin


def _remember(path: Path, end: TextPosition) -> None:
    _ENDS.pop(path, None)
    if len(_ENDS) >= _MOST_ENDS:
        del _ENDS[next(iter(_ENDS))]
    _ENDS[path] = path.stat().st_ino, end


def _of_rows(
    form: Form, begin: FileRange, first: int, growing: bool, cursor: TextPosition
) -> Iterator[FileRange]:
    """The rest of a CSV file whose rows may go over several lines: only reading it tells where they end."""
    path, start = Path(begin.file), begin
    for _ in read_csv(begin.part, path, form.time, cursor=cursor, growing=growing, notation=form.notation):
        if cursor.seq <= first:
            start = replace(begin, first=cursor.seq, offset=cursor.offset, line=cursor.line)
        elif cursor.offset - start.offset >= BYTES and cursor.seq > first:
            yield _ended(start, first, cursor)
            start = replace(begin, first=cursor.seq, offset=cursor.offset, line=cursor.line)
    _reaches(form, path, first, cursor.seq)
    if cursor.seq > max(start.first, first):
        yield _ended(start, first, cursor)


def _ended(start: FileRange, first: int, cursor: TextPosition) -> FileRange:
    blank = max(0, first - start.first)
    size = cursor.offset - start.offset
    return replace(start, first=start.first + blank, after=cursor.seq, size=size, blank=blank)


def _from(stretch: FileRange, first: int, ends: numpy.ndarray[Any, Any]) -> FileRange:
    """A stretch of lines without those before a position."""
    lines = first - stretch.first
    if lines <= 0:
        return stretch
    skipped = int(ends[lines - 1])
    return replace(
        stretch,
        first=first,
        offset=stretch.offset + skipped,
        size=stretch.size - skipped,
        line=stretch.line + lines,
    )


def _reaches(form: Form, path: Path, first: int, count: int) -> None:
    if count < first:
        raise Failure(
            f"stream {form.stream}: the position is record {first} of {path}, but the file "
            f"has only {count}: it was cut short, or it is another one"
        )


def _a_row_a_line(block: bytes, ends: numpy.ndarray[Any, Any], delimiter: str) -> bool:
    """Whether every line of CSV is a row, and one that all readers read alike.

    Quotes must open at the beginning of a cell, close at its end, and do both within the line.
    """
    import numpy

    if b"\0" in block or block.count(b"\r") != block.count(b"\r\n"):
        return False
    if int(numpy.diff(ends, prepend=0).max()) >= _LONGEST:
        return False
    if b'"' not in block:
        return True
    data = numpy.frombuffer(block, numpy.uint8)
    quotes = numpy.flatnonzero(data == 34)
    line = numpy.searchsorted(ends, quotes, side="right")
    places = numpy.arange(len(quotes)) - numpy.searchsorted(line, line)
    opening, closing = quotes[places % 2 == 0], quotes[places % 2 == 1]
    if len(opening) != len(closing) or not (line[places % 2 == 0] == line[places % 2 == 1]).all():
        return False
    before = numpy.where(opening > 0, data[opening - 1], 10)
    padded = numpy.append(data, 10)
    mark = ord(delimiter)
    return bool(
        numpy.isin(before, (mark, 10, 34)).all() and numpy.isin(padded[closing + 1], (mark, 13, 10, 34)).all()
    )


def _read_lines(stretch: FileRange, shaper: Shaper, block: bytes) -> EventColumns:
    import numpy
    import pyarrow

    ends = numpy.flatnonzero(numpy.frombuffer(block, numpy.uint8) == 10) + 1
    if not len(ends) or ends[-1] != len(block):
        ends = numpy.append(ends, len(block))
    seq = numpy.arange(stretch.first, stretch.after)
    if len(ends) != len(seq) or len(block) != stretch.size:
        raise Failure(
            f"stream {shaper.form.stream}: {stretch.file} has changed while it was read; lines may be "
            "appended to a file, not taken from it"
        )
    starts = numpy.concatenate(([0], ends[:-1]))
    if stretch.offset == 0 and stretch.way == "json" and block.startswith(_BOM):
        starts[0] = len(_BOM)

    def line(at: int) -> bytes:
        return block[starts[at] : ends[at]]

    if stretch.way == "csv":
        header = list(stretch.header)
        return csv_columns(
            shaper,
            header,
            block,
            seq,
            lambda at: csv_record(
                stretch.part,
                stretch.first + at,
                stretch.line + at,
                stretch.file,
                header,
                line(at),
                shaper.form.notation.csv,
            ),
        )
    offsets = numpy.append(starts, ends[-1]).astype(numpy.int32)
    lines = pyarrow.BinaryArray.from_buffers(
        pyarrow.binary(), len(seq), [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(block)]
    )
    return json_columns(
        shaper, lines, seq, lambda at: json_record(stretch.part, stretch.first + at, stretch.file, line(at))
    )


def read_events(
    stretch: FileRange, form: Form, schema: Schema | None
) -> tuple[list[Event], list[DeadLetter]]:
    """The events of a stretch one by one, and the dead letters: slow, and for every kind of stream."""
    path, notation = Path(stretch.file), form.notation
    first, _ = stretch.rows
    cursor = TextPosition(stretch.offset, first - stretch.blank, stretch.line, list(stretch.header) or None)
    if stretch.way in ("columns", "records"):
        records = read_parquet(form.stream, stretch.part, path, first, notation)
    elif stretch.way in ("csv", "rows"):
        records = read_csv(stretch.part, path, form.time, cursor=cursor, notation=notation)
    elif stretch.way in FORMATS:
        records = iter(read_document(stretch.part, path, stretch.way, notation)[first:])
    else:
        records = read_json_lines(stretch.part, path, cursor, notation=notation)
    return Shaper(form, schema).shape(takewhile(lambda each: each.seq < stretch.after, records))


# --- Parquet ------------------------------------------------------------------------------------------


def _of_parquet(form: Form, schema: Schema | None, part: int, path: Path, first: int) -> Iterator[FileRange]:
    from kaicep.connectors.columnar import is_direct

    with open_parquet(form.stream, path) as file:
        found = file.metadata
        width = row_width(form.notation, file.schema_arrow.names)
        direct = schema is not None and not schema.rdf and is_direct(file, form, schema)
        way = "columns" if direct else "records"
        counts = [found.row_group(each).num_rows for each in range(found.num_row_groups)]
    size, seq, first = path.stat().st_size, 0, first // width
    start = 0
    for count in counts:
        seq += count
        if (seq - max(start, first)) * width >= ROWS:
            yield FileRange(way, part, str(path), max(start, first), seq).scaled(width)
            start = seq
        tell(path, size * seq // max(1, sum(counts)))
    _reaches(form, path, first, seq)
    if seq > max(start, first):
        yield FileRange(way, part, str(path), max(start, first), seq).scaled(width)


def _read_columns(stretch: FileRange, form: Form, schema: Schema) -> EventColumns:
    import numpy
    import pyarrow
    import pyarrow.compute as pc

    from kaicep.connectors.columnar import as_typed

    with open_parquet(form.stream, Path(stretch.file)) as file:
        there = [name for name, _ in schema.attributes if name in file.schema_arrow.names]
        groups: list[int] = []
        before = seq = 0
        for each in range(file.num_row_groups):
            count = file.metadata.row_group(each).num_rows
            if seq + count > stretch.first and seq < stretch.after:
                before = before if groups else seq
                groups.append(each)
            seq += count
        rows = file.read_row_groups(groups, columns=there, use_threads=False)
    rows = rows.slice(stretch.first - before, stretch.after - stretch.first)
    count, kinds = stretch.after - stretch.first, arrow_types()
    values = {
        name: pyarrow.concat_arrays([as_typed(each, type) for each in rows.column(name).chunks])
        if name in rows.column_names
        else pyarrow.nulls(count, kinds[type])
        for name, type in schema.attributes
    }
    latest = Shaper(form, schema).latest
    if latest is not None and (pc.max(values[form.time].cast(pyarrow.int64())).as_py() or 0) > latest:
        events, dead = read_events(stretch, form, schema)
        return replace(event_columns(Shaper(form, schema), events), dead=dead)
    return EventColumns(pyarrow.array(numpy.arange(stretch.first, stretch.after)), values)
