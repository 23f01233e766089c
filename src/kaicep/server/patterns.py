"""Regular expressions from outside: only those that cannot run away are let in.

Python's matcher goes back and tries again, which for some expressions takes longer than the world will
last. How often it can is estimated from the expression alone: a repetition whose end the next character does
not decide can stop anywhere, and every optional item, every alternative multiplies the ways. One of
the former and a thousand of the latter are let in; repetitions of repetitions, references and
looking around are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from kaicep.plan.expressions import Call, Const, TermConst
from kaicep.plan.terms import Literal

__all__ = ["patterns_of", "why_slow"]

_LONGEST = 1_000
_MANY = 64
_WAYS = 1_000
_SINGLE = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_SAMPLE = [chr(code) for code in (*range(0x250), 0x3B1, 0x416, 0x5D0, 0x661, 0x4E2D, 0x2028, 0x3000, 0x1F600)]


@dataclass
class _Ways:
    """In how many ways a text can be tried: repetitions that may stop anywhere, and a number of choices."""

    endless: int = 0
    choices: int = 1


def why_slow(pattern: str) -> str | None:
    """Why a regular expression is not let in; None where it is.

    >>> why_slow(r"^room [0-9]+-[a-z]+$"), why_slow("(a+)+$")
    (None, 'a repetition inside a repetition')
    """
    if len(pattern) > _LONGEST:
        return f"it is longer than {_LONGEST} characters"
    try:
        tree = parser.parse(pattern)
        ways = _Ways()
        _sequence(tree, ways, tree.state.flags)
    except _Refused as refused:
        return str(refused)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is not a regular expression: {error}"
    if ways.endless > 1:
        return "several repetitions that may each stop anywhere"
    return f"more than {_WAYS} ways to match" if ways.choices > _WAYS else None


class _Refused(Exception):
    pass


def _sequence(items: Any, ways: _Ways, flags: int) -> None:
    found = list(items)
    for place, (code, value) in enumerate(found):
        if code in _REPEATS:
            _repeat(value, found[place + 1 :], ways, flags)
        elif code is codes.SUBPATTERN:
            _sequence(value[3], ways, flags)
        elif code is codes.BRANCH:
            _branches(value[1], ways, flags)
        elif code not in _SINGLE and code is not codes.AT:
            raise _Refused(f"{str(code).lower().replace('_', ' ')} is not allowed")


def _branches(branches: Sequence[Any], ways: _Ways, flags: int) -> None:
    most = _Ways(0, 0)
    for each in branches:
        inside = _Ways()
        _sequence(each, inside, flags)
        most.endless = max(most.endless, inside.endless)
        most.choices += inside.choices
    ways.endless += most.endless
    ways.choices *= most.choices


def _repeat(value: Any, rest: Sequence[Any], ways: _Ways, flags: int) -> None:
    least, most, body = value
    items = list(_flat(body))
    if any(code not in _SINGLE for code, _ in items):
        nested = any(code in _REPEATS for code, _ in items)
        raise _Refused(f"{'a repetition' if nested else 'a choice'} inside a repetition")
    if least == most or _is_decided(items, rest, flags):
        return
    if most is codes.MAXREPEAT or most - least > _MANY:
        ways.endless += 1
    else:
        ways.choices *= most - least + 1


def _flat(body: Any) -> Iterator[tuple[Any, Any]]:
    for code, value in body:
        if code is codes.SUBPATTERN:
            yield from _flat(value[3])
        else:
            yield code, value


def _is_decided(items: Sequence[tuple[Any, Any]], rest: Sequence[Any], flags: int) -> bool:
    """Whether the next character alone says if a repetition goes on: it begins like nothing that follows."""
    following = next(iter(rest), None)
    while following is not None and following[0] is codes.SUBPATTERN:
        following = next(iter(following[1][3]), None)
    if following is None or following[0] not in _SINGLE or not items:
        return False
    return not _characters(items[0], flags) & _characters(following, flags)


def _characters(item: tuple[Any, Any], flags: int) -> frozenset[str]:
    """Those of a sample, which has some of every kind, that an item takes; case is never looked at."""
    state = parser.State()
    state.str = ""
    state.flags = flags | re.IGNORECASE.value | re.UNICODE.value
    compiled = re._compiler.compile(parser.SubPattern(state, [item]), state.flags)  # type: ignore[attr-defined]
    return frozenset(each for each in _SAMPLE if compiled.fullmatch(each))


def patterns_of(query: object) -> Iterator[str | None]:
    """The regular expressions of a query as parsed; None for one that is not written down in it."""
    if isinstance(query, Call) and query.op.lower() in ("regex", "replace") and len(query.args) > 1:
        pattern = query.args[1]
        if isinstance(pattern, Const) and isinstance(pattern.value, str):
            yield pattern.value
        elif isinstance(pattern, TermConst) and isinstance(pattern.term, Literal):
            yield pattern.term.lexical
        else:
            yield None
    if is_dataclass(query):
        for each in fields(query):
            yield from patterns_of(getattr(query, each.name))
    elif isinstance(query, tuple | list):
        for item in query:
            yield from patterns_of(item)
