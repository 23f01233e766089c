"""A Delta table as a sink, exactly once: matches, mark and the number of the commit in one transaction.

The number stands under the sink's own name (an application transaction, in the words of Delta), so that
several sinks may write to one table. Every Delta reader can read it.
"""

from __future__ import annotations

import io
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.registry import Anywhere
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match
from kaicep.plan.time import format_time
from kaicep.storage.delta import FILES, check_entries, checkpoint, mend, quietly, settle, write_parquet
from kaicep.storage.disk import make_folder, sync_folder
from kaicep.storage.places import options_of

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

_log = logging.getLogger("kaicep.run")

_MARK, _SINK, _TRY = "kaicep.mark", "kaicep.sink", "kaicep.try"


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """The folder of the table, or its place on a store."""

    path: Anywhere


class DeltaSink(Sink):
    """Appends matches to a Delta table: query, id, start, end, and as JSON what was selected, and events."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, name: str, options: DeltaOptions) -> None:
        self._name = f"kaicep/{name}"
        self._where = f"sink {name}"
        self._path: Path = options.path
        self._table: DeltaTable | None = None
        self._version: int | None = None
        self._waiting: list[Match] = []
        self._unanswered: tuple[str, int] | None = None  # the name of a try, and how many matches it had

    def open(self) -> Mark | None:
        """Opens the table, or makes it; gives the mark of this sink's last commit."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        self._waiting = []
        try:
            for each in mend(self._path):
                _log.warning("%s: removed what a crash had left half-written: %s", self._where, each)
            place, reached = str(self._path), options_of(self._path)
            if DeltaTable.is_deltatable(place, reached):
                check_entries(self._path)
                table = DeltaTable(place, storage_options=reached)
            else:
                make_folder(self._path)
                table = DeltaTable.create(place, match_schema(), mode="ignore", storage_options=reached)
            settle(self._path, table.version() - 1, table.version())
        except (DeltaError, OSError) as error:
            raise Mistake(f"{self._where}: {self._path} cannot be opened as a Delta table: {error}") from None
        missing = set(match_schema().names) - {each.name for each in table.schema().fields}
        if missing:
            raise Mistake(f"{self._where}: {self._path} is not a table of matches: it lacks {min(missing)}")
        self._table = table
        self._version = table.transaction_version(self._name)
        return None if self._version is None else self._last_mark(table)

    def _last_mark(self, table: DeltaTable) -> Mark:
        for commit in table.history():
            if commit.get(_SINK) == self._name:
                mark: Mark = json.loads(commit[_MARK])
                return mark
        raise Failure(
            f"{self._where}: {self._path} has commit {self._version} of this sink, but its history no longer "
            "tells with which mark"
        )

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches; they go to the table with the next commit."""
        self._waiting += matches

    def commit(self, mark: Mark) -> None:
        """Adds the matches to the table. Without any there is nothing to commit: the last mark still holds.

        Going on from an older mark would only find again that nothing matched.
        """
        from deltalake.exceptions import DeltaError

        assert self._table is not None, "open comes first"
        try:
            self._table.update_incremental()
            self._settle(self._table)
            if self._waiting:
                self._append(self._table, mark)
        except (DeltaError, OSError) as error:
            raise Failure(f"{self._where}: {self._path} did not take a commit: {error}") from None

    def _settle(self, table: DeltaTable) -> None:
        """Finds out whether a try without an answer succeeded, and that nobody else uses this name."""
        found = table.transaction_version(self._name)
        if found == self._version:
            return
        if self._unanswered is not None and found == self._next:
            name, count = self._unanswered
            if any(commit.get(_TRY) == name for commit in table.history()):
                self._done(count)
                return
        raise Failure(
            f"{self._where}: another process writes {self._path} under this name: its commit {found} came "
            f"after {self._version}, our own; give each sink of a table its own name"
        )

    def _append(self, table: DeltaTable, mark: Mark) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        name, count = uuid.uuid4().hex, len(self._waiting)
        self._unanswered = (name, count)
        file = write_parquet(self._path, match_rows(self._waiting), name)
        sync_folder(self._path)
        stats = json.dumps({"numRecords": count})
        size, now = (self._path / file).stat().st_size, int(time.time() * 1_000)
        before = table.version()
        table.create_write_transaction(
            [AddAction(quote(file), size, {}, now, True, stats)],
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                custom_metadata={
                    _SINK: self._name,
                    _MARK: json.dumps(dict(mark)),
                    _TRY: name,
                    FILES: "1",
                },
                app_transactions=[Transaction(self._name, self._next)],
            ),
            post_commithook_properties=quietly(),
        )
        table.update_incremental()
        settle(self._path, before, table.version())
        checkpoint(table, self._path, before)
        self._done(count)

    @property
    def _next(self) -> int:
        return 0 if self._version is None else self._version + 1

    def _done(self, count: int) -> None:
        self._version = self._next
        del self._waiting[:count]
        self._unanswered = None

    def close(self) -> None:
        """Lets go of the table."""
        self._table = None
        self._waiting = []


def match_schema() -> pyarrow.Schema:
    """The columns of a table of matches."""
    import pyarrow

    text, time = pyarrow.string(), pyarrow.timestamp("us", "UTC")
    return pyarrow.schema(
        [
            ("query", text),
            ("id", text),
            ("start", time),
            ("end", time),
            ("select", text),
            ("events", text),
            ("triples", pyarrow.list_(text)),
            ("knowledge", pyarrow.int64()),
        ]
    )


def match_rows(matches: Sequence[Match]) -> pyarrow.Table:
    """Matches as rows of such a table."""
    import pyarrow
    import pyarrow.json

    # By way of JSON, since arrays made of Python lists would import pandas, which takes a second.
    rows = b"".join(_json(_row(each)).encode() + b"\n" for each in matches)
    return pyarrow.json.read_json(
        io.BytesIO(rows),
        pyarrow.json.ReadOptions(block_size=len(rows) + 1),
        pyarrow.json.ParseOptions(explicit_schema=match_schema(), unexpected_field_behavior="error"),
    )


def _row(match: Match) -> dict[str, Any]:
    return {
        "query": match.query,
        "id": match.id,
        "start": format_time(match.start_us),
        "end": format_time(match.end_us),
        "select": None if match.triples is not None else _json(match.select),
        "events": None if match.events is None else _json(match.events),
        "triples": None if match.triples is None else list(match.triples),
        "knowledge": match.version,
    }


def match_of_row(row: Mapping[str, Any]) -> Match:
    """The match that a row of such a table has."""
    return Match(
        row["query"],
        row["id"],
        _micros(row["start"]),
        _micros(row["end"]),
        {} if row["select"] is None else json.loads(row["select"]),
        None if row["events"] is None else json.loads(row["events"]),
        None if row["triples"] is None else tuple(row["triples"]),
        row["knowledge"],
    )


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
