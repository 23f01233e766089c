"""Random queries over random events: text in, so that all stages take part.

A run is drawn as a whole: queries that may read each other's output, events on two streams in several
parts with ties, nulls and stragglers, knowledge about the values of `k`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

from kaicep.api import FiniteRun, build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import Mistake, SourceText
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event
from kaicep.plan.types import Type

S = 1_000_000
ATTRIBUTES = (("x", Type.INT64), ("y", Type.FLOAT64), ("k", Type.STRING))
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Office rdfs:subClassOf :Room .
    :p :in :r1 . :q :in :r2, :r3 .
    :r1 a :Office ; :of :EE . :r2 a :Lab ; :of :CS . :r3 a :Office ; :of :EE, :CS .
    :limit :value 2 .
"""
ANNOTATIONS = [
    {
        "stream": name,
        "class": ":Report",
        "prefixes": {"": "urn:kaicep:"},
        "attributes": {"x": ":level"},
        "entities": {"k": {"property": ":from", "iri": ":{value}"}},
    }
    for name in ("s", "t")
]


@dataclass(frozen=True)
class Drawn:
    """Queries by name, events in the order of arrival inside each part, and the lateness."""

    queries: dict[str, str]
    events: tuple[Event, ...]
    lateness: int | None

    def run(self) -> FiniteRun | None:
        """The run, or None where a query makes no sense."""
        annotations = tuple(found for each in ANNOTATIONS for found in parse_annotations(each))
        prefixes = {name: iri for each in annotations for name, iri in each.prefixes}
        data = [
            StreamData(name, ATTRIBUTES, [each for each in self.events if each.stream == name], [])
            for name in ("s", "t")
        ]
        try:
            parsed = [
                parse_query(SourceText(f"{name}.chi", text), prefixes) for name, text in self.queries.items()
            ]
            return build_run(parsed, data, annotations, Knowledge.parse(KNOWLEDGE), self.lateness, 0)
        except Mistake:
            return None


# --- events ----------------------------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn, most: int = 9) -> tuple[Event, ...]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("s", "s", "s", "t")),
                st.sampled_from((0, 0, 0, 1)),
                st.integers(0, 8),
                st.sampled_from((None, 0, 1, 2, 2, 3, 3, 4)),
                st.sampled_from((None, 0.1, 0.2, 1e16, -1e16, 2.5, -0.0, 3.0)),
                st.sampled_from(("p", "p", "p", "q", "q", "z", None)),
            ),
            min_size=draw(st.sampled_from((1, 5, 7))),
            max_size=most,
        )
    )
    made = []
    positions: dict[tuple[str, int], int] = {}
    for stream, part, ts, x, y, k in rows:
        seq = positions.get((stream, part), 0)
        positions[stream, part] = seq + 1
        made.append(Event(stream, part, seq, ts * S, {"x": x, "y": y, "k": k}))
    return tuple(made)


# --- patterns --------------------------------------------------------------------------------------------

NAMES = "abcd"


@st.composite
def patterns(draw: st.DrawFn, sources: tuple[str, ...] = ("s", "t")) -> str:
    names = list(NAMES[: draw(st.integers(1, 4))])
    left = list(draw(st.permutations(names)))
    places: list[str] = []
    loops: list[str] = []
    absent: list[str] = []
    positive: list[str] = []
    while left:
        name = left.pop()
        kinds = ["place", "place", "place", "loop"]
        if positive:
            kinds.append("absent")
        if left:
            kinds += ["choice", "together"]
        kind = draw(st.sampled_from(kinds))
        if kind == "place":
            places.append(f"?{name}")
        elif kind == "loop":
            places.append(f"?{name}{draw(st.sampled_from(('+', '*', '?', '{2}', '{1,2}', '{,2}', '{2,}')))}")
            loops.append(name)
        elif kind == "absent":
            places.append(f"!?{name}")
            absent.append(name)
            continue
        else:
            other = left.pop()
            mark = draw(st.sampled_from(("", "", "+", "?", "*")))
            if mark:
                loops.append(other)
            sign = "|" if kind == "choice" else "&"
            places.append(f"(?{name} {sign} ?{other}{mark})")
            positive.append(other)
        positive.append(name)
    single = [each for each in positive if each not in loops]
    clauses = [draw(st.sampled_from(_filters(name))) for name in names if draw(st.integers(0, 2)) == 0]
    clauses += (
        draw(st.lists(st.sampled_from(_joins(names, loops)), max_size=draw(st.sampled_from((0, 0, 1, 2)))))
        if len(names) > 1 or loops
        else []
    )
    if len(names) > 1 and draw(st.integers(0, 3)) == 0:
        clauses += [f"JOIN (?{u}.k = ?{v}.k)" for u, v in pairwise(names)]
    shown = ", ".join(f"?{each}" for each in names)
    if draw(st.integers(0, 4)):
        clauses.append(f"WINDOW ({shown}, {draw(st.sampled_from((1, 3, 5, 8)))}s)")
    if draw(st.integers(0, 5)) == 0:
        some = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        clauses.append(f"WINDOW ({', '.join(f'?{each}' for each in some)}, {draw(st.integers(0, 4))}s)")
    clauses.append("MATCH " + draw(st.sampled_from(("any", "any", "next", "next", "strict"))))
    skips = ["NO SKIP", "NO SKIP", "SKIP TO NEXT", "SKIP PAST LAST"]
    skips += [f"SKIP TO {edge} ?{draw(st.sampled_from(positive))}" for edge in ("FIRST", "LAST")]
    clauses.append("AFTER MATCH " + draw(st.sampled_from(skips)))
    if draw(st.integers(0, 2)) == 0:
        clauses.append(f"PARTITION BY ?{names[0]}.k")
    selected = [f"?{each}.x AS {each}_x" for each in positive]
    selected += [f"{op}(?{each}.y) AS {op}_{each}" for each in loops for op in ("SUM", "COUNT", "LAST")]
    if draw(st.integers(0, 2)) == 0:
        chosen = draw(st.sampled_from(_paths(names, single, absent)))
        clauses.append(chosen)
        if (
            "?room" in chosen
            and draw(st.booleans())
            and not any(f"?{n} " in chosen for n in (*loops, *absent))
        ):
            selected.append("?room")
    if draw(st.integers(0, 5)) == 0:
        clauses.insert(
            0, "WITHIN " + draw(st.sampled_from(("[1970-01-01T00:00:02, )", "(, 1970-01-01T00:00:06]")))
        )
    else:
        clauses.insert(0, "")
    froms = []
    for name in names:
        some = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2, unique=True))
        froms.append(f"(?{name}, {', '.join(some)})")
    within, *rest = clauses
    return (
        f"SELECT {', '.join(selected)} FROM {', '.join(froms)} {within} WHERE "
        + " ".join(rest)
        + f" SEQ ({', '.join(places)})"
    )


def _filters(name: str) -> list[str]:
    return [
        f"FILTER (?{name}.x > 1)",
        f"FILTER (?{name}.x <= 2)",
        f"FILTER (?{name}.k = 'p' || ?{name}.x = 3)",
        f"FILTER (!(?{name}.y < 1))",
        f"FILTER (?{name}.k IN ('q', null))",
    ]


def _joins(names: list[str], loops: list[str]) -> list[str]:
    found = [
        text
        for u in names
        for v in names
        if u != v
        for text in (f"JOIN (?{u}.x < ?{v}.x)", f"JOIN (?{u}.k = ?{v}.k)", f"JOIN (?{u}.y + ?{v}.y >= 0)")
    ]
    for u in loops:
        found += [
            f"FILTER (?{u}.x >= PREV(?{u}.x))",
            f"FILTER (COUNT(?{u}.x) >= 2)",
            f"FILTER (SUM(?{u}.x) <= ?{u}.x + 2)",
            f"FILTER (COUNT(DISTINCT ?{u}.k) = 1)",
            f"FILTER (AVG(?{u}.y) < FIRST(?{u}.y) + MAX(?{u}.x) - MIN(?{u}.x))",
        ]
        found += [f"JOIN (COUNT(?{u}) > ?{v}.x)" for v in names if v != u]
    return found


def _paths(names: list[str], single: list[str], absent: list[str]) -> list[str]:
    found = []
    for u in names:
        found += [
            f"PATH {{?{u} :from ?e1 . ?e1 :in ?room . ?room a :Office}}",
            f"PATH {{?{u} :level ?l . :limit :value ?v . FILTER (?l > ?v)}}",
            f"PATH {{?{u} :from :p}} OR PATH {{?{u} :level 3}}",
        ]
        found += [
            f"PATH {{?{u} :from ?e1 . ?e1 :in ?room . ?{v} :from ?e2 . ?e2 :in ?room}}"
            for v in names
            if u != v and not (u in absent and v in absent)
        ]
    if len(names) > 1:
        found.append(" ".join(f"PATH {{?{u} :from ?e_{u} . ?e_{u} :in ?room_{u}}}" for u in names))
    return found


# --- windows ---------------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn, sources: tuple[str, ...] = ("s", "t")) -> str:
    kind = draw(st.sampled_from(("sliding", "batch")))
    size = draw(st.sampled_from(("1s", "3s", "5s", "1", "2", "3")))
    columns = [
        "COUNT(?e) AS n",
        "COUNT(?e.x) AS nx",
        "COUNT(DISTINCT ?e.k) AS nk",
        "SUM(?e.y) AS total",
        "SUM(?e.x) AS totalx",
        "AVG(?e.y) AS mean",
        "AVG(?e.x) AS meanx",
        "MIN(?e.y) AS least",
        "MAX(?e.k) AS most",
        "STDDEV(?e.y) AS spread",
        "STDDEV(?e.x) AS spreadx",
        "FIRST(?e.x) AS first",
        "LAST(?e.y) AS last",
        "MIN(?e.x + 1) AS more",
    ]
    chosen = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=5, unique=True))
    clauses = [f"WINDOW (?e, {kind}, {size})"]
    grouped = draw(st.booleans())
    if grouped:
        clauses.append("GROUP BY ?e.k")
    if kind == "sliding":
        chosen.append("?e.x AS now")
    elif grouped:
        chosen.append("?e.k AS group")
    if draw(st.booleans()):
        clauses.append(draw(st.sampled_from(("PARTITION BY ?e.k", "PARTITION BY ?e.k, ?e.x"))))
    if draw(st.booleans()):
        clauses.append(draw(st.sampled_from(_filters("e"))))
    if draw(st.booleans()):
        clauses.append(draw(st.sampled_from(("HAVING (COUNT(?e) > 1)", "HAVING (SUM(?e.y) > AVG(?e.x))"))))
    if draw(st.integers(0, 3)) == 0:
        clauses.append("PATH {?e :from ?e1 . ?e1 :in ?room . ?room a :Room}")
        if kind == "sliding":
            chosen.append("?room")
    some = draw(st.lists(st.sampled_from(sources), min_size=1, max_size=2, unique=True))
    return f"SELECT {', '.join(chosen)} FROM (?e, {', '.join(some)}) WHERE {' '.join(clauses)}"


@st.composite
def runs(draw: st.DrawFn) -> Drawn:
    queries = {"one": draw(st.one_of(patterns(), patterns(), windows()))}
    if draw(st.booleans()):
        # The output of the first has columns of its own; what both have is the time.
        queries["two"] = draw(
            st.sampled_from(
                (
                    "SELECT ?u.ts AS at FROM (?u, one), (?v, s) SEQ (?u, ?v) WINDOW (?u, ?v, 3s) MATCH next",
                    "SELECT ?v.ts AS at FROM (?v, s), (?u, one) SEQ (?v, !?u) WINDOW (?u, ?v, 2s)",
                    "SELECT COUNT(?e) AS n FROM (?e, one) WINDOW (?e, batch, 3s)",
                    "SELECT COUNT(?e) AS n FROM (?e, one, s) WINDOW (?e, sliding, 2)",
                    "SELECT ?u.ts AS at FROM (?u, one), (?v, one, t) SEQ (?u, ?v+) MATCH strict",
                )
            )
        )
    lateness = draw(st.sampled_from((None, 0, 1 * S, 3 * S)))
    return Drawn(queries, draw(events()), lateness)
