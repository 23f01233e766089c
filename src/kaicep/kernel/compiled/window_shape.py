"""What a compiled window has to keep: the layout of its records and rings, by what its query asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kaicep.kernel.chains import chain_parts
from kaicep.kernel.compiled.expressions import Inputs, NotCompiled, fields_in
from kaicep.kernel.project import window_aggregates
from kaicep.plan.catalog import Catalog
from kaicep.plan.expressions import Aggregate, Expr, Field, VariableRef
from kaicep.plan.nodes import (
    Project,
    QueryPlan,
    WindowAggregate,
)
from kaicep.plan.types import Type
from kaicep.plan.typing import type_of

__all__ = ["Argument", "Layout", "Shape", "kind_of"]


class Layout:
    """The words of a record: some int64, then pairs of int32. The first word is a hash of its key."""

    def __init__(self, *longs: str) -> None:
        self.longs = list(longs)
        self.ints: list[str] = []

    def add_ring(self, name: str) -> None:
        """The four numbers of a ring."""
        self.ints += [name, f"{name}.mask", f"{name}.head", f"{name}.count"]

    def int64(self, name: str) -> int:
        """The place of an int64 in the record."""
        return self.longs.index(name)

    def int32(self, name: str) -> int:
        """The place of an int32, counted in int32 from the beginning of the record."""
        return 2 * len(self.longs) + self.ints.index(name)

    @property
    def stride(self) -> int:
        """How many words a record has: whole lines of the cache, so that few are touched."""
        words = len(self.longs) + (len(self.ints) + 1) // 2
        return 4 if words <= 4 else -(-words // 8) * 8


@dataclass
class Argument:
    """Something that is aggregated: an expression, and what is asked about it."""

    number: int
    expr: Expr
    type: Type
    kinds: set[str] = field(default_factory=set)

    @property
    def summed(self) -> bool:
        """Whether its sum is kept."""
        return bool(self.kinds & {"SUM", "AVG"})

    @property
    def counted(self) -> bool:
        """Whether its values that are not null are counted."""
        return bool(self.kinds - {"FIRST", "LAST", "DISTINCT"})


def kind_of(expr: Aggregate) -> str:
    """The name of an aggregate, as in `kernel.aggregates`."""
    if expr.of is None:
        return "EVENTS"
    return "DISTINCT" if expr.distinct and expr.op == "COUNT" else expr.op


class Shape:
    """The parts of a query over a window, and the layout of what it keeps.

    With GROUP BY there are two kinds of records: of partitions (`outer`) and of the groups inside
    (`inner`). Without, partitions are all there is (`inner`). A sliding window keeps its events in rings:
    one for each record, `ring` its entries being `width` words; with GROUP BY the partition has another one
    with the times and the groups of its events.
    """

    def __init__(self, plan: QueryPlan, catalog: Catalog) -> None:
        assert isinstance(plan.root, Project)
        source = plan.root.input
        assert isinstance(source, WindowAggregate)
        self.plan = plan
        self.node = node = source
        self.columns = plan.root.columns
        self.inputs = Inputs(catalog, node.streams)
        self.scan, self.conditions, self.semantics = chain_parts(node.input)
        self.sliding = node.window.kind == "sliding"
        self.timed = node.window.width is not None
        self.grouped = bool(node.group_by)
        self.aggregates = window_aggregates(node, self.columns)
        _refuse(self, catalog)
        self.arguments = list(_arguments(self.aggregates))
        self.fields = list(dict.fromkeys(self._fields()))
        self.outer = Layout("low")
        self.inner = Layout("low", "high")
        self._lay_out()

    def _fields(self) -> Iterator[Field]:
        """The attributes of the one event that a batch shows."""
        if not self.sliding:
            for expr in (*self.node.having, *(each.expr for each in self.columns)):
                yield from fields_in(expr)

    def _lay_out(self) -> None:
        inner = self.inner
        if self.sliding:
            inner.add_ring("ring")
            if self.grouped:
                self.outer.add_ring("ring")
        else:
            inner.ints += ["ring.count", "first.place", "last.place"]
            inner.longs += ["first.part", "first.seq", "last.part", "last.seq"]
            window = self.outer if self.grouped else inner
            window.longs += ["start", "first.low", "first.high", "version"]
            for number, each in enumerate(self.fields):
                self._value(f"field{number}", each.type)
            if self.grouped:
                inner.ints += ["outer", "next"]
                self.outer.ints += ["ring.count", "groups", "group"]
        for argument in self.arguments:
            self._lay_out_argument(argument)

    def _lay_out_argument(self, argument: Argument) -> None:
        inner, name = self.inner, str(argument.number)
        if argument.counted:
            inner.ints.append(f"count{name}")
        if argument.summed:
            inner.longs += [f"sum{name}", f"more{name}"]
            if argument.type is Type.FLOAT64:
                inner.ints += [f"far{name}", f"fars{name}"]
        for kind in sorted(argument.kinds & {"MIN", "MAX"}):
            if self.sliding:
                inner.add_ring(f"{kind}{name}")
            else:
                inner.longs.append(f"{kind}{name}")
        if "DISTINCT" in argument.kinds:
            if self.sliding:
                inner.ints.append(f"DISTINCT{name}.count")
            else:
                inner.add_ring(f"DISTINCT{name}")  # the values, so that they can be forgotten
        if not self.sliding:
            for kind in sorted(argument.kinds & {"FIRST", "LAST"}):
                self._value(f"{kind}{name}", argument.type)

    def _value(self, name: str, type: Type | None) -> None:
        self.inner.longs.append(name)
        if type is Type.INT64:
            self.inner.ints.append(f"{name}.null")

    # --- entries of the rings of a sliding window ---

    @property
    def stored(self) -> list[Argument]:
        """What a ring keeps of each event: all that will have to be taken away."""
        return [each for each in self.arguments if each.kinds - {"LAST"}] if self.sliding else []

    @property
    def offset(self) -> int:
        """Where in an entry the values begin: without groups, the time comes first."""
        return 0 if self.grouped else 1

    @property
    def nulls(self) -> int | None:
        """The word of an entry that says which integers are null."""
        found = any(each.type is Type.INT64 for each in self.stored)
        return self.offset + len(self.stored) if found else None

    @property
    def width(self) -> int:
        """The words of an entry."""
        return self.offset + len(self.stored) + (self.nulls is not None)


def _arguments(aggregates: tuple[Aggregate, ...]) -> Iterator[Argument]:
    found: dict[Expr, Argument] = {}
    for each in aggregates:
        if each.of is None:
            continue
        type = type_of(each.of)
        if type is None:
            raise NotCompiled("an aggregate of an expression without a type")
        if each.of not in found:
            found[each.of] = Argument(len(found), each.of, type)
        found[each.of].kinds.add(kind_of(each))
        if each.op == "STDDEV":
            raise NotCompiled("STDDEV")
        if each.op in ("MIN", "MAX") and type is Type.STRING:
            raise NotCompiled(f"{each.op} of strings")
    yield from found.values()


def _refuse(shape: Shape, catalog: Catalog) -> None:
    node = shape.node
    if node.semantics or any(isinstance(each.expr, VariableRef) for each in shape.columns):
        raise NotCompiled("a variable of a PATH that is selected")
    if any(catalog.streams[each].derived for each in node.streams):
        raise NotCompiled("events that another query derived")
    if set(shape.scan.streams) != set(node.streams):
        raise NotCompiled("streams that the variable does not range over")
