"""The rule engine: the closure of a set of triples, and what a few more triples add to it.

Every triple is taken once, in turn: it is put among the facts, and every rule that has a premise like
it fires, its other premises being looked up among the facts so far. So each combination of premises
is found when the last of them is taken (semi-naive evaluation), and a base that is closed already is
never gone through again: `entails` starts from the new triples alone.

For speed, every premise of a rule becomes a small Python function of nested loops. Rules that differ
in their constants only share one text.

Transitive properties are treated apart, as a rule of two like premises finds every triple once for
every place in between. Here the left premise must be a *step*, a triple that is not there by
transitivity alone: every triple is then found once for every first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

from kaicep.knowledge.graph import LITERAL, Facts, Graph, Ids, Layer, Terms
from kaicep.knowledge.rules import TRANSITIVE, Pattern, Rule
from kaicep.plan.terms import OWL, RDF, RDFS, Iri, Term, Triple, Variable

__all__ = ["Derivation", "Program", "close", "entails", "program"]

Derivation = tuple[str, tuple[Ids, ...]]
# A triple that is to be taken, the rule it comes from and, where that is recorded, its premises.
Pending = list[tuple[int, int, int, str, "tuple[Ids, ...] | None"]]
Fire = Callable[[Facts, int, int, int, Pending], None]

GIVEN = "asserted"

# Premises with these predicates are looked up first: ontologies have few such triples.
_SCHEMA = frozenset(
    Iri(space + name)
    for space, names in (
        (RDFS, ("subClassOf", "subPropertyOf", "domain", "range")),
        (OWL, ("onProperty", "hasValue", "someValuesFrom", "allValuesFrom", "inverseOf")),
        (OWL, ("equivalentClass", "equivalentProperty", "sameAs")),
    )
    for name in names
)


@dataclass
class Program:
    """Rules made ready: which functions to call for a triple, found by its predicate and its class."""

    type: int
    same: int
    transitive_class: int
    transitive: dict[int, str]
    axioms: list[tuple[Ids, Derivation]] = field(default_factory=list)
    anywhere: list[Fire] = field(default_factory=list)
    by_predicate: dict[int, list[Fire]] = field(default_factory=dict)
    by_class: dict[int, list[Fire]] = field(default_factory=dict)


def program(rules: Iterable[Rule], level: str, terms: Terms, *, record: bool = False) -> Program:
    """The rules made ready for these term numbers; with `record`, premises are kept with what follows."""
    made = Program(
        terms.number(Iri(RDF + "type")),
        terms.number(Iri(OWL + "sameAs")),
        terms.number(Iri(OWL + "TransitiveProperty")) if level == "owl-rl" else -1,
        {terms.number(each): name for each, name in TRANSITIVE[level].items()},
    )
    for rule in rules:
        premises, conclusions = _ground(rule.premises), _ground(rule.conclusions)
        if premises is not None and conclusions is not None:
            why = rule.name, tuple(map(terms.ids, premises))
            made.axioms += [(terms.ids(each), why) for each in conclusions]
            continue
        for at, (_, p, o) in enumerate(rule.premises):
            fire = _function(rule, at, terms, record)
            if isinstance(p, Variable):
                made.anywhere.append(fire)
            elif p == Iri(RDF + "type") and not isinstance(o, Variable):
                made.by_class.setdefault(terms.number(o), []).append(fire)
            else:
                made.by_predicate.setdefault(terms.number(p), []).append(fire)
    return made


def _ground(patterns: tuple[Pattern, ...]) -> tuple[Triple, ...] | None:
    """The patterns as triples, or None where they have variables."""
    triples: list[Triple] = []
    for s, p, o in patterns:
        if isinstance(s, Variable) or isinstance(p, Variable) or isinstance(o, Variable):
            return None
        triples.append((s, p, o))
    return tuple(triples)


def close(
    facts: Facts,
    triples: Iterable[Ids],
    rules: Program,
    record: dict[Ids, Derivation] | None = None,
) -> None:
    """Add the triples to the facts, and everything that follows from them together."""
    pending: Pending = []
    for s, p, o in triples:
        pending.append((s, p, o, GIVEN, None))
        _take(facts, pending, rules, record)
    for (s, p, o), (name, premises) in rules.axioms:
        pending.append((s, p, o, name, premises))
        _take(facts, pending, rules, record)


def entails(base: Graph, triples: Iterable[Ids], rules: Program) -> Graph:
    """What these triples add to a graph that is closed already, they themselves included."""
    layer = Layer(base)
    pending: Pending = [(s, p, o, GIVEN, None) for s, p, o in triples]
    _take(layer, pending, rules, None)
    return layer.own


def _take(facts: Facts, pending: Pending, rules: Program, record: dict[Ids, Derivation] | None) -> None:
    by_predicate, by_class, anywhere = rules.by_predicate, rules.by_class, rules.anywhere
    type_, same, transitive = rules.type, rules.same, rules.transitive
    while pending:
        s, p, o, name, premises = pending.pop()
        # No RDF (a literal or a nameless property in the wrong place), or a mere x = x.
        if s & 3 == LITERAL or p & 3 or (p == same and name is not GIVEN and (s == o or o & 3 == LITERAL)):
            continue
        if not facts.add(s, p, o):
            continue
        if record is not None:
            record[s, p, o] = (name, premises or ())
        for fire in anywhere:
            fire(facts, s, p, o, pending)
        for fire in by_predicate.get(p, ()):
            fire(facts, s, p, o, pending)
        if p == type_:
            for fire in by_class.get(o, ()):
                fire(facts, s, p, o, pending)
            if o == rules.transitive_class and not facts.is_transitive(s):
                facts.add_transitive(s)
                for x, y in tuple(facts.pairs(s)):
                    _walk(facts, x, s, y, True, "prp-trp", pending)
        rule = transitive.get(p)
        if rule is None and facts.is_transitive(p):
            rule = "prp-trp"
        if rule is not None:
            _walk(facts, s, p, o, name != rule, rule, pending)


def _walk(facts: Facts, s: int, p: int, o: int, step: bool, rule: str, pending: Pending) -> None:
    """What follows by transitivity from a triple that was just added."""
    if step:
        facts.add_step(s, p, o)
        for beyond in facts.objects(o, p):
            pending.append((s, p, beyond, rule, ((s, p, o), (o, p, beyond))))
    for before in facts.steps_to(p, s):
        pending.append((before, p, o, rule, ((before, p, s), (s, p, o))))


def _function(rule: Rule, at: int, terms: Terms, record: bool) -> Fire:
    """The function to call with a triple that may meet premise number `at` of the rule."""
    constants: dict[Term, str] = {}
    names: dict[Variable, str] = {}

    def word(term: Term | Variable) -> str:
        if isinstance(term, Variable):
            return names.setdefault(term, f"v{len(names)}")
        return constants.setdefault(term, f"k{len(constants)}")

    premises = tuple((word(s), word(p), word(o)) for s, p, o in rule.premises)
    conclusions = tuple((word(s), word(p), word(o)) for s, p, o in rule.conclusions)
    schema = tuple(p in _SCHEMA for _, p, _ in rule.premises)
    make = _maker(premises, conclusions, schema, at, len(constants), record)
    return make(rule.name, *(terms.number(each) for each in constants))


Words = tuple[str, str, str]


@cache
def _maker(
    premises: tuple[Words, ...],
    conclusions: tuple[Words, ...],
    schema: tuple[bool, ...],
    at: int,
    constants: int,
    record: bool,
) -> Callable[..., Fire]:
    """Given a rule's constants, the function for its premise `at`: nested loops over the other ones."""
    rows = [
        f"def make(name, {', '.join(f'k{each}' for each in range(constants))}):",
        "    def fire(g, s, p, o, pending):",
    ]
    bound: dict[str, str] = {}
    for word, given in zip(premises[at], ("s", "p", "o"), strict=True):
        if word in bound or word.startswith("k"):
            rows.append(f"        if {given} != {bound.get(word, word)}: return")
        bound.setdefault(word, given if word.startswith("v") else word)
    depth = 2
    left = [each for each in range(len(premises)) if each != at]
    while left:
        # Most of it known first; among equals the one that is about the ontology.
        best = max(left, key=lambda n: (_ease(premises[n], schema[n], bound), -n))
        left.remove(best)
        rows.append("    " * depth + _loop(premises[best], bound))
        depth += 1
    told = tuple(f"({', '.join(bound.get(w, w) for w in each)})" for each in premises)
    why = f"({', '.join(told)},)" if record else "None"
    for s, p, o in conclusions:
        triple = ", ".join(bound.get(word, word) for word in (s, p, o))
        rows.append("    " * depth + f"pending.append(({triple}, name, {why}))")
    rows.append("    return fire")
    space: dict[str, Callable[..., Fire]] = {}
    exec("\n".join(rows), space)
    return space["make"]


def _ease(premise: Words, schema: bool, bound: dict[str, str]) -> tuple[bool, bool, int, bool]:
    known = [word in bound or word.startswith("k") for word in premise]
    # A subject has few values of a property, a value may have very many subjects.
    return all(known), schema and (known[0] or known[2]), sum(known), known[0]


def _loop(premise: Words, bound: dict[str, str]) -> str:
    """The line of code that goes through the triples like a premise, and binds what it leaves open.

    >>> _loop(("v0", "k0", "v1"), {"v0": "s"})
    'for v1 in g.objects(s, k0):'
    """
    known = tuple(word in bound or word.startswith("k") for word in premise)
    s, p, o = (bound.get(word, word) for word in premise)
    for word in premise:
        if word.startswith("v"):
            bound.setdefault(word, word)
    if len({word for word, fixed in zip(premise, known, strict=True) if not fixed}) < 3 - sum(known):
        raise ValueError("a premise may not leave one variable open in two places")
    match known:
        case (True, True, True):
            return f"if g.has({s}, {p}, {o}):"
        case (True, True, False):
            return f"for {o} in g.objects({s}, {p}):"
        case (False, True, True):
            return f"for {s} in g.subjects({p}, {o}):"
        case (False, True, False):
            return f"for {s}, {o} in g.pairs({p}):"
        case (True, False, False):
            return f"for {p}, {o} in g.about({s}):"
        case (False, False, True):
            return f"for {s}, {p} in g.towards({o}):"
    raise ValueError("a premise needs a known subject and predicate, object and predicate, or one of them")
