"""The state of a pattern as bytes, and back: in the same query, or in one that was edited.

What is kept names its columns by what they are, so that a query which needs the same of its events goes on
where another stopped, whatever its conditions and widths are. Strings are saved as their place among the
texts that are in use, keys as their place among those that something waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel import machine
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import alone
from kaicep.kernel.columns import Array, Column, Lists, Matches, Refs, Strings
from kaicep.kernel.output import column_of_words
from kaicep.kernel.shape import PARTITION, PatternShape, Roots
from kaicep.kernel.solutions import fields_of
from kaicep.kernel.state import read_state, write_state
from kaicep.plan.expressions import Expr, Field, type_of, walk
from kaicep.plan.nodes import Latest
from kaicep.plan.text import resolved_text
from kaicep.plan.types import Type

if TYPE_CHECKING:
    from kaicep.kernel.patterns import PatternMachine

_KIND = "pattern"


# --- what a shape is ---------------------------------------------------------------------------------------


def _described(shape: PatternShape) -> dict[str, Any]:
    """What decides whether a state means the same: states, frontiers, what is carried and kept."""
    arrivals = [
        f"{variable} {'again' if again else ''} {sorted(bound)} {rest}"
        for rest, bound, variable, again in shape.arrivals
    ]
    fronts = []
    for number, front in enumerate(shape.fronts):
        row = shape.tables.front[number]
        names = [name for name, _ in front.frontier]
        rest, bound = front.state
        joined = front.of is not None
        key = _key_text(shape, -1 if joined else int(row[t.F_KEY]))
        fronts.append(f"{names} {front.killers} {front.pending} {sorted(bound)} {rest} {key} {joined}")
    waits = any(front.pending for front in shape.fronts)
    return {
        "match": shape.pattern.match,
        "skip": [shape.pattern.skip, shape.pattern.skip_variable],
        "deadline": shape.pattern.deadline if waits else None,
        "arrivals": arrivals,
        "fronts": fronts,
        "carried": [_carried_text(shape, name) for name in shape.carried],
        "kept": [_column_text(shape, number) for number in shape.kept],
        "absent": sorted(shape.absences.values()),
        "latest": [_latest_text(each) for each in shape.pattern.latest],
    }


def _latest_text(latest: Latest) -> str:
    """What decides which candidates are kept, but for conditions on one of them."""
    sources = [each.sources for sides in latest.keys for side in sides for each in fields_of(side)]
    keys = [[resolved_text(side) for side in sides] for sides in latest.keys]
    return f"{latest.variable} {latest.optional} {keys} {sources} {latest.semantics}"


def _key_text(shape: PatternShape, key: int) -> list[str]:
    return [] if key < 0 else [_expr_text(each) for each in shape.keys[key][1]]


def _expr_text(expr: Expr) -> str:
    """An expression of one event, and of which streams' attributes it is."""
    sources = [each.sources for each in walk(expr) if isinstance(each, Field)]
    return f"{resolved_text(expr)} of {sources}"


def _column_text(shape: PatternShape, number: int) -> str:
    of, type = list(shape.columns)[number], shape.types[number]
    if isinstance(of, Expr):
        return f"{_expr_text(of)}: {type}"
    return f"{of.variable} in {of.condition}" if isinstance(of, Roots) else str(of)


def _carried_text(shape: PatternShape, name: tuple[Any, ...]) -> str:
    kind, *of = name
    if kind == "anchor":
        return f"anchor {sorted(shape.pattern.windows[of[0]].variables)}"
    if kind == "key":
        return f"key {_key_text(shape, of[0])} {of[1]}"
    shown = [_column_text(shape, each) if isinstance(each, int) else str(each) for each in of]
    return " ".join([kind, *shown])


def why_other_shape(old: PatternShape, new: PatternShape) -> str | None:
    """Why a pattern cannot go on with the state of another; None where it can."""
    return _why_other(_described(old), _described(new))


def _why_other(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    for name, reason in (
        ("match", "its MATCH is another"),
        ("skip", "its AFTER MATCH is another"),
        ("arrivals", "its SEQ is another"),
        ("absent", "its SEQ is another"),
        ("fronts", "its partial matches are found by other values"),
        ("deadline", "it waits for another deadline"),
        ("latest", "its LATEST is another"),
    ):
        if old[name] != new[name]:
            return reason
    for name in ("carried", "kept"):
        missing = set(new[name]) - set(old[name]) - {"until", "last"}  # these are found anew
        missing = {each for each in missing if not each.startswith(_SUMS)}
        if missing:
            return f"it needs other values of earlier events: {min(missing)}"
    return None


_SUMS = ("LOW ", "HIGH ", "NUMBER ")
"""What rows carry of a sum; where that is not there, it is worked out from the events."""


def _strings_in(shape: PatternShape) -> tuple[list[int], list[int]]:
    """The carried and the kept columns that hold codes of strings."""
    carried = [
        column
        for (kind, *of), column in shape.carried.items()
        if kind not in ("anchor", "key", "COUNT", "VALUES", "time", "first", "until", "last")
        and shape.types[of[1]] is Type.STRING
    ]
    kept = [t.E_FIXED + at for number, at in shape.kept.items() if shape.types[number] is Type.STRING]
    return carried, kept


# --- saving ------------------------------------------------------------------------------------------------


class _Texts:
    """The strings that a state is about, and the keys: both are numbered anew."""

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self._used: list[Array] = []
        self._pending: list[tuple[Array, Any]] = []

    def take(self, array: Array, at: Any = slice(None)) -> None:
        """Marks a part of an array as codes."""
        self._used.append(np.unique(array[at]))
        self._pending.append((array, at))

    def settle(self) -> list[str]:
        """Writes the places of the texts over their codes; the texts in order."""
        codes = np.unique(np.concatenate(self._used)) if self._used else np.zeros(0, np.int64)
        codes = codes[codes >= 0]
        texts = [self.strings.texts[each] for each in codes.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        places = np.zeros(len(self.strings.texts) + 1, np.int64)
        places[codes[order]] = np.arange(len(order))
        for array, at in self._pending:
            own = array[at]
            array[at] = np.where(own < 0, own, places[np.maximum(own, 0)])
        return [texts[each] for each in order]


def save_pattern(operator: PatternMachine) -> bytes:
    """The state of a pattern."""
    operator.tidy()
    operator.collect()
    memory, shape = operator.memory, operator.shape
    meta, fronts = memory.meta, int(shape.tables.shape[t.S_FRONTS])
    count = int(meta[t.ROWS])
    rows, cells = np.zeros((count, int(shape.tables.shape[t.S_COLUMNS])), np.int64), np.zeros(count, np.int64)
    machine.rows(shape.tables, memory, rows, cells)
    events = memory.events[: meta[t.EVENTS]].copy()
    by_key = np.maximum(shape.tables.front[:, t.F_KEY], shape.tables.front[:, t.F_KEY_ROW]) >= 0
    keys = np.where(by_key[cells % fronts], cells // fronts, -1)
    order = np.lexsort((cells % fronts, keys))  # the same for all operators with the same partial matches
    rows, cells, keys = rows[order], cells[order], keys[order]
    waiting, orders = operator.skipping.kept()
    texts, numbers = _Texts(operator.strings), _Numbers()
    carried, kept = _strings_in(shape)
    texts.take(rows, (slice(None), carried))
    texts.take(events, (slice(None), kept))
    absent = {name: each.events.copy() for name, each in operator.absent.items()}
    for each in absent.values():
        texts.take(each, (slice(None), kept))
    looked_up, others = operator.latest.kept()
    for each in looked_up.values():
        texts.take(each, (slice(None), kept))
    for each in (events, *absent.values(), *looked_up.values()):
        for component in operator.joins.keys:  # found anew by whoever goes on
            each[:, t.E_FIXED + shape.kept[shape.columns[alone(component)]]] = 0
    numbers.take(keys)
    for (kind, *_), column in shape.carried.items():
        if kind == "key":
            numbers.take(rows, (slice(None), column))
    partition = shape.columns.get(PARTITION)
    if partition is not None and operator.pattern.partition:
        waiting_rows = (rows for name, rows in looked_up.items() if name.startswith("waiting"))
        for each in (events, *absent.values(), *waiting_rows):
            numbers.take(each, (slice(None), t.E_FIXED + shape.kept[partition]))
        numbers.take(orders["partition"])
        numbers.take(orders["resumed"])
    used = numbers.settle()
    arrays = {
        "rows": rows,
        "fronts": cells % fronts,
        "keys": keys,
        "nodes": memory.nodes[: meta[t.NODES]],
        "events": events,
        "awaiting": operator.awaiting(),
        **{f"absent {name}": each for name, each in absent.items()},
        **{f"skip {name}": each for name, each in orders.items()},
        **{f"latest {name}": each for name, each in others.items()},
        **{f"latest rows {name}": each for name, each in looked_up.items()},
    }
    kinds = []
    for number, (types, own, words) in enumerate(operator.keys.saved(used)):
        words = words.copy()
        for place, type in enumerate(types):
            if type is Type.STRING:
                texts.take(words, place)
        kinds.append([None if each is None else each.value for each in types])
        arrays |= {f"key {number} places": own, f"key {number} words": words}
    matches = None if waiting is None else _save_matches(waiting, texts, arrays)
    document = {
        **_described(shape),
        "texts": texts.settle(),
        "kinds": kinds,
        "key_count": len(used),
        "position": int(meta[t.POSITION]),
        "now": int(meta[t.NOW]),
        "shed": operator.shed,
        "roots": {_root_text(each): ids.save() for each, ids in operator.roots.items()},
        "matches": matches,
    }
    return write_state(_KIND, document, arrays)


class _Numbers:
    """The numbers of keys that a state is about."""

    def __init__(self) -> None:
        self._pending: list[tuple[Array, Any]] = []

    def take(self, array: Array, at: Any = slice(None)) -> None:
        self._pending.append((array, at))

    def settle(self) -> Array:
        """Numbers the keys that are in use from 0; which those were."""
        every = [array[at].ravel() for array, at in self._pending]
        used = np.unique(np.concatenate(every))
        used = used[used >= 0]
        for array, at in self._pending:
            own = array[at]
            array[at] = np.where(own < 0, own, np.searchsorted(used, own))
        return used


def _root_text(roots: Roots) -> str:
    return f"{roots.variable} in {roots.condition}"


# --- going on ----------------------------------------------------------------------------------------------


def load_pattern(operator: PatternMachine, state: bytes) -> None:
    """Lets a new operator go on from a state."""
    document, arrays = read_state(_KIND, state)
    shape = operator.shape
    reason = _why_other(document, _described(shape))
    if reason is not None:
        raise Failure(f"{operator.plan.name} cannot go on with the state of another query: {reason}")
    codes = np.append(operator.strings.codes(document["texts"]).astype(np.int64), -1)
    before = document["carried"]
    rows = _chosen(arrays["rows"], before, [_carried_text(shape, each) for each in shape.carried], t.FIXED)
    wanted = [_column_text(shape, number) for number in shape.kept]
    carried, kept = _strings_in(shape)
    _decode(rows, carried, codes)
    events = _chosen(arrays["events"], document["kept"], wanted, t.E_FIXED)
    _decode(events, kept, codes)
    operator.keys.load(document["key_count"], list(_keys_of(document, arrays, codes)))
    operator.begin(arrays["nodes"], events, arrays["awaiting"], document["position"])
    operator.note_origins(events[:, t.E_PLACE], events[:, t.E_PART])
    meta = operator.memory.meta
    meta[t.NOW] = meta[t.SWEPT] = document["now"]
    operator.shed = document["shed"]
    for roots, ids in operator.roots.items():
        if _root_text(roots) in document["roots"]:
            ids.load(document["roots"][_root_text(roots)])
    if ("last",) in shape.carried:
        last = operator.memory.nodes[rows[:, t.NODE], t.N_EVENT]
        rows[:, shape.carried[("last",)]] = operator.memory.events[last, t.E_TS]
    for carried_name, column in shape.carried.items():
        if carried_name[0] == "HIGH" and _carried_text(shape, carried_name) not in before:
            rows[:, column] = t.NULL
    if ("until",) in shape.carried:
        _renew_until(shape, rows, arrays["fronts"])
    keys, fronts = _joined_anew(operator, rows, arrays["fronts"], arrays["keys"]), arrays["fronts"]
    if operator.joins.keys:
        # What waited under several keys may wait under one now, where it stands in the order of its events.
        order = np.argsort(rows[:, t.NODE], kind="stable")
        rows, keys, fronts = rows[order], keys[order], fronts[order]
    operator.wait(rows, np.maximum(keys, 0) * int(shape.tables.shape[t.S_FRONTS]) + fronts)
    for name, each in operator.absent.items():
        each.events = _chosen(arrays[f"absent {name}"], document["kept"], wanted, t.E_FIXED)
        _decode(each.events, kept, codes)
        _find_components(operator, each.events)
    looked_up = {}
    for name in [each for each in arrays if each.startswith("latest rows ")]:
        looked_up[name[12:]] = _chosen(arrays.pop(name), document["kept"], wanted, t.E_FIXED)
        _decode(looked_up[name[12:]], kept, codes)
        operator.note_origins(*looked_up[name[12:]][:, t.E_PLACE : t.E_SEQ].T)
        _find_components(operator, looked_up[name[12:]])
    others = {name[7:]: each for name, each in arrays.items() if name.startswith("latest ")}
    operator.latest.load(looked_up, others, operator)
    orders = {name[5:]: each for name, each in arrays.items() if name.startswith("skip ")}
    waiting = None
    if document["matches"] is not None:
        waiting = _load_matches(operator, document["matches"], arrays, codes)
    operator.skipping.load(waiting, orders)


def _find_components(operator: PatternMachine, events: Array) -> None:
    """Writes the components of events as they are now: their numbers mean nothing to another operator."""
    kept, columns = operator.shape.kept, operator.shape.columns
    for key in operator.joins.keys:
        ids = events[:, t.E_FIXED + kept[columns[operator.joins.roots_of(key)]]]
        events[:, t.E_FIXED + kept[columns[alone(key)]]] = operator.components(key, ids)


def _joined_anew(operator: PatternMachine, rows: Array, fronts: Array, keys: Array) -> Array:
    """The keys of rows that wait, those with components as they are now."""
    shape, memory = operator.shape, operator.memory
    if not operator.joins.keys:
        return keys
    events = memory.events[: memory.meta[t.EVENTS]]
    _find_components(operator, events)
    keys = keys.copy()
    components = {alone(each) for each in operator.joins.keys}
    for name, column in shape.carried.items():
        if name[0] != "key" or components.isdisjoint(shape.keys[name[1]][1]):
            continue
        found = np.full(len(rows), -1, np.int64)
        node = rows[:, t.NODE].copy()
        while (node >= 0).any():
            own = np.flatnonzero(node >= 0)
            here = memory.nodes[node[own]]
            met = shape.tables.state[here[:, t.N_STATE], t.T_PLACE] == shape.places[name[2]]
            found[own[met]] = here[met, t.N_EVENT]
            node[own] = np.where(met, -1, here[:, t.N_UP])
        bound = np.flatnonzero(found >= 0)
        words = [
            column_of_words(
                type_of(each) or Type.INT64, events[found[bound], t.E_FIXED + shape.kept[shape.columns[each]]]
            )
            for each in shape.keys[name[1]][1]
        ]
        rows[bound, column] = operator.keys.ids(words, len(operator.pattern.partition))
        waiting = np.isin(fronts, np.flatnonzero(shape.tables.front[:, t.F_KEY_ROW] == column))
        keys[waiting] = rows[waiting, column]
    return keys


def _chosen(table: Array, names: Sequence[str], wanted: Sequence[str], fixed: int) -> Array:
    """A table with the columns that are wanted, after the fixed ones."""
    places = {name: fixed + at for at, name in enumerate(names)}
    return np.ascontiguousarray(table[:, [*range(fixed), *(places.get(each, 0) for each in wanted)]])


def _decode(table: Array, columns: Sequence[int], codes: Array) -> None:
    for column in columns:
        own = table[:, column]
        table[:, column] = np.where(own < 0, own, codes[np.maximum(own, -1)])


def _keys_of(
    document: Mapping[str, Any], arrays: Mapping[str, Array], codes: Array
) -> Iterator[tuple[tuple[Type | None, ...], Array, Array]]:
    for number, names in enumerate(document["kinds"]):
        types = tuple(None if each is None else Type(each) for each in names)
        words = arrays[f"key {number} words"].copy()
        for place, type in enumerate(types):
            if type is Type.STRING:
                words[place] = np.where(words[place] < 0, words[place], codes[np.maximum(words[place], -1)])
        yield types, arrays[f"key {number} places"], words


def _renew_until(shape: PatternShape, rows: Array, fronts: Array) -> None:
    """How long rows may wait: WINDOWs may be narrower than they were."""
    tables = shape.tables
    for number, front in enumerate(shape.fronts):
        own = np.flatnonzero(fronts == number)
        longest = np.full(len(own), t.NULL, np.int64)
        for opening in tables.opening[tables.front[number, t.F_BEGIN] : tables.front[number, t.F_END]]:
            if opening[t.O_KIND] == t.KILL and not front.pending:
                continue
            least = np.full(len(own), t.FOREVER, np.int64)
            for column, width in tables.window[opening[t.O_WINDOW] : opening[t.O_WINDOW_END]].tolist():
                least = np.minimum(least, rows[own, column] + width)
            longest = np.maximum(longest, least)
        rows[own, shape.carried[("until",)]] = longest


# --- matches that are not decided --------------------------------------------------------------------------


def _save_matches(matches: Matches, texts: _Texts, arrays: dict[str, Array]) -> dict[str, Any]:
    words = dict(zip(("low", "high"), matches.ids, strict=True))
    for name, each in {**words, "start": matches.start, "end": matches.end}.items():
        arrays[f"match {name}"] = each
    select = {}
    for number, (name, column) in enumerate(matches.select.items()):
        flat = column.flat if isinstance(column, Lists) else column
        data = flat.data.copy()
        if flat.type is Type.STRING:
            texts.take(data)
        arrays[f"match {number} data"] = data
        if flat.valid is not None:
            arrays[f"match {number} valid"] = flat.valid
        if isinstance(column, Lists):
            arrays[f"match {number} offsets"] = column.offsets
        select[name] = None if flat.type is None else flat.type.value
    for name, refs in matches.events.items():
        for part in ("place", "part", "seq", "offsets"):
            found = getattr(refs, part)
            if found is not None:
                arrays[f"match of {name} {part}"] = found
    return {"select": select, "terms": {name: list(each) for name, each in matches.terms.items()}}


def _load_matches(
    operator: PatternMachine, document: Mapping[str, Any], arrays: Mapping[str, Array], codes: Array
) -> Matches:
    select: dict[str, Column | Lists] = {}
    for number, (name, type) in enumerate(document["select"].items()):
        data = arrays[f"match {number} data"]
        if type == Type.STRING.value:
            data = codes[data].astype(np.int32)
        column = Column(None if type is None else Type(type), data, arrays.get(f"match {number} valid"))
        offsets = arrays.get(f"match {number} offsets")
        select[name] = column if offsets is None else Lists(offsets, column)
    events = {
        name: Refs(
            arrays[f"match of {name} place"],
            arrays[f"match of {name} part"],
            arrays[f"match of {name} seq"],
            arrays.get(f"match of {name} offsets"),
        )
        for name in operator.output.variables
    }
    low, high, start, end = (arrays[f"match {name}"] for name in ("low", "high", "start", "end"))
    return operator.output.of(lambda: (low, high), start, end, select, events, document["terms"])
