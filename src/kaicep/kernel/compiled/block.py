"""The block of a compiled pattern: where in it everything stands, and the helpers that know it."""

from __future__ import annotations

import inspect
from hashlib import blake2b

from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled import memory
from kaicep.kernel.compiled.expressions import SOURCE as _EXPRESSIONS
from kaicep.kernel.compiled.memory import ARENA, DESCRIPTOR, HAND, NEXT_SLOT, SLOT_COUNT, SLOTS
from kaicep.kernel.words import SOURCE as _WORDS

__all__ = ["ARENA", "DESCRIPTOR", "HAND", "HEADER", "HELPERS", "NEXT_SLOT", "SLOTS", "SLOT_COUNT", "SOURCE"]

(
    ROWS,
    ROW,
    OUT,
    OUT_CAPACITY,
    HELD,
    LIMIT,
    NOW,
    INDEX,
    INDEX_CAPACITY,
    POSITION,
    MASK,
    FLOATS,
    INTS,
    TS,
    PLACE,
    PART,
    SEQ,
    LOW,
    HIGH,
    CHUNK,
    KEY,
    SEED_LOW,
    SEED_HIGH,
    WORDS,
    HEAP,
    HEAP_COUNT,
    HEAP_CAPACITY,
    VERSION,
    OUTPUTS,
    OUTPUT_COUNT,
    WIDTHS,
    NODES,
    NODE_CAPACITY,
    NODE_TOP,
    NODE_FREE,
    NODE_WIDTH,
    PATH,
    PATH_CAPACITY,
    SEEDS,
    LEVELS,
    LEVEL_COUNT,
    EPOCHS,
    EPOCH_COUNT,
    LAST,
) = range(44)
START = 44
MOST_COLUMNS = 64
MOST_TABLES = 128

_HELPERS = f'''
@njit(nogil=True, cache=True, _nrt=False)
def room_for(S, count):
    """The address of a list of at least so many numbers, to work with."""
    if count > S[{INDEX_CAPACITY}]:
        size = max(2 * count, 1024)
        S[{INDEX}] = resized(S[{INDEX}], S[{INDEX_CAPACITY}] * 4, size * 4)
        S[{INDEX_CAPACITY}] = size
    return S[{INDEX}]


@njit(nogil=True, cache=True, _nrt=False)
def room_out(S, count):
    """Sees to it that so many matches more can be written."""
    if S[{OUT}] + count > S[{OUT_CAPACITY}]:
        old = S[{OUT_CAPACITY}]
        size = max(2 * old, S[{OUT}] + count, 1024)
        widths = i8(S[{WIDTHS}])
        for each in range(S[{OUTPUT_COUNT}]):
            at = S[{OUTPUTS}] + each
            S[at] = resized(S[at], old * widths[each], size * widths[each])
        S[{OUT_CAPACITY}] = size


@njit(nogil=True, cache=True, _nrt=False)
def first_deadline(S):
    return i8(S[{HEAP}])[0]


@njit(nogil=True, cache=True, _nrt=False)
def push(S, deadline, store, slot):
    """A deadline into the heap, with the store and the slot that it is of."""
    count = S[{HEAP_COUNT}]
    if count == S[{HEAP_CAPACITY}]:
        S[{HEAP}] = resized(S[{HEAP}], count * 24, max(2 * count, 256) * 24)
        S[{HEAP_CAPACITY}] = max(2 * count, 256)
    heap = i8(S[{HEAP}])
    while count > 0 and heap[(count - 1) // 2 * 3] > deadline:
        above = (count - 1) // 2
        for each in range(3):
            heap[count * 3 + each] = heap[above * 3 + each]
        count = above
    heap[count * 3], heap[count * 3 + 1], heap[count * 3 + 2] = deadline, store, slot
    S[{HEAP_COUNT}] += 1


@njit(nogil=True, cache=True, _nrt=False)
def pop(S):
    """The first deadline, its store and its slot."""
    heap = i8(S[{HEAP}])
    found = heap[0], heap[1], heap[2]
    S[{HEAP_COUNT}] -= 1
    count = S[{HEAP_COUNT}]
    deadline, store, slot = heap[count * 3], heap[count * 3 + 1], heap[count * 3 + 2]
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and heap[(below + 1) * 3] < heap[below * 3]:
            below += 1
        if heap[below * 3] >= deadline:
            break
        for each in range(3):
            heap[at * 3 + each] = heap[below * 3 + each]
        at = below
    heap[at * 3], heap[at * 3 + 1], heap[at * 3 + 2] = deadline, store, slot
    return found


@njit(nogil=True, cache=True, _nrt=False)
def new_node(S, parent):
    """A round of a loop: its number; fields are in the order parent, holders, and what the kernel keeps."""
    width = S[{NODE_WIDTH}]
    number = S[{NODE_FREE}]
    if number != 0:
        S[{NODE_FREE}] = i8(S[{NODES}] + number * width * 8)[0]
    else:
        number = S[{NODE_TOP}] + 1
        if number >= S[{NODE_CAPACITY}]:
            old = S[{NODE_CAPACITY}]
            S[{NODE_CAPACITY}] = max(2 * old, 1024)
            S[{NODES}] = resized(S[{NODES}], old * width * 8, S[{NODE_CAPACITY}] * width * 8)
        S[{NODE_TOP}] = number
    node = i8(S[{NODES}] + number * width * 8)
    node[0] = parent
    node[1] = 1
    if parent != 0:
        i8(S[{NODES}] + parent * width * 8)[1] += 1
    return number


@njit(nogil=True, cache=True, _nrt=False)
def hold_node(S, number):
    """One more holds on to a round."""
    if number != 0:
        i8(S[{NODES}] + number * S[{NODE_WIDTH}] * 8)[1] += 1


@njit(nogil=True, cache=True, _nrt=False)
def let_node_go(S, number):
    """One fewer; what nobody holds on to is forgotten, and so on with the round before it."""
    while number != 0:
        node = i8(S[{NODES}] + number * S[{NODE_WIDTH}] * 8)
        node[1] -= 1
        if node[1] > 0:
            break
        parent = node[0]
        node[0] = S[{NODE_FREE}]
        S[{NODE_FREE}] = number
        number = parent


@njit(nogil=True, cache=True, _nrt=False)
def path_of(S, number, count):
    """Where the addresses of a loop's rounds stand, from the first to the one that is given."""
    if count > S[{PATH_CAPACITY}]:
        S[{PATH}] = resized(S[{PATH}], 0, 16 * count)
        S[{PATH_CAPACITY}] = 2 * count
    path = i8(S[{PATH}])
    while count > 0:
        count -= 1
        path[count] = S[{NODES}] + number * S[{NODE_WIDTH}] * 8
        number = i8(path[count])[0]
    return S[{PATH}]


@njit(nogil=True, cache=True, _nrt=False)
def room_flat(S, at, count):
    """Room for rounds in the columns of a loop: at `at` stand how many there are, how many fit, and where."""
    if S[at] + count > S[at + 1]:
        size = max(2 * S[at + 1], S[at] + count, 1024)
        for each in range(S[at + 2]):
            S[at + 3 + each] = resized(S[at + 3 + each], S[at + 1] * 8, size * 8)
        S[at + 1] = size


@njit(nogil=True, cache=True, _nrt=False)
def epoch_of(S, ts):
    """How many changes of what the knowledge holds lie at or before a time."""
    count = S[{EPOCH_COUNT}] - 1
    epochs = i8(S[{EPOCHS}])
    while count > 0 and epochs[count - 1] > ts:
        count -= 1
    return count


@njit(nogil=True, cache=True, _nrt=False)
def levels_below(S, value, inclusive):
    """How many of the levels, which rise, a value is above; or not below, if that counts too."""
    levels = f8(S[{LEVELS}])
    low = 0
    high = S[{LEVEL_COUNT}]
    while low < high:
        middle = (low + high) // 2
        if levels[middle] < value or (inclusive and levels[middle] == value):
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True, _nrt=False)
def smaller(held, held_null, value, null):
    """Whether a value is to be held in place of a larger one; nulls do not count."""
    return not null and (held_null or value < held)


@njit(nogil=True, cache=True, _nrt=False)
def larger(held, held_null, value, null):
    return not null and (held_null or value > held)
'''

SOURCE = f"from kaicep.kernel.compiled.memory import *\n{_WORDS}{_EXPRESSIONS}{_HELPERS}"
"""The helpers of generated kernels: they are compiled once, and not with every kernel."""

# Not the name of their module: by it Numba tells the functions of one kernel from those of another.
HELPERS = {name: each for name, each in compile_source(SOURCE).items() if not name.startswith("__")}
"""Functions that every generated kernel may call."""

_VERSION = blake2b((SOURCE + inspect.getsource(memory)).encode(), digest_size=8).hexdigest()
HEADER = f"""# with helpers {_VERSION}
from kaicep.kernel.compiled.block import HELPERS

globals().update(HELPERS)
"""
"""What a generated kernel begins with; that it names the helpers' version makes it another one with them."""
