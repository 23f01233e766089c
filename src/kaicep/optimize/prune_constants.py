"""Semantic pruning and migration (section 4.1 of the SCEPter paper).

What a PATH asks of the knowledge base alone, starting from its constants, has the same answer for every
event, unless it is about something that holds for a time only. Where that is one answer it takes the place of
the question: `hvc:GreenOfficeAirflow hvc:hasValue ?gaf` becomes 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kaicep.knowledge.queries import select
from kaicep.knowledge.store import Knowledge
from kaicep.optimize.event_vocabulary import EventVocabulary
from kaicep.optimize.rule import RuleContext, map_semantics, vocabulary_of
from kaicep.plan.algebra import element_variables, pattern_variables, substitute
from kaicep.plan.nodes import ChiPlan, Semantic
from kaicep.plan.sparql import Element, Group, TripleBlock, TriplePattern
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple, Variable
from kaicep.plan.text import group_text, iri_text


def prune_constants(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Evaluates in advance what no event can change."""
    words = vocabulary_of(plan, context)
    if not words.plain:
        return plan

    def pruned(condition: Semantic) -> Iterator[Semantic]:
        groups = [_pruned(group, condition, words, plan, context) for group in condition.alternatives]
        kept = tuple(group for group in groups if group is not None)
        yield condition if kept == condition.alternatives else replace(condition, alternatives=kept)

    return map_semantics(plan, pruned)


def _pruned(
    group: Group, condition: Semantic, words: EventVocabulary, plan: ChiPlan, context: RuleContext
) -> Group | None:
    """The group without what is constant in it; None where that can never be true."""
    for patterns in _constant_parts(group, condition):
        if any(words.may_meet(each) or _may_pass(each, context.knowledge) for each in patterns):
            continue
        names = sorted({name for each in patterns for name in pattern_variables(each)})
        if set(names) & set(condition.selected):
            continue
        rows = select(context.knowledge, Group((TripleBlock(tuple(patterns)),)), names)
        prefixes = dict(plan.prefixes)
        asked = " ".join(group_text(Group((TripleBlock(tuple(patterns)),)), prefixes=prefixes).split()[1:-1])
        if not rows:
            context.note("prune_constants", f"{asked} has no answer: the PATH never holds")
            return None
        if len(rows) > 1 or any(isinstance(each, Blank) for each in rows[0]):
            continue
        values = {name: term for name, term in zip(names, rows[0], strict=True) if term is not None}
        shown = ", ".join(f"?{name} = {_shown(term, prefixes)}" for name, term in values.items())
        context.note("prune_constants", f"{asked} gives {shown or 'true'}", _ground(patterns, values))
        group = substitute(_without(group, patterns), values)
    return group


def _constant_parts(group: Group, condition: Semantic) -> list[list[TriplePattern]]:
    """The triple patterns of the group that hang together and mention no event, part by part."""
    parts: list[tuple[set[str], list[TriplePattern]]] = []
    for pattern in _patterns(group):
        names = set(pattern_variables(pattern))
        touching = [part for part in parts if part[0] & names]
        parts = [part for part in parts if part not in touching]
        merged = [each for part in touching for each in part[1]]
        parts.append((names.union(*(part[0] for part in touching)), [*merged, pattern]))
    elsewhere = {
        name
        for each in group.elements
        if not isinstance(each, TripleBlock) and _is_scoped(each)
        for name in element_variables(each)
    }
    events = set(condition.variables)
    return [found for names, found in parts if not names & events and not names & elsewhere]


def _may_pass(pattern: TriplePattern, knowledge: Knowledge) -> bool:
    """Whether the answer may be another one at another time."""
    if not knowledge.epochs:
        return False
    return not isinstance(pattern.predicate, Iri) or knowledge.passes(pattern.predicate)


def _is_scoped(element: Element) -> bool:
    """Whether a variable inside means more than its value: all but FILTER bind variables themselves."""
    return type(element).__name__ != "Filter"


def _patterns(group: Group) -> Iterator[TriplePattern]:
    for each in group.elements:
        if isinstance(each, TripleBlock):
            yield from each.patterns


def _without(group: Group, patterns: list[TriplePattern]) -> Group:
    kept: list[Element] = []
    for each in group.elements:
        if not isinstance(each, TripleBlock):
            kept.append(each)
            continue
        left = tuple(pattern for pattern in each.patterns if pattern not in patterns)
        if left:
            kept.append(TripleBlock(left, span=each.span))
    return Group(tuple(kept))


def _ground(patterns: list[TriplePattern], values: dict[str, Term]) -> list[Triple]:
    """The triples that were relied on; a path has none of its own to show."""
    ground: list[Triple] = []
    for each in patterns:
        places = [
            values.get(place.name, place) if isinstance(place, Variable) else place
            for place in (each.subject, each.predicate, each.object)
        ]
        if all(isinstance(place, Iri | Literal | Blank) for place in places):
            ground.append((places[0], places[1], places[2]))  # type: ignore[arg-type]
    return ground


def _shown(term: Term, prefixes: dict[str, str]) -> str:
    if isinstance(term, Iri):
        return iri_text(term, prefixes)
    return term.lexical if isinstance(term, Literal) else str(term)
