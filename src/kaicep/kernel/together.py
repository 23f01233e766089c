"""One search for several queries: those with the same pattern or window, and those that differ in one level.

Windows are the same where they keep the same of the same events, whatever HAVING and the columns make of it.
Of `FILTER (?e1.flowrate > 500)`, `> 501`, `> 502`, ... the first lets everything through that any of the
others does. So the partial matches of the query that asks least are those of all, and a match is one of
every query whose level it reaches. Each query writes its own matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from kaicep.kernel import tables as t
from kaicep.kernel.columns import Array, Column, Matches, Strings, Table
from kaicep.kernel.operator import Limits, Semantics
from kaicep.kernel.output import Made, Output
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.shape import single_parts
from kaicep.kernel.windowing import Answered, WindowMachine, asked_of
from kaicep.plan.catalog import Catalog
from kaicep.plan.expressions import Call, Const, Expr
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, WindowAggregate
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

_ORDERS = (">", ">=", "<", "<=")
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_LEVEL = "level"
_MANY_ALIKE = 8
"""So many queries that differ in a level are worth one search: it finds more than most of them need."""


@dataclass(frozen=True)
class Level:
    """A comparison with a constant in a plan: what is compared, how, with what."""

    expr: Expr
    op: str
    value: float

    def reached(self, values: Array) -> Array:
        """Which of these values reach it; null reaches none."""
        found: Array
        match self.op:
            case ">":
                found = values > self.value
            case ">=":
                found = values >= self.value
            case "<":
                found = values < self.value
            case _:
                found = values <= self.value
        return found


# --- which queries belong together --------------------------------------------------------------------------


def groups(plans: Sequence[ChiPlan]) -> list[tuple[ChiPlan, ...]]:
    """Optimised plans, those together that are found in one search; each plan is in one group."""
    made: list[tuple[ChiPlan, ...]] = []
    by_pattern: dict[object, list[ChiPlan]] = {}
    for alike in _alike(plans):
        if len(alike) >= _MANY_ALIKE:
            made.append(alike)
            continue
        for plan in alike:
            by_pattern.setdefault(_key(plan), []).append(plan)
    return [*made, *map(tuple, by_pattern.values())]


def _key(plan: ChiPlan) -> object:
    """What is the same of queries that are found in one search."""
    if isinstance(plan.body, WindowAggregate):
        return plan.name if plan.is_absent else (replace(plan.body, having=()), asked_of(plan))
    return plan.body if _is_shared(plan) else plan.name


def _is_shared(plan: ChiPlan) -> bool:
    """Whether a query can share its search: what it reports follows from its matches alone."""
    source = plan.body
    if not isinstance(source, Pattern) or source.skip != "none" or source.latest or source.ties:
        return False
    return not any(each.selected for each in source.semantics)


def _alike(plans: Sequence[ChiPlan]) -> list[tuple[ChiPlan, ...]]:
    """The plans that differ in one level alone, together."""
    by_skeleton: dict[ChiPlan, list[ChiPlan]] = {}
    made: list[list[ChiPlan]] = []
    for plan in plans:
        skeletons = [each for each, _ in _skeletons(plan)]
        group = next((by_skeleton[each] for each in skeletons if each in by_skeleton), None)
        if group is None:
            group = []
            made.append(group)
            by_skeleton |= dict.fromkeys(skeletons, group)
        elif len(group) == 1:
            # What they differ in is known from here on: a third one must differ in the same.
            shared = [each for each in skeletons if by_skeleton.get(each) is group]
            for each in [each for each, some in by_skeleton.items() if some is group]:
                if each not in shared[:1]:
                    del by_skeleton[each]
        group.append(plan)
    return [tuple(each) for each in made]


def _skeletons(plan: ChiPlan) -> Iterator[tuple[ChiPlan, Level]]:
    """The plan's operators without one of its levels, and that level; for each level there is."""
    pattern, bare = plan.body, replace(plan, name="", text="")
    if not isinstance(pattern, Pattern) or not _is_shared(plan):
        return
    if pattern.match != "any" or pattern.deadline is not None or loops_of(pattern.sequence):
        return  # these choose events by the level
    for index, condition in enumerate(pattern.conditions):
        level = level_of(condition)
        if level is not None:
            rest = _without(pattern.conditions, index, level)
            yield replace(bare, body=replace(pattern, conditions=rest)), level
    for place, chain in enumerate(pattern.chains):
        for index, condition in enumerate(chain.conditions):
            level = level_of(condition)
            if level is not None:
                less = replace(chain, conditions=_without(chain.conditions, index, level))
                chains = (*pattern.chains[:place], less, *pattern.chains[place + 1 :])
                yield replace(bare, body=replace(pattern, chains=chains)), level


def level_of(condition: Expr) -> Level | None:
    """The level that a condition compares with; None where it is no comparison with a number."""
    if not isinstance(condition, Call) or condition.op not in _ORDERS:
        return None
    left, right = condition.args
    if isinstance(right, Const) and right.type is Type.FLOAT64 and not isinstance(left, Const):
        return Level(left, condition.op, float(right.value or 0.0))
    if isinstance(left, Const) and left.type is Type.FLOAT64 and not isinstance(right, Const):
        return Level(right, _TURNED[condition.op], float(left.value or 0.0))
    return None


def _without(conditions: tuple[Expr, ...], index: int, level: Level) -> tuple[Expr, ...]:
    blank = Call(level.op, (level.expr, Const(None, Type.FLOAT64)), Type.BOOL)
    return (*conditions[:index], blank, *conditions[index + 1 :])


def _common_levels(plans: Sequence[ChiPlan]) -> list[Level] | None:
    """The level of each plan, in which alone they differ; None where their patterns are the same."""
    if len({plan.body for plan in plans}) == 1:
        return None
    found = [dict(_skeletons(each)) for each in plans]
    return next(
        [each[skeleton] for each in found] for skeleton in found[0] if all(skeleton in each for each in found)
    )


# --- the search ---------------------------------------------------------------------------------------------


class TogetherMachine(PatternMachine):
    """The operator of several optimised patterns that `groups` put together."""

    def __init__(
        self,
        plans: Sequence[ChiPlan],
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        levels = _common_levels(plans)
        order = list(range(len(plans)))
        if levels is not None:
            sign = 1.0 if levels[0].op[0] == ">" else -1.0
            order.sort(key=lambda each: sign * levels[each].value)
        self.plans = tuple(plans[each] for each in order)
        self._levels = None if levels is None else [levels[each] for each in order]
        super().__init__(self.plans[0], catalog, semantics, strings, limits, versioned)
        derived = catalog.derived(self.streams)
        self._outputs = [Output(each, self.shape, strings, derived) for each in self.plans]
        self._level: Output | None = None
        if self._levels is not None:
            level = OutputColumn(_LEVEL, self._levels[0].expr, Type.FLOAT64)
            only = replace(self.plans[0], body=plans[0].body, columns=(level,))
            self._level = Output(only, self.shape, strings)

    def _shown(self) -> Iterator[Expr]:
        for plan in self.plans:
            for column in plan.columns:
                yield from single_parts(column.expr)
        if self._levels is not None:
            yield from single_parts(self._levels[0].expr)
        yield from self.pattern.partition

    def _every_output(self) -> Sequence[Output]:
        return self._outputs

    def singles(self, table: Table, rows: Array) -> Iterator[Matches]:
        """A match of each of these events, for each query whose level it reaches."""
        values = None
        if self._level is not None:
            values = _levels_in(self._level.of_single(table, rows))
        for output, own in self._shared(rows, values):
            yield replace(output.of_single(table, own), version=self.shown_version)

    def _shared(self, found: Array, values: Array | None) -> Iterator[tuple[Output, Array]]:
        """What is there for each query, of things in columns that have these values."""
        for number, output in enumerate(self._outputs):
            own = found
            if values is not None and self._levels is not None:
                own = found[..., self._levels[number].reached(values)]
            if own.shape[-1]:
                yield output, own

    def _drain(self, at: int) -> Iterator[Matches]:
        """The matches of each query."""
        count = int(self.memory.meta[t.MATCHES])
        self.memory.meta[t.MATCHES] = 0
        if count == 0:
            return
        written = self.memory.out[:, :count].copy()
        values = self._compared(written) if self._levels is not None else None
        for output, own in self._shared(written, values):
            made = self._of(output, own)
            yield from self._by_version(made.matches, made.of.versions)

    def _compared(self, written: Array) -> Array:
        """What is compared with the levels, for each match."""
        assert self._level is not None
        return _levels_in(self._of(self._level, written).matches)

    def _of(self, output: Output, written: Array) -> Made:
        """Some of the matches that the machine has written, for one query."""
        memory = self.memory._replace(out=np.ascontiguousarray(written))
        return self._completed(output.made(memory, written.shape[1]), output)


def _levels_in(matches: Matches) -> Array:
    """The column that is compared with levels."""
    column = matches.select[_LEVEL]
    assert isinstance(column, Column)
    return column.data


class WindowsTogether(WindowMachine):
    """The operator of several optimised windows that `groups` put together."""

    def __init__(
        self,
        plans: Sequence[ChiPlan],
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        super().__init__(plans[0], catalog, semantics, strings, limits, versioned)
        self._readers = [self._reader(each) for each in plans]

    def _reader(self, plan: ChiPlan) -> WindowsTogether:
        """One that reads the answers for a plan."""
        assert isinstance(plan.body, WindowAggregate)
        made = copy(self)
        made.plan, made.node, made._columns = plan, plan.body, plan.columns
        made._read_answers()
        return made

    def _report(self, rows: Answered, cases: Array | None, found: list[Matches]) -> None:
        """Makes the matches of each query."""
        for each in self._readers:
            each._state, each._partitions, each._groups = self._state, self._partitions, self._groups
            WindowMachine._report(each, rows, cases, found)
