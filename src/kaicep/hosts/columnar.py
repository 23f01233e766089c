"""Queries that run compiled: which can, and what one is while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kaicep.kernel.operator import Limits, Semantics
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.nodes import Pattern, Project, QueryPlan, SemanticFilter, WindowAggregate
from kaicep.plan.results import Answer, derived_event
from kaicep.plan.types import Type, Value, unify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kaicep.kernel.batches import ColumnSorter
    from kaicep.kernel.columns import Matches, Strings, Table
    from kaicep.kernel.compiled.group import GroupMatches

__all__ = [
    "CompiledOperator",
    "CompiledQuery",
    "asks_the_knowledge",
    "attribute_types",
    "compiled_operator",
    "derived_events",
    "together",
    "why_interpreted",
]

_MANY_ALIKE = 8


class CompiledOperator(Protocol):
    """An operator over columns; see `kernel.operator` for the contract, which is the same."""

    attributes: tuple[str, ...]
    version: int | None

    def feed(self, table: Table) -> Iterable[Matches | GroupMatches]:
        """What is found by these events; an answer holds until the next one is asked for."""
        ...

    def advance(self, watermark: float) -> Iterable[Matches | GroupMatches]:
        """What is found by knowing that no event below the watermark will come."""
        ...

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        ...

    def snapshot(self) -> bytes:
        """The state."""
        ...

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        ...

    @property
    def size(self) -> int:
        """How many events and partial matches are held."""
        ...


def why_interpreted(plan: QueryPlan, catalog: Catalog) -> str | None:
    """Why an optimised plan cannot run compiled; None where it can."""
    source = plan.root.input if isinstance(plan.root, Project) else None
    if not isinstance(source, Pattern | WindowAggregate):
        return "it is EP-SPARQL"
    for name in source.streams:
        stream = catalog.streams[name]
        if stream.derived:
            return f"it reads the output of the query {name}"
        if stream.rdf:
            return f"{name} is a stream of triples"
        if stream.open:
            return f"the attributes of {name} are not all known"
    if isinstance(source, Pattern):
        from kaicep.kernel.compiled.operator import compilable
    else:
        if getattr(catalog.vocabulary, "epochs", ()) and asks_the_knowledge(plan):
            return "what is known changes with time"
        from kaicep.kernel.compiled.windows import compilable
    return compilable(plan, catalog)


def asks_the_knowledge(plan: QueryPlan) -> bool:
    """Whether a query has a PATH that the knowledge decides."""
    return any(
        isinstance(node, SemanticFilter) or bool(getattr(node, "semantics", ())) for node in plan.root.walk()
    )


def compiled_operator(
    plans: Sequence[QueryPlan],
    catalog: Catalog,
    semantics: Semantics,
    strings: Strings,
    limits: Limits,
    versioned: bool,
) -> CompiledOperator:
    """The compiled operator of an optimised plan, or of several of one shape (`together` finds those)."""
    if len(plans) > 1:
        from kaicep.kernel.compiled.group import CompiledGroup

        return CompiledGroup(plans, catalog, semantics, strings, limits, versioned)
    (plan,) = plans
    assert isinstance(plan.root, Project)
    if isinstance(plan.root.input, Pattern):
        from kaicep.kernel.compiled.operator import CompiledPattern

        return CompiledPattern(plan, catalog, semantics, strings, limits, versioned)
    from kaicep.kernel.compiled.windows import CompiledWindow

    return CompiledWindow(plan, catalog, semantics, strings, limits, versioned)


def together(plans: Sequence[QueryPlan], catalog: Catalog) -> list[tuple[QueryPlan, ...]]:
    """Optimised plans; many that differ in a threshold alone stand together, to be found in one pass."""
    from kaicep.kernel.compiled.group import compilable_group, groups

    made: list[tuple[QueryPlan, ...]] = []
    for group in groups(plans):
        if len(group) >= _MANY_ALIKE and compilable_group(group, catalog) is None:
            made.append(group)
        else:
            made += [(each,) for each in group]
    return made


class CompiledQuery:
    """A registered query that runs compiled, or many that differ in a threshold and are found in one pass.

    Their plans, as resolved and as optimised, their operator, and the sort stage that feeds it.
    """

    def __init__(
        self,
        plans: Sequence[QueryPlan],
        optimized: Sequence[QueryPlan],
        operator: CompiledOperator,
        sorter: ColumnSorter,
        version: int,
        versioned: bool,
    ) -> None:
        self.plans = tuple(plans)
        self.optimized = tuple(optimized)
        self.operator = operator
        self.sorter = sorter
        self.version = version
        self.versioned = versioned
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)

    def answers(self, table: Table | None) -> Iterator[Matches | GroupMatches]:
        """The matches that these events and the watermark settle, chunk by chunk."""
        if table is not None and len(table):
            yield from self.operator.feed(table)
        yield from self.operator.advance(self.sorter.watermark)


def attribute_types(operator: CompiledOperator, plan: QueryPlan, catalog: Catalog) -> dict[str, Type]:
    """The types of the columns that an operator reads; int64 on one stream and float64 on another is that."""
    source = plan.root.input if isinstance(plan.root, Project) else None
    assert isinstance(source, Pattern | WindowAggregate)
    types: dict[str, Type] = {}
    for stream in source.streams:
        for name, type in catalog.streams[stream].attributes:
            if name in operator.attributes:
                types[name] = unify(types.get(name, type), type) or type
    return types


def derived_events(matches: Matches, catalog: Catalog) -> list[Event]:
    """Matches as events of the query's output stream."""
    from kaicep.kernel.columns import Column

    columns: dict[str, Sequence[Value]] = {}
    for name in matches.names:
        column = matches.select.get(name)
        if isinstance(column, Column):
            columns[name] = column.values(matches.strings)
        elif name in matches.terms:
            columns[name] = matches.terms[name]
    rows = zip(*columns.values(), strict=True) if columns else iter([()] * len(matches))
    return [
        derived_event(Answer(match, dict(zip(columns, row, strict=True))), catalog)
        for match, row in zip(matches, rows, strict=True)
    ]
