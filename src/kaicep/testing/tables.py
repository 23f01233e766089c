"""Small text tables: how a test writes down events and expected matches.

    event | ts | sensor | x
    a1    | 0  | s1     | 510.0
    a2    | 60 | s1     |

Cells are read as a CSV cell would be; an empty one is null. A row of dashes is passed over.
"""

from __future__ import annotations

__all__ = ["format_table", "parse_table"]


def parse_table(text: str) -> list[dict[str, str]]:
    """The rows of a table by column.

    >>> parse_table('''
    ...   a | b
    ...   1 |
    ... ''')
    [{'a': '1', 'b': ''}]
    """
    lines = [line for line in text.splitlines() if line.strip() and set(line.strip()) - set("-+| ")]
    if not lines:
        return []
    header = [cell.strip() for cell in lines[0].split("|")]
    rows: list[dict[str, str]] = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} cells under {len(header)} columns: {line.strip()}")
        rows.append(dict(zip(header, cells, strict=True)))
    return rows


def format_table(columns: list[str], rows: list[tuple[str, ...]]) -> str:
    """The rows as a table that a person reads.

    >>> print(format_table(["a", "b"], [("1", "22")]))
    a | b
    1 | 22
    """
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [tuple(columns), *rows]
    )
    return "\n".join(line.rstrip() for line in lines)
