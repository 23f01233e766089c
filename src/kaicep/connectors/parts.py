"""Which file is which part of a stream, and the note that keeps it so.

The part of a file is its place among the stream's files, by name. Files that are followed come and go: a new
one may sort before those that are known, an old one may be removed, a log is rotated. So whoever follows
writes a note, `.kaicep-parts` in a folder, `.NAME.kaicep-parts` beside a single file, before any event of a
file is given away. It lies beside the files and is part of the source: every reader goes by it, and so
every reader gives an event the same identity (semantics 1). Files that it does not mention come after those
it does, by name.

A name is not what a file is known by: a rotated log has another one, and a new file has its name. A file is
known by its device and inode and by its first bytes. So these are told apart:

* renamed: the same inode elsewhere in the folder. It stays the part that it was, and the rest of it is read.
* another file of the name, whether the old one was renamed, replaced or removed: a new part.
* emptied in place after it was copied (`copytruncate`): the same inode begins with other bytes. A new part;
  the copy, known by its first bytes, is the old one.
* copied as a whole to another disk, or put there again by an editor: the name and the bytes tell that it is
  the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kaicep.errors import Diagnostic, Mistake

__all__ = ["NOTE", "Located", "history_part", "in_order", "is_history", "note_of", "remember"]

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
        raise Mistake(Diagnostic(f"cannot write {note}: {error.strerror}", hint=hint)) from None
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
            raise Mistake(Diagnostic(f"{note} cannot be read: it is damaged", hint=hint))
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
