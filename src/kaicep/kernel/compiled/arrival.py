"""An event at an open place: everything that can be said of the partial match with the event in it."""

from __future__ import annotations

from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.automaton import Step, Store
from kaicep.kernel.compiled.expressions import Atom, Body, NotCompiled, RowReader, null_of
from kaicep.kernel.compiled.layout import FOLDED, ONE, ZERO, Layout, known_type, mixed, where
from kaicep.kernel.states import State
from kaicep.plan.expressions import Aggregate, Field
from kaicep.plan.types import Type

__all__ = ["Arrival", "Beside"]


class Arrival:
    """An event at a step: everything that can be said of the partial match with the event in it."""

    def __init__(self, unit: Layout, step: Step, store: Store | None, row: RowReader, body: Body) -> None:
        self.unit = unit
        self.step = step
        self.store = store
        self.row = row
        self.body = body
        self.entry = "j"

    # --- captures ---

    def held(self, what: tuple[object, ...], type: Type | None = None) -> str:
        """A field of the entry."""
        assert self.store is not None
        return self.unit.field(self.store, what, self.entry, type)

    def number(self, what: tuple[object, ...]) -> str:
        """A capture that is no value of an attribute."""
        kind, *rest = what
        new = not self.step.source.bound
        if kind in ("seq", "where", "el", "eh") and rest == [self.step.variable]:
            return {"seq": "seq[i]", "where": where("i"), "el": "low[i]", "eh": "high[i]"}[str(kind)]
        if kind == "last" or (kind == "ts" and rest == [self.step.variable]) or (kind == "start" and new):
            return "now"
        if kind == "anchor":
            window = self.unit.pattern.windows[rest[0]]  # type: ignore[call-overload]
            if self.step.source.bound.isdisjoint(window.variables):
                return "now"
        if kind == "born":
            return f"S[{b.POSITION}] + i"
        own = rest == [self.step.variable]
        if kind == "node" and own:
            return "node"
        if kind == "count" and own:
            return f"{self.held(what)} + 1" if self.step.variable in self.step.source.bound else "1"
        if kind in ("node", "count") and rest[0] not in self.step.source.bound:
            return "0"
        return self.held(what)

    def field(self, field: Field) -> Atom:
        """A field of an event of the match."""
        if field.variable == self.step.variable:
            return self.row.field(field)
        assert field.type is not None
        if field.variable not in self.step.source.bound:
            return null_of(field.type)
        return self.unit.held_field(self.store, field, self.entry, self.body)

    def previous(self, field: Field) -> Atom:
        """The field in the round before."""
        assert field.type is not None
        return self.unit.held_field(self.store, field, self.entry, self.body)

    def aggregate(self, expr: Aggregate) -> Atom:
        """An aggregate over a loop, up to this round."""
        variable = str(expr.variable)
        if expr.of is None:
            return Atom(f"({self.number(('count', variable))})", Type.INT64, None)
        if expr.op not in FOLDED or expr.distinct:
            raise NotCompiled(f"a loop with {expr.op}")
        before = None
        if variable in self.step.source.bound:
            before = self.unit.held_aggregate(self.store, expr, self.entry, self.body)
        if variable != self.step.variable:
            if before is None:
                return Atom("0", Type.INT64, None) if expr.op == "COUNT" else null_of(known_type(expr))
            return before
        return self._folded(expr, before)

    def _folded(self, expr: Aggregate, before: Atom | None) -> Atom:
        """With the value of this round."""
        assert expr.of is not None
        body = self.body
        new = body.value(expr.of, self.row)
        if expr.op == "COUNT":
            one = f"np.int64(not {new.null})" if new.null else "1"
            return Atom(body.local(f"{before.text} + {one}" if before else one), Type.INT64, None)
        if expr.op in ("MIN", "MAX"):
            if new.type in (Type.STRING, Type.BOOL):
                raise NotCompiled(f"a loop with {expr.op} of strings")
            if before is not None:
                better = "smaller" if expr.op == "MIN" else "larger"
                nulls = before.null or "False", new.null or "False"
                test = f"{better}({before.text}, {nulls[0]}, {new.text}, {nulls[1]})"
                new = body.choice(body.local(test), new, before)
            if new.type is Type.FLOAT64:
                return Atom(body.local(f"{new.text} + 0.0"), new.type, new.null)
            return new
        return before if expr.op == "FIRST" and before is not None else new

    # --- ids ---

    def id_prefix(self, target: State) -> tuple[str, str]:
        """The id as far as it is known in a state that waits."""
        return self._mixed(self.unit.known(target), self.unit.counted(target))

    def id_final(self) -> tuple[str, str]:
        """The id of the match that is complete."""
        return self._mixed(len(self.unit.plan.variables), False)

    def _mixed(self, upto: int, count_next: bool) -> tuple[str, str]:
        unit, source, body = self.unit, self.step.source, self.body
        names = unit.plan.variables
        begun = unit.known(source)
        counted = unit.counted(source)
        if not source.bound or unit.levels is not None:
            low, high = unit.seed(self.row, body)
        else:
            low, high = self.held(("idl",)), self.held(("idh",))
        bound = self.step.target.bound
        for index in range(begun, upto):
            name = names[index]
            if name in unit.automaton.loops:
                low, high = self._mixed_loop(name, low, high)
                continue
            if not (counted and index == begun):
                low, high = mixed(body, low, high, ONE if name in bound else ZERO)
            if name in bound:
                low, high = mixed(body, low, high, self.number(("el", name)), self.number(("eh", name)))
        if count_next and not (counted and begun == upto):
            low, high = mixed(body, low, high, ONE)
        return low, high

    def _mixed_loop(self, name: str, low: str, high: str) -> tuple[str, str]:
        """Writes the rounds of a loop, and mixes them into the id."""
        unit, body = self.unit, self.body
        if name not in self.step.target.bound:
            return mixed(body, low, high, ZERO)
        count = body.local(self.number(("count", name)))
        path = body.local(f"i8(path_of(S, {self.number(('node', name))}, {count}))")
        word = f"np.uint64({count})"
        low, high = mixed(body, low, high, word)
        at = unit.flat(name)
        body.lines += [f"room_flat(S, {at}, {count})", f"for u in range({count}):"]
        columns = unit.flat_columns(name)
        inside = [f"each = i8({path}[u])", f"words2 = u8({path}[u])", f"spot = S[{at}] + u"]
        inside += [
            f"i8(S[{at + 3 + index}])[spot] = each[{unit.node_fields.index(what)}]"
            for index, what in enumerate(columns)
        ]
        el, eh = (unit.node_fields.index(what) for what in (("el",), ("eh",)))
        inside += [
            f"both = pair({low}, {high}, words2[{el}], words2[{eh}])",
            f"{low} = both[0]",
            f"{high} = both[1]",
        ]
        body.lines += [f"    {each}" for each in inside]
        body.lines.append(f"S[{at}] += {count}")
        return low, high

    def round(self) -> list[str]:
        """The statements that make a round of this event, if it belongs to a loop."""
        variable, unit = self.step.variable, self.unit
        if variable not in unit.automaton.loops:
            return []
        parent = self.held(("node", variable)) if variable in self.step.source.bound else "0"
        lines = [f"node = new_node(S, {parent})", f"spot = S[{b.NODES}] + node * S[{b.NODE_WIDTH}] * 8"]
        row = self.row
        for index, what in enumerate(unit.node_fields):
            at = f"(spot + {8 * index})[0]"
            if what in (("el",), ("eh",)):
                lines.append(f"u8{at} = {'low' if what == ('el',) else 'high'}[i]")
            elif what in (("seq",), ("where",)):
                lines.append(f"i8{at} = {'seq[i]' if what == ('seq',) else where('i')}")
            elif what[0] in ("value", "null") and what[1] == variable:
                atom = row.body.value(what[2], row)  # type: ignore[arg-type]
                view = "f8" if what[0] == "value" and atom.type is Type.FLOAT64 else "i8"
                text = atom.text if what[0] == "value" else f"np.int64({atom.null or 'False'})"
                lines.append(f"{view}{at} = {text}")
        return lines


class Beside:
    """Fields for the test of an absent event beside an entry that waits."""

    def __init__(self, unit: Layout, store: Store, variable: str, row: RowReader, body: Body) -> None:
        self.unit = unit
        self.store = store
        self.variable = variable
        self.row = row
        self.body = body

    def field(self, field: Field) -> Atom:
        """A field of the absent event, or of one that is bound."""
        if field.variable == self.variable:
            return self.row.field(field)
        return self.unit.held_field(self.store, field, "j", self.body)

    def previous(self, field: Field) -> Atom:
        """An absent event has no rounds."""
        raise NotCompiled("PREV outside of a loop")

    def aggregate(self, expr: Aggregate) -> Atom:
        """Nor has what waits any that count here."""
        raise NotCompiled(f"a loop with {expr.op}")
