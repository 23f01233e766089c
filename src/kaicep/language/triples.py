"""Triple patterns and property paths, with everything that Turtle lets one leave out."""

from __future__ import annotations

from kaicep.language.cursor import Cursor
from kaicep.language.lexer import Kind, Token
from kaicep.language.terms import Terms
from kaicep.plan.sparql import (
    Alternative,
    Inverse,
    Negated,
    Node,
    Path,
    Predicate,
    Repeat,
    Sequence,
    TriplePattern,
    Triples,
)
from kaicep.plan.terms import RDF, Blank, Iri, Variable

__all__ = ["TripleBlocks"]

_TYPE, _FIRST = Iri(RDF + "type"), Iri(RDF + "first")
_REST, _NIL = Iri(RDF + "rest"), Iri(RDF + "nil")
_REPEATS = {"*": (0, True), "+": (1, True), "?": (0, False)}


class TripleBlocks:
    """A parser of triples. In a `template` a blank node is a new node, in a pattern it is a variable."""

    def __init__(self, cursor: Cursor, terms: Terms, template: bool = False) -> None:
        self.cursor = cursor
        self.terms = terms
        self.template = template
        self._found: list[TriplePattern] = []

    def at_subject(self) -> bool:
        """Whether a triple can begin here."""
        kind = self.cursor.token.kind
        return (
            kind in (Kind.VARIABLE, Kind.BLANK)
            or self.cursor.at("[", "(")
            or self.terms.at_literal()
            or self.terms.at_iri()
        )

    def block(self) -> Triples:
        """Triples with a dot between them."""
        start = self.cursor.token
        self._found = []
        self._same_subject()
        while self.cursor.accept(".") and self.at_subject():
            self._same_subject()
        return Triples(tuple(self._found), span=self.cursor.since(start))

    def _same_subject(self) -> None:
        start = self.cursor.token
        standalone = self.cursor.at("[", "(")
        before = len(self._found)
        subject = self._node("a subject")
        if standalone and len(self._found) > before and not self._at_verb():
            return
        self._properties(subject, start)

    def _at_verb(self) -> bool:
        return (
            self.cursor.token.kind is Kind.VARIABLE
            or self.cursor.at("^", "!", "(")
            or self.cursor.token.text == "a"
            or self.terms.at_iri()
        )

    def _properties(self, subject: Node, start: Token) -> None:
        """`verb object, object ; verb object`, a semicolon too many is allowed."""
        while True:
            predicate = self._verb()
            while True:
                target = self._node("an object")
                span = self.cursor.since(start)
                self._found.append(TriplePattern(subject, predicate, target, span=span))
                if not self.cursor.accept(","):
                    break
            if not self.cursor.at(";"):
                return
            while self.cursor.accept(";"):
                pass
            if not self._at_verb():
                return

    def _node(self, what: str) -> Node:
        """A subject or an object, with the triples that its brackets stand for."""
        token = self.cursor.token
        if token.kind is Kind.VARIABLE:
            return Variable(self.cursor.advance().text[1:])
        if token.kind is Kind.BLANK:
            return self._blank(self.cursor.advance().text)
        if self.cursor.at("["):
            return self._property_list()
        if self.cursor.at("("):
            return self._collection()
        if self.terms.at_literal():
            return self.terms.literal()
        return self.terms.iri(f"{what}: a variable, a name or a value")

    def _blank(self, label: str) -> Node:
        return Blank(label[2:]) if self.template else Variable(label)

    def _property_list(self) -> Node:
        with self.cursor:
            start = self.cursor.advance()
            node = self._blank(self.terms.fresh())
            if not self.cursor.at("]"):
                self._properties(node, start)
            self.cursor.expect("]", "to close the [")
            return node

    def _collection(self) -> Node:
        with self.cursor:
            start = self.cursor.advance()
            members: list[Node] = []
            while not self.cursor.at(")") and not self.cursor.at_end:
                members.append(self._node("a member of the list"))
            self.cursor.expect(")", "to close the list")
            span = self.cursor.since(start)
            cells = [self._blank(self.terms.fresh()) for _ in members]
            for cell, member, rest in zip(cells, members, [*cells[1:], _NIL], strict=False):
                self._found.append(TriplePattern(cell, _FIRST, member, span=span))
                self._found.append(TriplePattern(cell, _REST, rest, span=span))
            return cells[0] if cells else _NIL

    def _verb(self) -> Predicate:
        token = self.cursor.token
        if token.kind is Kind.VARIABLE:
            return Variable(self.cursor.advance().text[1:])
        path = self._alternative()
        if self.template and isinstance(path, Path):
            hint = "a template makes single triples"
            raise self.cursor.stuck(
                "a property path cannot stand in a template", self.cursor.since(token), hint
            )
        return path

    def _alternative(self) -> Iri | Path:
        with self.cursor:
            parts = [self._sequence()]
            while self.cursor.accept("|"):
                parts.append(self._sequence())
            return parts[0] if len(parts) == 1 else Alternative(tuple(parts))

    def _sequence(self) -> Iri | Path:
        parts = [self._step()]
        while self.cursor.accept("/"):
            parts.append(self._step())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _step(self) -> Iri | Path:
        if self.cursor.accept("^"):
            return Inverse(self._repeated())
        return self._repeated()

    def _repeated(self) -> Iri | Path:
        path = self._path_primary()
        # In `?s ex:p +5` the sign belongs to the number.
        if self.cursor.at(*_REPEATS) and not self.terms.at_literal():
            least, unbounded = _REPEATS[self.cursor.advance().text]
            return Repeat(path, least, unbounded)
        return path

    def _path_primary(self) -> Iri | Path:
        if self.cursor.accept("("):
            inner = self._alternative()
            self.cursor.expect(")", "to close the path")
            return inner
        if self.cursor.accept("!"):
            return self._negated()
        return self._property()

    def _property(self) -> Iri:
        if self.cursor.token.kind is Kind.WORD and self.cursor.token.text == "a":
            self.cursor.advance()
            return _TYPE
        return self.terms.iri("a property: a name such as rdf:type, a path or a variable")

    def _negated(self) -> Path:
        """`!p`, `!^p`, `!(p|^q)`"""
        forward: list[Iri] = []
        inverse: list[Iri] = []
        several = self.cursor.accept("(")
        while not (several and self.cursor.at(")")):
            side = inverse if self.cursor.accept("^") else forward
            side.append(self._property())
            if not several or not self.cursor.accept("|"):
                break
        if several:
            self.cursor.expect(")", "to close the properties after !")
        return Negated(tuple(forward), tuple(inverse))
