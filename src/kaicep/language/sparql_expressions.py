"""The expressions of SPARQL: operands, functions, aggregates, EXISTS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from kaicep.errors import Span
from kaicep.language.cursor import Cursor, near
from kaicep.language.expressions import Expressions, check_arity
from kaicep.language.lexer import Kind, Token, describe, string_value
from kaicep.language.names import Names
from kaicep.language.terms import Terms
from kaicep.plan.expressions import Aggregate, Call, Exists, Expr, TermConst, VariableRef
from kaicep.plan.functions import SPARQL_FUNCTIONS, Function
from kaicep.plan.regex import PATTERN_HINT, BadPattern, matcher
from kaicep.plan.sparql import Group
from kaicep.plan.terms import XSD, Literal

__all__ = ["SparqlExpressions"]

_SYNONYMS = {"uri": "iri", "isuri": "isiri"}
_SPELLINGS = {
    "getduration": "getDURATION",
    "getstarttime": "getSTARTTIME",
    "getendtime": "getENDTIME",
}
_AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "SAMPLE", "GROUP_CONCAT")


class SparqlExpressions(Expressions):
    """A parser of SPARQL expressions; `group` reads the group of an EXISTS.

    `aggregates` says whether one may stand where the parser is: only SELECT and HAVING take them.
    """

    def __init__(
        self, cursor: Cursor, names: Names, terms: Terms, group: Callable[[str], Group], temporal: bool
    ) -> None:
        super().__init__(cursor, names)
        self.terms = terms
        self.aggregates = False
        self._group = group
        self._temporal = temporal

    def constraint(self, where: str) -> Expr:
        """What stands after FILTER or HAVING: `(expr)`, a call, or EXISTS."""
        if self.cursor.at("("):
            return self.in_parentheses(where)
        if self.cursor.token.kind in (Kind.WORD, Kind.NAME, Kind.IRI):
            found = self.primary()
            if isinstance(found, Call | Exists | Aggregate):
                return found
        raise self.cursor.expected(f"( after {where}", "write the condition in parentheses")

    def number(self, token: Token, sign: str, span: Span) -> Expr:
        """A number as a literal."""
        return TermConst(self.terms.number(token, sign), span=span)

    def primary(self) -> Expr:
        """A variable, a term, a call, or an expression in parentheses."""
        token = self.cursor.token
        if self.cursor.accept("("):
            inner = self.expression()
            self.cursor.expect(")", "to close the parenthesis", self._operator_hint())
            return inner
        if token.kind is Kind.VARIABLE:
            return VariableRef(self.cursor.advance().text[1:], span=token.span)
        if token.kind is Kind.WORD and (found := self._keyword(token)):
            return found
        if self.terms.at_literal():
            literal = self.terms.literal()
            return TermConst(literal, span=self.cursor.since(token))
        if self.terms.at_iri():
            return self._iri(token)
        raise self.cursor.expected("a value: a variable, a number, a string or a name", self._operator_hint())

    def _keyword(self, token: Token) -> Expr | None:
        """EXISTS, an aggregate or a function; None where the word is none of them."""
        if token.word == "EXISTS" or (token.word == "NOT" and self.cursor.next.word == "EXISTS"):
            return self._exists(token)
        if self.cursor.next.text != "(" or self.cursor.next.kind is not Kind.SIGN:
            return None
        if token.word in _AGGREGATES:
            return self._aggregate()
        return self._function()

    def _exists(self, start: Token) -> Expr:
        negated = self.cursor.accept_word("NOT") is not None
        self.cursor.advance()
        aggregates, self.aggregates = self.aggregates, False
        group = self._group("after EXISTS")
        self.aggregates = aggregates
        return Exists(group, negated, span=self.cursor.since(start))

    def _iri(self, start: Token) -> Expr:
        iri = self.terms.iri("a name")
        if not self.cursor.at("("):
            return TermConst(iri, span=start.span)
        args = self.arguments()
        span = self.cursor.since(start)
        own = SPARQL_FUNCTIONS.get(iri.value)
        if own is None:
            casts = [f"xsd:{each.removeprefix(XSD)}" for each in SPARQL_FUNCTIONS if each.startswith(XSD)]
            hint = f"known: {', '.join(sorted(casts))}"
            self.cursor.report.error(f"unknown function {describe(start)}", start.span, hint)
        else:
            check_arity(self.cursor, f"the cast {describe(start)}", own, len(args), span)
        return Call(iri.value, args, span=span)

    def _function(self) -> Expr:
        token = self.cursor.advance()
        name = token.text.lower()
        name = _SYNONYMS.get(name, name)
        own = SPARQL_FUNCTIONS.get(name)
        if own is None or (own.temporal and not self._temporal):
            self._unknown(token, own)
        args = self.arguments()
        span = self.cursor.since(token)
        if own.refused is not None:
            self.cursor.report.error(f"{token.text.upper()}() is refused", span, own.refused)
        check_arity(self.cursor, describe(token), own, len(args), span)
        if name in ("regex", "replace"):
            self._check_pattern(args[1:2], args[own.most - 1 : own.most] if own.most else ())
        if name == "bound" and args and not isinstance(args[0], VariableRef):
            self.cursor.report.error("BOUND takes a variable", span)
        return Call(name, args, span=span)

    def _check_pattern(self, pattern: Sequence[Expr], flags: Sequence[Expr]) -> None:
        """What is wrong with a pattern is said now, where it and its flags are literals."""
        given = [each.term for each in (*pattern, *flags) if isinstance(each, TermConst)]
        texts = [each.lexical for each in given if isinstance(each, Literal)]
        if not pattern or len(texts) < 1 + len(flags):
            return
        try:
            matcher(*texts)
        except BadPattern as found:
            span = pattern[0].span or self.cursor.last.span
            self.cursor.report.error(f"this is not a regular expression: {found}", span, PATTERN_HINT)

    def _unknown(self, token: Token, own: Function | None) -> NoReturn:
        if own is not None:
            hint = "the time of an event is ?e.ts, in a FILTER outside of the PATH"
            raise self.cursor.stuck(
                f"{token.text} belongs to EP-SPARQL; knowledge has no time", token.span, hint
            )
        names = [name for name, each in SPARQL_FUNCTIONS.items() if self._temporal or not each.temporal]
        known = [_SPELLINGS.get(each, each.upper()) for each in (*names, *_AGGREGATES) if ":" not in each]
        raise self.cursor.stuck(f"unknown function {describe(token)}", token.span, near(token.text, known))

    def _aggregate(self) -> Expr:
        token = self.cursor.advance()
        op = token.word
        if not self.aggregates:
            hint = "move it to SELECT or HAVING; a subselect may stand inside the group"
            message = f"{op} can only be used in SELECT or HAVING, and not inside another aggregate"
            self.cursor.report.error(message, token.span, hint)
        allowed, self.aggregates = self.aggregates, False
        self.cursor.expect("(", f"after {op}")
        distinct = self.cursor.accept_word("DISTINCT") is not None
        of = None if op == "COUNT" and self.cursor.accept("*") else self.expression()
        separator = self._separator() if op == "GROUP_CONCAT" and self.cursor.accept(";") else " "
        self.cursor.expect(")", f"to close {op}", self._operator_hint())
        self.aggregates = allowed
        return Aggregate(op, of, distinct, separator=separator, span=self.cursor.since(token))

    def _separator(self) -> str:
        self.cursor.expect_word("SEPARATOR", "after ;")
        self.cursor.expect("=", "after SEPARATOR")
        token = self.cursor.expect_kind(Kind.STRING, "a string after SEPARATOR =")
        return string_value(token, self.cursor.report)
