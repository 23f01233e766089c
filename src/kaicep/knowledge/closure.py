"""Statements and what follows from them, kept closed while statements come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from kaicep.errors import Mistake
from kaicep.knowledge.changes import Base, Journal, Timed, grow, shrink
from kaicep.knowledge.graph import BLANK, Ids, Known, Layer, TermTable, TripleIndex, match
from kaicep.knowledge.kept import Kept, KeptGraph, KeptTriples
from kaicep.knowledge.loading import ALWAYS, NEVER, Validity, boundaries, holds_at, minus
from kaicep.knowledge.reasoning import GIVEN, RuleProgram, close, program
from kaicep.knowledge.rules import LISTED, RULES, Rule, TermLookup, transitivity, unrolled
from kaicep.plan.terms import OWL, RDF, Iri

# What is made of the rules when it is first needed.
_MADE = ("every_rule", "program", "recording", "_axioms")


class Closure:
    """The closure of statements, each of which holds always or at some instants.

    `graph` is the closure of those that hold always. What follows from the others lies over it, see
    `changes`; `at` cuts out what holds at an instant.
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
