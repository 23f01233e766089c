"""Statements and what follows from them, kept closed while statements come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kaicep.errors import Mistake
from kaicep.knowledge.graph import BLANK, Ids, Known, Layer, TermTable, TripleIndex, match
from kaicep.knowledge.kept import Kept, KeptGraph, KeptTriples
from kaicep.knowledge.loading import ALWAYS, NEVER, Validity, boundaries, holds_at, intersection, minus, union
from kaicep.knowledge.reasoning import (
    GIVEN,
    LISTED,
    RULES,
    Rule,
    RuleProgram,
    TermLookup,
    become_transitive,
    close,
    consequences,
    goals,
    program,
    sayable,
    transitivity,
    unrolled,
)
from kaicep.plan.terms import OWL, RDF, Iri, Triple

# ----------------------------------------------------------------------------------------------------------
# A closure that is kept closed while statements come and go.
#
# What is added goes through the rules like everything before it (`grow`). What is taken away (`shrink`)
# takes all with it that some rule gave from it, and then what still follows in another way is put back:
# "delete and re-derive". Neither looks at what does not depend on the change.
#
# Both work on facts that hold at some instants only: a fact that a rule gives holds when all its
# premises do. So one closure serves every instant: `Base` is what holds always, `Timed` lies over it
# and has, once, everything that holds at some time.


@dataclass(frozen=True)
class Change:
    """What an update changed in the closure: what appeared in it, and what disappeared from it.

    Of statements that hold for a time only, that is what holds at some instant at which it did not
    before, and the other way round; one triple may be both, as one is that other graphs have now.
    Nothing that held before the instant
    `since` is touched (None: since ever). `missing` is what was to be removed but was not stated.
    """

    version: int
    added: frozenset[Triple] = frozenset()
    removed: frozenset[Triple] = frozenset()
    missing: frozenset[Triple] = frozenset()
    since: int | None = None


Journal = dict[Ids, Validity]
"""When each fact that was touched held before."""
# When a fact is there without any rule.
Stated = Callable[[Ids], Validity]


class Base:
    """What holds always."""

    def __init__(self, graph: TripleIndex, journal: Journal) -> None:
        self.facts = graph
        self._journal = journal

    def when(self, ids: Ids) -> Validity:
        """When the fact holds: always or never."""
        return ALWAYS if self.facts.has(*ids) else NEVER

    def extend(self, ids: Ids, more: Validity) -> bool:
        """Put the fact in; False where it is there."""
        if not self.facts.add(*ids):
            return False
        self._journal.setdefault(ids, NEVER)
        return True

    def reduce(self, ids: Ids, less: Validity) -> bool:
        """Take the fact out."""
        self._journal.setdefault(ids, ALWAYS)
        self.facts.remove(*ids)
        return True

    def drop_transitive(self, p: int) -> None:
        """The property is no longer said to be transitive."""
        self.facts.drop_transitive(p)


class Timed:
    """What holds for a time, over what holds always; `journal` is where changes are noted."""

    def __init__(self, base: Known) -> None:
        self._own = TripleIndex()
        self._when: dict[Ids, Validity] = {}
        self.journal: Journal = {}
        self.rebase(base)

    def rebase(self, base: Known) -> None:
        """Lie over another graph with the same triples."""
        self._base = base
        self.facts = Layer(base, self._own)

    def __len__(self) -> int:
        return len(self._own)

    @property
    def everything(self) -> dict[Ids, Validity]:
        """All that holds for a time, and when."""
        return self._when

    def when(self, ids: Ids) -> Validity:
        """When the fact holds."""
        return self._when.get(ids) or (ALWAYS if self._base.has(*ids) else NEVER)

    def extend(self, ids: Ids, more: Validity) -> bool:
        """Let the fact hold at more instants; False where it held already."""
        if self._base.has(*ids):
            return False
        held = self._when.get(ids, NEVER)
        if not minus(more, held):
            return False
        self.journal.setdefault(ids, held)
        self._own.add(*ids)
        self._when[ids] = union(held, more)
        return True

    def reduce(self, ids: Ids, less: Validity) -> bool:
        """Let the fact hold at fewer instants; whether none is left."""
        held = self._when[ids]
        self.journal.setdefault(ids, held)
        left = minus(held, less)
        if left:
            self._when[ids] = left
            return False
        del self._when[ids]
        self._own.remove(*ids)
        return True

    def drop_transitive(self, p: int) -> None:
        """The property is no longer said to be transitive for a time."""
        if not self._base.is_transitive(p):
            self._own.drop_transitive(p)

    def follow(self, journal: Journal, stated: Stated, rules: RuleProgram) -> None:
        """Close it again after the base has changed, as its journal tells."""
        gone = [ids for ids, before in journal.items() if before and not self._base.has(*ids)]
        come = [ids for ids, before in journal.items() if not before and self._base.has(*ids)]
        for ids in gone:
            # For a moment it holds always up here, so that what depends on it is found.
            self._own.add(*ids)
            self._when[ids] = ALWAYS
            self.journal.setdefault(ids, ALWAYS)
        for s, p, o in gone:
            if p == rules.type and o == rules.transitive_class:
                become_transitive(self.facts, s)
            if rules.transitivity(self.facts, p):
                self._own.add_step(s, p, o)
        for ids in come:
            if ids in self._when:
                self.journal.setdefault(ids, self._when.pop(ids))
                self._own.remove(*ids)
        shrink(self, [(ids, ALWAYS) for ids in gone], stated, rules)
        more: list[tuple[Ids, str, Validity]] = []
        for s, p, o in come:
            self.journal.setdefault((s, p, o), NEVER)
            if p == rules.type and o == rules.transitive_class:
                for first, last in self._own.pairs(s):  # they came by other ways
                    self._own.add_step(first, s, last)
            if rules.transitivity(self.facts, p):
                self._own.add_step(s, p, o)
            more += _following(self, (s, p, o), ALWAYS, rules)
        grow(self, more, rules)

    def at(self, ts: int, rules: RuleProgram) -> TripleIndex:
        """What holds at that instant, besides what holds always."""
        graph = TripleIndex()
        for ids, validity in self._when.items():
            if holds_at(validity, ts):
                graph.add(*ids)
                if self._own.is_step(*ids):
                    graph.add_step(*ids)
        for p in self._own.transitive:
            if graph.has(p, rules.type, rules.transitive_class):
                graph.add_transitive(p)
                for ids in self._own.steps(p):
                    if holds_at(self.when(ids), ts):
                        graph.add_step(*ids)
        return graph


Holding = Base | Timed


def grow(closure: Holding, more: Iterable[tuple[Ids, str, Validity]], rules: RuleProgram) -> None:
    """Add facts, each with the rule it comes from and when it holds, and everything that follows."""
    pending = list(more)
    while pending:
        ids, name, validity = pending.pop()
        s, p, o = ids
        if not sayable(s, p, o, name, rules) or not closure.extend(ids, validity):
            continue
        facts = closure.facts
        if p == rules.type and o == rules.transitive_class and not facts.is_transitive(s):
            become_transitive(facts, s)
        rule = rules.transitivity(facts, p)
        if rule is not None and name != rule:
            facts.add_step(s, p, o)
        pending += _following(closure, ids, validity, rules)


def _following(
    closure: Holding, ids: Ids, validity: Validity, rules: RuleProgram
) -> Iterable[tuple[Ids, str, Validity]]:
    """What follows at these instants from a fact and the others."""
    for s, p, o, name, premises in consequences(closure.facts, *ids, rules):
        common = validity
        for each in premises or ():
            common = intersection(common, closure.when(each))
        if common:
            yield (s, p, o), name, common


def shrink(
    closure: Holding, less: Iterable[tuple[Ids, Validity]], stated: Stated, rules: RuleProgram
) -> None:
    """Take facts away at these instants, unless they are stated, and what no longer follows."""
    lost = _dependent(closure, less, stated, rules)
    dropped = [ids for ids, validity in lost.items() if closure.reduce(ids, validity)]
    for s, p, o in dropped:
        if p == rules.type and o == rules.transitive_class and s not in rules.transitive:
            closure.drop_transitive(s)
    for ids, validity in lost.items():
        grow(closure, _otherwise(closure, ids, validity, rules), rules)


def _dependent(
    closure: Holding, less: Iterable[tuple[Ids, Validity]], stated: Stated, rules: RuleProgram
) -> dict[Ids, Validity]:
    """These facts and all that any rule gave from them, with the instants that are in doubt."""
    lost: dict[Ids, Validity] = {}
    pending = list(less)
    while pending:
        ids, validity = pending.pop()
        given = stated(ids)
        if given and rules.transitivity(closure.facts, ids[1]):
            # It stands by itself; until now it may have been there by transitivity alone.
            closure.facts.add_step(*ids)
        doubt = intersection(minus(minus(validity, given), lost.get(ids, NEVER)), closure.when(ids))
        if doubt:
            lost[ids] = union(lost.get(ids, NEVER), doubt)
            pending += ((each, when) for each, _, when in _following(closure, ids, doubt, rules))
    return lost


def _otherwise(
    closure: Holding, ids: Ids, validity: Validity, rules: RuleProgram
) -> list[tuple[Ids, str, Validity]]:
    """The fact at those of these instants at which a rule gives it from what is left."""
    found: list[tuple[Ids, str, Validity]] = []
    for name, premises in goals(closure.facts, *ids, rules):
        common = validity
        for each in premises:
            common = intersection(common, closure.when(each))
        if common:
            if name:
                # By transitivity: from now on it depends on this first step.
                closure.facts.add_step(*premises[0])
            found.append((ids, name or GIVEN, common))
            validity = minus(validity, common)
            if not validity:
                break
    return found


# ----------------------------------------------------------------------------------------------------------
# Statements and what follows from them, kept closed while statements come and go.

# What is made of the rules when it is first needed.
_MADE = ("every_rule", "program", "recording", "_axioms")


class Closure:
    """The closure of statements, each of which holds always or at some instants.

    `graph` is the closure of those that hold always. What follows from the others lies over it
    (`Timed`); `at` cuts out what holds at an instant.
    """

    def __init__(self, terms: TermTable, held: dict[Ids, Validity], reasoning: str) -> None:
        always: dict[Ids, None] = {ids: None for ids, when in held.items() if when == ALWAYS}
        self._begin(terms, always, {ids: when for ids, when in held.items() if when != ALWAYS}, reasoning)
        self._close(TripleIndex())

    @classmethod
    def of_kept(cls, terms: TermTable, kept: Kept, reasoning: str) -> Closure:
        """What was closed in an earlier run."""
        made = cls.__new__(cls)
        made._begin(terms, kept.always, dict(kept.sometimes), reasoning)
        made._close(kept.graph)
        return made

    def _begin(
        self,
        terms: TermTable,
        always: dict[Ids, None] | KeptTriples,
        sometimes: dict[Ids, Validity],
        reasoning: str,
    ) -> None:
        self.reasoning = reasoning
        self._always = always
        self.sometimes = sometimes
        self._terms = terms
        # How many statements begin or end at an instant.
        self._edges = Counter(edge for when in self.sometimes.values() for edge in boundaries(when))
        self._check_lists(self.sometimes)

    def _close(self, graph: TripleIndex | KeptGraph) -> None:
        self.rules: tuple[Rule, ...] = RULES[self.reasoning]
        if self.reasoning == "owl-rl":
            self.rules += tuple(unrolled(lookup(self._lists(), self._terms)))
        self.graph: TripleIndex | KeptGraph = graph
        if isinstance(graph, TripleIndex):
            close(graph, self.always, self.program)
        self._timed: Timed | None = None
        if self.sometimes:
            self._timed = Timed(self.graph)
            grow(self._timed, [(ids, GIVEN, when) for ids, when in self.sometimes.items()], self.recording)
            self._timed.journal = {}

    @cached_property
    def every_rule(self) -> tuple[Rule, ...]:
        """The rules with those by which properties are transitive."""
        return (*self.rules, *transitivity(self.reasoning))

    @cached_property
    def program(self) -> RuleProgram:
        """The rules made ready."""
        return program(self.rules, self.reasoning, self._terms)

    @cached_property
    def recording(self) -> RuleProgram:
        """The rules made ready to tell premises."""
        return program(self.rules, self.reasoning, self._terms, record=True)

    @cached_property
    def _axioms(self) -> frozenset[Ids]:
        return frozenset(ids for ids, _ in self.recording.axioms)

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """The instants at which a statement begins or ends to hold."""
        return tuple(sorted(self._edges))

    def stated(self, ids: Ids) -> Validity:
        """When the triple is stated."""
        return ALWAYS if ids in self.always else self.sometimes.get(ids, NEVER)

    def stated_at(self, ts: int) -> Iterator[Ids]:
        """What is stated of that instant, but not always."""
        return (ids for ids, validity in self.sometimes.items() if holds_at(validity, ts))

    def when(self, ids: Ids) -> Validity:
        """When the triple holds."""
        if self._timed is not None:
            return self._timed.when(ids)
        return ALWAYS if self.graph.has(*ids) else NEVER

    def passes(self, p: int) -> bool:
        """Whether any fact with this property holds for a time only."""
        return self._timed is not None and self._timed.facts.own.uses(p)

    @property
    def always(self) -> dict[Ids, None]:
        """What is stated to hold always."""
        if isinstance(self._always, KeptTriples):
            self._always = dict.fromkeys(self._always)
        return self._always

    def count_always(self) -> int:
        """How many triples are stated to hold always."""
        return len(self._always)

    def _lists(self) -> Iterable[Ids]:
        """What is stated always and may have to do with a rule that comes from a list."""
        links = {*LISTED, Iri(RDF + "first"), Iri(RDF + "rest"), Iri(OWL + "inverseOf")}
        numbers = {self._terms.number(each) for each in links}
        if isinstance(self._always, KeptTriples):
            return self._always.having(numbers)
        return (ids for ids in self._always if ids[1] in numbers)

    def _thaw(self) -> TripleIndex:
        """The graph, to be changed."""
        if isinstance(self.graph, KeptGraph):
            self.graph = self.graph.thawed()
            if self._timed is not None:
                self._timed.rebase(self.graph)
        return self.graph

    @property
    def at_any_time(self) -> Known:
        """All that holds at any time, as a graph."""
        return self.graph if self._timed is None else self._timed.facts

    def ever(self) -> Iterator[Ids]:
        """All that holds at any time."""
        yield from self.graph
        if self._timed is not None:
            yield from self._timed.everything

    def at(self, ts: int) -> Layer:
        """What holds at that instant."""
        own = self._timed.at(ts, self.recording) if self._timed is not None else TripleIndex()
        return Layer(self.graph, own)

    def restate(self, wanted: dict[Ids, Validity]) -> Journal:
        """State these triples at these instants and at no others; tells when what changed held before."""
        before = {ids: self.stated(ids) for ids in wanted}
        changes = {ids: when for ids, when in wanted.items() if when != before[ids]}
        self._check_lists(ids for ids, when in changes.items() if when not in (ALWAYS, NEVER))
        for ids, when in changes.items():
            self._state(ids, when)
        if self._lists_changed(changes):
            return self._start_over()
        return self._follow({ids: (before[ids], when) for ids, when in changes.items()})

    def _follow(self, changes: dict[Ids, tuple[Validity, Validity]]) -> Journal:
        journal: Journal = {}
        base, rules = Base(self._thaw(), journal), self.recording
        gone = [(ids, ALWAYS) for ids, (old, new) in changes.items() if old == ALWAYS != new]
        shrink(base, gone, self._always_given, rules)
        grow(
            base, [(ids, GIVEN, ALWAYS) for ids, (old, new) in changes.items() if old != ALWAYS == new], rules
        )
        if self._timed is None and self.sometimes:
            self._timed = Timed(self.graph)
        if self._timed is None:
            return journal
        timed = self._timed
        timed.follow(journal, self._given, rules)
        shrink(timed, [(ids, minus(old, new)) for ids, (old, new) in changes.items()], self._given, rules)
        grow(timed, [(ids, GIVEN, new) for ids, (old, new) in changes.items() if minus(new, old)], rules)
        journal |= timed.journal
        timed.journal = {}
        if not self.sometimes:
            self._timed = None
        return journal

    def _always_given(self, ids: Ids) -> Validity:
        return ALWAYS if ids in self.always or ids in self._axioms else NEVER

    def _given(self, ids: Ids) -> Validity:
        return ALWAYS if self.graph.has(*ids) else self.sometimes.get(ids, NEVER)

    def _state(self, ids: Ids, validity: Validity) -> None:
        for edge in boundaries(self.stated(ids)):
            self._edges[edge] -= 1
            if not self._edges[edge]:
                del self._edges[edge]
        self._edges.update(boundaries(validity))
        self.__dict__.pop("boundaries", None)
        self.always.pop(ids, None)
        self.sometimes.pop(ids, None)
        if validity == ALWAYS:
            self.always[ids] = None
        elif validity:
            self.sometimes[ids] = validity

    def _check_lists(self, timed: Iterable[Ids]) -> None:
        """Rules that come from lists are made once, for all times."""
        if self.reasoning == "owl-rl":
            for ids in timed:
                if self._terms.term(ids[1]) in LISTED:
                    s, p, _ = self._terms.triple(ids)
                    message = f"{s} {p} cannot hold for a time only: what OWL says with a list holds always"
                    raise Mistake(message, hint="say it in the default graph")

    def _lists_changed(self, changes: Iterable[Ids]) -> bool:
        """Whether the rules that come from lists are others now."""
        if self.reasoning != "owl-rl":
            return False
        links = {*LISTED, Iri(RDF + "first"), Iri(RDF + "rest")}
        inverse = Iri(OWL + "inverseOf")  # of a nameless property, in a chain
        if not any(
            self._terms.term(p) in links or (s & 3 == BLANK and self._terms.term(p) == inverse)
            for s, p, _ in changes
        ):
            return False
        now = unrolled(lookup(self._lists(), self._terms))
        return set(self.rules) != {*RULES[self.reasoning], *now}

    def _start_over(self) -> Journal:
        old: Journal = dict.fromkeys(self.graph, ALWAYS)
        if self._timed is not None:
            old |= self._timed.everything
        for name in _MADE:
            self.__dict__.pop(name, None)
        self._close(TripleIndex())
        new: Journal = dict.fromkeys(self.graph, ALWAYS)
        if self._timed is not None:
            new |= self._timed.everything
        return {ids: old.get(ids, NEVER) for ids in {**old, **new} if old.get(ids) != new.get(ids)}

    def __getstate__(self) -> dict[str, Any]:
        """Without the generated functions, which cannot be pickled and are quickly made again."""
        return {name: value for name, value in self.__dict__.items() if name not in _MADE}


def lookup(triples: Iterable[Ids], terms: TermTable) -> TermLookup:
    """A way to ask these triples by their terms."""
    graph = TripleIndex()
    for each in triples:
        graph.add(*each)
    return lambda *wanted: match(graph, terms, *wanted)
