"""A closure that is kept closed while statements come and go.

What is added goes through the rules like everything before it (`grow`). What is taken away (`shrink`)
takes all with it that some rule gave from it, and then what still follows in another way is put back:
"delete and re-derive". Neither looks at what does not depend on the change.

Both work on facts that hold at some instants only: a fact that a rule gives holds when all its
premises do. So one closure serves every instant: `Base` is what holds always, `Timed` lies over it
and has, once, everything that holds at some time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kaicep.knowledge.graph import Ids, Known, Layer, RuleFacts, TripleIndex
from kaicep.knowledge.loading import ALWAYS, NEVER, Validity, holds_at, intersection, minus, union
from kaicep.knowledge.reasoning import GIVEN, RuleProgram, become_transitive, consequences, goals, sayable
from kaicep.plan.terms import Triple


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


# When each fact that was touched held before.
Journal = dict[Ids, Validity]
"""When each fact that was touched held before."""
# When a fact is there without any rule.
Stated = Callable[[Ids], Validity]


class Holding(Protocol):
    """Facts, and when each of them holds."""

    @property
    def facts(self) -> RuleFacts:
        """All facts, whenever they hold."""
        ...

    def when(self, ids: Ids) -> Validity:
        """When the fact holds."""
        ...

    def extend(self, ids: Ids, more: Validity) -> bool:
        """Let the fact hold at more instants; False where it held already."""
        ...

    def reduce(self, ids: Ids, less: Validity) -> bool:
        """Let the fact hold at fewer instants; whether none is left."""
        ...

    def drop_transitive(self, p: int) -> None:
        """The property is no longer said to be transitive."""
        ...


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
