"""The source of a compiled window: generated for its shape, the same for all its constants.

A kernel takes its events in blocks. It first tests each event and finds its records, then touches the
memory that it will need, so that the cache fetches all of it at once instead of one after the other, and
only then lets the events enter their windows and answers. Everything before an event changes its window can
be done twice: a kernel that runs out of room stops there, and goes on with the same event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaicep.kernel.columns import Strings
from kaicep.kernel.compiled import expressions, window_memory
from kaicep.kernel.compiled.expressions import Atom, Body, Constants, RowReader
from kaicep.kernel.compiled.verdicts import Verdict
from kaicep.kernel.compiled.window_readers import BatchReader, SlidingReader, WindowReader
from kaicep.kernel.compiled.window_shape import Argument, Layout, Shape
from kaicep.kernel.compiled.window_text import (
    function,
    header,
    inside,
    key_words,
    mixed,
    null_of,
    signed,
    unless_grown,
    want,
    wanting,
    word,
)
from kaicep.plan.expressions import Expr, Field
from kaicep.plan.identity import MatchId
from kaicep.plan.nodes import Semantic
from kaicep.plan.types import Type

__all__ = ["Output", "WindowSource"]


@dataclass(frozen=True)
class Output:
    """A selected column: where the kernel writes its values, and where whether they are null."""

    name: str
    type: Type
    column: int
    null: int | None


class WindowSource:
    """Writes the source for a shape, and gathers the constants that it takes."""

    def __init__(self, shape: Shape, strings: Strings) -> None:
        self.shape = shape
        self.constants = Constants(strings)
        node = shape.node
        window = node.window
        self.width = self.constants.int(window.width or window.count or 0)
        seed = MatchId(shape.plan.name, shape.plan.text)
        self.seed = [self.constants.int(signed(each)) for each in (seed.low, seed.high)]
        self.outputs: list[Output] = []
        self.columns = 4 if shape.sliding else 12
        """How many columns the output has."""
        self.inner_direct = self._is_direct(node.group_by if shape.grouped else node.partition) and not (
            shape.grouped and node.partition
        )
        self.outer_direct = self._is_direct(node.partition)
        self.key_words = 1
        self.outer_key_words = 1
        self.text = "".join((window_memory.library_names(), expressions.SOURCE, *self._functions()))

    @staticmethod
    def _is_direct(exprs: Sequence[Expr]) -> bool:
        """Whether records are found by the code of a string, or there is one only."""
        from kaicep.plan.typing import type_of

        return not exprs or (len(exprs) == 1 and type_of(exprs[0]) is Type.STRING)

    # --- parameters ---

    @property
    def state(self) -> list[str]:
        """The arrays of the state, as every kernel takes them."""
        return ["meta", "rec", "keys", "look", "arena", "far", "counts"] + (
            ["prec", "pkeys", "plook"] if self.shape.grouped else []
        )

    @property
    def masks(self) -> list[int]:
        """The numbers of the columns that come with a mask."""
        return [n for n, each in enumerate(self.shape.inputs.types.values()) if each is Type.INT64]

    @property
    def parameters(self) -> list[str]:
        """What `feed` takes: constants, state, output, then the table."""
        numbers = range(len(self.shape.inputs.types))
        return [
            "cf", "ci", *self.state, "words", "out", "ts", "place", "part", "seq", "low", "high",
            *(f"x{n}" for n in numbers), *(f"m{n}" for n in self.masks),
            *(f"t{n}" for n in range(len(self.constants.tables))),
        ]  # fmt: skip

    def _functions(self) -> Iterable[str]:
        shape = self.shape
        closing = self._closing() if not shape.sliding and shape.timed else None
        body = self._body()  # after it, all constants are known
        if closing is not None:
            yield function("close", ["cf", "ci", *self.state, "out"], self._prologue(closing))
        yield function("feed", self.parameters, self._prologue(body))
        if shape.sliding or not shape.timed:
            yield function("sweep", ["cf", "ci", *self.state, "now"], self._prologue(self._sweeping()))

    def _prologue(self, body: list[str]) -> list[str]:
        return [
            *self.constants.unpacked(),
            "ints = rec.view(np.int32)",
            "arenaf = arena.view(np.float64)",
            "recf = rec.view(np.float64)",
            *(["pints = prec.view(np.int32)"] if self.shape.grouped else []),
            *body,
        ]

    # --- names of things in records ---

    def int64(self, name: str) -> str:
        """An int64 of the inner record."""
        return f"rec[r + {self.shape.inner.int64(name)}]"

    def float64(self, name: str) -> str:
        """The same as a float64."""
        return f"recf[r + {self.shape.inner.int64(name)}]"

    def int32(self, name: str) -> str:
        """An int32 of the inner record."""
        return f"ints[q + {self.shape.inner.int32(name)}]"

    def _outer_long(self, name: str) -> str:
        return f"prec[pr + {self.shape.outer.int64(name)}]"

    def _outer_int(self, name: str) -> str:
        return f"pints[pq + {self.shape.outer.int32(name)}]"

    def _window_long(self, name: str) -> str:
        """An int64 that belongs to the whole window."""
        return self._outer_long(name) if self.shape.grouped else self.int64(name)

    def _window_int(self, name: str) -> str:
        return self._outer_int(name) if self.shape.grouped else self.int32(name)

    # --- feed ---

    def _body(self) -> list[str]:
        shape = self.shape
        chosen = self._chosen()
        entered = self._sliding() if shape.sliding else self._batch()
        counted = sum("DISTINCT" in each.kinds for each in shape.arguments)
        fars = sum(each.summed and each.type is Type.FLOAT64 for each in shape.arguments)
        wants = [(f"meta[USED] + 64 > len(rec) // {shape.inner.stride}", "RECORDS")]
        if shape.grouped:
            wants.append((f"meta[PUSED] + 64 > len(prec) // {shape.outer.stride}", "RECORDS"))
        if fars:
            wants.append((f"meta[FAR_USED] + {64 * 72 * fars} > len(far)", "FAR"))
        if counted:
            wants.append((f"6 * (meta[COUNTED] + {64 * counted}) > len(counts)", "COUNTS"))
        if shape.sliding:
            wants.append(("holding > meta[LIMIT]", "HELD"))
        return [
            "size = len(ts)",
            f"room = len(out) // {self.columns}",
            "outf = out.view(np.float64)",
            "rows = meta[BLOCK : BLOCK + 64]",
            "slots = meta[BLOCK + 64 : BLOCK + 128]",
            *(["outers = meta[BLOCK + 128 : BLOCK + 192]"] if shape.grouped else []),
            "scratch = meta[SCRATCH : SCRATCH + 72]",
            "touched = 0",
            "holding = meta[HELD]",
            "k = meta[OUT]",
            "at0 = meta[AT]",
            "meta[WANT] = 0",
            "while at0 < size and meta[WANT] == 0:",
            *inside(
                *(line for test, what in wants for line in wanting(test, what)),
                "stop = min(at0 + 64, size)",
                *(self._boundary() if not shape.sliding and shape.timed else []),
                "held = 0",
                "for i in range(at0, stop):",
                *inside(*chosen, "rows[held] = i", "slots[held] = slot",
                     *(["outers[held] = p"] if shape.grouped else []), "held += 1"),
                *self._touch(),
                "at0 = stop",
                "for j in range(held):",
                *inside("i = rows[j]", "t = ts[i]", *entered),
            ),
            "meta[AT] = at0",
            "meta[OUT] = k",
            "meta[HELD] = holding",
            "meta[TOUCHED] = touched",
        ]  # fmt: skip

    def _boundary(self) -> list[str]:
        """A batch by time ends before a block that is later, and no block reaches over the end of one."""
        return [
            f"number = ts[at0] // {self.width}",
            "if number != meta[NUMBER]:",
            *inside(
                "if meta[USED] > 0:",
                *inside(
                    "if k + meta[USED] > room:",
                    *inside(f"meta[WANT] = {want('OUTPUT')}", "break"),
                    "meta[OUT] = k",
                    f"close({', '.join(['cf', 'ci', *self.state, 'out'])})",
                    "k = meta[OUT]",
                ),
                "meta[NUMBER] = number",
            ),
            f"while ts[stop - 1] // {self.width} != number:",
            *inside("stop -= 1"),
        ]

    def _touch(self) -> list[str]:
        shape = self.shape
        if not shape.sliding:
            return ["for j in range(held):", *inside(f"touched += rec[slots[j] * {shape.inner.stride}]")]
        ring, width = shape.inner.int32("ring"), shape.width
        return [
            "for j in range(held):",
            *inside(
                f"q = 2 * slots[j] * {shape.inner.stride}",
                f"if ints[q + {ring + 1}] >= 0:",
                *inside(
                    f"touched += arena[ints[q + {ring}] + {width} * ints[q + {ring + 2}]]",
                    f"touched += arena[ints[q + {ring}] + {width} * "
                    f"((ints[q + {ring + 2}] + ints[q + {ring + 3}]) & ints[q + {ring + 1}])]",
                ),
            ),
        ]

    # --- which events, and where they belong ---

    def _chosen(self) -> list[str]:
        """Goes on only with events that count; leaves their records in `slot` and `p`."""
        shape = self.shape
        body = Body(self.constants, "a")
        reader = RowReader(body, shape.inputs)
        within = shape.scan.within
        tests = []
        if within.low is not None:
            tests.append(f"(ts[i] {'>=' if within.low_inclusive else '>'} {self.constants.int(within.low)})")
        if within.high is not None:
            tests.append(
                f"(ts[i] {'<=' if within.high_inclusive else '<'} {self.constants.int(within.high)})"
            )
        tests += [body.truth(each, reader) for each in shape.conditions]
        tests += [self._verdict(each, reader) for each in shape.semantics]
        lines = [*body.lines, *([f"if not ({' & '.join(tests)}):", *inside("continue")] if tests else [])]
        body.lines.clear()
        node = shape.node
        outer = [body.value(each, reader) for each in node.partition]
        inner = [body.value(each, reader) for each in node.group_by]
        lines += body.lines
        seed = [f"a = np.uint64({self.seed[0]})", f"b = np.uint64({self.seed[1]})"]
        if not shape.grouped:
            return lines + self._found(outer, seed, self.inner_direct, inner=True)
        lines += self._found(outer, seed, self.outer_direct, inner=False)
        again = [*seed, *(line for each in outer for line in mixed(each))] if outer else seed
        return lines + self._found(inner, again, self.inner_direct, inner=True)

    def _verdict(self, condition: Semantic, reader: RowReader) -> str:
        """The test of a PATH, by the code of the string that decides it."""
        inputs = self.shape.inputs
        verdict = Verdict(condition, self.shape.scan.variable, inputs)
        tests = []
        for stream, attribute in verdict.attributes.items():
            name = self.constants.table(verdict.table(stream))
            code = reader.field(Field(verdict.variable, attribute, ((stream, (attribute,)),), Type.STRING))
            place = list(inputs.streams).index(stream)
            tests.append(f"((place[i] == {place}) & ({name}[{code.text} + 1] == 1))")
        return f"({' | '.join(tests)})" if tests else "False"

    def _found(self, key: list[Atom], seed: list[str], direct: bool, inner: bool) -> list[str]:
        """Finds a record by its key, or makes one."""
        shape = self.shape
        rec, keys, look, slot = ("rec", "keys", "look", "slot") if inner else ("prec", "pkeys", "plook", "p")
        layout = shape.inner if inner else shape.outer
        hashed = [*seed, *(line for each in key for line in mixed(each))]
        made = [
            f"{slot} = take_record(meta, {'USED' if inner else 'PUSED'}, {rec}, {layout.stride})",
            f"{rec}[{slot} * {layout.stride}] = np.int64(a)",
            *([f"{rec}[{slot} * {layout.stride} + 1] = np.int64(b)"] if inner else []),
            *self._opened(layout, slot, "ints" if inner else "pints"),
        ]
        if direct:
            code = key[0].text if key else "-1"
            return [
                f"{slot} = np.int64({look}[{code} + 1])",
                f"if {slot} < 0:",
                *inside(*hashed, *made, f"{look}[{code} + 1] = {slot}", f"{keys}[{slot}] = {code}"),
            ]
        words = ["p"] if inner and shape.grouped else []
        words += [word for each in key for word in key_words(each)]
        if inner:
            self.key_words = len(words)
        else:
            self.outer_key_words = len(words)
        names = [f"w{n}" for n in range(len(words))]
        same = " and ".join(f"{keys}[{len(words)} * {slot} + {n}] == w{n}" for n in range(len(words)))
        return [
            *(f"{name} = {word}" for name, word in zip(names, words, strict=True)),
            *hashed,
            f"cell = np.int64(a & np.uint64(len({look}) - 1))",
            f"{slot} = np.int64({look}[cell])",
            f"while {slot} >= 0 and not ({same}):",
            *inside(f"cell = (cell + 1) & (len({look}) - 1)", f"{slot} = np.int64({look}[cell])"),
            f"if {slot} < 0:",
            *inside(
                *made,
                f"{look}[cell] = {slot}",
                *(f"{keys}[{len(words)} * {slot} + {n}] = w{n}" for n in range(len(words))),
            ),
        ]

    @staticmethod
    def _opened(layout: Layout, slot: str, ints: str) -> list[str]:
        """Gives the rings of a new record no room yet."""
        first = f"{ints}[2 * {slot} * {layout.stride}"
        return [f"{first} + {layout.int32(each)}] = -1" for each in layout.ints if each.endswith(".mask")]

    # --- a sliding window ---

    def _sliding(self) -> list[str]:
        shape = self.shape
        body = Body(self.constants)
        reader = SlidingReader(self, body)
        values = [body.value(each.expr, reader) for each in shape.arguments]
        reader.values = values
        read = list(body.lines)
        body.lines.clear()
        lines = [*self._records(), *([f"oldest = t - {self.width}"] if shape.timed else [])]
        lines += self._expired()
        lines += [*(self._records() if shape.grouped else []), *self._with_room()]
        lines += read
        if shape.grouped:
            ring = shape.inner.int32("ring")
            lines += [
                "pat = pbase + 2 * ((phead + pcount) & pmask)",
                "arena[pat] = t",
                "arena[pat + 1] = slots[j]",
                "pcount += 1",
                *self._saved("p"),
                f"base, mask, head, count = {header('ints', 'q', ring)}",
            ]
        lines += [
            f"at = base + {shape.width} * ((head + count) & mask)",
            *([] if shape.grouped else ["arena[at] = t"]),
            *self._stored(values),
            "count += 1",
            *self._saved(""),
            "holding += 1",
        ]
        for argument, value in zip(shape.arguments, values, strict=True):
            lines += self._moved(argument, value, 1)
        lines.append(
            "start = arena[pbase + 2 * phead]"
            if shape.grouped
            else f"start = arena[base + {shape.width} * head]"
        )
        return lines + self._answer(body, reader, ["start", "t"], ["low[i], high[i]"], ["i", "start"])

    def _records(self) -> list[str]:
        shape = self.shape
        return [
            f"r = slots[j] * {shape.inner.stride}",
            "q = 2 * r",
            *([f"pr = outers[j] * {shape.outer.stride}", "pq = 2 * pr"] if shape.grouped else []),
        ]

    def _expired(self) -> list[str]:
        """Lets the events go that are too old, or one too many; leaves the ring's numbers in variables."""
        shape = self.shape
        inner = shape.inner.int32("ring")
        if not shape.grouped:
            gone = [*self._removed(), "head = (head + 1) & mask", "count -= 1", "holding -= 1"]
            return [
                f"base, mask, head, count = {header('ints', 'q', inner)}",
                *self._while("", shape.width, gone),
            ]
        outer = shape.outer.int32("ring")
        gone = [
            f"r = arena[pat + 1] * {shape.inner.stride}",
            "q = 2 * r",
            f"at = np.int64(ints[q + {inner}]) + {shape.width} * ints[q + {inner + 2}]",
            *self._removed(),
            *(
                [f"ints[q + {inner + 2}] = (ints[q + {inner + 2}] + 1) & ints[q + {inner + 1}]"]
                if shape.width
                else []
            ),
            f"ints[q + {inner + 3}] -= 1",
            "phead = (phead + 1) & pmask",
            "pcount -= 1",
            "holding -= 1",
        ]
        return [
            f"pbase, pmask, phead, pcount = {header('pints', 'pq', outer)}",
            *self._while("p", 2, gone),
        ]

    def _while(self, p: str, width: int, gone: list[str]) -> list[str]:
        if not self.shape.timed:
            return [f"if {p}count == {self.width}:", *inside(f"{p}at = {p}base + {width} * {p}head", *gone)]
        return [
            f"while {p}count > 0:",
            *inside(
                f"{p}at = {p}base + {width} * {p}head",
                f"if arena[{p}at] > oldest:",
                *inside("break"),
                *gone,
            ),
        ]

    def _saved(self, p: str) -> list[str]:
        """Writes the numbers of a ring back."""
        layout, ints, at = (self.shape.outer, "pints", "pq") if p else (self.shape.inner, "ints", "q")
        ring = layout.int32("ring")
        return [f"{ints}[{at} + {ring + 2}] = {p}head", f"{ints}[{at} + {ring + 3}] = {p}count"]

    def _with_room(self) -> list[str]:
        """Sees to it that all rings can take one more; else the kernel stops before this event."""
        shape = self.shape
        stop = ["at0 = i", "break"]
        lines = []
        inner = shape.inner.int32("ring")
        if shape.grouped:
            ring = shape.outer.int32("ring")
            lines += [
                *self._saved("p"),
                "if pcount > pmask:",
                *inside(
                    f"if not grow_ring(pints, pq + {ring}, arena, meta, 2, 0):",
                    *inside(*stop),
                    f"pbase, pmask, phead, pcount = {header('pints', 'pq', ring)}",
                ),
            ]
            if shape.width:
                lines += [
                    unless_grown(inner, shape.width, 1),
                    *inside(*stop),
                ]
        else:
            lines += [
                "if count > mask:",
                *inside(
                    *self._saved(""),
                    f"if not grow_ring(ints, q + {inner}, arena, meta, {shape.width}, 1):",
                    *inside(*stop),
                    f"base, mask, head, count = {header('ints', 'q', inner)}",
                ),
            ]
        return lines + self._rings_of_arguments(stop, save=not shape.grouped)

    def _rings_of_arguments(self, stop: list[str], save: bool) -> list[str]:
        lines = []
        kinds = ("MIN", "MAX") if self.shape.sliding else ("DISTINCT",)
        for each in self.shape.arguments:
            for kind in sorted(each.kinds.intersection(kinds)):
                ring = self.shape.inner.int32(f"{kind}{each.number}")
                lines += [
                    unless_grown(ring, 1, 2),
                    *inside(*(self._saved("") if save else []), *stop),
                ]
        return lines

    def _stored(self, values: list[Atom]) -> list[str]:
        """Writes what is aggregated of an event into its entry."""
        shape = self.shape
        lines = []
        nulls = []
        for place, argument in enumerate(shape.stored):
            value = values[argument.number]
            if argument.type is Type.FLOAT64:
                lines.append(f"arenaf[at + {shape.offset + place}] = {value.text}")
            else:
                lines.append(f"arena[at + {shape.offset + place}] = {value.text}")
            if argument.type is Type.INT64 and value.null is not None:
                nulls.append(f"({1 << place} if {value.null} else 0)")
        if shape.nulls is not None:
            lines.append(f"arena[at + {shape.nulls}] = {' | '.join(nulls) or '0'}")
        return lines

    def entry(self, argument: Argument, at: str) -> Atom:
        """What the entry at some place has of an argument."""
        shape = self.shape
        place = shape.stored.index(argument)
        array = "arenaf" if argument.type is Type.FLOAT64 else "arena"
        text = f"{array}[{at} + {shape.offset + place}]"
        if argument.type is Type.INT64:
            return Atom(text, Type.INT64, f"((arena[{at} + {shape.nulls}] >> {place}) & 1 == 1)")
        return Atom(text, argument.type, null_of(text, argument.type))

    def _removed(self) -> list[str]:
        """Takes the entry `at` out of what is aggregated."""
        lines = []
        for argument in self.shape.stored:
            if argument.kinds <= {"FIRST", "LAST"}:
                continue
            entry = self.entry(argument, "at")
            name = f"o{argument.number}"
            null = null_of(name, argument.type) or entry.null
            lines.append(f"{name} = {entry.text}")
            lines += self._moved(argument, Atom(name, argument.type, null), -1)
        return lines

    def _moved(self, argument: Argument, value: Atom, sign: int) -> list[str]:
        """Adds a value to what is aggregated, or takes it away."""
        number = argument.number
        inner = self.shape.inner
        lines = []
        if argument.counted:
            lines.append(f"{self.int32(f'count{number}')} += {sign}")
        if argument.summed:
            low, high = self.int64(f"sum{number}"), self.int64(f"more{number}")
            if argument.type is Type.FLOAT64:
                far = f"q + {inner.int32(f'far{number}')}"
                lines += [
                    f"if is_near({value.text}):",
                    *inside(f"{low}, {high} = near_moved({low}, {high}, {value.text}, {sign})"),
                    "else:",
                    *inside(f"far_move(ints, {far}, far, meta, {value.text}, {sign})"),
                ]
            else:
                lines.append(f"{low}, {high} = whole_moved({low}, {high}, {value.text}, {sign})")
        for kind in sorted(argument.kinds & {"MIN", "MAX"}):
            lines += (self._extreme if self.shape.sliding else self._record_extreme)(
                argument, kind, value, sign
            )
        if "DISTINCT" in argument.kinds:
            lines += self._distinct(argument, value, sign)
        if not lines:
            return []
        return lines if value.null is None else [f"if not {value.null}:", *inside(*lines)]

    def _extreme(self, argument: Argument, kind: str, value: Atom, sign: int) -> list[str]:
        """A ring of the values that may still become the extreme: each beats all before it."""
        ring = self.shape.inner.int32(f"{kind}{argument.number}")
        array = "arenaf" if argument.type is Type.FLOAT64 else "arena"
        base, mask, head, count = (f"ints[q + {ring + n}]" for n in range(4))
        if sign < 0:
            return [
                f"if {array}[{base} + {head}] == {value.text}:",
                *inside(f"{head} = ({head} + 1) & {mask}", f"{count} -= 1"),
            ]
        worse = ">" if kind == "MIN" else "<"
        last = f"{array}[{base} + (({head} + {count} - 1) & {mask})]"
        return [
            f"while {count} > 0 and {last} {worse} {value.text}:",
            *inside(f"{count} -= 1"),
            f"{array}[{base} + (({head} + {count}) & {mask})] = {value.text}",
            f"{count} += 1",
        ]

    def _record_extreme(self, argument: Argument, kind: str, value: Atom, sign: int) -> list[str]:
        name = f"{kind}{argument.number}"
        held = self.float64(name) if argument.type is Type.FLOAT64 else self.int64(name)
        better = "<" if kind == "MIN" else ">"
        first = f"{self.int32(f'count{argument.number}')} == 1"
        return [f"if {first} or {value.text} {better} {held}:", *inside(f"{held} = {value.text}")]

    def _distinct(self, argument: Argument, value: Atom, sign: int) -> list[str]:
        name = f"DISTINCT{argument.number}"
        key = f"r * 16 + {argument.number}"
        call = "count_up" if sign > 0 else "count_down"
        value_word = word(value.text, argument.type)
        test = f"if {call}(counts, meta, {key}, {value_word}):"
        if self.shape.sliding:
            return [test, *inside(f"{self.int32(f'{name}.count')} += {sign}")]
        ring = self.shape.inner.int32(name)
        return [
            test,
            *inside(
                f"arena[ints[q + {ring}] + ints[q + {ring + 3}]] = {value_word}",
                f"ints[q + {ring + 3}] += 1",
            ),
        ]

    # --- a batch ---

    def _batch(self) -> list[str]:
        shape = self.shape
        body = Body(self.constants)
        reader = RowReader(body, shape.inputs)
        values = [body.value(each.expr, reader) for each in shape.arguments]
        fields = [body.value(each, reader) for each in shape.fields]
        lines = self._records()
        if not shape.timed:
            groups = self._outer_int("groups") if shape.grouped else "0"
            lines += [
                f"if {self._window_int('ring.count')} + 1 == {self.width} and k + {groups} + 1 > room:",
                *inside(f"meta[WANT] = {want('OUTPUT')}", "at0 = i", "break"),
            ]
        lines += self._rings_of_arguments(["at0 = i", "break"], save=False)
        lines += body.lines
        lines += [
            f"if {self._window_int('ring.count')} == 0:",
            *inside(
                f"{self._window_long('start')} = t",
                f"{self._window_long('first.low')} = np.int64(low[i])",
                f"{self._window_long('first.high')} = np.int64(high[i])",
            ),
            f"{self._window_long('version')} = meta[VERSION]",
        ]
        begun = [
            *self._shown("first"),
            *(line for n, each in enumerate(fields) for line in self._kept(f"field{n}", each)),
        ]
        for argument, value in zip(shape.arguments, values, strict=True):
            if "FIRST" in argument.kinds:
                begun += self._kept(f"FIRST{argument.number}", value)
        if shape.grouped:
            begun += [
                f"{self.int32('outer')} = outers[j]",
                f"{self.int32('next')} = {self._outer_int('group')}",
                f"{self._outer_int('group')} = slots[j] + 1",
                f"{self._outer_int('groups')} += 1",
            ]
            lines.append(f"{self._outer_int('ring.count')} += 1")
        lines += [f"if {self.int32('ring.count')} == 0:", *inside(*begun), f"{self.int32('ring.count')} += 1"]
        lines += self._shown("last")
        for argument, value in zip(shape.arguments, values, strict=True):
            lines += self._moved(argument, value, 1)
            if "LAST" in argument.kinds:
                lines += self._kept(f"LAST{argument.number}", value)
        return lines if shape.timed else lines + self._full()

    def _shown(self, which: str) -> list[str]:
        return [
            f"{self.int32(f'{which}.place')} = place[i]",
            f"{self.int64(f'{which}.part')} = part[i]",
            f"{self.int64(f'{which}.seq')} = seq[i]",
        ]

    def _kept(self, name: str, value: Atom) -> list[str]:
        """Writes a value into the record."""
        held = self.float64(name) if value.type is Type.FLOAT64 else self.int64(name)
        lines = [f"{held} = {value.text}"]
        if value.type is Type.INT64:
            lines.append(f"{self.int32(f'{name}.null')} = 1 if {value.null or 'False'} else 0")
        return lines

    def _full(self) -> list[str]:
        """Answers where a batch by count has all its events."""
        edges = [
            f"np.uint64({self._window_long('first.low')}), np.uint64({self._window_long('first.high')})",
            "low[i], high[i]",
        ]
        answer = self._batch_answer(["start", "t"], edges)
        full = [f"start = {self._window_long('start')}"]
        if self.shape.grouped:
            full += [
                f"group = {self._outer_int('group')}",
                "while group > 0:",
                *inside(
                    f"r = (group - 1) * {self.shape.inner.stride}",
                    "q = 2 * r",
                    *answer,
                    *self._cleared(),
                    f"group = {self.int32('next')}",
                ),
                f"{self._outer_int('group')} = 0",
                f"{self._outer_int('groups')} = 0",
                f"{self._outer_int('ring.count')} = 0",
            ]
        else:
            full += [*answer, *self._cleared()]
        return [f"if {self._window_int('ring.count')} == {self.width}:", *inside(*full)]

    def _closing(self) -> list[str]:
        """A batch by time is over: every group answers, and nothing is left."""
        shape = self.shape
        answer = self._batch_answer(["start", "t"], [])
        lines = [
            "outf = out.view(np.float64)",
            f"room = len(out) // {self.columns}",
            "scratch = meta[SCRATCH : SCRATCH + 72]",
            "k = meta[OUT]",
            f"start = meta[NUMBER] * {self.width}",
            f"t = start + {self.width}",
            "for slot in range(meta[USED]):",
            *inside(
                f"r = slot * {shape.inner.stride}",
                "q = 2 * r",
                *(
                    [f"pr = {self.int32('outer')} * {shape.outer.stride}", "pq = 2 * pr"]
                    if shape.grouped
                    else []
                ),
                *answer,
                *self._cleared(),
                *self._rings_freed("slot"),
                *(["look[keys[slot] + 1] = -1"] if self.inner_direct else []),
            ),
            *([] if self.inner_direct else ["look[:] = -1"]),
            "meta[USED] = 0",
        ]
        if shape.grouped:
            if self.outer_direct:
                lines += ["for p in range(meta[PUSED]):", *inside("plook[pkeys[p] + 1] = -1")]
            else:
                lines.append("plook[:] = -1")
            lines.append("meta[PUSED] = 0")
        return [*lines, "meta[OUT] = k"]

    def _batch_answer(self, span: list[str], edges: list[str]) -> list[str]:
        body = Body(self.constants, "b")
        reader = BatchReader(self, body)
        shown = [
            "start", "t", self.int32("ring.count"),
            *(self.int32(f"{which}.place") if what == "place" else self.int64(f"{which}.{what}")
              for which in ("first", "last") for what in ("place", "part", "seq")),
            self._window_long("version"),
        ]  # fmt: skip
        return self._answer(body, reader, span, edges, shown)

    def _cleared(self) -> list[str]:
        """Forgets what was aggregated, so that the record is as good as new."""
        inner = self.shape.inner
        lines = [f"{self.int32('ring.count')} = 0"]
        for each in self.shape.arguments:
            number = each.number
            if each.counted:
                lines.append(f"{self.int32(f'count{number}')} = 0")
            if each.summed:
                lines += [f"{self.int64(f'sum{number}')} = 0", f"{self.int64(f'more{number}')} = 0"]
                if each.type is Type.FLOAT64:
                    lines.append(f"far_clear(ints, q + {inner.int32(f'far{number}')}, far, meta)")
            if "DISTINCT" in each.kinds:
                ring = inner.int32(f"DISTINCT{number}")
                lines += [
                    f"for n in range(ints[q + {ring + 3}]):",
                    *inside(f"count_clear(counts, meta, r * 16 + {number}, arena[ints[q + {ring}] + n])"),
                    f"ints[q + {ring + 3}] = 0",
                ]
        return lines

    # --- answers ---

    def _answer(
        self, body: Body, reader: WindowReader, span: list[str], words: list[str], shown: list[str]
    ) -> list[str]:
        """Writes a match to the output where HAVING holds: its id, what is shown, its columns."""
        tests = [body.truth(each, reader) for each in self.shape.node.having]
        lines = list(body.lines)
        body.lines.clear()
        made = [
            f"a, b = np.uint64({self.int64('low')}), np.uint64({self.int64('high')})",
            *(f"a, b = joined(a, b, np.uint64({each}), np.uint64({each}))" for each in span),
            *(f"a, b = joined(a, b, {each})" for each in words),
            "out[k] = np.int64(a)",
            "out[room + k] = np.int64(b)",
            *(f"out[{n + 2} * room + k] = {each}" for n, each in enumerate(shown)),
        ]
        column = self.columns = len(shown) + 2
        self.outputs.clear()
        for each in self.shape.columns:
            atom = body.value(each.expr, reader)
            array = "outf" if atom.type is Type.FLOAT64 else "out"
            body.lines.append(f"{array}[{column} * room + k] = {atom.text}")
            null = None
            if atom.type is Type.INT64 and atom.null is not None:
                null = column + 1
                body.lines.append(f"out[{null} * room + k] = 1 if {atom.null} else 0")
            self.outputs.append(Output(each.name, atom.type, column, null))
            column += 1 + (null is not None)
        self.columns = column
        made += [*body.lines, "k += 1"]
        body.lines.clear()
        return lines + ([f"if {' & '.join(tests)}:", *inside(*made)] if tests else made)

    # --- sweeping ---

    def _sweeping(self) -> list[str]:
        """Lets old events go, and frees the records that hold none."""
        shape = self.shape
        lines = ["holding = meta[HELD]", *([f"oldest = now - {self.width}"] if shape.timed else [])]
        if shape.grouped and shape.sliding and shape.timed:
            lines += [
                "for p in range(meta[PUSED]):",
                *inside(
                    f"pr = p * {shape.outer.stride}",
                    "pq = 2 * pr",
                    f"if {self._outer_int('ring.count')} > 0:",
                    *inside(*self._expired(), *self._saved("p")),
                ),
            ]
        lines += ["for slot in range(meta[USED]):", *inside(*self._swept())]
        if not self.inner_direct:
            lines += ["look[:] = -1", self._rebuilt(inner=True)]
        if shape.grouped:
            lines += ["for p in range(meta[PUSED]):", *inside(*self._outer_swept())]
            if not self.outer_direct:
                lines += ["plook[:] = -1", self._rebuilt(inner=False)]
        return [*lines, "meta[HELD] = holding"]

    def _swept(self) -> list[str]:
        shape = self.shape
        count = self.int32("ring.count")
        lines = [f"r = slot * {shape.inner.stride}", "q = 2 * r"]
        if shape.sliding and shape.timed and not shape.grouped:
            lines += [f"if {count} > 0:", *inside(*self._expired(), *self._saved(""))]
        return [
            *lines,
            f"if {count} == 0:",
            *inside(
                *self._rings_freed("slot"),
                f"{count} = -1",
                *(["look[keys[slot] + 1] = -1"] if self.inner_direct else []),
                f"free_record(meta, USED, rec, {shape.inner.stride}, slot)",
            ),
        ]

    def _outer_swept(self) -> list[str]:
        shape = self.shape
        count = self._outer_int("ring.count")
        free = []
        if shape.sliding:
            free.append(f"free_ring(pints, pq + {shape.outer.int32('ring')}, arena, meta, 0)")
        return [
            f"pr = p * {shape.outer.stride}",
            "pq = 2 * pr",
            f"if {count} == 0:",
            *inside(
                *free,
                f"{count} = -1",
                *(["plook[pkeys[p] + 1] = -1"] if self.outer_direct else []),
                f"free_record(meta, PUSED, prec, {shape.outer.stride}, p)",
            ),
        ]

    def _rings_freed(self, slot: str) -> list[str]:
        inner = self.shape.inner
        rings = [each.removesuffix(".mask") for each in inner.ints if each.endswith(".mask")]
        return [
            f"free_ring(ints, q + {inner.int32(each)}, arena, meta, {1 if each == 'ring' else 2})"
            for each in rings
        ]

    def _rebuilt(self, inner: bool) -> str:
        if inner:
            layout = self.shape.inner
            return f"rebuild(look, meta[USED], rec, {layout.stride}, ints, {layout.int32('ring.count')})"
        layout = self.shape.outer
        return f"rebuild(plook, meta[PUSED], prec, {layout.stride}, pints, {layout.int32('ring.count')})"
