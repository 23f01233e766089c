"""A match where somebody saw it: in a file of results, or in what a file or Delta sink has written."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Mistake
from kaicep.plan.events import Match
from kaicep.plan.time import parse_time
from kaicep.storage.places import options_of

__all__ = ["match_of", "only_one", "seen_in"]

# Of CSV and Parquet no other column: there, selected ones have names of their own choice.
_COLUMNS = ("query", "id", "start", "end", "events")
_FORMS = "results are JSON Lines, CSV, Parquet, or the folder of a Delta sink"


def seen_in(places: Iterable[Path], id: str) -> list[Match]:
    """The matches there whose id begins with `id`, each once. Of all others nothing is made."""
    wanted = id.lower()
    found: dict[str, Match] = {}
    for path in places:
        for row in _rows(path, wanted):
            if str(row.get("id", "")).startswith(wanted):
                match = match_of(row, path)
                found[match.id] = match
    return list(found.values())


def only_one(matches: Sequence[Match], id: str) -> Match | None:
    """The one match of these; None where there is none, a mistake where it could be several.

    >>> only_one([Match("hot", "f3a1", 0, 0)], "f3").id
    'f3a1'
    """
    if len(matches) > 1:
        raise Mistake(
            Diagnostic(f"{len(matches)} matches have an id that begins with {id}", hint="give more of it")
        )
    return matches[0] if matches else None


def match_of(row: Mapping[str, Any], path: Path | str) -> Match:
    """The match of a row of results; the selected values only where they are together, as in JSON Lines.

    >>> row = {"query": "hot", "id": "f3", "start": "1970-01-01", "end": "1970-01-01T00:00:01"}
    >>> match_of(row, "matches.jsonl").end_us
    1000000
    """
    try:
        times = [parse_time(row[name]) for name in ("start", "end")]
        query, id = str(row["query"]), str(row["id"])
    except (KeyError, TypeError):
        raise _no_results(path) from None
    start, end = times
    if start is None or end is None:
        raise _no_results(path)
    given = row.get("select")
    select = dict(given) if isinstance(given, Mapping) else {}
    return Match(query, id, start, end, select, _events(row, path), version=row.get("knowledge"))


def _events(row: Mapping[str, Any], path: Path | str) -> Any:
    """The events by variable; tables and CSV have them as JSON."""
    value = row.get("events") or None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise _no_results(path) from None


def _no_results(path: Path | str) -> Mistake:
    return Mistake(Diagnostic(f"{path} holds no matches that can be read", hint=_FORMS))


def _rows(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    """The rows that may be the one; times are texts in all of them."""
    try:
        if path.is_dir():
            yield from _delta(path, wanted)
        elif path.suffix.lower() == ".parquet":
            yield from _parquet(path, wanted)
        elif path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {name: row.get(name) for name in _COLUMNS}
        else:
            yield from _json_lines(path, wanted)
    except OSError as error:
        raise Mistake(Diagnostic(f"cannot read the results {path}: {error.strerror or error}")) from None
    except UnicodeDecodeError:
        raise _no_results(path) from None
    except ImportError as error:
        hint = "pip install 'kaicep[delta]'"
        raise Mistake(Diagnostic(f"the results {path} need the package {error.name}", hint=hint)) from None


def _json_lines(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    needle = f'"{wanted}'.encode()
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0 and not line.lstrip().startswith(b"{"):
                raise _no_results(path)
            if needle not in line:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a line that a running sink has not finished
            if isinstance(row, dict):
                yield row


def _parquet(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.dataset

    try:
        yield from _filtered(pyarrow.dataset.dataset(str(path), format="parquet"), _COLUMNS, wanted)
    except pyarrow.ArrowException:
        raise _no_results(path) from None


def _delta(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        raise _no_results(path)
    table = DeltaTable(str(path), storage_options=options_of(path))
    yield from _filtered(table.to_pyarrow_dataset(), (*_COLUMNS, "knowledge"), wanted)


def _filtered(rows: Any, columns: Sequence[str], wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow.compute as pc

    names = [name for name in columns if name in rows.schema.names]
    if "id" not in names:
        return
    found = rows.to_table(columns=names, filter=pc.starts_with(pc.field("id"), wanted))
    for row in found.to_pylist():
        yield {**row, **{name: row[name].isoformat() for name in ("start", "end") if row.get(name)}}
