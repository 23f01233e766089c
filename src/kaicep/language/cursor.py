"""A place in a list of tokens, and the small steps that all parsers take."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from kaicep.errors import Diagnostic, Span, did_you_mean
from kaicep.language.lexer import Kind, Token, describe
from kaicep.language.report import Report, Stuck

__all__ = ["Cursor", "near"]

_DEEPEST = 100


def near(name: str, choices: Iterable[str]) -> str | None:
    """The hint for a misspelt name. A name too long to be a slip gets none."""
    return did_you_mean(name, choices) if len(name) <= 60 else None


class Cursor:
    """Where a parser stands. As a context (`with cursor:`) it is one level of nesting deeper."""

    def __init__(self, tokens: list[Token], report: Report) -> None:
        self.tokens = tokens
        self.report = report
        self.index = 0
        self._nesting = 0

    def __enter__(self) -> None:
        self._nesting += 1
        if self._nesting > _DEEPEST:
            message = f"this is nested more than {_DEEPEST} levels deep"
            self.report.fail(message, self.token.span, "split the query, or write it flatter")

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._nesting -= 1

    @property
    def token(self) -> Token:
        """The token at which the parser stands."""
        return self.tokens[self.index]

    @property
    def next(self) -> Token:
        """The token after it."""
        return self.tokens[min(self.index + 1, len(self.tokens) - 1)]

    @property
    def after_next(self) -> Token:
        """The token after that."""
        return self.tokens[min(self.index + 2, len(self.tokens) - 1)]

    @property
    def last(self) -> Token:
        """The token before it."""
        return self.tokens[max(0, self.index - 1)]

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.token.kind is Kind.END

    def advance(self) -> Token:
        """Takes the token, whatever it is. The end is never passed."""
        taken = self.token
        self.index = min(self.index + 1, len(self.tokens) - 1)
        return taken

    def at(self, *signs: str) -> bool:
        """Whether one of these signs is next."""
        return self.token.kind is Kind.SIGN and self.token.text in signs

    def at_word(self, *words: str) -> bool:
        """Whether one of these keywords is next, in whichever case."""
        return self.token.kind is Kind.WORD and self.token.word in words

    def accept(self, *signs: str) -> Token | None:
        """Takes one of these signs if it is next."""
        return self.advance() if self.at(*signs) else None

    def accept_word(self, *words: str) -> Token | None:
        """Takes one of these keywords if it is next."""
        return self.advance() if self.at_word(*words) else None

    def accept_kind(self, *kinds: Kind) -> Token | None:
        """Takes a token of one of these kinds if it is next."""
        return self.advance() if self.token.kind in kinds else None

    def expect(self, sign: str, where: str, hint: str | None = None) -> Token:
        """Takes the sign, which must be next; `where` says in words where it belongs."""
        if self.at(sign):
            return self.advance()
        raise self.expected(f"{sign} {where}", hint)

    def expect_word(self, word: str, where: str) -> Token:
        """Takes the keyword, which must be next."""
        if self.at_word(word):
            return self.advance()
        raise self.expected(f"{word} {where}")

    def expect_kind(self, kind: Kind, what: str, hint: str | None = None) -> Token:
        """Takes a token of that kind, which must be next; `what` says in words what it is for."""
        if self.token.kind is kind:
            return self.advance()
        raise self.expected(what, hint)

    def expected(self, what: str, hint: str | None = None) -> Stuck:
        """The error to raise where something else should have stood here."""
        return self.stuck(f"expected {what}, found {describe(self.token)}", self.token.span, hint)

    def stuck(self, message: str, span: Span, hint: str | None = None) -> Stuck:
        """The error to raise in order to give up here; who catches it knows where to go on."""
        return Stuck(Diagnostic(message, span, self.report.source, hint))

    def since(self, start: Token) -> Span:
        """The stretch from a token to the last one taken."""
        return Span(start.start, max(start.end, self.last.end))

    @property
    def touches_last(self) -> bool:
        """Whether nothing stands between the last token and this one."""
        return self.token.start == self.last.end

    def skip_brackets(self) -> None:
        """Goes past an opening bracket, all that it holds, and the bracket that closes it."""
        depth = self.advance().depth
        while not self.at_end and self.token.depth > depth:
            self.advance()
        if self.at(")", "]", "}"):
            self.advance()
