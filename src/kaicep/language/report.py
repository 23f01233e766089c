"""The errors of one text, gathered so that several can be told in one go."""

from __future__ import annotations

from typing import NoReturn

from kaicep.errors import Diagnostic, Mistake, Source, Span

__all__ = ["Report", "Stuck"]

_MOST = 20


class Stuck(Exception):
    """A parser does not know how to go on; whoever can find a place to go on from catches it."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic


class Report:
    """The errors found so far in a text. It ends the parsing when there are too many."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._diagnostics: list[Diagnostic] = []

    def error(self, message: str, span: Span, hint: str | None = None) -> None:
        """Notes an error that parsing can go on from."""
        self.add(Diagnostic(message, span, self.source, hint))

    def add(self, diagnostic: Diagnostic) -> None:
        """Notes an error; of several at one place the first is enough."""
        begins = diagnostic.span and diagnostic.span.start
        if any(each.span and each.span.start == begins for each in self._diagnostics):
            return
        self._diagnostics.append(diagnostic)
        if len(self._diagnostics) >= _MOST:
            self.finish()

    def fail(self, message: str, span: Span, hint: str | None = None) -> NoReturn:
        """Ends the parsing with this error and those before it."""
        self._diagnostics.append(Diagnostic(message, span, self.source, hint))
        self.finish()
        raise AssertionError("unreachable")

    def finish(self) -> None:
        """Raises the errors, if there are any, in the order of the text."""
        if self._diagnostics:
            raise Mistake(sorted(self._diagnostics, key=lambda each: each.span.start if each.span else 0))
