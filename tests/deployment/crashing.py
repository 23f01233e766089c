"""Disks as a crash would leave them: what a deployment does is recorded, and cut off at any operation.

`record` runs a deployment under strace, which sees every system call, also those of Rust libraries. `Disk`
replays them. Of what was not synced when the crash came, anything may be there or not: whole writes, the
beginning of one, names in a folder. So `Disk.after_crash` chooses by chance, from a seed.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.deployment.processes import SECONDS, environment

from kaicep.processes import bound

__all__ = ["Disk", "Left", "Operation", "record"]

T = TypeVar("T")

_CALLS = (
    "open,openat,creat,close,lseek,write,pwrite64,writev,fsync,fdatasync,ftruncate,truncate,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat"
)
_DRIVER = """
import sys
from pathlib import Path
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from tests.deployment.restarts import hurry
hurry()
Deployment(load_config(Path(sys.argv[1]) / "kaicep.toml")).run()
"""


def record(folder: Path) -> list[Operation]:
    """What the deployment of a folder does there, to its end."""
    trace = folder.with_name(folder.name + ".trace")
    tracing = ["-y", "-xx", "-s", str(1 << 24), "-e", f"trace={_CALLS}", "-o", str(trace)]
    words = ["strace", "-f", "--seccomp-bpf", *tracing, sys.executable, "-c", _DRIVER, str(folder)]
    done = subprocess.run(
        bound(words), env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(_operations(trace, folder))


@dataclass(frozen=True)
class Operation:
    """Something that is done to a disk."""

    kind: str
    path: str
    data: bytes = b""
    at: int = 0
    to: str = ""


_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"(AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>")


def _decoded(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _calls(trace: Path) -> Iterator[tuple[str, str, int]]:
    """The calls that succeeded: name, arguments, answer; in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in trace.read_text("latin-1").splitlines():
        found = _LINE.match(line)
        assert found is not None, line[:200]
        thread, rest = found.groups()
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>")
            continue
        if (resumed := _RESUMED.match(rest)) is not None:
            rest = begun.pop(thread) + resumed[1]
        call = _CALL.match(rest)
        if call is not None and int(call[3]) >= 0:
            yield call[1], call[2], int(call[3])


def _operations(trace: Path, folder: Path) -> Iterator[Operation]:
    offsets: dict[int, int | None] = {}  # None: it appends
    root = f"{folder}/"
    for name, arguments, answer in _calls(trace):
        texts = [_decoded(each) for each in _TEXT.findall(arguments)]
        files = [(each, _decoded(path).decode()) for each, path in _FILE.findall(arguments)]
        kind = name.rstrip("0123456789").removesuffix("at")
        if kind in ("open", "creat"):
            path = _joined(files, texts[0])
            offsets[answer] = None if "O_APPEND" in arguments else 0
            if path.startswith(root) and ("O_CREAT" in arguments or kind == "creat"):
                yield Operation("create", path)
            if path.startswith(root) and ("O_TRUNC" in arguments or kind == "creat"):
                yield Operation("truncate", path)
        elif kind in ("rename", "link"):
            places = [_joined(files[at : at + 1], text) for at, text in enumerate(texts)]
            if places[1].startswith(root):
                yield Operation(kind, places[0], to=places[1])
        elif kind in ("unlink", "mkdir"):
            path = _joined(files, texts[0])
            if path.startswith(root):
                yield Operation(kind, path)
        elif files:
            number, path = int(files[0][0]), files[0][1]
            inside = (path.startswith(root) or path == str(folder)) and not path.endswith(" (deleted)")
            last = arguments.rpartition(", ")[2]
            if name == "lseek" and offsets.get(number, 0) is not None:
                offsets[number] = answer
            elif name in ("write", "writev"):
                data = b"".join(texts)[:answer]
                at = offsets.get(number, 0)
                if at is not None:
                    offsets[number] = at + answer
                if inside:
                    yield Operation("write", path, data, -1 if at is None else at)
            elif name == "pwrite64" and inside:
                yield Operation("write", path, texts[0][:answer], int(last))
            elif name in ("fsync", "fdatasync") and inside:
                yield Operation("sync", path)
            elif kind == "ftruncate" and inside:
                yield Operation("truncate", path, at=int(last))


def _joined(files: Sequence[tuple[str, str]], text: bytes) -> str:
    """A path, which may be beside the folder that a call names."""
    path = text.decode()
    return path if path.startswith("/") or not files else f"{files[0][1]}/{path}"


@dataclass
class _File:
    """A file: what is on the disk of it, and what was done since, in order."""

    content: bytes = b""
    since: list[Operation] = field(default_factory=list)

    def after(self, done: Sequence[Operation]) -> bytes:
        made = bytearray(self.content)
        for each in done:
            if each.kind == "truncate":
                del made[each.at :]
                made.extend(bytes(each.at - len(made)))
                continue
            at = len(made) if each.at < 0 else each.at
            made.extend(bytes(max(0, at - len(made))))
            made[at : at + len(each.data)] = each.data
        return bytes(made)


@dataclass
class _Folder:
    """A folder: the names that are on the disk, and the changes since; each of them is done whole."""

    names: dict[str, _File | _Folder] = field(default_factory=dict)
    since: list[dict[str, _File | _Folder | None]] = field(default_factory=list)

    def after(self, changes: Sequence[dict[str, _File | _Folder | None]]) -> dict[str, _File | _Folder]:
        made: dict[str, _File | _Folder | None] = dict(self.names)
        for each in changes:
            made.update(each)
        return {name: node for name, node in made.items() if node is not None}


class Disk:
    """A folder of a disk, as it was before, to which operations are done one after the other."""

    def __init__(self, folder: Path, before: Path) -> None:
        self._top = str(folder)
        self._root = _read(before)

    def do(self, operation: Operation) -> None:
        """What the system does at a call; what is not synced stays in doubt."""
        path = operation.path
        if operation.kind == "sync":
            node = self._node(path)
            if isinstance(node, _File):
                node.content, node.since = node.after(node.since), []
            elif node is not None:
                node.names, node.since = node.after(node.since), []
        elif operation.kind in ("write", "truncate"):
            node = self._node(path)
            assert isinstance(node, _File), path
            node.since.append(operation)
        elif operation.kind == "unlink":
            self._change({path: None})
        elif operation.kind in ("create", "mkdir"):
            if self._node(path) is None:
                self._change({path: _File() if operation.kind == "create" else _Folder()})
        else:
            moved = self._node(path)
            assert moved is not None, path
            self._change(
                {path: None, operation.to: moved} if operation.kind == "rename" else {operation.to: moved}
            )

    def _change(self, changes: dict[str, _File | _Folder | None]) -> None:
        by_folder: dict[str, dict[str, _File | _Folder | None]] = {}
        for path, node in changes.items():
            folder, _, name = path.rpartition("/")
            by_folder.setdefault(folder, {})[name] = node
        for path, names in by_folder.items():
            folder_node = self._node(path)
            assert isinstance(folder_node, _Folder), path
            folder_node.since.append(names)

    def _node(self, path: str) -> _File | _Folder | None:
        node: _File | _Folder | None = self._root
        for name in path.removeprefix(self._top).split("/")[1:]:
            if not isinstance(node, _Folder):
                return None
            node = node.after(node.since).get(name)
        return node

    def now(self) -> Left:
        """What there is, synced or not."""
        return Left(_chosen(self._root, None))

    def after_crash(self, chosen: random.Random) -> Left:
        """What a crash may leave."""
        return Left(_chosen(self._root, chosen))


_Tree = dict[str, "_File | _Tree"]


@dataclass(frozen=True)
class Left:
    """What is left on a disk: folders and the content of files; a file may have several names."""

    _tree: _Tree

    def digest(self) -> bytes:
        """The same for disks on which the same is left."""
        found = hashlib.blake2b(digest_size=16)
        linked: dict[int, str] = {}
        for path, node in _walk(self._tree):
            found.update(f"{path}\0".encode())
            if isinstance(node, _File):
                first = linked.setdefault(id(node), path)
                found.update(first.encode() if first != path else b"%d\0" % len(node.content) + node.content)
        return found.digest()

    def write(self, folder: Path) -> None:
        """Makes the folder."""
        folder.mkdir()
        linked: dict[int, Path] = {}
        for path, node in _walk(self._tree):
            place = folder / path
            if not isinstance(node, _File):
                place.mkdir()
            elif id(node) in linked:
                os.link(linked[id(node)], place)
            else:
                place.write_bytes(node.content)
                linked[id(node)] = place


def _walk(tree: _Tree, above: str = "") -> Iterator[tuple[str, _File | _Tree]]:
    """Every folder and file, by name, a folder before what is in it."""
    for name, node in sorted(tree.items()):
        yield above + name, node
        if not isinstance(node, _File):
            yield from _walk(node, f"{above}{name}/")


def _read(folder: Path) -> _Folder:
    found = _Folder()
    for each in folder.iterdir():
        found.names[each.name] = _read(each) if each.is_dir() else _File(each.read_bytes())
    return found


def _chosen(node: _Folder, chosen: random.Random | None, made: dict[int, _File] | None = None) -> _Tree:
    """What of a folder came to the disk; a file that is met again is the same one."""
    made = {} if made is None else made
    tree: _Tree = {}
    for name, each in node.after(_survivors(node.since, chosen)).items():
        if isinstance(each, _Folder):
            tree[name] = _chosen(each, chosen, made)
            continue
        if id(each) not in made:
            done = _survivors(each.since, chosen)
            if chosen is not None and done and chosen.random() < 0.5 and done[-1].data:
                last = done[-1]
                torn = last.data[: chosen.randrange(len(last.data))]
                done = [*done[:-1], Operation("write", last.path, torn, last.at)]
            made[id(each)] = _File(each.after(done))
        tree[name] = made[id(each)]
    return tree


def _survivors(done: Sequence[T], chosen: random.Random | None) -> list[T]:
    """Those of the operations in doubt that came to the disk: none, all, the first ones, or any of them."""
    match chosen.randrange(4) if chosen is not None else 1:
        case 0:
            return []
        case 1:
            return list(done)
        case 2:
            return list(done[: chosen.randrange(len(done) + 1)])
        case _:
            assert chosen is not None
            return [each for each in done if chosen.random() < 0.5]
