"""A chi-CEP query as written: every clause, with its place in the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kaicep.errors import SourceText, Span
from kaicep.plan.expressions import Expr
from kaicep.plan.sparql import Group
from kaicep.plan.terms import Iri


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class SelectColumn:
    """One column of SELECT."""

    expr: Expr
    alias: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True)
class From:
    """`(?e, airflowReport, evt:MeterUpdate)`: a variable and the streams and classes it ranges over.

    `latest` marks `LATEST (?s, setpoint)`, the last known event of something else; `optional` the one
    that may be left out, `LATEST (?s?, setpoint)`. `absent` marks `ABSENT (?e, trend)`: what has no event.
    """

    variable: str
    sources: tuple[str | Iri, ...]
    latest: bool = False
    optional: bool = False
    absent: bool = False
    span: Span | None = _span()
    source_spans: tuple[Span, ...] = field(default=(), compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Bound:
    """A bound of WITHIN: an instant (`at`, in microseconds), or `now` and an offset to it."""

    at: int | None = None
    offset: int = 0
    inclusive: bool = True


@dataclass(frozen=True)
class Within:
    """`WITHIN [a, b)`; None is no bound."""

    low: Bound | None
    high: Bound | None
    span: Span | None = _span()


@dataclass(frozen=True)
class Condition:
    """`FILTER (expr)` or `JOIN (expr)`; the keyword is kept for the hint and the printer only."""

    expr: Expr
    keyword: str = field(default="FILTER", compare=False)
    span: Span | None = _span()


@dataclass(frozen=True)
class Place:
    """A place in a pattern that one event takes: `?b`."""

    variable: str
    span: Span | None = _span()


@dataclass(frozen=True)
class Loop:
    """`?b+`, `?b*`, `?b?`, `?b{n,m}`: from `least` to `most` rounds (None: any number)."""

    variable: str
    least: int
    most: int | None
    span: Span | None = _span()


@dataclass(frozen=True)
class Absent:
    """`!?b`; `of` is more than a variable only where the query is wrong, and resolving says so."""

    of: Element
    span: Span | None = _span()

    @property
    def variable(self) -> str:
        """The variable that must be absent."""
        assert isinstance(self.of, Place | Loop)
        return self.of.variable


@dataclass(frozen=True)
class Choice:
    """`(?b | ?c)`: one of them."""

    members: tuple[Element, ...]
    span: Span | None = _span()


@dataclass(frozen=True)
class Together:
    """`(?b & ?c)`: all of them, in any order."""

    members: tuple[Element, ...]
    span: Span | None = _span()


Element = Place | Loop | Absent | Choice | Together
"""What may stand at a place of a sequence."""


def may_be_left_out(element: Element) -> bool:
    """Whether a match may have no event at this place.

    >>> may_be_left_out(Loop("b", 0, None)), may_be_left_out(Place("b"))
    (True, False)
    """
    match element:
        case Loop():
            return element.least == 0
        case Absent():
            return True
        case Choice():
            return any(may_be_left_out(each) for each in element.members)
        case Together():
            return all(may_be_left_out(each) for each in element.members)
    return False


def always_bound(element: Element) -> Iterator[str]:
    """The variables that have an event in every match.

    >>> list(always_bound(Together((Place("a"), Loop("b", 0, 1), Choice((Place("c"), Place("d")))))))
    ['a']
    """
    match element:
        case Place():
            yield element.variable
        case Loop():
            if element.least > 0:
                yield element.variable
        case Together():
            for each in element.members:
                yield from always_bound(each)


@dataclass(frozen=True)
class SpanWindow:
    """`WINDOW (?a, ?b, 5min)`: the events of these variables lie no further apart."""

    variables: tuple[str, ...]
    width: int
    span: Span | None = _span()


def span_bound(sequence: Sequence[Element], windows: Iterable[SpanWindow]) -> int | None:
    """How far apart the events of a match can lie at most; None where nothing bounds it.

    A window ties the events that it names, and all that the sequence has between them.

    >>> a_to_c = tuple(map(Place, "abc"))
    >>> span_bound(a_to_c, [SpanWindow(("a", "c"), 5)]), span_bound(a_to_c, [SpanWindow(("a", "b"), 5)])
    (5, None)
    >>> span_bound(a_to_c, [SpanWindow(("a", "b"), 5), SpanWindow(("b", "c"), 4)])
    9
    """
    places = [each for each in sequence if not isinstance(each, Absent)]
    every = {name for each in places for name in taken_by(each)}
    sure = {name: at for at, each in enumerate(places) for name in always_bound(each)}
    tied = [(each.width, _tied(places, each.variables, sure)) for each in windows]
    whole = [width for width, names in tied if every <= names]
    if whole or len(every) < 2:
        return min(whole, default=None if any(isinstance(each, Loop) for each in places) else 0)
    total, reached = 0, set[str]()
    while tied:  # windows that have an event in common reach as far as both together
        nearest = next((each for each in tied if not reached or each[1] & reached & sure.keys()), None)
        if nearest is None:
            return None
        tied.remove(nearest)
        total, reached = total + nearest[0], reached | nearest[1]
        if every <= reached:
            return total
    return None


def _tied(places: Sequence[Element], named: Iterable[str], sure: Mapping[str, int]) -> set[str]:
    found = set(named)
    at = [sure[each] for each in found if each in sure]
    between = places[min(at) + 1 : max(at)] if at else ()
    return found | {name for each in between for name in taken_by(each)}


def taken_by(element: Element) -> Iterator[str]:
    """The variables whose events may stand at this place."""
    if isinstance(element, Choice | Together):
        for each in element.members:
            yield from taken_by(each)
    elif not isinstance(element, Absent):
        yield element.variable


@dataclass(frozen=True)
class AggregateWindow:
    """`WINDOW (?e, sliding, 5min)`; `width` in microseconds, or `count` events."""

    variable: str
    kind: str
    width: int | None
    count: int | None
    span: Span | None = _span()


@dataclass(frozen=True)
class PathBlock:
    """One `PATH { ... }`."""

    group: Group
    span: Span | None = _span()


@dataclass(frozen=True)
class Skip:
    """`AFTER MATCH ...`: `none`, `next`, `past_last`, `first` or `last` (these two with a variable)."""

    mode: str
    variable: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True)
class ChiQuery:
    """A chi-CEP query as written.

    `select` is None for `SELECT *`. `paths` is a disjunction of conjunctions of PATH blocks.
    """

    select: tuple[SelectColumn, ...] | None
    froms: tuple[From, ...] = ()
    within: Within | None = None
    conditions: tuple[Condition, ...] = ()
    sequence: tuple[Element, ...] | None = None
    windows: tuple[SpanWindow | AggregateWindow, ...] = ()
    paths: tuple[tuple[PathBlock, ...], ...] = ()
    match: str | None = None
    skip: Skip | None = None
    partition: tuple[Expr, ...] = ()
    group_by: tuple[Expr, ...] = ()
    having: tuple[Expr, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    name: str = field(default="query", compare=False)
    source: SourceText | None = field(default=None, compare=False, repr=False)
    sequence_span: Span | None = _span()
