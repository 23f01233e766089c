"""The compiled kernels: joins of solutions over time, conditions on numbers.

A solution is a row of codes with a start and an end. A store is such rows in the order of their end,
chained by their key from the latest to the earliest. All widths, keys, bounds and conditions are
arguments, so that everything here is compiled once for all queries; Numba keeps it on disk.
"""

# Numba finds the types of these functions by itself.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "FEW",
    "FIRST",
    "ILL",
    "JOIN",
    "LAST",
    "NODE",
    "NUMBER",
    "OPERATORS",
    "OTHER",
    "STRING",
    "distinct",
    "join",
    "link",
    "mixed",
    "test",
]

# Kinds of terms: IRIs and blank nodes, numbers, plain strings, other literals, numbers that are none.
NODE, NUMBER, STRING, OTHER, ILL = range(5)

# What takes no time spans nothing: any other interval stays what it is beside it.
FIRST, LAST = -(2**62), 2**62

SEQ, DURING, EQUALS, FINISHES, MEETS, STARTS, PAR, JOIN = range(8)
OPERATORS = {
    "SEQ": SEQ,
    "DURING": DURING,
    "EQUALS": EQUALS,
    "FINISHES": FINISHES,
    "MEETS": MEETS,
    "STARTS": STARTS,
    "PAR": PAR,
}
"""The temporal operators, by the number that kernels know them by."""

_EMPTY = -1
FEW = 24  # rows that end together are compared one by one
"""So many rows that end together are compared one by one."""


@njit(cache=True, nogil=True)
def mixed(key):
    """The finaliser of SplitMix64, as in `plan.identity`."""
    word = np.uint64(key)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(cache=True, nogil=True)
def _key(values, row, places):
    """Two codes at most make a key; further ones are compared pair by pair."""
    key = np.int64(0)
    for i in range(len(places)):
        key = (key << np.int64(32)) | np.int64(values[row, places[i]])
    return key


@njit(cache=True, nogil=True)
def _slot(keys, heads, key):
    """Where a key stands in the table, or would."""
    mask = len(keys) - 1
    slot = np.int64(mixed(key) & np.uint64(mask))
    while heads[slot] != _EMPTY and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def link(values, places, before, keys, heads, first, last):
    """Chains the rows of a store from `first` to `last` by their keys."""
    for row in range(first, last):
        key = _key(values, row, places)
        slot = _slot(keys, heads, key)
        before[row] = heads[slot]
        keys[slot] = key
        heads[slot] = row


@njit(cache=True, nogil=True)
def _compare(sign, x, slack_x, code_x, y, slack_y, code_y, kind):
    """A comparison: 0 false, 1 true, 2 where it takes more than numbers and codes to know."""
    kind_x = NUMBER if code_x < 0 else kind[code_x]
    kind_y = NUMBER if code_y < 0 else kind[code_y]
    if kind_x == NUMBER and kind_y == NUMBER:
        slack = slack_x + slack_y
        if slack > 0.0 and abs(x - y) <= slack + (abs(x) + abs(y)) * 1e-15:
            return 2
        if sign == 0:
            return 1 if x < y else 0
        if sign == 1:
            return 1 if x <= y else 0
        if sign == 2:
            return 1 if x > y else 0
        if sign == 3:
            return 1 if x >= y else 0
        return (1 if x == y else 0) if sign == 4 else (1 if x != y else 0)
    if sign < 4 or kind_x == ILL or kind_y == ILL:
        return 2
    if code_x == code_y:
        return 1 if sign == 4 else 0
    if kind_x == NODE or kind_y == NODE or (kind_x == STRING and kind_y == STRING):
        return 0 if sign == 4 else 1
    return 2


@njit(cache=True, nogil=True)
def _holds(program, values, row, start, end, number, error, kind, xs, es, cs):
    """A condition in postfix form on a solution; the values of truth stand in `cs`."""
    top = 0
    for step in range(len(program)):
        op, what = program[step, 0], program[step, 1]
        if op <= 1:
            code = np.int64(values[row, what]) if op == 0 else what
            xs[top], es[top], cs[top] = number[code], error[code], code
            top += 1
        elif op <= 5:
            top -= 1
            x, y = xs[top - 1], xs[top]
            if (cs[top - 1] >= 0 and kind[cs[top - 1]] != NUMBER) or (
                cs[top] >= 0 and kind[cs[top]] != NUMBER
            ):
                return 2
            ex, ey = es[top - 1], es[top]
            exact = ex == 0.0 and ey == 0.0 and x == np.floor(x) and y == np.floor(y)
            if op == 2:
                made, slack = x + y, ex + ey
            elif op == 3:
                made, slack = x - y, ex + ey
            elif op == 4:
                made, slack = x * y, abs(x) * ey + abs(y) * ex + ex * ey
            else:
                if abs(y) <= 2.0 * ey:
                    return 2
                made, slack = x / y, (ex + abs(x / y) * ey) / (abs(y) - ey)
                exact = False
            if not (exact and abs(made) < 9007199254740992.0):
                slack += abs(made) * 1e-15 + 4e-18
            if not abs(made) < 1e300:
                return 2
            xs[top - 1], es[top - 1], cs[top - 1] = made, slack, -1
        elif op <= 15:
            top -= 1
            cs[top - 1] = _compare(
                op - 10, xs[top - 1], es[top - 1], cs[top - 1], xs[top], es[top], cs[top], kind
            )
        elif op <= 21:
            top -= what - 1
            # False settles AND and true settles OR, whatever the others are, errors included.
            settles = 0 if op == 20 else 1
            found = 1 - settles
            for i in range(what):
                if cs[top - 1 + i] == settles:
                    found = settles
                    break
                if cs[top - 1 + i] == 2:
                    found = 2
            cs[top - 1] = found
        elif op == 22:
            if cs[top - 1] != 2:
                cs[top - 1] = 1 - cs[top - 1]
        else:
            length = end - start
            if op == 30:
                found = 1 if length < what else 0
            elif op == 31:
                found = 1 if length <= what else 0
            elif op == 32:
                found = 1 if length > what else 0
            elif op == 33:
                found = 1 if length >= what else 0
            elif op == 34:
                found = 1 if length == what else 0
            else:
                found = 1 if length != what else 0
            cs[top] = found
            top += 1
    return cs[top - 1] if top > 0 else 1


@njit(cache=True, nogil=True)
def test(program, values, start, end, number, error, kind):
    """A condition on rows: 0 false, 1 true, 2 not known here."""
    xs, es, cs = np.empty(64), np.empty(64), np.empty(64, np.int64)
    found = np.empty(len(start), np.int8)
    for row in range(len(start)):
        found[row] = _holds(program, values, row, start[row], end[row], number, error, kind, xs, es, cs)
    return found


@njit(cache=True, nogil=True)
def _related(op, a, b, c, d):
    """Whether the intervals [a, b] and [c, d] stand in a relation."""
    if op == SEQ:
        return b < c
    if op == DURING:
        return c < a and b < d
    if op == EQUALS:
        return a == c and b == d
    if op == FINISHES:
        return b == d and a >= c
    if op == MEETS:
        return b == c
    if op == STARTS:
        return a == c and b <= d
    if op == PAR:
        return a <= d and c <= b
    return True


@njit(cache=True, nogil=True)
def _oldest(op, start, end, from_left):
    """The earliest end that a partner can have."""
    if op in (SEQ, JOIN):
        return FIRST
    if op in (EQUALS, FINISHES):
        return end
    if op == PAR:
        return start
    if from_left:  # of DURING, MEETS and STARTS no left side ends after its right side
        return end
    return start + 1 if op == DURING else start


@njit(cache=True, nogil=True)
def _wider(values, start, end, unsure, room):
    """The same rows with more room."""
    n = len(start)
    values_ = np.empty((room, values.shape[1]), np.int32)
    start_, end_ = np.empty(room, np.int64), np.empty(room, np.int64)
    unsure_ = np.zeros(room, np.int8)
    for row in range(n):
        for c in range(values.shape[1]):
            values_[row, c] = values[row, c]
        start_[row], end_[row], unsure_[row] = start[row], end[row], unsure[row]
    return values_, start_, end_, unsure_


@njit(cache=True, nogil=True)
def join(op, bound, lv, ls, le, rv, rs, re, left, right, keep, places, loose, extra, program, numbers):
    """Pairs of two sides, in the order of their end: each is found when its later part comes.

    `left` and `right` are stores (rows and chains); what comes is added to those that are to `keep` it.
    """
    lsv, lss, lse, lsb, lsk, lsh, ln = left
    rsv, rss, rse, rsb, rsk, rsh, rn = right
    lk, rk = places
    number, error, kind = numbers
    xs, es, cs = np.empty(64), np.empty(64), np.empty(64, np.int64)
    wide = lsv.shape[1]
    room, n = max(256, len(ls) + len(rs)), 0
    ov = np.empty((room, wide + len(extra)), np.int32)
    os, oe = np.empty(room, np.int64), np.empty(room, np.int64)
    unsure = np.zeros(room, np.int8)
    i, j = 0, 0
    while i < len(ls) or j < len(rs):
        mine = j >= len(rs) or (i < len(ls) and le[i] < re[j])
        start, end = (ls[i], le[i]) if mine else (rs[j], re[j])
        oldest = _oldest(op, start, end, mine)
        if bound >= 0:
            oldest = max(oldest, end - bound)
        if mine:
            if keep[1] == 1 or rn > 0:
                slot = _slot(rsk, rsh, _key(lv, i, lk))
                at = rsh[slot]
            else:
                at = np.int64(_EMPTY)
        else:
            slot = _slot(lsk, lsh, _key(rv, j, rk))
            at = lsh[slot]
        while at != _EMPTY:
            a, b = (rss[at], rse[at]) if mine else (lss[at], lse[at])
            if b < oldest:
                break
            here = at
            at = rsb[at] if mine else lsb[at]
            first, last = min(start, a), max(end, b)
            if bound >= 0 and last - first > bound:
                continue
            fits = _related(op, start, end, a, b) if mine else _related(op, a, b, start, end)
            for each in range(len(loose)):
                x = lv[i, loose[each, 0]] if mine else lsv[here, loose[each, 0]]
                y = rsv[here, loose[each, 1]] if mine else rv[j, loose[each, 1]]
                fits = fits and x == y
            if not fits:
                continue
            if n == room:
                room *= 2
                ov, os, oe, unsure = _wider(ov, os, oe, unsure, room)
            for c in range(wide):
                ov[n, c] = lv[i, c] if mine else lsv[here, c]
            for c in range(len(extra)):
                ov[n, wide + c] = rsv[here, extra[c]] if mine else rv[j, extra[c]]
            if len(program) > 0:
                found = _holds(program, ov, n, first, last, number, error, kind, xs, es, cs)
                if found == 0:
                    continue
                unsure[n] = found == 2
            os[n], oe[n] = first, last
            n += 1
        if mine:
            if keep[0] == 1:
                for c in range(wide):
                    lsv[ln, c] = lv[i, c]
                lss[ln], lse[ln] = start, end
                key = _key(lv, i, lk)
                slot = _slot(lsk, lsh, key)
                lsb[ln], lsk[slot], lsh[slot] = lsh[slot], key, ln
                ln += 1
            i += 1
        else:
            if keep[1] == 1:
                for c in range(rsv.shape[1]):
                    rsv[rn, c] = rv[j, c]
                rss[rn], rse[rn] = start, end
                key = _key(rv, j, rk)
                slot = _slot(rsk, rsh, key)
                rsb[rn], rsk[slot], rsh[slot] = rsh[slot], key, rn
                rn += 1
            j += 1
    return ov, os, oe, unsure, n, ln, rn


@njit(cache=True, nogil=True)
def distinct(s, p, o, start, end):
    """Which rows are the first of their kind; rows that end together stand together."""
    keep = np.ones(len(end), np.bool_)
    i = 0
    while i < len(end):
        j = i + 1
        while j < len(end) and end[j] == end[i]:
            j += 1
        if j - i > FEW:
            size = 1
            while size < 2 * (j - i):
                size *= 2
            table = np.full(size, _EMPTY, np.int64)
            for a in range(i, j):
                word = mixed((np.int64(s[a]) << np.int64(32)) | np.int64(o[a]))
                slot = np.int64(mixed(np.int64(word) ^ np.int64(p[a]) ^ start[a]) & np.uint64(size - 1))
                while table[slot] != _EMPTY:
                    b = table[slot]
                    if s[a] == s[b] and p[a] == p[b] and o[a] == o[b] and start[a] == start[b]:
                        keep[a] = False
                        break
                    slot = (slot + 1) & (size - 1)
                if keep[a]:
                    table[slot] = a
        else:
            for a in range(i + 1, j):
                for b in range(i, a):
                    if s[a] == s[b] and p[a] == p[b] and o[a] == o[b] and start[a] == start[b]:
                        keep[a] = False
                        break
        i = j
    return keep
