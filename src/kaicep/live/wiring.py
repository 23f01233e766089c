"""Ties the running nodes of a service together as its graph says."""

from __future__ import annotations

from collections.abc import Iterable

from kaicep.live.bindings import Reader, RunningOperator, RunningSupplier
from kaicep.live.graph import Graph, inputs_of
from kaicep.live.kinds import KINDS
from kaicep.live.store import EventStore

__all__ = ["connect"]


def connect(graph: Graph, nodes: Iterable[RunningSupplier | Reader], store: EventStore) -> None:
    """Gives every node its ring, its readers, and what must be joined with what."""
    known = list(nodes)
    readers = {each.name: each for each in known if isinstance(each, Reader)}
    commons = {name: _common(graph, name) for name in graph.operators}
    traced = {supplier for each in commons.values() for supplier, _ in each}
    for node in known:
        if isinstance(node, RunningSupplier):
            micros = graph.suppliers[node.name].validity
            node.validity = None if micros is None else micros * 1000
            node.traced = node.name in traced
        if isinstance(node, RunningOperator):
            node.common = commons[node.name]
        if isinstance(node, RunningSupplier | RunningOperator):
            keep = not graph.discard or graph.validity(node.name) is None
            node.ring = store.ring(node.name, graph.capacity(node.name), keep)
            node.followers = [
                (readers[each], inputs_of(graph.node(each)).index(node.name))
                for each in graph.followers(node.name)
            ]


def _common(graph: Graph, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """The suppliers that several inputs of an operator are made of, with these inputs."""
    operator = graph.operators[name]
    if KINDS[operator.kind].each:
        return []
    roots = [graph.roots(each) for each in operator.inputs]
    found = []
    for supplier in graph.suppliers:
        inputs = tuple(number for number, each in enumerate(roots) if supplier in each)
        if len(inputs) > 1:
            found.append((supplier, inputs))
    return found
