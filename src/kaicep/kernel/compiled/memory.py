"""Memory of compiled operators: rings of partial matches by key, in arenas that grow inside the kernel.

A kernel gets one array of int64, the *block*. It holds scalars, the addresses of columns, and for each store
a descriptor: where its slots, its hash and its arena lie. A *store* has a slot for each key; a slot has a
stretch of the arena: first the one field of all its entries, oldest first, then the next field, and so on. So
going through the entries of a key is one pass over small arrays, and all that belongs to a key lies together.
All fields are 8 bytes wide. Stretches double when they are full; those that are given back are kept by
size and used again. Memory comes from the C library, because only that lets a kernel grow what
it holds in the middle of an event; whoever owns the block gives it back (`release_store`).
"""

# What Numba compiles has none of Python's types, and its decorators have options that their stubs lack.
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

__all__ = [
    "ARENA",
    "CAPACITY",
    "DESCRIPTOR",
    "HAND",
    "LIVE",
    "NEXT_SLOT",
    "SLOTS",
    "SLOT_COUNT",
    "TOP",
    "WIDTH",
    "WORDS",
    "WORD_COUNT",
    "bits",
    "draw_entries",
    "draw_slot",
    "entries",
    "f8",
    "find",
    "give_up",
    "i1",
    "i4",
    "i8",
    "keep",
    "open_slots",
    "release_column",
    "release_store",
    "reserve",
    "resized",
    "u8",
]

# The descriptor of a store, from its base in the block.
SLOTS, SLOT_COUNT, TOP, CAPACITY, FREE, WIDTH = range(6)
HASH, HASH_SIZE, WORDS, WORD_COUNT, NEXT_SLOT, FREE_SLOT, LIVE, ARENA, HAND = range(6, 15)
DESCRIPTOR = 15
"""How many words there are to a descriptor."""

_ENDLESS = 1 << 40
_malloc = types.ExternalFunction("malloc", types.intp(types.intp))
_realloc = types.ExternalFunction("realloc", types.intp(types.intp, types.intp))
_free = types.ExternalFunction("free", types.void(types.intp))
_memmove = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))
_memset = types.ExternalFunction("memset", types.intp(types.intp, types.int32, types.intp))


@intrinsic
def bits(_, value):
    """The bits of a float64 as an int64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(value), generate


@intrinsic
def prefetch(_, address):
    """Has memory brought near that will be asked for soon."""

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        wanted = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, wanted, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(address), generate


def _view(of, bytes_each):
    """A function from an address to the array there; how long it is, whoever asks must know."""
    array = types.Array(of, 1, "C")

    @intrinsic
    def view(_, address):
        def generate(context, builder, signature, args):
            made = arrayobj.make_array(array)(context, builder)
            word = context.get_value_type(types.intp)
            arrayobj.populate_array(
                made,
                data=builder.inttoptr(args[0], made.data.type),
                shape=cgutils.pack_array(builder, [word(_ENDLESS)]),
                strides=cgutils.pack_array(builder, [word(bytes_each)]),
                itemsize=word(bytes_each),
                meminfo=None,
            )
            return made._getvalue()

        return array(address), generate

    return view


i8, u8, f8 = _view(types.int64, 8), _view(types.uint64, 8), _view(types.float64, 8)
i4, i1 = _view(types.int32, 4), _view(types.int8, 1)


@njit(nogil=True, cache=True, _nrt=False)
def resized(address, old, new):
    """Memory of another size, in bytes; what is added is zero."""
    made = _realloc(address, new) if address != 0 else _malloc(new)
    if new > old:
        _memset(made + old, np.int32(0), new - old)
    return made


@njit(nogil=True, cache=True, _nrt=False)
def release_column(address):
    """Gives memory back."""
    if address != 0:
        _free(address)


@njit(nogil=True, cache=True, _nrt=False)
def release_store(block, base):
    """Gives the memory of a store back."""
    for part in (SLOTS, FREE, HASH, WORDS, ARENA):
        release_column(block[base + part])
        block[base + part] = 0
    for part in (SLOT_COUNT, TOP, CAPACITY, HASH_SIZE, NEXT_SLOT, LIVE, HAND):
        block[base + part] = 0
    block[base + FREE_SLOT] = -1


# --- slots -------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True, _nrt=False)
def open_slots(block, base, count):
    """Sees to it that there are so many slots."""
    known = block[base + SLOT_COUNT]
    if count > known:
        count = max(count, 2 * known, 16)
        block[base + SLOTS] = resized(block[base + SLOTS], known * 32, count * 32)
        width = block[base + WORD_COUNT]
        if width:
            block[base + WORDS] = resized(block[base + WORDS], known * 8 * width, count * 8 * width)
        block[base + SLOT_COUNT] = count


@njit(nogil=True, cache=True, _nrt=False)
def _scramble(word):
    word = np.uint64(word)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True, _nrt=False)
def _place(block, base, words, at):
    """Where in the hash a key is, or would be; the key is `WORD_COUNT` words from `at`."""
    width = block[base + WORD_COUNT]
    size = block[base + HASH_SIZE]
    cells = i8(block[base + HASH])
    known = i8(block[base + WORDS])
    code = np.uint64(0)
    for each in range(width):
        code = _scramble(code ^ np.uint64(words[at + each]))
    place = np.int64(code & np.uint64(size - 1))
    while cells[place] != 0:
        slot = cells[place] - 1
        same = True
        for each in range(width):
            same &= known[slot * width + each] == words[at + each]
        if same:
            break
        place = (place + 1) & (size - 1)
    return place


@njit(nogil=True, cache=True, _nrt=False)
def find(block, base, words, make):
    """The slot of a key, -1 where there is none and none is to be made."""
    if block[base + HASH_SIZE] == 0:
        if not make:
            return -1
        block[base + HASH] = resized(0, 0, 64 * 8)
        block[base + HASH_SIZE] = 64
        block[base + FREE_SLOT] = -1
    place = _place(block, base, words, 0)
    slot = i8(block[base + HASH])[place] - 1
    if slot >= 0 or not make:
        return slot
    slot = block[base + FREE_SLOT]
    if slot >= 0:
        block[base + FREE_SLOT] = i8(block[base + SLOTS])[slot * 4]
    else:
        slot = block[base + NEXT_SLOT]
        open_slots(block, base, slot + 1)
        block[base + NEXT_SLOT] = slot + 1
    q = i8(block[base + SLOTS])
    for each in range(4):
        q[slot * 4 + each] = 0
    width = block[base + WORD_COUNT]
    known = i8(block[base + WORDS])
    for each in range(width):
        known[slot * width + each] = words[each]
    i8(block[base + HASH])[place] = slot + 1
    block[base + LIVE] += 1
    if block[base + LIVE] * 2 > block[base + HASH_SIZE]:
        _rehash(block, base)
    return slot


@njit(nogil=True, cache=True, _nrt=False)
def _rehash(block, base):
    size = block[base + HASH_SIZE]
    old = block[base + HASH]
    cells = i8(old)
    block[base + HASH] = resized(0, 0, size * 16)
    block[base + HASH_SIZE] = size * 2
    fresh = i8(block[base + HASH])
    known = i8(block[base + WORDS])
    width = block[base + WORD_COUNT]
    for each in range(size):
        if cells[each] != 0:
            fresh[_place(block, base, known, (cells[each] - 1) * width)] = cells[each]
    _free(old)


@njit(nogil=True, cache=True, _nrt=False)
def _forget_key(block, base, slot):
    """Takes a key out of the hash; those that stood behind it because of it move up."""
    width = block[base + WORD_COUNT]
    size = block[base + HASH_SIZE]
    cells = i8(block[base + HASH])
    known = i8(block[base + WORDS])
    hole = _place(block, base, known, slot * width)
    cells[hole] = 0
    place = (hole + 1) & (size - 1)
    while cells[place] != 0:
        moved = cells[place]
        cells[place] = 0
        cells[_place(block, base, known, (moved - 1) * width)] = moved
        place = (place + 1) & (size - 1)
    i8(block[base + SLOTS])[slot * 4] = block[base + FREE_SLOT]
    i8(block[base + SLOTS])[slot * 4 + 3] = -1  # not in use
    block[base + FREE_SLOT] = slot
    block[base + LIVE] -= 1


# --- entries -----------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True, _nrt=False)
def _level(size):
    level = 0
    while (1 << level) < size:
        level += 1
    return level


@njit(nogil=True, cache=True, _nrt=False)
def _stretch(block, base, size):
    """A stretch for so many entries, a power of two; where it begins in the arena, in words."""
    if block[base + FREE] == 0:
        block[base + FREE] = resized(0, 0, 64 * 8)
    free = i8(block[base + FREE])
    level = _level(size)
    if free[level] != 0:
        found = free[level] - 1
        free[level] = i8(block[base + ARENA])[found]
        return found
    found = block[base + TOP]
    end = found + size * block[base + WIDTH]
    if end > block[base + CAPACITY]:
        old = block[base + CAPACITY]
        new = max(2 * old, 1024, end)
        block[base + ARENA] = resized(block[base + ARENA], old * 8, new * 8)
        block[base + CAPACITY] = new
    block[base + TOP] = end
    return found


@njit(nogil=True, cache=True, _nrt=False)
def _give_back(block, base, offset, size):
    level = _level(size)
    free = i8(block[base + FREE])
    i8(block[base + ARENA])[offset] = free[level]
    free[level] = offset + 1


@njit(nogil=True, cache=True, _nrt=False)
def reserve(block, base, slot):
    """A new entry at the end of a slot: the address of its first field, and the bytes to the next one."""
    q = i8(block[base + SLOTS])
    at = slot * 4
    if q[at + 1] + q[at + 2] == q[at + 3]:
        _make_room(block, base, slot)
    found = block[base + ARENA] + 8 * (q[at] + q[at + 1] + q[at + 2])
    q[at + 2] += 1
    return found, 8 * q[at + 3]


@njit(nogil=True, cache=True, _nrt=False)
def entries(block, base, slot):
    """The address of the first field of a slot's first entry; the next field is a slot's size further."""
    q = i8(block[base + SLOTS])
    return block[base + ARENA] + 8 * (q[slot * 4] + q[slot * 4 + 1])


@njit(nogil=True, cache=True, _nrt=False)
def draw_slot(block, base, slot):
    """Has a slot brought near."""
    prefetch(block[base + SLOTS] + 32 * slot)


@njit(nogil=True, cache=True, _nrt=False)
def draw_entries(block, base, slot):
    """Has the newest entry of a slot brought near, and what lies beside it."""
    q = i8(block[base + SLOTS])
    at = slot * 4
    size = q[at + 3]
    oldest = block[base + ARENA] + 8 * (q[at] + q[at + 1])
    newest = oldest + 8 * q[at + 2]
    for field in range(min(block[base + WIDTH], 8)):
        prefetch(newest + field * 8 * size)
        if field < 2:
            prefetch(oldest + field * 8 * size)


@njit(nogil=True, cache=True, _nrt=False)
def _make_room(block, base, slot):
    q = i8(block[base + SLOTS])
    at = slot * 4
    offset, head, count, size = q[at], q[at + 1], q[at + 2], q[at + 3]
    target, room = offset, size
    if count * 2 > size or size == 0:
        room = max(2 * size, 2)
        target = _stretch(block, base, room)
    arena = block[base + ARENA]
    for field in range(block[base + WIDTH]):
        _memmove(arena + (target + field * room) * 8, arena + (offset + field * size + head) * 8, count * 8)
    if target != offset and size > 0:
        _give_back(block, base, offset, size)
    q[at], q[at + 1], q[at + 3] = target, 0, room


@njit(nogil=True, cache=True, _nrt=False)
def keep(block, base, slot, gone, count):
    """Takes `count` entries out of a slot; `gone` are their places from its first entry, in order."""
    q = i8(block[base + SLOTS])
    at = slot * 4
    held = q[at + 2]
    q[at + 2] = held - count
    if count == held:
        q[at + 1] = 0
        return
    if gone[count - 1] == count - 1:  # those that are first
        q[at + 1] += count
        return
    first = entries(block, base, slot)
    for field in range(block[base + WIDTH]):
        column = i8(first + field * 8 * q[at + 3])
        put = gone[0]
        for each in range(count):
            end = held if each + 1 == count else gone[each + 1]
            for other in range(gone[each] + 1, end):
                column[put] = column[other]
                put += 1


@njit(nogil=True, cache=True, _nrt=False)
def give_up(block, base, slot, keyed):
    """Lets an empty slot hold no memory; with a hash, its key is forgotten."""
    q = i8(block[base + SLOTS])
    at = slot * 4
    if q[at + 3] > 0:
        _give_back(block, base, q[at], q[at + 3])
        q[at], q[at + 1], q[at + 3] = 0, 0, 0
    if keyed:
        _forget_key(block, base, slot)
