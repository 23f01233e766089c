"""What PATHs say of the events of a window: in which partitions and groups each is, and with which values.

Events that PATHs cannot tell apart, since they agree in all that is annotated, are asked about once. A *case*
is an event inside one partition and one group; its *solutions* are the values of the variables that the
query wants besides. Terms are known by numbers, 0 is no term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from kaicep.kernel.columns import Array, Table
from kaicep.kernel.keys import Keys
from kaicep.kernel.operator import Semantics, solutions_of_each
from kaicep.kernel.roots import RootIds
from kaicep.plan.algebra import element_variables
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr, VariableRef
from kaicep.plan.identity import text_word
from kaicep.plan.nodes import Semantic, WindowAggregate
from kaicep.plan.operators import event_function
from kaicep.plan.path_values import with_terms
from kaicep.plan.paths import path_references
from kaicep.plan.terms import Blank, Iri, Literal, Term
from kaicep.plan.types import Value

__all__ = ["Meanings", "Terms"]

_MOST_EVENTS = 100_000
"""So many different events are remembered."""

Values = Mapping[str, Term | None]


class Terms:
    """Terms by number."""

    def __init__(self) -> None:
        self.terms: list[Term | None] = [None]
        self._numbers: dict[Term | None, int] = {None: 0}
        self._words: Array = np.zeros(0, np.uint64)

    def number(self, term: Term | None) -> int:
        """The number of a term."""
        if term not in self._numbers:
            self._numbers[term] = len(self.terms)
            self.terms.append(term)
        return self._numbers[term]

    def saved(self, number: int) -> list[str | None]:
        """A term as JSON can have it."""
        term = self.terms[number]
        if isinstance(term, Literal):
            return ["literal", term.lexical, term.datatype, term.language]
        if isinstance(term, Iri):
            return ["iri", term.value]
        return [] if term is None else ["blank", term.label]

    def loaded(self, saved: list[str]) -> int:
        """The number of a term that was saved."""
        if not saved:
            return 0
        kind, *rest = saved
        return self.number({"literal": Literal, "iri": Iri, "blank": Blank}[kind](*rest))

    @property
    def words(self) -> Array:
        """By number, the word of the term's text in ids; of no term, that of the empty text."""
        more = [text_word(str(each or "")) for each in self.terms[len(self._words) :]]
        if more:
            self._words = np.concatenate([self._words, np.array(more, np.uint64)])
        return self._words.view(np.int64)


class Meanings:
    """The cases of events; `chain` has the PATHs that only have to hold."""

    def __init__(
        self, node: WindowAggregate, chain: Sequence[Semantic], catalog: Catalog, semantics: Semantics
    ) -> None:
        self.node, self.catalog = node, catalog
        self.terms = Terms()
        self.names = tuple(dict.fromkeys(name for each in node.semantics for name in each.selected))
        self._partition = _names(node.partition)
        self._group = _names(node.group_by)
        self._semantics = semantics
        variable = node.window.variable
        self._asked = [_Asked(each, variable, catalog, self._partition) for each in chain]
        self._wanted = [_Asked(each, variable, catalog, self._partition) for each in node.semantics]
        self._ties = [_Asked(each, variable, catalog) for each in node.ties]
        self._every = [*self._asked, *self._wanted, *self._ties]
        self.needed = bool(self._every)
        self.attributes = tuple(dict.fromkeys(name for each in self._every for name in each.roots.attributes))
        self._events = Keys(len(self._every))
        self.clear()

    def clear(self) -> None:
        """Forgets all answers."""
        self._events = Keys(len(self._every))
        self._starts: list[int] = [0]
        self._cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._solutions: list[int] = [0]
        self._rows: list[tuple[int, ...]] = []
        self._arrays: tuple[Array, ...] | None = None

    def renew(self) -> None:
        """Lets everything be asked again: the knowledge has a new version."""
        for each in self._every:
            each.roots.renew()
        self.clear()

    # --- events ---

    @property
    def epochs(self) -> tuple[int, ...]:
        """The times at which what the knowledge says changes."""
        return tuple(getattr(getattr(self._semantics, "knowledge", None), "epochs", ()))

    def cases(self, table: Table) -> tuple[Array, Array]:
        """The row of each entry, and its case; those of one partition stand together."""
        if len(self._events) > _MOST_EVENTS:
            for each in self._every:
                each.roots.forget(np.zeros(0, np.int64))
            self.clear()
        ids = self._ids(table)
        starts = np.array(self._starts, np.int64)
        counts = starts[ids + 1] - starts[ids]
        rows = np.repeat(np.arange(len(ids)), counts)
        first = np.repeat(starts[ids] - np.cumsum(counts) + counts, counts)
        return rows, first + np.arange(len(rows))

    def _ids(self, table: Table) -> Array:
        """What all PATHs together can tell of the events, as numbers."""
        epochs = self.epochs
        numbers = [each.roots.ids(table, epochs) for each in self._every]
        known = len(self._events)
        ids = self._events.numbers(numbers, len(table))
        fresh = len(self._events) - known
        if fresh:
            combinations = self._events.words[:, known:].tolist()
            found = [
                path.ask([path.roots.events[id] for id in own], self._semantics)
                for path, own in zip(self._every, combinations, strict=True)
            ]
            for each in zip(*found, strict=True):
                self._learn(each)
            self._arrays = None
        return ids

    def _learn(self, found: Sequence[list[Values]]) -> None:
        """Notes the cases of an event, of which each PATH has these solutions."""
        number = self.terms.number
        for path, own in zip(self._every, found, strict=True):
            path.found = own
        for partition, group, solutions in self._cases_of():
            self._cases.append((tuple(map(number, partition)), tuple(map(number, group))))
            self._rows += [tuple(number(each[name]) for name in self.names) for each in solutions]
            self._solutions.append(len(self._rows))
        self._starts.append(len(self._cases))

    def _cases_of(
        self,
    ) -> Iterator[tuple[tuple[Term | None, ...], tuple[Term | None, ...], list[Values]]]:
        for partition in self._partitions():
            given = dict(zip(self._partition, partition, strict=True))
            if not all(each.solutions(given) for each in self._asked):
                continue
            found = [each.solutions(given) for each in self._wanted]
            groups: dict[tuple[Term | None, ...], list[Values]] = {}
            for parts in product(*found):
                values = {name: term for part in parts for name, term in part.items()}
                groups.setdefault(tuple(values[name] for name in self._group), []).append(values)
            for group, solutions in groups.items():
                yield partition, group, solutions

    def _partitions(self) -> list[tuple[Term | None, ...]]:
        if not self._partition:
            return [()]
        found = {
            tuple(each[name] for name in self._partition): None
            for tie in self._ties
            for each in tie.solutions({})
        }
        return list(found)

    # --- cases ---

    def partition_terms(self, name: str, cases: Array) -> Array:
        """The terms of cases that their partitions go by."""
        found: Array = self._columns()[0][cases, self._partition.index(name)]
        return found

    def group_terms(self, name: str, cases: Array) -> Array:
        """The terms of cases that their groups go by."""
        found: Array = self._columns()[1][cases, self._group.index(name)]
        return found

    def solutions(self, cases: Array) -> tuple[Array, dict[str, Array]]:
        """Which case each solution is of, by its place among those that are given, and its terms by name."""
        _, _, starts, rows = self._columns()
        counts = starts[cases + 1] - starts[cases]
        of = np.repeat(np.arange(len(cases)), counts)
        at = np.repeat(starts[cases] - np.cumsum(counts) + counts, counts) + np.arange(len(of))
        return of, {name: rows[at, number] for number, name in enumerate(self.names)}

    def _columns(self) -> tuple[Array, ...]:
        if self._arrays is None:
            partitions, groups = ([each[side] for each in self._cases] for side in (0, 1))
            self._arrays = (
                np.array(partitions, np.int64).reshape(len(self._cases), len(self._partition)),
                np.array(groups, np.int64).reshape(len(self._cases), len(self._group)),
                np.array(self._solutions, np.int64),
                np.array(self._rows, np.int64).reshape(len(self._rows), len(self.names)),
            )
        return self._arrays


class _Asked:
    """A PATH, asked for all that must be known of a solution to see whether it counts.

    Its conditions speak of the event too, and a partition goes by some of its variables.
    """

    def __init__(
        self, path: Semantic, variable: str, catalog: Catalog, partition: Sequence[str] = ()
    ) -> None:
        self.path = path
        mentioned = frozenset[str]().union(*map(element_variables, path.alternatives))
        self._given = tuple(each for each in partition if each in mentioned)
        judged = (name for each in path.conditions for name in path_references(each))
        self._names = tuple(dict.fromkeys((*path.selected, *judged, *self._given)))
        relation = path.relation
        if relation is not None:
            known = element_variables(relation.rest) | {root.name for root in relation.roots}
            relation = relation if known.issuperset(self._names) else None
        self._more = path
        if self._names != path.selected or path.conditions:
            self._more = replace(path, selected=self._names, conditions=(), relation=relation)
        self.roots = RootIds(replace(self._more, conditions=path.conditions), variable, catalog)
        self._variable = variable
        self.found: list[Values] = []
        """What holds for the event that is looked at."""

    def ask(self, events: Sequence[Event], semantics: Semantics) -> list[list[Values]]:
        """Asks what holds for each of these events."""
        if self.path.variables:
            found = solutions_of_each(semantics, self._more, self._variable, events)
        else:
            found = [semantics.solutions(self._more, {})] * len(events)
        return [
            [
                each
                for each in (dict(zip(self._names, row, strict=True)) for row in rows)
                if all(_test(with_terms(test, each))(event) is True for test in self.path.conditions)
            ]
            for rows, event in zip(found, events, strict=True)
        ]

    def solutions(self, given: Values) -> list[Values]:
        """The different values of the selected variables; of none, one where there is any solution."""
        inside = (each for each in self.found if all(each[name] == given[name] for name in self._given))
        rows = dict.fromkeys(tuple(each[name] for name in self.path.selected) for each in inside)
        return [dict(zip(self.path.selected, row, strict=True)) for row in rows]


@lru_cache(maxsize=1024)
def _test(condition: Expr) -> Callable[[Event], Value]:
    return event_function(condition)


def _names(exprs: Sequence[Expr]) -> tuple[str, ...]:
    return tuple(each.name for each in exprs if isinstance(each, VariableRef))
