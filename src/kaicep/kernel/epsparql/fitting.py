"""Which plans can be run over columns: found out without loading what runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, existences
from kaicep.plan.algebra import only_grows
from kaicep.plan.expressions import Call, Exists, Expr
from kaicep.plan.nodes import (
    Bgp,
    Evaluations,
    Extend,
    FilterSolutions,
    Grouping,
    InsideWindow,
    Join,
    LeftJoin,
    Minus,
    Node,
    Solutions,
    Temporal,
    Triples,
    Union,
    ValuesTable,
    walk_objects,
)
from kaicep.plan.program import bindable, conjuncts
from kaicep.plan.sparql import Alternative, Inverse, Path, Predicate, Repeat, Steps, WindowClause
from kaicep.plan.terms import Variable

__all__ = ["Slide", "fits_columns", "slide"]


def fits_columns(root: Node) -> bool:
    """Whether all parts of a plan are of a kind that can be run over columns.

    >>> fits_columns(Solutions(Bgp(()), ("x",)))
    False
    """
    if not isinstance(root, Solutions | Triples):
        return False
    return all(map(_fits, root.input.walk())) or slide(root) is not None


@dataclass(frozen=True)
class Slide:
    """A SELECT of one window whose answer follows from what enters and what leaves: `below` only grows.

    `above` are the conditions and values over its groups, from the innermost to the outermost.
    """

    window: WindowClause
    report: str
    below: Node
    grouping: Grouping | None
    above: tuple[Extend | FilterSolutions, ...]
    names: tuple[str, ...]


def slide(root: Node) -> Slide | None:
    """The parts of a SELECT of one window that slides; None for anything else."""
    if not (isinstance(root, Solutions) and isinstance(root.input, Evaluations)):
        return None
    evaluations = root.input
    inner = evaluations.input
    if len(evaluations.windows) != 1 or not isinstance(inner, Solutions) or _depends_on_time(inner):
        return None
    above: list[Extend | FilterSolutions] = []
    body, grouping = inner.input, None
    while isinstance(body, Extend | FilterSolutions):
        above.append(body)
        body = body.input
    if isinstance(body, Grouping):
        grouping, below = body, _opened(body.input)
    else:
        above, below = [], _opened(inner.input)
    if below is None or not only_grows(below) or not all(map(_fits, below.walk())):
        return None
    if grouping is not None and not (_fits(grouping) and all(map(_is_set, below.walk()))):
        return None
    if any(
        not _fits(each) or (isinstance(each, Extend) and each.name in bindable(each.input)) for each in above
    ):
        return None
    if grouping is None:
        below = Solutions(below, root.names)
    return Slide(
        evaluations.windows[0], evaluations.report, below, grouping, tuple(reversed(above)), root.names
    )


def _opened(node: Node) -> Node | None:
    """A group without its WINDOW around it; None where there is more, or no such thing."""
    if isinstance(node, InsideWindow):
        return None if any(isinstance(each, InsideWindow) for each in node.input.walk()) else node.input
    if isinstance(node, Extend | FilterSolutions):
        below = _opened(node.input)
        return None if below is None else replace(node, input=below)
    return None


def _is_set(node: Node) -> bool:
    """Whether an operator gives each solution once, where those below it do."""
    if isinstance(node, Bgp):
        return not any(isinstance(each.predicate, Path) for each in node.patterns)
    return isinstance(node, Join | FilterSolutions | Extend)


def _depends_on_time(root: Node) -> bool:
    return any(
        isinstance(part, Exists | Temporal) or (isinstance(part, Call) and part.op in BOUND_TO_PLACE)
        for part in walk_objects(root)
    )


def _fits(node: Node) -> bool:
    match node:
        case Bgp(patterns):
            return bool(patterns) and all(_is_walked(each.predicate) for each in patterns)
        case FilterSolutions(condition=condition):
            return all(map(_is_judged, conjuncts(condition)))
        case Extend(expr=expr):
            return not existences(expr)
        case Temporal():
            return not existences(node.condition) and (node.consumption == "unrestricted" or node.op == "NOT")
        case Grouping(_, keys, aggregates):
            exprs = [expr for _, expr in keys] + [each.of for _, each in aggregates]
            return not any(map(existences, exprs))
        case LeftJoin(condition=condition):
            return not existences(condition)
    return isinstance(node, Join | Minus | Solutions | ValuesTable | Union)


def _is_walked(path: Predicate | Variable) -> bool:
    """Whether a path is as many steps long wherever it leads."""
    match path:
        case Inverse(of):
            return _is_walked(of)
        case Steps(parts) | Alternative(parts):
            return all(map(_is_walked, parts))
    return not isinstance(path, Repeat)


def _is_judged(part: Expr) -> bool:
    """Whether a condition has no EXISTS, or is one whose group is fit as well."""
    if not isinstance(part, Exists):
        return not existences(part)
    return isinstance(part.group, Node) and all(map(_fits, part.group.walk()))
