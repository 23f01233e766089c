"""From a text to its tokens, the meaning of names, and the places of mistakes."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from types import TracebackType
from typing import NamedTuple, NoReturn

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.terms import Iri

# ----------------------------------------------------------------------------------------------------------
# The errors of one text, gathered so that several can be told in one go.

_MOST = 20


class Stuck(Exception):
    """A parser does not know how to go on; whoever can find a place to go on from catches it."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic


class Report:
    """The errors found so far in a text. It ends the parsing when there are too many."""

    def __init__(self, source: SourceText) -> None:
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


# ----------------------------------------------------------------------------------------------------------
# From characters to tokens, each with its place in the text.
#
# The two languages share their strings, names and comments but not everything: in chi-CEP `?e.x-?f.y` is a
# subtraction and `5min` a duration, in SPARQL `ex:a-b` is one name and `?s <p> ?o` holds an IRI. So there
# are two tables of tokens. A chi-CEP text changes to the table of SPARQL inside `PATH { ... }`.
#
# Every pattern is read once and forwards, so that the time is linear in the length of the text.


class TokenKind(Enum):
    """What a token is."""

    WORD = "a word"
    VARIABLE = "a variable"
    NAME = "a prefixed name"
    IRI = "an IRI"
    BLANK = "a blank node"
    STRING = "a string"
    LANGUAGE = "a language tag"
    INTEGER = "a whole number"
    FLOAT = "a number"
    DECIMAL = "a decimal number"
    DURATION = "a duration"
    TIME = "a time"
    QUOTED = "a name in backquotes"
    SIGN = "a sign"
    END = "the end of the query"


class Token(NamedTuple):
    """A token: its kind, its text, where it begins, and how many brackets are open around it."""

    kind: TokenKind
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        """The offset behind the last character."""
        return self.start + len(self.text)

    @property
    def span(self) -> Span:
        """Its place in the text."""
        return Span(self.start, self.end)

    @property
    def word(self) -> str:
        """The keyword that it may be, in capitals; empty where it is no word."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""


_LONG = 40


def describe(token: Token) -> str:
    """A token as an error message names it."""
    if token.kind is TokenKind.END:
        return str(token.kind.value)
    return _short(token.text)


_SPACE = r"(?:[\s\ufeff]+|\#[^\n\r]*)+"
_WORD = r"[^\W\d]\w*"
# The length is bounded: each word is tried as a prefix first, which must not search the rest of the text.
_PREFIX = r"(?:[^\W\d_](?>[\w\-.]{0,63})(?<!\.))?:"
_STRING = (
    r'"""(?>[^"\\]+|\\(?s:.)|"(?!""))*"""'
    r"|'''(?>[^'\\]+|\\(?s:.)|'(?!''))*'''"
    r'|"(?!"")[^"\\\n\r]*(?>\\.[^"\\\n\r]*)*"'
    r"|'(?!'')[^'\\\n\r]*(?>\\.[^'\\\n\r]*)*'"
)
_IRI = r"<[^\x00-\x20<>\"{}|^`]*>"
_CHI_EXPONENT = r"[eE][+-]?[0-9]+"

_CHI = {
    "SPACE": _SPACE,
    "TIME": r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)?(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?(?!\w)",
    "DURATION": r"(?>[0-9]+(?:\.[0-9]+)?)[ \t]*(?:us|ms|s|min|h|d)(?!\w)",
    "FLOAT": rf"(?>[0-9]*\.[0-9]+(?:{_CHI_EXPONENT})?|[0-9]+{_CHI_EXPONENT})(?!\w)",
    "INTEGER": r"(?>[0-9]+)(?!\w)",
    "WRONG_NUMBER": r"[0-9][\w.]*",
    "VARIABLE": r"\?\w+",
    # A dash belongs to a name if a letter follows, unless that begins a function: ?e.hvc:a-abs(?f.x)
    "NAME": _PREFIX + r"(?:\w+(?:-(?![^\W\d]\w*\s*\()[^\W\d]\w*)*)?",
    "WORD": _WORD,
    "STRING": _STRING,
    "QUOTED": r"`(?:[^`\n\r]|``)+`",
    "IRI": _IRI,
    "SIGN": r"\|\||&&|!=|<=|>=|<>|==|[=<>+\-*/%!?()\[\]{},.|&;:^]",
}

# By its code, as SPARQL lets one write any character: `\u00e9`.
_CODE = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_LOCAL_PIECE = (
    r"(?:[\w\-:\u00b7\u0300-\u036f\u203f\u2040]|%[0-9A-Fa-f]{2}|\\[_~.\-!$&'()*+,;=/?#@%]|" + _CODE + ")"
)

_SPARQL = {
    "SPACE": _SPACE,
    "FLOAT": r"(?:(?>[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)[eE][+-]?[0-9]+",
    "DECIMAL": r"[0-9]*\.[0-9]+",
    "INTEGER": r"[0-9]+",
    "VARIABLE": rf"[?$](?:[\w\u00b7\u0300-\u036f\u203f\u2040]|{_CODE})+",
    "BLANK": r"_:\w[\w\-]*(?:\.+[\w\-]+)*",
    "NAME": _PREFIX + rf"(?:(?!-){_LOCAL_PIECE}+(?:\.+{_LOCAL_PIECE}+)*)?",
    "WORD": _WORD,
    "STRING": _STRING,
    "LANGUAGE": r"@[A-Za-z]+(?:-[A-Za-z0-9]+)*",
    # `?x<?y&&?z>3` is a comparison: no IRI that one would write begins with a question mark.
    "IRI": r"(?!<[?$])" + _IRI,
    "SIGN": r"\^\^|\|\||&&|!=|<=|>=|==|[=<>+\-*/!?()\[\]{},.|;^]",
}


def _compile(table: dict[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in table.items()))


_CHI_TOKEN = _compile(_CHI)
_SPARQL_TOKEN = _compile(_SPARQL)
_CHI_SIGN = re.compile(_CHI["SIGN"])
_SURROGATE = re.compile("[\ud800-\udfff]")
_CODES = re.compile(_CODE)
_REST_OF_LINE = re.compile(r"[^\n\r]*")


def chi_tokens(source: SourceText, report: Report) -> list[Token]:
    """The tokens of a chi-CEP text, the last of them the end."""
    return list(_tokens(source, report, _CHI_TOKEN))


def sparql_tokens(source: SourceText, report: Report) -> list[Token]:
    """The tokens of a SPARQL text, the last of them the end."""
    return list(_tokens(source, report, _SPARQL_TOKEN))


def _tokens(source: SourceText, report: Report, table: re.Pattern[str]) -> Iterator[Token]:
    text, at, depth = source.text, 0, 0
    before: list[Token] = []  # the last two tokens, latest first
    path_depth: int | None = None  # how deep the braces of the PATH are that is being read
    if found := _SURROGATE.search(text):
        report.fail("half a character (a lone surrogate)", Span(found.start(), found.end()))
    while at < len(text):
        match = (table if path_depth is None else _SPARQL_TOKEN).match(text, at)
        if match is None or match.lastgroup == "WRONG_NUMBER":
            at = yield from _unreadable(text, at, depth, match, report)
            continue
        name, at = str(match.lastgroup), match.end()
        if name == "SPACE":
            continue
        if name == "IRI" and table is _CHI_TOKEN and path_depth is None and _is_operand(before):
            match = _CHI_SIGN.match(text, match.start())
            assert match is not None
            name, at = "SIGN", match.end()
        found_text = match.group()
        if name in ("VARIABLE", "NAME") and "\\" in found_text:
            found_text = _decoded(found_text, match.start(), report)
        if name == "SIGN" and found_text in ")]}":
            depth = max(0, depth - 1)
            if path_depth == depth:
                path_depth = None
        token = Token(TokenKind[name], found_text, match.start(), depth)
        yield token
        if name == "SIGN" and found_text in "([{":
            if found_text == "{" and path_depth is None and before and before[0].word == "PATH":
                path_depth = depth if table is _CHI_TOKEN else None
            depth += 1
        before = [token, *before[:1]]
    yield Token(TokenKind.END, "", len(text), 0)


_OPERANDS = {
    TokenKind.VARIABLE,
    TokenKind.INTEGER,
    TokenKind.FLOAT,
    TokenKind.DURATION,
    TokenKind.STRING,
    TokenKind.QUOTED,
    TokenKind.IRI,
}


def _is_operand(before: list[Token]) -> bool:
    """Whether the last token ends an operand, so that `<` compares and opens no IRI."""
    if not before:
        return False
    last = before[0]
    if last.kind is TokenKind.NAME:
        return not last.text.endswith(":")
    if last.kind is TokenKind.WORD:
        return len(before) > 1 and before[1].text == "."
    return last.kind in _OPERANDS or last.text == ")"


def _unreadable(
    text: str, at: int, depth: int, match: re.Match[str] | None, report: Report
) -> Generator[Token, None, int]:
    """Reports what is no token, gives a stand-in where one helps to read on; returns where to go on."""
    first = text[at]
    if match is not None:
        hint = "a duration is written 5min, with one of us, ms, s, min, h, d; a time 2012-05-07T09:00"
        report.error(f"{_short(match.group())} is neither a number nor a duration", Span(*match.span()), hint)
        yield Token(TokenKind.INTEGER, "1", at, depth)
        return match.end()
    if first in "\"'`":
        long = text.startswith(first * 3, at)
        found = _REST_OF_LINE.match(text, at)
        end = len(text) if long or found is None else found.end()
        what = "name in backquotes" if first == "`" else "string"
        report.error(f"this {what} is never closed", Span(at, at + 1), f"it needs a closing {first}")
        yield Token(TokenKind.QUOTED if first == "`" else TokenKind.STRING, text[at:end], at, depth)
        return end
    hint_for = {"“": 'strings stand in straight quotes: "text"', "$": "a variable is written ?name"}
    report.error(f"the character {first!r} means nothing here", Span(at, at + 1), hint_for.get(first))
    return at + 1


def _short(text: str) -> str:
    return text if len(text) <= _LONG else text[:_LONG] + "..."


_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.?))", re.DOTALL)
_PLAIN = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


def string_value(token: Token, report: Report) -> str:
    """What a string token says, without its quotes and escapes."""
    quotes = 3 if token.text[:3] in ('"""', "'''") else 1
    return unescape(token.text[quotes:-quotes], token.start + quotes, report, _PLAIN)


def _decoded(text: str, start: int, report: Report) -> str:
    """A name whose characters may be written by their codes."""
    return _CODES.sub(lambda found: unescape(found[0], start + found.start(), report), text)


def unescape(text: str, start: int, report: Report, plain: dict[str, str] | None = None) -> str:
    """The text with its backslashes read: `\\u00e9` and those in `plain`."""
    if "\\" not in text:
        return text

    def replacement(found: re.Match[str]) -> str:
        short, long, letter = found.groups()
        if letter is not None and plain and letter in plain:
            return plain[letter]
        code = int(short or long or "110000", 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            span = Span(start + found.start(), start + found.end())
            hint = f"write \\\\{letter} for a backslash and {letter}" if letter else None
            report.error(f"{found.group()} is not a character", span, hint)
            return ""
        return chr(code)

    return _ESCAPE.sub(replacement, text)


# ----------------------------------------------------------------------------------------------------------
# A place in a list of tokens, and the small steps that all parsers take.

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
            self.report.fail(message, self.token.span, "split the query, or nest it less")

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
        return self.token.kind is TokenKind.END

    def advance(self) -> Token:
        """Takes the token, whatever it is. The end is never passed."""
        taken = self.token
        self.index = min(self.index + 1, len(self.tokens) - 1)
        return taken

    def at(self, *signs: str) -> bool:
        """Whether one of these signs is next."""
        return self.token.kind is TokenKind.SIGN and self.token.text in signs

    def at_word(self, *words: str) -> bool:
        """Whether one of these keywords is next, in whichever case."""
        return self.token.kind is TokenKind.WORD and self.token.word in words

    def accept(self, *signs: str) -> Token | None:
        """Takes one of these signs if it is next."""
        return self.advance() if self.at(*signs) else None

    def accept_word(self, *words: str) -> Token | None:
        """Takes one of these keywords if it is next."""
        return self.advance() if self.at_word(*words) else None

    def accept_kind(self, *kinds: TokenKind) -> Token | None:
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

    def expect_kind(self, kind: TokenKind, what: str, hint: str | None = None) -> Token:
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


# ----------------------------------------------------------------------------------------------------------
# A bound on how deep a query may be, so that whoever walks it by recursion comes to its end.

_MOST_NESTED = 150


def refuse_deep(query: object, report: Report) -> None:
    """Ends the parsing where nodes lie too deep in each other, as in a chain of a thousand `+`.

    Brackets are counted while they are read; a chain of operators leans to the left and is deep
    without any.
    """
    pending: list[tuple[object, int]] = [(query, 0)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, tuple):
            pending.extend((each, depth) for each in node)
        elif is_dataclass(node) and hasattr(node, "__dict__"):
            if depth > _MOST_NESTED:
                _refuse(node, report)
            pending.extend((each, depth + 1) for each in vars(node).values())


def _refuse(node: object, report: Report) -> None:
    span = getattr(node, "span", None) or Span(0, 0)
    hint = "split it into several conditions or groups; for one value among many use IN"
    report.fail(f"more than {_MOST_NESTED} operators are chained or nested here", span, hint)


# ----------------------------------------------------------------------------------------------------------
# IRIs as a query writes them: prefixes, a base, and the full names that they stand for.

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
