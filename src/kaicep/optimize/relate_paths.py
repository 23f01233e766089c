"""The semantic relation: a PATH, cut at the event, is one question to the knowledge base.

The edges out of the event read attributes; what is behind them does not know of events any more. Asked
once, for all values at a time, it gives a table from root values (a sensor) to what the query wants of
them. An event then costs a lookup.

A table can be made at once where the graph of an event cannot add anything to what is known of other
things. Under `rdfs` that can only happen through the range of a property. Under `owl-rl` (and wherever a
PATH leaves the event other than by plain properties at the top of its group) each combination of root
values is asked for when it is first met: the run-time path of section 4.2, kept in a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from kaicep.knowledge.event_graph import HAS_TIME, own_classes
from kaicep.knowledge.relations import kept_table
from kaicep.optimize.event_vocabulary import EventVocabulary, event_vocabulary, may_step, read_as
from kaicep.optimize.rule import (
    RuleContext,
    given_variables,
    map_chains,
    map_semantics,
    may_be_taken_apart,
    streams_of,
    vocabulary_of,
)
from kaicep.plan.algebra import element_variables, pattern_variables, triple_patterns
from kaicep.plan.catalog import Stream
from kaicep.plan.nodes import Chain, ChiPlan, Relation, Root, Semantic
from kaicep.plan.paths import bare_variables, components, path_references
from kaicep.plan.sparql import (
    Alternative,
    Element,
    Group,
    Inverse,
    Negated,
    Predicate,
    Repeat,
    Steps,
    TripleBlock,
    TriplePattern,
    Values,
    may_be_empty,
)
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import RDF, Blank, Iri, Term, Variable
from kaicep.plan.text import iri_text

_TYPE = Iri(RDF + "type")


def relate_paths(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Gives every PATH condition its relation."""
    streams = streams_of(plan, context)
    words = vocabulary_of(plan, context)
    given = given_variables(plan)

    def related(condition: Semantic) -> Iterator[Semantic]:
        if len(condition.alternatives) != 1:
            yield condition
            return
        cut = _Cut(condition, streams, words, context)
        cut.run()
        if cut.never:
            context.note("relate_paths", f"no event can satisfy the PATH: {cut.never}")
            yield replace(condition, alternatives=())
            return
        if cut.obstacle:
            context.note(
                "relate_paths", f"{_about(condition)} is evaluated when values first occur: {cut.obstacle}"
            )
            yield condition
            return
        apart = may_be_taken_apart(condition, plan.body) and not condition.conditions
        for part in _parts(condition, cut, apart, given):
            assert part.relation is not None
            judged = (name for each in part.conditions for name in path_references(each))
            selected = tuple(dict.fromkeys((*part.selected, *judged)))
            rows = kept_table(part.relation, selected, context.knowledge).always(context.knowledge).rows
            size = "all that is known" if rows is None else f"{len(rows)} entries"
            roots = _roots(part.relation, plan)
            context.note("relate_paths", f"{_about(part)} is a table from {roots}: {size}")
            yield part

    def tied(condition: Semantic) -> Semantic:
        """What ties an event to its partitions, as one table."""
        cut = _Cut(condition, streams, words, context)
        cut.run()
        if cut.never or cut.obstacle or condition.conditions:
            return condition
        (part,) = _parts(condition, cut, False)
        return part if part.selected == condition.selected else condition

    plan = map_semantics(plan, related, judged=True)
    plan = replace(plan, body=replace(plan.body, ties=tuple(map(tied, plan.body.ties))))
    return _without_needless_graphs(plan)


def _without_needless_graphs(plan: ChiPlan) -> ChiPlan:
    """What is looked up needs no graph of the event."""
    asked = (each for each in (*plan.body.all_semantics, *plan.body.ties) if each.relation is None)
    needed = {name for each in asked for name in each.variables}

    def on_chain(chain: Chain) -> Chain:
        return replace(chain, annotated=chain.annotated and chain.variable in needed)

    return replace(plan, body=map_chains(plan.body, on_chain))


def _about(condition: Semantic) -> str:
    return "the PATH about " + (", ".join(f"?{each}" for each in condition.variables) or "no event")


def _roots(relation: Relation, plan: ChiPlan) -> str:
    prefixes = dict(plan.prefixes)
    shown = [f"{iri_text(each.property, prefixes)} of ?{each.variable}" for each in relation.roots]
    return " and ".join(shown) or "nothing"


def _parts(condition: Semantic, cut: _Cut, apart: bool, given: Collection[str] = ()) -> Iterator[Semantic]:
    """The relation, or several where without the events its parts share no variable that is not given."""
    rest = Group(tuple(cut.rest))
    groups = _apart(rest, cut.roots, frozenset(given)) if apart else [rest]
    named: set[str] = set()
    shown: set[str] = set()
    # What is selected but stands in none of them (another alternative had it) has no value in the first.
    unbound = frozenset(condition.selected) - element_variables(rest) - {each.name for each in cut.roots}
    for group in groups:
        names = element_variables(group)
        roots = tuple(each for each in cut.roots if each.name in names)
        if not apart:
            roots = tuple(cut.roots)
        named |= {each.name for each in roots}
        # What is given has one value in all parts, so one of them is enough to select it.
        yield _part(condition, roots, group, (names | unbound) - (shown & set(given)))
        shown |= names
        unbound = frozenset()
    if apart:
        # Roots of which nothing more is asked than that they are there.
        for root in (each for each in cut.roots if each.name not in named):
            yield _part(condition, (root,), Group(()), unbound | {root.name})
            unbound = frozenset()


def _apart(rest: Group, roots: list[Root], given: frozenset[str]) -> list[Group]:
    """The parts of what is asked, each of which is about an event and binds what is given by itself."""
    led_to = {each.name for each in roots}
    groups = components(rest, given)
    own = [each for each in groups if element_variables(each) & led_to]
    for each in groups:
        names = element_variables(each) & given
        triples = (found for one in each.elements if isinstance(one, TripleBlock) for found in one.patterns)
        bound = {name for found in triples for name in pattern_variables(found)}
        beside = next((at for at, one in enumerate(own) if names <= element_variables(one)), None)
        if given and (not names <= bound or beside is None):
            return components(rest)
        if given and each not in own and beside is not None:
            own[beside] = Group((*own[beside].elements, *each.elements))
    return own if given else groups


def _part(condition: Semantic, roots: tuple[Root, ...], group: Group, names: frozenset[str]) -> Semantic:
    events = {each.variable for each in roots}
    events |= {name for each in condition.conditions for name in bare_variables(each)}
    return replace(
        condition,
        variables=tuple(each for each in condition.variables if each in events),
        selected=tuple(
            each for each in condition.selected if each in names or any(root.name == each for root in roots)
        ),
        relation=Relation(roots, group),
    )


@dataclass
class _Cut:
    """A group being cut at its events."""

    condition: Semantic
    streams: Mapping[str, tuple[Stream, ...]]
    words: EventVocabulary
    context: RuleContext
    roots: list[Root] = field(default_factory=list)
    rest: list[Element] = field(default_factory=list)
    obstacle: str = ""
    never: str = ""

    def run(self) -> None:
        if not self.words.plain:
            self.obstacle = "an event may say what things are the same, or what words mean"
            return
        for element in self.condition.alternatives[0].elements:
            if isinstance(element, TripleBlock):
                for pattern in element.patterns:
                    self._pattern(pattern)
            elif element_variables(element) & set(self.condition.variables):
                self.obstacle = "the event is inside a nested group, a BIND or a FILTER"
            else:
                self.rest.append(element)
        if not self.obstacle:
            self._refuse_unlisted_roots()
        if not self.obstacle:
            self._refuse_events_in_disguise()
        if not self.obstacle:
            self._refuse_what_events_say_elsewhere()
        if not self.obstacle:
            self._drop_what_ranges_give()

    def _pattern(self, pattern: TriplePattern) -> None:
        """One triple pattern: an edge out of an event is a root, everything else stays."""
        events = self.condition.variables
        places: tuple[Place | Predicate, ...] = (pattern.subject, pattern.predicate, pattern.object)
        at = [isinstance(each, Variable) and each.name in events for each in places]
        if not any(at):
            self.rest.append(TripleBlock((pattern,), span=pattern.span))
            return
        if at != [True, False, False]:
            self.obstacle = "the event is used as a property or a value"
            return
        assert isinstance(pattern.subject, Variable)
        event, predicate, target = pattern.subject.name, pattern.predicate, pattern.object
        if isinstance(predicate, Steps) and isinstance(predicate.parts[0], Iri):
            # e p/q x  is  e p y . y q x
            middle = Variable(f"kaicep_cut{len(self.roots)}{len(self.rest)}")
            behind = predicate.parts[1:]
            onward = behind[0] if len(behind) == 1 else Steps(behind)
            self.rest.append(TripleBlock((TriplePattern(middle, onward, target),)))
            predicate, target = predicate.parts[0], middle
        if not isinstance(predicate, Iri):
            self.obstacle = "the event's property is a variable or a path"
        elif predicate == _TYPE:
            self._class(event, target)
        elif predicate == HAS_TIME:
            self.obstacle = "the time of the event is joined with knowledge"
        else:
            self._root(event, predicate, target)

    def _class(self, variable: str, target: Place) -> None:
        """The class of an event is known from its stream."""
        if not isinstance(target, Iri):
            self.obstacle = "the class of the event is asked for"
            return
        answers = {self._is_a(stream, target) for stream in self.streams[variable]}
        if answers == {False}:
            self.never = f"none is a {target.local}"
        elif None in answers:
            self.obstacle = f"whether an event is a {target.local} depends on its values"
        elif len(answers) > 1:
            self.obstacle = f"some streams are of class {target.local} and others are not"

    def _is_a(self, stream: Stream, target: Iri) -> bool | None:
        """Whether all events of the stream are of the class; None where it depends on their values."""
        node = Iri("urn:kaicep:event:any")
        knowledge = self.context.knowledge
        wanted = node, _TYPE, target
        if wanted in knowledge.entails_with(own_classes(node, stream, knowledge)):
            return True
        return None if event_vocabulary((stream,), knowledge).may_be(target) else False

    def _root(self, variable: str, property: Iri, target: Place) -> None:
        narrower = read_as(property, self.streams[variable], self.context.knowledge)
        literals = tuple(
            (stream.name, tuple(name for name, concept in stream.concepts if concept in narrower))
            for stream in self.streams[variable]
        )
        entities = tuple(
            (stream.name, tuple(name for name, entity in stream.entities if entity.property in narrower))
            for stream in self.streams[variable]
        )
        if not self.words.only_reads(property, narrower, self.streams[variable]):
            self.obstacle = f"{property.local} of an event also follows from other things"
            return
        if not any(found for _, found in literals + entities):
            self.never = f"no stream of ?{variable} carries {property.local}"
            return
        if isinstance(target, Variable) and not any(each.name == target.name for each in self.roots):
            name = target.name
        else:
            name = f"kaicep_root{len(self.roots)}"
            self._same(name, target)
        self.roots.append(Root(variable, property, name, literals, entities))

    def _same(self, name: str, target: Place) -> None:
        """A root that must be a given term, or the same as another root."""
        if isinstance(target, Variable):
            self.obstacle = f"two events, or two properties, must have the same ?{target.name}"
            return
        self.rest.append(Values((name,), ((target,),)))

    def _refuse_unlisted_roots(self) -> None:
        """A value that the knowledge base only compares it cannot list."""
        listed: set[str] = set()
        for element in self.rest:
            if isinstance(element, Values):
                listed.update(element.variables)
            for pattern in element.patterns if isinstance(element, TripleBlock) else ():
                # A way of no steps leads from anything to itself, also from what nobody knows.
                if isinstance(pattern.predicate, Variable) or not may_be_empty(pattern.predicate):
                    listed.update(pattern_variables(pattern))
        mentioned = element_variables(Group(tuple(self.rest)))
        for root in self.roots:
            if root.name in mentioned and root.name not in listed:
                self.obstacle = f"{root.property.local} is only compared, not looked up"

    def _refuse_events_in_disguise(self) -> None:
        """A variable that nothing leads to may stand for the event itself, if the event has what is asked."""
        led_to = {each.name for each in self.roots}
        for element in self.rest:
            for pattern in element.patterns if isinstance(element, TripleBlock) else ():
                if isinstance(pattern.object, Variable):
                    led_to.add(pattern.object.name)
        carried = {prop for _, prop, _ in self.words.triples}
        for pattern in (found for element in self.rest for found in triple_patterns(element)):
            subject = pattern.subject
            if isinstance(subject, Variable) and subject.name not in led_to and self.words.may_meet(pattern):
                self.obstacle = f"?{subject.name} may stand for the event itself"
            elif _leads_back(pattern.predicate, carried):
                self.obstacle = "a way that is read backwards may lead to the event itself"

    def _refuse_what_events_say_elsewhere(self) -> None:
        """What an event may say of other things, only it and the knowledge together can answer."""
        for pattern in (found for element in self.rest for found in triple_patterns(element)):
            if self.words.links and may_step(pattern.predicate, self.words.links):
                self.obstacle = "what follows from an event may be a step of the PATH"

    def _drop_what_ranges_give(self) -> None:
        """What the range of a root's property says of the root is true whenever there is an event."""
        given = {each.name: self._ranges(each) for each in self.roots}
        # Properties that the PATH does not mention have ranges too.
        classes = self.words.classes_of_values.union(*given.values())
        kept: list[Element] = []
        for element in self.rest:
            pattern = element.patterns[0] if isinstance(element, TripleBlock) else None
            if (
                pattern is not None
                and pattern.predicate == _TYPE
                and isinstance(pattern.subject, Variable)
                and pattern.object in given.get(pattern.subject.name, ())
            ):
                continue
            if any(_asks_for_class(each, classes) for each in triple_patterns(element)):
                self.obstacle = "the range of the event's property decides about a class"
            kept.append(element)
        self.rest = kept

    def _ranges(self, root: Root) -> frozenset[Term]:
        """The classes of whatever is the value of the root's property, by whichever attribute."""
        event, value = Iri("urn:kaicep:event:any"), Blank("any value")
        inferred = self.context.knowledge.entails_with([(event, root.property, value)])
        return frozenset(o for s, p, o in inferred if s == value and p == _TYPE)


def _asks_for_class(pattern: TriplePattern, classes: Set[Term]) -> bool:
    """Whether it may be one of these classes that the pattern asks for."""
    if not classes:
        return False
    predicate = pattern.predicate
    if predicate == _TYPE:
        return isinstance(pattern.object, Variable) or pattern.object in classes
    return may_step(predicate, {_TYPE})


def _leads_back(predicate: Predicate, properties: Set[Term]) -> bool:
    """Whether one of these properties may be read backwards on the way."""
    match predicate:
        case Inverse(of):
            return may_step(of, properties)
        case Negated(_, inverse):
            return bool(inverse)
        case Repeat(of):
            return _leads_back(of, properties)
        case Steps(parts) | Alternative(parts):
            return any(_leads_back(each, properties) for each in parts)
    return False
