"""Expressions: operator precedence for both languages, and the operands of chi-CEP."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from kaicep.errors import Span
from kaicep.language.lexer import Cursor, Names, Token, TokenKind, describe, near, string_value
from kaicep.plan.expressions import Aggregate, Attribute, Call, Concept, Const, Expr, Previous, VariableRef
from kaicep.plan.functions import Function
from kaicep.plan.operators import FUNCTIONS, Operator
from kaicep.plan.text import COMPARISON, LOOSEST, NEGATION, PRECEDENCE, TIGHTEST
from kaicep.plan.time import parse_duration
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type

_SIGNS = {
    "||": "or",
    "&&": "and",
    **{sign: sign for sign in ("=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/")},
}
_SLIPS = {"==": "equality is written =", "<>": "inequality is written !="}
_NUMBERS = (TokenKind.INTEGER, TokenKind.DECIMAL, TokenKind.FLOAT, TokenKind.DURATION)


class Expressions(ABC):
    """A parser of expressions by precedence climbing; a language says what its operands are.

    `signs` and `words` are its operators as written, with what they are called in a `Call`;
    `negation` says how tightly `!` binds.
    """

    signs: ClassVar[Mapping[str, str]] = _SIGNS
    words: ClassVar[Mapping[str, str]] = {"IN": "in"}
    negation: ClassVar[int] = TIGHTEST

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.cursor = cursor
        self.names = names

    def expression(self, least: int = LOOSEST) -> Expr:
        """An expression whose operators bind at least as tightly as `least`."""
        with self.cursor:
            start = self.cursor.token
            left = self._operand()
            compared = False
            while True:
                if least <= COMPARISON and self._passed_sql():
                    continue
                op = self._operator()
                if op is None or PRECEDENCE[op] < least:
                    return left
                if compared and PRECEDENCE[op] == COMPARISON:
                    self._chained()
                compared = PRECEDENCE[op] == COMPARISON
                left = self._binary(op, left, start)

    def in_parentheses(self, where: str) -> Expr:
        """`( expression )`; `where` says what it belongs to."""
        opening = self.cursor.expect("(", f"after {where}")
        inner = self.expression()
        line, _ = self.cursor.report.source.position(opening.start)
        self.cursor.expect(")", f"to close {where}", self._operator_hint() or f"its ( is in line {line}")
        return inner

    def arguments(self) -> tuple[Expr, ...]:
        """`(a, b, ...)`, perhaps empty."""
        self.cursor.expect("(", "before the arguments")
        given: list[Expr] = []
        while not self.cursor.at(")"):
            given.append(self.expression())
            if not self.cursor.accept(","):
                break
        self.cursor.expect(")", "to close the arguments", self._operator_hint())
        return tuple(given)

    @abstractmethod
    def primary(self) -> Expr:
        """An operand that no operator can split."""

    @abstractmethod
    def number(self, token: Token, sign: str, span: Span) -> Expr:
        """The literal of a number and the sign directly before it."""

    def _operator(self) -> str | None:
        token = self.cursor.token
        if token.kind is TokenKind.SIGN:
            if token.text in _SLIPS:
                raise self.cursor.stuck(f"{token.text} is not an operator", token.span, _SLIPS[token.text])
            return self.signs.get(token.text)
        if token.kind is TokenKind.WORD:
            return "notin" if self._at_not_in() else self.words.get(token.word)
        return None

    def _at_not_in(self) -> bool:
        return self.cursor.token.word == "NOT" and self.cursor.next.word == "IN"

    def _operator_hint(self) -> str | None:
        """Says which operator is meant where one of another language stands."""
        word = self.cursor.token.word
        if word in ("AND", "OR") and word not in self.words:
            return f"{word} is written {'&&' if word == 'AND' else '||'} here"
        if self.cursor.at(".") and self.cursor.next.kind is TokenKind.WORD:
            return "write attributes of events outside the braces; is a } missing before this?"
        return None

    def _passed_sql(self) -> bool:
        """Whether an operator of SQL was next: what to write instead is told, and it is passed over."""
        word = self.cursor.token.word
        hint = _OF_SQL.get(word)
        if hint is None or self.cursor.next.text == "(":
            return False
        self.cursor.report.error(f"{word} is not an operator here", self.cursor.advance().span, hint)
        if word == "IS":
            self.cursor.accept_word("NOT")
        self.expression(COMPARISON + 1)
        if word == "BETWEEN" and self.cursor.accept_word("AND"):
            self.expression(COMPARISON + 1)
        return True

    def _chained(self) -> None:
        hint = "join two comparisons with &&: a < b && b < c"
        raise self.cursor.stuck("comparisons do not chain", self.cursor.token.span, hint)

    def _binary(self, op: str, left: Expr, start: Token) -> Expr:
        self.cursor.advance()
        if op == "notin":
            self.cursor.advance()
        if op in ("in", "notin"):
            args = (left, *self.choices())
        else:
            args = (left, self.expression(PRECEDENCE[op] + 1))
        return self.call(op, args, self.cursor.since(start))

    def choices(self) -> tuple[Expr, ...]:
        """What stands after IN."""
        return self.arguments()

    def call(self, op: str, args: tuple[Expr, ...], span: Span) -> Expr:
        """An operator applied."""
        return Call(op, args, span=span)

    def _operand(self) -> Expr:
        start = self.cursor.token
        if self.cursor.accept("!") or ("NOT" in self.words and self.cursor.accept_word("NOT")):
            inner = self.expression(self.negation)
            return Call("not", (inner,), span=self.cursor.since(start))
        if self.cursor.at("-", "+"):
            sign = self.cursor.advance().text
            if self.cursor.token.kind in _NUMBERS and self.cursor.touches_last:
                token = self.cursor.advance()
                return self.number(token, sign, self.cursor.since(start))
            inner = self.expression(TIGHTEST)
            return inner if sign == "+" else Call("neg", (inner,), span=self.cursor.since(start))
        if self.cursor.token.kind in _NUMBERS:
            token = self.cursor.advance()
            return self.number(token, "", token.span)
        return self.primary()


def check_arity(cursor: Cursor, name: str, own: Operator | Function, given: int, span: Span) -> None:
    """Notes an error where a function gets too few arguments, or too many (None: any number)."""
    least, most = own.least, own.most
    if given >= least and (most is None or given <= most):
        return
    wanted = str(least) if least == most else f"{least} to {most}"
    if most is None:
        wanted = f"at least {least}"
    noun = "argument" if wanted == "1" or wanted.endswith(" 1") else "arguments"
    cursor.report.error(f"{name} takes {wanted} {noun}, not {given}", span)


_CANONICAL = {name.lower(): name for name in FUNCTIONS}
_AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV", "FIRST", "LAST")
_OF_SQL = {
    "BETWEEN": "write both bounds: ?e.x >= 400 && ?e.x <= 500",
    "LIKE": 'use startsWith(?e.x, "RTH"), contains(?e.x, "VOL") or regex(?e.x, "^RTH.*VOL$")',
    "IS": "a condition on a missing value never holds; coalesce(?e.x, 0) puts a value in its place",
}
_CONSTANTS = {"TRUE": Const(True, Type.BOOL), "FALSE": Const(False, Type.BOOL), "NULL": Const(None, None)}


class ChiExpressions(Expressions):
    """The expressions of FILTER, JOIN, SELECT and HAVING in chi-CEP."""

    signs: ClassVar[Mapping[str, str]] = {**_SIGNS, "%": "%"}
    words: ClassVar[Mapping[str, str]] = {"IN": "in", "AND": "and", "OR": "or", "NOT": "not"}
    negation = NEGATION

    def _operator(self) -> str | None:
        op = super()._operator()
        return None if op == "not" else op

    def call(self, op: str, args: tuple[Expr, ...], span: Span) -> Expr:
        """An operator applied; `x NOT IN (...)` is the negation of `x IN (...)`."""
        if op == "notin":
            return Call("not", (Call("in", args, span=span),), span=span)
        return Call(op, args, span=span)

    def choices(self) -> tuple[Expr, ...]:
        """What stands after IN: at least one value."""
        given = self.arguments()
        if not given:
            raise self.cursor.stuck(
                "IN needs at least one value", self.cursor.last.span, "for example IN (1, 2)"
            )
        return given

    def number(self, token: Token, sign: str, span: Span) -> Expr:
        """A whole number or a duration (both int64), or a float64."""
        if token.kind is TokenKind.FLOAT:
            value = float(sign + token.text)
            if math.isinf(value):
                self.cursor.report.error("this number is too large for a float64", span)
            return Const(value, Type.FLOAT64, span=span)
        whole = duration(self.cursor, token) if token.kind is TokenKind.DURATION else _digits(token.text)
        if sign == "-":
            whole = -whole
        if not INT64_MIN <= whole <= INT64_MAX:
            hint = "write it as a float64: with .0 at its end"
            self.cursor.report.error("this number is too large for an int64", span, hint)
        return Const(whole, Type.INT64, span=span)

    def primary(self) -> Expr:
        """An attribute, a literal, a function, an aggregate, or an expression in parentheses."""
        token = self.cursor.token
        if token.kind is TokenKind.VARIABLE:
            return self._variable()
        if token.kind is TokenKind.STRING:
            value = string_value(self.cursor.advance(), self.cursor.report)
            return Const(value, Type.STRING, span=token.span)
        if token.kind is TokenKind.WORD:
            return self._word()
        if token.kind is TokenKind.TIME:
            raise self.cursor.stuck(
                f"write a time in an expression in quotes: {describe(token)}",
                token.span,
                f'write "{describe(token)}"; for a subtraction put blanks around the minus signs',
            )
        if self.cursor.accept("("):
            inner = self.expression()
            self.cursor.expect(")", "to close the parenthesis", self._operator_hint())
            return inner
        raise self.cursor.expected("a value: an attribute such as ?e.flowrate, a number or a string")

    def _variable(self) -> Expr:
        """`?e.attribute`, `?e.prefix:concept`, `?e.<iri>`, or a bare variable."""
        token = self.cursor.token
        if self.cursor.next.text == "." and self.cursor.next.kind is TokenKind.SIGN:
            return self.reference()
        self.cursor.advance()
        return VariableRef(token.text[1:], span=token.span)

    def key(self) -> Expr:
        """What events are parted by: an attribute of theirs, or a variable of the PATH."""
        return self._variable() if self.cursor.token.kind is TokenKind.VARIABLE else self.reference()

    def reference(self) -> Attribute | Concept:
        """An attribute of an event variable, by its own name or by a concept."""
        hint = "an attribute is written ?e.flowrate, or ?e.hvc:airflow by its concept"
        start = self.cursor.expect_kind(TokenKind.VARIABLE, "an attribute such as ?e.flowrate", hint)
        variable = start.text[1:]
        self.cursor.expect(".", f"and an attribute after ?{variable}", hint)
        token = self.cursor.advance()
        span = self.cursor.since(start)
        if token.kind is TokenKind.WORD:
            return Attribute(variable, token.text, span=span)
        if token.kind is TokenKind.QUOTED:
            return Attribute(variable, quoted_name(token), span=span)
        if token.kind is TokenKind.NAME:
            return Concept(variable, self.names.prefixed(token), token.text, span=span)
        if token.kind is TokenKind.IRI:
            iri = self.names.iri(token)
            return Concept(variable, iri, str(iri), span=span)
        hint = "write a name with other characters than letters, digits and _ in backquotes: ?e.`flow rate`"
        raise self.cursor.stuck(
            f"expected an attribute after ?{variable}., found {describe(token)}", token.span, hint
        )

    def _word_hint(self, token: Token) -> str:
        """What a bare word may have been meant as."""
        shown = describe(token)
        if self.cursor.next.text == ".":
            return f"a variable begins with ?: ?{shown}."
        return f"an attribute belongs to an event variable, ?e.{shown}; write text in quotes, '{shown}'"

    def _word(self) -> Expr:
        token = self.cursor.token
        called = self.cursor.next.text == "(" and self.cursor.next.kind is TokenKind.SIGN
        if not called and token.word in _CONSTANTS:
            constant = _CONSTANTS[token.word]
            return Const(constant.value, constant.type, span=self.cursor.advance().span)
        if not called:
            raise self.cursor.expected("a value", self._word_hint(token))
        self.cursor.advance()
        if token.word in _AGGREGATES:
            return self._aggregate(token)
        if token.word == "PREV":
            self.cursor.expect("(", "after PREV")
            of = self.reference()
            self.cursor.expect(")", "to close PREV", "PREV takes one attribute: PREV(?b.x)")
            return Previous(of, span=self.cursor.since(token))
        return self._function(token)

    def _function(self, token: Token) -> Expr:
        name = _CANONICAL.get(token.text.lower())
        if name is None:
            hint = near(token.text, [*FUNCTIONS, *_AGGREGATES, "PREV"])
            self.cursor.report.error(f"unknown function {describe(token)}", token.span, hint)
        args = self.arguments()
        span = self.cursor.since(token)
        if name is not None:
            check_arity(self.cursor, name, FUNCTIONS[name], len(args), span)
        return Call(name or token.text, args, span=span)

    def _aggregate(self, token: Token) -> Expr:
        op = token.word
        self.cursor.expect("(", f"after {op}")
        distinct = self.cursor.accept_word("DISTINCT")
        if distinct and op != "COUNT":
            self.cursor.report.error(f"{op} takes no DISTINCT; only COUNT does", distinct.span)
        if self.cursor.at("*"):
            message = f"{op}(*) does not say what it counts"
            raise self.cursor.stuck(message, self.cursor.token.span, "write COUNT(?e)")
        of = self.expression()
        self.cursor.expect(")", f"to close {op}", f"an aggregate takes one expression: {op}(?e.x)")
        span = self.cursor.since(token)
        if isinstance(of, VariableRef):
            if op != "COUNT" or distinct:
                hint = f"name one: {op}({'DISTINCT ' if distinct else ''}?{of.name}.x)"
                self.cursor.report.error(f"{op} is over an attribute", span, hint)
            return Aggregate(op, None, variable=of.name, span=span)
        variable = of.variable if isinstance(of, Attribute | Concept) else None
        return Aggregate(op, of, distinct is not None, variable, span=span)


def quoted_name(token: Token) -> str:
    """The name that a token in backquotes stands for."""
    return token.text[1:-1].replace("``", "`")


def duration(cursor: Cursor, token: Token) -> int:
    """The microseconds of a duration token."""
    micros = parse_duration(token.text) if len(token.text) <= 60 else None
    if micros is None:
        cursor.report.error(f"the duration {describe(token)} is too long", token.span)
    return micros or 0


def whole_number(cursor: Cursor, what: str, most: int) -> int:
    """A whole number of at most `most`; `what` says in words what it is for."""
    token = cursor.expect_kind(TokenKind.INTEGER, what)
    value = _digits(token.text)
    if value > most:
        cursor.report.error(f"{describe(token)} is more than the {most} that are allowed here", token.span)
    return min(value, most)


def _digits(text: str) -> int:
    """A number from its digits; any that no int64 can hold counts as the first of these."""
    significant = text.lstrip("0")
    return int(significant or "0") if len(significant) <= 19 else INT64_MAX + 2
