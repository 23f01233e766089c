"""From conditions to programs of the vector interpreter (`kernel.predicates`).

A part of a condition that speaks of one event alone is worked out before, by columns. What is left here are
the operations that join values of different events. The event that is being looked at gives scalars; those
that are bound give columns of the rows that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from kaicep.errors import Unsupported
from kaicep.kernel.predicates import COLUMN, OPS, REGISTERS, SCALAR, WORDS
from kaicep.kernel.tables import NULL
from kaicep.plan.expressions import (
    Aggregate,
    Call,
    Const,
    Expr,
    Field,
    Previous,
    by_identity,
    rewrite,
    type_of,
    variables_of,
    walk,
)
from kaicep.plan.operators import function_of
from kaicep.plan.types import Type, Value

_COMPARED = {"<": ("LT", False), "<=": ("LE", False), ">": ("LT", True), ">=": ("LE", True)}
_MOST_OPERANDS = 4
_MOST_EQUALITIES = 8  # an `in` of more constants looks them up


@dataclass(frozen=True)
class Question:
    """What Python answers: an operation on values of these types, or whatever `of` stands for.

    In an operation a field stands for each value that is given, named by its number.
    """

    of: object
    types: tuple[Type | None, ...]
    type: Type | None

    @cached_property
    def value(self) -> Callable[[Sequence[Value]], Value]:
        """The operation as a function of the values."""
        assert isinstance(self.of, Call)
        return function_of(self.of, _given)


def _given(leaf: Expr) -> Callable[[Sequence[Value]], Value]:
    assert isinstance(leaf, Field)
    number = int(leaf.name)
    return lambda values: values[number]


class Constants:
    """The numbers and questions of a pattern's programs."""

    def __init__(self, code: Callable[[str], int]) -> None:
        self.words: list[int] = []
        self.questions: list[Question] = []
        self._code = code

    def word(self, value: object, type: Type | None) -> int:
        """The place of a value among the constants."""
        word = word_of(value, type, self._code)
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def question(self, question: Question) -> int:
        """The number of a question."""
        if question not in self.questions:
            self.questions.append(question)
        return self.questions.index(question)


def word_of(value: object, type: Type | None, code: Callable[[str], int]) -> int:
    """A value as the machine has it, in 64 bits."""
    if type is Type.FLOAT64:
        number = np.nan if value is None else float(value)  # type: ignore[arg-type]
        return int(np.float64(number).view(np.int64))
    if value is None:
        return int(NULL)
    return code(value) if isinstance(value, str) else int(value)  # type: ignore[call-overload]


def value_of(word: int, type: Type | None, text: Callable[[int], str]) -> Value:
    """What a word of the machine stands for."""
    if type is Type.FLOAT64:
        number = float(np.int64(word).view(np.float64))
        return None if number != number else number
    if word == NULL:
        return None
    if type is Type.STRING:
        return text(word)
    return bool(word) if type is Type.BOOL else word


class ProgramScope(Protocol):
    """Where a program finds values: which column holds what."""

    @property
    def variable(self) -> str:
        """The variable that the event is looked at for."""
        ...

    def event(self, expr: Expr) -> int:
        """The column of the batch that has a value of the event."""
        ...

    def row(self, expr: Expr, variable: str) -> int:
        """The column of the rows that has a value of an event that is bound."""
        ...

    def previous(self, expr: Expr, variable: str) -> int:
        """The column of the rows that has the value in the round before."""
        ...

    def folded(self, expr: Aggregate, kind: str) -> int:
        """The column of the rows that has a part of an aggregate.

        COUNT, VALUES, MIN, MAX, FIRST, LAST; of a sum its words LOW and HIGH, and the NUMBER of values in it.
        """
        ...

    def keep(self, expr: Expr) -> int:
        """Sees to it that a value is known of every event that is part of a match."""
        ...

    def node(self) -> int:
        """The column of the rows that leads to their events."""
        ...

    def position(self) -> int:
        """The column of the batch that has the place of the event in it."""
        ...


@by_identity
def of_one_event(expr: Expr) -> str | None:
    """The variable of the one event that an expression speaks of; None where it speaks of others too."""
    if any(isinstance(each, Aggregate | Previous) for each in walk(expr)):
        return None
    names = variables_of(expr)
    return next(iter(names)) if len(names) == 1 else None


@by_identity
def alone(expr: Expr) -> Expr:
    """An expression of one event without the name of its variable, so that equal ones are found."""
    return rewrite(expr, lambda each: replace(each, variable="") if isinstance(each, Field) else each)


class Assembler:
    """Writes the program of some conditions: `scalars` for the event, `vectors` for the rows."""

    def __init__(self, scope: ProgramScope, constants: Constants, scalar_at: int = 0) -> None:
        self.scope = scope
        self.constants = constants
        self.scalars: list[int] = []
        self.vectors: list[int] = []
        self.scalar_count = scalar_at
        self._free = list(range(REGISTERS - 1, -1, -1))
        self._events: dict[int, int] = {}
        self._consts: dict[int, int] = {}

    def require(self, conditions: Sequence[Expr]) -> None:
        """Clears the marks of rows for which a condition is not true."""
        for each in conditions:
            if isinstance(each, Call) and each.op == "and":
                self.require(each.args)
            else:
                self._gate(each)

    def earlier(self, column: int, event: int) -> None:
        """Clears the marks of rows whose time in a column is not before that of the event."""
        self._write(self.vectors, "G_ILT", 0, COLUMN + column, self._splat(self.event(event)))

    def ask_true(self, question: Question, operands: Sequence[int] | None = None) -> None:
        """Clears the marks of rows for which a question is not answered with yes."""
        made = self.ask_whole(question) if operands is None else self._ask("ASK_T", question, operands)
        self._write(self.vectors, "G_TRUE", 0, made)
        self._release(made)

    # --- conditions ---

    def _gate(self, expr: Expr) -> None:
        if isinstance(expr, Call) and expr.op in ("=", *_COMPARED):
            left, right = expr.args
            kind = type_of(left) or type_of(right)
            if kind is Type.FLOAT64 and self._gate_floats(expr.op, left, right):
                return
            if expr.op == "=" and kind is not Type.FLOAT64 and kind is not Type.BOOL:
                a, b = self.value(left, kind), self.value(right, kind)
                if self._is_scalar(a):
                    a, b = b, a
                if self._is_scalar(a):
                    a = self._splat(a)
                op = "G_IEQ_VS" if self._is_scalar(b) else "G_IEQ"
                self._write(self.vectors, op, 0, a, b)
                self._release(a, b)
                return
        made = self._splat(self.truth(expr))
        self._write(self.vectors, "G_TRUE", 0, made)
        self._release(made)

    def _gate_floats(self, op: str, left: Expr, right: Expr) -> bool:
        a, b = self.value(left, Type.FLOAT64), self.value(right, Type.FLOAT64)
        if op == "=":
            a, b = self._splat(a), self._splat(b)
            self._write(self.vectors, "G_FEQ", 0, a, b)
        else:
            name, turned = _COMPARED[op]
            a, b = (b, a) if turned else (a, b)
            if self._is_scalar(a) and self._is_scalar(b):
                a = self._splat(a)
            side = "_SV" if self._is_scalar(a) else "_VS" if self._is_scalar(b) else ""
            self._write(self.vectors, f"G_F{name}{side}", 0, a, b)
        self._release(a, b)
        return True

    def truth(self, expr: Expr) -> int:
        """An operand that says whether something is true, false or null."""
        if isinstance(expr, Call) and of_one_event(expr) is None:
            if expr.op in _TRUTHS:
                return _TRUTHS[expr.op](self, expr)
            if type_of(expr) is Type.BOOL and expr.op not in _VALUES:
                return self._ask_operation(expr)
        return self._apply("TRUTH", self.value(expr))

    def join(self, expr: Call) -> int:
        """`and` and `or`."""
        made = self.truth(expr.args[0])
        for each in expr.args[1:]:
            made = self._apply("TAND" if expr.op == "and" else "TOR", made, self.truth(each))
        return made

    def negate(self, expr: Call) -> int:
        """`not`, and `!=`, which is the negation of `=`."""
        positive = replace(expr, op="=") if expr.op == "!=" else expr.args[0]
        return self._apply("TNOT", self.truth(positive))

    def among(self, expr: Call) -> int:
        """`in`: many constants are looked up, all else is compared one by one."""
        value, *choices = expr.args
        fixed = [each for each in choices if isinstance(each, Const)]
        made: int | None = None
        if len(fixed) > _MOST_EQUALITIES:
            made = self._ask_operation(replace(expr, args=(value, *fixed)))
            choices = [each for each in choices if not isinstance(each, Const)]
        for each in choices:
            equal = self.truth(Call("=", (value, each), Type.BOOL))
            made = equal if made is None else self._apply("TOR", made, equal)
        assert made is not None
        return made

    def compare(self, expr: Call) -> int:
        """A comparison; strings of different events have no order here."""
        (left, right), op = expr.args, expr.op
        kind = type_of(left) or type_of(right)
        if kind is Type.STRING and op != "=":
            return self._ask_operation(expr)
        name, turned = ("EQ", False) if op == "=" else _COMPARED[op]
        a, b = self.value(left, kind), self.value(right, kind)
        if turned:
            a, b = b, a
        return self._apply(("F" if kind is Type.FLOAT64 else "I") + name, a, b)

    # --- values ---

    def value(self, expr: Expr, kind: Type | None = None) -> int:
        """An operand that has the value of an expression; `kind` is what a null is of."""
        if isinstance(expr, Const):
            return self._constant(expr.value, expr.type or kind)
        variable = of_one_event(expr)
        if variable is not None:
            if variable == self.scope.variable:
                return self.event(self.scope.event(expr))
            return COLUMN + self.scope.row(expr, variable)
        if isinstance(expr, Previous):
            variable = of_one_event(expr.of)
            assert variable is not None
            return COLUMN + self.scope.previous(expr.of, variable)
        if isinstance(expr, Aggregate):
            return self._aggregate(expr)
        assert isinstance(expr, Call), expr
        return self._call(expr)

    def _call(self, expr: Call) -> int:
        if expr.op in _TRUTHS:
            return self._apply("BOOL", self.truth(expr))
        if expr.op in _VALUES:
            return _VALUES[expr.op](self, expr)
        made = self._ask_operation(expr)
        return self._apply("BOOL", made) if type_of(expr) is Type.BOOL else made

    def widen(self, expr: Call) -> int:
        """`float`."""
        return self._apply("ITOF", self.value(expr.args[0]))

    def divide(self, expr: Call) -> int:
        """A quotient is float64, whatever its sides are."""
        return self._apply("FDIV", *(self._as_float(each) for each in expr.args))

    def calculate(self, expr: Call, instruction: str) -> int:
        """Arithmetic on two numbers, or on times."""
        is_float = type_of(expr) is Type.FLOAT64
        a, b = (self._as_float(each) if is_float else self.value(each, type_of(expr)) for each in expr.args)
        if expr.op == "-" and is_float and self._is_scalar(a) and not self._is_scalar(b):
            made = self._result(self.vectors)
            self._write(self.vectors, "FRSUB", made, a, b)
            self._release(a, b)
            return made
        return self._timely(expr, self._apply(_letter(expr) + instruction, a, b))

    def change(self, expr: Call, instruction: str) -> int:
        """An operation on one number."""
        return self._apply(_letter(expr) + instruction, self.value(expr.args[0]))

    def round_to(self, expr: Call, instruction: str) -> int:
        """A rounding, which leaves an int64 as it is."""
        is_float = type_of(expr) is Type.FLOAT64
        return self.change(expr, instruction) if is_float else self.value(expr.args[0])

    def first_known(self, expr: Call) -> int:
        """`coalesce`."""
        made = self.value(expr.args[0], expr.type)
        for each in expr.args[1:]:
            made = self._apply(_letter(expr) + "COALESCE", made, self.value(each, expr.type))
        return made

    def choose(self, expr: Call) -> int:
        """`if`."""
        condition = self.truth(expr.args[0])
        then, otherwise = (self.value(each, expr.type) for each in expr.args[1:])
        return self._apply(_letter(expr) + "IF", then, otherwise, condition)

    def _as_float(self, expr: Expr) -> int:
        if isinstance(expr, Const):
            return self._constant(expr.value, Type.FLOAT64)
        made = self.value(expr)
        return made if type_of(expr) is Type.FLOAT64 else self._apply("ITOF", made)

    def _timely(self, expr: Expr, made: int) -> int:
        return self._apply("ITIME", made) if type_of(expr) is Type.TIMESTAMP else made

    # --- aggregates over a loop ---

    def _aggregate(self, expr: Aggregate) -> int:
        scope, of = self.scope, expr.of
        newest = expr.variable == scope.variable
        if of is None:
            before = COLUMN + scope.folded(expr, "COUNT")
            return self._apply("ADD_ONE", before) if newest else before
        letter = "F" if type_of(of) is Type.FLOAT64 else "I"
        kind = "VALUES" if expr.op == "COUNT" else expr.op
        if expr.distinct or expr.op == "STDDEV":
            return self._chained(expr)
        if expr.op in ("SUM", "AVG"):
            return self._summed(expr, letter)
        if not newest:
            return COLUMN + scope.folded(expr, kind)
        event = self.event(scope.event(of))
        if kind == "LAST":
            return event
        before = COLUMN + scope.folded(expr, kind)
        if kind == "VALUES":
            return self._apply(f"ADD_KNOWN_{letter}", before, event)
        if kind == "FIRST":
            count = COLUMN + scope.folded(replace(expr, of=None, op="COUNT", distinct=False), "COUNT")
            return self._apply("FIRST", before, event, count)
        return self._apply(letter + kind, before, event)

    def _chained(self, expr: Aggregate) -> int:
        """An aggregate that Python works out from all rounds, the event among them where it is one more."""
        assert expr.of is not None
        self.scope.keep(expr.of)
        return self.ask_whole(Question((expr, self.scope.variable), (), type_of(expr)), "ASK_I")

    def _summed(self, expr: Aggregate, letter: str) -> int:
        """A sum that rows carry, or an average; Python is asked where a number is not near."""
        of = expr.of
        assert of is not None
        self.scope.keep(of)
        newest = expr.variable == self.scope.variable
        event = self.event(self.scope.event(of)) if newest else self._constant(None, type_of(of))
        carried = [COLUMN + self.scope.folded(expr, kind) for kind in ("LOW", "HIGH", "NUMBER")]
        question = Question((expr, self.scope.variable), (), type_of(expr))
        return self._ask(f"{expr.op}_{letter}", question, [*carried, event])

    def ask_whole(self, question: Question, op: str = "ASK_T") -> int:
        """What Python says of a row's events and the event that is looked at."""
        operands = [COLUMN + self.scope.node(), self.event(self.scope.position())]
        return self._ask(op, question, operands)

    # --- questions ---

    def _ask_operation(self, expr: Call) -> int:
        """What Python makes of an operation; of one that is true or not, its truth."""
        op = "ASK_T" if type_of(expr) is Type.BOOL else "ASK_I"
        given = list(dict.fromkeys(each for each in expr.args if not isinstance(each, Const)))
        if len(given) > _MOST_OPERANDS:
            raise Unsupported(
                f"{expr.op} takes values of several events, and more than {_MOST_OPERANDS} of them"
            )
        types = tuple(type_of(each) for each in given)
        places = [Field("", str(number), (), type) for number, type in enumerate(types)]
        args = tuple(each if isinstance(each, Const) else places[given.index(each)] for each in expr.args)
        question = Question(replace(expr, args=args), types, type_of(expr))
        return self._ask(op, question, [self.value(each) for each in given])

    def _ask(self, op: str, question: Question, operands: Sequence[int]) -> int:
        number = self.constants.question(question)
        given = [self._splat(each) for each in operands]
        nothing = self._splat(self._constant(0, Type.INT64)) if len(given) < _MOST_OPERANDS else given[0]
        self._release(*given)
        if len(given) < _MOST_OPERANDS:
            self._release(nothing)
        made = self._result(self.vectors)
        # The result may stand where an operand stood: it is read before.
        self._write(self.vectors, op, made, *given, *[nothing] * (_MOST_OPERANDS - len(given)), number=number)
        return made

    # --- instructions ---

    def event(self, column: int) -> int:
        """An operand that has a column of the batch, as the event has it."""
        if column not in self._events:
            self._events[column] = self._result(self.scalars)
            self._write(self.scalars, "EVENT", self._events[column], number=column)
        return self._events[column]

    def _constant(self, value: object, type: Type | None) -> int:
        place = self.constants.word(value, type)
        if place not in self._consts:
            self._consts[place] = self._result(self.scalars)
            self._write(self.scalars, "CONST", self._consts[place], number=place)
        return self._consts[place]

    def _apply(self, op: str, *operands: int) -> int:
        """The result of an operation: a scalar where all operands are, else a vector."""
        if all(map(self._is_scalar, operands)):
            made = self._result(self.scalars)
            self._write(self.scalars, op, made, *operands)
            return made
        given = [self._splat(each) for each in operands]
        self._release(*given)
        made = self._result(self.vectors)
        self._write(self.vectors, op, made, *given)
        return made

    def _splat(self, operand: int) -> int:
        if not self._is_scalar(operand):
            return operand
        made = self._result(self.vectors)
        self._write(self.vectors, "SPLAT", made, operand)
        return made

    def _is_scalar(self, operand: int) -> bool:
        return operand >= SCALAR

    def _result(self, part: list[int]) -> int:
        if part is self.scalars:
            self.scalar_count += 1
            return SCALAR + self.scalar_count - 1
        if not self._free:
            raise MemoryError("a condition is nested too deeply")
        return self._free.pop()

    def _release(self, *operands: int) -> None:
        for each in operands:
            if each < COLUMN and each not in self._free:
                self._free.append(each)

    def _write(self, part: list[int], op: str, result: int, *operands: int, number: int = 0) -> None:
        padded = [*operands, *[0] * (_MOST_OPERANDS - len(operands))]
        part += [OPS[op], result, *padded, number]
        assert len(part) % WORDS == 0


def _letter(expr: Call) -> str:
    """The kind of number that an instruction is about."""
    return "F" if type_of(expr) is Type.FLOAT64 else "I"


_TRUTHS: Mapping[str, Callable[[Assembler, Call], int]] = {
    "and": Assembler.join,
    "or": Assembler.join,
    "not": Assembler.negate,
    "!=": Assembler.negate,
    "in": Assembler.among,
    **dict.fromkeys(("=", *_COMPARED), Assembler.compare),
}
"""Operators that are true or not, as programs; others that are, and all that are in no table, are asked."""
_VALUES: Mapping[str, Callable[[Assembler, Call], int]] = {
    "+": partial(Assembler.calculate, instruction="ADD"),
    "-": partial(Assembler.calculate, instruction="SUB"),
    "*": partial(Assembler.calculate, instruction="MUL"),
    "%": partial(Assembler.calculate, instruction="MOD"),
    "/": Assembler.divide,
    "neg": partial(Assembler.change, instruction="NEG"),
    "abs": partial(Assembler.change, instruction="ABS"),
    "floor": partial(Assembler.round_to, instruction="FLOOR"),
    "ceil": partial(Assembler.round_to, instruction="CEIL"),
    "round": partial(Assembler.round_to, instruction="ROUND"),
    "float": Assembler.widen,
    "coalesce": Assembler.first_known,
    "if": Assembler.choose,
}
"""Operators on values, as programs."""
