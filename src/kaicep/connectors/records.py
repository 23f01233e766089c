"""Records as JSON Lines and CSV hold them: every line or row, the good and the bad.

Nothing is converted here: a record's fields are what the file says. A bad one has a reason instead.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from kaicep.errors import Diagnostic, Mistake
from kaicep.plan.convert import guess_text
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type

__all__ = ["Record", "Watcher", "read_csv", "read_json_lines", "tell", "watching"]

_BOM = b"\xef\xbb\xbf"
_TICK = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    """A record as its reader found it: its fields, or the reason why there are none."""

    part: int
    seq: int
    line: int
    file: str
    fields: Mapping[str, object] | None
    text: str | None = None
    reason: str = ""


Watcher = Callable[[Path, int], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, `watcher` hears from time to time how many bytes of a file are read."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(path: Path, position: int) -> None:
    """Lets whoever is watching know how far the reading of a file has come."""
    if (watcher := _watcher.get()) is not None:
        watcher(path, position)


def read_json_lines(part: int, path: Path) -> Iterator[Record]:
    """The lines of a file that are not blank; a blank one uses up its number all the same."""
    decode = json.JSONDecoder(parse_constant=lambda _: None).decode
    with path.open("rb") as file:
        for seq, raw in enumerate(file):
            if seq == 0:
                raw = raw.removeprefix(_BOM)
            if seq % _TICK == 0:
                tell(path, file.tell())
            if raw.isspace() or not raw:
                continue
            fields, reason = _json_object(raw, decode)
            text = raw.decode(errors="replace").rstrip("\r\n")
            yield Record(part, seq, seq + 1, str(path), fields, text, reason)


def _json_object(raw: bytes, decode: Callable[[str], object]) -> tuple[dict[str, object] | None, str]:
    """The object that a line holds, or the reason why it holds none."""
    try:
        value = decode(raw.decode().rstrip("\r\n"))
        if b"\\u" in raw:
            # Half of a surrogate pair is no character: nothing that holds one can be written down.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}"
    except UnicodeEncodeError:
        return None, "not Unicode: half of a surrogate pair"
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}"
    except RecursionError:
        return None, "not JSON that can be read: nested too deeply"
    except ValueError:  # Python refuses integers of thousands of digits
        return None, "not JSON that can be read: a number with too many digits"
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a single value")
        return None, f"not a JSON object but {kind}"
    return value, ""


class _Lines:
    """The lines of a text file, remembering those that the current row is made of."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.row: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.row.append(line)
        return line

    def text(self) -> str:
        """The lines since the last call."""
        text = "".join(self.row).rstrip("\r\n")
        self.row.clear()
        return text


def read_csv(
    part: int, path: Path, time: str, columns: Callable[[list[str]], None] = lambda header: None
) -> Iterator[Record]:
    """The rows of a file below its header, which `columns` gets to see; an empty cell is None."""
    with path.open("rb") as file:
        lines = _Lines(TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline=""))
        rows = csv.reader(lines, strict=True)
        header = _csv_header(path, rows, time)
        columns(header)
        lines.text()
        seq = -1
        while True:
            seq += 1
            line = rows.line_num + 1
            if seq % _TICK == 0:
                tell(path, file.tell())
            fields: dict[str, object] | None = None
            reason = ""
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                reason = f"not CSV: {error}"
            else:
                if not cells:
                    lines.text()
                    continue
                fields, reason = _csv_fields(header, cells)
            text = lines.text().encode(errors="surrogateescape").decode(errors="replace")
            yield Record(part, seq, line, str(path), fields, text, reason)


def _csv_header(path: Path, rows: Iterator[list[str]], time: str) -> list[str]:
    """The names in the first row; a mistake where they cannot name columns."""
    try:
        header = next((row for row in rows if row), [])
    except csv.Error as error:
        raise Mistake(f"{path}: the first row is not CSV: {error}") from None
    header = [each.strip() for each in header]
    for place, each in enumerate(header):
        problem = hint = None
        if not each:
            problem = f"column {place + 1} has no name"
        elif any("\udc80" <= char <= "\udcff" for char in each):
            problem, hint = f"the name of column {place + 1} is not UTF-8", "save the file as UTF-8"
        elif each in header[:place]:
            problem = f"two columns are named {each}"
        elif time not in header and (guess_text(each) is not Type.STRING or parse_time(each) is not None):
            problem = f"there is no header: the first row has the value {each}"
        if problem:
            hint = hint or "the first row must name every column, each differently"
            raise Mistake(Diagnostic(f"{path}: {problem}", hint=hint))
    return header


def _csv_fields(header: list[str], cells: list[str]) -> tuple[dict[str, object] | None, str]:
    """The cells by name; an empty or a missing one is null."""
    if len(cells) > len(header):
        return None, f"{len(cells)} cells, but the header names {len(header)} columns"
    for name, cell in zip(header, cells, strict=False):
        if not cell.isascii() and any("\udc80" <= char <= "\udcff" for char in cell):
            return None, f"not UTF-8: {name}"
    fields: dict[str, object] = {name: cell or None for name, cell in zip(header, cells, strict=False)}
    return fields, ""
