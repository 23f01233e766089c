"""Regular expressions of queries, in RE2's language: in linear time, with the same answers on every host.

RE2 has no look-around and no back-references; a repetition counts to 1,000. `$` is the end of the text, and
the classes of digits, blanks and word characters are ASCII.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

PATTERN_HINT = "patterns are those of RE2: no look-around, no back-references, repetitions up to 1000"
FLAGS = "ismxq"
"""The flags of SPARQL: case, dot, lines, blanks that do not count, and no pattern at all but a plain text."""


class BadPattern(ValueError):
    """A text that is not a regular expression of RE2; the message says why."""


@lru_cache(maxsize=1024)
def matcher(text: str, flags: str = "") -> Callable[[str], bool]:
    """Whether a pattern matches anywhere in a text.

    >>> matcher("^E[0-9]+")("E105"), matcher("b.$", "i")("aBC")
    (True, True)
    """
    search = _compiled(text, flags, capture=False).search
    # What is not a character (half of a pair) matches nothing but a dot.
    return lambda given: search(given.encode("utf-8", "replace")) is not None


@lru_cache(maxsize=256)
def pattern(text: str, flags: str = "") -> Any:
    """A pattern with its groups, as `re2` has it."""
    return _compiled(text, flags, capture=True)


def _compiled(text: str, flags: str, capture: bool) -> Any:
    import re2

    unknown = [each for each in flags if each not in FLAGS]
    if unknown:
        raise BadPattern(f"unknown flag {unknown[0]}; there are {', '.join(FLAGS)}")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = not capture
    options.literal = "q" in flags
    options.case_sensitive = "i" not in flags
    if "q" not in flags:
        text = _without_blanks(text) if "x" in flags else text
        inside = "".join(each for each in "sm" if each in flags)
        text = f"(?{inside}){text}" if inside else text
    try:
        return re2.compile(text, options)
    except re2.error as error:
        (reason,) = error.args
        raise BadPattern(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason) from None
    except UnicodeEncodeError:
        raise BadPattern("it has half of a pair of code units, which is not a character") from None


def _without_blanks(text: str) -> str:
    """The pattern without blanks outside of classes of characters (XPath, flag x)."""
    made, inside, escaped = [], False, False
    for each in text:
        if not inside and not escaped and each in " \t\r\n":
            continue
        made.append(each)
        if not escaped and each in "[]":
            inside = each == "["
        escaped = each == "\\" and not escaped
    return "".join(made)
