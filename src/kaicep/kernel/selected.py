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
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import alone
from kaicep.kernel.columns import Array
from kaicep.kernel.keys import Keys, NumberLists
from kaicep.kernel.output import Made, Output
from kaicep.kernel.shape import Requirement, Roots, Shape, requirement_of
from kaicep.kernel.solutions import Given, Scene, Seen, Solutions, Terms, fields_of, value_in
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Expr, VariableRef, type_of, walk
from kaicep.plan.identity import text_word
from kaicep.plan.literals import native
from kaicep.plan.nodes import OutputColumn, Semantic
from kaicep.plan.paths import has_path_values, path_references
from kaicep.plan.time import format_time
from kaicep.plan.types import Type

__all__ = ["Selection"]

_MOST_SOLUTIONS = 100_000
"""So many solutions are remembered."""

Rounds = Mapping[str, Sequence[Seen]]
"""The events of a match by variable; nothing for one that was left out."""


class Teller(Protocol):
    """What a selection asks of the pattern operator."""

    output: Output

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

        self._partition = shape.pattern.partition if paths.given else ()
        self._seen: dict[str, list[object]] = {}
        self._by_match = False
        if self._columns:
            self._look_at_what_decides()
        self.renew()

    def _look_at_what_decides(self) -> None:
        """Finds by variable what of its event decides the solutions, or is shown with them."""
        exprs = [each.expr for each in self._columns]
        for each in (*self._selecting, *(one for some in self._latest.values() for one in some)):
            assert isinstance(each.of, Semantic)
            exprs += each.of.conditions
            for name in each.of.variables:
                self._seen.setdefault(name, []).append(each.roots(name))
        for field in (field for expr in exprs for field in fields_of(expr)):
            self._seen.setdefault(field.variable, []).append(field)
        aggregates = any(isinstance(part, Aggregate) for expr in exprs for part in walk(expr))
        self._by_match = aggregates or not self._shape.loops.keys().isdisjoint(self._seen)

    def __bool__(self) -> bool:
        """Whether anything is selected."""
        return bool(self._columns)

    def of(self, made: Made, rounds_of: Callable[[int], Rounds]) -> Made:
        """The matches, each as often as it has solutions; `rounds_of` gives the events of one of them.

        Matches that agree in all that PATHs and columns see of them have the same solutions.
        """
        if self._by_match or len(self._known) > _MOST_SOLUTIONS:
            self.renew()
        numbers = self._numbers(made)
        fresh = self._known.fresh(numbers)
        first = np.zeros(len(self._known_words), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        for number in fresh:
            self._known.add(number, self._solved(rounds_of(int(first[number]))))
        which, solutions = self._known.of(numbers)
        taken = made if np.array_equal(which, np.arange(len(numbers))) else made.take(which)
        low, high = taken.matches.low.copy(), taken.matches.high.copy()
        for words in self._words:
            own = np.array(words, np.uint64).view(np.int64)[solutions]
            machine.mix_pairs(low, high, own, own)
        chosen = solutions.tolist()
        shown = {name: [values[each] for each in chosen] for name, values in self._values.items()}
        return replace(taken, matches=replace(taken.matches, low=low, high=high, terms=shown))

    def renew(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._known_words = Keys(1 + len(self._partition) + sum(1 + len(of) for of in self._seen.values()))
        self._known = NumberLists()
        self._words: list[list[int]] = [[] for _ in self._named]
        self._values: dict[str, list[Any]] = {each.name: [] for each in self._columns}

    def _numbers(self, made: Made) -> Array:
        """Matches of which nothing that is asked about can be told apart have the same number."""
        count = len(made.last)
        words: list[Array] = [np.arange(count) if self._by_match else np.zeros(count, np.int64)]
        words += [self._words_of(each, made, made.last) for each in self._partition]
        for name, seen in self._seen.items():
            at = self._operator.output.places[name]
            events = made.found[at] if at < len(made.found) else np.full(count, -1)
            words.append(events >= 0)
            words += [np.where(events < 0, 0, self._words_of(each, made, events)) for each in seen]
        return self._known_words.numbers(words)

    def _words_of(self, of: object, made: Made, events: Array) -> Array:
        column = self._shape.columns[alone(of) if isinstance(of, Expr) else of]
        words: Array = made.events[events, t.E_FIXED + self._shape.kept[column]]
        return words

    def _solved(self, rounds: Rounds) -> list[int]:
        """The solutions of one match, by the number that each gets."""
        made: list[int] = []
        found = [self._solutions(each, rounds) for each in self._asked(rounds)]
        for some in product(*found):
            row = dict(self._nothing) | {name: term for each in some for name, term in each.items()}
            made.append(len(self._words[0]))
            for name, words in zip(self._named, self._words, strict=True):
                words.append(text_word(str(row[name] or "")))
            for column in self._columns:
                self._values[column.name].append(self._shown(column, row, rounds))
        return made

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
