"""Patterns of letters: a short way to write events down, and to read the matches.

`a1@0 b1@1.5:7` is an event labelled a1 at second 0, and one labelled b1 at 1.5 s whose x is 7. The first
letter of a label is the event's `kind`; a second value, as in `b1@1:7:red`, is its `k`. A missing value
is null.
"""

from __future__ import annotations

import re
from typing import Any

from kaicep.errors import SourceText
from kaicep.language.parse_chicep import parse_chi
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import ChiPlan
from kaicep.plan.resolve import resolve_chi
from kaicep.plan.results import Answer
from kaicep.plan.types import Type
from kaicep.reference.chicep import run_chi

S = 1_000_000


def events(text: str, stream: str = "s", x: Type = Type.INT64, part: int = 0) -> list[Event]:
    made = []
    for seq, token in enumerate(text.split()):
        label, _, rest = token.partition("@")
        ts, *given = rest.split(":")
        values: dict[str, Any] = {"label": label, "kind": label[0], "x": None, "k": None}
        if given and given[0]:
            values["x"] = int(given[0]) if x is Type.INT64 else float(given[0])
        if len(given) > 1:
            values["k"] = given[1]
        made.append(Event(stream, part, seq, round(float(ts) * S), values))
    return made


def catalog(*names: str, x: Type = Type.INT64) -> Catalog:
    attributes = (("label", Type.STRING), ("kind", Type.STRING), ("x", x), ("k", Type.STRING))
    return Catalog({name: Stream(name, attributes) for name in names})


def plan_of(text: str, known: Catalog) -> ChiPlan:
    return resolve_chi(parse_chi(SourceText("query.chi", text)), known, 0)


def answers(text: str, given: str | list[Event], x: Type = Type.INT64) -> list[Answer]:
    made = events(given, x=x) if isinstance(given, str) else given
    known = catalog(*(sorted({each.stream for each in made}) or ["s"]), x=x)
    return run_chi(plan_of(text, known), made, known)


def pattern(sequence: str, clauses: str = "") -> str:
    """A query whose variables are its letters: ?a takes events of kind a."""
    letters = sorted(set(re.findall(r"\?([a-z])", sequence)))
    froms = ", ".join(f"(?{each}, s)" for each in letters)
    filters = " ".join(f"FILTER (?{each}.kind = '{each}')" for each in letters)
    return f"SELECT ?{letters[0]}.label AS first FROM {froms} WHERE {filters} SEQ ({sequence}) {clauses}"


def found(text: str, given: str | list[Event]) -> list[str]:
    """Each match as the labels of its events, by variable; sorted."""
    made = events(given) if isinstance(given, str) else given
    labels = {(each.stream, each.part, each.seq): str(each.value("label")) for each in made}
    shown = []
    for answer in answers(text, made):
        identities: list[dict[str, Any]] = []
        for each in (answer.match.events or {}).values():
            identities += each if isinstance(each, list) else [each]
        shown.append(" ".join(labels[each["stream"], each["part"], each["seq"]] for each in identities))
    return sorted(shown)
