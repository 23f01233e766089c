"""Expressions compiled for columns give what the interpreted ones give, null for null and bit for bit."""

from __future__ import annotations

import random

import numpy as np

from kaicep.kernel.columns import Column, Strings, column_of
from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled.expressions import SOURCE, Body, Constants, Inputs, RowReader
from kaicep.kernel.expressions import value_function
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type

INT, FLOAT, TEXT, TIME, BOOL = Type.INT64, Type.FLOAT64, Type.STRING, Type.TIMESTAMP, Type.BOOL
H = 3_600_000_000
VALUES = {
    "i": [None, 0, 1, -1, 2, 7, -7, INT64_MAX, INT64_MIN, 2**62, 3_037_000_500],
    "j": [None, 0, 3, -3, INT64_MIN, INT64_MAX, -1, 1, 2**32],
    "x": [None, 0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 1e308, -1e308, 0.49999999999999994, 1e16, 5e-324],
    "y": [None, 0.0, 2.0, -3.5, 1e308, 0.1],
    "t": [None, 0, 1, -1, H, -5 * H, 253_402_300_799_999_999, -62_135_596_800_000_000],
    "k": [None, "", "p", "Q", "pq", "é", "\U0001f600", "z"],
    "l": [None, "p", "q", "Q"],
    "b": [None, True, False],
}
TYPES = {"i": INT, "j": INT, "x": FLOAT, "y": FLOAT, "t": TIME, "k": TEXT, "l": TEXT, "b": BOOL}


def expression(type: Type, depth: int, chance: random.Random) -> Expr:
    """A random expression of a type."""

    def of(wanted: Type) -> Expr:
        return expression(wanted, depth - 1, chance)

    def leaf() -> Expr:
        names = [name for name, found in TYPES.items() if found is type]
        if chance.random() < 0.7:
            name = chance.choice(names)
            return Field("e", name, (("s", (name,)),), type)
        value = chance.choice([each for name in names for each in VALUES[name] if each is not None])
        return Const(value, type)

    if depth == 0:
        return leaf()
    pick = chance.choice
    if type is BOOL:
        kind = chance.randrange(6)
        if kind < 3:
            of_type = pick((INT, FLOAT, TIME, TEXT, BOOL))
            op = pick(("=", "!=") if of_type in (TEXT, BOOL) else ("=", "!=", "<", "<=", ">", ">="))
            return Call(op, (of(of_type), of(of_type)), BOOL)
        if kind == 3:
            return Call(pick(("and", "or")), (of(BOOL), of(BOOL)), BOOL)
        if kind == 4:
            text = Field("e", "k", (("s", ("k",)),), TEXT)
            chosen = pick(("contains", "startsWith", "regex", "<", ">="))
            return Call(chosen, (pick((text, Call("lower", (text,), TEXT))), Const("p", TEXT)), BOOL)
        of_type = pick((INT, TEXT, FLOAT))
        null = (Const(None, None),) if chance.random() < 0.3 else ()
        return pick((Call("not", (of(BOOL),), BOOL), Call("in", (of(of_type), of(of_type), *null), BOOL)))
    if type is TEXT:
        return pick(
            (
                leaf(),
                Call(pick(("lower", "upper")), (leaf(),), TEXT),
                Call("if", (of(BOOL), leaf(), leaf()), TEXT),
            )
        )
    if type is TIME:
        return pick((leaf(), Call(pick("+-"), (of(TIME), of(INT)), TIME)))
    if chance.random() < 0.15:
        return Call("coalesce", (of(type), Const(None, None), of(type)), type)
    if chance.random() < 0.15:
        return Call("if", (of(BOOL), of(type), of(type)), type)
    if chance.random() < 0.2:
        return Call(pick(("neg", "abs", "floor", "ceil", "round")), (of(type),), type)
    if type is INT:
        if chance.random() < 0.2:
            return pick(
                (Call("-", (of(TIME), of(TIME)), INT), Call(pick(("hour", "dayOfWeek")), (of(TIME),), INT))
            )
        return Call(pick("+-*%"), (of(INT), of(INT)), INT)
    if chance.random() < 0.2:
        return Call("float", (of(INT),), FLOAT)
    if chance.random() < 0.1:
        return Call("/", (of(INT), of(INT)), FLOAT)
    return Call(pick("+-*/%"), (of(FLOAT), of(FLOAT)), FLOAT)


def evaluated(exprs: list[Expr], columns: dict[str, Column], strings: Strings, rows: int) -> list[Column]:
    """The values of the expressions, all in one compiled function."""
    catalog = Catalog({"s": Stream("s", tuple(TYPES.items()))})
    inputs = Inputs(catalog, ("s",))
    body = Body(Constants(strings))
    for number, expr in enumerate(exprs):
        atom = body.value(expr, RowReader(body, inputs))
        body.lines.append(f"o{number}[i] = {atom.text}")
        body.lines.append(f"n{number}[i] = {atom.null or 'False'}")
    constants = body.constants
    constants.grow()
    given: dict[str, object] = {"cf": np.array(constants.floats), "ci": np.array(constants.ints, np.int64)}
    for number, name in enumerate(inputs.attributes):
        column = columns[name]
        given[f"x{number}"] = column.data
        given[f"m{number}"] = np.ones(rows, np.bool_) if column.valid is None else column.valid
    given |= {f"t{number}": each.array for number, each in enumerate(constants.tables)}
    dtypes = {INT: np.int64, FLOAT: np.float64, TEXT: np.int32, TIME: np.int64, BOOL: np.int8}
    outs = [np.zeros(rows, dtypes[each.type]) for each in exprs]
    nulls = [np.zeros(rows, np.bool_) for _ in exprs]
    given |= {f"o{number}": each for number, each in enumerate(outs)}
    given |= {f"n{number}": each for number, each in enumerate(nulls)}
    lines = [*constants.unpacked(), f"for i in range({rows}):", *(f"    {each}" for each in body.lines)]
    text = "\n    ".join(lines)
    head = f"@njit(nogil=True, cache=True, error_model='numpy')\ndef run({', '.join(given)}):"
    source = f"{SOURCE}\n{head}\n    {text}\n"
    compile_source(source)["run"](*given.values())
    return [
        Column(each.type, out, ~null if each.type is INT else None)
        for each, out, null in zip(exprs, outs, nulls, strict=True)
    ]


def test_random_expressions_have_the_values_that_the_interpreter_gives() -> None:
    chance = random.Random(7)
    types = (BOOL, BOOL, INT, FLOAT, TEXT, TIME)
    exprs = [expression(types[each % len(types)], 1 + each % 3, chance) for each in range(24)]
    rows = 300
    values = {name: [chance.choice(some) for _ in range(rows)] for name, some in VALUES.items()}
    strings = Strings()
    columns = {name: column_of(TYPES[name], some, strings) for name, some in values.items()}
    found = evaluated(exprs, columns, strings, rows)
    events = [
        Event("s", 0, row, 0, {name: some[row] for name, some in values.items()}) for row in range(rows)
    ]
    for expr, column in zip(exprs, found, strict=True):
        of = value_function(expr, ["s"])
        for event, value in zip(events, column.values(strings), strict=True):
            wanted = of(event)
            assert repr(value) == repr(wanted), (expr, event.values)


def test_a_table_learns_strings_that_come_later() -> None:
    strings = Strings()
    body = Body(Constants(strings))
    inputs = Inputs(Catalog({"s": Stream("s", tuple(TYPES.items()))}), ("s",))
    text = Field("e", "k", (("s", ("k",)),), TEXT)
    body.truth(Call("regex", (text, Const("^a", TEXT)), BOOL), RowReader(body, inputs))
    body.value(Call("upper", (text,), TEXT), RowReader(body, inputs))
    strings.code("ab")
    assert body.constants.grow()
    starts, upper = body.constants.tables
    assert starts.array.tolist()[:2] == [-1, 1]
    assert strings.texts[upper.array[1]] == "AB"
    strings.code("ba")
    assert body.constants.grow()
    assert starts.array[strings.code("ba") + 1] == 0
    assert not body.constants.grow()
