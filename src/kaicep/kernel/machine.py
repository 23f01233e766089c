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
from kaicep.kernel.predicates import AT_EVENT, judge, point
from kaicep.kernel.sums import grown
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
    C_SUM_FLOAT,
    C_SUM_INT,
    C_TIME,
    CAP,
    CONSUME,
    DONE,
    E_FIXED,
    E_PART,
    E_PLACE,
    E_POSITION,
    E_SEQ,
    E_TS,
    EVENTS,
    F_BEGIN,
    F_BITS,
    F_END,
    F_KEY,
    F_KEY_ROW,
    F_LAST,
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
    QUEUE,
    QUEUED,
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
    S_UNTIL,
    S_WIDTH,
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
    VERSION,
    WIDEST,
)

U = np.uint64
ZERO, ONE = U(0), U(1)
_AHEAD = 12
"""So many events ahead, memory is asked for."""
AT_ONCE = 256
"""So many matches are written at a time; then their events are still in the cache."""


# --- cells -------------------------------------------------------------------------------------------------


# What is called and not copied to its caller gets only the arrays that it needs: each is seven words to pass.


@inner()
def _size_class(cap):
    found = 0
    while np.int64(4) << found < cap:
        found += 1
    return found


@inner()
def _free(meta, ints, seg, cap):
    """Puts a run of slots where the next cell of that size finds it."""
    at = FREE + _size_class(cap)
    ints[seg] = meta[at]
    meta[at] = seg


@inner()
def _room(columns, cap):
    """So many words of the arena a cell takes; they begin where a line of the cache does."""
    return (columns * cap + U(7)) & ~U(7)


@inner()
def _grow(meta, cells, ints, shape, c, t):
    """Makes room for one row: forgets what is over, slides down, or moves to twice the room.

    False where the arena is full; nothing has changed then.
    """
    seg, cap, lo, hi = U(cells[c, SEG]), U(cells[c, CAP]), U(cells[c, LO]), U(cells[c, HI])
    columns, last, width = U(shape[S_COLUMNS]), U(shape[S_UNTIL]), shape[S_WIDTH]
    until = seg + last * cap
    live = ZERO
    for r in range(lo, hi):
        live += U(ints[until + r] + width >= t)
    new, to = cap, seg
    if live + live >= cap:
        new = max(U(4), cap + cap)
        at = FREE + _size_class(new)
        if meta[at] >= 0:
            to = U(meta[at])
            meta[at] = ints[to]
        elif U(meta[TOP]) + _room(columns, new) > U(len(ints)):
            meta[NEED] = N_ARENA
            return False
        else:
            to = U(meta[TOP])
            meta[TOP] = to + _room(columns, new)
        meta[WIDEST] = max(meta[WIDEST], np.int64(new))
    for j in range(columns):
        if j == last:  # the others look at it
            continue
        w = to + j * new
        source = seg + j * cap
        for r in range(lo, hi):
            ints[w] = ints[source + r]
            w += U(ints[until + r] + width >= t)
    w = to + last * new
    for r in range(lo, hi):
        x = ints[until + r]
        ints[w] = x
        w += U(x + width >= t)
    if new != cap and cap:
        _free(meta, ints, seg, cap)
    meta[ROWS] -= np.int64(hi - lo - live)
    cells[c, SEG], cells[c, CAP], cells[c, LO], cells[c, HI] = to, new, ZERO, live
    return True


@inner(forceinline=True)
def _squeeze(tables, memory, c, lo, hi, mark):
    """Takes the rows that are marked out of a cell."""
    ints, marks = memory.ints, memory.marks
    seg, cap, n = U(memory.cells[c, SEG]), U(memory.cells[c, CAP]), hi - lo
    first = ZERO
    while first < n and marks[mark + first] == 0:
        first += ONE
    gone = ZERO
    for q in range(first, n):
        gone += U(marks[mark + q])
    for j in range(U(tables.shape[S_COLUMNS])):
        base = seg + j * cap + lo
        w = base + first
        for q in range(first, n):
            ints[w] = ints[base + q]
            w += ONE - U(marks[mark + q])
    memory.cells[c, HI] = hi - gone
    memory.meta[ROWS] -= np.int64(gone)


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
        _let_go(memory, tables.shape, c, t)
    meta[HAND] = c


@inner()
def _let_go(memory, shape, c, t):
    """Gives the slots of a cell back if all its rows are over."""
    cells, ints = memory.cells, memory.ints
    seg, cap = cells[c, SEG], cells[c, CAP]
    if cap == 0:
        return
    for r in range(cells[c, LO], cells[c, HI]):
        if ints[seg + shape[S_UNTIL] * cap + r] + shape[S_WIDTH] >= t:
            return
    memory.meta[ROWS] -= cells[c, HI] - cells[c, LO]
    _free(memory.meta, ints, U(seg), U(cap))
    cells[c, CAP] = cells[c, LO] = cells[c, HI] = 0


# --- looking at what waits ---------------------------------------------------------------------------------


@inner(forceinline=True)
def _look_ahead(tables, memory, batch, i):
    """Asks for the memory of events that come soon: first for their cells, then for the rows in them."""
    if len(batch.keys) == 0 or i + U(2 * _AHEAD) >= U(len(batch.ts)):
        return
    fronts, cells = U(tables.shape[S_FRONTS]), memory.cells
    soon, next_ = batch.keys[0, i + U(2 * _AHEAD)], batch.keys[0, i + U(_AHEAD)]
    for f in range(min(fronts, U(4))):
        if soon >= 0:
            prefetch(cells.ctypes.data + 32 * np.int64(U(soon) * fronts + f))
        if next_ >= 0:
            c = U(next_) * fronts + f
            at, step = memory.ints.ctypes.data + 8 * cells[c, SEG], 8 * cells[c, CAP]
            for j in range(min(tables.shape[S_COLUMNS], 6)):
                for r in range(cells[c, LO] & ~7, min(cells[c, HI] + 1, cells[c, LO] + 32), 8):
                    prefetch(at + j * step + 8 * r)


@inner(forceinline=True)
def _hit(memory, f, c, lo, hi):
    """The note that this event looks at a cell; its marks are clear at first. -1 where there is no room."""
    hits, count = memory.hits, memory.meta[HITS]
    mark = ZERO
    for h in range(count - 1, -1, -1):
        if U(hits[U(h), H_FRONT]) != f:
            break
        if U(hits[U(h), H_CELL]) == c:
            return h
    if count:
        last = U(count - 1)
        mark = U(hits[last, H_MARK]) + U(hits[last, H_HI]) - U(hits[last, H_LO])
    if count >= len(hits):
        memory.meta[NEED] = N_HITS
        return -1
    if mark + hi - lo > U(len(memory.marks)):
        memory.meta[NEED] = N_MASK
        return -1
    at = U(count)
    hits[at, H_CELL], hits[at, H_LO], hits[at, H_HI] = c, lo, hi
    hits[at, H_MARK], hits[at, H_FRONT] = mark, f
    for q in range(hi - lo):
        memory.marks[mark + q] = 0
    memory.meta[HITS] = count + 1
    return count


@inner(forceinline=True)
def _judge(tables, memory, o, seg, cap, lo, n):
    """Marks in `mask` the rows that, with the event, fulfil an opening. False where there are none."""
    opening, mask = tables.opening, memory.mask
    for q in range(n):
        mask[q] = 1
    if opening[o, O_PROGRAM] == opening[o, O_END]:
        return True
    judge(
        memory, tables, opening[o, O_PROGRAM], opening[o, O_MIDDLE], opening[o, O_END], seg, cap, lo, n, ZERO
    )
    some = np.uint8(0)
    for q in range(n):
        some |= mask[q]
    return some != 0


@inner(forceinline=True)
def _in_windows(tables, memory, o, seg, cap, lo, n, t):
    """Clears the marks of rows that some WINDOW of the opening keeps from going on."""
    for x in range(U(tables.opening[o, O_WINDOW]), U(tables.opening[o, O_WINDOW_END])):
        base, width = seg + U(tables.window[x, 0]) * cap + lo, tables.window[x, 1]
        for q in range(n):
            memory.mask[q] &= memory.ints[base + q] + width >= t


@inner(forceinline=True)
def _extend(tables, memory, o, seg, cap, lo, n, t):
    """Notes which rows go on with the event, and writes the matches that it completes. False: no room."""
    meta, ints, mask, opening = memory.meta, memory.ints, memory.mask, tables.opening
    s = U(opening[o, O_STATE])
    goes_on = tables.state[s, T_BEGIN] < tables.state[s, T_END]
    final, pending = tables.state[s, T_FINAL], tables.state[s, T_PENDING]
    begin = U(meta[PENDS])
    if goes_on or (final and pending >= 0):
        w = begin
        for q in range(n):
            if mask[q]:
                if w >= U(len(memory.pend)):
                    meta[NEED] = N_PEND
                    return False
                memory.pend[w, P_STATE] = s
                memory.pend[w, P_FLAGS] = GOES_ON if goes_on else 0
                for j in range(U(tables.shape[S_COLUMNS])):
                    memory.pend[w, U(P_ROW) + j] = ints[seg + j * cap + lo + q]
                w += ONE
        meta[PENDS] = w
    if not final:
        return True
    if opening[o, O_FINAL] < opening[o, O_FINAL_END]:
        # What is asked of the whole match alone; the marks of before say which rows stand in `pend`.
        first = n
        if first + n >= U(len(mask)):
            meta[NEED] = N_MASK
            return False
        for q in range(n):
            mask[first + q] = mask[q]
        judge(
            memory, tables, opening[o, O_FINAL], opening[o, O_FINAL_MIDDLE], opening[o, O_FINAL_END],
            seg, cap, lo, n, ZERO,
        )  # fmt: skip
        w = begin
        for q in range(n):
            if mask[first + q]:
                if pending >= 0 and mask[q]:
                    memory.pend[w, P_FLAGS] |= AWAITS
                w += ONE
    elif pending >= 0:
        for w in range(begin, U(meta[PENDS])):
            memory.pend[w, P_FLAGS] |= AWAITS
    if pending >= 0:
        return True
    out, m = memory.out, U(meta[MATCHES])
    if m + n > U(out.shape[1]):
        meta[NEED] = N_OUT
        return False
    event, version, node = meta[EVENTS], meta[VERSION], seg + U(NODE) * cap + lo
    w = m
    for q in range(n):
        out[M_NODE, w] = ints[node + q]
        w += U(mask[q])
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
    key = np.int64(0) if opening[o, O_KEY] < 0 else np.int64(batch.keys[U(opening[o, O_KEY]), i])
    if key < 0:
        return True
    c = U(key) * U(tables.shape[S_FRONTS]) + f
    seg, cap, lo, hi = U(cells[c, SEG]), U(cells[c, CAP]), U(cells[c, LO]), U(cells[c, HI])
    if tables.front[f, F_SORTED]:
        begin, until = lo, seg + U(tables.shape[S_UNTIL]) * cap
        while lo < hi and ints[until + lo] + tables.shape[S_WIDTH] < t:
            lo += ONE
        memory.meta[ROWS] -= np.int64(lo - begin)
        cells[c, LO] = lo
    if lo == hi:
        return True
    kind, top = opening[o, O_KIND], hi
    if opening[o, O_LATER]:
        last = seg + U(tables.front[f, F_LAST]) * cap - ONE
        while top > lo and ints[last + top] >= t:
            top -= ONE
    n = top - lo
    if n == ZERO:
        return True
    if n + n + U(2) >= U(len(memory.mask)):
        memory.meta[NEED] = N_MASK
        return False
    if not _judge(tables, memory, o, seg, cap, lo, n):
        return True
    mask = memory.mask
    if kind == KILL or tables.front[f, F_MODE] == CONSUME:
        h = _hit(memory, f, c, lo, hi)
        if h < 0:
            return False
        mark = U(memory.hits[U(h), H_MARK])
        for q in range(n):
            memory.marks[mark + q] |= mask[q]
    if kind == KILL:
        return True
    # Where one place stands open, rows wait as long as its WINDOWs allow, and those before `lo` are over.
    if not (tables.front[f, F_SORTED] and tables.front[f, F_END] - tables.front[f, F_BEGIN] == 1):
        _in_windows(tables, memory, o, seg, cap, lo, n, t)
    return _extend(tables, memory, o, seg, cap, lo, n, t)


@inner(forceinline=True)
def _look(tables, memory, batch, i, t, fit):
    """Lets an event meet all that waits for it. False where there is no room."""
    front = tables.front
    memory.context[AT_EVENT] = i
    for f in range(U(tables.shape[S_FRONTS])):
        if front[f, F_BITS] & fit == 0:
            continue
        for o in range(U(front[f, F_BEGIN]), U(front[f, F_END])):
            if (fit >> tables.opening[o, O_PLACE]) & 1 and not _look_at(tables, memory, batch, f, o, i, t):
                return False
    for o in range(U(tables.shape[S_BEGIN]), U(tables.shape[S_BEGIN_END])):
        if (fit >> tables.opening[o, O_PLACE]) & 1:
            zero = U(tables.shape[S_ZERO])
            fulfilled = _judge(tables, memory, o, zero, ONE, ZERO, ONE)
            if fulfilled and not _extend(tables, memory, o, zero, ONE, ZERO, ONE, t):
                return False
    return True


# --- applying what was found -------------------------------------------------------------------------------


@inner(forceinline=True)
def _keep_event(tables, memory, batch, i):
    """Keeps the event, since something points to it."""
    at, events = U(memory.meta[EVENTS]), memory.events
    events[at, E_TS] = batch.ts[i]
    events[at, E_PLACE], events[at, E_PART], events[at, E_SEQ] = batch.place[i], batch.part[i], batch.seq[i]
    events[at, E_POSITION] = memory.meta[POSITION] + np.int64(i)
    for x in range(U(len(tables.keep))):
        events[at, U(E_FIXED) + x] = batch.values[U(tables.keep[x]), i]
    memory.meta[EVENTS] = at + ONE


@inner(forceinline=True)
def _carry(tables, memory, batch, s, w, i, t):
    """What the new row carries, from the row before it and the event."""
    row, old, values, carry = memory.row, memory.pend[w], batch.values, tables.carry
    for x in range(U(tables.state[s, T_CARRY]), U(tables.state[s, T_CARRY_END])):
        op, d, a, b = carry[x, 0], U(carry[x, 1]), U(carry[x, 2]), U(carry[x, 3])
        if op == C_ROW:
            row[d] = old[U(P_ROW) + a]
        elif op == C_EVENT:
            row[d] = values[a, i]
        elif op == C_TIME:
            row[d] = t
        elif op == C_KEY:
            row[d] = batch.keys[a, i]
        elif op == C_POSITION:
            row[d] = memory.meta[POSITION] + np.int64(i)
        elif op == C_COUNT:
            row[d] = old[U(P_ROW) + a] + 1
        elif op == C_COUNT_INT:
            row[d] = old[U(P_ROW) + a] + np.int64(values[b, i] != NULL)
        elif op == C_MIN_INT:
            x0, y0 = old[U(P_ROW) + a], values[b, i]
            row[d] = y0 if x0 == NULL or (y0 != NULL and y0 < x0) else x0
        elif op == C_MAX_INT:
            row[d] = max(old[U(P_ROW) + a], values[b, i])
        elif op in (C_SUM_FLOAT, C_SUM_INT):
            row[d], row[a] = grown(old[U(P_ROW) + d], old[U(P_ROW) + a], values[b, i], op == C_SUM_FLOAT)
        else:
            memory.word[0] = values[b, i]
            y1 = memory.number[0]
            if op == C_COUNT_FLOAT:
                row[d] = old[U(P_ROW) + a] + np.int64(y1 == y1)
            else:
                memory.word[0] = old[U(P_ROW) + a]
                x1 = memory.number[0]
                better = y1 < x1 if op == C_MIN_FLOAT else y1 > x1
                row[d] = values[b, i] if better or x1 != x1 else old[U(P_ROW) + a]


@inner(forceinline=True)
def _until(tables, memory, f):
    """How long the new row may wait at a frontier: until no opening of it can be taken in time."""
    opening, window, longest = tables.opening, tables.window, NULL
    for o in range(U(tables.front[f, F_BEGIN]), U(tables.front[f, F_END])):
        if opening[o, O_KIND] == KILL and tables.front[f, F_MODE] >= 0:
            continue
        least = FOREVER
        for x in range(U(opening[o, O_WINDOW]), U(opening[o, O_WINDOW_END])):
            least = min(least, memory.row[U(window[x, 0])] + window[x, 1])
        longest = max(longest, least)
    return longest


@inner(forceinline=True)
def _enter(tables, memory, batch, f, node, i, t):
    """Lets the new row wait at a frontier; there is room for it."""
    front, cells, ints, row = tables.front, memory.cells, memory.ints, memory.row
    columns = U(tables.shape[S_COLUMNS])
    key = np.int64(0)
    if front[f, F_KEY] >= 0:
        key = np.int64(batch.keys[U(front[f, F_KEY]), i])
    elif front[f, F_KEY_ROW] >= 0:
        key = row[U(front[f, F_KEY_ROW])]
    if key < 0:
        return  # null equals nothing: no event will ever go on with it
    if tables.shape[S_WIDTH] == 0:  # else it is in a column that is carried
        until = _until(tables, memory, f)
        if until < t:
            return
        row[U(tables.shape[S_UNTIL])] = until
    c = U(key) * U(tables.shape[S_FRONTS]) + f
    if cells[c, HI] == cells[c, CAP]:
        _grow(memory.meta, cells, ints, tables.shape, c, t)
    cap, hi = U(cells[c, CAP]), U(cells[c, HI])
    row[NODE] = node
    at = U(cells[c, SEG]) + hi
    for j in range(columns):
        ints[at] = row[j]
        at += cap
    cells[c, HI] = hi + ONE
    memory.meta[ROWS] += 1


@inner()
def _await(meta, heap, queue, deadline, node):
    """Lets a complete match wait for its deadline: in the queue, or in the heap if one there waits longer."""
    at = meta[QUEUED]
    if at == meta[QUEUE] or queue[at - 1, 0] <= deadline:
        queue[at, 0], queue[at, 1], queue[at, 2] = deadline, node, meta[VERSION]
        meta[QUEUED] = at + 1
        return
    at = meta[HEAP]
    meta[HEAP] = at + 1
    while at > 0 and heap[(at - 1) >> 1, 0] > deadline:
        up = (at - 1) >> 1
        heap[at, 0], heap[at, 1], heap[at, 2] = heap[up, 0], heap[up, 1], heap[up, 2]
        at = up
    heap[at, 0], heap[at, 1], heap[at, 2] = deadline, node, meta[VERSION]


@inner(forceinline=True)
def _apply_one(tables, memory, batch, w, i, t):
    """Makes the partial match that stands in `pend` wait for what may come next. False: there is no room."""
    meta, pend = memory.meta, memory.pend
    s, flags = U(pend[w, P_STATE]), pend[w, P_FLAGS]
    node, begin, end = U(meta[NODES]), U(tables.state[s, T_BEGIN]), U(tables.state[s, T_END])
    if node >= U(len(memory.nodes)):
        meta[NEED] = N_NODES
        return False
    if flags & AWAITS:
        full = meta[HEAP] >= len(memory.heap) or meta[QUEUED] >= len(memory.queue)
        if full or meta[MATCHES] >= memory.out.shape[1]:
            meta[NEED] = N_HEAP if full else N_OUT
            return False
    # Each cell that the row enters may have to move to twice its room.
    most = (end - begin + ONE) * _room(U(tables.shape[S_COLUMNS]), U(2) * U(meta[WIDEST]) + U(4))
    if U(meta[TOP]) + most > U(len(memory.ints)):
        meta[NEED] = N_ARENA
        return False
    _carry(tables, memory, batch, s, w, i, t)
    memory.nodes[node, N_EVENT], memory.nodes[node, N_UP] = meta[STORED], pend[w, P_ROW + NODE]
    memory.nodes[node, N_STATE], memory.nodes[node, N_DEAD] = s, 0
    meta[NODES] = node + ONE
    if flags & GOES_ON:
        for f in range(begin, end):
            _enter(tables, memory, batch, f, node, i, t)
    if flags & AWAITS:
        deadline = memory.row[U(tables.shape[S_FIRST])] + tables.shape[S_DEADLINE]
        if deadline < t:
            m, out = U(meta[MATCHES]), memory.out
            out[M_NODE, m], out[M_EVENT, m], out[M_STATE, m] = pend[w, P_ROW + NODE], meta[STORED], s
            out[M_END, m], out[M_VERSION, m] = deadline, meta[VERSION]
            meta[MATCHES] = m + ONE
        else:
            _await(meta, memory.heap, memory.queue, deadline, np.int64(node))
            _enter(tables, memory, batch, U(tables.state[s, T_PENDING]), node, i, t)
    return True


@inner(forceinline=True)
def _settle(tables, memory, fit, batch, i):
    """Takes out the rows that the event used up, ended, or broke off."""
    meta, hits, cells = memory.meta, memory.hits, memory.cells
    for h in range(U(meta[HITS])):
        c, lo, hi, f = U(hits[h, H_CELL]), U(hits[h, H_LO]), U(hits[h, H_HI]), U(hits[h, H_FRONT])
        mark = U(hits[h, H_MARK])
        if tables.front[f, F_MODE] < 0:  # complete matches that wait for a deadline
            base = U(cells[c, SEG]) + U(NODE) * U(cells[c, CAP]) + lo
            for q in range(hi - lo):
                if memory.marks[mark + q]:
                    memory.nodes[U(memory.ints[base + q]), N_DEAD] = 1
        _squeeze(tables, memory, c, lo, hi, mark)
    if tables.shape[S_COUNTS] >= 0 and (fit >> tables.shape[S_COUNTS]) & 1:
        for f in range(U(tables.shape[S_FRONTS])):
            if tables.front[f, F_MODE] != STRICT:
                continue
            key = np.int64(0)
            if tables.front[f, F_KEY] >= 0:
                key = np.int64(batch.keys[U(tables.front[f, F_KEY]), i])
            if key >= 0:
                c = U(key) * U(tables.shape[S_FRONTS]) + f
                meta[ROWS] -= cells[c, HI] - cells[c, LO]
                cells[c, LO] = cells[c, HI] = 0


# --- time passes -------------------------------------------------------------------------------------------


@inner()
def _fire(meta, heap, queue, out, nodes, now):
    """Writes the matches whose deadline has passed. False where there is no room for more."""
    while True:
        first = meta[QUEUE]
        queued = first < meta[QUEUED] and (meta[HEAP] == 0 or queue[first, 0] <= heap[0, 0])
        if not queued and meta[HEAP] == 0:
            return True
        waits = queue[first] if queued else heap[0]
        if waits[0] >= now:
            return True
        m, node = meta[MATCHES], waits[1]
        if m >= out.shape[1]:
            meta[NEED] = N_OUT
            return False
        if nodes[node, N_DEAD] == 0:
            out[M_NODE, m], out[M_EVENT, m], out[M_STATE, m] = (
                nodes[node, N_UP],
                nodes[node, N_EVENT],
                nodes[node, N_STATE],
            )
            out[M_END, m], out[M_VERSION, m] = waits[0], waits[2]
            meta[MATCHES] = m + 1
        if queued:
            meta[QUEUE] = first + 1
        else:
            _pop(meta, heap)


@inner()
def _pop(meta, heap):
    """Takes the first match out of the heap."""
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


@entry
def fire(memory, now):
    """Answers the trailing absences whose deadline lies before `now`; False where there is no room."""
    return _fire(memory.meta, memory.heap, memory.queue, memory.out, memory.nodes, now)


@entry
def advance(tables, memory, batch, begin):
    """Takes the events from `begin` on; the place of the first that was not taken, and why it stopped."""
    meta = memory.meta
    point(tables, memory, batch)
    for i in range(U(begin), U(len(batch.ts))):
        _look_ahead(tables, memory, batch, i)
        fit, t = batch.fits[i], batch.ts[i]
        if fit == 0:
            continue
        waits = meta[HEAP] > 0 or meta[QUEUE] < meta[QUEUED]
        if waits and not _fire(meta, memory.heap, memory.queue, memory.out, memory.nodes, t):
            return np.int64(i), FULL
        if meta[RESUME] < 0:
            matches = meta[MATCHES]
            meta[PENDS] = meta[HITS] = meta[ASKED] = 0
            if not _look(tables, memory, batch, i, t, fit):
                meta[MATCHES] = matches
                return np.int64(i), FULL
            if meta[ASKED] > 0:
                meta[MATCHES] = matches
                return np.int64(i), ASK
            if meta[PENDS] == 0 and meta[MATCHES] == matches:
                _settle(tables, memory, fit, batch, i)
                continue
            if meta[EVENTS] >= len(memory.events):
                meta[MATCHES] = matches
                meta[NEED] = N_EVENTS
                return np.int64(i), FULL
            meta[STORED] = meta[EVENTS]
            _keep_event(tables, memory, batch, i)
            _settle(tables, memory, fit, batch, i)
            meta[RESUME] = 0
        for w in range(U(meta[RESUME]), U(meta[PENDS])):
            if not _apply_one(tables, memory, batch, w, i, t):
                meta[RESUME] = w
                return np.int64(i), FULL
        meta[RESUME] = -1
        if meta[ROWS] > meta[LIMIT]:
            return np.int64(i) + 1, TOO_MUCH
    if len(batch.ts):
        _sweep(tables, memory, batch.ts[-1])
    return len(batch.ts), DONE


# --- memory ------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def _ask_for_nodes(cells, ints, c):
    """Asks for the nodes of the rows of a cell that comes soon."""
    if c + _AHEAD < len(cells):
        soon = c + _AHEAD
        prefetch(ints.ctypes.data + 8 * (cells[soon, SEG] + NODE * cells[soon, CAP] + cells[soon, LO]))


@inner()
def _mark(memory, node, marked):
    while node >= 0 and marked[node] == 0:
        marked[node] = 1
        node = memory.nodes[node, N_UP]


@entry
def begun(tables, memory, t, places):
    """For each row, cell by cell, the place in the order of its first event.

    -1 for rows that are over, FOREVER for matches that wait for a deadline.
    """
    cells, ints, nodes, at = memory.cells, memory.ints, memory.nodes, 0
    for c in range(len(cells)):
        seg, cap = cells[c, SEG], cells[c, CAP]
        waits = tables.front[c % tables.shape[S_FRONTS], F_MODE] >= 0
        for r in range(cells[c, LO], cells[c, HI]):
            place = FOREVER
            if ints[seg + tables.shape[S_UNTIL] * cap + r] + tables.shape[S_WIDTH] < t:
                place = np.int64(-1)
            elif waits:
                node = ints[seg + NODE * cap + r]
                while nodes[node, N_UP] >= 0:
                    node = nodes[node, N_UP]
                place = memory.events[nodes[node, N_EVENT], E_POSITION]
            places[at] = place
            at += 1


@entry
def drop(tables, memory, gone):
    """Takes rows out, which are marked in the order of `begun`."""
    cells, ints, at = memory.cells, memory.ints, 0
    for c in range(len(cells)):
        seg, cap, lo, hi = cells[c, SEG], cells[c, CAP], cells[c, LO], cells[c, HI]
        left = 0
        for j in range(tables.shape[S_COLUMNS]):
            base = seg + j * cap
            left = 0
            for r in range(lo, hi):
                ints[base + left] = ints[base + r]
                left += np.int64(not gone[at + r - lo])
        at += hi - lo
        memory.meta[ROWS] -= hi - lo - left
        cells[c, LO], cells[c, HI] = 0, left


@entry
def rows(tables, memory, into, found):
    """Copies the rows of all cells, and which cells they are of."""
    cells, at = memory.cells, 0
    for c in range(len(cells)):
        seg, cap = cells[c, SEG], cells[c, CAP]
        for r in range(cells[c, LO], cells[c, HI]):
            for j in range(tables.shape[S_COLUMNS]):
                into[at, j] = memory.ints[seg + j * cap + r]
            found[at] = c
            at += 1


@entry
def put(tables, memory, rows, found, begin):
    """Puts rows into cells, from `begin` on; the first that found no room."""
    cells, shape = memory.cells, tables.shape
    for at in range(begin, len(rows)):
        c = found[at]
        if cells[c, HI] == cells[c, CAP] and not _grow(memory.meta, cells, memory.ints, shape, U(c), NULL):
            return at
        seg, cap, hi = cells[c, SEG], cells[c, CAP], cells[c, HI]
        for j in range(shape[S_COLUMNS]):
            memory.ints[seg + j * cap + hi] = rows[at, j]
        cells[c, HI] = hi + 1
        memory.meta[ROWS] += 1
    return len(rows)


@entry
def collect(tables, memory, marked, used):
    """Forgets nodes and events that nothing leads to any more, and closes the gaps."""
    meta, cells, ints, nodes, events = memory.meta, memory.cells, memory.ints, memory.nodes, memory.events
    for c in range(len(cells)):
        _ask_for_nodes(cells, ints, c)
        base = cells[c, SEG] + NODE * cells[c, CAP]
        for r in range(cells[c, LO], cells[c, HI]):
            _mark(memory, ints[base + r], marked)
    for x in range(meta[HEAP]):
        _mark(memory, memory.heap[x, 1], marked)
    for x in range(meta[QUEUE], meta[QUEUED]):
        _mark(memory, memory.queue[x, 1], marked)
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
                for j in range(events.shape[1]):
                    events[to, j] = events[at, j]
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
        _ask_for_nodes(cells, ints, c)
        base = cells[c, SEG] + NODE * cells[c, CAP]
        for r in range(cells[c, LO], cells[c, HI]):
            if ints[base + r] >= 0:
                ints[base + r] = marked[ints[base + r]]
    for x in range(meta[HEAP]):
        memory.heap[x, 1] = marked[memory.heap[x, 1]]
    for x in range(meta[QUEUE], meta[QUEUED]):
        memory.queue[x, 1] = marked[memory.queue[x, 1]]
    if resumed:
        for w in range(meta[RESUME], meta[PENDS]):
            node = memory.pend[w, P_ROW + NODE]
            memory.pend[w, P_ROW + NODE] = marked[node] if node >= 0 else -1


@entry
def resolve(tables, memory, count, found, lengths):
    """The events of matches by place, the last where there are several, and how many there are.

    The row after the last place gets the first event of all.
    """
    nodes = memory.nodes
    for m in range(count):
        prefetch(nodes.ctypes.data + 8 * nodes.shape[1] * memory.out[M_NODE, min(m + _AHEAD, count - 1)])
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
        found[len(lengths), m] = event


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


@inner(forceinline=True)
def _gather(flat, width, found, picks, made, begin, end, starts):
    """Reads words of events of some matches; `starts` is room for where the rows of the events begin."""
    at_place, least = np.int64(-1), np.int64(0)
    for x in range(U(len(picks))):
        place, word, nothing = U(picks[x, 0]), U(picks[x, 1]), picks[x, 2]
        if np.int64(place) != at_place:
            at_place, least = np.int64(place), np.int64(0)
            for m in range(begin, end):
                start = found[place, m] * width
                starts[m - begin] = start
                least = min(least, start)
        if least >= 0:
            for m in range(begin, end):
                made[x, m] = flat[U(starts[m - begin]) + word]
            continue
        for m in range(begin, end):
            start = starts[m - begin]
            made[x, m] = flat[U(start) + word] if start >= 0 else nothing


@entry
def gather(flat, width, found, picks, made, room):
    """Reads words of events: a row of `picks` is a place, a word, and what stands where there is no event."""
    count = U(found.shape[1])
    for begin in range(ZERO, count, U(AT_ONCE)):
        _gather(flat, width, found, picks, made, begin, min(begin + U(AT_ONCE), count), room)


@inner(forceinline=True)
def _follow(tables, nodes, out, flat, width, found, begin, end):
    """Finds the events of some matches by place, and asks for their rows."""
    last, base, count = U(len(found) - 1), flat.ctypes.data, U(found.shape[1])
    for place in range(last):
        for m in range(begin, end):
            found[place, m] = -1
    for m in range(begin, end):
        soon = out[M_NODE, min(m + U(_AHEAD), count - ONE)]
        prefetch(nodes.ctypes.data + 8 * nodes.shape[1] * soon)
        event, node = out[M_EVENT, m], out[M_NODE, m]
        found[U(tables.state[U(out[M_STATE, m]), T_PLACE]), m] = event
        while node >= 0:
            at = U(node)
            event, node = nodes[at, N_EVENT], nodes[at, N_UP]
            found[U(tables.state[U(nodes[at, N_STATE]), T_PLACE]), m] = event
            prefetch(base + 8 * width * event)
            prefetch(base + 8 * width * event + 64)
        found[last, m] = event


@entry
def emit(tables, memory, flat, found, picks, made, room):
    """Writes matches that have at most one event for each place.

    Their events by place into `found`, and what `gather` reads into `made`. `flat` are the words of all
    events one after the other, `room` is to work in.
    """
    width, count = memory.events.shape[1], U(found.shape[1])
    for begin in range(ZERO, count, U(AT_ONCE)):
        end = min(begin + U(AT_ONCE), count)
        _follow(tables, memory.nodes, memory.out, flat, width, found, begin, end)
        _gather(flat, width, found, picks, made, begin, end, room)
