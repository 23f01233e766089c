"""Which file of a folder is which part of the stream, and the note in the folder that keeps it so.

The part of a file is its place among the stream's files, by name. In a folder that is followed, files
come and go: a new one may sort before those that are known, an old one may be removed. So whoever follows
a folder writes the names into `.kaicep-parts`, one line each, in the order of their parts, before any
event of a file is given away. The note lies in the folder and is part of the source: every reader goes by
it, and so every reader gives an event the same identity (semantics 1). Files that the note does not
mention come after those it does, by name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

from kaicep.errors import Diagnostic, Mistake

__all__ = ["NOTE", "in_order", "remember"]

NOTE = ".kaicep-parts"
"""The name of the note."""


def in_order(folder: Path, names: Iterable[str]) -> dict[int, str]:
    """The files by part. Where a file that the note mentions is gone, its part is left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = remember(Path(folder), ["b.jsonl", "c.jsonl"])
    ...     in_order(Path(folder), ["a.jsonl", "c.jsonl"])
    {1: 'c.jsonl', 2: 'a.jsonl'}
    """
    try:
        known = _known(folder, (folder / NOTE).read_bytes())
    except FileNotFoundError:
        known = []
    return _in_order(known, set(names))


def _in_order(known: list[str], there: set[str]) -> dict[int, str]:
    every = [*known, *sorted(there.difference(known))]
    return {part: name for part, name in enumerate(every) if name in there}


def remember(folder: Path, names: Iterable[str]) -> dict[int, str]:
    """Adds to the note those of the files that it does not mention; gives the files by part.

    It returns when the note is on the disk. Several processes may follow one folder: each waits its turn.
    """
    there = set(names)
    try:
        descriptor = os.open(folder / NOTE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        hint = f"following a folder writes {NOTE} into it, so that files keep their parts: make it writable"
        raise Mistake(Diagnostic(f"cannot write {folder / NOTE}: {error.strerror}", hint=hint)) from None
    with os.fdopen(descriptor, "r+b") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        content = note.read()
        known = _known(folder, content)
        new = sorted(there.difference(known))
        if new:
            # A line that a crash cut short was never relied upon.
            note.seek(content.rfind(b"\n") + 1)
            note.truncate()
            note.write(b"".join(json.dumps(each).encode() + b"\n" for each in new))
            note.flush()
            os.fsync(note.fileno())
        return _in_order([*known, *new], there)


def _known(folder: Path, content: bytes) -> list[str]:
    """The names in a note, without a last line that has no end."""
    try:
        return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    except ValueError:
        hint = "it holds one file name a line, in double quotes, in the order of their parts"
        raise Mistake(Diagnostic(f"{folder / NOTE} cannot be read", hint=hint)) from None
