"""Errors as objects: what is wrong, where it is, and what to do about it.

A caller's mistake is a `Mistake`: one or more diagnostics, each with the place in the text it
speaks of. Everything that fails while running is a `Failure`. Both survive pickling, so that an
error raised on a Spark worker reaches the driver as it was.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_TAB = " " * 4
_COLOURS = {"error": "1;31", "warning": "1;33"}


def painted(text: str, colour: str) -> str:
    """A text in a colour of terminals, by its number there; without one, as it is.

    >>> painted("error", "31"), painted("error", "")
    ('\\x1b[31merror\\x1b[0m', 'error')
    """
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def a_kind_of(value: object) -> str:
    """What kind of thing a value of Python is.

    >>> a_kind_of(5), a_kind_of("5")
    ('an int', 'a str')
    """
    kind = type(value).__name__
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


def arrow_for(what: str) -> Any:
    """The package pyarrow, which the core does without; a `Mistake` where it is not installed."""
    try:
        return import_module("pyarrow")
    except ImportError:
        said = f"{what} needs the package pyarrow, which is not installed"
        raise Mistake(Diagnostic(said, hint="pip install 'kaicep[parquet]'")) from None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source text, as offsets of characters: `start` included, `end` not."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The stretch from the beginning of this one to the end of the other."""
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text and the name to call it by in a message (a file name, or `<query>`)."""

    name: str
    text: str

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1."""
        before = self.text[: max(0, min(offset, len(self.text)))]
        line = before.count("\n") + 1
        return line, len(before) - (before.rfind("\n") + 1) + 1

    def line(self, number: int) -> str:
        """A line of the text, by its number from 1, without its line end."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing to say about a text: an error, or a warning that stops nothing."""

    message: str
    span: Span | None = None
    source: SourceText | None = None
    hint: str | None = None
    severity: str = "error"

    def render(self, colour: bool = False) -> str:
        """The message as a person reads it, with the line underlined; for a terminal, in `colour`.

        >>> source = SourceText("q.chi", "SELECT ?e.x\\nFROM (?e, airflw)")
        >>> print(Diagnostic("unknown stream airflw", Span(22, 28), source, "did you mean airflow?").render())
        error: unknown stream airflw
         --> q.chi:2:11
          |
        2 | FROM (?e, airflw)
          |           ^^^^^^
          = help: did you mean airflow?
        """
        strong = _COLOURS.get(self.severity, "36") if colour else ""
        faint, helping = ("34", "36") if colour else ("", "")
        rows = [painted(f"{self.severity}:", strong) + painted(f" {self.message}", "1" if colour else "")]
        pad = " "
        if self.source is not None and self.span is not None:
            line, column = self.source.position(self.span.start)
            text = self.source.line(line)
            pad = " " * len(str(line))
            last = min(self.span.end, self.span.start + len(text) - column + 1)
            shown = text[: column - 1].replace("\t", _TAB)
            marked = text[column - 1 : column - 1 + max(0, last - self.span.start)]
            width = max(1, len(marked.replace("\t", _TAB)))
            rows += [
                f"{pad}{painted('-->', faint)} {self.source.name}:{line}:{column}",
                painted(f"{pad} |", faint),
                f"{painted(f'{line} |', faint)} {text.replace(chr(9), _TAB)}",
                f"{painted(f'{pad} |', faint)} {' ' * len(shown)}{painted('^' * width, strong)}",
            ]
        elif self.source is not None:
            rows.append(f"{pad}{painted('-->', faint)} {self.source.name}")
        if self.hint:
            rows.append(f"{pad} {painted('= help:', helping)} {self.hint}")
        return "\n".join(rows)


class KaicepError(Exception):
    """The base of every error that kaicep raises on purpose."""


class Mistake(KaicepError):
    """The caller's mistake: a query, a file or a setting that must be corrected (exit status 2)."""

    def __init__(
        self,
        said: Iterable[Diagnostic] | Diagnostic | str,
        span: Span | None = None,
        source: SourceText | None = None,
        hint: str | None = None,
    ) -> None:
        if isinstance(said, str):
            said = Diagnostic(said, span, source, hint)
        self.diagnostics = (said,) if isinstance(said, Diagnostic) else tuple(said)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return "\n\n".join(each.render() for each in self.diagnostics)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message. Where in our code it was found helps nobody to mend it."""
        return str(self).splitlines()


class Failure(KaicepError):
    """Something failed at run time, through no mistake in the query (exit status 1)."""


class Unsupported(KaicepError):
    """A host was asked for something that it cannot do; the message says which host can."""


def reason_of(error: BaseException) -> str:
    """Why something failed: our own errors say so, of others the class is named too.

    >>> reason_of(Failure("the disk is full")), reason_of(KeyError("x"))
    ('the disk is full', "KeyError: 'x'")
    """
    if isinstance(error, KaicepError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """A hint for a misspelt name: the nearest choices, or all of them where they are few.

    >>> did_you_mean("airflw", ["airflow", "meter"])
    'did you mean airflow?'
    >>> did_you_mean("x", ["airflow", "meter"])
    'known: airflow, meter'
    """
    known = sorted(set(choices))
    folded = {each.lower(): each for each in known}
    near = [folded[each] for each in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.6)]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if not known:
        return None
    listed = ", ".join(known[:12])
    return f"known: {listed}" + (f", and {len(known) - 12} more" if len(known) > 12 else "")
