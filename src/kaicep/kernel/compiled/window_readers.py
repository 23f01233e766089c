"""What fields and aggregates stand for in the expressions of a compiled window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaicep.kernel.compiled.expressions import Atom, Body, NotCompiled, RowReader
from kaicep.kernel.compiled.window_shape import Argument, kind_of
from kaicep.kernel.compiled.window_text import null_of
from kaicep.plan.expressions import Aggregate, Field
from kaicep.plan.types import Type

if TYPE_CHECKING:
    from kaicep.kernel.compiled.window_source import WindowSource

__all__ = ["BatchReader", "SlidingReader", "WindowReader"]


class WindowReader(RowReader):
    """Aggregates are read from the record; each is computed once."""

    def __init__(self, source: WindowSource, body: Body) -> None:
        super().__init__(body, source.shape.inputs)
        self.source = source
        self._read_before: dict[Aggregate, Atom] = {}

    def aggregate(self, expr: Aggregate) -> Atom:
        """The value of an aggregate."""
        if expr not in self._read_before:
            self._read_before[expr] = self._aggregate(expr, kind_of(expr))
        return self._read_before[expr]

    def _aggregate(self, expr: Aggregate, kind: str) -> Atom:
        source, body = self.source, self.body
        if kind == "EVENTS":
            return Atom(body.local(f"np.int64({source.int32('ring.count')})"), Type.INT64, None)
        argument = next(each for each in source.shape.arguments if each.expr == expr.of)
        number = argument.number
        if kind == "DISTINCT":
            return Atom(body.local(f"np.int64({source.int32(f'DISTINCT{number}.count')})"), Type.INT64, None)
        if kind in ("FIRST", "LAST"):
            return self.edge(argument, kind)
        count = source.int32(f"count{number}")
        if kind == "COUNT":
            return Atom(body.local(f"np.int64({count})"), Type.INT64, None)
        if kind in ("MIN", "MAX"):
            return self.extreme(argument, kind, count)
        return self._total(argument, kind, count)

    def _total(self, argument: Argument, kind: str, count: str) -> Atom:
        source, body = self.source, self.body
        number, inner = argument.number, source.shape.inner
        words = f"{source.int64(f'sum{number}')}, {source.int64(f'more{number}')}"
        if argument.type is Type.FLOAT64:
            near = body.local(f"near_read({words}) if {count} > 0 else np.nan")
            read = f"finite(sum_read({words}, ints, q + {inner.int32(f'far{number}')}, far, meta))"
            made = body.local(f"{near} if {source.int32(f'fars{number}')} == 0 else {read}")
            if kind == "AVG":
                made = body.local(f"{made} / {count}")
        elif kind == "AVG":
            read = f"whole_average({words}, np.int64({count}), scratch)"
            made = body.local(f"{read} if {count} > 0 else np.nan")
        else:
            made = body.local(source.int64(f"sum{number}"))
            high = source.int64(f"more{number}")
            return Atom(made, Type.INT64, body.local(f"{count} == 0 or {high} != {made} >> 63"))
        return Atom(made, Type.FLOAT64, f"({made} != {made})")

    def edge(self, argument: Argument, kind: str) -> Atom:
        """FIRST or LAST."""
        raise NotImplementedError

    def extreme(self, argument: Argument, kind: str, count: str) -> Atom:
        """MIN or MAX."""
        raise NotImplementedError

    def _extreme_of(self, held: str, type: Type, count: str) -> Atom:
        """The two zeros are equal, so which of them came first must not show."""
        body = self.body
        if type is Type.FLOAT64:
            made = body.local(f"{held} + 0.0 if {count} > 0 else np.nan")
        elif type is Type.INT64:
            return Atom(body.local(f"{held} if {count} > 0 else 0"), type, body.local(f"{count} == 0"))
        else:
            made = body.local(f"{held} if {count} > 0 else {'NO_TIME' if type is Type.TIMESTAMP else '-1'}")
        return Atom(made, type, null_of(made, type))


class SlidingReader(WindowReader):
    """In a sliding window, fields are those of the event that triggers."""

    def __init__(self, source: WindowSource, body: Body) -> None:
        super().__init__(source, body)
        self.values: list[Atom] = []

    def edge(self, argument: Argument, kind: str) -> Atom:
        """FIRST is in the oldest entry, LAST is the event's own."""
        if kind == "LAST":
            return self.values[argument.number]
        width = self.source.shape.width
        entry = self.source.entry(argument, f"(base + {width} * head)")
        return local(self.body, entry)

    def extreme(self, argument: Argument, kind: str, count: str) -> Atom:
        """The first of those that may be it."""
        ring = self.source.shape.inner.int32(f"{kind}{argument.number}")
        array = "arenaf" if argument.type is Type.FLOAT64 else "arena"
        return self._extreme_of(f"{array}[ints[q + {ring}] + ints[q + {ring + 2}]]", argument.type, count)


class BatchReader(WindowReader):
    """In a batch, fields are those of the group's first event, as the record keeps them."""

    def field(self, field: Field) -> Atom:
        """A field of the first event."""
        return self._kept(f"field{self.source.shape.fields.index(field)}", field.type)

    def edge(self, argument: Argument, kind: str) -> Atom:
        """FIRST and LAST are in the record."""
        return self._kept(f"{kind}{argument.number}", argument.type)

    def extreme(self, argument: Argument, kind: str, count: str) -> Atom:
        """So are MIN and MAX."""
        name = f"{kind}{argument.number}"
        held = self.source.float64(name) if argument.type is Type.FLOAT64 else self.source.int64(name)
        return self._extreme_of(held, argument.type, count)

    def _kept(self, name: str, type: Type | None) -> Atom:
        if type is None:
            raise NotCompiled(f"the type of {name} is not known yet")
        source = self.source
        text = self.body.local(source.float64(name) if type is Type.FLOAT64 else source.int64(name))
        null = f"({source.int32(f'{name}.null')} != 0)" if type is Type.INT64 else null_of(text, type)
        return Atom(text, type, null)


def local(body: Body, atom: Atom) -> Atom:
    """The value in a variable of its own, so that it is worked out once."""
    made = body.local(atom.text)
    null = body.local(atom.null) if atom.type is Type.INT64 and atom.null else null_of(made, atom.type)
    return Atom(made, atom.type, null)
