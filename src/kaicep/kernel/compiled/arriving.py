"""Source for what becomes of a partial match that an event goes on with: it waits again, or is a match."""

from __future__ import annotations

from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.arrival import Arrival
from kaicep.kernel.compiled.automaton import Store
from kaicep.kernel.compiled.layout import NAMES, Layout, Levels, taken

__all__ = ["Arriving"]


class Arriving(Layout):
    """Writes entries and matches."""

    def _arrive(self, arrival: Arrival) -> list[str]:
        """The statements that put the longer partial match where it belongs, or write the match."""
        step, inner = arrival.step, arrival.body
        lines: list[str] = []
        if len(getattr(arrival.store, "steps", ())) > 1:
            outside = [
                f"(now - {arrival.number(('anchor', index))} > {self._windows[index]})"
                for index, each in enumerate(self.pattern.windows)
                if step.variable in each.variables and not step.source.bound.isdisjoint(each.variables)
            ]
            if outside:
                lines += [*taken(inner), f"if {' | '.join(outside)}:", "    continue"]
        made = arrival.round()
        lines += [*taken(inner), *made]
        if step.target.may_end:
            lines += self._complete(arrival)
        for store in self.automaton.by_state[id(step.target)]:
            lines += self._insert(arrival, store)
        if made:
            lines.append("let_node_go(S, node)")
        return lines

    def _insert(self, arrival: Arrival, store: Store) -> list[str]:
        row, inner = arrival.row, arrival.body
        partition = [row.body.value(each, row) for each in self.pattern.partition]
        far = [inner.value(each, arrival) for each in store.far]
        nulls, find = self.slot(store, partition, far, inner, True)
        lines = taken(inner)
        ids = arrival.id_prefix(arrival.step.target) if ("idl",) in store.fields else ("", "")
        fields = [self._put(arrival, store, what, ids) for what in list(store.fields)]
        if store is arrival.store:  # room for the new entry may move the one that it is made from
            fields = [inner.local(each) for each in fields]
        lines += taken(inner)
        base = self.base(store)
        put = [find.replace("slot =", "other ="), f"at, step = reserve(S, {base}, other)"]
        put += [
            f"{self.field_view(store, index)}(at + {index} * step)[0] = {text}"
            for index, text in enumerate(fields)
        ]
        put += [f"hold_node(S, {fields[each]})" for each in self._nodes(store)]
        put.append(f"S[{b.HELD}] += 1")
        if nulls:
            return [*lines, f"if not ({' | '.join(nulls)}):", *(f"    {each}" for each in put)]
        return lines + put

    def _put(self, arrival: Arrival, store: Store, what: tuple[object, ...], ids: tuple[str, str]) -> str:
        """What a field of a new entry is."""
        kind = what[0]
        if kind == "field":
            return arrival.field(what[1]).text  # type: ignore[arg-type]
        if kind == "null":
            null = arrival.field(what[1]).null  # type: ignore[arg-type]
            return f"np.int64({null})" if null else "0"
        if kind in ("aggregate", "aggregate null"):
            atom = arrival.aggregate(what[1])  # type: ignore[arg-type]
            return atom.text if kind == "aggregate" else f"np.int64({atom.null or 'False'})"
        if kind in ("idl", "idh"):
            return ids[kind == "idh"]
        if kind == "taken":
            return "0"
        return arrival.number(what)

    # --- a match is complete ---

    def _complete(self, arrival: Arrival) -> list[str]:
        inner, state = arrival.body, arrival.step.target
        lines = taken(inner)
        tests = [inner.truth(each, arrival) for each in self.automaton.ending(state)]
        lines += taken(inner)
        levels = self.levels
        if levels is not None:
            reached = self._reached(arrival, levels)
            lines += taken(inner)
        values = self._values(arrival)
        write = taken(inner)
        pending = self.automaton.pending.get(id(state))
        if pending is None:
            write += self._written([values[each.of] for each in self.outputs])
        else:
            start = values["start",]
            values["end",] = f"({start} + {self._deadline})"
            given = self._written([values[each.of] for each in self.outputs])
            write += [f"if {values['end',]} < now:", *(f"    {each}" for each in given), "else:"]
            write += [f"    {each}" for each in self._await(arrival, pending, values)]
        if levels is not None:
            # Every query whose level is reached has a match of its own.
            views = self._bound_outputs(write)
            write = [f"room_out(S, {reached})", *views, f"for query in range({reached}):", *_indented(write)]
        if tests:
            return [*lines, f"if {' & '.join(tests)}:", *(f"    {each}" for each in write)]
        return lines + write

    def _reached(self, arrival: Arrival, levels: Levels) -> str:
        """How many queries of the group, from the one that asks least, a match is one of."""
        value = arrival.body.value(levels.expr, arrival).text
        sign = "" if levels.op[0] == ">" else "-"  # levels that a value must be below are kept negated
        return arrival.body.local(f"levels_below(S, {sign}{value}, {levels.op in ('>=', '<=')})")

    def _values(self, arrival: Arrival) -> dict[tuple[object, ...], str]:
        """What each output is of a match that this event completes."""
        low, high = arrival.id_final()
        made: dict[tuple[object, ...], str] = {
            ("low",): low,
            ("high",): high,
            ("start",): arrival.number(("start",)),
            ("end",): "now",
            ("version",): f"S[{b.VERSION}]",
            ("query",): "query",
        }
        for index, column in enumerate(self.columns):
            if self.listed(column) is not None:
                continue
            atom = arrival.body.value(column.expr, arrival)
            made["select", index] = atom.text
            made["valid", index] = f"np.int8(not {atom.null})" if atom.null else "1"
        for name in self.positive:
            if name in self.loops:
                made["offset", name] = f"S[{self.flat(name)}]"
                continue
            bound = name in arrival.step.target.bound
            made["seq", name] = arrival.number(("seq", name)) if bound else "0"
            made["where", name] = arrival.number(("where", name)) if bound else "-1"
        return made

    def _written(self, values: list[str]) -> list[str]:
        lines = [f"o{index}[out] = {text}" for index, text in enumerate(values)]
        return [*lines, "out += 1", f"S[{b.OUT}] = out"]

    def _await(self, arrival: Arrival, store: Store, values: dict[tuple[object, ...], str]) -> list[str]:
        """The match waits for the deadline of its trailing absence."""
        for index in range(len(self.outputs)):
            self.field(store, ("out", index), "j")
        inner, row = arrival.body, arrival.row
        partition = [row.body.value(each, row) for each in self.pattern.partition]
        far = [inner.value(each, arrival) for each in store.far]
        _, find = self.slot(store, partition, far, inner, True)
        fields = []
        for what in list(store.fields):
            if what[0] == "out":
                fields.append(values[self.outputs[what[1]].of])  # type: ignore[call-overload]
            else:
                fields.append(self._put(arrival, store, what, ("", "")))
        lines = taken(inner)
        put = [find.replace("slot =", "other ="), f"at, step = reserve(S, {self.base(store)}, other)"]
        put += [
            f"{self.field_view(store, index)}(at + {index} * step)[0] = {text}"
            for index, text in enumerate(fields)
        ]
        put += [f"S[{b.HELD}] += 1", f"push(S, {values['end',]}, {store.number}, other)"]
        return lines + put

    def _bound_outputs(self, lines: list[str]) -> list[str]:
        """Where matches are written to; there is room for them by now."""
        used = dict.fromkeys(name for line in lines for name in NAMES.findall(line) if name.startswith("o"))
        return [f"{name} = {self.binding(name)}" for name in used]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {each}" for each in lines]
