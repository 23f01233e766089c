"""The ids of answers, compiled: `plan.identity` on the one way in which a solution is written down."""

# Numba finds the types of these functions by itself.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from kaicep.kernel.epsparql.kernels import FEW, mixed
from kaicep.kernel.jit import kept


@kept(inline="always")
def _turned(word, by):
    return (word >> np.uint64(by)) | (word << np.uint64(64 - by))


@kept()
def _g(a, b, c, d, x, y):
    a = a + b + x
    d = _turned(d ^ a, 32)
    c = c + d
    b = _turned(b ^ c, 24)
    a = a + b + y
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 63)
    return a, b, c, d


_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    np.uint64,
)
_IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    np.uint64,
)


@kept()
def _hash(letters, length):
    """BLAKE2b with a digest of eight bytes (RFC 7693), as a word; `letters` ends with a block of zeros."""
    h0, h1, h2, h3 = _IV[0] ^ np.uint64(0x01010008), _IV[1], _IV[2], _IV[3]
    h4, h5, h6, h7 = _IV[4], _IV[5], _IV[6], _IV[7]
    words = letters.view(np.uint64)
    done = 0
    while True:
        block = np.uint64(done // 8)
        done += 128
        last = done >= length
        v0, v1, v2, v3, v4, v5, v6, v7 = h0, h1, h2, h3, h4, h5, h6, h7
        v8, v9, v10, v11 = _IV[0], _IV[1], _IV[2], _IV[3]
        v12 = _IV[4] ^ np.uint64(length if last else done)
        v13, v14, v15 = _IV[5], _IV[6], _IV[7]
        if last:
            v14 = ~v14
        for r in range(12):
            m = _SIGMA[r]  # unsigned places need no look at their sign
            v0, v4, v8, v12 = _g(v0, v4, v8, v12, words[block + m[0]], words[block + m[1]])
            v1, v5, v9, v13 = _g(v1, v5, v9, v13, words[block + m[2]], words[block + m[3]])
            v2, v6, v10, v14 = _g(v2, v6, v10, v14, words[block + m[4]], words[block + m[5]])
            v3, v7, v11, v15 = _g(v3, v7, v11, v15, words[block + m[6]], words[block + m[7]])
            v0, v5, v10, v15 = _g(v0, v5, v10, v15, words[block + m[8]], words[block + m[9]])
            v1, v6, v11, v12 = _g(v1, v6, v11, v12, words[block + m[10]], words[block + m[11]])
            v2, v7, v8, v13 = _g(v2, v7, v8, v13, words[block + m[12]], words[block + m[13]])
            v3, v4, v9, v14 = _g(v3, v4, v9, v14, words[block + m[14]], words[block + m[15]])
        h0 ^= v0 ^ v8
        h1 ^= v1 ^ v9
        h2 ^= v2 ^ v10
        h3 ^= v3 ^ v11
        h4 ^= v4 ^ v12
        h5 ^= v5 ^ v13
        h6 ^= v6 ^ v14
        h7 ^= v7 ^ v15
        if last:
            return h0


@kept()
def _digits(letters, at, value):
    """Writes a number; returns where it ends."""
    if value < 0:
        letters[at] = 45
        at += 1
        value = -value
    size, rest = 1, value // 10
    while rest > 0:
        size += 1
        rest //= 10
    for i in range(size):
        letters[at + size - 1 - i] = 48 + value % 10
        value //= 10
    return at + size


@kept()
def identify(values, start, end, places, names, name_ends, texts, text_ends, low, high):
    """The ids of answers, as two words each.

    `names` are what stands before each value (` ?x=`), `low` and `high` the words that the query starts from.
    """
    lows, highs = np.empty(len(start), np.uint64), np.empty(len(start), np.uint64)
    letters = np.zeros(4096, np.uint8)
    for row in range(len(start)):
        size = 64 + len(names)
        for i in range(len(places)):
            code = values[row, places[i]]
            if code >= 0:
                size += text_ends[code] - (text_ends[code - 1] if code > 0 else 0)
        if size + 256 > len(letters):
            letters = np.zeros((size + 256) // 128 * 256, np.uint8)
        letters[0] = 91
        at = _digits(letters, 1, start[row])
        letters[at] = 44
        at = _digits(letters, at + 1, end[row])
        letters[at] = 93
        at += 1
        for i in range(len(places)):
            code = values[row, places[i]]
            if code < 0:
                continue
            for k in range(name_ends[i - 1] if i > 0 else 0, name_ends[i]):
                letters[at] = names[k]
                at += 1
            for k in range(text_ends[code - 1] if code > 0 else 0, text_ends[code]):
                letters[at] = texts[k]
                at += 1
        for k in range(at, (at + 127) // 128 * 128):
            letters[k] = 0
        word = _hash(letters, at)
        a = mixed(low ^ word)
        lows[row] = a
        highs[row] = mixed(high + word + np.uint64(0x9E3779B97F4A7C15)) ^ (a >> np.uint64(1))
    return lows, highs


@kept()
def in_order(end, low, high, order):
    """Brings the places of answers, which come by their end, into the order of end and id.

    Few answers end together; where many do, False is returned and somebody else must do it.
    """
    i = 0
    while i < len(end):
        j = i + 1
        while j < len(end) and end[j] == end[i]:
            j += 1
        if j - i > FEW:
            return False
        for a in range(i + 1, j):
            here, b = order[a], a
            while b > i and (
                low[order[b - 1]] > low[here]
                or (low[order[b - 1]] == low[here] and high[order[b - 1]] > high[here])
            ):
                order[b] = order[b - 1]
                b -= 1
            order[b] = here
        i = j
    return True
