"""Partitions by variables of the PATH: events in, one row for each event in each of its partitions out.

An event is in the partition of every value that the PATHs which tie its variables find for it (semantics 2).
A row carries these values as attributes, so that all that follows finds a partition like any other: keys,
contiguity, skipping, ids. `kernel.solutions` reads them too: in one match such a variable has one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kaicep.kernel.columns import Array, Column, Strings, Table
from kaicep.kernel.solutions import Terms, text_of, values_attribute
from kaicep.plan.expressions import Expr, Field, VariableRef
from kaicep.plan.nodes import Chain, Pattern, Semantic
from kaicep.plan.types import Type

__all__ = ["Ties", "partition_variables", "with_attributes"]

Finder = Callable[[Semantic, str, Table, Array], Iterator[tuple[Terms, Array]]]
"""Which solutions a PATH about one variable has, each with the rows of the table for which it is one."""


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

    def __init__(self, pattern: Pattern, strings: Strings) -> None:
        chains = {each.variable: each for each in pattern.chains}
        self.names = partition_variables(pattern)
        self.conditions = pattern.ties
        self._ties = [_Tie(chains[each.variables[0]], each) for each in pattern.ties]
        self._strings = strings
        self._numbers: dict[tuple[int, ...], int] = {}

    def expanded(self, table: Table, sees: Callable[[Table, Chain], Array], find: Finder) -> Table:
        """A row for each event in each partition, in the order of the events."""
        found: list[Array] = [np.zeros((0, 2), np.int64)]
        for tie in self._ties:
            seen = sees(table, tie.chain)
            for terms, rows in find(tie.condition, tie.chain.variable, table, seen):
                found.append(np.stack([rows, np.full(len(rows), self._number(terms))], axis=1))
        pairs = np.unique(np.concatenate(found), axis=0)
        made = table.take(pairs[:, 0])
        values = np.array(list(self._numbers), np.int32).reshape(-1, len(self.names))
        columns = {
            values_attribute(name): Column(Type.STRING, values[pairs[:, 1], at])
            for at, name in enumerate(self.names)
        }
        return replace(made, columns={**made.columns, **columns})

    def _number(self, terms: Terms) -> int:
        """The number of a partition, by the codes of its values."""
        texts = (text_of(terms[name]) for name in self.names)
        codes = tuple(-1 if each is None else self._strings.code(each) for each in texts)
        return self._numbers.setdefault(codes, len(self._numbers))
