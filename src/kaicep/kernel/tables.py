"""The layout of the pattern machine's arrays: the pattern as integer tables, and its memory.

A *state* is what is left of a pattern and which variables have events. Partial matches of a state wait at its
*frontiers*; an *opening* is a place that an event may take there (EXTEND) or that it must not take (KILL).
A partial match is a row of a *cell*, which is found by frontier and key; a cell is a run of slots in the
arena, column after column. Who the earlier events were is a chain of nodes.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NULL = np.int64(-(2**63))
"""Null among integers, times, codes and booleans; among floats it is NaN."""
FOREVER = np.int64(2**63 - 1)

# fmt: off
# --- a row: these columns, then the carried ones ---
NODE, FIXED = range(2)
# --- Tables.shape: figures of the whole pattern ---
(S_FRONTS, S_COLUMNS, S_BEGIN, S_BEGIN_END, S_INTERPRETER, S_SCRATCH, S_ZERO, S_COUNTS, S_SWEEP,
 S_DEADLINE, S_FIRST, S_UNTIL, S_WIDTH, S_SHAPE) = range(14)
# --- Tables.front: where partial matches wait ---
F_BITS, F_BEGIN, F_END, F_MODE, F_SORTED, F_KEY, F_KEY_ROW, F_LAST, F_FRONT = range(9)
KEEP, CONSUME, STRICT = range(3)
# --- Tables.opening: a place that stands open there ---
(O_PLACE, O_STATE, O_KIND, O_KEY, O_LATER, O_PROGRAM, O_MIDDLE, O_END, O_FINAL, O_FINAL_MIDDLE, O_FINAL_END,
 O_WINDOW, O_WINDOW_END, O_OPENING) = range(14)
EXTEND, KILL = range(2)
# --- Tables.state ---
T_BEGIN, T_END, T_CARRY, T_CARRY_END, T_FINAL, T_PLACE, T_PENDING, T_STATE = range(8)
# --- Tables.carry: operation, column of the new row, two operands ---
(C_EVENT, C_ROW, C_KEY, C_TIME, C_POSITION, C_COUNT, C_COUNT_FLOAT, C_COUNT_INT, C_MIN_FLOAT, C_MAX_FLOAT,
 C_MIN_INT, C_MAX_INT, C_SUM_FLOAT, C_SUM_INT) = range(14)
# --- Memory.meta ---
(TOP, NODES, EVENTS, MATCHES, HEAP, POSITION, ROWS, NEED, RESUME, PENDS, HITS, ASKED, HAND, SWEPT, VERSION,
 NOW, WIDEST, STORED, LIMIT, QUEUE, QUEUED, FREE) = range(22)
META = 64
# --- why the machine stopped, and which array is full ---
DONE, FULL, ASK, TOO_MUCH = range(4)
N_ARENA, N_NODES, N_EVENTS, N_PEND, N_HITS, N_MASK, N_OUT, N_HEAP = range(8)
# --- Memory.cells ---
SEG, CAP, LO, HI = range(4)
# --- Memory.nodes ---
N_EVENT, N_UP, N_STATE, N_DEAD = range(4)
# --- Memory.events: these columns, then the kept ones ---
E_TS, E_PLACE, E_PART, E_SEQ, E_POSITION, E_FIXED = range(6)
# --- Memory.pend: a partial match that the event goes on with ---
P_STATE, P_FLAGS, P_ROW = range(3)
GOES_ON, AWAITS = 1, 2
# --- Memory.hits: a cell that the event looked at ---
H_CELL, H_LO, H_HI, H_MARK, H_FRONT = range(5)
# --- Memory.out: a match ---
M_NODE, M_EVENT, M_STATE, M_END, M_VERSION = range(5)
# fmt: on


_PAGES = 1 << 20
"""From so many bytes on, memory comes in pages of its own."""


def zeros(shape: tuple[int, ...], dtype: type = np.int64) -> Array:
    """An array of zeros that costs nothing where nobody touches it.

    NumPy asks for huge pages, each of which is cleared as a whole when its first word is touched: where room
    is taken in advance, that took a third of the time of a pattern over a million events.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < _PAGES:
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.ndarray(shape, dtype, pages)


class Tables(NamedTuple):
    """A pattern, as the machine reads it."""

    shape: Array
    front: Array
    opening: Array
    state: Array
    carry: Array
    window: Array
    """Columns of a row, and the widths that count from the times in them."""
    keep: Array
    """The columns of `Batch.values` that are kept of events that become part of a match."""
    program: Array
    const: Array


class Memory(NamedTuple):
    """All that the machine keeps, and room to work in."""

    meta: Array
    cells: Array
    floats: Array
    """The arena; registers and scalars stand at its beginning."""
    ints: Array
    """The same memory as integers."""
    nodes: Array
    events: Array
    heap: Array
    """Matches that wait for a deadline; those of `queue` came in the order of their deadlines."""
    queue: Array
    """From QUEUE to QUEUED."""
    known: Array
    pend: Array
    hits: Array
    marks: Array
    mask: Array
    row: Array
    word: Array
    number: Array
    """The same word as a float."""
    asked: Array
    context: Array
    """Where the interpreter finds all this."""
    out: Array


class MachineBatch(NamedTuple):
    """Events in order: what of them the machine reads."""

    ts: Array
    fits: Array
    """By bit, the places that an event may take; the bit after the last says that it counts under strict."""
    keys: Array
    """By key, the number of the event's value; -1 where it has none."""
    values: Array
    """The columns that conditions read, as 64-bit words."""
    place: Array
    part: Array
    seq: Array
