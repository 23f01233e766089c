"""The operators and functions of chi-CEP: one table, which everything that reads or runs expressions uses.

A row says what an operator is called, what it takes and gives, what a null does to it, what the manual says
of it, its value, and how Spark SQL and SPARQL express it. Targets whose code needs NumPy, Numba, PySpark or
PyArrow keep their own fast forms in one dictionary each, by the operator's name; what stands in none of them
is worked out by its value here. The reference evaluates on its own, on purpose.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from kaicep.errors import Mistake, Unsupported, a_kind_of, did_you_mean
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Const, Expr, Field, Previous, type_of
from kaicep.plan.regex import PATTERN_HINT, BadPattern, matcher
from kaicep.plan.time import DURATION_UNITS, is_zone, parse_time, zone_names, zone_offset
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value

FIRST_INSTANT = parse_time("0001-01-01") or 0
LAST_INSTANT = parse_time("9999-12-31T23:59:59.999999") or 0
LARGEST = 1e300
"""What SPARQL reads an archive through has no number beyond this, so that no sum of a few is infinite."""
_MOST_TEXT = 1_000_000  # characters of an expression in another language
_LANGUAGES = {"sql": "Spark SQL", "sparql": "SPARQL"}

Context = TypeVar("Context")


# --- what a row of the table has ---------------------------------------------------------------------------


class TypeRule(Enum):
    """What an operator takes whose types depend on each other; int64 is widened where it meets float64."""

    ARITHMETIC = "numbers"
    COMPARISON = "values of one type"
    CHOICE = "values, of one type"


class Nulls(Enum):
    """What a null argument does."""

    SPREAD = "makes null"
    OWN = "is seen by the operator, which has a rule of its own"


@dataclass(frozen=True)
class Argument:
    """What stands at a place: values of these types; `check` says what is wrong with a literal.

    With a `check` nothing but a string literal may stand there; it gives a message and a hint, or None.
    """

    types: tuple[Type, ...]
    check: Callable[[str], tuple[str, str | None] | None] | None = None
    name: str = ""
    example: str | None = None


Say = Callable[[Call, Sequence[str]], str | None]
"""A call in another language, given its arguments in it; None where that would answer differently."""


@dataclass(frozen=True)
class Operator:
    """An operator or a function; it takes `least` to `most` arguments, None being any number.

    `takes` has an argument for each place, the last one for all that follow, or a rule. `gives` is the type
    of what comes out, None where that is the type of what goes in. `value` is the function itself, on values
    as Python has them: with `Nulls.SPREAD` it never sees a null. What its type cannot hold becomes null
    afterwards.
    """

    name: str
    usage: str
    doc: str
    takes: tuple[Argument, ...] | TypeRule
    gives: Type | None
    value: Callable[..., Value]
    nulls: Nulls = Nulls.SPREAD
    null_rule: str = "null if an argument is"
    least: int = 1
    most: int | None = 1
    sql: Say | None = None
    sparql: Say | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is written `name(...)`; what is put in by resolving is not written at all."""
        return self.usage.startswith(f"{self.name}(")


# --- values ------------------------------------------------------------------------------------------------


def apply(call: Call, args: Sequence[Value]) -> Value:
    """The value of an operator on values.

    >>> apply(Call("+", (), Type.INT64), (2, 3)), apply(Call("/", (), Type.FLOAT64), (2, 0))
    (5, None)
    """
    own = OPERATORS[call.op]
    if own.nulls is Nulls.SPREAD and any(each is None for each in args):
        return None
    try:
        value = own.value(*args)
    except TypeError:  # types that nobody declared are known by their values alone
        kinds = " and ".join(map(a_kind_of, args))
        hint = "declare the types of the attributes, then a value of another type makes its record bad"
        raise Mistake(f"{call.op}: {kinds} do not go together", hint=hint) from None
    return _held(value, call.type)


def _held(value: Value, type: Type | None) -> Value:
    """The value, or null where its type cannot hold it."""
    if value.__class__ is bool:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            return None
        if type is Type.TIMESTAMP and not FIRST_INSTANT <= value <= LAST_INSTANT:
            return None
    return value


def function_of(expr: Expr, leaf: Callable[[Expr], Callable[[Context], Value]]) -> Callable[[Context], Value]:
    """An expression as a function; `leaf` says how what is neither a constant nor a call is read.

    >>> double = function_of(Call("*", (Field("e", "x", (), None), Const(2, Type.INT64))), lambda _: len)
    >>> double("abc")
    6
    """
    if isinstance(expr, Const):
        value = expr.value
        return lambda _: value
    if not isinstance(expr, Call):
        return leaf(expr)
    if expr.op == "in":
        return _among(expr, leaf)
    own = OPERATORS[expr.op]
    args = [function_of(each, leaf) for each in expr.args]
    of, type = own.value, expr.type
    if own.nulls is Nulls.OWN:
        return lambda context: of(*[each(context) for each in args])

    if len(args) == 2:
        first, second = args

        def of_two(context: Context) -> Value:
            left = first(context)
            if left is None:
                return None
            right = second(context)
            return None if right is None else _held(of(left, right), type)

        return of_two

    def strict(context: Context) -> Value:
        given = []
        for each in args:
            value = each(context)
            if value is None:
                return None
            given.append(value)
        return _held(of(*given), type)

    return strict


def event_function(expr: Expr) -> Callable[[Event], Value]:
    """An expression as a function of the one event that it is about.

    >>> x = Field("e", "x", (("s", ("x",)),), Type.FLOAT64)
    >>> half = event_function(Call("/", (x, Const(2.0, Type.FLOAT64)), Type.FLOAT64))
    >>> half(Event("s", 0, 0, 0, {"x": 5}))
    2.5
    """
    return function_of(expr, _attribute)


def _attribute(field: Expr) -> Callable[[Event], Value]:
    """As a host reads it: the first name that is not null, an int64 widened where needed."""
    if not isinstance(field, Field):
        raise TypeError(f"{type(field).__name__} is not a value of one event")
    sources, widens = dict(field.sources), field.type is Type.FLOAT64

    def read(event: Event) -> Value:
        for name in sources.get(event.stream, ()):
            value = event.value(name)
            if value is not None:
                return float(value) if widens and isinstance(value, int) else value
        return None

    return read


def _among(call: Call, leaf: Callable[[Expr], Callable[[Context], Value]]) -> Callable[[Context], Value]:
    """IN: the constants are looked up, however many they are."""
    value, *choices = call.args
    fixed = [each.value for each in choices if isinstance(each, Const)]
    known = frozenset(each for each in fixed if each is not None)
    of = function_of(value, leaf)
    others = [function_of(each, leaf) for each in choices if not isinstance(each, Const)]
    null: list[Value] = [None] if None in fixed else []

    def among(context: Context) -> Value:
        found = of(context)
        if found is not None and found in known:
            return True
        if found is None:
            return None
        return _in(found, *null, *[each(context) for each in others])

    return among


def _and(*args: Value) -> Value:
    if any(each is False for each in args):
        return False
    return None if any(each is None for each in args) else True


def _or(*args: Value) -> Value:
    if any(each is True for each in args):
        return True
    return None if any(each is None for each in args) else False


def _in(value: Value, *choices: Value) -> Value:
    if value is None:
        return None if choices else False  # `check` wants one; a rewrite may leave none
    if any(each is not None and each == value for each in choices):
        return True
    return None if any(each is None for each in choices) else False


def _if(condition: Value, then: Value, otherwise: Value) -> Value:
    return then if condition is True else otherwise


def _coalesce(*args: Value) -> Value:
    return next((each for each in args if each is not None), None)


def _divide(left: float, right: float) -> Value:
    return None if right == 0 else float(left) / float(right)


def _remainder(left: float, right: float) -> Value:
    """With the sign of the left side."""
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


def _whole(round_it: Callable[[float], int]) -> Callable[[float], Value]:
    """A rounding that leaves an int64 as it is."""
    return lambda value: value if isinstance(value, int) else float(round_it(value))


def _half_away_from_zero(value: float) -> int:
    size = abs(value)
    whole = math.floor(size)
    # The difference is exact; adding a half to the size would not be.
    rounded = whole + 1 if size - whole >= 0.5 else whole
    return -rounded if value < 0 else rounded


def _hour(ts: int, zone: str = "UTC") -> Value:
    return (ts + zone_offset(ts, zone)) // DURATION_UNITS["h"] % 24


def _day_of_week(ts: int, zone: str = "UTC") -> Value:
    # 1970 began on a Thursday.
    return ((ts + zone_offset(ts, zone)) // DURATION_UNITS["d"] + 3) % 7 + 1


def _regex(text: str, pattern: str) -> Value:
    return matcher(pattern)(text)


# --- literals that are checked -----------------------------------------------------------------------------


def _wrong_pattern(text: str) -> tuple[str, str | None] | None:
    try:
        matcher(text)
    except BadPattern as found:
        return f"this is not a regular expression: {found}", PATTERN_HINT
    return None


def _wrong_zone(name: str) -> tuple[str, str | None] | None:
    if is_zone(name):
        return None
    hint = did_you_mean(name, zone_names())
    near = hint is not None and hint.startswith("did you mean")
    return f"unknown time zone {name!r}", hint if near else 'a zone has a name such as "Europe/Berlin"'


# --- Spark SQL and SPARQL ----------------------------------------------------------------------------------


def express(target: str, call: Call, args: Sequence[str], query: str) -> str:
    """A call in `sql` or `sparql`; `Unsupported` where that would answer differently.

    >>> express("sparql", Call("lower", (), Type.STRING), ["?x"], "q")
    'LCASE(?x)'
    """
    say: Say | None = getattr(OPERATORS[call.op], target)
    text = None if say is None else say(call, args)
    if text is not None and len(text) <= _MOST_TEXT:
        return text
    types = dict.fromkeys(str(found) for each in call.args if (found := type_of(each)))
    what = " ".join([call.op, *(["of", " and ".join(types)] if types else ())])
    how = "as it is meant" if text is None else "in a text of reasonable length"
    reason = f"one {_LANGUAGES[target]} query cannot express {what} {how}"
    raise Unsupported(f"{query}: {reason}; the strategies replay and hybrid can")


def _written(template: str) -> Say:
    """A text with a place for each argument; with fewer or more arguments it cannot be said."""
    places = len(set(re.findall(r"\{\d\}", template)))
    return lambda call, args: template.format(*args) if len(args) == places else None


def _listed(name: str) -> Say:
    return lambda call, args: f"{name}({', '.join(args)})"


def _between(sign: str) -> Say:
    return lambda call, args: f"({f' {sign} '.join(args)})"


def _one_of(call: Call, args: Sequence[str]) -> str:
    return f"({args[0]} IN ({', '.join(args[1:])}))"


def _of_type(**texts: str) -> Say:
    """A text for each type of the result."""
    says = {Type(name): _written(text) for name, text in texts.items()}
    return lambda call, args: says[call.type](call, args) if call.type in says else None


def _sql_number(template: str) -> Say:
    """What float64 cannot hold is null; int64 that overflows is null by itself (`try_`)."""
    finite = f"IF(abs({template}) <= 1.7976931348623157E308D, {template}, NULL)"
    return _of_type(float64=finite, int64=template)


def _sparql_number(template: str) -> Say:
    """A number that is not finite is null; SPARQL has INF for it. Integers fail by themselves.

    Sums of what an archive is read through are finite (`LARGEST`), so that they stand as they are.
    """

    def say(call: Call, args: Sequence[str]) -> str | None:
        if not all(type_of(each) in (Type.INT64, Type.FLOAT64) for each in call.args):
            return None
        text = template.format(*args)
        if call.type is Type.INT64 or (call.op in ("+", "-") and all(map(_is_tame, call.args))):
            return text
        return f"IF(ABS({text}) <= 1.7976931348623157e308, {text}, ?null)"

    return say


def _sparql_quotient(call: Call, args: Sequence[str]) -> str | None:
    divided = _sparql_number("(xsd:double({0}) / xsd:double({1}))")(call, args)
    return None if divided is None else f"IF({args[1]} = 0, ?null, {divided})"


def _is_tame(expr: Expr) -> bool:
    match expr:
        case Const(value, _):
            return isinstance(value, int | float) and abs(value) <= LARGEST
        case Field():
            return True
        case Previous(of):
            return _is_tame(of)
        case Call("float" | "+" | "-" | "neg" | "abs", args):
            return all(map(_is_tame, args))
    return False


# --- the table ---------------------------------------------------------------------------------------------

_NUMBER = Argument((Type.INT64, Type.FLOAT64))
_TEXT = Argument((Type.STRING,))
_TRUTH = Argument((Type.BOOL,))
_TIME = Argument((Type.TIMESTAMP,))
_PATTERN = Argument((Type.STRING,), _wrong_pattern, "the pattern")
_ZONE = Argument((Type.STRING,), _wrong_zone, "the time zone", '{0}(?e.ts, "America/Los_Angeles")')
_DAY, _HOUR = DURATION_UNITS["d"], DURATION_UNITS["h"]


def _comparison(sign: str, doc: str, of: Callable[[Any, Any], bool], sql: str | None = None) -> Operator:
    say, rule = _between(sql or sign), TypeRule.COMPARISON
    return Operator(
        sign, f"a {sign} b", doc, rule, Type.BOOL, of, least=2, most=2, sql=say, sparql=_between(sign)
    )


def _logic(name: str, sign: str, doc: str, of: Callable[..., Value], nulls: str) -> Operator:
    sql, sparql = _between(name.upper()), _between(sign)
    row = Operator(name, f"a {sign} b", doc, (_TRUTH,), Type.BOOL, of, Nulls.OWN, nulls, 2, None)
    return replace(row, sql=sql, sparql=sparql)


def _arithmetic(sign: str, doc: str, of: Callable[..., Value], sql: Say, sparql: Say | None) -> Operator:
    gives = Type.FLOAT64 if sign == "/" else None
    row = Operator(sign, f"a {sign} b", doc, TypeRule.ARITHMETIC, gives, of, least=2, most=2)
    return replace(row, sql=sql, sparql=sparql)


_TABLE = (
    _comparison("=", "whether both are equal", operator.eq),
    _comparison("!=", "whether they differ", operator.ne, "<>"),
    _comparison("<", "whether a is smaller, or earlier; strings by code point", operator.lt),
    _comparison("<=", "whether a is smaller or equal", operator.le),
    _comparison(">", "whether a is larger, or later", operator.gt),
    _comparison(">=", "whether a is larger or equal", operator.ge),
    Operator(
        "in",
        "a IN (b, c, ...)",
        "whether a is equal to one of them; also `NOT IN`",
        TypeRule.COMPARISON,
        Type.BOOL,
        _in,
        Nulls.OWN,
        "true if one is equal, else null if any is null",
        most=None,
        sql=_one_of,
        sparql=_one_of,
    ),
    _logic("and", "&&", "whether both are true; also `AND`", _and, "false if one side is false"),
    _logic("or", "||", "whether at least one is true; also `OR`", _or, "true if one side is true"),
    Operator(
        "not",
        "!a",
        "whether a is false; also `NOT`",
        (_TRUTH,),
        Type.BOOL,
        operator.not_,
        sql=_written("(NOT {0})"),
        sparql=_written("(!{0})"),
    ),
    _arithmetic(
        "+",
        "the sum; of a timestamp and a duration a timestamp",
        operator.add,
        _sql_number("try_add({0}, {1})"),
        _sparql_number("({0} + {1})"),
    ),
    _arithmetic(
        "-",
        "the difference; of two timestamps a duration, of a timestamp and a duration a timestamp",
        operator.sub,
        _sql_number("try_subtract({0}, {1})"),
        _sparql_number("({0} - {1})"),
    ),
    _arithmetic(
        "*",
        "the product",
        operator.mul,
        _sql_number("try_multiply({0}, {1})"),
        _sparql_number("({0} * {1})"),
    ),
    _arithmetic(
        "/",
        "the quotient, a float64; by zero it is null",
        _divide,
        _sql_number("try_divide(CAST({0} AS DOUBLE), CAST({1} AS DOUBLE))"),
        _sparql_quotient,
    ),
    _arithmetic(
        "%",
        "the remainder, with the sign of a; by zero it is null",
        _remainder,
        _sql_number("try_mod({0}, {1})"),
        None,
    ),
    Operator(
        "neg",
        "-a",
        "the number with the other sign",
        (_NUMBER,),
        None,
        operator.neg,
        sql=_of_type(float64="(-{0})", int64="try_subtract(0L, {0})"),
        sparql=_of_type(float64="(-{0})", int64="(-{0})"),
    ),
    Operator(
        "float",  # put in by resolving, where an int64 meets a float64
        "",
        "an int64 as a float64",
        (_NUMBER,),
        Type.FLOAT64,
        float,
        sql=_written("CAST({0} AS DOUBLE)"),
        sparql=_written("xsd:double({0})"),
    ),
    Operator(
        "abs",
        "abs(x)",
        "the number without its sign",
        (_NUMBER,),
        None,
        abs,
        sql=_of_type(float64="abs({0})"),
        sparql=_written("ABS({0})"),
    ),
    Operator(
        "floor",
        "floor(x)",
        "the largest whole number that is not above x",
        (_NUMBER,),
        None,
        _whole(math.floor),
        sparql=_written("FLOOR({0})"),
    ),
    Operator(
        "ceil",
        "ceil(x)",
        "the smallest whole number that is not below x",
        (_NUMBER,),
        None,
        _whole(math.ceil),
        sparql=_written("CEIL({0})"),
    ),
    Operator(
        "round",
        "round(x)",
        "the nearest whole number; a half goes away from zero",
        (_NUMBER,),
        None,
        _whole(_half_away_from_zero),
        sparql=_written("IF({0} < 0, -ROUND(-{0}), ROUND({0}))"),  # SPARQL rounds halves up
    ),
    Operator(
        "lower",
        "lower(s)",
        "s in lower case",
        (_TEXT,),
        Type.STRING,
        str.lower,
        sparql=_written("LCASE({0})"),
    ),
    Operator(
        "upper",
        "upper(s)",
        "s in upper case",
        (_TEXT,),
        Type.STRING,
        str.upper,
        sparql=_written("UCASE({0})"),
    ),
    Operator(
        "contains",
        "contains(s, part)",
        "whether s contains the part",
        (_TEXT, _TEXT),
        Type.BOOL,
        operator.contains,
        least=2,
        most=2,
        sql=_listed("contains"),
        sparql=_listed("CONTAINS"),
    ),
    Operator(
        "startsWith",
        "startsWith(s, part)",
        "whether s begins with the part",
        (_TEXT, _TEXT),
        Type.BOOL,
        str.startswith,
        least=2,
        most=2,
        sql=_listed("startswith"),
        sparql=_listed("STRSTARTS"),
    ),
    Operator(
        "regex",
        "regex(s, 'pattern')",
        "whether the pattern, which is a literal, matches anywhere in s",
        (_TEXT, _PATTERN),
        Type.BOOL,
        _regex,
        least=2,
        most=2,
    ),
    Operator(
        "coalesce",
        "coalesce(a, b, ...)",
        "the first of them that is not null",
        TypeRule.CHOICE,
        None,
        _coalesce,
        Nulls.OWN,
        "null if all are null",
        most=None,
        sql=_listed("coalesce"),
        sparql=_listed("COALESCE"),
    ),
    Operator(
        "if",
        "if(c, a, b)",
        "a if the condition c is true, else b",
        TypeRule.CHOICE,
        None,
        _if,
        Nulls.OWN,
        "b if c is null",
        least=3,
        most=3,
        sql=_listed("IF"),
        sparql=_written("IF(COALESCE({0}, false), {1}, {2})"),
    ),
    Operator(
        "hour",
        "hour(t, 'zone')",
        "the hour of the day, 0 to 23, in UTC or in the zone, which is a literal",
        (_TIME, _ZONE),
        Type.INT64,
        _hour,
        most=2,
        sql=_written(f"(pmod({{0}}, {_DAY}L) DIV {_HOUR}L)"),
        sparql=_written("HOURS({0})"),
    ),
    Operator(
        "dayOfWeek",
        "dayOfWeek(t, 'zone')",
        "the day of the week, Monday 1 to Sunday 7, in UTC or in the zone, which is a literal",
        (_TIME, _ZONE),
        Type.INT64,
        _day_of_week,
        most=2,
        sql=_written(f"(pmod({{0}} + {3 * _DAY}L, {7 * _DAY}L) DIV {_DAY}L + 1L)"),
    ),
)

OPERATORS: Mapping[str, Operator] = {each.name: each for each in _TABLE}
FUNCTIONS: Mapping[str, Operator] = {each.name: each for each in _TABLE if each.is_function}
"""Those of them that are written `name(...)`."""


# ----------------------------------------------------------------------------------------------------------
# chi-CEP expressions as Spark SQL, where that gives the same value to the last bit; else they are refused.
#
# Three-valued logic is the same in both. Times are microseconds, as everywhere.
#


FieldText = Callable[[Field, bool], str]
"""The text of a field's value; the second argument says that the field stands in PREV."""

SQL_TYPES = {
    Type.BOOL: "BOOLEAN",
    Type.INT64: "BIGINT",
    Type.FLOAT64: "DOUBLE",
    Type.STRING: "STRING",
    Type.TIMESTAMP: "BIGINT",
}
"""What Spark SQL calls the types; a time is a number of microseconds."""


def name_sql(name: str) -> str:
    """A name as Spark SQL quotes it.

    >>> name_sql("flow`rate")
    '`flow``rate`'
    """
    return "`" + name.replace("`", "``") + "`"


def constant_sql(value: Value, type: Type | None) -> str:
    """A constant as Spark SQL writes it.

    >>> constant_sql("it's", Type.STRING), constant_sql(500.0, Type.FLOAT64), constant_sql(None, None)
    ("'it\\\\'s'", '500.0D', 'NULL')
    """
    if value is None:
        return "NULL"
    if type is Type.STRING:
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if type is Type.BOOL:
        return "TRUE" if value else "FALSE"
    if type is Type.FLOAT64:
        return f"{float(value)!r}D"
    return f"{value}L"


def expression_in(
    dialect: str, constant: Callable[[Value, Type | None], str], expr: Expr, field: FieldText, query: str
) -> str:
    """An expression in another language; `Unsupported` for what that would answer differently."""

    def say(each: Expr, previous: bool = False) -> str:
        match each:
            case Const(value, kind):
                return constant(value, kind)
            case Field():
                return field(each, previous)
            case Previous(of):
                return say(of, True)
            case Call():
                return express(dialect, each, [say(arg, previous) for arg in each.args], query)
        raise Unsupported(f"{query}: {type(each).__name__} is not known in {_LANGUAGES[dialect]}")

    return say(expr)


def expression_sql(expr: Expr, field: FieldText, query: str) -> str:
    """An expression as Spark SQL; `Unsupported` for what Spark would answer differently."""
    return expression_in("sql", constant_sql, expr, field, query)
