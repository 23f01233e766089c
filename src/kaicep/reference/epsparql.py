"""EP-SPARQL over a finite stream: the Q-closure of section 4.2 of the paper, and the answers over it.

A stream triple is read under the class and property hierarchies of the knowledge base, and what it
entails there happens when it happens (semantics 3). What the CONSTRUCT rules derive joins the stream,
until nothing new comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

from kaicep.errors import Failure
from kaicep.plan.algebra import only_grows
from kaicep.plan.events import Match, by_end, match_id
from kaicep.plan.functions import Interval, solution_text
from kaicep.plan.nodes import EpPlan, Evaluations, Node, Solutions, Triples
from kaicep.plan.sparql import MOST_DERIVED, TriplePattern
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Blank, Iri, Term, Triple, Variable, n_triples, sparql_json
from kaicep.plan.time import format_time
from kaicep.reference.sparql import (
    Bindings,
    Occurrence,
    Solution,
    Streams,
    TimedGraph,
    TriplesByPattern,
    evaluate,
    moments,
    new_solutions,
)

_Occurrences = set[tuple[Triple, Interval]]


class Entailment(Protocol):
    """What EP-SPARQL asks of a knowledge base."""

    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        ...

    def entails_with(self, triples: Iterable[Triple], /) -> frozenset[Triple]:
        """The triples, and what follows from them and the knowledge but not without them."""
        ...

    def graphs(self) -> Mapping[Term, TriplesByPattern]:
        """What is stated in each named graph."""
        ...


def run_epsparql(
    plans: Sequence[EpPlan],
    occurrences: Iterable[tuple[Triple, int, int] | tuple[Triple, int, int, str]],
    knowledge: Entailment,
    limit: int | None = None,
) -> dict[str, list[Match]]:
    """The matches of each query, by its name, in the order of their end and id.

    An occurrence may name its stream, which windows go by: those of one stream come in its order then.
    `limit` is how many triples the rules may derive with one end before that counts as runaway.
    """
    limit = limit or max((each.most_derived for each in plans), default=MOST_DERIVED)
    rows = list(occurrences)
    stream = {(triple, (start, end)) for triple, start, end, *_ in rows}
    reader = _TripleReader(knowledge)
    streams: dict[str, list[tuple[int, frozenset[Triple]]]] = {}
    for triple, _, end, *name in rows:
        if name:
            streams.setdefault(name[0], []).append((end, reader.entailed(triple)))
    for each in streams.values():
        each.sort(key=itemgetter(0))
    rules = [plan for plan in plans if isinstance(plan.root, Triples)]
    graph = _closure(rules, stream, streams, reader, limit)
    return {plan.name: _matches(plan, graph) for plan in plans}


# --- the stream under the hierarchies ----------------------------------------------------------------


class _TripleReader:
    """Reads single triples under a knowledge base, each of them once."""

    def __init__(self, knowledge: Entailment) -> None:
        self.knowledge = knowledge
        self._entailed: dict[Triple, frozenset[Triple]] = {}

    def read(self, stream: _Occurrences) -> Iterator[Occurrence]:
        """The occurrences with all that each triple entails, which happens when it happens."""
        for triple, interval in stream:
            for each in self.entailed(triple):
                yield each, interval

    def graph(self, occurrences: Iterable[Occurrence], streams: Streams) -> TimedGraph:
        """These occurrences, windows on streams, and the knowledge with its named graphs."""
        return TimedGraph(self.knowledge, occurrences, streams, self.knowledge.graphs())

    def entailed(self, triple: Triple) -> frozenset[Triple]:
        """A triple and what it entails."""
        if triple not in self._entailed:
            self._entailed[triple] = self.knowledge.entails_with([triple])
        return self._entailed[triple]


# --- the closure under the rules ---------------------------------------------------------------------


def _closure(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The least graph that has the stream and all that the rules derive from it."""
    if all(only_grows(_body(rule)) for rule in rules):
        return _grown(rules, stream, streams, reader, limit)
    return _settled(rules, stream, streams, reader, limit)


def _settled(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The closure, instant by instant: answers never look into their future.

    At each instant every round derives everything that ends there anew, from the past and from what the
    round before derived, until nothing changes; rounds that come back to an earlier one turn in a circle.
    """
    past: _Occurrences = set()
    instants = {interval[1] for _, interval in stream}
    for node in (each for rule in rules for each in rule.root.walk() if isinstance(each, Evaluations)):
        instants |= {interval[1] for interval, _ in moments(node.windows, TimedGraph(streams=streams))}
    for end in sorted(instants):
        now = {each for each in stream if each[1][1] == end}
        derived: dict[str, _Occurrences] = {rule.name: set() for rule in rules}
        seen: list[dict[str, _Occurrences]] = []
        while True:
            occurrences = reader.read((past | now).union(*derived.values()))
            graph = reader.graph(occurrences, streams)
            again = {rule.name: _derived(rule, evaluate(_body(rule), graph)) for rule in rules}
            again = {name: {each for each in found if each[1][1] == end} for name, found in again.items()}
            if again == derived:
                break
            counts = {name: _ends(found) for name, found in again.items()}
            _refuse_runaway(counts, {end}, limit)
            if again in seen:
                changing = sorted(name for name in again if again[name] != derived[name])
                raise Failure(
                    f"the CONSTRUCT rule {changing[0]} never settles: it takes back what it derives; "
                    f"rules that change each other's conditions at one instant have no answer"
                )
            seen.append(again)
            derived = again
        past = (past | now).union(*derived.values())
    return reader.graph(reader.read(past), streams)


def _grown(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The same for rules that never take anything back, each round deriving only from what is new.

    Thus a runaway rule is noticed within seconds: in rounds of one triple, the other way takes the
    square of their number.
    """
    graph = reader.graph((), streams)
    counts = {rule.name: Counter[int]() for rule in rules}
    known: _Occurrences = set()
    coming = stream
    while coming:
        new = TimedGraph(None, graph.add(reader.read(coming)))
        coming = set()
        for rule in rules:
            found = _derived(rule, new_solutions(_body(rule), graph, new)) - known
            known |= found
            coming |= found
            counts[rule.name].update(_ends(found))
        _refuse_runaway(counts, {interval[1] for _, interval in coming}, limit)
    return graph


def _body(rule: EpPlan) -> Node:
    """What a CONSTRUCT asks for."""
    return rule.root.input


def _derived(rule: EpPlan, solutions: Iterable[Solution]) -> _Occurrences:
    assert isinstance(rule.root, Triples)
    return {
        (triple, solution.interval)
        for solution in _answers(solutions)
        if solution.interval is not None
        for triple in construct(rule.name, rule.root.template, solution)
    }


def _ends(occurrences: _Occurrences) -> Counter[int]:
    return Counter(interval[1] for _, interval in occurrences)


def _refuse_runaway(counts: Mapping[str, Counter[int]], ends: Iterable[int], limit: int) -> None:
    """Stops where too much is derived with one end; names the rule that derives most of it."""
    for end in sorted(ends):
        if sum(each[end] for each in counts.values()) > limit:
            rule = max(sorted(counts), key=lambda name: counts[name][end])
            raise Failure(
                f"the CONSTRUCT rule {rule} runs away: more than {limit:,} triples are derived "
                f"at {format_time(end)}; bound it with a FILTER, or let it read earlier triples only (SEQ); "
                "if it is meant to derive so many, allow more (--derived N, `derived` in kaicep.toml)"
            )


def construct(rule: str, template: Iterable[TriplePattern], solution: Solution) -> list[Triple]:
    """The triples of a template for a solution; none where it leaves a variable of the template unbound.

    A blank node of the template is one node for each rule and solution. What is no triple (a literal
    that has properties, say) is left out.
    """
    found: list[Triple] = []
    for pattern in template:
        places: tuple[Any, ...] = (pattern.subject, pattern.predicate, pattern.object)
        s, p, o = (_fill(each, rule, solution) for each in places)
        if s is None or p is None or o is None:
            return []
        if isinstance(s, Iri | Blank) and isinstance(p, Iri):
            found.append((s, p, o))
    return found


def _fill(place: Place, rule: str, solution: Solution) -> Term | None:
    if isinstance(place, Variable):
        return solution.bindings.get(place.name)
    if isinstance(place, Blank):
        return Blank("n" + match_id(rule, place.label, [solution_text(solution.bindings, solution.interval)]))
    return place


# --- answers -----------------------------------------------------------------------------------------


def _answers(solutions: Iterable[Solution]) -> dict[Solution, None]:
    """The distinct answers among solutions: what can be seen of those that have a time."""
    return dict.fromkeys(
        Solution({n: t for n, t in each.bindings.items() if not n.startswith("_:")}, each.interval)
        for each in solutions
        if each.interval is not None
    )


def _matches(plan: EpPlan, graph: TimedGraph) -> list[Match]:
    found: list[Match] = []
    root = plan.root
    for solution in _answers(evaluate(root if isinstance(root, Solutions) else _body(plan), graph)):
        assert solution.interval is not None
        start, end = solution.interval
        made = match_id(plan.name, plan.text, [solution_text(solution.bindings, solution.interval)])
        if isinstance(root, Triples):
            lines = {n_triples(each) for each in construct(plan.name, root.template, solution)}
            if lines:
                found.append(Match(plan.name, made, start, end, triples=tuple(sorted(lines))))
        else:
            assert isinstance(root, Solutions)
            found.append(Match(plan.name, made, start, end, _selected(root.names, solution.bindings)))
    return sorted(found, key=by_end)


def _selected(names: Iterable[str], bindings: Bindings) -> Mapping[str, Any]:
    return {name: sparql_json(bindings[name]) for name in names if name in bindings}
