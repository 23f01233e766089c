"""Columns with knowledge about events, by which any reader of a table can filter.

A column is asked for by a PATH from the event, `?e`, to the variable that is called as the column is. It is
answered as the PATH of a query is: with the reasoning of the knowledge, as of the time of the event, and once
for all events that agree in what the PATH asks of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kaicep.archive.parquet import LATE, PART, SEQ, TS, TableShape, events_of, known_column
from kaicep.connectors.shape import Schema
from kaicep.errors import Mistake, SourceText
from kaicep.hosts.spark.sent import Sent, sent
from kaicep.knowledge.annotation import Annotation, build_catalog
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.language.parse_chicep import parse_chi
from kaicep.optimize import optimize
from kaicep.optimize.relate_paths import relate_paths
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.terms import Iri, Literal, Term
from kaicep.query import resolve_queries

if TYPE_CHECKING:
    import numpy
    import pyarrow

    Numbers = numpy.ndarray[Any, Any]

_EVENT = "e"
_NAME = re.compile(r"[A-Za-z]\w*")


def wanted_columns(given: Sequence[str]) -> dict[str, str]:
    """The PATHs of `NAME=PATTERN` by the name of their column.

    >>> wanted_columns(["room=?e evt:hasSource/bd:hasLocation ?room"])
    {'room': '?e evt:hasSource/bd:hasLocation ?room'}
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, pattern = (part.strip() for part in each.partition("="))
        if not equals or not pattern or not _NAME.fullmatch(name) or name == _EVENT:
            hint = 'such as --materialise "room=?e evt:hasSource/bd:hasLocation ?room"'
            message = f"--materialise {each}: a column and a PATH from ?{_EVENT} to ?COLUMN are needed"
            raise Mistake(message, hint=hint)
        if name in found:
            raise Mistake(f"--materialise: the column {name} is asked for twice")
        found[name] = pattern
    return found


@dataclass
class Materialise:
    """The columns that are wanted, by name, each with its PATH; and who is asked."""

    patterns: Mapping[str, str]
    knowledge: Knowledge
    annotations: Sequence[Annotation]
    _made: dict[object, Knowing] = field(default_factory=dict, repr=False)

    def of(self, stream: str, schema: Schema) -> Knowing:
        """The columns of a stream's events."""
        key = stream, schema, self.knowledge.version
        if key not in self._made:
            self._made = {key: self._knowing(stream, schema)}
        return self._made[key]

    def _knowing(self, name: str, schema: Schema) -> Knowing:
        said = next((each for each in self.annotations if each.stream == name), None)
        if said is None or schema.rdf:
            hint = "what the attributes of its events mean is said there: --annotation FILE"
            raise Mistake(f"--materialise: no annotation speaks of the stream {name}", hint=hint)
        catalog = build_catalog([Stream(name, schema.attributes)], self.annotations, self.knowledge, ())
        stream = catalog.streams[name]
        columns = tuple(self._column(each, stream, catalog) for each in self.patterns)
        return Knowing(catalog, self.knowledge, stream, columns)

    def _column(self, name: str, stream: Stream, catalog: Catalog) -> _Column:
        text = f"SELECT ?{name}\nFROM (?{_EVENT}, {stream.name})\nWHERE PATH {{{self.patterns[name]}}}\n"
        parsed = parse_chi(SourceText(f"--materialise {name}", text), name, catalog.prefixes)
        query = resolve_queries([parsed], catalog, self.knowledge, 0)
        plan, _ = optimize(query.program.chi_plans[0], query.catalog, self.knowledge, (relate_paths,))
        conditions = plan.body.all_semantics
        if not all(each.variables == (_EVENT,) for each in conditions if name in each.selected):
            hint = f"a column says something of the event: ?{_EVENT} property ?{name}"
            raise Mistake(f"--materialise {name}: the PATH is not about ?{_EVENT}", hint=hint)
        if not all(each.alternatives for each in conditions):
            message = f"--materialise {name}: no event of {stream.name} has what the PATH asks for"
            hint = "its annotation says what it has; streams with other columns have a command of their own"
            raise Mistake(message, hint=hint)
        return _Column(name, conditions, *_asked(conditions, stream))


def _asked(conditions: Sequence[Semantic], stream: Stream) -> tuple[tuple[str, ...], bool]:
    """The attributes on which an answer depends, and whether it depends on the very time of the event."""
    relations = [each.relation for each in conditions]
    if None in relations:
        return stream.graph_attributes, True
    roots = [root for each in relations if each is not None for root in each.roots]
    names = (
        name
        for root in roots
        for found in (root.literals, root.entities)
        for name in dict(found).get(stream.name, ())
    )
    return stream.reads(*dict.fromkeys(names)), False


@dataclass(frozen=True)
class _Column:
    """A column: what decides it, the attributes that it depends on, and whether on the time itself."""

    name: str
    conditions: tuple[Semantic, ...]
    attributes: tuple[str, ...]
    timely: bool


@dataclass(frozen=True)
class Knowing:
    """Writes what is known beside the events of a stream, in this process or in any other."""

    catalog: Catalog
    knowledge: Knowledge
    stream: Stream
    columns: tuple[_Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it adds."""
        return tuple(each.name for each in self.columns)

    @cached_property
    def packed(self) -> Sent[Knowing]:
        """The same for the way to a worker."""
        return sent(replace(self))

    @cached_property
    def _relations(self) -> Relations:
        return Relations(self.catalog, self.knowledge)

    def beside(self, rows: pyarrow.Table) -> pyarrow.Table:
        """The rows of the archive with the columns.

        A value is a list of texts in order, IRIs in full; an empty one where nothing is known.
        """
        for column in self.columns:
            made = self._made(column, rows)
            place = rows.schema.get_field_index(column.name)
            rows = (
                rows.append_column(column.name, made)
                if place < 0
                else rows.set_column(place, column.name, made)
            )
        return rows

    def _made(self, column: _Column, rows: pyarrow.Table) -> pyarrow.Array:
        import pyarrow

        names = [each for each in column.attributes if each in rows.column_names]
        first, same = self._alike(rows, names, column.timely)
        few = rows.select(list(dict.fromkeys((PART, SEQ, TS, *names)))).take(pyarrow.array(first))
        few = few.append_column(LATE, pyarrow.array([False] * len(first), pyarrow.bool_()))
        shape = TableShape(tuple(each for each in self.stream.attributes if each[0] in names))
        values = [self._values(column, each) for each in events_of(self.stream.name, few, shape)]
        return pyarrow.array(values, known_column()).take(pyarrow.array(same))

    def _values(self, column: _Column, event: Event) -> list[str]:
        rows = [self._relations.solutions(each, {_EVENT: event}) for each in column.conditions]
        if not all(rows):
            return []
        values = (
            row[each.selected.index(column.name)]
            for each, some in zip(column.conditions, rows, strict=True)
            if column.name in each.selected
            for row in some
        )
        return sorted({text for each in values if (text := _text(each)) is not None})

    def _alike(self, rows: pyarrow.Table, names: Sequence[str], timely: bool) -> tuple[Numbers, Numbers]:
        """One row of each kind, and of which kind each row is: they agree in attributes and in time."""
        import numpy
        import pyarrow

        times = rows.column(TS).cast(pyarrow.int64()).to_numpy()
        codes = times if timely else numpy.searchsorted(numpy.array(self.knowledge.epochs), times, "right")
        for name in names:
            column = rows.column(name).combine_chunks()
            if pyarrow.types.is_floating(column.type):
                column = column.view(pyarrow.int64())  # since 0.0 and -0.0 are written differently
            encoded = column.dictionary_encode()
            values = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            _, codes = numpy.unique(codes, return_inverse=True)
            codes = codes * (len(encoded.dictionary) + 1) + values
        _, first, same = numpy.unique(codes, return_index=True, return_inverse=True)
        return first, same


def _text(term: Term | None) -> str | None:
    """A term as a reader would search for it; a blank node has no name that anybody else could use."""
    if isinstance(term, Iri):
        return term.value
    return term.lexical if isinstance(term, Literal) else None
