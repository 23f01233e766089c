"""The parser of chi-CEP: text in, `ChiQuery` out.

A query is a prologue and clauses, each with a method here that bears its name. The clauses may stand
in any order after SELECT. An error inside a clause is noted, and reading goes on at the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

from kaicep.errors import SourceText, Span
from kaicep.language.lexer import (
    Cursor,
    Names,
    Report,
    Stuck,
    Token,
    TokenKind,
    chi_tokens,
    describe,
    near,
    refuse_deep,
)
from kaicep.language.parse_expressions import ChiExpressions, duration, quoted_name, whole_number
from kaicep.language.parse_sparql import Groups
from kaicep.plan import chi
from kaicep.plan.catalog import WELL_KNOWN_PREFIXES
from kaicep.plan.expressions import Expr
from kaicep.plan.terms import Iri
from kaicep.plan.time import parse_time

_ONCE = {"SELECT", "FROM", "WITHIN", "WHERE", "SEQ", "MATCH", "AFTER", "PARTITION", "GROUP"}
_MOST_ROUNDS = 10_000
_MOST_EVENTS = 1_000_000_000


def parse_chi(
    source: SourceText, name: str = "query", prefixes: Mapping[str, str] = MappingProxyType({})
) -> chi.ChiQuery:
    """The chi-CEP query that a text holds; `prefixes` are known besides those that it declares.

    >>> parse_chi(SourceText("q.chi", "SELECT ?e.sensorID FILTER (?e.flowrate > 500)")).select
    (SelectColumn(expr=Attribute(variable='e', name='sensorID'), alias=None),)
    """
    report = Report(source)
    cursor = Cursor(chi_tokens(source, report), report)
    query = _ChiParser(cursor, Names(report, prefixes, WELL_KNOWN_PREFIXES)).query(name)
    refuse_deep(query, report)
    report.finish()
    return query


class _ChiParser:
    """One query being read: the clauses so far, and the place in the text."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.cursor = cursor
        self.names = names
        self.expressions = ChiExpressions(cursor, names)
        self.groups = Groups(cursor, names, temporal=False)
        self.clauses: dict[str, Callable[[Token], None]] = {
            "SELECT": self.select,
            "FROM": self.from_,
            "WITHIN": self.within,
            "WHERE": self.where,
            "FILTER": self.condition,
            "JOIN": self.condition,
            "SEQ": self.seq,
            "WINDOW": self.window,
            "PATH": self.path,
            "AND": self.and_,
            "OR": self.or_,
            "MATCH": self.match,
            "AFTER": self.after,
            "PARTITION": self.partition_by,
            "GROUP": self.group_by,
            "HAVING": self.having,
        }
        self.seen: set[str] = set()
        self._columns: tuple[chi.SelectColumn, ...] | None = None
        self._froms: list[chi.From] = []
        self._within: chi.Within | None = None
        self._conditions: list[chi.Condition] = []
        self._sequence: tuple[chi.Element, ...] | None = None
        self._sequence_span: Span | None = None
        self._windows: list[chi.SpanWindow | chi.AggregateWindow] = []
        self._paths: list[list[chi.PathBlock]] = []
        self._match: str | None = None
        self._skip: chi.Skip | None = None
        self._partition: tuple[Expr, ...] = ()
        self._group_by: tuple[Expr, ...] = ()
        self._having: list[Expr] = []

    def query(self, name: str) -> chi.ChiQuery:
        """The whole text."""
        while not self.cursor.at_end:
            begun = self.cursor.index
            try:
                self._prologue_or_clause()
            except Stuck as stuck:
                self.cursor.report.add(stuck.diagnostic)
                self._skip_to_clause(begun)
        if "SELECT" not in self.seen:
            hint = "SELECT says what a match reports: SELECT ?e.sensorID"
            self.cursor.report.error("the query has no SELECT", self.cursor.token.span, hint)
        return chi.ChiQuery(
            self._columns,
            tuple(self._froms),
            self._within,
            tuple(self._conditions),
            self._sequence,
            tuple(self._windows),
            tuple(tuple(blocks) for blocks in self._paths),
            self._match,
            self._skip,
            self._partition,
            self._group_by,
            tuple(self._having),
            self.names.listing(),
            name=name,
            source=self.cursor.report.source,
            sequence_span=self._sequence_span,
        )

    def _prologue_or_clause(self) -> None:
        if "SELECT" not in self.seen and self.names.prologue(self.cursor):
            return
        token = self.cursor.token
        clause = self.clauses.get(token.word)
        if clause is None:
            self._no_clause(token)
        elif not self.seen and token.word != "SELECT":
            self.cursor.report.error(f"a query begins with SELECT, not with {token.word}", token.span)
        elif token.word in self.seen and token.word in _ONCE:
            self.cursor.report.error(f"{token.word} is in the query twice", token.span)
        self.seen.add(token.word)
        clause(self.cursor.advance())

    def _no_clause(self, token: Token) -> NoReturn:
        known = [*self.clauses, "PREFIX"]
        if token.word == "PREFIX":
            raise self.cursor.stuck("PREFIX must come before SELECT", token.span)
        if not self.seen:
            self.seen.add("SELECT")  # once told is enough
            raise self.cursor.expected(
                "SELECT", near(token.text, known) if token.kind is TokenKind.WORD else None
            )
        if token.word in ("ORDER", "LIMIT", "OFFSET"):
            message = f"{token.word} is not possible on a stream: matches come in the order of their end"
            raise self.cursor.stuck(message, token.span, "leave it out")
        if token.kind is TokenKind.WORD:
            raise self.cursor.stuck(f"{describe(token)} is not a clause", token.span, near(token.text, known))
        hint = "write a condition in FILTER (...) or JOIN (...)" if token.kind is TokenKind.VARIABLE else None
        raise self.cursor.expected("a clause such as FILTER, JOIN, SEQ, WINDOW or PATH", hint)

    def _skip_to_clause(self, begun: int) -> None:
        """Goes on to the next word that begins a clause, and past at least one token."""
        cursor = self.cursor
        if cursor.index == begun:
            cursor.advance()
        while not cursor.at_end:
            if cursor.token.word in self.clauses and cursor.last.text != ".":
                return
            if cursor.at("{"):
                cursor.skip_brackets()
            else:
                cursor.advance()

    # What comes out, and from where.

    def select(self, keyword: Token) -> None:
        """`SELECT *`, or columns."""
        if word := self.cursor.accept_word("DISTINCT"):
            self.cursor.report.error("SELECT takes no DISTINCT: every match comes once", word.span)
        if self.cursor.accept("*"):
            return
        columns = [self._column()]
        while comma := self.cursor.accept(","):
            if self.cursor.at_word("FROM", "WHERE"):
                self.cursor.report.error("no column follows this comma", comma.span, "leave it out")
                break
            columns.append(self._column())
        self._columns = tuple(columns)
        if self.cursor.token.kind is TokenKind.VARIABLE:
            raise self.cursor.expected("a comma between two columns")

    def _column(self) -> chi.SelectColumn:
        start = self.cursor.token
        expr = self.expressions.expression()
        alias = self._name("a name after AS") if self.cursor.accept_word("AS") else None
        return chi.SelectColumn(expr, alias, span=self.cursor.since(start))

    def _name(self, what: str) -> str:
        token = self.cursor.token
        if token.kind is TokenKind.VARIABLE:
            hint = f"without the question mark: {token.text[1:]}"
            raise self.cursor.expected(what, hint)
        if token.kind is TokenKind.QUOTED:
            return quoted_name(self.cursor.advance())
        return self.cursor.expect_kind(
            TokenKind.WORD, what, "write an odd name in backquotes: `flow rate`"
        ).text

    def from_(self, keyword: Token) -> None:
        """`FROM (?e, stream, prefix:Class), LATEST (?s, stream), ...`, or `FROM ABSENT (?e, stream)`"""
        self._froms.append(self._range())
        while self.cursor.accept(","):
            self._froms.append(self._range())

    def _range(self) -> chi.From:
        hint = "for example FROM (?e, airflowReport)"
        start = self.cursor.token
        latest = self.cursor.accept_word("LATEST") is not None
        absent = not latest and self.cursor.accept_word("ABSENT") is not None
        word = "LATEST" if latest else "ABSENT" if absent else "FROM"
        if latest:
            hint = "for example FROM (?e, airflowReport), LATEST (?s, setpoint)"
        elif absent:
            hint = "for example FROM ABSENT (?e, airflowReport)"
        self.cursor.expect("(", f"and a variable after {word}", hint)
        variable = self._event_variable(hint)
        optional = self._may_be_missing(variable, latest)
        self.cursor.expect(",", f"and a stream after ?{variable}", hint)
        sources, spans = [], []
        while True:
            spans.append(self.cursor.token.span)
            sources.append(self._stream())
            if not self.cursor.accept(","):
                break
        self.cursor.expect(")", "after the streams")
        span = self.cursor.since(start)
        return chi.From(
            variable, tuple(sources), latest, optional, absent, span=span, source_spans=tuple(spans)
        )

    def _may_be_missing(self, variable: str, latest: bool) -> bool:
        """The question mark of `LATEST (?s?, setpoint)`."""
        mark = self.cursor.accept("?")
        if mark is not None and not latest:
            hint = f"that ?{variable} may be left out is said in SEQ (?{variable}?), or with LATEST here"
            self.cursor.report.error("a question mark has no meaning in FROM", mark.span, hint)
        return mark is not None

    def _stream(self) -> str | Iri:
        token = self.cursor.token
        if token.kind is TokenKind.NAME:
            return self.names.prefixed(self.cursor.advance())
        if token.kind is TokenKind.IRI:
            return self.names.iri(self.cursor.advance())
        return self._name("the name of a stream, or a class of events")

    def _event_variable(self, hint: str | None = None) -> str:
        return self.cursor.expect_kind(TokenKind.VARIABLE, "an event variable such as ?e", hint).text[1:]

    def where(self, keyword: Token) -> None:
        """`WHERE` says nothing by itself."""
        if self.cursor.at("{"):
            raise self.cursor.stuck(
                "WHERE takes no braces in chi-CEP", self.cursor.token.span, "leave them out"
            )

    # The bounds of the input.

    def within(self, keyword: Token) -> None:
        """`WITHIN [low, high)`, either bound perhaps empty."""
        opening = self.cursor.accept("[", "(")
        if opening is None:
            raise self.cursor.expected("[ or ( after WITHIN", "for example WITHIN [2012-05-07T09:00, )")
        low = self._bound(opening.text == "[")
        self.cursor.expect(",", "between the two bounds of WITHIN", "a bound may be empty: [now, )")
        high = self._bound(inclusive=True)
        closing = self.cursor.accept("]", ")")
        if closing is None:
            raise self.cursor.expected("] or ) at the end of WITHIN")
        if high is not None and closing.text == ")":
            high = chi.Bound(high.at, high.offset, inclusive=False)
        span = self.cursor.since(keyword)
        comparable = low and high and (low.at is None) == (high.at is None)
        if comparable and _instant(low) > _instant(high):
            self.cursor.report.error("WITHIN ends before it begins", span)
        self._within = chi.Within(low, high, span=span)

    def _bound(self, inclusive: bool) -> chi.Bound | None:
        if self.cursor.at(",", "]", ")"):
            return None
        if token := self.cursor.accept_kind(TokenKind.TIME):
            at = parse_time(token.text.upper())
            if at is None:
                self.cursor.report.error(f"{token.text} is not a time of the calendar", token.span)
            return chi.Bound(at or 0, 0, inclusive)
        hint = "for example 2012-05-07T09:00, now, or now - 1h"
        if not self.cursor.accept_word("NOW"):
            raise self.cursor.expected("a time, now, or nothing", hint)
        sign = self.cursor.accept("-", "+")
        if sign is None:
            return chi.Bound(None, 0, inclusive)
        offset = duration(
            self.cursor, self.cursor.expect_kind(TokenKind.DURATION, "a duration such as 1h", hint)
        )
        return chi.Bound(None, -offset if sign.text == "-" else offset, inclusive)

    # Conditions and patterns.

    def condition(self, keyword: Token) -> None:
        """`FILTER (expr)` and `JOIN (expr)`."""
        expr = self.expressions.in_parentheses(keyword.word)
        self._conditions.append(chi.Condition(expr, keyword.word, span=self.cursor.since(keyword)))

    def having(self, keyword: Token) -> None:
        """`HAVING (expr)`"""
        self._having.append(self.expressions.in_parentheses("HAVING"))

    def seq(self, keyword: Token) -> None:
        """`SEQ (?a, ?b+, !?c, (?d | ?e))`"""
        self.cursor.expect("(", "after SEQ", "for example SEQ (?a, ?b)")
        elements = [self._element()]
        while self.cursor.accept(","):
            elements.append(self._element())
        if self.cursor.at("|", "&"):
            raise self.cursor.expected(") after SEQ", "write a choice in parentheses: SEQ (?a, (?b | ?c))")
        self.cursor.expect(")", "to close SEQ", "its parts stand between commas: SEQ (?a, ?b)")
        self._sequence = tuple(elements)
        self._sequence_span = self.cursor.since(keyword)

    def _element(self) -> chi.Element:
        with self.cursor:
            start = self.cursor.token
            if self.cursor.accept("!"):
                return chi.Absent(self._element(), span=self.cursor.since(start))
            if self.cursor.at("("):
                return self._pattern_group()
            variable = self._event_variable("a pattern is made of event variables: SEQ (?a, ?b+, !?c)")
            if rounds := self._quantifier():
                return chi.Loop(variable, *rounds, span=self.cursor.since(start))
            return chi.Place(variable, span=start.span)

    def _pattern_group(self) -> chi.Element:
        """`(?b | ?c)` or `(?b & ?c)`; parentheses around one element say nothing."""
        start = self.cursor.advance()
        members = [self._element()]
        sign = self.cursor.token.text
        while self.cursor.accept("|", "&"):
            if self.cursor.last.text != sign:
                where = self.cursor.last.span
                raise self.cursor.stuck("| and & are mixed here", where, "use parentheses: (?a | (?b & ?c))")
            members.append(self._element())
        hint = "a group is a choice (?a | ?b), or all of its events (?a & ?b); it holds no sequence"
        self.cursor.expect(")", "to close the group", hint if self.cursor.at(",") else None)
        span = self.cursor.since(start)
        if self._quantifier():
            self.cursor.report.error("only a single variable can be repeated", self.cursor.since(start))
        if len(members) == 1:
            return members[0]
        return (chi.Choice if sign == "|" else chi.Together)(tuple(members), span=span)

    def _quantifier(self) -> tuple[int, int | None] | None:
        """`+ * ? {n} {n,} {,m} {n,m}` as the fewest and the most rounds."""
        signs: dict[str, tuple[int, int | None]] = {"+": (1, None), "*": (0, None), "?": (0, 1)}
        if sign := self.cursor.accept(*signs):
            return signs[sign.text]
        if not self.cursor.at("{"):
            return None
        start = self.cursor.advance()
        what = "a number of rounds, as in {2,5}"
        least, most = 0, None
        if not self.cursor.at(","):
            least = most = whole_number(self.cursor, what, _MOST_ROUNDS)
        if self.cursor.accept(","):
            most = None if self.cursor.at("}") else whole_number(self.cursor, what, _MOST_ROUNDS)
        self.cursor.expect("}", "after the number of rounds")
        self._check_rounds(least, most, self.cursor.since(start))
        return least, most

    def _check_rounds(self, least: int, most: int | None, span: Span) -> None:
        if most == 0:
            hint = "for the absence of an event write !?b"
            self.cursor.report.error("a loop of no rounds matches nothing", span, hint)
        elif most is not None and least > most:
            hint = f"write {{{most},{least}}}"
            self.cursor.report.error(f"at least {least} and at most {most} rounds are impossible", span, hint)

    def window(self, keyword: Token) -> None:
        """`WINDOW (?a, ?b, 5min)`, `WINDOW (?e, sliding, 5min)`, `WINDOW (?e, batch, 100)`."""
        hint = "for example WINDOW (?a, ?b, 5min), or WINDOW (?e, sliding, 5min)"
        self.cursor.expect("(", "after WINDOW", hint)
        variables = [self._event_variable(hint)]
        self.cursor.expect(",", "after the variable", hint)
        while self.cursor.token.kind is TokenKind.VARIABLE:
            variables.append(self._event_variable())
            self.cursor.expect(",", "after the variable", hint)
        if self.cursor.token.kind is TokenKind.WORD:
            self._windows.append(self._aggregate_window(keyword, variables))
            return
        if self.cursor.token.kind is TokenKind.INTEGER:
            size = describe(self.cursor.token)
            units = f"write {size}min, or {size} and one of us, ms, s, h, d, without a space between them"
            raise self.cursor.expected("a duration", units)
        width = duration(
            self.cursor, self.cursor.expect_kind(TokenKind.DURATION, "a duration such as 5min", hint)
        )
        self.cursor.expect(")", "to close WINDOW")
        self._windows.append(chi.SpanWindow(tuple(variables), width, span=self.cursor.since(keyword)))

    def _aggregate_window(self, keyword: Token, variables: list[str]) -> chi.AggregateWindow:
        kind = self._one_of("a kind of window", "sliding", "batch")
        self.cursor.expect(",", f"and a size after {kind}", f"for example {kind}, 5min")
        width = count = None
        size = self.cursor.token
        if size.kind is TokenKind.DURATION:
            width = duration(self.cursor, self.cursor.advance())
        else:
            count = whole_number(self.cursor, "a duration such as 5min, or a number of events", _MOST_EVENTS)
        if not width and not count:
            self.cursor.report.error("a window must have a size", size.span)
        units = f"write {count}min, or {count} and one of us, ms, s, h, d" if count else None
        self.cursor.expect(")", "to close WINDOW", units)
        span = self.cursor.since(keyword)
        if len(variables) > 1:
            self.cursor.report.error(f"a {kind} window is over one variable", span)
        return chi.AggregateWindow(variables[0], kind, width, count, span=span)

    def _one_of(self, what: str, *choices: str) -> str:
        """One of these words, in lower case."""
        token = self.cursor.token
        if token.text.lower() not in choices:
            raise self.cursor.expected(f"{what} ({', '.join(choices)})", near(token.text, choices))
        return self.cursor.advance().text.lower()

    # Knowledge.

    def path(self, keyword: Token) -> None:
        """`PATH { ... }`; after another one without a word between them, as with AND."""
        group = self.groups.group("after PATH")
        block = chi.PathBlock(group, span=self.cursor.since(keyword))
        if self._paths:
            self._paths[-1].append(block)
        else:
            self._paths.append([block])

    def and_(self, keyword: Token) -> None:
        """`AND PATH { ... }`"""
        self._after_path(keyword)

    def or_(self, keyword: Token) -> None:
        """`OR PATH { ... }`"""
        self._after_path(keyword)
        self._paths.append([])

    def _after_path(self, keyword: Token) -> None:
        if not self._paths or not self.cursor.at_word("PATH"):
            hint = "inside one condition use && and ||"
            raise self.cursor.stuck(f"{keyword.word} is only for two PATH blocks", keyword.span, hint)

    # How matches are chosen and cut up.

    def match(self, keyword: Token) -> None:
        """`MATCH any | next | strict`"""
        self._match = self._one_of("which events a match may skip", "any", "next", "strict")

    def after(self, keyword: Token) -> None:
        """`AFTER MATCH NO SKIP`, `AFTER MATCH SKIP ...`"""
        self.cursor.expect_word("MATCH", "after AFTER")
        mode, variable = self._skip_mode()
        self._skip = chi.Skip(mode, variable, span=self.cursor.since(keyword))

    def _skip_mode(self) -> tuple[str, str | None]:
        cursor = self.cursor
        if cursor.accept_word("NO"):
            cursor.expect_word("SKIP", "after NO")
            return "none", None
        cursor.expect_word("SKIP", "or NO SKIP after AFTER MATCH")
        if cursor.accept_word("PAST"):
            cursor.expect_word("LAST", "after PAST")
            return "past_last", None
        cursor.expect_word("TO", "or PAST LAST after SKIP")
        mode = self._one_of("where to skip to", "next", "first", "last")
        if mode == "next":
            return mode, None
        return mode, self._event_variable(f"for example SKIP TO {mode.upper()} ?b")

    def partition_by(self, keyword: Token) -> None:
        """`PARTITION BY ?e.attr, ?room, ...`"""
        self._partition = self._references(keyword)

    def group_by(self, keyword: Token) -> None:
        """`GROUP BY ?e.attr, ?room, ...`"""
        self._group_by = self._references(keyword)

    def _references(self, keyword: Token) -> tuple[Expr, ...]:
        self.cursor.expect_word("BY", f"after {keyword.word}")
        found: list[Expr] = [self.expressions.key()]
        while self.cursor.accept(","):
            found.append(self.expressions.key())
        return tuple(found)


def _instant(bound: chi.Bound | None) -> int:
    """Where a bound lies, among those of its own sort."""
    return (bound.at or 0) + bound.offset if bound else 0
