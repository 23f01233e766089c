"""From SPARQL groups as written to the operators that say what their solutions are.

This is the translation of SPARQL 1.1 (its section 18.2), with the temporal operators of EP-SPARQL
beside UNION. Besides, what only needs the shape of a group: which patterns and variables it has, and
the group with some of its variables replaced by terms.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from kaicep.errors import Mistake
from kaicep.plan import nodes
from kaicep.plan.expressions import Aggregate, Call, Exists, Expr, TermConst, VariableRef, rewrite, walk
from kaicep.plan.functions import BEFORE
from kaicep.plan.nodes import (
    Bgp,
    Extend,
    FilterSolutions,
    Grouping,
    Join,
    LeftJoin,
    Node,
    Solutions,
    ValuesTable,
    walk_objects,
)
from kaicep.plan.sparql import (
    Bind,
    Construct,
    Element,
    EpQuery,
    Filter,
    Group,
    GroupOperation,
    InGraph,
    InWindow,
    MinusGroup,
    Optional,
    Predicate,
    Projection,
    Select,
    SubSelect,
    TripleBlock,
    TriplePattern,
    Values,
    WindowClause,
    may_be_empty,
    simplified,
)
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import XSD, Literal, Term, Variable

_UNIT = ValuesTable()


def ep_plan(query: EpQuery) -> Solutions | nodes.Triples:
    """The plan of an EP-SPARQL query: `Solutions` of a SELECT, `TripleBlock` of a CONSTRUCT."""
    try:
        if isinstance(query.form, Construct):
            return nodes.Triples(translate(query.form.where, query.consumption), query.form.template)
        return translate_select(query.form, query.consumption)
    except Mistake as mistake:
        raise Mistake(replace(each, source=query.source) for each in mistake.diagnostics) from None


@lru_cache(maxsize=4096)
def translate(group: Group, consumption: str = "unrestricted", inside: bool = False) -> Node:
    """The operators of a group, which may be that of an evaluation of windows (`inside`).

    >>> pattern = TriplePattern(Variable("x"), Variable("p"), Variable("y"))
    >>> translate(Group((TripleBlock((pattern,)),))) == Bgp((pattern,))
    True
    """
    node, filters = _parts(group, consumption, inside)
    for condition in filters:
        node = FilterSolutions(node, condition)
    return node


def _parts(group: Group, consumption: str, inside: bool = False) -> tuple[Node, list[Expr]]:
    """What a group joins, and its filters, which judge the whole of it wherever they stand."""
    node: Node = _windows(group, inside)
    filters: list[Expr] = []
    before: str | None = None
    known = {name for each in _blocks(group) for name in _visible(each)}
    for element in _merged(group):
        match element:
            case InWindow():
                continue
            case Filter(condition):
                filters.append(_expression(condition, consumption))
            case Optional(inner):
                node = LeftJoin(node, *_conditional(inner, consumption))
            case MinusGroup(inner):
                node = nodes.Minus(node, translate(inner, consumption))
            case Bind(expr, name):
                _refuse_bound(element, known)
                value = _expression(expr, consumption)
                node, before = _marked(node, name, before, [value])
                node = Extend(node, name, _with_mark(value, before))
            case _:
                found = _element(element, consumption)
                node = found if node == _UNIT else Join(node, found)
        known.update(_visible(element))
    return node, filters


def _blocks(group: Group) -> list[InWindow]:
    return [each for each in group.elements if isinstance(each, InWindow)]


def _windows(group: Group, inside: bool) -> Node:
    """The WINDOW blocks of a group, which are evaluated together."""
    blocks = _blocks(group)
    if not blocks:
        return _UNIT
    node: Node = _UNIT
    for each in blocks:
        hint = "put the operator between WINDOW blocks, or leave the window out"
        _refuse_time(each.group, "what is in a window has no time of its own", hint)
        found = nodes.InsideWindow(translate(each.group), each.window)
        node = found if node == _UNIT else Join(node, found)
    return node if inside else nodes.Evaluations(node, _together(blocks))


def _together(blocks: list[InWindow]) -> tuple[WindowClause, ...]:
    """The windows of blocks that are evaluated at the same instants."""
    windows = tuple(dict.fromkeys(each.window for each in blocks))
    if len(windows) > 1 and any(each.rows is not None for each in windows):
        hint = "give both a RANGE, or put one of them into a group of its own"
        raise Mistake("a window of ROWS is evaluated by itself", blocks[-1].span, hint=hint)
    return windows


def _refuse_time(group: Group, message: str, hint: str) -> None:
    """Inside of a window and of a named graph nothing has a time."""
    for each in _elements(group):
        if isinstance(each, InWindow) or (isinstance(each, GroupOperation) and each.op != "UNION"):
            raise Mistake(message, each.span, hint=hint)


def _elements(group: Group) -> Iterator[Element]:
    """All elements of a group, at any depth."""
    for each in walk_objects(group):
        if isinstance(each, Element):
            yield each


def _refuse_bound(bind: Bind, known: Container[str]) -> None:
    """BIND gives a value to a name that has none."""
    if bind.variable in known:
        hint = "bind another name, and compare both with FILTER"
        message = f"?{bind.variable} already has a value before this BIND"
        raise Mistake(message, bind.span, hint=hint)


def _refuse_doubled(select: Select, grouped: bool) -> None:
    """A name that SELECT gives to an expression is a new one."""
    known = {each.name for each in select.group_by} if grouped else set(_visible(select.where))
    for each in select.columns or ():
        if each.expr is not None and each.name in known:
            message = f"?{each.name} is already bound to something else"
            raise Mistake(message, each.span, hint="take another name")
        if each.expr is not None:
            known.add(each.name)


def _merged(group: Group) -> list[Element]:
    """The elements of a group, triples that only filters separate in one piece."""
    merged: list[Element] = [each for each in group.elements if isinstance(each, Filter)]
    rest = [each for each in group.elements if not isinstance(each, Filter)]
    for each in rest:
        last = merged[-1] if merged else None
        if isinstance(each, TripleBlock) and isinstance(last, TripleBlock):
            merged[-1] = TripleBlock(last.patterns + each.patterns)
        else:
            merged.append(each)
    return merged


def _element(element: Element, consumption: str) -> Node:
    """The operators of an element that stands by itself."""
    match element:
        case Group():
            return translate(element, consumption)
        case TripleBlock(patterns):
            return Bgp(tuple(replace(each, predicate=simplified(each.predicate)) for each in patterns))
        case Values(names, rows):
            return ValuesTable(names, rows)
        case SubSelect(select):
            return translate_select(select, consumption)
        case GroupOperation():
            return _operation(element, consumption)
        case InGraph(name, group):
            hint = "put the operator, or the WINDOW, outside of GRAPH"
            _refuse_time(group, "what is stated in a named graph has no time", hint)
            return nodes.InsideGraph(translate(group), name)
        case _:
            return translate(Group((element,)), consumption)


def _operation(operation: GroupOperation, consumption: str) -> Node:
    """UNION or a temporal operator; the filters of an optional side judge the joined solution."""
    op, left, right = operation.op, operation.left, operation.right
    if op == "UNION":
        return nodes.Union(_element(left, consumption), _element(right, consumption))
    condition: Expr | None = None
    if op == "OPTIONALSEQ":
        first, condition = _conditional(left, consumption)
        second = _element(right, consumption)
    elif op == "EQUALSOPTIONAL":
        first = _element(left, consumption)
        second, condition = _conditional(right, consumption)
    else:
        first, second = _element(left, consumption), _element(right, consumption)
    return nodes.Temporal(op, first, second, condition, consumption)


def _conditional(element: Element, consumption: str) -> tuple[Node, Expr | None]:
    """An optional side: what it matches, and its own filters as the condition of the join."""
    if not isinstance(element, Group):
        return _element(element, consumption), None
    node, filters = _parts(element, consumption)
    if not filters:
        return node, None
    condition = filters[0]
    for each in filters[1:]:
        condition = Call("and", (condition, each))
    return node, condition


def _expression(expr: Expr, consumption: str) -> Expr:
    """The expression, the group of every EXISTS in it translated."""

    def change(node: Expr) -> Expr:
        if isinstance(node, Exists) and isinstance(node.group, Group):
            return replace(node, group=translate(node.group, consumption))
        return node

    return rewrite(expr, change)


def _marked(node: Node, name: str, mark: str | None, values: list[Expr]) -> tuple[Node, str | None]:
    """With a variable for the solution as it is now, where BNODE asks which one it is."""
    if mark is not None or not any(_makes_node(part) for each in values for part in walk(each)):
        return node, mark
    return Extend(node, BEFORE + name, Call("solution", ())), BEFORE + name


def _with_mark(expr: Expr, mark: str | None) -> Expr:
    """The expression with the solution that every BNODE in it speaks of."""
    if mark is None:
        return expr
    known = VariableRef(mark)

    def change(node: Expr) -> Expr:
        return replace(node, args=(*node.args, known)) if _makes_node(node) else node

    return rewrite(expr, change)


def _makes_node(expr: Expr) -> TypeGuard[Call]:
    return isinstance(expr, Call) and expr.op == "bnode"


# --- SELECT ----------------------------------------------------------------------------------------


def translate_select(select: Select, consumption: str = "unrestricted") -> Solutions:
    """The plan of a SELECT, by itself or inside a group."""
    only = _is_all_windows(select)
    node = translate(select.where, consumption, only)
    columns = select.columns
    if columns is None:
        names = tuple(each for each in visible_variables(select.where) if not each.startswith("_:"))
        columns = tuple(Projection(each) for each in names)
    collected: dict[Aggregate, str] = {}
    having = [_without_aggregates(_expression(each, consumption), collected) for each in select.having]
    computed = [
        (each.name, _without_aggregates(_expression(each.expr, consumption), collected))
        for each in columns
        if each.expr is not None
    ]
    sorting = tuple(
        (_without_aggregates(_expression(each, consumption), collected), downwards)
        for each, downwards in (select.ordering.keys if select.ordering else ())
    )
    grouped = bool(select.group_by or collected or having)
    _refuse_doubled(select, grouped)
    if grouped:
        _refuse_ungrouped(columns, select, computed, collected)
        keys = tuple((k.name, k.expr and _expression(k.expr, consumption)) for k in select.group_by)
        node = Grouping(node, keys, tuple((name, each) for each, name in collected.items()))
    for condition in having:
        node = FilterSolutions(node, condition)
    before: str | None = None
    if computed:
        node, before = _marked(node, computed[0][0], None, [expr for _, expr in computed])
    for name, expr in computed:
        node = Extend(node, name, _with_mark(expr, before))
    names = tuple(each.name for each in columns)
    if (ordering := select.ordering) is not None:
        node = nodes.Ordered(node, names, select.distinct, sorting, ordering.limit, ordering.offset)
    made = Solutions(node, names, select.distinct)
    if not only:
        return made
    return Solutions(nodes.Evaluations(made, _together(_blocks(select.where)), select.report), names)


def _is_all_windows(select: Select) -> bool:
    """Whether a SELECT is evaluated whole whenever its windows are: its pattern is WINDOW blocks alone."""
    rest = [each for each in select.where.elements if not isinstance(each, InWindow | Filter | Bind)]
    only = not rest and bool(_blocks(select.where))
    if select.report != "RSTREAM" and not only:
        span = (rest[0] if rest else select.where).span
        hint = "put everything into WINDOW blocks, with FILTER and BIND beside them"
        raise Mistake(f"{select.report} compares evaluations of windows", span, hint=hint)
    if only:
        conditions = [each for each in select.where.elements if not isinstance(each, InWindow)]
        for part in walk_objects((select.columns, select.group_by, select.having, tuple(conditions))):
            if isinstance(part, Call) and part.op in ("getduration", "getstarttime", "getendtime"):
                hint = "every match has the interval of its windows as start and end"
                raise Mistake("inside of a window nothing has a time", part.span, hint=hint)
    return only


def _without_aggregates(expr: Expr, collected: dict[Aggregate, str]) -> Expr:
    """The expression with a variable in the place of each aggregate; these are added to `collected`."""

    def change(node: Expr) -> Expr:
        if isinstance(node, Aggregate):
            return VariableRef(collected.setdefault(node, f"_:aggregate{len(collected)}"), span=node.span)
        return node

    return rewrite(expr, change)


def _refuse_ungrouped(
    columns: tuple[Projection, ...],
    select: Select,
    computed: list[tuple[str, Expr]],
    collected: Mapping[Aggregate, str],
) -> None:
    """A column of a group is a key, or made of keys, aggregates and columns before it."""
    known = {each.name for each in select.group_by} | set(collected.values())
    values = dict(computed)
    for column in columns:
        used = {column.name: column.span}
        if column.name in values:
            used = {e.name: e.span for e in walk(values[column.name]) if isinstance(e, VariableRef)}
        for name, span in used.items():
            if name not in known:
                hint = f"add ?{name} to GROUP BY, or take SAMPLE(?{name})"
                raise Mistake(f"?{name} has no single value in a group", span, hint=hint)
        known.add(column.name)


# --- patterns --------------------------------------------------------------------------------------


def triple_patterns(element: Element) -> Iterator[TriplePattern]:
    """Every triple pattern of an element, at any depth, those of EXISTS included."""
    return (each for each in walk_objects(element) if isinstance(each, TriplePattern))


# --- variables -------------------------------------------------------------------------------------


_GROWING = (Bgp, Join, nodes.Union, FilterSolutions, Extend, ValuesTable, Solutions, nodes.InsideGraph)


def only_grows(node: Node) -> bool:
    """Whether more occurrences can never take a solution away, whatever they are."""
    return _looks_no_further(node) and not any(_negates(each) for each in node.walk())


def looks_inside(node: Node) -> bool:
    """Whether a solution hangs only on occurrences inside of its own interval.

    `P NOT Q` looks for Q nowhere else. A path that may be empty leads from every node of the graph to itself,
    and what that is hangs on the whole past.
    """
    paths = (pattern.predicate for each in node.walk() if isinstance(each, Bgp) for pattern in each.patterns)
    return _looks_no_further(node) and not any(may_be_empty(each) for each in paths)


def _negates(node: Node) -> bool:
    return isinstance(node, nodes.Temporal) and node.op == "NOT"


def _looks_no_further(node: Node) -> bool:
    """Whether nothing outside of the interval of a solution can take it away."""
    for each in node.walk():
        if isinstance(each, nodes.Temporal):
            if each.consumption != "unrestricted" or each.op in ("OPTIONALSEQ", "EQUALSOPTIONAL"):
                return False
        elif not isinstance(each, _GROWING):
            return False
        expr = each.condition if isinstance(each, FilterSolutions) else None
        expr = each.expr if isinstance(each, Extend) else expr
        if expr is not None and any(isinstance(part, Exists) for part in walk(expr)):
            return False
    return True


def pattern_variables(pattern: TriplePattern) -> tuple[str, ...]:
    """The variables of a triple pattern, in its order.

    >>> pattern_variables(TriplePattern(Variable("x"), Variable("p"), Literal("1")))
    ('x', 'p')
    """
    places = (pattern.subject, pattern.predicate, pattern.object)
    return tuple(each.name for each in places if isinstance(each, Variable))


def visible_variables(element: Element) -> tuple[str, ...]:
    """The variables that a solution of the element may bind, in the order of the text."""
    return tuple(dict.fromkeys(_visible(element)))


def _visible(element: Element) -> Iterator[str]:
    match element:
        case Group(elements):
            for each in elements:
                yield from _visible(each)
        case TripleBlock(patterns):
            for pattern in patterns:
                yield from pattern_variables(pattern)
        case Optional(group) | InWindow(_, group):
            yield from _visible(group)
        case InGraph(name, group):
            yield from (name.name,) if isinstance(name, Variable) else ()
            yield from _visible(group)
        case Bind(_, name):
            yield name
        case Values(names, _):
            yield from names
        case GroupOperation(op, left, right):
            yield from _visible(left)
            if op != "NOT":
                yield from _visible(right)
        case SubSelect(select):
            if select.columns is None:
                yield from (each for each in _visible(select.where) if not each.startswith("_:"))
            else:
                yield from (each.name for each in select.columns)


def element_variables(element: Element) -> frozenset[str]:
    """All variables that an element mentions and shares with its neighbours.

    That is wider than what it binds: filters, MINUS and EXISTS count. The inner variables of a
    subquery do not, since nobody outside can speak of them.
    """
    return frozenset(_mentioned(element))


def _mentioned(element: Element) -> Iterator[str]:
    yield from _visible(element)
    match element:
        case Group(elements):
            for each in elements:
                yield from _mentioned(each)
        case Filter(condition):
            yield from _mentioned_in(condition)
        case Bind(expr, _):
            yield from _mentioned_in(expr)
        case Optional(group) | MinusGroup(group) | InWindow(_, group) | InGraph(_, group):
            yield from _mentioned(group)
        case GroupOperation(_, left, right):
            yield from _mentioned(left)
            yield from _mentioned(right)


def _mentioned_in(expr: Expr) -> Iterator[str]:
    for each in walk(expr):
        if isinstance(each, VariableRef):
            yield each.name
        elif isinstance(each, Exists) and isinstance(each.group, Group):
            yield from _mentioned(each.group)


# --- substitution ----------------------------------------------------------------------------------

_TRUE = TermConst(Literal("true", XSD + "boolean"))


class _Values(NamedTuple):
    """The terms to put in, by the name of their variable."""

    mapping: Mapping[str, Term]

    def place(self, place: Place) -> Place:
        return self.mapping.get(place.name, place) if isinstance(place, Variable) else place

    def predicate(self, predicate: Predicate) -> Predicate:
        if not isinstance(predicate, Variable) or predicate.name not in self.mapping:
            return predicate
        return self.mapping[predicate.name]  # type: ignore[return-value]  # a literal meets no triple

    def pattern(self, pattern: TriplePattern) -> TriplePattern:
        return replace(
            pattern,
            subject=self.place(pattern.subject),
            predicate=self.predicate(pattern.predicate),
            object=self.place(pattern.object),
        )

    def expr(self, expr: Expr) -> Expr:
        def change(node: Expr) -> Expr:
            if isinstance(node, VariableRef) and node.name in self.mapping:
                return TermConst(self.mapping[node.name], span=node.span)
            if isinstance(node, Call) and node.op == "bound" and isinstance(node.args[0], TermConst):
                return _TRUE
            if isinstance(node, Exists) and isinstance(node.group, Group):
                return replace(node, group=self.group(node.group))
            return node

        return rewrite(expr, change)

    def group(self, group: Group) -> Group:
        return replace(group, elements=tuple(self.element(each) for each in group.elements))

    def element(self, element: Element) -> Element:
        match element:
            case Group():
                return self.group(element)
            case TripleBlock(patterns):
                return replace(element, patterns=tuple(self.pattern(each) for each in patterns))
            case Filter(condition):
                return replace(element, condition=self.expr(condition))
            case Optional(group) | MinusGroup(group) | InWindow(_, group):
                return replace(element, group=self.group(group))
            case InGraph(name, group):
                return replace(element, name=self.place(name), group=self.group(group))
            case GroupOperation(_, left, right):
                return replace(element, left=self.element(left), right=self.element(right))
            case Bind(expr, name):
                return self.bind(replace(element, expr=self.expr(expr)), name)
            case Values():
                return self.values(element)
            case SubSelect(select):
                return self.subselect(select)
            case _:
                return element

    def bind(self, element: Bind, name: str) -> Element:
        """A BIND of a variable that is given compares; one that fails binds nothing and fits."""
        if name not in self.mapping:
            return element
        same = Call("sameterm", (element.expr, TermConst(self.mapping[name])))
        return Filter(Call("coalesce", (same, _TRUE)))

    def values(self, element: Values) -> Values:
        """The rows that agree with what is given, without its columns."""
        kept = [i for i, name in enumerate(element.variables) if name not in self.mapping]
        given = [(i, self.mapping[n]) for i, n in enumerate(element.variables) if n in self.mapping]
        rows = [row for row in element.rows if all(row[i] in (None, term) for i, term in given)]
        return replace(
            element,
            variables=tuple(element.variables[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in rows),
        )

    def subselect(self, select: Select) -> Element:
        """A subquery gets the values inside and gives them back; what it computes is compared."""
        computed = {each.name for each in (select.columns or ()) + select.group_by if each.expr}
        inner = _Values({name: term for name, term in self.mapping.items() if name not in computed})
        changed = SubSelect(
            replace(
                select,
                columns=select.columns and tuple(inner.column(each, select) for each in select.columns),
                where=inner.group(select.where),
                group_by=tuple(inner.projection(each) for each in select.group_by),
                having=tuple(inner.expr(each) for each in select.having),
            )
        )
        clash = tuple(sorted(computed & set(self.mapping)))
        if not clash:
            return changed
        return Group((Group((changed,)), Values(clash, (tuple(self.mapping[name] for name in clash),))))

    def column(self, column: Projection, select: Select) -> Projection:
        """A column that is a key as well gets its value there."""
        key = column.expr is None and any(column.name == each.name for each in select.group_by)
        return column if key else self.projection(column)

    def projection(self, projection: Projection) -> Projection:
        if projection.expr is not None:
            return replace(projection, expr=self.expr(projection.expr))
        if projection.name in self.mapping:
            return replace(projection, expr=TermConst(self.mapping[projection.name]))
        return projection


def substitute(group: Group, mapping: Mapping[str, Term]) -> Group:
    """The group with terms in the place of variables, wherever these stand in it.

    >>> from kaicep.plan.terms import Iri
    >>> pattern = TriplePattern(Variable("x"), Variable("p"), Variable("y"))
    >>> substitute(Group((TripleBlock((pattern,)),)), {"x": Iri("urn:a")}).elements[0].patterns[0].subject
    Iri(value='urn:a')
    """
    return _Values(mapping).group(group)
