"""The parser of SPARQL groups: terms, triples, paths, expressions, and everything else between braces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import NoReturn

from kaicep.errors import Span
from kaicep.language.lexer import Cursor, Names, Stuck, Token, TokenKind, describe, near, string_value
from kaicep.language.parse_expressions import Expressions, check_arity
from kaicep.plan import sparql
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.expressions import Aggregate, Call, Exists, Expr, TermConst, VariableRef
from kaicep.plan.functions import SPARQL_FUNCTIONS, Function
from kaicep.plan.regex import PATTERN_HINT, BadPattern, matcher
from kaicep.plan.terms import RDF, XSD, Blank, Iri, Literal, Term, Variable
from kaicep.plan.values import normalise, parse_xsd_duration

# ----------------------------------------------------------------------------------------------------------
# RDF terms as SPARQL writes them: IRIs, literals, and the names that the text leaves out.

# Words that are never read as the bare name of something.
# fmt: off
RESERVED = frozenset((
    "ASK", "BASE", "BIND", "BY", "CONSTRUCT", "DESCRIBE", "DURING", "EQUALS", "EQUALSOPTIONAL", "EXISTS",
    "FILTER", "FINISHES", "FROM", "GRAPH", "GROUP", "HAVING", "LIMIT", "MEETS", "MINUS", "NOT", "OFFSET",
    "OPTIONAL", "OPTIONALSEQ", "ORDER", "PAR", "PREFIX", "SELECT", "SEQ", "SEQOPTIONAL", "SERVICE",
    "STARTS", "UNDEF", "UNION", "VALUES", "WHERE",
))
# fmt: on
_DATATYPES = {
    TokenKind.INTEGER: XSD + "integer",
    TokenKind.DECIMAL: XSD + "decimal",
    TokenKind.FLOAT: XSD + "double",
}
_LONGEST_NUMBER = 400


class TermParser:
    """A parser of terms.

    With `bare`, as in EP-SPARQL, a word stands for the name that it is under the empty prefix, and a literal
    stays as it is written. In a PATH it is spelt like those of the knowledge base.
    """

    def __init__(self, cursor: Cursor, names: Names, bare: bool) -> None:
        self.cursor = cursor
        self.names = names
        self.bare = bare
        self._taken = {token.text for token in cursor.tokens if token.kind is TokenKind.BLANK}
        self._numbers = count()

    def fresh(self) -> str:
        """A label such as `_:0` that stands nowhere in the text: the same one each time it is parsed."""
        return next(label for each in self._numbers if (label := f"_:{each}") not in self._taken)

    def at_iri(self) -> bool:
        """Whether an IRI is next, in any of its forms."""
        token = self.cursor.token
        if token.kind is TokenKind.WORD:
            return self.bare and token.word not in RESERVED and token.text not in ("true", "false")
        return token.kind in (TokenKind.IRI, TokenKind.NAME)

    def iri(self, what: str) -> Iri:
        """An IRI, which must be next; `what` says in words what it is for."""
        if not self.at_iri():
            raise self.cursor.expected(what, self._hint())
        token = self.cursor.advance()
        if token.kind is TokenKind.IRI:
            return self.names.iri(token)
        if token.kind is TokenKind.NAME:
            return self.names.prefixed(token)
        return self.names.expand("", token.text, token.span)

    def _hint(self) -> str | None:
        token = self.cursor.token
        if token.kind is not TokenKind.WORD:
            return None
        if self.bare and token.word in RESERVED:
            return f"{describe(token)} is a keyword; for the name write :{describe(token)}"
        return "a name has a prefix, as in rdf:type, or is an IRI: <http://...>"

    def at_literal(self) -> bool:
        """Whether a literal is next, perhaps with a sign before it."""
        kind = self.cursor.token.kind
        if kind is TokenKind.SIGN:
            sign, number = self.cursor.token, self.cursor.next
            return sign.text in "+-" and number.kind in _DATATYPES and number.start == sign.end
        return kind is TokenKind.STRING or kind in _DATATYPES or self.cursor.at_word("TRUE", "FALSE")

    def literal(self) -> Literal:
        """A literal, which is next."""
        token = self.cursor.advance()
        if token.kind is TokenKind.STRING:
            return self._string(token)
        if token.kind is TokenKind.WORD:
            return Literal(token.text.lower(), XSD + "boolean")
        if token.kind is TokenKind.SIGN:
            return self.number(self.cursor.advance(), token.text)
        return self.number(token, "")

    def number(self, token: Token, sign: str) -> Literal:
        """The literal of a number and the sign directly before it."""
        if len(token.text) > _LONGEST_NUMBER:
            self.cursor.report.error("this number has too many digits", token.span)
            return Literal("0", XSD + "integer")
        return self._spelt(Literal(sign + token.text, _DATATYPES[token.kind]))

    def _string(self, token: Token) -> Literal:
        text = string_value(token, self.cursor.report)
        if language := self.cursor.accept_kind(TokenKind.LANGUAGE):
            return Literal(text, language=language.text[1:].lower())
        if self.cursor.accept("^^"):
            return self._spelt(Literal(text, self.iri("a datatype after ^^, as in xsd:integer").value))
        return Literal(text)

    def _spelt(self, literal: Literal) -> Literal:
        return literal if self.bare else normalise(literal)


# ----------------------------------------------------------------------------------------------------------
# Triple patterns and property paths, with everything that Turtle lets one leave out.

_TYPE, _FIRST = Iri(RDF + "type"), Iri(RDF + "first")
_REST, _NIL = Iri(RDF + "rest"), Iri(RDF + "nil")
_REPEATS = {"*": (0, True), "+": (1, True), "?": (0, False)}


class TripleBlocks:
    """A parser of triples. In a `template` a blank node is a new node, in a pattern it is a variable."""

    def __init__(self, cursor: Cursor, terms: TermParser, template: bool = False) -> None:
        self.cursor = cursor
        self.terms = terms
        self.template = template
        self._found: list[sparql.TriplePattern] = []

    def at_subject(self) -> bool:
        """Whether a triple can begin here."""
        kind = self.cursor.token.kind
        return (
            kind in (TokenKind.VARIABLE, TokenKind.BLANK)
            or self.cursor.at("[", "(")
            or self.terms.at_literal()
            or self.terms.at_iri()
        )

    def block(self) -> sparql.TripleBlock:
        """Triples with a dot between them."""
        start = self.cursor.token
        self._found = []
        self._same_subject()
        while self.cursor.accept(".") and self.at_subject():
            self._same_subject()
        return sparql.TripleBlock(tuple(self._found), span=self.cursor.since(start))

    def _same_subject(self) -> None:
        start = self.cursor.token
        standalone = self.cursor.at("[", "(")
        before = len(self._found)
        subject = self._node("a subject")
        if standalone and len(self._found) > before and not self._at_verb():
            return
        self._properties(subject, start)

    def _at_verb(self) -> bool:
        return (
            self.cursor.token.kind is TokenKind.VARIABLE
            or self.cursor.at("^", "!", "(")
            or self.cursor.token.text == "a"
            or self.terms.at_iri()
        )

    def _properties(self, subject: sparql.Node, start: Token) -> None:
        """`verb object, object ; verb object`, a semicolon too many is allowed."""
        while True:
            predicate = self._verb()
            while True:
                target = self._node("an object")
                span = self.cursor.since(start)
                self._found.append(sparql.TriplePattern(subject, predicate, target, span=span))
                if not self.cursor.accept(","):
                    break
            if not self.cursor.at(";"):
                return
            while self.cursor.accept(";"):
                pass
            if not self._at_verb():
                return

    def _node(self, what: str) -> sparql.Node:
        """A subject or an object, with the triples that its brackets stand for."""
        token = self.cursor.token
        if token.kind is TokenKind.VARIABLE:
            return Variable(self.cursor.advance().text[1:])
        if token.kind is TokenKind.BLANK:
            return self._blank(self.cursor.advance().text)
        if self.cursor.at("["):
            return self._property_list()
        if self.cursor.at("("):
            return self._collection()
        if self.terms.at_literal():
            return self.terms.literal()
        return self.terms.iri(f"{what}: a variable, a name or a value")

    def _blank(self, label: str) -> sparql.Node:
        return Blank(label[2:]) if self.template else Variable(label)

    def _property_list(self) -> sparql.Node:
        with self.cursor:
            start = self.cursor.advance()
            node = self._blank(self.terms.fresh())
            if not self.cursor.at("]"):
                self._properties(node, start)
            self.cursor.expect("]", "to close the [")
            return node

    def _collection(self) -> sparql.Node:
        with self.cursor:
            start = self.cursor.advance()
            members: list[sparql.Node] = []
            while not self.cursor.at(")") and not self.cursor.at_end:
                members.append(self._node("a member of the list"))
            self.cursor.expect(")", "to close the list")
            span = self.cursor.since(start)
            cells = [self._blank(self.terms.fresh()) for _ in members]
            for cell, member, rest in zip(cells, members, [*cells[1:], _NIL], strict=False):
                self._found.append(sparql.TriplePattern(cell, _FIRST, member, span=span))
                self._found.append(sparql.TriplePattern(cell, _REST, rest, span=span))
            return cells[0] if cells else _NIL

    def _verb(self) -> sparql.Predicate:
        token = self.cursor.token
        if token.kind is TokenKind.VARIABLE:
            return Variable(self.cursor.advance().text[1:])
        path = self._alternative()
        if self.template and isinstance(path, sparql.Path):
            hint = "a template makes single triples"
            raise self.cursor.stuck(
                "a property path cannot stand in a template", self.cursor.since(token), hint
            )
        return path

    def _alternative(self) -> Iri | sparql.Path:
        with self.cursor:
            parts = [self._sequence()]
            while self.cursor.accept("|"):
                parts.append(self._sequence())
            return parts[0] if len(parts) == 1 else sparql.Alternative(tuple(parts))

    def _sequence(self) -> Iri | sparql.Path:
        parts = [self._step()]
        while self.cursor.accept("/"):
            parts.append(self._step())
        return parts[0] if len(parts) == 1 else sparql.Steps(tuple(parts))

    def _step(self) -> Iri | sparql.Path:
        if self.cursor.accept("^"):
            return sparql.Inverse(self._repeated())
        return self._repeated()

    def _repeated(self) -> Iri | sparql.Path:
        path = self._path_primary()
        # In `?s ex:p +5` the sign belongs to the number.
        if self.cursor.at(*_REPEATS) and not self.terms.at_literal():
            least, unbounded = _REPEATS[self.cursor.advance().text]
            return sparql.Repeat(path, least, unbounded)
        return path

    def _path_primary(self) -> Iri | sparql.Path:
        if self.cursor.accept("("):
            inner = self._alternative()
            self.cursor.expect(")", "to close the path")
            return inner
        if self.cursor.accept("!"):
            return self._negated()
        return self._property()

    def _property(self) -> Iri:
        if self.cursor.token.kind is TokenKind.WORD and self.cursor.token.text == "a":
            self.cursor.advance()
            return _TYPE
        return self.terms.iri("a property: a name such as rdf:type, a path or a variable")

    def _negated(self) -> sparql.Path:
        """`!p`, `!^p`, `!(p|^q)`"""
        forward: list[Iri] = []
        inverse: list[Iri] = []
        several = self.cursor.accept("(")
        while not (several and self.cursor.at(")")):
            side = inverse if self.cursor.accept("^") else forward
            side.append(self._property())
            if not several or not self.cursor.accept("|"):
                break
        if several:
            self.cursor.expect(")", "to close the properties after !")
        return sparql.Negated(tuple(forward), tuple(inverse))


# ----------------------------------------------------------------------------------------------------------
# The expressions of SPARQL: operands, functions, aggregates, EXISTS.

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
        self,
        cursor: Cursor,
        names: Names,
        terms: TermParser,
        group: Callable[[str], sparql.Group],
        temporal: bool,
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
        if self.cursor.token.kind in (TokenKind.WORD, TokenKind.NAME, TokenKind.IRI):
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
        if token.kind is TokenKind.VARIABLE:
            return VariableRef(self.cursor.advance().text[1:], span=token.span)
        if token.kind is TokenKind.WORD and (found := self._keyword(token)):
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
        if self.cursor.next.text != "(" or self.cursor.next.kind is not TokenKind.SIGN:
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
        token = self.cursor.expect_kind(TokenKind.STRING, "a string after SEPARATOR =")
        return string_value(token, self.cursor.report)


# ----------------------------------------------------------------------------------------------------------
# SPARQL groups and subselects: what stands in a PATH, and the body of an EP-SPARQL query.

_MOST_ELEMENTS = 100
_AFTER_WHERE = ("GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
_NO_ORDER = "leave it out, or put the whole pattern into a WINDOW"
_REFUSED = {
    "ORDER": ("ORDER BY is not possible on a stream: matches come in the order of their end", _NO_ORDER),
    "LIMIT": ("LIMIT is not possible on a stream: there is no last match", _NO_ORDER),
    "OFFSET": ("OFFSET is not possible on a stream: matches come as they happen", _NO_ORDER),
    "SERVICE": (
        "SERVICE is not supported: an answer must depend on stream and knowledge alone",
        "load that knowledge beside the rest",
    ),
    "SEQOPTIONAL": (
        "SEQOPTIONAL is not timewise monotone: a later triple could take back an answer already given",
        "use OPTIONALSEQ, which looks for the optional part earlier, or NOT for an absence",
    ),
}


def is_all_windows(where: sparql.Group) -> bool:
    """Whether a pattern is WINDOW blocks, with FILTER and BIND beside them: each evaluation is finite."""
    windows = any(isinstance(each, sparql.InWindow) for each in where.elements)
    return windows and all(
        isinstance(each, sparql.InWindow | sparql.Filter | sparql.Bind) for each in where.elements
    )


class Groups:
    """A parser of groups; with `temporal`, of those of EP-SPARQL."""

    def __init__(self, cursor: Cursor, names: Names, temporal: bool) -> None:
        self.cursor = cursor
        self.temporal = temporal
        self.terms = TermParser(cursor, names, bare=temporal)
        self.triples = TripleBlocks(cursor, self.terms)
        self.expressions = SparqlExpressions(cursor, names, self.terms, self.group, temporal)
        self._blanks: dict[str, object] = {}
        self._windows: dict[Iri, sparql.WindowClause] = {}
        self._elements: dict[str, Callable[[Token], sparql.Element]] = {
            "FILTER": self._filter,
            "OPTIONAL": self._optional,
            "MINUS": self._minus,
            "BIND": self._bind,
            "VALUES": self._values,
            "GRAPH": self._in_graph,
        }

    def group(self, where: str) -> sparql.Group:
        """`{ ... }`; `where` says in words what it belongs to."""
        with self.cursor:
            start = self.cursor.expect("{", where)
            if self.cursor.at_word("SELECT"):
                elements: tuple[sparql.Element, ...] = (self._subselect(),)
            else:
                elements = self._body(start.depth + 1)
            if self.cursor.token.word in _REFUSED:
                self._refuse()
            line, _ = self.cursor.report.source.position(start.start)
            self.cursor.expect("}", "to close the group", f"its {{ is in line {line}")
            return sparql.Group(elements, span=self.cursor.since(start))

    def where(self) -> sparql.Group:
        """`WHERE { ... }`, or as the EP-SPARQL paper prints it, without braces around groups and filters."""
        if not self.cursor.accept_word("WHERE") and not self.cursor.at("{"):
            raise self.cursor.expected("WHERE", near(self.cursor.token.text, ["WHERE"]))
        start = self.cursor.token
        if self.cursor.at("}") or self.cursor.at_end:
            raise self.cursor.expected("{ after WHERE")
        elements = self._body(start.depth)
        if len(elements) == 1 and isinstance(elements[0], sparql.Group):
            return elements[0]
        return sparql.Group(elements, span=self.cursor.since(start))

    def _body(self, depth: int) -> tuple[sparql.Element, ...]:
        """The parts of a group, up to what closes it. After an error it goes on with the next part."""
        elements: list[sparql.Element] = []
        pattern = object()
        while not (self.cursor.at_end or self.cursor.at("}") or self.cursor.at_word(*_AFTER_WHERE)):
            begun = self.cursor.index
            try:
                if elements and isinstance(elements[-1], sparql.TripleBlock):
                    self._need_dot()
                elements.append(self._element())
                if isinstance(elements[-1], sparql.TripleBlock):
                    self._keep_blanks_in(pattern, elements[-1])
                    continue
                if not isinstance(elements[-1], sparql.Filter):
                    pattern = object()
                self.cursor.accept(".")
            except Stuck as stuck:
                self.cursor.report.add(stuck.diagnostic)
                self._skip_to_element(begun, depth)
        if sum(not isinstance(each, sparql.TripleBlock) for each in elements) > _MOST_ELEMENTS:
            span = elements[_MOST_ELEMENTS].span or self.cursor.token.span
            self.cursor.report.error(f"a group has more than {_MOST_ELEMENTS} parts", span)
        return tuple(elements)

    def _need_dot(self) -> None:
        """After triples: either a dot ended them, or no other triple follows."""
        if self.cursor.last.text != "." and self.triples.at_subject() and not self._at_unknown_keyword():
            raise self.cursor.expected(". between two triples")

    def _keep_blanks_in(self, pattern: object, triples: sparql.TripleBlock) -> None:
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
            if here.depth <= depth and here.text == "." and here.kind is TokenKind.SIGN:
                cursor.advance()
                return
            cursor.advance()

    def _element(self) -> sparql.Element:
        token = self.cursor.token
        if token.word in self._elements:
            return self._elements[token.word](self.cursor.advance())
        if self.temporal and token.word == "WINDOW" and self.cursor.after_next.text == "{":
            return self._in_window(self.cursor.advance())
        if self.cursor.at("{"):
            return self._chain()
        if token.word in _REFUSED:
            self._refuse()
        if token.word == "WITHIN" and self.cursor.next.kind in (TokenKind.INTEGER, TokenKind.DURATION):
            bound = 'write FILTER (getDURATION() <= "PT10S"^^xsd:duration) inside of the pattern'
            raise self.cursor.stuck("WITHIN belongs to chi-CEP, not to EP-SPARQL", token.span, bound)
        if self.triples.at_subject() and not self._at_unknown_keyword():
            return self.triples.block()
        if token.word in sparql.TEMPORAL_OPERATORS or token.word == "UNION":
            raise self.cursor.stuck(
                f"{token.word} belongs between two groups",
                token.span,
                f"put both sides in braces: {{ ... }} {token.word} {{ ... }}",
            )
        known = [*self._elements, "UNION", *sparql.TEMPORAL_OPERATORS]
        hint = near(token.text, known) if token.kind is TokenKind.WORD else None
        if token.kind is TokenKind.WORD and self.cursor.next.kind in (
            TokenKind.NAME,
            TokenKind.IRI,
            TokenKind.VARIABLE,
        ):
            hint = f"a variable begins with ?: ?{token.text}"
        raise self.cursor.expected("a triple, a group, or a keyword such as FILTER or OPTIONAL", hint)

    def _at_unknown_keyword(self) -> bool:
        """Whether a word is next that is no keyword but stands like one; it could be a bare name too."""
        return self.cursor.token.kind is TokenKind.WORD and self.cursor.next.text in ("(", "{")

    def _refuse(self) -> NoReturn:
        message, hint = _REFUSED[self.cursor.token.word]
        raise self.cursor.stuck(message, self.cursor.token.span, hint)

    def _chain(self) -> sparql.Element:
        """Groups with operators between them, all equally tight, from left to right."""
        start = self.cursor.token
        left: sparql.Element = self.group("before a group")
        while self.cursor.at_word("UNION", "SEQOPTIONAL", *sparql.TEMPORAL_OPERATORS):
            operator = self.cursor.token
            if operator.word == "SEQOPTIONAL":
                self._refuse()
            if not self.temporal and operator.word != "UNION":
                hint = "order the events outside of the PATH, with SEQ (?a, ?b)"
                message = f"{operator.word} belongs to EP-SPARQL; knowledge in a PATH has no time"
                raise self.cursor.stuck(message, operator.span, hint)
            self.cursor.advance()
            right = self.group(f"and a group after {operator.word}")
            left = sparql.GroupOperation(operator.word, left, right, span=self.cursor.since(start))
        return left

    def _filter(self, keyword: Token) -> sparql.Element:
        return sparql.Filter(self.expressions.constraint("FILTER"), span=self.cursor.since(keyword))

    def _optional(self, keyword: Token) -> sparql.Element:
        return sparql.Optional(self.group("after OPTIONAL"), span=self.cursor.since(keyword))

    def _minus(self, keyword: Token) -> sparql.Element:
        return sparql.MinusGroup(self.group("after MINUS"), span=self.cursor.since(keyword))

    def _in_graph(self, keyword: Token) -> sparql.Element:
        """`GRAPH :name { ... }`, or a variable in the place of the name"""
        name: Iri | Variable
        if self.cursor.token.kind is TokenKind.VARIABLE:
            name = Variable(self.cursor.advance().text[1:])
        else:
            name = self.terms.iri("the name of a graph after GRAPH")
        return sparql.InGraph(name, self.group("after the name of a graph"), span=self.cursor.since(keyword))

    def _bind(self, keyword: Token) -> sparql.Element:
        hint = "for example BIND (?a + 1 AS ?b)"
        self.cursor.expect("(", "after BIND", hint)
        expr = self.expressions.expression()
        self.cursor.expect_word("AS", "after the expression of BIND")
        name = self._variable("a variable after AS", hint)
        self.cursor.expect(")", "to close BIND")
        return sparql.Bind(expr, name, span=self.cursor.since(keyword))

    def _variable(self, what: str, hint: str | None = None) -> str:
        return self.cursor.expect_kind(TokenKind.VARIABLE, what, hint).text[1:]

    def _in_window(self, keyword: Token) -> sparql.Element:
        """`WINDOW :name { ... }`"""
        token = self.cursor.token
        name = self.terms.iri("the name of a window after WINDOW")
        group = self.group("after the name of a window")
        window = self._windows.get(name)
        if window is None:
            known = ", ".join(f"<{each.value}>" for each in self._windows)
            hint = f"declared are {known}" if known else "declare it: FROM NAMED WINDOW :w ON :s [..]"
            raise self.cursor.stuck(f"no window is called <{name.value}>", token.span, hint)
        return sparql.InWindow(window, group, span=self.cursor.since(keyword))

    def windows(self) -> tuple[sparql.WindowClause, ...]:
        """Every `FROM NAMED WINDOW :name ON stream [RANGE PT10S STEP PT5S]` or `[ROWS 100 STEP 10]`."""
        found: list[sparql.WindowClause] = []
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
                window = sparql.WindowClause(name, stream, rows=rows, step=step, span=at)
            else:
                self.cursor.expect_word("RANGE", "or ROWS in a window")
                width, step = self._length(), self._length() if self.cursor.accept_word("STEP") else None
                window = sparql.WindowClause(name, stream, width=width, step=step, span=at)
            self.cursor.expect("]", "to close the window")
            self._windows[name] = window
            found.append(window)
        return tuple(found)

    def _count(self) -> int:
        token = self.cursor.expect_kind(TokenKind.INTEGER, "a number of triples")
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

    def _values(self, keyword: Token) -> sparql.Element:
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
        return sparql.Values(tuple(names), tuple(rows), span=cursor.since(keyword))

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

    def _subselect(self) -> sparql.Element:
        start = self.cursor.advance()
        select = self.select()
        return sparql.SubSelect(select, span=self.cursor.since(start))

    def select(self) -> sparql.Select:
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
        return sparql.Select(columns, where, group_by, having, distinct, report, windows, ordering)

    def _ordering(self) -> sparql.Ordering | None:
        """`ORDER BY ... LIMIT n OFFSET m`, of which any part may be missing."""
        keys: list[tuple[Expr, bool]] = []
        if self.cursor.accept_word("ORDER"):
            self.cursor.expect_word("BY", "after ORDER")
            while not keys or self.cursor.token.kind is TokenKind.VARIABLE or self._at_key():
                downwards = self.cursor.accept_word("DESC") is not None
                if not downwards:
                    self.cursor.accept_word("ASC")
                keys.append((self.expressions.expression(), downwards))
        numbers: dict[str, int] = {}
        while (word := self.cursor.token.word) in ("LIMIT", "OFFSET") and word not in numbers:
            self.cursor.advance()
            token = self.cursor.expect_kind(TokenKind.INTEGER, f"a whole number after {word}")
            numbers[word] = int(token.text)
        if not keys and not numbers:
            return None
        return sparql.Ordering(tuple(keys), numbers.get("LIMIT"), numbers.get("OFFSET", 0))

    def _at_key(self) -> bool:
        """Whether another key of an ORDER BY begins here."""
        is_call = self.cursor.token.kind is not TokenKind.SIGN and self.cursor.next.text == "("
        return self.cursor.at("(") or is_call

    def _report(self) -> str:
        """Which solutions of its windows a SELECT gives."""
        for word in ("RSTREAM", "ISTREAM", "DSTREAM"):
            if self.temporal and self.cursor.accept_word(word):
                return word
        return "RSTREAM"

    def _columns(self) -> tuple[sparql.Projection, ...]:
        columns: list[sparql.Projection] = []
        while not (self.cursor.at("{", "}") or self.cursor.at_end or self.cursor.at_word("WHERE", "FROM")):
            columns.append(self._column())
            if self.cursor.at(","):
                raise self.cursor.expected("another column or WHERE", "SPARQL has no commas between columns")
        if not columns:
            raise self.cursor.expected("a variable, (expression AS ?name), or * after SELECT")
        return tuple(columns)

    def _column(self) -> sparql.Projection:
        """`?x`, `(expr AS ?x)`, and as the paper prints it: `expr AS ?x`, `?x AS expr`."""
        start = self.cursor.token
        if self.cursor.at("(") and (column := self._standard_column()):
            return column
        left = self.expressions.expression()
        if not self.cursor.accept_word("AS"):
            if isinstance(left, VariableRef):
                return sparql.Projection(left.name, span=start.span)
            if start.kind is TokenKind.WORD and self.cursor.last is start:
                hint = f"a variable begins with ?: ?{start.text}"
                raise self.cursor.stuck(f"expected a variable, found {start.text}", start.span, hint)
            raise self.cursor.expected("AS and a name for the expression", "write (expression AS ?name)")
        right = self.expressions.expression()
        span = self.cursor.since(start)
        if isinstance(right, VariableRef):
            return sparql.Projection(right.name, left, span=span)
        if isinstance(left, VariableRef):
            return sparql.Projection(left.name, right, span=span)
        raise self.cursor.stuck("neither side of AS is a variable", span, "write (expression AS ?name)")

    def _standard_column(self) -> sparql.Projection | None:
        """`(expr AS ?x)`; None, and nothing taken, where the parenthesis only begins an expression."""
        start, begun = self.cursor.advance(), self.cursor.index - 1
        expr = self.expressions.expression()
        if not self.cursor.accept_word("AS"):
            self.cursor.index = begun
            return None
        name = self._variable("a variable after AS", "for example (?a + 1 AS ?b)")
        self.cursor.expect(")", "after the name")
        return sparql.Projection(name, expr, span=self.cursor.since(start))

    def _group_by(self) -> tuple[sparql.Projection, ...]:
        if not self.cursor.accept_word("GROUP"):
            return ()
        self.cursor.expect_word("BY", "after GROUP")
        keys = [self._key()]
        while (
            self.cursor.at("(")
            or self.cursor.token.kind in (TokenKind.VARIABLE, TokenKind.NAME, TokenKind.IRI)
            or (self.cursor.token.kind is TokenKind.WORD and not self.cursor.at_word(*_AFTER_WHERE, "VALUES"))
        ):
            keys.append(self._key())
        return tuple(keys)

    def _key(self) -> sparql.Projection:
        """A variable, a call, or an expression in parentheses, perhaps with a name."""
        start = self.cursor.token
        if self.cursor.accept_kind(TokenKind.VARIABLE):
            return sparql.Projection(start.text[1:], span=start.span)
        if not self.cursor.at("("):
            expr: Expr = self.expressions.primary()
            if not isinstance(expr, Call):
                raise self.cursor.stuck(
                    f"{describe(start)} is not a key to group by", start.span, "write GROUP BY ?x"
                )
            return sparql.Projection(self.terms.fresh(), expr, span=self.cursor.since(start))
        self.cursor.advance()
        expr = self.expressions.expression()
        name = self._variable("a variable after AS") if self.cursor.accept_word("AS") else self.terms.fresh()
        self.cursor.expect(")", "after the key")
        return sparql.Projection(name, expr, span=self.cursor.since(start))

    def _having(self) -> tuple[Expr, ...]:
        if not self.cursor.accept_word("HAVING"):
            return ()
        self.expressions.aggregates = True
        conditions = [self.expressions.constraint("HAVING")]
        while self.cursor.at("("):
            conditions.append(self.expressions.constraint("HAVING"))
        self.expressions.aggregates = False
        return tuple(conditions)
