"""PATHs that hold for nothing: which of their patterns fails first, and the closest thing that exists.

A query whose PATH has no answer runs without a word and finds nothing. RDF allows that, and tomorrow's
update may add what is missing, so this warns.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kaicep.errors import Diagnostic
from kaicep.knowledge.queries import select
from kaicep.knowledge.relations import kept_table
from kaicep.knowledge.store import Knowledge
from kaicep.optimize.rule import RuleContext
from kaicep.plan.algebra import element_variables, triple_patterns
from kaicep.plan.nodes import ChiPlan, Semantic
from kaicep.plan.paths import components
from kaicep.plan.sparql import Group, Inverse, Repeat, Steps, TripleBlock, TriplePattern
from kaicep.plan.terms import OWL, RDF, Iri, Term, Variable
from kaicep.plan.text import iri_text, triple_text

_TYPE, _INVERSE = Iri(RDF + "type"), Iri(OWL + "inverseOf")
# A larger knowledge base is not reasoned over once more for the sake of a hint.
_SMALL = 50_000
_FEW = 3


def is_empty(condition: Semantic, knowledge: Knowledge) -> bool:
    """Whether no event can fulfil an optimised PATH as the knowledge is, at no time that it knows of."""
    if condition.relation is None:
        return not condition.alternatives
    kept = kept_table(condition.relation, condition.selected, knowledge)
    tables = (kept.table(knowledge, epoch) for epoch in range(len(knowledge.epochs) + 1))
    return all(each.rows is not None and not each.rows for each in tables)


def empty_paths(plan: ChiPlan, optimised: ChiPlan, context: RuleContext) -> Iterator[Diagnostic]:
    """Warns of each PATH that holds for nothing: `optimised` is what became of the plan."""
    if not any(is_empty(each, context.knowledge) for each in optimised.body.all_semantics):
        return
    told: set[TriplePattern] = set()
    for condition in plan.body.all_semantics:
        if len(condition.alternatives) == 1:
            search = _Search(condition, context.knowledge, dict(plan.prefixes))
            found = search.first_to_fail()
            if found is not None and found not in told and not _is_marked(found, plan):
                told.add(found)
                message, hint = search.told(found)
                yield Diagnostic(message, found.span, plan.source, hint, "warning")


def _is_marked(pattern: TriplePattern, plan: ChiPlan) -> bool:
    """Whether a warning marks a word of the pattern already, which nobody knows: then that is the reason."""
    spans = [each.span for each in plan.warnings if each.span is not None]
    here = pattern.span
    return here is not None and any(here.start <= each.start and each.end <= here.end for each in spans)


@dataclass
class _Search:
    """The patterns of a PATH, tried one after the other."""

    condition: Semantic
    knowledge: Knowledge
    prefixes: Mapping[str, str]

    def __post_init__(self) -> None:
        self.before: list[TriplePattern] = []

    def first_to_fail(self) -> TriplePattern | None:
        """The first pattern about the knowledge that has no answer together with those before it."""
        for pattern in self._patterns():
            if not self._has_answers([*self.before, pattern]):
                return pattern
            self.before.append(pattern)
        return None

    def _patterns(self) -> Iterator[TriplePattern]:
        """The patterns that the knowledge must meet; what an event itself says leaves its value open."""
        for element in self.condition.alternatives[0].elements:
            for pattern in element.patterns if isinstance(element, TripleBlock) else ():
                ends = pattern.subject, pattern.object
                names = self.condition.variables
                events = [isinstance(each, Variable) and each.name in names for each in ends]
                if not any(events):
                    yield pattern
                elif isinstance(pattern.predicate, Steps) and events == [True, False]:
                    # e p/q x  is  e p y . y q x
                    behind = pattern.predicate.parts[1:]
                    onward = behind[0] if len(behind) == 1 else Steps(behind)
                    middle = Variable(f"kaicep_middle{len(self.before)}")
                    yield replace(pattern, subject=middle, predicate=onward)

    def _has_answers(self, patterns: Sequence[TriplePattern]) -> bool:
        """Whether what hangs together with the last of the patterns has an answer at any time."""
        group = Group((TripleBlock(tuple(patterns)),))
        part = next(each for each in components(group) if patterns[-1] in triple_patterns(each))
        epochs = range(len(self.knowledge.epochs) + 1)
        return any(select(self.knowledge.in_epoch(each), part, []) for each in epochs)

    # What to say.

    def told(self, pattern: TriplePattern) -> tuple[str, str | None]:
        """The message about a pattern that fails, and the closest thing that exists."""
        text = self._text(pattern)
        if self._has_answers([pattern]):
            others = " . ".join(map(self._text, self._tied(pattern)))
            message = f"the PATH holds for nothing: {text} has answers, but none together with {others}"
            return message, self._other_ways(pattern)
        return f"the PATH holds for nothing: {text} has no answer", self._closest(pattern)

    def _text(self, pattern: TriplePattern) -> str:
        return triple_text(pattern, self.prefixes).removesuffix(" .").replace("?kaicep_middle", "?_")

    def _tied(self, pattern: TriplePattern) -> list[TriplePattern]:
        names = element_variables(TripleBlock((pattern,)))
        return [each for each in self.before if names & element_variables(TripleBlock((each,)))]

    def _closest(self, pattern: TriplePattern) -> str | None:
        if pattern.predicate == _TYPE and isinstance(pattern.object, Iri):
            found = self._closest_class(pattern.object)
        elif isinstance(pattern.predicate, Iri):
            found = self._closest_property(pattern, pattern.predicate)
        else:
            return None
        return self._derivable(pattern) or found

    def _derivable(self, pattern: TriplePattern) -> str | None:
        if self.knowledge.reasoning == "owl-rl" or self.knowledge.statements > _SMALL:
            return None
        richer = replace(self, knowledge=self.knowledge.under("owl-rl"))
        if richer._has_answers([pattern]):
            return "it follows under OWL 2 RL: ask with --reasoning owl-rl"
        return None

    def _closest_class(self, wanted: Iri) -> str | None:
        counts = Counter(each for _, _, each in self.knowledge.match(None, _TYPE, None))
        for above in self._above(wanted):
            if counts[above]:
                return f"of the wider class {self._name(above)} there are {counts[above]:,}"
        return self._nearest(wanted, counts)

    def _above(self, wanted: Iri) -> list[Iri]:
        """The wider classes, the narrowest first."""
        wider = self.knowledge.classes_above(wanted) - {wanted}
        return sorted(wider, key=lambda each: (-len(self.knowledge.classes_above(each)), each.value))

    def _closest_property(self, pattern: TriplePattern, wanted: Iri) -> str | None:
        if isinstance(pattern.object, Iri) or isinstance(pattern.subject, Iri):
            anything = replace(pattern, subject=Variable("kaicep_s"), object=Variable("kaicep_o"))
            if self._has_answers([anything]):
                return self._closest_end(pattern, wanted)
        inverses = [row[2] for row in self.knowledge.match(wanted, _INVERSE, None)]
        inverses += [row[0] for row in self.knowledge.match(None, _INVERSE, wanted)]
        for each in inverses:
            if isinstance(each, Iri) and self._has_answers([replace(pattern, predicate=Inverse(each))]):
                return f"its inverse has answers: write ^{self._name(each)}"
        return self._nearest(wanted, Counter(p for _, p, _ in self.knowledge.match()))

    def _closest_end(self, pattern: TriplePattern, wanted: Iri) -> str | None:
        """The end that the property does have, for one that it has not."""
        at = 2 if isinstance(pattern.object, Iri) else 0
        asked = pattern.object if at else pattern.subject
        assert isinstance(asked, Iri)
        return self._nearest(asked, Counter(row[at] for row in self.knowledge.match(None, wanted, None)))

    def _nearest(self, wanted: Iri, counts: Counter[Term]) -> str | None:
        """The name most like the wanted one, of those that are used."""
        names = {each.local.lower(): each for each in counts if isinstance(each, Iri) and each != wanted}
        near = difflib.get_close_matches(wanted.local.lower(), names, n=_FEW, cutoff=0.5)
        found = [(names[each], counts[names[each]]) for each in near]
        shown = [f"{self._name(name)} ({count:,} triple{'s' * (count != 1)})" for name, count in found]
        return f"did you mean {' or '.join(shown)}?" if shown else None

    def _other_ways(self, pattern: TriplePattern) -> str | None:
        """What would have answers in the place of a pattern that has none with those before it."""
        if pattern.predicate == _TYPE and isinstance(pattern.subject, Variable):
            return self._classes_of(pattern.subject.name)
        if not isinstance(pattern.predicate, Iri):
            return None
        name = self._name(pattern.predicate)
        for way, text in (
            (Inverse(pattern.predicate), f"the other way round: ^{name}"),
            (Repeat(pattern.predicate, 1, True), f"over several steps: {name}+"),
        ):
            if self._has_answers([*self.before, replace(pattern, predicate=way)]):
                return f"it has answers {text}"
        return None

    def _classes_of(self, name: str) -> str | None:
        """The narrowest classes of what a variable may be before its class is asked for."""
        tied = [each for each in self.before if name in element_variables(TripleBlock((each,)))]
        things = [row[0] for row in select(self.knowledge, Group((TripleBlock(tuple(tied)),)), [name])]
        counts: Counter[Term] = Counter()
        for thing in things:
            own = {row[2] for row in self.knowledge.match(thing, _TYPE, None)}
            wider = {
                above
                for each in own
                if isinstance(each, Iri)
                for above in self.knowledge.classes_above(each) - {each}
            }
            counts.update(own - wider)
        shown = [self._counted(each, counts) for each, _ in counts.most_common(_FEW) if isinstance(each, Iri)]
        return f"?{name} may be: {', '.join(shown)}" if shown else None

    def _counted(self, name: Iri, counts: Counter[Term]) -> str:
        return f"{counts[name]:,} {self._name(name)}"

    def _name(self, name: Iri) -> str:
        return iri_text(name, self.prefixes)
