"""Expressions about one event, evaluated for all events of a table: columns enter, columns leave.

An operation on numbers is one on arrays. One on strings is done once for every different string, by its
code, and what came out is kept beside the dictionary (`Strings.answers`). Conditions are tested in two
ways, for where they are true and for where they are false; what is neither is null, so that a filter need
not look for nulls at all. Values whose types nobody knows, and types that resolving never brings together,
are gone through row by row.

Equal expressions of a table, whichever query they are from, are worked out once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from kaicep.kernel.assemble import alone
from kaicep.kernel.columns import DTYPES, NO_TIME, NULLS, Array, Column, Mask, Strings, Table, column_of
from kaicep.plan.expressions import Call, Const, Expr, Field, by_identity
from kaicep.plan.nodes import Chain
from kaicep.plan.operators import FIRST_INSTANT, LAST_INSTANT, OPERATORS, Nulls, apply, event_function
from kaicep.plan.time import DURATION_UNITS, zone_offset
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value

_MOST_STEPS = 10_000
_MOST_LOOKUPS = 256


def vectors_of(table: Table) -> Vectors:
    """The values of expressions over a table, the same for whoever asks."""
    found: Vectors | None = table.memo.get("vectors")
    if found is None:
        found = table.memo["vectors"] = Vectors(table)
    return found


def sees(chain: Chain, table: Table) -> Mask:
    """Which events are of a chain's streams and inside its WITHIN."""
    here: Mask = True
    if table.streams != chain.streams and set(table.streams) - set(chain.streams):
        places = [place for place, each in enumerate(table.streams) if each in chain.streams]
        here = np.isin(table.place, places)
    within = chain.within
    if within.low is not None:
        here = both(here, table.ts >= within.low + (not within.low_inclusive))
    if within.high is not None:
        here = both(here, table.ts < within.high + within.high_inclusive)
    return here


def both(left: Mask, right: Mask) -> Mask:
    """Which rows are meant by both; NumPy takes ten times as long with a bool as with another array."""
    if left is True or left is right:
        return right
    if right is True:
        return left
    return left & right


def either(left: Mask, right: Mask) -> Mask:
    """Which rows are meant by one of the two."""
    if left is False or left is right:
        return right
    if right is False:
        return left
    return left | right


def spread(mask: Mask, table: Table) -> Array:
    """For each row, whether it is meant."""
    return np.full(len(table), mask) if isinstance(mask, bool) else mask


def count_of(mask: Mask, table: Table) -> int:
    """How many rows are meant."""
    return mask * len(table) if isinstance(mask, bool) else int(np.count_nonzero(mask))


class Vectors:
    """The values of expressions of one event, for all events of a table; each is worked out once.

    Which variable an expression names is of no interest. The arrays are not to be written to: some are the
    table's own.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._columns: dict[_ValueStep, Column] = {}
        self._tests: dict[tuple[_ValueStep, bool], Array] = {}

    def value(self, expr: Expr) -> Column:
        """The values of an expression, by row.

        The column has the type of the expression, except where that depends on values of an attribute whose
        type nobody knows: then it has none.
        """
        return _spread(self._column(_step_of(expr)), len(self.table))

    def holds(self, expr: Expr) -> Mask:
        """The rows for which a condition is true."""
        row = self.table.memo.get("row")
        if row is not None:
            return _of_row(expr)(row) is True
        found = self._test(_step_of(expr), True)
        return found if len(found) == len(self.table) else np.resize(found, len(self.table))

    # A column of one row stands for the same value in all of them: so it is with constants.

    def _column(self, step: _ValueStep) -> Column:
        found = self._columns.get(step)
        if found is None:
            found = self._columns[step] = self._worked_out(step)
        return found

    def _test(self, step: _ValueStep, wanted: bool) -> Array:
        """Where a condition is true, or, not wanted, where it is false."""
        key = step, wanted
        found = self._tests.get(key)
        if found is None:
            found = self._tests[key] = self._tested(step, wanted)
        return found

    def _worked_out(self, step: _ValueStep) -> Column:
        expr, table = step.expr, self.table
        if isinstance(expr, Const):
            return column_of(expr.type, [expr.value], table.strings)
        if isinstance(expr, Field):
            return _read(expr, table)
        if not isinstance(expr, Call):
            raise TypeError(f"{type(expr).__name__} is not a value of one event")
        if expr.op in _TESTS and self._is_tested(step):
            return _truths(self._test(step, True), self._test(step, False))
        made: Column | None = None
        if expr.op in _CHOICES:
            made = _CHOICES[expr.op](self, step)
        elif OPERATORS[expr.op].nulls is Nulls.SPREAD and any(each.is_null for each in step.args):
            return _nulls(OPERATORS[expr.op].gives or expr.type, 1)
        elif expr.op in _COLUMNS:
            made = _COLUMNS[expr.op](expr, *map(self._column, step.args))
        elif OPERATORS[expr.op].nulls is Nulls.SPREAD:
            made = self._of_texts(step)
        return self._row_by_row(step) if made is None else made

    # --- choices ---

    def choose(self, step: _ValueStep) -> Column | None:
        """`if`; None where its branches have several types."""
        condition, *branches = step.args
        if not self._is_boolean(condition):
            return None
        columns = self._of_one_type(branches, step.expr.type)  # type: ignore[attr-defined]
        return None if columns is None else _select(self._test(condition, True), *columns)

    def first_known(self, step: _ValueStep) -> Column | None:
        """`coalesce`; None where its arguments have several types."""
        columns = self._of_one_type(step.args, step.expr.type)  # type: ignore[attr-defined]
        return None if columns is None else reduce(_filled, columns)

    def _of_one_type(self, steps: Sequence[_ValueStep], type: Type | None) -> list[Column] | None:
        """The columns, a bare null being of the type of the others; None where they differ."""
        types = {self._column(each).type for each in steps if not each.is_null} or {type}
        if len(types) > 1 or None in types:
            return None
        (found,) = types
        return [_nulls(found, 1) if each.is_null else self._column(each) for each in steps]

    # --- conditions ---

    def _tested(self, step: _ValueStep, wanted: bool) -> Array:
        expr = step.expr
        if isinstance(expr, Call) and expr.op in _TESTS and self._is_tested(step):
            if expr.op == "not":
                return self._test(step.args[0], not wanted)
            if expr.op in ("and", "or"):
                join = np.logical_and if (expr.op == "and") is wanted else np.logical_or
                return reduce(join, [self._test(each, wanted) for each in step.args])
            return self._among(step, wanted) if expr.op == "in" else self._compared(step, wanted)
        column = self._column(step)
        if column.type is None:
            return np.array([each is wanted for each in column.data], np.bool_)
        found: Array = column.data == wanted
        return found

    def _is_tested(self, step: _ValueStep) -> bool:
        """Whether the arguments of a test are of types that arrays can be tested for."""
        assert isinstance(step.expr, Call)
        if step.expr.op in ("and", "or", "not"):
            return all(map(self._is_boolean, step.args))
        if any(each.is_null for each in step.args):
            return True
        first, *others = (_family(self._column(each).type) for each in step.args)
        return first is not None and all(each is first for each in (*others, *step.choice_types))

    def _is_boolean(self, step: _ValueStep) -> bool:
        if step.is_null or (isinstance(step.expr, Call) and OPERATORS[step.expr.op].gives is Type.BOOL):
            return True
        return self._column(step).type is Type.BOOL

    def _compared(self, step: _ValueStep, wanted: bool) -> Array:
        assert isinstance(step.expr, Call)
        if any(each.is_null for each in step.args):
            return np.zeros(1, np.bool_)
        left, right = (self._column(each) for each in step.args)
        if left.type is Type.STRING and step.expr.op not in ("=", "!="):
            ordered = self._of_texts(step)
            assert ordered is not None
            found: Array = ordered.data == wanted
            return found
        return _compare(step.expr.op if wanted else _OPPOSITES[step.expr.op], left, right)

    def _among(self, step: _ValueStep, wanted: bool) -> Array:
        value, *choices = step.args
        column = self._column(value)
        if not wanted and step.has_null:
            return np.zeros(1, np.bool_)
        if value.is_null:
            return np.full(1, not (wanted or step.choices or choices), np.bool_)
        op, join = ("=", np.logical_or) if wanted else ("!=", np.logical_and)
        tests = [_compare(op, column, self._column(each)) for each in choices]
        if step.choices:
            tests.append(self._among_constants(step, column, wanted))
        return reduce(join, tests) if tests else np.full(1, not wanted, np.bool_)

    def _among_constants(self, step: _ValueStep, column: Column, wanted: bool) -> Array:
        if column.type is Type.STRING:
            strings, chosen = self.table.strings, step.choices
            lookup = _lookup(strings, ("in", chosen), lambda text: text in chosen, Type.BOOL)
            found: Array = lookup.of(column.data) == wanted
            return found
        assert step.numbers is not None
        found = np.isin(column.data, step.numbers, invert=not wanted)
        known = _known(column)
        return found if known is None else found & known

    # --- strings ---

    def _of_texts(self, step: _ValueStep) -> Column | None:
        """An operation on strings, done once for each different one; None where not all are strings."""
        call = step.expr
        assert isinstance(call, Call)
        type = OPERATORS[call.op].gives or call.type
        places = [place for place, each in enumerate(step.args) if not isinstance(each.expr, Const)]
        columns = [self._column(step.args[place]) for place in places or (0,)]
        if type is None or any(each.type is not Type.STRING for each in columns):
            return None
        if len(columns) == 1:
            return self._of_one_text(step, call, type, places[0] if places else 0, columns[0].data)
        if len(step.args) == 2 and type is Type.BOOL:
            return self._of_two_texts(call, *columns)
        return None

    def _of_one_text(self, step: _ValueStep, call: Call, type: Type, place: int, codes: Array) -> Column:
        """An operation of which all arguments but one are constants."""
        strings = self.table.strings
        fixed = tuple(each.expr.value if isinstance(each.expr, Const) else None for each in step.args)
        before, after = fixed[:place], fixed[place + 1 :]

        def of(text: str) -> Value:
            return apply(call, (*before, text, *after))

        if type in (Type.BOOL, Type.STRING):
            return Column(type, _lookup(strings, (call.op, fixed, place), of, type).of(codes))
        different, rows = np.unique(codes, return_inverse=True)
        answers = [None if each < 0 else of(strings.texts[each]) for each in different.tolist()]
        return column_of(type, answers, strings).take(rows)

    def _of_two_texts(self, call: Call, *columns: Column) -> Column:
        """A test of two strings, done once for each different pair."""
        left, right = np.broadcast_arrays(*(each.data for each in columns))
        known = (left >= 0) & (right >= 0)
        pairs = left[known].astype(np.int64) << 32 | right[known]
        different, places = np.unique(pairs, return_inverse=True)
        texts, of = self.table.strings.texts, OPERATORS[call.op].value
        answers = [of(texts[each >> 32], texts[each & 0xFFFFFFFF]) for each in different.tolist()]
        data = np.full(len(left), -1, np.int8)
        data[known] = np.array(answers, np.int8)[places]
        return Column(Type.BOOL, data)

    # --- row by row ---

    def _row_by_row(self, step: _ValueStep) -> Column:
        call, strings = step.expr, self.table.strings
        assert isinstance(call, Call)
        args = (*step.args, *(_made(Const(each, None)) for each in step.choices))
        args += (_made(Const(None, None)),) if step.has_null else ()
        columns = [self._column(each) for each in args]
        count = 0 if any(not len(each) for each in columns) else max(map(len, columns))
        rows = zip(*(_spread(each, count).values(strings) for each in columns), strict=True)
        return column_of(OPERATORS[call.op].gives, [apply(call, row) for row in rows], strings)


# --- expressions made ready --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ValueStep:
    """An expression that is to be worked out; there is one for all equal ones.

    The constants among the choices of an `in` are no arguments: `choices` has them, and `numbers` as an
    array where they are no strings.
    """

    expr: Expr
    args: tuple[_ValueStep, ...] = ()
    is_null: bool = False
    choices: frozenset[Value] = frozenset()
    choice_types: frozenset[Type | None] = frozenset()  # as `_family` has them
    numbers: Array | None = None
    has_null: bool = False


_of_row = by_identity(event_function)
"""For a table of one row that is given as an event too (`hosts.lane`), arrays gain nothing."""
_BY_TEXT: dict[str, _ValueStep] = {}


@by_identity
def _step_of(expr: Expr) -> _ValueStep:
    return _made(alone(expr))


def _made(expr: Expr) -> _ValueStep:
    key = repr(expr)  # unlike equality, it tells -0.0 from 0.0
    found = _BY_TEXT.get(key)
    if found is None:
        if len(_BY_TEXT) >= _MOST_STEPS:
            _BY_TEXT.clear()
        found = _BY_TEXT[key] = _made_anew(expr)
    return found


def _made_anew(expr: Expr) -> _ValueStep:
    if isinstance(expr, Const):
        return _ValueStep(expr, is_null=expr.value is None)
    if not isinstance(expr, Call):
        return _ValueStep(expr)
    if expr.op != "in":
        return _ValueStep(expr, tuple(map(_made, expr.args)))
    value, *choices = expr.args
    fixed = [each for each in choices if isinstance(each, Const)]
    known = [each for each in fixed if each.value is not None]
    types = frozenset(_family(each.type) for each in known)
    return _ValueStep(
        expr,
        (_made(value), *(_made(each) for each in choices if not isinstance(each, Const))),
        choices=frozenset(each.value for each in known),
        choice_types=types,
        numbers=_numbers(types, [each.value for each in known]),
        has_null=len(known) < len(fixed),
    )


def _numbers(types: frozenset[Type | None], values: list[Value]) -> Array | None:
    if len(types) != 1:
        return None
    (type,) = types
    return None if type is None or type is Type.STRING else np.unique(np.array(values, DTYPES[type]))


# --- columns -----------------------------------------------------------------------------------------------


def _spread(column: Column, count: int) -> Column:
    return column if len(column) == count else column.take(np.zeros(count, np.intp))


def _nulls(type: Type | None, count: int) -> Column:
    if type is None:
        return Column(None, np.full(count, None, object))
    valid = np.zeros(count, np.bool_) if type is Type.INT64 else None
    return Column(type, np.full(count, NULLS[type], DTYPES[type]), valid)


def _known(column: Column) -> Array | None:
    """Which values are not null; None for all of them."""
    match column.type:
        case Type.INT64:
            return column.valid
        case Type.FLOAT64:
            known = column.data == column.data
        case Type.TIMESTAMP:
            known = column.data != NO_TIME
        case _:
            known = column.data >= 0
    return None if len(known) == 1 and known[0] else known


def _both(left: Array | None, right: Array | None) -> Array | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _select(test: Array, then: Column, otherwise: Column) -> Column:
    """One value or the other, both of one type."""
    data = np.where(test, then.data, otherwise.data)
    if then.valid is None and otherwise.valid is None:
        return Column(then.type, data)
    valid = [np.ones(1, np.bool_) if each.valid is None else each.valid for each in (then, otherwise)]
    return _integers(Type.INT64, data, np.where(test, *valid))


def _filled(column: Column, other: Column) -> Column:
    """The values, and where they are null, those of another column."""
    known = _known(column)
    return column if known is None else _select(known, column, other)


def _truths(true: Array, false: Array) -> Column:
    data = true.astype(np.int8)
    null = ~(true | false)
    return Column(Type.BOOL, np.where(null, np.int8(-1), data))


def _family(type: Type | None) -> Type | None:
    """Types of which values are compared as they are have one family."""
    return Type.INT64 if type is Type.TIMESTAMP else type


def _as_float(column: Column) -> Array:
    """The values of a number as float64."""
    if column.type is Type.FLOAT64:
        return column.data
    data = column.data.astype(np.float64)
    if column.valid is not None:
        data = np.where(column.valid, data, np.nan)
    return data


def _integers(type: Type, data: Array, known: Array | None) -> Column:
    """An int64 or a timestamp, null where it is not known."""
    if type is Type.TIMESTAMP:
        fits = (data >= FIRST_INSTANT) & (data <= LAST_INSTANT)
        return Column(type, np.where(fits if known is None else fits & known, data, NO_TIME))
    if known is None or known.all():
        return Column(type, data)
    return Column(type, data, known if len(known) == len(data) else np.resize(known, len(data)))


def _finite(data: Array) -> Column:
    finite = np.isfinite(data)
    return Column(Type.FLOAT64, data if finite.all() else np.where(finite, data, np.nan))


# --- attributes --------------------------------------------------------------------------------------------


def _read(field: Field, table: Table) -> Column:
    """The values of an attribute: of those that carry it on a stream, the first that is not null."""
    given = dict(field.sources)
    names = [tuple(each for each in given.get(s, ()) if _there(table, each)) for s in table.streams]
    columns = {name: _named(name, table) for every in names for name in every}
    if len(columns) == 1 and () not in names:
        (only,) = columns.values()
        if only.type is field.type:
            return only
    types = {each.type for each in columns.values()}
    wanted = field.type or (types.pop() if len(types) == 1 else None)
    if wanted is None or not all(_is_read_as(each.type, wanted) for each in columns.values()):
        return _read_values(field, names, columns, table)
    as_wanted = {name: _as(each, wanted) for name, each in columns.items()}
    made: Column | None = None
    for every in dict.fromkeys(names):
        own = reduce(_filled, [as_wanted[name] for name in every]) if every else _nulls(wanted, 1)
        here = np.array([each == every for each in names], np.bool_)
        made = own if made is None else _select(here[table.place], own, made)
    return _nulls(wanted, 1) if made is None else made


def _there(table: Table, name: str) -> bool:
    return name == "ts" or name in table.columns


def _named(name: str, table: Table) -> Column:
    return Column(Type.TIMESTAMP, table.ts) if name == "ts" else table.columns[name]


def _is_read_as(type: Type | None, wanted: Type) -> bool:
    return type is wanted or {type, wanted} == {Type.INT64, Type.FLOAT64}


def _as(column: Column, wanted: Type) -> Column:
    """A number as another one; a column is float64 as soon as one of its streams has that."""
    if column.type is wanted:
        return column
    if wanted is Type.FLOAT64:
        return Column(wanted, _as_float(column))
    known, large = np.isfinite(column.data), np.abs(column.data) >= 2.0**63
    nearest = np.where(column.data > 0, INT64_MAX, INT64_MIN)
    data = np.where(known & ~large, column.data, 0.0).astype(np.int64)
    return _integers(wanted, np.where(large, nearest, data), known)


def _read_values(
    field: Field, names: list[tuple[str, ...]], columns: dict[str, Column], table: Table
) -> Column:
    """The values one by one: of a type that nobody knows, unless all that came are of the field's."""
    values = {name: each.values(table.strings) for name, each in columns.items()}
    made = [
        next((values[name][row] for name in names[place] if values[name][row] is not None), None)
        for row, place in enumerate(table.place.tolist())
    ]
    if field.type is Type.FLOAT64:
        made = [float(each) if isinstance(each, int) else each for each in made]
    fits = all(each is None or type(each) is _PYTHON.get(field.type) for each in made)
    return column_of(field.type if fits else None, made, table.strings)


_PYTHON: dict[Type | None, type] = {
    Type.BOOL: bool,
    Type.INT64: int,
    Type.FLOAT64: float,
    Type.STRING: str,
    Type.TIMESTAMP: int,
}


# --- comparisons -------------------------------------------------------------------------------------------

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_TESTS = (*_SIGNS, "and", "or", "not", "in")


def _compare(op: str, left: Column, right: Column) -> Array:
    """Where the comparison is true; both sides are of one family, and strings are compared for equality."""
    found: Array = _SIGNS[op](left.data, right.data)
    if left.type is Type.FLOAT64 and op != "!=":
        return found  # a NaN is in no order with anything, and equal to nothing
    known = _both(_known(left), None if op == "=" and _equals_no_null(left, right) else _known(right))
    return found if known is None else found & known


def _equals_no_null(left: Column, right: Column) -> bool:
    """Whether what equals the left side is not null if that is not."""
    return left.type is right.type and left.type is not Type.INT64


# --- strings -----------------------------------------------------------------------------------------------


class _StringLookup:
    """What a function makes of each string of a dictionary, by code: a truth, or another string."""

    _UNASKED = -2

    def __init__(self, strings: Strings, function: Callable[[str], Any], type: Type) -> None:
        self.strings = strings
        self.function = function
        self.type = type
        self._array: Array = np.full(1, -1, DTYPES[type])

    def of(self, codes: Array) -> Array:
        """What the function makes of strings; null of null."""
        if len(self._array) <= len(self.strings):
            self._grow()
        found = self._array.take(codes)
        fresh = found == self._UNASKED
        if fresh.any():
            self._ask(np.unique(codes[fresh]))
            found = self._array.take(codes)
        return found

    def _grow(self) -> None:
        array = np.full(max(2 * len(self._array), len(self.strings) + 1), self._UNASKED, self._array.dtype)
        array[: len(self._array) - 1] = self._array[:-1]
        array[-1] = -1  # where the code of null leads to
        self._array = array

    def _ask(self, codes: Array) -> None:
        texts, of = self.strings.texts, self.function
        answers = [of(texts[each]) for each in codes.tolist()]
        self._array[codes] = self.strings.codes(answers) if self.type is Type.STRING else answers


def _lookup(
    strings: Strings, key: tuple[Any, ...], function: Callable[[str], Any], type: Type
) -> _StringLookup:
    """The table of a function over a dictionary; those that were used last are kept."""
    found: _StringLookup | None = strings.answers.get(key)
    if found is None:
        found = strings.answers[key] = _StringLookup(strings, function, type)
        if len(strings.answers) > _MOST_LOOKUPS:
            strings.answers.popitem(last=False)
    else:
        strings.answers.move_to_end(key)
    return found


# --- numbers and times: a function for each operation, which gives None for types that it does not know -----


def _arithmetic(
    floats: Callable[[Array, Array], Array], wholes: Callable[[Array, Array], tuple[Array, Array | None]]
) -> Callable[[Call, Column, Column], Column | None]:
    def made(call: Call, left: Column, right: Column) -> Column | None:
        types = {left.type, right.type}
        with np.errstate(all="ignore"):
            if Type.FLOAT64 in types and types <= {Type.FLOAT64, Type.INT64}:
                return _finite(floats(_as_float(left), _as_float(right)))
            type = call.type or (Type.INT64 if types == {Type.INT64} else None)
            if not types <= {Type.INT64, Type.TIMESTAMP} or type not in (Type.INT64, Type.TIMESTAMP):
                return None
            data, fits = wholes(left.data, right.data)
        return _integers(type, data, _both(fits, _both(_known(left), _known(right))))

    return made


def _plus(left: Array, right: Array) -> tuple[Array, Array | None]:
    made = left + right
    return made, ((left ^ made) & (right ^ made)) >= 0


def _minus(left: Array, right: Array) -> tuple[Array, Array | None]:
    made = left - right
    return made, ((left ^ right) & (left ^ made)) >= 0


def _times(left: Array, right: Array) -> tuple[Array, Array | None]:
    made = left * right
    large = np.abs(left.astype(np.float64) * right) > 2.0**62
    if not large.any():
        return made, None
    # Where it wrapped around, dividing does not lead back; and the one quotient that wraps too is known.
    back = made // np.where(right == 0, 1, right) == left
    return made, ~large | (back & ~((left == INT64_MIN) & (right == -1)))


def _remainder(left: Array, right: Array) -> tuple[Array, Array | None]:
    """With the sign of the left side."""
    # The processor cannot divide the smallest number by -1; what is left over is the same as with 1.
    return np.fmod(left, np.where((right == 0) | (right == -1), 1, right)), right != 0


def _divided(call: Call, left: Column, right: Column) -> Column | None:
    if not {left.type, right.type} <= {Type.INT64, Type.FLOAT64}:
        return None
    with np.errstate(all="ignore"):
        return _finite(_as_float(left) / _as_float(right))


def _one_number(
    floats: Callable[[Array], Array], wholes: Callable[[Array], Array] | None
) -> Callable[[Call, Column], Column | None]:
    """An operation on one number; without `wholes` an int64 stays as it is."""

    def made(call: Call, column: Column) -> Column | None:
        if column.type is Type.FLOAT64:
            return Column(Type.FLOAT64, floats(column.data))
        if column.type is not Type.INT64 or wholes is None:
            return column if column.type is Type.INT64 else None
        return _integers(Type.INT64, wholes(column.data), _both(column.valid, column.data != INT64_MIN))

    return made


def _round(data: Array) -> Array:
    """Half away from zero."""
    size = np.abs(data)
    whole = np.floor(size)
    # The difference is exact; adding a half to the size would not be.
    whole = np.where(size - whole >= 0.5, whole + 1.0, whole)
    return np.where(data < 0, -whole, whole) + 0.0  # there is no negative zero


def _widened(call: Call, column: Column) -> Column | None:
    if column.type not in (Type.INT64, Type.FLOAT64):
        return None
    return Column(Type.FLOAT64, _as_float(column))


def _time_part(part: Callable[[Array], Array]) -> Callable[..., Column | None]:
    def made(call: Call, column: Column, *zones: Column) -> Column | None:
        zone = call.args[1] if zones else Const("UTC", Type.STRING)
        if column.type is not Type.TIMESTAMP or not isinstance(zone, Const):
            return None
        local = column.data + _offsets(column.data, str(zone.value))
        return _integers(Type.INT64, part(local), _known(column))

    return made


def _offsets(ts: Array, zone: str) -> Array | int:
    """What a zone adds to UTC: for each hour in which instants lie, unless it changes in between."""
    if zone == "UTC":
        return 0
    hours, places = np.unique(ts // DURATION_UNITS["h"], return_inverse=True)
    whole = [_offset_of_hour(each, zone) for each in hours.tolist()]
    found = np.array([each or 0 for each in whole], np.int64)[places]
    changing = np.array([each is None for each in whole], np.bool_)[places]
    for row in np.flatnonzero(changing).tolist():
        found[row] = zone_offset(int(ts[row]), zone)
    return found


@lru_cache(maxsize=100_000)
def _offset_of_hour(hour: int, zone: str) -> int | None:
    """What a zone adds to UTC in an hour; None where it changes in it."""
    first = hour * DURATION_UNITS["h"]
    if not FIRST_INSTANT <= first <= LAST_INSTANT:
        return 0  # of no instant but null
    offset = zone_offset(first, zone)
    return offset if zone_offset(first + DURATION_UNITS["h"] - 1, zone) == offset else None


_COLUMNS: dict[str, Callable[..., Column | None]] = {
    "+": _arithmetic(np.add, _plus),
    "-": _arithmetic(np.subtract, _minus),
    "*": _arithmetic(np.multiply, _times),
    "%": _arithmetic(np.fmod, _remainder),
    "/": _divided,
    "neg": _one_number(np.negative, np.negative),
    "abs": _one_number(np.abs, np.abs),
    "floor": _one_number(lambda data: np.floor(data) + 0.0, None),
    "ceil": _one_number(lambda data: np.ceil(data) + 0.0, None),
    "round": _one_number(_round, None),
    "float": _widened,
    "hour": _time_part(lambda local: local // DURATION_UNITS["h"] % 24),
    # 1970 began on a Thursday.
    "dayOfWeek": _time_part(lambda local: (local // DURATION_UNITS["d"] + 3) % 7 + 1),
}
"""Operations on numbers and times by arrays; those on strings need none, what has neither is gone through."""

_CHOICES: dict[str, Callable[[Vectors, _ValueStep], Column | None]] = {
    "if": Vectors.choose,
    "coalesce": Vectors.first_known,
}
