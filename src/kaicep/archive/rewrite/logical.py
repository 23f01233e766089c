"""What a database is asked: which events are bound, and what must hold of them and between them.

Whatever the database's language: a *slot* is one event of a match. A variable has one slot, a loop of n
rounds has n. What no single query can say (any number of rounds, which match rules out which) raises
`Unsupported` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from kaicep.errors import Unsupported
from kaicep.plan.chi import Absent, Element, Loop, Place, Together
from kaicep.plan.expressions import Aggregate, Expr, Previous, variables_of, walk
from kaicep.plan.nodes import (
    Chain,
    ChiPlan,
    Interval,
    Pattern,
    QueryPlan,
    Semantic,
    WindowAggregate,
)

__all__ = ["Absence", "Applied", "Asked", "Path", "Slot", "asked", "refusal"]

_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Slot:
    """One event: what it is called, the variable that takes it, its streams, its bounds."""

    name: str
    variable: str
    streams: tuple[str, ...]
    within: Interval


@dataclass(frozen=True)
class Applied:
    """A condition with a slot for each variable that it mentions; `previous` for those in PREV."""

    expr: Expr
    slots: Mapping[str, str]
    previous: Mapping[str, str]


@dataclass(frozen=True)
class Path:
    """A PATH condition with a slot for each event variable that it mentions."""

    semantic: Semantic
    slots: Mapping[str, str]


@dataclass(frozen=True)
class Absence:
    """An event that must not occur: after these slots, before those, up to `width` after the first ones."""

    slot: Slot
    conditions: tuple[Applied, ...]
    paths: tuple[Path, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    first: tuple[str, ...] = ()
    width: int | None = None


@dataclass(frozen=True)
class Asked:
    """A pattern as a question: its slots in the order of the pattern, and what holds between them.

    `earlier` are pairs in order of time, `apart` pairs that are different events, `adjacent` pairs with
    no other event of the partition between them. `spans` are (earliest, latest, width): the second is
    no more than that after the first.
    """

    plan: ChiPlan
    pattern: Pattern
    slots: tuple[Slot, ...]
    groups: tuple[tuple[str, ...], ...]
    conditions: tuple[Applied, ...]
    paths: tuple[Path, ...]
    earlier: tuple[tuple[str, str], ...]
    apart: tuple[tuple[str, str], ...]
    spans: tuple[tuple[str, str, int], ...]
    adjacent: tuple[tuple[str, str], ...]
    absences: tuple[Absence, ...]

    @property
    def selected(self) -> tuple[str, ...]:
        """The variables of PATHs whose values are wanted."""
        return tuple(dict.fromkeys(name for each in self.pattern.semantics for name in each.selected))


def refusal(plan: QueryPlan, what: str) -> Unsupported:
    """The error of a query that a single query of a database cannot say."""
    return Unsupported(f"{plan.name}: one query cannot say {what}; the strategies replay and hybrid can")


def asked(plan: ChiPlan) -> Asked:
    """A query with a pattern as a question."""
    pattern = plan.body
    if not isinstance(pattern, Pattern):
        raise TypeError("a query with a pattern is wanted")
    _refuse_modes(plan, pattern)
    chains = {chain.variable: chain for chain in pattern.chains}
    groups = [tuple(_slots(plan, each, chains)) for each in pattern.sequence if not isinstance(each, Absent)]
    slots = tuple(slot for group in groups for slot in group)
    names = tuple(tuple(slot.name for slot in group) for group in groups)
    absent = {each.variable for each in pattern.sequence if isinstance(each, Absent)}
    by_variable: dict[str, list[str]] = {}
    for slot in slots:
        by_variable.setdefault(slot.variable, []).append(slot.name)
    positive = {name: tuple(found) for name, found in by_variable.items()}
    return Asked(
        plan,
        pattern,
        slots,
        names,
        tuple(_conditions(plan, pattern, chains, positive, absent)),
        tuple(_paths(pattern, chains, positive, absent)),
        tuple(_earlier(names, positive)),
        tuple(_apart(names, positive)),
        tuple(_spans(pattern, names, positive)),
        tuple(_adjacent(plan, pattern, names, chains)),
        tuple(_absences(plan, pattern, chains, positive, names)),
    )


def _refuse_modes(plan: ChiPlan, pattern: Pattern) -> None:
    if pattern.match == "next":
        raise refusal(plan, "MATCH next, where each event hangs on those that were passed over")
    if pattern.skip != "none":
        raise refusal(plan, "AFTER MATCH SKIP, where one match rules out another")


# --- slots -----------------------------------------------------------------------------------------------


def _slots(plan: ChiPlan, element: Element, chains: Mapping[str, Chain]) -> Iterator[Slot]:
    """The slots of one element of the sequence."""
    match element:
        case Place(variable):
            yield _slot(chains[variable], variable)
        case Loop(variable, least, most):
            if least != most or not least or least > _MOST_ROUNDS:
                raise refusal(plan, f"a loop without a fixed number of rounds (?{variable})")
            for number in range(1, least + 1):
                name = f"{variable}_{number}"
                while name in chains:
                    name += "_"
                yield _slot(chains[variable], name)
        case Together(members):
            for each in members:
                if not isinstance(each, Place):
                    raise refusal(plan, "a conjunction of more than single events")
                yield from _slots(plan, each, chains)
        case _:
            raise refusal(plan, "a disjunction, which leaves some events out")


def _slot(chain: Chain, name: str) -> Slot:
    return Slot(name, chain.variable, chain.streams, chain.within)


# --- conditions ------------------------------------------------------------------------------------------


def _conditions(
    plan: ChiPlan,
    pattern: Pattern,
    chains: Mapping[str, Chain],
    slots: Mapping[str, Sequence[str]],
    absent: set[str],
) -> Iterator[Applied]:
    """What must hold of the events that are bound."""
    for variable, names in slots.items():
        for expr in chains[variable].conditions:
            yield from (Applied(expr, {variable: name}, {}) for name in names)
    for expr in pattern.conditions:
        if not variables_of(expr) & absent:
            yield from applied(plan, expr, slots)


def applied(plan: ChiPlan, expr: Expr, slots: Mapping[str, Sequence[str]]) -> Iterator[Applied]:
    """A condition for every round of the loops that it mentions; PREV is not asked of the first."""
    if any(isinstance(node, Aggregate) for node in walk(expr)):
        raise refusal(plan, "a condition on an aggregate over a loop")
    previous = {name for node in walk(expr) if isinstance(node, Previous) for name in variables_of(node.of)}
    variables = sorted(variables_of(expr))
    for places in product(*(range(len(slots[each])) for each in variables)):
        at = dict(zip(variables, places, strict=True))
        if all(at[each] > 0 for each in previous):
            yield Applied(
                expr,
                {name: slots[name][place] for name, place in at.items()},
                {name: slots[name][at[name] - 1] for name in previous},
            )


def _paths(
    pattern: Pattern, chains: Mapping[str, Chain], slots: Mapping[str, Sequence[str]], absent: set[str]
) -> Iterator[Path]:
    """The PATHs of the events that are bound. One that is selected stands in its chain too: once will do."""
    asked = {(each.alternatives, each.variables) for each in pattern.semantics}
    for semantic in pattern.semantics:
        if not absent.intersection(semantic.variables):
            yield from _path(semantic, slots)
    for variable in slots:
        for semantic in chains[variable].semantics:
            if (semantic.alternatives, semantic.variables) not in asked:
                yield from _path(semantic, slots)


def _path(semantic: Semantic, slots: Mapping[str, Sequence[str]]) -> Iterator[Path]:
    for names in product(*(slots[each] for each in semantic.variables)):
        yield Path(semantic, dict(zip(semantic.variables, names, strict=True)))


# --- time ------------------------------------------------------------------------------------------------


def _earlier(
    groups: Sequence[Sequence[str]], slots: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """SEQ: every event of a place comes before every one of the next; so do the rounds of a loop."""
    for group, following in zip(groups, [*groups[1:], ()], strict=True):
        if _is_loop(group, slots):
            yield from pairwise(group)
        ends = group[-1:] if _is_loop(group, slots) else group
        begins = following[:1] if _is_loop(following, slots) else following
        yield from product(ends, begins)


def _apart(groups: Sequence[Sequence[str]], slots: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for group in groups:
        if not _is_loop(group, slots):
            yield from combinations(group, 2)


def _spans(
    pattern: Pattern, groups: Sequence[Sequence[str]], slots: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, int]]:
    """WINDOW: of the named events, the last is no more than the width after the first (rule 4)."""
    for window in pattern.windows:
        named = {name for variable in window.variables for name in slots.get(variable, ())}
        touched = [[name for name in group if name in named] for group in groups]
        touched = [group for group in touched if group]
        if not touched:
            continue
        firsts = touched[0][:1] if _is_loop(touched[0], slots) else touched[0]
        lasts = touched[-1][-1:] if _is_loop(touched[-1], slots) else touched[-1]
        yield from ((first, last, window.width) for first, last in product(firsts, lasts) if first != last)


def _is_loop(group: Sequence[str], slots: Mapping[str, Sequence[str]]) -> bool:
    """Whether the slots are the rounds of one loop, and so in order of time."""
    return len(group) > 1 and any(set(group) == set(names) for names in slots.values())


def _adjacent(
    plan: ChiPlan, pattern: Pattern, groups: Sequence[Sequence[str]], chains: Mapping[str, Chain]
) -> Iterator[tuple[str, str]]:
    """MATCH strict: no event of the partition between one and the next."""
    if pattern.match != "strict":
        return
    if all(chain.semantics for chain in chains.values()):
        raise refusal(plan, "MATCH strict where every variable has a PATH, which decides what counts")
    if any(isinstance(each, Together) and len(each.members) > 1 for each in pattern.sequence):
        raise refusal(plan, "MATCH strict with a conjunction, whose order the events decide")
    names = [name for group in groups for name in group]
    yield from pairwise(names)


# --- absence ---------------------------------------------------------------------------------------------


def _absences(
    plan: ChiPlan,
    pattern: Pattern,
    chains: Mapping[str, Chain],
    slots: Mapping[str, Sequence[str]],
    groups: Sequence[tuple[str, ...]],
) -> Iterator[Absence]:
    passed = 0
    for element in pattern.sequence:
        if not isinstance(element, Absent):
            passed += 1
            continue
        name = element.variable
        slot = _slot(chains[name], name)
        with_it = {**slots, name: (name,)}
        conditions = [Applied(each, {name: name}, {}) for each in chains[name].conditions]
        for expr in pattern.conditions:
            if name in variables_of(expr):
                if not variables_of(expr) <= with_it.keys():
                    raise refusal(plan, "a condition between two absent events")
                conditions += applied(plan, expr, with_it)
        semantics = [
            *chains[name].semantics,
            *(each for each in pattern.semantics if name in each.variables),
        ]
        paths = [found for each in semantics for found in _path(each, with_it)]
        trailing = passed == len(groups)
        yield Absence(
            slot,
            tuple(conditions),
            tuple(paths),
            groups[passed - 1],
            () if trailing else groups[passed],
            groups[0] if trailing else (),
            pattern.deadline if trailing else None,
        )


# --- windows ---------------------------------------------------------------------------------------------


def window_slot(plan: ChiPlan) -> tuple[WindowAggregate, Slot, tuple[Expr, ...], tuple[Semantic, ...]]:
    """A query with a window: its node, its variable's slot, filters and PATHs."""
    node = plan.body
    if not isinstance(node, WindowAggregate):
        raise TypeError("a query with a window is wanted")
    if node.window.count is not None:
        raise refusal(plan, "a window of so many events, which are counted in order")
    if node.window.kind != "sliding" and node.semantics:
        raise refusal(plan, "a batch with a variable of a PATH")
    slot = _slot(node.chain, node.window.variable)
    selected = {(each.alternatives, each.variables) for each in node.semantics}
    plain = tuple(
        each for each in node.chain.semantics if (each.alternatives, each.variables) not in selected
    )
    return node, slot, node.chain.conditions, plain
