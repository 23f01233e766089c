"""The five types of an attribute, and values of the outside world as values of a type."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

from kaicep.plan.time import (
    format_time,
    in_zone,
    nearest_thousandth,
    parse_formatted,
    parse_time,
    time_from_number,
    unit_of_number,
)

# ----------------------------------------------------------------------------------------------------------
# The five types of an attribute, and the values that travel as them.
#
# At run time a value is a plain Python object: bool, int, float, str; a timestamp is an int, the
# microseconds since 1970 in UTC. A missing value, a NaN and an infinity are None (semantics 1).

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

Value = bool | int | float | str | None
"""A value of an attribute; None is null."""


class Type(Enum):
    """The type of an attribute, a column or an expression."""

    BOOL = "bool"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    TIMESTAMP = "timestamp"

    @property
    def numeric(self) -> bool:
        """Whether arithmetic is defined on it."""
        return self in (Type.INT64, Type.FLOAT64)

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"Type.{self.name}"


def unify(left: Type, right: Type) -> Type | None:
    """The type that holds the values of both: int64 and float64 together are float64.

    >>> unify(Type.INT64, Type.FLOAT64)
    Type.FLOAT64
    >>> unify(Type.STRING, Type.INT64) is None
    True
    """
    if left is right:
        return left
    if left.numeric and right.numeric:
        return Type.FLOAT64
    return None


# ----------------------------------------------------------------------------------------------------------
# Values of the outside world as values of an attribute's type, and the types that such values suggest.
#
# What comes in is what readers of JSON, CSV and Parquet give: None, bool, int, float, Decimal, text, bytes,
# lists, objects, and `Instant` for a time that is already exact. From Python come times, dates and scalars
# of NumPy and pandas as well; `plain` reads those. What goes out is a `Value` (semantics 1). A value that
# does not fit raises `Unfit`, whose text is the reason that a dead letter states.

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
# Of the numbers only those that JSON knows suggest a number: `007` is more likely somebody's name.
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})", re.ASCII)
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)

_FIRST = parse_time("0001-01-01T00:00") or 0
_LAST = parse_time("9999-12-31T23:59:59.999999") or 0
_EPOCH = datetime(1970, 1, 1)
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, Decimal, list, dict))


class Unfit(ValueError):
    """A value that an attribute's type cannot hold."""


class Instant(int):
    """A time in microseconds, where a plain number would be taken for seconds."""


class WallTime(Instant):
    """An `Instant` of a time that came without an offset: what a clock showed, as if it were UTC."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written: what stands between its cells and in its numbers, and its encoding."""

    delimiter: str = ","
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"

    @property
    def plain_numbers(self) -> bool:
        """Whether numbers are written as elsewhere."""
        return self.decimal == "." and not self.thousands

    def number(self, text: str) -> str | None:
        """A number as it is written elsewhere; None where the text is no number of this dialect.

        >>> german = Dialect(decimal=",", thousands=".")
        >>> german.number("-1.234,5"), german.number("1.5"), Dialect(thousands=",").number("1,234")
        ('-1234.5', None, '1234')
        """
        text = text.strip()
        if self.plain_numbers or _NOT_FINITE.fullmatch(text):
            return text
        found = _number_pattern(self.decimal, self.thousands).fullmatch(text)
        if found is None:
            return None
        return text.replace(self.thousands, "").replace(self.decimal, ".")


@lru_cache
def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    point = re.escape(decimal)
    whole = rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+" if thousands else r"\d+"
    return re.compile(rf"[+-]?(?:(?:{whole})(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wide:
    """A table with a column for each point: every filled cell of `columns` is an event (semantics 2.12).

    Its attributes are `point`, the header of the column, `value`, the cell, and the columns in `keep`.
    Where `columns` is empty, all are points but the time and those that are kept.
    """

    columns: tuple[str, ...] = ()
    point: str = "name"
    value: str = "reading"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RdfTimes:
    """How a stream of triples says when they hold.

    In a record it is said by the attributes `start` and `end`; in a document of RDF by properties, of which
    the first that is there counts. `format` is that of messages which are documents.
    """

    starts: tuple[str, ...] = (
        "http://www.w3.org/ns/prov#generatedAtTime",
        "http://www.w3.org/ns/sosa/resultTime",
    )
    ends: tuple[str, ...] = ()
    start: str = "start"
    end: str = "end"
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Notation:
    """How the values of a stream are written, as its annotation says: the unit of times that are numbers.

    The label of a blank node means one node inside of one record, or (`blank_nodes`) in the whole stream.
    Texts in `nulls` are null. Times that are texts have the `time_format` (of `strptime`; else ISO 8601) and,
    where they have no offset, the `time_zone` (else UTC). With `rdf` they are records of triples.
    """

    time_unit: str = "s"
    blank_nodes: str = "record"
    nulls: tuple[str, ...] = ()
    time_format: str | None = None
    time_zone: str | None = None
    csv: Dialect = Dialect()
    wide: Wide | None = None
    rdf: RdfTimes | None = None

    @property
    def usual_times(self) -> bool:
        """Whether times that are texts are ISO 8601, and UTC where they have no offset."""
        return self.time_format is None and self.time_zone is None

    @property
    def usual_values(self) -> bool:
        """Whether a value means what it means elsewhere, but for the unit of its times."""
        return self.usual_times and not self.nulls and self.csv.plain_numbers and self.wide is None

    def time_of(self, text: str) -> int | None:
        """The microseconds of a time that is a text; None where it is none."""
        if self.time_format is not None:
            return parse_formatted(text, self.time_format, self.time_zone)
        return parse_time(text, self.time_zone)


USUAL = Notation()


def plain(value: object) -> object:
    """A value of Python, NumPy or pandas as one that JSON, CSV or Parquet could have given.

    A time without a zone is UTC, as in a text; a date is its midnight; what is finer than a microsecond is
    rounded; NaT and NA are null.

    >>> plain(datetime(1970, 1, 1, 0, 1)), plain(date(1970, 1, 2)), plain((1, timedelta(seconds=2)))
    (60000000, 86400000000, [1, 2000000])
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, Instant):
        return value
    if isinstance(value, datetime | date):
        return _instant(value)
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return [plain(each) for each in value]
    for builtin in (str, int, float):
        if isinstance(value, builtin):
            return builtin(value)
    if isinstance(value, time_of_day):
        return value.isoformat()
    if kind.__module__.partition(".")[0] == "numpy":
        return _of_numpy(value)
    return None if kind.__name__ == "NAType" else str(value)


def _instant(value: datetime | date) -> Instant | None:
    if not isinstance(value, datetime):
        return WallTime((value - _EPOCH.date()) // timedelta(microseconds=1))
    if value != value:  # NaT
        return None
    made = Instant if value.tzinfo else WallTime
    own = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    nanoseconds = getattr(own, "nanosecond", 0)
    if nanoseconds:  # of pandas
        own = own.replace(nanosecond=0)  # type: ignore[call-arg]
    micros = int((own - _EPOCH) // timedelta(microseconds=1))
    return made(nearest_thousandth(1_000 * micros + nanoseconds))


def _of_numpy(value: Any) -> object:
    """A scalar of NumPy, or an array, as Python has it."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind not in ("M", "m"):
        return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
    if getattr(value, "ndim", 0):
        return [_of_numpy(each) for each in value]
    if value != value:  # NaT
        return None
    unit, count = value.dtype.name.rpartition("[")[2].rstrip("]"), int(value.astype("int64"))
    if unit == "ns":
        made = int(nearest_thousandth(count))
    else:
        kinds = ("datetime64[us]", "timedelta64[us]")
        made = int(value.astype(kinds[kind == "m"]).astype("int64"))
    return WallTime(made) if kind == "M" else made


def show(value: object) -> str:
    """A value as a message quotes it, shortened where it is long.

    >>> show("x" * 50)
    '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'
    """
    text = json_text(value)
    return text if len(text) <= 40 else text[:37] + "..."


def json_text(value: object) -> str:
    """A value as JSON writes it, without needless spaces.

    >>> json_text({"a": [1, 2.5, None]})
    '{"a":[1,2.5,null]}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json)


def _json(value: object) -> object:
    """What JSON does not know, as it is written there: a time is its text."""
    known = plain(value)
    if isinstance(known, Instant) and _FIRST <= known <= _LAST:
        return format_time(known)
    return str(value) if known is value else known


def convert(value: object, type: Type, notation: Notation = USUAL) -> Value:
    """The value as the type holds it; None where it is null, NaN or infinite.

    >>> convert(3.0, Type.INT64), convert("2.5", Type.FLOAT64), convert(7, Type.STRING)
    (3, 2.5, '7')
    >>> convert(1.5, Type.TIMESTAMP), convert(float("nan"), Type.FLOAT64)
    (1500000, None)
    >>> convert("warm", Type.FLOAT64)
    Traceback (most recent call last):
    kaicep.plan.types.Unfit: "warm" is not a float64
    """
    value = plain(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, str) and not notation.usual_values:
        if value in notation.nulls:
            return None
        if type in (Type.INT64, Type.FLOAT64):
            value = _number_of(value, type, notation.csv)
    try:
        return _to_timestamp(value, notation) if type is Type.TIMESTAMP else _CONVERTERS[type](value)
    except RecursionError:
        raise Unfit("it is nested too deeply") from None


def _number_of(text: str, type: Type, dialect: Dialect) -> str:
    number = dialect.number(text)
    if number is None:
        raise Unfit(f"{show(text)} is no {type} with the decimal {dialect.decimal}")
    return number


def _to_bool(value: object) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if value in (0, 1, "0", "1") and not isinstance(value, Instant):
        return value in (1, "1")
    raise Unfit(f"{show(value)} is not a bool")


def _to_int64(value: object) -> Value:
    number = _number(value, Type.INT64)
    if number is None:
        return None
    if isinstance(number, Decimal) and number.adjusted() > 20:
        raise Unfit(f"{show(value)} does not fit into int64")
    whole = int(number)
    if whole != number:
        raise Unfit(f"{show(value)} is not an int64: it has a fraction")
    if not INT64_MIN <= whole <= INT64_MAX:
        raise Unfit(f"{show(value)} does not fit into int64")
    return whole


def _to_float64(value: object) -> Value:
    number = _number(value, Type.FLOAT64)
    if number is None:
        return None
    try:
        near = float(number)
    except OverflowError:
        return None
    return near if math.isfinite(near) else None


def _number(value: object, type: Type) -> int | float | Decimal | None:
    """A number in its most exact form; None for the text of a NaN or an infinity."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool | Instant):
        return value if isinstance(value, int) or math.isfinite(value) else None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            # Reading the text as the type's own number rounds once; a detour would round twice.
            return float(text) if type is Type.FLOAT64 else Decimal(text)
        if _NOT_FINITE.fullmatch(text):
            return None
    raise Unfit(f"{show(value)} is not {'an' if type is Type.INT64 else 'a'} {type}")


def _to_string(value: object) -> Value:
    if isinstance(value, str):
        return value
    if isinstance(value, Instant):
        return format_time(_in_range(value))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Unfit(f"{show(value)} is not UTF-8 text") from None
    return json_text(value)


_UNIT_NAMES = {
    "s": "epoch seconds",
    "ms": "epoch milliseconds",
    "us": "epoch microseconds",
    "ns": "epoch nanoseconds",
    "excel": "days of Excel",
}


def _to_timestamp(value: object, notation: Notation) -> Value:
    zone = notation.time_zone
    if isinstance(value, Instant):
        return _in_range(in_zone(value, zone) if zone and isinstance(value, WallTime) else value)
    number: object = value
    if isinstance(value, str):
        found = notation.time_of(value)
        if found is not None:
            return found
        text = notation.csv.number(value) or ""
        number = Decimal(text) if _NUMBER.fullmatch(text) else None
    unit = notation.time_unit
    if not isinstance(number, int | float | Decimal) or isinstance(number, bool):
        form = f"a time like {notation.time_format}" if notation.time_format else "an ISO 8601 time"
        raise Unfit(f"{show(value)} is neither {form} nor {_UNIT_NAMES[unit]}{_likely_form(value, notation)}")
    found = time_from_number(number, unit)
    if found is not None and zone and unit == "excel":
        found = in_zone(found, zone)  # a spreadsheet counts the days of a wall calendar
    if found is None:
        reason = f"{show(value)} is not a time between the years 1 and 9999 in {_UNIT_NAMES[unit]}"
        likely = unit_of_number(number)
        if likely is not None:
            reason += f'; as {_UNIT_NAMES[likely]} it is one: "time_unit": "{likely}" in the annotation'
        raise Unfit(reason)
    return found


def _likely_form(value: object, notation: Notation) -> str:
    """How a text may be read that is a time as people write it."""
    if notation.time_format is None and isinstance(value, str):
        for form in _FORMS:
            if parse_formatted(value, form) is not None:
                return f'; it may be of the form "time_format": "{form}" in the annotation'
    return ""


_DAYS = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y")
_FORMS = [
    f"{day}{time}" for day in _DAYS for time in (" %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "")
]


def _in_range(instant: int) -> int:
    if not _FIRST <= instant <= _LAST:
        raise Unfit(f"a time {int(instant)} microseconds from 1970 is not of the years 1 to 9999")
    return int(instant)


_CONVERTERS: Mapping[Type, Callable[[object], Value]] = {
    Type.BOOL: _to_bool,
    Type.INT64: _to_int64,
    Type.FLOAT64: _to_float64,
    Type.STRING: _to_string,
}


def guess(value: object, notation: Notation = USUAL) -> Type | None:
    """The type that a value of JSON or Parquet suggests; None where it says nothing, or means null.

    >>> guess(1), guess(1.0), guess("1"), guess({"a": 1}), guess(None)
    (Type.INT64, Type.FLOAT64, Type.STRING, Type.STRING, None)
    """
    value = plain(value)
    if value is None or (notation.nulls and value in notation.nulls):
        return None
    if isinstance(value, bool):
        return Type.BOOL
    if isinstance(value, Instant):
        return Type.TIMESTAMP
    if isinstance(value, int):
        return Type.INT64 if INT64_MIN <= value <= INT64_MAX else Type.FLOAT64
    if isinstance(value, float | Decimal):
        return Type.FLOAT64
    return Type.STRING


def guess_text(text: str | None, notation: Notation = USUAL) -> Type | None:
    """The type that a cell of CSV suggests; an empty one says nothing, nor does one that means null.

    >>> [str(guess_text(each)) for each in ("12", "1e3", "True", "007", "a", "")]
    ['int64', 'float64', 'bool', 'string', 'string', 'None']
    """
    if not text or text in notation.nulls:
        return None
    number = text if notation.csv.plain_numbers else notation.csv.number(text) or ""
    if _PLAIN_INTEGER.fullmatch(number) and INT64_MIN <= int(number) <= INT64_MAX:
        return Type.INT64
    if _PLAIN_NUMBER.fullmatch(number) or _NOT_FINITE.fullmatch(number):
        return Type.FLOAT64
    if text.lower() in ("true", "false"):
        return Type.BOOL
    return Type.STRING


def widen(known: Type | None, seen: Type | None) -> Type | None:
    """The type of an attribute after one more value; what agrees in nothing else is text.

    >>> widen(Type.INT64, Type.FLOAT64), widen(Type.BOOL, Type.INT64), widen(Type.BOOL, None)
    (Type.FLOAT64, Type.STRING, Type.BOOL)
    """
    if known is None or seen is None:
        return known or seen
    return unify(known, seen) or Type.STRING
