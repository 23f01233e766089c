"""What a rewrite is: a plain function from a plan to a plan that says the same, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kaicep.knowledge.store import Knowledge
from kaicep.optimize.event_vocabulary import EventVocabulary, event_vocabulary
from kaicep.plan.algebra import element_variables
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import always_bound
from kaicep.plan.expressions import Expr, VariableRef
from kaicep.plan.nodes import (
    Filter,
    Node,
    Pattern,
    Project,
    QueryPlan,
    Scan,
    Semantic,
    SemanticFilter,
    WindowAggregate,
)
from kaicep.plan.terms import Triple

__all__ = [
    "Context",
    "Note",
    "Rule",
    "certain_variables",
    "map_chains",
    "map_semantics",
    "may_be_taken_apart",
    "streams_of",
    "vocabulary_of",
    "with_conditions",
    "with_source",
]


@dataclass(frozen=True)
class Note:
    """What a rule did, for a reader; `depends` are the triples that it took for granted."""

    rule: str
    text: str
    depends: tuple[Triple, ...] = ()


@dataclass
class Context:
    """What the rules may look at, and where they note what they did."""

    catalog: Catalog
    knowledge: Knowledge
    notes: list[Note] = field(default_factory=list)

    def note(self, rule: str, text: str, depends: Iterable[Triple] = ()) -> None:
        """Writes down what a rule did."""
        self.notes.append(Note(rule, text, tuple(depends)))


Rule = Callable[[QueryPlan, Context], QueryPlan]
"""A rewrite."""


def streams_of(node: Node, context: Context) -> dict[str, tuple[Stream, ...]]:
    """The streams of each event variable below an operator."""
    return {
        each.variable: tuple(context.catalog.streams[name] for name in each.streams)
        for each in node.walk()
        if isinstance(each, Scan)
    }


def vocabulary_of(plan: QueryPlan, context: Context) -> EventVocabulary:
    """What the events of a query can say."""
    streams = (each for found in streams_of(plan.root, context).values() for each in found)
    return event_vocabulary(streams, context.knowledge)


def with_source(plan: QueryPlan, change: Callable[[Node], Node]) -> QueryPlan:
    """The plan with the pattern or the window below its projection changed; EP-SPARQL as it is."""
    if not isinstance(plan.root, Project):
        return plan
    return replace(plan, root=replace(plan.root, input=change(plan.root.input)))


def map_chains(node: Node, change: Callable[[Node], Node]) -> Node:
    """The pattern or window with every chain changed."""
    if isinstance(node, Pattern):
        return replace(node, chains=tuple(change(each) for each in node.chains))
    assert isinstance(node, WindowAggregate)
    return replace(node, input=change(node.input))


def with_conditions(chain: Node, single: Mapping[str, Sequence[Expr]]) -> Node:
    """A chain with what concerns its variable alone, from conditions by variable."""
    (variable,) = (each.variable for each in chain.walk() if isinstance(each, Scan))
    own = tuple(single.get(variable, ()))
    if not own:
        return chain
    if isinstance(chain, Filter):
        return replace(chain, conditions=chain.conditions + own)
    return Filter(chain, own)


def certain_variables(node: Node) -> frozenset[str]:
    """The variables that every match binds.

    Only of these may a condition on several events be taken apart: one that mentions an event which was
    left out does not apply as a whole, and one that mentions an absent event says what must not occur.
    """
    if isinstance(node, WindowAggregate):
        return frozenset((node.window.variable,))
    assert isinstance(node, Pattern)
    return frozenset(name for each in node.sequence for name in always_bound(each))


def may_be_taken_apart(condition: Semantic, node: Node) -> bool:
    """Whether it makes no difference that parts of a PATH are tested by themselves, and at other times.

    Under `next` and `strict` a part that is tested sooner may keep an event from taking a place.
    """
    if len(condition.variables) == 1:
        return True
    at_will = not isinstance(node, Pattern) or node.match == "any"
    return at_will and certain_variables(node).issuperset(condition.variables)


def map_semantics(plan: QueryPlan, change: Callable[[Semantic], Iterable[Semantic]]) -> QueryPlan:
    """The plan with every PATH condition replaced by those that `change` makes of it.

    Those that are more than one question are left as they are: with conditions on their variables, with
    variables of the partition, with blocks that are tested one by one.
    """
    source = plan.root.input if isinstance(plan.root, Project) else None
    partition = source.partition if isinstance(source, Pattern | WindowAggregate) else ()
    given = {each.name for each in partition if isinstance(each, VariableRef)}

    def changed(condition: Semantic) -> Iterable[Semantic]:
        assert source is not None
        if condition.blocks and may_be_taken_apart(condition, source):
            condition = replace(condition, blocks=())
        names = frozenset[str]().union(*map(element_variables, condition.alternatives))
        if condition.blocks or condition.conditions or not given.isdisjoint(names):
            return (condition,)
        return change(condition)

    def on_chain(chain: Node) -> Node:
        if isinstance(chain, Filter):
            return replace(chain, input=on_chain(chain.input))
        if not isinstance(chain, SemanticFilter):
            return chain
        conditions = tuple(new for each in chain.conditions for new in changed(each))
        return replace(chain, conditions=conditions) if conditions else chain.input

    def on_source(node: Node) -> Node:
        node = map_chains(node, on_chain)
        assert isinstance(node, Pattern | WindowAggregate)
        return replace(node, semantics=tuple(new for each in node.semantics for new in changed(each)))

    return with_source(plan, on_source)
