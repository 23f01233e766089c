"""chi-CEP expressions as source for Numba: the same values as `kernel.expressions`, on columns.

A `Body` collects the statements of a generated function. The value of an expression is an `Atom`: a text
that Numba can evaluate, its type, and when it is null. A value travels as in `kernel.columns`: a float64 is
NaN where it is null, a timestamp `NO_TIME`, a string and a bool -1; an int64 has a test of its own.

    body = Body(Constants(strings))
    reader = RowReader(body, inputs, streams)       # a field is a column's value in row `i`
    atom = body.value(expr, reader)                 # statements are in body.lines
    test = body.truth(condition, reader)            # a text that is true where the condition is true

Constants are parameters, so that the source depends on the shape alone: `Constants` gathers them, and the
generated function unpacks them by `Constants.unpacked`. What depends on one string and constants alone
(regex, lower, an order of strings) is looked up by the string's code, in tables that grow with `Strings`.
Functions that generated source calls are in `SOURCE`; nothing of it raises, whatever the values are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kaicep.kernel.columns import DTYPES, Array, Strings, column_of
from kaicep.kernel.expressions import value_function
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous, rewrite
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type, unify
from kaicep.plan.typing import type_of

__all__ = [
    "SOURCE",
    "Atom",
    "Body",
    "Constants",
    "Inputs",
    "Lookup",
    "NotCompiled",
    "Reader",
    "RowReader",
    "fields_in",
    "null_of",
]


class NotCompiled(Exception):
    """Why something cannot be compiled, in words that `explain` shows."""


@dataclass(frozen=True)
class Atom:
    """A value in generated source: its text, its type, and a test for null (None: it never is)."""

    text: str
    type: Type
    null: str | None


def null_of(type: Type) -> Atom:
    """The null of a type."""
    return Atom(_NULLS[type], type, "True")


def _null_test(text: str, type: Type) -> str:
    """The test for null where the value itself says so."""
    return {Type.FLOAT64: f"({text} != {text})", Type.TIMESTAMP: f"({text} == NO_TIME)"}.get(
        type, f"({text} < 0)"
    )


# --- parameters --------------------------------------------------------------------------------------------


class Lookup:
    """A function of one string, by its code: entry `code + 1`, of which 0 stands for null."""

    def __init__(self, expr: Expr, leaf: Expr, type: Type) -> None:
        self.type = type
        self.array: Array = np.zeros(0, DTYPES[type])
        text = Field("e", "text", (("s", ("text",)),), Type.STRING)
        self._of = value_function(rewrite(expr, lambda each: text if each == leaf else each), ["s"])

    def grow(self, strings: Strings) -> bool:
        """Learns the strings that have come; whether there were any."""
        known = len(self.array)
        if known > len(strings):
            return False
        texts = [None] if known == 0 else []
        texts += strings.texts[max(known - 1, 0) :]  # type: ignore[arg-type]
        values = [self._of(Event("s", 0, 0, 0, {"text": each})) for each in texts]
        self.array = np.concatenate([self.array, column_of(self.type, values, strings).data])
        return True


class Constants:
    """The parameters of a generated function: numbers, and tables by the code of a string.

    In the source they are called `cf0`, `ci0`, `t0` and so on; the function gets three things to unpack
    them from: an array of float64, one of int64, and the tables in whichever way it likes.
    """

    def __init__(self, strings: Strings) -> None:
        self.strings = strings
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.tables: list[Lookup] = []

    def float(self, value: float) -> str:
        """The name of a float64."""
        self.floats.append(value)
        return f"cf{len(self.floats) - 1}"

    def int(self, value: int) -> str:
        """The name of an int64."""
        self.ints.append(value)
        return f"ci{len(self.ints) - 1}"

    def table(self, lookup: Lookup | Any) -> str:
        """The name of a table."""
        self.tables.append(lookup)
        return f"t{len(self.tables) - 1}"

    def unpacked(self, floats: str = "cf", ints: str = "ci") -> list[str]:
        """The statements that give the numbers their names."""
        found = [f"cf{each} = {floats}[{each}]" for each in range(len(self.floats))]
        return found + [f"ci{each} = {ints}[{each}]" for each in range(len(self.ints))]

    def grow(self) -> bool:
        """Lets the tables learn new strings; whether any has changed, so that it lies elsewhere."""
        changed = False
        while sum(each.grow(self.strings) for each in self.tables):
            changed = True  # a table of strings may bring new strings itself
        return changed


# --- where fields come from --------------------------------------------------------------------------------


class Reader(Protocol):
    """What the fields of an expression stand for in a generated function."""

    def field(self, field: Field) -> Atom:
        """A field of an event variable."""
        ...

    def previous(self, field: Field) -> Atom:
        """The field in the round before."""
        ...

    def aggregate(self, expr: Aggregate) -> Atom:
        """The value of an aggregate."""
        ...


@dataclass
class Inputs:
    """The columns that a generated function reads: `x0`, `x1`, ...; `m0` is the mask of an int64."""

    catalog: Catalog
    streams: Sequence[str]
    types: dict[str, Type] = field(default_factory=dict)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The columns in their order."""
        return tuple(self.types)

    def column(self, attribute: str) -> tuple[int, Type]:
        """The number of a column and its type."""
        if attribute not in self.types:
            self.types[attribute] = self._type(attribute)
        return list(self.types).index(attribute), self.types[attribute]

    def _type(self, attribute: str) -> Type:
        joined: Type | None = None
        for name in self.streams:
            found = self.catalog.streams[name].type_of(attribute)
            if found is not None:
                both = found if joined is None else unify(joined, found)
                if both is None:
                    raise NotCompiled(f"{attribute} is of different types on the streams")
                joined = both
        if joined is None:
            raise NotCompiled(f"the type of {attribute} is not known yet")
        return joined


class RowReader:
    """Fields of the event in one row of the input columns."""

    def __init__(self, body: Body, inputs: Inputs, row: str = "i") -> None:
        self.body = body
        self.inputs = inputs
        self.row = row
        self._known: dict[tuple[object, Type | None], Atom] = {}

    def field(self, field: Field) -> Atom:
        """The first of the attributes of its stream that is not null, widened where needed."""
        key = field.sources, field.type
        if key not in self._known:
            self._known[key] = self._read(field)
        return self._known[key]

    def previous(self, field: Field) -> Atom:
        """There is no round before in a row."""
        raise NotCompiled("PREV outside of a loop")

    def aggregate(self, expr: Aggregate) -> Atom:
        """Nor are there several events."""
        raise NotCompiled(f"{expr.op} outside of a loop or a window")

    def _read(self, field: Field) -> Atom:
        if field.type is None:
            raise NotCompiled(f"the type of {field.name} is not known yet")
        ways: dict[tuple[str, ...], list[str]] = {}
        for stream, names in field.sources:
            if stream in self.inputs.streams:
                ways.setdefault(names, []).append(stream)
        if not ways:
            return null_of(field.type)
        (*rest, (names, _)) = ways.items()
        made = self._first(names, field.type)
        for names, streams in rest:
            places = [list(self.inputs.streams).index(each) for each in streams]
            here = " | ".join(f"(place[{self.row}] == {each})" for each in places)
            made = self.body.choice(f"({here})", self._first(names, field.type), made)
        return made

    def _first(self, names: tuple[str, ...], type: Type) -> Atom:
        if not names:
            return null_of(type)
        made = self._column(names[0], type)
        for name in names[1:]:
            made = self.body.choice(f"(not {made.null or 'False'})", made, self._column(name, type))
        return made

    def _column(self, name: str, type: Type) -> Atom:
        body, row = self.body, self.row
        if name == "ts":
            return Atom(f"ts[{row}]", type, None)
        number, found = self.inputs.column(name)
        text = body.local(f"x{number}[{row}]")
        if found is Type.INT64:
            atom = Atom(text, found, body.local(f"m{number}[{row}] == 0"))
            return body.widened(atom) if type is Type.FLOAT64 else atom
        if found is not type:
            raise NotCompiled(f"{name} is {found} on one stream and {type} on another")
        return Atom(text, found, _null_test(text, found))


def fields_in(expr: Expr) -> Iterator[Field]:
    """The fields that an expression reads itself, outside of aggregates and PREV."""
    if isinstance(expr, Field):
        yield expr
    elif not isinstance(expr, Aggregate | Previous):
        for child in expr.children():
            yield from fields_in(child)


# --- values ------------------------------------------------------------------------------------------------


class Body:
    """The statements of a generated function."""

    def __init__(self, constants: Constants, prefix: str = "v") -> None:
        self.constants = constants
        self.lines: list[str] = []
        self._prefix = prefix
        self._count = 0

    def local(self, text: str) -> str:
        """A name for the value of a text."""
        self._count += 1
        self.lines.append(f"{self._prefix}{self._count} = {text}")
        return f"{self._prefix}{self._count}"

    def value(self, expr: Expr, reader: Reader) -> Atom:
        """The value of an expression."""
        match expr:
            case Const(value, type):
                return self._constant(value, type)
            case Field():
                return reader.field(expr)
            case Previous(of):
                if not isinstance(of, Field):
                    raise NotCompiled("PREV of an expression")
                return reader.previous(of)
            case Aggregate():
                return reader.aggregate(expr)
            case Call():
                return self._call(expr, reader)
        raise NotCompiled(f"{type_name(expr)} in an expression")

    def truth(self, expr: Expr, reader: Reader) -> str:
        """A test that is true where the expression is true, and false where it is false or null."""
        return self._test(expr, reader, True)

    def falsity(self, expr: Expr, reader: Reader) -> str:
        """A test that is true where the expression is false, and false where it is true or null."""
        return self._test(expr, reader, False)

    def choice(self, test: str, then: Atom, otherwise: Atom) -> Atom:
        """One value or another of the same type."""
        made = self.local(f"{then.text} if {test} else {otherwise.text}")
        if then.null is None and otherwise.null is None:
            return Atom(made, then.type, None)
        if then.type is not Type.INT64:
            return Atom(made, then.type, _null_test(made, then.type))
        null = self.local(f"{then.null or 'False'} if {test} else {otherwise.null or 'False'}")
        return Atom(made, then.type, null)

    def widened(self, atom: Atom) -> Atom:
        """An int64 as a float64."""
        if atom.null is None:
            return Atom(self.local(f"np.float64({atom.text})"), Type.FLOAT64, None)
        made = self.local(f"np.nan if {atom.null} else np.float64({atom.text})")
        return Atom(made, Type.FLOAT64, _null_test(made, Type.FLOAT64))

    def _constant(self, value: Any, type: Type | None) -> Atom:
        if value is None:
            raise NotCompiled("a null without a type")
        match type:
            case Type.BOOL:
                return Atom("1" if value else "0", type, None)
            case Type.FLOAT64:
                return Atom(self.constants.float(value), type, None)
            case Type.STRING:
                return Atom(self.constants.int(self.constants.strings.code(value)), type, None)
            case Type.INT64 | Type.TIMESTAMP:
                return Atom(self.constants.int(value), type, None)
        raise NotCompiled("a literal without a type")

    def _operand(self, expr: Expr, reader: Reader, type: Type | None) -> Atom:
        """The value of an argument, which may be the bare null."""
        if isinstance(expr, Const) and expr.value is None:
            if type is None:
                raise NotCompiled("a null without a type")
            return null_of(type)
        return self.value(expr, reader)

    # --- tests ---

    def _test(self, expr: Expr, reader: Reader, wanted: bool) -> str:
        if isinstance(expr, Const):
            return str(expr.value is wanted)
        if isinstance(expr, Call):
            if expr.op == "not":
                return self._test(expr.args[0], reader, not wanted)
            if expr.op in ("and", "or"):
                sign = " & " if (expr.op == "and") is wanted else " | "
                return f"({sign.join(self._test(each, reader, wanted) for each in expr.args)})"
            if expr.op in _COMPARISONS and self._by_table(expr) is None:
                return self._compared(expr, reader, wanted)
            if expr.op == "in":
                return self._among(expr, reader, wanted)
        atom = self.value(expr, reader)
        return f"({atom.text} == {int(wanted)})"

    def _compared(self, call: Call, reader: Reader, wanted: bool) -> str:
        types = [type_of(each) for each in call.args if type_of(each) is not None]
        if not types:
            return "False"  # null against null
        left, right = (self._operand(each, reader, types[0]) for each in call.args)
        if types[0] is Type.STRING and call.op not in ("=", "!="):
            raise NotCompiled("strings of two events compared by their order")
        op = call.op if wanted else _OPPOSITES[call.op]
        test = f"({left.text} {_SIGNS[op]} {right.text})"
        # A NaN is unequal to everything, and in no order with anything.
        nan_decides = types[0] is Type.FLOAT64 and op != "!="
        nulls = [each.null for each in (left, right) if each.null is not None and not nan_decides]
        if types[0] is Type.STRING and op == "=":
            nulls = nulls[:1] if len(nulls) == 2 else []  # equal to what is not null
            if "True" in (left.null, right.null):
                return "False"
        return f"({' & '.join([test, *(f'(not {each})' for each in nulls)])})"

    def _among(self, call: Call, reader: Reader, wanted: bool) -> str:
        value, *choices = call.args
        tests = [
            self._compared(Call("=", (value, each), Type.BOOL), reader, wanted)
            for each in choices
            if not (isinstance(each, Const) and each.value is None)
        ]
        if wanted:
            return f"({' | '.join(tests)})" if tests else "False"
        if len(tests) < len(choices):
            return "False"  # a null among the choices might have been it
        return f"({' & '.join(tests)})" if tests else "True"

    # --- calls ---

    def _call(self, call: Call, reader: Reader) -> Atom:
        lookup = self._by_table(call)
        if lookup is not None:
            leaf, table = lookup
            name = self.constants.table(table)
            made = self.local(f"{name}[{self.value(leaf, reader).text} + 1]")
            return Atom(made, table.type, _null_test(made, table.type))
        if call.op in _LOGIC:
            made = self.local(
                f"1 if {self.truth(call, reader)} else (0 if {self.falsity(call, reader)} else -1)"
            )
            return Atom(made, Type.BOOL, _null_test(made, Type.BOOL))
        if call.type is None:
            raise NotCompiled("an expression without a type")
        if call.op in ("hour", "dayOfWeek") and len(call.args) > 1:
            raise NotCompiled("a time zone")
        if call.op == "if":
            test = self.truth(call.args[0], reader)
            return self.choice(test, *(self._operand(each, reader, call.type) for each in call.args[1:]))
        if call.op == "coalesce":
            made_atom = self._operand(call.args[0], reader, call.type)
            for each in call.args[1:]:
                other = self._operand(each, reader, call.type)
                made_atom = self.choice(f"(not {made_atom.null or 'False'})", made_atom, other)
            return made_atom
        return self._calculated(call, [self._operand(each, reader, call.type) for each in call.args])

    def _calculated(self, call: Call, args: list[Atom]) -> Atom:
        assert call.type is not None
        if call.op == "float":
            return self.widened(args[0])
        if call.op in ("/",):
            args = [self.widened(each) if each.type is Type.INT64 else each for each in args]
        if call.type is Type.FLOAT64:
            if any(each.type is not Type.FLOAT64 for each in args):
                raise NotCompiled(f"{call.op} of different types")
            text = _FLOATS[call.op].format(*(each.text for each in args))
            made = self.local(f"finite({text})" if call.op in _MAY_OVERFLOW else text)
            return Atom(made, Type.FLOAT64, _null_test(made, Type.FLOAT64))
        if call.op in ("floor", "ceil", "round"):
            return args[0]
        if call.op not in _INTEGERS:
            raise NotCompiled(f"{call.op} in an expression")
        texts = [each.text for each in args]
        made = self.local(_INTEGERS[call.op].format(*texts))
        wrong = [each.null for each in args if each.null is not None]
        if call.op in _OVERFLOWS:
            wrong.append(_OVERFLOWS[call.op].format(*texts, made=made))
        if call.type is Type.TIMESTAMP:
            wrong.append(f"({made} < FIRST_INSTANT) | ({made} > LAST_INSTANT)")
            made = self.local(f"NO_TIME if {' | '.join(f'({each})' for each in wrong)} else {made}")
            return Atom(made, Type.TIMESTAMP, _null_test(made, Type.TIMESTAMP))
        return Atom(
            made, Type.INT64, self.local(" | ".join(f"({each})" for each in wrong)) if wrong else None
        )

    def _by_table(self, call: Call) -> tuple[Expr, Lookup] | None:
        """The string that decides, and the table, where the call is looked up by the code of one string."""
        ordered = call.op in ("<", "<=", ">", ">=") and Type.STRING in map(type_of, call.args)
        if call.op not in _TEXT and not ordered:
            return None
        leaves = set(_leaves(call))
        if len(leaves) != 1 or call.type is None:
            raise NotCompiled("strings of two events compared by more than equality")
        (leaf,) = leaves
        if type_of(leaf) is not Type.STRING:
            raise NotCompiled(f"{call.op} of something that is no string")
        return leaf, Lookup(call, leaf, call.type)


def type_name(expr: Expr) -> str:
    """What a kind of expression is called."""
    return type(expr).__name__


def _leaves(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Field | Previous | Aggregate):
        yield expr
    else:
        for child in expr.children():
            yield from _leaves(child)


_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_SIGNS = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_LOGIC = (*_COMPARISONS, "and", "or", "not", "in")
_TEXT = ("lower", "upper", "contains", "startsWith", "regex")
_NULLS: Mapping[Type, str] = {
    Type.BOOL: "-1",
    Type.INT64: "0",
    Type.FLOAT64: "np.nan",
    Type.STRING: "-1",
    Type.TIMESTAMP: "NO_TIME",
}
_FLOATS = {
    "+": "{} + {}",
    "-": "{} - {}",
    "*": "{} * {}",
    "/": "quotient({}, {})",
    "%": "remainder({}, {})",
    "neg": "-{}",
    "abs": "abs({})",
    "floor": "np.floor({}) + 0.0",
    "ceil": "np.ceil({}) + 0.0",
    "round": "rounded({})",
}
_MAY_OVERFLOW = ("+", "-", "*", "/")
_INTEGERS = {
    "+": "wrapped_sum({}, {})",
    "-": "wrapped_difference({}, {})",
    "*": "wrapped_product({}, {})",
    "%": "int_remainder({}, {})",
    "neg": "wrapped_difference(0, {})",
    "abs": "abs({})",
    "hour": "({} // 3600000000) % 24",
    "dayOfWeek": "({} // 86400000000 + 3) % 7 + 1",
}
_OVERFLOWS = {
    "+": "((({0} ^ {made}) & ({1} ^ {made})) < 0)",
    "-": "((({0} ^ {1}) & ({0} ^ {made})) < 0)",
    "*": "product_overflows({0}, {1})",
    "%": "({1} == 0)",
    "neg": "({0} == NO_TIME)",
    "abs": "({0} == NO_TIME)",
}

SOURCE = f'''
NO_TIME = -9223372036854775807 - 1
FIRST_INSTANT = {parse_time("0001-01-01")}
LAST_INSTANT = {parse_time("9999-12-31T23:59:59.999999")}


@njit(nogil=True, cache=True, error_model="numpy")
def finite(value):
    """A value that no float64 can hold is null."""
    return value if abs(value) <= 1.7976931348623157e308 else np.nan


@njit(nogil=True, cache=True, error_model="numpy")
def quotient(left, right):
    return left / right if right != 0.0 else np.nan


@njit(nogil=True, cache=True, error_model="numpy")
def remainder(left, right):
    """With the sign of the left side."""
    if left != left or right != right or right == 0.0:
        return np.nan
    return math.fmod(left, right)


@njit(nogil=True, cache=True, error_model="numpy")
def rounded(value):
    """Half away from zero; the difference is exact, adding a half to the size would not be."""
    size = abs(value)
    whole = np.floor(size)
    if size - whole >= 0.5:
        whole += 1.0
    return (-whole if value < 0 else whole) + 0.0 if value == value else np.nan


@njit(nogil=True, cache=True, error_model="numpy")
def int_remainder(left, right):
    """With the sign of the left side; whoever calls looks for the zero."""
    if right == 0 or right == -1:
        return 0
    rest = left - (left // right) * right
    if rest != 0 and (left < 0) != (right < 0):
        rest -= right
    return rest


# LLVM takes for granted that signed numbers do not overflow, so they are calculated as unsigned ones.
@njit(nogil=True, cache=True)
def wrapped_sum(left, right):
    return np.int64(np.uint64(left) + np.uint64(right))


@njit(nogil=True, cache=True)
def wrapped_difference(left, right):
    return np.int64(np.uint64(left) - np.uint64(right))


@njit(nogil=True, cache=True)
def wrapped_product(left, right):
    return np.int64(np.uint64(left) * np.uint64(right))


@njit(nogil=True, cache=True, error_model="numpy")
def product_overflows(left, right):
    if left == 0 or right == 0:
        return False
    if (left == -1 and right == NO_TIME) or (right == -1 and left == NO_TIME):
        return True
    if left == -1 or right == -1:
        return False
    product = wrapped_product(left, right)
    return product // left != right or product % left != 0
'''
"""What generated source with expressions begins with."""
