"""Source of the kernel of a pattern, generated for its shape.

`judge` finds for every row the variables that its event may be of. `run` takes the rows that may be of any,
one after the other: each store's function looks for the partial matches that the event goes on with, puts
what becomes of them into the stores of their next states, and writes the matches that are complete. `fire`
answers trailing absences whose deadline has passed; `sweep` forgets what no event can reach any more.
"""

from __future__ import annotations

from kaicep.kernel.chains import chain_parts
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.arrival import Arrival, Beside
from kaicep.kernel.compiled.arriving import Arriving
from kaicep.kernel.compiled.automaton import Automaton, Killer, Requirements, Step, Store
from kaicep.kernel.compiled.expressions import Body, Constants, Inputs, RowReader
from kaicep.kernel.compiled.layout import Function, Kernel, Levels, taken
from kaicep.kernel.compiled.verdicts import Verdict
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import Interval, QueryPlan, Scan, Semantic
from kaicep.plan.types import Type

__all__ = ["generate"]

_FAR, _NEAR = 24, 10  # rows to look ahead: first for the slots of keys, then for their entries


def generate(
    plan: QueryPlan,
    automaton: Automaton,
    inputs: Inputs,
    constants: Constants,
    levels: Levels | None = None,
) -> Kernel:
    """The kernel of a plan, or that of a group of plans that differ in a level."""
    while True:
        constants.floats.clear()
        constants.ints.clear()
        constants.tables.clear()
        unit = _Unit(plan, automaton, inputs, constants, levels)
        before = [len(each.fields) for each in unit.stores]
        attributes = inputs.attributes
        source = unit.source()
        if before == [len(each.fields) for each in unit.stores] and attributes == inputs.attributes:
            return unit.kernel(source)


class _Unit(Arriving):
    """One pass of the generator."""

    # --- all of it ---

    def source(self) -> str:
        """The whole source."""
        parts = [self._judge()]
        calls: list[tuple[int, str]] = []
        for store in self.automaton.stores:
            name = f"store_{store.number}"
            parts.append(self._store(store, name))
            calls.append((self._bits(store), f"{name}(S, i, m)"))
        for store in self.automaton.pending.values():
            name = f"store_{store.number}"
            parts.append(self._store(store, name))
            calls.append((self._bits(store), f"{name}(S, i, m)"))
        # Matches that are complete are put into their stores by those before: these must have been looked at.
        calls = calls[len(self.automaton.stores) :] + calls[: len(self.automaton.stores)]
        for number, step in enumerate(self.automaton.begin):
            parts.append(self._begin(step, f"begin_{number}"))
            calls.append((1 << self.compiled.places[step.variable], f"begin_{number}(S, i)"))
        if self.automaton.pending:
            parts.append(self._fire())
        parts.append(self._run(calls))
        parts.append(self._sweep())
        parts += [self._settle(), self._go()]
        return "\n".join([b.HEADER, *parts])

    def _bits(self, store: Store) -> int:
        if self.strict and store.steps:
            return 1 << len(self.compiled.variables)
        names = {each.variable for each in store.steps} | {each.variable for each in store.killers}
        return sum(1 << self.compiled.places[name] for name in names)

    def _judge(self) -> str:
        made = Function(self, "judge", "S")
        body = Body(self.constants, self._fresh("v"))
        row = RowReader(body, self.inputs)
        masks: list[str] = []
        counts: list[str] = []
        chains = [chain_parts(each) for each in self.pattern.chains]
        all_count = any(not semantics for _, _, semantics in chains)
        for place, (scan, conditions, semantics) in enumerate(chains):
            here = self._in_bounds(scan)
            verdicts = [self._verdict(each, scan.variable, row) for each in semantics]
            tests = [*here, *(body.truth(each, row) for each in conditions), *verdicts]
            masks.append(f"({1 << place} if {' & '.join(tests) or 'True'} else 0)")
            if self.strict:
                counting = here if all_count else [*here, *verdicts]
                counts.append(f"({' & '.join(counting) or 'True'})")
        if self.strict:
            masks.append(f"({1 << len(chains)} if {' | '.join(counts)} else 0)")
        made.add(f"mask = i4(S[{b.MASK}])", f"for i in range(S[{b.ROWS}]):")
        made.add(*body.lines, f"mask[i] = {' | '.join(masks)}", indent=1)
        return made.text()

    def _in_bounds(self, scan: Scan) -> list[str]:
        tests = []
        streams = [each for each in self.inputs.streams if each in scan.streams]
        if len(streams) < len(self.inputs.streams):
            places = [list(self.inputs.streams).index(each) for each in streams]
            tests.append(f"({' | '.join(f'(place[i] == {each})' for each in places) or 'False'})")
        within: Interval = scan.within
        if within.low is not None:
            tests.append(f"(ts[i] >= {self.constants.int(within.low + (not within.low_inclusive))})")
        if within.high is not None:
            tests.append(f"(ts[i] < {self.constants.int(within.high + within.high_inclusive)})")
        return tests

    def _verdict(self, condition: Semantic, variable: str, row: RowReader) -> str:
        """The test of a PATH on the event of the row."""
        verdict = Verdict(condition, variable, self.inputs)
        self.verdicts.append(verdict)
        tests = []
        for stream, attribute in verdict.attributes.items():
            table = verdict.table(stream)
            name = self.constants.table(table)
            field = Field(variable, attribute, ((stream, (attribute,)),), Type.STRING)
            place = list(self.inputs.streams).index(stream)
            code = row.field(field)
            here = f"(place[i] == {place}) & " if len(self.inputs.streams) > 1 else ""
            spot = f"({code.text} + 1) * S[{b.EPOCH_COUNT}] + epoch_of(S, ts[i])"
            tests.append(f"({here}({name}[{spot}] == 1))")
        return f"({' | '.join(tests)})" if tests else "False"

    # --- a store meets an event ---

    def _store(self, store: Store, name: str) -> str:
        made = Function(self, name, "S, i, m")
        made.add("now = ts[i]")
        for step in store.steps:
            self._scan(made, store, step)
        if len(store.steps) > 1 and self.next:
            self._purge(made, store)
        for killer in store.killers:
            self._kill(made, store, killer)
        if self.strict and store.steps:
            self._wipe(made, store)
        return made.text()

    def _row(self) -> tuple[Body, RowReader]:
        body = Body(self.constants, self._fresh("r"))
        return body, RowReader(body, self.inputs)

    def _lookup(
        self, made: Function, store: Store, variable: str, indent: int, body: Body, row: RowReader
    ) -> int:
        """Finds the slot that the event belongs to; what follows stands where it is found."""
        partition = [body.value(each, row) for each in self.pattern.partition]
        own = [body.value(each, row) for each in store.own.get(variable, ())]
        nulls, find = self.slot(store, partition, own, body, False)
        made.add(*body.lines, indent=indent)
        body.lines.clear()
        if nulls:
            made.add(f"if not ({' | '.join(nulls)}):", indent=indent)
            indent += 1
        made.add(find, indent=indent)
        base = self.base(store)
        made.add(f"q = i8(S[{base + b.SLOTS}])", indent=indent)
        test = "slot >= 0 and q[slot * 4 + 2] > 0" if self._density(store) is None else "q[slot * 4 + 2] > 0"
        made.add(f"if {test}:", indent=indent)
        return indent + 1

    def _scan(self, made: Function, store: Store, step: Step) -> None:
        bit = 1 << self.compiled.places[step.variable]
        made.add(f"if m & {bit}:")
        body, row = self._row()
        indent = self._lookup(made, store, step.variable, 1, body, row)
        expiry = self.expired(store, "lo")
        start = len(made.lines)
        made.add("lo = 0", "hi = q[slot * 4 + 2]", indent=indent)
        if expiry:
            made.add(f"while lo < hi and {expiry}:", indent=indent)
            made.add(
                *(f"let_node_go(S, g{store.number}_{each}[lo])" for each in self._nodes(store)),
                indent=indent + 1,
            )
            made.add("lo += 1", indent=indent + 1)
            made.add("q[slot * 4 + 1] += lo", "q[slot * 4 + 2] -= lo", f"S[{b.HELD}] -= lo", indent=indent)
        made.add("end = hi", indent=indent)
        if step.last and step.after:
            made.add(f"while hi > lo and {self.field(store, ('last',), 'hi - 1')} >= now:", indent=indent)
            made.add("hi -= 1", indent=indent + 1)
        tests = self._verdict_tests(step.requirements, step.variable, row)
        inner = Body(self.constants, self._fresh("v"))
        arrival = Arrival(self, step, store, row, inner)
        tests += [inner.truth(each, arrival) for each in self.automaton.tested(store, step.requirements)]
        if not step.last:
            tests += [f"(now > {self.field(store, ('ts', name), 'j')})" for name in step.after]
            tests.append(f"({self.field(store, ('born',), 'j')} != S[{b.POSITION}] + i)")
        dead = "" if store.sorted else self.expired(store, "j")
        if dead:
            tests.append(f"(not {dead})")
        made.add(*body.lines, "idx = i4(room_for(S, end - lo))", "k = 0", indent=indent)
        body.lines.clear()
        made.add("for j in range(lo, hi):", indent=indent)
        made.add(*inner.lines, "idx[k] = j - lo", indent=indent + 1)
        made.add(f"k += np.int64({' & '.join(tests)})" if tests else "k += 1", indent=indent + 1)
        self._build(made, store, step, indent)
        if self.next and len(store.steps) == 1:
            made.add("if k > 0:", indent=indent)
            made.add(*self._dropped(store), indent=indent + 1)
        elif dead and not store.loops_back:
            self._drop_dead(made, store, dead, indent)
        self._see(made, store, start, indent)

    def _dropped(self, store: Store) -> list[str]:
        """The statements that take `k` entries, told by `idx`, out of a slot."""
        lines = []
        if self._nodes(store):
            lines += [
                f"first = entries(S, {self.base(store)}, slot)",
                f"size = 8 * i8(S[{self.base(store) + b.SLOTS}])[slot * 4 + 3]",
            ]
            lines.append("for z in range(k):")
            lines += [
                f"    let_node_go(S, i8(first + {index} * size)[idx[z]])" for index in self._nodes(store)
            ]
        return [*lines, f"keep(S, {self.base(store)}, slot, idx, k)", f"S[{b.HELD}] -= k"]

    def _see(self, made: Function, store: Store, start: int, indent: int) -> None:
        """Binds the fields that the lines from `start` on name, before these."""
        lines = [f"a = entries(S, {self.base(store)}, slot)", "wide = 8 * q[slot * 4 + 3]"]
        lines += self._seen(made.lines[start:])
        made.lines[start:start] = ["    " * indent + each for each in lines]

    def _verdict_tests(self, requirements: Requirements, variable: str, row: RowReader) -> list[str]:
        return [self._verdict(each, variable, row) for each in requirements.semantics if not each.selected]

    def _drop_dead(self, made: Function, store: Store, dead: str, indent: int) -> None:
        """Takes out what has expired behind something that has not, once that is half of all."""
        made.add("k = 0", "for j in range(lo, end):", indent=indent)
        made.add("idx[k] = j - lo", f"k += np.int64({dead})", indent=indent + 1)
        made.add("if k * 2 > end - lo:", indent=indent)
        made.add(*self._dropped(store), indent=indent + 1)

    def _build(self, made: Function, store: Store, step: Step, indent: int) -> None:
        """Makes of each entry that was found what becomes of it."""
        body, row = self._row()
        inner = Body(self.constants, self._fresh("w"))
        arrival = Arrival(self, step, store, row, inner)
        lines = self._arrive(arrival)
        made.add("if k > 0:", indent=indent)
        indent += 1
        made.add("room_out(S, k)", *self._bound_outputs(lines), *body.lines, indent=indent)
        if self.next and len(store.steps) > 1:
            lines.insert(0, f"{self.field(store, ('taken',), 'j')} = 1")
        made.add("for z in range(k):", indent=indent)
        if store.loops_back:  # what is put in may move what is there
            base = self.base(store)
            made.add(f"q = i8(S[{base + b.SLOTS}])", f"a = entries(S, {base}, slot)", indent=indent + 1)
            made.add(
                "wide = 8 * q[slot * 4 + 3]", "j = np.int64(idx[z])", *self._seen(lines), indent=indent + 1
            )
        else:
            made.add("j = lo + idx[z]", indent=indent + 1)
        made.add(*lines, indent=indent + 1)

    def _begin(self, step: Step, name: str) -> str:
        made = Function(self, name, "S, i")
        body, row = self._row()
        inner = Body(self.constants, self._fresh("w"))
        arrival = Arrival(self, step, None, row, inner)
        tests = self._verdict_tests(step.requirements, step.variable, row)
        tests += [inner.truth(each, arrival) for each in step.requirements.conditions]
        before = [*taken(body), *taken(inner)]
        lines = self._arrive(arrival)
        made.add("now = ts[i]", *before)
        indent = 0
        if tests:
            made.add(f"if {' & '.join(tests)}:")
            indent = 1
        made.add("room_out(S, 1)", *self._bound_outputs(lines), *body.lines, *lines, indent=indent)
        return made.text()

    # --- what ends ---

    def expired(self, store: Store, entry: str) -> str:
        """The test whether an entry's time has passed at `now`; nothing where it never does."""
        ways = []
        for step in store.steps:
            over = [
                f"(now - {self.field(store, ('anchor', index), entry)} > {self._windows[index]})"
                for index in step.windows
            ]
            if not over:
                return ""
            ways.append(f"({' | '.join(over)})")
        return f"({' & '.join(ways)})" if ways else ""

    def _purge(self, made: Function, store: Store) -> None:
        """Under `next`, takes out what the event went on with at any of the open places."""
        bits = sum(1 << self.compiled.places[each.variable] for each in store.steps)
        made.add(f"if m & {bits}:")
        body, row = self._row()
        indent = self._lookup(made, store, store.steps[0].variable, 1, body, row)
        start = len(made.lines)
        made.add(
            "end = q[slot * 4 + 2]",
            "idx = i4(room_for(S, end))",
            "k = 0",
            "for j in range(end):",
            indent=indent,
        )
        made.add("idx[k] = j", f"k += {self.field(store, ('taken',), 'j')}", indent=indent + 1)
        made.add("if k > 0:", indent=indent)
        made.add(*self._dropped(store), indent=indent + 1)
        self._see(made, store, start, indent)

    def _kill(self, made: Function, store: Store, killer: Killer) -> None:
        """An event that must be absent ends the partial matches that it falls into."""
        made.add(f"if m & {1 << self.compiled.places[killer.variable]}:")
        body, row = self._row()
        tests = self._verdict_tests(killer.requirements, killer.variable, row)
        indent = self._lookup(made, store, killer.variable, 1, body, row)
        inner = Body(self.constants, self._fresh("v"))
        reader = Beside(self, store, killer.variable, row, inner)
        tests += [inner.truth(each, reader) for each in self.automaton.tested(store, killer.requirements)]
        if not store.steps:
            end = next(index for index, each in enumerate(self.outputs) if each.of == ("end",))
            tests.append(f"(now <= {self.field(store, ('out', end), 'j')})")
        if store.loops_back:
            tests.append(f"({self.field(store, ('born',), 'j')} != S[{b.POSITION}] + i)")
        start = len(made.lines)
        made.add(*body.lines, "end = q[slot * 4 + 2]", "idx = i4(room_for(S, end))", "k = 0", indent=indent)
        made.add("for j in range(end):", indent=indent)
        tested = f"k += np.int64({' & '.join(tests)})" if tests else "k += 1"
        made.add(*inner.lines, "idx[k] = j", tested, indent=indent + 1)
        made.add("if k > 0:", indent=indent)
        made.add(*self._dropped(store), indent=indent + 1)
        self._see(made, store, start, indent)

    def _wipe(self, made: Function, store: Store) -> None:
        """Under `strict`, what the event did not go on with is over."""
        body, row = self._row()
        indent = self._lookup(made, store, store.steps[0].variable, 0, body, row)
        start = len(made.lines)
        made.add("end = q[slot * 4 + 2]", "k = 0", indent=indent)
        old = f"{self.field(store, ('born',), 'k')} != S[{b.POSITION}] + i"
        made.add(f"while k < end and {old}:", indent=indent)
        made.add(
            *(f"let_node_go(S, g{store.number}_{each}[k])" for each in self._nodes(store)), indent=indent + 1
        )
        made.add("k += 1", indent=indent + 1)
        self._see(made, store, start, indent)
        made.add("q[slot * 4 + 1] += k", "q[slot * 4 + 2] -= k", f"S[{b.HELD}] -= k", indent=indent)

    def _fire(self) -> str:
        """Answers the matches whose deadline lies before `now`."""
        made = Function(self, "fire", "S, now")
        made.add(f"while S[{b.HEAP_COUNT}] > 0 and first_deadline(S) < now:")
        made.add("due, which, slot = pop(S)", indent=1)
        end = next(index for index, each in enumerate(self.outputs) if each.of == ("end",))
        for store in self.automaton.pending.values():
            base = self.base(store)
            given = [self.field(store, ("out", index), "j") for index in range(len(self.outputs))]
            made.add(f"if which == {store.number}:", indent=1)
            made.add(f"q = i8(S[{base + b.SLOTS}])", indent=2)
            start = len(made.lines)
            made.add(
                "size = q[slot * 4 + 2]",
                "idx = i4(room_for(S, size))",
                "room_out(S, size)",
                "k = 0",
                indent=2,
            )
            made.add("for j in range(size):", indent=2)
            made.add(f"if {given[end]} <= due:", indent=3)
            made.add("idx[k] = j", "k += 1", f"out = S[{b.OUT}]", indent=4)
            views = [
                f"{each.view}(S[{self._outs() + index}])[out] = {given[index]}"
                for index, each in enumerate(self.outputs)
            ]
            made.add(*views, f"S[{b.OUT}] = out + 1", indent=4)
            made.add("if k > 0:", indent=2)
            made.add(*self._dropped(store), indent=3)
            self._see(made, store, start, 2)
        return made.text()

    def _run(self, calls: list[tuple[int, str]]) -> str:
        made = Function(self, "run", "S")
        made.add(f"mask = i4(S[{b.MASK}])", f"n = S[{b.ROWS}]", f"i = S[{b.ROW}]", "while i < n:")
        self._look_ahead(made)
        made.add("m = mask[i]", "if m != 0:", indent=1)
        if self.automaton.pending:
            made.add(f"if ts[i] > S[{b.NOW}]:", indent=2)
            made.add(f"S[{b.NOW}] = ts[i]", "fire(S, ts[i])", indent=3)
        for bits, call in calls:
            made.add(f"if m & {bits}:", indent=2)
            made.add(call, indent=3)
        made.add(f"if S[{b.HELD}] > S[{b.LIMIT}] or S[{b.OUT}] >= S[{b.CHUNK}]:", indent=2)
        made.add(f"S[{b.ROW}] = i + 1", f"return 2 if S[{b.HELD}] > S[{b.LIMIT}] else 1", indent=3)
        made.add("i += 1", indent=1)
        made.add(f"S[{b.ROW}] = i", "return 0")
        return made.text()

    def _settle(self) -> str:
        """After the last row of a table: some of what has expired goes."""
        made = Function(self, "settle", "S")
        made.add(f"n = S[{b.ROWS}]", "now = ts[n - 1]", "sweep(S, now, n // 2 + 2)")
        made.add(f"S[{b.POSITION}] += n", f"S[{b.LAST}] = now", "return 0")
        return made.text()

    def _go(self) -> str:
        """A whole table in one call: four times the number of matches, and the status of `run`."""
        made = Function(self, "go", "S, n")
        made.add(f"S[{b.ROWS}] = n", f"S[{b.ROW}] = 0", f"S[{b.OUT}] = 0")
        made.add(*(f"S[{self.flat(name)}] = 0" for name in self.loops))
        made.add("judge(S)", "status = run(S)", "if status == 0:", "    settle(S)")
        made.add(f"return 4 * S[{b.OUT}] + status")
        return made.text()

    def _look_ahead(self, made: Function) -> None:
        """Has the memory of coming events' keys brought near while earlier events are looked at."""
        for store in self.automaton.stores:
            if self._density(store) != "code":
                continue
            key = (*self.pattern.partition, *store.own.get(store.steps[0].variable, ()))[0]
            if not isinstance(key, Field):
                continue
            for distance, draw in ((_FAR, "draw_slot"), (_NEAR, "draw_entries")):
                body = Body(self.constants, self._fresh("r"))
                code = body.value(key, RowReader(body, self.inputs, f"i + {distance}")).text
                made.add(f"if i + {distance} < n and mask[i + {distance}] != 0:", indent=1)
                made.add(*body.lines, f"if {code} >= 0:", indent=2)
                shift = 1 if self.pattern.partition else 0
                made.add(f"{draw}(S, {self.base(store)}, {code} + {shift})", indent=3)

    def _sweep(self) -> str:
        """Goes through some slots of every store, from where it stopped; forgets what has expired there."""
        made = Function(self, "sweep", "S, now, budget")
        for store in self.stores:
            base, dense = self.base(store), self._density(store)
            limit = f"S[{base + (b.SLOT_COUNT if dense else b.NEXT_SLOT)}]"
            made.add(f"q = i8(S[{base + b.SLOTS}])", f"slot = S[{base + b.HAND}]")
            made.add(f"for each in range(min(budget, {limit})):")
            made.add(f"slot = slot + 1 if slot + 1 < {limit} else 0", indent=1)
            made.add("if q[slot * 4 + 3] > 0:", indent=1)
            dead = self.expired(store, "j")
            if dead:
                start = len(made.lines)
                made.add("end = q[slot * 4 + 2]", "idx = i4(room_for(S, end))", "k = 0", indent=2)
                if store.sorted:
                    made.add(f"while k < end and {self.expired(store, 'k')}:", indent=2)
                    made.add("idx[k] = k", "k += 1", indent=3)
                else:
                    made.add("for j in range(end):", indent=2)
                    made.add("idx[k] = j", f"k += np.int64({dead})", indent=3)
                made.add("if k > 0:", indent=2)
                made.add(*self._dropped(store), indent=3)
                self._see(made, store, start, 2)
            made.add("if q[slot * 4 + 2] == 0:", indent=2)
            made.add(f"give_up(S, {base}, slot, {dense is None})", indent=3)
            made.add(f"S[{base + b.HAND}] = slot")
        made.add("return 0")
        return made.text()
