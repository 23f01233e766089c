"""The compiled kernels: joins of solutions over time, conditions on numbers.

A solution is a row of codes with a start and an end. A store is such rows in the order of their end,
chained by their key from the latest to the earliest. All widths, keys, bounds and conditions are
arguments, so that everything here is compiled once for all queries; Numba keeps it on disk.
"""

# Numba finds the types of these functions by itself.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from kaicep.kernel.jit import kept

# Kinds of terms: IRIs and blank nodes, numbers, plain strings, other literals, numbers that are none.
NODE, NUMBER, STRING, OTHER, ILL = range(5)

# What takes no time spans nothing: any other interval stays what it is beside it.
FIRST, LAST = -(2**62), 2**62

SEQ, DURING, EQUALS, FINISHES, MEETS, STARTS, PAR, JOIN, INSIDE = range(9)
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
ASKS = {"OPTIONALSEQ": SEQ, "EQUALSOPTIONAL": EQUALS, "NOT": INSIDE}
"""Those of which one side asks whether there is something on the other."""

_EMPTY = -1
_QUOTE, _ANGLE = ord('"'), ord("<")  # with which a literal begins, and an IRI
_UNBOUND, _ERROR = -2, 3  # a value that is not there, and the truth of what is said of it
FEW = 24  # rows that end together are compared one by one
"""So many rows that end together are compared one by one."""


@kept()
def mixed(key):
    """The finaliser of SplitMix64, as in `plan.identity`."""
    word = np.uint64(key)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kept()
def _key(values, row, places):
    """Two codes at most make a key; further ones are compared pair by pair."""
    key = np.int64(0)
    for i in range(len(places)):
        key = (key << np.int64(32)) | np.int64(values[row, places[i]])
    return key


@kept()
def _is_vague(values, row, places):
    """Whether a key leaves something unbound: that agrees with anything, and cannot be looked up."""
    found = False
    for i in range(len(places)):
        found = found or values[row, places[i]] < 0
    return found


@kept()
def is_any_vague(values, places):
    """Whether any key leaves something unbound."""
    found = False
    for row in range(len(values)):
        found = found or _is_vague(values, row, places)
    return found


@kept()
def _slot(keys, heads, key):
    """Where a key stands in the table, or would."""
    mask = len(keys) - 1
    slot = np.int64(mixed(key) & np.uint64(mask))
    while heads[slot] != _EMPTY and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@kept()
def link(values, places, before, keys, heads, first, last):
    """Chains the rows of a store from `first` to `last` by their keys."""
    for row in range(first, last):
        key = _key(values, row, places)
        slot = _slot(keys, heads, key)
        before[row] = heads[slot]
        keys[slot] = key
        heads[slot] = row


@kept()
def unlink(values, places, before, keys, heads, first, last):
    """Takes the last rows of a store out of their chains again."""
    for row in range(last - 1, first - 1, -1):
        slot = _slot(keys, heads, _key(values, row, places))
        heads[slot] = before[row]


@kept()
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


@kept()
def _holds(program, values, row, start, end, number, error, kind, xs, es, cs):
    """A condition in postfix form on a solution; the values of truth stand in `cs`."""
    top = 0
    for step in range(len(program)):
        op, what = program[step, 0], program[step, 1]
        if op <= 1:
            code = np.int64(values[row, what]) if op == 0 else what
            if code < 0:
                xs[top], es[top], cs[top] = 0.0, 0.0, _UNBOUND
            else:
                xs[top], es[top], cs[top] = number[code], error[code], code
            top += 1
        elif op <= 5:
            top -= 1
            x, y = xs[top - 1], xs[top]
            if cs[top - 1] == _UNBOUND or cs[top] == _UNBOUND:
                cs[top - 1] = _UNBOUND
                continue
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
            if cs[top - 1] == _UNBOUND or cs[top] == _UNBOUND:
                cs[top - 1] = _ERROR
                continue
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
                if cs[top - 1 + i] == 2 or (cs[top - 1 + i] == _ERROR and found != 2):
                    found = cs[top - 1 + i]
            cs[top - 1] = found
        elif op == 22:
            if cs[top - 1] < 2:
                cs[top - 1] = 1 - cs[top - 1]
        elif op == 23:
            cs[top] = 1 if values[row, what] >= 0 else 0
            top += 1
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
    if top > 0:
        return 0 if cs[top - 1] == _ERROR else cs[top - 1]
    return 1


@kept()
def test(program, values, start, end, number, error, kind):
    """A condition on rows: 0 false, 1 true, 2 not known here."""
    xs, es, cs = np.empty(64), np.empty(64), np.empty(64, np.int64)
    found = np.empty(len(start), np.int8)
    for row in range(len(start)):
        found[row] = _holds(program, values, row, start[row], end[row], number, error, kind, xs, es, cs)
    return found


@kept()
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


@kept()
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


@kept()
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


@kept()
def join(op, bound, lv, ls, le, rv, rs, re, left, right, keep, vague, places, loose, extra, program, numbers):
    """Pairs of two sides, in the order of their end: each is found when its later part comes.

    `left` and `right` are stores (rows and chains); what comes is added to those that are to `keep` it.
    Those in which a key may be `vague` are gone through row by row; the third of these flags says that
    rows are kept in no order.
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
        by_row = vague[1] == 1 or _is_vague(lv, i, lk) if mine else vague[0] == 1 or _is_vague(rv, j, rk)
        if by_row:
            at = np.int64(rn if mine else ln) - 1
        elif mine:
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
            if b < oldest and vague[2] == 0:
                break
            here = at
            at = at - 1 if by_row else rsb[at] if mine else lsb[at]
            if b < oldest:
                continue
            first, last = min(start, a), max(end, b)
            if bound >= 0 and last - first > bound:
                continue
            fits = _related(op, start, end, a, b) if mine else _related(op, a, b, start, end)
            for each in range(len(loose)):
                x = lv[i, loose[each, 0]] if mine else lsv[here, loose[each, 0]]
                y = rsv[here, loose[each, 1]] if mine else rv[j, loose[each, 1]]
                fits = fits and (x == y or x < 0 or y < 0)
            if not fits:
                continue
            if n == room:
                room *= 2
                ov, os, oe, unsure = _wider(ov, os, oe, unsure, room)
            for c in range(wide):
                ov[n, c] = lv[i, c] if mine else lsv[here, c]
            for c in range(len(extra)):
                ov[n, wide + c] = rsv[here, extra[c]] if mine else rv[j, extra[c]]
            for each in range(len(loose)):
                if ov[n, loose[each, 0]] < 0:
                    ov[n, loose[each, 0]] = rsv[here, loose[each, 1]] if mine else rv[j, loose[each, 1]]
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


@kept()
def _put(values, row, start, end, store, n, places, once):
    """Adds a row to a store; not again, if it is to be there only `once`. Returns how many there are."""
    sv, ss, se, sb, sk, sh, _ = store
    key = _key(values, row, places)
    slot = _slot(sk, sh, key)
    at = sh[slot] if once else np.int64(_EMPTY)
    while at != _EMPTY:
        same = True
        for c in range(sv.shape[1]):
            same = same and sv[at, c] == values[row, c]
        if same:
            return n
        at = sb[at]
    for c in range(sv.shape[1]):
        sv[n, c] = values[row, c]
    ss[n], se[n] = start, end
    sb[n], sk[slot], sh[slot] = sh[slot], key, n
    return n + 1


@kept()
def ask(how, av, begins, ends, kv, ks, ke, store, places, loose, layout, program, numbers):
    """For each row that asks, its partners among those that are kept and have come by its end.

    `how` is the relation, a bound on answers, one on pairs (-1 is none), and flags: whether it only matters
    that there is a partner; whether the conditions are more than the program; whether a row is kept once;
    whether a pair must agree on something, and has the interval of the kept side; whether a key that is
    kept may be vague. A column of a pair
    is that of the asking row or (-1, or unbound) that of the kept one. Found are the pairs, who asked for
    each, and which rows have a partner beside those.
    """
    op, bound, near = how[0], how[1], how[2]
    any_will_do, more, once, common, theirs = how[3], how[4], how[5], how[6], how[7]
    sv, ss, se, sb, sk, sh, kept = store
    number, error, kind = numbers
    xs, es, cs = np.empty(64), np.empty(64), np.empty(64, np.int64)
    room, n, j = max(256, len(begins)), 0, 0
    ov = np.empty((room, len(layout)), np.int32)
    os, oe = np.empty(room, np.int64), np.empty(room, np.int64)
    unsure, who = np.zeros(room, np.int8), np.empty(room, np.int64)
    met = np.zeros(len(begins), np.bool_)
    for i in range(len(begins)):
        start, end = begins[i], ends[i]
        while j < len(ke) and ke[j] <= end:
            kept = _put(kv, j, ks[j], ke[j], store, kept, places[1], once == 1)
            j += 1
        oldest = start if op == INSIDE else end if op == EQUALS else np.int64(FIRST)
        if near >= 0:
            oldest = max(oldest, end - near)
        by_row = how[8] == 1 or _is_vague(av, i, places[0])
        at = np.int64(kept) - 1 if by_row else sh[_slot(sk, sh, _key(av, i, places[0]))]
        while at != _EMPTY:
            here, a, b = at, ss[at], se[at]
            at = at - 1 if by_row else sb[at]
            if b < oldest:
                break
            if op == SEQ:
                fits = b < start
            elif op == EQUALS:
                fits = a == start and b == end
            else:
                fits = op != INSIDE or a >= start
            first, last = min(start, a), max(end, b)
            fits = fits and (near < 0 or last - first <= near)
            agree = common == 0
            for each in range(len(loose)):
                x, y = av[i, loose[each, 0]], sv[here, loose[each, 1]]
                fits = fits and (x == y or x < 0 or y < 0)
                agree = agree or (x >= 0 and y >= 0)
            if not fits or not agree:
                continue
            if len(program) == 0 and more == 0:
                if any_will_do == 1:
                    met[i] = True
                    break
                if bound >= 0 and last - first > bound:  # a partner, but no answer
                    met[i] = True
                    if b < end - bound:
                        break
                    continue
            if n == room:
                room *= 2
                ov, os, oe, unsure = _wider(ov, os, oe, unsure, room)
                who_ = np.empty(room, np.int64)
                who_[:n] = who[:n]
                who = who_
            for c in range(len(layout)):
                ov[n, c] = av[i, layout[c, 0]] if layout[c, 0] >= 0 else -1
                if ov[n, c] < 0 and layout[c, 1] >= 0:
                    ov[n, c] = sv[here, layout[c, 1]]
            os[n], oe[n] = (a, b) if theirs == 1 else (first, last)
            if len(program) > 0:
                found = _holds(program, ov, n, os[n], oe[n], number, error, kind, xs, es, cs)
                if found == 0:
                    continue
                if found == 1 and any_will_do == 1 and more == 0:
                    met[i] = True
                    break
                unsure[n] = found == 2
            who[n] = i
            n += 1
    while j < len(ke):
        kept = _put(kv, j, ks[j], ke[j], store, kept, places[1], once == 1)
        j += 1
    return ov, os, oe, unsure, who, n, met, kept


EMPTIED = -2
"""In what `follow` finds, a cell that is empty from there on; 1 is a row that enters, -1 one that leaves."""


@kept()
def relink(before, heads, after, cells):
    """From the chains of a store to the other direction; nothing is in a cell, the oldest is next."""
    for slot in range(len(heads)):
        at, later = heads[slot], np.int64(_EMPTY)
        cells[slot, 0] = cells[slot, 1] = _EMPTY
        while at != _EMPTY:
            after[at] = later
            cells[slot, 1] = later = at
            at = before[at]


@kept()
def _noted(log, n, row, cell, what):
    """A log with one line more; there is more room in it, where that was needed."""
    if n == len(log):
        log_ = np.empty((2 * n, 3), np.int64)
        log_[:n] = log
        log = log_
    log[n, 0], log[n, 1], log[n, 2] = row, cell, what
    return log


@kept()
def follow(bound, lv, ls, le, rv, rs, re, left, after, cells, places, loose, flags):
    """For each right side, what comes into the cell of its key since the last one, and what is too old.

    A line of the log is a row, a cell and what happens; 0 is a right side that has partners, all that is
    in its cell. The rows on the left are added to their store. The flags say whether keys are vague, and
    whether each row of the store takes no time; where that is not so, or the right side takes time, its
    partners are looked for one by one and are in a cell of their own. Of each right side, `begun` is
    the start of its longest pair.
    """
    sv, ss, se, sb, sk, sh, n = left
    lk, rk = places
    by_row, instants = flags[0], flags[1]
    log, m = np.empty((max(256, 2 * (len(ls) + len(rs))), 3), np.int64), 0
    begun, apart = rs.copy(), len(sk)
    i, j = 0, 0
    while i < len(ls) or j < len(rs):
        if j >= len(rs) or (i < len(ls) and le[i] < re[j]):
            for c in range(sv.shape[1]):
                sv[n, c] = lv[i, c]
            ss[n], se[n] = ls[i], le[i]
            instants = instants and ls[i] == le[i]
            key = _key(lv, i, lk)
            slot = _slot(sk, sh, key)
            if sh[slot] == _EMPTY:
                cells[slot, 0] = cells[slot, 1] = _EMPTY
            else:
                after[sh[slot]] = n
            if cells[slot, 1] == _EMPTY:
                cells[slot, 1] = n
            after[n] = _EMPTY
            sb[n], sk[slot], sh[slot] = sh[slot], key, n
            n += 1
            i += 1
            continue
        start, end = rs[j], re[j]
        oldest = end - bound if bound >= 0 else np.int64(FIRST)
        vague = by_row or _is_vague(rv, j, rk)
        slot = np.int64(0) if vague else _slot(sk, sh, _key(rv, j, rk))
        if not vague and sh[slot] == _EMPTY:
            pass
        elif instants and start == end and not vague:
            at, coming = cells[slot, 0], cells[slot, 1]
            while at != _EMPTY and ss[at] < oldest:
                log = _noted(log, m, at, slot, -1)
                m += 1
                at = after[at] if after[at] != coming else np.int64(_EMPTY)
            while coming != _EMPTY and se[coming] < start:
                if ss[coming] >= oldest:
                    log = _noted(log, m, coming, slot, 1)
                    m += 1
                    at = coming if at == _EMPTY else at
                coming = after[coming]
            cells[slot, 0], cells[slot, 1] = at, coming
            if at != _EMPTY:
                begun[j] = ss[at]
                log = _noted(log, m, j, slot, 0)
                m += 1
        else:
            log = _noted(log, m, 0, apart, EMPTIED)
            m += 1
            at = np.int64(n) - 1 if vague else sh[slot]
            some = False
            while at != _EMPTY and se[at] >= oldest:
                here = at
                at = at - 1 if vague else sb[at]
                fits = se[here] < start and ss[here] >= oldest
                if vague:
                    for c in range(len(lk)):
                        x, y = sv[here, lk[c]], rv[j, rk[c]]
                        fits = fits and (x == y or x < 0 or y < 0)
                for each in range(len(loose)):
                    x, y = sv[here, loose[each, 0]], rv[j, loose[each, 1]]
                    fits = fits and (x == y or x < 0 or y < 0)
                if fits:
                    begun[j] = min(begun[j], ss[here])
                    log = _noted(log, m, here, apart, 1)
                    m += 1
                    some = True
            if some:
                log = _noted(log, m, j, apart, 0)
                m += 1
        j += 1
    return log[:m], begun, n, instants


@kept()
def tally(op, log, count, codes, whole, sums, ends, links):
    """An aggregate of what is in a cell, for each right side of a log: how many, their sum, the best code.

    Of values only those are linked, from the best one on, that no later one excels.
    """
    times, found, best = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    n = 0
    for i in range(len(log)):
        row, cell, what = log[i, 0], log[i, 1], log[i, 2]
        if what == 0:
            times[n], found[n] = sums[cell, 0], sums[cell, 1]
            best[n] = codes[ends[cell, 0]] if op > 2 else 0
            n += 1
        elif what == EMPTIED:
            sums[cell, 0] = sums[cell, 1] = 0
            ends[cell, 0] = ends[cell, 1] = _EMPTY
        else:
            sums[cell, 0] += what
            if op == 1 or op == 2:
                sums[cell, 1] += what * whole[codes[row]]
            elif op > 2 and what < 0:
                if ends[cell, 0] == row:
                    ends[cell, 0] = links[row, 1]
                    if ends[cell, 0] == _EMPTY:
                        ends[cell, 1] = _EMPTY
                    else:
                        links[ends[cell, 0], 0] = _EMPTY
            elif op > 2:
                value, last = whole[codes[row]], ends[cell, 1]
                while last != _EMPTY and (
                    whole[codes[last]] <= value if op == 4 else whole[codes[last]] >= value
                ):
                    last = links[last, 0]
                links[row, 0], links[row, 1] = last, _EMPTY
                if last == _EMPTY:
                    ends[cell, 0] = row
                else:
                    links[last, 1] = row
                ends[cell, 1] = row
    return times, found, best


@kept()
def _agree(values, row, others, other, pairs):
    """Whether two rows have the same codes at some places."""
    same = True
    for each in range(len(pairs)):
        same = same and values[row, pairs[each, 0]] == others[other, pairs[each, 1]]
    return same


@kept()
def _lies_between(values, row, first, last, store, places, pairs):
    """Whether a solution of a store agrees with a row and lies between two times."""
    sv, ss, se, before, keys, heads, _ = store
    at = heads[_slot(keys, heads, _key(values, row, places))]
    while at != _EMPTY and se[at] > first:
        if ss[at] > first and se[at] < last and _agree(values, row, sv, at, pairs):
            return True
        at = before[at]
    return False


@kept()
def _first_end(values, row, start, store, places):
    """When the first solution of a store ended that has the codes of a row, and its start."""
    sv, ss, se, before, keys, heads, _ = store
    at, found = heads[_slot(keys, heads, _key(values, row, places))], np.int64(LAST)
    while at != _EMPTY:
        same = ss[at] == start
        for c in range(sv.shape[1]):
            same = same and sv[at, c] == values[row, c]
        if same:
            found = se[at]
        at = before[at]
    return found


@kept()
def adjacent(bound, same_for_all, width, afters, befores, insides, stores, places, loose, extra):
    """Pairs of a solution before and one after with none in between; what comes is added to the stores.

    For each of `afters` it is known when the last one like it begins that ends with it: what lies between
    may end by then. Solutions before that are alike make the same interval, so the first of them decides.
    """
    av, begins, ends, latest = afters
    bv, bs, be = befores
    iv, zs, ze = insides
    known, alike, inner = stores
    kv, ks, ke, before, keys, heads, _ = known
    lengths = np.array((known[6], alike[6], inner[6]), np.int64)
    room, n, j, k = max(256, len(begins)), 0, 0, 0
    wide = kv.shape[1]
    ov, os, oe = np.empty((room, width), np.int32), np.empty(room, np.int64), np.empty(room, np.int64)
    for i in range(len(begins) + 1):
        upto = ends[i] if i < len(begins) else np.int64(LAST)
        while j < len(be) and be[j] < upto:
            lengths[0] = _put(bv, j, bs[j], be[j], known, lengths[0], places[0], False)
            lengths[1] = _put(bv, j, bs[j], be[j], alike, lengths[1], places[2], False)
            j += 1
        while k < len(ze) and ze[k] < upto:
            lengths[2] = _put(iv, k, zs[k], ze[k], inner, lengths[2], places[4], False)
            k += 1
        if i == len(begins):
            break
        start, end = begins[i], ends[i]
        at = heads[_slot(keys, heads, _key(av, i, places[1]))]
        while at != _EMPTY:
            here, begun, ended = at, ks[at], ke[at]
            at = before[at]
            if bound >= 0 and ended < end - bound:
                break
            if ended >= start or not _agree(kv, here, av, i, loose[0]):
                continue
            if n == room:
                room *= 2
                ov, os, oe, _ = _wider(ov, os, oe, np.zeros(n, np.int8), room)
            for c in range(width):
                ov[n, c] = (
                    kv[here, c] if c < wide else av[i, extra[c - wide]] if c - wide < len(extra) else -1
                )
            if _lies_between(ov, n, ended, latest[i], inner, places[3], loose[1]):
                if same_for_all:
                    break
                continue
            first = _first_end(kv, here, begun, alike, places[2])
            if first != ended and _lies_between(ov, n, first, latest[i], inner, places[3], loose[1]):
                continue
            os[n], oe[n] = begun, end
            n += 1
    return ov, os, oe, n, lengths[0], lengths[1], lengths[2]


@kept()
def enumerate_rows(rows, known, slots, count):
    """The number of each row among those that are known, and how many they are; there is room for all."""
    found = np.empty(len(rows), np.int64)
    mask = np.uint64(len(slots) - 1)
    for i in range(len(rows)):
        word = np.uint64(0)
        for c in range(rows.shape[1]):
            word = mixed(word ^ np.uint64(np.int64(rows[i, c])))
        slot = np.int64(word & mask)
        while slots[slot] != _EMPTY:
            at, same = slots[slot], True
            for c in range(rows.shape[1]):
                same = same and known[at, c] == rows[i, c]
            if same:
                break
            slot = np.int64((np.uint64(slot) + np.uint64(1)) & mask)
        if slots[slot] == _EMPTY:
            for c in range(rows.shape[1]):
                known[count, c] = rows[i, c]
            slots[slot] = count
            count += 1
        found[i] = slots[slot]
    return found, count


@kept()
def are_triples(made, initials):
    """Which terms that a rule puts together are triples, and the places of the answers that make any.

    `made` has three rows for each triple of the template. Where a term is unbound, nothing is made.
    """
    found, left, n = np.zeros((made.shape[0], made.shape[2]), np.bool_), np.empty(made.shape[2], np.int64), 0
    for row in range(made.shape[2]):
        bound = True
        for i in range(made.shape[0]):
            bound = bound and made[i, 0, row] >= 0 and made[i, 1, row] >= 0 and made[i, 2, row] >= 0
        if not bound:
            continue
        some = False
        for i in range(made.shape[0]):
            found[i, row] = initials[made[i, 0, row]] != _QUOTE and initials[made[i, 1, row]] == _ANGLE
            some = some or found[i, row]
        if some:
            left[n] = row
            n += 1
    return found, left[:n]


@kept()
def shapes(p, o, kind, literal, by_node, by_literal, by_class):
    """What is seen of each triple, the least and the largest of it; `kind` is the code of rdf:type."""
    found, least, most = np.empty(len(p), np.int32), np.int32(2**31 - 1), np.int32(-(2**31))
    for i in range(len(p)):
        by_predicate = by_literal if literal[o[i]] else by_node
        shape = by_class[o[i]] if p[i] == kind else by_predicate[p[i]]
        found[i] = shape
        least, most = min(least, shape), max(most, shape)
    return found, least, most


@kept()
def first_times(numbers, known):
    """Which rows have a number for the first time; there were so many before."""
    fresh = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        if numbers[i] == known:
            fresh[i] = True
            known += 1
    return fresh


@kept()
def run_groups(groups, start, end, begun, count):
    """The last row of each group at each instant, and when the group of each row began by then."""
    last = np.full(count, _EMPTY, np.int64)
    shown, first = np.ones(len(groups), np.bool_), np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        group = groups[i]
        begun[group] = min(begun[group], start[i])
        first[i] = begun[group]
        before = last[group]
        if before != _EMPTY and end[before] == end[i]:
            shown[before] = False
        last[group] = i
    return np.flatnonzero(shown), first


@kept()
def total(op, groups, codes, times, added, rows, whole, counts, sums, bests, wrong):
    """A running aggregate (COUNT, SUM, AVG, MIN, MAX, SAMPLE): its value at each row, and its count.

    The value of the last three is a code, and -1 is none. The count is -1 where the aggregate has no value.
    A row counts so many `times`; what is `added` to a sum may be given. `rows`: whole rows are counted.
    """
    found, many = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        group, code = groups[i], np.int64(codes[i])
        if times[i] > 0:
            if code < 0:
                wrong[group] = True
            else:
                counts[group] += times[i]
                if rows or op == 0:
                    pass
                elif op <= 2:
                    if not wrong[group]:
                        sums[group] += added[i] if len(added) else times[i] * whole[code]
                elif not wrong[group] or op == 5:
                    best = bests[group]
                    if best < 0 or (whole[code] > whole[best] if op == 4 else whole[code] < whole[best]):
                        bests[group] = code
        bad = wrong[group] and op != 0 and op != 5
        found[i] = counts[group] if op == 0 else sums[group] if op <= 2 else -1 if bad else bests[group]
        many[i] = -1 if bad else counts[group]
    return found, many


@kept()
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
