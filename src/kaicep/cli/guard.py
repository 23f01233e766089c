"""How a command ends: every error becomes a message on stderr and an exit status (semantics 5)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TextIO

import typer

from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported

__all__ = ["FAILED", "INTERRUPTED", "MISTAKEN", "guarded", "has_colour", "say", "warn"]

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130

P = ParamSpec("P")


def say(text: str) -> None:
    """Writes a message to stderr."""
    print(text, file=sys.stderr, flush=True)


def has_colour(stream: TextIO) -> bool:
    """Whether what is written there may be coloured: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def warn(diagnostics: Iterable[Diagnostic], hints: bool = False) -> None:
    """Writes warnings to stderr; matters of style only where they are wanted."""
    for each in diagnostics:
        if hints or each.severity == "warning":
            say(each.render(has_colour(sys.stderr)) + "\n")


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with its errors told as messages. KAICEP_DEBUG=1 shows where they come from."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BrokenPipeError:
            # Whoever read our output has seen enough. Python flushes stdout once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("KAICEP_DEBUG") == "1":
                import traceback

                traceback.print_exc()
            message, status = _last_words(error)
            say(message)
            raise typer.Exit(status) from None

    return run


def _last_words(error: BaseException) -> tuple[str, int]:
    """What to say about an error, and the exit status."""
    if isinstance(error, Mistake):
        colour = has_colour(sys.stderr)
        return "\n\n".join(each.render(colour) for each in error.diagnostics), MISTAKEN
    if isinstance(error, Unsupported):
        return _said(str(error)), MISTAKEN
    if isinstance(error, Failure | OSError):
        return _said(str(error)), FAILED
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, MemoryError):
        return _said("this does not fit into memory"), FAILED
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    way = "this is a defect of kaicep; with KAICEP_DEBUG=1 it shows where it happened"
    return f"internal error: {what}\n  = help: {way}", FAILED


def _said(text: str) -> str:
    return Diagnostic(text).render(has_colour(sys.stderr))
