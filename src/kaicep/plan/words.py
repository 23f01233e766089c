"""Words in a PATH that nobody knows: a misspelt property is no error, since RDF may use any.

What is unknown today may be said tomorrow, so this warns and stops nothing. Where nothing at all is known
(neither knowledge nor annotations), nothing is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from kaicep.errors import Span, did_you_mean
from kaicep.plan.algebra import triple_patterns
from kaicep.plan.catalog import EVENT, Catalog, Stream
from kaicep.plan.chi import PathBlock
from kaicep.plan.problems import Problems
from kaicep.plan.sparql import Alternative, Inverse, Predicate, Repeat, Sequence, TriplePattern
from kaicep.plan.terms import OWL, RDF, RDFS, Iri
from kaicep.plan.text import iri_text

__all__ = ["warn_of_unknown_words"]

_TYPE = Iri(RDF + "type")

# Of every event, or so common that nobody misspells them on purpose.
_ALWAYS_KNOWN = frozenset(
    map(
        Iri,
        (
            _TYPE.value,
            EVENT + "hasTime",
            *(RDFS + each for each in ("label", "comment", "subClassOf", "subPropertyOf")),
            OWL + "sameAs",
        ),
    )
)


def warn_of_unknown_words(
    paths: Iterable[Iterable[PathBlock]],
    streams: Iterable[Stream],
    catalog: Catalog,
    prefixes: Mapping[str, str],
    problems: Problems,
) -> None:
    """Warns of each property and class of the PATHs that neither knowledge nor annotations know.

    `streams` are those that the query reads: only what their annotations say becomes a triple.
    """
    own = tuple(streams)
    known, classes = catalog.vocabulary.properties(), catalog.vocabulary.classes()
    if known is None and not any(each.annotated for each in own):
        return
    words = _Words(prefixes, problems, given=known is not None)
    properties = (
        _ALWAYS_KNOWN | (known or frozenset()) | frozenset(one for each in own for one in each.carried())
    )
    kinds = (classes or frozenset()) | {each.event_class for each in catalog.streams.values()} - {None}
    for pattern in (each for blocks in paths for block in blocks for each in triple_patterns(block.group)):
        for found in _steps(pattern.predicate):
            if found not in properties:
                words.unknown("property", found, pattern, properties)
        if pattern.predicate == _TYPE and isinstance(pattern.object, Iri) and pattern.object not in kinds:
            words.unknown("class", pattern.object, pattern, kinds)


def _steps(predicate: Predicate) -> Iterator[Iri]:
    """The properties that a predicate may follow; those after `!` may well be unknown."""
    match predicate:
        case Iri():
            yield predicate
        case Inverse(of) | Repeat(of):
            yield from _steps(of)
        case Sequence(parts) | Alternative(parts):
            for each in parts:
                yield from _steps(each)


class _Words:
    """Says what is unknown, each word once."""

    def __init__(self, prefixes: Mapping[str, str], problems: Problems, given: bool) -> None:
        self.prefixes = prefixes
        self.problems = problems
        self.given = given
        self.told: set[tuple[str, Iri]] = set()

    def unknown(self, kind: str, word: Iri, pattern: TriplePattern, known: Iterable[Iri | None]) -> None:
        if (kind, word) in self.told:
            return
        self.told.add((kind, word))
        shown = iri_text(word, self.prefixes)
        choices = [iri_text(each, self.prefixes) for each in known if each is not None]
        knows = "neither the knowledge nor an annotation has"
        if not self.given:
            # The word is one of the knowledge that is missing here, unless it looks like one of the events'.
            knows = "no annotation has"
            choices = [each for each in choices if each.partition(":")[0] == shown.partition(":")[0]]
        hint = did_you_mean(shown, choices)
        if not self.given and not (hint or "").startswith("did you mean"):
            hint = "no knowledge is given: name its files with --knowledge"
        self.problems.warn(f"{knows} the {kind} {shown}", self._place(word, pattern.span), hint)

    def _place(self, word: Iri, span: Span | None) -> Span | None:
        """Where the word stands: the last place in its pattern, since a pattern ends with its object."""
        if span is None or self.problems.source is None:
            return span
        text = self.problems.source.text[span.start : span.end]
        spellings = [re.escape(str(word))]
        for prefix, namespace in self.prefixes.items():
            if word.value.startswith(namespace):
                spellings.append(
                    rf"(?<![\w:]){re.escape(prefix)}:{re.escape(word.value[len(namespace) :])}(?![\w-])"
                )
        found = list(re.finditer("|".join(spellings), text))
        return Span(span.start + found[-1].start(), span.start + found[-1].end()) if found else span
