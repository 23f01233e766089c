"""How a query is spread over Spark: by rows, by buckets of a key, by slices of time, or not at all.

Queries that read each other's output stay together, and so do all queries of EP-SPARQL. What is decided
here depends on the plan alone, never on the data or the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kaicep.optimize import RULES, Rule, optimize
from kaicep.plan.algebra import looks_inside
from kaicep.plan.chi import Absent, Element, Loop, Place, Together
from kaicep.plan.expressions import Expr, Field
from kaicep.plan.nodes import ChiPlan, EpPlan, Pattern, QueryPlan, WindowAggregate
from kaicep.plan.program import longest
from kaicep.plan.text import resolved_text
from kaicep.plan.time import format_duration
from kaicep.query import Query

ONE_CORE = 500_000
"""So many events a second does a stream with its engine in the driver, on two cores (`bench spark`).

Engines on workers do about 350,000 there: it takes more cores than that before they are ahead.
"""

ENGINES = ("auto", "driver", "workers")
"""Where the engines of a stream may be."""


@dataclass(frozen=True)
class Part:
    """Queries that run together, and how they are spread.

    `way` is `rows` (single events, wherever they are), `buckets` (by the hash of `key`), `slices` (of time,
    each with the `window` before it and what lies `ahead`) or `one` (one task); `why` says it to a reader.
    """

    queries: tuple[QueryPlan, ...]
    optimised: tuple[QueryPlan, ...]
    way: str
    why: str
    key: tuple[Expr, ...] = ()
    window: int = 0
    ahead: int = 0

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that the queries read, those that they derive themselves included."""
        return tuple(dict.fromkeys(name for each in self.queries for name in each.reads))


def physical(query: Query, rules: Sequence[Rule] = RULES) -> tuple[Part, ...]:
    """The parts of a program, whose plans are optimised by these rules."""
    return tuple(_part(some, query, rules) for some in _together(query.program.queries))


def explained(part: Part) -> str:
    """What a reader is told of a part."""
    names = ", ".join(each.name for each in part.queries)
    return f"{names}: {_WAYS[part.way]}, {part.why}"


def streamed(part: Part) -> str:
    """Where the engine of a part is when it reads streams, for a reader."""
    if part.way == "slices":
        return "in the driver at any rate, since a micro-batch is too short to be cut into slices of time"
    if part.way not in _SPREAD:
        return "in the driver at any rate, since the work cannot be shared"
    return f"in the driver up to {ONE_CORE:,} events/s, on workers by bucket above that"


def chosen_engine(parts: tuple[Part, ...], rate: float | None = None) -> str:
    """Where the engines of a stream are best: in the `driver` as long as one core is enough.

    `rate` is how many events come in a second, where that is known. Between a micro-batch in the driver and
    one through a state store lie 80 ms or more, so workers have to earn that.
    """
    if rate is None or rate <= ONE_CORE:
        return "driver"
    return "workers" if any(part.way in _SPREAD for part in parts) else "driver"


_SPREAD = ("rows", "buckets")
_WAYS = {
    "rows": "each event where it is",
    "buckets": "in parallel by key",
    "slices": "in parallel by time",
    "one": "in one task",
}


def _together(queries: tuple[QueryPlan, ...]) -> Iterator[tuple[QueryPlan, ...]]:
    """Sets of queries that do not read each other's output."""
    if any(isinstance(each, EpPlan) for each in queries):
        yield queries
        return
    groups: list[list[QueryPlan]] = []
    for query in queries:
        near = [some for some in groups if any(each.name in query.reads for each in some)]
        groups = [some for some in groups if some not in near]
        groups.append([*(each for some in near for each in some), query])
    for some in groups:
        yield tuple(each for each in queries if each in some)


def _part(queries: tuple[QueryPlan, ...], query: Query, rules: Sequence[Rule]) -> Part:
    optimised = tuple(optimize(each, query.catalog, query.knowledge, rules)[0] for each in queries)
    triples = tuple(each for each in optimised if isinstance(each, EpPlan))
    if len(triples) == len(queries):
        return Part(queries, optimised, *_way_of_triples(triples))
    if triples:
        return Part(queries, optimised, "one", "since EP-SPARQL reads all streams as one")
    if len(queries) > 1:
        return Part(queries, optimised, "one", "since they read each other's output")
    (plan,) = (each for each in optimised if isinstance(each, ChiPlan))
    return Part(queries, optimised, *_way(plan.body))


_Way = tuple[str, str, tuple[Expr, ...], int, int]


def _way_of_triples(queries: tuple[EpPlan, ...]) -> _Way:
    """What an answer is made of ends no earlier than it begins, triples that rules derive included.

    So where all answers are short, and hang on nothing outside of them, slices are whole.
    """
    for each in queries:
        if not looks_inside(each.root.input):
            return "one", f"since {each.name} asks what there was before", (), 0, 0
    widths = [longest(each.root) for each in queries]
    if None in widths:
        return "one", "since no FILTER bounds the duration of an answer", (), 0, 0
    window = max(0, *(each for each in widths if each is not None))
    return "slices", f"slices overlap by {format_duration(window)}, the longest duration", (), window, 0


def _way(source: Pattern | WindowAggregate) -> _Way:
    if isinstance(source, Pattern) and source.latest:
        return "one", "since LATEST looks for the last event of all that came before", (), 0, 0
    if isinstance(source, WindowAggregate) and source.expected is not None:
        return "one", "since ABSENT answers for windows without events too", (), 0, 0
    if source.ties:
        return "one", "since an event may be in several partitions by a variable of the PATH", (), 0, 0
    if isinstance(source, Pattern) and _is_single(source):
        return "rows", "since no match has more than one event", (), 0, 0
    key = _key(source)
    if key:
        return "buckets", f"the key is {', '.join(resolved_text(each) for each in key)}", key, 0, 0
    if isinstance(source, Pattern) and source.skip != "none":
        return "one", "since AFTER MATCH without PARTITION BY looks at all matches before", (), 0, 0
    window = _span(source) if isinstance(source, Pattern) else source.window.width
    if window is None:
        return "one", "since there is neither a key nor a WINDOW of time over the whole match", (), 0, 0
    ahead = 0
    if isinstance(source, Pattern) and source.deadline is not None:
        # A match ends at its deadline, and its last event may come after that.
        window, ahead = max(window, source.deadline), max(window - source.deadline, 0)
    return "slices", f"slices overlap by {format_duration(window)}, the window", (), window, ahead


def _is_single(pattern: Pattern) -> bool:
    """Whether every match is one event, whatever the others are."""
    places = pattern.sequence
    while len(places) == 1 and isinstance(places[0], Together):
        places = places[0].members
    return len(places) == 1 and isinstance(places[0], Place) and pattern.skip == "none"


def _key(source: Pattern | WindowAggregate) -> tuple[Expr, ...]:
    """What events that may meet have in common: one value for each event, whichever variable takes it."""
    if source.partition:
        return source.partition
    if not isinstance(source, Pattern) or not source.key:
        return ()
    # An event that two variables may take must have one and the same key as either.
    read: dict[str, set[tuple[str, ...]]] = {}
    types = set()
    for variable, expr in source.key:
        assert isinstance(expr, Field)
        types.add(expr.type)
        for stream in _streams_of(source, variable):
            read.setdefault(stream, set()).add(dict(expr.sources).get(stream, ()))
    if len(types) > 1 or any(len(ways) > 1 for ways in read.values()):
        return ()
    _, first = source.key[0]
    assert isinstance(first, Field)
    sources = tuple((stream, next(iter(ways))) for stream, ways in read.items())
    return (Field(first.variable, first.name, sources, first.type),)


def _streams_of(pattern: Pattern, variable: str) -> tuple[str, ...]:
    return next(each.streams for each in pattern.all_chains if each.variable == variable)


def _span(pattern: Pattern) -> int | None:
    """How much time there can be between the first event of a match and the last; None: any."""
    positive = [each for each in pattern.sequence if not isinstance(each, Absent)]
    edges = {_always(positive[0]), _always(positive[-1])}
    bound = {name for each in positive for name in _variables(each)}
    widths = [
        each.width
        for each in pattern.windows
        # Time grows along the sequence, so a WINDOW over both of its ends is one over all.
        if bound <= set(each.variables) or (None not in edges and edges <= set(each.variables))
    ]
    return min(widths, default=None)


def _always(element: Element) -> str | None:
    """The variable of a place that every match fills."""
    if isinstance(element, Place) or (isinstance(element, Loop) and element.least > 0):
        return element.variable
    return None


def _variables(element: Element) -> Iterator[str]:
    if isinstance(element, Place | Loop):
        yield element.variable
    elif not isinstance(element, Absent):
        for each in element.members:
            yield from _variables(each)
