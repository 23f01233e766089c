"""The five types of an attribute, and the values that travel as them.

At run time a value is a plain Python object: bool, int, float, str; a timestamp is an int, the
microseconds since 1970 in UTC. A missing value, a NaN and an infinity are None (semantics 1).
"""

from __future__ import annotations

from enum import Enum

__all__ = ["INT64_MAX", "INT64_MIN", "Type", "Value", "unify"]

INT64_MIN = -(2**63)
"""The smallest int64."""
INT64_MAX = 2**63 - 1
"""The largest int64."""

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
