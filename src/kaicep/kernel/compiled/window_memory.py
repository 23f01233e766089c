"""The memory of compiled windows: records, rings and counts, as functions that generated kernels call.

All state is flat arrays of int64. A *record* belongs to a partition or a group, and those that are free
hang on a list. A *ring* is a queue in the arena: its record has four int32 for it (where it begins, how many
entries it can hold less one, its first entry, how many there are). It grows by powers of two, and what it
leaves behind hangs on a list of that size. Nothing here allocates: where an array is full, the kernel asks
for more room (`meta[WANT]`) and is called again for the same event.
"""

from __future__ import annotations

import re
from enum import IntEnum
from hashlib import blake2b

from kaicep.kernel.compiled import sums
from kaicep.kernel.words import SOURCE as WORDS

__all__ = ["LIBRARY", "META", "Want", "library_names"]


class Want(IntEnum):
    """What a kernel asks for more of."""

    NOTHING = 0
    RECORDS = 1
    ARENA = 2
    FAR = 3
    COUNTS = 4
    OUTPUT = 5
    HELD = 6


META = 512
"""How many numbers a kernel keeps for itself; they are named in `LIBRARY`."""

_SOURCE = '''
AT, OUT, WANT, USED, FREE, PUSED, PFREE = 0, 1, 2, 3, 4, 5, 6
ARENA, FAR_USED, FAR_FREE, HELD, COUNTED, VERSION, NUMBER, TOUCHED, LIMIT = 7, 8, 9, 10, 11, 12, 13, 14, 15
RINGS, BLOCK, SCRATCH = 16, 128, 384


@njit(nogil=True, cache=True)
def joined(low, high, first, second):
    """`pair` as a function of its own: a kernel that has it in several places compiles faster."""
    return pair(low, high, first, second)


@njit(nogil=True, cache=True)
def take_record(meta, used, rec, stride):
    """A record of zeros."""
    slot = meta[used + 1]
    if slot >= 0:
        meta[used + 1] = rec[slot * stride]
    else:
        slot = meta[used]
        meta[used] += 1
    for i in range(slot * stride, (slot + 1) * stride):
        rec[i] = 0
    return slot


@njit(nogil=True, cache=True)
def free_record(meta, used, rec, stride, slot):
    rec[slot * stride] = meta[used + 1]
    meta[used + 1] = slot


@njit(nogil=True, cache=True)
def size_of(mask):
    size = 0
    while (2 << size) <= mask:
        size += 1
    return size


@njit(nogil=True, cache=True)
def grow_ring(ints, at, arena, meta, width, kind):
    """Twice the room for a ring that is full; False where the arena has no more."""
    base, mask, head, count = ints[at], ints[at + 1], ints[at + 2], ints[at + 3]
    room = 2 * (mask + 1) if mask >= 0 else 4
    lists = RINGS + 32 * kind
    at_size = lists + size_of(room - 1)
    new = meta[at_size]
    if new >= 0:
        meta[at_size] = arena[new]
    else:
        new = meta[ARENA]
        if new + room * width > len(arena):
            meta[WANT] = 2
            return False
        meta[ARENA] += room * width
    for i in range(count):
        old = base + width * ((head + i) & mask)
        for k in range(width):
            arena[new + i * width + k] = arena[old + k]
    if mask >= 0:
        at_size = lists + size_of(mask)
        arena[base] = meta[at_size]
        meta[at_size] = base
    ints[at], ints[at + 1], ints[at + 2] = new, room - 1, 0
    return True


@njit(nogil=True, cache=True)
def free_ring(ints, at, arena, meta, kind):
    if ints[at + 1] > 0:
        at_size = RINGS + 32 * kind + size_of(ints[at + 1])
        arena[ints[at]] = meta[at_size]
        meta[at_size] = ints[at]
    ints[at + 1] = -1


@njit(nogil=True, cache=True)
def far_move(ints, at_far, far, meta, value, sign):
    """Adds a number to the far sum of a record, or takes it away; `at_far`: which it is, and of how many."""
    if ints[at_far + 1] == 0:
        place = meta[FAR_FREE]
        if place >= 0:
            meta[FAR_FREE] = far[place]
            far[place] = 0
        else:
            place = meta[FAR_USED]
            meta[FAR_USED] += 72
        ints[at_far] = place // 72
    place = np.int64(ints[at_far]) * 72
    far_add(far, place, value, sign)
    ints[at_far + 1] += sign
    if ints[at_far + 1] == 0:
        # Its digits are all zero again.
        far[place] = meta[FAR_FREE]
        meta[FAR_FREE] = place


@njit(nogil=True, cache=True)
def far_clear(ints, at_far, far, meta):
    """Takes its far sum from a record."""
    if ints[at_far + 1] > 0:
        place = np.int64(ints[at_far]) * 72
        for i in range(place, place + 72):
            far[i] = 0
        far[place] = meta[FAR_FREE]
        meta[FAR_FREE] = place
        ints[at_far + 1] = 0


@njit(nogil=True, cache=True)
def sum_read(low, high, ints, at_far, far, meta):
    """A near sum and the far sum of a record together, rounded once."""
    return far_read(far, np.int64(ints[at_far]) * 72, low, high, meta[SCRATCH : SCRATCH + 72])


@njit(nogil=True, cache=True)
def count_cell(counts, key, value):
    """The cell of a value in the table of counts, or the empty one where it belongs."""
    mask = np.uint64(len(counts) // 3 - 1)
    at = mix(np.uint64(value) ^ mix(np.uint64(key))) & mask
    while True:
        cell = np.int64(at) * 3
        if counts[cell + 2] == 0 or (counts[cell] == key and counts[cell + 1] == value):
            return cell
        at = (at + np.uint64(1)) & mask


@njit(nogil=True, cache=True)
def count_up(counts, meta, key, value):
    """Counts a value; whether it is the first of its kind."""
    cell = count_cell(counts, key, value)
    if counts[cell + 2] == 0:
        counts[cell] = key
        counts[cell + 1] = value
        meta[COUNTED] += 1
    counts[cell + 2] += 1
    return counts[cell + 2] == 1


@njit(nogil=True, cache=True)
def count_down(counts, meta, key, value):
    """Takes a value away; whether it was the last of its kind."""
    cell = count_cell(counts, key, value)
    counts[cell + 2] -= 1
    if counts[cell + 2] > 0:
        return False
    meta[COUNTED] -= 1
    # What stands behind and was pushed away from here, or from before, moves up.
    cells = len(counts) // 3
    mask = np.uint64(cells - 1)
    hole = cell // 3
    at = hole
    while True:
        at = (at + 1) % cells
        if counts[3 * at + 2] == 0:
            return True
        home = np.int64(mix(np.uint64(counts[3 * at + 1]) ^ mix(np.uint64(counts[3 * at]))) & mask)
        if (at - home) % cells >= (at - hole) % cells:
            for k in range(3):
                counts[3 * hole + k] = counts[3 * at + k]
            counts[3 * at + 2] = 0
            hole = at


@njit(nogil=True, cache=True)
def counts_moved(old, new, meta):
    """Puts all counts into a larger table."""
    meta[COUNTED] = 0
    for cell in range(0, len(old), 3):
        if old[cell + 2] > 0:
            count_up(new, meta, old[cell], old[cell + 1])
            new[count_cell(new, old[cell], old[cell + 1]) + 2] = old[cell + 2]


@njit(nogil=True, cache=True)
def count_clear(counts, meta, key, value):
    """Takes a value away, however often it was counted."""
    counts[count_cell(counts, key, value) + 2] = 1
    count_down(counts, meta, key, value)


@njit(nogil=True, cache=True)
def rebuild(look, used, rec, stride, ints, at_count):
    """Finds a place in an empty hash table for every record that is not free; the first word is its hash."""
    mask = np.uint64(len(look) - 1)
    for slot in range(used):
        if ints[2 * slot * stride + at_count] >= 0:
            at = np.uint64(rec[slot * stride]) & mask
            while look[np.int64(at)] >= 0:
                at = (at + np.uint64(1)) & mask
            look[np.int64(at)] = slot
'''

LIBRARY = WORDS + sums.SOURCE + _SOURCE
"""The functions that all kernels of windows share; they are compiled once, apart from the kernels."""


def library_names() -> str:
    """The beginning of a kernel's source: it knows the library by name.

    A kernel that is kept on disk contains what it was linked with, so it is another one where the library is.
    """
    digest = blake2b(LIBRARY.encode(), digest_size=8).hexdigest()
    functions = re.findall(r"^def (\w+)", LIBRARY, re.MULTILINE)
    numbers = re.findall(r"^([A-Z][A-Z_, ]+) = ", LIBRARY, re.MULTILINE)
    names = [*functions, *(name for each in numbers for name in each.split(", "))]
    return "\n".join(
        (
            "from kaicep.kernel.compile import compile_source",
            "from kaicep.kernel.compiled.window_memory import LIBRARY",
            f"_library = compile_source(LIBRARY)  # {digest}",
            *(f"{name} = _library[{name!r}]" for name in names),
            "",
        )
    )
