"""The window machine: aggregates over sliding and batch windows, for every query (semantics 2).

It takes *entries* in the order of their events: an event in one partition and one of its groups. What is
aggregated comes as small tables: `adds` says what changes when an entry comes or goes, `results` what is
read when a group answers. A sliding window keeps its entries, chained by time, by partition and by group,
so that each leaves exactly once; a batch keeps only the first and the last entry of a group. Partitions and
groups have small numbers. The machine never allocates: it stops before an entry for which there is no room,
and whoever drives it makes room and lets it go on there.
"""

# mypy: ignore-errors
# Numba infers the types of all that follows.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kaicep.kernel import sums
from kaicep.kernel.jit import entry, inner, prefetch
from kaicep.kernel.words import mix

Array = NDArray[Any]
U = np.uint64

NULL = np.int64(-(2**63))
"""Null among times, codes and truths; among floats it is NaN, integers have a column of their own for it."""

# fmt: off
# --- Steps.figures ---
SLIDING, WIDTH, COUNT, KEPT = range(4)
# --- Steps.adds: operation, column and its type, column that says whether an integer is there, place in the
# record of a group, place of the links in an entry ---
A_OP, A_COLUMN, A_KIND, A_VALID, A_AT, A_LINK, A_ADD = range(7)
VALUES, SUM, SQUARE, LEAST, MOST, DISTINCT = range(6)
# --- Steps.results ---
R_OP, R_COLUMN, R_KIND, R_VALID, R_AT, R_COUNTED, R_RESULT = range(7)
EVENTS, WORD, TOTAL, AVERAGE, DEVIATION, EXTREME, FIRST, LAST = range(8)
# --- types ---
FLOAT, INT, OTHER, TEXT = range(4)
# --- State.meta ---
(NEED, OUT, FREE, TOP, HEAD, TAIL, HELD, LIMIT, NUMBER, OPEN, FULL, SERIAL, FAR_FREE, FAR_TOP, SQUARE_FREE,
 SQUARE_TOP, SLOTS, VERSION, META) = range(19)
# --- why the machine stopped ---
NOTHING, N_OUT, N_ENTRIES, N_FAR, N_SQUARES, N_SLOTS, N_TOO_MUCH = range(7)
# --- State.entries: chained in the window, the partition and the group; then what is kept, then links ---
E_TS, E_PARTITION, E_GROUP, E_FLAGS, E_NEXT, E_IN_PARTITION, E_IN_GROUP, E_KEPT = range(8)
NEW, DONE = 1, 2
# --- State.groups: then a part for each of the adds ---
G_COUNT, G_PARTITION, G_FIRST, G_LAST, G_OPEN, G_SERIAL, G_ADDS = range(7)
# --- State.partitions ---
(P_COUNT, P_FIRST, P_LAST, P_OPEN, P_GROUPS, P_START, P_END, P_LOW, P_HIGH, P_LAST_LOW, P_LAST_HIGH,
 P_VERSION, P_PARTITION) = range(13)
# --- State.slots ---
S_KEY, S_WORD, S_COUNT, S_SLOT = range(4)
# --- answers: then the results, and of a batch by count the identities of its first and its last event ---
O_ROW, O_GROUP, O_START, O_END, O_EVENTS, O_VERSION, O_RESULTS = range(7)
# fmt: on

_AHEAD = 8


class WindowSteps(NamedTuple):
    """What a window does."""

    figures: Array
    adds: Array
    results: Array


class WindowState(NamedTuple):
    """All that is kept."""

    meta: Array
    entries: Array
    groups: Array
    partitions: Array
    far: Array
    squares: Array
    slots: Array
    """Different values: whose they are (0 is nobody), the value, how often it is there."""
    ranks: Array
    """By code, the place of a string among those that occur."""
    scratch: Array


class Entries(NamedTuple):
    """Entries in order."""

    ts: Array
    partition: Array
    group: Array
    flags: Array
    """NEW at the first entry of an event in a partition, DONE at the last."""
    low: Array
    """The words of their identities, for batches by count alone: their ids are made of them."""
    high: Array
    values: Array
    """What is kept of them, a row for each column."""


class WindowAnswers(NamedTuple):
    """Room for answers, a row for each column; `missing` says which results are null."""

    words: Array
    missing: Array


# --- entries come and time passes --------------------------------------------------------------------------


@entry
def advance(steps, state, entries, answers, at):
    """Takes entries in, from one on; the place of the first for which there was no room."""
    meta, figures = state.meta, steps.figures
    meta[NEED] = NOTHING
    for i in range(at, len(entries.ts)):
        if i + _AHEAD < len(entries.ts):
            _ask_for(state, entries.group[i + _AHEAD], entries.partition[i + _AHEAD])
            own = state.partitions[entries.partition[i + _AHEAD // 2]]
            width = 8 * state.entries.shape[1]
            prefetch(state.entries.ctypes.data + width * own[P_LAST] + 8 * E_IN_GROUP)
            prefetch(state.entries.ctypes.data + width * own[P_FIRST])
        if meta[FULL] >= 0 and not _close(steps, state, meta[FULL], answers):
            return i
        if figures[WIDTH] > 0 and not _pass(steps, state, entries.ts[i], answers):
            return i
        if _lacks_room(steps, state, answers):
            return i
        if figures[SLIDING]:
            _slide(steps, state, entries, i, answers)
        else:
            _gather(steps, state, entries, i)
    if meta[FULL] >= 0:
        _close(steps, state, meta[FULL], answers)
    return len(entries.ts)


@inner(forceinline=True)
def _ask_for(state, g, p):
    """Asks for the memory of a group and of a partition, which may lie across two lines of the cache."""
    group = state.groups.ctypes.data + 8 * state.groups.shape[1] * g
    partition = state.partitions.ctypes.data + 8 * P_PARTITION * p
    prefetch(group)
    prefetch(group + 64)
    prefetch(partition)
    prefetch(partition + 64)


@entry
def pass_time(steps, state, now, answers):
    """Lets time pass where no entry comes."""
    state.meta[NEED] = NOTHING
    _pass(steps, state, now, answers)


@inner(forceinline=True)
def _pass(steps, state, now, answers):
    """Lets entries leave that are too old; closes the batches that are over. False where there is no room."""
    meta, width = state.meta, steps.figures[WIDTH]
    if steps.figures[SLIDING]:
        while meta[HEAD] >= 0 and state.entries[meta[HEAD], E_TS] <= now - width:
            following = state.entries[meta[HEAD], E_NEXT]
            # Entries that came one after the other mostly stand one after the other.
            soon = min(meta[HEAD] + _AHEAD, meta[TOP] - 1)
            _ask_for(state, state.entries[soon, E_GROUP], state.entries[soon, E_PARTITION])
            _leave(steps, state, meta[HEAD])
            meta[HEAD] = following
        return True
    number = now // width
    if number <= meta[NUMBER]:
        return True
    while meta[OPEN] >= 0:
        p = meta[OPEN]
        if not _close(steps, state, p, answers):
            return False
        meta[OPEN] = state.partitions[p, P_OPEN]
    meta[NUMBER] = number
    return True


@inner(forceinline=True)
def _lacks_room(steps, state, answers):
    meta = state.meta
    if meta[FREE] < 0 and meta[TOP] == len(state.entries):
        meta[NEED] = N_ENTRIES
    elif meta[HELD] >= meta[LIMIT]:
        meta[NEED] = N_TOO_MUCH
    elif meta[FAR_TOP] + len(steps.adds) > len(state.far):
        meta[NEED] = N_FAR
    elif meta[SQUARE_TOP] + len(steps.adds) > len(state.squares):
        meta[NEED] = N_SQUARES
    elif 2 * (meta[SLOTS] + len(steps.adds)) > len(state.slots):
        meta[NEED] = N_SLOTS
    elif meta[OUT] == answers.words.shape[1]:
        meta[NEED] = N_OUT
    return meta[NEED] != NOTHING


@inner(forceinline=True)
def _slide(steps, state, entries, i, answers):
    """An entry comes into a sliding window, which answers."""
    meta, kept, count = state.meta, state.entries, steps.figures[COUNT]
    p, g = entries.partition[i], entries.group[i]
    own = state.partitions[p]
    if entries.flags[i] & NEW:
        if count > 0 and own[P_COUNT] == count:
            _forget_oldest(steps, state, p)
        own[P_COUNT] += 1
    e = _new_entry(state)
    _fill(steps, state, entries, i, e)
    meta[HELD] += 1
    if steps.figures[WIDTH] > 0:
        if meta[HEAD] < 0:
            meta[HEAD] = e
        else:
            kept[meta[TAIL], E_NEXT] = e
        meta[TAIL] = e
    if own[P_FIRST] < 0:
        own[P_FIRST] = e
    else:
        kept[own[P_LAST], E_IN_PARTITION] = e
    own[P_LAST] = e
    group = state.groups[g]
    if group[G_COUNT] == 0:
        _begin(state, g, p)
        group[G_FIRST] = e
    else:
        kept[group[G_LAST], E_IN_GROUP] = e
    group[G_LAST] = e
    group[G_COUNT] += 1
    _add(steps, state, g, e, 1)
    ts, start = entries.ts[i], kept[own[P_FIRST], E_TS]
    _answer(steps, state, g, answers, i, start, ts, meta[VERSION])


@inner()
def _forget_oldest(steps, state, p):
    """The oldest event of a partition leaves, with all of its entries."""
    kept = state.entries
    while True:
        _leave(steps, state, state.partitions[p, P_FIRST])
        first = state.partitions[p, P_FIRST]
        if first < 0 or kept[first, E_FLAGS] & NEW:
            break


@inner(forceinline=True)
def _leave(steps, state, e):
    """The oldest entry of a partition leaves a sliding window."""
    kept = state.entries
    p, g = kept[e, E_PARTITION], kept[e, E_GROUP]
    own, group = state.partitions[p], state.groups[g]
    own[P_FIRST] = kept[e, E_IN_PARTITION]
    if kept[e, E_FLAGS] & NEW:
        own[P_COUNT] -= 1
    group[G_FIRST] = kept[e, E_IN_GROUP]
    group[G_COUNT] -= 1
    _add(steps, state, g, e, -1)
    if group[G_COUNT] == 0:
        _end(steps, state, g)
    state.meta[HELD] -= 1
    _free(state, e)


@inner(forceinline=True)
def _gather(steps, state, entries, i):
    """An entry comes into a batch, which answers when it is over."""
    meta = state.meta
    p, g = entries.partition[i], entries.group[i]
    own, group, count = state.partitions[p], state.groups[g], steps.figures[COUNT]
    if entries.flags[i] & NEW:
        if own[P_COUNT] == 0:
            own[P_START] = entries.ts[i]
            if count > 0:
                own[P_LOW], own[P_HIGH] = entries.low[i], entries.high[i]
            if steps.figures[WIDTH] > 0:
                own[P_OPEN] = meta[OPEN]
                meta[OPEN] = p
        own[P_COUNT] += 1
        own[P_END] = entries.ts[i]
        if count > 0:
            own[P_LAST_LOW], own[P_LAST_HIGH] = entries.low[i], entries.high[i]
        own[P_VERSION] = meta[VERSION]
    if group[G_COUNT] == 0:
        _begin(state, g, p)
        group[G_FIRST] = group[G_LAST] = _new_entry(state)
        group[G_OPEN] = own[P_GROUPS]
        own[P_GROUPS] = g
        meta[HELD] += 1
    elif group[G_FIRST] == group[G_LAST]:
        group[G_LAST] = _new_entry(state)
    e = group[G_LAST]
    _fill(steps, state, entries, i, e)
    group[G_COUNT] += 1
    _add(steps, state, g, e, 1)
    if count > 0 and own[P_COUNT] == count and entries.flags[i] & DONE:
        meta[FULL] = p


@inner()
def _close(steps, state, p, answers):
    """A batch of a partition is over: each of its groups answers. False where there is no room for that."""
    meta, own, figures = state.meta, state.partitions[p], steps.figures
    while own[P_GROUPS] >= 0:
        if meta[OUT] == answers.words.shape[1]:
            meta[NEED] = N_OUT
            return False
        g = own[P_GROUPS]
        group = state.groups[g]
        if figures[COUNT] > 0:
            start, end = own[P_START], own[P_END]
            for word in range(4):
                answers.words[O_RESULTS + len(steps.results) + word, meta[OUT]] = own[P_LOW + word]
        else:
            start = meta[NUMBER] * figures[WIDTH]
            end = start + figures[WIDTH]
        _answer(steps, state, g, answers, -1, start, end, own[P_VERSION])
        own[P_GROUPS] = group[G_OPEN]
        if group[G_LAST] != group[G_FIRST]:
            _free(state, group[G_LAST])
        _free(state, group[G_FIRST])
        group[G_COUNT] = 0
        _end(steps, state, g)
        meta[HELD] -= 1
    own[P_COUNT] = 0
    meta[FULL] = -1
    return True


# --- entries and groups ------------------------------------------------------------------------------------


@inner(forceinline=True)
def _new_entry(state):
    meta = state.meta
    e = meta[FREE]
    if e >= 0:
        meta[FREE] = state.entries[e, E_NEXT]
    else:
        e = meta[TOP]
        meta[TOP] += 1
    return e


@inner(forceinline=True)
def _free(state, e):
    state.entries[e, E_NEXT] = state.meta[FREE]
    state.entries[e, E_GROUP] = -1
    state.meta[FREE] = e


@inner(forceinline=True)
def _fill(steps, state, entries, i, e):
    kept = state.entries[e]
    kept[E_TS], kept[E_PARTITION], kept[E_GROUP] = entries.ts[i], entries.partition[i], entries.group[i]
    kept[E_FLAGS] = entries.flags[i]
    kept[E_NEXT] = kept[E_IN_PARTITION] = kept[E_IN_GROUP] = -1
    for c in range(steps.figures[KEPT]):
        kept[E_KEPT + c] = entries.values[c, i]


@inner(forceinline=True)
def _begin(state, g, p):
    """The first entry of a group comes."""
    state.groups[g, G_PARTITION] = p
    state.meta[SERIAL] += 1
    state.groups[g, G_SERIAL] = state.meta[SERIAL]


@inner()
def _end(steps, state, g):
    """A group is empty again."""
    group, meta = state.groups[g], state.meta
    for a in range(len(steps.adds)):
        op, at = steps.adds[a, A_OP], steps.adds[a, A_AT]
        if op == SUM and steps.adds[a, A_KIND] == FLOAT and group[at + 2] >= 0:
            state.far[group[at + 2], 0] = meta[FAR_FREE]
            meta[FAR_FREE] = group[at + 2]
        elif op == SQUARE and group[at] >= 0:
            state.squares[group[at], 0] = meta[SQUARE_FREE]
            meta[SQUARE_FREE] = group[at]
    clear(steps, group)


@inner()
def clear(steps, group):
    """A group of which nothing has come."""
    group[G_COUNT] = 0
    group[G_FIRST] = group[G_LAST] = group[G_OPEN] = -1
    for w in range(G_ADDS, len(group)):
        group[w] = 0
    for a in range(len(steps.adds)):
        op, at = steps.adds[a, A_OP], steps.adds[a, A_AT]
        if op == SUM:
            group[at + 2] = -1
        elif op in (SQUARE, LEAST, MOST):
            group[at] = group[at + 1] = -1


@entry
def clear_groups(steps, groups):
    """Groups of which nothing has come."""
    for g in range(len(groups)):
        clear(steps, groups[g])


# --- aggregates --------------------------------------------------------------------------------------------


@inner(forceinline=True)
def _float(word):
    return np.int64(word).view(np.float64)


@inner(forceinline=True)
def _is_null(kept, column, kind, valid):
    word = kept[E_KEPT + column]
    if kind == FLOAT:
        return np.isnan(_float(word))
    if kind == INT:
        return kept[E_KEPT + valid] == 0
    return word == NULL


@inner(forceinline=True)
def _add(steps, state, g, e, sign):
    """An entry comes to its group, or with sign -1 leaves it."""
    group, kept, adds = state.groups[g], state.entries[e], steps.adds
    for a in range(len(adds)):
        kind, at = adds[a, A_KIND], adds[a, A_AT]
        if _is_null(kept, adds[a, A_COLUMN], kind, adds[a, A_VALID]):
            continue
        op, word = adds[a, A_OP], kept[E_KEPT + adds[a, A_COLUMN]]
        if op == VALUES:
            group[at] += sign
        elif op == SUM:
            _sum(state, group, at, kind, word, sign)
        elif op == SQUARE:
            if group[at] < 0:
                group[at] = _new_row(state.squares, state.meta, SQUARE_FREE, SQUARE_TOP)
            sums.square_add(state.squares, group[at], word, kind == FLOAT, sign)
        elif op == DISTINCT:
            _count_value(state, group, group[G_SERIAL] * len(adds) + a, at, word, kind, sign)
        elif not steps.figures[SLIDING]:
            if group[at] < 0 or _precedes(state, kind, op, word, group[at + 1]):
                group[at], group[at + 1] = 0, word
        elif sign > 0:
            _line_up(state, group, adds[a], e, word)
        elif group[at] == e:
            _next_extreme(state, group, at, adds[a, A_LINK], e)


@inner(forceinline=True)
def _sum(state, group, at, kind, word, sign):
    """A sum is a word, the one above it, the row of its far sum, and how many numbers are in that."""
    if kind != FLOAT:
        group[at], group[at + 1] = sums.whole_moved(group[at], group[at + 1], word, sign)
    elif sums.is_near(word):
        group[at], group[at + 1] = sums.near_moved(group[at], group[at + 1], word, sign)
    else:
        if group[at + 2] < 0:
            group[at + 2] = _new_row(state.far, state.meta, FAR_FREE, FAR_TOP)
        sums.far_add(state.far, group[at + 2], word, sign)
        group[at + 3] += sign


@inner()
def _new_row(rows, meta, free, top):
    made = meta[free]
    if made >= 0:
        meta[free] = rows[made, 0]
    else:
        made = meta[top]
        meta[top] += 1
    for w in range(rows.shape[1]):
        rows[made, w] = 0
    return made


@inner()
def _precedes(state, kind, op, word, other):
    """Whether a value is smaller than another one, or larger where the largest is wanted."""
    if kind == FLOAT:
        a, b = _float(word), _float(other)
        return a < b if op == LEAST else a > b
    if kind == TEXT:
        word, other = state.ranks[word], state.ranks[other]
    return word < other if op == LEAST else word > other


@inner()
def _line_up(state, group, add, e, word):
    """A queue of the entries that may still be the extreme one: what comes later and is better ends them."""
    at, link, kept = add[A_AT], add[A_LINK], state.entries
    last = group[at + 1]
    while last >= 0 and not _precedes(
        state, add[A_KIND], add[A_OP], kept[last, E_KEPT + add[A_COLUMN]], word
    ):
        last = kept[last, link]
    kept[e, link], kept[e, link + 1] = last, -1
    if last >= 0:
        kept[last, link + 1] = e
    else:
        group[at] = e
    group[at + 1] = e


@inner()
def _next_extreme(state, group, at, link, e):
    """The extreme entry leaves; the next one in the queue takes its place."""
    following = state.entries[e, link + 1]
    group[at] = following
    if following >= 0:
        state.entries[following, link] = -1
    else:
        group[at + 1] = -1


@inner()
def _count_value(state, group, key, at, word, kind, sign):
    """Counts how often a value is in a group; `at` is where its different values are counted."""
    slots, meta = state.slots, state.meta
    if kind == FLOAT and word == NULL:
        word = np.int64(0)  # there is one zero
    s = _slot(slots, key, word)
    if slots[s, S_KEY] == 0:
        slots[s, S_KEY], slots[s, S_WORD], slots[s, S_COUNT] = key, word, 0
        meta[SLOTS] += 1
    before = slots[s, S_COUNT]
    slots[s, S_COUNT] += sign
    if before == 0:
        group[at] += 1
    elif before + sign == 0:
        group[at] -= 1


@inner()
def _slot(slots, key, word):
    last = U(len(slots) - 1)
    h = mix(U(key) ^ mix(U(word))) & last
    while slots[h, S_KEY] != 0 and (slots[h, S_KEY] != key or slots[h, S_WORD] != word):
        h = (h + U(1)) & last
    return h


@entry
def rehash(old, state):
    """Brings the values that are still counted into new slots."""
    state.meta[SLOTS] = 0
    for i in range(len(old)):
        if old[i, S_COUNT] > 0:
            s = _slot(state.slots, old[i, S_KEY], old[i, S_WORD])
            for column in range(S_SLOT):
                state.slots[s, column] = old[i, column]
            state.meta[SLOTS] += 1


# --- answers -----------------------------------------------------------------------------------------------


@inner(forceinline=True)
def _answer(steps, state, g, answers, row, start, end, version):
    """A group answers."""
    m = state.meta[OUT]
    out, group, results = answers.words, state.groups[g], steps.results
    out[O_ROW, m], out[O_GROUP, m], out[O_VERSION, m] = row, g, version
    out[O_START, m], out[O_END, m], out[O_EVENTS, m] = start, end, group[G_COUNT]
    for r in range(len(results)):
        word, missing = _result(steps, state, group, results[r])
        out[O_RESULTS + r, m] = word
        answers.missing[r, m] = missing
    state.meta[OUT] += 1


@inner(forceinline=True)
def _result(steps, state, group, result):
    """The word of a result, and whether it is null."""
    op, at, kind = result[R_OP], result[R_AT], result[R_KIND]
    if op == EVENTS:
        return group[G_COUNT], False
    if op == WORD:
        return group[at], False
    if op in (FIRST, LAST):
        kept = state.entries[group[G_FIRST] if op == FIRST else group[G_LAST]]
        return kept[E_KEPT + result[R_COLUMN]], _is_null(kept, result[R_COLUMN], kind, result[R_VALID])
    if op == EXTREME:
        if group[at] < 0:
            return np.int64(0), True
        word = group[at + 1]
        if steps.figures[SLIDING]:
            word = state.entries[group[at], E_KEPT + result[R_COLUMN]]
        if kind == FLOAT and word == NULL:
            word = np.int64(0)  # which of the two zeros came first must not show
        return word, False
    count = group[result[R_COUNTED]]
    if count == 0 or (op == DEVIATION and count < 2):
        return np.int64(0), True
    if op == TOTAL and kind == INT:
        return group[at], group[at + 1] != group[at] >> 63
    value = _figure(state, group, op, at, kind, count, result[R_VALID])
    return np.float64(value).view(np.int64), not np.isfinite(value)


@inner()
def _figure(state, group, op, at, kind, count, squares):
    """The sum of floats, an average or a standard deviation, of which the sum of squares is elsewhere."""
    low, high, far = group[at], group[at + 1], np.int64(-1)
    if kind == FLOAT and group[at + 3] > 0:
        far = group[at + 2]
    if op == DEVIATION:
        return sums.deviation(
            state.far, far, low, high, kind == FLOAT, state.squares, group[squares], count, state.scratch
        )
    if kind != FLOAT:
        return sums.whole_average(low, high, count, state.scratch)
    total = sums.far_read(state.far, far, low, high, state.scratch) if far >= 0 else sums.near_read(low, high)
    return total / count if op == AVERAGE else total
