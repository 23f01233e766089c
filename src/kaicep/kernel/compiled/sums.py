"""Exact sums in compiled kernels: what was added can be taken away, and reading rounds once (semantics 1).

Most doubles are multiples of 2**-64 below 2**31. Those are summed in a *near* sum, a fixed-point number of
128 bits: a word of whole numbers and a word of 64 binary places, beside each other in the record of a
group. All others go to a *far* sum: an integer over 2**1074 as 72 words of 32-bit digits, which a group gets
when it first needs one. Which of the two a number belongs to is decided by the number alone, so that taking
it away undoes exactly what adding it did. Digits are never carried while numbers come and go: a word holds
the sum of up to 2**31 digits. Integers are summed in 128 bits.
"""

from __future__ import annotations

__all__ = ["FAR", "SCRATCH", "SOURCE"]

FAR = 72
"""The words of a far sum: doubles reach from 2**-1074 to 2**1024, and 2**31 of them a little further."""

SCRATCH = 72
"""The words that reading a sum needs for itself."""

SOURCE = '''
@njit(nogil=True, cache=True)
def is_near(value):
    """Whether a number is a multiple of 2**-64 below 2**31 in size."""
    bits = np.float64(value).view(np.int64)
    power = (bits >> 52) & 0x7FF
    if power >= 1011:
        return power < 1054
    fraction = bits & 0xFFFFFFFFFFFFF
    if power == 0:
        return fraction == 0
    return 1011 - power <= 52 and fraction & ((1 << (1011 - power)) - 1) == 0


@njit(nogil=True, cache=True)
def near_moved(before, above, value, sign):
    """A near sum with a near number added, or with sign -1 taken away; its two words."""
    bits = np.float64(value).view(np.int64)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def far_add(far, at, value, sign):
    """Adds a number to the far sum at this place, or with sign -1 takes it away."""
    bits = np.float64(value).view(np.int64)
    power = (bits >> 52) & 0x7FF
    whole = np.uint64(bits & 0xFFFFFFFFFFFFF)
    if power:
        whole |= np.uint64(0x10000000000000)
        power -= 1
    if bits < 0:
        sign = -sign
    first = power >> 5
    shift = np.uint64(power & 31)
    low = whole << shift
    mask = np.uint64(0xFFFFFFFF)
    word = at + first
    far[word] += sign * np.int64(low & mask)
    far[word + 1] += sign * np.int64(low >> np.uint64(32))
    far[word + 2] += sign * np.int64((whole >> np.uint64(32)) >> (np.uint64(32) - shift))


@njit(nogil=True, cache=True)
def settle(digits, count):
    """Carries: digits become 32 bits each. Returns whether the number is negative; then it is negated."""
    carry = np.int64(0)
    for i in range(count):
        carry += digits[i]
        digits[i] = carry & 0xFFFFFFFF
        carry >>= 32
    if carry >= 0:
        return False
    more = np.int64(1)
    for i in range(count):
        more += 0xFFFFFFFF - digits[i]
        digits[i] = more & 0xFFFFFFFF
        more >>= 32
    return True


@njit(nogil=True, cache=True)
def nearest(digits, count, place, sticky):
    """The double nearest to the number of 32-bit digits whose last has the value 2**place.

    `sticky` says that a little more follows behind the last digit. Infinite where it is too large.
    """
    top = count - 1
    while top >= 0 and digits[top] == 0:
        top -= 1
    if top < 0:
        return 0.0
    power = (np.float64(digits[top]).view(np.int64) >> 52) - 1023
    # The highest 62 or 63 bits; what follows them matters only by not being zero.
    taken = digits[top] << 31 | (digits[top - 1] >> 1 if top >= 1 else 0)
    shift = 31 - power
    rest = np.int64(0)
    if top >= 1:
        rest = (digits[top - 1] & 1) << 32
    if top >= 2:
        rest |= digits[top - 2]
    taken = taken << shift | rest >> (33 - shift)
    more = sticky or (rest & ((1 << (33 - shift)) - 1)) != 0
    for i in range(top - 2):
        more = more or digits[i] != 0
    last = place + 32 * (top - 1) + 1 - shift
    if last < -1074 - 10:
        # Below the normal doubles there are fewer bits: cut to what there is, so that it rounds only once.
        cut = -1074 - 2 - last
        more = more or (taken & ((1 << cut) - 1)) != 0
        taken >>= cut
        last += cut
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


@njit(nogil=True, cache=True)
def far_read(far, at, low, high, scratch):
    """The double nearest to a far sum and a near sum together."""
    for i in range(72):
        scratch[i] = far[at + i]
    # 2**-64 is the bit 18 of digit 31.
    part = np.uint64(low)
    scratch[31] += np.int64((part << np.uint64(18)) & np.uint64(0xFFFFFFFF))
    scratch[32] += np.int64((part >> np.uint64(14)) & np.uint64(0xFFFFFFFF))
    scratch[33] += np.int64(part >> np.uint64(46)) + ((high & 0x3FFF) << 18)
    scratch[34] += (high >> 14) & 0xFFFFFFFF
    scratch[35] += high >> 46
    minus = settle(scratch, 72)
    size = nearest(scratch, 72, -1074, False)
    return -size if minus else size


@njit(nogil=True, cache=True)
def whole_moved(before, above, value, sign):
    """A sum of 128 bits with an integer added, or with sign -1 taken away; its two words."""
    below = np.uint64(before)
    part = np.uint64(value)
    if sign > 0:
        after = below + part
        return np.int64(after), above + (value >> 63) + np.int64(after < below)
    after = below - part
    return np.int64(after), above - (value >> 63) - np.int64(below < part)


@njit(nogil=True, cache=True)
def whole_average(low, high, count, scratch):
    """The double nearest to an integer of 128 bits divided by a positive one below 2**31."""
    if high == low >> 63 and -9007199254740992 <= low <= 9007199254740992:
        return np.float64(low) / np.float64(count)
    scratch[0] = 0
    scratch[1] = 0
    scratch[2] = low & 0xFFFFFFFF
    scratch[3] = (low >> 32) & 0xFFFFFFFF
    scratch[4] = high & 0xFFFFFFFF
    scratch[5] = high >> 32
    minus = settle(scratch, 6)
    rest = np.int64(0)
    for i in range(5, -1, -1):
        rest = rest << 32 | scratch[i]
        scratch[i] = rest // count
        rest %= count
    size = nearest(scratch, 6, -64, rest != 0)
    return -size if minus else size
'''
"""The source of exact sums, as generated kernels include it."""
