"""Knowledge as keys: events that a PATH ties together are found by key, or stand in partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np

from kaicep.kernel.automaton import certain
from kaicep.kernel.columns import Array, Column, Strings, Table
from kaicep.kernel.keys import NumberLists
from kaicep.kernel.operator import Semantics, solutions_of_each
from kaicep.kernel.shape import Roots
from kaicep.kernel.solutions import Terms, text_of, values_attribute
from kaicep.kernel.vectors import sees, spread
from kaicep.plan.chi import Absent
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Expr, Field, VariableRef
from kaicep.plan.nodes import Chain, Latest, Pattern, Semantic
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

# ----------------------------------------------------------------------------------------------------------
# Joins by knowledge: events that a PATH ties together agree in a key, and are found by it.
#
# The relation of a PATH about several events has rows of root values (a valve, a fan). What hangs together
# in these rows, such as all that belongs to one piece of equipment, is a component; events whose root
# values are of different components are in no match together. So the number of its component stands beside
# each event as an attribute, and an equality of these attributes beside the PATH. It is found by key like
# any other equality.


@runtime_checkable
class ComponentSemantics(Semantics, Protocol):
    """What decides PATHs, and knows what hangs together in their relations."""

    def components(self, condition: Semantic, variable: str, events: Sequence[Event]) -> Sequence[int | None]:
        """The component of each of these events; None where it is in none."""
        ...

    def is_complete(self, condition: Semantic) -> bool:
        """Whether a PATH about several events holds for all that are of one component."""
        ...


_EventsOf = Callable[[Roots], Sequence[Event]]
"""By number, the events that stand for all with that number."""


def with_join_keys(pattern: Pattern) -> tuple[Pattern, Mapping[Field, Semantic], list[Semantic]]:
    """The pattern with an equality for each two events that a relation ties, and the attributes in these.

    Then the PATHs for which all of their events are compared so.
    """
    streams = {each.variable: each.streams for each in pattern.all_chains}
    keys: dict[Field, Semantic] = {}
    numbers: dict[int, int] = {}

    def field(condition: Semantic, variable: str) -> Field:
        name = f"component {numbers.setdefault(id(condition), len(numbers))} of {variable}"
        sources = tuple((stream, (name,)) for stream in streams[variable])
        made = Field(variable, name, sources, Type.INT64)
        keys[made] = condition
        return made

    loops = loops_of(pattern.sequence)
    sure = certain(pattern.sequence)
    absent = {each.variable for each in pattern.sequence if isinstance(each, Absent)}
    conditions: list[Expr] = []
    pairwise: list[Semantic] = []
    for condition in filter(_is_joinable, pattern.semantics):
        names = condition.variables
        if len(names) > 2 and (pattern.match != "any" or not sure.issuperset(set(names) - absent)):
            continue  # an earlier test, or one that does not apply, would be another query
        pairs = list(combinations(names, 2))
        joined = [each for each in pairs if not set(each) & loops.keys() and not set(each) <= absent]
        for one, other in joined:
            sides = field(condition, one), field(condition, other)
            conditions.append(Call("=", sides, Type.BOOL))
        if joined == pairs:
            pairwise.append(condition)

    def looked_up(latest: Latest) -> Latest:
        more: list[tuple[Expr, Expr]] = []
        for condition in filter(_is_joinable, latest.semantics):
            others = [each for each in condition.variables if each != latest.variable]
            if len(others) < len(condition.variables) and sure.issuperset(others):
                more += [
                    (field(condition, latest.variable), field(condition, each))
                    for each in others
                    if each not in loops
                ]
                if pattern.match == "any" and not latest.optional:
                    # What the others have in common need not wait for the last known event.
                    pairs = combinations((each for each in others if each not in loops), 2)
                    conditions.extend(
                        Call("=", (field(condition, one), field(condition, other)), Type.BOOL)
                        for one, other in pairs
                    )
        return replace(latest, keys=(*latest.keys, *more))

    latest = tuple(map(looked_up, pattern.latest))
    found = replace(pattern, conditions=(*pattern.conditions, *conditions), latest=latest)
    return found, keys, pairwise


def _is_joinable(condition: Semantic) -> bool:
    """Whether one attribute of each event decides what it is tied to."""
    relation = condition.relation
    if relation is None or len(condition.variables) < 2:
        return False
    if sorted(each.variable for each in relation.roots) != sorted(condition.variables):
        return False
    for root in relation.roots:
        literals, entities = dict(root.literals), dict(root.entities)
        if any(len((*literals.get(each, ()), *entities.get(each, ()))) > 1 for each in literals | entities):
            return False
    return True


class JoinKeys:
    """The components of events, by the numbers of what a PATH can tell of them (`kernel.roots`)."""

    def __init__(self, keys: Mapping[Field, Semantic], pairwise: Collection[Semantic] = ()) -> None:
        self.keys, self.pairwise = keys, pairwise
        self._known: dict[Field, Array] = {}

    @property
    def roots(self) -> list[Roots]:
        """What must be known of the events."""
        return [self.roots_of(each) for each in self.keys]

    def roots_of(self, of: Field) -> Roots:
        """What of an event decides which component it is in."""
        return Roots(self.keys[of], of.variable)

    def is_one(self, of: Field) -> bool:
        """Whether an attribute is a component, which no source has."""
        return of in self.keys

    def expanded(
        self, table: Table, ids_of: Callable[[Roots], Array], events_of: _EventsOf, semantics: Semantics
    ) -> Table:
        """The table with a column for each key."""
        columns = dict(table.columns)
        for key in self.keys:
            numbers = self.of(key, ids_of(self.roots_of(key)), events_of, semantics)
            columns[key.name] = Column(Type.INT64, numbers)
        return replace(table, columns=columns, memo={})  # what others worked out lacks these columns

    def of(self, key: Field, ids: Array, events_of: _EventsOf, semantics: Semantics) -> Array:
        """The components of events that have these numbers.

        What is in none gets one of its own: another version of the knowledge may tie it to something.
        """
        events = events_of(self.roots_of(key))
        known = self._known.get(key, np.zeros(0, np.int64))
        if len(known) < len(events):
            known = np.concatenate([known, np.zeros(2 * len(events) - len(known), np.int64)])
            self._known[key] = known
        fresh = np.flatnonzero(known[: len(events)] == 0)
        if len(fresh):
            asked = [events[each] for each in fresh.tolist()]
            found: Sequence[int | None] = [0] * len(asked)
            if isinstance(semantics, ComponentSemantics):
                found = semantics.components(self.keys[key], key.variable, asked)
            place = list(self.keys).index(key)  # so that of two variables they are different too
            for id, component in zip(fresh.tolist(), found, strict=True):
                known[id] = -1 - id * len(self.keys) - place if component is None else 1 + component
        return known[ids]

    def decide(self, condition: Semantic, semantics: Semantics) -> bool:
        """Whether a PATH holds wherever the keys of its events are equal."""
        names = {field.variable for field, of in self.keys.items() if of is condition}
        return (
            not condition.conditions
            and condition in self.pairwise
            and names == set(condition.variables)
            and isinstance(semantics, ComponentSemantics)
            and semantics.is_complete(condition)
        )

    def forget(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._known.clear()


# ----------------------------------------------------------------------------------------------------------
# Partitions by variables of the PATH: events in, one row for each event in each of its partitions out.
#
# An event is in the partition of every value that the PATHs which tie its variables find for it (semantics
# 2). A row carries these values as attributes, so that all that follows finds a partition like any other:
# keys, contiguity, skipping, ids. `kernel.solutions` reads them too: in one match such a variable has one
# value.

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

    def expanded(self, table: Table, find: Finder, tell: Teller) -> Table:
        """A row for each event in each partition, in the order of the events."""
        pairs: list[Array] = [np.zeros(0, np.int64)]
        for tie in self._ties:
            seen = spread(sees(tie.chain, table), table)
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
