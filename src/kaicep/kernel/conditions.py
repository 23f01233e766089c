"""The conditions of a pattern, compiled for the moments at which they can be decided (semantics 2).

A condition is tested once all that it mentions is bound. One that mentions a loop's event bare, or in
PREV, holds for every round, aggregates beside it covering the rounds so far; one that only aggregates a
loop is tested on the finished loop. Where a condition was decidable before, only the newest event is new.

What is bound so far is `heads`: for each variable its event, for a loop its latest `Round`, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kaicep.kernel.aggregates import FOLDS, Fold
from kaicep.kernel.automaton import Residual, open_variables
from kaicep.kernel.expressions import Writer, value_function
from kaicep.kernel.operator import Semantics
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Expr, Field, Previous, variables_of, walk
from kaicep.plan.nodes import Semantic
from kaicep.plan.types import Value

__all__ = [
    "Conditions",
    "Due",
    "Equality",
    "Heads",
    "Requirement",
    "Round",
    "Test",
    "fold_of",
    "requirement_of",
]


class Round:
    """A round of a loop: its event, the round before, and the loop's aggregates up to it."""

    __slots__ = ("aggregates", "before", "event")

    def __init__(self, event: Event, before: Round | None, aggregates: tuple[Any, ...]) -> None:
        self.event = event
        self.before = before
        self.aggregates = aggregates

    def all(self) -> list[Round]:
        """This round and all before it, in order."""
        found = [self]
        while found[-1].before is not None:
            found.append(found[-1].before)
        found.reverse()
        return found


Heads = tuple[Any, ...]
"""By variable: its event, the latest `Round` of a loop, None where nothing is bound."""

Test = Callable[[Heads, Any, Any], bool]
"""Whether conditions hold for what is bound, a new event, and its round where it belongs to a loop."""


@dataclass(frozen=True)
class Requirement:
    """A condition, and how it mentions variables.

    `bare`: outside aggregates; `previous`: in PREV, which is bare too; `aggregated`: in aggregates.
    """

    of: Expr | Semantic
    bare: tuple[str, ...]
    previous: frozenset[str] = frozenset()
    aggregated: frozenset[str] = frozenset()

    def decidable(self, bound: frozenset[str], rest: Residual) -> bool:
        """Whether all that is mentioned bare is bound, and all that is only aggregated is finished."""
        finished = self.aggregated.difference(self.bare).isdisjoint(open_variables(rest))
        return finished and bound.issuperset(self.bare)


Due = tuple[Requirement, str | None]
"""A requirement to test, and the variable of which only the newest event is of interest, if there is one."""


@dataclass(frozen=True)
class Equality:
    """What an event and a partial match must agree in, so that the one finds the other by its value."""

    of_event: Callable[[Event], Any]
    of_heads: Callable[[Heads], Any]


def requirement_of(condition: Expr | Semantic) -> Requirement:
    """The condition with what it mentions."""
    if isinstance(condition, Semantic):
        return Requirement(condition, condition.variables)
    bare: set[str] = set()
    previous: set[str] = set()
    aggregated: set[str] = set()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Aggregate):
            aggregated.update((expr.variable,) if expr.variable else ())
            return
        if isinstance(expr, Previous):
            previous.update(variables_of(expr.of))
        if isinstance(expr, Field):
            bare.add(expr.variable)
        for child in expr.children():
            visit(child)

    visit(condition)
    return Requirement(condition, tuple(sorted(bare)), frozenset(previous), frozenset(aggregated))


def fold_of(expr: Aggregate) -> Fold:
    """How an aggregate is computed."""
    if expr.of is None:
        return FOLDS["EVENTS"]
    return FOLDS["DISTINCT" if expr.distinct and expr.op == "COUNT" else expr.op]


class Conditions:
    """Compiles requirements for one pattern."""

    def __init__(
        self,
        variables: Sequence[str],
        loops: Iterable[str],
        conditions: Iterable[Expr],
        streams: Sequence[str],
        semantics: Semantics,
    ) -> None:
        self.places = {name: index for index, name in enumerate(variables)}
        self.loops = frozenset(loops)
        self.streams = streams
        self.semantics = semantics
        self.aggregates: dict[str, list[Aggregate]] = {name: [] for name in self.loops}
        for each in conditions:
            for node in walk(each):
                if (
                    isinstance(node, Aggregate)
                    and node.variable
                    and node not in self.aggregates[node.variable]
                ):
                    self.aggregates[node.variable].append(node)
        self._folds = {
            name: [(fold_of(each), value_function(each.of, streams) if each.of else None) for each in found]
            for name, found in self.aggregates.items()
        }

    def round(self, variable: str, event: Event, before: Round | None) -> Round:
        """One round more of a loop."""
        folds = self._folds[variable]
        if not folds:
            return Round(event, before, ())
        held = before.aggregates if before else tuple(fold.empty for fold, _ in folds)
        return Round(
            event,
            before,
            tuple(
                fold.add(each, value(event) if value else None)
                for (fold, value), each in zip(folds, held, strict=True)
            ),
        )

    # --- which way a requirement is tested ---

    def equality(self, due: Due, variable: str, bound: frozenset[str]) -> tuple[Expr, Expr] | None:
        """The sides of an equation between the new event alone and single events that are bound."""
        requirement = due[0]
        of = requirement.of
        if not isinstance(of, Call) or of.op != "=" or requirement.aggregated or requirement.previous:
            return None
        if not self._is_single(due, variable, bound):
            return None
        for own, other in (of.args, of.args[::-1]):
            others = variables_of(other)
            if variables_of(own) == {variable} and others and others <= bound - self.loops - {variable}:
                return own, other
        return None

    def compile_equality(self, sides: Sequence[tuple[Expr, Expr]], variable: str) -> Equality:
        """Equations as keys; a key that is None, or has a None in it, equals nothing."""
        return Equality(
            self._key([own for own, _ in sides], variable), self._key([far for _, far in sides], None)
        )

    def _key(self, exprs: list[Expr], variable: str | None) -> Callable[..., Any]:
        writer = Writer(self.streams)
        names = _Single(self, variable, writer)
        values = [writer.value(each, names) for each in exprs]
        if len(values) > 1:
            nulls = " or ".join(f"{each} is None" for each in values)
            writer.lines.append(f"return None if {nulls} else ({', '.join(values)})")
        else:
            writer.lines.append(f"return {values[0]}")
        return writer.function("heads" if variable is None else "event")

    def tests(self, dues: Iterable[Due], variable: str | None, bound: frozenset[str]) -> tuple[Test, ...]:
        """The tests of requirements when `variable` is bound beside `bound` (None: nothing new)."""
        made: list[Test] = []
        writer = Writer(self.streams)
        for due in dues:
            requirement = due[0]
            if isinstance(requirement.of, Semantic) or not self._is_single(due, variable, bound):
                made.append(self._every(requirement, variable, due[1]))
            elif requirement.previous:
                made.append(self._with_previous(requirement.of, variable))
            else:
                writer.require(requirement.of, _Single(self, variable, writer))
        if writer.lines:
            writer.lines.append("return True")
            made.insert(0, writer.function("heads, event, round"))
        return tuple(made)

    def _is_single(self, due: Due, variable: str | None, bound: frozenset[str]) -> bool:
        """Whether one event for each variable decides: there is no loop to go through."""
        requirement, newest = due
        for name in requirement.bare:
            if name in self.loops and name != newest and (name != variable or name in bound):
                return False
        return True

    def _with_previous(self, condition: Expr, variable: str | None) -> Test:
        writer = Writer(self.streams)
        writer.lines.append("if round.before is None: return True")  # no round before the first
        writer.require(condition, _Single(self, variable, writer))
        writer.lines.append("return True")
        return writer.function("heads, event, round")

    def _every(self, requirement: Requirement, variable: str | None, newest: str | None) -> Test:
        """A test that goes through all combinations of rounds."""
        of = requirement.of
        holds = self._judge(requirement)
        bare = requirement.bare
        previous = sorted(requirement.previous)
        aggregates = [] if isinstance(of, Semantic) else list(dict.fromkeys(_aggregates(of)))

        def test(heads: Heads, event: Any, round: Any) -> bool:
            def rounds(name: str) -> list[Any]:
                if name == variable:
                    return [round] if name == newest else round.all() if round is not None else [event]
                head = heads[self.places[name]]
                return head.all() if isinstance(head, Round) else [] if head is None else [head]

            for chosen in product(*map(rounds, bare)):
                at = dict(zip(bare, chosen, strict=True))
                before = [at[name].before for name in previous]
                if None in before:
                    continue
                events = [each.event if isinstance(each, Round) else each for each in chosen]
                covered = [
                    at.get(name) or (round if name == variable else None) or heads[self.places[name]]
                    for name in map(_over, aggregates)
                ]
                values = [self.aggregate(each, held) for each, held in zip(aggregates, covered, strict=True)]
                if not holds(*events, *(each.event for each in before), *values):
                    return False
            return True

        return test

    def aggregate(self, expr: Aggregate, round: Round | None) -> Value:
        """An aggregate over a loop up to a round; None is no round at all."""
        assert expr.variable is not None
        fold = fold_of(expr)
        if round is None:
            return fold.result(fold.empty)
        return fold.result(round.aggregates[self.aggregates[expr.variable].index(expr)])

    def _judge(self, requirement: Requirement) -> Callable[..., bool]:
        of, bare = requirement.of, requirement.bare
        if isinstance(of, Semantic):
            condition, solutions = of, self.semantics.solutions
            return lambda *events: bool(solutions(condition, dict(zip(bare, events, strict=True))))
        names = _Listed(requirement, list(dict.fromkeys(_aggregates(of))))
        writer = Writer(self.streams)
        writer.require(of, names)
        writer.lines.append("return True")
        return writer.function(", ".join(names.parameters))


def _over(expr: Aggregate) -> str:
    assert expr.variable is not None
    return expr.variable


def _aggregates(expr: Expr) -> Iterator[Aggregate]:
    return (node for node in walk(expr) if isinstance(node, Aggregate))


class _Single:
    """Names in a test where every variable stands for one event: of `heads`, or the new one."""

    def __init__(self, conditions: Conditions, variable: str | None, writer: Writer) -> None:
        self.conditions = conditions
        self.variable = variable
        self.writer = writer

    def event(self, variable: str) -> str:
        return "event" if variable == self.variable else f"heads[{self.conditions.places[variable]}]"

    def previous(self, variable: str) -> str:
        return "round.before.event"

    def aggregate(self, expr: Aggregate) -> str:
        assert expr.variable is not None
        found = self.writer.refer(self.conditions.aggregate)
        own = expr.variable == self.variable
        head = "round" if own else f"heads[{self.conditions.places[expr.variable]}]"
        return f"{found}({self.writer.refer(expr)}, {head})"


class _Listed:
    """Names in a judgement that gets everything as parameters: events, those before, aggregates."""

    def __init__(self, requirement: Requirement, aggregates: list[Aggregate]) -> None:
        self._events = {name: f"e{index}" for index, name in enumerate(requirement.bare)}
        self._before = {name: f"p{index}" for index, name in enumerate(sorted(requirement.previous))}
        self._values = {each: f"g{index}" for index, each in enumerate(aggregates)}
        self.parameters = [*self._events.values(), *self._before.values(), *self._values.values()]

    def event(self, variable: str) -> str:
        return self._events[variable]

    def previous(self, variable: str) -> str:
        return self._before[variable]

    def aggregate(self, expr: Aggregate) -> str:
        return self._values[expr]
