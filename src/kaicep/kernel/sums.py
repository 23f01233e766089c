"""Exact sums over arrays: what was added can be taken away, and reading rounds once (semantics 1).

Most doubles are multiples of 2**-64 below 2**31. Those are summed in a *near* sum, a fixed-point number of
128 bits: a word of whole numbers and a word of 64 binary places. All others go to a *far* sum: an integer
over 2**1074 as `FAR` words of 32-bit digits, which is allocated when it is first needed. Which of the two a
number belongs to is decided by the number alone, so that taking it away undoes exactly what adding it did.
Digits are never carried while numbers come and go: a word holds the sum of up to 2**31 digits. Integers are
summed in 128 bits, and the squares of numbers as digits over 2**2148.

A double travels as its bits, an int64; null comes to `grown` alone.
"""

# mypy: ignore-errors
# Numba infers the types of all that follows.

from __future__ import annotations

import math

import numpy as np

from kaicep.kernel.jit import inner
from kaicep.kernel.tables import NULL

FAR = 72
"""The words of a far sum: doubles reach from 2**-1074 to 2**1024, and 2**31 of them a little further."""
SQUARES = 148
"""The words of a sum of squares: those of doubles begin at 2**-2148, and it is also multiplied by a count."""
SCRATCH = FAR + SQUARES
"""The words that reading a sum needs for itself."""

_ONE_BIT = np.int64(1074)
"""The place of the bit of value 1 in a far sum."""
_NEAR, _NEAR_DIGITS, _NEAR_SQUARES = 31, 8, 14
"""The digit of a far sum at which near sums and integers begin, and how many they and their squares take."""


@inner(forceinline=True)
def is_near(bits):
    """Whether a number is a multiple of 2**-64 below 2**31 in size."""
    power = (bits >> 52) & 0x7FF
    if power >= 1011:
        return power < 1054
    fraction = bits & 0xFFFFFFFFFFFFF
    if power == 0:
        return fraction == 0
    return 1011 - power <= 52 and fraction & ((1 << (1011 - power)) - 1) == 0


@inner(forceinline=True)
def near_moved(before, above, bits, sign):
    """A near sum with a near number added, or with sign -1 taken away; its two words."""
    power = (bits >> 52) & 0x7FF
    fraction = bits & 0xFFFFFFFFFFFFF
    if power >= 1011:
        whole = np.uint64(fraction | 0x10000000000000)
        shift = np.uint64(power - 1011)
        low = whole << shift
        high = np.int64((whole >> np.uint64(1)) >> (np.uint64(63) - shift))
    elif power == 0:
        return before, above
    else:
        low = np.uint64(fraction | 0x10000000000000) >> np.uint64(1011 - power)
        high = np.int64(0)
    below = np.uint64(before)
    if (bits < 0) == (sign < 0):
        after = below + low
        return np.int64(after), above + high + np.int64(after < below)
    after = below - low
    return np.int64(after), above - high - np.int64(below < low)


@inner(forceinline=True)
def near_read(low, high):
    """The double nearest to a near sum."""
    minus = high < 0
    part = np.uint64(low)
    if minus:
        part = np.uint64(0) - part
        high = -high - np.int64(part != np.uint64(0))
    if high == 0:
        # Above 2**63 the last place does not count for rounding, unless it breaks a tie.
        if part >> np.uint64(63):
            size = np.float64(np.int64((part >> np.uint64(1)) | (part & np.uint64(1)))) * 2.0**-63
        else:
            size = np.float64(np.int64(part)) * 2.0**-64
    else:
        power = (np.float64(high).view(np.int64) >> 52) - 1023
        shift = np.uint64(62 - power)
        top = np.int64((np.uint64(high) << shift) | ((part >> np.uint64(1)) >> (np.uint64(63) - shift)))
        if (part << shift) != np.uint64(0):
            top |= 1
        size = np.float64(top) * np.int64((power + 961) << 52).view(np.float64)
    return -size if minus else size


@inner()
def _parts(bits):
    """The digits of a double: its whole number, and at which place of a far sum that begins."""
    power = (bits >> 52) & 0x7FF
    whole = np.uint64(bits & 0xFFFFFFFFFFFFF)
    if power:
        whole |= np.uint64(0x10000000000000)
        power -= 1
    return whole, power


@inner()
def far_add(far, row, bits, sign):
    """Adds a number to the far sum in a row, or with sign -1 takes it away."""
    whole, power = _parts(bits)
    if bits < 0:
        sign = -sign
    first = power >> 5
    shift = np.uint64(power & 31)
    low = whole << shift
    far[row, first] += sign * np.int64(low & np.uint64(0xFFFFFFFF))
    far[row, first + 1] += sign * np.int64(low >> np.uint64(32))
    far[row, first + 2] += sign * np.int64((whole >> np.uint64(32)) >> (np.uint64(32) - shift))


@inner()
def square_add(squares, row, word, is_float, sign):
    """Adds the square of a number to the sum of squares in a row, or with sign -1 takes it away."""
    if is_float:
        whole, power = _parts(word)
    else:
        whole, power = np.uint64(-word if word < 0 else word), _ONE_BIT
    mask, half, twice = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(1)
    a, b = whole & mask, whole >> half
    small, middle, large = a * a, a * b, b * b
    first, shift = (2 * power) >> 5, np.uint64((2 * power) & 31)
    second = (small >> half) + ((middle & mask) << twice)
    third = (second >> half) + ((middle >> half) << twice) + (large & mask)
    _digit_add(squares, row, first, (small & mask) << shift, sign)
    _digit_add(squares, row, first + 1, (second & mask) << shift, sign)
    _digit_add(squares, row, first + 2, (third & mask) << shift, sign)
    _digit_add(squares, row, first + 3, ((third >> half) + (large >> half)) << shift, sign)


@inner()
def _digit_add(squares, row, place, moved, sign):
    squares[row, place] += sign * np.int64(moved & np.uint64(0xFFFFFFFF))
    squares[row, place + 1] += sign * np.int64(moved >> np.uint64(32))


@inner()
def _settle(digits, at, count):
    """Carries: digits become 32 bits each. Returns whether the number is negative; then it is negated."""
    carry = np.int64(0)
    for i in range(at, at + count):
        carry += digits[i]
        digits[i] = carry & 0xFFFFFFFF
        carry >>= 32
    if carry >= 0:
        return False
    more = np.int64(1)
    for i in range(at, at + count):
        more += 0xFFFFFFFF - digits[i]
        digits[i] = more & 0xFFFFFFFF
        more >>= 32
    return True


@inner()
def _top(digits, at, count):
    """The place of the highest digit that is not zero; below `at` where all are."""
    top = at + count - 1
    while top >= at and digits[top] == 0:
        top -= 1
    return top


@inner()
def _nearest(digits, at, count, place, sticky):
    """The double nearest to the number of 32-bit digits whose last has the value 2**place.

    `sticky` says that a little more follows behind the last digit. Infinite where it is too large.
    """
    top = _top(digits, at, count) - at
    if top < 0:
        return 0.0
    power = (np.float64(digits[at + top]).view(np.int64) >> 52) - 1023
    # The highest 63 bits; what follows them matters only by not being zero.
    taken = digits[at + top] << 31 | (digits[at + top - 1] >> 1 if top >= 1 else 0)
    shift = 31 - power
    rest = np.int64(0)
    if top >= 1:
        rest = (digits[at + top - 1] & 1) << 32
    if top >= 2:
        rest |= digits[at + top - 2]
    taken = taken << shift | rest >> (33 - shift)
    more = sticky or (rest & ((1 << (33 - shift)) - 1)) != 0
    for i in range(at, at + top - 2):
        more = more or digits[i] != 0
    last = place + 32 * (top - 1) + 1 - shift
    if last < -1074 - 10:
        # Below the normal doubles there are fewer bits: cut to what there is, so that it rounds only once.
        cut = -1074 - 2 - last
        if cut > 62:
            return 0.0
        more = more or (taken & ((1 << cut) - 1)) != 0
        taken >>= cut
        if more:
            taken |= 1
        quarter = taken & 3
        taken >>= 2
        if quarter == 3 or (quarter == 2 and taken & 1):
            taken += 1
        return math.ldexp(np.float64(taken), -1074)
    if more:
        taken |= 1
    return math.ldexp(np.float64(taken), last)


@inner(forceinline=True)
def grown(low, high, word, is_float):
    """A sum of 128 bits with one value more; null adds nothing.

    Its upper word is NULL from where a number is not near.
    """
    if high == NULL:
        return low, high
    if is_float:
        value = np.int64(word).view(np.float64)
        if value != value:
            return low, high
        return near_moved(low, high, word, 1) if is_near(word) else (low, NULL)
    return whole_moved(low, high, word, 1) if word != NULL else (low, high)


@inner()
def _place(scratch, low, high, bit):
    """Adds an integer of 128 bits to digits, its last bit being at a place."""
    first, shift = bit >> 5, np.uint64(bit & 31)
    part, mask = np.uint64(low), np.uint64(0xFFFFFFFF)
    down = np.uint64(32) - shift
    scratch[first] += np.int64((part << shift) & mask)
    scratch[first + 1] += np.int64((part >> down) & mask)
    scratch[first + 2] += np.int64((part >> down) >> np.uint64(32)) + np.int64(
        (np.uint64(high) << shift) & mask
    )
    above = high >> np.int64(down)
    scratch[first + 3] += above & 0xFFFFFFFF
    scratch[first + 4] += above >> 32


@inner()
def _load(far, row, low, high, bit, scratch, count):
    """Brings a far sum (where there is one) and a sum of 128 bits together; whether that is negative."""
    for i in range(count):
        scratch[i] = far[row, i] if row >= 0 else 0
    _place(scratch, low, high, bit)
    return _settle(scratch, 0, count)


@inner()
def far_read(far, row, low, high, scratch):
    """The double nearest to a far sum and a near sum together."""
    minus = _load(far, row, low, high, _ONE_BIT - 64, scratch, FAR)
    size = _nearest(scratch, 0, FAR, -1074, False)
    return -size if minus else size


@inner(forceinline=True)
def whole_moved(before, above, value, sign):
    """A sum of 128 bits with an integer added, or with sign -1 taken away; its two words."""
    below = np.uint64(before)
    part = np.uint64(value)
    if sign > 0:
        after = below + part
        return np.int64(after), above + (value >> 63) + np.int64(after < below)
    after = below - part
    return np.int64(after), above - (value >> 63) - np.int64(below < part)


@inner()
def _divide(digits, at, count, by):
    """Divides a number of 32-bit digits by a positive one below 2**31; what is left over."""
    rest = np.int64(0)
    for i in range(at + count - 1, at - 1, -1):
        rest = rest << 32 | digits[i]
        digits[i] = rest // by
        rest %= by
    return rest


@inner()
def whole_average(low, high, count, scratch):
    """The double nearest to an integer of 128 bits divided by a positive one below 2**31."""
    if high == low >> 63 and -9007199254740992 <= low <= 9007199254740992:
        return np.float64(low) / np.float64(count)
    for i in range(8):
        scratch[i] = 0
    _place(scratch, low, high, np.int64(64))
    minus = _settle(scratch, 0, 8)
    rest = _divide(scratch, 0, 8, count)
    size = _nearest(scratch, 0, 8, -64, rest != 0)
    return -size if minus else size


@inner()
def deviation(far, row, low, high, is_float, squares, at, count, scratch):
    """The root of the sample variance, which is exact and rounded once before that; infinite if too large.

    `row`, `low` and `high` are the sum of `count` numbers, `at` is the row of the sum of their squares.
    """
    # Without a far sum, all digits outside of a few are zero.
    first, digits, width = (0, FAR, SQUARES) if row >= 0 else (_NEAR, _NEAR_DIGITS, _NEAR_SQUARES)
    bit = _ONE_BIT - 64 if is_float else _ONE_BIT
    _load(far, row, low, high, bit - 32 * first, scratch, digits)
    for i in range(width):
        scratch[FAR + i] = squares[at, 2 * first + i]
    _settle(scratch, FAR, width)
    carry = np.int64(0)
    for i in range(FAR, FAR + width):
        carry += scratch[i] * count
        scratch[i] = carry & 0xFFFFFFFF
        carry >>= 32
    _subtract_square(scratch, digits)
    _settle(scratch, FAR, width)
    rest = _divide(scratch, FAR, width, count)
    rest |= _divide(scratch, FAR, width, count - 1)
    return math.sqrt(_nearest(scratch, FAR, width, 64 * first - 2148, rest != 0))


@inner()
def _subtract_square(scratch, count):
    """Takes the square of the number in front, of so many digits, away from the one behind it."""
    top = _top(scratch, 0, count)
    begin = 0
    while begin < top and scratch[begin] == 0:
        begin += 1
    for i in range(begin, top + 1):
        for j in range(begin, top + 1):
            product = np.uint64(scratch[i]) * np.uint64(scratch[j])
            scratch[FAR + i + j] -= np.int64(product & np.uint64(0xFFFFFFFF))
            scratch[FAR + i + j + 1] -= np.int64(product >> np.uint64(32))
