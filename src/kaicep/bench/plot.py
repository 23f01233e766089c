"""A table as a picture: one line, both axes logarithmic, in SVG."""

from __future__ import annotations

import math
from html import escape

from kaicep.bench.table import Table

__all__ = ["plot"]

_WIDTH, _HEIGHT, _MARGIN = 480, 320, 60


def plot(table: Table, across: str, up: str) -> str:
    """The column `up` over the column `across`.

    >>> picture = plot(Table("t", [{"n": 10, "ns": 5.0}, {"n": 100, "ns": 50.0}]), "n", "ns")
    >>> picture.count("<circle"), "<polyline" in picture
    (2, True)
    """
    points = [(float(row[across] or 0), float(row[up] or 0)) for row in table.rows]
    low, high = _decades([y for _, y in points])
    left, right = math.log10(points[0][0]), math.log10(points[-1][0])

    def x(value: float) -> float:
        return _MARGIN + (math.log10(value) - left) / ((right - left) or 1) * (_WIDTH - 2 * _MARGIN)

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN - (math.log10(value) - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">',
        '<style>text { font: 12px sans-serif }</style><rect width="100%" height="100%" fill="white"/>',
        _text(_WIDTH / 2, _HEIGHT - 12, across),
        _text(_WIDTH / 2, 24, f"{up} over {across}"),
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        lines.append(f'<path d="M{_MARGIN} {at:.1f}H{_WIDTH - _MARGIN}" stroke="#ddd"/>')
        lines.append(_text(_MARGIN - 24, at + 4, f"{10**power:,}"))
    lines += [_text(x(value), _HEIGHT - _MARGIN + 20, f"{value:,.0f}") for value, _ in points]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    lines.append(f'<polyline points="{path}" fill="none" stroke="#06c" stroke-width="2"/>')
    lines += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="#06c"/>' for a, b in points]
    return "\n".join([*lines, "</svg>", ""])


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten that the values lie between."""
    low = math.floor(math.log10(min(values)))
    return max(low, 0), max(math.ceil(math.log10(max(values))), low + 1, 1)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'
