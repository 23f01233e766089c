"""PATHs in parts: which condition concerns which event, and which names are unknown (semantics 2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kaicep.errors import Span, did_you_mean
from kaicep.plan.algebra import element_variables, triple_patterns
from kaicep.plan.catalog import EVENT, Catalog, Stream
from kaicep.plan.chi import PathBlock
from kaicep.plan.expressions import Aggregate, Expr, Field, Previous, VariableRef, walk
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import (
    Alternative,
    Element,
    Filter,
    Group,
    Inverse,
    MinusGroup,
    Predicate,
    Repeat,
    Steps,
    TripleBlock,
    TriplePattern,
)
from kaicep.plan.terms import OWL, RDF, RDFS, Iri, Variable
from kaicep.plan.text import iri_text
from kaicep.plan.typing import Problems

# ----------------------------------------------------------------------------------------------------------
# PATHs taken apart: which condition of the knowledge base concerns which event (semantics 2).
#
# All blocks that AND ties are one group, since a variable means the same everywhere in a query. That group
# is then split into components that share no variable: query 7 of the paper writes two conditions, one for
# each event, into a single block. FILTERs and JOINs on variables of the PATH belong to the component that
# binds them. Blocks joined by OR stay together.

Paths = tuple[tuple[PathBlock, ...], ...]


def path_variables(paths: Paths, events: Iterable[str]) -> frozenset[str]:
    """The variables of all PATHs that are not events."""
    names = {name for blocks in paths for block in blocks for name in element_variables(block.group)}
    return frozenset(name for name in names - set(events) if not name.startswith("_:"))


# --- what an expression mentions -------------------------------------------------------------------


def bare_variables(expr: Expr) -> frozenset[str]:
    """The event variables that an expression mentions outside of aggregates."""
    if isinstance(expr, Aggregate):
        return frozenset()
    if isinstance(expr, Field):
        return frozenset((expr.variable,))
    return frozenset[str]().union(*map(bare_variables, expr.children()))


def aggregated_variables(expr: Expr) -> frozenset[str]:
    """The event variables that an expression aggregates."""
    return frozenset(each.variable or "" for each in walk(expr) if isinstance(each, Aggregate))


def path_references(expr: Expr) -> tuple[str, ...]:
    """The variables of the PATH that a resolved expression mentions, each once."""
    return tuple(dict.fromkeys(each.name for each in walk(expr) if isinstance(each, VariableRef)))


def has_path_values(expr: Expr) -> bool:
    """Whether an expression has a different value for each solution of a PATH."""
    return any(isinstance(each, VariableRef) for each in walk(expr))


def is_decided_by_one_event(condition: Semantic) -> bool:
    """Whether one event alone decides the condition: it is that variable's own PATH."""
    if len(condition.variables) != 1 or len(condition.alternatives) > 1:
        return False
    parts = (part for each in condition.conditions for part in walk(each))
    return not any(isinstance(part, Aggregate | Previous) for part in parts)


# --- components ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """An element of a block, or a condition; `names` are the variables by which it hangs on others."""

    at: int
    block: int
    of: Element | Expr
    names: frozenset[str]
    events: frozenset[str]


def semantic_conditions(
    paths: Paths,
    events: Iterable[str],
    selected: Iterable[str],
    conditions: Iterable[Expr] = (),
    latest: Collection[str] = (),
    without: Collection[str] = (),
) -> tuple[Semantic, ...]:
    """The PATHs of a query as conditions, each with the event variables that it mentions.

    `conditions` are those on variables of the PATH. What mentions a variable of `latest` is taken apart
    at the events too: there it is a question of its own which event is the last one. What mentions one of
    `without` is left out.
    """
    known, wanted = tuple(events), tuple(selected)
    if len(paths) > 1:
        groups = [Group(tuple(each for block in blocks for each in block.group.elements)) for blocks in paths]
        mentioned = frozenset[str]().union(*map(element_variables, groups))
        if mentioned & set(without):
            return ()
        variables = tuple(each for each in known if each in mentioned)
        return (Semantic(tuple(groups), variables, tuple(each for each in wanted if each in mentioned)),)
    units = [each for each in _units(paths, known, latest) if not _mentions(each, without)]
    bound = {name for unit in units for piece in unit for name in piece.names}
    judging = [
        piece for piece in _judging(conditions) if piece.names <= bound and piece.events.isdisjoint(without)
    ]
    return tuple(_semantic(part, known, wanted) for part in _components_of(units, judging, known, latest))


def _units(paths: Paths, events: Collection[str], latest: Collection[str]) -> list[list[_Piece]]:
    """The blocks, each by itself, as what shares no variable inside of it."""
    units: list[list[_Piece]] = []
    at = 0
    for number, block in enumerate(block for blocks in paths for block in blocks):
        pieces: list[_Piece] = []
        for element in _singly(block.group.elements):
            names = frozenset(element_variables(element))
            pieces.append(_Piece(at, number, element, names, names & set(events)))
            at += 1
        for unit in _connected([[each] for each in pieces]):
            apart = _mentions(unit, latest)
            units += _connected([[_without_events(each)] for each in unit]) if apart else [unit]
    return units


def _judging(conditions: Iterable[Expr]) -> list[_Piece]:
    return [
        _Piece(-1, -1, each, frozenset(path_references(each)), bare_variables(each)) for each in conditions
    ]


def _components_of(
    units: list[list[_Piece]], judging: list[_Piece], events: Collection[str], latest: Collection[str]
) -> Iterator[list[_Piece]]:
    for part in _connected([*units, *([each] for each in judging)]):
        if _mentions(part, latest):
            whole = [unit for unit in units if unit[0] in part]
            own = [[each] for each in judging if each in part]
            apart = _connected([[_without_events(each) for each in unit] for unit in (*whole, *own)])
            yield from sorted(apart, key=lambda pieces: min(each.at for each in pieces))
        else:
            yield part


def _mentions(pieces: Iterable[_Piece], variables: Collection[str]) -> bool:
    return any(not each.events.isdisjoint(variables) for each in pieces)


def _without_events(piece: _Piece) -> _Piece:
    return replace(piece, names=piece.names - piece.events)


def _connected(groups: Iterable[list[_Piece]]) -> list[list[_Piece]]:
    """The groups, those that share a name in one piece."""
    found: list[tuple[set[str], list[_Piece]]] = []
    for group in groups:
        names = {name for each in group for name in each.names}
        touching = [part for part in found if part[0] & names]
        found = [part for part in found if part not in touching]
        joined = [each for _, pieces in touching for each in pieces] + group
        found.append((names.union(*(part[0] for part in touching)), joined))
    return [sorted(pieces, key=lambda each: (each.at < 0, each.at)) for _, pieces in found]


def _semantic(pieces: list[_Piece], events: tuple[str, ...], selected: tuple[str, ...]) -> Semantic:
    elements = [each for each in pieces if isinstance(each.of, Element)]
    numbers = dict.fromkeys(each.block for each in elements)
    blocks = [
        _group(part)
        for number in numbers
        for part in _connected([[each] for each in elements if each.block == number])
    ]
    whole = _group(elements)
    mentioned = {name for each in pieces for name in each.events}
    names = element_variables(whole)
    return Semantic(
        (whole,),
        tuple(each for each in events if each in mentioned),
        tuple(each for each in selected if each in names),
        conditions=tuple(each.of for each in pieces if isinstance(each.of, Expr)),
        blocks=tuple(blocks) if len(blocks) > 1 else (),
    )


def _group(pieces: Sequence[_Piece]) -> Group:
    return Group(_together([each.of for each in pieces if isinstance(each.of, Element)]))


# --- what can be said while some events are not bound ----------------------------------------------


def restricted(
    condition: Semantic, bound: Collection[str], unfinished: Collection[str] = ()
) -> Semantic | None:
    """What of a condition counts where these event variables are bound; None where nothing does.

    Its blocks count one by one, each where all events that it mentions are bound, and so do the
    conditions that hang on them; one on the total of an `unfinished` loop does not count yet.
    """
    waiting = any(not _totals(each).isdisjoint(unfinished) for each in condition.conditions)
    if not waiting and all(each in bound for each in condition.variables):
        return condition
    if len(condition.alternatives) != 1:
        return None
    events = frozenset(condition.variables)
    blocks = tuple(
        each
        for each in condition.blocks or condition.alternatives
        if all(name in bound for name in element_variables(each) & events)
    )
    if not blocks:
        return None
    names = frozenset[str]().union(*map(element_variables, blocks))
    judging = tuple(
        each
        for each in condition.conditions
        if names.issuperset(path_references(each))
        and all(name in bound for name in bare_variables(each))
        and _totals(each).isdisjoint(unfinished)
    )
    mentioned = (names & events).union(*map(bare_variables, judging))
    return Semantic(
        (Group(tuple(element for each in blocks for element in each.elements)),),
        tuple(each for each in condition.variables if each in mentioned),
        tuple(each for each in condition.selected if each in names),
        conditions=judging,
        blocks=blocks if len(blocks) > 1 else (),
    )


def _totals(expr: Expr) -> frozenset[str]:
    """The variables that an expression only aggregates: it speaks of all of their events."""
    return aggregated_variables(expr) - bare_variables(expr)


# --- partitions ------------------------------------------------------------------------------------


def tie(
    paths: Paths, events: Collection[str], variable: str, names: Sequence[str], conditions: Iterable[Expr]
) -> Semantic | None:
    """The part of the PATH that ties an event variable to variables of the PATH, with no other event in it.

    It is what can be reached from the variable without passing another event. A FILTER or a MINUS binds
    nothing, and is taken along where all of its variables are reached. None where the variable is not tied
    to all of the names.
    """
    if len(paths) != 1:
        return None
    pieces = [piece for unit in _units(paths, events, ()) for piece in unit]
    judging = [each for each in pieces if isinstance(each.of, Filter | MinusGroup)]
    binding = [each for each in pieces if each not in judging and each.events <= {variable}]
    parts = _connected([[each] for each in binding])
    own = next((each for each in parts if _mentions(each, (variable,))), [])
    reached = {name for each in own for name in each.names}
    if not reached.issuperset(names):
        return None
    own += [each for each in judging if each.names <= reached]
    own += [
        each
        for each in _judging(conditions)
        if each.names <= reached and each.events <= {variable} and not _looks_back(each.of)
    ]
    ordered = sorted(own, key=lambda each: (each.at < 0, each.at))
    return replace(_semantic(ordered, (variable,), tuple(names)), blocks=())


def _looks_back(expr: Element | Expr) -> bool:
    return isinstance(expr, Expr) and any(isinstance(each, Aggregate | Previous) for each in walk(expr))


def without_event(group: Group, variable: str) -> tuple[Group, Element | None]:
    """What a PATH asks of the knowledge alone, when the patterns that begin at an event are taken away.

    With it the first element that mentions the event in another way: nothing is left of that by itself.
    """
    kept: list[Element] = []
    event = Variable(variable)
    for element in _singly(group.elements):
        if variable not in element_variables(element):
            kept.append(element)
            continue
        pattern = element.patterns[0] if isinstance(element, TripleBlock) else None
        if pattern is None or pattern.subject != event or event in (pattern.predicate, pattern.object):
            return Group(tuple(kept)), element
        if isinstance(pattern.predicate, Steps) and isinstance(pattern.predicate.parts[0], Iri):
            # ?e p/q ?x  is  ?e p ?y . ?y q ?x
            behind = pattern.predicate.parts[1:]
            onward = behind[0] if len(behind) == 1 else Steps(behind)
            middle = Variable(f"kaicep_behind{len(kept)}")
            kept.append(TripleBlock((replace(pattern, subject=middle, predicate=onward),), span=element.span))
        elif not isinstance(pattern.predicate, Iri):
            return Group(tuple(kept)), element
    return Group(_together(kept)), None


# --- groups ----------------------------------------------------------------------------------------


def components(group: Group, given: Collection[str] = ()) -> list[Group]:
    """The parts of a group that share no variable but those that are given, each in the order of the text."""
    pieces = []
    for at, element in enumerate(_singly(group.elements)):
        names = frozenset(element_variables(element)) - frozenset(given)
        pieces.append([_Piece(at, 0, element, names, frozenset())])
    return [_group(part) for part in _connected(pieces)]


def _singly(elements: tuple[Element, ...]) -> list[Element]:
    """The elements, with every triple pattern by itself."""
    single: list[Element] = []
    for each in elements:
        if isinstance(each, TripleBlock):
            single.extend(TripleBlock((pattern,), span=pattern.span) for pattern in each.patterns)
        else:
            single.append(each)
    return single


def _together(elements: list[Element]) -> tuple[Element, ...]:
    """The elements, with neighbouring triple patterns in one piece again."""
    joined: list[Element] = []
    for each in elements:
        last = joined[-1] if joined else None
        if isinstance(each, TripleBlock) and isinstance(last, TripleBlock):
            joined[-1] = TripleBlock(last.patterns + each.patterns, span=last.span)
        else:
            joined.append(each)
    return tuple(joined)


# ----------------------------------------------------------------------------------------------------------
# Words in a PATH that nobody knows: a misspelt property is no error, since RDF may use any.
#
# What is unknown today may be said tomorrow, so this warns and stops nothing. Where nothing at all is known
# (neither knowledge nor annotations), nothing is judged.

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
        if pattern.span is None:
            continue  # nobody wrote it: it asks for a unit
        for found in _steps(pattern.predicate):
            if properties.isdisjoint(catalog.vocabulary.properties_below(found)):
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
        case Steps(parts) | Alternative(parts):
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
