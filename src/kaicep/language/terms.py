"""RDF terms as SPARQL writes them: IRIs, literals, and the names that the text leaves out."""

from __future__ import annotations

from itertools import count

from kaicep.language.cursor import Cursor
from kaicep.language.lexer import Kind, Token, describe, string_value
from kaicep.language.names import Names
from kaicep.plan.literals import normalise
from kaicep.plan.terms import XSD, Iri, Literal

__all__ = ["RESERVED", "Terms"]

# Words that are never read as the bare name of something.
# fmt: off
RESERVED = frozenset((
    "ASK", "BASE", "BIND", "BY", "CONSTRUCT", "DESCRIBE", "DURING", "EQUALS", "EQUALSOPTIONAL", "EXISTS",
    "FILTER", "FINISHES", "FROM", "GRAPH", "GROUP", "HAVING", "LIMIT", "MEETS", "MINUS", "NOT", "OFFSET",
    "OPTIONAL", "OPTIONALSEQ", "ORDER", "PAR", "PREFIX", "SELECT", "SEQ", "SEQOPTIONAL", "SERVICE",
    "STARTS", "UNDEF", "UNION", "VALUES", "WHERE",
))
"""Words that are no names."""
# fmt: on
_DATATYPES = {Kind.INTEGER: XSD + "integer", Kind.DECIMAL: XSD + "decimal", Kind.FLOAT: XSD + "double"}
_LONGEST_NUMBER = 400


class Terms:
    """A parser of terms.

    With `bare`, as in EP-SPARQL, a word stands for the name that it is under the empty prefix, and a literal
    stays as it is written. In a PATH it is spelt like those of the knowledge base.
    """

    def __init__(self, cursor: Cursor, names: Names, bare: bool) -> None:
        self.cursor = cursor
        self.names = names
        self.bare = bare
        self._taken = {token.text for token in cursor.tokens if token.kind is Kind.BLANK}
        self._numbers = count()

    def fresh(self) -> str:
        """A label such as `_:0` that stands nowhere in the text: the same one each time it is parsed."""
        return next(label for each in self._numbers if (label := f"_:{each}") not in self._taken)

    def at_iri(self) -> bool:
        """Whether an IRI is next, in any of its forms."""
        token = self.cursor.token
        if token.kind is Kind.WORD:
            return self.bare and token.word not in RESERVED and token.text not in ("true", "false")
        return token.kind in (Kind.IRI, Kind.NAME)

    def iri(self, what: str) -> Iri:
        """An IRI, which must be next; `what` says in words what it is for."""
        if not self.at_iri():
            raise self.cursor.expected(what, self._hint())
        token = self.cursor.advance()
        if token.kind is Kind.IRI:
            return self.names.iri(token)
        if token.kind is Kind.NAME:
            return self.names.prefixed(token)
        return self.names.expand("", token.text, token.span)

    def _hint(self) -> str | None:
        token = self.cursor.token
        if token.kind is not Kind.WORD:
            return None
        if self.bare and token.word in RESERVED:
            return f"{describe(token)} is a keyword; for the name write :{describe(token)}"
        return "a name has a prefix, as in rdf:type, or is an IRI: <http://...>"

    def at_literal(self) -> bool:
        """Whether a literal is next, perhaps with a sign before it."""
        kind = self.cursor.token.kind
        if kind is Kind.SIGN:
            sign, number = self.cursor.token, self.cursor.next
            return sign.text in "+-" and number.kind in _DATATYPES and number.start == sign.end
        return kind is Kind.STRING or kind in _DATATYPES or self.cursor.at_word("TRUE", "FALSE")

    def literal(self) -> Literal:
        """A literal, which is next."""
        token = self.cursor.advance()
        if token.kind is Kind.STRING:
            return self._string(token)
        if token.kind is Kind.WORD:
            return Literal(token.text.lower(), XSD + "boolean")
        if token.kind is Kind.SIGN:
            return self.number(self.cursor.advance(), token.text)
        return self.number(token, "")

    def number(self, token: Token, sign: str) -> Literal:
        """The literal of a number and the sign directly before it."""
        if len(token.text) > _LONGEST_NUMBER:
            self.cursor.report.error("this number has too many digits", token.span)
            return Literal("0", XSD + "integer")
        return self._spelt(Literal(sign + token.text, _DATATYPES[token.kind]))

    def _string(self, token: Token) -> Literal:
        text = string_value(token, self.cursor.report)
        if language := self.cursor.accept_kind(Kind.LANGUAGE):
            return Literal(text, language=language.text[1:].lower())
        if self.cursor.accept("^^"):
            return self._spelt(Literal(text, self.iri("a datatype after ^^, as in xsd:integer").value))
        return Literal(text)

    def _spelt(self, literal: Literal) -> Literal:
        return literal if self.bare else normalise(literal)
