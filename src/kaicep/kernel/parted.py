"""Partitions by variables of the PATH: events in, one row for each event in each of its partitions out.

An event is in the partition of every value that the PATHs which tie its variables find for it (semantics 2).
A row carries these values as attributes, so that all that follows finds a partition like any other: keys,
contiguity, skipping, ids. `kernel.solutions` reads them too: in one match such a variable has one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kaicep.kernel.columns import Array, Column, Strings, Table
from kaicep.kernel.keys import NumberLists
from kaicep.kernel.operator import Semantics, solutions_of_each
from kaicep.kernel.solutions import Terms, text_of, values_attribute
from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr, Field, VariableRef
from kaicep.plan.nodes import Chain, Pattern, Semantic
from kaicep.plan.types import Type

__all__ = ["Ties", "partition_variables", "with_attributes"]

Finder = Callable[[Semantic, str, Table, Array], Iterator[tuple[Terms, Array]]]
"""Which solutions a PATH with conditions has, each with the rows of the table for which it is one."""
Teller = Callable[[Semantic, str, Table], tuple[Array, Sequence[Event]]]
"""What a PATH can tell of the rows of a table, as numbers, and by number the event that this stands for."""


def partition_variables(pattern: Pattern) -> tuple[str, ...]:
    """The variables of the PATH that a pattern is partitioned by."""
    return tuple(each.name for each in pattern.partition if isinstance(each, VariableRef))


def with_attributes(pattern: Pattern) -> Pattern:
    """The pattern with attributes in the place of the variables that it is partitioned by."""
    variable = pattern.chains[0].variable

    def attribute(expr: Expr) -> Expr:
        if not isinstance(expr, VariableRef):
            return expr
        name = values_attribute(expr.name)
        return Field(variable, name, tuple((each, (name,)) for each in pattern.streams), Type.STRING)

    return replace(pattern, partition=tuple(map(attribute, pattern.partition)))


@dataclass(frozen=True)
class _Tie:
    """How the events of a variable are in partitions."""

    chain: Chain
    condition: Semantic


class Ties:
    """Puts events into the partitions of a pattern."""

    def __init__(self, pattern: Pattern, strings: Strings, semantics: Semantics) -> None:
        chains = {each.variable: each for each in pattern.chains}
        self.names = partition_variables(pattern)
        self.conditions = pattern.ties
        self._ties = [_Tie(chains[each.variables[0]], each) for each in pattern.ties]
        self._strings, self._semantics = strings, semantics
        self._numbers: dict[tuple[int, ...], int] = {}
        self.forget()

    def forget(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._known = {each.chain.variable: NumberLists() for each in self._ties}

    def expanded(
        self, table: Table, sees: Callable[[Table, Chain], Array], find: Finder, tell: Teller
    ) -> Table:
        """A row for each event in each partition, in the order of the events."""
        pairs: list[Array] = [np.zeros(0, np.int64)]
        for tie in self._ties:
            seen = sees(table, tie.chain)
            if tie.condition.conditions:
                for terms, rows in find(tie.condition, tie.chain.variable, table, seen):
                    pairs.append(rows << 32 | self._number(terms))
            else:
                told = tell(tie.condition, tie.chain.variable, table)
                pairs.append(self._told(tie, np.flatnonzero(seen), *told))
        every = np.unique(np.concatenate(pairs))
        rows, numbers = every >> 32, every & 0xFFFFFFFF
        values = np.array(list(self._numbers), np.int32).reshape(-1, len(self.names))
        columns = {
            values_attribute(name): Column(Type.STRING, values[numbers, at])
            for at, name in enumerate(self.names)
        }
        made = table if np.array_equal(rows, np.arange(len(table))) else table.take(rows)
        return replace(made, columns={**made.columns, **columns}, memo={})

    def _told(self, tie: _Tie, rows: Array, ids: Array, events: Sequence[Event]) -> Array:
        """The rows that are in partitions by a tie, each with the number of one."""
        known = self._known[tie.chain.variable]
        fresh = known.fresh(ids[rows])
        asked = [events[each] for each in fresh]
        found = solutions_of_each(self._semantics, tie.condition, tie.chain.variable, asked)
        for id, some in zip(fresh, found, strict=True):
            known.add(id, [self._number(dict(zip(self.names, row, strict=True))) for row in some])
        own, numbers = known.of(ids[rows])
        made: Array = rows[own] << 32 | numbers
        return made

    def _number(self, terms: Terms) -> int:
        """The number of a partition, by the codes of its values."""
        texts = (text_of(terms[name]) for name in self.names)
        codes = tuple(-1 if each is None else self._strings.code(each) for each in texts)
        return self._numbers.setdefault(codes, len(self._numbers))
