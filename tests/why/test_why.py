"""Why there is a match, and why there is none, on the campus of the examples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app

CAMPUS = Path(__file__).parents[2] / "examples" / "campus"
OPTIONS = [
    "--stream",
    f"airflowReport={CAMPUS / 'data' / 'airflowReport.jsonl'}",
    *(
        each
        for path in sorted((CAMPUS / "data" / "knowledge").iterdir())
        for each in ("--knowledge", str(path))
    ),
    *(
        each
        for path in sorted((CAMPUS / "data" / "annotations").iterdir())
        for each in ("--annotation", str(path))
    ),
]


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def query(name: str) -> str:
    return str(CAMPUS / "queries" / f"{name}.chi")


def first_match(name: str) -> dict[str, object]:
    lines = call("match", query(name), *OPTIONS).splitlines()
    found: dict[str, object] = json.loads(lines[0])
    return found


def test_a_match_of_query_7_is_told_down_to_the_statement_about_its_class() -> None:
    match = first_match("query7")
    told = call("why", str(match["id"])[:8], query("query7"), *OPTIONS)
    for each in match["events"].values():  # type: ignore[attr-defined]
        assert f"seq {each['seq']})" in told
    assert "?e1.flowrate > 500.0\n      510.0 > 500.0" in told
    assert "575.0 - 510.0 = 65.0 > 50.0" in told
    assert "?e1, ?e2 lie within 5min\n      they lie within 4min" in told
    assert "?loc1 is bd:RTH110" in told
    assert "ee:RTH110VOL rdf:type ee:AirflowSensor  (by the rule cax-sco, because)" in told
    assert "ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor  (from the knowledge)" in told


def test_machines_can_read_it_too() -> None:
    match = first_match("query7")
    told = json.loads(call("why", str(match["id"]), query("query7"), *OPTIONS, "--json"))
    assert told["match"] == match
    assert [each["variable"] for each in told["events"]] == ["e1", "e2"]
    rules = {each["rule"] for path in told["paths"] for each in path["statements"]}
    assert {"event", "asserted", "cax-sco"} <= rules


def test_a_window_shows_the_events_inside_and_what_it_compared() -> None:
    match = first_match("query2")
    told = call("why", str(match["id"]), query("query2"), *OPTIONS)
    value = match["select"]["avgrate"]  # type: ignore[index]
    assert f"{value} > 500" in told


def test_a_loop_shows_every_round() -> None:
    match = first_match("rising")
    told = call("why", str(match["id"]), query("rising"), *OPTIONS)
    rounds = [
        e for shown in match["events"].values() for e in (shown if isinstance(shown, list) else [shown])
    ]  # type: ignore[attr-defined]
    assert len(re.findall(r"airflowReport \(part", told)) == len(rounds) >= 3


def test_where_there_is_none_the_condition_that_stopped_the_nearest_is_named_with_its_number() -> None:
    told = call("why", "--not", query("query7"), "--near", "2012-05-07T09:30", *OPTIONS)
    assert "16 of 55 events: ?e1.flowrate > 500.0" in told
    assert "it needs ?e2.flowrate - ?e1.flowrate > 50.0" in told
    assert "549.2 - 546.2 = 3.0 > 50.0 (short by 94%)" in told


def test_one_sensor_alone() -> None:
    told = json.loads(
        call(
            "why",
            "--not",
            query("query7"),
            "--near",
            "2012-05-07T09:30",
            "--key",
            "OHE112VOL2",
            "--json",
            *OPTIONS,
        )
    )
    assert told["steps"][0]["came"] < 10
    assert told["misses"]


def test_what_came_too_late_is_told(tmp_path: Path) -> None:
    rows = [{"ts": 100, "x": 1}, {"ts": 0, "x": 9}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "q.chi").write_text("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 5)")
    stream = f"s={tmp_path / 's.jsonl'}"
    told = call(
        "why",
        "--not",
        str(tmp_path / "q.chi"),
        "--near",
        "1970-01-01",
        "--lateness",
        "10s",
        "--stream",
        stream,
    )
    assert "1 events were late" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ffffffff", query("query7")], "no match has the id ffffffff"),
        (["", query("query7")], "matches have an id that begins with"),
        (["abc"], "no query is given"),
        (["--not", query("query7")], "--not needs to know when"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["why", *words, *OPTIONS])
    assert done.exit_code == 2
    assert message in done.stderr


# --- what a PATH met, and what had to be absent -----------------------------------------------------------

START = 1336381200  # 2012-05-07T09:00:00Z
TRUCKS = """
@prefix x: <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
x:F3 x:holds x:polio . x:F4 x:holds x:iceCream .
x:polio a x:PolioVaccine . x:PolioVaccine rdfs:subClassOf x:Vaccine .
"""
TOLD = (
    '{"stream": "s", "prefixes": {"x": "urn:x:"}, '
    '"entities": {"f": {"property": "x:of", "iri": "x:{value}"}}}'
)


def trucks(folder: Path, text: str, *records: tuple[int, str, int]) -> list[str]:
    """The words after `why`, for a query over records of a time, a fridge and a temperature."""
    lines = [json.dumps({"ts": START + ts, "f": f, "x": x}) + "\n" for ts, f, x in records]
    files = {"s.jsonl": "".join(lines), "k.ttl": TRUCKS, "s.json": TOLD, "q.chi": text}
    for name, content in files.items():
        (folder / name).write_text(content)
    stream = f"s={folder / 's.jsonl'}"
    more = ["--knowledge", str(folder / "k.ttl"), "--annotation", str(folder / "s.json")]
    return [str(folder / "q.chi"), "--stream", stream, *more]


def test_the_triple_pattern_that_fails_is_named_with_what_it_met(tmp_path: Path) -> None:
    path = "PATH {?e x:of ?f . ?f x:holds ?c . ?c a x:Vaccine}"
    words = trucks(tmp_path, f"SELECT ?e.x FROM (?e, s) {path}", (0, "F4", 1), (1, "F5", 1))
    told = call("why", "--not", *words, "--near", "2012-05-07T09:00")
    assert "and x:F4 x:holds x:iceCream, but not x:iceCream rdf:type x:Vaccine" in told
    assert "and not ?e x:of ?f" in told  # an entity that the knowledge does not have
    assert "there are" not in told


def test_the_event_that_broke_an_absence_is_named(tmp_path: Path) -> None:
    text = (
        "SELECT ?a.x, ?b.x FROM (?a, s), (?n, s), (?b, s)"
        " FILTER (?a.x = 1) FILTER (?n.x = 2) FILTER (?b.x = 3) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 1min)"
    )
    words = trucks(tmp_path, text, (0, "F3", 1), (5, "F3", 2), (9, "F3", 3))
    told = call("why", "--not", *words, "--near", "2012-05-07T09:00")
    assert "it needs no ?n after 2012-05-07T09:00:00.000000Z" in told
    assert "and there is one at 2012-05-07T09:00:05.000000Z" in told
    assert "there are" not in told


def test_why_an_absence_says_what_was_waited_for_and_until_when(tmp_path: Path) -> None:
    text = (
        "SELECT ?a.x FROM (?a, s), (?n, s) FILTER (?a.x = 1) FILTER (?n.x = 2)"
        " SEQ (?a, !?n) WINDOW (?a, ?n, 1min)"
    )
    words = trucks(tmp_path, text, (0, "F3", 1), (90, "F3", 2))
    match = json.loads(call("match", *words))
    told = call("why", match["id"], *words)
    assert "there is no ?n after 2012-05-07T09:00:00.000000Z and until 2012-05-07T09:01:00.000000Z" in told
    assert "1 match" not in call("why", "--not", *words, "--near", "2012-05-07T11:00")
    assert "there are 1 matches here" in call("why", "--not", *words, "--near", "2012-05-07T09:01")


def test_prev_is_shown_round_by_round(tmp_path: Path) -> None:
    text = "SELECT COUNT(?a) AS n FROM (?a, s) JOIN (?a.x > PREV(?a.x)) SEQ (?a{3}) WINDOW (?a, ?a, 1min)"
    words = trucks(tmp_path, text, (0, "F3", 1), (1, "F3", 2), (2, "F3", 4))
    match = json.loads(call("match", *words))
    told = call("why", match["id"], *words)
    assert "?a.x > PREV(?a.x), round 2\n      2 > 1" in told
    assert "?a.x > PREV(?a.x), round 3\n      4 > 2" in told


# --- pairs ----------------------------------------------------------------------------------------------

ROOMS = """
@prefix x: <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
x:Heating rdfs:subClassOf x:Valve . x:Cooling rdfs:subClassOf x:Valve . x:Office rdfs:subClassOf x:Room .
x:h1 a x:Heating ; x:in x:r1 . x:c1 a x:Cooling ; x:in x:r1 . x:h2 a x:Heating ; x:in x:r2 .
x:c3 a x:Cooling ; x:in x:r3 . x:r1 a x:Office . x:r2 a x:Office . x:r3 a x:Office .
"""
TIED = (
    "SELECT ?a.f AS heats, ?b.f AS cools, ?r FROM (?a, s), (?b, s) FILTER (?a.x > 5) FILTER (?b.x > 5)"
    " SEQ (?a, ?b) WINDOW (?a, ?b, 10s) PATH {?a x:of ?h . ?h a x:Heating . ?h x:in ?r . ?r a x:Room ."
    " ?b x:of ?c . ?c a x:Cooling . ?c x:in ?r . ?r a x:Office}"
)


def pairs(folder: Path, *records: tuple[int, str, int], known: str = ROOMS) -> list[str]:
    words = trucks(folder, TIED, *records)
    (folder / "k.ttl").write_text(known)
    return words


def test_the_nearest_misses_are_pairs(tmp_path: Path) -> None:
    # h2 is the only heating valve of its room, c3 the only cooling valve; h1 and c1 lie too far apart
    words = pairs(tmp_path, (0, "h1", 9), (1, "h2", 9), (2, "c3", 9), (12, "c1", 9))
    told = call("why", "--not", *words, "--near", "2012-05-07T09:00:05")
    nearest = told.partition("the nearest misses")[2]
    assert "it needs WINDOW of 10s\n      and there is they lie within 12s" in nearest
    assert "f = h1" in nearest
    assert "f = c1" in nearest
    assert "f = h2" not in nearest.partition("it needs PATH")[0]
    assert "1 of 4 events: PATH { ?a x:of ?h ." in told  # h2 has nobody in its room
    assert "1 of 4 events: PATH { " in told.partition("?b\n")[2]


def test_a_change_of_the_knowledge_is_none_of_the_text(tmp_path: Path) -> None:
    words = pairs(tmp_path, (0, "h1", 9), (1, "c1", 9))
    seen = tmp_path / "seen.jsonl"
    seen.write_text(call("match", *words))
    (tmp_path / "k.ttl").write_text(ROOMS.replace("x:in x:r1", "x:in x:r2"))
    match = json.loads(seen.read_text())
    done = CliRunner().invoke(app, ["why", match["id"], *words, "--results", str(seen)])
    assert done.exit_code == 2
    assert "r is urn:x:r2 now, and was urn:x:r1" in done.stderr
    assert "text of the query" not in done.stderr


INFERRED = """
x:inside rdfs:subPropertyOf x:in . x:in rdfs:range x:Room . x:r1 a x:Hall . x:Hall rdfs:subClassOf x:Room .
"""


def test_what_a_statement_follows_from_is_said_once(tmp_path: Path) -> None:
    known = ROOMS.replace("x:in x:r1", "x:inside x:r1") + INFERRED
    words = pairs(tmp_path, (0, "h1", 9), (1, "c1", 9), known=known)
    match = json.loads(call("match", *words))
    told = call("why", match["id"], *words)
    derived = [line.strip() for line in told.splitlines() if "by the rule" in line]
    assert len(derived) > 2
    assert len(derived) == len(set(derived))
