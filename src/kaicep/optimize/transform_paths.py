"""The transformation of section 4.1: questions of a PATH about the event itself become CEP conditions.

`?e hvc:airflow ?rate . FILTER (?rate > 500)` reads an attribute and compares it. Each event has the
property once for every attribute that carries it, so the condition holds if it holds for one of them.

Only comparisons that mean the same in both languages are moved: between an attribute and a constant, or
two attributes, where neither side loses digits. `MATCH strict` counts events by their PATH, so there
nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from kaicep.optimize.event_vocabulary import EventVocabulary, read_as
from kaicep.optimize.rule import (
    RuleContext,
    map_semantics,
    may_be_taken_apart,
    streams_of,
    vocabulary_of,
    with_conditions,
)
from kaicep.plan.algebra import element_variables, pattern_variables
from kaicep.plan.catalog import Stream
from kaicep.plan.expressions import Call, Const, Expr, Field, TermConst, VariableRef, variables_of
from kaicep.plan.nodes import ChiPlan, Pattern, Semantic, WindowAggregate
from kaicep.plan.sparql import Element, Group, TripleBlock, TriplePattern
from kaicep.plan.sparql import Filter as PathFilter
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Variable
from kaicep.plan.text import resolved_text
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type, unify
from kaicep.plan.values import INTEGER_TYPES, native

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_TYPES = {
    XSD + "double": Type.FLOAT64,
    XSD + "string": Type.STRING,
    XSD + "boolean": Type.BOOL,
    XSD + "dateTime": Type.TIMESTAMP,
}


@dataclass(frozen=True)
class _Reading:
    """A property of an event that is read from attributes: where it stands, and the fields that carry it."""

    variable: str
    pattern: TriplePattern
    fields: tuple[Field, ...]


def transform_paths(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Turns one-hop paths that are only compared into conditions on attributes."""
    if isinstance(plan.body, Pattern) and plan.body.match == "strict":
        return plan
    words = vocabulary_of(plan, context)
    if not words.plain:
        return plan
    streams = streams_of(plan, context)
    moved: list[Expr] = []

    def transformed(condition: Semantic) -> Iterator[Semantic]:
        apart = may_be_taken_apart(condition, plan.body)
        plain = len(condition.alternatives) == 1 and not (condition.selected or condition.conditions)
        if not plain or not condition.variables or not apart:
            yield condition
            return
        group, found = _split(condition.alternatives[0], condition, streams, words, context)
        if not found:
            yield condition
            return
        moved.extend(found)
        if group.elements:
            yield replace(condition, alternatives=(group,), variables=_still(group, condition))

    changed = map_semantics(plan, transformed)
    for each in moved:
        context.note("transform_paths", f"the PATH asks the event itself: {resolved_text(each)}")
    return replace(changed, body=_with_conditions(changed.body, moved))


def _still(group: Group, condition: Semantic) -> tuple[str, ...]:
    names = element_variables(group)
    return tuple(each for each in condition.variables if each in names)


def _split(
    group: Group,
    condition: Semantic,
    streams: Mapping[str, tuple[Stream, ...]],
    words: EventVocabulary,
    context: RuleContext,
) -> tuple[Group, list[Expr]]:
    """What is left of the group, and the conditions that were taken out of it."""
    readings = {
        reading.pattern.object.name: reading
        for reading in _readings(group, condition, streams, words, context)
        if isinstance(reading.pattern.object, Variable)
    }
    movable = _movable(group, readings)
    found: list[Expr] = []
    taken: set[str] = set()
    for names, filters in _clusters(movable):
        made = _condition([each.condition for each in filters], names, readings)
        if made is not None and _only_here(group, names, filters, readings):
            found.append(made)
            taken |= names
            movable = {key: value for key, value in movable.items() if key not in map(id, filters)}
            group = _without(group, filters, [readings[name].pattern for name in names])
    return group, found


def _readings(
    group: Group,
    condition: Semantic,
    streams: Mapping[str, tuple[Stream, ...]],
    words: EventVocabulary,
    context: RuleContext,
) -> Iterator[_Reading]:
    for element in group.elements:
        for pattern in element.patterns if isinstance(element, TripleBlock) else ():
            subject, predicate = pattern.subject, pattern.predicate
            if not (isinstance(subject, Variable) and subject.name in condition.variables):
                continue
            if not isinstance(predicate, Iri) or predicate.value == RDF + "type":
                continue
            fields = _fields(subject.name, predicate, streams[subject.name], words, context)
            if fields:
                yield _Reading(subject.name, pattern, fields)


def _fields(
    variable: str, property: Iri, streams: tuple[Stream, ...], words: EventVocabulary, context: RuleContext
) -> tuple[Field, ...]:
    """One field for each attribute name that carries the property; none if it is more than that."""
    narrower = read_as(property, streams, context.knowledge)
    if not words.only_reads(property, narrower, streams):
        return ()
    carriers: dict[str, dict[str, Type | None]] = {}
    for stream in streams:
        if any(entity.property in narrower for _, entity in stream.entities):
            return ()
        for attribute, concept in stream.concepts:
            if concept in narrower:
                carriers.setdefault(attribute, {})[stream.name] = stream.type_of(attribute)
    fields: list[Field] = []
    for attribute, types in carriers.items():
        joined = next(iter(types.values()))
        if any(each is not joined for each in types.values()):
            return ()  # int64 here and float64 there: RDF tells them apart
        sources = tuple((each.name, (attribute,) if each.name in types else ()) for each in streams)
        fields.append(Field(variable, attribute, sources, joined))
    return tuple(fields)


def _movable(group: Group, readings: Mapping[str, _Reading]) -> dict[int, PathFilter]:
    """The FILTERs that mention nothing but what is read from attributes."""
    return {
        id(each): each
        for each in group.elements
        if isinstance(each, PathFilter)
        and variables_of(each.condition) <= readings.keys()
        and variables_of(each.condition)
    }


def _clusters(filters: Mapping[int, PathFilter]) -> list[tuple[frozenset[str], list[PathFilter]]]:
    """The FILTERs that share variables, together: they speak of the same values."""
    clusters: list[tuple[frozenset[str], list[PathFilter]]] = []
    for each in filters.values():
        names = variables_of(each.condition)
        touching = [cluster for cluster in clusters if cluster[0] & names]
        clusters = [cluster for cluster in clusters if cluster not in touching]
        merged = [old for cluster in touching for old in cluster[1]]
        clusters.append((names.union(*(cluster[0] for cluster in touching)), [*merged, each]))
    return clusters


def _only_here(
    group: Group, names: frozenset[str], filters: list[PathFilter], readings: Mapping[str, _Reading]
) -> bool:
    """Whether nothing else in the group mentions these variables."""
    own = {id(each) for each in filters}
    patterns = [readings[name].pattern for name in names]
    for element in group.elements:
        if id(element) in own:
            continue
        if isinstance(element, TripleBlock):
            rest = [each for each in element.patterns if each not in patterns]
            mentioned = {name for each in rest for name in pattern_variables(each)}
        else:
            mentioned = set(element_variables(element))
        if mentioned & names:
            return False
    return True


def _condition(filters: list[Expr], names: frozenset[str], readings: Mapping[str, _Reading]) -> Expr | None:
    """The FILTERs as one condition: some choice of attributes makes all of them true."""
    order = sorted(names)
    ways: list[Expr] = []
    for choice in product(*(readings[name].fields for name in order)):
        fields = dict(zip(order, choice, strict=True))
        parts = [_translated(each, fields) for each in filters]
        if any(part is None for part in parts):
            return None
        known = [part for part in parts if part is not None]
        if not all(isinstance(each, Call) and each.op in _COMPARISONS for each in known):
            # Every property must be there, whichever of them decides.
            known = [Call("=", (each, each), Type.BOOL) for each in choice] + known
        ways.append(_folded("and", known))
    return _folded("or", ways) if ways else None


def _folded(op: str, parts: list[Expr]) -> Expr:
    made = parts[0]
    for each in parts[1:]:
        made = Call(op, (made, each), Type.BOOL)
    return made


def _translated(expr: Expr, fields: Mapping[str, Field]) -> Expr | None:
    if not isinstance(expr, Call):
        return None
    if expr.op in ("and", "or", "not"):
        parts = [_translated(each, fields) for each in expr.args]
        if any(part is None for part in parts):
            return None
        return Call(expr.op, tuple(part for part in parts if part is not None), Type.BOOL)
    if expr.op not in _COMPARISONS:
        return None
    left, right = (_operand(each, fields) for each in expr.args)
    return _comparison(expr.op, left, right) if left is not None and right is not None else None


def _operand(expr: Expr, fields: Mapping[str, Field]) -> Field | Const | None:
    if isinstance(expr, VariableRef):
        return fields[expr.name]
    if not isinstance(expr, TermConst) or not isinstance(expr.term, Literal) or expr.term.language:
        return None
    literal = expr.term
    if literal.datatype in INTEGER_TYPES or literal.datatype == XSD + "decimal":
        return _number(literal)
    found = _TYPES.get(literal.datatype)
    if found is Type.TIMESTAMP:
        # Without a zone SPARQL compares it only within limits; with one it is an instant.
        moment = parse_time(literal.lexical) if literal.lexical.endswith("Z") else None
        return None if moment is None else Const(moment, found)
    value = native(literal)
    return None if found is None or value is None else Const(value, found)


def _number(literal: Literal) -> Const | None:
    """An exact number that float64 holds exactly, as the narrowest type."""
    if literal.datatype in INTEGER_TYPES:
        whole = int(literal.lexical)
        return Const(whole, Type.INT64) if abs(whole) <= 2**53 else None
    near = float(literal.lexical)
    if near == int(near) and abs(near) <= 2**53:
        return Const(int(near), Type.INT64)
    return Const(near, Type.FLOAT64)


def _comparison(op: str, left: Field | Const, right: Field | Const) -> Expr | None:
    types = (left.type, right.type)
    if None in types or types[0] is None or types[1] is None:
        return None
    joined = unify(types[0], types[1])
    if joined is None or (joined is Type.BOOL and op not in ("=", "!=")):
        return None
    if joined is Type.FLOAT64 and Type.INT64 in types and not _widens(left, right):
        return None
    sides = tuple(_widened(each, joined) for each in (left, right))
    return Call(op, sides, Type.BOOL)


def _widens(left: Field | Const, right: Field | Const) -> bool:
    """Whether widening the int64 side is what SPARQL does too: a constant beside a float64 attribute."""
    return any(
        isinstance(a, Const) and a.type is Type.INT64 and isinstance(b, Field) and b.type is Type.FLOAT64
        for a, b in ((left, right), (right, left))
    )


def _widened(side: Field | Const, joined: Type) -> Expr:
    if joined is Type.FLOAT64 and isinstance(side, Const) and side.type is Type.INT64:
        assert isinstance(side.value, int)
        return Const(float(side.value), Type.FLOAT64)
    return side


def _without(group: Group, filters: list[PathFilter], patterns: list[TriplePattern]) -> Group:
    gone = {id(each) for each in filters}
    kept: list[Element] = []
    for each in group.elements:
        if id(each) in gone:
            continue
        if isinstance(each, TripleBlock):
            left = tuple(pattern for pattern in each.patterns if pattern not in patterns)
            if left:
                kept.append(TripleBlock(left, span=each.span))
            continue
        kept.append(each)
    return Group(tuple(kept))


def _with_conditions(node: Pattern | WindowAggregate, moved: list[Expr]) -> Pattern | WindowAggregate:
    """The conditions at their places: on the chain of the one variable that they mention, or above."""
    single: dict[str, list[Expr]] = {}
    joint: list[Expr] = []
    for each in moved:
        names = variables_of(each)
        if len(names) == 1:
            single.setdefault(next(iter(names)), []).append(each)
        else:
            joint.append(each)

    if isinstance(node, WindowAggregate):
        return replace(node, chain=with_conditions(node.chain, single))
    chains = tuple(with_conditions(each, single) for each in node.chains)
    return replace(node, chains=chains, conditions=node.conditions + tuple(joint))
