"""What an operator found, as matches: columns, ids and events (`plan.results`), one for each solution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from kaicep.kernel.conditions import fold_of
from kaicep.kernel.expressions import Writer, value_function
from kaicep.kernel.operator import Found, Rows, Windowed
from kaicep.plan.expressions import Aggregate, Expr, VariableRef, walk
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan, WindowAggregate
from kaicep.plan.results import (
    Answer,
    Terms,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)

__all__ = ["Projection", "aggregates_of"]


def aggregates_of(exprs: Iterable[Expr]) -> tuple[Aggregate, ...]:
    """The different aggregates in some expressions, in order."""
    return tuple(dict.fromkeys(node for expr in exprs for node in walk(expr) if isinstance(node, Aggregate)))


class Projection:
    """The columns of a query, compiled. `versioned` says that its matches show a version of the knowledge."""

    def __init__(self, plan: QueryPlan, versioned: bool = False) -> None:
        assert isinstance(plan.root, Project)
        self.plan = plan
        self.columns = plan.root.columns
        self.source = plan.root.input
        self.versioned = versioned
        assert isinstance(self.source, Pattern | WindowAggregate)
        self._names = tuple(each.expr.name for each in self.columns if isinstance(each.expr, VariableRef))
        streams = self.source.streams
        values: dict[str, Callable[..., Any]] = {}
        for column in self.columns:
            if isinstance(column.expr, VariableRef):
                continue
            values[column.name] = (
                _in_pattern(column, streams)
                if isinstance(self.source, Pattern)
                else _in_window(column.expr, streams, window_aggregates(self.source, self.columns))
            )
        self._values = values
        self._loops = loops_of(self.source.sequence) if isinstance(self.source, Pattern) else {}

    def answers(self, found: Iterable[Found | Windowed]) -> Iterator[Answer]:
        """The matches of what was found."""
        for each in found:
            yield from self._pattern(each) if isinstance(each, Found) else self._window(each)

    def _pattern(self, found: Found) -> Iterator[Answer]:
        plan, rounds = self.plan, found.rounds
        for terms in self._solutions(found.rows):
            made = identified_by_events(plan, found.partition, rounds)
            shown = events_shown(plan.variables, self._loops, rounds)
            yield answer(
                plan,
                self.columns,
                made,
                (found.start, found.end),
                terms,
                shown,
                partial(self._value, rounds),
                found.version if self.versioned else None,
            )

    def _window(self, found: Windowed) -> Iterator[Answer]:
        assert isinstance(self.source, WindowAggregate)
        plan, window = self.plan, self.source.window
        sliding = window.kind == "sliding"
        for terms in self._solutions(found.rows):
            made = identified(plan, (*found.partition, *found.group)).word(found.start).word(found.end)
            if sliding:
                made.event(found.event)
            elif window.count is not None:
                made.event(found.edges[0]).event(found.edges[1])
            shown = found.event.identity if sliding else batch_shown(found.first, found.last, found.count)
            yield answer(
                plan,
                self.columns,
                made,
                (found.start, found.end),
                terms,
                {window.variable: shown},
                partial(self._value, found),
                found.version if self.versioned else None,
            )

    def _value(self, found: Any, column: OutputColumn) -> Any:
        return self._values[column.name](found)

    def _solutions(self, rows: Rows) -> Iterator[Terms]:
        """Every combination of the selected values; null where an event that they hang on was left out."""
        empty: dict[str, Any] = dict.fromkeys(self._names)
        if not rows:
            yield empty
            return
        names = [name for selected, _ in rows for name in selected]
        for combination in product(*(found for _, found in rows)):
            yield empty | dict(zip(names, (term for row in combination for term in row), strict=True))


# --- columns of a pattern --------------------------------------------------------------------------------


def _in_pattern(column: OutputColumn, streams: Sequence[str]) -> Callable[..., Any]:
    """A column as a function of the events by variable."""
    if column.many:
        value = value_function(column.expr, streams)
        variable = column.expr.variable  # type: ignore[attr-defined]
        return lambda rounds: [value(event) for event in rounds.get(variable, ())]
    writer = Writer(streams)
    result = writer.value(column.expr, _Rounds(writer, streams))
    writer.lines.append(f"return {result}")
    return writer.function("rounds")


class _Rounds:
    """Names in a column: an event is the first of its variable's; null is all where there is none."""

    def __init__(self, writer: Writer, streams: Sequence[str]) -> None:
        self.writer = writer
        self.streams = streams
        self._events: dict[str, str] = {}

    def event(self, variable: str) -> str:
        if variable not in self._events:
            nobody = self.writer.refer((_Nobody(),))
            name = f"e_{len(self._events)}"
            self.writer.lines.append(f"{name} = rounds.get({variable!r}, {nobody})[0]")
            self._events[variable] = name
        return self._events[variable]

    def previous(self, variable: str) -> str:
        raise TypeError("PREV belongs to a condition")

    def aggregate(self, expr: Aggregate) -> str:
        fold = self.writer.refer(fold_of(expr).of)
        events = f"rounds.get({expr.variable!r}, ())"
        if expr.of is None:
            return f"{fold}({events})"
        value = self.writer.refer(value_function(expr.of, self.streams))
        return f"{fold}(map({value}, {events}))"


class _Nobody:
    """The event of a variable that was left out: everything about it is null."""

    stream = ""
    ts = None

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def value(self, attribute: str) -> None:
        """Null."""
        return


# --- columns of a window ---------------------------------------------------------------------------------


def window_aggregates(node: WindowAggregate, columns: Iterable[OutputColumn]) -> tuple[Aggregate, ...]:
    """All that a window has to aggregate."""
    return aggregates_of((*node.having, *(each.expr for each in columns)))


def _in_window(expr: Expr, streams: Sequence[str], aggregates: tuple[Aggregate, ...]) -> Callable[..., Any]:
    writer = Writer(streams)
    writer.lines.append("event, values = found.event, found.values")
    result = writer.value(expr, WindowNames(aggregates))
    writer.lines.append(f"return {result}")
    return writer.function("found")


class WindowNames:
    """Names in an expression about a window: the event that triggers, and the aggregates in their order."""

    def __init__(self, aggregates: tuple[Aggregate, ...]) -> None:
        self.aggregates = aggregates

    def event(self, variable: str) -> str:
        """The event that triggers; in a batch, one that has what the group has in common."""
        return "event"

    def previous(self, variable: str) -> str:
        """There are no rounds in a window."""
        raise TypeError("PREV belongs to a loop")

    def aggregate(self, expr: Aggregate) -> str:
        """The value of an aggregate."""
        return f"values[{self.aggregates.index(expr)}]"
