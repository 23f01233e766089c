"""The rules of each level of reasoning, and the engine that closes a set of triples under them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from kaicep.errors import Diagnostic
from kaicep.knowledge.graph import LITERAL, Ids, Known, Layer, RuleFacts, TermTable, TripleIndex
from kaicep.plan.terms import OWL, RDF, RDFS, Blank, Iri, Literal, Term, Triple, Variable

# ----------------------------------------------------------------------------------------------------------
# The rules of reasoning, as data: from these triples follow those.
#
# Each rule has the name it has in the tables of the OWL 2 RL profile. RDFS reasoning is the part that
# speaks of classes, properties, domains and ranges; axiomatic triples and the typing of everything as a
# resource are left out, as nobody asks for them. Constructs that are written with RDF lists have no fixed
# number of premises: `unrolled` turns each one of an ontology into plain rules of its own.

LEVELS = ("none", "rdfs", "owl-rl")
"""The levels of reasoning."""

Pattern = tuple[Term | Variable, Term | Variable, Term | Variable]
"""A triple whose names are variables or terms."""

_PREFIXES = {"rdf": RDF, "rdfs": RDFS, "owl": OWL}


@dataclass(frozen=True)
class Rule:
    """Where all premises hold, the conclusions hold. Without variables it is an axiom.

    >>> print(RULES["rdfs"][1])
    cax-sco: ?c rdfs:subClassOf ?d . ?x rdf:type ?c => ?x rdf:type ?d
    """

    name: str
    premises: tuple[Pattern, ...]
    conclusions: tuple[Pattern, ...]

    @property
    def sides(self) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        """Premises and conclusions."""
        return self.premises, self.conclusions

    def __str__(self) -> str:
        return f"{self.name}: {_written(self.premises)} => {_written(self.conclusions)}"


def _written(patterns: tuple[Pattern, ...]) -> str:
    return " . ".join(" ".join(map(_word, pattern)) for pattern in patterns) or "nothing"


def _word(term: Term | Variable) -> str:
    for prefix, space in _PREFIXES.items():
        if isinstance(term, Iri) and term.value.startswith(space):
            return f"{prefix}:{term.value[len(space) :]}"
    return str(term)


def patterns(text: str) -> tuple[Pattern, ...]:
    """Patterns of a text such as `?x rdf:type ?c . ?c rdfs:subClassOf ?d`."""
    words = [_term(word) for word in text.replace(" . ", " ").split()]
    return tuple((words[at], words[at + 1], words[at + 2]) for at in range(0, len(words), 3))


def _term(word: str) -> Iri | Variable:
    prefix, _, local = word.partition(":")
    return Variable(word[1:]) if word.startswith("?") else Iri(_PREFIXES[prefix] + local)


def _rules(text: str) -> tuple[Rule, ...]:
    rows = (line.split(":", 1) for line in text.strip().splitlines())
    return tuple(
        Rule(name.strip(), *(patterns(side.strip()) for side in body.split("=>"))) for name, body in rows
    )


# A class that a query names counts with its equivalent classes at every level (semantics 2, event graph).
_SAME_CLASS = _rules("""
cax-eqc1: ?c owl:equivalentClass ?d . ?x rdf:type ?c => ?x rdf:type ?d
cax-eqc2: ?c owl:equivalentClass ?d . ?x rdf:type ?d => ?x rdf:type ?c
""")

_RDFS = _rules("""
scm-eqc1: ?c owl:equivalentClass ?d => ?c rdfs:subClassOf ?d . ?d rdfs:subClassOf ?c
cax-sco: ?c rdfs:subClassOf ?d . ?x rdf:type ?c => ?x rdf:type ?d
prp-spo1: ?p rdfs:subPropertyOf ?q . ?x ?p ?y => ?x ?q ?y
prp-dom: ?p rdfs:domain ?c . ?x ?p ?y => ?x rdf:type ?c
prp-rng: ?p rdfs:range ?c . ?x ?p ?y => ?y rdf:type ?c
""")

# Equivalent properties come down to being below each other, both ways.
_OWL = _rules("""
scm-eqp1: ?p owl:equivalentProperty ?q => ?p rdfs:subPropertyOf ?q . ?q rdfs:subPropertyOf ?p
eq-sym: ?x owl:sameAs ?y => ?y owl:sameAs ?x
eq-rep-s: ?x owl:sameAs ?y . ?x ?p ?o => ?y ?p ?o
eq-rep-p: ?p owl:sameAs ?q . ?x ?p ?y => ?x ?q ?y
eq-rep-o: ?x owl:sameAs ?y . ?s ?p ?x => ?s ?p ?y
prp-inv1: ?p owl:inverseOf ?q . ?x ?p ?y => ?y ?q ?x
prp-inv2: ?p owl:inverseOf ?q . ?x ?q ?y => ?y ?p ?x
prp-symp: ?p rdf:type owl:SymmetricProperty . ?x ?p ?y => ?y ?p ?x
prp-fp: ?p rdf:type owl:FunctionalProperty . ?x ?p ?y . ?x ?p ?z => ?y owl:sameAs ?z
prp-ifp: ?p rdf:type owl:InverseFunctionalProperty . ?y ?p ?x . ?z ?p ?x => ?y owl:sameAs ?z
cls-svf1: ?r owl:onProperty ?p . ?r owl:someValuesFrom ?c . ?x ?p ?y . ?y rdf:type ?c => ?x rdf:type ?r
cls-svf2: ?r owl:onProperty ?p . ?r owl:someValuesFrom owl:Thing . ?x ?p ?y => ?x rdf:type ?r
cls-avf: ?r owl:onProperty ?p . ?r owl:allValuesFrom ?c . ?x rdf:type ?r . ?x ?p ?y => ?y rdf:type ?c
cls-hv1: ?r owl:onProperty ?p . ?r owl:hasValue ?v . ?x rdf:type ?r => ?x ?p ?v
cls-hv2: ?r owl:onProperty ?p . ?r owl:hasValue ?v . ?x ?p ?v => ?x rdf:type ?r
""")

RULES: dict[str, tuple[Rule, ...]] = {"none": _SAME_CLASS, "rdfs": _RDFS, "owl-rl": _RDFS + _OWL}
"""The rules of each level."""

# Properties that every level above `none` takes for transitive, and the rule's name for each. Others
# are those of class owl:TransitiveProperty (prp-trp). `reasoning` treats them apart, see there.
TRANSITIVE: dict[str, dict[Iri, str]] = {
    "none": {},
    "rdfs": {Iri(RDFS + "subClassOf"): "scm-sco", Iri(RDFS + "subPropertyOf"): "scm-spo"},
    "owl-rl": {
        Iri(RDFS + "subClassOf"): "scm-sco",
        Iri(RDFS + "subPropertyOf"): "scm-spo",
        Iri(OWL + "sameAs"): "eq-trans",
    },
}
"""Properties that are transitive by definition, by level."""


def transitivity(level: str) -> Iterator[Rule]:
    """What the level knows of transitive properties, as plain rules."""
    for each, name in TRANSITIVE[level].items():
        x, y, z = Variable("x"), Variable("y"), Variable("z")
        yield Rule(name, ((x, each, y), (y, each, z)), ((x, each, z),))
    if level == "owl-rl":
        yield from _rules("prp-trp: ?p rdf:type owl:TransitiveProperty . ?x ?p ?y . ?y ?p ?z => ?x ?p ?z")


# What a construct with a list is said by; `unrolled` reads these and the lists.
LISTED = frozenset(
    Iri(OWL + name) for name in ("intersectionOf", "unionOf", "oneOf", "propertyChainAxiom", "hasKey")
)
"""What speaks of lists."""

TermLookup = Callable[[Term | None, Term | None, Term | None], Iterable[tuple[Term, Term, Term]]]
"""The triples that fit a pattern, where None stands for anything."""

_TYPE = Iri(RDF + "type")


def rdf_list(match: TermLookup, head: Term) -> tuple[Term, ...] | None:
    """The members of an RDF list; None where it is broken (no end, a cycle, two ways to go on)."""
    members: list[Term] = []
    seen: set[Term] = set()
    while head != Iri(RDF + "nil"):
        first = [row[2] for row in match(head, Iri(RDF + "first"), None)]
        rest = [row[2] for row in match(head, Iri(RDF + "rest"), None)]
        if head in seen or len(first) != 1 or len(rest) != 1:
            return None
        seen.add(head)
        members.append(first[0])
        head = rest[0]
    return tuple(members)


def _lists(match: TermLookup, name: str) -> Iterator[tuple[tuple[Term, Term, Term], tuple[Term, ...]]]:
    for triple in match(None, Iri(OWL + name), None):
        members = rdf_list(match, triple[2])
        if members:
            yield triple, members


def unrolled(match: TermLookup) -> Iterator[Rule]:
    """The rules that the list constructs of an ontology stand for."""
    x, y = Variable("x"), Variable("y")
    below = Iri(RDFS + "subClassOf")
    for said, parts in _lists(match, "intersectionOf"):
        yield Rule("cls-int1", tuple((x, _TYPE, each) for each in parts), ((x, _TYPE, said[0]),))
        yield Rule("scm-int", (said,), tuple((said[0], below, each) for each in parts))
    for said, parts in _lists(match, "unionOf"):
        yield Rule("scm-uni", (said,), tuple((each, below, said[0]) for each in parts))
    for said, parts in _lists(match, "oneOf"):
        yield Rule("cls-oo", (said,), tuple((each, _TYPE, said[0]) for each in parts))
    for said, parts in _lists(match, "propertyChainAxiom"):
        steps = tuple(_step(match, each, at) for at, each in enumerate(parts))
        yield Rule("prp-spo2", steps, ((Variable("v0"), said[0], Variable(f"v{len(parts)}")),))
    for said, parts in _lists(match, "hasKey"):
        keys = [(each, Variable(f"k{at}")) for at, each in enumerate(parts)]
        same = tuple((who, each, value) for each, value in keys for who in (x, y))
        both = ((x, _TYPE, said[0]), (y, _TYPE, said[0]))
        yield Rule("prp-key", both + same, ((x, Iri(OWL + "sameAs"), y),))


def _step(match: TermLookup, part: Term, at: int) -> Pattern:
    """A step of a property chain, which may be the inverse of a property: `[ owl:inverseOf p ]`."""
    here, there = Variable(f"v{at}"), Variable(f"v{at + 1}")
    if isinstance(part, Blank):
        for _, _, inverse in match(part, Iri(OWL + "inverseOf"), None):
            return there, inverse, here
    return here, part, there


# ----------------------------------------------------------------------------------------------------------
# What clashes in a closed knowledge base: told as warnings, and everything goes on.
#
# From a contradiction everything would follow; the rules of `reasoning` never go there, so what was
# concluded stands, and whoever keeps the ontology learns which classes or individuals clash.

_MOST = 100
_NEGATIVE = "?n owl:sourceIndividual ?x . ?n owl:assertionProperty ?p . ?x ?p ?y"

# What must not be there together, and what to say of it; the names are those of OWL 2 RL.
_CLASHES = tuple(
    (name, patterns(text), message)
    for name, text, message in (
        (
            "cls-nothing2",
            "?x rdf:type owl:Nothing",
            "{x} is of class owl:Nothing, which has no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?x rdf:type ?c . ?x rdf:type ?d",
            "{x} is of the classes {c} and {d}, which are disjoint",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?x rdfs:subClassOf ?c . ?x rdfs:subClassOf ?d",
            "the class {x} is below {c} and {d}, which are disjoint: it can have no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?c rdfs:subClassOf ?d",
            "the class {c} is below {d}, and they are disjoint: it can have no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?d rdfs:subClassOf ?c",
            "the class {d} is below {c}, and they are disjoint: it can have no members",
        ),
        (
            "cls-com",
            "?c owl:complementOf ?d . ?x rdf:type ?c . ?x rdf:type ?d",
            "{x} is of the class {c} and of {d}, its complement",
        ),
        (
            "eq-diff1",
            "?x owl:differentFrom ?y . ?x owl:sameAs ?y",
            "{x} and {y} are said to be the same and to be different",
        ),
        (
            "prp-irp",
            "?p rdf:type owl:IrreflexiveProperty . ?x ?p ?x",
            "{x} has itself for {p}, which is irreflexive",
        ),
        (
            "prp-asyp",
            "?p rdf:type owl:AsymmetricProperty . ?x ?p ?y . ?y ?p ?x",
            "{x} and {y} have each other for {p}, which is asymmetric",
        ),
        (
            "prp-pdw",
            "?p owl:propertyDisjointWith ?q . ?x ?p ?y . ?x ?q ?y",
            "{x} has {y} for {p} and for {q}, which are disjoint",
        ),
        (
            "prp-npa1",
            "?n owl:targetIndividual ?y . " + _NEGATIVE,
            "{x} has {y} for {p}, which is said not to be so",
        ),
        (
            "prp-npa2",
            "?n owl:targetValue ?y . " + _NEGATIVE,
            "{x} has {y} for {p}, which is said not to be so",
        ),
    )
)


def contradictions(match: TermLookup, said: TermLookup) -> tuple[Diagnostic, ...]:
    """The contradictions of a closed graph, each once; of very many, the first hundred.

    RDF lists are read as they were `said`: in the closed graph a list with a member that is the same
    as something else has two members in one place.
    """
    found = dict.fromkeys(islice(_all(match, said), _MOST + 1))
    told = [Diagnostic(f"contradiction: {text}", severity="warning") for text in list(found)[:_MOST]]
    if len(found) > _MOST:
        told.append(Diagnostic("there are more contradictions than these", severity="warning"))
    return tuple(told)


def solutions(
    match: TermLookup, premises: tuple[Pattern, ...], bound: dict[Variable, Term]
) -> Iterator[dict[Variable, Term]]:
    """All ways to meet the premises, from left to right."""
    if not premises:
        yield bound
        return
    first = premises[0]
    wanted = [bound.get(each) if isinstance(each, Variable) else each for each in first]
    for triple in match(wanted[0], wanted[1], wanted[2]):
        more = dict(bound)
        for each, term in zip(first, triple, strict=True):
            if isinstance(each, Variable) and more.setdefault(each, term) != term:
                break
        else:
            yield from solutions(match, premises[1:], more)


def _all(match: TermLookup, said: TermLookup) -> Iterator[str]:
    clashing: set[frozenset[Term]] = set()
    for name, premises, message in _CLASHES:
        for solution in solutions(match, premises, {}):
            # Told from either side, it is the same clash.
            key = frozenset((Iri(message), *solution.values()))
            if key not in clashing:
                clashing.add(key)
                yield _told(message, solution, name)
    yield from _all_disjoint(match, said)
    yield from _all_different(match, said)
    yield from _two_values(match)


def _told(message: str, solution: dict[Variable, Term], name: str) -> str:
    return message.format(**{each.name: str(term) for each, term in solution.items()}) + f" ({name})"


def _listed(said: TermLookup, kind: str, *links: str) -> Iterator[tuple[Term, ...]]:
    for axiom, _, _ in said(None, Iri(RDF + "type"), Iri(OWL + kind)):
        for link in links:
            for _, _, head in said(axiom, Iri(OWL + link), None):
                yield rdf_list(said, head) or ()


def _all_disjoint(match: TermLookup, said: TermLookup) -> Iterator[str]:
    """Members of two of the classes (or pairs in two of the properties) that are disjoint in a list."""
    for classes in _listed(said, "AllDisjointClasses", "members"):
        yield from _in_two(
            "the classes",
            "cax-adc",
            ((c, row[0]) for c in classes for row in match(None, Iri(RDF + "type"), c)),
        )
    for properties in _listed(said, "AllDisjointProperties", "members"):
        uses = ((p, f"{row[0]} {row[2]}") for p in properties for row in match(None, p, None))
        yield from _in_two("the properties", "prp-adp", uses)


def _in_two(what: str, name: str, members: Iterable[tuple[Term, object]]) -> Iterator[str]:
    home: dict[object, Term] = {}
    for group, member in members:
        other = home.setdefault(member, group)
        if other != group:
            yield f"{member} is of {what} {other} and {group}, which are disjoint ({name})"


def _all_different(match: TermLookup, said: TermLookup) -> Iterator[str]:
    for individuals in _listed(said, "AllDifferent", "members", "distinctMembers"):
        place = {each: at for at, each in enumerate(individuals)}
        for each, at in place.items():
            for _, _, other in match(each, Iri(OWL + "sameAs"), None):
                if place.get(other, -1) > at:
                    yield f"{each} and {other} are said to be the same and to be different (eq-diff2)"


def _two_values(match: TermLookup) -> Iterator[str]:
    """A functional property with two literals: individuals would be the same, values cannot be."""
    for p, _, _ in match(None, Iri(RDF + "type"), Iri(OWL + "FunctionalProperty")):
        values: dict[tuple[Term, str], Literal] = {}
        for subject, _, value in match(None, p, None):
            if isinstance(value, Literal) and value.language is None:
                # Of two datatypes the values may be equal all the same; that is not decided here.
                first = values.setdefault((subject, value.datatype), value)
                if first != value:
                    yield f"{subject} has {first} and {value} for {p}, which is functional (prp-fp)"


# ----------------------------------------------------------------------------------------------------------
# The rule engine: the closure of a set of triples, and what a few more triples add to it.
#
# Every triple is taken once, in turn: it is put among the facts, and every rule that has a premise like
# it fires, its other premises being looked up among the facts so far. So each combination of premises
# is found when the last of them is taken (semi-naive evaluation), and a base that is closed already is
# never gone through again: `entails` starts from the new triples alone.
#
# For speed, every premise of a rule becomes a small Python function of nested loops. Rules that differ
# in their constants only share one text. So does every conclusion, for the way back: a `Goal` tells all
# premises that would give a triple, which is what taking triples away needs (see `closure`).
#
# Transitive properties are treated apart, as a rule of two like premises finds every triple once for
# every place in between. Here the left premise must be a *step*, a triple that is not there by
# transitivity alone: every triple is then found once for every first step.

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
