"""Solutions of PATHs: those that the conditions on their variables leave, and the values that they give.

What decides PATHs (`Semantics`) is asked for the blocks alone. Here the terms of a solution take the places
of the variables in expressions; the result is typed anew and worked out for the events that it speaks of.
Inside a partition that goes by variables of the PATH, only the solutions with its values count: an event
carries them as attributes (`kernel.parted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kaicep.kernel.aggregates import FOLDS
from kaicep.kernel.operator import Row, Semantics, solutions_of_each
from kaicep.plan.algebra import element_variables
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Expr, Field, Previous, by_identity
from kaicep.plan.nodes import Semantic
from kaicep.plan.operators import function_of
from kaicep.plan.paths import bare_variables, path_references
from kaicep.plan.terms import Term
from kaicep.plan.types import Value
from kaicep.plan.typing import with_terms

Terms = Mapping[str, Term | None]
"""The variables of a PATH and what they stand for in one solution."""

_MOST_EXPRESSIONS = 10_000
_MOST_EVENTS = 100_000


class Seen(Protocol):
    """An event, of which expressions are known."""

    def value(self, expr: Expr) -> Value:
        """The value of an expression of this event alone."""
        ...


@dataclass(frozen=True)
class Scene:
    """What an expression speaks of: an event for each variable, that of the round before, all rounds."""

    events: Mapping[str, Seen]
    before: Mapping[str, Seen] = field(default_factory=dict)
    rounds: Mapping[str, Sequence[Seen]] = field(default_factory=dict)


def values_attribute(name: str) -> str:
    """The attribute by which an event in a partition carries the value of a variable of the PATH."""
    return f"?{name}"


def text_of(term: Term | None) -> str | None:
    """A term as the key of a partition shows it."""
    return None if term is None else str(term)


def mentions(condition: Semantic, name: str) -> bool:
    """Whether a PATH, or the part of one that a relation is, mentions one of its own variables by name."""
    relation = condition.relation
    if relation is not None:
        return name in element_variables(relation.rest) or any(each.name == name for each in relation.roots)
    return any(name in element_variables(each) for each in condition.alternatives)


def looks_back_at(expr: Expr) -> frozenset[str]:
    """The variables in PREV: there is no value for the first round."""
    if isinstance(expr, Previous):
        return bare_variables(expr.of)
    return frozenset[str]().union(*map(looks_back_at, expr.children()))


def fields_of(expr: Expr) -> Iterator[Field]:
    """The attributes that an expression reads."""
    if isinstance(expr, Field):
        yield expr
    for each in expr.children():
        yield from fields_of(each)


# --- expressions of many events ---------------------------------------------------------------------------


def value_in(expr: Expr, scene: Scene) -> Value:
    """The value of an expression of several events, and of the rounds of loops."""
    return _prepared(expr)(scene)


@by_identity
def _prepared(expr: Expr) -> Callable[[Scene], Value]:
    return function_of(expr, _leaf)


def _leaf(leaf: Expr) -> Callable[[Scene], Value]:
    """How an attribute, a value of the round before, or an aggregate is read."""
    if isinstance(leaf, Field):

        def attribute(scene: Scene) -> Value:
            seen = scene.events.get(leaf.variable)
            return None if seen is None else seen.value(leaf)

        return attribute
    if isinstance(leaf, Previous):
        return lambda scene: value_in(leaf.of, Scene(scene.before))
    if isinstance(leaf, Aggregate):
        return lambda scene: _aggregate(leaf, scene.rounds.get(str(leaf.variable), ()))
    raise TypeError(f"{type(leaf).__name__} has no value in chi-CEP")


def _aggregate(expr: Aggregate, rounds: Sequence[Seen]) -> Value:
    if expr.of is None:
        return len(rounds)
    fold = FOLDS["DISTINCT" if expr.distinct and expr.op == "COUNT" else expr.op]
    return fold.of([value_in(expr.of, Scene({str(expr.variable): each})) for each in rounds])


# --- solutions --------------------------------------------------------------------------------------------

Given = Mapping[str, str | None]
"""What the variables of a partition stand for, as texts."""


@dataclass(frozen=True, eq=False)
class _Plain:
    """A PATH without its conditions: all names that matter are asked for."""

    of: Semantic
    asked: Semantic
    names: tuple[str, ...]
    given: tuple[str, ...]


class PathSolutions:
    """The solutions of PATHs, with the conditions on them; `given` are the variables of the partition."""

    def __init__(self, semantics: Semantics, given: Iterable[str] = ()) -> None:
        self._semantics = semantics
        self.given = tuple(given)
        self._plain: dict[int, _Plain] = {}
        self._of_events: dict[int, dict[int, tuple[Event, list[Terms]]]] = {}
        self._typed: dict[tuple[int, tuple[Term | None, ...]], tuple[Expr, Expr]] = {}

    def plain(
        self, condition: Semantic, binding: Mapping[str, Event], inside: Given | None = None
    ) -> list[Terms]:
        """What the blocks say inside the events' partition, before any condition is tested."""
        plain = self._asked(condition)
        return self._inside(plain, self._semantics.solutions(plain.asked, binding), binding, inside)

    def _inside(
        self,
        plain: _Plain,
        rows: Iterable[Row],
        binding: Mapping[str, Event],
        inside: Given | None = None,
    ) -> list[Terms]:
        """The solutions that are in the partition."""
        found: list[Terms] = [dict(zip(plain.names, row, strict=True)) for row in rows]
        if plain.given:
            given = inside if inside is not None else given_by(binding, plain.given)
            found = [each for each in found if all(text_of(each[n]) == given[n] for n in plain.given)]
        return found

    def have_any(self, condition: Semantic, variable: str, events: Sequence[Event]) -> list[bool]:
        """Whether there is a solution for each of these events, before any condition is tested."""
        plain = self._asked(condition)
        rows = solutions_of_each(self._semantics, plain.asked, variable, events)
        return [bool(self._inside(plain, own, {variable: e})) for own, e in zip(rows, events, strict=True)]

    def plain_for(self, condition: Semantic, variable: str, event: Event) -> list[Terms]:
        """What the blocks say of one event that stands for many; it is asked once."""
        known = self._of_events.setdefault(id(condition), {})
        found = known.get(id(event))
        if found is None:
            if len(known) >= _MOST_EVENTS:
                known.clear()
            found = known[id(event)] = event, self.plain(condition, {variable: event})
        return found[1]

    def renew(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._of_events.clear()

    def rows(
        self,
        condition: Semantic,
        binding: Mapping[str, Event],
        scene_of: Callable[[Expr], Scene] | None = None,
        tested: Sequence[Expr] | None = None,
        inside: Given | None = None,
    ) -> frozenset[Row]:
        """The distinct values of the selected variables in solutions for which all conditions are true.

        `scene_of` says what a condition speaks of; `tested` are the conditions that count, where these are
        not all of them; `inside` is the partition, where it is not that of the events.
        """
        plain = self._asked(condition)
        if plain.asked is condition:
            return self._semantics.solutions(condition, binding)
        found = self.plain(condition, binding, inside)
        for each in condition.conditions if tested is None else tested:
            assert scene_of is not None
            scene = scene_of(each)
            found = [terms for terms in found if value_in(self.typed(each, terms), scene) is True]
        return frozenset(tuple([terms[name] for name in condition.selected]) for terms in found)

    def typed(self, expr: Expr, terms: Terms) -> Expr:
        """An expression with the terms of a solution in the places of its variables."""
        names = path_references(expr)
        key = id(expr), tuple([terms[name] for name in names])
        found = self._typed.get(key)
        if found is None:
            if len(self._typed) >= _MOST_EXPRESSIONS:
                self._typed.clear()
            made = with_terms(expr, {name: terms[name] for name in names})
            found = self._typed[key] = expr, made
        return found[1]

    def is_plain(self, condition: Semantic) -> bool:
        """Whether a PATH has neither conditions nor variables of the partition."""
        return self._asked(condition).asked is condition

    def _asked(self, condition: Semantic) -> _Plain:
        known = self._plain.get(id(condition))
        if known is None:
            given = tuple(each for each in self.given if mentions(condition, each))
            judged = (name for each in condition.conditions for name in path_references(each))
            names = tuple(dict.fromkeys((*condition.selected, *judged, *given)))
            asked = condition
            if condition.conditions or given:
                asked = replace(condition, conditions=(), blocks=(), selected=names)
            known = self._plain[id(condition)] = _Plain(condition, asked, names, given)
        return known


def given_by(binding: Mapping[str, Event], names: Iterable[str]) -> Given:
    """The values of the partition that an event carries."""
    values = next(iter(binding.values())).values
    return {name: values.get(values_attribute(name)) for name in names}  # type: ignore[misc]
