"""Why, from an archive and from wherever the match was seen; and what is told when it is not there again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.processes import write
from typer.testing import CliRunner, Result

from kaicep.api import open_run
from kaicep.archive.archive import Archive
from kaicep.cli.main import app
from kaicep.connectors.sinks.delta import DeltaOptions, DeltaSink
from kaicep.connectors.sinks.files import FileSink, FileSinkOptions
from kaicep.history.strategies import open_history, past_matches
from kaicep.plan.events import Match
from kaicep.plan.nodes import Interval
from kaicep.why.again import Archived, Streams, events_of, explained, match_of, needed, seen_in, upstream_of

pytestmark = pytest.mark.slow

CAMPUS = Path(__file__).parents[2] / "examples" / "campus"
QUERIES = sorted((CAMPUS / "queries").glob("*.chi"))
KNOWLEDGE = [CAMPUS / "data" / "knowledge"]
ANNOTATIONS = sorted((CAMPUS / "data" / "annotations").iterdir())
STREAM = ("--stream", f"airflowReport={CAMPUS / 'data' / 'airflowReport.jsonl'}")


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in words], catch_exceptions=False)


def call(*words: object) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: object) -> str:
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def options(name: str, paths: list[Path]) -> list[object]:
    return [each for path in paths for each in (name, path)]


KNOWN = [*options("--knowledge", KNOWLEDGE), *options("--annotation", ANNOTATIONS)]
SEVEN = CAMPUS / "queries" / "query7.chi"


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the campus: of one stream, since the paper's queries name none."""
    folder = tmp_path_factory.mktemp("campus") / "archive"
    call("ingest", *STREAM, *options("--annotation", ANNOTATIONS), "--archive", folder)
    return folder


@pytest.fixture(scope="module")
def two_streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive with the occupancy of the rooms besides."""
    folder = tmp_path_factory.mktemp("campus") / "archive"
    other = ("--stream", f"roomOccupancy={CAMPUS / 'data' / 'roomOccupancy.jsonl'}")
    call("ingest", *STREAM, *other, *options("--annotation", ANNOTATIONS), "--archive", folder)
    return folder


@pytest.fixture(scope="module")
def match(campus: Path) -> dict[str, Any]:
    """The first match of query 7."""
    found: dict[str, Any] = json.loads(call("query", SEVEN, "--archive", campus, *KNOWN).splitlines()[0])
    return found


# --- wherever it was seen -----------------------------------------------------------------------------


def as_jsonl(path: Path, found: dict[str, Any], campus: Path) -> Path:
    call("query", SEVEN, "--archive", campus, *KNOWN, "--output", path / "m.jsonl")
    return path / "m.jsonl"


def as_csv(path: Path, found: dict[str, Any], campus: Path) -> Path:
    call("query", SEVEN, "--archive", campus, *KNOWN, "--output", path / "m.csv", "--out", "csv")
    return path / "m.csv"


def as_parquet(path: Path, found: dict[str, Any], campus: Path) -> Path:
    call("query", SEVEN, "--archive", campus, *KNOWN, "--output", path / "m.parquet", "--out", "parquet")
    return path / "m.parquet"


def as_file_sink(path: Path, found: dict[str, Any], campus: Path) -> Path:
    with FileSink("out", FileSinkOptions(path / "out.jsonl")) as sink:
        sink.open()
        sink.write([match_of(found, "here"), Match("other", "00", 0, 0)])
        sink.commit({})
    return path / "out.jsonl"


def as_delta_sink(path: Path, found: dict[str, Any], campus: Path) -> Path:
    with DeltaSink("out", DeltaOptions(path / "table")) as sink:
        sink.open()
        sink.write([match_of(found, "here"), Match("other", "00", 0, 0)])
        sink.commit({})
    return path / "table"


@pytest.mark.parametrize("written", [as_jsonl, as_csv, as_parquet, as_file_sink, as_delta_sink])
def test_the_reason_is_the_same_wherever_the_match_was_seen(
    written: Callable[..., Path], campus: Path, match: dict[str, Any], tmp_path: Path
) -> None:
    results = written(tmp_path, match, campus)
    short = match["id"][:10]
    told = call("why", short, SEVEN, "--archive", campus, "--results", results, *KNOWN, "--json")
    assert json.loads(told) == json.loads(call("why", short, SEVEN, *STREAM, *KNOWN, "--json"))


def test_a_match_of_query_7_is_told_from_the_archive_alone(campus: Path, match: dict[str, Any]) -> None:
    told = call("why", match["id"].upper()[:8], SEVEN, "--archive", campus, *KNOWN)
    for each in match["events"].values():
        assert f"seq {each['seq']})" in told
    assert "?src1 is ee:RTH110VOL" in told
    assert "?loc1 is bd:RTH110" in told
    assert "ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor  (from the knowledge)" in told


def test_a_line_that_a_sink_has_not_finished_is_no_match(tmp_path: Path, match: dict[str, Any]) -> None:
    (tmp_path / "m.jsonl").write_text(json.dumps(match) + "\n" + json.dumps(match)[:60])
    assert [each.id for each in seen_in([tmp_path / "m.jsonl"], match["id"])] == [match["id"]]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_columns_may_be_called_as_parts_of_a_match(form: str, tmp_path: Path) -> None:
    text = "SELECT ?e.x AS select, ?e.x AS knowledge, ?e.x AS id FROM (?e, s)"
    write(tmp_path, {"q.chi": text, "s.jsonl": '{"ts": 1, "x": "one"}\n'})
    words = (tmp_path / "q.chi", "--stream", f"s={tmp_path / 's.jsonl'}")
    results = tmp_path / f"m.{form}"
    call("match", *words, "--out", form, "--output", results)
    id = json.loads(call("match", *words))["id"]
    told = json.loads(call("why", id, *words, "--results", results, "--json"))
    assert told["match"]["select"] == {"select": "one", "knowledge": "one", "id": "one"}


# --- how much is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_the_stretch_of_a_match_gives_it_again(query: Path, campus: Path, two_streams: Path) -> None:
    archive = two_streams if "roomOccupancy" in query.read_text() else campus
    history = open_history([query], Archive.open(archive), KNOWLEDGE, ANNOTATIONS)
    source = Archived(history, history.archive.snapshot())
    found = past_matches(history)
    assert found
    for each in (*found[:3], *found[-2:]):
        told = explained(source, each)
        assert told.match == each
        assert told.events


def test_only_the_stretch_is_read(campus: Path, match: dict[str, Any]) -> None:
    history = open_history([SEVEN], Archive.open(campus), KNOWLEDGE, ANNOTATIONS)
    source = Archived(history, history.archive.snapshot())
    wanted = match_of(match, "here")
    read = events_of(source.part(history.program, needed(history.program, wanted)))
    assert min(each.ts for each in read) == wanted.start_us
    assert max(each.ts for each in read) == wanted.end_us
    assert len(read) < 100


ANY = "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"


@pytest.mark.parametrize(
    ("text", "low"),
    [
        (ANY, 100),
        (ANY + " AFTER MATCH SKIP PAST LAST", None),
        ("SELECT COUNT(?a) AS n FROM (?a, s) WINDOW (?a, sliding, 5)", 100),
        ("SELECT COUNT(?a) AS n FROM (?a, s) WINDOW (?a, batch, 5)", None),
        ("SELECT ?p.x FROM (?p, below) FILTER (?p.x > 1)", 90),
    ],
)
def test_how_far_back_a_match_needs_events(text: str, low: int | None, tmp_path: Path) -> None:
    write(tmp_path, {"q.chi": text, "below.chi": ANY, "s.jsonl": '{"ts": 0, "x": 1}\n'})
    run = open_run([tmp_path / "q.chi", tmp_path / "below.chi"], [("s", tmp_path / "s.jsonl")])
    second = 1_000_000
    match = Match("q", "f3", 100 * second, 105 * second)
    wanted = Interval(None if low is None else low * second, True, 105 * second, True)
    assert needed(upstream_of(run.program, "q"), match) == wanted


def test_a_match_over_the_output_of_another_query_is_found_again(tmp_path: Path) -> None:
    rows = [{"ts": ts, "x": ts % 7} for ts in range(0, 200, 5)]
    text = (
        "SELECT ?p.x AS first, ?q.x AS second FROM (?p, below), (?q, below) SEQ (?p, ?q) WINDOW (?p, ?q, 5s)"
    )
    write(
        tmp_path,
        {"q.chi": text, "below.chi": ANY, "s.jsonl": "".join(json.dumps(each) + "\n" for each in rows)},
    )
    run = open_run([tmp_path / "q.chi", tmp_path / "below.chi"], [("s", tmp_path / "s.jsonl")])
    found = [each for each in run.matches() if each.query == "q"]
    assert len(found) > 10
    for each in found[::9]:
        told = explained(Streams(run), each)
        assert told.match == each
        assert all(one.derived is not None for one in told.events)


def test_a_solution_of_epsparql_is_told_with_the_events_that_it_rests_on(tmp_path: Path) -> None:
    lines = [
        {"triple": f"<urn:{subject}> <urn:kaicep:{what}> <urn:x> .", "start": start}
        for start, (subject, what) in enumerate([*[("a", "up"), ("b", "up"), ("c", "up")] * 3, ("b", "down")])
    ]
    write(
        tmp_path,
        {
            "t.jsonl": "".join(json.dumps(each) + "\n" for each in lines),
            "q.epsparql": "SELECT ?s WHERE { ?s :up ?x } SEQ { ?s :down ?x }",
        },
    )
    words = (tmp_path / "q.epsparql", "--stream", f"t={tmp_path / 't.jsonl'}")
    found = [json.loads(each) for each in call("match", *words).splitlines()]
    assert sorted(each["start"][17:19] for each in found) == ["01", "04", "07"]
    for each in found:
        told = json.loads(call("why", each["id"], *words, "--json"))
        assert [one["ts"] for one in told["events"]] == [each["start"], each["end"]]
        assert all("<urn:b>" in one["triples"][0] for one in told["events"])
    assert "<urn:b> <urn:kaicep:down> <urn:x>" in call("why", found[0]["id"], *words)


def test_epsparql_over_the_output_of_another_query(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "s.jsonl": '{"ts": 1, "x": 3, "k": "p"}\n{"ts": 2, "x": 9, "k": "q"}\n',
            "high.json": '{"stream": "high", "class": ":High", "prefixes": {"": "urn:kaicep:"},'
            ' "attributes": {"k": ":key"}}',
            "high.chi": "SELECT ?e.k FROM (?e, s) FILTER (?e.x > 5)",
            "seen.epsparql": "SELECT ?k WHERE { ?h a :High ; :key ?k }",
        },
    )
    words = (tmp_path / "seen.epsparql", tmp_path / "high.chi", "--stream", f"s={tmp_path / 's.jsonl'}")
    given = (*words, "--annotation", tmp_path / "high.json")
    found = [json.loads(each) for each in call("match", *given).splitlines()]
    id = next(each["id"] for each in found if each["query"] == "seen")
    assert [each["seq"] for each in json.loads(call("why", id, *given, "--json"))["events"]] == [1]


# --- late events and records that could not be read --------------------------------------------------------


@pytest.fixture
def late(tmp_path: Path) -> Path:
    """An archive with an event that came too late, and records that could not be read."""
    lines = [
        '{"ts": 100, "x": 1, "k": "p"}',
        '{"ts": 104, "x": 6, "k": "p"}',
        '{"ts": 130, "x": 2, "k": "p"}',
        '{"ts": 102, "x": 9, "k": "p"}',  # too late by 18 s
        '{"ts": 131, "x": 8, "k": "p", "y": "many"}',  # y is a number
        "oops",
        '{"ts": 132, "x": 1, "k": "p"}',
        '{"ts": 500, "x": 1, "k": "p", "y": "many"}',  # too far away to matter
    ]
    write(
        tmp_path,
        {
            "s.jsonl": "\n".join(lines) + "\n",
            "s.json": '{"stream": "s", "time": "ts", "types": {"y": "float64"}}',
            "q.chi": "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?a.x > 5) FILTER (?b.x < 5) "
            "JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 3s)",
            "r.chi": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 8)",
        },
    )
    words = ("--annotation", tmp_path / "s.json", "--archive", tmp_path / "archive", "--lateness", "10s")
    call("ingest", "--stream", f"s={tmp_path / 's.jsonl'}", *words)
    return tmp_path


def test_a_match_of_a_late_event_is_told_with_its_mark(late: Path) -> None:
    found = json.loads(call("query", late / "r.chi", "--archive", late / "archive"))
    told = call("why", found["id"], late / "r.chi", "--archive", late / "archive")
    assert "s (part 0, seq 3), late" in told
    assert not call("query", late / "r.chi", "--archive", late / "archive", "--as-seen")


def test_what_was_left_out_would_have_matched(late: Path) -> None:
    words = ("--archive", late / "archive", "--near", "1970-01-01T00:01:42")
    told = json.loads(call("why", "--not", late / "r.chi", *words, "--json"))
    assert [each["seq"] for each in told["late"]] == [3]
    assert [each["select"] for each in told["with_late"]] == [{"x": 9}]


def test_a_record_that_could_not_be_read_would_have_matched(late: Path) -> None:
    words = (late / "q.chi", "--archive", late / "archive", "--near", "1970-01-01T00:02:11")
    told = json.loads(call("why", "--not", *words, "--json"))
    assert [(each["seq"], each["mended"]) for each in told["dead"]] == [(4, True), (5, False)]
    assert [each["select"] for each in told["with_dead"]] == [{"x": 8}]
    assert [each["seq"] for each in told["with_dead"][0]["events"].values()] == [4, 6]
    text = call("why", "--not", *words)
    assert "2 records from that time could not be read" in text
    assert "nothing in 1 of them can be read" in text
    assert "without the values that do not fit, they would have made 1 match" in text


def test_another_value_is_not_what_was_asked_for(late: Path) -> None:
    words = (late / "q.chi", "--archive", late / "archive", "--near", "1970-01-01T00:02:11")
    told = json.loads(call("why", "--not", *words, "--key", "elsewhere", "--json"))
    assert (told["dead"], told["with_dead"], told["steps"][0]["came"]) == ([], [], 0)


def test_files_tell_the_same_as_the_archive(late: Path) -> None:
    words = (late / "q.chi", "--annotation", late / "s.json", "--near", "1970-01-01T00:02:11", "--json")
    archived = call("why", "--not", *words, "--archive", late / "archive")
    stream = ("--stream", f"s={late / 's.jsonl'}", "--lateness", "10s")
    assert json.loads(call("why", "--not", *words, *stream)) == json.loads(archived)


# --- what is not there again ---------------------------------------------------------------------------


def test_knowledge_that_has_changed_is_named_with_the_path_and_the_version(
    campus: Path, match: dict[str, Any], tmp_path: Path
) -> None:
    for path in KNOWLEDGE[0].iterdir():
        text = path.read_text()
        (tmp_path / path.name).write_text(text.replace("MeetingRoom", "StoreRoom"))
    (tmp_path / "m.jsonl").write_text(json.dumps({**match, "knowledge": 4}) + "\n")
    words = (SEVEN, "--archive", campus, "--results", tmp_path / "m.jsonl", "--knowledge", tmp_path)
    told = refused("why", match["id"], *words, *options("--annotation", ANNOTATIONS))
    assert f"recomputing does not find the match {match['id']}" in told
    assert "PATH { ?e1 evt:hasSource ?src1 ." in told
    assert "no longer holds for its events: the match used version 4 of the knowledge" in told


def test_a_query_of_another_text_gives_other_ids(campus: Path, match: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "query7.chi").write_text(SEVEN.read_text() + "\n# another text\nJOIN (?e1.ts < ?e2.ts)")
    (tmp_path / "m.jsonl").write_text(json.dumps(match) + "\n")
    words = (tmp_path / "query7.chi", "--archive", campus, "--results", tmp_path / "m.jsonl", *KNOWN)
    assert "under another id: the text of the query has changed" in refused("why", match["id"], *words)


def test_a_bound_that_has_moved_on_is_named(tmp_path: Path) -> None:
    text = "SELECT ?e.x FROM (?e, s) WITHIN [now - 10s, ) FILTER (?e.x > 5)"
    write(tmp_path, {"q.chi": text, "s.jsonl": '{"ts": 100, "x": 9}\n'})
    stream = (tmp_path / "q.chi", "--stream", f"s={tmp_path / 's.jsonl'}")
    call("match", *stream, "--now", "105", "--output", tmp_path / "m.jsonl")
    id = json.loads((tmp_path / "m.jsonl").read_text())["id"]
    words = ("why", id, *stream, "--results", tmp_path / "m.jsonl")
    assert "it lies outside the bounds of WITHIN" in refused(*words)
    assert "9 > 5" in call(*words, "--now", "105")


def test_events_that_were_removed_are_named(late: Path) -> None:
    words = (late / "r.chi", "--archive", late / "archive")
    call("query", *words, "--output", late / "m.jsonl")
    id = json.loads((late / "m.jsonl").read_text())["id"]
    call("archive", "expire", late / "archive", "--before", "1970-01-01T00:02:00")
    told = refused("why", id, *words, "--results", late / "m.jsonl")
    assert "events of s before 1970-01-01T00:02:00.000000Z have been removed from the archive" in told


def test_a_match_of_a_query_that_is_not_given(campus: Path, match: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(json.dumps(match) + "\n")
    words = (
        CAMPUS / "queries" / "query1.chi",
        "--archive",
        campus,
        "--results",
        tmp_path / "m.jsonl",
        *KNOWN,
    )
    assert "is one of query7, which is not among the queries" in refused("why", match["id"], *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ffff", "q.chi", "--results", "m.jsonl"], "no match in m.jsonl has the id ffff"),
        (["a", "q.chi", "--results", "m.jsonl"], "2 matches have an id that begins with a"),
        (["ab", "q.chi", "--results", "q.chi"], "q.chi holds no matches that can be read"),
        (["ab", "q.chi", "--results", "empty"], "empty holds no matches that can be read"),
        (["ab", "q.chi", "--results", "gone.jsonl"], "cannot read --results gone.jsonl"),
        (["ab", "q.chi", "--stream", "s=s.jsonl"], "--stream does not go with --archive"),
        (["ab", "q.chi", "--lateness", "1s"], "--lateness does not go with --archive"),
        (["--not", "q.chi", "--near", "0", "--results", "m.jsonl"], "--results does not go with --not"),
        (["--not", "q.chi"], "--not needs to know when"),
        (["ffff", "q.chi"], "no match has the id ffff"),
        (["ab", "--deployment", "kaicep.toml"], "--archive does not go with --deployment"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(
    words: list[str], message: str, late: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(late)
    write(late, {"m.jsonl": '{"query": "q", "id": "ab", "start": "1970-01-01", "end": "1970-01-01"}\n' * 2})
    with (late / "m.jsonl").open("a") as file:
        file.write('{"query": "q", "id": "ac", "start": "1970-01-01", "end": "1970-01-01"}\n')
    (late / "empty").mkdir()
    assert message in refused("why", *words, "--archive", "archive")
