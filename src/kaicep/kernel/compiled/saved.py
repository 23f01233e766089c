"""The state of a compiled pattern as bytes: a line that says what it is, a line of JSON, and columns.

Of each entry there is its key and what it knows of its events: identities, times, attributes. Ids, deadlines
and hashes are made again from these, so that they are those of the query that goes on. Strings are texts,
numbers are little-endian, keys are sorted: the same state is the same bytes on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.columns import Array
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.automaton import Store
from kaicep.kernel.words import identities
from kaicep.plan.identity import value_words
from kaicep.plan.text import resolved_text
from kaicep.plan.types import Type
from kaicep.plan.typing import type_of

if TYPE_CHECKING:
    from kaicep.kernel.compiled.operator import CompiledPattern

__all__ = ["load", "save"]

KIND, FORMAT = "compiled-pattern", 1
_DERIVED = ("idl", "idh", "el", "eh")
_NOT_SAVED = ("parent", "holders", "el", "eh")


@dataclass
class _Entries:
    """The entries of a store: where in the arena each field of them lies, slot by slot."""

    slots: Array
    counts: Array
    first: Array
    """Of each entry, the place of its first field."""
    stride: Array


def save(operator: CompiledPattern) -> bytes:
    """The state."""
    kernel = operator.kernel
    texts: dict[str, int] = {}
    columns: list[Array] = []
    stores: list[dict[str, Any]] = []
    rounds = _Rounds(operator)
    for store, base in zip(kernel.stores, kernel.bases, strict=True):
        found = _entries(operator, base)
        keys = [_key(operator, store, base, int(each)) for each in found.slots]
        order = sorted(range(len(keys)), key=lambda each: json.dumps(keys[each]))
        rows = _rows(found.counts, order)
        arena = operator.arena(base)
        names = []
        for index, what in enumerate(store.fields):
            if _is_derived(operator, what):
                continue
            values = arena[found.first + index * found.stride][rows]
            if _is_text(operator, what):
                values = _written(values, operator.strings.texts, texts)
            if what[0] == "born":
                values = values - operator.block[b.POSITION]
            if what[0] == "node":
                values = np.array([rounds.number(each) for each in values.tolist()], np.int64)
            names.append(_name(operator, what))
            columns.append(values.astype("<i8"))
        stores.append(
            {
                "fields": names,
                "keys": [keys[each] for each in order],
                "counts": [int(found.counts[each]) for each in order],
            }
        )
    columns += rounds.columns(texts)
    document = {
        "rounds": len(rounds.order),
        "now": int(operator.block[b.NOW]),
        "last": operator.last_ts,
        "streams": list(operator.streams),
        "texts": list(texts),
        "stores": stores,
    }
    head = f"kaicep {KIND} {FORMAT}\n{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n"
    return head.encode() + b"".join(each.tobytes() for each in columns)


def load(operator: CompiledPattern, state: bytes) -> None:
    """Goes on from a state."""
    head, _, rest = state.partition(b"\n")
    words = head.decode("utf-8", "replace").split(" ")
    if words[:2] != ["kaicep", KIND]:
        raise Failure(f"this is no saved state of a {KIND}: it begins with {head[:40]!r}")
    if words[2:] != [str(FORMAT)]:
        raise Failure(f"the saved state has format {' '.join(words[2:])}, and this version reads {FORMAT}")
    line, _, data = rest.partition(b"\n")
    document = json.loads(line)
    kernel, block = operator.kernel, operator.block
    codes = np.array([operator.strings.code(each) for each in document["texts"]] or [0], np.int64)
    if len(document["stores"]) != len(kernel.stores):
        raise Failure("the saved state is that of another pattern")
    for each in document["stores"]:
        for value in (value for key in each["keys"] for value in key if isinstance(value, str)):
            operator.strings.code(value)  # there must be a slot for every string that is a key
    operator.learn()
    block[b.NOW], block[b.LAST] = document["now"], document["last"]
    numbers = np.frombuffer(data, "<i8")
    at = (
        len(numbers)
        - document["rounds"] * len(_round_fields(operator))
        - document["rounds"] * bool(kernel.nodes)
    )
    _load_rounds(operator, numbers[at:], document["rounds"], codes)
    at = 0
    for store, base, saved in zip(kernel.stores, kernel.bases, document["stores"], strict=True):
        total = sum(saved["counts"])
        given: dict[str, Array] = {}
        for name in saved["fields"]:
            given[name] = numbers[at : at + total]
            at += total
        _fill(operator, store, base, saved, given, codes)


def _fill(
    operator: CompiledPattern,
    store: Store,
    base: int,
    saved: dict[str, Any],
    given: dict[str, Array],
    codes: Array,
) -> None:
    block = operator.block
    for key, count in zip(saved["keys"], saved["counts"], strict=True):
        operator.open_entries(base, _slot(operator, store, base, key), count)
    found = _entries(operator, base)
    by_slot = {int(slot): index for index, slot in enumerate(found.slots)}
    order = [by_slot[_slot(operator, store, base, key)] for key in saved["keys"]]
    rows = _rows(found.counts, order)
    arena = operator.arena(base)
    made: dict[tuple[object, ...], Array] = {}
    for what in store.fields:
        if _is_derived(operator, what):
            continue
        name = _name(operator, what)
        if name not in given:
            raise Failure("the saved state is that of another pattern")
        values = given[name]
        if _is_text(operator, what):
            values = np.where(values < 0, -1, codes[np.maximum(values, 0)])
        made[what] = values
    partitions = [
        each for key, count in zip(saved["keys"], saved["counts"], strict=True) for each in [key] * count
    ]
    _derive(operator, store, made, partitions)
    for index, what in enumerate(store.fields):
        arena[found.first[rows] + index * found.stride[rows]] = made[what].view(np.int64)
        if what[0] == "node":
            for each in made[what].tolist():
                operator.hold_node(each)
    block[b.HELD] += len(rows)
    if not store.steps:
        ends = made["out", operator.output(("end",))]
        slots = np.repeat(found.slots, found.counts)[rows]
        for end, slot in zip(ends.tolist(), slots.tolist(), strict=True):
            operator.await_deadline(end, store.number, slot)


# --- entries -----------------------------------------------------------------------------------------------


def _entries(operator: CompiledPattern, base: int) -> _Entries:
    records = operator.slots(base)
    slots = np.flatnonzero((records[:, 2] > 0) & (records[:, 3] > 0))
    some = records[slots]
    counts = some[:, 2]
    inside = _counted(counts)
    first = np.repeat(some[:, 0] + some[:, 1], counts) + inside
    return _Entries(slots, counts, first, np.repeat(some[:, 3], counts))


def _counted(counts: Array) -> Array:
    """0, 1, ... for each count."""
    made: Array = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return made


def _rows(counts: Array, order: list[int]) -> Array:
    """The entries in another order of their slots."""
    begins = np.cumsum(counts) - counts
    chosen = np.array(order, np.int64)
    sizes = counts[chosen]
    made: Array = np.repeat(begins[chosen], sizes) + _counted(sizes)
    return made


def _is_derived(operator: CompiledPattern, what: tuple[object, ...]) -> bool:
    if what[0] != "out":
        return what[0] in _DERIVED
    return operator.kernel.outputs[what[1]].of[0] in ("low", "high", "end")  # type: ignore[call-overload]


def _is_text(operator: CompiledPattern, what: tuple[object, ...]) -> bool:
    if what[0] in ("field", "aggregate"):
        return what[1].type is Type.STRING  # type: ignore[attr-defined]
    return what[0] == "out" and operator.kernel.outputs[what[1]].view == "i4"  # type: ignore[call-overload]


def _name(operator: CompiledPattern, what: tuple[object, ...]) -> str:
    """What a field is called in a state."""
    if what[0] in ("field", "null"):
        field: Any = what[1]
        return f"{what[0]} {field.variable} {json.dumps(field.sources)} {field.type}"
    if what[0] in ("aggregate", "aggregate null"):
        return f"{what[0]} {resolved_text(what[1])}"  # type: ignore[arg-type]
    if what[0] == "out":
        what = ("out", *operator.kernel.outputs[what[1]].of)  # type: ignore[call-overload]
    return " ".join(map(str, what))


def _written(codes: Array, known: list[str], texts: dict[str, int]) -> Array:
    """Codes as places in a list of texts that begins with those that come first."""
    return np.array(
        [-1 if each < 0 else texts.setdefault(known[each], len(texts)) for each in codes.tolist()], np.int64
    )


# --- rounds of loops ---------------------------------------------------------------------------------------


def _round_fields(operator: CompiledPattern) -> list[int]:
    """The fields of a round that are saved, beside the round before it."""
    return [index for index, what in enumerate(operator.kernel.nodes) if what[0] not in _NOT_SAVED]


class _Rounds:
    """The rounds that entries hold on to, each after the one before it, in the order of the entries."""

    def __init__(self, operator: CompiledPattern) -> None:
        self.operator = operator
        self.order: list[int] = []
        self._numbers: dict[int, int] = {0: 0}

    def number(self, node: int) -> int:
        """The number of a round in the state; 0 is none."""
        missing = []
        while node not in self._numbers:
            missing.append(node)
            node = int(self.operator.node(node)[0])
        found = self._numbers[node]
        for each in reversed(missing):
            self.order.append(each)
            found = self._numbers[each] = len(self.order)
        return found

    def columns(self, texts: dict[str, int]) -> list[Array]:
        """The rounds as columns: the round before each, and what is known of its event."""
        operator = self.operator
        if not operator.kernel.nodes:
            return []
        nodes = [operator.node(each) for each in self.order]
        found = [np.array([self._numbers[int(each[0])] for each in nodes], "<i8")]
        for index in _round_fields(operator):
            values = np.array([each[index] for each in nodes], np.int64)
            if _is_text_of_round(operator.kernel.nodes[index]):
                values = _written(values, operator.strings.texts, texts)
            found.append(values.astype("<i8"))
        return found


def _is_text_of_round(what: tuple[object, ...]) -> bool:
    return what[0] == "value" and type_of(what[2]) is Type.STRING  # type: ignore[arg-type]


def _load_rounds(operator: CompiledPattern, numbers: Array, count: int, codes: Array) -> None:
    """Makes the rounds; nobody but a later round holds on to one yet."""
    kernel = operator.kernel
    if not kernel.nodes or not count:
        return
    parents = numbers[:count].tolist()
    made = [operator.new_node(each) for each in parents]
    assert made == list(range(1, count + 1))
    given: dict[int, Array] = {}
    for place, index in enumerate(_round_fields(operator)):
        values = numbers[count * (place + 1) : count * (place + 2)]
        if _is_text_of_round(kernel.nodes[index]):
            values = np.where(values < 0, -1, codes[np.maximum(values, 0)])
        given[index] = values
    seq, where = (given[kernel.nodes.index(what)] for what in (("seq",), ("where",)))
    low, high = _event_words(operator.streams, seq, where)
    given[kernel.nodes.index(("el",))] = low.view(np.int64)
    given[kernel.nodes.index(("eh",))] = high.view(np.int64)
    for row, number in enumerate(made):
        node = operator.node(number)
        node[1] -= 1  # whoever makes a round holds on to it; here nobody does
        for index, values in given.items():
            node[index] = values[row]


# --- keys --------------------------------------------------------------------------------------------------


def _types(operator: CompiledPattern, store: Store) -> Iterator[tuple[Type, bool]]:
    """The types of a key, and whether null is a value of it."""
    for each in operator.pattern.partition:
        yield type_of(each), True  # type: ignore[misc]
    for each in store.far:
        yield type_of(each), not store.steps  # type: ignore[misc]


def _key(operator: CompiledPattern, store: Store, base: int, slot: int) -> list[Any]:
    """The values of a slot's key."""
    types = list(_types(operator, store))
    texts = operator.strings.texts
    if not types:
        return []
    density = operator.kernel.dense[store.number]
    if density == "code":
        code = slot - types[0][1]
        return [texts[code] if code >= 0 else None]
    words = operator.key_words(base, slot).tolist()
    made: list[Any] = []
    for type, nullable in types:
        word = words.pop(0)
        if type is Type.INT64 and nullable:
            made.append(None if words.pop(0) else word)
        elif type is Type.STRING:
            made.append(texts[word] if word >= 0 else None)
        else:
            made.append(word)
    return made


def _slot(operator: CompiledPattern, store: Store, base: int, key: list[Any]) -> int:
    types = list(_types(operator, store))
    if not types:
        return 0
    words: list[int] = []
    for value, (type, nullable) in zip(key, types, strict=True):
        if type is Type.STRING:
            words.append(-1 if value is None else operator.strings.code(value))
        else:
            words.append(0 if value is None else value)
            if type is Type.INT64 and nullable:
                words.append(int(value is None))
    if operator.kernel.dense[store.number] == "code":
        return words[0] + types[0][1]
    return operator.find_slot(base, words)


# --- what is made again ------------------------------------------------------------------------------------


def _derive(
    operator: CompiledPattern, store: Store, made: dict[tuple[object, ...], Array], keys: list[list[Any]]
) -> None:
    """Ids, the words of events and deadlines, from identities and times."""
    outputs = operator.kernel.outputs
    total = len(keys)
    words: dict[str, tuple[Array, Array]] = {}

    def part(kind: str, name: str) -> Array | None:
        for what in ((kind, name), ("out", operator.output((kind, name)))):
            if what in made:
                return made[what]
        return None

    for name in store.state.bound:
        seq, where = part("seq", name), part("where", name)
        if seq is not None and where is not None:
            words[name] = _event_words(operator.streams, seq, where)
    for what in store.fields:
        if what[0] in ("el", "eh"):
            made[what] = words[str(what[1])][what[0] == "eh"]
    pending = not store.steps
    if pending or ("idl",) in store.fields:
        low, high = _ids(operator, store, words, keys, total)
        if pending:
            made["out", operator.output(("low",))], made["out", operator.output(("high",))] = low, high
            deadline = operator.pattern.deadline or 0
            start = made["out", operator.output(("start",))]
            made["out", operator.output(("end",))] = start + deadline
        else:
            made["idl",], made["idh",] = low, high
    assert outputs


def _event_words(streams: tuple[str, ...], seq: Array, where: Array) -> tuple[Array, Array]:
    low, high = np.zeros(len(seq), np.uint64), np.zeros(len(seq), np.uint64)
    for place, stream in enumerate(streams):
        rows = np.flatnonzero((where >> 48) == place)
        if len(rows):
            low[rows], high[rows] = identities(
                stream, np.ascontiguousarray(where[rows] & (2**48 - 1)), np.ascontiguousarray(seq[rows])
            )
    return low, high


def _ids(
    operator: CompiledPattern,
    store: Store,
    words: dict[str, tuple[Array, Array]],
    keys: list[list[Any]],
    total: int,
) -> tuple[Array, Array]:
    seed_low, seed_high = operator.seed()
    low, high = np.full(total, seed_low, np.uint64), np.full(total, seed_high, np.uint64)
    types = list(_types(operator, store))
    for index in range(len(operator.pattern.partition)):
        pairs = [value_words(_plain(each[index], types[index][0])) for each in keys]
        low, high = _pair(
            low,
            high,
            np.array([kind for kind, _ in pairs], np.uint64),
            np.array([word for _, word in pairs], np.uint64),
        )
    known, counted = operator.kernel.prefix[store.number]
    names = operator.plan.variables
    begun = len(operator.kernel.known) if not operator.pattern.partition else 0
    done: list[Any] = []
    for name in names[:known]:
        done.append(np.uint64(name in words))
        if name in words:
            done.append(words[name])
    if counted:
        done.append(np.uint64(1))
    for each in done[begun:]:
        pair = each if isinstance(each, tuple) else (np.full(total, each), np.full(total, each))
        low, high = _pair(low, high, *pair)
    return low, high


def _plain(value: Any, type: Type) -> Any:
    """The value of a key's word."""
    if type is Type.FLOAT64 and value is not None:
        found = float(np.int64(value).view(np.float64))
        return None if found != found else found
    if type is Type.BOOL:
        return None if value < 0 else bool(value)
    return None if type is Type.TIMESTAMP and value == -(2**63) else value


def _pair(low: Array, high: Array, first: Array, second: Array) -> tuple[Array, Array]:
    low = _mix(low ^ first)
    return low, _mix(high + second + np.uint64(0x9E3779B97F4A7C15)) ^ (low >> np.uint64(1))


def _mix(word: Array) -> Array:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))  # type: ignore[no-any-return]
