"""A graph from a file: TOML, or the rows of the CPEP paper (its section III)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.live.graph import KINDS, Consumer, Graph, Node, NodePlace, Operator, Supplier, priority_of
from kaicep.plan.time import parse_duration
from kaicep.plan.toml import key_spans, read_source, read_toml

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
            span = Span(header.start + 2, header.end - 2) if header else reader.top(key)
            raise Mistake(f"a graph has no {key}", span, source, did_you_mean(key, _TOP))
    outdated = read.get("outdated", "discard")
    if outdated not in ("mark", "discard"):
        reader.wrong.append(Diagnostic("outdated is mark or discard", reader.top("outdated"), source))
    cores = read.get("cores")
    if cores is not None and (not isinstance(cores, int) or isinstance(cores, bool) or cores < 1):
        reader.wrong.append(Diagnostic("cores is a whole number above 0", reader.top("cores"), source))
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


class _GraphReader:
    """Makes nodes of tables, and collects what is wrong with them, each at its place."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.spans = key_spans(source.text)
        self.wrong: list[Diagnostic] = []
        self.place = NodePlace(source, Span(0, 0))

    def top(self, key: str) -> Span | None:
        return self.spans.get((key,))

    def tables(self, table: str, rows: Any, make: Callable[[str, Mapping[str, Any]], Node]) -> list[Node]:
        made: list[Node] = []
        if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
            self.wrong.append(
                Diagnostic(f"{table}s are written as [[{table}]]", self.top(table), self.source)
            )
            return made
        for number, row in enumerate(rows):
            self.place = self.place_of(table, number, row)
            name = row.get("name")
            if not isinstance(name, str) or not name:
                self.say(f"this {table} has no name", "name")
            else:
                made.append(make(name, row))
        return made

    def place_of(self, table: str, number: int, row: Mapping[str, Any]) -> NodePlace:
        """The place of the n-th table of a name, with its keys; a table may be written in several ways."""
        here = self.spans.get((table, number), Span(0, 0))
        keys = {key: self.spans.get((table, number, key)) for key in row}
        return NodePlace(self.source, here, {key: span for key, span in keys.items() if span})

    def say(self, message: str, key: str, hint: str | None = None) -> None:
        span = self.place.keys.get(key, self.place.span)
        self.wrong.append(Diagnostic(message, span, self.source, hint))

    def known(self, what: str, row: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in row:
            if key not in keys:
                self.say(f"a {what} has no {key}", key, did_you_mean(key, keys))

    def duration(self, row: Mapping[str, Any], key: str) -> int | None:
        if key not in row:
            return None
        micros = parse_duration(row[key]) if isinstance(row[key], str) else None
        if micros is None:
            self.say(f"{key} is not a duration", key, 'a number and a unit in quotes, such as "10ms"')
        return micros

    def number(self, row: Mapping[str, Any], key: str, default: int | None) -> int | None:
        value = row.get(key, default)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            self.say(f"{key} is a whole number", key)
            return default
        return value

    def text(self, row: Mapping[str, Any], key: str, default: str) -> str:
        value = row.get(key, default)
        if not isinstance(value, str):
            self.say(f"{key} is a text", key)
            return default
        return value

    def flag(self, row: Mapping[str, Any], key: str) -> bool:
        value = row.get(key, False)
        if not isinstance(value, bool):
            self.say(f"{key} is true or false", key)
        return value is True

    def supplier(self, name: str, row: Mapping[str, Any]) -> Supplier:
        self.known("supplier", row, _SUPPLIER)
        source = row.get("source", {})
        if not isinstance(source, dict):
            self.say("source is a table", "source", 'such as source = {kind = "noise", size = 512}')
            source = {}
        return Supplier(
            name,
            self.duration(row, "validity"),
            self.duration(row, "period"),
            self.number(row, "ring", None),
            self.text(row, "type", "samples"),
            source,
            self.place,
        )

    def operator(self, name: str, row: Mapping[str, Any]) -> Operator:
        inputs = row.get("inputs", [])
        if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs):
            self.say("inputs is a list of names", "inputs", 'such as inputs = ["radar"]')
            inputs = []
        if "kind" not in row:
            self.say(f"{name}: name the kind of operator", "name", did_you_mean("", KINDS))
        settings = {key: each for key, each in row.items() if key not in _OPERATOR}
        kind = self.text(row, "kind", "python").lower()
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
            place=self.place,
        )

    def consumer(self, name: str, row: Mapping[str, Any]) -> Consumer:
        self.known("consumer", row, _CONSUMER)
        if "input" not in row:
            self.say(f"{name} has no input", "name", 'such as input = "spectrum"')
        priority = 1
        try:
            priority = priority_of(row.get("priority", 1))
        except Mistake as mistake:
            self.say(mistake.diagnostics[0].message, "priority", mistake.diagnostics[0].hint)
        output = self.text(row, "output", "") or None
        queue = self.number(row, "queue", 64) or 0
        return Consumer(name, self.text(row, "input", ""), priority, None, queue, output, self.place)


# --- the paper's rows --------------------------------------------------------------------------------------


def parse_rows(source: SourceText, validity: int | None = None, period: int | None = None) -> Graph:
    """The graph of rows as the paper has them, checked.

    A row is an operator: its kind, the number of operators that follow, their numbers (from 1), and a
    priority if a consumer gets its events. A row may also be a supplier, which several operators can share:
    `SUPPLIER`, its followers, and if it has them its validity and its period. An operator that follows
    nothing has a supplier of its own, `s1`, `s2` and so on, with the validity and the period given here.
    `#` starts a comment.

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
            own = Supplier(next(free), validity, period, type="any")
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
