"""Plans as SPARQL: one query over the RDF view of the archive for each plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any
from urllib.parse import quote

from kaicep.errors import Unsupported
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.catalog import EVENT, Catalog, Stream, Vocabulary
from kaicep.plan.chi import Absent, Element, Loop, Place, Together, always_bound
from kaicep.plan.events import Event
from kaicep.plan.expressions import (
    Aggregate,
    Call,
    Exists,
    Expr,
    Field,
    Previous,
    VariableRef,
    variables_of,
    walk,
)
from kaicep.plan.functions import OWN_FUNCTIONS
from kaicep.plan.nodes import Chain, ChiPlan, EpPlan, Interval, Pattern, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.operators import OPERATORS, FieldText, Nulls, expression_in
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
from kaicep.plan.terms import XSD, Iri, Literal, Term, Variable
from kaicep.plan.text import group_text, iri_text
from kaicep.plan.types import Type, Value
from kaicep.plan.values import format_xsd_duration, literal_of

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
    return Unsupported(f"{plan.name}: one query cannot express {what}; the strategies replay and hybrid can")


def asked(plan: ChiPlan) -> AskedPattern:
    """A query with a pattern as a question."""
    pattern = plan.body
    if not isinstance(pattern, Pattern):
        raise TypeError("this needs a query with a pattern")
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
        raise TypeError("this needs a query with a window")
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
    """Raises `Unsupported` where a plan has something that one query cannot express."""
    body = plan.body
    part = why_no_window(plan, body) if isinstance(body, WindowAggregate) else _why_no_pattern(plan, body)
    if part is not None:
        raise refusal(plan, part)


def why_no_window(plan: ChiPlan, source: WindowAggregate) -> str | None:
    """What in a query over a window one query cannot express."""
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
    """What in a pattern one query cannot express."""
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


# ----------------------------------------------------------------------------------------------------------
# The RDF view of archived events: what there is to ask, and what it is called.
#
# Each event is a node with its graph (semantics 2), its time, its stream, its place in the order of the
# query's streams, the event after it in its partition, and its attributes as they are, each by a property
# of its own.

ARCHIVE = "urn:kaicep:archive:"
STREAM, ORDER, MICROS = Iri(ARCHIVE + "stream"), Iri(ARCHIVE + "order"), Iri(ARCHIVE + "micros")
PARTITION, NEXT = Iri(ARCHIVE + "partition"), Iri(ARCHIVE + "next")
HAS_TIME = Iri(EVENT + "hasTime")


def stream_iri(stream: str) -> Iri:
    """The name of a stream in the view."""
    return Iri(f"urn:kaicep:stream:{quote(stream, safe='')}")


def attribute_namespace(stream: str) -> str:
    """What the properties for a stream's attributes begin with."""
    return f"urn:kaicep:attribute:{quote(stream, safe='')}/"


def attribute_iri(stream: str, attribute: str) -> Iri:
    """The property for an attribute as it is.

    >>> attribute_iri("air flow", "rate").value
    'urn:kaicep:attribute:air%20flow/rate'
    """
    return Iri(attribute_namespace(stream) + quote(attribute, safe=""))


def own_properties(
    event: Event, stream: Stream, order: int, partition: Sequence[Value] = ()
) -> Iterator[tuple[Iri, Term]]:
    """What the view says of an event besides its graph; `partition` is its key in the query."""
    yield STREAM, stream_iri(event.stream)
    yield ORDER, literal_of(order, Type.INT64)
    yield MICROS, literal_of(event.ts, Type.INT64)
    if partition:
        yield PARTITION, Literal(json.dumps(partition, ensure_ascii=False))
    yield HAS_TIME, literal_of(event.ts, Type.TIMESTAMP)
    for name, type in stream.attributes:
        value = event.value(name)
        if value is not None and name != "ts":
            yield attribute_iri(event.stream, name), literal_of(value, type)


def property_of(field: Field, streams: dict[str, Stream], vocabulary: Vocabulary) -> Iri | None:
    """The one property that gives a field's value on all streams of its variable; None where none does.

    A concept of the ontology will do where a stream has it from one attribute only, the concepts below
    it included; else the attribute's own property does.
    """
    found: set[Iri] = set()
    for name, read in field.sources:
        if len(read) != 1:
            return None
        if read[0] == "ts":
            found.add(HAS_TIME)
            continue
        stream = streams[name]
        concept = dict(stream.concepts).get(read[0])
        below = vocabulary.properties_below(concept) if concept is not None else frozenset()
        carried = [each for each in stream.carried() if each in below]
        found.add(concept if concept is not None and carried == [concept] else attribute_iri(name, read[0]))
    return found.pop() if len(found) == 1 else None


# ----------------------------------------------------------------------------------------------------------
# chi-CEP expressions as SPARQL: null is an error there, and both make a FILTER fail.
#
# Three-valued logic and errors agree in SPARQL and here: `true || error` is true, `false && error` false.


def expression_sparql(expr: Expr, field: FieldText, query: str) -> str:
    """An expression as SPARQL; `Unsupported` for what SPARQL would answer differently."""
    return expression_in("sparql", constant_text, expr, field, query)


def constant_text(value: Any, type: Type | None) -> str:
    """A constant as SPARQL writes it; a number with an exponent is a double there.

    Null is a variable that nothing binds: an error, which is what null is.

    >>> constant_text(500.5, Type.FLOAT64), constant_text(5, Type.INT64), constant_text("a", Type.STRING)
    ('500.5e0', '5', '"a"')
    """
    if value is None or type is None:
        return "?null"
    literal = literal_of(value, type)
    match type:
        case Type.INT64 | Type.BOOL:
            return literal.lexical
        case Type.FLOAT64:
            text = repr(float(value))
            return text if "e" in text else f"{text}e0"
        case Type.TIMESTAMP:
            return f'"{literal.lexical}"^^xsd:dateTime'
    return str(Literal(literal.lexical))


def must_be_there(expr: Expr) -> frozenset[tuple[Field, bool]]:
    """The fields without which a condition cannot be true, each with whether it stands in PREV."""
    match expr:
        case Field():
            return frozenset(((expr, False),))
        case Previous(of):
            return frozenset((each, True) for each, _ in must_be_there(of))
        case Call("or", args):
            return frozenset.intersection(*map(must_be_there, args))
        case Call("in", (value, *_)):
            return must_be_there(value)
        case Call("not", (Call(op, _),)) if OPERATORS[op].nulls is Nulls.OWN or op == "not":
            return frozenset()
        case Call(op, args) if OPERATORS[op].nulls is Nulls.SPREAD or op == "and":
            return frozenset().union(*map(must_be_there, args))
    return frozenset()


def fields_in(expr: Expr, previous: bool = False) -> Iterator[tuple[Field, bool]]:
    """The fields that an expression mentions, each with whether it stands in PREV."""
    if isinstance(expr, Field):
        yield expr, previous
    for child in expr.children():
        yield from fields_in(child, previous or isinstance(expr, Previous))


# ----------------------------------------------------------------------------------------------------------
# A query as one SPARQL query over the RDF view of the archive (rules 1 to 5 of section 5.2 of the paper).
#
# 1. FILTER: a property of the event, and a FILTER on its value. 2. JOIN: the same between events. 3. SEQ:
# FILTERs on their times. 4. WINDOW: a FILTER on the difference of the first and the last time. 5. Order:
# ORDER BY the time of the match. Beyond the paper: PATHs as they are, absence as NOT EXISTS, strict
# contiguity by the view's `kai:next`, and windows with aggregates, where each event is joined with those in
# its window.

_AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX")


@dataclass(frozen=True)
class Rewritten:
    """A query as SPARQL, and what its answer has: a node for each slot, the selected variables of PATHs.

    The answer for a window has a row for each, with the places of its events in the order as `members`.
    """

    plan: ChiPlan
    text: str
    slots: tuple[EventSlot, ...]
    selected: tuple[str, ...]
    asked: AskedPattern | None = None


def rewrite_to_sparql(plan: QueryPlan, catalog: Catalog) -> Rewritten:
    """A resolved chi-CEP query as one SPARQL query; `Unsupported` with the reason where it cannot be."""
    if isinstance(plan, EpPlan):
        raise refusal(plan, "what EP-SPARQL says: intervals are not in the view")
    refuse_unsayable(plan)
    writer = _SparqlWriter(plan, catalog)
    return writer.pattern(asked(plan)) if isinstance(plan.body, Pattern) else writer.window()


@dataclass
class _Scope:
    """The lines of one group, and the values that it has bound so far."""

    lines: list[str] = field(default_factory=list)
    bound: dict[tuple[str, Field], str] = field(default_factory=dict)

    def inner(self) -> _Scope:
        """A group inside this one, which sees what this one has bound."""
        return _Scope([], dict(self.bound))


class _SparqlWriter:
    """Writes one query."""

    def __init__(self, plan: ChiPlan, catalog: Catalog) -> None:
        self.plan = plan
        self.catalog = catalog
        scans = {name for name in plan.reads if name in catalog.streams}
        self.prefixes = {
            **dict(plan.prefixes),
            **{stream_prefix(name): attribute_namespace(name) for name in sorted(scans)},
            "evt": dict(plan.prefixes).get("evt", EVENT),
            "kai": ARCHIVE,
            "xsd": XSD,
        }
        self._taken: set[str] = {"members", "null"}
        self._taken |= set(path_variables(plan))
        self._partition = self._fresh("partition")

    # --- patterns ---

    def pattern(self, question: AskedPattern) -> Rewritten:
        """Rules 1 to 5, and what goes beyond them."""
        self._reserve(*question.slots, *(each.slot for each in question.absences))
        scope = _Scope()
        slots = {each.variable: each.name for each in reversed(question.slots)}
        between = [each for each in question.conditions if self._alone(each) is None]
        bound: set[str] = set()
        for number, slot in enumerate(question.slots):
            own = [each for each in question.conditions if self._alone(each) == slot.name]
            if number > 1:
                # What can be told of fewer events is settled before more of them are joined.
                scope.lines = nested(scope.lines)
            self._event(scope, slot, own, self._read(slot.name, between, slots))
            before, bound = bound, {*bound, slot.name}
            self._between(scope, question, between, before, bound)
        for number, path in enumerate(question.paths):
            self._path(scope, path, number, question.selected)
        if question.absences:
            names = (name for each in question.absences for name in (*each.after, *each.before))
            self._ordered(scope, dict.fromkeys(names))
            # What must not be there is asked of what is left, not of every combination.
            scope.lines = nested(scope.lines)
        for absence in question.absences:
            self._absence(scope, absence, question)
        shown = [f"?{each.name}" for each in question.slots]
        shown += [each for each in dict.fromkeys(scope.bound.values()) if each in self._wanted(scope)]
        shown += [f"?{variable_name(each)}" for each in question.selected]
        last = " ".join(time_of(each) for each in question.groups[-1])
        text = self._text(
            f"SELECT DISTINCT {' '.join(dict.fromkeys(shown))}", scope.lines, f"ORDER BY {last}"
        )
        return Rewritten(self.plan, text, question.slots, question.selected, question)

    def _wanted(self, scope: _Scope) -> set[str]:
        """The variables of selected attributes."""
        fields = {each.expr for each in self.plan.columns if isinstance(each.expr, Field)}
        return {text for (_, found), text in scope.bound.items() if found in fields}

    def _between(
        self,
        scope: _Scope,
        question: AskedPattern,
        conditions: Iterable[Applied],
        before: set[str],
        bound: set[str],
    ) -> None:
        """Rules 2 to 4, as far as they speak of events that are bound by now, and were not all before."""

        def due(*names: str) -> bool:
            return bound.issuperset(names) and not before.issuperset(names)

        for each in conditions:
            if due(*each.slots.values(), *each.previous.values()):
                self._condition(scope, each)
        for first, then in question.earlier:
            if due(first, then):
                scope.lines.append(f"FILTER ({time_of(first)} < {time_of(then)})")
        for first, then in question.adjacent:
            if due(first, then):
                scope.lines.append(f"?{first} {self._iri(NEXT)} ?{then} .")
        for one, other in question.apart:
            if due(one, other):
                scope.lines.append(f"FILTER (?{one} != ?{other})")
        for first, last, width in question.spans:
            if due(first, last):
                scope.lines.append(f"FILTER ({time_of(last)} - {time_of(first)} <= {duration(width)})")

    def _alone(self, applied: Applied) -> str | None:
        """The slot that a condition is about, where it is one alone."""
        names = {*applied.slots.values(), *applied.previous.values()}
        return names.pop() if len(names) == 1 else None

    def _read(self, slot: str, conditions: Iterable[Applied], slots: Mapping[str, str]) -> dict[Field, bool]:
        """What is read of an event besides its own conditions, each with whether it must be there."""
        found: dict[Field, bool] = {}
        for applied in conditions:
            needed = must_be_there(applied.expr)
            for each, previous in fields_in(applied.expr):
                places = applied.previous if previous else applied.slots
                if places[each.variable] == slot:
                    found[each] = found.get(each, False) or (each, previous) in needed
        for column in self.plan.columns:
            if isinstance(column.expr, Field) and slots.get(column.expr.variable) == slot and not column.many:
                found.setdefault(column.expr, False)
        return found

    def _event(
        self, scope: _Scope, slot: EventSlot, conditions: Iterable[Applied], read: Mapping[Field, bool]
    ) -> None:
        """An event with what is asked of it alone, and what is read of it.

        Where some of that may be missing it is a group of its own, so that it is settled event by event
        and not for every combination of events.
        """
        inner = scope.inner()
        self._slot(inner, slot)
        self._same_partition(inner, [slot.name])
        for each in conditions:
            self._condition(inner, each)
        for found, required in read.items():
            self._value(inner, slot.name, found, required)
        scope.bound |= inner.bound
        optional = any(line.startswith("OPTIONAL") for line in inner.lines)
        scope.lines += nested(inner.lines) if optional else inner.lines

    def _slot(self, scope: _Scope, slot: EventSlot, ordered: bool = False) -> None:
        """An event of its streams, inside its bounds, with its time."""
        name = f"?{slot.name}"
        self._stream(scope, slot)
        scope.lines.append(f"{name} {self._iri(HAS_TIME)} {time_of(slot.name)} .")
        if ordered:
            scope.lines.append(f"{name} {self._iri(ORDER)} {order_of(slot.name)} .")
        within = slot.within
        low = within.low, ">=" if within.low_inclusive else ">"
        high = within.high, "<=" if within.high_inclusive else "<"
        for bound, sign in (low, high):
            if bound is not None:
                text = constant_text(bound, Type.TIMESTAMP)
                scope.lines.append(f"FILTER ({time_of(slot.name)} {sign} {text})")

    def _stream(self, scope: _Scope, slot: EventSlot) -> None:
        name = f"?{slot.name}"
        streams = [self._iri(stream_iri(each)) for each in slot.streams]
        if len(streams) == 1:
            scope.lines.append(f"{name} {self._iri(STREAM)} {streams[0]} .")
        else:
            scope.lines.append(f"{name} {self._iri(STREAM)} {name}_stream .")
            scope.lines.append(f"FILTER ({name}_stream IN ({', '.join(streams)}))")

    def _ordered(self, scope: _Scope, names: Iterable[str]) -> None:
        """Binds the places of events in the order."""
        scope.lines += [f"?{name} {self._iri(ORDER)} {order_of(name)} ." for name in names]

    # --- conditions ---

    def _condition(self, scope: _Scope, applied: Applied) -> None:
        for each, previous in sorted(must_be_there(applied.expr), key=lambda found: str(found)):
            places = applied.previous if previous else applied.slots
            self._value(scope, places[each.variable], each, required=True)
        text = self._expression(scope, applied)
        scope.lines.append(f"FILTER {text if text.startswith('(') else f'({text})'}")

    def _expression(self, scope: _Scope, applied: Applied) -> str:
        def value(found: Field, previous: bool) -> str:
            places = applied.previous if previous else applied.slots
            return self._value(scope, places[found.variable], found, required=False)

        return expression_sparql(applied.expr, value, self.plan.name)

    def _value(self, scope: _Scope, slot: str, found: Field, required: bool) -> str:
        """The variable that holds a field's value; the patterns that bind it are added where needed."""
        key = slot, found
        if key in scope.bound:
            return scope.bound[key]
        if all(read == ("ts",) for _, read in found.sources):
            return scope.bound.setdefault(key, time_of(slot))
        name = self._fresh(f"{slot}_{found.name}")
        scope.bound[key] = name
        one = property_of(found, dict(self.catalog.streams), self.catalog.vocabulary)
        if one is not None:
            pattern = f"?{slot} {self._iri(one)} {name} ."
            scope.lines.append(pattern if required else f"OPTIONAL {{ {pattern} }}")
        else:
            self._first_of(scope, slot, found, name, required)
        widened = found.type is Type.FLOAT64 and self._has_integers(found)
        if widened:
            scope.bound[key] = f"xsd:double({name})"
        return scope.bound[key]

    def _has_integers(self, found: Field) -> bool:
        return any(
            self.catalog.streams[stream].type_of(each) is Type.INT64
            for stream, read in found.sources
            for each in read
        )

    def _first_of(self, scope: _Scope, slot: str, found: Field, name: str, required: bool) -> None:
        """Of several attributes the first that is not null; those of other streams are not there."""
        read = [(stream, each) for stream, names in found.sources for each in names]
        parts = []
        for number, (stream, each) in enumerate(read):
            part = f"{name}_{number}"
            one = HAS_TIME if each == "ts" else attribute_iri(stream, each)
            scope.lines.append(f"OPTIONAL {{ ?{slot} {self._iri(one)} {part} . }}")
            parts.append(part)
        scope.lines.append(f"BIND (COALESCE({', '.join(parts)}) AS {name})" if parts else f"# {name} is null")
        if required:
            scope.lines.append(f"FILTER (BOUND({name}))")

    def _same_partition(self, scope: _Scope, slots: Sequence[str]) -> None:
        """Events of one partition have one key in the view, null being a value like any other."""
        if self.plan.body.partition:
            for slot in slots:
                line = f"?{slot} {self._iri(PARTITION)} {self._partition} ."
                if line not in scope.lines:
                    scope.lines.append(line)

    def _of_event(self, scope: _Scope, expr: Expr, slot: str) -> str:
        """A value of an event by which it is partitioned or grouped, whichever variable is named."""

        def value(found: Field, previous: bool) -> str:
            return self._value(scope, slot, found, required=False)

        return expression_sparql(expr, value, self.plan.name)

    # --- PATHs ---

    def _path(self, scope: _Scope, path: SlotPath, number: int, selected: Sequence[str]) -> None:
        """A PATH as it is; its own variables are named apart from those of other PATHs."""
        groups = [self._group(path, each, number, selected) for each in path.semantic.alternatives]
        if len(groups) == 1:
            scope.lines += [
                line.strip() for line in group_text(groups[0], 0, self.prefixes).split("\n")[1:-1]
            ]
            return
        texts = [group_text(each, 1, self.prefixes) for each in groups]
        scope.lines += " UNION ".join(texts).split("\n") if texts else ["FILTER (false)"]

    def _group(self, path: SlotPath, group: Group, number: int, selected: Sequence[str]) -> Group:
        check_group(self.plan, group, path.semantic)
        renamed: dict[str, Variable] = {}
        for name in element_variables(group):
            if name in path.slots:
                renamed[name] = Variable(path.slots[name])
            elif name in selected:
                renamed[name] = Variable(variable_name(name))
            else:
                # Where the PATH is about each of its variables once, its names are its own.
                is_only = all(slot == variable for variable, slot in path.slots.items())
                apart = "" if is_only else f"_{number}"
                renamed[name] = Variable(variable_name(name.removeprefix("_:")) + apart)
        return substitute(group, renamed)  # type: ignore[arg-type]  # one variable for another

    # --- absence ---

    def _absence(self, scope: _Scope, absence: SlotAbsence, question: AskedPattern) -> None:
        """No such event. Each condition on it is an EXISTS of its own: so it is settled event by event."""
        inner = scope.inner()
        slot, name = absence.slot, absence.slot.name
        self._same_partition(inner, [name])
        if not inner.lines or set(slot.streams) != set(question.pattern.streams):
            self._stream(inner, slot)
        for each in absence.conditions:
            self._exists(inner, partial(self._condition, applied=each))
        place = f"?{name} {self._iri(ORDER)} {order_of(name)} ."
        after = [f"FILTER ({order_of(each)} < {order_of(name)})" for each in absence.after]
        before = [f"FILTER ({order_of(name)} < {order_of(each)})" for each in absence.before]
        inner.lines += exists([place, *after, *before])
        if absence.width is not None:
            wide = duration(absence.width)
            until = [f"FILTER ({time_of(name)} - {time_of(each)} <= {wide})" for each in absence.first]
            inner.lines += exists([f"?{name} {self._iri(HAS_TIME)} {time_of(name)} .", *until])
        for number, path in enumerate(absence.paths):
            self._exists(inner, partial(self._path, path=path, number=1000 + number, selected=()))
        scope.lines += ["FILTER NOT EXISTS {", *(f"  {line}" for line in inner.lines), "}"]

    def _exists(self, scope: _Scope, write: Callable[[_Scope], None]) -> None:
        within = scope.inner()
        write(within)
        scope.lines += exists(within.lines)

    # --- windows ---

    def window(self) -> Rewritten:
        """Every event with those in its window; or the events of each batch together."""
        node, slot, filters, paths = window_slot(self.plan)
        width = node.window.width
        assert width is not None
        self._reserve(slot)
        scope = _Scope()
        sliding = node.window.kind == "sliding"
        selected = tuple(dict.fromkeys(name for each in node.semantics for name in each.selected))
        self._member(scope, node, slot, filters, (*node.semantics, *paths), 0, selected)
        if sliding:
            inside = EventSlot(self._fresh(f"{slot.name}_in")[1:], slot.variable, slot.streams, slot.within)
            self._reserve(inside)
            self._member(scope, node, inside, filters, (*node.semantics, *paths), 1, ())
            self._same_partition(scope, [slot.name, inside.name])
            scope.lines.append(f"FILTER ({order_of(inside.name)} <= {order_of(slot.name)})")
            scope.lines.append(f"FILTER ({time_of(slot.name)} - {time_of(inside.name)} < {duration(width)})")
            by = [
                f"?{slot.name}",
                time_of(slot.name),
                order_of(slot.name),
                *(f"?{variable_name(each)}" for each in selected),
            ]
            member, order = inside.name, f"ORDER BY {time_of(slot.name)} {order_of(slot.name)}"
        else:
            keys = [self._of_event(scope, each, slot.name) for each in node.group_by]
            self._same_partition(scope, [slot.name])
            scope.lines.append(f"?{slot.name} {self._iri(MICROS)} ?{slot.name}_micros .")
            window = self._fresh("window")
            scope.lines.append(f"BIND (FLOOR(?{slot.name}_micros / {width}) AS {window})")
            names = [self._fresh(f"key{number}") for number in range(len(keys))]
            scope.lines += [f"BIND ({key} AS {name})" for key, name in zip(keys, names, strict=True)]
            own_key = [self._partition] if node.partition else []
            by, member, order = [window, *own_key, *names], slot.name, f"ORDER BY {window}"
        # What a sliding window holds of other groups shows in its start only.
        aggregates = [] if sliding and node.group_by else list(self._aggregates(scope, member))
        own = dict.fromkeys(
            (*by, f"?{member}", order_of(member), *(value for _, _, value in aggregates if value))
        )
        lines = [f"SELECT DISTINCT {' '.join(own)} WHERE {{", *(f"  {line}" for line in scope.lines), "}"]
        shown = [each for each in by if not each.endswith(("_ts", "_order"))]
        shown += [f"({op}({value or '*'}) AS {name})" for op, name, value in aggregates]
        shown.append(f'(GROUP_CONCAT(STR({order_of(member)}); separator=" ") AS ?members)')
        text = self._text(f"SELECT {' '.join(shown)}", lines, f"GROUP BY {' '.join(by)}\n{order}")
        return Rewritten(self.plan, text, (slot,), selected)

    def _member(
        self,
        scope: _Scope,
        node: WindowAggregate,
        slot: EventSlot,
        filters: Sequence[Expr],
        paths: Sequence[Semantic],
        number: int,
        selected: Sequence[str],
    ) -> None:
        """An event that passes the FILTERs and the PATHs of the window."""
        self._slot(scope, slot, ordered=True)
        for each in filters:
            self._condition(scope, Applied(each, {slot.variable: slot.name}, {}))
        for at, semantic in enumerate(paths):
            places = dict.fromkeys(semantic.variables, slot.name)
            self._path(scope, SlotPath(semantic, places), 100 * number + at, selected)

    def _aggregates(self, scope: _Scope, member: str) -> Iterator[tuple[str, str, str | None]]:
        """The selected aggregates that SPARQL has; those over an expression, or of other kinds, it has not.

        They are for a reader: a match has the exact ones (semantics 1), made from its members.
        """
        for column in self.plan.columns:
            found = column.expr
            if not isinstance(found, Aggregate) or found.op not in _AGGREGATES:
                continue
            name = self._fresh(column.name)
            if found.of is None:
                yield found.op, name, f"?{member}"
            elif isinstance(found.of, Field):
                value = self._value(scope, member, found.of, required=False)
                yield ("COUNT DISTINCT" if found.distinct else found.op), name, value

    # --- text ---

    def _reserve(self, *slots: EventSlot) -> None:
        """Keeps the names of events, and of what every event has, from standing for anything else."""
        for slot in slots:
            own = {f"{slot.name}{each}" for each in ("", "_ts", "_order", "_stream", "_micros")}
            if clash := (own - {slot.name}) & self._taken:
                raise refusal(self.plan, f"a variable of that name: ?{min(clash)}")
            self._taken |= own

    def _fresh(self, name: str) -> str:
        made = variable_name(name)
        while made in self._taken:
            made += "_"
        self._taken.add(made)
        return f"?{made}"

    def _iri(self, iri: Iri) -> str:
        return iri_text(iri, self.prefixes)

    def _text(self, select: str, lines: Sequence[str], order: str) -> str:
        body = "\n".join(f"  {line}" for line in lines)
        text = f"{select}\nWHERE {{\n{body}\n}}\n{order}\n"
        used = sorted(
            (name, iri) for name, iri in self.prefixes.items() if re.search(rf"(?<![\w:<]){name}:", text)
        )
        return "".join(f"PREFIX {name}: <{iri}>\n" for name, iri in used) + text
