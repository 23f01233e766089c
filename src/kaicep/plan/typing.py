"""Names and types: from an expression as written to one that can be evaluated (semantics 1, 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.catalog import NoVocabulary, Stream, Vocabulary
from kaicep.plan.expressions import (
    Aggregate,
    Attribute,
    Call,
    Concept,
    Const,
    Expr,
    Field,
    Previous,
    VariableRef,
    rewrite,
    type_of,
    variables_of,
    walk,
)
from kaicep.plan.operators import OPERATORS, Argument, TypeRule
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Term
from kaicep.plan.text import expression_text, iri_text
from kaicep.plan.time import parse_time
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value, unify
from kaicep.plan.values import ExpressionError, date_time, number

__all__ = ["Problems", "Scope", "Typer", "resolve_field", "retyped", "term_value", "with_terms"]


# ----------------------------------------------------------------------------------------------------------
# Collects what is wrong with a query, so that a caller hears of all of it at once.


class Problems:
    """The diagnostics of one query, in the order they were found."""

    def __init__(self, source: SourceText | None) -> None:
        self.source = source
        self.errors: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []

    def error(self, message: str, span: Span | None = None, hint: str | None = None) -> None:
        """Notes an error; nothing is raised until `check`."""
        found = Diagnostic(message, span, self.source, hint)
        if found not in self.errors:
            self.errors.append(found)

    def warn(self, message: str, span: Span | None = None, hint: str | None = None) -> None:
        """Notes something that stops nothing."""
        self.warnings.append(Diagnostic(message, span, self.source, hint, "warning"))

    def advise(self, message: str, span: Span | None = None, hint: str | None = None) -> None:
        """Notes a matter of style, which only `check` shows."""
        self.warnings.append(Diagnostic(message, span, self.source, hint, "hint"))

    def check(self) -> None:
        """Raises what was found, if anything was."""
        if self.errors:
            raise Mistake(sorted(self.errors, key=lambda each: each.span.start if each.span else -1))


# ----------------------------------------------------------------------------------------------------------
# Names and types: from an expression as written to one that can be evaluated (semantics 1, 2).
#
# Every attribute and concept becomes a `Field`, every call gets its type, and int64 is widened to float64
# where the two meet, so that all hosts compute the same thing.

_ZONED = ("hour", "dayOfWeek")


@dataclass(frozen=True)
class Scope:
    """What the expressions of a query may speak of: event variables with their streams, and the rest."""

    variables: Mapping[str, tuple[Stream, ...]]
    vocabulary: Vocabulary
    loops: frozenset[str] = frozenset()
    path_variables: frozenset[str] = frozenset()
    window_variable: str | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)
    undeclared_hint: str = "declare it in FROM"
    zone: str | None = None  # of the functions of times that are given none
    either: bool = False  # PATH blocks are joined by OR, so that no solution has a say in an expression


def resolve_field(
    expr: Attribute | Concept, streams: Iterable[Stream], vocabulary: Vocabulary
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], list[tuple[str, Type | None]]]:
    """Where to read an attribute or a concept on each stream, and the types that it has there."""
    sources: list[tuple[str, tuple[str, ...]]] = []
    types: list[tuple[str, Type | None]] = []
    narrower = vocabulary.properties_below(expr.iri) if isinstance(expr, Concept) else frozenset()
    for stream in streams:
        if isinstance(expr, Concept):
            carriers = [(each, prop) for each, prop in stream.concepts]
            carriers += [(each, entity.property) for each, entity in stream.entities if not entity.attributes]
            found = tuple(each for each, prop in carriers if prop in narrower)
        else:
            known = stream.type_of(expr.name) is not None
            found = (expr.name,) if known or stream.open else ()
        sources.append((stream.name, found))
        types += [(stream.name, stream.type_of(each)) for each in found]
    return tuple(sources), types


class Typer:
    """Resolves the expressions of one query; what is wrong goes to `problems`, and it goes on."""

    def __init__(self, scope: Scope, problems: Problems) -> None:
        self.scope = scope
        self.problems = problems

    # --- entry points ---

    def condition(self, expr: Expr, clause: str) -> Expr:
        """A condition: it must be true or false."""
        resolved = self.value(expr)
        found = type_of(resolved)
        if found not in (None, Type.BOOL):
            self.problems.error(
                f"{clause} needs a condition, this is {_a(found)} value", expr.span, "compare it"
            )
        return resolved

    def value(self, expr: Expr) -> Expr:
        """Any expression, resolved; an impossible part becomes null after it was reported."""
        match expr:
            case Attribute() | Concept():
                return self._field(expr)
            case Call():
                return self._call(expr)
            case Aggregate():
                return self._aggregate(expr)
            case Previous():
                return self._previous(expr)
            case VariableRef():
                return self._bare_variable(expr)
        return expr

    # --- names ---

    def _field(self, expr: Attribute | Concept) -> Expr:
        streams = self.scope.variables.get(expr.variable)
        if streams is None:
            self._undeclared(expr.variable, expr.span)
            return Const(None, None, span=expr.span)
        sources, types = resolve_field(expr, streams, self.scope.vocabulary)
        if not any(found for _, found in sources):
            self._unknown_name(expr, streams)
            return Const(None, None, span=expr.span)
        joined = self._common_type(expr, types)
        name = expr.iri.local if isinstance(expr, Concept) else expr.name
        return Field(expr.variable, name, sources, joined, span=expr.span)

    def _common_type(self, expr: Attribute | Concept, types: list[tuple[str, Type | None]]) -> Type | None:
        known = [(stream, found) for stream, found in types if found is not None]
        if not known:
            return None
        joined = known[0][1]
        for stream, found in known[1:]:
            both = unify(joined, found)
            if both is None:
                name = expr.text if isinstance(expr, Concept) else expr.name
                first = known[0]
                self.problems.error(
                    f"{name} is {first[1]} on {first[0]} but {found} on {stream}",
                    expr.span,
                    'declare one type for it under "types" in the annotations',
                )
                return None
            joined = both
        return joined

    def _unknown_name(self, expr: Attribute | Concept, streams: tuple[Stream, ...]) -> None:
        names = " or ".join(each.name for each in streams) or "any stream"
        if isinstance(expr, Concept):
            carried = [iri_text(prop, self.scope.prefixes) for each in streams for prop in each.carried()]
            self.problems.error(
                f"no attribute of {names} carries {expr.text}",
                expr.span,
                did_you_mean(expr.text, carried)
                or "name the attribute that carries it in an annotation file (--annotation)",
            )
            return
        known = [name for each in streams for name, _ in each.attributes]
        self.problems.error(
            f"{names} has no attribute {expr.name}", expr.span, did_you_mean(expr.name, [*known, "ts"])
        )

    def _undeclared(self, variable: str, span: Span | None) -> None:
        if variable in self.scope.path_variables:
            self.problems.error(
                f"?{variable} is a variable of the PATH: it has no attributes",
                span,
                "compare it inside the PATH, with FILTER there",
            )
            return
        known = [f"?{each}" for each in self.scope.variables]
        hint = did_you_mean(f"?{variable}", known)
        near = hint if hint and hint.startswith("did you mean") else None
        self.problems.error(f"unknown event variable ?{variable}", span, near or self.scope.undeclared_hint)

    def _bare_variable(self, expr: VariableRef) -> Expr:
        if expr.name in self.scope.variables:
            self.problems.error(
                f"?{expr.name} is an event, not a value", expr.span, f"name an attribute: ?{expr.name}.ts"
            )
        elif expr.name in self.scope.path_variables and self.scope.either:
            self.problems.error(
                f"?{expr.name} is used in an expression, but its PATH is joined by OR",
                expr.span,
                "put the comparison into a FILTER inside each PATH, or select the variable by itself",
            )
        elif expr.name in self.scope.path_variables:
            return expr
        else:
            self._undeclared(expr.name, expr.span)
        return Const(None, None, span=expr.span)

    # --- aggregates and loops ---

    def _aggregate(self, expr: Aggregate) -> Expr:
        for inner in walk(expr.of) if expr.of is not None else ():
            if isinstance(inner, Aggregate | Previous):
                self.problems.error(f"{expr.op} cannot hold another aggregate or PREV", inner.span)
                return Const(None, None, span=expr.span)
        mentioned = variables_of(expr.of) if expr.of is not None else frozenset((expr.variable or "",))
        if len(mentioned) != 1:
            self.problems.error(
                f"{expr.op} is over the events of one variable", expr.span, f"for example {expr.op}(?e.x)"
            )
            return Const(None, None, span=expr.span)
        (variable,) = mentioned
        if variable not in self.scope.variables:
            self._undeclared(variable, expr.span)
            return Const(None, None, span=expr.span)
        if variable != self.scope.window_variable and variable not in self.scope.loops:
            self._not_many(expr, variable)
            return Const(None, None, span=expr.span)
        of = self.value(expr.of) if expr.of is not None else None
        return replace(expr, of=of, variable=variable, type=self._aggregate_type(expr, of))

    def _not_many(self, expr: Aggregate, variable: str) -> None:
        if len(self.scope.variables) == 1 and not self.scope.loops:
            self.problems.error(
                f"{expr.op} needs a window: over which events is it taken?",
                expr.span,
                f"add WINDOW (?{variable}, sliding, 5min), or batch in place of sliding",
            )
            return
        self.problems.error(
            f"{expr.op} is over several events, but ?{variable} is one event",
            expr.span,
            f"write ?{variable} without {expr.op}, or make it a loop: ?{variable}+",
        )

    def _aggregate_type(self, expr: Aggregate, of: Expr | None) -> Type | None:
        found = type_of(of) if of is not None else None
        if expr.op == "COUNT":
            return Type.INT64
        numbers_only = expr.op in ("SUM", "AVG", "STDDEV")
        if found is not None and (
            (numbers_only and not found.numeric) or (expr.op in ("MIN", "MAX") and found is Type.BOOL)
        ):
            wanted = "numbers" if numbers_only else "numbers, strings or times"
            self.problems.error(f"{expr.op} is over {wanted}, this is {_a(found)} value", expr.span)
        return Type.FLOAT64 if expr.op in ("AVG", "STDDEV") else found

    def _previous(self, expr: Previous) -> Expr:
        of = self.value(expr.of)
        mentioned = variables_of(expr.of)
        if isinstance(of, Field) and not mentioned <= self.scope.loops:
            self.problems.error(
                f"PREV looks at the round before, and ?{of.variable} is not a loop",
                expr.span,
                f"make it a loop with SEQ (?{of.variable}+)",
            )
        return replace(expr, of=of)

    # --- calls ---

    def _call(self, expr: Call) -> Expr:
        made = self.call(expr, tuple(self.value(each) for each in expr.args))
        if (
            not isinstance(made, Call)
            or made.type is not Type.INT64
            or OPERATORS[made.op].gives is Type.INT64
        ):
            return made
        # With a variable of the PATH in it, it may turn out to be a float64.
        return replace(made, type=None) if any(isinstance(each, VariableRef) for each in walk(made)) else made

    def call(self, expr: Call, args: tuple[Expr, ...]) -> Expr:
        """An operator or a function over arguments that are resolved, typed as its row of the table says."""
        takes = OPERATORS[expr.op].takes
        if takes is TypeRule.ARITHMETIC:
            return self._arithmetic(expr, args)
        if takes is TypeRule.COMPARISON:
            return self._comparison(expr, args)
        if takes is TypeRule.CHOICE:
            return self._choosing(expr, args)
        return self._taking(expr, args, takes)

    def _taking(self, expr: Call, args: tuple[Expr, ...], takes: tuple[Argument, ...]) -> Expr:
        """An operator whose arguments have types of their own; the last one stands for all that follow."""
        if self.scope.zone is not None and expr.op in _ZONED and len(args) == 1:
            zone = Const(self.scope.zone, Type.STRING)
            expr, args = replace(expr, args=(*expr.args, zone)), (*args, zone)
        wanted = takes + takes[-1:] * (len(args) - len(takes))
        for given, original, argument in zip(args, expr.args, wanted, strict=False):
            if argument.check is not None:
                self._check_literal(expr, given, original, argument)
                continue
            found = type_of(given)
            if found is not None and found not in argument.types:
                names = " or ".join(str(each) for each in argument.types)
                self.problems.error(f"{_shown(expr.op)} takes {names}, this is {found}", original.span)
        gives = OPERATORS[expr.op].gives
        return replace(expr, args=args, type=type_of(args[0]) if gives is None else gives)

    def _check_literal(self, expr: Call, given: Expr, original: Expr, argument: Argument) -> None:
        assert argument.check is not None
        if not (isinstance(given, Const) and isinstance(given.value, str)):
            hint = argument.example and f"for example {argument.example.format(expr.op)}"
            self.problems.error(f"{argument.name} of {expr.op} must be a string literal", original.span, hint)
        elif (wrong := argument.check(given.value)) is not None:
            self.problems.error(wrong[0], original.span, wrong[1])

    def _arithmetic(self, expr: Call, args: tuple[Expr, ...]) -> Expr:
        left, right = (type_of(each) for each in args)
        if left is None or right is None:
            known = left or right
            result = known if expr.op in ("*", "%") or known is not Type.TIMESTAMP else None
            if expr.op == "/":
                result = Type.FLOAT64
            return replace(expr, args=args, type=result)
        if Type.TIMESTAMP in (left, right):
            return self._time_arithmetic(expr, args, left, right)
        if not (left.numeric and right.numeric):
            self.problems.error(
                f"cannot calculate {left} {expr.op} {right}", expr.span, f"{expr.op} is defined on numbers"
            )
            return Const(None, None, span=expr.span)
        joined = Type.FLOAT64 if expr.op == "/" else unify(left, right)
        assert joined is not None
        return replace(expr, args=tuple(_widened(each, joined) for each in args), type=joined)

    def _time_arithmetic(self, expr: Call, args: tuple[Expr, ...], left: Type, right: Type) -> Expr:
        if expr.op == "-" and left is right:
            return replace(expr, args=args, type=Type.INT64)
        shifts = (expr.op in "+-" and right is Type.INT64) or (expr.op == "+" and left is Type.INT64)
        if shifts:
            return replace(expr, args=args, type=Type.TIMESTAMP)
        self.problems.error(
            f"cannot calculate {left} {expr.op} {right}",
            expr.span,
            "times can be subtracted from each other, or shifted by a duration such as 5min",
        )
        return Const(None, None, span=expr.span)

    def _comparison(self, expr: Call, args: tuple[Expr, ...]) -> Expr:
        args = self._read_times(args)
        joined = self._joined(expr, args, "compare")
        if joined is Type.BOOL and expr.op in ("<", "<=", ">", ">="):
            self.problems.error("bool values have no order", expr.span, "use = or !=")
        return replace(expr, args=_all_widened(args, joined), type=Type.BOOL)

    def _read_times(self, args: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """A string literal beside a timestamp is read as an ISO time."""
        if not any(type_of(each) is Type.TIMESTAMP for each in args):
            return args
        read: list[Expr] = []
        for each in args:
            if isinstance(each, Const) and isinstance(each.value, str):
                moment = parse_time(each.value)
                if moment is None:
                    self.problems.error(
                        f"{each.value!r} is compared with a time but is none",
                        each.span,
                        "write it as 2012-05-07T09:00:00Z",
                    )
                each = Const(moment, Type.TIMESTAMP, span=each.span)
            read.append(each)
        return tuple(read)

    def _choosing(self, expr: Call, args: tuple[Expr, ...]) -> Expr:
        """`coalesce` and `if`: their branches have one type."""
        branches = args
        if expr.op == "if":
            branches = args[1:]
            if type_of(args[0]) not in (None, Type.BOOL):
                self.problems.error("if needs a condition first", expr.args[0].span, "if(test, then, else)")
        branches = self._read_times(branches)
        joined = self._joined(expr, branches, "choose between")
        before = args[: len(args) - len(branches)]
        return replace(expr, args=before + _all_widened(branches, joined), type=joined)

    def _joined(self, expr: Call, args: tuple[Expr, ...], doing: str) -> Type | None:
        joined: Type | None = None
        for each in args:
            found = type_of(each)
            if found is None:
                continue
            both = found if joined is None else unify(joined, found)
            if both is None:
                assert joined is not None
                self.problems.error(
                    f"cannot {doing} {_a(joined)} and {_a(found)} value", expr.span, _cure(args)
                )
                return None
            joined = both
        return joined


def retyped(expr: Expr) -> Expr:
    """A resolved expression of which some parts have other types by now; what has no type any more is null.

    >>> retyped(Call(">", (Const("a", Type.STRING), Const(1, Type.INT64)), Type.BOOL))
    Const(value=None, type=None)
    """
    if not isinstance(expr, Call):
        return expr
    problems = Problems(None)
    made = Typer(Scope({}, NoVocabulary()), problems).call(expr, tuple(retyped(each) for each in expr.args))
    return Const(None, None, span=expr.span) if problems.errors else made


def _widened(expr: Expr, wanted: Type | None) -> Expr:
    if wanted is not Type.FLOAT64 or type_of(expr) is not Type.INT64:
        return expr
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return Const(float(expr.value), Type.FLOAT64, span=expr.span)
    return Call("float", (expr,), Type.FLOAT64, span=expr.span)


def _all_widened(args: tuple[Expr, ...], wanted: Type | None) -> tuple[Expr, ...]:
    return tuple(_widened(each, wanted) for each in args)


def _a(found: Type | None) -> str:
    return f"an {found}" if found is Type.INT64 else f"a {found}"


def _cure(args: tuple[Expr, ...]) -> str:
    """How values of two types can be brought together, by what they are."""
    for each in args:
        other = next((type_of(arg) for arg in args if arg is not each), None)
        if isinstance(each, Const) and each.type is Type.STRING and other and other.numeric:
            return "write the number without quotes"
        if isinstance(each, Const) and each.type and each.type.numeric and other is Type.STRING:
            name = next((expression_text(arg) for arg in args if arg is not each), "the other side")
            return f"{name} is text: quote the value, or declare the attribute a number in the annotation"
    return "both sides need the same type"


def _shown(op: str) -> str:
    return {"neg": "-", "and": "&&", "or": "||", "not": "!"}.get(op, op)


# ----------------------------------------------------------------------------------------------------------
# Variables of the PATH in expressions: what a term of the knowledge base is as a value (semantics 2).
#
# A variable of the PATH has no type before there is a solution. With one, its value stands in the
# expression like a literal, and the types are what they would be then: where a query with that literal
# would be refused, since it compares a string with a number, the part that does so is null.

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def term_value(term: Term | None) -> tuple[Value, Type | None]:
    """A term as a value of an expression, with its type; what is not a value there is null.

    >>> term_value(Literal("1.5", XSD + "decimal")), term_value(Iri("urn:a"))
    ((1.5, Type.FLOAT64), ('urn:a', Type.STRING))
    >>> term_value(Literal("P1D", XSD + "duration"))
    (None, None)
    """
    if isinstance(term, Iri):
        return term.value, Type.STRING
    if not isinstance(term, Literal):
        return None, None
    if term.datatype == XSD + "string" or term.datatype == RDF + "langString" or term.language:
        return term.lexical, Type.STRING
    if term.datatype == XSD + "boolean":
        truth = _TRUTHS.get(term.lexical.strip())
        return truth, None if truth is None else Type.BOOL
    try:
        if term.datatype == XSD + "dateTime":
            return date_time(term), Type.TIMESTAMP
        found = number(term).value
    except ExpressionError:
        return None, None
    if isinstance(found, int):
        return (found, Type.INT64) if INT64_MIN <= found <= INT64_MAX else (None, None)
    try:
        near = float(found)
    except OverflowError:
        return None, None
    return (near, Type.FLOAT64) if math.isfinite(near) else (None, None)


def with_terms(expr: Expr, terms: Mapping[str, Term | None]) -> Expr:
    """A resolved expression with the values of a solution in the places of its variables, typed anew."""
    return _with_terms(expr, tuple(sorted(terms.items())))


@lru_cache(maxsize=4096)
def _with_terms(expr: Expr, terms: tuple[tuple[str, Term | None], ...]) -> Expr:
    known = dict(terms)

    def change(node: Expr) -> Expr:
        if isinstance(node, VariableRef):
            return Const(*term_value(known.get(node.name)), span=node.span)
        # Whether an int64 is to be widened shows only now.
        return node.args[0] if isinstance(node, Call) and node.op == "float" else node

    return retyped(rewrite(expr, change))
