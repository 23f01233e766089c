"""PATHs taken apart: which condition of the knowledge base concerns which event (semantics 2).

All blocks that AND ties are one group, since a variable means the same everywhere in a query. That
group is then split into components that share no variable: query 7 of the paper writes two
conditions, one for each event, into a single block. Blocks joined by OR stay together.
"""

from __future__ import annotations

from collections.abc import Iterable

from kaicep.plan.algebra import element_variables
from kaicep.plan.chi import PathBlock
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import Element, Group, Triples

__all__ = ["components", "path_variables", "semantic_conditions"]


def path_variables(paths: tuple[tuple[PathBlock, ...], ...], events: Iterable[str]) -> frozenset[str]:
    """The variables of all PATHs that are not events."""
    names = {name for blocks in paths for block in blocks for name in element_variables(block.group)}
    return frozenset(name for name in names - set(events) if not name.startswith("_:"))


def semantic_conditions(
    paths: tuple[tuple[PathBlock, ...], ...], events: Iterable[str], selected: Iterable[str]
) -> tuple[Semantic, ...]:
    """The PATHs of a query as conditions, each with the event variables that it mentions."""
    known = tuple(events)
    wanted = tuple(selected)
    groups = [Group(tuple(each for block in blocks for each in block.group.elements)) for blocks in paths]
    if len(groups) == 1:
        return tuple(_condition((part,), known, wanted) for part in components(groups[0]))
    return (_condition(tuple(groups), known, wanted),) if groups else ()


def _condition(
    alternatives: tuple[Group, ...], events: tuple[str, ...], selected: tuple[str, ...]
) -> Semantic:
    mentioned = frozenset[str]().union(*(element_variables(each) for each in alternatives))
    return Semantic(
        alternatives,
        tuple(each for each in events if each in mentioned),
        tuple(each for each in selected if each in mentioned),
    )


def components(group: Group) -> list[Group]:
    """The parts of a group that share no variable, each in the order of the text."""
    parts: list[tuple[set[str], list[int]]] = []
    elements = _singly(group.elements)
    for index, element in enumerate(elements):
        names = set(element_variables(element))
        touching = [part for part in parts if part[0] & names]
        parts = [part for part in parts if part not in touching]
        parts.append((names.union(*(part[0] for part in touching)), [*_flat(touching), index]))
    return [Group(_together([elements[index] for index in sorted(members)])) for _, members in parts]


def _flat(parts: list[tuple[set[str], list[int]]]) -> list[int]:
    return [index for _, members in parts for index in members]


def _singly(elements: tuple[Element, ...]) -> list[Element]:
    """The elements, with every triple pattern by itself."""
    single: list[Element] = []
    for each in elements:
        if isinstance(each, Triples):
            single.extend(Triples((pattern,), span=pattern.span) for pattern in each.patterns)
        else:
            single.append(each)
    return single


def _together(elements: list[Element]) -> tuple[Element, ...]:
    """The elements, with neighbouring triple patterns in one piece again."""
    joined: list[Element] = []
    for each in elements:
        last = joined[-1] if joined else None
        if isinstance(each, Triples) and isinstance(last, Triples):
            joined[-1] = Triples(last.patterns + each.patterns, span=last.span)
        else:
            joined.append(each)
    return tuple(joined)
