"""Which PATHs mean the same beside all events of an archive as beside one event alone."""

from __future__ import annotations

from collections.abc import Iterator

from kaicep.archive.rewrite.logical import refusal
from kaicep.archive.rewrite.words import variable_name
from kaicep.plan.algebra import element_variables
from kaicep.plan.expressions import Call, Exists, walk
from kaicep.plan.functions import OWN_FUNCTIONS
from kaicep.plan.nodes import ChiPlan, Semantic
from kaicep.plan.sparql import (
    Alternative,
    Filter,
    Group,
    Inverse,
    Negated,
    Predicate,
    Repeat,
    Sequence,
    TriplePattern,
    Triples,
    Values,
    may_be_empty,
)
from kaicep.plan.terms import Variable

__all__ = ["check_group", "path_variables"]


def check_group(plan: ChiPlan, group: Group, semantic: Semantic) -> None:
    """Refuses PATHs that mean something else beside the events of the whole archive."""
    events = set(semantic.variables)
    patterns: list[TriplePattern] = []
    for element in group.elements:
        if isinstance(element, Triples):
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
        case Sequence(parts):
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
