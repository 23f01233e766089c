"""Queries as text: what a parser read, printed again. Parsing the print gives an equal query.

Parentheses stand only where they are needed, and where `!` and `-` would mislead the eye. An IRI is
shortened by the prefixes of its query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kaicep.plan import chi, sparql
from kaicep.plan.catalog import WELL_KNOWN_PREFIXES
from kaicep.plan.expressions import (
    Aggregate,
    Attribute,
    Call,
    Concept,
    Const,
    Exists,
    Expr,
    Field,
    Previous,
    TermConst,
    VariableRef,
    rewrite,
)
from kaicep.plan.terms import XSD, Iri, Literal, Term, Variable
from kaicep.plan.time import format_duration, format_time
from kaicep.plan.types import Type
from kaicep.plan.values import format_xsd_duration

LOOSEST, _AND, NEGATION, COMPARISON, _SUM, _PRODUCT, TIGHTEST = range(1, 8)

# How tightly an operator binds. `!` binds like this in chi-CEP; in SPARQL it is as tight as can be.
PRECEDENCE: Mapping[str, int] = {
    "or": LOOSEST,
    "and": _AND,
    "not": NEGATION,
    **dict.fromkeys(("=", "!=", "<", "<=", ">", ">=", "in", "notin"), COMPARISON),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
    "neg": TIGHTEST,
}

# Known in every EP-SPARQL query; the empty prefix is where bare names live.
EP_PREFIXES: Mapping[str, str] = {**WELL_KNOWN_PREFIXES, "": "urn:kaicep:"}

_NO_PREFIXES: Mapping[str, str] = MappingProxyType({})
_NO_FUNCTIONS: Mapping[str, Iri] = MappingProxyType({})
_SIGNS = {"or": "||", "and": "&&"}
_LOCAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAME = re.compile(r"[^\W\d]\w*")
_BARE_LITERALS = {
    XSD + "integer": re.compile(r"-?[0-9]+"),
    XSD + "decimal": re.compile(r"-?[0-9]+\.[0-9]+"),
    XSD + "double": re.compile(r"-?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+"),
    XSD + "boolean": re.compile(r"true|false"),
}
_INDENT = "  "


def iri_text(iri: Iri, prefixes: Mapping[str, str] = _NO_PREFIXES) -> str:
    """An IRI, shortened by a prefix where one fits.

    >>> iri_text(Iri("http://a.org/b"), {"a": "http://a.org/"}), iri_text(Iri("http://a.org/b"))
    ('a:b', '<http://a.org/b>')
    """
    best: str | None = None
    for prefix, namespace in prefixes.items():
        if iri.value.startswith(namespace) and _LOCAL.fullmatch(iri.value, len(namespace)):
            short = f"{prefix}:{iri.value[len(namespace) :]}"
            best = short if best is None or len(short) < len(best) else best
    return best or str(iri)


def name_text(name: str) -> str:
    """The name of an attribute, a column or a stream; in backquotes where it is odd.

    >>> name_text("flowrate"), name_text("flow rate")
    ('flowrate', '`flow rate`')
    """
    return name if _NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def expression_text(expr: Expr, prefixes: Mapping[str, str] = _NO_PREFIXES) -> str:
    """An expression of either language.

    >>> rise = Call("-", (Attribute("b", "x"), Attribute("a", "x")))
    >>> expression_text(Call(">", (Call("*", (rise, Const(2, Type.INT64))), Const(50, Type.INT64))))
    '(?b.x - ?a.x) * 2 > 50'
    """
    return _Printer(prefixes).expression(expr)


def resolved_text(expr: Expr) -> str:
    """A resolved expression as one would write it: that int64 is widened goes without saying."""
    return expression_text(
        rewrite(expr, lambda node: node.args[0] if isinstance(node, Call) and node.op == "float" else node)
    )


def group_text(
    group: sparql.Group,
    indent: int = 0,
    prefixes: Mapping[str, str] = _NO_PREFIXES,
    functions: Mapping[str, Iri] = _NO_FUNCTIONS,
) -> str:
    """A SPARQL group with its braces; all lines but the first begin with `indent` steps.

    `functions` are called by an IRI in the place of their names.

    >>> pattern = sparql.TriplePattern(Variable("x"), Iri("urn:p"), Variable("y"))
    >>> print(group_text(sparql.Group((sparql.TripleBlock((pattern,)),))))
    {
      ?x <urn:p> ?y .
    }
    """
    return _Printer(prefixes, functions).group(group, indent)


def triple_text(pattern: sparql.TriplePattern, prefixes: Mapping[str, str] = _NO_PREFIXES) -> str:
    """A triple pattern with its full stop."""
    return _Printer(prefixes).triple(pattern)


def predicate_text(path: Iri | sparql.Path, prefixes: Mapping[str, str] = _NO_PREFIXES) -> str:
    """A property or a property path.

    >>> predicate_text(sparql.Steps((Iri("urn:p"), sparql.Inverse(Iri("urn:q")))))
    '<urn:p>/^<urn:q>'
    """
    return _Printer(prefixes).path(path)


def window_text(window: sparql.WindowClause, prefixes: Mapping[str, str] = _NO_PREFIXES) -> str:
    """A window as its declaration names it: `:w ON s [RANGE PT10S]`."""
    return _Printer(prefixes).window(window).removeprefix("FROM NAMED WINDOW ")


def chi_text(query: chi.ChiQuery) -> str:
    """A chi-CEP query."""
    return _ChiPrinter({**WELL_KNOWN_PREFIXES, **dict(query.prefixes)}).query(query)


def ep_text(query: sparql.EpQuery) -> str:
    """An EP-SPARQL query."""
    return _EpPrinter({**EP_PREFIXES, **dict(query.prefixes)}).query(query)


def _string(text: str) -> str:
    return str(Literal(text))


def _declarations(prefixes: Iterable[tuple[str, str]]) -> list[str]:
    return [f"PREFIX {prefix}: <{namespace}>" for prefix, namespace in prefixes]


class _Printer:
    """Expressions, groups and what they are made of, with the prefixes to shorten IRIs by."""

    def __init__(self, prefixes: Mapping[str, str], functions: Mapping[str, Iri] = _NO_FUNCTIONS) -> None:
        self.prefixes = prefixes
        self.functions = functions

    # Terms and triples.

    def iri(self, iri: Iri) -> str:
        return iri_text(iri, self.prefixes)

    def term(self, term: Term | Variable) -> str:
        if isinstance(term, Variable):
            return term.name if term.name.startswith("_:") else f"?{term.name}"
        if isinstance(term, Iri):
            return self.iri(term)
        if not isinstance(term, Literal) or term.language is not None:
            return str(term)
        bare = _BARE_LITERALS.get(term.datatype)
        if bare and bare.fullmatch(term.lexical):
            return term.lexical
        if term.datatype == XSD + "string":
            return str(term)
        return f"{_string(term.lexical)}^^{self.iri(Iri(term.datatype))}"

    def predicate(self, predicate: sparql.Predicate) -> str:
        if isinstance(predicate, sparql.Path):
            return self.path(predicate)
        return self.term(predicate)

    def path(self, path: Iri | sparql.Path) -> str:
        match path:
            case sparql.Alternative(parts):
                return "|".join(self._inner(each, sparql.Alternative) for each in parts)
            case sparql.Steps(parts):
                return "/".join(self._inner(each, sparql.Alternative, sparql.Steps) for each in parts)
            case sparql.Inverse(of):
                return "^" + self._inner(of, sparql.Alternative, sparql.Steps, sparql.Inverse)
            case sparql.Repeat(of, least, unbounded):
                sign = ("+" if least else "*") if unbounded else "?"
                return self._inner(of, sparql.Alternative, sparql.Steps, sparql.Inverse, sparql.Repeat) + sign
            case sparql.Negated(forward, inverse):
                names = [self.iri(each) for each in forward] + ["^" + self.iri(each) for each in inverse]
                return f"!({'|'.join(names)})"
            case Iri():
                return self.iri(path)
        raise TypeError(f"no such path: {path!r}")

    def _inner(self, path: Iri | sparql.Path, *in_parentheses: type[sparql.Path]) -> str:
        text = self.path(path)
        return f"({text})" if isinstance(path, in_parentheses) else text

    def triple(self, pattern: sparql.TriplePattern) -> str:
        subject, target = self.term(pattern.subject), self.term(pattern.object)
        return f"{subject} {self.predicate(pattern.predicate)} {target} ."

    # Expressions.

    def expression(self, expr: Expr) -> str:
        match expr:
            case Const():
                return self._constant(expr)
            case Attribute(variable=variable, name=name) | Field(variable=variable, name=name):
                return f"?{variable}.{name_text(name)}"
            case Concept(variable=variable):
                return f"?{variable}.{self._concept(expr)}"
            case VariableRef(name=name):
                return f"?{name}"
            case TermConst(term=term):
                return self.term(term)
            case Previous(of=of):
                return f"PREV({self.expression(of)})"
            case Aggregate():
                return self._aggregate(expr)
            case Exists(group=group, negated=negated):
                assert isinstance(group, sparql.Group)
                return f"{'NOT ' if negated else ''}EXISTS {self.inline(group)}"
            case Call():
                return self._call(expr)
        raise TypeError(f"no such expression: {expr!r}")

    def _constant(self, const: Const) -> str:
        value = const.value
        if value is None:
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return _string(value)
        if const.type is Type.TIMESTAMP and isinstance(value, int):
            return _string(format_time(value))
        return repr(value)

    def _concept(self, concept: Concept) -> str:
        """As it was written, if its prefix is known here or the full IRI was; else in full."""
        prefix = concept.text.partition(":")[0]
        if concept.text.startswith("<") or not self.prefixes or prefix in self.prefixes:
            return concept.text
        return str(concept.iri)

    def _aggregate(self, aggregate: Aggregate) -> str:
        if aggregate.of is not None:
            inside = self.expression(aggregate.of)
        else:
            inside = f"?{aggregate.variable}" if aggregate.variable else "*"
        if aggregate.distinct:
            inside = f"DISTINCT {inside}"
        if aggregate.separator != " ":
            inside += f" ; SEPARATOR = {_string(aggregate.separator)}"
        return f"{aggregate.op}({inside})"

    def _call(self, call: Call) -> str:
        op, args = call.op, call.args
        if op == "not":
            doubled = isinstance(args[0], Call) and args[0].op == "not"
            return "!" + self._operand(args[0], NEGATION if doubled else TIGHTEST)
        if op == "neg":
            text = self._operand(args[0], TIGHTEST)
            return f"-({text})" if text[0].isdigit() else f"-{text}"  # -5 would be a number by itself
        if op in ("in", "notin"):
            choices = ", ".join(self.expression(each) for each in args[1:])
            word = "IN" if op == "in" else "NOT IN"
            return f"{self._operand(args[0], COMPARISON + 1)} {word} ({choices})"
        if op in PRECEDENCE:
            power = PRECEDENCE[op]
            left_least = power + 1 if power == COMPARISON else power
            left, right = self._operand(args[0], left_least), self._operand(args[1], power + 1)
            return f"{left} {_SIGNS.get(op, op)} {right}"
        op = self.functions[op].value if op in self.functions else op
        name = self.iri(Iri(op)) if ":" in op else op
        return f"{name}({', '.join(self.expression(each) for each in args)})"

    def _operand(self, expr: Expr, least: int) -> str:
        """An operand, in parentheses where it binds less tightly than its place asks for."""
        text = self.expression(expr)
        power = PRECEDENCE.get(expr.op, TIGHTEST) if isinstance(expr, Call) else TIGHTEST
        return f"({text})" if power < least else text

    # Groups.

    def group(self, group: sparql.Group, indent: int) -> str:
        inner = _INDENT * (indent + 1)
        lines = [line for element in group.elements for line in self._element(element, indent + 1)]
        return "\n".join(["{", *(inner + line for line in lines), _INDENT * indent + "}"])

    def inline(self, group: sparql.Group) -> str:
        """A group on one line, as an expression holds it. No token of ours spans a line end."""
        return " ".join(line.strip() for line in self.group(group, 0).split("\n"))

    def _element(self, element: sparql.Element, indent: int) -> list[str]:
        match element:
            case sparql.TripleBlock(patterns=patterns):
                return [self.triple(each) for each in patterns]
            case sparql.Filter(condition=condition):
                text = self.expression(condition)
                return [f"FILTER {text}" if isinstance(condition, Exists) else f"FILTER ({text})"]
            case sparql.Optional(group=group):
                return [f"OPTIONAL {self.group(group, indent)}"]
            case sparql.MinusGroup(group=group):
                return [f"MINUS {self.group(group, indent)}"]
            case sparql.Bind(expr=expr, variable=variable):
                return [f"BIND ({self.expression(expr)} AS ?{variable})"]
            case sparql.Values():
                return [self._values(element)]
            case sparql.SubSelect(select=select):
                return self.select(select, indent)
            case sparql.InWindow(window=window, group=group):
                return [f"WINDOW {self.iri(window.name)} {self.group(group, indent)}"]
            case sparql.InGraph(name=name, group=group):
                return [f"GRAPH {self.term(name)} {self.group(group, indent)}"]
            case sparql.Group():
                return [self.group(element, indent)]
            case sparql.GroupOperation(op=op, left=left, right=right):
                return [*self._element(left, indent), f"{op} {self._element(right, indent)[0]}"]
        raise TypeError(f"no such element: {element!r}")

    def _values(self, values: sparql.Values) -> str:
        names = " ".join(f"?{each}" for each in values.variables)
        rows = (" ".join("UNDEF" if each is None else self.term(each) for each in row) for row in values.rows)
        return " ".join([f"VALUES ({names}) {{", *(f"({row})" for row in rows), "}"])

    def select(self, select: sparql.Select, indent: int) -> list[str]:
        columns = "*" if select.columns is None else " ".join(self._column(each) for each in select.columns)
        report = "" if select.report == "RSTREAM" else f"{select.report} "
        lines = [f"SELECT {report}{'DISTINCT ' if select.distinct else ''}{columns}"]
        lines += map(self.window, select.windows)
        lines.append(f"WHERE {self.group(select.where, indent)}")
        if select.group_by:
            lines.append(f"GROUP BY {' '.join(self._column(each) for each in select.group_by)}")
        if select.having:
            lines.append(f"HAVING {' '.join(f'({self.expression(each)})' for each in select.having)}")
        return lines

    def window(self, window: sparql.WindowClause) -> str:
        size = f"ROWS {window.rows}" if window.width is None else f"RANGE {format_xsd_duration(window.width)}"
        if window.step is not None:
            size += f" STEP {window.step if window.width is None else format_xsd_duration(window.step)}"
        stream = Iri(f"urn:kaicep:{window.stream}")
        return f"FROM NAMED WINDOW {self.iri(window.name)} ON {self.iri(stream)} [{size}]"

    def _column(self, column: sparql.Projection) -> str:
        if column.expr is None:
            return f"?{column.name}"
        unnamed = column.name.startswith("_:")
        return f"({self.expression(column.expr)}{'' if unnamed else f' AS ?{column.name}'})"


class _EpPrinter(_Printer):
    """A whole EP-SPARQL query."""

    def query(self, query: sparql.EpQuery) -> str:
        lines = [f"BASE <{query.base}>"] if query.base is not None else []
        lines += _declarations(query.prefixes)
        if query.consumption != "unrestricted":
            lines.append(f"CONSUMPTION {query.consumption}")
        if isinstance(query.form, sparql.Select):
            lines += self.select(query.form, 0)
        else:
            lines += self._construct(query.form)
        return "\n".join(lines) + "\n"

    def _construct(self, construct: sparql.Construct) -> list[str]:
        template = [_INDENT + self.triple(each) for each in construct.template]
        windows = map(self.window, construct.windows)
        return ["CONSTRUCT {", *template, "}", *windows, f"WHERE {self.group(construct.where, 0)}"]


class _ChiPrinter(_Printer):
    """A whole chi-CEP query, clause by clause."""

    def query(self, query: chi.ChiQuery) -> str:
        lines = _declarations(query.prefixes)
        columns = "*" if query.select is None else ", ".join(self._chi_column(each) for each in query.select)
        lines.append(f"SELECT {columns}")
        if query.froms:
            lines.append(f"FROM {', '.join(self._from(each) for each in query.froms)}")
        if query.within is not None:
            lines.append(f"WITHIN {_within(query.within)}")
        segments = self._segments(query)
        if segments:
            lines += ["WHERE", *(_INDENT + each for each in segments)]
        return "\n".join(lines) + "\n"

    def _segments(self, query: chi.ChiQuery) -> list[str]:
        segments = [f"{each.keyword} ({self.expression(each.expr)})" for each in query.conditions]
        if query.sequence is not None:
            segments.append(f"SEQ ({', '.join(element_text(each) for each in query.sequence)})")
        segments += [f"WINDOW ({_window(each)})" for each in query.windows]
        segments += self._paths(query.paths)
        if query.match is not None:
            segments.append(f"MATCH {query.match}")
        if query.skip is not None:
            segments.append(f"AFTER MATCH {_skip(query.skip)}")
        if query.partition:
            segments.append(f"PARTITION BY {', '.join(self.expression(each) for each in query.partition)}")
        if query.group_by:
            segments.append(f"GROUP BY {', '.join(self.expression(each) for each in query.group_by)}")
        return segments + [f"HAVING ({self.expression(each)})" for each in query.having]

    def _chi_column(self, column: chi.SelectColumn) -> str:
        text = self.expression(column.expr)
        return text if column.alias is None else f"{text} AS {name_text(column.alias)}"

    def _from(self, given: chi.From) -> str:
        sources = (self.iri(each) if isinstance(each, Iri) else name_text(each) for each in given.sources)
        word = "LATEST " if given.latest else "ABSENT " if given.absent else ""
        mark = "?" if given.optional else ""
        return f"{word}(?{given.variable}{mark}, {', '.join(sources)})"

    def _paths(self, paths: tuple[tuple[chi.PathBlock, ...], ...]) -> list[str]:
        lines = []
        for alternative, blocks in enumerate(paths):
            for number, block in enumerate(blocks):
                word = "OR " if alternative and not number else ""
                lines.append(f"{word}PATH {self.group(block.group, 1)}")
        return lines


def _within(within: chi.Within) -> str:
    low, high = within.low, within.high
    opening = "[" if low and low.inclusive else "("
    closing = "]" if high and high.inclusive else ")"
    return f"{opening}{_bound(low)}, {_bound(high)}{closing}"


def _bound(bound: chi.Bound | None) -> str:
    if bound is None:
        return ""
    if bound.at is not None:
        return format_time(bound.at)
    if not bound.offset:
        return "now"
    return f"now {'-' if bound.offset < 0 else '+'} {format_duration(abs(bound.offset))}"


def element_text(element: chi.Element) -> str:
    """An element of SEQ.

    >>> element_text(chi.Choice((chi.Place("a"), chi.Loop("b", 1, None))))
    '(?a | ?b+)'
    """
    match element:
        case chi.Place(variable):
            return f"?{variable}"
        case chi.Loop(variable, least, most):
            return f"?{variable}{_quantifier(least, most)}"
        case chi.Absent(of):
            return f"!{element_text(of)}"
        case chi.Choice(members):
            return f"({' | '.join(element_text(each) for each in members)})"
        case chi.Together(members):
            return f"({' & '.join(element_text(each) for each in members)})"


def _quantifier(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    if least == most:
        return f"{{{least}}}"
    return f"{{{least or ''},{most}}}"


def _window(window: chi.SpanWindow | chi.AggregateWindow) -> str:
    if isinstance(window, chi.SpanWindow):
        names = ", ".join(f"?{each}" for each in window.variables)
        return f"{names}, {format_duration(window.width)}"
    size = str(window.count) if window.width is None else format_duration(window.width)
    return f"?{window.variable}, {window.kind}, {size}"


def _skip(skip: chi.Skip) -> str:
    words = {"none": "NO SKIP", "next": "SKIP TO NEXT", "past_last": "SKIP PAST LAST"}
    return words.get(skip.mode) or f"SKIP TO {skip.mode.upper()} ?{skip.variable}"
