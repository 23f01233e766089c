"""What a registered query is while it runs: its plan, its operator, the sort stage that feeds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kaicep.hosts.settings import Settings
from kaicep.kernel.absent import AbsentMachine
from kaicep.kernel.batches import ColumnSorter
from kaicep.kernel.columns import Matches, Strings, Table
from kaicep.kernel.epsparql import EpOperator, Sent
from kaicep.kernel.operator import Limits, Operator, Semantics
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Sorter
from kaicep.kernel.together import TogetherMachine
from kaicep.kernel.windowing import WindowMachine
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import ChiPlan, EpPlan, Pattern, QueryPlan, walk_objects
from kaicep.plan.results import Answer, term_answer
from kaicep.plan.types import Type

__all__ = [
    "Listed",
    "ChiSearch",
    "TripleQueries",
    "asks_the_knowledge",
    "attribute_types",
    "operator_of",
]


class ChiSearch:
    """A registered query of chi-CEP, or several that are found in one search.

    Their plans, as resolved and as optimised, their operator, its sort stage. `version` is that of the
    knowledge which decides the PATHs of events to come.
    """

    def __init__(
        self,
        plans: Sequence[ChiPlan],
        optimized: Sequence[ChiPlan],
        operator: Operator,
        sorter: ColumnSorter,
        version: int,
    ) -> None:
        self.plans = tuple(plans)
        self.optimized = tuple(optimized)
        self.operator = operator
        self.sorter = sorter
        self.version = version
        self.versioned = any(map(asks_the_knowledge, plans))
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.over: set[str] = set()
        """The queries that have ended; others may still read them."""
        if self.versioned and operator.passed.own is None:
            operator.passed.own = frozenset(
                condition
                for each in plans
                for chain in each.body.all_chains
                for condition in chain.conditions
            )

    def without(self, names: Collection[str]) -> ChiSearch:
        """The others of its queries, with its operator."""
        left = [index for index, each in enumerate(self.names) if each not in names]
        if len(left) == len(self.names):
            return self
        plans, optimized = ([some[index] for index in left] for some in (self.plans, self.optimized))
        return ChiSearch(plans, optimized, self.operator, self.sorter, self.version)

    def answers(self, table: Table | None) -> Iterator[Matches]:
        """The matches that these events and the watermark settle, chunk by chunk."""
        if table is not None and len(table):
            yield from self.operator.feed(table)
        yield from self.operator.advance(self.sorter.watermark)


class TripleQueries:
    """The EP-SPARQL queries of an engine: one operator, and the sort stage that feeds it."""

    def __init__(
        self, plans: tuple[EpPlan, ...], sorter: Sorter, knowledge: Knowledge, settings: Settings
    ) -> None:
        self.plans = plans
        self.sorter = sorter
        self.settings = settings
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.version = knowledge.version
        self.operator = self._made(knowledge)

    def without(self, names: Collection[str]) -> TripleQueries:
        """Itself: these queries stay together."""
        return self

    def _made(self, knowledge: Knowledge) -> EpOperator:
        return EpOperator(self.plans, knowledge, held=self.settings.limits.held)

    def answers(self, occurrences: Iterable[Sent]) -> list[Answer]:
        """The matches that these occurrences and the watermark settle; their columns are texts."""
        found = [*self.operator.feed(occurrences), *self.operator.advance(self.sorter.watermark)]
        return [term_answer(each) for each in found]

    def renew(self, knowledge: Knowledge) -> None:
        """Lets a new version of the knowledge be read from here on; what was derived stays."""
        if self.version != knowledge.version:
            self.version = knowledge.version
            state = self.operator.snapshot()
            self.operator = self._made(knowledge)
            self.operator.restore(state)


@dataclass(frozen=True)
class Listed:
    """Matches one by one, for whoever takes them in chunks (as `kernel.columns.Matches`)."""

    query: str
    rows: Sequence[Match]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)


def operator_of(
    plans: Sequence[ChiPlan],
    catalog: Catalog,
    semantics: Semantics,
    strings: Strings,
    limits: Limits,
    versioned: bool,
) -> Operator:
    """The operator of an optimised plan, or of several that are found in one search (`kernel.together`).

    `versioned` is whether the knowledge decides anything of them, be it that the optimiser asked it already.
    """
    if len(plans) > 1:
        return TogetherMachine(plans, catalog, semantics, strings, limits, versioned)
    (plan,) = plans
    windows = AbsentMachine if plan.is_absent else WindowMachine
    kind = PatternMachine if isinstance(plan.body, Pattern) else windows
    return kind(plan, catalog, semantics, strings, limits, versioned)


def asks_the_knowledge(plan: QueryPlan) -> bool:
    """Whether a query has a PATH that the knowledge decides."""
    return isinstance(plan, ChiPlan) and bool(plan.body.all_semantics or plan.body.ties)


def attribute_types(operator: Operator, plans: Sequence[ChiPlan], catalog: Catalog) -> dict[str, Type | None]:
    """The types of the columns that an operator reads.

    None is that of any value: of an attribute that no stream declares, or that streams have as different
    types. Where all that reads it takes it for a float64, an int64 is one too.
    """
    streams = [catalog.streams[name] for name in plans[0].body.streams]
    declared: dict[str, set[Type]] = {name: set() for name in operator.attributes}
    as_float = set[str]()
    if operator.versioned or any(map(asks_the_knowledge, plans)):
        # The plan for other knowledge may read whatever an annotation speaks of.
        for stream in streams:
            declared.update({name: set() for name in stream.graph_attributes})
    else:
        as_float = _read_as_float(plans)
    for stream in streams:
        for name, type in stream.attributes:
            if name in declared:
                declared[name].add(type)
    types: dict[str, Type | None] = {}
    for name, found in declared.items():
        numbers = name in as_float and found <= {Type.INT64, Type.FLOAT64}
        types[name] = next(iter(found)) if len(found) == 1 else Type.FLOAT64 if numbers and found else None
    return types


def _read_as_float(plans: Sequence[ChiPlan]) -> set[str]:
    """The attributes that all expressions of queries read as float64."""
    floats: set[str] = set()
    others: set[str] = set()
    for field in (each for plan in plans for each in walk_objects((plan.body, plan.columns))):
        if not isinstance(field, Field):
            continue
        names = {name for _, some in field.sources for name in some}
        (floats if field.type is Type.FLOAT64 else others).update(names)
    return floats - others
