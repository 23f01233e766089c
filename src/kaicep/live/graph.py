"""The graph: immutable, checked as a whole before anything runs; priorities flow upstream in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.live.nodes import KINDS, TYPES, Consumer, Node, Operator, Place, Supplier

__all__ = ["Graph"]

SPORADIC = 16
"""How many events are kept of a supplier that says neither its period nor the size of its ring."""


@dataclass(frozen=True)
class Graph:
    """Suppliers, operators and consumers by name, and what becomes of outdated events.

    With `discard` what is outdated is thrown away, else it is marked and delivered.

    >>> from kaicep.live.nodes import consumer, operator, supplier
    >>> radar = supplier("radar", validity="10ms", period="5ms")
    >>> @operator(radar)
    ... def louder(samples):
    ...     return samples * 2
    >>> @consumer(louder, priority="high")
    ... def airbag(delivery): ...
    >>> graph = Graph.of(radar, louder, airbag)
    >>> graph.priorities()
    {'radar': 3, 'louder': 3, 'airbag': 3}
    """

    suppliers: Mapping[str, Supplier] = field(default_factory=dict)
    operators: Mapping[str, Operator] = field(default_factory=dict)
    consumers: Mapping[str, Consumer] = field(default_factory=dict)
    name: str = "graph"
    discard: bool = True
    cores: int | None = None

    @classmethod
    def of(cls, *nodes: Node, name: str = "graph", discard: bool = True, cores: int | None = None) -> Graph:
        """The graph of these nodes, checked."""
        return cls(name=name, discard=discard, cores=cores).with_nodes(*nodes)

    def with_nodes(self, *nodes: Node) -> Graph:
        """This graph with these nodes added, checked."""
        wrong = list(_twins((*self.nodes(), *nodes)))
        if wrong:
            raise Mistake(wrong)
        made = replace(
            self,
            suppliers={**self.suppliers, **{each.name: each for each in nodes if isinstance(each, Supplier)}},
            operators={**self.operators, **{each.name: each for each in nodes if isinstance(each, Operator)}},
            consumers={**self.consumers, **{each.name: each for each in nodes if isinstance(each, Consumer)}},
        )
        made.check()
        return made

    def without(self, name: str) -> Graph:
        """This graph without a consumer, and without what only it needed of the operators."""
        if name not in self.consumers:
            raise Mistake(Diagnostic(f"no consumer is named {name}", hint=did_you_mean(name, self.consumers)))
        left = {key: each for key, each in self.consumers.items() if key != name}
        others = {up for each in left.values() for up in self.upstream(each.name)}
        alone = self.upstream(name) - others
        kept = {key: each for key, each in self.operators.items() if key not in alone}
        return replace(self, operators=kept, consumers=left)

    def nodes(self) -> Iterator[Node]:
        """All nodes: suppliers, operators, consumers."""
        yield from self.suppliers.values()
        yield from self.operators.values()
        yield from self.consumers.values()

    def node(self, name: str) -> Node:
        """The node of a name."""
        found = self.suppliers.get(name) or self.operators.get(name) or self.consumers.get(name)
        if found is None:
            known = [each.name for each in self.nodes()]
            raise Mistake(Diagnostic(f"no node is named {name}", hint=did_you_mean(name, known)))
        return found

    def upstream(self, name: str) -> frozenset[str]:
        """The names of everything that a node's events are made of."""
        found: set[str] = set()
        left = list(inputs_of(self.node(name)))
        while left:
            each = left.pop()
            if each not in found:
                found.add(each)
                left += inputs_of(self.node(each))
        return frozenset(found)

    def roots(self, name: str) -> frozenset[str]:
        """The suppliers that a node's events are made of; of a supplier, itself."""
        return frozenset(each for each in (*self.upstream(name), name) if each in self.suppliers)

    def order(self) -> tuple[str, ...]:
        """The operators, each after those that it reads."""
        done: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in self.operators and name not in done:
                for each in self.operators[name].inputs:
                    visit(each)
                done[name] = None

        for name in self.operators:
            visit(name)
        return tuple(done)

    def followers(self, name: str) -> tuple[str, ...]:
        """The operators and consumers that read a node."""
        readers: list[Node] = [*self.operators.values(), *self.consumers.values()]
        return tuple(each.name for each in readers if name in inputs_of(each))

    def priorities(self) -> dict[str, int]:
        """The priority of every node: the highest of the consumers that need it (section III of CPEP).

        What no consumer needs has the lowest.
        """
        lowest = min((each.priority for each in self.consumers.values()), default=0)
        found: dict[str, int] = {each.name: lowest for each in self.nodes()}
        found.update((each.name, each.priority) for each in self.consumers.values())
        for each in sorted(self.consumers.values(), key=lambda one: one.priority):
            found.update(dict.fromkeys(self.upstream(each.name), each.priority))
        return found

    def types(self) -> dict[str, str]:
        """What the events of each supplier and operator carry."""
        found = {each.name: each.type for each in self.suppliers.values()}
        for name in self.order():
            each = self.operators[name]
            gives = each.gives if each.kind == "python" else KINDS[each.kind].gives
            found[name] = gives or next((found[up] for up in each.inputs if found[up] != "any"), "any")
        return found

    def validity(self, name: str) -> int | None:
        """The longest that an event of a node may be valid: the shortest of its suppliers'."""
        known = [each.validity for each in self._roots(name) if each.validity is not None]
        return min(known, default=None)

    def capacity(self, name: str) -> int:
        """How many events of a node may be valid at a time: ceil(validity / period), or as configured."""
        roots = self._roots(name)
        if name in self.suppliers and (own := self.suppliers[name].ring) is not None:
            return own
        configured = [each.ring for each in roots if each.ring is not None]
        validity, periods = self.validity(name), [each.period for each in roots]
        if validity is None or not periods or any(each is None for each in periods):
            return max(configured, default=SPORADIC)
        # An operator that needs all of its suppliers is as slow as the slowest; one that takes them one by
        # one is as fast as all of them together, so the fastest alone would be too few.
        found = sum(-(-validity // each) for each in periods if each) if self._takes_each(name) else 0
        slowest = max(each for each in periods if each is not None)
        return max(1, -(-validity // slowest), found, *configured)

    def _takes_each(self, name: str) -> bool:
        parts = (name, *self.upstream(name))
        return any(each in self.operators and KINDS[self.operators[each].kind].each for each in parts)

    def _roots(self, name: str) -> list[Supplier]:
        return [self.suppliers[each] for each in sorted(self.roots(name))]

    def check(self) -> None:
        """Raises `Mistake` with everything that is wrong."""
        wrong = [each for node in self.nodes() for each in self._problems(node)]
        if not wrong:
            wrong = list(self._cycles())
        if not wrong:
            wrong = list(self._wrong_types())
        if wrong:
            raise Mistake(wrong)

    # --- what may be wrong ---

    def _problems(self, node: Node) -> Iterator[Diagnostic]:
        readable = (*self.suppliers, *self.operators)
        for each in inputs_of(node):
            if each not in readable:
                what = "is a consumer, which gives no events" if each in self.consumers else "does not exist"
                yield problem(
                    node, f"{node.name} reads {each}, which {what}", ("inputs", "input"), each, readable
                )
        if isinstance(node, Operator):
            yield from _operator_problems(node)
        elif isinstance(node, Supplier):
            for key in ("validity", "period", "ring"):
                value = getattr(node, key)
                if value is not None and value <= 0:
                    yield problem(node, f"{node.name}: {key} must be above 0", (key,))
            if node.type not in TYPES:
                yield problem(node, f"{node.name}: no type is named {node.type}", ("type",), node.type, TYPES)
        elif node.queue <= 0:
            yield problem(node, f"{node.name}: queue must be above 0", ("queue",))

    def _cycles(self) -> Iterator[Diagnostic]:
        done: set[str] = set()

        def visit(name: str, trail: tuple[str, ...]) -> Iterator[Diagnostic]:
            if name in trail:
                circle = " -> ".join((*trail[trail.index(name) :], name))
                yield problem(self.operators[name], f"the operators go in a circle: {circle}", ("inputs",))
            elif name not in done and name in self.operators:
                for each in self.operators[name].inputs:
                    yield from visit(each, (*trail, name))
            done.add(name)

        for name in self.operators:
            yield from visit(name, ())

    def _wrong_types(self) -> Iterator[Diagnostic]:
        found = self.types()
        for name in self.order():
            each = self.operators[name]
            accepts = (each.accepts,) if each.kind == "python" else KINDS[each.kind].accepts
            read = {up: found[up] for up in each.inputs}
            for up, type in read.items():
                if type != "any" and "any" not in accepts and type not in accepts:
                    wanted = " or ".join(accepts)
                    yield problem(each, f"{name} reads {wanted}, and {up} gives {type}", ("inputs",))
            known = {type for type in read.values() if type != "any"}
            if each.kind == "cat" and len(known) > 1:
                yield problem(each, f"{name} joins {' and '.join(sorted(known))}, which differ", ("inputs",))


def inputs_of(node: Node) -> tuple[str, ...]:
    """The names of the nodes that a node reads."""
    if isinstance(node, Operator):
        return node.inputs
    return (node.input,) if isinstance(node, Consumer) else ()


def problem(
    node: Node,
    message: str,
    keys: Sequence[str] = (),
    wrong: str | None = None,
    known: Iterable[str] = (),
    hint: str | None = None,
) -> Diagnostic:
    """What is wrong with a node, at the first of the keys that its file has."""
    place: Place | None = node.place
    hint = hint or (did_you_mean(wrong, known) if wrong is not None else None)
    if place is None:
        return Diagnostic(message, hint=hint)
    spans = [place.keys[each] for each in keys if each in place.keys]
    return Diagnostic(message, spans[0] if spans else place.span, place.source, hint)


def _operator_problems(node: Operator) -> Iterator[Diagnostic]:
    kind = KINDS.get(node.kind)
    if kind is None:
        yield problem(node, f"no kind of operator is named {node.kind}", ("kind",), node.kind, KINDS)
        return
    if not node.inputs:
        yield problem(node, f"{node.name} has no inputs", ("inputs",), hint='such as inputs = ["radar"]')
    if len(set(node.inputs)) < len(node.inputs):
        yield problem(node, f"{node.name} reads the same node twice", ("inputs",))
    if kind.most is not None and len(node.inputs) > kind.most:
        found = len(node.inputs)
        yield problem(node, f"{node.name}: {node.kind} has one input, not {found}", ("inputs",))
    for key, value in node.settings.items():
        if key not in kind.settings:
            message = f"{node.kind} has no setting {key}"
            yield problem(
                node,
                message,
                (key,),
                key,
                ("name", "kind", "inputs", "queue", "parallel", "isolate", *kind.settings),
            )
            continue
        setting = kind.settings[key]
        if not _fits(value, setting.type):
            yield problem(node, f"{node.name}: {key} must be {_ARTICLES[setting.type]}", (key,))
        elif value is not None and not setting.holds(value):
            yield problem(node, f"{node.name}: {key} must {setting.must}", (key,))
    for key, setting in kind.settings.items():
        if setting.needed and key not in node.settings:
            yield problem(node, f"{node.name}: {node.kind} needs {key}", ("kind",))
    if node.queue <= 0:
        yield problem(node, f"{node.name}: queue must be above 0", ("queue",))
    if node.parallel and kind.stateful and node.kind != "python":
        yield problem(
            node,
            f"{node.name}: {node.kind} remembers what came before, so it cannot be parallel",
            ("parallel",),
        )
    yield from _special_problems(node)


def _special_problems(node: Operator) -> Iterator[Diagnostic]:
    """What the settings of a kind must fulfil together."""
    has = node.settings
    if node.kind == "aes" and ("key_env" in has) == ("key_file" in has):
        hint = 'such as key_env = "FUSION_KEY"; do not write a key into the graph itself'
        yield problem(node, f"{node.name}: a key comes from key_env or from key_file", ("kind",), hint=hint)
    if node.kind == "filter" and not has.keys() & {"low", "high"}:
        yield problem(node, f"{node.name}: a filter needs low, high or both", ("kind",))
    if node.kind == "python" and node.function is None and "function" not in has:
        hint = 'such as function = "package.module:name"'
        yield problem(node, f"{node.name}: which function?", ("kind",), hint=hint)


_ARTICLES = {int: "a whole number", float: "a number", str: "a text", list: "a list of texts"}


def _fits(value: Any, wanted: type) -> bool:
    if isinstance(value, bool):
        return False
    if wanted is float:
        return isinstance(value, int | float)
    if wanted is list:
        return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return isinstance(value, wanted)


def _twins(nodes: Iterable[Node]) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for each in nodes:
        if each.name in seen:
            yield problem(each, f"two nodes are named {each.name}", ("name",))
        seen.add(each.name)
