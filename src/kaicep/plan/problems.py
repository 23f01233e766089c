"""Collects what is wrong with a query, so that a caller hears of all of it at once."""

from __future__ import annotations

from kaicep.errors import Diagnostic, Mistake, Source, Span

__all__ = ["Problems"]


class Problems:
    """The diagnostics of one query, in the order they were found."""

    def __init__(self, source: Source | None) -> None:
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
