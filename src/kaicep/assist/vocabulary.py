"""The words of a knowledge base as people look for them: by their names and by their labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest

from kaicep.knowledge.annotation import Annotation
from kaicep.knowledge.event_graph import HAS_TIME
from kaicep.knowledge.graph import LITERAL
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.vocabulary import Names, is_standard
from kaicep.knowledge.words import TYPE
from kaicep.plan.terms import RDFS, Iri, Literal, Term

__all__ = ["Vocabulary", "Word"]

_LABEL, _COMMENT = Iri(RDFS + "label"), Iri(RDFS + "comment")
_KINDS = {"class": 0, "property": 0, "entity": 1}
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A class, a property or an entity: its name as a query writes it, and what it is called."""

    name: str
    iri: Iri
    label: str
    kind: str
    searched: str


class Vocabulary:
    """The words of a knowledge base and of annotations.

    >>> made = Vocabulary(Knowledge.parse('''
    ...     @prefix x: <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    ...     x:MeetingRoom rdfs:label "Besprechungsraum" . x:r1 a x:MeetingRoom .'''))
    >>> [each.name for each in made.find("besp")], [each.name for each in made.find("meeting")]
    (['x:MeetingRoom'], ['x:MeetingRoom'])
    """

    def __init__(self, knowledge: Knowledge, annotations: Iterable[Annotation] = ()) -> None:
        self.knowledge = knowledge
        given = tuple(annotations)
        self.names = Names(knowledge, given)
        self._carried = {
            name
            for each in given
            for name in (*(one for _, one in each.concepts), *(one.property for _, one in each.entities))
        }
        self._classes = {each.event_class for each in given if each.event_class is not None}

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """All words but those about words."""
        classes = (self.knowledge.classes() or frozenset()) | self._classes
        properties = (self.knowledge.properties() or frozenset()) | self._carried | {HAS_TIME}
        terms = self.knowledge.by_number()[1]
        numbers = {number for s, _, o in self.knowledge.ever() for number in (s, o) if number & 3 != LITERAL}
        things = {term for term in map(terms.term, numbers) if isinstance(term, Iri)}
        made = [
            self._word(each, "class" if each in classes else "property" if each in properties else "entity")
            for each in (classes | properties | things)
            if not is_standard(each) or each == TYPE
        ]
        return tuple(sorted(made, key=lambda each: each.name))

    @cached_property
    def by_iri(self) -> dict[Iri, Word]:
        """The words by their IRIs."""
        return {each.iri: each for each in self.words}

    def _word(self, iri: Iri, kind: str) -> Word:
        label = self.label(iri)
        name = self.names.text(iri)
        return Word(name, iri, label, kind, f"{iri.local.lower()}\n{label.lower()}")

    def label(self, term: Term) -> str:
        """What something is called: its label, or else its local name in words.

        >>> Vocabulary(Knowledge.empty()).label(Iri("urn:x:MeetingRoom"))
        'meeting room'
        """
        if isinstance(term, Literal):
            return term.lexical
        if not isinstance(term, Iri):
            return str(term)
        found = sorted(self._texts(term, _LABEL))
        if found:
            return found[0]
        local = term.local
        if not local.isascii() or local.upper() == local or any(each.isdigit() for each in local):
            return local
        return _CAPITALS.sub(" ", local).lower()

    def comment(self, iri: Iri) -> str:
        """What the knowledge says about a word."""
        return " ".join(self._texts(iri, _COMMENT))

    def _texts(self, iri: Iri, property: Iri) -> Iterator[str]:
        for _, _, value in self.knowledge.match(iri, property, None):
            if isinstance(value, Literal):
                yield value.lexical

    def find(self, text: str, kinds: Collection[str] = (), most: int = 30) -> list[Word]:
        """The words of some kinds whose name or label has a text in it, those that begin with it first."""
        prefix, colon, local = text.partition(":")
        wanted = local.lower() if colon else text.lower()
        space = self.names.prefixes.get(prefix) if colon else None
        if colon and space is None:
            return []

        def fits(each: Word) -> bool:
            return (
                (not kinds or each.kind in kinds)
                and wanted in each.searched
                and (space is None or each.iri.value.startswith(space))
            )

        def rank(each: Word) -> tuple[int, int, int, str]:
            local, _, label = each.searched.partition("\n")
            begins = local.startswith(wanted) or label.startswith(wanted)
            inner = f" {wanted}" in label
            return (0 if begins else 1 if inner else 2, _KINDS[each.kind], len(label), each.name)

        return nsmallest(most, filter(fits, self.words), key=rank)
