"""Plans for people: a tree, each operator with what it does on the lines below it.

query1 (chi-CEP)
Project
│    column sensorID: string = ?e.sensorID
└─ Pattern SEQ (?e)
   │    match any, after match no skip
   └─ Scan ?e in airflowReport
           where ?e.flowrate > 500
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kaicep.plan import nodes
from kaicep.plan.chi import AggregateWindow, SpanWindow
from kaicep.plan.expressions import Call, Exists, Expr, Field, rewrite, walk
from kaicep.plan.nodes import Chain, ChiPlan, Latest, Node, Pattern, QueryPlan, WindowAggregate
from kaicep.plan.sparql import Group, TriplePattern
from kaicep.plan.text import (
    element_text,
    expression_text,
    group_text,
    iri_text,
    resolved_text,
    triple_text,
    window_text,
)
from kaicep.plan.time import format_duration, format_time

Prefixes = Mapping[str, str]


@dataclass(frozen=True)
class _Card:
    """What is said of one operator: its name, a headline, details by kind, and what feeds it."""

    operator: str
    headline: str = ""
    details: tuple[tuple[str, str], ...] = ()
    inputs: tuple[_Card, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """A query, its plan as written and after the rules, what each rule did, how it runs, what is kept."""

    query: QueryPlan
    optimised: QueryPlan
    notes: tuple[tuple[str, str], ...] = ()
    physical: tuple[tuple[str, str], ...] = ()
    kept: tuple[tuple[str, str], ...] = ()


def explain_text(explanations: Sequence[Explanation]) -> str:
    """The plans of all queries as trees: as written and, where the rules changed it, as optimised."""
    return "\n\n".join("\n".join(_query_lines(each)) for each in explanations) + "\n"


def explain_json(explanations: Sequence[Explanation]) -> dict[str, Any]:
    """The plans of all queries for machines: the same cards as in the tree, nested."""
    return {
        "queries": [
            {
                "name": each.query.name,
                "language": each.query.language,
                "reads": list(each.query.reads),
                "logical": _json(_cards(each.query)),
                "rules": [{"rule": rule, "did": text} for rule, text in each.notes],
                "optimised": _json(_cards(each.optimised)),
                "physical": dict(each.physical),
                "kept": [{"what": what, "how long": long} for what, long in each.kept],
            }
            for each in explanations
        ]
    }


def _query_lines(explanation: Explanation) -> Iterator[str]:
    query = explanation.query
    reads = f", reads {', '.join(query.reads)}" if query.reads else ""
    yield f"{query.name} ({query.language}{reads})"
    yield from _tree(_cards(query), "", "")
    if explanation.notes:
        yield "\nrules"
        for rule, text in explanation.notes:
            yield f"  {rule}: {text}"
        if explanation.optimised != query:
            yield "\noptimised"
            yield from _tree(_cards(explanation.optimised), "", "")
    if explanation.physical:
        yield "\nphysical"
        for host, text in explanation.physical:
            yield f"  {host}: {text}"
    if explanation.kept:
        yield "\nkept"
        for what, long in explanation.kept:
            yield f"  {what}: {long}"


def _tree(card: _Card, first: str, rest: str) -> Iterator[str]:
    yield f"{first}{card.operator}{' ' + card.headline if card.headline else ''}"
    for kind, text in card.details:
        for index, line in enumerate(text.split("\n")):
            label = f"{kind} " if index == 0 else " " * (len(kind) + 1)
            yield f"{rest}{'│' if card.inputs else ' '}    {label}{line}".rstrip()
    for index, each in enumerate(card.inputs):
        last = index == len(card.inputs) - 1
        yield from _tree(each, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _json(card: _Card) -> dict[str, Any]:
    row: dict[str, Any] = {"operator": card.operator}
    if card.headline:
        row["what"] = card.headline
    for kind, text in card.details:
        row.setdefault(kind, []).append(text)
    row["inputs"] = [_json(each) for each in card.inputs]
    return row


# --- one card for each operator ----------------------------------------------------------------------


def _cards(plan: QueryPlan) -> _Card:
    prefixes = dict(plan.prefixes)
    if not isinstance(plan, ChiPlan):
        return _operator(plan.root, prefixes)
    body = plan.body
    below = _pattern(body, prefixes) if isinstance(body, Pattern) else _window_aggregate(body, prefixes)
    return _Card("Project", "", tuple(("column", _column(each)) for each in plan.columns), (below,))


def _chain(chain: Chain, prefixes: Prefixes) -> _Card:
    graph = (("annotate", "each event with its graph"),) if chain.annotated else ()
    details = *graph, *_semantics(chain.semantics, prefixes), *_conditions("where", chain.conditions)
    return _Card("Scan", f"?{chain.variable} in {', '.join(chain.streams)}{_bounds(chain.within)}", details)


def _pattern(node: Pattern, prefixes: Prefixes) -> _Card:
    headline = f"SEQ ({', '.join(element_text(each) for each in node.sequence)})"
    details = [("match", f"{node.match}, after match {_skip(node)}")]
    if node.partition:
        details.append(("partition by", ", ".join(resolved_text(each) for each in node.partition)))
    details += _conditions("join", node.conditions)
    details += _spans(node.windows)
    details += _ties(node.ties, prefixes)
    if node.key:
        details.append(("key", " = ".join(resolved_text(each) for _, each in node.key)))
    if node.deadline is not None:
        details.append(("deadline", f"{format_duration(node.deadline)} after the first event"))
    inputs = [_chain(each, prefixes) for each in node.chains]
    inputs += [_latest(each, prefixes) for each in node.latest]
    return _Card("Pattern", headline, (*details, *_semantics(node.semantics, prefixes)), tuple(inputs))


def _latest(node: Latest, prefixes: Prefixes) -> _Card:
    left_out = ", left out where there is none" if node.optional else ""
    details = [("key", f"{resolved_text(own)} = {resolved_text(other)}") for own, other in node.keys]
    details += _conditions("join", node.conditions)
    details += _spans(node.windows)
    details += _semantics(node.semantics, prefixes)
    return _Card("Latest", f"?{node.variable}{left_out}", tuple(details), (_chain(node.chain, prefixes),))


def _spans(windows: tuple[SpanWindow, ...]) -> list[tuple[str, str]]:
    return [
        ("window", f"({', '.join('?' + each for each in window.variables)}) {format_duration(window.width)}")
        for window in windows
    ]


def _skip(node: Pattern) -> str:
    words = {"none": "no skip", "next": "skip to next", "past_last": "skip past last"}
    return words.get(node.skip) or f"skip to {node.skip} ?{node.skip_variable}"


def _window_aggregate(node: WindowAggregate, prefixes: Prefixes) -> _Card:
    details: list[tuple[str, str]] = []
    if node.partition:
        details.append(("partition by", ", ".join(resolved_text(each) for each in node.partition)))
    if node.group_by:
        details.append(("group by", ", ".join(resolved_text(each) for each in node.group_by)))
    details += _ties(node.ties, prefixes)
    details += _conditions("having", node.having)
    details += _semantics(node.semantics, prefixes)
    inputs = (_chain(node.chain, prefixes),)
    if node.expected is not None:
        details += [(f"expected {name}", text) for name, text in _semantics((node.expected,), prefixes)]
        return _Card("Absent", _window(node.window), tuple(details), inputs)
    return _Card("WindowAggregate", _window(node.window), tuple(details), inputs)


def _window(window: AggregateWindow) -> str:
    size = format_duration(window.width) if window.width is not None else f"{window.count} events"
    return f"{window.kind} {size} of ?{window.variable}"


def _bounds(within: nodes.Interval) -> str:
    if within.low is None and within.high is None:
        return ""
    low, high = ("" if each is None else format_time(each) for each in (within.low, within.high))
    opening, closing = "[" if within.low_inclusive else "(", "]" if within.high_inclusive else ")"
    return f", within {opening}{low}, {high}{closing}"


def _column(column: nodes.OutputColumn) -> str:
    kind = "term" if column.type is None else str(column.type)
    return f"{column.name}: {'list of ' if column.many else ''}{kind} = {resolved_text(column.expr)}"


def _conditions(kind: str, conditions: tuple[Expr, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((kind, resolved_text(each) + _reading(each)) for each in conditions)


def _semantics(conditions: tuple[nodes.Semantic, ...], prefixes: Prefixes) -> tuple[tuple[str, str], ...]:
    return tuple(_semantic(each, prefixes) for each in conditions)


def _ties(ties: tuple[nodes.Semantic, ...], prefixes: Prefixes) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for each in ties:
        names = ", ".join("?" + name for name in each.selected)
        text = group_text(each.alternatives[0], prefixes=prefixes) + _where(each.conditions)
        found.append(("partition", f"of ?{each.variables[0]}: {names} in\n{text}"))
    return found


def _where(conditions: tuple[Expr, ...]) -> str:
    return "".join(f"\nwhere {resolved_text(each)}{_reading(each)}" for each in conditions)


def _semantic(condition: nodes.Semantic, prefixes: Prefixes) -> tuple[str, str]:
    wanted = (
        f", selecting {', '.join('?' + name for name in condition.selected)}" if condition.selected else ""
    )
    if not condition.alternatives:
        return "path", "never holds"
    if condition.relation is not None:
        roots = [
            f"?{each.name} = {iri_text(each.property, prefixes)} of ?{each.variable}"
            for each in condition.relation.roots
        ]
        rest = condition.relation.rest
        text = group_text(rest, prefixes=prefixes) if rest.elements else "that it is known"
        return "lookup", f"{', '.join(roots) or 'once for all'}{wanted}\n{text}"
    about = ", ".join(f"?{name}" for name in condition.variables) or "the knowledge alone"
    text = "\nor ".join(group_text(group, prefixes=prefixes) for group in condition.alternatives)
    return "path", f"about {about}{wanted}\n{text}{_where(condition.conditions)}"


def _reading(expr: Expr) -> str:
    """Which attributes stand behind the concepts of an expression."""
    notes: dict[str, None] = {}
    for node in walk(expr):
        if isinstance(node, Field):
            for stream, attributes in node.sources:
                if attributes and attributes != (node.name,):
                    notes[f"{node.name} is {' or '.join(attributes)} on {stream}"] = None
    return f"    # {'; '.join(notes)}" if notes else ""


def _operator(node: Node, prefixes: Prefixes) -> _Card:
    inputs = tuple(_operator(each, prefixes) for each in node.inputs())
    return replace(_sparql_card(node, prefixes), inputs=inputs)


def _sparql_card(node: Node, prefixes: Prefixes) -> _Card:
    name = type(node).__name__
    match node:
        case nodes.Ordered():
            first = "" if node.limit is None else f", the first {node.limit:,}"
            after = f", after {node.offset:,}" if node.offset else ""
            return _Card("Ordered", f"{len(node.keys)} keys{first}{after}")
        case nodes.Solutions():
            return _Card("Solutions", " ".join(f"?{each}" for each in node.names))
        case nodes.Triples():
            return _Card("Construct", "", _patterns(node.template, prefixes))
        case nodes.Bgp():
            return _Card("Bgp", "", _patterns(node.patterns, prefixes))
        case nodes.Temporal():
            policy = "" if node.consumption == "unrestricted" else f", {node.consumption}"
            return _Card("Temporal", node.op + policy, _condition(node.condition, prefixes))
        case nodes.LeftJoin():
            return _Card("LeftJoin", "", _condition(node.condition, prefixes))
        case nodes.FilterSolutions():
            return _Card("Filter", "", _condition(node.condition, prefixes))
        case nodes.Extend():
            return _Card("Extend", f"?{node.name} = {_sparql_text(node.expr, prefixes)}")
        case nodes.Grouping():
            return _grouping(node, prefixes)
        case nodes.Evaluations():
            windows = (("window", window_text(each, prefixes)) for each in node.windows)
            return _Card("Evaluations", node.report, tuple(windows))
        case nodes.InsideWindow():
            return _Card("InsideWindow", window_text(node.window, prefixes))
        case nodes.InsideGraph():
            return _Card("InsideGraph", str(node.name))
        case nodes.ValuesTable():
            names = " ".join(f"?{each}" for each in node.variables)
            return _Card("Table", f"{len(node.rows)} rows of {names}")
    return _Card(name)


def _patterns(patterns: tuple[TriplePattern, ...], prefixes: Prefixes) -> tuple[tuple[str, str], ...]:
    return tuple(("triple", triple_text(each, prefixes)) for each in patterns)


def _condition(condition: Expr | None, prefixes: Prefixes) -> tuple[tuple[str, str], ...]:
    return () if condition is None else (("where", _sparql_text(condition, prefixes)),)


def _grouping(node: nodes.Grouping, prefixes: Prefixes) -> _Card:
    keys = [
        ("key", f"?{name} = {_sparql_text(expr, prefixes)}" if expr else f"?{name}")
        for name, expr in node.keys
    ]
    made = [("aggregate", f"?{name} = {_sparql_text(of, prefixes)}") for name, of in node.aggregates]
    return _Card("Grouping", "", (*keys, *made))


def _sparql_text(expr: Expr, prefixes: Prefixes) -> str:
    """An expression of SPARQL; the pattern of an EXISTS is an operator by now, and not printed."""

    def short(node: Expr) -> Expr:
        if not isinstance(node, Exists) or isinstance(node.group, Group):
            return node
        found = Call("exists", ())
        return Call("not", (found,)) if node.negated else found

    return expression_text(rewrite(expr, short), prefixes)
