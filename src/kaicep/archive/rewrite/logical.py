"""What a database is asked of a query, what it cannot be asked, and the words of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from kaicep.errors import Unsupported
from kaicep.plan.algebra import element_variables
from kaicep.plan.chi import Absent, Element, Loop, Place, Together, always_bound
from kaicep.plan.expressions import Aggregate, Call, Exists, Expr, Previous, VariableRef, variables_of, walk
from kaicep.plan.functions import OWN_FUNCTIONS
from kaicep.plan.nodes import (
    Chain,
    ChiPlan,
    Interval,
    Pattern,
    QueryPlan,
    Semantic,
    WindowAggregate,
)
from kaicep.plan.paths import has_path_values
from kaicep.plan.sparql import (
    Alternative,
    Filter,
    Group,
    Inverse,
    Negated,
    Predicate,
    Repeat,
    Steps,
    TripleBlock,
    TriplePattern,
    Values,
    may_be_empty,
)
from kaicep.plan.terms import Variable
from kaicep.plan.values import format_xsd_duration

__all__ = [
    "SlotAbsence",
    "Applied",
    "AskedPattern",
    "SlotPath",
    "EventSlot",
    "asked",
    "refusal",
    "refuse_unsayable",
    "duration",
    "exists",
    "nested",
    "order_of",
    "stream_prefix",
    "time_of",
    "variable_name",
    "check_group",
    "path_variables",
]

# ----------------------------------------------------------------------------------------------------------
# What a database is asked: which events are bound, and what must hold of them and between them.
#
# Whatever the database's language: a *slot* is one event of a match. A variable has one slot, a loop of n
# rounds has n. What no single query can say (any number of rounds, which match rules out which) raises
# `Unsupported` with the reason.

_MOST_ROUNDS = 20


@dataclass(frozen=True)
class EventSlot:
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
class SlotPath:
    """A PATH condition with a slot for each event variable that it mentions."""

    semantic: Semantic
    slots: Mapping[str, str]


@dataclass(frozen=True)
class SlotAbsence:
    """An event that must not occur: after these slots, before those, up to `width` after the first ones."""

    slot: EventSlot
    conditions: tuple[Applied, ...]
    paths: tuple[SlotPath, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    first: tuple[str, ...] = ()
    width: int | None = None


@dataclass(frozen=True)
class AskedPattern:
    """A pattern as a question: its slots in the order of the pattern, and what holds between them.

    `earlier` are pairs in order of time, `apart` pairs that are different events, `adjacent` pairs with
    no other event of the partition between them. `spans` are (earliest, latest, width): the second is
    no more than that after the first.
    """

    plan: ChiPlan
    pattern: Pattern
    slots: tuple[EventSlot, ...]
    groups: tuple[tuple[str, ...], ...]
    conditions: tuple[Applied, ...]
    paths: tuple[SlotPath, ...]
    earlier: tuple[tuple[str, str], ...]
    apart: tuple[tuple[str, str], ...]
    spans: tuple[tuple[str, str, int], ...]
    adjacent: tuple[tuple[str, str], ...]
    absences: tuple[SlotAbsence, ...]

    @property
    def selected(self) -> tuple[str, ...]:
        """The variables of PATHs whose values are wanted."""
        return tuple(dict.fromkeys(name for each in self.pattern.semantics for name in each.selected))


def refusal(plan: QueryPlan, what: str) -> Unsupported:
    """The error of a query that a single query of a database cannot say."""
    return Unsupported(f"{plan.name}: one query cannot say {what}; the strategies replay and hybrid can")


def asked(plan: ChiPlan) -> AskedPattern:
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
    return AskedPattern(
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


def _slots(plan: ChiPlan, element: Element, chains: Mapping[str, Chain]) -> Iterator[EventSlot]:
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


def _slot(chain: Chain, name: str) -> EventSlot:
    return EventSlot(name, chain.variable, chain.streams, chain.within)


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
) -> Iterator[SlotPath]:
    """The PATHs of the events that are bound. One that is selected stands in its chain too: once will do."""
    asked = {(each.alternatives, each.variables) for each in pattern.semantics}
    for semantic in pattern.semantics:
        if not absent.intersection(semantic.variables):
            yield from _path(semantic, slots)
    for variable in slots:
        for semantic in chains[variable].semantics:
            if (semantic.alternatives, semantic.variables) not in asked:
                yield from _path(semantic, slots)


def _path(semantic: Semantic, slots: Mapping[str, Sequence[str]]) -> Iterator[SlotPath]:
    for names in product(*(slots[each] for each in semantic.variables)):
        yield SlotPath(semantic, dict(zip(semantic.variables, names, strict=True)))


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
) -> Iterator[SlotAbsence]:
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
        yield SlotAbsence(
            slot,
            tuple(conditions),
            tuple(paths),
            groups[passed - 1],
            () if trailing else groups[passed],
            groups[0] if trailing else (),
            pattern.deadline if trailing else None,
        )


# --- windows ---------------------------------------------------------------------------------------------


def window_slot(plan: ChiPlan) -> tuple[WindowAggregate, EventSlot, tuple[Expr, ...], tuple[Semantic, ...]]:
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


# ----------------------------------------------------------------------------------------------------------
# What one SPARQL or SQL query cannot say of a plan; the strategies replay and hybrid can answer it.


def refuse_unsayable(plan: ChiPlan) -> None:
    """Raises `Unsupported` where a plan has something that one query cannot say."""
    part = _unsayable(plan)
    if part is not None:
        raise Unsupported(f"{plan.name}: one query cannot say {part}; the strategies replay and hybrid can")


def _unsayable(plan: ChiPlan) -> str | None:
    if isinstance(plan.body, WindowAggregate):
        return why_no_window(plan, plan.body)
    return _why_no_pattern(plan, plan.body)


def why_no_window(plan: ChiPlan, source: WindowAggregate) -> str | None:
    """What in a query over a window one query cannot say."""
    if source.expected is not None:
        return "ABSENT"
    if any(isinstance(each, VariableRef) for each in source.partition):
        return "PARTITION BY a variable of the PATH"
    if any(isinstance(each, VariableRef) for each in source.group_by):
        return "GROUP BY a variable of the PATH"
    if any(has_path_values(each) for each in source.having):
        return "a variable of the PATH in HAVING"
    if _has_path_columns(plan):
        return "a variable of the PATH inside a column"
    if any(each.conditions for each in source.all_semantics):
        return "a variable of the PATH in a condition"
    return None


def _why_no_pattern(plan: ChiPlan, source: Pattern) -> str | None:
    """What in a pattern one query cannot say."""
    if source.latest:
        return "LATEST"
    if any(isinstance(each, VariableRef) for each in source.partition):
        return "PARTITION BY a variable of the PATH"
    if _has_path_columns(plan):
        return "a variable of the PATH inside a column"
    for each in source.all_semantics:
        if each.conditions:
            return "a variable of the PATH in a condition"
        if each.blocks and not _is_tested_at_once(each, source):
            return "PATH blocks that share variables, with MATCH next or strict or with events left out"
    return None


def _has_path_columns(plan: ChiPlan) -> bool:
    """Whether a column is more than a variable of the PATH by itself."""
    inside = (each.expr for each in plan.columns if not isinstance(each.expr, VariableRef))
    return any(map(has_path_values, inside))


def _is_tested_at_once(condition: Semantic, pattern: Pattern) -> bool:
    """Whether it makes no difference that some blocks could be tested before others, or without them."""
    if len(condition.variables) == 1:
        return True
    bound = {name for each in pattern.sequence for name in always_bound(each)}
    return pattern.match == "any" and bound.issuperset(condition.variables)


# ----------------------------------------------------------------------------------------------------------
# The words of a rewritten query: how events, their times and places, and durations are called.

_SAFE = re.compile(r"[^A-Za-z0-9_]")


def stream_prefix(stream: str) -> str:
    """The prefix for the attributes of a stream."""
    made = _SAFE.sub("_", stream)
    return made if made[:1].isalpha() else f"s{made}"


def variable_name(name: str) -> str:
    """A name as that of a SPARQL variable."""
    return _SAFE.sub("_", name)


def nested(lines: Iterable[str]) -> list[str]:
    """A group of its own."""
    return ["{", *(f"  {line}" for line in lines), "}"]


def exists(lines: Iterable[str]) -> list[str]:
    """What must be there for each solution, asked of it alone."""
    return ["FILTER EXISTS {", *(f"  {line}" for line in lines), "}"]


def time_of(slot: str) -> str:
    """The variable of the time of an event."""
    return f"?{slot}_ts"


def order_of(slot: str) -> str:
    """The variable of the place of an event in the order."""
    return f"?{slot}_order"


def duration(micros: int) -> str:
    """A duration as SPARQL writes it."""
    return f'"{format_xsd_duration(micros)}"^^xsd:dayTimeDuration'


# ----------------------------------------------------------------------------------------------------------
# Which PATHs mean the same beside all events of an archive as beside one event alone.


def check_group(plan: ChiPlan, group: Group, semantic: Semantic) -> None:
    """Refuses PATHs that mean something else beside the events of the whole archive."""
    events = set(semantic.variables)
    patterns: list[TriplePattern] = []
    for element in group.elements:
        if isinstance(element, TripleBlock):
            patterns += element.patterns
        elif not isinstance(element, Filter | Values) or (
            isinstance(element, Filter) and any(isinstance(each, Exists) for each in walk(element.condition))
        ):
            raise refusal(plan, f"a PATH with {type(element).__name__.upper()} beside all events at once")
        elif isinstance(element, Filter) and any(
            isinstance(each, Call) and each.op in OWN_FUNCTIONS for each in walk(element.condition)
        ):
            raise refusal(plan, "a regular expression in a PATH, for which a store has a language of its own")
        elif events & element_variables(element):
            raise refusal(plan, "a PATH that compares the event itself")
    if any(isinstance(each.predicate, Variable) or _odd(each.predicate) for each in patterns):
        raise refusal(plan, "a PATH whose way may lead back to events")
    led_to = {each.object for each in patterns}
    for each in patterns:
        if isinstance(each.object, Variable) and each.object.name in events:
            raise refusal(plan, "a PATH that leads to an event")
        free = isinstance(each.subject, Variable) and each.subject.name not in events
        if free and each.subject not in led_to:
            raise refusal(plan, f"a PATH in which {each.subject} may be any event")


def _odd(predicate: Predicate) -> bool:
    match predicate:
        case Inverse() | Negated():
            return True
        case Repeat(of):
            return may_be_empty(predicate) or _odd(of)
        case Steps(parts):
            return may_be_empty(predicate) or any(
                _odd(each) for each in parts if not isinstance(each, Repeat) or _odd(each.of)
            )
        case Alternative(parts):
            return any(map(_odd, parts))
    return False


def path_variables(plan: ChiPlan) -> Iterator[str]:
    """The variables of the PATHs of a plan, as SPARQL names them."""
    for group in (each for path in plan.body.all_semantics for each in path.alternatives):
        yield from (variable_name(each.removeprefix("_:")) for each in element_variables(group))
