"""The state of a compiled window as bytes: a line that says what it is, a document, and columns.

A sliding window saves its events, partition by partition: their times and what is aggregated of them. A
batch saves what it has aggregated, group by group. Strings are texts, numbers are little-endian int64, keys
are sorted: the same state is the same bytes on every machine. To load it, events are fed to a kernel for
the same shape whose expressions are plain columns, so that rings, sums and hashes come about as always.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.codec import decode_with, encode_with
from kaicep.kernel.columns import NO_TIME, Array, Column, Table, column_of
from kaicep.kernel.compiled.expressions import Inputs
from kaicep.kernel.compiled.sums import FAR
from kaicep.kernel.compiled.window_shape import Layout, Shape
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import Scan
from kaicep.plan.types import Type, Value
from kaicep.plan.typing import type_of

if TYPE_CHECKING:
    from kaicep.kernel.compiled.windows import CompiledWindow, Records

__all__ = ["load", "plain_shape", "save"]

KIND = "compiled-window"


class _Writer:
    """Gathers columns of int64, and the texts that they refer to."""

    def __init__(self, known: Sequence[str]) -> None:
        self.columns: list[Array] = []
        self.names: list[list[Any]] = []
        self.texts: dict[str, int] = {}
        self._known = known

    def add(self, name: str, values: Array, type: Type | None = None) -> None:
        """Adds a column."""
        if type is Type.STRING:
            codes, inverse = np.unique(values, return_inverse=True)
            texts = [self._text(code) for code in codes.tolist()]
            values = np.array(texts, np.int64)[inverse]
        self.columns.append(values.astype("<i8"))
        self.names.append([name, len(values)])

    def _text(self, code: int) -> int:
        return -1 if code < 0 else self.texts.setdefault(self._known[code], len(self.texts))

    def encoded(self, document: dict[str, Any]) -> bytes:
        """The whole."""
        document |= {"columns": self.names, "texts": list(self.texts)}
        return encode_with(KIND, document, b"".join(each.tobytes() for each in self.columns))


def _described(operator: CompiledWindow) -> dict[str, Any]:
    """What a state must have in common with the query that goes on from it."""
    shape = operator.shape
    return {
        "kind": shape.node.window.kind,
        "timed": shape.timed,
        "partition": [str(type_of(each)) for each in shape.node.partition],
        "group": [str(type_of(each)) for each in shape.node.group_by],
        "arguments": [[repr(each.expr), sorted(each.kinds)] for each in shape.arguments],
        "fields": [repr(each) for each in shape.fields],
    }


def save(operator: CompiledWindow) -> bytes:
    """The state."""
    writer = _Writer(operator.strings.texts)
    saved = _save_sliding if operator.shape.sliding else _save_batch
    document = {"shape": _described(operator), "now": str(operator.now)}
    return writer.encoded(document | saved(operator, writer))


# --- keys --------------------------------------------------------------------------------------------------


def _keys(
    operator: CompiledWindow, records: Records, slots: Array, types: Sequence[Type]
) -> list[list[Value]]:
    """The keys of some records, as Python has them."""
    words = records.keys.reshape(-1, records.key_words)[slots]
    place = 0 if records.direct else records.key_words - sum(1 + (each is Type.INT64) for each in types)
    columns = []
    for type in types:
        data = words[:, place]
        place += 1
        if type is Type.INT64:
            columns.append(Column(type, data, words[:, place] == 0).values(operator.strings))
            place += 1
        elif type is Type.FLOAT64:
            data = np.where(data == NO_TIME, np.nan, data.view(np.float64))
            columns.append(Column(type, data).values(operator.strings))
        else:
            columns.append(Column(type, data).values(operator.strings))
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in slots]


def _live(records: Records, layout: Layout, used: int) -> Array:
    """The records that hold something."""
    return np.flatnonzero(records.ints(used)[:, layout.int32("ring.count")] > 0)


def _sorted(keys: list[list[Value]]) -> Array:
    return np.array(sorted(range(len(keys)), key=lambda each: json.dumps(keys[each])), np.int64)


def _types(exprs: Sequence[Any]) -> list[Type]:
    return [type_of(each) for each in exprs]  # type: ignore[misc]


# --- sliding -----------------------------------------------------------------------------------------------


def _save_sliding(operator: CompiledWindow, writer: _Writer) -> dict[str, Any]:
    shape, arena = operator.shape, operator.arena
    grouped = shape.grouped
    records = operator.outer if grouped else operator.inner
    layout = shape.outer if grouped else shape.inner
    slots = _live(records, layout, operator.used(records))
    keys = _keys(operator, records, slots, _types(shape.node.partition))
    order = _sorted(keys)
    slots = slots[order]
    counts, at = _entries(records, layout, slots, operator.used(records), 2 if grouped else shape.width)
    document: dict[str, Any] = {"keys": [keys[each] for each in order.tolist()]}
    writer.add("counts", counts)
    writer.add("ts", arena[at])
    if grouped:
        groups = arena[at + 1]
        own, first, number = np.unique(groups, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))
        by_rank = np.argsort(first)
        names = _keys(operator, operator.inner, own[by_rank], _types(shape.node.group_by))
        document["groups"] = names
        writer.add("group", rank[number])
        _, inside = _entries(operator.inner, shape.inner, own, operator.used(operator.inner), shape.width)
        # The entries of a group stand in the order of the partition's.
        at = np.empty(len(groups), np.int64)
        at[np.argsort(groups, kind="stable")] = inside
    for place, argument in enumerate(shape.stored):
        writer.add(f"argument{argument.number}", arena[at + shape.offset + place], argument.type)
    if shape.nulls is not None:
        writer.add("nulls", arena[at + shape.nulls])
    return document


def _entries(records: Records, layout: Layout, slots: Array, used: int, width: int) -> tuple[Array, Array]:
    """How many entries the rings of some records have, and where all of them stand."""
    ring = layout.int32("ring")
    base, mask, head, count = records.ints(used)[slots][:, ring : ring + 4].astype(np.int64).T
    first = np.repeat(np.cumsum(count) - count, count)
    place = np.arange(count.sum()) - first + np.repeat(head, count)
    return count, np.repeat(base, count) + width * (place & np.repeat(mask, count))


# --- batches -----------------------------------------------------------------------------------------------


def _save_batch(operator: CompiledWindow, writer: _Writer) -> dict[str, Any]:
    shape = operator.shape
    records, layout = operator.inner, shape.inner
    used = operator.used(records)
    slots = _live(records, layout, used)
    groups = _keys(
        operator, records, slots, _types(shape.node.group_by if shape.grouped else shape.node.partition)
    )
    keys = groups
    if shape.grouped:
        outer = records.ints(used)[slots][:, layout.int32("outer")]
        partitions = _keys(operator, operator.outer, outer, _types(shape.node.partition))
        keys = [[*one, *other] for one, other in zip(partitions, groups, strict=True)]
    order = _sorted(keys)
    slots = slots[order]
    types = _text_names(shape)
    for name in _long_names(shape):
        writer.add(name, records.longs(used)[slots, layout.int64(name)], types.get(name))
    for name in _int_names(layout):
        writer.add(name, records.ints(used)[slots, layout.int32(name)])
    if shape.grouped:
        owner = outer[order]
        outer_used = operator.used(operator.outer)
        for name in shape.outer.longs[1:]:
            writer.add(f"window.{name}", operator.outer.longs(outer_used)[owner, shape.outer.int64(name)])
        count = operator.outer.ints(outer_used)[owner, shape.outer.int32("ring.count")]
        writer.add("window.ring.count", count)
    for argument in shape.arguments:
        number = argument.number
        if argument.summed and argument.type is Type.FLOAT64:
            ints = records.ints(used)[slots]
            far = ints[ints[:, layout.int32(f"fars{number}")] > 0, layout.int32(f"far{number}")]
            writer.add(f"digits{number}", operator.far.reshape(-1, FAR)[far].ravel())
        if "DISTINCT" in argument.kinds:
            ring = layout.int32(f"DISTINCT{number}")
            base, _, _, count = records.ints(used)[slots][:, ring : ring + 4].astype(np.int64).T
            at = np.repeat(base, count) + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            writer.add(f"different{number}", count)
            writer.add(f"values{number}", operator.arena[at], argument.type)
    return {
        "keys": [keys[each] for each in order.tolist()],
        "number": operator.number if keys else 0,  # of no batch, where nothing is inside
        "streams": list(shape.node.streams),
    }


def _text_names(shape: Shape) -> dict[str, Type]:
    """The words of a record that are codes of strings."""
    named = {f"field{n}": each.type for n, each in enumerate(shape.fields)}
    for argument in shape.arguments:
        named |= {f"{kind}{argument.number}": argument.type for kind in argument.kinds}
    return {name: type for name, type in named.items() if type is Type.STRING}


def _long_names(shape: Shape) -> list[str]:
    return shape.inner.longs[2:]


def _int_names(layout: Layout) -> list[str]:
    """The numbers of a record that say something by themselves."""
    rings = [each.removesuffix(".mask") for each in layout.ints if each.endswith(".mask")]
    made = {
        "outer",
        "next",
        *rings,
        *(f"{each}.{part}" for each in rings for part in ("mask", "head", "count")),
    }
    return [each for each in layout.ints if each not in made and not each.startswith("far")] + [
        each for each in layout.ints if each.startswith("fars")
    ]


# --- loading -----------------------------------------------------------------------------------------------


def plain_shape(shape: Shape) -> Shape:
    """The same shape over columns: `p0` and so on for the partition, `g0` for the group, `a0`, `f0`."""
    node = shape.node
    attributes: dict[str, Type] = {}

    def field(name: str, type: Type) -> Field:
        attributes[name] = type
        return Field("e", name, (("s", (name,)),), type)

    partition = tuple(field(f"p{n}", each) for n, each in enumerate(_types(node.partition)))
    group_by = tuple(field(f"g{n}", each) for n, each in enumerate(_types(node.group_by)))
    made = copy(shape)
    made.arguments = [replace(each, expr=field(f"a{each.number}", each.type)) for each in shape.arguments]
    made.fields = [field(f"f{n}", each) for n, each in enumerate(_types(shape.fields))]
    made.node = replace(node, streams=("s",), partition=partition, group_by=group_by, having=(), semantics=())
    made.scan, made.conditions, made.semantics = Scan("e", ("s",)), (), ()
    made.columns, made.aggregates = (), ()
    made.inputs = Inputs(Catalog({"s": Stream("s", tuple(attributes.items()))}), ("s",))
    for name in attributes:
        made.inputs.column(name)
    return made


class _Reader:
    """The columns of a state."""

    def __init__(self, operator: CompiledWindow, document: dict[str, Any], data: bytes) -> None:
        self.columns: dict[str, Array] = {}
        self._codes = np.array([*(operator.strings.code(each) for each in document["texts"]), -1], np.int64)
        at = 0
        for name, count in document["columns"]:
            self.columns[name] = np.frombuffer(data, "<i8", count, at).astype(np.int64)
            at += 8 * count

    def typed(self, name: str, type: Type) -> Array:
        """A column in which strings are the codes of this process."""
        found = self.columns[name]
        return self._codes[found] if type is Type.STRING else found


def load(operator: CompiledWindow, state: bytes) -> None:
    """Goes on from a state."""
    document, data = decode_with(KIND, state)
    if document["shape"] != _described(operator):
        raise Failure(f"the saved state is of another shape of {operator.plan.name}")
    operator.begin()
    reader = _Reader(operator, document, data)
    if operator.shape.sliding:
        _load_sliding(operator, document, reader)
    else:
        _load_batch(operator, document, reader)
    now = document["now"]
    operator.now = float(now) if now.endswith("inf") else int(now)


def _load_sliding(operator: CompiledWindow, document: dict[str, Any], reader: _Reader) -> None:
    shape, strings = operator.shape, operator.strings
    ts, counts = reader.columns["ts"], reader.columns["counts"]
    columns = _key_columns(operator, "p", document["keys"], np.repeat(np.arange(len(counts)), counts))
    if shape.grouped:
        columns |= _key_columns(operator, "g", document["groups"], reader.columns["group"])
    stored = {each.number: place for place, each in enumerate(shape.stored)}
    for argument in shape.arguments:
        name = f"a{argument.number}"
        if argument.number not in stored:
            columns[name] = column_of(argument.type, [None] * len(ts), strings)
            continue
        words = reader.typed(f"argument{argument.number}", argument.type)
        valid = None
        if argument.type is Type.INT64:
            valid = (reader.columns["nulls"] >> stored[argument.number]) & 1 == 0
        columns[name] = _column_of_words(argument.type, words, valid)
    operator.refill(_table(ts, columns, operator))


def _key_columns(
    operator: CompiledWindow, letter: str, keys: list[list[Value]], rows: Array
) -> dict[str, Column]:
    node = operator.shape.node
    types = _types(node.partition if letter == "p" else node.group_by)
    return {
        f"{letter}{n}": column_of(type, [key[n] for key in keys], operator.strings).take(rows)
        for n, type in enumerate(types)
    }


def _column_of_words(type: Type, words: Array, valid: Array | None) -> Column:
    if type is Type.FLOAT64:
        return Column(type, words.view(np.float64))
    narrow = {Type.STRING: np.int32, Type.BOOL: np.int8}.get(type, np.int64)
    return Column(type, words.astype(narrow), valid)


def _table(ts: Array, columns: dict[str, Column], operator: CompiledWindow) -> Table:
    count = len(ts)
    none = np.zeros(count, np.int64)
    words = np.zeros(count, np.uint64)
    return Table(("s",), ts, np.zeros(count, np.int16), none, none, words, words, columns, operator.strings)


def _load_batch(operator: CompiledWindow, document: dict[str, Any], reader: _Reader) -> None:
    shape, strings = operator.shape, operator.strings
    keys = document["keys"]
    groups = len(keys)
    if not groups:
        return
    rows, values = _batch_rows(operator, reader, groups)
    outer = len(shape.node.partition)
    columns = _key_columns(operator, "p", [each[:outer] for each in keys], rows)
    columns |= _key_columns(operator, "g", [each[outer:] for each in keys], rows)
    columns |= values
    for n, field in enumerate(shape.fields):
        assert field.type is not None
        columns[f"f{n}"] = column_of(field.type, [None] * len(rows), strings)
    width = shape.node.window.width
    ts = np.full(len(rows), document["number"] * width if width is not None else 0, np.int64)
    operator.refill(_table(ts, columns, operator))
    _overwrite(operator, document, reader, groups)


def _batch_rows(operator: CompiledWindow, reader: _Reader, groups: int) -> tuple[Array, dict[str, Column]]:
    """An event for each group, with nulls; then one for each of its different values that are counted."""
    rows = [np.arange(groups)]
    found: list[tuple[int, Array]] = []
    for argument in operator.shape.arguments:
        if "DISTINCT" in argument.kinds:
            rows.append(np.repeat(np.arange(groups), reader.columns[f"different{argument.number}"]))
            found.append((argument.number, reader.typed(f"values{argument.number}", argument.type)))
    columns: dict[str, Column] = {}
    for argument in operator.shape.arguments:
        pieces = [column_of(argument.type, [None] * groups, operator.strings)]
        for number, words in found:
            own = number == argument.number
            valid = np.full(len(words), own) if argument.type is Type.INT64 else None
            null = column_of(argument.type, [None], operator.strings).data
            data = _column_of_words(argument.type, words, None).data if own else np.repeat(null, len(words))
            pieces.append(Column(argument.type, data, valid))
        data = np.concatenate([each.data for each in pieces])
        masks = [np.zeros(groups, np.bool_), *(each.valid for each in pieces[1:])]
        valid = np.concatenate(masks) if argument.type is Type.INT64 else None  # type: ignore[arg-type]
        columns[f"a{argument.number}"] = Column(argument.type, data, valid)
    return np.concatenate(rows), columns


def _overwrite(operator: CompiledWindow, document: dict[str, Any], reader: _Reader, groups: int) -> None:
    """Writes what was aggregated into the records that were made, which stand in order."""
    shape, records, layout = operator.shape, operator.inner, operator.shape.inner
    longs, ints = records.longs(groups), records.ints(groups)
    types = _text_names(shape)
    for name in _long_names(shape):
        longs[:, layout.int64(name)] = reader.typed(name, types.get(name, Type.INT64))
    places = np.array([shape.node.streams.index(each) for each in document["streams"]], np.int64)
    for name in _int_names(layout):
        values = reader.columns[name]
        ints[:, layout.int32(name)] = places[values] if name.endswith(".place") else values
    if shape.grouped:
        owner = ints[:, layout.int32("outer")]
        outer = operator.outer
        used = operator.used(outer)
        for name in shape.outer.longs[1:]:
            outer.longs(used)[owner, shape.outer.int64(name)] = reader.columns[f"window.{name}"]
        outer.ints(used)[owner, shape.outer.int32("ring.count")] = reader.columns["window.ring.count"]
    for argument in shape.arguments:
        if argument.summed and argument.type is Type.FLOAT64:
            digits = reader.columns[f"digits{argument.number}"]
            has = ints[:, layout.int32(f"fars{argument.number}")] > 0
            ints[has, layout.int32(f"far{argument.number}")] = operator.append_far(digits)
