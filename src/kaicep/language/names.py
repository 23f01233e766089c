"""IRIs as a query writes them: prefixes, a base, and the full names that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kaicep.errors import Span
from kaicep.language.lexer import Cursor, Report, Token, TokenKind, near, unescape
from kaicep.plan.terms import Iri

__all__ = ["Names", "absolute"]

_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?(//[^/?#]*)?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_FORBIDDEN = re.compile(r"[\x00-\x20<>\"{}|^`\\]")
_LOCAL_ESCAPE = re.compile(r"\\(.)")


def absolute(reference: str, base: str) -> str:
    """A relative reference made absolute, as RFC 3986 section 5.2 does it.

    >>> absolute("../b#x", "http://example.org/a/c")
    'http://example.org/b#x'
    >>> absolute("urn:x", "http://example.org/")
    'urn:x'
    """
    scheme, host, path, query, fragment = _split(reference)
    if scheme:
        return reference
    base_scheme, base_host, base_path, base_query, _ = _split(base)
    if not host:
        host = base_host
        if not path:
            path, query = base_path, query or base_query
        elif not path.startswith("/"):
            folder = base_path[: base_path.rfind("/") + 1] or ("/" if base_host else "")
            path = _without_dots(folder + path)
        else:
            path = _without_dots(path)
    return f"{base_scheme}:{host}{path}{query}{fragment}"


def _split(reference: str) -> list[str]:
    found = _PARTS.fullmatch(reference)
    assert found is not None
    return [part or "" for part in found.groups()]


def _without_dots(path: str) -> str:
    kept: list[str] = []
    pieces = path.split("/")
    for piece in pieces:
        if piece == ".." and len(kept) > 1:
            kept.pop()
        elif piece not in (".", ".."):
            kept.append(piece)
    if pieces[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)


class Names:
    """The prefixes of a query: those that it declares, those it is given, and those always known."""

    def __init__(self, report: Report, given: Mapping[str, str], always: Mapping[str, str]) -> None:
        self._report = report
        self._given = {**always, **given}
        self._always = always
        self._declared: dict[str, str] = {}
        self._used: dict[str, str] = {}
        self._unknown: set[str] = set()
        self.base: str | None = None

    def listing(self) -> tuple[tuple[str, str], ...]:
        """The prefixes declared, and of those given the ones used: with them the query stands alone."""
        return (*self._declared.items(), *self._used.items())

    def prologue(self, cursor: Cursor) -> bool:
        """Reads `PREFIX p: <iri>` or `BASE <iri>`, if that is next."""
        if cursor.accept_word("BASE"):
            self.base = self.iri(
                cursor.expect_kind(TokenKind.IRI, "an IRI after BASE, as in <http://...>")
            ).value
            return True
        if not cursor.accept_word("PREFIX"):
            return False
        name = cursor.token
        if name.kind is not TokenKind.NAME or not name.text.endswith(":"):
            raise cursor.expected("a prefix and a colon after PREFIX, as in PREFIX ex: <http://example.org/>")
        cursor.advance()
        token = cursor.expect_kind(TokenKind.IRI, f"an IRI after {name.text}, as in <http://example.org/>")
        self._declared[name.text[:-1]] = self.iri(token).value
        return True

    def iri(self, token: Token) -> Iri:
        """The IRI of a token `<...>`."""
        value = unescape(token.text[1:-1], token.start + 1, self._report)
        if found := _FORBIDDEN.search(value):
            self._report.error(f"an IRI cannot hold {found.group()!r}", token.span)
        if self.base is not None:
            value = absolute(value, self.base)
        elif not _split(value)[0]:
            hint = "write it in full, as in <http://example.org/x>, or give a BASE"
            self._report.error(f"{token.text} is a relative IRI, and there is no BASE", token.span, hint)
        return Iri(value)

    def prefixed(self, token: Token) -> Iri:
        """The IRI of a token such as `ex:a`."""
        prefix, _, local = token.text.partition(":")
        return self.expand(prefix, _LOCAL_ESCAPE.sub(r"\1", local), token.span)

    def expand(self, prefix: str, local: str, span: Span) -> Iri:
        """The IRI of a prefix and a local name."""
        if prefix in self._declared:
            return Iri(self._declared[prefix] + local)
        if prefix not in self._given:
            self._complain(prefix, span)
            return Iri("urn:unknown:")
        namespace = self._given[prefix]
        if self._always.get(prefix) != namespace:
            self._used[prefix] = namespace
        return Iri(namespace + local)

    def _complain(self, prefix: str, span: Span) -> None:
        if prefix in self._unknown:
            return
        self._unknown.add(prefix)
        shown = f"{prefix[:40]}:"
        hint = f"declare it: PREFIX {shown} <http://...>"
        if found := near(shown, [f"{each}:" for each in (*self._declared, *self._given)]):
            hint = f"{found} If not, {hint}" if found.endswith("?") else f"{hint} ({found})"
        self._report.error(f"unknown prefix {shown}", span, hint)
