"""Plans: small immutable records that say what an answer is, not how it is found.

A `ChiPlan` has columns over a `Pattern` or a `WindowAggregate`, and these have one `Chain` for each event
variable. An `EpPlan` is a tree: `Solutions` or `Triples` over the operators of SPARQL, of which `Temporal`
is the one that the paper adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import ClassVar

from kaicep.errors import Diagnostic, SourceText
from kaicep.plan.chi import AggregateWindow, Element, SpanWindow
from kaicep.plan.expressions import Aggregate, Expr
from kaicep.plan.sparql import MOST_DERIVED, Group, TriplePattern, WindowClause
from kaicep.plan.terms import Iri, Term, Variable
from kaicep.plan.types import Type

# --- chi-CEP ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of WITHIN in microseconds; None is no bound."""

    low: int | None = None
    low_inclusive: bool = True
    high: int | None = None
    high_inclusive: bool = False

    def __contains__(self, ts: int) -> bool:
        if self.low is not None and (ts < self.low or (ts == self.low and not self.low_inclusive)):
            return False
        return self.high is None or ts < self.high or (ts == self.high and self.high_inclusive)


@dataclass(frozen=True, slots=True)
class Root:
    """Where a PATH leaves an event: a property of it, the attributes that carry it, and what it binds.

    `literals` and `entities` have for each stream the attributes to read, as values and as things of the
    knowledge base; the event has the property once for each that is not null. `name` is the variable
    of the PATH that is bound to it.
    """

    variable: str
    property: Iri
    name: str
    literals: tuple[tuple[str, tuple[str, ...]], ...]
    entities: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A PATH with its events cut off: what is left is a question to the knowledge base alone.

    Its answer is a table from the values of the roots to those of the selected variables.
    """

    roots: tuple[Root, ...]
    rest: Group


@dataclass(frozen=True)
class Semantic:
    """A condition that the knowledge base decides: it holds where one of the alternatives has a solution.

    `variables` are the event variables that it mentions, outside of aggregates; `selected` the PATH
    variables whose values the query wants (then there is one match per distinct solution of these).
    `relation` is how the condition is decided by looking it up, once the optimiser has found out.

    `conditions` are FILTERs and JOINs on the PATH's variables (`?e.flowrate > ?limit * 1.1`): expressions
    of `Field` and `VariableRef`, all of which must be true of one and the same solution. `blocks` are the
    AND blocks that share variables, where there are several: the one alternative is all of them together.
    While some of its events are not bound, or where they are left out, what can be said of the others
    counts (`plan.paths.restricted`).
    """

    alternatives: tuple[Group, ...]
    variables: tuple[str, ...]
    selected: tuple[str, ...] = ()
    relation: Relation | None = None
    conditions: tuple[Expr, ...] = ()
    blocks: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Chain:
    """The events that a variable may take: those of its streams, inside the bounds, past its conditions.

    `annotated` is whether each event needs its graph. `semantics` are the PATH conditions that mention this
    variable alone, or none; `conditions` the FILTERs.
    """

    variable: str
    streams: tuple[str, ...]
    within: Interval = Interval()
    annotated: bool = False
    semantics: tuple[Semantic, ...] = ()
    conditions: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Latest:
    """The last known event of something else, found for a match of the other variables (an as-of join).

    The chain is that of its variable. A candidate passes it, has in each of the `keys` the same value on
    its own side as the match has on the other, and meets the `semantics`; of these the last in order is
    taken, and `conditions` and `windows` are tested on it. Where they name several LATEST variables, they
    stand with the last of these. Without a candidate there is no match, or (`optional`) none is bound.
    """

    variable: str
    chain: Chain
    optional: bool = False
    keys: tuple[tuple[Expr, Expr], ...] = ()
    semantics: tuple[Semantic, ...] = ()
    conditions: tuple[Expr, ...] = ()
    windows: tuple[SpanWindow, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """Events that belong together.

    `chains` has one chain for each variable, in the order of FROM. `sequence` is the pattern; without
    SEQ it is one `Together`. `conditions` are those that one event alone cannot decide; `semantics`
    the PATH conditions that tie several variables, are joined by OR, or whose variables are selected.
    `streams` are all streams in the order of their first mention, those of `latest` included.

    `partition` has attributes, as `Field`, and variables of the PATH, as `VariableRef`; for these `ties`
    says of each event variable how its events are in a partition: the part of the PATH that ties it to
    them, with no other event in it.
    """

    chains: tuple[Chain, ...]
    streams: tuple[str, ...]
    sequence: tuple[Element, ...]
    conditions: tuple[Expr, ...] = ()
    semantics: tuple[Semantic, ...] = ()
    windows: tuple[SpanWindow, ...] = ()
    match: str = "any"
    skip: str = "none"
    skip_variable: str | None = None
    partition: tuple[Expr, ...] = ()
    deadline: int | None = None
    """How long after the first event a trailing absence is awaited, where there is one."""
    key: tuple[tuple[str, Expr], ...] = ()
    """What all events of a match have in common, by variable, where the optimiser found such a thing."""
    latest: tuple[Latest, ...] = ()
    ties: tuple[Semantic, ...] = ()

    @property
    def all_chains(self) -> tuple[Chain, ...]:
        """The chains of all variables, those of LATEST included."""
        return (*self.chains, *(each.chain for each in self.latest))

    @property
    def all_semantics(self) -> tuple[Semantic, ...]:
        """The PATH conditions of the pattern, of its chains and of LATEST."""
        above = *self.semantics, *(path for each in self.latest for path in each.semantics)
        return *above, *(path for each in self.all_chains for path in each.semantics)


@dataclass(frozen=True)
class WindowAggregate:
    """Aggregates over a window of one variable's events.

    `semantics` are PATH conditions whose variables are wanted outside of them: selected, grouped by, in
    HAVING (the others are in the chain). `group_by` and `partition` have attributes, as `Field`, and
    variables of the PATH, as `VariableRef`; `ties` is as in a pattern.

    `expected` is there for ABSENT: what the PATH asks of the knowledge alone. The answers of a window are
    then the groups that it has solutions for and that no event is in.
    """

    chain: Chain
    streams: tuple[str, ...]
    window: AggregateWindow
    group_by: tuple[Expr, ...] = ()
    partition: tuple[Expr, ...] = ()
    having: tuple[Expr, ...] = ()
    semantics: tuple[Semantic, ...] = ()
    ties: tuple[Semantic, ...] = ()
    expected: Semantic | None = None

    @property
    def chains(self) -> tuple[Chain, ...]:
        """The one chain."""
        return (self.chain,)

    @property
    def all_chains(self) -> tuple[Chain, ...]:
        """The one chain."""
        return (self.chain,)

    @property
    def all_semantics(self) -> tuple[Semantic, ...]:
        """The PATH conditions of the window and of its chain."""
        return (*self.semantics, *self.chain.semantics)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A selected column: its name, what it is, its type (None: that of a term of the knowledge base).

    `many` marks the attribute of a loop, whose value is a list.
    """

    name: str
    expr: Expr
    type: Type | None
    many: bool = False


@dataclass(frozen=True)
class ChiPlan:
    """A chi-CEP query, resolved: its name, its text (both are part of its matches' ids), and its plan.

    `reads` are the streams that it reads, `variables` its event variables in the order of FROM.
    """

    language: ClassVar[str] = "chi-CEP"
    name: str
    text: str
    body: Pattern | WindowAggregate
    columns: tuple[OutputColumn, ...]
    reads: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False)
    source: SourceText | None = field(default=None, compare=False, repr=False)

    @property
    def is_absent(self) -> bool:
        """Whether it is about what has no events (ABSENT): then every event of its streams tells the time."""
        return isinstance(self.body, WindowAggregate) and self.body.expected is not None


# --- EP-SPARQL -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """An operator of a plan."""

    def inputs(self) -> tuple[Node, ...]:
        """The operators that feed this one."""
        below: list[Node] = []
        for each in fields(self):
            value = getattr(self, each.name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Node):
                    below.append(item)
        return tuple(below)

    def walk(self) -> Iterator[Node]:
        """This operator and all below it."""
        yield self
        for each in self.inputs():
            yield from each.walk()


@dataclass(frozen=True)
class Bgp(Node):
    """Triple patterns that must all be met; predicates may be paths."""

    patterns: tuple[TriplePattern, ...]


@dataclass(frozen=True)
class Join(Node):
    """Compatible solutions of both sides."""

    left: Node
    right: Node


@dataclass(frozen=True)
class LeftJoin(Node):
    """OPTIONAL: the left side, joined with the right where there is something to join."""

    left: Node
    right: Node
    condition: Expr | None = None


@dataclass(frozen=True)
class Union(Node):
    """The solutions of either side."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Minus(Node):
    """The left side without what the right side knows of."""

    left: Node
    right: Node


@dataclass(frozen=True)
class FilterSolutions(Node):
    """The solutions for which the condition is true."""

    input: Node
    condition: Expr


@dataclass(frozen=True)
class Extend(Node):
    """BIND: a value more."""

    input: Node
    name: str
    expr: Expr


@dataclass(frozen=True)
class ValuesTable(Node):
    """VALUES; None is unbound. The unit table has no variable and one row."""

    variables: tuple[str, ...] = ()
    rows: tuple[tuple[Term | None, ...], ...] = ((),)


@dataclass(frozen=True)
class Temporal(Node):
    """SEQ, EQUALS and the others: pairs that stand in a temporal relation.

    `condition` is the FILTER of the optional side (OPTIONALSEQ: the left, EQUALSOPTIONAL: the right).
    """

    op: str
    left: Node
    right: Node
    condition: Expr | None = None
    consumption: str = "unrestricted"


@dataclass(frozen=True)
class Grouping(Node):
    """GROUP BY: keys by name (None: the variable itself) and aggregates by name."""

    input: Node
    keys: tuple[tuple[str, Expr | None], ...]
    aggregates: tuple[tuple[str, Aggregate], ...]


@dataclass(frozen=True)
class InsideWindow(Node):
    """A WINDOW block: plain SPARQL over the knowledge and the triples in a window, which lose their time."""

    input: Node
    window: WindowClause


@dataclass(frozen=True)
class InsideGraph(Node):
    """A GRAPH block: plain SPARQL over what is stated in a named graph of the knowledge."""

    input: Node
    name: Term | Variable


@dataclass(frozen=True)
class Evaluations(Node):
    """What is evaluated whenever its windows are, with the interval of the longest of them.

    `report` says which solutions count (RSTREAM, ISTREAM, DSTREAM).
    """

    input: Node
    windows: tuple[WindowClause, ...]
    report: str = "RSTREAM"


@dataclass(frozen=True)
class Solutions(Node):
    """SELECT: the named variables of each solution; `distinct` where each is to be counted once."""

    input: Node
    names: tuple[str, ...]
    distinct: bool = False


@dataclass(frozen=True)
class Ordered(Node):
    """ORDER BY, LIMIT and OFFSET of one evaluation of windows, over what is not projected yet.

    A key is an expression, and whether the greatest is first. Alike in all keys, solutions go by their text.
    """

    input: Node
    names: tuple[str, ...]
    distinct: bool
    keys: tuple[tuple[Expr, bool], ...]
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Triples(Node):
    """CONSTRUCT: the template, filled in for each solution."""

    input: Node
    template: tuple[TriplePattern, ...]


@dataclass(frozen=True)
class EpPlan:
    """An EP-SPARQL query, resolved. It reads every stream of the run, so `reads` names none.

    Rules that derive more than `most_derived` triples with one end have run away.
    """

    language: ClassVar[str] = "EP-SPARQL"
    reads: ClassVar[tuple[str, ...]] = ()
    variables: ClassVar[tuple[str, ...]] = ()
    name: str
    text: str
    root: Solutions | Triples
    prefixes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False)
    source: SourceText | None = field(default=None, compare=False, repr=False)
    most_derived: int = MOST_DERIVED


# --- whole queries ---------------------------------------------------------------------------------


QueryPlan = ChiPlan | EpPlan


@dataclass(frozen=True)
class Program:
    """The queries of a run, each after those whose output it reads."""

    queries: tuple[QueryPlan, ...]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {each.name: place for place, each in enumerate(self.queries)}

    def has(self, names: Collection[str]) -> bool:
        """Whether all of these queries are among them."""
        return self._places.keys() >= set(names)

    def only(self, names: Collection[str]) -> Program:
        """Some of the queries, in their order."""
        places = sorted(self._places[each] for each in names if each in self._places)
        return Program(tuple(self.queries[each] for each in places))

    @property
    def chi_plans(self) -> tuple[ChiPlan, ...]:
        """Those in chi-CEP."""
        return tuple(each for each in self.queries if isinstance(each, ChiPlan))

    @property
    def ep_plans(self) -> tuple[EpPlan, ...]:
        """Those in EP-SPARQL."""
        return tuple(each for each in self.queries if isinstance(each, EpPlan))


def walk_objects(value: object) -> Iterator[object]:
    """All objects of a plan, whatever contains them: operators, conditions, expressions."""
    yield value
    below: Sequence[object] = ()
    if is_dataclass(value):
        below = [getattr(value, each.name) for each in fields(value)]
    elif isinstance(value, tuple):
        below = value
    for each in below:
        yield from walk_objects(each)
