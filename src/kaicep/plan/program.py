"""Several queries together: who reads whose output, how long answers may take, how an input ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kaicep.errors import Diagnostic, Mistake, Span, did_you_mean
from kaicep.plan import nodes
from kaicep.plan.algebra import ep_plan
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import Absent, ChiQuery, taken_by
from kaicep.plan.events import Match
from kaicep.plan.expressions import Call, Expr, TermConst, VariableRef, walk
from kaicep.plan.resolve import output_stream, resolve_chi
from kaicep.plan.sparql import EpQuery
from kaicep.plan.terms import XSD, Iri, Literal, Term, Variable
from kaicep.plan.text import EP_PREFIXES
from kaicep.plan.types import Type
from kaicep.plan.typing import Problems
from kaicep.plan.values import parse_xsd_duration

# ----------------------------------------------------------------------------------------------------------
# How much time the answers of an EP-SPARQL query can take, as its conditions on the duration bound it.

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    """The conditions that must all be true; an error in one is like a falsehood."""
    if condition is None:
        return ()
    if isinstance(condition, Call) and condition.op == "and":
        return tuple(part for each in condition.args for part in conjuncts(each))
    return (condition,)


def duration_of(term: Term) -> int | None:
    """The microseconds of a literal that is a duration of days and time; None of any other term."""
    if not isinstance(term, Literal) or term.datatype not in (XSD + "duration", XSD + "dayTimeDuration"):
        return None
    return parse_xsd_duration(term.lexical)


def duration_comparison(expr: Expr) -> tuple[str, int] | None:
    """`getDURATION()` compared with a constant: the sign and the microseconds."""
    if not isinstance(expr, Call) or expr.op not in _MIRRORED:
        return None
    left, right = expr.args
    sign = expr.op
    if isinstance(left, TermConst):
        left, right, sign = right, left, _MIRRORED[sign]
    if not (isinstance(left, Call) and left.op == "getduration" and isinstance(right, TermConst)):
        return None
    micros = duration_of(right.term)
    return None if micros is None else (sign, micros)


def duration_bound(condition: Expr | None) -> int | None:
    """The longest duration in microseconds that a condition lets pass; None is any."""
    bounds: list[int] = []
    for each in conjuncts(condition):
        found = duration_comparison(each)
        if found is not None and found[0] in ("<", "<=", "="):
            bounds.append(found[1] - (found[0] == "<"))
    return min(bounds, default=None)


def tighter(first: int | None, second: int | None) -> int | None:
    """The smaller of two bounds; None is no bound."""
    return min((each for each in (first, second) if each is not None), default=None)


def longest(node: nodes.Node) -> int | None:
    """The longest that a solution of an operator can last, in microseconds; None where nothing bounds it.

    What has no time lasts for none of it.
    """
    match node:
        case nodes.FilterSolutions(below, condition):
            return tighter(longest(below), duration_bound(condition))
        case nodes.Extend(below) | nodes.Solutions(below) | nodes.Triples(below):
            return longest(below)
        case nodes.ValuesTable():
            return 0
        case nodes.Evaluations(_, windows, "RSTREAM"):
            widths = [each.width for each in windows]
            return None if None in widths else max(each for each in widths if each is not None)
        case nodes.Union(left, right):
            return _both(max, left, right)
        case nodes.Join(left, right) if isinstance(left, nodes.ValuesTable) or isinstance(
            right, nodes.ValuesTable
        ):
            return _both(max, left, right)
        case nodes.Temporal("EQUALS", left, right):
            return tighter(longest(left), longest(right))
        case nodes.Temporal("NOT", whole, _) | nodes.Temporal("DURING" | "STARTS" | "FINISHES", _, whole):
            return longest(whole)
        case nodes.Temporal("MEETS" | "PAR", left, right):
            return _both(lambda one, other: one + other, left, right)
    return None


def _both(together: Callable[[int, int], int], left: nodes.Node, right: nodes.Node) -> int | None:
    one, other = longest(left), longest(right)
    return None if one is None or other is None else together(one, other)


# ----------------------------------------------------------------------------------------------------------
# The end of a finite input: with `--end open` the streams go on, and what is undecided is not reported.
#
# At a closed end nothing more comes, ever. At an open one a query knows that its streams have come as far
# as their newest event: a trailing absence whose deadline is not before that, and a batch window that ends
# after it, may still turn out otherwise (semantics 1).


def open_ends(program: nodes.Program, newest: Mapping[str, int]) -> dict[str, int | None]:
    """By query, the largest time of the streams that it reads, also through other queries."""
    known: dict[str, int | None] = dict(newest)
    ends: dict[str, int | None] = {}
    for query in program.queries:
        reads: Iterable[str] = query.reads or newest  # EP-SPARQL reads them all
        found = [end for name in reads if (end := known.get(name)) is not None]
        ends[query.name] = known[query.name] = max(found, default=None)
    return ends


def is_undecided(plan: nodes.QueryPlan, match: Match, end: int | None) -> bool:
    """Whether a later event could still take a match back, where its streams have come to this time."""
    source = plan.body if isinstance(plan, nodes.ChiPlan) else None
    if isinstance(source, nodes.WindowAggregate):
        is_batch = source.window.kind == "batch" and source.window.width is not None
        return is_batch and (end is None or match.end_us > end)
    if isinstance(source, nodes.Pattern) and _awaits(source, match.events or {}):
        return end is None or match.end_us >= end
    return False


def _awaits(pattern: nodes.Pattern, events: Mapping[str, object]) -> bool:
    """Whether nothing of the match comes after an absence: that it is one was certain at the deadline."""
    for index, element in enumerate(pattern.sequence):
        later = (name for each in pattern.sequence[index + 1 :] for name in taken_by(each))
        if isinstance(element, Absent) and not any(events.get(name) for name in later):
            return True
    return False


# ----------------------------------------------------------------------------------------------------------
# Several queries together: who reads whose output, and in which order they are evaluated.
#
# The EP-SPARQL queries of a run are one step, since what one of them constructs all of them read.

Query = ChiQuery | EpQuery


def build_program(queries: Sequence[Query], catalog: Catalog, now: int) -> tuple[nodes.Program, Catalog]:
    """The plans of all queries, and the catalogue with their outputs in it.

    What is wrong with any of the queries is told at once, in one `Mistake`.
    """
    _refuse_twins(queries)
    drafts = {
        each.name: replace(catalog.streams.get(each.name, Stream(each.name)), open=True, derived=True)
        for each in queries
    }
    known = catalog.with_streams(drafts.values())
    plans: list[nodes.QueryPlan] = []
    wrong: list[Diagnostic] = []
    for query in _in_order(queries, known):
        try:
            plan = resolve_ep(query, known) if isinstance(query, EpQuery) else resolve_chi(query, known, now)
        except Mistake as mistake:
            wrong.extend(mistake.diagnostics)
            continue
        plans.append(plan)
        known = known.with_streams((_output(plan, drafts[query.name]),))
    if wrong:
        raise Mistake(wrong)
    return nodes.Program(tuple(plans)), known


def _refuse_twins(queries: Sequence[Query]) -> None:
    names = [each.name for each in queries]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            raise Mistake(
                f"two queries are named {name}",
                hint="the name is the file's stem, and the name of the output stream",
            )


def _output(plan: nodes.QueryPlan, draft: Stream) -> Stream:
    """The output of a query as a stream, with what an annotation of that name says of it."""
    if isinstance(plan, nodes.EpPlan):
        names = plan.root.names if isinstance(plan.root, nodes.Solutions) else ()
        made = tuple((name, Type.STRING) for name in names)
    else:
        made = output_stream(plan).attributes
    declared = dict(draft.attributes)
    attributes = tuple((name, declared.get(name, found)) for name, found in made)
    return replace(draft, attributes=attributes, open=False)


# --- order -----------------------------------------------------------------------------------------


def _in_order(queries: Sequence[Query], catalog: Catalog) -> Iterator[Query]:
    """The queries, each after those it reads from; a circle is a mistake."""
    by_name = {each.name: each for each in queries}
    reads = {each.name: _reads(each, by_name, catalog) for each in queries}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> Iterator[Query]:
        if name in trail:
            _refuse_circle(by_name[name], trail[trail.index(name) :], name)
        if name in done:
            return
        for each in reads[name]:
            yield from visit(each, (*trail, name))
        if name not in done:
            done.add(name)
            yield by_name[name]

    for each in queries:
        yield from visit(each.name, ())


def _refuse_circle(query: Query, trail: tuple[str, ...], name: str) -> None:
    circle = " -> ".join((*trail, name))
    span = _mention(query, (*trail, name)[1]) if isinstance(query, ChiQuery) else None
    raise Mistake(
        f"queries read each other's output in a circle: {circle}",
        span,
        query.source,
        "let one of them read the original stream; recursion is for CONSTRUCT rules in EP-SPARQL",
    )


def _mention(query: ChiQuery, stream: str) -> Span | None:
    """Where FROM names a stream."""
    for clause in query.froms:
        for source, span in zip(clause.sources, clause.source_spans, strict=False):
            if source == stream:
                return span
    return query.froms[0].span if query.froms else None


def _reads(query: Query, queries: Mapping[str, Query], catalog: Catalog) -> list[str]:
    if isinstance(query, EpQuery):
        annotated = [name for name in queries if catalog.streams[name].annotated]
        return [name for name in annotated if isinstance(queries[name], ChiQuery)]
    found: list[str] = []
    for clause in query.froms:
        for source in clause.sources:
            found += _queries_behind(source, queries, catalog)
    # What one EP-SPARQL query constructs all of them see: reading one is reading all of them.
    if any(isinstance(queries[name], EpQuery) for name in found):
        found += [name for name, each in queries.items() if isinstance(each, EpQuery)]
    return list(dict.fromkeys(found))


def _queries_behind(source: str | Iri, queries: Mapping[str, Query], catalog: Catalog) -> list[str]:
    if isinstance(source, str):
        return [source] if source in queries else []
    narrower = catalog.vocabulary.classes_below(source)
    return sorted(name for name in queries if catalog.streams[name].event_class in narrower)


# --- EP-SPARQL -------------------------------------------------------------------------------------


def resolve_ep(query: EpQuery, catalog: Catalog) -> nodes.EpPlan:
    """The plan of an EP-SPARQL query. RDF is typed by its values, so there is little to check."""
    problems = Problems(query.source)
    root = ep_plan(query)
    _refuse_unknown_streams(query, catalog, problems)
    _warn_of_unbound(root, query, problems)
    _warn_if_endless(root, problems)
    _warn_of_wrong_durations(root, problems)
    problems.check()
    text = query.source.text if query.source else ""
    return nodes.EpPlan(
        query.name,
        text,
        root,
        prefixes=tuple({**EP_PREFIXES, **dict(catalog.known_prefixes(query.prefixes))}.items()),
        warnings=tuple(problems.warnings),
        source=query.source,
        most_derived=catalog.most_derived,
    )


def _refuse_unknown_streams(query: EpQuery, catalog: Catalog, problems: Problems) -> None:
    """A window is on a stream of the run."""
    for window in query.form.windows:
        if catalog.streams and window.stream not in catalog.streams:
            hint = did_you_mean(window.stream, tuple(catalog.streams))
            problems.error(f"no stream is called {window.stream}", window.span, hint)


def _warn_of_unbound(root: nodes.Solutions | nodes.Triples, query: EpQuery, problems: Problems) -> None:
    bound = bindable(root.input)
    wanted = root.names if isinstance(root, nodes.Solutions) else _template_variables(root)
    for name in wanted:
        if name not in bound:
            doing = "selected" if isinstance(root, nodes.Solutions) else "in the template"
            problems.warn(f"?{name} is {doing} but nothing binds it", _find(query, f"?{name}"))
    for node in root.walk():
        if isinstance(node, nodes.Extend):
            inside = bindable(node.input)
            for each in walk(node.expr):
                if isinstance(each, VariableRef) and each.name not in inside:
                    problems.warn(f"?{each.name} is used but nothing binds it", each.span)


def _template_variables(root: nodes.Triples) -> list[str]:
    places = (place for each in root.template for place in (each.subject, each.predicate, each.object))
    return list(dict.fromkeys(place.name for place in places if isinstance(place, Variable)))


def _find(query: EpQuery, text: str) -> Span | None:
    where = query.source.text.find(text) if query.source else -1
    return Span(where, where + len(text)) if where >= 0 else None


def bindable(node: nodes.Node) -> frozenset[str]:
    """The variables that a solution of the operator may bind."""
    names: set[str] = set()
    if isinstance(node, nodes.Bgp):
        for pattern in node.patterns:
            ends = (pattern.subject, pattern.predicate, pattern.object)
            names |= {each.name for each in ends if isinstance(each, Variable)}
        return frozenset(names)
    if isinstance(node, nodes.ValuesTable):
        return frozenset(node.variables)
    if isinstance(node, nodes.Grouping):
        return frozenset(name for name, _ in (*node.keys, *node.aggregates))
    if isinstance(node, nodes.Solutions):
        return frozenset(node.names) & bindable(node.input)
    if isinstance(node, nodes.Extend):
        names.add(node.name)
    if isinstance(node, nodes.InsideGraph) and isinstance(node.name, Variable):
        names.add(node.name.name)
    return frozenset(names).union(*(bindable(each) for each in node.inputs()))


def _warn_if_endless(root: nodes.Node, problems: Problems) -> None:
    """Says which operator keeps state for ever, where no bound on the duration lets it forget."""
    keeper = next(_unbounded(root), None)
    if keeper is None:
        return
    problems.warn(
        f"{_operator_name(keeper)} keeps everything it has seen for ever: no FILTER bounds the duration",
        None,
        'add a bound such as FILTER (getDURATION() < "PT1H"^^xsd:duration)',
    )


def _operator_name(node: nodes.Node) -> str:
    match node:
        case nodes.Temporal():
            return node.op
        case nodes.LeftJoin():
            return "OPTIONAL"
        case nodes.Grouping():
            return "an aggregate"
        case nodes.Bgp():
            return "a group of several triples"
    return "a join of groups"


def _warn_of_wrong_durations(root: nodes.Node, problems: Problems) -> None:
    """A duration that is none, or is a plain string, makes its comparison an error that never holds."""
    for node in root.walk():
        conditions = (getattr(node, "condition", None), getattr(node, "expr", None))
        for call in (part for each in conditions if isinstance(each, Expr) for part in walk(each)):
            if not (isinstance(call, Call) and any(_is_duration(arg) for arg in call.args)):
                continue
            for arg in call.args:
                if isinstance(arg, TermConst) and duration_of(arg.term) is None:
                    problems.warn(
                        f"{arg.term} is not a duration: this comparison never holds",
                        arg.span or call.span,
                        'write it as "PT5M"^^xsd:duration',
                    )


def _is_duration(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "getduration"


def _unbounded(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.Evaluations | nodes.InsideGraph):
        return
    if isinstance(node, nodes.FilterSolutions) and duration_bound(node.condition) is not None:
        return
    keeps = (
        isinstance(node, nodes.Temporal | nodes.LeftJoin | nodes.Grouping)
        or (isinstance(node, nodes.Join) and _joins_streams(node))
        or (isinstance(node, nodes.Bgp) and len(node.patterns) > 1)
    )
    if keeps:
        yield node
    for each in node.inputs():
        yield from _unbounded(each)


def _joins_streams(node: nodes.Join) -> bool:
    return _reads_stream(node.left) and _reads_stream(node.right)


def _reads_stream(node: nodes.Node) -> bool:
    if isinstance(node, nodes.InsideGraph):
        return False
    return isinstance(node, nodes.Bgp) or any(map(_reads_stream, node.inputs()))
