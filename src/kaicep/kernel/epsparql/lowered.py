"""From a plan to its operators over columns; bounds on the duration go down to what may forget by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.epsparql import identities, kernels
from kaicep.kernel.epsparql.answers import Block, pushed
from kaicep.kernel.epsparql.asking import (
    MARK,
    NONE,
    PARTNERS,
    SOME,
    Asker,
    Asking,
    Extended,
    Given,
    ProjectedColumns,
    Restricted,
    UnitedColumns,
)
from kaicep.kernel.epsparql.columnar import (
    Chunk,
    ColumnOperator,
    FilterColumns,
    Joiner,
    PatternColumns,
    Ways,
)
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.consuming import Adjacent, Between, Consuming, nothing_between
from kaicep.kernel.epsparql.dictionary import Array, Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.exists import Probe, is_choice, loosened, mentioned
from kaicep.kernel.epsparql.expressions import WHOLE, Value, existences
from kaicep.kernel.epsparql.groups import GroupedColumns
from kaicep.kernel.epsparql.pairs import Apart, GroupedPairs, apart, by_end
from kaicep.kernel.epsparql.reading import NOTHING_KNOWN, TYPE, KnownFacts, StreamReader
from kaicep.kernel.epsparql.sequences import SequenceColumns, sequence
from kaicep.kernel.epsparql.state import Keeper, OperatorContext
from kaicep.kernel.epsparql.tables import Rows
from kaicep.kernel.epsparql.walking import EmptyToo, Links, Nodes, OfTheGraph
from kaicep.kernel.epsparql.windows import Inside, Sliding, Sorted, Whole, WindowColumns, Windows, slide
from kaicep.plan.algebra import only_grows, pattern_variables
from kaicep.plan.events import MatchId
from kaicep.plan.expressions import Call, Exists, Expr, VariableRef, rewrite, walk
from kaicep.plan.nodes import (
    Bgp,
    EpPlan,
    Evaluations,
    Extend,
    FilterSolutions,
    Grouping,
    InsideGraph,
    InsideWindow,
    Join,
    LeftJoin,
    Minus,
    Node,
    Ordered,
    Solutions,
    Temporal,
    Triples,
    Union,
    ValuesTable,
)
from kaicep.plan.program import conjuncts, duration_bound, tighter
from kaicep.plan.sparql import (
    Alternative,
    Inverse,
    Negated,
    Path,
    Repeat,
    Steps,
    TriplePattern,
    WindowClause,
    may_be_empty,
)
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Blank, Iri, Variable

# How long each side is kept after its end: None is as long as the duration may be, -1 not at all.
_REACH: dict[str, tuple[int | None, int | None]] = {
    "SEQ": (None, -1),
    "DURING": (None, -1),
    "EQUALS": (0, 0),
    "FINISHES": (0, 0),
    "MEETS": (None, 0),
    "STARTS": (None, 0),
    "PAR": (None, None),
}
_GROUP = "a group of several triples"
_Words = tuple[np.uint64, np.uint64]


def lowered(
    plan: EpPlan, facts: KnownFacts, cap: int, dictionary: Dictionary, reader: StreamReader
) -> ColumnQuery:
    """The query over columns."""
    root = plan.root
    assert isinstance(root, Solutions | Triples)
    context = OperatorContext(facts, plan.name, cap)
    shared = _Shared(context, dictionary, reader, reorders=isinstance(root, Solutions))
    builder = _Builder(shared, _counts(root))
    made = builder.operator(_below(plan), None)
    if isinstance(root, Triples):
        return ColumnRule(plan, made, made.names, builder)
    return ColumnQuery(plan, made, root.names, builder)


def _below(plan: EpPlan) -> Node:
    return pushed(plan.root).input


@dataclass
class _Shared:
    """What the operators of a query are made with, and what is to be known of them."""

    context: OperatorContext
    dictionary: Dictionary
    reader: StreamReader
    patterns: list[PatternColumns] = field(default_factory=list)
    joiners: list[Joiner] = field(default_factory=list)
    hidden: int = 0
    reorders: bool = False
    """Whether joins may change their order while they run."""


@dataclass(frozen=True)
class _Step:
    """A triple pattern, its predicate any but the `refused` ones where it is a variable."""

    pattern: TriplePattern
    refused: tuple[Iri, ...] | None = None


@dataclass(frozen=True)
class _Walk:
    """Any number of steps between two places, or one (not `unbounded`), or (`empty`) none."""

    first: Place
    of: Iri | Path
    last: Place
    unbounded: bool
    empty: bool


_Part = _Step | _Walk


@dataclass(frozen=True)
class _Builder:
    """Makes operators. Variables that are `given` stand for their terms, as EXISTS has it.

    With `at_once` they are for one evaluation of windows after the other: all there is has the same time,
    `known` takes note of what the patterns ask of the knowledge, and nothing is kept. `probes` are to be
    stepped before the operators, each with the window that it is in.
    """

    shared: _Shared
    counts: bool
    given: Mapping[str, str] = field(default_factory=dict)
    at_once: bool = False
    known: dict[tuple[str, str, str], None] = field(default_factory=dict)
    window: WindowClause | None = None
    probes: list[tuple[Probe, WindowClause | None]] = field(default_factory=list)

    def operator(self, node: Node, bound: int | None, timeless: bool = False) -> ColumnOperator:
        """The operator of a plan; `timeless` where what knowledge alone gives is asked for as well.

        Solutions longer than `bound` are of no use to whoever asks.
        """
        if self.at_once:
            bound, timeless = 0, False
        match node:
            case Bgp():
                return self._basic(node, bound, timeless)
            case FilterSolutions():
                return self._filter(node, bound, timeless)
            case Extend(below, name, expr):
                inner = self.operator(below, bound, timeless)
                marked, expr = self._marked(inner, expr, timeless)
                made = self._extended(marked, name, expr, timeless, given=self.given.get(name))
                return self._without(made, inner.names if name in inner.names else (*inner.names, name))
            case Temporal():
                return self._temporal(node, bound, timeless)
            case Join(left, right):
                sides = self.operator(left, bound, True), self.operator(right, bound, True)
                return self._joiner("a join of groups", sides, bound, (bound, bound))
            case LeftJoin():
                return self._left_join(node, bound, timeless)
            case Minus(left, right):
                sides = self.operator(left, bound, timeless), self.operator(right, None, True)
                shared = frozenset(sides[0].names) & frozenset(sides[1].names)
                how = Asking(NONE, once=True, common=True)
                return self._asker(*sides, how, "MINUS", (), None, timeless, shared)
            case Union(left, right):
                return UnitedColumns(
                    self.operator(left, bound, timeless), self.operator(right, bound, timeless)
                )
            case ValuesTable(names, rows):
                codes = [self._codes(row) for row in rows if self._is_compatible(names, row)]
                return Given(names, codes, self.at_once)
            case Grouping():
                return self._grouping(node)
            case Ordered(below):
                return Sorted(self.operator(below, None), node, self.shared.dictionary, self)
            case Evaluations():
                return self._windows(node)
            case InsideWindow(below, window):
                return WindowColumns(replace(self, window=window).operator(below, bound), window)
            case InsideGraph():
                return self._in_graphs(node)
            case Solutions(below, names, distinct):
                seen = {name: text for name, text in self.given.items() if name in names}
                inner = replace(self, given=seen).operator(below, bound, timeless)
                return self._restricted(ProjectedColumns(inner, names, distinct), seen)
        raise Failure(f"no operator of SPARQL: {type(node).__name__}")

    # --- what is given, and EXISTS -------------------------------------------------------------------

    def _codes(self, row: Many[object]) -> tuple[int, ...]:
        return self.shared.dictionary.codes(None if each is None else str(each) for each in row)

    def _is_compatible(self, names: Many[str], row: Many[object]) -> bool:
        pairs = zip(names, row, strict=True)
        return all(each is None or self.given.get(name, str(each)) == str(each) for name, each in pairs)

    def _restricted(self, made: ColumnOperator, given: Mapping[str, str]) -> ColumnOperator:
        """The solutions that are compatible with terms that are given."""
        code = self.shared.dictionary.code
        wanted = [(made.names.index(name), code(text)) for name, text in given.items() if name in made.names]
        return Restricted(made, wanted) if wanted else made

    def probe(self, expr: Exists, names: Many[str]) -> Probe:
        """See `Outside`."""
        group, shared, at_once = expr.group, self.shared, self.at_once
        assert isinstance(group, Node)
        counts = _counts(group)

        def start(given: Mapping[str, str]) -> tuple[ColumnOperator, Callable[[Chunk], None]]:
            context = OperatorContext(shared.context.facts, shared.context.query, shared.context.cap)
            mine = _Shared(context, shared.dictionary, shared.reader)
            builder = _Builder(mine, counts, given, at_once)
            return builder.operator(group, None, True), partial(_step_all, builder.probes)

        first = len(shared.patterns)
        looked = replace(self, given={}, probes=[])
        inner = OperatorContext(shared.context.facts, shared.context.query, shared.context.cap)
        mine = _Shared(inner, shared.dictionary, shared.reader, shared.patterns, [])
        replace(looked, shared=mine, counts=counts).operator(group, None, False)
        found = Probe(frozenset(mentioned(group)), shared.patterns[first:], start, shared.dictionary, at_once)
        self.probes.append((found, self.window))
        self._keep(found)
        return found

    def _check(self, parts: Many[Expr], names: Many[str]) -> Check:
        return Check(parts, names, self.shared.dictionary, self, timed=not self.at_once)

    def _keep(self, keeper: Keeper, label: str | None = None) -> None:
        if label is not None:
            keeper.label = label
        if not self.at_once:
            self.shared.context.keep(keeper)

    # --- the operators of SPARQL ---------------------------------------------------------------------

    def _filter(self, node: FilterSolutions, bound: int | None, timeless: bool) -> ColumnOperator:
        near = tighter(bound, duration_bound(node.condition))
        between = None if self.given else nothing_between(node.input, node.condition)
        groups = [each for each in conjuncts(node.condition) if isinstance(each, Exists)]
        inner = self._adjacent(between, near) if between else self.operator(node.input, near, timeless)
        outer = frozenset(inner.names) | self.given.keys()
        asked = [each for each in dict.fromkeys(groups) if self._is_asked(each, outer)]
        parts = [each for each in conjuncts(node.condition) if each not in asked]
        mixed = [each for each in parts if existences(each)]
        plain = [each for each in parts if each not in mixed]
        if isinstance(inner, Joiner) and not timeless:
            inner.check = inner.check.and_also(plain)
        elif isinstance(inner, SequenceColumns):
            inner.conditions += [each for each in plain if each not in inner.conditions]
        elif plain:
            inner = self._filtered(inner, plain, timeless)
        for each in mixed:
            marked, condition = self._marked(inner, each, timeless)
            inner = self._without(self._filtered(marked, [condition], timeless), inner.names)
        for each in asked:
            inner = self._exists(each, inner, timeless)
        return inner

    def _filtered(self, below: ColumnOperator, parts: Many[Expr], timeless: bool) -> ColumnOperator:
        made = FilterColumns(below, self._check(parts, below.names))
        if timeless and len(below.still):
            made.still = below.still.take(made.check.timeless(below.still.values))
        return made

    def _without(self, made: ColumnOperator, names: tuple[str, ...]) -> ColumnOperator:
        return made if made.names == names else ProjectedColumns(made, names, False)

    def _marked(self, inner: ColumnOperator, expr: Expr, timeless: bool) -> tuple[ColumnOperator, Expr]:
        """With a variable for each EXISTS in an expression that a key answers, which looks at these then."""
        outer = frozenset(inner.names) | self.given.keys()
        if any(isinstance(each, Call) and each.op in WHOLE for each in walk(expr)):
            return inner, expr  # they may see all variables that there are
        for each in dict.fromkeys(existences(expr)):
            if self._is_asked(each, outer):
                mark = self._hidden().name
                inner = self._exists(each, inner, timeless, mark)
                found: Expr = Call("bound", (VariableRef(mark),))
                found = Call("not", (found,)) if each.negated else found
                expr = rewrite(expr, lambda part, each=each, found=found: found if part == each else part)  # type: ignore[misc]
        return inner, expr

    def _adjacent(self, groups: Between, bound: int | None) -> Adjacent:
        before, after, inside = (
            self.operator(e, bound) for e in (groups.before, groups.after, groups.inside)
        )
        made = Adjacent(before, after, inside, bound, self.shared.dictionary)
        for table in made.tables:
            self._keep(table, "SEQ")
        return made

    def _is_asked(self, expr: Exists, outer: frozenset[str]) -> bool:
        """Whether a group can be evaluated beside the query, and asked by its key."""
        return not self.given and is_choice(loosened(expr, outer)[0], outer)

    def _exists(self, expr: Exists, asking: ColumnOperator, timeless: bool, *mark: str) -> ColumnOperator:
        core, conditions = loosened(expr, frozenset(asking.names))
        kept = self.operator(core, None, True)
        names = kept.names + tuple(each for each in asking.names if each not in kept.names)
        matters = None if conditions else frozenset(asking.names) & frozenset(kept.names)
        want = MARK if mark else NONE if expr.negated else SOME
        how = Asking(want, once=not conditions, theirs=True, mark=mark)
        condition = Call("and", tuple(conditions)) if conditions else None
        return self._asker(asking, kept, how, "EXISTS", names, condition, timeless, matters)

    def _extended(
        self,
        below: ColumnOperator,
        name: str,
        expr: Expr,
        timeless: bool,
        seen: Many[str] | None = None,
        given: str | None = None,
    ) -> Extended:
        """With a value more; of the variables below, the expression sees all, or the first ones."""
        value = Value(expr, below.names if seen is None else seen, self)
        width = None if seen is None else len(seen)
        made = Extended(below, name, value, self.shared.dictionary, not self.at_once, width, given)
        if timeless:
            made.know()
        return made

    def _left_join(self, node: LeftJoin, bound: int | None, timeless: bool) -> ColumnOperator:
        near = duration_bound(node.condition)
        left, right = self.operator(node.left, bound, timeless), self.operator(node.right, near, True)
        witness = near is None and node.condition is None and _is_exact(left, right)
        keep = near if near is not None else bound if witness else None
        how = Asking(PARTNERS, bound=bound, near=near, keep=keep, witness=witness)
        names = left.names + tuple(each for each in right.names if each not in left.names)
        return self._asker(left, right, how, "OPTIONAL", names, node.condition, timeless)

    def _asker(
        self,
        asking: ColumnOperator,
        kept: ColumnOperator,
        how: Asking,
        op: str,
        names: Many[str],
        condition: Expr | None,
        timeless: bool,
        matters: frozenset[str] | None = None,
    ) -> Asker:
        parts = conjuncts(condition)
        if self.at_once:
            how = replace(how, bound=None, near=0, keep=0, once=False, witness=False)
        made = Asker(asking, kept, how, names, partial(self._check, parts), self.shared.dictionary, matters)
        self._keep(made.table, op)
        if timeless:
            made.know()
        return made

    def _joiner(
        self,
        op: str,
        sides: tuple[ColumnOperator, ColumnOperator],
        bound: int | None,
        reach: tuple[int | None, int | None],
    ) -> Joiner:
        made = Joiner(
            kernels.OPERATORS.get(op, kernels.JOIN), sides, bound, reach, self.shared.dictionary, self._check
        )
        self.shared.joiners.append(made)
        for table in made.kept:
            self._keep(table, op)
        return made

    def _grouping(self, node: Grouping) -> ColumnOperator:
        sides = None if self.at_once or self.given else apart(node)
        if sides is not None:
            return self._paired(node, sides)
        below, anew = self.operator(node.input, None, True), self.at_once or by_end(node)
        made, keys = self._keyed(below, node, not self.at_once)
        made, places = self._valued(made, below, [each.of for _, each in node.aggregates], not self.at_once)
        aggregates = [(name, each, at) for (name, each), at in zip(node.aggregates, places, strict=True)]
        certain = below.certain & {name for name, expr in node.keys if expr is None}
        how = self.shared.dictionary, anew
        grouped = GroupedColumns(made, below.names, keys, aggregates, certain, *how)
        self._keep(grouped)
        return grouped

    def _keyed(
        self, below: ColumnOperator, node: Grouping, timeless: bool
    ) -> tuple[ColumnOperator, list[tuple[str, int]]]:
        """With the keys of groups as columns, and their places."""
        made, places = self._valued(below, below, [expr for _, expr in node.keys], timeless)
        names = below.names
        keys = [
            (name, names.index(name) if expr is None and name in names else place)
            for (name, expr), place in zip(node.keys, places, strict=True)
        ]
        return made, keys

    def _valued(
        self, made: ColumnOperator, below: ColumnOperator, values: Many[Expr | None], timeless: bool
    ) -> tuple[ColumnOperator, list[int]]:
        """With expressions about what is `below` as columns, and their places; -1 is none."""
        places: list[int] = []
        for expr in values:
            if expr is not None:
                made = self._extended(made, self._hidden().name, expr, timeless, below.names)
            places.append(-1 if expr is None else len(made.names) - 1)
        return made, places

    def _paired(self, node: Grouping, sides: Apart) -> ColumnOperator:
        """GROUP BY over a SEQ without its pairs."""
        left, right = (self.operator(pushed(each), sides.bound) for each in (sides.left, sides.right))
        certain = right.certain & {name for name, expr in node.keys if expr is None}
        ofs = [each.of for _, each in node.aggregates]
        on = list(zip(ofs, sides.on_left, strict=True))
        first, lefts = self._valued(left, left, [of if is_left else None for of, is_left in on], False)
        second, keys = self._keyed(right, node, False)
        second, rights = self._valued(second, right, [None if is_left else of for of, is_left in on], False)
        aggregates = [
            (name, replace(each, distinct=each.distinct and not is_left), one if is_left else other, is_left)
            for (name, each), one, other, is_left in zip(
                node.aggregates, lefts, rights, sides.on_left, strict=True
            )
        ]
        how = self.shared.dictionary, by_end(node)
        made = GroupedPairs(first, second, sides.bound, keys, aggregates, certain, *how)
        self._keep(made.table, "SEQ")
        self._keep(made)
        return made

    # --- the temporal operators ----------------------------------------------------------------------

    def _temporal(self, node: Temporal, bound: int | None, timeless: bool) -> ColumnOperator:
        op = node.op
        if op != "NOT" and node.consumption != "unrestricted":
            return self._consuming(node, timeless)
        if op in kernels.ASKS:
            return self._one_sided(node, bound, timeless)
        if self.shared.reorders and bound is not None and not self.at_once:
            groups, conditions = sequence(node)
            if len(groups) > 2:
                several = [self.operator(each, bound) for each in groups]
                chain = SequenceColumns(several, bound, conditions, self.shared.dictionary, self._check)
                self._keep(chain)
                return chain
        reach = tuple(bound if each is None else each for each in _REACH[op])
        sides = self.operator(node.left, bound), self.operator(node.right, bound)
        made = self._joiner(op, sides, bound, (reach[0], reach[1]))
        if node.condition is None:
            return made
        return FilterColumns(made, self._check(conjuncts(node.condition), made.names))

    def _consuming(self, node: Temporal, timeless: bool) -> ColumnOperator:
        sides = [
            self.operator(each, None, timeless and node.op == op)
            for each, op in ((node.left, "EQUALSOPTIONAL"), (node.right, "OPTIONALSEQ"))
        ]
        check = partial(self._check, conjuncts(node.condition))
        made = Consuming(node.op, (sides[0], sides[1]), check, node.consumption, self.shared.dictionary)
        self._keep(made.lefts)
        self._keep(made)
        if timeless:
            made.know()
        return made

    def _one_sided(self, node: Temporal, bound: int | None, timeless: bool) -> ColumnOperator:
        """NOT, and the temporal operators one side of which may be missing."""
        op, relation, near = node.op, kernels.ASKS[node.op], duration_bound(node.condition)
        first = op == "OPTIONALSEQ"
        left = self.operator(node.left, near if first else bound, timeless and not first and op != "NOT")
        right = self.operator(node.right, bound, timeless and first)
        if op == "NOT":
            # What lies inside of a solution is no longer than the solution.
            how = Asking(NONE, relation, bound=bound, keep=bound, timed=True)
            return self._asker(left, right, how, op, (), None, timeless=False)
        names = left.names + tuple(each for each in right.names if each not in left.names)
        if not first:
            how = Asking(PARTNERS, relation, near=near, keep=0, timed=True)
            return self._asker(left, right, how, op, names, node.condition, timeless)
        witness = near is None and node.condition is None and _is_exact(left, right)
        keep = near if near is not None else bound if witness else None
        how = Asking(PARTNERS, relation, bound, near, keep, witness, timed=True)
        return self._asker(right, left, how, op, names, node.condition, timeless)

    # --- windows -------------------------------------------------------------------------------------

    def _windows(self, node: Evaluations) -> ColumnOperator:
        shared, (window, *_) = self.shared, node.windows
        sliding = slide(node)
        if sliding is not None:
            apart = OperatorContext(shared.context.facts, shared.context.query, shared.context.cap)
            builder = _Builder(_Shared(apart, shared.dictionary, shared.reader, shared.patterns), self.counts)
            bound = (window.rows or window.width or 0) - 1
            below = builder.operator(pushed(sliding.below), bound, True)
            inside: Inside = Sliding(sliding, below, shared.dictionary, builder)
        else:
            builder = _Builder(shared, self.counts, at_once=True)
            below = builder.operator(node.input, 0)
            code = shared.dictionary.code
            known = OccurrenceColumns.of([(code(s), code(p), code(o), 0, 0) for s, p, o in builder.known])
            inside = Whole(node.windows, below, partial(_step_all, builder.probes), known)
        made = Windows(node, inside, shared.reader, shared.dictionary)
        self._keep(made)
        shared.context.windows.append(made)
        return self._restricted(made, self.given)

    def _in_graphs(self, node: InsideGraph) -> ColumnOperator:
        """GRAPH: what is stated in named graphs is evaluated here, once and for all. It has no time."""
        dictionary, graphs = self.shared.dictionary, self.shared.context.facts.graphs
        if not isinstance(node.name, Variable):
            names, rows = self._in_graph(node.input, graphs.get(str(node.name), KnownFacts(NOTHING_KNOWN)))
            return self._restricted(Given(names, rows, self.at_once), self.given)
        names, found = self._in_graph(node.input, KnownFacts(NOTHING_KNOWN))[0], list[tuple[int, ...]]()
        place = names.index(node.name.name) if node.name.name in names else None
        for name, facts in graphs.items():
            code = dictionary.code(name)
            for row in self._in_graph(node.input, facts)[1]:
                if place is None:
                    found.append((*row, code))
                elif row[place] in (-1, code):
                    found.append((*row[:place], code, *row[place + 1 :]))
        names = names if place is not None else (*names, node.name.name)
        return self._restricted(Given(names, found, self.at_once), self.given)

    def _in_graph(self, node: Node, facts: KnownFacts) -> tuple[tuple[str, ...], list[tuple[int, ...]]]:
        """The variables and the solutions of a group over these facts alone."""
        context = OperatorContext(facts, self.shared.context.query, self.shared.context.cap)
        shared = _Shared(context, self.shared.dictionary, self.shared.reader)
        builder, code = _Builder(shared, self.counts, at_once=True), self.shared.dictionary.code
        made = builder.operator(node, 0)
        known = OccurrenceColumns.of([(code(s), code(p), code(o), 0, 0) for s, p, o in builder.known])
        chunk = Chunk(known, 0)
        _step_all(builder.probes, chunk)
        return made.names, [tuple(row) for row in made.step(chunk).values.tolist()]

    # --- triple patterns and paths -------------------------------------------------------------------

    def _basic(self, node: Bgp, bound: int | None, timeless: bool) -> ColumnOperator:
        plain = len(node.patterns) == 1 and not isinstance(node.patterns[0].predicate, Path)
        if plain:
            return self._pattern(_Step(node.patterns[0]), timeless)
        names = dict.fromkeys(name for each in node.patterns for name in pattern_variables(each))
        if not names and not node.patterns:
            return Given((), [()], self.at_once)
        ordered = _in_order(node.patterns, set(self.given))
        ways = product(*(self._read(each) for each in ordered))
        return Ways([self._way(ordered, each, bound) for each in ways], tuple(names), self.counts)

    def _pattern(self, step: _Step, timeless: bool) -> PatternColumns:
        made = PatternColumns(step.pattern, self.shared.dictionary, step.refused, self.given)
        self.shared.patterns.append(made)
        if timeless or self.at_once:
            found = self.shared.context.facts.match(*made.asked())
            if self.at_once:
                self.known.update(dict.fromkeys(found))
            else:
                made.know(found, self.shared.dictionary)
        return made

    def _read(self, pattern: TriplePattern) -> list[list[_Part]]:
        """The ways in which a pattern can be read as plain ones: each alternative of its path is one."""
        subject, path, of = pattern.subject, pattern.predicate, pattern.object
        match path:
            case Inverse(inner):
                return self._read(TriplePattern(of, inner, subject))
            case Alternative(parts):
                return [way for each in parts for way in self._read(TriplePattern(subject, each, of))]
            case Steps(parts):
                places = [subject, *(self._hidden() for _ in parts[1:]), of]
                steps = zip(places, parts, places[1:], strict=False)
                read = [self._read(TriplePattern(*each)) for each in steps]
                return [[step for part in way for step in part] for way in product(*read)]
            case Negated(forward, inverse):
                ways: list[list[_Part]] = []
                if forward or not inverse:
                    ways.append([_Step(TriplePattern(subject, self._hidden(), of), forward)])
                if inverse:
                    ways.append([_Step(TriplePattern(of, self._hidden(), subject), inverse)])
                return ways
            case Repeat(inner, least, unbounded):
                return [[_Walk(subject, inner, of, unbounded, least == 0)]]
        return [[_Step(pattern)]]

    def _hidden(self) -> Variable:
        """A variable that nobody sees."""
        self.shared.hidden += 1
        return Variable(f"_:on the way {self.shared.hidden}")

    def _way(
        self, patterns: Many[TriplePattern], way: Many[list[_Part]], bound: int | None
    ) -> ColumnOperator:
        """Patterns that are read in one way, joined one after the other.

        What may be empty comes last, when its ends are known: that is part of what it means.
        """
        pairs = list(zip(patterns, way, strict=True))
        steps = [part for pattern, some in pairs if not _may_be_empty(pattern) for part in some]
        made = self._joined(None, steps, bound) if steps else None
        for pattern, some in pairs:
            if _may_be_empty(pattern):
                before = frozenset(made.names) if made is not None else frozenset[str]()
                made = self._joined(made, some, bound)
                made = self._of_the_graph(made, pattern, patterns, before)
        assert made is not None
        return made

    def _joined(self, made: ColumnOperator | None, parts: Many[_Part], bound: int | None) -> ColumnOperator:
        rest = list(parts)
        while rest:
            known = set(made.names if made is not None else ()) | set(self.given)
            # What shares a variable with what is joined already comes first.
            best = max(rest, key=lambda one: (_ease(one, known), -rest.index(one)))
            rest.remove(best)
            made = self._through(made, best, known, bound)
        assert made is not None
        return made

    def _through(
        self, made: ColumnOperator | None, part: _Part, known: set[str], bound: int | None
    ) -> ColumnOperator:
        """What is joined already, joined with one part more."""
        if isinstance(part, _Step):
            return self._with(made, self._pattern(part, True), bound)
        ends = part.first, part.last
        fixed = self._fixed(part.first), self._fixed(part.last)
        if not part.empty or fixed != (None, None) or made is None or not _shares(ends, known):
            return self._with(made, self._links(part, fixed, bound, part.empty), bound)
        assert isinstance(part.first, Variable)
        assert isinstance(part.last, Variable)
        sides = made, self._links(part, fixed, bound, False)
        joiner = self._joiner(_GROUP, sides, bound, (bound, bound))
        return EmptyToo(joiner, (part.first.name, part.last.name))

    def _with(self, made: ColumnOperator | None, other: ColumnOperator, bound: int | None) -> ColumnOperator:
        return other if made is None else self._joiner(_GROUP, (made, other), bound, (bound, bound))

    def _fixed(self, place: Place) -> int | None:
        text = self.given.get(place.name) if isinstance(place, Variable) else str(place)
        return None if text is None else self.shared.dictionary.code(text)

    def _links(
        self, part: _Walk, fixed: tuple[int | None, int | None], bound: int | None, empty: bool
    ) -> ColumnOperator:
        """What a path joins; an end that is fixed is joined with itself at any time, else any node."""
        ends, dictionary = (part.first, part.last), self.shared.dictionary
        first, last = self._hidden(), self._hidden()
        steps = self.operator(Bgp((TriplePattern(first, part.of, last),)), bound, True)
        steps = ProjectedColumns(steps, (first.name, last.name), True)
        alone = self._nodes() if empty and fixed == (None, None) else None
        made = Links(steps, ends, fixed, part.unbounded, alone, bound, dictionary)
        self._keep(made)
        if not empty or alone is not None or (None not in fixed and fixed[0] != fixed[1]):
            return made
        [known] = {each for each in fixed if each is not None}
        return UnitedColumns(made, Given(made.names, [(known,) * len(made.names)], self.at_once))

    def _nodes(self) -> Nodes:
        every = TriplePattern(self._hidden(), self._hidden(), self._hidden())
        return Nodes(replace(self, given={})._pattern(_Step(every), True), self._hidden().name)

    def _of_the_graph(
        self,
        made: ColumnOperator,
        pattern: TriplePattern,
        patterns: Many[TriplePattern],
        before: frozenset[str],
    ) -> ColumnOperator:
        """Without what an empty path joins although it is no node, where an end may be no node."""
        ends = pattern.subject, pattern.object
        if not (isinstance(ends[0], Variable) and isinstance(ends[1], Variable)):
            return made
        names = ends[0].name, ends[1].name
        places = {e for each in patterns for e in (each.subject, each.object) if not _may_be_empty(each)}
        strange = [name for name in names if name in self.given or name in before]
        if not any(Variable(name) not in places for name in strange):
            return made
        facts, dictionary = self.shared.context.facts, self.shared.dictionary
        checked = OfTheGraph(made, names, self._nodes(), facts, dictionary)
        self._keep(checked)
        return checked


def _counts(root: Node) -> bool:
    """Whether it matters how often there is a solution: to aggregates, and to who is used up."""
    return any(
        isinstance(each, Grouping) or (isinstance(each, Temporal) and each.consumption != "unrestricted")
        for each in root.walk()
    )


def _step_all(probes: Many[tuple[Probe, WindowClause | None]], chunk: Chunk) -> None:
    for probe, window in probes:
        probe.step(chunk if window is None else chunk.windows[window])


def _may_be_empty(pattern: TriplePattern) -> bool:
    return isinstance(pattern.predicate, Path) and may_be_empty(pattern.predicate)


def _in_order(patterns: Many[TriplePattern], bound: set[str]) -> list[TriplePattern]:
    """What is best known first; paths that may be empty last, when their ends are known."""
    rest, found = list(patterns), list[TriplePattern]()
    while rest:
        best = max(rest, key=lambda each: (not _may_be_empty(each), _known(each, bound)))
        rest.remove(best)
        bound |= set(pattern_variables(best))
        found.append(best)
    return found


def _known(pattern: TriplePattern, bound: set[str]) -> int:
    """How many ends of a pattern are known; the predicate counts least."""
    ends = (pattern.subject, pattern.object)
    known = sum(not isinstance(each, Variable) or each.name in bound for each in ends)
    return 2 * known + (not isinstance(pattern.predicate, Variable) or pattern.predicate.name in bound)


def _ease(part: _Part, known: set[str]) -> tuple[bool, bool]:
    """What comes first: steps, and what shares a variable with what is known."""
    if isinstance(part, _Step):
        return True, bool(set(pattern_variables(part.pattern)) & known)
    ends = part.first, part.last
    return not part.empty, _shares(ends, known) or not all(isinstance(each, Variable) for each in ends)


def _shares(ends: tuple[Place, Place], known: set[str]) -> bool:
    return any(isinstance(each, Variable) and each.name in known for each in ends)


def _is_exact(left: ColumnOperator, right: ColumnOperator) -> bool:
    """Whether both sides always bind what they share."""
    return set(left.names) & set(right.names) <= left.certain & right.certain


class ColumnQuery:
    """A standing SELECT over columns: chunks of occurrences in, blocks of answers out."""

    def __init__(
        self, plan: EpPlan, operator: ColumnOperator, names: tuple[str, ...], made: _Builder
    ) -> None:
        shared = made.shared
        self.name, self.context, self.patterns = plan.name, shared.context, shared.patterns
        self.joiners = shared.joiners
        self.grows = only_grows(plan.root.input)
        self._operator, self._probes, self._dictionary = operator, made.probes, shared.dictionary
        shown = [name for name in names if name in operator.names]
        self._shown = tuple(shown)
        self._places = [operator.names.index(name) for name in shown]
        self._as_is = self._places == list(range(len(operator.names)))
        visible = sorted((name, i) for i, name in enumerate(shown) if not name.startswith("_:"))
        self._visible = np.array([i for _, i in visible], np.int64)
        labels = [f" ?{name}=".encode() for name, _ in visible]
        self._labels = np.frombuffer(b"".join(labels), np.uint8)
        self._label_ends = np.cumsum([len(each) for each in labels]).astype(np.int64)
        self._seed, self._plan = _words(MatchId(plan.name, plan.text)), plan

    def step(self, chunk: Chunk) -> Block | None:
        """The distinct answers that end with a chunk of whole instants."""
        _step_all(self._probes, chunk)
        rows = self._operator.step(chunk)
        self.context.check()
        return self._block(rows) if len(rows) else None

    def _identified(self, values: Array, start: Array, end: Array, seed: _Words) -> tuple[Array, Array]:
        """The ids of solutions that go on from one."""
        how = self._visible, self._labels, self._label_ends, *self._dictionary.letters()
        low, high = identities.identify(values, start, end, *how, *seed)
        return low, high

    def _block(self, rows: Rows) -> Block:
        values = rows.values if self._as_is else np.ascontiguousarray(rows.values[:, self._places])
        low, high = self._identified(values, rows.start, rows.end, self._seed)
        found = Block(self.name, self._shown, self._dictionary.texts, values, rows.start, rows.end, low, high)
        if len(rows) == 1:
            return found
        order = np.arange(len(rows))
        if not identities.in_order(rows.end, low, high, order):
            order = np.lexsort((high, low, rows.end))
        end, one, two = rows.end[order], low[order], high[order]
        again = (end[1:] == end[:-1]) & (one[1:] == one[:-1]) & (two[1:] == two[:-1])
        return found.take(order[np.concatenate(([True], ~again))] if again.any() else order)


def _words(made: MatchId) -> _Words:
    return np.uint64(made.low), np.uint64(made.high)


class ColumnRule(ColumnQuery):
    """A CONSTRUCT rule over columns: its answers, and what it makes of them."""

    recursive = turns = False
    sources: Set[str] = frozenset()
    """The names of the rules whose triples it reads."""

    def recurse(self, grows: bool, turns: bool) -> None:
        """It reads what it makes, or what others make of that; none takes anything back where all `grow`.

        Others turn round at an instant, but where all that they make is read later.
        """
        self.recursive, self.turns = True, turns
        if turns:
            self.context.replay()
        for each in self.joiners if grows else ():
            each.mix()

    def settle(self) -> None:
        """All that ends by now has come."""
        for each in self.joiners:
            each.settle()

    @property
    def template(self) -> tuple[TriplePattern, ...]:
        """What it makes of an answer."""
        assert isinstance(self._plan.root, Triples)
        return self._plan.root.template

    @property
    def reads(self) -> frozenset[str] | None:
        """The predicates of the triples that it looks at; None is any."""
        found = [each.asked()[1] for each in self.patterns]
        return None if None in found else frozenset(each for each in found if each is not None)

    @property
    def reads_at_once(self) -> frozenset[str] | None:
        """The predicates of those triples that an answer may hang on when they end with it; None is any."""
        return _at_its_end(_below(self._plan))

    def fill(self, block: Block) -> tuple[Block, OccurrenceColumns]:
        """The answers of which triples are made, and these."""
        filled = {each: self._filled(block, each) for one in self.template for each in _places(one)}
        made = np.array([[filled[each] for each in _places(one)] for one in self.template])
        are, left = kernels.are_triples(made, self._dictionary.initials())
        block = replace(block, triples=tuple((*each, one) for each, one in zip(made, are, strict=True)))
        if len(left) < len(block):
            block = block.take(left)
        parts = [
            OccurrenceColumns(s, p, o, block.start, block.end).take(is_one)
            for s, p, o, is_one in block.triples or ()
        ]
        return block, OccurrenceColumns.merged(parts)

    def _filled(self, block: Block, place: Place) -> Array:
        if isinstance(place, Blank):
            return self._nodes(block, place.label)
        code = -1
        if not isinstance(place, Variable):
            code = self._dictionary.code(str(place))
        elif place.name in block.names and not place.name.startswith("_:"):
            return np.ascontiguousarray(block.values[:, block.names.index(place.name)])
        return np.full(len(block), code, np.int32)

    def _nodes(self, block: Block, label: str) -> Array:
        """One node for each solution."""
        low, high = self._identified(block.values, block.start, block.end, _words(MatchId(self.name, label)))
        code, pairs = self._dictionary.code, zip(low.tolist(), high.tolist(), strict=True)
        return np.array([code(f"_:n{a:016x}{b:016x}") for a, b in pairs], np.int32)


def _places(pattern: TriplePattern) -> Many[Place]:
    return pattern.subject, pattern.predicate, pattern.object  # type: ignore[return-value]


def rules_in_order(rules: Many[ColumnRule], reader: StreamReader) -> list[list[ColumnRule]]:
    """The rules, each after those whose triples it reads; those that read each other's stand together.

    Where these only grow they are closed round by round, so what comes to them comes in no order.
    """
    made = {each.name: _predicates(each, reader) for each in rules}
    before: dict[str, set[str]] = {}
    for rule in rules:
        reads = rule.reads
        before[rule.name] = {name for name, found in made.items() if _may_meet(found, reads)}
    reach = {name: set(found) for name, found in before.items()}
    for middle in reach:
        for found in reach.values():
            if middle in found:
                found |= reach[middle]
    # Whoever reads another reads what that one reads, and that one too, but for those that read it in turn.
    earlier = {name: sum(name not in reach[other] for other in found) for name, found in reach.items()}
    groups: list[list[ColumnRule]] = []
    for rule in sorted(rules, key=lambda each: earlier[each.name]):
        for group in groups:
            if rule.name in reach[group[0].name] and group[0].name in reach[rule.name]:
                group.append(rule)
                break
        else:
            groups.append([rule])
    for group in groups:
        if any(rule.name in reach[rule.name] for rule in group):
            grows = all(each.grows for each in group)
            turns = not grows and any(
                _may_meet(made[one.name], other.reads_at_once) for one, other in product(group, repeat=2)
            )
            for rule in group:
                rule.sources = before[rule.name]
                rule.recurse(grows, turns)
    return groups


def _may_meet(made: frozenset[str] | None, read: frozenset[str] | None) -> bool:
    return made is None or read is None or bool(made & read)


def _at_its_end(node: Node) -> frozenset[str] | None:
    """The predicates of triples on which a solution hangs that ends with them; None is any.

    What lies before SEQ ends before: it may come when all else of its instant has come, if it only grows.
    """
    match node:
        case Bgp(patterns):
            found = [each.predicate for each in patterns]
            return frozenset(map(str, found)) if all(isinstance(each, Iri) for each in found) else None
        case Temporal("SEQ" | "OPTIONALSEQ", left, right, None, "unrestricted") if only_grows(left):
            return _at_its_end(right) if _at_its_end(left) is not None else None
        case FilterSolutions(below, condition) if between := nothing_between(below, condition):
            parts, exprs = [between.after], [condition]
        case FilterSolutions(below, expr) | Extend(below, _, expr):
            parts, exprs = [below], [expr]
        case Join(left, right) | Union(left, right) | Minus(left, right):
            parts, exprs = [left, right], []
        case LeftJoin(left, right, condition) | Temporal(_, left, right, condition):
            parts, exprs = [left, right], [] if condition is None else [condition]
        case Solutions(below):
            parts, exprs = [below], []
        case _:
            return None
    groups = [each.group for expr in exprs for each in existences(expr)]
    read = [_at_its_end(each) for each in (*parts, *groups)]  # type: ignore[arg-type]
    return None if None in read else frozenset[str]().union(*(each for each in read if each))


def _predicates(rule: ColumnRule, reader: StreamReader) -> frozenset[str] | None:
    """The predicates of the triples that a rule makes, and of what these entail; None is any."""
    found: set[str] = set()
    for pattern in rule.template:
        predicate, of = pattern.predicate, pattern.object
        if not isinstance(predicate, Iri) or (str(predicate) == TYPE and isinstance(of, Variable)):
            return None
        for about in ("_:any", '"any"') if isinstance(of, Variable) else (str(of),):
            template = reader.template(("_:any", str(predicate), about))
            if template is None:
                return None
            found |= {str(predicate), *(p for _, p, _ in template)}
    return frozenset(found)
