"""The pictures of docs/concepts.md, drawn by a program so that they can be changed.

    .venv/bin/python scripts/pictures.py

writes docs/pictures/*.svg. What they show is run as sessions in docs/concepts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
INK, GREY, LIGHT = "#37352f", "#787774", "#e3e2e0"
BLUE, ORANGE, GREEN, RED, PURPLE = "#0b6e99", "#d9730d", "#448361", "#c0392b", "#9065b0"
STYLE = """<style>text{font:13px system-ui,sans-serif;fill:#37352f}.s{font-size:11px;fill:#787774}
.b{font-weight:600}.w{fill:#fff;font-weight:600;font-size:12px}</style>"""


class Sheet:
    """A sheet to draw on; the shapes come out in the order in which they were drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
            STYLE,
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
        ]

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", fill: str = ""
    ) -> None:
        """A line of text; `kind` is s for small, b for bold, w for white."""
        colour = f' style="fill:{fill}"' if fill else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}"{colour}>{escape(text)}</text>'
        )

    def line(
        self,
        x: float,
        y: float,
        to: float,
        down: float,
        colour: str = GREY,
        dash: str = "",
        width: float = 1.5,
    ) -> None:
        """A straight line."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<path d="M{x:g} {y:g}L{to:g} {down:g}" stroke="{colour}" stroke-width="{width:g}"'
            f' fill="none"{dashed}/>'
        )

    def arc(self, x: float, to: float, y: float, colour: str, dash: str = "") -> None:
        """From one event to the next, above the axis."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        high = y - 12 - abs(to - x) * 0.16
        self._parts.append(
            f'<path d="M{x:g} {y:g}Q{(x + to) / 2:g} {high:g} {to:g} {y:g}" stroke="{colour}"'
            f' stroke-width="2" fill="none"{dashed}/>'
        )

    def event(self, x: float, y: float, label: str, colour: str = BLUE, hollow: bool = False) -> None:
        """An event: a circle with its name."""
        fill, kind = ("#fff", "") if hollow else (colour, "w")
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="13" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
        )
        self.text(x, y + 4, label, kind, "middle")

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 0.12
    ) -> None:
        """A coloured area."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{colour}"'
            f' fill-opacity="{opacity:g}"/>'
        )

    def axis(self, x: float, to: float, y: float, label: str = "") -> None:
        """A line with an arrow, and what it is."""
        self.line(x, y, to, y, INK)
        self._parts.append(f'<path d="M{to:g} {y:g}l-8 -4v8z" fill="{INK}"/>')
        if label:
            self.text(to, y + 18, label, "s", "end")

    def done(self) -> str:
        """The sheet as SVG."""
        return "\n".join([*self._parts, "</svg>", ""])


def order() -> str:
    """Two parts, their watermarks, and one late event."""
    sheet = Sheet(760, 346, "Two parts of a stream, in the order of arrival and in event time")
    at = lambda minute: 120 + minute * 52  # noqa: E731
    sheet.text(20, 28, "arrival", "b")
    sheet.text(
        20,
        46,
        "what each part of the source sends, first to last; the number is the event time in minutes",
        "s",
    )
    for y, name, minutes in ((84, "part 0", (1, 2, 5, 4, 9, 3)), (128, "part 1", (2, 3, 6, 8))):
        sheet.text(20, y + 5, name)
        sheet.line(90, y, 520, y, LIGHT)
        for place, minute in enumerate(minutes):
            late = (name, minute) == ("part 0", 3)
            sheet.event(
                120 + place * 72, y, str(minute), RED if late else BLUE if name == "part 0" else GREEN
            )
    sheet.text(540, 80, "late: 3 < 9 - 2,", "s", fill=RED)
    sheet.text(540, 95, "by what came before it in its part", "s", fill=RED)
    sheet.text(20, 190, "event time", "b")
    sheet.text(20, 208, "the order in which every host evaluates: (time, part, position)", "s")
    y = 276
    sheet.box(at(0), y - 30, at(6) - at(0), 60, GREEN, 0.1)
    sheet.axis(100, 720, y)
    used = [(1, 0), (2, 0), (2, 1), (3, 1), (4, 0), (5, 0), (6, 1), (8, 1), (9, 0)]
    for minute, part in used:
        ties = [each for each in used if each[0] == minute]
        shift = 0 if len(ties) == 1 else -14 + 28 * ties.index((minute, part))
        sheet.event(at(minute) + shift, y, str(minute), (BLUE, GREEN)[part], hollow=minute >= 6)
    for minute, name in ((6, "watermark of part 1"), (7, "watermark of part 0")):
        sheet.line(at(minute), y - 42, at(minute), y + 40, ORANGE if minute == 6 else GREY, "5 3")
        side = "end" if minute == 6 else "start"
        sheet.text(at(minute), y + 56, f"{name} = {minute + 2} - 2", "s", side)
    sheet.text(at(3), y - 36, "certain: nothing earlier can come any more", "s", "middle", GREEN)
    sheet.text(at(9.3), y - 36, "waiting", "s", "middle")
    return sheet.done()


# One small stream, and the pairs that each strategy finds in it for SEQ (?a, ?b).
STREAM = ("a1", "x1", "b1", "a2", "b2", "b3")
PAIRS: Mapping[str, Sequence[tuple[str, str]]] = {
    "any": (("a1", "b1"), ("a1", "b2"), ("a1", "b3"), ("a2", "b2"), ("a2", "b3")),
    "next": (("a1", "b1"), ("a2", "b2")),
    "strict": (("a2", "b2"),),
}
SAYS = {
    "any": "every b after an a: whatever lies between may be passed over",
    "next": "for each a the earliest b after it: what does not fit may be passed over",
    "strict": "the very next event: nothing may be passed over, x1 is in the way",
}


def strategies() -> str:
    """What any, next and strict find in the same six events."""
    sheet = Sheet(760, 408, "SEQ (?a, ?b) under MATCH any, next and strict")
    sheet.text(20, 28, "SEQ (?a, ?b) on the same six events", "b")
    place = {name: 190 + 96 * number for number, name in enumerate(STREAM)}
    for number, (name, pairs) in enumerate(PAIRS.items()):
        y = 140 + number * 117
        sheet.box(12, y - 90, 736, 111, (BLUE, ORANGE, GREEN)[number], 0.06)
        sheet.text(24, y - 2, f"MATCH {name}", "b")
        sheet.text(24, y + 34 - 18, f"{len(pairs)} match{'es' * (len(pairs) != 1)}", "s")
        sheet.text(180, y - 76, SAYS[name], "s")
        sheet.line(165, y, 720, y, LIGHT)
        for first, last in pairs:
            sheet.arc(place[first], place[last], y - 13, (BLUE, PURPLE)[first == "a2"])
        for each, x in place.items():
            sheet.event(x, y, each, {"a": BLUE, "b": GREEN, "x": GREY}[each[0]], hollow=each[0] == "x")
    return sheet.done()


def gaps() -> str:
    """Archive and live source as they really are, and the cut between them."""
    sheet = Sheet(760, 380, "Overlap and gap between archive and live source, and the cut")
    at = lambda position: 150 + position * 44  # noqa: E731
    rows = (
        (64, "overlap", range(8), range(6, 13), "6 and 7 are in both: seen twice, if joined by the clock"),
        (
            172,
            "gap",
            range(6),
            range(8, 13),
            "6 and 7 are in flight: seen by neither, if joined by the clock",
        ),
    )
    for y, name, kept, live, says in rows:
        sheet.text(20, y - 30, name, "b")
        sheet.text(150, y - 30, says, "s")
        sheet.text(20, y + 4, "archive")
        sheet.text(20, y + 40, "live")
        for position in kept:
            sheet.event(at(position), y, str(position), RED if position in live else BLUE)
        for position in live:
            sheet.event(at(position), y + 36, str(position), RED if position in kept else GREEN)
        for position in set(range(13)) - {*kept, *live}:
            sheet.event(at(position), y + 18, str(position), RED, hollow=True)
    y = 306
    sheet.text(20, y - 50, "the cut", "b")
    sheet.text(
        150,
        y - 50,
        "a version of the archive holds exactly the positions below 7; the live side begins at 7",
        "s",
    )
    sheet.text(20, y + 4, "one answer")
    sheet.box(at(4.5), y - 34, at(9.5) - at(4.5), 62, ORANGE, 0.12)
    for position in range(13):
        sheet.event(at(position), y, str(position), BLUE if position < 7 else GREEN)
    sheet.line(at(6.5), y - 42, at(6.5), y + 36, ORANGE, "5 3", 2)
    sheet.text(at(6.5), y + 52, "a match may span the cut: one window before it, one after", "s", "middle")
    return sheet.done()


PICTURES: Mapping[str, Callable[[], str]] = {
    "order.svg": order,
    "strategies.svg": strategies,
    "gaps.svg": gaps,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in PICTURES.items():
        (FOLDER / name).write_text(drawn(), "utf-8")
        print(f"docs/pictures/{name}")
