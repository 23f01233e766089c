"""The pattern machine against the reference where PATHs give values, partitions and LATEST events.

A query is put together from clauses that make sense for its variables; events, their cut into pieces, and
what the knowledge base says of them are small, so that many coincidences happen.
"""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import ATTRIBUTES, events
from tests.hosts.test_against_reference import judged
from tests.hosts.test_shapes import PADDING
from tests.kernel.test_machine import found_by_machine

from kaicep.api import FiniteRun, build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import Mistake, SourceText
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event

pytestmark = pytest.mark.random

# q is in two rooms and has two limits; z has a limit that is not a number; of null nothing is known.
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :p :in :r1 ; :limit 2 . :q :in :r1, :r2 ; :limit 1, 2.5 . :z :in :r2 ; :limit "many" ; :name "p" .
    :r1 :floor :f1 . :r2 :floor :f1, :f2 .
"""
ANNOTATIONS = [
    {
        "stream": name,
        "prefixes": {"": "urn:kaicep:"},
        "attributes": {"x": ":level"},
        "entities": {"k": {"property": ":from", "iri": ":{value}"}},
    }
    for name in ("s", "t")
]


def run_of(text: str, some: tuple[Event, ...]) -> FiniteRun | None:
    """The run of a query, or None where it makes no sense."""
    annotations = tuple(found for each in ANNOTATIONS for found in parse_annotations(each))
    prefixes = {name: iri for each in annotations for name, iri in each.prefixes}
    data = [StreamData(n, ATTRIBUTES, [each for each in some if each.stream == n], []) for n in ("s", "t")]
    try:
        parsed = [parse_query(SourceText("q.chi", text), prefixes)]
        return build_run(parsed, data, annotations, Knowledge.parse(KNOWLEDGE), None, 0)
    except Mistake:
        return None


# --- queries -----------------------------------------------------------------------------------------------

SEQUENCES = (
    "?a, ?b",
    "?a, ?b, ?c",
    "?a, (?b | ?c)",
    "?a, (?b & ?c)",
    "?a, ?b?, ?c",
    "?a, ?b{1,2}",
    "?a, ?b+, ?c",
    "?a, ?b*",
    "?a, !?b, ?c",
    "?a, !?b",
    "(?a & ?b)",
)
SKIPS = ("NO SKIP", "NO SKIP", "SKIP TO NEXT", "SKIP PAST LAST", "SKIP TO LAST ?a")


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, list[str], list[str], list[str]]:
    """A sequence, its variables, those that are looped, and those that are absent."""
    text = draw(st.sampled_from(SEQUENCES))
    names = [each for each in "abc" if f"?{each}" in text]
    looped = [each for each in names if any(f"?{each}{sign}" in text for sign in "+*{")]
    return text, names, looped, [each for each in names if f"!?{each}" in text]


@st.composite
def valued(draw: st.DrawFn) -> str:
    """A pattern with values of PATHs in conditions and columns."""
    sequence, names, looped, absent = draw(shapes())
    blocks = {name: f"PATH {{?{name} :from/:limit ?l_{name}}}" for name in names}
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    clauses = [blocks[name] for name in chosen]
    clauses += draw(st.lists(st.sampled_from(_more_blocks(names)), max_size=2, unique=True))
    clauses += draw(st.lists(st.sampled_from(_conditions(names, chosen, looped)), max_size=3, unique=True))
    columns = ["?a.x AS a_x"] if "a" not in absent else ["?c.x AS c_x"]
    for name in chosen:
        if name not in (*looped, *absent) and draw(st.booleans()):
            columns += draw(st.sampled_from(([f"?l_{name}"], [f"?a.x - ?l_{name} AS d_{name}"])))
    return _query(draw, columns, names, clauses, sequence)


def _more_blocks(names: list[str]) -> list[str]:
    found = [f"PATH {{?{u} :from/:in ?r . ?{v} :from/:in ?r}}" for u in names for v in names if u < v]
    found += [f"PATH {{?{u} :from/:in ?room}}" for u in names]
    return [*found, "PATH {?room :floor :f2}"]


def _conditions(names: list[str], chosen: list[str], looped: list[str]) -> list[str]:
    found = []
    for u in chosen:
        found += [f"FILTER (?{v}.x > ?l_{u})" for v in names]
        found += [f"FILTER (?{v}.y < ?l_{u} * 2 || ?{v}.k = ?l_{u})" for v in names]
        found += [f"FILTER (?l_{u} >= 2)", f"FILTER (coalesce(?l_{u}, 0) != 1)"]
        found += [f"JOIN (?l_{u} <= ?l_{v})" for v in chosen if u != v]
        found += [f"JOIN (SUM(?{v}.x) > ?l_{u})" for v in looped]
        found += [f"JOIN (?{v}.x - PREV(?{v}.x) < ?l_{u})" for v in looped]
        found += [f"JOIN (COUNT(?{v}) + ?{v}.x > ?l_{u})" for v in looped]
    return found


def _query(draw: st.DrawFn, columns: list[str], names: list[str], clauses: list[str], sequence: str) -> str:
    froms = [f"(?{name}, {draw(st.sampled_from(('s', 's', 't', 's, t')))})" for name in names]
    if draw(st.integers(0, 2)):
        clauses = [*clauses, f"WINDOW ({', '.join(f'?{each}' for each in names)}, 5s)"]
    if draw(st.integers(0, 3)) == 0:
        clauses = [*clauses, draw(st.sampled_from([f"FILTER (?{each}.x > 1)" for each in names]))]
    match = draw(st.sampled_from(("any", "any", "next", "strict")))
    skip = draw(st.sampled_from(SKIPS))
    return (
        f"SELECT {', '.join(columns)} FROM {', '.join(froms)} {' '.join(clauses)}"
        f" SEQ ({sequence}) MATCH {match} AFTER MATCH {skip}"
    )


def agree(text: str, some: tuple[Event, ...], seed: int) -> None:
    """Asserts that the machine and the reference give the same, if the query makes sense."""
    every = (*some, *PADDING)
    run = run_of(text, every)
    assume(run is not None)
    assert run is not None
    assert found_by_machine(run, every, seed) == judged(run)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(valued(), events(), st.integers(0, 2**32))
def test_values_of_paths(text: str, some: tuple[Event, ...], seed: int) -> None:
    agree(text, some, seed)


def test_an_event_of_which_nothing_is_asked_stands_for_no_other() -> None:
    """All events of a stream are one where a variable does not range over it; for another they differ."""
    values = {"x": None, "y": None, "k": "p"}
    own = [Event("s", 0, seq, 0 if seq < 7 else 1_000_000, values) for seq in range(8)]
    text = """SELECT ?a.x AS a_x FROM (?a, t), (?b, s) PATH {?a :from/:limit ?l_a}
        PATH {?b :from/:limit ?l_b} PATH {?a :from/:in ?r . ?b :from/:in ?r} SEQ (?a, ?b)"""
    agree(text, (*own, Event("t", 0, 0, 0, values)), 871157)


@st.composite
def parted(draw: st.DrawFn) -> str:
    """A pattern in partitions by a variable of the PATH."""
    sequence, names, looped, absent = draw(shapes())
    way = draw(st.sampled_from((":from/:in ?room", ":from ?from_{} . ?from_{} :in ?room")))
    blocks = [f"?{name} {way.format(name, name)}" for name in names]
    joined = draw(st.sampled_from((" . ", "} PATH {")))
    clauses = [f"PATH {{{joined.join(blocks)}}}"]
    key = draw(st.sampled_from(("?room", "?room", "?room, ?a.x")))
    if draw(st.integers(0, 2)) == 0:
        clauses.append("PATH {?room :floor ?floor}")
        key = draw(st.sampled_from((key, "?floor", "?floor, ?room")))
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from(names))
        clauses += [f"PATH {{?{name} :from/:limit ?l_{name}}}", f"FILTER (?{name}.x >= ?l_{name})"]
    clauses.append(f"PARTITION BY {key}")
    columns = ["?a.x AS a_x"]
    if draw(st.booleans()) and not looped and not absent:
        columns += ["?room"]
    return _query(draw, columns, names, clauses, sequence)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(parted(), events(), st.integers(0, 2**32))
def test_partitions_by_variables_of_paths(text: str, some: tuple[Event, ...], seed: int) -> None:
    agree(text, some, seed)


@st.composite
def latest(draw: st.DrawFn) -> str:
    """A pattern with one or two LATEST variables."""
    sequence, names, looped, absent = draw(shapes())
    single = [each for each in names if each not in (*looped, *absent)]
    clauses: list[str] = []
    froms: list[str] = []
    columns = ["?a.x AS a_x"]
    for name in draw(st.sampled_from((["s"], ["s"], ["s", "t"]))):
        optional = draw(st.sampled_from(("", "", "?")))
        froms.append(f"LATEST (?{name}{optional}, {draw(st.sampled_from(('s', 't', 't', 's, t')))})")
        columns.append(draw(st.sampled_from((f"?{name}.y AS {name}_y", f"?a.x - ?{name}.x AS {name}_d"))))
        some = draw(st.lists(st.sampled_from(_of_latest(name, names, single)), max_size=3, unique=True))
        clauses += some
    paths = ["PATH {?a :from/:in ?r . ?s :from/:in ?r}", "PATH {?s :from/:limit ?l} FILTER (?s.x >= ?l)"]
    paths += ["PATH {?a :from/:limit ?l} PATH {?s :from/:in ?r} FILTER (?s.x <= ?l)"]
    if draw(st.integers(0, 2)) == 0:
        chosen = draw(st.sampled_from(paths))
        clauses.append(chosen)
        shown = [each for each in ("r", "l") if f"?{each}" in chosen and "a" not in absent]
        columns += [f"?{each}" for each in shown if draw(st.booleans())]
    elif draw(st.integers(0, 2)) == 0 and not absent:
        clauses += [f"PATH {{?{each} :from/:in ?room}}" for each in (*names, "s")] + ["PARTITION BY ?room"]
    elif draw(st.integers(0, 2)) == 0:
        clauses.append("PARTITION BY ?a.k")
    text = _query(draw, columns, names, clauses, sequence)
    return text.replace(" FROM (", f" FROM {', '.join(froms)}, (", 1)


def _of_latest(name: str, names: list[str], single: list[str]) -> list[str]:
    found = [f"JOIN (?{name}.k = ?{each}.k)" for each in single]
    found += [f"JOIN (?{name}.x + 1 = ?{each}.x && ?{name}.y > 0)" for each in single]
    found += [f"JOIN (?{name}.x <= ?{each}.x)" for each in names]
    found += [f"WINDOW (?{name}, ?{each}, 2s)" for each in single]
    return [*found, f"FILTER (?{name}.x != 2)", f"FILTER (?{name}.k IN ('p', 'q'))"]


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(latest(), events(), st.integers(0, 2**32))
def test_latest_events(text: str, some: tuple[Event, ...], seed: int) -> None:
    with mock.patch("kaicep.kernel.finished._ENOUGH", 0):  # candidates are forgotten as soon as they can be
        agree(text, some, seed)
