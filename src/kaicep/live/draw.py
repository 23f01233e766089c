"""A graph as a person reads it: as text, and as a drawing where graphviz is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from kaicep.errors import Failure
from kaicep.live.graph import PRIORITIES, Consumer, Graph, Operator, Supplier
from kaicep.plan.time import format_duration

__all__ = ["as_dot", "as_text", "draw", "priority_name"]

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
        [dot, f"-T{format}"], input=as_dot(graph).encode(), capture_output=True, check=False
    )
    if done.returncode:
        raise Failure(f"graphviz could not draw the graph: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
