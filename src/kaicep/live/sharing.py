"""An operator that several consumers need is run once; to compare, it can be run once for each of them.

Operators are equal if they are of one kind, read the same nodes and have the same settings. Two queries
whose plans differ only in what they select are one search, whose matches are told apart behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kaicep.live.graph import Graph
from kaicep.live.nodes import KINDS, Consumer, Node, Operator, Supplier
from kaicep.live.queries import Query

__all__ = ["Shared", "separated", "shared"]


@dataclass(frozen=True)
class Shared:
    """A graph without equal operators, and which of its operators replace which of the given ones."""

    graph: Graph
    instead: Mapping[str, str] = field(default_factory=dict)

    def extended(self, nodes: Sequence[Node]) -> Shared:
        """With more nodes, in an order in which each comes after those that it reads.

        A new operator that remembers is not the same as an equal one that runs already; two new ones are.
        """
        instead = dict(self.instead)
        first = {_key(each): name for name, each in self.graph.operators.items() if not _remembers(each)}
        operators: dict[str, Operator] = {}
        for each in nodes:
            if not isinstance(each, Operator):
                continue
            moved = replace(each, inputs=tuple(instead.get(up, up) for up in each.inputs))
            if moved.name in self.graph.operators:  # whose operator is gone, and which others still use
                moved = replace(moved, name=_free(moved.name, self.graph))
            name = first.setdefault(_key(moved), moved.name)
            if name == moved.name:
                operators[name] = moved
            if name != each.name:
                instead[each.name] = name
        added: list[Node] = [each for each in nodes if isinstance(each, Supplier)]
        added += _join_queries(operators).values()
        added += [
            replace(each, input=instead.get(each.input, each.input))
            for each in nodes
            if isinstance(each, Consumer)
        ]
        return Shared(self.graph.with_nodes(*added), instead)

    def without(self, consumer: str) -> Shared:
        """Without a consumer, and the operators that only it needed; the others go on as they are."""
        return Shared(self.graph.without(consumer), self.instead)


def shared(graph: Graph) -> Shared:
    """The graph with equal operators merged into the first of them.

    >>> twins = [Operator(name, "fft", ("s",)) for name in ("a", "b")]
    >>> found = shared(Graph.of(Supplier("s"), *twins, Consumer("c", "a"), Consumer("d", "b")))
    >>> list(found.graph.operators), dict(found.instead), found.graph.consumers["d"].input
    (['a'], {'b': 'a'}, 'a')
    """
    empty = replace(graph, suppliers={}, operators={}, consumers={})
    return Shared(empty).extended(in_order(graph))


def in_order(graph: Graph) -> list[Node]:
    """The nodes of a graph, each after those that it reads."""
    operators = (graph.operators[each] for each in graph.order())
    return [*graph.suppliers.values(), *operators, *graph.consumers.values()]


def separated(graph: Graph) -> Graph:
    """The graph with an operator of its own for every consumer, all the way up to the suppliers.

    >>> graph = Graph.of(Supplier("s"), Operator("a", "fft", ("s",)), Consumer("c", "a"), Consumer("d", "a"))
    >>> sorted(separated(graph).operators)
    ['a@c', 'a@d']
    """
    operators: dict[str, Operator] = {}
    consumers: dict[str, Consumer] = {}
    order = graph.order()

    def own(up: str, consumer: str) -> str:
        return f"{up}@{consumer}" if up in graph.operators else up

    for name, consumer in graph.consumers.items():
        needed = graph.upstream(name)
        for up in order:
            if up in needed:
                each = graph.operators[up]
                inputs = tuple(own(one, name) for one in each.inputs)
                operators[own(up, name)] = replace(each, name=own(up, name), inputs=inputs)
        consumers[name] = replace(consumer, input=own(consumer.input, name))
    return replace(graph, operators=operators, consumers=consumers)


def _remembers(operator: Operator) -> bool:
    return KINDS[operator.kind].stateful


def _free(name: str, graph: Graph) -> str:
    number = 2
    while f"{name}~{number}" in graph.operators:
        number += 1
    return f"{name}~{number}"


def _key(operator: Operator) -> str:
    """Equal for operators that give the same events."""
    function = operator.function
    who = function.key if isinstance(function, Query) else None if function is None else id(function)
    settings = json.dumps(dict(operator.settings), sort_keys=True, default=repr)
    how = (operator.queue, operator.parallel, operator.isolate)
    return repr((operator.kind, operator.inputs, settings, who, how))


def _join_queries(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Queries over the same nodes with the same search run in one engine."""
    groups: dict[tuple[Any, ...], list[Operator]] = {}
    for each in operators.values():
        if isinstance(each.function, Query) and each.function.search is not None:
            groups.setdefault((each.inputs, each.function.search), []).append(each)
    made = dict(operators)
    for group in groups.values():
        if len(group) > 1:
            both = "+".join(each.name for each in group)
            made[both] = replace(
                group[0], name=both, function=Query.joined([each.function for each in group])
            )
            for each in group:
                settings = {"query": each.function.name}
                made[each.name] = Operator(each.name, "pick", (both,), settings, place=each.place)
    return made
