"""What a generated kernel is made of: its block, the fields of its entries, ids and keys, by their texts.

An entry holds no more than what is asked of it: whoever generates source asks `Layout.field`, which takes
note of it; source is generated again until nothing new is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kaicep.kernel.automaton import certain, open_variables
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.automaton import Automaton, Store
from kaicep.kernel.compiled.expressions import Atom, Body, Constants, Inputs, NotCompiled, RowReader
from kaicep.kernel.compiled.verdicts import Verdict
from kaicep.kernel.states import State
from kaicep.plan.expressions import Aggregate, Expr, Field
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan
from kaicep.plan.types import Type
from kaicep.plan.typing import type_of

__all__ = [
    "FOLDED",
    "NAMES",
    "Function",
    "Kernel",
    "Layout",
    "Levels",
    "Output",
    "known_type",
    "mixed",
    "taken",
    "where",
]

_JIT = '@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)'
FOLDED = ("COUNT", "MIN", "MAX", "FIRST", "LAST")
"""The aggregates over a loop that a partial match carries along."""
ONE, ZERO = "np.uint64(1)", "np.uint64(0)"
NAMES = re.compile(r"\b(ts|place|part|seq|low|high|words|out|[xmto]\d+|c[fi]\d+|g\d+_\d+)\b")
"""The names in generated source that stand for something in the block."""
_VIEWS = {Type.FLOAT64: "f8", Type.STRING: "i4", Type.BOOL: "i1"}


@dataclass(frozen=True)
class Output:
    """A column that the kernel writes: what it is of, its type, how wide it is."""

    of: tuple[object, ...]
    view: str

    @property
    def width(self) -> int:
        """The bytes of a value."""
        return int(self.view[1])


@dataclass(frozen=True)
class Levels:
    """Where queries of a group differ: `expr` compared, by `op`, with a level of each query's own."""

    expr: Expr
    op: str


@dataclass
class Kernel:
    """Generated source, and all that its block is made of."""

    source: str
    automaton: Automaton
    inputs: Inputs
    constants: Constants
    verdicts: list[Verdict]
    outputs: list[Output]
    stores: list[Store]
    bases: list[int]
    words: list[int]
    dense: list[str | None]
    size: int
    nodes: list[tuple[object, ...]]
    """What is kept of a round of a loop."""
    flats: dict[str, tuple[int, list[tuple[object, ...]]]]
    """By loop, where in the block the columns of its rounds stand, and what they are."""
    listed: dict[str, tuple[str, Expr]]
    """The columns that are made of the values of all rounds: of which loop, and of what."""
    known: tuple[int, ...]
    """The words of a match's id that stand before those of its first event."""
    prefix: list[tuple[int, bool]]
    """By store, how many variables are in the ids of its entries, and whether the number of the next is."""


def where(row: str) -> str:
    """The stream's place and the part of an event, in one word."""
    return f"(np.int64(place[{row}]) << 48) | part[{row}]"


class Function:
    """A generated function; what it reads of the block is bound at its beginning, and no more."""

    def __init__(self, layout: Layout, name: str, parameters: str) -> None:
        self.layout = layout
        self.head = f"def {name}({parameters}):"
        self.lines: list[str] = []

    def add(self, *lines: str, indent: int = 0) -> None:
        """Statements at its end."""
        self.lines += ["    " * indent + each for each in lines]

    def text(self) -> str:
        """The source."""
        used = dict.fromkeys(name for line in self.lines for name in NAMES.findall(line))
        bound = [
            f"{name} = {self.layout.binding(name)}"
            for name in used
            if name[0] not in "og"  # matches and entries have their place later
        ]
        return "\n    ".join([f"{_JIT}\n{self.head}", *bound, *self.lines]) + "\n"


def mixed(body: Body, low: str, high: str, first: str, second: str | None = None) -> tuple[str, str]:
    """Two words mixed into an id."""
    made = body.local(f"pair({low}, {high}, {first}, {second or first})")
    return body.local(f"{made}[0]"), body.local(f"{made}[1]")


def taken(body: Body) -> list[str]:
    """The statements of a body, which is empty after that."""
    lines = list(body.lines)
    body.lines.clear()
    return lines


def known_type(expr: Expr) -> Type:
    """The type of an expression."""
    found = type_of(expr)
    if found is None:
        raise NotCompiled("a key whose type is not known yet")
    return found


class Layout:
    """One pass of the generator: what it has said of the kernel so far."""

    def __init__(
        self,
        plan: QueryPlan,
        automaton: Automaton,
        inputs: Inputs,
        constants: Constants,
        levels: Levels | None = None,
    ) -> None:
        self.levels = levels
        if levels is not None and (automaton.pending or automaton.pattern.match != "any"):
            raise NotCompiled("a group of queries with MATCH next, strict or a trailing absence")
        assert isinstance(plan.root, Project)
        assert isinstance(plan.root.input, Pattern)
        self.plan = plan
        self.pattern = plan.root.input
        self.columns = plan.root.columns
        self.automaton = automaton
        self.compiled = automaton.compiled
        self.inputs = inputs
        self.constants = constants
        self.stores = [*automaton.stores, *automaton.pending.values()]
        self.verdicts: list[Verdict] = []
        self.outputs: list[Output] = []
        self.next = self.pattern.match == "next"
        self.strict = self.pattern.match == "strict"
        self._windows = [constants.int(each.width) for each in self.pattern.windows]
        deadline = self.pattern.deadline
        self._deadline = constants.int(deadline) if deadline is not None else ""
        self._bodies = 0
        self.node_fields: list[tuple[object, ...]] = [
            ("parent",),
            ("holders",),
            ("el",),
            ("eh",),
            ("seq",),
            ("where",),
        ]
        self.loops = [each for each in plan.variables if each in automaton.loops]
        if self.loops and automaton.pending:
            raise NotCompiled("a loop before a trailing absence")
        self._place_outputs()

    def _fresh(self, letter: str) -> str:
        """A prefix for names that no other body has, since a name has one type in a function."""
        self._bodies += 1
        return f"{letter}{self._bodies}_"

    # --- the block ---

    def _place_outputs(self) -> None:
        found: list[tuple[tuple[object, ...], str]] = [
            (("low",), "u8"),
            (("high",), "u8"),
            (("start",), "i8"),
            (("end",), "i8"),
        ]
        for index, column in enumerate(self.columns):
            if column.type is None:
                raise NotCompiled("a selected variable of a PATH")
            listed = self.listed(column)
            if listed is not None:
                self._keep_in_rounds(*listed)
                continue
            found.append((("select", index), _VIEWS.get(column.type, "i8")))
            if column.type is Type.INT64:
                found.append((("valid", index), "i1"))
        for name in self.positive:
            if name in self.loops:
                found.append((("offset", name), "i8"))
            else:
                found += [(("seq", name), "i8"), (("where", name), "i8")]
        if self.automaton.pending:
            found.append((("version",), "i8"))
        if self.levels is not None:
            found.append((("query",), "i4"))
        self.outputs = [Output(of, view) for of, view in found]

    def listed(self, column: OutputColumn) -> tuple[str, Expr] | None:
        """The loop and the expression whose values in all rounds a column is made of, if it is."""
        expr = column.expr
        if column.many:
            assert isinstance(expr, Field)
            return expr.variable, expr
        if isinstance(expr, Aggregate) and expr.of is not None and (expr.op not in FOLDED or expr.distinct):
            return str(expr.variable), expr.of
        return None

    def _keep_in_rounds(self, variable: str, expr: Expr) -> None:
        for what in (("value", variable, expr), ("null", variable, expr)):
            if what not in self.node_fields and (what[0] == "value" or known_type(expr) is Type.INT64):
                self.node_fields.append(what)

    def flat_columns(self, variable: str) -> list[tuple[object, ...]]:
        """What is written of each round of a loop."""
        own = [each for each in self.node_fields if each[0] in ("value", "null") and each[1] == variable]
        return [("seq",), ("where",), *own]

    def flat(self, variable: str) -> int:
        """Where in the block the columns of a loop's rounds stand."""
        at = self._outs() + len(self.outputs) + len(self.stores) * b.DESCRIPTOR
        for name in self.loops[: self.loops.index(variable)]:
            at += 3 + len(self.flat_columns(name))
        return at

    @property
    def positive(self) -> list[str]:
        """The variables that a match may have events for."""
        absent = set(self.compiled.absences.values())
        return [each for each in self.plan.variables if each not in absent]

    def kernel(self, source: str) -> Kernel:
        """What was generated."""
        return Kernel(
            source,
            self.automaton,
            self.inputs,
            self.constants,
            self.verdicts,
            self.outputs,
            self.stores,
            [self.base(each) for each in self.stores],
            [self._key_width(each) for each in self.stores],
            [self._density(each) for each in self.stores],
            self._end(),
            self.node_fields if self.loops else [],
            {name: (self.flat(name), self.flat_columns(name)) for name in self.loops},
            {column.name: found for column in self.columns if (found := self.listed(column)) is not None},
            (0,) * self.known(self.compiled.first) + (1,) * self.counted(self.compiled.first),
            [
                (self.known(each.state), self.counted(each.state))
                if each.steps
                else (len(self.plan.variables), False)
                for each in self.stores
            ],
        )

    def binding(self, name: str) -> str:
        """How a name of the generated source is read from the block."""
        fixed = {
            "ts": f"i8(S[{b.TS}])",
            "place": f"i1(S[{b.PLACE}])",
            "part": f"i8(S[{b.PART}])",
            "seq": f"i8(S[{b.SEQ}])",
            "low": f"u8(S[{b.LOW}])",
            "high": f"u8(S[{b.HIGH}])",
            "words": f"u8(S[{b.WORDS}])",
            "out": f"S[{b.OUT}]",
        }
        if name in fixed:
            return fixed[name]
        if name.startswith("c"):
            return (
                f"{'f8' if name[1] == 'f' else 'i8'}(S[{b.FLOATS if name[1] == 'f' else b.INTS}])[{name[2:]}]"
            )
        number = int(name[1:])
        if name.startswith("x"):
            view = _VIEWS.get(list(self.inputs.types.values())[number], "i8")
            return f"{view}(S[{b.START + 2 * number}])"
        if name.startswith("m"):
            return f"i1(S[{b.START + 2 * number + 1}])"
        if name.startswith("t"):
            found = [*self.constants.tables][number].type
            return f"{_VIEWS.get(found, 'i8')}(S[{self._tables() + number}])"
        return f"{self.outputs[number].view}(S[{self._outs() + number}])"

    def _tables(self) -> int:
        # Room for columns and tables is set aside before their number is known.
        return b.START + 2 * b.MOST_COLUMNS

    def _outs(self) -> int:
        return self._tables() + b.MOST_TABLES

    def base(self, store: Store) -> int:
        """Where the descriptor of a store begins."""
        return self._outs() + len(self.outputs) + store.number * b.DESCRIPTOR

    def _end(self) -> int:
        if self.loops:
            return self.flat(self.loops[-1]) + 3 + len(self.flat_columns(self.loops[-1]))
        return self._outs() + len(self.outputs) + len(self.stores) * b.DESCRIPTOR

    # --- fields of entries ---

    def field(self, store: Store, what: tuple[object, ...], entry: str, type: Type | None = None) -> str:
        """The text of a field of an entry, which the store holds from now on."""
        alone = len(store.state.bound) == 1 and self.automaton.loops.isdisjoint(store.state.bound)
        if alone and what[0] in ("last", "ts", "anchor"):
            what = ("start",)  # all of these are the time of the only event
        store.fields.setdefault(what)
        index = list(store.fields).index(what)
        return f"g{store.number}_{index}[{entry}]"

    def field_view(self, store: Store, index: int) -> str:
        """How a field is read."""
        what = list(store.fields)[index]
        kind = what[0]
        view = "i8"
        if kind in ("idl", "idh", "el", "eh"):
            view = "u8"
        elif kind in ("field", "aggregate") and what[1].type is Type.FLOAT64:  # type: ignore[attr-defined]
            view = "f8"
        elif kind == "out":
            own = self.outputs[what[1]].view  # type: ignore[call-overload]
            view = own if own in ("u8", "f8") else "i8"
        return view

    def _seen(self, lines: list[str], address: str = "a", stride: str = "wide") -> list[str]:
        """The statements that bind the fields of entries which these lines name."""
        used = dict.fromkeys(name for line in lines for name in NAMES.findall(line) if name[0] == "g")
        found = []
        for name in used:
            store, index = map(int, name[1:].split("_"))
            found.append(
                f"{name} = {self.field_view(self.stores[store], index)}({address} + {index} * {stride})"
            )
        return found

    def held_field(self, store: Store | None, field: Field, entry: str, body: Body) -> Atom:
        """An attribute of an event that is bound."""
        assert store is not None
        assert field.type is not None
        text = body.local(self.field(store, ("field", field), entry))
        if field.type is Type.INT64:
            return Atom(text, field.type, body.local(self.field(store, ("null", field), entry) + " != 0"))
        tests = {Type.FLOAT64: f"({text} != {text})", Type.TIMESTAMP: f"({text} == NO_TIME)"}
        return Atom(text, field.type, tests.get(field.type, f"({text} < 0)"))

    def held_aggregate(self, store: Store | None, expr: Aggregate, entry: str, body: Body) -> Atom:
        """An aggregate over the rounds of a loop that are bound."""
        assert store is not None
        type = known_type(expr)
        text = body.local(self.field(store, ("aggregate", expr), entry))
        if expr.op == "COUNT":
            return Atom(text, type, None)
        if type is Type.INT64:
            null = body.local(self.field(store, ("aggregate null", expr), entry) + " != 0")
            return Atom(text, type, null)
        tests = {Type.FLOAT64: f"({text} != {text})", Type.TIMESTAMP: f"({text} == NO_TIME)"}
        return Atom(text, type, tests.get(type, f"({text} < 0)"))

    def _nodes(self, store: Store) -> list[int]:
        """The fields of a store that hold on to rounds of loops."""
        return [index for index, what in enumerate(store.fields) if what[0] == "node"]

    # --- ids ---

    def known(self, state: State) -> int:
        """How many variables, in their order, the id of a partial match can have mixed in.

        Queries of a group share partial matches, and have ids of their own.
        """
        if self.levels is not None:
            return 0
        still = open_variables(state.rest)
        for index, name in enumerate(self.plan.variables):
            if name in still or name in self.automaton.loops:
                return index
        return len(self.plan.variables)

    def counted(self, state: State) -> bool:
        """Whether the next variable is certain to have one event, so that its number is mixed in as well."""
        if self.levels is not None:
            state = self.compiled.first
        index = self.known(state)
        if index == len(self.plan.variables):
            return False
        name = self.plan.variables[index]
        return name not in self.automaton.loops and name in certain(state.rest)

    def seed(self, row: RowReader, body: Body) -> tuple[str, str]:
        """The beginning of an id: the query, and the partition of the event in the row."""
        low, high = f"np.uint64(S[{b.SEED_LOW}])", f"np.uint64(S[{b.SEED_HIGH}])"
        if self.levels is not None:
            low, high = (f"u8(S[{b.SEEDS}])[2 * query + {each}]" for each in (0, 1))
        else:
            body = row.body
        if not self.pattern.partition:
            return low, high  # what is known before any event is in it
        for expr in self.pattern.partition:
            atom = body.value(expr, row)
            low, high = mixed(body, low, high, *self._value_words(atom, body))
        first = self.compiled.first
        for index in range(self.known(first)):
            assert self.plan.variables[index]
            low, high = mixed(body, low, high, ZERO)
        if self.counted(first):
            low, high = mixed(body, low, high, ONE)
        return low, high

    def _value_words(self, atom: Atom, body: Body) -> tuple[str, str]:
        if atom.type is Type.FLOAT64:
            made = body.local(f"number_words({atom.text} + 0.0)")
            return f"{made}[0]", f"{made}[1]"
        kind = {Type.BOOL: 1, Type.STRING: 2}.get(atom.type, 3)
        word = f"words[max({atom.text}, 0)]" if atom.type is Type.STRING else f"np.uint64({atom.text})"
        if atom.null is None:
            return f"np.uint64({kind})", word
        some = body.local(f"not {atom.null}")
        return (
            body.local(f"np.uint64({kind}) if {some} else {ZERO}"),
            body.local(f"{word} if {some} else {ZERO}"),
        )

    # --- keys ---

    def _parts(self, store: Store) -> list[Type]:
        found = []
        for expr in self.pattern.partition:
            found.append(known_type(expr))
        return found + [known_type(each) for each in store.far]

    def _density(self, store: Store) -> str | None:
        """`one` where there is a single slot, `code` where a string's code is the slot, None for a hash."""
        types = self._parts(store)
        if not types:
            return "one"
        return "code" if types == [Type.STRING] else None

    def _key_width(self, store: Store) -> int:
        if self._density(store) is not None:
            return 0
        types = self._parts(store)
        nullable = types if not store.steps else types[: len(self.pattern.partition)]
        return len(types) + nullable.count(Type.INT64)

    def slot(
        self, store: Store, partition: list[Atom], own: list[Atom], body: Body, make: bool
    ) -> tuple[list[str], str]:
        """The texts under which there is no slot, and the statement that finds it.

        A match that awaits a deadline does so in any case; what is compared with null cannot end it.
        """
        nulls = [each.null for each in own if each.null is not None and not (make and not store.steps)]
        density = self._density(store)
        if density == "one":
            return nulls, "slot = 0"
        if density == "code":
            atom = (*partition, *own)[0]
            return nulls, f"slot = np.int64({atom.text}) + {1 if partition or not store.steps else 0}"
        words: list[str] = []
        for index, atom in enumerate((*partition, *own)):
            nullable = index < len(partition) or not store.steps
            if atom.type is Type.FLOAT64:
                text = f"bits({atom.text} + 0.0)"
                words.append(f"(0x7FF8000000000000 if {atom.null} else {text})" if atom.null else text)
            elif atom.type is Type.INT64 and nullable:
                words += [
                    f"(0 if {atom.null or 'False'} else {atom.text})",
                    f"(1 if {atom.null or 'False'} else 0)",
                ]
            else:
                words.append(f"np.int64({atom.text})")
        body.lines += [f"kw = i8(S[{b.KEY}])"]
        body.lines += [f"kw[{index}] = {each}" for index, each in enumerate(words)]
        return nulls, f"slot = find(S, {self.base(store)}, kw, {make})"
