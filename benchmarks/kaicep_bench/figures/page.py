"""The page of numbers that stands beside the pictures, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kaicep_bench.figures.claim import Drawing
from kaicep_bench.table import Cell

__all__ = ["page"]


def page(
    about: Mapping[str, Cell],
    quick: bool,
    parts: Sequence[tuple[str, str, Drawing]],
    failures: Sequence[str],
) -> str:
    """The page: machine and date, and a table for each figure by its name and title."""
    lines = [
        "# The numbers of the figures",
        "",
        f"Written by `kaicep bench figures{' --quick' if quick else ''}`: "
        + ", ".join(f"{name} {value}" for name, value in about.items())
        + ".",
        "A dash stands where this run has nothing to compare.",
    ]
    for name, title, drawing in parts:
        lines += ["", f"## {title}", "", f"![{title}]({name}.png)", "", f"Rows: [{name}.csv]({name}.csv)", ""]
        lines += ["| what | here | paper | said in |", "|---|---|---|---|"]
        lines += [
            f"| {each.what} | {each.here or '-'} | {each.paper} | {each.where} |" for each in drawing.claims
        ]
    if failures:
        lines += ["", "## Not drawn", "", *(f"- {each}" for each in failures)]
    return "\n".join([*lines, ""])
