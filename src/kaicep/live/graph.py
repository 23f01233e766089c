"""A graph of suppliers, operators and consumers: its parts, its file, how it is checked and drawn."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Failure, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.time import format_duration, parse_duration
from kaicep.plan.toml import Keys, TomlReader, read_source, read_toml
from kaicep.processes import bound

# ----------------------------------------------------------------------------------------------------------
# What a graph is made of: suppliers, operators of several kinds, and consumers.
#
# They come from a file or from decorated functions. `KINDS` says what the operators of a kind read and
# give, and their settings; how they work is in `kinds`. Times are microseconds, as everywhere in plans;
# the service counts in nanoseconds.

PRIORITIES: Mapping[str, int] = {"high": 3, "middle": 2, "low": 1}
"""Words for priorities; any whole number will do, and the larger one goes first."""


@dataclass(frozen=True)
class NodePlace:
    """The place of a node in a file: the node itself, and its keys."""

    source: SourceText
    span: Span
    keys: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Supplier:
    """Where events enter. They are valid for `validity` from their creation on (None: for ever).

    `period` is the time between two events, where they come regularly; `ring` how many of them are kept,
    where that shall not follow from the two. `type` is what its events carry. `source` says where `kaicep
    live run` gets them from.
    """

    name: str
    validity: int | None = None
    period: int | None = None
    ring: int | None = None
    type: str = "samples"
    source: Mapping[str, Any] = field(default_factory=dict)
    place: NodePlace | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Operator:
    """A step: its kind, the nodes that it reads, its settings.

    `function` is what it does, where that is the caller's: something to call, or a compiled `Query`. `queue`
    bounds what waits for it on each input. A `parallel` one may work on several events at once: it must not
    remember anything. Its events come out in order all the same. An `isolate`d one runs in a process of its
    own.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    function: Any = None
    accepts: str = "any"
    gives: str = "any"
    queue: int = 4096
    parallel: bool = False
    isolate: bool = False
    place: NodePlace | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Consumer:
    """Who gets the events of a node, how urgently, and by which callback.

    `queue` bounds what waits for a consumer that is slow. `output` is a file for `kaicep live run`.
    """

    name: str
    input: str
    priority: int = 1
    callback: Callable[..., Any] | None = None
    queue: int = 64
    output: str | None = None
    place: NodePlace | None = field(default=None, compare=False, repr=False)


Node = Supplier | Operator | Consumer


def supplier(
    name: str,
    *,
    validity: str | None = None,
    period: str | None = None,
    ring: int | None = None,
    type: str = "samples",
) -> Supplier:
    """A supplier, with durations as texts.

    >>> supplier("radar", validity="10ms", period="5ms").validity
    10000
    """
    return Supplier(name, _micros("validity", validity), _micros("period", period), ring, type)


def operator(
    *inputs: Node | str,
    name: str | None = None,
    accepts: str = "any",
    gives: str = "any",
    queue: int = 4096,
    parallel: bool = False,
    isolate: bool = False,
) -> Callable[[Callable[..., Any]], Operator]:
    """Makes a function an operator of the nodes that it reads: one argument for each of them.

    It gives the new event's payload, or None for no event. A Numba kernel will do as well. A `parallel` one
    remembers nothing, and may be called for several events at once. An `isolate`d one runs in a process of
    its own, so that it keeps the interpreter from nobody: it must be a function of a module.

    >>> radar = supplier("radar")
    >>> @operator(radar)
    ... def louder(samples):
    ...     return samples * 2
    >>> louder.name, louder.inputs
    ('louder', ('radar',))
    """
    read = tuple(each if isinstance(each, str) else each.name for each in inputs)

    def made(function: Callable[..., Any]) -> Operator:
        called = name or function.__name__
        return Operator(called, "python", read, {}, function, accepts, gives, queue, parallel, isolate)

    return made


def consumer(
    input: Node | str, *, priority: int | str = "low", name: str | None = None, queue: int = 64
) -> Callable[[Callable[..., Any]], Consumer]:
    """Makes a function a consumer of a node: it is called with every `Delivery`.

    >>> @consumer("louder", priority="high")
    ... def airbag(delivery):
    ...     print(delivery.payload)
    >>> airbag.priority
    3
    """
    read = input if isinstance(input, str) else input.name

    def made(function: Callable[..., Any]) -> Consumer:
        return Consumer(name or function.__name__, read, priority_of(priority), function, queue)

    return made


def priority_of(given: int | str) -> int:
    """A priority as a number: a word of `PRIORITIES`, or the number itself.

    >>> priority_of("middle"), priority_of(7)
    (2, 7)
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if given not in PRIORITIES:
        raise Mistake(
            f"{given!r} is not a priority: a whole number or one of {', '.join(PRIORITIES)}",
            hint=did_you_mean(str(given), PRIORITIES),
        )
    return PRIORITIES[str(given)]


def _micros(what: str, text: str | None) -> int | None:
    if text is None:
        return None
    micros = parse_duration(text)
    if micros is None:
        raise Mistake(f"{what} {text}: not a duration", hint="a number and a unit, such as 10ms")
    return micros


# --- the kinds of operators -------------------------------------------------------------------------------

TYPES = ("samples", "spectrum", "bytes", "records", "any")
"""What events carry: an array of numbers, one of complex numbers, bytes, rows with names, or whatever."""

_ARRAYS = ("samples", "spectrum", "bytes")


@dataclass(frozen=True)
class Setting:
    """A setting of a kind: its type, what it is where nothing is said, what it must fulfil."""

    type: type
    default: Any = None
    needed: bool = False
    holds: Callable[[Any], bool] = lambda value: True
    must: str = ""


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator.

    `each` is for operators that take the events of their inputs one by one as they come; the others take
    one of every input together. A `stateful` one remembers, so that a new one is not the same as one that
    runs already. `gives` is what it gives; None: the type that it reads.
    """

    accepts: tuple[str, ...]
    gives: str | None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    most: int | None = None
    each: bool = False
    stateful: bool = False


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _share(value: Any) -> bool:
    return bool(0 < value < 1)


KINDS: Mapping[str, OperatorKind] = {
    "ekf": OperatorKind(
        ("samples",),
        "samples",
        {
            "frequency": Setting(float, 0.05, holds=_share, must="lie between 0 and 1, in turns per sample"),
            "process": Setting(float, 1e-4, holds=_positive, must="be above 0"),
            "measurement": Setting(float, 1.0, holds=_positive, must="be above 0"),
        },
        stateful=True,
    ),
    "fft": OperatorKind(("samples",), "spectrum", most=1),
    "cat": OperatorKind(_ARRAYS, None),
    "aes": OperatorKind(
        (*_ARRAYS, "records"), "bytes", {"key_env": Setting(str), "key_file": Setting(str)}, most=1
    ),
    "filter": OperatorKind(
        ("samples",),
        "samples",
        {
            "low": Setting(float, holds=_share, must="lie between 0 and 1, of half the sampling rate"),
            "high": Setting(float, holds=_share, must="lie between 0 and 1, of half the sampling rate"),
            "order": Setting(int, 4, holds=_positive, must="be above 0"),
        },
        most=1,
        stateful=True,
    ),
    "window": OperatorKind(
        ("samples", "spectrum", "records"),
        None,
        {
            "size": Setting(int, needed=True, holds=_positive, must="be above 0"),
            "step": Setting(int, 1, holds=_positive, must="be above 0"),
        },
        most=1,
        stateful=True,
    ),
    "resample": OperatorKind(
        ("samples",),
        "samples",
        {
            "up": Setting(int, 1, holds=_positive, must="be above 0"),
            "down": Setting(int, 1, holds=_positive, must="be above 0"),
        },
        most=1,
    ),
    "query": OperatorKind(
        ("records", "any"),
        "records",
        {
            "query": Setting(str, needed=True),
            "annotation": Setting(list, ()),
            "knowledge": Setting(list, ()),
            "reasoning": Setting(str, "rdfs"),
            "lateness": Setting(str, "0s"),
            "batch": Setting(int, 64, holds=_positive, must="be above 0"),
        },
        each=True,
        stateful=True,
    ),
    "pick": OperatorKind(("records", "any"), "records", {"query": Setting(str, needed=True)}, most=1),
    "python": OperatorKind(TYPES, "any", {"function": Setting(str)}, stateful=True),
}


# ----------------------------------------------------------------------------------------------------------
# The graph: immutable, checked as a whole before anything runs; priorities flow upstream in it.

SPORADIC = 16
"""How many events are kept of a supplier that says neither its period nor the size of its ring."""


@dataclass(frozen=True)
class Graph:
    """Suppliers, operators and consumers by name, and what becomes of outdated events.

    With `discard` what is outdated is thrown away, else it is marked and delivered.

    >>> from kaicep.live.graph import consumer, operator, supplier
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
            raise Mistake(f"no consumer is named {name}", hint=did_you_mean(name, self.consumers))
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
            raise Mistake(f"no node is named {name}", hint=did_you_mean(name, known))
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
                yield problem(self.operators[name], f"the operators form a circle: {circle}", ("inputs",))
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
    place: NodePlace | None = node.place
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
        yield problem(node, f"{node.name}: name its function", ("kind",), hint=hint)


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


# ----------------------------------------------------------------------------------------------------------
# A graph for people: as text, and as a drawing if graphviz is installed.

_COLOURS = ("#f4b6b0", "#f8dda4", "#c9e4c5", "#cfe0f3", "#e3d5ee")


def as_text(graph: Graph) -> str:
    """The levels from the most urgent down, and what moves between them.

    >>> from kaicep.live.graph import Consumer, Operator, Supplier
    >>> print(as_text(Graph.of(
    ...     Supplier("radar", 10_000, 5_000), Operator("louder", "cat", ("radar",)),
    ...     Operator("spectrum", "fft", ("louder",)),
    ...     Consumer("airbag", "louder", 3), Consumer("screen", "spectrum", 1), name="car")))
    car: 1 supplier, 2 operators, 2 consumers; what is outdated is discarded
    <BLANKLINE>
    level 1 (high)
      radar     supplier, valid 10ms, every 5ms  -> louder             ring 2
      louder    cat of radar                     -> airbag, spectrum*  ring 2
      airbag    gets louder
    level 2 (low)
      spectrum  fft of louder                    -> screen             ring 2
      screen    gets spectrum
    <BLANKLINE>
    * moves to a lower level
    """
    levels = graph.priorities()
    counts = (
        (len(graph.suppliers), "supplier"),
        (len(graph.operators), "operator"),
        (len(graph.consumers), "consumer"),
    )
    shown = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    rows = [f"{graph.name}: {shown}; what is outdated is {'discarded' if graph.discard else 'marked'}", ""]
    cells = {name: list(_cells(graph, name, levels)) for name in _order(graph)}
    widths = [max((len(each[at]) for each in cells.values()), default=0) for at in range(4)]
    for number, priority in enumerate(sorted(set(levels.values()), reverse=True), 1):
        rows.append(f"level {number} ({priority_name(priority)})")
        for name, each in cells.items():
            if levels[name] == priority:
                padded = (cell.ljust(width) for cell, width in zip(each, widths, strict=True))
                rows.append(("  " + "  ".join(padded)).rstrip())
    if any("*" in each[2] for each in cells.values()):
        rows += ["", "* moves to a lower level"]
    return "\n".join(rows)


def _order(graph: Graph) -> Iterator[str]:
    yield from graph.suppliers
    yield from graph.order()
    yield from graph.consumers


def _cells(graph: Graph, name: str, levels: dict[str, int]) -> tuple[str, str, str, str]:
    node = graph.node(name)
    if isinstance(node, Consumer):
        return name, f"gets {node.input}", "", ""
    followers = sorted(graph.followers(name), key=lambda each: (-levels[each], each))
    moved = ", ".join(each + ("*" if levels[each] < levels[name] else "") for each in followers)
    return name, _what(node), f"-> {moved}" if moved else "-> nobody", f"ring {graph.capacity(name)}"


def _what(node: Supplier | Operator) -> str:
    if isinstance(node, Operator):
        return f"{node.kind} of {', '.join(node.inputs)}"
    valid = f"valid {format_duration(node.validity)}" if node.validity else "valid for ever"
    return f"supplier, {valid}" + (f", every {format_duration(node.period)}" if node.period else "")


def priority_name(priority: int) -> str:
    """A priority as its word, where it has one.

    >>> priority_name(3), priority_name(12)
    ('high', '12')
    """
    return next((name for name, number in PRIORITIES.items() if number == priority), str(priority))


def as_dot(graph: Graph) -> str:
    """The graph in the language of graphviz; dashed is what moves to a lower level."""
    levels = graph.priorities()
    colours = {
        each: _COLOURS[number % len(_COLOURS)]
        for number, each in enumerate(sorted(set(levels.values()), reverse=True))
    }
    rows = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=LR;",
        '  node [style=filled, fontname="sans-serif"];',
    ]
    for node in graph.nodes():
        shape = "ellipse" if isinstance(node, Operator) else "box"
        below = node.kind if isinstance(node, Operator) else priority_name(levels[node.name])
        label, colour = _quoted(f"{node.name}\n{below}"), colours[levels[node.name]]
        rows.append(f'  {_quoted(node.name)} [shape={shape}, fillcolor="{colour}", label={label}];')
    for name in (*graph.suppliers, *graph.operators):
        for each in graph.followers(name):
            style = " [style=dashed]" if levels[each] < levels[name] else ""
            rows.append(f"  {_quoted(name)} -> {_quoted(each)}{style};")
    return "\n".join([*rows, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def draw(graph: Graph, format: str) -> bytes:
    """The graph as SVG or PNG, by graphviz."""
    dot = shutil.which("dot")
    if dot is None:
        raise Failure("graphviz is not installed, which draws; the text needs nothing: leave --draw out")
    done = subprocess.run(
        bound([dot, f"-T{format}"]), input=as_dot(graph).encode(), capture_output=True, check=False
    )
    if done.returncode:
        raise Failure(f"graphviz could not draw the graph: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


# ----------------------------------------------------------------------------------------------------------
# A graph from a file: TOML, or the rows of the CPEP paper (its section III).

_TOP = ("name", "outdated", "cores", "supplier", "operator", "consumer")
_SUPPLIER = ("name", "validity", "period", "ring", "type", "source")
_OPERATOR = ("name", "kind", "inputs", "queue", "parallel", "isolate")
_CONSUMER = ("name", "input", "priority", "queue", "output")


def load_graph(path: Path) -> Graph:
    """Reads a graph: TOML if the file is named so, else the rows of the paper."""
    source = read_source(path, "graph")
    return parse_toml(source) if path.suffix == ".toml" else parse_rows(source)


# --- TOML --------------------------------------------------------------------------------------------------


def parse_toml(source: SourceText) -> Graph:
    """The graph of a TOML text, checked.

    >>> graph = parse_toml(SourceText("g.toml", '''
    ... [[supplier]]
    ... name = "radar"
    ... validity = "10ms"
    ... [[operator]]
    ... name = "spectrum"
    ... kind = "fft"
    ... inputs = ["radar"]
    ... [[consumer]]
    ... name = "screen"
    ... input = "spectrum"
    ... priority = "low"
    ... '''))
    >>> graph.operators["spectrum"].kind
    'fft'
    """
    read = read_toml(source)
    reader = _GraphReader(source)
    for key in read:
        if key not in _TOP:
            header = reader.spans.get((key, 0))
            span = Span(header.start + 2, header.end - 2) if header else reader.spans.get((key,))
            raise Mistake(f"a graph has no {key}", span, source, did_you_mean(key, _TOP))
    outdated = read.get("outdated", "discard")
    if outdated not in ("mark", "discard"):
        reader.say(("outdated",), "outdated is mark or discard")
    cores = read.get("cores")
    if cores is not None and (not isinstance(cores, int) or isinstance(cores, bool) or cores < 1):
        reader.say(("cores",), "cores is a whole number above 0")
    nodes: list[Node] = []
    for table, make in (
        ("supplier", reader.supplier),
        ("operator", reader.operator),
        ("consumer", reader.consumer),
    ):
        nodes += reader.tables(table, read.get(table, []), make)
    if reader.wrong:
        raise Mistake(reader.wrong)
    name = str(read.get("name", Path(source.name).stem))
    return Graph.of(*nodes, name=name, discard=outdated == "discard", cores=cores)


class _GraphReader(TomlReader):
    """Makes nodes of tables, and collects what is wrong with them, each at its place."""

    example = "10ms"
    way: Keys = ()
    """The table that is read."""

    def tables(self, table: str, rows: Any, make: Callable[[str, Mapping[str, Any]], Node]) -> list[Node]:
        made: list[Node] = []
        if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
            self.say((table,), f"{table}s are written as [[{table}]]")
            return made
        for number, row in enumerate(rows):
            self.way = (table, number)
            name = row.get("name")
            if not isinstance(name, str) or not name:
                self.complain(f"this {table} has no name", "name")
            else:
                made.append(make(name, row))
        return made

    def place_of(self, row: Mapping[str, Any]) -> NodePlace:
        """The place of the table, with its keys; a table may be written in several ways."""
        here = self.spans.get(self.way, Span(0, 0))
        keys = {key: self.spans.get((*self.way, key)) for key in row}
        return NodePlace(self.source, here, {key: span for key, span in keys.items() if span})

    def complain(self, message: str, key: str, hint: str | None = None) -> None:
        """Says what is wrong with a key of the table."""
        self.say((*self.way, key), message, hint)

    def number(self, row: Mapping[str, Any], key: str, default: int | None) -> int | None:
        value = row.get(key, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            self.complain(f"{key} is a whole number", key)
            return default
        return value

    def flag(self, row: Mapping[str, Any], key: str) -> bool:
        value = row.get(key, False)
        if not isinstance(value, bool):
            self.complain(f"{key} is true or false", key)
        return value is True

    def supplier(self, name: str, row: Mapping[str, Any]) -> Supplier:
        self.known(self.way, row, _SUPPLIER, "a supplier")
        source = row.get("source", {})
        if not isinstance(source, dict):
            self.complain("source is a table", "source", 'such as source = {kind = "noise", size = 512}')
            source = {}
        return Supplier(
            name,
            self.duration(self.way, row, "validity", None),
            self.duration(self.way, row, "period", None),
            self.number(row, "ring", None),
            self.text(self.way, row, "type", "samples"),
            source,
            self.place_of(row),
        )

    def operator(self, name: str, row: Mapping[str, Any]) -> Operator:
        inputs = row.get("inputs", [])
        if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs):
            self.complain("inputs is a list of names", "inputs", 'such as inputs = ["radar"]')
            inputs = []
        if "kind" not in row:
            self.complain(f"{name}: name the kind of operator", "name", did_you_mean("", KINDS))
        settings = {key: each for key, each in row.items() if key not in _OPERATOR}
        kind = self.text(self.way, row, "kind", "python").lower()
        queue = self.number(row, "queue", Operator.queue) or 0
        parallel, isolate = self.flag(row, "parallel"), self.flag(row, "isolate")
        return Operator(
            name,
            kind,
            tuple(inputs),
            settings,
            queue=queue,
            parallel=parallel,
            isolate=isolate,
            place=self.place_of(row),
        )

    def consumer(self, name: str, row: Mapping[str, Any]) -> Consumer:
        self.known(self.way, row, _CONSUMER, "a consumer")
        if "input" not in row:
            self.complain(f"{name} has no input", "name", 'such as input = "spectrum"')
        priority = 1
        try:
            priority = priority_of(row.get("priority", 1))
        except Mistake as mistake:
            self.complain(mistake.diagnostics[0].message, "priority", mistake.diagnostics[0].hint)
        output = self.text(self.way, row, "output", "") or None
        queue = self.number(row, "queue", 64) or 0
        return Consumer(
            name, self.text(self.way, row, "input", ""), priority, None, queue, output, self.place_of(row)
        )


# --- the paper's rows --------------------------------------------------------------------------------------


def parse_rows(source: SourceText) -> Graph:
    """The graph of rows as the paper has them, checked.

    A row is an operator: its kind, the number of operators that follow, their numbers (from 1), and a
    priority if a consumer gets its events. A row may also be a supplier, which several operators can share:
    `SUPPLIER`, its followers, and if it has them its validity and its period. An operator that follows
    nothing has a supplier of its own, `s1`, `s2` and so on. `#` starts a comment.

    >>> graph = parse_rows(SourceText("g.rows", "SUPPLIER 2 2 3 10ms 5ms\\nEKF 1 3\\nCAT 0 high\\n"))
    >>> graph.operators["o3"].inputs, graph.consumers["c3"].priority, graph.suppliers["s1"].validity
    (('s1', 'o2'), 3, 10000)
    """
    rows = [each for each in _rows(source) if each[1]]
    if all(_is_supplier(words) for _, words in rows):
        raise Mistake("there is no operator in this graph", source=source)
    wrong: list[Diagnostic] = []
    inputs: dict[int, list[str]] = {number: [] for number in range(1, len(rows) + 1)}
    suppliers: list[Supplier] = []
    consumers: list[Consumer] = []
    for number, (place, words) in enumerate(rows, 1):
        try:
            followers, rest = _followers(words, len(rows))
            if any(_is_supplier(rows[each - 1][1]) for each in followers):
                raise ValueError("a supplier follows nothing")
            if _is_supplier(words):
                name = f"s{number}"
                times = _times(rest)
                suppliers.append(Supplier(name, *times, type="any", place=place))
            else:
                name = f"o{number}"
                if rest:
                    consumers.append(Consumer(f"c{number}", name, _priority(rest), place=place))
        except ValueError as error:
            wrong.append(Diagnostic(str(error), place.span, source))
            continue
        for each in followers:
            inputs[each].append(name)
    if wrong:
        raise Mistake(wrong)
    operators: list[Operator] = []
    free = (name for each in count(1) if (name := f"s{each}") not in {one.name for one in suppliers})
    for number, (place, words) in enumerate(rows, 1):
        if _is_supplier(words):
            continue
        if not inputs[number]:
            own = Supplier(next(free), type="any")
            suppliers.append(own)
            inputs[number].append(own.name)
        read, kind = tuple(inputs[number]), words[0].lower()
        operators.append(Operator(f"o{number}", kind, read, _key(words), place=place))
    return Graph.of(*suppliers, *operators, *consumers, name=Path(source.name).stem)


def _is_supplier(words: list[str]) -> bool:
    return words[0].lower() == "supplier"


def _times(words: list[str]) -> tuple[int | None, int | None]:
    """The validity and the period of a supplier's row, as far as they are there."""
    if len(words) > 2:
        raise ValueError("a supplier has a validity and a period, and nothing after them")
    found = [parse_duration(each) for each in words]
    if None in found:
        raise ValueError(f"{words[found.index(None)]} is not a duration, such as 10ms")
    return found[0] if found else None, found[1] if len(found) > 1 else None


def _priority(words: list[str]) -> int:
    if len(words) > 1:
        raise ValueError(f"after the followers comes a priority, and there are {len(words)} words")
    try:
        return priority_of(int(words[0]) if words[0].lstrip("-").isdigit() else words[0])
    except Mistake as mistake:
        raise ValueError(mistake.diagnostics[0].message) from None


def _key(words: list[str]) -> dict[str, Any]:
    """A row has no room for settings, and AES needs a key: it is that of the environment."""
    return {"key_env": "KAICEP_AES_KEY"} if words[0].lower() == "aes" else {}


def _rows(source: SourceText) -> list[tuple[NodePlace, list[str]]]:
    found, start = [], 0
    for line in source.text.split("\n"):
        text = line.partition("#")[0].rstrip()
        indent = len(text) - len(text.lstrip())
        found.append((NodePlace(source, Span(start + indent, start + len(text))), text.split()))
        start += len(line) + 1
    return found


def _followers(words: list[str], operators: int) -> tuple[list[int], list[str]]:
    """The numbers of the operators that follow, and the words after them."""
    if len(words) < 2 or not words[1].isdigit():
        raise ValueError("a row is a kind, the number of followers, their numbers, and perhaps a priority")
    count = int(words[1])
    numbers = words[2 : 2 + count]
    if len(numbers) < count:
        raise ValueError(f"{count} followers are announced, and there are {len(words) - 2} words after that")
    for each in numbers:
        if not each.isdigit() or not 1 <= int(each) <= operators:
            raise ValueError(f"no operator has the number {each}: there are {operators}")
    return [int(each) for each in numbers], words[2 + count :]
