"""The types of expressions, the values that terms of the knowledge have in them, and their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.catalog import QUDT, Stream, Vocabulary
from kaicep.plan.chi import PathBlock
from kaicep.plan.expressions import (
    Aggregate,
    Attribute,
    Call,
    Concept,
    Const,
    Expr,
    Field,
    Previous,
    TermConst,
    VariableRef,
    rewrite,
    type_of,
    variables_of,
    walk,
)
from kaicep.plan.operators import OPERATORS, Argument, TypeRule
from kaicep.plan.sparql import (
    Alternative,
    Element,
    Filter,
    Group,
    Node,
    Optional,
    Steps,
    TripleBlock,
    TriplePattern,
)
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Term, Variable
from kaicep.plan.text import expression_text, iri_text
from kaicep.plan.time import parse_time
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value, unify
from kaicep.plan.values import ExpressionError, as_double, date_time, number

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
                f"PREV needs a loop, and ?{of.variable} is not a loop",
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
    made = Typer(Scope({}, Vocabulary()), problems).call(expr, tuple(retyped(each) for each in expr.args))
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
    near = as_double(found)
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


# ----------------------------------------------------------------------------------------------------------
# Units of measurement: what is compared is brought into one unit first (semantics 2.2).
#
# An annotation says in which QUDT unit an attribute is, or that it is the unit of the point which another
# attribute names. The knowledge says the unit of points and thresholds, by their `qudt:hasUnit` (or
# `brick:hasUnit`), and by how much units differ (`qudt:conversionMultiplier`, `conversionOffset`). The plan
# then has the arithmetic that converts, and no host knows of units.

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_HAS_UNIT = Alternative((Iri(QUDT + "hasUnit"), Iri("https://brickschema.org/schema/Brick#hasUnit")))
_MULTIPLIER, _OFFSET = Iri(QUDT + "conversionMultiplier"), Iri(QUDT + "conversionOffset")

Paths = tuple[tuple[PathBlock, ...], ...]

# A unit; or an attribute that names a point, and a variable: the unit of that point of that event.
Scale = Iri | tuple[str, str]
_Factors = tuple[Expr, Expr]


@dataclass
class Units:
    """The units of one query's attributes and thresholds; `variables` are those of FROM."""

    variables: Mapping[str, Sequence[Stream]]
    streams: Mapping[str, Stream]
    vocabulary: Vocabulary
    paths: Paths
    problems: Problems
    asked: dict[str, tuple[int, Node]] = field(default_factory=dict)
    """The variables of the PATH whose units must be known, each with its block and the thing that has it."""
    points: dict[str, Iri] = field(default_factory=dict)
    """The variables of events whose point has the unit, each with what leads to the point."""

    def in_one_unit(self, condition: Expr) -> Expr:
        """The condition; in a comparison, all is in the unit of the first attribute that has one."""
        if not any(each.units for each in self.streams.values()):
            return condition
        return rewrite(condition, self._compared)

    def _compared(self, expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in _COMPARISONS:
            return expr
        parts = (part for each in expr.args for part in walk(each) if isinstance(part, Field))
        unit = next((unit for each in parts for _, _, unit in self._runs(each) if unit is not None), None)
        if unit is None:
            return expr
        made = tuple(self._converted(each, unit) for each in expr.args)
        if made == expr.args:
            return expr
        if self.points and any(isinstance(part, Aggregate) for each in expr.args for part in walk(each)):
            self.problems.error(
                "an aggregate over points that have units of their own is not converted",
                expr.span,
                "convert in a query before this one, or give the attribute one unit in the annotation",
            )
        return retyped(replace(expr, args=made))

    def _converted(self, part: Expr, unit: Scale) -> Expr:
        match part:
            case Field():
                return self._attribute(part, lambda given: given, unit)
            case Previous():
                given = part
                return self._attribute(part.of, lambda of: replace(given, of=of), unit)
            case VariableRef():
                return self._threshold(part, unit)
            case Call():
                made = tuple(self._converted(each, unit) for each in part.args)
                return part if made == part.args else retyped(replace(part, args=made))
            case Aggregate() if part.of is not None:
                of = self._converted(part.of, unit)
                same = of == part.of or part.op in ("COUNT", "AVG", "STDDEV")
                return replace(part, of=of, type=part.type if same else type_of(of))
        return part

    # --- inside a PATH ---

    def compare_inside(self) -> None:
        """Bring the comparisons of FILTERs at the top of the blocks into one unit, too."""
        if any(each.units for each in self.streams.values()):
            self.paths = tuple(tuple(map(self._block, blocks)) for blocks in self.paths)

    def _block(self, block: PathBlock) -> PathBlock:
        def judged(element: Element) -> Element:
            if not isinstance(element, Filter):
                return element
            return replace(element, condition=rewrite(element.condition, self._compared_inside))

        made = tuple(map(judged, block.group.elements))
        return (
            block
            if made == block.group.elements
            else replace(block, group=replace(block.group, elements=made))
        )

    def _compared_inside(self, expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in _COMPARISONS:
            return expr
        named = [part for each in expr.args for part in walk(each) if isinstance(part, VariableRef)]
        scales = {each.name: self._scale_inside(each) for each in named}
        wanted = next((each for each in scales.values() if each is not None), None)
        if wanted is None:
            return expr

        def converted(part: Expr) -> Expr:
            if not isinstance(part, VariableRef):
                return part
            own = scales.get(part.name)
            if own == wanted:
                return part
            made = (
                self._threshold(part, wanted)
                if own is None
                else self._between(part, self._factors(own), self._factors(wanted))
            )
            return rewrite(made, _as_term)

        return replace(expr, args=tuple(rewrite(each, converted) for each in expr.args))

    def _scale_inside(self, of: VariableRef) -> Scale | None:
        """The unit of a variable that is the value of an attribute of an event."""
        found: dict[Scale | None, None] = {}
        for _, pattern in self._patterns(of.name):
            event, property = pattern.subject, pattern.predicate
            for stream in self.variables.get(event.name, ()) if isinstance(event, Variable) else ():
                for name, concept in stream.concepts:
                    if isinstance(property, Iri) and concept in self.vocabulary.properties_below(property):
                        unit = dict(stream.units).get(name)
                        found[(unit, event.name) if isinstance(unit, str) else unit] = None  # type: ignore[union-attr]
        if len(found) > 1:
            self.problems.error(
                f"?{of.name} has several units", of.span, "compare the attribute itself, outside of the PATH"
            )
        return next(iter(found), None)

    # --- attributes ---

    def _runs(self, attribute: Field) -> Iterator[tuple[int, tuple[str, tuple[str, ...]], Scale | None]]:
        """The attributes of each stream that carry it, neighbours of one unit together, in their order."""
        for stream, names in attribute.sources:
            said = self.streams[stream].units if stream in self.streams else ()
            units: dict[str, Scale] = {
                name: unit if isinstance(unit, Iri) else (unit, attribute.variable) for name, unit in said
            }
            runs: list[tuple[list[str], Scale | None]] = []
            for name in names:
                if not runs or runs[-1][1] != units.get(name):
                    runs.append(([], units.get(name)))
                runs[-1][0].append(name)
            yield from ((at, (stream, tuple(some)), unit) for at, (some, unit) in enumerate(runs))

    def _attribute(self, attribute: Expr, read: Callable[[Field], Expr], wanted: Scale) -> Expr:
        """An attribute in the wanted unit, as it is `read`; what has no unit is in it already."""
        if not isinstance(attribute, Field) or attribute.type not in (Type.INT64, Type.FLOAT64):
            return read(attribute)  # type: ignore[arg-type]
        runs = list(self._runs(attribute))
        if all(unit in (None, wanted) for _, _, unit in runs):
            return read(attribute)
        parts: dict[tuple[int, Scale], list[tuple[str, tuple[str, ...]]]] = {}
        for at, source, unit in sorted(runs, key=lambda each: each[0]):
            parts.setdefault((at, unit or wanted), []).append(source)
        made: list[Expr] = []
        for (_, unit), some in parts.items():
            sources = tuple((stream, dict(some).get(stream, ())) for stream, _ in attribute.sources)
            made.append(self._scaled(replace(attribute, sources=sources), read, unit, wanted))
        return made[0] if len(made) == 1 else _call("coalesce", *made)

    def _scaled(self, attribute: Field, read: Callable[[Field], Expr], unit: Scale, wanted: Scale) -> Expr:
        if unit == wanted:
            return read(attribute)
        if not isinstance(unit, Iri) or not isinstance(wanted, Iri):
            return self._between(read(attribute), self._factors(unit), self._factors(wanted))
        given, target = self.vocabulary.unit(unit), self.vocabulary.unit(wanted)
        if given is None or target is None:
            unknown = unit if given is None else wanted
            self.problems.error(
                f"?{attribute.variable}.{attribute.name} is in {unit.local} and is compared with "
                f"{wanted.local}, but the knowledge has no qudt:conversionMultiplier of {unknown.local}",
                attribute.span,
                "load QUDT's units with --knowledge, or state it in a file of your own",
            )
            return read(attribute)
        if given.dimension != target.dimension and given.dimension and target.dimension:
            self.problems.error(
                f"{unit.local} and {wanted.local} do not measure the same",
                attribute.span,
                'see "units" in the annotation',
            )
            return read(attribute)
        factor = given.multiplier / target.multiplier
        scaled = _call("*", read(attribute), _number(factor))
        shift = given.offset * factor - target.offset
        return scaled if not shift else _call("+", scaled, _number(shift))

    # --- thresholds ---

    def _threshold(self, of: VariableRef, wanted: Scale) -> Expr:
        """A variable of the PATH in the wanted unit, where its solution says in which unit it is."""
        found = next(self._having(of.name), None)
        if found is None:
            return of
        target = self._factors(wanted)
        if target is None and isinstance(wanted, Iri):
            self.problems.warn(
                f"?{of.name} is compared with {wanted.local}, of which the knowledge has no "
                "qudt:conversionMultiplier: it is not converted",
                of.span,
                "load QUDT's units with --knowledge, or state it in a file of your own",
            )
            return of
        self.asked[of.name] = found
        return self._between(of, _helpers(of.name), target)

    def _between(self, of: Expr, given: _Factors | None, target: _Factors | None) -> Expr:
        """A value in another unit; it is taken as it is where one of the two is not known."""
        if given is None or target is None:
            return of
        (multiplier, offset), (base, shift) = given, target
        same = _call("and", _call("=", multiplier, base), _call("=", offset, shift))
        converted = _call("/", _call("*", _call("+", of, offset), multiplier), base)
        if shift != _number(Fraction(0)):
            converted = _call("-", converted, shift)
        return _call("if", same, of, _call("coalesce", converted, of))

    def _factors(self, scale: Scale) -> _Factors | None:
        """The multiplier and the offset of a unit, which the knowledge says now or of each point."""
        if isinstance(scale, Iri):
            unit = self.vocabulary.unit(scale)
            return None if unit is None else (_number(unit.multiplier), _number(unit.offset))
        attribute, variable = scale
        ways = {
            dict(each.entities)[attribute].property
            for each in self.streams.values()
            if attribute in dict(each.entities)
        }
        if len(ways) > 1 or len(self.paths) > 1:
            reason = (
                "streams lead to their points by different properties"
                if len(ways) > 1
                else "OR is between the PATHs"
            )
            self.problems.error(f"the unit of ?{variable} is not converted where {reason}", None)
        self.points[variable] = next(iter(ways))
        return _helpers(variable)

    def _having(self, name: str) -> Iterator[tuple[int, Node]]:
        """The things that have a variable for a value."""
        return ((at, pattern.subject) for at, pattern in self._patterns(name))

    def _patterns(self, name: str) -> Iterator[tuple[int, TriplePattern]]:
        """The patterns at the top of a block that have a variable for a value."""
        for at, block in enumerate(self.paths[0] if len(self.paths) == 1 else ()):
            for element in block.group.elements:
                for pattern in element.patterns if isinstance(element, TripleBlock) else ():
                    if pattern.object == Variable(name) and isinstance(pattern.predicate, Iri):
                        yield at, pattern

    @property
    def with_asked(self) -> Paths:
        """The PATHs, which also ask for the units that must be known."""

        def added(at: int, block: PathBlock) -> PathBlock:
            more: list[Optional] = []
            for name, (where, thing) in self.asked.items():
                ways = zip(_names(name), (_MULTIPLIER, _OFFSET), strict=True)
                more += [_optional(thing, way, each) for each, way in ways if where == at]
            return replace(block, group=Group((*block.group.elements, *more))) if more else block

        points = [_of_point(name, property) for name, property in self.points.items()]
        every = self.paths or ((),)
        return tuple((*(added(*each) for each in enumerate(blocks)), *points) for blocks in every)

    def helpers_of(self, keys: Iterable[Expr]) -> Iterator[VariableRef]:
        """What the thresholds that are grouped by are grouped by besides: another unit is another group."""
        names = [each.name for each in keys if isinstance(each, VariableRef) and each.name in self.asked]
        yield from (VariableRef(helper) for name in names for helper in _names(name))


def _names(variable: str) -> Sequence[str]:
    return f"kaicep_multiplier_{variable}", f"kaicep_offset_{variable}"


def _helpers(variable: str) -> _Factors:
    multiplier, offset = (VariableRef(each) for each in _names(variable))
    return multiplier, _call("coalesce", offset, _number(Fraction(0)))


def _of_point(variable: str, property: Iri) -> PathBlock:
    """What asks for the unit of the point of an event."""
    point = Variable(f"kaicep_point_{variable}")
    leads = TripleBlock((TriplePattern(Variable(variable), property, point),))
    ways = zip(_names(variable), (_MULTIPLIER, _OFFSET), strict=True)
    return PathBlock(Group((leads, *(_optional(point, way, name) for name, way in ways))))


def _optional(thing: Node, way: Iri, name: str) -> Optional:
    return Optional(Group((TripleBlock((TriplePattern(thing, Steps((_HAS_UNIT, way)), Variable(name)),)),)))


def _call(op: str, *args: Expr) -> Expr:
    return retyped(Call(op, args))


def _as_term(expr: Expr) -> Expr:
    """A part of a condition as SPARQL has it: there, `if` has no value where its condition has none."""
    if isinstance(expr, Call) and expr.op == "if":
        never = TermConst(Literal("false", XSD + "boolean"))
        return replace(expr, args=(Call("coalesce", (expr.args[0], never)), *expr.args[1:]))
    if not isinstance(expr, Const):
        return expr
    return TermConst(Literal(format(Decimal(repr(expr.value)), "f"), XSD + "decimal"))


def _number(value: Fraction) -> Const:
    return Const(float(value), Type.FLOAT64)
