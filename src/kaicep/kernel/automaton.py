"""The steps of a pattern: what may come next after some of its events are found (semantics 2).

What is left of a pattern is a pattern again, so a state is what is left and which variables have events.
From a state lead *frontiers*. Where the pattern leaves a choice that is not the events' to make (one more
round of a loop, or none), each way is a frontier of its own. Where the event decides (which branch of a
disjunction, which member of a conjunction), all these places are in one frontier: `MATCH next` takes, for
each frontier, the earliest event that fits any of its places. States are made as they are reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, Together

__all__ = [
    "Residual",
    "Steps",
    "certain",
    "may_end",
    "open_variables",
    "steps",
    "variables_in",
]

Residual = tuple[Element, ...]
"""What is left of a pattern."""

Steps = tuple[tuple[str, Residual], ...]
"""Places that stand open side by side: the variable to bind, and what is left after that."""


def may_end(rest: Residual) -> bool:
    """Whether a match may be complete although this is left of the pattern."""
    return all(_optional(each) for each in rest)


def _optional(element: Element) -> bool:
    match element:
        case Loop():
            return element.least == 0
        case Absent():
            return True
        case Choice():
            return any(map(_optional, element.members))
        case Together():
            return all(map(_optional, element.members))
    return False


@lru_cache(maxsize=4096)
def steps(rest: Residual) -> tuple[Steps, ...]:
    """The frontiers of what is left; each belongs to one element of the pattern.

    >>> [[variable for variable, _ in each] for each in steps((Loop("b", 0, None), Place("c")))]
    [['b'], ['c']]
    >>> [[variable for variable, _ in each] for each in steps((Choice((Place("b"), Place("c"))),))]
    [['b', 'c']]
    """
    found: list[Steps] = []
    for index, element in enumerate(rest):
        later = rest[index + 1 :]
        found += [tuple((name, left + later) for name, left in each) for each in _inside(element)]
        if not _optional(element):
            break
    return tuple(found)


def _inside(element: Element) -> list[Steps]:
    """The frontiers of one element; what is left is what is left of that element."""
    return [frontier for frontier, _ in _ways(element)]


def _ways(element: Element) -> list[tuple[Steps, Element]]:
    """The frontiers of one element, each with what the element is once this frontier is chosen.

    What a frontier leaves out of a conjunction is left out for good, inside groups too.
    """
    match element:
        case Place():
            return [(((element.variable, ()),), element)]
        case Loop():
            if element.most == 0:
                return []
            most = None if element.most is None else element.most - 1
            rest = Loop(element.variable, max(element.least - 1, 0), most)
            return [(((element.variable, (rest,)),), element)]
        case Choice():
            members = [found for found in map(_ways, element.members) if found]
            return [_side_by_side(way) for way in product(*members)] if members else []
        case Together():
            return _members(element.members)
    return []  # an absence takes no event


def _side_by_side(way: tuple[tuple[Steps, Element], ...]) -> tuple[Steps, Element]:
    frontier: Steps = sum((steps for steps, _ in way), ())
    return frontier, Choice(tuple(member for _, member in way))


def _members(members: tuple[Element, ...]) -> list[tuple[Steps, Element]]:
    """Every member goes on in one of its ways, or is done for good where it may be."""
    found: list[tuple[Steps, Element]] = []
    for way in product(*(_ways(each) + ([((), each)] if _optional(each) else []) for each in members)):
        going = [(member, frontier) for frontier, member in way if frontier]
        taken: list[tuple[str, Residual]] = []
        for index, (_, frontier) in enumerate(going):
            before = tuple(member for member, _ in going[:index])
            after = tuple(member for member, _ in going[index + 1 :])
            taken += [(name, (Together(before + left + after),)) for name, left in frontier]
        if taken:
            found.append((tuple(taken), Together(tuple(member for member, _ in going))))
    return found


def variables_in(element: Element) -> Iterator[str]:
    """The variables that an element may bind."""
    match element:
        case Place():
            yield element.variable
        case Loop():
            if element.most != 0:
                yield element.variable
        case Choice() | Together():
            for each in element.members:
                yield from variables_in(each)


@lru_cache(maxsize=4096)
def open_variables(rest: Residual) -> frozenset[str]:
    """The variables that may still be bound."""
    return frozenset(name for each in rest for name in variables_in(each))


@lru_cache(maxsize=4096)
def certain(rest: Residual) -> frozenset[str]:
    """The variables that will be bound in every match that goes on from here."""
    names: set[str] = set()
    for each in rest:
        if isinstance(each, Together):
            names |= certain(each.members)
        elif isinstance(each, Place) or (isinstance(each, Loop) and each.least > 0):
            names.add(each.variable)
    return frozenset(names)
