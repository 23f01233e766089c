"""Why there is no match near a time: how far events came, and what stopped those that came closest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, product

from kaicep.connectors.shape import DeadLetter
from kaicep.errors import Mistake
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import pattern_variables, substitute
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Absent
from kaicep.plan.events import Event, Match
from kaicep.plan.expressions import Call, Expr, variables_of
from kaicep.plan.nodes import Chain, EpPlan, Pattern, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.sparql import Group, TripleBlock, TriplePattern
from kaicep.plan.terms import Term
from kaicep.plan.text import group_text, resolved_text, triple_text
from kaicep.plan.time import format_duration, format_time
from kaicep.reference.chicep import (
    KnowledgeSemantics,
    in_order,
    key_of,
    may_take,
    partitions,
    sees,
    window_answers,
)
from kaicep.reference.expressions import Environment, evaluate
from kaicep.why.match import filled, waits_of

_MINUTES = 5 * 60 * 1_000_000
_COMBINATIONS = 200_000
_SHOWN = 3
_LOOKED_INTO = 100


@dataclass(frozen=True)
class FunnelStep:
    """A test that events of a variable have to pass, and how many did, of those that came so far."""

    variable: str
    text: str
    came: int
    passed: int


@dataclass(frozen=True)
class Miss:
    """Events that came close: what stopped them, with its values, and by how much it fell short."""

    events: Mapping[str, Event]
    condition: str
    filled: str
    short: float | None


@dataclass(frozen=True)
class Mended:
    """A record that could not be read, and the event that it would be without what is wrong with it."""

    letter: DeadLetter
    event: Event | None = None


@dataclass(frozen=True)
class WhyNot:
    """How far events came near a time, the nearest misses, and what was left out before."""

    query: str
    low: int
    high: int
    steps: tuple[FunnelStep, ...]
    misses: tuple[Miss, ...]
    late: tuple[Event, ...] = ()
    complete: int = 0
    """How many matches there are after all."""
    partial: int = 0
    """How many combinations of events were in order, of those that were looked at."""
    broken: int = 0
    """How many of them an event broke that had to be absent."""
    with_late: tuple[Match, ...] = ()
    """What would match besides if the late events had come in time."""
    dead: tuple[Mended, ...] = ()
    with_dead: tuple[Match, ...] = ()
    """What would also match with the records that could not be read, without the values that do not fit."""


def why_not(
    plan: QueryPlan,
    catalog: Catalog,
    knowledge: Knowledge,
    events: Sequence[Event],
    low: int,
    high: int,
    key: str | None = None,
) -> WhyNot:
    """Why there is no match of a query in a range of time; `key` keeps to the events that have this value.

    Loops and choices are looked at as if each variable stood for one event.
    """
    source = _body(plan)
    close = [
        each
        for each in events
        if each.stream in source.streams and low <= each.ts <= high and has_value(each, key)
    ]
    seen = in_order((each for each in close if not each.late), source.streams)
    semantics = KnowledgeSemantics(catalog, knowledge)
    prefixes = dict(catalog.known_prefixes(plan.prefixes))
    chains = source.chains
    steps: list[FunnelStep] = []
    passed: dict[str, list[Event]] = {}
    misses: list[Miss] = []
    for chain in chains:
        joint = tuple(_own_part(each, chain.variable) for each in _joint(source, (chain.variable,)))
        whole = replace(chain, semantics=(*chain.semantics, *joint))
        passed[chain.variable] = _through(whole, seen, semantics, prefixes, steps, misses)
    combined = _Combined()
    if isinstance(source, WindowAggregate):
        misses += _windows(source, seen, semantics)
    elif len(chains) > 1:
        combined = _combinations(source, passed, semantics, prefixes)
        misses = [*combined.misses, *misses]
    late = tuple(
        each for each in close if each.late and any(may_take(one, each, semantics) for one in chains)
    )
    return WhyNot(
        plan.name,
        low,
        high,
        tuple(steps),
        tuple(_nearest(misses)),
        late,
        partial=combined.partial,
        broken=combined.broken,
    )


def around(plan: QueryPlan, near: int) -> tuple[int, int]:
    """The range of time that counts as near: the width of the WINDOW on both sides."""
    source = _body(plan)
    if isinstance(source, WindowAggregate):
        reach = source.window.width or _MINUTES
    else:
        reach = max((each.width for each in source.windows), default=_MINUTES)
    return near - reach, near + reach


def has_value(event: Event, key: str | None) -> bool:
    """Whether one of an event's values is the one that is asked for."""
    return key is None or key in (str(value) for value in event.values.values())


def _body(plan: QueryPlan) -> Pattern | WindowAggregate:
    if isinstance(plan, EpPlan):
        hint = "`why MATCH_ID` explains its matches"
        raise Mistake(f"{plan.name} is EP-SPARQL, and `why --not` cannot explain that yet", hint=hint)
    if plan.is_absent:
        hint = f"an event of it is one that {plan.name} would have without ABSENT; select that"
        raise Mistake(f"{plan.name} is about what has no events (ABSENT)", hint=hint)
    return plan.body


def _through(
    chain: Chain,
    events: Sequence[Event],
    semantics: KnowledgeSemantics,
    prefixes: Mapping[str, str],
    steps: list[FunnelStep],
    misses: list[Miss],
) -> list[Event]:
    """The events that a variable may take, and what stopped the others, test by test."""
    name = chain.variable
    left = [each for each in events if sees(chain, each)]
    steps.append(FunnelStep(name, f"of {', '.join(chain.streams)}, inside WITHIN", len(events), len(left)))
    for path in chain.semantics:
        before, left = left, [each for each in left if semantics.solutions(path, {name: each})]
        steps.append(FunnelStep(name, path_text(path, prefixes), len(before), len(left)))
        kept = set(left)
        lost = [each for each in before if each not in kept]
        misses += [_unmet(path, {name: each}, semantics, prefixes) for each in lost[:_LOOKED_INTO]]
    for condition in chain.conditions:
        before, left = left, [each for each in left if evaluate(condition, Environment({name: each})) is True]
        steps.append(FunnelStep(name, resolved_text(condition), len(before), len(left)))
        kept = set(left)
        misses += [_miss(condition, {name: each}) for each in before if each not in kept]
    return left


def path_text(path: Semantic, prefixes: Mapping[str, str]) -> str:
    """A PATH on one line."""
    texts = (" ".join(group_text(each, 0, prefixes).split()) for each in path.alternatives)
    return "PATH " + " OR ".join(texts)


def _unmet(
    path: Semantic, events: Mapping[str, Event], semantics: KnowledgeSemantics, prefixes: Mapping[str, str]
) -> Miss:
    """A PATH that does not hold: up to which triple pattern it does, and what that one met."""
    reasons = dict.fromkeys(_broken(path, group, events, semantics, prefixes) for group in path.alternatives)
    return Miss(events, path_text(path, prefixes), "; ".join(reasons), None)


def _broken(
    path: Semantic,
    group: Group,
    events: Mapping[str, Event],
    semantics: KnowledgeSemantics,
    prefixes: Mapping[str, str],
) -> str:
    """The first triple pattern of a group that has no solution together with those before it."""
    met: list[TriplePattern] = []
    solution: dict[str, Term] = {}
    for pattern in _in_turn(
        [one for each in group.elements if isinstance(each, TripleBlock) for one in each.patterns],
        path.variables,
    ):
        names = {name for each in (*met, pattern) for name in pattern_variables(each)}.difference(events)
        selected = tuple(sorted(names))
        rows = semantics.solutions(
            Semantic((Group((TripleBlock((*met, pattern)),)),), path.variables, selected), events
        )
        if not rows:
            shared = names.intersection(pattern_variables(pattern))
            held = [each for each in met if shared.intersection(pattern_variables(each))]
            known = [f"{_filled_triple(each, solution, prefixes)}, but not " for each in held[-1:]]
            return f"{''.join(known) or 'not '}{_filled_triple(pattern, solution, prefixes)}"
        row = min(rows, key=str)
        solution = {name: term for name, term in zip(selected, row, strict=True) if term is not None}
        met.append(pattern)
    return "its triple patterns hold, but something else in it does not"


def _in_turn(patterns: Iterable[TriplePattern], bound: Iterable[str]) -> Iterator[TriplePattern]:
    """Triple patterns from the events on, each after one that it has a variable in common with."""
    left, known = list(patterns), set(bound)
    while left:
        found = next((each for each in left if known.intersection(pattern_variables(each))), left[0])
        left.remove(found)
        known.update(pattern_variables(found))
        yield found


def _filled_triple(pattern: TriplePattern, solution: Mapping[str, Term], prefixes: Mapping[str, str]) -> str:
    (filled,) = substitute(Group((TripleBlock((pattern,)),)), solution).elements
    assert isinstance(filled, TripleBlock)
    return triple_text(filled.patterns[0], prefixes).removesuffix(" .")


def _miss(condition: Expr, events: Mapping[str, Event], env: Environment | None = None) -> Miss:
    env = env or Environment(dict(events))
    return Miss(events, resolved_text(condition), filled(condition, env), _short(condition, env))


def _short(condition: Expr, env: Environment) -> float | None:
    """By how much a comparison of numbers misses, as a part of what it is compared with."""
    if not isinstance(condition, Call) or condition.op not in ("<", "<=", ">", ">=", "="):
        return None
    left, right = (evaluate(each, env) for each in condition.args)
    if isinstance(left, str) or isinstance(right, str) or left is None or right is None:
        return None
    return abs(left - right) / (abs(right) or 1.0)


def _nearest(misses: Sequence[Miss]) -> list[Miss]:
    """Those that came furthest and fell short by least, of each condition not too many."""
    ranked = sorted(misses, key=lambda each: (-len(each.events), each.short is None, each.short or 0.0))
    shown: list[Miss] = []
    for each in ranked:
        if sum(one.condition == each.condition for one in shown) < _SHOWN:
            shown.append(each)
    return shown[: 2 * _SHOWN]


# --- several events ----------------------------------------------------------------------------------------


@dataclass
class _Combined:
    """Combinations of events: those that one thing kept from being a match, and how many there were."""

    misses: list[Miss] = field(default_factory=list)
    partial: int = 0
    broken: int = 0


def _combinations(
    pattern: Pattern,
    passed: Mapping[str, Sequence[Event]],
    semantics: KnowledgeSemantics,
    prefixes: Mapping[str, str],
) -> _Combined:
    """Combinations of events that exactly one thing keeps from being a match."""
    absent = _absent(pattern)
    names = [name for name in passed if name not in absent]
    joint = _joint(pattern, ())
    conditions = [each for each in pattern.conditions if absent.isdisjoint(variables_of(each))]
    found = _Combined()
    for some in islice(product(*(passed[name] for name in names)), _COMBINATIONS):
        events = dict(zip(names, some, strict=True))
        if any(first.ts >= second.ts for first, second in pairwise(some)):
            continue
        if len({key_of(pattern.partition, each) for each in some}) > 1:
            continue
        if not all(semantics.solutions(each, events) for each in joint):
            continue  # they have nothing to do with each other
        found.partial += 1
        stopping = list(islice(_stopping(pattern, conditions, events, semantics, prefixes), 2))
        if not stopping:
            stopping = list(islice(_intruders(pattern, events, passed, semantics), 1))
            found.broken += len(stopping)
        if len(stopping) == 1:
            found.misses.append(stopping[0])
    return found


def _absent(pattern: Pattern) -> set[str]:
    return {each.variable for each in pattern.sequence if isinstance(each, Absent)}


def _joint(source: Pattern | WindowAggregate, about: Collection[str]) -> list[Semantic]:
    """The PATHs about several events, all of which must be there; only those that are also about these."""
    absent = _absent(source) if isinstance(source, Pattern) else set()
    return [
        each
        for each in source.semantics
        if len(each.variables) > 1
        and len(each.alternatives) == 1
        and absent.isdisjoint(each.variables)
        and set(about) <= set(each.variables)
    ]


def _own_part(path: Semantic, variable: str) -> Semantic:
    """What a PATH about several events asks of one of them: all of its patterns without the others."""
    others = set(path.variables) - {variable}
    patterns = tuple(
        pattern
        for element in path.alternatives[0].elements
        for pattern in (element.patterns if isinstance(element, TripleBlock) else ())
        if others.isdisjoint(pattern_variables(pattern))
    )
    return Semantic((Group((TripleBlock(patterns),)),), (variable,))


def _intruders(
    pattern: Pattern,
    events: Mapping[str, Event],
    passed: Mapping[str, Sequence[Event]],
    semantics: KnowledgeSemantics,
) -> Iterator[Miss]:
    """Events that had to be absent, and are there."""
    for wait in waits_of(pattern, {name: (each,) for name, each in events.items()}):
        for each in passed[wait.variable]:
            here = {**events, wait.variable: each}
            env = Environment(here, rounds={name: (one,) for name, one in here.items()})
            about = [one for one in pattern.conditions if wait.variable in variables_of(one)]
            paths = [one for one in pattern.semantics if wait.variable in one.variables]
            if (
                wait.covers(each)
                and len({key_of(pattern.partition, one) for one in here.values()}) == 1
                and all(evaluate(one, env) is True for one in about)
                and all(semantics.solutions(one, here) for one in paths if set(one.variables) <= set(here))
            ):
                until = "" if wait.until is None else f" until {format_time(wait.until)}"
                text = f"no ?{wait.variable} after {format_time(wait.after.ts)}{until}"
                yield Miss(here, text, f"one at {format_time(each.ts)}", None)


def _stopping(
    pattern: Pattern,
    conditions: Sequence[Expr],
    events: Mapping[str, Event],
    semantics: KnowledgeSemantics,
    prefixes: Mapping[str, str],
) -> Iterator[Miss]:
    env = Environment(dict(events), rounds={name: (each,) for name, each in events.items()})
    for condition in conditions:
        if evaluate(condition, env) is not True:
            yield _miss(condition, events, env)
    for window in pattern.windows:
        times = [events[name].ts for name in window.variables if name in events]
        spans = max(times) - min(times) if times else 0
        if spans > window.width:
            text = f"WINDOW of {format_duration(window.width)}"
            yield Miss(events, text, f"they lie within {format_duration(spans)}", spans / window.width - 1)
    for path in pattern.semantics:
        if set(path.variables) <= set(events) and not semantics.solutions(path, events):
            yield _unmet(path, events, semantics, prefixes)


def _windows(node: WindowAggregate, events: Sequence[Event], semantics: KnowledgeSemantics) -> list[Miss]:
    """The windows for which HAVING did not hold."""
    misses: list[Miss] = []
    for inside in partitions(events, node.partition).values():
        for window in window_answers(replace(node, having=()), inside, semantics):
            failed = [each for each in node.having if evaluate(each, window.environment) is not True]
            if failed:
                newest = window.trigger or window.events[-1]
                misses.append(_miss(failed[0], {node.window.variable: newest}, window.environment))
    return misses
