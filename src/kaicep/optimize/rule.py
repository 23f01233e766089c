"""What a rewrite is: a plain function from a plan to one with the same meaning, with notes on what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from kaicep.knowledge.store import Knowledge
from kaicep.optimize.event_vocabulary import EventVocabulary, event_vocabulary
from kaicep.plan.algebra import element_variables
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import always_bound
from kaicep.plan.expressions import Expr, VariableRef
from kaicep.plan.nodes import Chain, ChiPlan, Latest, Pattern, Semantic, WindowAggregate
from kaicep.plan.terms import Triple


@dataclass(frozen=True)
class Note:
    """What a rule did, for a reader; `depends` are the triples that it took for granted."""

    rule: str
    text: str
    depends: tuple[Triple, ...] = ()


@dataclass
class RuleContext:
    """What the rules may look at, and where they note what they did."""

    catalog: Catalog
    knowledge: Knowledge
    notes: list[Note] = field(default_factory=list)

    def note(self, rule: str, text: str, depends: Iterable[Triple] = ()) -> None:
        """Writes down what a rule did."""
        self.notes.append(Note(rule, text, tuple(depends)))


Rule = Callable[[ChiPlan, RuleContext], ChiPlan]
"""A rewrite."""


def streams_of(plan: ChiPlan, context: RuleContext) -> dict[str, tuple[Stream, ...]]:
    """The streams of each event variable."""
    return {
        each.variable: tuple(context.catalog.streams[name] for name in each.streams)
        for each in plan.body.all_chains
    }


def vocabulary_of(plan: ChiPlan, context: RuleContext) -> EventVocabulary:
    """What the events of a query can say."""
    streams = (each for found in streams_of(plan, context).values() for each in found)
    return event_vocabulary(streams, context.knowledge)


@overload
def map_chains(body: Pattern, change: Callable[[Chain], Chain]) -> Pattern: ...
@overload
def map_chains(body: WindowAggregate, change: Callable[[Chain], Chain]) -> WindowAggregate: ...
def map_chains(
    body: Pattern | WindowAggregate, change: Callable[[Chain], Chain]
) -> Pattern | WindowAggregate:
    """The pattern or window with every chain changed."""
    if isinstance(body, Pattern):
        return replace(body, chains=tuple(change(each) for each in body.chains))
    return replace(body, chain=change(body.chain))


def with_conditions(chain: Chain, single: Mapping[str, Sequence[Expr]]) -> Chain:
    """A chain with what concerns its variable alone, from conditions by variable."""
    return replace(chain, conditions=(*chain.conditions, *single.get(chain.variable, ())))


def certain_variables(node: Pattern | WindowAggregate) -> frozenset[str]:
    """The variables that every match binds.

    Only of these may a condition on several events be taken apart: one that mentions an event which was
    left out does not apply as a whole, and one that mentions an absent event says what must not occur.
    """
    if isinstance(node, WindowAggregate):
        return frozenset((node.window.variable,))
    return frozenset(name for each in node.sequence for name in always_bound(each))


def may_be_taken_apart(condition: Semantic, node: Pattern | WindowAggregate) -> bool:
    """Whether it makes no difference that parts of a PATH are tested by themselves, and at other times.

    Under `next` and `strict` a part that is tested sooner may keep an event from taking a place.
    """
    if len(condition.variables) == 1:
        return True
    at_will = not isinstance(node, Pattern) or node.match == "any"
    return at_will and certain_variables(node).issuperset(condition.variables)


def given_variables(plan: ChiPlan) -> frozenset[str]:
    """The variables of the PATH that the partition goes by."""
    return frozenset(each.name for each in plan.body.partition if isinstance(each, VariableRef))


def map_semantics(
    plan: ChiPlan, change: Callable[[Semantic], Iterable[Semantic]], judged: bool = False
) -> ChiPlan:
    """The plan with every PATH condition replaced by those that `change` makes of it.

    Those that are more than one question are left as they are: with conditions on their variables, with
    variables of the partition, with blocks that are tested one by one. With `judged`, neither of the first
    two is an obstacle where it is the only one.
    """
    given = given_variables(plan)

    def changed(condition: Semantic) -> Iterable[Semantic]:
        if condition.blocks and may_be_taken_apart(condition, plan.body):
            condition = replace(condition, blocks=())
        names = frozenset[str]().union(*map(element_variables, condition.alternatives))
        obstacles = bool(condition.conditions) + (not given.isdisjoint(names))
        if condition.blocks or obstacles > judged:
            return (condition,)
        return change(condition)

    def on_chain(chain: Chain) -> Chain:
        return replace(chain, semantics=tuple(new for each in chain.semantics for new in changed(each)))

    def on_latest(latest: Latest) -> Latest:
        semantics = tuple(new for each in latest.semantics for new in changed(each))
        return replace(latest, chain=on_chain(latest.chain), semantics=semantics)

    body = map_chains(plan.body, on_chain)
    if isinstance(body, Pattern):
        body = replace(body, latest=tuple(map(on_latest, body.latest)))
    semantics = tuple(new for each in body.semantics for new in changed(each))
    return replace(plan, body=replace(body, semantics=semantics))
