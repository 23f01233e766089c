"""Semantic relations at run time: tables that are looked up, and the run-time path for the rest.

A PATH condition with a `Relation` is decided by its table: from root values to rows, made in one query
over the closed knowledge. One without is decided by the run-time path (`knowledge.runtime`). Both judge an
event by what held at its own time, a PATH about several events by what held at the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from kaicep.knowledge.event_graph import UnknownEntities, entity_in, literal_in
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.runtime import RuntimePath, Settings
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Relation, Root, Semantic
from kaicep.plan.terms import Term
from kaicep.plan.types import Value

__all__ = ["Relations", "Table", "make_table"]

Roots = tuple[Term, ...]

_NOTHING: frozenset[Row] = frozenset()
_YES: frozenset[Row] = frozenset(((),))


@dataclass(frozen=True)
class Table:
    """The answer of a relation: rows of the selected variables by root values.

    Where the relation asks nothing but that the roots are there, `rows` is None.
    """

    rows: Mapping[Roots, frozenset[Row]] | None

    def lookup(self, roots: Roots) -> frozenset[Row]:
        """The rows of these root values."""
        return _YES if self.rows is None else self.rows.get(roots, _NOTHING)


def make_table(relation: Relation, selected: tuple[str, ...], knowledge: Knowledge) -> Table:
    """Asks the knowledge for the whole table at once."""
    if not relation.rest.elements and not set(selected):
        return Table(None)
    names = [root.name for root in relation.roots]
    rows: dict[Roots, set[Row]] = {}
    for found in closed_store(knowledge).select(relation.rest, [*names, *selected]):
        roots = found[: len(names)]
        if None not in roots:
            rows.setdefault(roots, set()).add(found[len(names) :])  # type: ignore[arg-type]
    return Table({key: frozenset(found) for key, found in rows.items()})


class Relations:
    """Decides PATHs for events: by table where the plan has one, else as the run-time path does."""

    def __init__(
        self,
        catalog: Catalog,
        knowledge: Knowledge,
        unknown: UnknownEntities | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.unknown = unknown
        self.runtime = RuntimePath(catalog, knowledge, unknown, settings or Settings())
        self._tables: dict[tuple[Relation, tuple[str, ...], int], Table] = {}
        self._entities: dict[tuple[str, str, Value, int], Term | None] = {}
        self._counted: set[tuple[Event, str]] = set()
        self._version = knowledge.version

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing."""
        if not condition.alternatives:
            return _NOTHING
        if condition.relation is None:
            return self.runtime.solutions(condition, binding)
        self._renew()
        epoch = self.knowledge.epoch(max((each.ts for each in binding.values()), default=0))
        table = self.table(condition.relation, condition.selected, epoch)
        found: set[Row] = set()
        choices = [tuple(self._candidates(root, binding, epoch)) for root in condition.relation.roots]
        for roots in product(*choices):
            if None in roots:
                return _NOTHING
            found |= self._rows(table, condition, roots)  # type: ignore[arg-type]
        return frozenset(found)

    def table(self, relation: Relation, selected: tuple[str, ...], epoch: int) -> Table:
        """The table of a relation as of an epoch of the knowledge."""
        wanted = tuple(each for each in selected if each not in {root.name for root in relation.roots})
        key = relation, wanted, epoch
        if key not in self._tables:
            self._tables[key] = make_table(relation, wanted, self.knowledge.in_epoch(epoch))
        return self._tables[key]

    def _rows(self, table: Table, condition: Semantic, roots: Roots) -> frozenset[Row]:
        """The rows with the selected variables in their order; a root may be selected itself."""
        found = table.lookup(roots)
        assert condition.relation is not None
        own = {root.name: term for root, term in zip(condition.relation.roots, roots, strict=True)}
        if not own.keys() & set(condition.selected):
            return found
        behind = [each for each in condition.selected if each not in own]
        return frozenset(
            tuple(own[each] if each in own else row[behind.index(each)] for each in condition.selected)
            for row in found
        )

    def _renew(self) -> None:
        """Forgets what an older version of the knowledge said."""
        if self._version != self.knowledge.version:
            self._version = self.knowledge.version
            self._tables.clear()
            self._entities.clear()

    def _candidates(self, root: Root, binding: Mapping[str, Event], epoch: int) -> Iterator[Term | None]:
        """The values of a root property of an event; None for an entity that nobody knows."""
        event = binding[root.variable]
        stream = self.catalog.streams[event.stream]
        for attribute in dict(root.literals).get(event.stream, ()):
            literal = literal_in(event, stream, attribute)
            if literal is not None:
                yield literal
        for attribute in dict(root.entities).get(event.stream, ()):
            if event.value(attribute) is not None:
                yield self._entity(event, stream, attribute, epoch)

    def _entity(self, event: Event, stream: Stream, attribute: str, epoch: int) -> Term | None:
        value = event.value(attribute)
        key = event.stream, attribute, value, epoch
        if key not in self._entities:
            self._entities[key] = entity_in(event, stream, attribute, self.knowledge.in_epoch(epoch))
        found = self._entities[key]
        if found is None and self.unknown is not None and (event, attribute) not in self._counted:
            self._counted.add((event, attribute))
            self.unknown.add(event.stream, attribute, str(value))
        return found
