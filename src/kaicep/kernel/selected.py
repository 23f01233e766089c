"""What PATHs select of finished matches: one match for each distinct solution, with its values as columns.

Matches enter; they leave repeated, once for each combination of what their PATHs select. The selected terms,
alone or inside an expression, are part of the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel.output import Made
from kaicep.kernel.shape import Requirement, Roots, Shape, requirement_of
from kaicep.kernel.solutions import Given, Scene, Seen, Solutions, Terms, value_in
from kaicep.plan.events import Event
from kaicep.plan.expressions import VariableRef, type_of
from kaicep.plan.identity import text_word
from kaicep.plan.literals import native
from kaicep.plan.nodes import OutputColumn, Semantic
from kaicep.plan.paths import has_path_values, path_references
from kaicep.plan.time import format_time
from kaicep.plan.types import Type

__all__ = ["Selection"]

Rounds = Mapping[str, Sequence[Seen]]
"""The events of a match by variable; nothing for one that was left out."""


class Teller(Protocol):
    """What a selection asks of the pattern operator."""

    def event_of(self, roots: Roots, seen: Any) -> Event:
        """An event that says the same to a PATH as one of a match."""
        ...

    def inside(self, rounds: Rounds) -> Given:
        """The partition of a match, as far as it goes by variables of the PATH."""
        ...


class Selection:
    """The PATHs of a pattern whose variables are selected."""

    def __init__(
        self,
        shape: Shape,
        columns: Sequence[OutputColumn],
        paths: Solutions,
        operator: Teller,
    ) -> None:
        self._shape, self._paths, self._operator = shape, paths, operator
        self._columns = [each for each in columns if has_path_values(each.expr)]
        self._named = tuple(dict.fromkeys(n for each in self._columns for n in path_references(each.expr)))
        self._selecting = _selecting(shape.of_paths)
        self._latest = {
            each.variable: _selecting(map(requirement_of, each.semantics)) for each in shape.pattern.latest
        }
        self._nothing: Terms = dict.fromkeys(
            name for some in self._latest.values() for each in some for name in _names_of(each)
        )

    def __bool__(self) -> bool:
        """Whether anything is selected."""
        return bool(self._columns)

    def of(self, made: Made, rounds_of: Callable[[int], Rounds]) -> Made:
        """The matches, each as often as it has solutions; `rounds_of` gives the events of one of them."""
        rows: list[int] = []
        terms: list[Terms] = []
        shown: dict[str, list[Any]] = {each.name: [] for each in self._columns}
        for m in range(len(made.last)):
            rounds = rounds_of(m)
            found = [self._solutions(each, rounds) for each in self._asked(rounds)]
            for some in product(*found):
                row = dict(self._nothing) | {name: term for each in some for name, term in each.items()}
                rows.append(m)
                terms.append(row)
                for column in self._columns:
                    shown[column.name].append(self._shown(column, row, rounds))
        taken = made.take(np.array(rows, np.int64))
        low, high = taken.matches.low.copy(), taken.matches.high.copy()
        for name in self._named:
            words = np.array([text_word(str(row[name] or "")) for row in terms], np.uint64).view(np.int64)
            machine.mix_pairs(low, high, words, words)
        return replace(taken, matches=replace(taken.matches, low=low, high=high, terms=shown))

    def _asked(self, rounds: Rounds) -> list[Requirement]:
        """The PATHs that count: that of a LATEST event says what the others say, and more."""
        asked = [each for name, some in self._latest.items() if name in rounds for each in some]
        covered = {name for each in asked for name in _names_of(each)}
        return asked + [each for each in self._selecting if covered.isdisjoint(_names_of(each))]

    def _solutions(self, requirement: Requirement, rounds: Rounds) -> list[Terms]:
        """What a PATH selects; nulls where an event that it hangs on was left out."""
        assert requirement.path is not None
        nothing: Terms = dict.fromkeys(requirement.path.selected)
        counting = self._shape.counting(requirement, frozenset(rounds))
        if counting is None:
            return [nothing]
        of = counting.of
        assert isinstance(of, Semantic)
        events = {name: some[0] for name, some in rounds.items()}
        event_of, inside = self._operator.event_of, self._operator.inside(rounds)
        binding = {name: event_of(counting.roots(name), events[name]) for name in of.variables}
        found = self._paths.rows(of, binding, lambda _: Scene(events, {}, rounds), inside=inside)
        return [{**nothing, **dict(zip(of.selected, row, strict=True))} for row in found]

    def _shown(self, column: OutputColumn, terms: Terms, rounds: Rounds) -> Any:
        """The value of a column in one solution, as JSON writes it."""
        if isinstance(column.expr, VariableRef):
            term = terms[column.expr.name]
            return None if term is None else native(term)
        typed = self._paths.typed(column.expr, terms)
        value = value_in(typed, Scene({name: some[0] for name, some in rounds.items()}, {}, rounds))
        if isinstance(value, int) and (column.type or type_of(typed)) is Type.TIMESTAMP:
            return format_time(value)
        return value


def _selecting(requirements: Iterable[Requirement]) -> list[Requirement]:
    return [each for each in requirements if _names_of(each)]


def _names_of(requirement: Requirement) -> tuple[str, ...]:
    assert isinstance(requirement.of, Semantic)
    return requirement.of.selected
