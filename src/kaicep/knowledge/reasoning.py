"""The rule engine: the closure of a set of triples, and what a few more triples add to it.

Every triple is taken once, in turn: it is put among the facts, and every rule that has a premise like
it fires, its other premises being looked up among the facts so far. So each combination of premises
is found when the last of them is taken (semi-naive evaluation), and a base that is closed already is
never gone through again: `entails` starts from the new triples alone.

For speed, every premise of a rule becomes a small Python function of nested loops. Rules that differ
in their constants only share one text. So does every conclusion, for the way back: a `Goal` tells all
premises that would give a triple, which is what taking triples away needs (see `changes`).

Transitive properties are treated apart, as a rule of two like premises finds every triple once for
every place in between. Here the left premise must be a *step*, a triple that is not there by
transitivity alone: every triple is then found once for every first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from kaicep.knowledge.graph import LITERAL, Ids, Known, Layer, RuleFacts, TermTable, TripleIndex
from kaicep.knowledge.rules import TRANSITIVE, Pattern, Rule
from kaicep.plan.terms import OWL, RDF, RDFS, Iri, Term, Triple, Variable

Derivation = tuple[str, tuple[Ids, ...]]
"""A rule and the triples it was applied to."""
# A triple that is to be taken, the rule it comes from and, where that is recorded, its premises.
Pending = list[tuple[int, int, int, str, "tuple[Ids, ...] | None"]]
Fire = Callable[[RuleFacts, int, int, int, Pending], None]
# The premises among the facts, one way after the other, that give a triple.
Goal = Callable[[RuleFacts, int, int, int], Iterator["tuple[Ids, ...]"]]

GIVEN = "asserted"
"""The name of the rule, where a triple was stated."""

# Premises with these predicates are looked up first: ontologies have few such triples.
SCHEMA = frozenset(
    Iri(space + name)
    for space, names in (
        (RDFS, ("subClassOf", "subPropertyOf", "domain", "range")),
        (OWL, ("onProperty", "hasValue", "someValuesFrom", "allValuesFrom", "inverseOf")),
        (OWL, ("equivalentClass", "equivalentProperty", "sameAs")),
    )
    for name in names
)
"""What ontologies say of classes and properties."""


@dataclass
class RuleProgram:
    """Rules made ready: which functions to call for a triple, found by its predicate and its class."""

    type: int
    same: int
    transitive_class: int
    transitive: dict[int, str]
    axioms: list[tuple[Ids, Derivation]] = field(default_factory=list)
    anywhere: list[Fire] = field(default_factory=list)
    by_predicate: dict[int, list[Fire]] = field(default_factory=dict)
    by_class: dict[int, list[Fire]] = field(default_factory=dict)
    goals_anywhere: list[Goal] = field(default_factory=list)
    goals_by_predicate: dict[int, list[Goal]] = field(default_factory=dict)
    goals_by_class: dict[int, list[Goal]] = field(default_factory=dict)

    def transitivity(self, facts: RuleFacts, p: int) -> str | None:
        """The name of the rule by which the property is transitive, if it is."""
        rule = self.transitive.get(p)
        return "prp-trp" if rule is None and facts.is_transitive(p) else rule

    def declared(self, p: int, rule: str) -> tuple[Ids, ...]:
        """What must hold for the property to be transitive by that rule."""
        return ((p, self.type, self.transitive_class),) if rule == "prp-trp" else ()


def program(rules: Iterable[Rule], level: str, terms: TermTable, *, record: bool = False) -> RuleProgram:
    """The rules made ready for these term numbers.

    With `record`, premises are kept with what follows, and the way back is made ready too.
    """
    made = RuleProgram(
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
        for at, (_, p, o) in enumerate(rule.conclusions if record else ()):
            goal = _goal(rule, at, terms)
            if isinstance(p, Variable):
                made.goals_anywhere.append(goal)
            elif p == Iri(RDF + "type") and not isinstance(o, Variable):
                made.goals_by_class.setdefault(terms.number(o), []).append(goal)
            else:
                made.goals_by_predicate.setdefault(terms.number(p), []).append(goal)
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
    facts: RuleFacts,
    triples: Iterable[Ids],
    rules: RuleProgram,
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


def entails(base: Known, triples: Iterable[Ids], rules: RuleProgram) -> TripleIndex:
    """What these triples add to a graph that is closed already, they themselves included."""
    layer = Layer(base)
    pending: Pending = [(s, p, o, GIVEN, None) for s, p, o in triples]
    _take(layer, pending, rules, None)
    return layer.own


def _take(
    facts: RuleFacts, pending: Pending, rules: RuleProgram, record: dict[Ids, Derivation] | None
) -> None:
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
                become_transitive(facts, s)
                _walk_all(facts, s, rules, pending)
        rule = transitive.get(p)
        if rule is None and facts.is_transitive(p):
            rule = "prp-trp"
        if rule is not None:
            if name != rule:
                facts.add_step(s, p, o)
            _walk(facts, s, p, o, rule, rules, pending)


def sayable(s: int, p: int, o: int, name: str, rules: RuleProgram) -> bool:
    """Whether a triple that comes by this rule is RDF, and more than a mere x = x."""
    trivial = p == rules.same and name is not GIVEN and (s == o or o & 3 == LITERAL)
    return not (s & 3 == LITERAL or p & 3 or trivial)


def consequences(facts: RuleFacts, s: int, p: int, o: int, rules: RuleProgram) -> Pending:
    """Everything that a rule gives from this triple and others among the facts, known already or not."""
    pending: Pending = []
    for fire in rules.anywhere:
        fire(facts, s, p, o, pending)
    for fire in rules.by_predicate.get(p, ()):
        fire(facts, s, p, o, pending)
    if p == rules.type:
        for fire in rules.by_class.get(o, ()):
            fire(facts, s, p, o, pending)
        if o == rules.transitive_class:
            _walk_all(facts, s, rules, pending)
    rule = rules.transitivity(facts, p)
    if rule is not None:
        _walk(facts, s, p, o, rule, rules, pending)
    return [each for each in pending if sayable(*each[:4], rules)]


def goals(
    facts: RuleFacts, s: int, p: int, o: int, rules: RuleProgram
) -> Iterator[tuple[str | None, tuple[Ids, ...]]]:
    """All premises from which rules give this triple, and the rule's name where it is transitivity."""
    if not sayable(s, p, o, "", rules):
        return
    some = [*rules.goals_by_predicate.get(p, ()), *rules.goals_anywhere]
    if p == rules.type:
        some += rules.goals_by_class.get(o, ())
    for goal in some:
        for premises in goal(facts, s, p, o):
            yield None, premises
    rule = rules.transitivity(facts, p)
    if rule is not None:
        for between in facts.objects(s, p):
            if facts.has(between, p, o):
                yield rule, ((s, p, between), (between, p, o), *rules.declared(p, rule))


def become_transitive(facts: RuleFacts, p: int) -> None:
    """From now on the property is transitive; what there is of it came by other ways."""
    facts.add_transitive(p)
    for s, o in facts.pairs(p):
        facts.add_step(s, p, o)


def _walk_all(facts: RuleFacts, p: int, rules: RuleProgram, pending: Pending) -> None:
    """What follows from a property being transitive."""
    for s, o in facts.pairs(p):
        if facts.is_step(s, p, o):
            for beyond in facts.objects(o, p):
                premises = (s, p, o), (o, p, beyond), *rules.declared(p, "prp-trp")
                pending.append((s, p, beyond, "prp-trp", premises))


def _walk(facts: RuleFacts, s: int, p: int, o: int, rule: str, rules: RuleProgram, pending: Pending) -> None:
    """What follows by transitivity from a triple."""
    why = rules.declared(p, rule)
    if facts.is_step(s, p, o):
        for beyond in facts.objects(o, p):
            pending.append((s, p, beyond, rule, ((s, p, o), (o, p, beyond), *why)))
    for before in facts.steps_to(p, s):
        pending.append((before, p, o, rule, ((before, p, s), (s, p, o), *why)))


def _words_for(constants: dict[Term, str]) -> Callable[[Term | Variable], str]:
    """What the terms of a rule are called in its function; the constants are noted."""
    names: dict[Variable, str] = {}

    def word(term: Term | Variable) -> str:
        if isinstance(term, Variable):
            return names.setdefault(term, f"v{len(names)}")
        return constants.setdefault(term, f"k{len(constants)}")

    return word


def _function(rule: Rule, at: int, terms: TermTable, record: bool) -> Fire:
    """The function to call with a triple that may meet premise number `at` of the rule."""
    constants: dict[Term, str] = {}
    word = _words_for(constants)
    premises = tuple((word(s), word(p), word(o)) for s, p, o in rule.premises)
    conclusions = tuple((word(s), word(p), word(o)) for s, p, o in rule.conclusions)
    schema = tuple(p in SCHEMA for _, p, _ in rule.premises)
    make = _maker(premises, conclusions, schema, at, len(constants), record)
    return make(rule.name, *(terms.number(each) for each in constants))


def _goal(rule: Rule, at: int, terms: TermTable) -> Goal:
    """The function that tells the premises by which conclusion number `at` of the rule is a triple."""
    constants: dict[Term, str] = {}
    word = _words_for(constants)
    premises = tuple((word(s), word(p), word(o)) for s, p, o in rule.premises)
    s, p, o = rule.conclusions[at]
    make = _goal_maker(premises, (word(s), word(p), word(o)), len(constants))
    return make(*(terms.number(each) for each in constants))


Words = tuple[str, str, str]


@cache
def _goal_maker(premises: tuple[Words, ...], conclusion: Words, constants: int) -> Callable[..., Goal]:
    """Given a rule's constants, the generator for one conclusion: nested loops over the premises."""
    rows = [
        f"def make({', '.join(f'k{each}' for each in range(constants))}):",
        "    def goal(g, s, p, o):",
    ]
    bound: dict[str, str] = {}
    _bind(conclusion, bound, rows)
    depth = 2
    left = list(range(len(premises)))
    while left:
        # From one triple back: what is about its subject first, as a class may have very many below it.
        best = max(left, key=lambda n: (_nearness(premises[n], bound), -n))
        left.remove(best)
        rows.append("    " * depth + _loop(premises[best], bound))
        depth += 1
    rows.append("    " * depth + f"yield {_premises(premises, bound)}")
    rows.append("    return goal")
    space: dict[str, Callable[..., Goal]] = {}
    exec("\n".join(rows), space)
    return space["make"]


def _bind(words: Words, bound: dict[str, str], rows: list[str]) -> None:
    """Take the words from a given triple, which must have the constants at their places."""
    for word, given in zip(words, ("s", "p", "o"), strict=True):
        if word in bound or word.startswith("k"):
            rows.append(f"        if {given} != {bound.get(word, word)}: return")
        bound.setdefault(word, given if word.startswith("v") else word)


def _premises(premises: tuple[Words, ...], bound: dict[str, str]) -> str:
    told = tuple(f"({', '.join(bound.get(w, w) for w in each)})" for each in premises)
    return f"({', '.join(told)},)"


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
    _bind(premises[at], bound, rows)
    depth = 2
    left = [each for each in range(len(premises)) if each != at]
    while left:
        # Most of it known first; among equals the one that is about the ontology.
        best = max(left, key=lambda n: (_ease(premises[n], schema[n], bound), -n))
        left.remove(best)
        rows.append("    " * depth + _loop(premises[best], bound))
        depth += 1
    why = _premises(premises, bound) if record else "None"
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


def _nearness(premise: Words, bound: dict[str, str]) -> tuple[bool, bool, int, bool]:
    known = [word in bound or word.startswith("k") for word in premise]
    return all(known), known[1], sum(known), known[0]


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
