"""Delta tables of an archive: commits of rows and positions together, dead letters, attached tables."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from kaicep.archive.parquet import (
    LATE,
    PART,
    SEQ,
    TS,
    DataFile,
    add_action,
    discard,
    listed,
    moments,
    write_files,
)
from kaicep.errors import Failure, Mistake
from kaicep.storage.delta import (
    FILES,
    check_entries,
    checkpoint,
    mend,
    parquet_dataset,
    prune,
    quietly,
    settle,
)
from kaicep.storage.disk import make_folder, read_sealed, replace_sealed
from kaicep.storage.places import options_of, place_of

if TYPE_CHECKING:
    import pyarrow

# ----------------------------------------------------------------------------------------------------------
# What a table knows besides its rows: it travels with every commit, so that it is never apart from them.

Ranges = Mapping[str, tuple[int, int]]
"""What a batch covers of each part: from its first position to the one after its last. A position without a
row is one that held nothing to keep: a bad record, a blank line."""


@dataclass(frozen=True)
class TableState:
    """By part: the next position, the largest `ts` so far (late marks hang on it), the name of the source.

    `expired` is the time before which events were removed. `progress` is of a table of matches: how far they
    answer, and what goes on from there. `attached` is the list of the files of a table that is read beside
    this one (`AttachedTable`).
    """

    next: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    expired: int | None = None
    progress: Mapping[str, Any] | None = None
    attached: str | None = None

    def text(self) -> str:
        """The state as a commit carries it."""
        return json.dumps(
            {
                "next": dict(self.next),
                "newest": dict(self.newest),
                "sources": dict(self.sources),
                "expired": self.expired,
                **({} if self.progress is None else {"progress": self.progress}),
                **({} if self.attached is None else {"attached": self.attached}),
            },
            sort_keys=True,
        )

    @classmethod
    def parse(cls, text: str) -> TableState:
        """The state that a commit carries."""
        found = json.loads(text)
        rest = {name: found.get(name) for name in ("progress", "attached")}
        return cls(found["next"], found["newest"], found["sources"], found["expired"], **rest)


def fresh(name: str, state: TableState, ranges: Ranges) -> dict[str, tuple[int, int]]:
    """What of a batch is not there yet; a batch that begins beyond what is there leaves a hole, and fails.

    A part that has sent nothing yet is news, too: whoever goes on from here waits for it.

    >>> fresh("meter", TableState({"0": 5, "1": 2}), {"0": (3, 8), "1": (0, 2), "2": (0, 0)})
    {'0': (5, 8), '2': (0, 0)}
    """
    found: dict[str, tuple[int, int]] = {}
    for part, (first, after) in ranges.items():
        held = state.next.get(part, 0)
        if first > held:
            raise Failure(
                f"{name}: the archive holds part {part} up to position {held}, and this batch begins at "
                f"{first}: the events between are missing"
            )
        if after > held or part not in state.next:
            found[part] = held, after
    return found


def moved(
    name: str,
    state: TableState,
    new: Ranges,
    newest: Mapping[str, int],
    sources: Mapping[str, str],
) -> TableState:
    """The state after a batch: `new` is what it adds, `newest` its largest times by part."""
    for part, source in sources.items():
        known = state.sources.get(part, source)
        if known != source:
            raise Mistake(
                f"{name}: part {part} is {known} in the archive, and {source} here",
                hint="a file's place among the others is the part of its events: new files come after "
                "the old ones by name, and none is renamed or removed; files beside a source of another "
                "kind are its history: kaicep ingest --history",
            )
    largest = dict(state.newest)
    for part, ts in newest.items():
        largest[part] = max(ts, largest.get(part, ts))
    positions = {**state.next, **{part: after for part, (_, after) in new.items()}}
    return replace(state, next=positions, newest=largest, sources={**state.sources, **sources})


# ----------------------------------------------------------------------------------------------------------
# One Delta table and the state that its commits carry: committed whole, by one writer at a time.
#
# Delta lets two writers append side by side. Here the second must look again first, since what the first
# has added may be the very events that it holds. So a commit is for one version and no other: it fails
# where another writer was quicker, and `attempts` tries again from what is there by then.

ATTEMPTS = 20
"""How often a commit is tried while others are quicker."""

APPLICATION = "kaicep"
_STATE = "kaicep"
_CONFIGURATION = {
    "delta.dataSkippingStatsColumns": "ts",
    # A deployment commits several times a second: what is remembered of old versions must not grow for weeks.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}

T = TypeVar("T")


class Conflict(Exception):
    """Another writer has committed in between; nothing has happened."""


def attempts(name: str, what: Callable[[], T]) -> T:
    """Does something that ends in a commit, again from the start where another writer was quicker."""
    for attempt in range(ATTEMPTS):
        try:
            return what()
        except Conflict:
            time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 5)))
    raise Failure(f"{name}: other writers were faster {ATTEMPTS} times in a row; nothing was changed")


class ArchiveTable:
    """A Delta table in a folder, at one of its versions."""

    def __init__(self, folder: Path, name: str, version: int | None = None) -> None:
        self.folder = folder
        self.name = name
        self._delta = _opened(folder, version)
        self._state: TableState | None = None
        self._settled = self.version - 1
        """What is known to be on the disk: the newest commit may be of a process that died before it was."""

    @classmethod
    def exists(cls, folder: Path) -> bool:
        """Whether there is a table in a folder."""
        table = _delta().DeltaTable
        return (folder / "_delta_log").is_dir() and table.is_deltatable(str(folder), options_of(folder))

    @classmethod
    def create(
        cls, folder: Path, name: str, schema: pyarrow.Schema, about: Mapping[str, str] | None = None
    ) -> ArchiveTable:
        """Makes a table, or opens it where another writer was quicker."""
        delta = _delta()
        try:
            make_folder(folder)
            mend(folder)
            if cls.exists(folder):
                return cls(folder, name)
            delta.DeltaTable.create(
                str(folder),
                schema,
                name=name,
                configuration={**_CONFIGURATION, **(about or {})},
                commit_properties=delta.CommitProperties(custom_metadata={_STATE: TableState().text()}),
                raise_if_key_not_exists=False,
                storage_options=options_of(folder),
            )
            settle(folder, -1, 0)
        except (delta.exceptions.DeltaError, OSError) as error:
            if not cls.exists(folder):
                raise Failure(f"cannot make the table {folder}: {error}") from None
        return cls(folder, name)

    @property
    def version(self) -> int:
        """The version that is looked at."""
        return int(self._delta.version())

    @property
    def id(self) -> str:
        """What tells it from every other table, also from one that is made in its place."""
        return str(self._delta.metadata().id)

    @property
    def schema(self) -> pyarrow.Schema:
        """Its columns."""
        import pyarrow

        return pyarrow.schema(self._delta.schema().to_arrow())

    @property
    def about(self) -> Mapping[str, str]:
        """What was said of it when it was made."""
        return dict(self._delta.metadata().configuration)

    @property
    def state(self) -> TableState:
        """What the version knows besides its rows."""
        if self._state is None:
            self._state = self._read_state()
        return self._state

    def _read_state(self) -> TableState:
        """From the last commit; those of other tools carry nothing, and change nothing that matters here."""
        for version in range(self.version, -1, -1):
            try:
                lines = (self.folder / "_delta_log" / f"{version:020d}.json").read_text("utf-8").splitlines()
            except FileNotFoundError:
                break
            for line in lines:
                told = json.loads(line).get("commitInfo", {}).get(_STATE)
                if told is not None:
                    return TableState.parse(told)
        raise Failure(f"{self.folder} is a Delta table, but not of an archive: no commit tells its positions")

    def refresh(self) -> None:
        """Looks at the newest version."""
        before = self.version
        try:
            self._delta.update_incremental()
        except (_delta().exceptions.DeltaError, OSError) as error:
            raise Failure(f"cannot read {self.folder}: {error}") from None
        if self.version != before:
            check_entries(self.folder, range(before + 1, self.version + 1))
            self._state = None

    def settle(self) -> None:
        """Returns when the version that is looked at is on the disk."""
        settle(self.folder, self._settled, self.version)
        self._settled = self.version

    def files(self) -> list[DataFile]:
        """The files of the version, by time."""
        import pyarrow

        return listed(pyarrow.table(self._delta.get_add_actions(flatten=True)))

    def commit(
        self,
        state: TableState,
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
        data_change: bool = True,
    ) -> None:
        """Makes the next version; `Conflict` where there is one already."""
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1_000)
        actions: list[Any] = [add_action(each, data_change) for each in add]
        actions += [RemoveAction(each.path, data_change, now, each.size, {}) for each in remove]
        self._committed(
            lambda properties: self._delta.create_write_transaction(
                actions,
                "append",
                self._delta.schema(),
                commit_properties=properties,
                post_commithook_properties=quietly(),
            ),
            state,
            len(actions),
        )

    def drop(self, paths: Iterable[str]) -> None:
        """Removes files of a commit that failed, unless it came to pass all the same.

        What fails, or is interrupted, after the log was written leaves rows that are there for good. Where
        that cannot be told, files stay: `kaicep archive compact` removes what nobody speaks of.
        """
        with suppress(Exception):
            self.refresh()
            spoken = {each.path for each in self.files()}
            discard(self.folder, (each for each in paths if each not in spoken))

    def add_columns(self, fields: Iterable[pyarrow.Field]) -> None:
        """Adds columns, which are null in all rows that are there."""
        import pyarrow

        schema = _delta().Schema.from_arrow(pyarrow.schema(list(fields)))
        self._committed(
            lambda properties: self._delta.alter.add_columns(
                schema.fields, commit_properties=properties, post_commithook_properties=quietly()
            ),
            self.state,
        )

    def vacuum(self, hours: int) -> list[str]:
        """Removes files that no version of the last hours speaks of, also those that no commit ever did."""
        removed = self._delta.vacuum(
            hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
            commit_properties=self._properties(self.state),
            post_commithook_properties=quietly(),
        )
        self._done()
        prune(self.folder)
        return list(removed)

    def _committed(self, commit: Callable[[Any], object], state: TableState, files: int = 0) -> None:
        delta = _delta()
        try:
            commit(self._properties(state, files))
        except delta.exceptions.CommitFailedError as error:
            before = self.version
            self.refresh()
            if self.version == before:
                raise Failure(f"cannot commit to {self.folder}: {error}") from None
            raise Conflict from None
        except (delta.exceptions.DeltaError, OSError) as error:
            raise Failure(f"cannot commit to {self.folder}: {error}") from None
        self._done()

    def _done(self) -> None:
        """Looks at what was committed; returns when that is on the disk."""
        before = self._settled
        try:
            self.refresh()
            self._state = None
            self.settle()
            checkpoint(self._delta, self.folder, before)
        except OSError as error:
            raise Failure(f"cannot write to {self.folder}: {error}") from None

    def _properties(self, state: TableState, files: int | None = None) -> Any:
        """What every commit carries; the application's transaction is the version that it makes."""
        delta = _delta()
        return delta.CommitProperties(
            custom_metadata={_STATE: state.text(), **({} if files is None else {FILES: str(files)})},
            max_commit_retries=0,
            app_transactions=[delta.Transaction(APPLICATION, self.version + 1)],
        )


def _opened(folder: Path, version: int | None) -> Any:
    delta = _delta()
    if version is None:
        check_entries(folder)
    try:
        return delta.DeltaTable(str(folder), version=version, storage_options=options_of(folder))
    except (delta.exceptions.DeltaError, OSError) as error:
        what = f"version {version} of {folder}" if version is not None else str(folder)
        raise Failure(f"cannot read {what}: {error}") from None


def _delta() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise Mistake("an archive needs the package deltalake", hint="pip install 'kaicep[delta]'") from None
    return deltalake


# ----------------------------------------------------------------------------------------------------------
# The dead letters of an archive: one table for all streams, each record in it once.

DEAD_LETTERS = "_dead_letters"
_NUMBERS = ("part", "seq", "line")
_TEXTS = ("stream", "file", "reason", "record")


class DeadLetters:
    """The table of the records that could not be read; it is made when the first one comes.

    Its positions are its own, by stream and part, so that a crash between it and the stream's table
    leaves neither of them with anything twice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(
        self, stream: str, letters: Sequence[Mapping[str, Any]], ranges: Mapping[int, tuple[int, int]]
    ) -> int:
        """Adds the letters of a batch that are not there yet; says how many."""
        import pyarrow

        if not letters and not ArchiveTable.exists(self.folder):
            return 0
        schema = self._schema()
        table = ArchiveTable.create(self.folder, DEAD_LETTERS, schema)
        covered = {f"{stream}/{part}": found for part, found in ranges.items()}

        def once() -> int:
            table.refresh()
            held = table.state.next
            # A part is first heard of here when its first letter comes.
            begun = {each: (min(first, held.get(each, 0)), after) for each, (first, after) in covered.items()}
            new = fresh(stream, table.state, begun)
            kept = [
                each
                for each in letters
                if each["seq"] >= new.get(f"{stream}/{each['part']}", (each["seq"] + 1, 0))[0]
            ]
            if not kept:
                return 0
            rows = pyarrow.Table.from_pylist(
                [{name: each[name] for name in schema.names} for each in kept], schema
            )
            try:
                files = write_files(self.folder, rows)
            except OSError as error:
                raise Failure(f"cannot write to {self.folder}: {error}") from None
            try:
                table.commit(moved(stream, table.state, new, {}, {}), files)
            except BaseException:
                table.drop(each.path for each in files)
                raise
            return len(kept)

        return attempts(DEAD_LETTERS, once)

    def read(self) -> list[dict[str, Any]]:
        """All of them, by stream, part and position."""
        if not ArchiveTable.exists(self.folder):
            return []
        files = [self.folder / each.path for each in ArchiveTable(self.folder, DEAD_LETTERS).files()]
        found = parquet_dataset(files, self._schema()).to_table()
        by = [(name, "ascending") for name in ("stream", "part", "seq")]
        rows: list[dict[str, Any]] = found.sort_by(by).to_pylist()
        return rows

    def _schema(self) -> pyarrow.Schema:
        import pyarrow

        numbers = [(name, pyarrow.int64()) for name in _NUMBERS]
        return pyarrow.schema(
            [("stream", pyarrow.string()), *numbers, *((n, pyarrow.string()) for n in _TEXTS[1:])]
        )


# ----------------------------------------------------------------------------------------------------------
# Existing tables as the history of a stream: they stay where they are, and kaicep only reads them.
#
# The archive keeps a list of their files, with the times and the rows of each, beside its own table. A
# commit names the list, so that it counts from then on, together with the positions of its events.


@dataclass(frozen=True)
class AttachedFile:
    """A file of such a table: where it is, its events; the part that it is, unless a column says so.

    `values` are those of columns that stand in its path, as in a table that is divided by them.
    """

    path: str
    rows: int
    size: int
    low: int | None
    high: int | None
    part: int | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class AttachedTable:
    """A table as it was when it was attached; `identity` are the columns of part and seq, if it has them."""

    place: str
    version: int | None
    time: str
    identity: tuple[str, ...]
    files: tuple[AttachedFile, ...]

    def write(self, folder: Path) -> str:
        """Writes it down beside a table; the name under which a commit may speak of it."""
        name = f"_attached-{uuid4().hex}.json"
        replace_sealed(folder / name, json.dumps(asdict(self)).encode())
        return name

    @classmethod
    def read(cls, path: Path) -> AttachedTable:
        """What was written down."""
        try:
            found = json.loads(read_sealed(path))
        except OSError as error:
            raise Failure(f"the list of the files of an attached table is gone: {error}") from None
        files = tuple(AttachedFile(**each) for each in found.pop("files"))
        return cls(**{**found, "identity": tuple(found["identity"]), "files": files})

    @cached_property
    def listed(self) -> list[DataFile]:
        """Its files as a table of the archive lists its own."""
        return [DataFile(each.path, each.rows, each.size, each.low, each.high) for each in self.files]

    def batches(self, path: str, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """The events of a file with the columns of the archive; rows without a time are none."""
        import pyarrow.compute as pc

        file = self._by_path[path]
        first = 0
        for batch in parquet_dataset([place_of(path, "the table")]).to_batches(batch_readahead=1):
            rows = self._events(file, first, batch, schema)
            first += batch.num_rows
            kept = rows.filter(pc.and_(pc.is_valid(rows.column(TS)), pc.is_valid(rows.column(SEQ))))
            yield from kept.to_batches()

    @cached_property
    def _by_path(self) -> dict[str, AttachedFile]:
        return {each.path: each for each in self.files}

    def _events(
        self, file: AttachedFile, first: int, batch: pyarrow.RecordBatch, schema: pyarrow.Schema
    ) -> pyarrow.Table:
        import numpy
        import pyarrow

        count = batch.num_rows
        said = {name: pyarrow.repeat(pyarrow.scalar(value), count) for name, value in file.values.items()}
        told = {**said, **{name: batch.column(name) for name in batch.schema.names}}
        if self.identity:
            part, seq = (told.get(name) for name in self.identity)
        else:
            part = pyarrow.repeat(pyarrow.scalar(file.part), count)
            seq = pyarrow.array(numpy.arange(first, first + count))
        own = {PART: part, SEQ: seq, LATE: pyarrow.repeat(pyarrow.scalar(False), count)}
        own[TS] = told.get(self.time)
        columns = []
        for each in schema:
            found = own.get(each.name, told.get(each.name))
            if found is None:
                found = pyarrow.nulls(count, each.type)
            columns.append(typed(found, each.type, each.name))
        return pyarrow.Table.from_arrays(columns, schema=schema)


def typed(values: pyarrow.Array, wanted: pyarrow.DataType, name: str) -> pyarrow.Array:
    """A column as the archive has it: times are UTC microseconds, NaN and infinities are null."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        if wanted == moments() and not pyarrow.types.is_timestamp(values.type):
            values = values.cast(pyarrow.timestamp("us"))
        if pyarrow.types.is_timestamp(values.type):
            values = values.cast(pyarrow.timestamp("us", values.type.tz), safe=False)
        made = values.cast(wanted)
    except pyarrow.ArrowException:
        raise Failure(f"the column {name} of the table is {values.type}, and not {wanted}") from None
    if pyarrow.types.is_floating(wanted):
        made = pc.if_else(pc.is_finite(made), made, pyarrow.scalar(None, wanted))
    return made
