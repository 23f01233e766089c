"""Terms as text, and the knowledge and the stream read as such.

Inside the operators a term is its N-Triples text: equal terms are equal strings, which Python compares
and hashes at no cost, a solution is written down by joining them, and a state by listing them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple

__all__ = ["Fact", "Facts", "Statements", "term_of", "with_room"]

Fact = tuple[str, str, str]
"""A statement of the knowledge, its terms as text."""

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

_MOST_CACHED = 100_000
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


@lru_cache(maxsize=_MOST_CACHED)
def term_of(text: str) -> Term:
    """The term that a text stands for.

    >>> term_of("<urn:a>"), term_of("_:b0"), term_of('"x"@en').language
    (Iri(value='urn:a'), Blank(label='b0'), 'en')
    """
    if text[0] == "<":
        return Iri(text[1:-1])
    if text[0] == "_":
        return Blank(text[2:])
    last = text.rindex('"')
    lexical, rest = text[1:last], text[last + 1 :]
    if "\\" in lexical:
        lexical = _ESCAPED.sub(lambda found: _MEANT.get(found[1], found[1]), lexical)
    if rest.startswith("@"):
        return Literal(lexical, language=rest[1:])
    return Literal(lexical, rest[3:-1]) if rest else Literal(lexical)


class Statements(Protocol):
    """What the operators ask of a knowledge base."""

    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        ...


class Facts:
    """The knowledge base, asked for what is bound; answers are remembered."""

    def __init__(self, knowledge: Statements) -> None:
        self._knowledge = knowledge
        self._found: dict[tuple[str | None, str | None, str | None], Sequence[Fact]] = {}
        self._used: dict[str, bool] = {}

    def match(self, s: str | None, p: str | None, o: str | None) -> Sequence[Fact]:
        """The facts with these terms; None stands for any."""
        if p is not None and not self.uses(p):
            return ()
        asked = (s, p, o)
        found = self._found.get(asked)
        if found is None:
            found = [(str(a), str(b), str(c)) for a, b, c in self._ask(s, p, o)]
            self._found = with_room(self._found)
            self._found[asked] = found
        return found

    def has(self, s: str, p: str, o: str) -> bool:
        """Whether this is a fact."""
        return self.uses(p) and bool(self.match(s, p, o))

    def uses(self, predicate: str) -> bool:
        """Whether any fact has the predicate: most predicates of a stream have none."""
        known = self._used.get(predicate)
        if known is None:
            known = self._used[predicate] = next(iter(self._ask(None, predicate, None)), None) is not None
        return known

    def _ask(self, s: str | None, p: str | None, o: str | None) -> Iterator[Triple]:
        return self._knowledge.match(*(None if each is None else term_of(each) for each in (s, p, o)))


def with_room(cache: dict[_Key, _Found]) -> dict[_Key, _Found]:
    """A cache that takes one answer more; a full one starts anew."""
    return cache if len(cache) < _MOST_CACHED else {}
