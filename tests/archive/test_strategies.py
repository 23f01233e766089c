"""Replay, rewrite and hybrid: three ways through the past, one answer (section 5 of the SCEPter paper)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaicep.api import build_run, parse_query, read_query
from kaicep.archive.archive import Archive
from kaicep.archive.as_sparql import rewrite_to_sparql
from kaicep.archive.parquet import TableShape
from kaicep.connectors.files import StreamData, read_stream
from kaicep.connectors.shape import Form
from kaicep.errors import SourceText, Unsupported
from kaicep.history.strategies import STRATEGIES, follow, history_of, open_history, past_matches
from kaicep.ingest.files import ingest
from kaicep.knowledge.annotation import Annotation, load_annotations, parse_annotations, prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type

pytestmark = pytest.mark.slow

CAMPUS = Path(__file__).parent.parent.parent / "examples" / "campus"
DATA = CAMPUS / "data"
QUERIES = sorted((CAMPUS / "queries").glob("*.chi"))
KNOWLEDGE = sorted((DATA / "knowledge").glob("*.ttl"))
ANNOTATIONS = sorted((DATA / "annotations").glob("*.json"))
SAID = tuple(each for path in ANNOTATIONS for each in load_annotations(path))
EIGHT = parse_time("2012-05-07T08:00Z") or 0


def shown(matches: Sequence[Match]) -> list[str]:
    return [each.to_json() for each in matches]


# --- the examples ----------------------------------------------------------------------------------------


Morning = dict[str, tuple[Archive, list[tuple[str, Path]]]]
# Stretches of the campus morning in which something happens: by minute, and with which streams.
STRETCHES = {"early": (20, 60), "both": (20, 60), "hot": (80, 100)}
WHERE = {"empty-but-cooled": "both", "query2": "hot", "query6": "hot"}


@pytest.fixture(scope="module")
def campus() -> Knowledge:
    return Knowledge.load(*KNOWLEDGE)


@pytest.fixture(scope="module")
def morning(tmp_path_factory: pytest.TempPathFactory) -> Morning:
    """Archives of stretches of the campus morning, and the files that they were made of."""
    annotations = {each.stream: each for each in SAID}
    made: Morning = {}
    for name, (first, after) in STRETCHES.items():
        folder = tmp_path_factory.mktemp(name)
        archive, streams = Archive(folder / "archive"), []
        for stream in ("airflowReport", "roomOccupancy") if name == "both" else ("airflowReport",):
            said = annotations[stream]
            path = folder / f"{stream}.jsonl"
            with path.open("w") as file:
                for line in (DATA / path.name).read_text().splitlines():
                    at = parse_time(json.loads(line)[said.time]) or 0
                    if first <= (at - EIGHT) // 60_000_000 < after:
                        file.write(line + "\n")
            ingest(archive, Form(stream, said.time, dict(said.types), True), path)
            streams.append((stream, path))
        made[name] = archive, streams
    return made


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_every_strategy_gives_the_bytes_of_the_reference(
    query: Path, morning: Morning, campus: Knowledge
) -> None:
    archive, streams = morning[WHERE.get(query.stem, "early")]
    said = {each.stream: each for each in SAID}
    data = [read_stream(name, path, said[name].time, dict(said[name].types), True) for name, path in streams]
    parsed = read_query(query, prefixes_of(SAID))
    wanted = shown(build_run([parsed], data, SAID, campus, now=0).matches("reference"))
    assert wanted
    history = history_of([parsed], archive, campus, SAID, now=0)
    for strategy in STRATEGIES:
        assert shown(past_matches(history, strategy)) == wanted, strategy


def test_query_3_has_the_shape_of_figure_4(morning: Morning) -> None:
    (query,) = [each for each in QUERIES if each.stem == "query3"]
    history = open_history([query], morning["early"][0], KNOWLEDGE, ANNOTATIONS, now=0)
    text = rewrite_to_sparql(history.program.queries[0], history.catalog).text
    assert text == FIGURE_4


FIGURE_4 = """\
PREFIX airflowReport: <urn:kaicep:attribute:airflowReport/>
PREFIX evt: <http://cei.usc.edu/Event.owl#>
PREFIX kai: <urn:kaicep:archive:>
PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
SELECT DISTINCT ?e1 ?e2 ?e1_sensorID
WHERE {
  ?e1 kai:stream <urn:kaicep:stream:airflowReport> .
  ?e1 evt:hasTime ?e1_ts .
  ?e1 airflowReport:flowrate ?e1_flowrate .
  FILTER (?e1_flowrate > 500.0e0)
  ?e1 airflowReport:sensorID ?e1_sensorID .
  ?e2 kai:stream <urn:kaicep:stream:airflowReport> .
  ?e2 evt:hasTime ?e2_ts .
  ?e2 airflowReport:sensorID ?e2_sensorID .
  ?e2 airflowReport:flowrate ?e2_flowrate .
  FILTER (?e2_sensorID = ?e1_sensorID)
  FILTER ((?e2_flowrate - ?e1_flowrate) > 50.0e0)
  FILTER (?e1_ts < ?e2_ts)
  FILTER (?e2_ts - ?e1_ts <= "PT300S"^^xsd:dayTimeDuration)
}
ORDER BY ?e2_ts
"""


# --- small streams ---------------------------------------------------------------------------------------

LETTERS = (("ts", Type.TIMESTAMP), ("k", Type.STRING), ("x", Type.INT64), ("y", Type.FLOAT64))
THINGS = """
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
<urn:t:a> a <urn:Big> ; <urn:in> <urn:r1> . <urn:t:b> a <urn:Small> ; <urn:in> <urn:r1>, <urn:r2> .
<urn:t:c> a <urn:Tiny> . <urn:Tiny> rdfs:subClassOf <urn:Small> .
"""
KIND = parse_annotations(
    {
        "stream": "s",
        "class": "urn:Letter",
        "entities": {"k": {"property": "urn:about", "iri": "urn:t:{value}"}},
    }
)


def letters(rows: Sequence[tuple[int, str | None, int | None, float | None]]) -> list[Event]:
    return [
        Event("s", 0, seq, ts, {"ts": ts, "k": k, "x": x, "y": y}) for seq, (ts, k, x, y) in enumerate(rows)
    ]


def archived(folder: Path, events: Sequence[Event]) -> Archive:
    archive = Archive(folder)
    archive.made("s", TableShape(LETTERS)).append(events, {0: (0, len(events))})
    return archive


def compared(folder: Path, text: str, events: Sequence[Event], strategies: Sequence[str] = STRATEGIES) -> int:
    """Compares the strategies with the reference; says how many matches there were."""
    query = parse_query(SourceText("q.chi", text), {})
    knowledge = Knowledge.parse(THINGS)
    annotations: tuple[Annotation, ...] = KIND
    run = build_run([query], [StreamData("s", LETTERS, events)], annotations, knowledge, now=0)
    wanted = shown(run.matches("reference"))
    history = history_of([query], archived(folder, events), knowledge, annotations, now=0)
    for strategy in strategies:
        assert shown(past_matches(history, strategy)) == wanted, (strategy, text)
    return len(wanted)


SAYABLE = [
    "SELECT ?a.x FROM (?a, s) FILTER (?a.x > 1)",
    "SELECT * FROM (?a, s) FILTER (?a.x > 1 || ?a.y < 2)",
    "SELECT ?a.k FROM (?a, s) FILTER (!(?a.x > 1) && ?a.k != 'b')",
    "SELECT ?a.k FROM (?a, s) FILTER (?a.x / ?a.y > 0.5)",
    "SELECT ?a.k FROM (?a, s) FILTER (coalesce(?a.y, ?a.x, 7) >= 2)",
    "SELECT ?a.k FROM (?a, s) FILTER (if(?a.x > 1, ?a.y, 2.5) > 2)",
    "SELECT ?a.k FROM (?a, s) FILTER (round(?a.y) = -3 || abs(?a.y) * 2 > 5 || ?a.x IN (1, 3))",
    "SELECT ?a.k FROM (?a, s) FILTER (upper(?a.k) = 'A' || contains(?a.k, 'b') || startsWith(?a.k, 'c'))",
    "SELECT ?a.k FROM (?a, s) FILTER (hour(?a.ts) = 0) WITHIN [1970-01-01T00:00:01, 1970-01-01T00:00:03]",
    "SELECT ?a.x, ?b.x AS bx FROM (?a, s), (?b, s) JOIN (?b.x - ?a.x > 0) SEQ (?a, ?b) WINDOW (?a, ?b, 3s)",
    "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) WINDOW (?a, ?b, 1s)",
    "SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) FILTER (?b.x > 1) SEQ (?a, (?b & ?c)) WINDOW (?a, ?c, 3s)",
    "SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) FILTER (?b.x > 1) JOIN (?b.k = ?a.k) SEQ (?a, !?b, ?c)",
    "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?a.x > 1) SEQ (?a, !?b) WINDOW (?a, ?b, 2s) PARTITION BY ?a.k",
    (
        "SELECT ?a.x, ?b.x AS up FROM (?a, s), (?b, s) FILTER (?b.x > PREV(?b.x)) SEQ (?a, ?b{2}) "
        "PARTITION BY ?a.k"
    ),
    "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) MATCH strict PARTITION BY ?a.k",
    "SELECT ?a.x FROM (?a, s) PATH {?a <urn:about> ?t . ?t a <urn:Small>}",
    "SELECT ?a.x, ?r FROM (?a, s) PATH {?a <urn:about> ?t . ?t <urn:in> ?r}",
    (
        "SELECT ?a.x, ?r FROM (?a, s), (?b, s) SEQ (?a, ?b) "
        "PATH {?a <urn:about> ?t . ?t <urn:in> ?r . ?b <urn:about> ?u . ?u <urn:in> ?r}"
    ),
    (
        "SELECT ?a.x FROM (?a, s) "
        "PATH {?a <urn:about> ?t . ?t a <urn:Big>} OR PATH {?a <urn:about>/<urn:in> <urn:r2>}"
    ),
    "SELECT AVG(?a.y) AS m, COUNT(?a) AS n FROM (?a, s) WINDOW (?a, sliding, 2s)",
    "SELECT SUM(?a.x) > 2 AS m FROM (?a, s) WINDOW (?a, sliding, 2s) GROUP BY ?a.k",
    "SELECT ?a.x, MAX(?a.y) AS m FROM (?a, s) WINDOW (?a, sliding, 2s) PARTITION BY ?a.k FILTER (?a.x > 0)",
    "SELECT STDDEV(?a.y) AS m, LAST(?a.x) AS l FROM (?a, s) WINDOW (?a, batch, 2s)",
    "SELECT ?a.k, SUM(?a.y) AS m FROM (?a, s) WINDOW (?a, batch, 2s) GROUP BY ?a.k",
    (
        "SELECT COUNT(?a) AS n, ?r FROM (?a, s) WINDOW (?a, sliding, 2s) "
        "PATH {?a <urn:about> ?t . ?t <urn:in> ?r}"
    ),
]

EVENTS = letters(
    [
        (0, "a", 1, 1.0),
        (1_000_000, "b", 2, -2.5),
        (1_000_000, "a", 3, None),
        (1_500_000, "c", 2, 0.1),
        (2_000_000, None, 4, 2.5),
        (2_500_000, "a", None, 3.7),
        (3_000_000, "b", 3, 0.0),
        (4_000_000, "b", 5, 0.2),
        (4_000_000, "x", 1, 6.5),
    ]
)


@pytest.mark.parametrize("text", SAYABLE)
def test_what_sparql_can_say(text: str, tmp_path: Path) -> None:
    assert compared(tmp_path, text, EVENTS), "a query without a match says nothing"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b+)", "a loop without a fixed number of rounds"),
        ("SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) SEQ (?a, (?b | ?c))", "a disjunction"),
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) MATCH next", "MATCH next"),
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST", "AFTER MATCH SKIP"),
        ("SELECT COUNT(?a) AS n FROM (?a, s) WINDOW (?a, sliding, 3)", "a window of so many events"),
        ("SELECT ?a.x FROM (?a, s) FILTER (regex(?a.k, 'a'))", "cannot express regex"),
        ("SELECT ?a.x FROM (?a, s) FILTER (?a.x % 2 = 1)", "cannot express %"),
        ("SELECT ?a.x FROM (?a, s) FILTER (dayOfWeek(?a.ts) = 4)", "cannot express dayOfWeek"),
        ("SELECT ?a.x FROM (?a, s) PATH {?a ?p <urn:t:a>}", "lead back to events"),
        ("SELECT ?a.x FROM (?a, s) PATH {?a <urn:about> ?t . ?o <urn:about> ?t}", "?o may be any event"),
        (
            "SELECT ?a.x FROM (?a, s) PATH {?a <urn:about> ?t . OPTIONAL {?t <urn:in> ?r}}",
            "a PATH with OPTIONAL",
        ),
    ],
)
def test_what_sparql_cannot_say_is_told_and_done_by_the_others(
    text: str, reason: str, tmp_path: Path
) -> None:
    query = parse_query(SourceText("q.chi", text), {})
    history = history_of([query], archived(tmp_path / "told", EVENTS), Knowledge.parse(THINGS), KIND, now=0)
    with pytest.raises(Unsupported) as refused:
        past_matches(history, "rewrite")
    assert reason in str(refused.value)
    assert compared(tmp_path / "done", text, EVENTS, ("replay", "hybrid"))


rows = st.lists(
    st.tuples(
        st.integers(0, 5).map(lambda second: second * 500_000),
        st.sampled_from(["a", "b", "c", "x", None]),
        st.one_of(st.none(), st.integers(-3, 5)),
        st.one_of(st.none(), st.sampled_from([-2.5, -0.0, 0.0, 0.1, 0.5, 2.5, 1e9])),
    ),
    max_size=7,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows, text=st.sampled_from(SAYABLE))
def test_random_streams(
    rows: list[tuple[int, str | None, int | None, float | None]],
    text: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if rows:
        compared(tmp_path_factory.mktemp("random"), text, letters(rows))


# --- what a query reads ----------------------------------------------------------------------------------


class TestReading:
    TEXT = "SELECT ?a.x FROM (?a, s) WITHIN [1970-01-01T00:00:30, 1970-01-01T00:00:40) FILTER (?a.x > 3)"

    def seconds(self, first: int, after: int) -> list[Event]:
        made = letters([(at * 1_000_000, "a", at % 7, None) for at in range(first, after)])
        return [replace(each, seq=each.seq + first) for each in made]

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_within_opens_no_file_outside_it(self, strategy: str, tmp_path: Path) -> None:
        archive = Archive(tmp_path)
        table = archive.made("s", TableShape(LETTERS))
        for first in range(0, 100, 10):
            table.append(self.seconds(first, first + 10), {0: (first, first + 10)})
        query = parse_query(SourceText("q.chi", self.TEXT), {})
        history = history_of([query], archive, Knowledge.empty(), now=0)
        wanted = shown(past_matches(history, strategy))
        snapshot = archive.snapshot()
        ((stream, within),) = history.spans().items()
        inside = {each.path for each in snapshot.files(stream, within)}
        assert len(inside) == 1
        for each in snapshot.files(stream):
            if each.path not in inside:
                (table.table.folder / each.path).unlink()
        assert wanted
        assert shown(past_matches(history, strategy)) == wanted

    def test_late_events_count_unless_they_are_left_out(self, tmp_path: Path) -> None:
        archive = Archive(tmp_path)
        events = letters([(9_000_000, "a", 5, None), (1_000_000, "b", 6, None)])
        archive.made("s", TableShape(LETTERS)).append(events, {0: (0, 2)}, lateness=1_000_000)
        query = parse_query(SourceText("q.chi", "SELECT ?a.k FROM (?a, s)"), {})
        history = history_of([query], archive, Knowledge.empty(), now=0)
        for strategy in STRATEGIES:
            assert [each.select["k"] for each in past_matches(history, strategy)] == ["b", "a"]
            assert [each.select["k"] for each in past_matches(history, strategy, as_seen=True)] == ["a"]


# --- following -------------------------------------------------------------------------------------------


def test_attributes_may_have_any_name(tmp_path: Path) -> None:
    """Also those by which a rewritten query calls what every event has."""
    names = ("order", "stream", "micros", "a b", "members", "part")
    attributes = (("ts", Type.TIMESTAMP), *((name, Type.INT64) for name in names))
    events = [Event("odd", 0, seq, seq, {"ts": seq, **dict.fromkeys(names, seq * 3 % 5)}) for seq in range(6)]
    text = (
        "SELECT ?a.order, ?a.micros, ?b.`a b` FROM (?a, odd), (?b, odd) "
        "JOIN (?a.order < ?b.stream && ?a.members < ?b.`a b`) FILTER (?a.part >= 0) SEQ (?a, ?b)"
    )
    query = parse_query(SourceText("q.chi", text), {})
    run = build_run([query], [StreamData("odd", attributes, events)], (), Knowledge.empty(), now=0)
    wanted = shown(run.matches("reference"))
    archive = Archive(tmp_path)
    archive.made("odd", TableShape(attributes)).append(events, {0: (0, len(events))})
    history = history_of([query], archive, Knowledge.empty(), now=0)
    assert wanted
    for strategy in STRATEGIES:
        assert shown(past_matches(history, strategy)) == wanted


def test_triples_are_queried_too(tmp_path: Path) -> None:
    times = ((1, 2), (4, 5), (5, 6))
    lines = [
        json.dumps({"triple": f"<urn:truck> <urn:at> <urn:gate{at}> .", "start": start, "end": end})
        for at, (start, end) in enumerate(times)
    ]
    path = tmp_path / "trucks.jsonl"
    path.write_text("\n".join(lines))
    ingest(Archive(tmp_path / "A"), Form("trucks"), path)
    text = "SELECT ?a ?b WHERE {?t <urn:at> ?a} SEQ {?t <urn:at> ?b}"
    query = parse_query(SourceText("q.epsparql", text), {})
    data = read_stream("trucks", path)
    wanted = shown(build_run([query], [data], (), Knowledge.empty(), now=0).matches("reference"))
    history = history_of([query], Archive(tmp_path / "A"), Knowledge.empty(), now=0)
    assert len(wanted) == 2
    for strategy in ("replay", "hybrid"):
        assert shown(past_matches(history, strategy)) == wanted
    with pytest.raises(Unsupported, match="EP-SPARQL"):
        past_matches(history, "rewrite")


class TestFollow:
    QUERIES = (
        "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?b.x > ?a.x) SEQ (?a, ?b) WINDOW (?a, ?b, 20s)",
        (
            "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?a.x > 4) SEQ (?a, !?b) WINDOW (?a, ?b, 2s) "
            "PARTITION BY ?a.k"
        ),
        "SELECT SUM(?a.x) AS m FROM (?a, s) WINDOW (?a, batch, 4s) FILTER (?a.x > 1)",
    )

    @pytest.mark.parametrize("text", QUERIES)
    @pytest.mark.parametrize("strategy", ["replay", "hybrid"])
    def test_what_comes_later_is_joined_to_what_was_there(
        self, text: str, strategy: str, tmp_path: Path
    ) -> None:
        events = letters([(at * 1_000_000, "abc"[at % 3], at * 5 % 7, None) for at in range(40)])
        archive = Archive(tmp_path / "following")
        table = archive.made("s", TableShape(LETTERS))
        table.append(events[:10], {0: (0, 10)})
        query = parse_query(SourceText("q.chi", text), {})
        history = history_of([query], archive, Knowledge.empty(), now=0)
        arriving = iter(range(10, 40, 6))

        def wait() -> bool:
            first = next(arriving, None)
            if first is None:
                return False
            after = min(first + 6, 40)
            # Half of it comes again, and files are put together meanwhile.
            table.append(events[first - 3 : after], {0: (first - 3, after)})
            if first == 22:
                from kaicep.archive.stream_table import compact

                compact(table)
            return True

        found = [match for some in follow(history, strategy, wait=wait) for match in some]
        assert [each.end_us for each in found] == sorted(each.end_us for each in found)
        whole = past_matches(history_of([query], archive, Knowledge.empty(), now=0), "replay")
        # What the end of the archive does not settle is still open.
        settled = [each for each in whole if each.end_us < events[-1].ts]
        assert sorted(shown([each for each in found if each.end_us < events[-1].ts])) == sorted(
            shown(settled)
        )
        assert len(settled) > 3

    def test_a_part_that_is_behind_holds_the_others_back_until_it_is_idle(self, tmp_path: Path) -> None:
        archive = Archive(tmp_path)
        table = archive.made("s", TableShape(LETTERS))
        first = letters([(at, "a", 1, None) for at in (0, 1, 2)])
        second = [replace(each, part=1, ts=each.ts + 5) for each in first]
        table.append([*first, *second], {0: (0, 3), 1: (0, 3)})
        query = parse_query(SourceText("q.chi", "SELECT ?a.x FROM (?a, s)"), {})
        history = history_of([query], archive, Knowledge.empty(), now=0)

        def seen(idle: float) -> list[int]:
            return [each.end_us for some in follow(history, wait=lambda: False, idle=idle) for each in some]

        assert seen(3600) == [0, 1, 2]
        assert seen(0) == [0, 1, 2, 5, 6, 7]

    def test_rewriting_does_not_follow(self, tmp_path: Path) -> None:
        query = parse_query(SourceText("q.chi", "SELECT ?a.x FROM (?a, s)"), {})
        history = history_of([query], archived(tmp_path, EVENTS), Knowledge.empty(), now=0)
        with pytest.raises(Unsupported, match="one moment"):
            next(follow(history, "rewrite"))
