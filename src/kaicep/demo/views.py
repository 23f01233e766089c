"""What the demo shows of its matches, on a terminal and as plain lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kaicep.demo.campus import Campus
from kaicep.history.strategies import History
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, WindowAggregate
from kaicep.plan.terms import Iri, Literal, Term
from kaicep.plan.text import resolved_text
from kaicep.plan.time import format_time
from kaicep.why.match import Statement, Why, why

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "TITLES",
    "Whereabouts",
    "ShownMatch",
    "place_of",
    "places",
    "reasons",
    "told",
    "PlainView",
    "Terminal",
    "View",
]

# ----------------------------------------------------------------------------------------------------------
# What is shown of a match: when, which room, whose, and why it holds.

TITLES: Mapping[str, str] = {
    "query1": "above 500 cfm, as vendor A says it",
    "query2": "above 500 cfm on the average of five minutes, everywhere",
    "query3": "above 500 cfm, and within five minutes 50 more",
    "query4": "an EE office above 500 cfm, whatever its vendor says",
    "query5": "an EE office above what the ontology calls green",
    "query6": "EE offices above 500 cfm on the average of five minutes",
    "query7": "a meeting room above 500 cfm, and within five minutes 50 more",
    "empty-but-cooled": "a meeting room is empty and cooled",
    "disagree": "two sensors of one room disagree",
    "fan-after-closing": "a fan runs in a building that has closed",
    "silent": "a sensor has said nothing for ten minutes",
    "rising": "three readings, each higher than the one before",
    "over-budget": "a department stays above its green budget",
}
"""What each query asks, in a few words."""

_MOST = 3
EventOf = Callable[[str, int], Event]
"""The event of a stream at a position."""


@dataclass(frozen=True)
class Whereabouts:
    """Where something is, and whose that is."""

    where: str
    department: str

    def __str__(self) -> str:
        return f"{self.where} of {self.department}"


def places(campus: Campus) -> dict[str, Whereabouts]:
    """Where things are, by what events and knowledge call them."""
    found: dict[str, Whereabouts] = {}
    floors: dict[str, str] = {}
    for room in campus.rooms:
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", room.kind).lower()
        place = Whereabouts(f"{room.sign}, {kind}", room.department.label)
        found[room.name] = found[room.sign] = place
        floors[f"{room.building.code}-FAN{room.number[0]}"] = room.department.label
        for sensor in campus.by_room[room.name]:
            found[sensor.name] = place
    for fan, building in campus.fans.items():
        found[fan] = Whereabouts(f"{building.code}, floor {fan[-1]}", floors[fan])
    for each in campus.departments:
        found[each.meter] = Whereabouts("all rooms", each.label)
    return found


@dataclass(frozen=True)
class ShownMatch:
    """A match as the demo shows it: when, where, and why it holds."""

    when: str
    where: str
    why: str


def told(match: Match, place: Whereabouts | None, why: Sequence[str]) -> ShownMatch:
    """What there is to show of a match."""
    start, end = (format_time(each)[11:19] for each in (match.start_us, match.end_us))
    where = str(place) if place is not None else "nowhere that is known"
    return ShownMatch(end if start == end else f"{start}-{end}", where, "; ".join(why) or "no more is asked")


def place_of(match: Match, event_of: EventOf, known: Mapping[str, Whereabouts]) -> Whereabouts | None:
    """Where a match is: where the first of its events is that is somewhere."""
    for identity in _identities(match):
        event = event_of(identity["stream"], identity["seq"])
        for name in ("sensorID", "room", "fan", "meter"):
            found = known.get(str(event.values.get(name)))
            if found is not None:
                return found
    return None


def reasons(match: Match, history: History, event_of: EventOf) -> list[str]:
    """Why a match holds: its conditions with the numbers in them, and what follows from the knowledge."""
    (plan,) = history.program.queries
    if isinstance(plan, ChiPlan) and isinstance(plan.body, WindowAggregate):
        return _of_window(match, plan.body)
    events = [event_of(each["stream"], each["seq"]) for each in _identities(match)]
    made = why(match, history, events)
    return [*_conditions(made), *_spans(made), *_absences(match, made), *_knowledge(made)]


def _of_window(match: Match, node: WindowAggregate) -> list[str]:
    """A window may hold more events than one wants to go through again: what it came to is in the match."""
    asked = " and ".join(resolved_text(each) for each in node.having)
    came = ", ".join(_short(each) for each in match.select.values())
    return [f"{asked} is {came}", f"over {_lasting(match.end_us - match.start_us)}"]


def _identities(match: Match) -> Iterator[dict[str, Any]]:
    for shown in (match.events or {}).values():
        yield from shown if isinstance(shown, list) else [shown]


def _conditions(made: Why) -> Iterator[str]:
    for each in made.conditions:
        same = re.fullmatch(r"(.+) = (.+)", each.filled)
        if same is None or same[1] != same[2]:  # that something is itself tells nobody anything
            yield re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), each.filled)


def _spans(made: Why) -> Iterator[str]:
    for each in made.windows:
        if each.spans:
            yield f"{_lasting(each.spans)} apart"


def _absences(match: Match, made: Why) -> Iterator[str]:
    if made.events and match.end_us > made.events[-1].event.ts:
        last = made.events[-1].event.ts
        yield f"nothing since {format_time(last)[11:19]}, for {_lasting(match.end_us - last)}"


def _knowledge(made: Why) -> list[str]:
    """What the knowledge has to say: numbers, then what was inferred, then what was asserted."""
    numbers: dict[str, None] = {}
    inferred: dict[str, None] = {}
    asserted: dict[str, None] = {}
    for shown in made.paths:
        for name, term in sorted(shown.proof.bindings.items()):
            if isinstance(term, Literal) and re.fullmatch(r"[\d.Ee+-]+", term.lexical):
                numbers[f"?{name} is {float(term.lexical):g}"] = None
        for each in shown.proof.statements:
            if each.rule != "event" and isinstance(each.triple[2], Iri):
                (asserted if each.rule == "asserted" else inferred)[_statement(each)] = None
    return [*numbers, *[*inferred, *asserted][:_MOST]]


def _statement(statement: Statement) -> str:
    subject, predicate, value = (_name(each) for each in statement.triple)
    if predicate != "type":
        return f"{subject} {predicate} {value}"
    asserted = next((each for each in statement.premises if each.triple[0] == statement.triple[0]), None)
    if asserted is None:
        return f"{subject} is {_one(value)}"
    return f"{subject} is {_one(_name(asserted.triple[2]))}, hence {_one(value)}"


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"


def _lasting(microseconds: int) -> str:
    """How long something takes.

    >>> _lasting(196_000_000), _lasting(23_000_000)
    ('3 min 16 s', '23 s')
    """
    minutes, seconds = divmod(microseconds // 1_000_000, 60)
    shown = [f"{minutes} min"] if minutes else []
    return " ".join([*shown, f"{seconds} s"] if seconds or not minutes else shown)


def _name(term: Term) -> str:
    text = term.value if isinstance(term, Iri) else term.lexical if isinstance(term, Literal) else str(term)
    return re.split(r"[#/]", text)[-1]


def _short(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


# ----------------------------------------------------------------------------------------------------------
# Where the demo is seen: a terminal that is updated in place, or plain lines.

_WIDE = 110
"""Columns of a terminal that has room for what each query asks."""


class View(Protocol):
    """Takes what there is to show."""

    def say(self, text: str) -> None:
        """Says how things go on."""
        ...

    def found(self, query: str, total: int, told: ShownMatch | None) -> None:
        """A query has so many matches; one of them may be shown."""
        ...

    def status(self, text: str, share: float) -> None:
        """What is being done, and how much of it, from 0 to 1."""
        ...

    def rest(self) -> None:
        """A part of the demo is over: shows what was found in it."""
        ...

    def close(self) -> None:
        """Lets go of the screen; what is said after that stays."""
        ...


class _Found:
    """The matches by query: how many, and the one that is shown."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(TITLES, 0)
        self.shown: dict[str, ShownMatch] = {}

    def take(self, query: str, total: int, told: ShownMatch | None) -> None:
        self.totals[query] = total
        if told is not None:
            self.shown[query] = told

    def rows(self) -> Iterator[tuple[str, str, str, ShownMatch]]:
        """Of each query its name, how many matches it has, what it asks for, and one of them."""
        for name, total in self.totals.items():
            yield (
                name,
                f"{total:,}" if total else "",
                TITLES[name],
                self.shown.get(name, ShownMatch("", "", "")),
            )


class PlainView:
    """Lines: what is said, and a table of what was found at the end of each part."""

    def __init__(self) -> None:
        self._found = _Found()

    def say(self, text: str) -> None:
        """Prints it."""
        print(text, flush=True)

    def found(self, query: str, total: int, told: ShownMatch | None) -> None:
        """Keeps it for the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Says nothing: what changes all the time is for a screen."""

    def rest(self) -> None:
        """Prints the table."""
        rows = [("query", "matches", "one of them", "where", "why")]
        rows += [(name, total, *vars(told).values()) for name, total, _, told in self._found.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for name, total, *rest in rows:
            cells = [each.ljust(width) for each, width in zip(rest, widths[2:], strict=False)]
            print("  ".join(["", name.ljust(widths[0]), total.rjust(widths[1]), *cells, rest[-1]]).rstrip())
        print(flush=True)

    def close(self) -> None:
        """Has nothing to let go of."""


class Terminal:
    """What is said scrolls by; below it stands a table of what was found, drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._found = _Found()
        self._status = ""
        self._share = 0.0
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=6)
        self._live.start()

    def say(self, text: str) -> None:
        """Prints it above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._live.is_started)

    def found(self, query: str, total: int, told: ShownMatch | None) -> None:
        """Shows it in the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Shows it below the table, with a bar."""
        self._status, self._share = text, share

    def rest(self) -> None:
        """The table is there all the time."""

    def close(self) -> None:
        """Leaves the last picture on the screen, without the bar."""
        self._status = ""
        self._live.stop()

    def _drawn(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        wide = self._console.width >= _WIDE
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("query", style="bold cyan", no_wrap=True)
        table.add_column("matches", justify="right", style="green", no_wrap=True)
        if wide:
            table.add_column("asks for", no_wrap=True, ratio=4)
        table.add_column("when", style="magenta", no_wrap=True)
        table.add_column("where", style="yellow", no_wrap=True, ratio=3)
        table.add_column("why", style="dim", no_wrap=True, ratio=4)
        for name, total, title, told in self._found.rows():
            asked = [Text(title)] if wide else []
            table.add_row(name, total, *asked, told.when, Text(told.where), Text(told.why))
        if not self._status:
            return Group(Text(""), table)
        bar = ProgressBar(total=1.0, completed=self._share, width=30)
        return Group(Text(""), table, Columns([bar, Text(self._status, style="cyan")]))
