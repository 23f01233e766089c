"""What made a match: its conditions with their numbers, and the statements that make its PATHs true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kaicep.errors import Mistake
from kaicep.knowledge.event_graph import HAS_TIME, event_triples
from kaicep.knowledge.store import TYPE, Knowledge
from kaicep.plan.algebra import substitute, translate, triple_patterns
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, Together
from kaicep.plan.events import Event, Match
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous, walk
from kaicep.plan.nodes import ChiPlan, Pattern, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.results import Answer, derived_event
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Predicate, Repeat, Steps, TriplePattern
from kaicep.plan.terms import Iri, Term, Triple, Variable
from kaicep.plan.text import resolved_text
from kaicep.plan.types import Type
from kaicep.plan.values import native
from kaicep.query import Query
from kaicep.reference.chicep import KnowledgeSemantics, in_order, partitions, window_answers
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.sparql import Bindings, TimedGraph
from kaicep.reference.sparql import evaluate as evaluate_group

# ----------------------------------------------------------------------------------------------------------
# The statements that make a PATH true for some events, down to what was asserted.

_DEEPEST = 12


@dataclass(frozen=True)
class Statement:
    """A triple and where it comes from: `event`, `asserted`, or the rule that inferred it from others."""

    triple: Triple
    rule: str
    premises: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Proof:
    """One solution of a PATH: the values of its variables, and the statements that make it true."""

    bindings: Bindings
    statements: tuple[Statement, ...]


def prove(
    condition: Semantic,
    binding: Mapping[str, Event],
    catalog: Catalog,
    knowledge: Knowledge,
    wanted: Mapping[str, Term] | None = None,
) -> Proof | None:
    """A proof that the PATH holds for the events; `wanted` are the values of its selected variables."""
    then = knowledge.at(max((each.ts for each in binding.values()), default=0))
    graphs = {name: event_triples(each, catalog.streams[each.stream], then) for name, each in binding.items()}
    given = tuple(triple for each in graphs.values() for triple in each.triples)
    stated = tuple(
        triple
        for name, event in binding.items()
        for triple in graphs[name].triples
        if _is_stated(triple, catalog.streams[event.stream])
    )
    entailed = [(each, None) for each in then.entails_with(given)]
    union = TimedGraph(then, entailed, graphs=then.graphs())
    nodes = {name: each.node for name, each in graphs.items()}
    for group in condition.alternatives:
        about = substitute(group, nodes)
        solutions = [each.bindings for each in evaluate_group(translate(about), union)]
        fitting = [
            each for each in solutions if all(each.get(n) == term for n, term in (wanted or {}).items())
        ]
        if fitting:
            chosen = min(fitting, key=lambda each: sorted((name, str(term)) for name, term in each.items()))
            used = dict.fromkeys(_used(triple_patterns(about), chosen, union))
            origins = _Origins(then, stated, given)
            return Proof(chosen, tuple(origins.statement(each) for each in used))
    return None


def _is_stated(triple: Triple, stream: Stream) -> bool:
    """Whether the annotation names the very property, or the very class."""
    _, predicate, target = triple
    return target == stream.event_class if predicate == TYPE else predicate in (HAS_TIME, *stream.carried())


class _Origins:
    """Where triples come from.

    `stated` is what the annotations say of the events in so many words. `given` is all that they say;
    where no rule of the reasoning gives the rest, it is the event's as well.
    """

    def __init__(self, knowledge: Knowledge, stated: tuple[Triple, ...], given: tuple[Triple, ...]) -> None:
        self.knowledge = knowledge
        self.stated = stated
        self.given = given

    def statement(self, triple: Triple, depth: int = 0) -> Statement:
        if triple in self.stated:
            return Statement(triple, "event")
        reason = self.knowledge.why(triple, self.stated)
        if reason is None and triple in self.given:
            return Statement(triple, "event")
        if reason is None:
            reason = self.knowledge.why(triple, self.given)
        if reason is None or depth >= _DEEPEST:
            return Statement(triple, "asserted")
        return Statement(
            triple, reason.rule, tuple(self.statement(each, depth + 1) for each in reason.premises)
        )


# --- the triples of a solution -----------------------------------------------------------------------------


def _used(patterns: Iterable[TriplePattern], bindings: Bindings, graph: TimedGraph) -> Iterator[Triple]:
    """The triples that meet the patterns; a pattern with something unbound is one that was not needed."""
    for pattern in patterns:
        subject, object = (_filled(each, bindings) for each in (pattern.subject, pattern.object))
        predicate: Predicate = pattern.predicate
        if isinstance(predicate, Variable):
            found = bindings.get(predicate.name)
            if not isinstance(found, Iri):
                continue
            predicate = found
        if subject is not None and object is not None:
            yield from next(_chains(graph, subject, predicate, object), ())


def _filled(place: object, bindings: Bindings) -> Term | None:
    if isinstance(place, Variable):
        return bindings.get(place.name)
    return place  # type: ignore[return-value]


def _chains(graph: TimedGraph, start: Term, path: Iri | Path, end: Term) -> Iterator[tuple[Triple, ...]]:
    """The ways from one term to another along a path, as the triples that they go over."""
    return (triples for reached, triples in _walk(graph, start, path) if reached == end)


def _walk(graph: TimedGraph, start: Term, path: Iri | Path) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    match path:
        case Iri():
            for triple, _ in graph.match(start, path, None):
                yield triple[2], (triple,)
        case Inverse(of):
            if isinstance(of, Iri):
                for triple, _ in graph.match(None, of, start):
                    yield triple[0], (triple,)
            else:
                nodes = {node for node, _ in graph.nodes()}
                for node in nodes:
                    for triples in _chains(graph, node, of, start):
                        yield node, triples
        case Steps(parts):
            yield from _along(graph, start, parts)
        case Alternative(parts):
            for part in parts:
                yield from _walk(graph, start, part)
        case Repeat():
            yield from _repeated(graph, start, path)
        case Negated(forward, inverse):
            if forward or not inverse:
                for triple, _ in graph.match(start, None, None):
                    if triple[1] not in forward:
                        yield triple[2], (triple,)
            if inverse:
                for triple, _ in graph.match(None, None, start):
                    if triple[1] not in inverse:
                        yield triple[0], (triple,)


def _along(
    graph: TimedGraph, start: Term, parts: tuple[Iri | Path, ...]
) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    if not parts:
        yield start, ()
        return
    for middle, first in _walk(graph, start, parts[0]):
        for end, rest in _along(graph, middle, parts[1:]):
            yield end, first + rest


def _repeated(graph: TimedGraph, start: Term, path: Repeat) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    """The shortest way to every term that can be reached."""
    if path.least == 0:
        yield start, ()
    reached: dict[Term, tuple[Triple, ...]] = {start: ()}
    front = [start]
    while front:
        further: list[Term] = []
        for node in front:
            for end, triples in _walk(graph, node, path.of):
                if end not in reached:
                    reached[end] = reached[node] + triples
                    further.append(end)
                    yield end, reached[end]
                elif end == start and path.least > 0 and reached[end] == ():
                    yield end, reached[node] + triples
        front = further if path.unbounded else []


# ----------------------------------------------------------------------------------------------------------
# What made a match: its events, its conditions with the numbers filled in, the proofs of its PATHs.


@dataclass(frozen=True)
class Reading:
    """An event of a match: its variable, the event, and the match it was derived from.

    A solution of EP-SPARQL has no variables of events.
    """

    variable: str
    event: Event
    derived: Match | None = None


@dataclass(frozen=True)
class Checked:
    """A condition: as it is written, with the values of the match in it, and of which round of a loop."""

    text: str
    filled: str
    round: int | None = None


@dataclass(frozen=True)
class WindowSpan:
    """A WINDOW between events: how far apart they may be and how far they are, in microseconds."""

    variables: tuple[str, ...]
    width: int
    spans: int


@dataclass(frozen=True)
class Shown:
    """A PATH, the event variables that it is about, and the proof that it holds."""

    condition: Semantic
    proof: Proof


@dataclass(frozen=True)
class Wait:
    """An absence: of which variable, after which event, before which, or (trailing) until when."""

    variable: str
    after: Event
    before: Event | None = None
    until: int | None = None

    def covers(self, event: Event) -> bool:
        """Whether an event lies where there may be none."""
        if self.before is not None and _place(event) >= _place(self.before):
            return False
        return _place(event) > _place(self.after) and (self.until is None or event.ts <= self.until)


@dataclass(frozen=True)
class Why:
    """All that made a match."""

    match: Match
    plan: QueryPlan
    events: tuple[Reading, ...]
    conditions: tuple[Checked, ...] = ()
    windows: tuple[WindowSpan, ...] = ()
    paths: tuple[Shown, ...] = ()
    absences: tuple[Wait, ...] = ()


def _place(event: Event) -> tuple[object, ...]:
    return event.ts, event.stream, event.id or "", event.part, event.seq


def waits_of(pattern: Pattern, rounds: Mapping[str, Sequence[Event]]) -> Iterator[Wait]:
    """What had to be absent from a match of these events, and where."""
    for index, element in enumerate(pattern.sequence):
        if not isinstance(element, Absent):
            continue
        before = [one for each in pattern.sequence[:index] for one in _events_of(each, rounds)]
        after = [one for each in pattern.sequence[index + 1 :] for one in _events_of(each, rounds)]
        if before and after:
            yield Wait(element.variable, max(before, key=_place), min(after, key=_place))
        elif before:
            first = min(each.ts for each in before)
            until = first + pattern.deadline if pattern.deadline is not None else None
            yield Wait(element.variable, max(before, key=_place), until=until)


def _events_of(element: Element, rounds: Mapping[str, Sequence[Event]]) -> Iterator[Event]:
    if isinstance(element, Place | Loop):
        yield from rounds.get(element.variable, ())
    elif isinstance(element, Choice | Together):
        for each in element.members:
            yield from _events_of(each, rounds)


def why(
    match: Match,
    query: Query,
    events: Sequence[Event],
    matches: Iterable[Match] = (),
) -> Why:
    """What made a match. `events` are those of the run, `matches` all that it gave."""
    catalog, knowledge = query.catalog, query.knowledge
    plan = next(each for each in query.program.queries if each.name == match.query)
    others = {(each.query, each.id): each for each in matches}
    known: dict[tuple[str, int, int], Event] = {
        (each.stream, each.part, each.seq): each for each in events if each.id is None
    }

    def event_of(identity: Mapping[str, object]) -> tuple[Event, Match | None]:
        if "id" in identity:
            made = others[str(identity["stream"]), str(identity["id"])]
            return derived(made, catalog), made
        key = str(identity["stream"]), int(str(identity["part"])), int(str(identity["seq"]))
        if key not in known:
            raise Mistake(f"the event {key[2]} of part {key[1]} of {key[0]} is not among those given")
        return known[key], None

    source = plan.body if isinstance(plan, ChiPlan) else None
    if isinstance(source, Pattern):
        return _of_pattern(match, plan, source, catalog, knowledge, event_of)
    if isinstance(source, WindowAggregate):
        everything = [*events, *(derived(each, catalog) for each in others.values())]
        return _of_window(match, plan, source, catalog, knowledge, everything)
    return Why(match, plan, ())


def derived(match: Match, catalog: Catalog) -> Event:
    """A match as an event of the query's output."""
    return derived_event(Answer(match, match.select), catalog)


# --- patterns ----------------------------------------------------------------------------------------------


def _of_pattern(match, plan, pattern, catalog, knowledge, event_of) -> Why:  # type: ignore[no-untyped-def]
    rounds: dict[str, list[Event]] = {}
    readings: list[Reading] = []
    for variable, shown in (match.events or {}).items():
        for identity in shown if isinstance(shown, list) else [shown]:
            event, derived = event_of(identity)
            rounds.setdefault(variable, []).append(event)
            readings.append(Reading(variable, event, derived))
    readings.sort(key=lambda each: each.event.ts)
    conditions = [each for chain in pattern.chains for each in chain.conditions]
    paths = [each for chain in pattern.chains for each in chain.semantics]
    checked = [made for each in (*conditions, *pattern.conditions) for made in _checked(each, rounds)]
    windows = tuple(_span(each.variables, each.width, rounds) for each in pattern.windows)
    shown_paths = tuple(_proofs((*paths, *pattern.semantics), rounds, match, catalog, knowledge))
    absences = tuple(waits_of(pattern, rounds))
    return Why(match, plan, tuple(readings), tuple(checked), windows, shown_paths, absences)


def _span(variables: Sequence[str], width: int, rounds: Mapping[str, Sequence[Event]]) -> WindowSpan:
    times = [each.ts for name in variables for each in rounds.get(name, ())]
    return WindowSpan(tuple(variables), width, max(times) - min(times) if times else 0)


def _checked(condition: Expr, rounds: Mapping[str, Sequence[Event]]) -> Iterator[Checked]:
    """The condition with its values, once for each round that it had to hold in."""
    if any(name not in rounds for name in _bare(condition)):
        return  # it speaks of an event that was left out, or that had to be absent
    loop = next((name for name in _bare(condition) if len(rounds[name]) > 1), None)
    events = {name: found[0] for name, found in rounds.items()}
    if loop is None:
        yield _filled_in(condition, Environment(events, rounds=rounds))
        return
    for index, event in enumerate(rounds[loop]):
        before = {loop: rounds[loop][index - 1]} if index else {}
        if not index and any(isinstance(each, Previous) for each in walk(condition)):
            continue
        so_far = {**rounds, loop: rounds[loop][: index + 1]}
        made = _filled_in(condition, Environment({**events, loop: event}, before, so_far))
        yield replace(made, round=index + 1)


def _filled_in(condition: Expr, env: Environment) -> Checked:
    return Checked(resolved_text(condition), filled(condition, env))


def _bare(expr: Expr) -> frozenset[str]:
    """The variables that an expression mentions outside of aggregates."""
    if isinstance(expr, Aggregate):
        return frozenset()
    if isinstance(expr, Field):
        return frozenset((expr.variable,))
    return frozenset().union(*map(_bare, expr.children()))


def filled(expr: Expr, env: Environment) -> str:
    """An expression with its values; where it compares something that had to be calculated, that too.

    >>> x = Field("e", "x", (("s", ("x",)),), Type.FLOAT64)
    >>> rise = Call("-", (x, Const(500.0, Type.FLOAT64)), Type.FLOAT64)
    >>> env = Environment({"e": Event("s", 0, 0, 0, {"x": 560.0})})
    >>> filled(Call(">", (rise, Const(50, Type.INT64)), Type.BOOL), env)
    '560.0 - 500.0 = 60.0 > 50'
    """
    match expr:
        case Call("=" | "!=" | "<" | "<=" | ">" | ">=", (Call() as left, right)):
            value = Const(evaluate(left, env), left.type)
            compared = resolved_text(Call(expr.op, (value, _with_values(right, env)), Type.BOOL))
            return f"{resolved_text(_with_values(left, env))} = {compared}"
    return resolved_text(_with_values(expr, env))


def _with_values(expr: Expr, env: Environment) -> Expr:
    if isinstance(expr, Field | Previous | Aggregate):
        return Const(evaluate(expr, env), _type(expr))
    if isinstance(expr, Call):
        return Call(expr.op, tuple(_with_values(each, env) for each in expr.args), expr.type)
    return expr


def _type(expr: Expr) -> Type | None:
    return _type(expr.of) if isinstance(expr, Previous) else getattr(expr, "type", None)


def _proofs(
    conditions: Iterable[Semantic],
    rounds: Mapping[str, Sequence[Event]],
    match: Match,
    catalog: Catalog,
    knowledge: Knowledge,
) -> Iterator[Shown]:
    for condition in conditions:
        if any(name not in rounds for name in condition.variables):
            continue
        binding = {name: rounds[name][0] for name in condition.variables}
        for wanted in _wanted(condition, binding, match, catalog, knowledge):
            proof = prove(condition, binding, catalog, knowledge, wanted)
            if proof is not None:
                yield Shown(condition, proof)
                break


def _wanted(
    condition: Semantic, binding: Mapping[str, Event], match: Match, catalog: Catalog, knowledge: Knowledge
) -> Iterator[dict[str, Term]]:
    """The selected variables as the match has them; a match shows values, not terms."""
    if not condition.selected:
        yield {}
        return
    for row in KnowledgeSemantics(catalog, knowledge).solutions(condition, binding):
        terms = {name: term for name, term in zip(condition.selected, row, strict=True) if term is not None}
        if all(native(term) in match.select.values() for term in terms.values()):
            yield terms


# --- windows -----------------------------------------------------------------------------------------------


def _of_window(
    match: Match,
    plan: QueryPlan,
    node: WindowAggregate,
    catalog: Catalog,
    knowledge: Knowledge,
    events: Sequence[Event],
) -> Why:
    if node.expected is not None:  # it shows what is expected; that nothing came has no more to show
        known = knowledge.at(match.end_us - 1)
        return Why(match, plan, (), paths=tuple(_proofs((node.expected,), {}, match, catalog, known)))
    semantics = KnowledgeSemantics(catalog, knowledge)
    ordered = in_order((each for each in events if each.stream in node.streams), node.streams)
    (variable, shown), *_ = (match.events or {}).items()
    last = shown.get("last", shown)
    for inside in partitions(ordered, node.partition).values():
        for window in window_answers(node, inside, semantics):
            newest = window.trigger or window.events[-1]
            if (window.start, window.end) == (match.start_us, match.end_us) and newest.identity == last:
                chain = node.chain
                having = [Checked(resolved_text(e), filled(e, window.environment)) for e in node.having]
                rounds = {variable: [newest]}
                conditions = [each for one in chain.conditions for each in _checked(one, rounds)]
                paths = tuple(_proofs((*chain.semantics, *node.semantics), rounds, match, catalog, knowledge))
                readings = tuple(Reading(variable, each) for each in window.events)
                return Why(match, plan, readings, (*conditions, *having), (), paths)
    return Why(match, plan, ())
