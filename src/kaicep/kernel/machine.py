"""The pattern machine: one matcher over arrays, for every pattern (semantics 2).

It takes events in order. For each it *looks* at the partial matches that the event may extend or end, without
changing anything; then it *applies* what it found. So it can stop in the middle of an event, when an array is
full or a question must be asked, and begin that event again. It never allocates: whoever drives it does.
"""

# mypy: ignore-errors
# Numba infers the types of all that follows.

from __future__ import annotations

import numpy as np

from kaicep.kernel.jit import entry, inner, prefetch
from kaicep.kernel.predicates import judge
from kaicep.kernel.tables import (
    ASK,
    ASKED,
    AWAITS,
    C_COUNT,
    C_COUNT_FLOAT,
    C_COUNT_INT,
    C_EVENT,
    C_KEY,
    C_MAX_INT,
    C_MIN_FLOAT,
    C_MIN_INT,
    C_POSITION,
    C_ROW,
    C_TIME,
    CAP,
    CONSUME,
    DONE,
    E_FIXED,
    E_HIGH,
    E_LOW,
    E_POSITION,
    E_SEQ,
    E_TS,
    E_WHERE,
    EVENTS,
    F_BEGIN,
    F_BITS,
    F_END,
    F_KEY,
    F_KEY_ROW,
    F_MODE,
    F_SORTED,
    FOREVER,
    FREE,
    FULL,
    GOES_ON,
    H_CELL,
    H_FRONT,
    H_HI,
    H_LO,
    H_MARK,
    HAND,
    HEAP,
    HI,
    HITS,
    KILL,
    LAST,
    LIMIT,
    LO,
    M_END,
    M_EVENT,
    M_NODE,
    M_STATE,
    M_VERSION,
    MATCHES,
    N_ARENA,
    N_DEAD,
    N_EVENT,
    N_EVENTS,
    N_HEAP,
    N_HITS,
    N_MASK,
    N_NODES,
    N_OUT,
    N_PEND,
    N_STATE,
    N_UP,
    NEED,
    NODE,
    NODES,
    NULL,
    O_END,
    O_FINAL,
    O_FINAL_END,
    O_FINAL_MIDDLE,
    O_KEY,
    O_KIND,
    O_LATER,
    O_MIDDLE,
    O_PLACE,
    O_PROGRAM,
    O_STATE,
    O_WINDOW,
    O_WINDOW_END,
    P_FLAGS,
    P_ROW,
    P_STATE,
    PENDS,
    POSITION,
    RESUME,
    ROWS,
    S_BEGIN,
    S_BEGIN_END,
    S_COLUMNS,
    S_COUNTS,
    S_DEADLINE,
    S_FIRST,
    S_FRONTS,
    S_SWEEP,
    S_ZERO,
    SEG,
    STORED,
    STRICT,
    SWEPT,
    T_BEGIN,
    T_CARRY,
    T_CARRY_END,
    T_END,
    T_FINAL,
    T_PENDING,
    T_PLACE,
    TOO_MUCH,
    TOP,
    UNTIL,
    VERSION,
    WIDEST,
)

__all__ = [
    "advance",
    "collect",
    "fire",
    "intern",
    "mix_events",
    "mix_pairs",
    "resolve",
    "resolve_rounds",
]

U = np.uint64
ZERO, ONE = U(0), U(1)
_AHEAD = 12
"""So many events ahead, memory is asked for."""


# --- cells -------------------------------------------------------------------------------------------------


@inner()
def _size_class(cap):
    found = 0
    while np.int64(4) << found < cap:
        found += 1
    return found


@inner()
def _free(memory, seg, cap):
    """Puts a run of slots where the next cell of that size finds it."""
    at = FREE + _size_class(cap)
    memory.ints[seg] = memory.meta[at]
    memory.meta[at] = seg


@inner()
def _grow(tables, memory, c, t):
    """Makes room for one row: forgets what is over, slides down, or moves to twice the room.

    False where the arena is full; nothing has changed then.
    """
    meta, ints, columns = memory.meta, memory.ints, tables.shape[S_COLUMNS]
    seg, cap, lo, hi = memory.cells[c, SEG], memory.cells[c, CAP], memory.cells[c, LO], memory.cells[c, HI]
    until = seg + UNTIL * cap
    live = 0
    for r in range(lo, hi):
        live += np.int64(ints[until + r] >= t)
    new, to = cap, seg
    if live + live >= cap:
        new = max(4, cap + cap)
        at = FREE + _size_class(new)
        if meta[at] >= 0:
            to = meta[at]
            meta[at] = ints[to]
        elif meta[TOP] + columns * new > len(ints):
            meta[NEED] = N_ARENA
            return False
        else:
            to = meta[TOP]
            meta[TOP] += columns * new
        meta[WIDEST] = max(meta[WIDEST], new)
    for j in range(columns):
        if j == UNTIL:  # the others look at it
            continue
        w = to + j * new
        source = seg + j * cap
        for r in range(lo, hi):
            ints[w] = ints[source + r]
            w += np.int64(ints[until + r] >= t)
    w = to + UNTIL * new
    for r in range(lo, hi):
        x = ints[until + r]
        ints[w] = x
        w += np.int64(x >= t)
    if new != cap and cap:
        _free(memory, seg, cap)
    meta[ROWS] -= hi - lo - live
    memory.cells[c, SEG], memory.cells[c, CAP], memory.cells[c, LO], memory.cells[c, HI] = to, new, 0, live
    return True


@inner()
def _squeeze(tables, memory, c, lo, hi, mark):
    """Takes the rows that are marked out of a cell."""
    ints, marks = memory.ints, memory.marks
    seg, cap = memory.cells[c, SEG], memory.cells[c, CAP]
    gone = 0
    for q in range(hi - lo):
        gone += np.int64(marks[mark + q] != 0)
    if gone == 0:
        return
    for j in range(tables.shape[S_COLUMNS]):
        base = seg + j * cap + lo
        w = base
        for q in range(hi - lo):
            ints[w] = ints[base + q]
            w += np.int64(marks[mark + q] == 0)
    memory.cells[c, HI] = hi - gone
    memory.meta[ROWS] -= gone


@inner()
def _sweep(tables, memory, t):
    """Forgets cells that no event comes for any more: all of them once in a WINDOW."""
    meta, cells, width = memory.meta, memory.cells, tables.shape[S_SWEEP]
    passed = t - meta[SWEPT]
    if width < 0 or passed <= 0:
        return
    meta[SWEPT] = t
    share = min(len(cells), int(len(cells) * (passed / (width + 1.0))) + 1)
    c = meta[HAND]
    for _ in range(share):
        c = c + 1 if c + 1 < len(cells) else 0
        _let_go(memory, c, t)
    meta[HAND] = c


@inner()
def _let_go(memory, c, t):
    """Gives the slots of a cell back if all its rows are over."""
    cells, ints = memory.cells, memory.ints
    seg, cap = cells[c, SEG], cells[c, CAP]
    if cap == 0:
        return
    for r in range(cells[c, LO], cells[c, HI]):
        if ints[seg + UNTIL * cap + r] >= t:
            return
    memory.meta[ROWS] -= cells[c, HI] - cells[c, LO]
    _free(memory, seg, cap)
    cells[c, CAP] = cells[c, LO] = cells[c, HI] = 0


# --- looking at what waits ---------------------------------------------------------------------------------


@inner(forceinline=True)
def _look_ahead(tables, memory, batch, i):
    """Asks for the memory of events that come soon: first for their cells, then for the rows in them."""
    if len(batch.keys) == 0 or i + 2 * _AHEAD >= len(batch.ts):
        return
    fronts, cells = tables.shape[S_FRONTS], memory.cells
    for f in range(min(fronts, 4)):
        soon, next_ = batch.keys[0, i + 2 * _AHEAD], batch.keys[0, i + _AHEAD]
        if soon >= 0:
            prefetch(cells.ctypes.data + 32 * (np.int64(soon) * fronts + f))
        if next_ >= 0:
            c = np.int64(next_) * fronts + f
            at, step = memory.ints.ctypes.data + 8 * (cells[c, SEG] + cells[c, LO]), 8 * cells[c, CAP]
            for j in range(min(tables.shape[S_COLUMNS], 4)):
                prefetch(at + j * step)


@inner(forceinline=True)
def _hit(memory, f, c, lo, hi):
    """The note that this event looks at a cell; its marks are clear at first. -1 where there is no room."""
    hits, count = memory.hits, memory.meta[HITS]
    mark = 0
    for h in range(count - 1, -1, -1):
        if hits[h, H_FRONT] != f:
            break
        if hits[h, H_CELL] == c:
            return h
    if count:
        mark = hits[count - 1, H_MARK] + hits[count - 1, H_HI] - hits[count - 1, H_LO]
    if count >= len(hits):
        memory.meta[NEED] = N_HITS
        return -1
    if mark + hi - lo > len(memory.marks):
        memory.meta[NEED] = N_MASK
        return -1
    hits[count, H_CELL], hits[count, H_LO], hits[count, H_HI] = c, lo, hi
    hits[count, H_MARK], hits[count, H_FRONT] = mark, f
    for q in range(hi - lo):
        memory.marks[mark + q] = 0
    memory.meta[HITS] = count + 1
    return count


@inner(forceinline=True)
def _judge(tables, memory, o, seg, cap, lo, n, batch, i):
    """Marks in `mask` the rows that, with the event, fulfil an opening."""
    opening, mask = tables.opening, memory.mask
    for q in range(n):
        mask[q] = 1
    judge(
        tables, memory, opening[o, O_PROGRAM], opening[o, O_MIDDLE], opening[o, O_END], seg, cap, lo, n, i, 0,
    )  # fmt: skip


@inner(forceinline=True)
def _in_windows(tables, memory, o, seg, cap, lo, n, t):
    """Clears the marks of rows that some WINDOW of the opening keeps from going on."""
    for x in range(tables.opening[o, O_WINDOW], tables.opening[o, O_WINDOW_END]):
        base, width = seg + tables.window[x, 0] * cap + lo, tables.window[x, 1]
        for q in range(n):
            memory.mask[q] &= memory.ints[base + q] + width >= t


@inner(forceinline=True)
def _extend(tables, memory, o, seg, cap, lo, n, batch, i, t):
    """Notes which rows go on with the event, and writes the matches that it completes. False: no room."""
    meta, ints, mask, opening = memory.meta, memory.ints, memory.mask, tables.opening
    s = opening[o, O_STATE]
    goes_on = tables.state[s, T_BEGIN] < tables.state[s, T_END]
    final, pending = tables.state[s, T_FINAL], tables.state[s, T_PENDING]
    begin = meta[PENDS]
    if goes_on or (final and pending >= 0):
        w = begin
        for q in range(n):
            if mask[q]:
                if w >= len(memory.pend):
                    meta[NEED] = N_PEND
                    return False
                memory.pend[w, P_STATE] = s
                memory.pend[w, P_FLAGS] = GOES_ON if goes_on else 0
                for j in range(tables.shape[S_COLUMNS]):
                    memory.pend[w, P_ROW + j] = ints[seg + j * cap + lo + q]
                w += 1
        meta[PENDS] = w
    if not final:
        return True
    if opening[o, O_FINAL] < opening[o, O_FINAL_END]:
        # What is asked of the whole match alone; the marks of before say which rows stand in `pend`.
        first = n
        if first + n >= len(mask):
            meta[NEED] = N_MASK
            return False
        for q in range(n):
            mask[first + q] = mask[q]
        judge(
            tables, memory, opening[o, O_FINAL], opening[o, O_FINAL_MIDDLE], opening[o, O_FINAL_END],
            seg, cap, lo, n, i, 0,
        )  # fmt: skip
        w = begin
        for q in range(n):
            if mask[first + q]:
                if pending >= 0 and mask[q]:
                    memory.pend[w, P_FLAGS] |= AWAITS
                w += 1
    elif pending >= 0:
        for w in range(begin, meta[PENDS]):
            memory.pend[w, P_FLAGS] |= AWAITS
    if pending >= 0:
        return True
    out, m = memory.out, meta[MATCHES]
    if m + n > out.shape[1]:
        meta[NEED] = N_OUT
        return False
    event, version, node = meta[EVENTS], meta[VERSION], seg + NODE * cap + lo
    w = m
    for q in range(n):
        out[M_NODE, w] = ints[node + q]
        w += np.int64(mask[q])
    for x in range(m, w):
        out[M_EVENT, x] = event
        out[M_STATE, x] = s
        out[M_END, x] = t
        out[M_VERSION, x] = version
    meta[MATCHES] = w
    return True


@inner(forceinline=True)
def _look_at(tables, memory, batch, f, o, i, t):
    """Lets an event meet the rows that wait for it at an opening. False where there is no room."""
    cells, ints, opening = memory.cells, memory.ints, tables.opening
    key = np.int64(0) if opening[o, O_KEY] < 0 else np.int64(batch.keys[opening[o, O_KEY], i])
    if key < 0:
        return True
    c = key * tables.shape[S_FRONTS] + f
    seg, cap, lo, hi = cells[c, SEG], cells[c, CAP], cells[c, LO], cells[c, HI]
    if tables.front[f, F_SORTED]:
        while lo < hi and ints[seg + UNTIL * cap + lo] < t:
            lo += 1
        memory.meta[ROWS] -= lo - cells[c, LO]
        cells[c, LO] = lo
    if lo == hi:
        return True
    kind, top = opening[o, O_KIND], hi
    if opening[o, O_LATER]:
        last = seg + LAST * cap - 1
        while top > lo and ints[last + top] >= t:
            top -= 1
    n = top - lo
    if n == 0:
        return True
    if 2 * n + 2 >= len(memory.mask):
        memory.meta[NEED] = N_MASK
        return False
    _judge(tables, memory, o, seg, cap, lo, n, batch, i)
    mask = memory.mask
    if kind == KILL or tables.front[f, F_MODE] == CONSUME:
        h = _hit(memory, f, c, lo, hi)
        if h < 0:
            return False
        mark = memory.hits[h, H_MARK]
        for q in range(n):
            memory.marks[mark + q] |= mask[q]
    if kind == KILL:
        return True
    _in_windows(tables, memory, o, seg, cap, lo, n, t)
    return _extend(tables, memory, o, seg, cap, lo, n, batch, i, t)


@inner(forceinline=True)
def _look(tables, memory, batch, i, t, fit):
    """Lets an event meet all that waits for it. False where there is no room."""
    front = tables.front
    for f in range(tables.shape[S_FRONTS]):
        if front[f, F_BITS] & fit == 0:
            continue
        for o in range(front[f, F_BEGIN], front[f, F_END]):
            if (fit >> tables.opening[o, O_PLACE]) & 1 and not _look_at(tables, memory, batch, f, o, i, t):
                return False
    for o in range(tables.shape[S_BEGIN], tables.shape[S_BEGIN_END]):
        if (fit >> tables.opening[o, O_PLACE]) & 1:
            zero = tables.shape[S_ZERO]
            _judge(tables, memory, o, zero, 1, 0, 1, batch, i)
            if memory.mask[0] and not _extend(tables, memory, o, zero, 1, 0, 1, batch, i, t):
                return False
    return True


# --- applying what was found -------------------------------------------------------------------------------


@inner(forceinline=True)
def _keep_event(tables, memory, batch, i):
    """Keeps the event, since something points to it. False where there is no room."""
    at, events = memory.meta[EVENTS], memory.events
    if at >= events.shape[1]:
        memory.meta[NEED] = N_EVENTS
        return False
    events[E_TS, at], events[E_WHERE, at], events[E_SEQ, at] = batch.ts[i], batch.where[i], batch.seq[i]
    events[E_LOW, at], events[E_HIGH, at] = batch.low[i], batch.high[i]
    events[E_POSITION, at] = memory.meta[POSITION] + i
    for x in range(len(tables.keep)):
        events[E_FIXED + x, at] = batch.values[tables.keep[x], i]
    memory.meta[EVENTS] = at + 1
    return True


@inner(forceinline=True)
def _carry(tables, memory, batch, s, w, i, t):
    """What the new row carries, from the row before it and the event."""
    row, old, values = memory.row, memory.pend[w], batch.values
    for x in range(tables.state[s, T_CARRY], tables.state[s, T_CARRY_END]):
        op, d, a, b = tables.carry[x, 0], tables.carry[x, 1], tables.carry[x, 2], tables.carry[x, 3]
        if op == C_ROW:
            row[d] = old[P_ROW + a]
        elif op == C_EVENT:
            row[d] = values[a, i]
        elif op == C_TIME:
            row[d] = t
        elif op == C_KEY:
            row[d] = batch.keys[a, i]
        elif op == C_POSITION:
            row[d] = memory.meta[POSITION] + i
        elif op == C_COUNT:
            row[d] = old[P_ROW + a] + 1
        elif op == C_COUNT_INT:
            row[d] = old[P_ROW + a] + np.int64(values[b, i] != NULL)
        elif op == C_MIN_INT:
            x0, y0 = old[P_ROW + a], values[b, i]
            row[d] = y0 if x0 == NULL or (y0 != NULL and y0 < x0) else x0
        elif op == C_MAX_INT:
            row[d] = max(old[P_ROW + a], values[b, i])
        else:
            memory.word[0] = values[b, i]
            y1 = memory.number[0]
            if op == C_COUNT_FLOAT:
                row[d] = old[P_ROW + a] + np.int64(y1 == y1)
            else:
                memory.word[0] = old[P_ROW + a]
                x1 = memory.number[0]
                better = y1 < x1 if op == C_MIN_FLOAT else y1 > x1
                row[d] = values[b, i] if better or x1 != x1 else old[P_ROW + a]


@inner(forceinline=True)
def _until(tables, memory, f):
    """How long the new row may wait at a frontier: until no opening of it can be taken in time."""
    longest = NULL
    for o in range(tables.front[f, F_BEGIN], tables.front[f, F_END]):
        if tables.opening[o, O_KIND] == KILL and tables.front[f, F_MODE] >= 0:
            continue
        least = FOREVER
        for x in range(tables.opening[o, O_WINDOW], tables.opening[o, O_WINDOW_END]):
            least = min(least, memory.row[tables.window[x, 0]] + tables.window[x, 1])
        longest = max(longest, least)
    return longest


@inner(forceinline=True)
def _enter(tables, memory, batch, f, node, i, t):
    """Lets the new row wait at a frontier. False where there is no room."""
    front, cells, ints, row = tables.front, memory.cells, memory.ints, memory.row
    key = np.int64(0)
    if front[f, F_KEY] >= 0:
        key = np.int64(batch.keys[front[f, F_KEY], i])
    elif front[f, F_KEY_ROW] >= 0:
        key = row[front[f, F_KEY_ROW]]
    if key < 0:
        return True  # null equals nothing: no event will ever go on with it
    until = _until(tables, memory, f)
    if until < t:
        return True
    c = key * tables.shape[S_FRONTS] + f
    if cells[c, HI] == cells[c, CAP] and not _grow(tables, memory, c, t):
        return False
    seg, cap, hi = cells[c, SEG], cells[c, CAP], cells[c, HI]
    row[NODE], row[UNTIL], row[LAST] = node, until, t
    for j in range(tables.shape[S_COLUMNS]):
        ints[seg + j * cap + hi] = row[j]
    cells[c, HI] = hi + 1
    memory.meta[ROWS] += 1
    return True


@inner()
def _await(memory, deadline, node):
    """Puts a complete match into the heap of those that wait for their deadline."""
    heap, at = memory.heap, memory.meta[HEAP]
    memory.meta[HEAP] = at + 1
    while at > 0 and heap[(at - 1) >> 1, 0] > deadline:
        up = (at - 1) >> 1
        heap[at, 0], heap[at, 1], heap[at, 2] = heap[up, 0], heap[up, 1], heap[up, 2]
        at = up
    heap[at, 0], heap[at, 1], heap[at, 2] = deadline, node, memory.meta[VERSION]


@inner(forceinline=True)
def _apply_one(tables, memory, batch, w, i, t):
    """Makes the partial match that stands in `pend` wait for what may come next. False: there is no room."""
    meta, pend = memory.meta, memory.pend
    s, flags = pend[w, P_STATE], pend[w, P_FLAGS]
    node = meta[NODES]
    if node >= len(memory.nodes):
        meta[NEED] = N_NODES
        return False
    if flags & AWAITS and (meta[HEAP] >= len(memory.heap) or meta[MATCHES] >= memory.out.shape[1]):
        meta[NEED] = N_HEAP if meta[HEAP] >= len(memory.heap) else N_OUT
        return False
    # A cell that must grow does so before anything changes; what grew stays so when this is begun again.
    _carry(tables, memory, batch, s, w, i, t)
    if not _has_room(tables, memory, batch, s, flags, i, t):
        return False
    memory.nodes[node, N_EVENT], memory.nodes[node, N_UP] = meta[STORED], pend[w, P_ROW + NODE]
    memory.nodes[node, N_STATE], memory.nodes[node, N_DEAD] = s, 0
    meta[NODES] = node + 1
    if flags & GOES_ON:
        for f in range(tables.state[s, T_BEGIN], tables.state[s, T_END]):
            _enter(tables, memory, batch, f, node, i, t)
    if flags & AWAITS:
        deadline = memory.row[tables.shape[S_FIRST]] + tables.shape[S_DEADLINE]
        if deadline < t:
            m, out = meta[MATCHES], memory.out
            out[M_NODE, m], out[M_EVENT, m], out[M_STATE, m] = pend[w, P_ROW + NODE], meta[STORED], s
            out[M_END, m], out[M_VERSION, m] = deadline, meta[VERSION]
            meta[MATCHES] = m + 1
        else:
            _await(memory, deadline, node)
            _enter(tables, memory, batch, tables.state[s, T_PENDING], node, i, t)
    return True


@inner(forceinline=True)
def _has_room(tables, memory, batch, s, flags, i, t):
    """Makes room in all cells that a new row will wait in."""
    begin, end = tables.state[s, T_BEGIN], tables.state[s, T_END]
    for x in range(begin, end + 1):
        f = x
        if x == end:
            f = tables.state[s, T_PENDING]
            if not flags & AWAITS:
                continue
        elif not flags & GOES_ON:
            continue
        key = np.int64(0)
        if tables.front[f, F_KEY] >= 0:
            key = np.int64(batch.keys[tables.front[f, F_KEY], i])
        elif tables.front[f, F_KEY_ROW] >= 0:
            key = memory.row[tables.front[f, F_KEY_ROW]]
        if key < 0:
            continue
        c = key * tables.shape[S_FRONTS] + f
        if memory.cells[c, HI] == memory.cells[c, CAP] and not _grow(tables, memory, c, t):
            return False
    return True


@inner(forceinline=True)
def _settle(tables, memory, fit, batch, i):
    """Takes out the rows that the event used up, ended, or broke off."""
    meta, hits = memory.meta, memory.hits
    for h in range(meta[HITS]):
        c, lo, hi, f = hits[h, H_CELL], hits[h, H_LO], hits[h, H_HI], hits[h, H_FRONT]
        if tables.front[f, F_MODE] < 0:  # complete matches that wait for a deadline
            base = memory.cells[c, SEG] + NODE * memory.cells[c, CAP] + lo
            for q in range(hi - lo):
                if memory.marks[hits[h, H_MARK] + q]:
                    memory.nodes[memory.ints[base + q], N_DEAD] = 1
        _squeeze(tables, memory, c, lo, hi, hits[h, H_MARK])
    if tables.shape[S_COUNTS] >= 0 and (fit >> tables.shape[S_COUNTS]) & 1:
        for f in range(tables.shape[S_FRONTS]):
            if tables.front[f, F_MODE] != STRICT:
                continue
            key = np.int64(0)
            if tables.front[f, F_KEY] >= 0:
                key = np.int64(batch.keys[tables.front[f, F_KEY], i])
            if key >= 0:
                c = key * tables.shape[S_FRONTS] + f
                meta[ROWS] -= memory.cells[c, HI] - memory.cells[c, LO]
                memory.cells[c, LO] = memory.cells[c, HI] = 0


# --- time passes -------------------------------------------------------------------------------------------


@inner()
def _fire(memory, now):
    """Writes the matches whose deadline has passed. False where there is no room for more."""
    meta, heap, out, nodes = memory.meta, memory.heap, memory.out, memory.nodes
    while meta[HEAP] > 0 and heap[0, 0] < now:
        m, node = meta[MATCHES], heap[0, 1]
        if m >= out.shape[1]:
            meta[NEED] = N_OUT
            return False
        if nodes[node, N_DEAD] == 0:
            out[M_NODE, m], out[M_EVENT, m], out[M_STATE, m] = (
                nodes[node, N_UP],
                nodes[node, N_EVENT],
                nodes[node, N_STATE],
            )
            out[M_END, m], out[M_VERSION, m] = heap[0, 0], heap[0, 2]
            meta[MATCHES] = m + 1
        last = meta[HEAP] - 1
        meta[HEAP] = last
        deadline, node, version = heap[last, 0], heap[last, 1], heap[last, 2]
        at = 0
        while 2 * at + 1 < last:
            down = 2 * at + 1
            if down + 1 < last and heap[down + 1, 0] < heap[down, 0]:
                down += 1
            if heap[down, 0] >= deadline:
                break
            heap[at, 0], heap[at, 1], heap[at, 2] = heap[down, 0], heap[down, 1], heap[down, 2]
            at = down
        heap[at, 0], heap[at, 1], heap[at, 2] = deadline, node, version
    return True


@entry
def fire(memory, now):
    """Answers the trailing absences whose deadline lies before `now`; False where there is no room."""
    return _fire(memory, now)


@entry
def advance(tables, memory, batch, begin):
    """Takes the events from `begin` on; the place of the first that was not taken, and why it stopped."""
    meta = memory.meta
    for i in range(begin, len(batch.ts)):
        _look_ahead(tables, memory, batch, i)
        fit, t = batch.fits[i], batch.ts[i]
        if fit == 0:
            continue
        if meta[HEAP] > 0 and not _fire(memory, t):
            return i, FULL
        if meta[RESUME] < 0:
            matches = meta[MATCHES]
            meta[PENDS] = meta[HITS] = meta[ASKED] = 0
            if not _look(tables, memory, batch, i, t, fit):
                meta[MATCHES] = matches
                return i, FULL
            if meta[ASKED] > 0:
                meta[MATCHES] = matches
                return i, ASK
            if meta[PENDS] == 0 and meta[MATCHES] == matches:
                _settle(tables, memory, fit, batch, i)
                continue
            if meta[EVENTS] >= memory.events.shape[1]:
                meta[MATCHES] = matches
                meta[NEED] = N_EVENTS
                return i, FULL
            meta[STORED] = meta[EVENTS]
            _keep_event(tables, memory, batch, i)
            _settle(tables, memory, fit, batch, i)
            meta[RESUME] = 0
        for w in range(meta[RESUME], meta[PENDS]):
            if not _apply_one(tables, memory, batch, w, i, t):
                meta[RESUME] = w
                return i, FULL
        meta[RESUME] = -1
        if meta[ROWS] > meta[LIMIT]:
            return i + 1, TOO_MUCH
    if len(batch.ts):
        _sweep(tables, memory, batch.ts[-1])
    return len(batch.ts), DONE


# --- memory ------------------------------------------------------------------------------------------------


@inner()
def _mark(memory, node, marked):
    while node >= 0 and marked[node] == 0:
        marked[node] = 1
        node = memory.nodes[node, N_UP]


@entry
def collect(tables, memory, marked, used):
    """Forgets nodes and events that nothing leads to any more, and closes the gaps."""
    meta, cells, ints, nodes, events = memory.meta, memory.cells, memory.ints, memory.nodes, memory.events
    for c in range(len(cells)):
        base = cells[c, SEG] + NODE * cells[c, CAP]
        for r in range(cells[c, LO], cells[c, HI]):
            _mark(memory, ints[base + r], marked)
    for x in range(meta[HEAP]):
        _mark(memory, memory.heap[x, 1], marked)
    resumed = meta[RESUME] >= 0
    if resumed:
        for w in range(meta[RESUME], meta[PENDS]):
            _mark(memory, memory.pend[w, P_ROW + NODE], marked)
        used[meta[STORED]] = 1
    for node in range(meta[NODES]):
        if marked[node]:
            used[nodes[node, N_EVENT]] = 1
    # From here on both arrays hold where something has moved to.
    to = 0
    for at in range(meta[EVENTS]):
        if used[at]:
            if to != at:
                for j in range(len(events)):
                    events[j, to] = events[j, at]
            used[at] = to
            to += 1
    meta[EVENTS] = to
    if resumed:
        meta[STORED] = used[meta[STORED]]
    to = 0
    for at in range(meta[NODES]):
        if marked[at]:
            up = nodes[at, N_UP]
            nodes[to, N_EVENT] = used[nodes[at, N_EVENT]]
            nodes[to, N_UP] = marked[up] if up >= 0 else -1
            nodes[to, N_STATE], nodes[to, N_DEAD] = nodes[at, N_STATE], nodes[at, N_DEAD]
            marked[at] = to
            to += 1
    meta[NODES] = to
    for c in range(len(cells)):
        base = cells[c, SEG] + NODE * cells[c, CAP]
        for r in range(cells[c, LO], cells[c, HI]):
            if ints[base + r] >= 0:
                ints[base + r] = marked[ints[base + r]]
    for x in range(meta[HEAP]):
        memory.heap[x, 1] = marked[memory.heap[x, 1]]
    if resumed:
        for w in range(meta[RESUME], meta[PENDS]):
            node = memory.pend[w, P_ROW + NODE]
            memory.pend[w, P_ROW + NODE] = marked[node] if node >= 0 else -1


@entry
def intern(words, without, slots, meta, ids):
    """The numbers of keys; a new one gets the next. The place of the first key that found no room."""
    last = U(len(slots) - 1)
    width = len(words)
    for i in range(meta[1], words.shape[1]):
        if without[i]:
            ids[i] = -1
            continue
        h = U(width)
        for j in range(width):
            h = (h ^ U(words[j, i])) * U(0xBF58476D1CE4E5B9)
            h ^= h >> U(29)
        at = h & last
        while True:
            if slots[at, 0] < 0:
                if 2 * meta[0] >= len(slots):
                    meta[1] = i
                    return False
                slots[at, 0] = meta[0]
                slots[at, 1] = width
                for j in range(width):
                    slots[at, 2 + j] = words[j, i]
                ids[i] = meta[0]
                meta[0] += 1
                break
            same = slots[at, 1] == width
            for j in range(width):
                same &= slots[at, 2 + j] == words[j, i]
            if same:
                ids[i] = slots[at, 0]
                break
            at = (at + ONE) & last
    meta[1] = 0
    return True


@entry
def resolve(tables, memory, count, found, lengths):
    """The events of the matches by place, and how many there are: the last one where there are several."""
    for m in range(count):
        event, state, node = memory.out[M_EVENT, m], memory.out[M_STATE, m], memory.out[M_NODE, m]
        while True:
            place = tables.state[state, T_PLACE]
            if lengths[place, m] == 0:
                found[place, m] = event
            lengths[place, m] += 1
            if node < 0:
                break
            event, state, node = (
                memory.nodes[node, N_EVENT],
                memory.nodes[node, N_STATE],
                memory.nodes[node, N_UP],
            )


@entry
def resolve_rounds(tables, memory, count, place, offsets, rounds):
    """The events of a loop, match by match, from the first round to the last."""
    for m in range(count):
        event, state, node = memory.out[M_EVENT, m], memory.out[M_STATE, m], memory.out[M_NODE, m]
        at = offsets[m + 1]
        while True:
            if tables.state[state, T_PLACE] == place:
                at -= 1
                rounds[at] = event
            if node < 0:
                break
            event, state, node = (
                memory.nodes[node, N_EVENT],
                memory.nodes[node, N_STATE],
                memory.nodes[node, N_UP],
            )


@inner()
def _mix(word):
    word = (word ^ (word >> U(30))) * U(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> U(27))) * U(0x94D049BB133111EB)
    return word ^ (word >> U(31))


@inner()
def _pair(low, high, first, second):
    low = _mix(low ^ first)
    return low, _mix(high + second + U(0x9E3779B97F4A7C15)) ^ (low >> ONE)


@entry
def mix_pairs(low, high, first, second):
    """Mixes two words into each id."""
    for m in range(len(low)):
        low[m], high[m] = _pair(low[m], high[m], U(first[m]), U(second[m]))


@entry
def mix_events(low, high, offsets, rounds, events):
    """Mixes into each id how many events a variable has, and their identities."""
    for m in range(len(low)):
        begin, end = offsets[m], offsets[m + 1]
        word = U(end - begin)
        a, b = _pair(low[m], high[m], word, word)
        for x in range(begin, end):
            a, b = _pair(a, b, U(events[E_LOW, rounds[x]]), U(events[E_HIGH, rounds[x]]))
        low[m], high[m] = a, b
