"""Places as people write them: a path, or a URI whose scheme says on which store it is."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from kaicep.errors import Diagnostic, Mistake

__all__ = ["local_path"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(place: str | Path, what: str) -> Path:
    """A place as a path; a mistake where it is on a store that cannot be reached.

    A `Path` has lost a slash of what was a URI, and is told by the one that is left. A letter before the
    colon is a drive.

    >>> local_path("file:///data/my%20archive", "the archive"), local_path("C:/data", "the archive")
    (PosixPath('/data/my archive'), PosixPath('C:/data'))
    >>> local_path(Path("s3://bucket/archive"), "the archive")
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: the archive s3:/bucket/archive: there is no store for s3
      = help: a path, or file:///path; a store that is mounted has a path too
    """
    text = str(place)
    found = _SCHEME.match(text)
    if found is None:
        return Path(place)
    if found[1].lower() == "file":
        rest = text[found.end() - 1 :]
        return Path(unquote("/" + rest.lstrip("/")))
    hint = "a path, or file:///path; a store that is mounted has a path too"
    raise Mistake(Diagnostic(f"{what} {text}: there is no store for {found[1]}", hint=hint))
