"""Places as people write them: a path, or a URI whose scheme says on which store it is.

A place on a store is a path too, with those methods of a path that mean something there: it is read, written
whole, listed and removed. There are no folders, nothing is renamed or linked, and nobody waits for a disk.
Python's own `open` and `os` do not take it, so nothing ever makes a folder that is called `s3:`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PosixPath, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from kaicep.errors import Mistake

if TYPE_CHECKING:
    import pyarrow.dataset
    import pyarrow.fs

STORES = ("s3", "s3a", "gs", "abfss", "hdfs")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_AWS = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint_url", "allow_http")

_said: dict[str, str] = {}


def use_options(options: Mapping[str, str]) -> None:
    """Says how this process reaches its stores, in the words of delta-rs, such as `AWS_ENDPOINT_URL`.

    What is not said is taken from the environment.
    """
    _said.update({name.upper(): value for name, value in options.items()})


def place_of(place: str | Path, what: str) -> Path:
    """A place as a path; a mistake where no store has this scheme.

    A `Path` has lost a slash of what was a URI, and is told by the one that is left. A letter before the
    colon is a drive.

    >>> place_of("file:///data/my%20archive", "the archive"), place_of("C:/data", "the archive")
    (PosixPath('/data/my archive'), PosixPath('C:/data'))
    >>> str(place_of(Path("s3://bucket/archive"), "the archive") / "meter")
    's3://bucket/archive/meter'
    >>> place_of("ftp://host/archive", "the archive")
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: the archive ftp://host/archive: there is no store for ftp
      = help: a path, file:///path, or a URI of s3, s3a, gs, abfss, hdfs
    """
    if isinstance(place, StorePath):
        return place
    text = str(place)
    found = _SCHEME.match(text)
    if found is None:
        return Path(place)
    scheme, rest = found[1].lower(), text[found.end() - 1 :].lstrip("/")
    if scheme == "file":
        return Path(unquote("/" + rest))
    if scheme not in STORES:
        hint = f"a path, file:///path, or a URI of {', '.join(STORES)}"
        raise Mistake(f"{what} {text}: there is no store for {scheme}", hint=hint)
    if not rest:
        raise Mistake(f"{what} {text}: no bucket or host is named", hint=f"such as {scheme}://bucket")
    return StorePath(f"{scheme}://{rest}")


def local_path(place: str | Path, what: str) -> Path:
    """A place as a path of this machine; a mistake where it is on a store.

    >>> local_path("s3://bucket/state", "state")
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: state s3://bucket/state: this must be on a disk of this machine
      = help: a path, or file:///path
    """
    found = place_of(place, what)
    if isinstance(found, StorePath):
        raise Mistake(
            f"{what} {found}: this must be on a disk of this machine", hint="a path, or file:///path"
        )
    return found


class StorePath(PosixPath):
    """A place on a store. It travels to other processes with the options by which the store is reached."""

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    as_posix = __str__

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is on a store, not on this machine")

    def __reduce__(self) -> Any:
        return _arrived, (str(self), dict(_said))

    def __rtruediv__(self, other: object) -> StorePath:
        return self

    def absolute(self) -> StorePath:
        """The same: it is known everywhere."""
        return self

    def resolve(self, strict: bool = False) -> StorePath:
        """The same: nothing there is a link."""
        return self

    def is_absolute(self) -> bool:
        """It is known everywhere."""
        return True

    def relative_to(self, *other: Any, **options: Any) -> Any:
        """The way from a place above this one."""
        return PurePosixPath(*self.parts).relative_to(PurePosixPath(*other[0].parts))

    # --- what there is ---

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its size and when it was written."""
        found = self._info()
        if found.type.name == "NotFound":
            raise FileNotFoundError(2, "no such file", str(self))
        moment = found.mtime_ns or 0
        ids, times = (0, 0, 0, 0, 0, 0), (moment // 1_000_000_000, moment / 1e9, moment)
        return os.stat_result((*ids, found.size or 0, *(each for each in times for _ in range(3))))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether something has this name, or a name below it."""
        return bool(self._info().type.name != "NotFound")

    def is_dir(self, **options: Any) -> bool:
        """Whether something has a name below it."""
        return bool(self._info().type.name == "Directory")

    def is_file(self, **options: Any) -> bool:
        """Whether something has this name."""
        return bool(self._info().type.name == "File")

    def _info(self) -> Any:
        (found,) = self._store.get_file_info([self.inside])
        return found

    def iterdir(self) -> Iterator[StorePath]:  # type: ignore[override]
        """What is below it, by name."""
        import pyarrow.fs

        wanted = pyarrow.fs.FileSelector(self.inside, allow_not_found=True)
        return iter([self / each.base_name for each in self._store.get_file_info(wanted)])

    def glob(self, pattern: str, **options: Any) -> Iterator[StorePath]:  # type: ignore[override]
        """What is below it and has such a name; `**` is one name."""
        first, *rest = PurePosixPath(pattern).parts
        for each in self.iterdir():
            if fnmatchcase(each.name, first):
                yield from each.glob("/".join(rest)) if rest else (each,)

    # --- content ---

    def open(self, mode: str = "r", *rest: Any, **options: Any) -> Any:
        """For reading bytes."""
        if mode != "rb":
            _impossible(self, f"opened with {mode}")
        return self._store.open_input_file(self.inside)

    def read_bytes(self) -> bytes:
        """All that is in it."""
        with self.open("rb") as file:
            return bytes(file.read())

    def read_text(self, encoding: str | None = None, *rest: Any, **options: Any) -> str:
        """All that is in it, as text."""
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: Any) -> int:
        """Puts this in its place; whoever reads sees all of it, or what was there before."""
        with self._store.open_output_stream(self.inside) as file:
            file.write(data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes it."""
        try:
            self._store.delete_file(self.inside)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, *rest: Any, **options: Any) -> None:
        """Nothing: a store has names, and no folders."""

    rmdir = mkdir

    def rename(self, target: Any) -> NoReturn:
        """Not on a store."""
        _impossible(self, "renamed")

    replace = rename

    @property
    def _store(self) -> pyarrow.fs.FileSystem:
        return filesystem_of(self)

    @property
    def inside(self) -> str:
        """Its name in Arrow's way to the store."""
        scheme, authority, *rest = self.parts
        if scheme == "hdfs:":
            return "/" + "/".join(rest)
        return "/".join([authority.partition("@")[0], *rest])


def _arrived(place: str, options: Mapping[str, str]) -> StorePath:
    use_options(options)
    return StorePath(place)


def _impossible(path: StorePath, what: str) -> NoReturn:
    raise OSError(95, f"a place on a store is not {what}", str(path))


def options_of(folder: Path) -> dict[str, str] | None:
    """What delta-rs needs to know besides the place of a table."""
    return dict(_said) if isinstance(folder, StorePath) and _said else None


def filesystem_of(path: Path) -> pyarrow.fs.FileSystem | None:
    """Arrow's way to the store of a place; None: this machine."""
    if not isinstance(path, StorePath):
        return None
    found: pyarrow.fs.FileSystem = _store(path.parts[0], path.parts[1], tuple(sorted(_said.items())))
    return found


@lru_cache(maxsize=16)
def _store(scheme: str, authority: str, said: tuple[tuple[str, str], ...]) -> Any:
    import pyarrow.fs

    known = {**os.environ, **dict(said)}
    if scheme in ("s3:", "s3a:"):
        key, secret, token, region, endpoint, http = (known.get(f"AWS_{each.upper()}") for each in _AWS)
        url = urlsplit(endpoint or "")
        return pyarrow.fs.S3FileSystem(
            access_key=key,
            secret_key=secret,
            session_token=token,
            region=region or known.get("AWS_DEFAULT_REGION"),
            endpoint_override=url.netloc or endpoint,
            scheme=url.scheme or ("http" if http == "true" else None),
        )
    if scheme == "gs:":
        return pyarrow.fs.GcsFileSystem()
    if scheme == "abfss:":
        account = authority.partition("@")[2].partition(".")[0] or known.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        return pyarrow.fs.AzureFileSystem(
            account,
            known.get("AZURE_STORAGE_ACCOUNT_KEY"),
            sas_token=known.get("AZURE_STORAGE_SAS_KEY"),
        )
    host, _, port = authority.partition(":")
    return pyarrow.fs.HadoopFileSystem(host, int(port or 8020))
