"""SPARQL groups and subselects: what stands in a PATH, and the body of an EP-SPARQL query."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from kaicep.language.cursor import Cursor, near
from kaicep.language.lexer import Kind, Token, describe
from kaicep.language.names import Names
from kaicep.language.report import Stuck
from kaicep.language.sparql_expressions import SparqlExpressions
from kaicep.language.terms import Terms
from kaicep.language.triples import TripleBlocks
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.expressions import Call, Expr, VariableRef
from kaicep.plan.literals import parse_xsd_duration
from kaicep.plan.sparql import (
    TEMPORAL_OPERATORS,
    Bind,
    Element,
    Filter,
    Group,
    InWindow,
    Minus,
    Operation,
    Optional,
    Ordering,
    Projection,
    Select,
    SubSelect,
    Triples,
    Values,
    WindowClause,
)
from kaicep.plan.terms import Iri, Term

__all__ = ["Groups", "is_all_windows"]

_MOST_ELEMENTS = 100
_AFTER_WHERE = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
_NO_ORDER = "leave it out, or put the whole pattern into a WINDOW"
_REFUSED = {
    "ORDER": ("ORDER BY has no place in a stream: matches come in the order of their end", _NO_ORDER),
    "LIMIT": ("LIMIT has no place in a stream: there is no last match", _NO_ORDER),
    "OFFSET": ("OFFSET has no place in a stream: matches come as they happen", _NO_ORDER),
    "GRAPH": ("GRAPH is not supported: stream and knowledge are one graph", "leave GRAPH and its name out"),
    "SERVICE": (
        "SERVICE is not supported: an answer must depend on stream and knowledge alone",
        "load that knowledge beside the rest",
    ),
    "SEQOPTIONAL": (
        "SEQOPTIONAL is not timewise monotone: a later triple could take back an answer already given",
        "use OPTIONALSEQ, which looks for the optional part earlier, or NOT for an absence",
    ),
}


def is_all_windows(where: Group) -> bool:
    """Whether a pattern is WINDOW blocks, with FILTER and BIND beside them: each evaluation is finite."""
    windows = any(isinstance(each, InWindow) for each in where.elements)
    return windows and all(isinstance(each, InWindow | Filter | Bind) for each in where.elements)


class Groups:
    """A parser of groups; with `temporal`, of those of EP-SPARQL."""

    def __init__(self, cursor: Cursor, names: Names, temporal: bool) -> None:
        self.cursor = cursor
        self.temporal = temporal
        self.terms = Terms(cursor, names, bare=temporal)
        self.triples = TripleBlocks(cursor, self.terms)
        self.expressions = SparqlExpressions(cursor, names, self.terms, self.group, temporal)
        self._blanks: dict[str, object] = {}
        self._windows: dict[Iri, WindowClause] = {}
        self._elements: dict[str, Callable[[Token], Element]] = {
            "FILTER": self._filter,
            "OPTIONAL": self._optional,
            "MINUS": self._minus,
            "BIND": self._bind,
            "VALUES": self._values,
        }

    def group(self, where: str) -> Group:
        """`{ ... }`; `where` says in words what it belongs to."""
        with self.cursor:
            start = self.cursor.expect("{", where)
            if self.cursor.at_word("SELECT"):
                elements: tuple[Element, ...] = (self._subselect(),)
            else:
                elements = self._body(start.depth + 1)
            if self.cursor.token.word in _REFUSED:
                self._refuse()
            line, _ = self.cursor.report.source.position(start.start)
            self.cursor.expect("}", "to close the group", f"its {{ is in line {line}")
            return Group(elements, span=self.cursor.since(start))

    def where(self) -> Group:
        """`WHERE { ... }`, or as the EP-SPARQL paper prints it, without braces around groups and filters."""
        if not self.cursor.accept_word("WHERE") and not self.cursor.at("{"):
            raise self.cursor.expected("WHERE", near(self.cursor.token.text, ["WHERE"]))
        start = self.cursor.token
        if self.cursor.at("}") or self.cursor.at_end:
            raise self.cursor.expected("{ after WHERE")
        elements = self._body(start.depth)
        if len(elements) == 1 and isinstance(elements[0], Group):
            return elements[0]
        return Group(elements, span=self.cursor.since(start))

    def _body(self, depth: int) -> tuple[Element, ...]:
        """The parts of a group, up to what closes it. After an error it goes on with the next part."""
        elements: list[Element] = []
        pattern = object()
        while not (self.cursor.at_end or self.cursor.at("}") or self.cursor.at_word(*_AFTER_WHERE)):
            begun = self.cursor.index
            try:
                if elements and isinstance(elements[-1], Triples):
                    self._need_dot()
                elements.append(self._element())
                if isinstance(elements[-1], Triples):
                    self._keep_blanks_in(pattern, elements[-1])
                    continue
                if not isinstance(elements[-1], Filter):
                    pattern = object()
                self.cursor.accept(".")
            except Stuck as stuck:
                self.cursor.report.add(stuck.diagnostic)
                self._skip_to_element(begun, depth)
        if sum(not isinstance(each, Triples) for each in elements) > _MOST_ELEMENTS:
            span = elements[_MOST_ELEMENTS].span or self.cursor.token.span
            self.cursor.report.error(f"a group has more than {_MOST_ELEMENTS} parts", span)
        return tuple(elements)

    def _need_dot(self) -> None:
        """After triples: either a dot ended them, or no other triple follows."""
        if self.cursor.last.text != "." and self.triples.at_subject() and not self._at_unknown_keyword():
            raise self.cursor.expected(". between two triples")

    def _keep_blanks_in(self, pattern: object, triples: Triples) -> None:
        """A blank node of the text is one node inside of one basic graph pattern, and of no other."""
        for each in triples.patterns:
            for name in pattern_variables(each):
                if name.startswith("_:") and self._blanks.setdefault(name, pattern) is not pattern:
                    hint = "use a variable for a node that several groups speak of"
                    message = f"{name} is already used in another group of patterns"
                    self.cursor.report.error(message, each.span or self.cursor.token.span, hint)

    def _skip_to_element(self, begun: int, depth: int) -> None:
        """Goes on to the next word that begins a part of the group at this depth, or to its end."""
        cursor = self.cursor
        if cursor.index == begun:
            cursor.advance()
        while not cursor.at_end:
            here = cursor.token
            if here.depth < depth and here.text in (")", "]", "}"):
                return
            if here.depth <= depth and (here.word in self._elements or here.word in _AFTER_WHERE):
                return
            if here.depth <= depth and here.text == "." and here.kind is Kind.SIGN:
                cursor.advance()
                return
            cursor.advance()

    def _element(self) -> Element:
        token = self.cursor.token
        if token.word in self._elements:
            return self._elements[token.word](self.cursor.advance())
        if self.temporal and token.word == "WINDOW" and self.cursor.after_next.text == "{":
            return self._in_window(self.cursor.advance())
        if self.cursor.at("{"):
            return self._chain()
        if token.word in _REFUSED:
            self._refuse()
        if token.word == "WITHIN" and self.cursor.next.kind in (Kind.INTEGER, Kind.DURATION):
            bound = 'write FILTER (getDURATION() <= "PT10S"^^xsd:duration) inside of the pattern'
            raise self.cursor.stuck("WITHIN is of chi-CEP, and EP-SPARQL has none", token.span, bound)
        if self.triples.at_subject() and not self._at_unknown_keyword():
            return self.triples.block()
        if token.word in TEMPORAL_OPERATORS or token.word == "UNION":
            raise self.cursor.stuck(
                f"{token.word} belongs between two groups",
                token.span,
                f"put both sides in braces: {{ ... }} {token.word} {{ ... }}",
            )
        known = [*self._elements, "UNION", *TEMPORAL_OPERATORS]
        hint = near(token.text, known) if token.kind is Kind.WORD else None
        if token.kind is Kind.WORD and self.cursor.next.kind in (Kind.NAME, Kind.IRI, Kind.VARIABLE):
            hint = f"a variable begins with ?: ?{token.text}"
        raise self.cursor.expected("a triple, a group, or a keyword such as FILTER or OPTIONAL", hint)

    def _at_unknown_keyword(self) -> bool:
        """Whether a word is next that is no keyword but stands like one; it could be a bare name too."""
        return self.cursor.token.kind is Kind.WORD and self.cursor.next.text in ("(", "{")

    def _refuse(self) -> NoReturn:
        message, hint = _REFUSED[self.cursor.token.word]
        raise self.cursor.stuck(message, self.cursor.token.span, hint)

    def _chain(self) -> Element:
        """Groups with operators between them, all equally tight, from left to right."""
        start = self.cursor.token
        left: Element = self.group("before a group")
        while self.cursor.at_word("UNION", "SEQOPTIONAL", *TEMPORAL_OPERATORS):
            operator = self.cursor.token
            if operator.word == "SEQOPTIONAL":
                self._refuse()
            if not self.temporal and operator.word != "UNION":
                hint = "order the events outside of the PATH, with SEQ (?a, ?b)"
                message = f"{operator.word} belongs to EP-SPARQL; knowledge in a PATH has no time"
                raise self.cursor.stuck(message, operator.span, hint)
            self.cursor.advance()
            right = self.group(f"and a group after {operator.word}")
            left = Operation(operator.word, left, right, span=self.cursor.since(start))
        return left

    def _filter(self, keyword: Token) -> Element:
        return Filter(self.expressions.constraint("FILTER"), span=self.cursor.since(keyword))

    def _optional(self, keyword: Token) -> Element:
        return Optional(self.group("after OPTIONAL"), span=self.cursor.since(keyword))

    def _minus(self, keyword: Token) -> Element:
        return Minus(self.group("after MINUS"), span=self.cursor.since(keyword))

    def _bind(self, keyword: Token) -> Element:
        hint = "for example BIND (?a + 1 AS ?b)"
        self.cursor.expect("(", "after BIND", hint)
        expr = self.expressions.expression()
        self.cursor.expect_word("AS", "after the expression of BIND")
        name = self._variable("a variable after AS", hint)
        self.cursor.expect(")", "to close BIND")
        return Bind(expr, name, span=self.cursor.since(keyword))

    def _variable(self, what: str, hint: str | None = None) -> str:
        return self.cursor.expect_kind(Kind.VARIABLE, what, hint).text[1:]

    def _in_window(self, keyword: Token) -> Element:
        """`WINDOW :name { ... }`"""
        token = self.cursor.token
        name = self.terms.iri("the name of a window after WINDOW")
        group = self.group("after the name of a window")
        window = self._windows.get(name)
        if window is None:
            known = ", ".join(f"<{each.value}>" for each in self._windows)
            hint = f"declared are {known}" if known else "declare it: FROM NAMED WINDOW :w ON :s [..]"
            raise self.cursor.stuck(f"no window is called <{name.value}>", token.span, hint)
        return InWindow(window, group, span=self.cursor.since(keyword))

    def windows(self) -> tuple[WindowClause, ...]:
        """Every `FROM NAMED WINDOW :name ON stream [RANGE PT10S STEP PT5S]` or `[ROWS 100 STEP 10]`."""
        found: list[WindowClause] = []
        while self.temporal and self.cursor.at_word("FROM") and self.cursor.next.word == "NAMED":
            self.cursor.advance()
            self.cursor.advance()
            self.cursor.expect_word("WINDOW", "after FROM NAMED")
            name = self.terms.iri("the name of the window, as in :w")
            self.cursor.expect_word("ON", "after the name of the window")
            at = self.cursor.token.span
            stream = self.terms.iri("a stream after ON: its name, or an IRI that ends in it").local
            self.cursor.expect("[", "before RANGE or ROWS", "as in [RANGE PT10S STEP PT5S]")
            if self.cursor.accept_word("ROWS"):
                rows, step = self._count(), self._count() if self.cursor.accept_word("STEP") else None
                window = WindowClause(name, stream, rows=rows, step=step, span=at)
            else:
                self.cursor.expect_word("RANGE", "or ROWS in a window")
                width, step = self._length(), self._length() if self.cursor.accept_word("STEP") else None
                window = WindowClause(name, stream, width=width, step=step, span=at)
            self.cursor.expect("]", "to close the window")
            self._windows[name] = window
            found.append(window)
        return tuple(found)

    def _count(self) -> int:
        token = self.cursor.expect_kind(Kind.INTEGER, "a number of triples")
        if int(token.text) < 1:
            raise self.cursor.stuck("a window has at least one triple", token.span)
        return int(token.text)

    def _length(self) -> int:
        """A duration as XML Schema writes it; it may be more than one token of ours."""
        start = self.cursor.token
        while not (self.cursor.at("]") or self.cursor.at_word("STEP") or self.cursor.at_end):
            self.cursor.advance()
        span = self.cursor.since(start)
        micros = parse_xsd_duration(self.cursor.report.source.text[span.start : span.end])
        if micros is None or micros <= 0:
            hint = "as in PT10S, PT5M, PT1H or P1D"
            raise self.cursor.stuck("a window needs a duration of days and time", span, hint)
        return micros

    def _values(self, keyword: Token) -> Element:
        """`VALUES ?x { 1 2 }` and `VALUES (?x ?y) { (1 2) (UNDEF 3) }`."""
        cursor = self.cursor
        several = cursor.accept("(")
        names: list[str] = []
        if not several:
            names.append(self._variable("a variable after VALUES", "for example VALUES ?x { 1 2 }"))
        while several and not cursor.accept(")"):
            names.append(self._variable("a variable, or ) after the variables"))
        cursor.expect("{", "before the values")
        rows: list[tuple[Term | None, ...]] = []
        while not cursor.accept("}"):
            rows.append(self._row(len(names)) if several else (self._value(),))
        return Values(tuple(names), tuple(rows), span=cursor.since(keyword))

    def _row(self, width: int) -> tuple[Term | None, ...]:
        start = self.cursor.expect("(", "before a row of values, or } after the last")
        row = []
        while not self.cursor.accept(")"):
            row.append(self._value())
        if len(row) != width:
            message = f"this row has {len(row)} values for {width} variables"
            self.cursor.report.error(message, self.cursor.since(start), "write UNDEF for a missing value")
        return tuple(row)

    def _value(self) -> Term | None:
        if self.cursor.accept_word("UNDEF"):
            return None
        if self.terms.at_literal():
            return self.terms.literal()
        return self.terms.iri("a value: a name, a literal or UNDEF")

    # SELECT, in a group and as the whole of an EP-SPARQL query.

    def _subselect(self) -> Element:
        start = self.cursor.advance()
        select = self.select()
        return SubSelect(select, span=self.cursor.since(start))

    def select(self) -> Select:
        """What follows the word SELECT, up to HAVING."""
        report = self._report()
        distinct = self.cursor.accept_word("DISTINCT") is not None
        if not distinct:
            self.cursor.accept_word("REDUCED")
        outer, self.expressions.aggregates = self.expressions.aggregates, True
        star = self.cursor.accept("*")
        columns = None if star else self._columns()
        self.expressions.aggregates = False
        windows = self.windows()
        if self.cursor.at_word("FROM"):
            hint = "the streams and the knowledge are given where the query is run"
            raise self.cursor.stuck("FROM is not supported in EP-SPARQL", self.cursor.token.span, hint)
        where = self.where()
        group_by = self._group_by()
        if star and group_by:
            self.cursor.report.error("SELECT * cannot be grouped", star.span, "name the columns")
        having = self._having()
        self.expressions.aggregates = True
        ordering = self._ordering() if is_all_windows(where) else None
        self.expressions.aggregates = outer
        if self.cursor.token.word in _REFUSED:
            self._refuse()
        return Select(columns, where, group_by, having, distinct, report, windows, ordering)

    def _ordering(self) -> Ordering | None:
        """`ORDER BY ... LIMIT n OFFSET m`, of which any part may be missing."""
        keys: list[tuple[Expr, bool]] = []
        if self.cursor.accept_word("ORDER"):
            self.cursor.expect_word("BY", "after ORDER")
            while not keys or self.cursor.token.kind is Kind.VARIABLE or self._at_key():
                downwards = self.cursor.accept_word("DESC") is not None
                if not downwards:
                    self.cursor.accept_word("ASC")
                keys.append((self.expressions.expression(), downwards))
        numbers: dict[str, int] = {}
        while (word := self.cursor.token.word) in ("LIMIT", "OFFSET") and word not in numbers:
            self.cursor.advance()
            token = self.cursor.expect_kind(Kind.INTEGER, f"a whole number after {word}")
            numbers[word] = int(token.text)
        if not keys and not numbers:
            return None
        return Ordering(tuple(keys), numbers.get("LIMIT"), numbers.get("OFFSET", 0))

    def _at_key(self) -> bool:
        """Whether another key of an ORDER BY begins here."""
        is_call = self.cursor.token.kind is not Kind.SIGN and self.cursor.next.text == "("
        return self.cursor.at("(") or is_call

    def _report(self) -> str:
        """Which solutions of its windows a SELECT gives."""
        for word in ("RSTREAM", "ISTREAM", "DSTREAM"):
            if self.temporal and self.cursor.accept_word(word):
                return word
        return "RSTREAM"

    def _columns(self) -> tuple[Projection, ...]:
        columns: list[Projection] = []
        while not (self.cursor.at("{", "}") or self.cursor.at_end or self.cursor.at_word("WHERE", "FROM")):
            columns.append(self._column())
            if self.cursor.at(","):
                raise self.cursor.expected("another column or WHERE", "SPARQL has no commas between columns")
        if not columns:
            raise self.cursor.expected("a variable, (expression AS ?name), or * after SELECT")
        return tuple(columns)

    def _column(self) -> Projection:
        """`?x`, `(expr AS ?x)`, and as the paper prints it: `expr AS ?x`, `?x AS expr`."""
        start = self.cursor.token
        if self.cursor.at("(") and (column := self._standard_column()):
            return column
        left = self.expressions.expression()
        if not self.cursor.accept_word("AS"):
            if isinstance(left, VariableRef):
                return Projection(left.name, span=start.span)
            if start.kind is Kind.WORD and self.cursor.last is start:
                hint = f"a variable begins with ?: ?{start.text}"
                raise self.cursor.stuck(f"expected a variable, found {start.text}", start.span, hint)
            raise self.cursor.expected("AS and a name for the expression", "write (expression AS ?name)")
        right = self.expressions.expression()
        span = self.cursor.since(start)
        if isinstance(right, VariableRef):
            return Projection(right.name, left, span=span)
        if isinstance(left, VariableRef):
            return Projection(left.name, right, span=span)
        raise self.cursor.stuck("neither side of AS is a variable", span, "write (expression AS ?name)")

    def _standard_column(self) -> Projection | None:
        """`(expr AS ?x)`; None, and nothing taken, where the parenthesis only begins an expression."""
        start, begun = self.cursor.advance(), self.cursor.index - 1
        expr = self.expressions.expression()
        if not self.cursor.accept_word("AS"):
            self.cursor.index = begun
            return None
        name = self._variable("a variable after AS", "for example (?a + 1 AS ?b)")
        self.cursor.expect(")", "after the name")
        return Projection(name, expr, span=self.cursor.since(start))

    def _group_by(self) -> tuple[Projection, ...]:
        if not self.cursor.accept_word("GROUP"):
            return ()
        self.cursor.expect_word("BY", "after GROUP")
        keys = [self._key()]
        while (
            self.cursor.at("(")
            or self.cursor.token.kind in (Kind.VARIABLE, Kind.NAME, Kind.IRI)
            or (self.cursor.token.kind is Kind.WORD and not self.cursor.at_word(*_AFTER_WHERE, "VALUES"))
        ):
            keys.append(self._key())
        return tuple(keys)

    def _key(self) -> Projection:
        """A variable, a call, or an expression in parentheses, perhaps with a name."""
        start = self.cursor.token
        if self.cursor.accept_kind(Kind.VARIABLE):
            return Projection(start.text[1:], span=start.span)
        if not self.cursor.at("("):
            expr: Expr = self.expressions.primary()
            if not isinstance(expr, Call):
                raise self.cursor.stuck(
                    f"{describe(start)} is not a key to group by", start.span, "write GROUP BY ?x"
                )
            return Projection(self.terms.fresh(), expr, span=self.cursor.since(start))
        self.cursor.advance()
        expr = self.expressions.expression()
        name = self._variable("a variable after AS") if self.cursor.accept_word("AS") else self.terms.fresh()
        self.cursor.expect(")", "after the key")
        return Projection(name, expr, span=self.cursor.since(start))

    def _having(self) -> tuple[Expr, ...]:
        if not self.cursor.accept_word("HAVING"):
            return ()
        self.expressions.aggregates = True
        conditions = [self.expressions.constraint("HAVING")]
        while self.cursor.at("("):
            conditions.append(self.expressions.constraint("HAVING"))
        self.expressions.aggregates = False
        return tuple(conditions)
