"""Queries that run interpreted: what one is while it runs, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kaicep.hosts.columnar import asks_the_knowledge
from kaicep.hosts.settings import Settings
from kaicep.kernel.epsparql import EpOperator
from kaicep.kernel.operator import Limits, Operator, Semantics
from kaicep.kernel.pattern import PatternOperator
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Sorter
from kaicep.kernel.windows import WindowOperator
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Match
from kaicep.plan.nodes import Pattern, Project, QueryPlan, WindowAggregate
from kaicep.plan.results import Answer, term_answer
from kaicep.plan.terms import Triple

__all__ = ["Listed", "Query", "TripleQueries", "operator_of"]


class Query:
    """A registered query: its plan as resolved, its operator, its columns, the sort stage that feeds it."""

    def __init__(self, plan: QueryPlan, sorter: Sorter) -> None:
        self.plan = plan
        self.sorter = sorter
        self.optimized = plan
        self.operator: Operator
        self.projection: Projection
        self.version = 0
        self.since = 0  # the version of the knowledge that judged the first of its events
        self.versioned = asks_the_knowledge(plan)
        self.names = (plan.name,)
        self.text = plan.text


class TripleQueries:
    """The EP-SPARQL queries of an engine: one operator, and the sort stage that feeds it."""

    def __init__(
        self, plans: tuple[QueryPlan, ...], sorter: Sorter, knowledge: Knowledge, settings: Settings
    ) -> None:
        self.plans = plans
        self.sorter = sorter
        self.settings = settings
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.version = knowledge.version
        self.operator = self._made(knowledge)

    def _made(self, knowledge: Knowledge) -> EpOperator:
        compiled = None if self.settings.kernel == "auto" else self.settings.kernel == "compiled"
        return EpOperator(self.plans, knowledge, held=self.settings.limits.held, compiled=compiled)

    def answers(self, occurrences: Iterable[tuple[Triple, int, int]]) -> list[Answer]:
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
    """Matches of one interpreted query, for whoever takes them in chunks (as `kernel.columns.Matches`)."""

    query: str
    rows: Sequence[Match]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)


def operator_of(plan: QueryPlan, semantics: Semantics, limits: Limits) -> Operator:
    """The operator of an optimised plan."""
    assert isinstance(plan.root, Project)
    source = plan.root.input
    if isinstance(source, Pattern):
        return PatternOperator(source, semantics, limits, plan.name)
    assert isinstance(source, WindowAggregate)
    return WindowOperator(source, plan.root.columns, semantics, limits, plan.name)
