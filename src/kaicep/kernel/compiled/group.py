"""Many queries of one shape that differ in a level: they are looked for together (`CompiledGroup`).

Of `FILTER (?e1.flowrate > 500)`, `> 501`, `> 502`, ... the first lets everything through that any of the
others does. So the partial matches of the query that asks least are those of all, and a match is one of
every query whose level it reaches: these are found by their rank, and no other is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kaicep.kernel.columns import Array, Matches, Strings, Table
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.expressions import NotCompiled
from kaicep.kernel.compiled.layout import Levels
from kaicep.kernel.compiled.operator import CompiledPattern, compilable, some_of
from kaicep.kernel.operator import Limits, Semantics
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match
from kaicep.plan.expressions import Call, Const, Expr
from kaicep.plan.identity import MatchId
from kaicep.plan.nodes import Filter, Node, Pattern, Project, QueryPlan
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

__all__ = ["CompiledGroup", "GroupMatches", "compilable_group", "groups"]

CHUNK = 1 << 18
_ORDERS = (">", ">=", "<", "<=")
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True)
class _Level:
    """A comparison with a constant in a plan: what is compared, how, with what."""

    expr: Expr
    op: str
    value: float


def groups(plans: Sequence[QueryPlan]) -> list[tuple[QueryPlan, ...]]:
    """The optimised plans that differ in one level alone, together; each plan is in one group."""
    by_skeleton: dict[Node, list[QueryPlan]] = {}
    made: list[list[QueryPlan]] = []
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


def _skeletons(plan: QueryPlan) -> Iterator[tuple[Node, _Level]]:
    """The plan's operators without one of its levels, and that level; for each level there is."""
    root = plan.root
    if not isinstance(root, Project) or not isinstance(root.input, Pattern):
        return
    pattern = root.input
    for index, condition in enumerate(pattern.conditions):
        level = _level(condition)
        if level is not None:
            rest = _without(pattern.conditions, index, level)
            yield replace(root, input=replace(pattern, conditions=rest)), level
    for place, chain in enumerate(pattern.chains):
        if not isinstance(chain, Filter):
            continue
        for index, condition in enumerate(chain.conditions):
            level = _level(condition)
            if level is not None:
                less = replace(chain, conditions=_without(chain.conditions, index, level))
                chains = (*pattern.chains[:place], less, *pattern.chains[place + 1 :])
                yield replace(root, input=replace(pattern, chains=chains)), level


def _level(condition: Expr) -> _Level | None:
    if not isinstance(condition, Call) or condition.op not in _ORDERS:
        return None
    left, right = condition.args
    if isinstance(right, Const) and right.type is Type.FLOAT64 and not isinstance(left, Const):
        return _Level(left, condition.op, float(right.value or 0.0))
    if isinstance(left, Const) and left.type is Type.FLOAT64 and not isinstance(right, Const):
        return _Level(right, _TURNED[condition.op], float(left.value or 0.0))
    return None


def _without(conditions: tuple[Expr, ...], index: int, level: _Level) -> tuple[Expr, ...]:
    blank = Call(level.op, (level.expr, Const(None, Type.FLOAT64)), Type.BOOL)
    return (*conditions[:index], blank, *conditions[index + 1 :])


def compilable_group(plans: Sequence[QueryPlan], catalog: Catalog) -> str | None:
    """Why plans cannot be looked for in one pass; None where they can."""
    root = plans[0].root
    assert isinstance(root, Project)
    assert isinstance(root.input, Pattern)
    if root.input.match != "any" or root.input.deadline is not None:
        return "MATCH next and strict, and an absence at the end, choose events by the level"
    if loops_of(root.input.sequence):
        return "a loop"
    try:
        _common_level(plans)
    except NotCompiled as reason:
        return str(reason)
    return compilable(plans[0], catalog)


def _common_level(plans: Sequence[QueryPlan]) -> list[_Level]:
    """The level of each plan, in which alone they differ."""
    found = [dict(_skeletons(each)) for each in plans]
    for skeleton in found[0]:
        if all(skeleton in each for each in found):
            return [each[skeleton] for each in found]
    raise NotCompiled("queries that differ in more than one level")


@dataclass(frozen=True, eq=False)
class GroupMatches:
    """The matches of a group of queries: `query` is the place of each match's query in `plans`."""

    plans: tuple[QueryPlan, ...]
    query: Array
    all: Matches
    """Those of all queries; its `query` is the name of one of them only."""

    def __len__(self) -> int:
        return len(self.query)

    def __iter__(self) -> Iterator[Match]:
        for each in self.split():
            yield from each

    def split(self) -> Iterator[Matches]:
        """The matches of each query."""
        small = self.query.astype(np.uint16) if len(self.plans) < 2**16 else self.query  # sorted by digits
        order = np.argsort(small, kind="stable")
        bounds = np.searchsorted(self.query[order], np.arange(len(self.plans) + 1)).tolist()
        together = some_of(self.all, order)
        for plan, (low, high) in zip(self.plans, pairwise(bounds), strict=True):
            if high > low:
                yield replace(some_of(together, slice(low, high)), query=plan.name)


class CompiledGroup:
    """The operator of several optimised plans that differ in one level (`groups` finds them)."""

    def __init__(
        self,
        plans: Sequence[QueryPlan],
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        levels = _common_level(plans)
        sign = 1.0 if levels[0].op[0] == ">" else -1.0
        order = sorted(range(len(plans)), key=lambda each: sign * levels[each].value)
        self.plans = tuple(plans[each] for each in order)
        chosen = Levels(levels[0].expr, levels[0].op)
        self._pattern = CompiledPattern(self.plans[0], catalog, semantics, strings, limits, versioned, chosen)
        if self._pattern.kernel.flats:
            raise NotCompiled("a group of queries with loops")
        self.attributes = self._pattern.attributes
        self._levels = np.array([sign * levels[each].value for each in order])
        self._seeds = np.array([self._seed(each) for each in self.plans], np.uint64).reshape(-1)
        block = self._pattern.block
        block[b.LEVELS], block[b.SEEDS] = self._levels.ctypes.data, self._seeds.ctypes.data
        block[b.LEVEL_COUNT] = len(plans)
        block[b.CHUNK] = CHUNK

    def _seed(self, plan: QueryPlan) -> tuple[int, int]:
        made = MatchId(plan.name, plan.text)
        if not self._pattern.pattern.partition:
            for each in self._pattern.kernel.known:
                made.word(each)
        return made.low, made.high

    @property
    def version(self) -> int | None:
        """The version of the knowledge that judges events from now on."""
        return self._pattern.version

    @version.setter
    def version(self, version: int | None) -> None:
        self._pattern.version = version

    def feed(self, table: Table) -> Iterator[GroupMatches]:
        """What is found by these events, the next ones in order; valid until the next is asked for."""
        for found in self._pattern.feed(table):
            query = self._pattern.column(("query",))[: len(found)]
            yield GroupMatches(self.plans, query, found)

    def advance(self, watermark: float) -> Sequence[GroupMatches]:
        """Nothing: every match of a group is found by its last event."""
        self._pattern.advance(watermark)
        return ()

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return self._pattern.promise(watermark)

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        self._pattern.renew()

    def snapshot(self) -> bytes:
        """The state: that of the query that asks least."""
        return self._pattern.snapshot()

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        self._pattern.restore(state)

    @property
    def size(self) -> int:
        """How many partial matches are held."""
        return self._pattern.size
