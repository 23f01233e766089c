"""Conditions between events, as data: a vector interpreter (semantics 1: nulls, overflow, logic).

A program has two parts. The first is run once for an event and fills scalars; the second goes over all rows
of a cell, 128 at a time, and clears the marks of rows that do not fulfil it. An instruction is seven words:
operation, result, four operands, and one number more. An operand is a vector register, a column of the rows
or a scalar. float64: NaN is null; int64, times, codes: NULL is null; truth is 0 false, 1 null, 2 true.

What no operation expresses (a PATH over several events, a string function of two of them) is asked: ASK looks
up what Python answered for these values before, and notes a question where it did not.
"""

# mypy: ignore-errors
# Numba infers the types of most of what follows.

from __future__ import annotations

import math

import numpy as np
from numba import carray

from kaicep.kernel.jit import address, call, inner, pointer
from kaicep.kernel.sums import grown, near_read
from kaicep.kernel.tables import ASKED, NULL, POSITION, S_INTERPRETER, S_SCRATCH
from kaicep.plan.time import parse_time

BLOCK = 128
"""So many rows are judged at a time."""
REGISTERS = 32
"""So many results of a block may be kept at once."""
WORDS = 7
"""So many integers has an instruction: operation, result, four operands, a number."""
REGISTER, COLUMN, SCALAR = 0, 1 << 20, 2 << 20
"""The kinds of operands."""

# fmt: off
_NAMES = [
    "EVENT", "CONST", "SPLAT",
    "FADD", "FSUB", "FRSUB", "FMUL", "FDIV", "FMOD", "FNEG", "FABS", "FFLOOR", "FCEIL", "FROUND", "FMIN",
    "FMAX", "FCOALESCE", "FIF",
    "IADD", "ISUB", "IMUL", "IMOD", "INEG", "IABS", "IMIN", "IMAX", "ICOALESCE", "IIF", "ITOF", "ITIME",
    "ADD_ONE", "ADD_KNOWN_F", "ADD_KNOWN_I", "FIRST",
    "FLT", "FLE", "FEQ", "ILT", "ILE", "IEQ", "TAND", "TOR", "TNOT", "TRUTH", "BOOL",
    "ASK_I", "ASK_T", "SUM_F", "SUM_I", "AVG_F", "AVG_I", "YES",
    "G_FLT", "G_FLT_VS", "G_FLT_SV", "G_FLE", "G_FLE_VS", "G_FLE_SV", "G_FEQ", "G_IEQ", "G_IEQ_VS", "G_ILT",
    "G_ILE", "G_TRUE",
]
# fmt: on
OPS = {name: number for number, name in enumerate(_NAMES)}
"""The operations by name: F is float64, I int64, T truth, G clears marks."""
(EVENT, CONST, SPLAT,
 FADD, FSUB, FRSUB, FMUL, FDIV, FMOD, FNEG, FABS, FFLOOR, FCEIL, FROUND, FMIN, FMAX, FCOALESCE, FIF,
 IADD, ISUB, IMUL, IMOD, INEG, IABS, IMIN, IMAX, ICOALESCE, IIF, ITOF, ITIME,
 ADD_ONE, ADD_KNOWN_F, ADD_KNOWN_I, FIRST,
 FLT, FLE, FEQ, ILT, ILE, IEQ, TAND, TOR, TNOT, TRUTH, BOOL,
 ASK_I, ASK_T, SUM_F, SUM_I, AVG_F, AVG_I, YES,
 G_FLT, G_FLT_VS, G_FLT_SV, G_FLE, G_FLE_VS, G_FLE_SV, G_FEQ, G_IEQ, G_IEQ_VS, G_ILT, G_ILE, G_TRUE,
 ) = range(len(_NAMES))  # fmt: skip

CONTEXT = ("arena", "program", "const", "meta", "mask", "values", "events", "known", "answers", "asked",
           "questions", "scalars", "event", "cell", "step")  # fmt: skip
"""What the interpreter is given: addresses, and lengths where it needs them; the event, and the cell.

These are not arguments, since a call with more than six of them writes the rest to the stack, from where the
function reads two at once: the processor waits then until they are in the cache.
"""
AT_EVENT, AT_CELL, AT_STEP = (CONTEXT.index(each) for each in ("event", "cell", "step"))

U = np.uint64
ZERO, ONE = U(0), U(1)
_BIGGEST = 1.7976931348623157e308
_EXACT = 1 << 53
_EARLIEST = np.int64(parse_time("0001-01-01T00:00:00Z"))
_LATEST = np.int64(parse_time("9999-12-31T23:59:59.999999Z"))


@inner(forceinline=True)
def _finite(x):
    return x if abs(x) <= _BIGGEST else np.nan


@inner(forceinline=True)
def _truth(known, holds):
    return np.int64(1) if not known else (np.int64(2) if holds else np.int64(0))


@inner(forceinline=True)
def _place(operand, seg, cap, row, scalars):
    """Where an operand begins in the arena."""
    index = U(operand & 0xFFFFF)
    if operand < COLUMN:
        return index * U(BLOCK)
    if operand < SCALAR:
        return seg + index * cap + row
    return scalars + index


@inner()
def ask_hash(table, a, b, c, d):
    """Where a question is looked for first."""
    h = U(table) * U(0x9E3779B97F4A7C15)
    h = (h ^ U(a)) * U(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> U(29)) ^ U(b)) * U(0x94D049BB133111EB)
    h = (h ^ (h >> U(31)) ^ U(c)) * U(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> U(29)) ^ U(d)) * U(0x94D049BB133111EB)
    return h ^ (h >> U(32))


@inner()
def _ask(known, asked, meta, table, a, b, c, d):
    """The answer that Python gave for these values; NULL, and a question, where it gave none yet."""
    last = U(len(known) - 1)
    at = ask_hash(table, a, b, c, d) & last
    while known[at, 0] >= 0:
        if (
            known[at, 0] == table
            and known[at, 1] == a
            and known[at, 2] == b
            and known[at, 3] == c
            and known[at, 4] == d
        ):
            return known[at, 5]
        at = (at + ONE) & last
    count = meta[ASKED]
    if count < len(asked):
        asked[count, 0] = table
        asked[count, 1] = a
        asked[count, 2] = b
        asked[count, 3] = c
        asked[count, 4] = d
    meta[ASKED] = count + 1
    return NULL


@inner()
def _multiplied(x, y):
    """The product of two integers; NULL where it does not fit."""
    if x == NULL or y == NULL:
        return NULL
    estimate = np.float64(x) * np.float64(y)
    if abs(estimate) > 9.3e18:
        return NULL
    product = x * y
    if abs(estimate) > 9.1e18 and (product < 0) != (estimate < 0.0):
        return NULL
    return product


@inner()
def _remainder(x, y):
    """What is left of x, with its sign."""
    if x == NULL or y == NULL or y == 0:
        return NULL
    if y == -1:
        return np.int64(0)
    left = x % y
    return left - y if left != 0 and (left < 0) != (x < 0) else left


@inner()
def _rounded(x):
    """Half away from zero."""
    down = math.floor(abs(x))
    up = down + 1.0 if abs(x) - down >= 0.5 else down
    return math.copysign(up, x) if x == x else np.nan


@address
def interpret(context, begin, end, row_, count, first):
    """Runs a part of a program over some rows; `context` is where the arrays stand (`CONTEXT`)."""
    at = carray(pointer(context), (len(CONTEXT),), np.int64)
    floats = carray(pointer(at[0]), (1 << 40,), np.float64)
    ints = carray(pointer(at[0]), (1 << 40,), np.int64)
    program = carray(pointer(at[1]), (1 << 40,), np.int64)
    const = carray(pointer(at[2]), (1 << 40,), np.int64)
    meta = carray(pointer(at[3]), (1 << 40,), np.int64)
    mask = carray(pointer(at[4]), (1 << 40,), np.uint8)
    values = carray(pointer(at[5]), (1 << 20, at[6]), np.int64)
    known = carray(pointer(at[7]), (at[8], 6), np.int64)
    asked = carray(pointer(at[9]), (at[10], 5), np.int64)
    scalars, seg, cap = U(at[11]), U(at[AT_CELL]), U(at[AT_STEP])
    row, many, done = U(row_), U(count), U(first)
    i = U(at[AT_EVENT])
    pc = begin
    while pc < end:
        op, n = program[pc], many if program[pc + 1] < SCALAR else ONE
        d = _place(program[pc + 1], seg, cap, row, scalars)
        a = _place(program[pc + 2], seg, cap, row, scalars)
        b = _place(program[pc + 3], seg, cap, row, scalars)
        if op >= G_FLT:
            if op == G_FLT_VS:
                s = floats[b]
                for q in range(n):
                    mask[done + q] &= floats[a + q] < s
            elif op == G_FLT_SV:
                s = floats[a]
                for q in range(n):
                    mask[done + q] &= s < floats[b + q]
            elif op == G_FLT:
                for q in range(n):
                    mask[done + q] &= floats[a + q] < floats[b + q]
            elif op == G_FLE_VS:
                s = floats[b]
                for q in range(n):
                    mask[done + q] &= floats[a + q] <= s
            elif op == G_FLE_SV:
                s = floats[a]
                for q in range(n):
                    mask[done + q] &= s <= floats[b + q]
            elif op == G_FLE:
                for q in range(n):
                    mask[done + q] &= floats[a + q] <= floats[b + q]
            elif op == G_FEQ:
                for q in range(n):
                    mask[done + q] &= floats[a + q] == floats[b + q]
            elif op == G_IEQ_VS:
                k = ints[b]
                for q in range(n):
                    mask[done + q] &= (ints[a + q] == k) & (k != NULL)
            elif op == G_IEQ:
                for q in range(n):
                    mask[done + q] &= (ints[a + q] == ints[b + q]) & (ints[a + q] != NULL)
            elif op == G_ILT:
                for q in range(n):
                    mask[done + q] &= (ints[a + q] < ints[b + q]) & (ints[a + q] != NULL)
            elif op == G_ILE:
                for q in range(n):
                    mask[done + q] &= (ints[a + q] <= ints[b + q]) & (ints[a + q] != NULL)
            else:
                for q in range(n):
                    mask[done + q] &= ints[a + q] == 2
        elif op == FRSUB:
            s = floats[a]
            for q in range(n):
                floats[d + q] = _finite(s - floats[b + q])
        elif op == EVENT:
            ints[d] = values[program[pc + 6], i]
        elif op == CONST:
            ints[d] = const[program[pc + 6]]
        elif op == SPLAT:
            k = ints[a]
            for q in range(n):
                ints[d + q] = k
        elif op == FADD:
            for q in range(n):
                floats[d + q] = _finite(floats[a + q] + floats[b + q])
        elif op == FSUB:
            for q in range(n):
                floats[d + q] = _finite(floats[a + q] - floats[b + q])
        elif op == FMUL:
            for q in range(n):
                floats[d + q] = _finite(floats[a + q] * floats[b + q])
        elif op == FDIV:
            for q in range(n):
                floats[d + q] = _finite(floats[a + q] / floats[b + q]) if floats[b + q] != 0.0 else np.nan
        elif op == FMOD:
            for q in range(n):
                y = floats[b + q]
                floats[d + q] = np.fmod(floats[a + q], y) if y != 0.0 and y == y else np.nan
        elif op == FNEG:
            for q in range(n):
                floats[d + q] = -floats[a + q]
        elif op == FABS:
            for q in range(n):
                floats[d + q] = abs(floats[a + q])
        elif op == FFLOOR:
            for q in range(n):
                floats[d + q] = np.floor(floats[a + q])
        elif op == FCEIL:
            for q in range(n):
                floats[d + q] = np.ceil(floats[a + q])
        elif op == FROUND:
            for q in range(n):
                floats[d + q] = _rounded(floats[a + q])
        elif op == FMIN:
            for q in range(n):
                x, y = floats[a + q], floats[b + q]
                floats[d + q] = y if x != x or y < x else x
        elif op == FMAX:
            for q in range(n):
                x, y = floats[a + q], floats[b + q]
                floats[d + q] = y if x != x or y > x else x
        elif op == FCOALESCE:
            for q in range(n):
                x = floats[a + q]
                floats[d + q] = x if x == x else floats[b + q]
        elif op in (FIF, IIF):
            c = _place(program[pc + 4], seg, cap, row, scalars)
            for q in range(n):
                ints[d + q] = ints[a + q] if ints[c + q] == 2 else ints[b + q]
        elif op == IADD:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                v = x + y
                lost = (x == NULL) | (y == NULL) | (((x ^ v) & (y ^ v)) < 0)
                ints[d + q] = NULL if lost else v
        elif op == ISUB:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                v = x - y
                lost = (x == NULL) | (y == NULL) | (((x ^ y) & (x ^ v)) < 0)
                ints[d + q] = NULL if lost else v
        elif op == IMUL:
            for q in range(n):
                ints[d + q] = _multiplied(ints[a + q], ints[b + q])
        elif op == IMOD:
            for q in range(n):
                ints[d + q] = _remainder(ints[a + q], ints[b + q])
        elif op == INEG:
            for q in range(n):
                ints[d + q] = -ints[a + q]  # that of NULL is NULL
        elif op == IABS:
            for q in range(n):
                ints[d + q] = abs(ints[a + q])
        elif op == IMIN:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                ints[d + q] = y if x == NULL or (y != NULL and y < x) else x
        elif op == IMAX:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                ints[d + q] = y if y > x else x  # NULL is the smallest of all
        elif op == ICOALESCE:
            for q in range(n):
                x = ints[a + q]
                ints[d + q] = x if x != NULL else ints[b + q]
        elif op == ITOF:
            for q in range(n):
                floats[d + q] = np.nan if ints[a + q] == NULL else np.float64(ints[a + q])
        elif op == ITIME:
            for q in range(n):
                x = ints[a + q]
                ints[d + q] = x if _EARLIEST <= x <= _LATEST else NULL
        elif op == ADD_ONE:
            for q in range(n):
                ints[d + q] = ints[a + q] + 1
        elif op == ADD_KNOWN_F:
            for q in range(n):
                ints[d + q] = ints[a + q] + np.int64(floats[b + q] == floats[b + q])
        elif op == ADD_KNOWN_I:
            for q in range(n):
                ints[d + q] = ints[a + q] + np.int64(ints[b + q] != NULL)
        elif op == FIRST:
            # The value of the first round: the one carried where there was a round, else the event's.
            c = _place(program[pc + 4], seg, cap, row, scalars)
            for q in range(n):
                ints[d + q] = ints[a + q] if ints[c + q] > 0 else ints[b + q]
        elif op == FLT:
            for q in range(n):
                x, y = floats[a + q], floats[b + q]
                ints[d + q] = _truth((x == x) & (y == y), x < y)
        elif op == FLE:
            for q in range(n):
                x, y = floats[a + q], floats[b + q]
                ints[d + q] = _truth((x == x) & (y == y), x <= y)
        elif op == FEQ:
            for q in range(n):
                x, y = floats[a + q], floats[b + q]
                ints[d + q] = _truth((x == x) & (y == y), x == y)
        elif op == ILT:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                ints[d + q] = _truth((x != NULL) & (y != NULL), x < y)
        elif op == ILE:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                ints[d + q] = _truth((x != NULL) & (y != NULL), x <= y)
        elif op == IEQ:
            for q in range(n):
                x, y = ints[a + q], ints[b + q]
                ints[d + q] = _truth((x != NULL) & (y != NULL), x == y)
        elif op == TAND:
            for q in range(n):
                ints[d + q] = min(ints[a + q], ints[b + q])
        elif op == TOR:
            for q in range(n):
                ints[d + q] = max(ints[a + q], ints[b + q])
        elif op == TNOT:
            for q in range(n):
                ints[d + q] = 2 - ints[a + q]
        elif op == TRUTH:
            for q in range(n):
                x = ints[a + q]
                ints[d + q] = 1 if x == NULL else 2 * x
        elif op == BOOL:
            for q in range(n):
                x = ints[a + q]
                ints[d + q] = NULL if x == 1 else x >> 1
        elif op in (ASK_I, ASK_T):
            c = _place(program[pc + 4], seg, cap, row, scalars)
            e = _place(program[pc + 5], seg, cap, row, scalars)
            table = program[pc + 6]
            for q in range(n):
                # A row that is out already has no question to ask.
                x = NULL
                if mask[done + q]:
                    x = _ask(known, asked, meta, table, ints[a + q], ints[b + q], ints[c + q], ints[e + q])
                if op == ASK_T:
                    ints[d + q] = 1 if x == NULL else x
                else:
                    ints[d + q] = x
        elif op == YES:
            for q in range(n):
                ints[d + q] = 2
        elif op in (SUM_F, SUM_I, AVG_F, AVG_I):
            c = _place(program[pc + 4], seg, cap, row, scalars)
            e = _place(program[pc + 5], seg, cap, row, scalars)
            for q in range(n):
                if mask[done + q]:
                    ints[d + q] = _folded(
                        known, asked, meta, op, program[pc + 6], i,
                        ints[a + q], ints[b + q], ints[c + q], ints[e + q], ints[seg + row + q],
                    )  # fmt: skip
        pc += WORDS


@inner()
def _folded(known, asked, meta, op, table, i, low, high, count, word, node):
    """A sum or an average over a loop with one more value; Python is asked where numbers are not near."""
    of_floats = op in (SUM_F, AVG_F)
    low, high = grown(low, high, word, of_floats)
    value = np.int64(word).view(np.float64)
    count += np.int64(value == value if of_floats else word != NULL)
    if high != NULL:
        if count == 0:
            return NULL if op == SUM_I else np.float64(np.nan).view(np.int64)
        if of_floats:
            total = near_read(low, high)
            return np.float64(total / np.float64(count) if op == AVG_F else total).view(np.int64)
        if op == SUM_I:
            return low if high == low >> 63 else NULL
        if high == low >> 63 and -_EXACT <= low <= _EXACT:
            return np.float64(np.float64(low) / np.float64(count)).view(np.int64)
    return _ask(known, asked, meta, table, node, meta[POSITION] + np.int64(i), np.int64(0), np.int64(0))


@inner()
def point(tables, memory, batch):
    """Tells the interpreter where everything stands."""
    at = memory.context
    at[0], at[1], at[2] = memory.ints.ctypes.data, tables.program.ctypes.data, tables.const.ctypes.data
    at[3], at[4] = memory.meta.ctypes.data, memory.mask.ctypes.data
    at[5], at[6] = batch.values.ctypes.data, batch.values.shape[1]
    at[7], at[8] = memory.known.ctypes.data, len(memory.known)
    at[9], at[10] = memory.asked.ctypes.data, len(memory.asked)
    at[11] = tables.shape[S_SCRATCH]


@inner(forceinline=True)
def judge(memory, tables, begin, middle, end, seg, cap, lo, count, at):
    """Clears the marks, from `at` on, of those of the rows that, with the event, do not fulfil a program.

    `context` says already which event that is.
    """
    context, interpreter = memory.context.ctypes.data, tables.shape[S_INTERPRETER]
    if end == middle:
        return
    memory.context[AT_CELL], memory.context[AT_STEP] = seg, cap
    done = ZERO
    while done < count:
        n = min(U(BLOCK), count - done)
        call(interpreter, context, begin, end, np.int64(lo + done), np.int64(n), np.int64(at + done))
        begin = middle
        done += U(BLOCK)
