"""Columns of what is known: the archive says beside each event what the PATH of a query would say of it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kaicep.api import build_run, parse_query
from kaicep.archive.archive import Archive
from kaicep.archive.stream_table import compact
from kaicep.cli.main import app
from kaicep.connectors.files import read_stream
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake, SourceText
from kaicep.history.strategies import STRATEGIES, history_of, past_matches
from kaicep.ingest.files import ingest
from kaicep.ingest.materialise import Materialise
from kaicep.knowledge.annotation import parse_annotations, prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event

ROOT = Path(__file__).parent.parent.parent
SAID: dict[str, Any] = {
    "stream": "meter",
    "prefixes": {"x": "urn:x:"},
    "class": "x:Reading",
    "attributes": {"level": "x:level"},
    "entities": {"sensor": {"property": "x:from", "iri": "x:{value}"}},
    "types": {"sensor": "string", "level": "int64", "kW": "float64"},
}
KNOWN = """
    @prefix x: <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    x:Lab rdfs:subClassOf x:Room . x:nearTo rdfs:subPropertyOf x:in .
    x:s1 x:in x:r1 . x:s2 x:in x:r2 ; x:nearTo x:r1 . x:s3 x:tag "t3" . x:s4 x:in [ a x:Lab ] .
    x:r1 a x:Lab ; x:of x:EE . x:r2 a x:Room ; x:of "no one" .
    x:low x:reads 1 . x:high x:reads 2 .
"""
PATTERNS = {
    "room": "?e x:from/x:in ?room",
    "roomClass": "?e x:from ?s . ?s x:in ?r . ?r a ?roomClass",
    "owner": "?e x:from/x:in/x:of ?owner",
    "grade": "?e x:level ?l . ?grade x:reads ?l",
    "lab": "?e a x:Reading ; x:from/x:in ?lab . ?lab a x:Lab . FILTER EXISTS { x:r1 x:of x:EE }",
}
EVENTS = [
    {"ts": 1, "sensor": "s1", "level": 1, "kW": 1.5},
    {"ts": 2, "sensor": "s2", "level": 2, "kW": 2.5},
    {"ts": 3, "sensor": "s3", "level": 3, "kW": None},
    {"ts": 4, "sensor": "nobody", "level": None, "kW": 0.0},
    {"ts": 5, "sensor": None, "level": 1, "kW": -0.0},
    {"ts": 6, "sensor": "s4", "level": 2, "kW": 1.0},
    {"ts": 7, "sensor": "s2", "level": 1, "kW": 2.5},
]


def form(said: dict[str, Any] = SAID) -> Form:
    (annotation,) = parse_annotations(said)
    return Form("meter", annotation.time, dict(annotation.types), True)


def wanted(patterns: dict[str, str], knowledge: Knowledge, said: dict[str, Any] = SAID) -> Materialise:
    return Materialise(patterns, knowledge, parse_annotations(said))


def known(text: str = KNOWN, reasoning: str = "rdfs") -> Knowledge:
    return Knowledge.parse(text, reasoning=reasoning)


def source(folder: Path, events: list[dict[str, Any]], name: str = "meter.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return path


def columns(folder: Path) -> dict[str, list[Any]]:
    """The table as any reader of Delta tables sees it, by position."""
    import deltalake
    import pyarrow

    rows = pyarrow.table(deltalake.DeltaTable(folder / "meter").to_pyarrow_table())
    found: dict[str, list[Any]] = rows.sort_by([("_part", "ascending"), ("_seq", "ascending")]).to_pydict()
    return found


def judged(
    path: Path, name: str, pattern: str, knowledge: Knowledge, said: dict[str, Any] = SAID
) -> list[list[str]]:
    """What the reference gives for the PATH, event by event."""
    annotations = parse_annotations(said)
    text = f"SELECT ?{name} FROM (?e, meter) WHERE PATH {{{pattern}}}"
    parsed = parse_query(SourceText("q.chi", text), prefixes_of(annotations))
    data = read_stream("meter", path, "ts", dict(annotations[0].types), True)
    found: dict[int, set[str]] = {each.seq: set() for each in data.events}
    for match in build_run([parsed], [data], annotations, knowledge, now=0).matches("reference"):
        told = json.loads(match.to_json())
        found[told["events"]["e"]["seq"]].add(str(told["select"][name]))
    return [sorted(each for each in some if not each.startswith("_:")) for _, some in sorted(found.items())]


@pytest.mark.parametrize("reasoning", ["none", "rdfs", "owl-rl"])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_column_is_what_the_path_of_a_query_gives(tmp_path: Path, name: str, reasoning: str) -> None:
    """By a table where there can be one, else as values are met."""
    path, pattern, knowledge = source(tmp_path, EVENTS), PATTERNS[name], known(KNOWN, reasoning)
    ingest(Archive(tmp_path / "A"), form(), path, materialise=wanted({name: pattern}, knowledge))
    assert columns(tmp_path / "A")[name] == judged(path, name, pattern, knowledge)


def test_several_values_are_a_list_in_order_and_none_an_empty_one(tmp_path: Path) -> None:
    ingest(Archive(tmp_path / "A"), form(), source(tmp_path, EVENTS), materialise=wanted(PATTERNS, known()))
    found = columns(tmp_path / "A")
    both = ["urn:x:r1", "urn:x:r2"]
    assert found["room"] == [["urn:x:r1"], both, [], [], [], [], both], "a blank node has no name to show"
    assert found["roomClass"][0] == ["urn:x:Lab", "urn:x:Room"]
    assert found["owner"][1] == ["no one", "urn:x:EE"]
    assert found["grade"] == [
        [f"urn:x:{each}"] if each else [] for each in ("low", "high", "", "", "low", "high", "low")
    ]


def test_as_of_the_time_of_the_event(tmp_path: Path) -> None:
    """A statement that holds for a time only is written beside the events of that time."""
    moved = """
        @prefix x: <urn:x:> . @prefix kai: <https://kaicep.org/ns#> .
        @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
        x:s1 x:is x:here . x:r1 a x:Lab . x:r2 a x:Lab .
        x:first kai:validTo "1970-01-01T00:00:03Z"^^xsd:dateTime .
        x:then kai:validFrom "1970-01-01T00:00:03Z"^^xsd:dateTime ;
            kai:validTo "1970-01-01T00:00:05Z"^^xsd:dateTime .
        x:first { x:s1 x:in x:r1 . } x:then { x:s1 x:in x:r2 . }
    """
    knowledge = Knowledge.parse(moved, "trig")
    path = source(tmp_path, [{"ts": at, "sensor": "s1"} for at in (2, 5, 3, 4, 1)])
    ingest(Archive(tmp_path / "A"), form(), path, materialise=wanted({"room": PATTERNS["room"]}, knowledge))
    assert columns(tmp_path / "A")["room"] == [["urn:x:r1"], [], ["urn:x:r2"], ["urn:x:r2"], ["urn:x:r1"]]
    assert columns(tmp_path / "A")["room"] == judged(path, "room", PATTERNS["room"], knowledge)


def test_an_entity_that_is_looked_up(tmp_path: Path) -> None:
    said = {**SAID, "entities": {"sensor": {"property": "x:from", "lookup": "x:tag"}}}
    path = source(tmp_path, [{"ts": 1, "sensor": "t3"}, {"ts": 2, "sensor": "t4"}])
    pattern = "?e x:from ?source"
    ingest(Archive(tmp_path / "A"), form(said), path, materialise=wanted({"source": pattern}, known(), said))
    assert columns(tmp_path / "A")["source"] == [["urn:x:s3"], []]


def test_a_column_that_comes_later_is_null_before(tmp_path: Path) -> None:
    """And after, where it is not asked for: null is not known, an empty list is known to be nothing."""
    archive = Archive(tmp_path / "A")
    for number, patterns in enumerate([{}, {"room": PATTERNS["room"]}, {}, {"owner": PATTERNS["owner"]}]):
        path = source(tmp_path, EVENTS[: number + 1])
        asked = wanted(patterns, known()) if patterns else None
        assert ingest(archive, form(), path, materialise=asked).rows == 1
    event = Event("meter", 0, 4, 9_000_000, {"ts": 9_000_000, "sensor": "s1"})  # as a deployment appends it
    archive.stream("meter").append([event], {0: (4, 5)})
    compact(archive.stream("meter"))
    found = columns(tmp_path / "A")
    assert found["sensor"] == ["s1", "s2", "s3", "nobody", "s1"]
    assert found["room"] == [None, ["urn:x:r1", "urn:x:r2"], None, None, None]
    assert found["owner"] == [None, None, None, [], None]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM (?e, meter) FILTER (?e.kW > 0)",
        """SELECT ?a.kW AS x, ?b.kW AS y FROM (?a, meter), (?b, meter)
            WHERE PATH {?a x:from/x:in ?r . ?b x:from/x:in ?r} SEQ (?a, ?b)""",
    ],
)
def test_queries_do_not_see_them(tmp_path: Path, strategy: str, text: str) -> None:
    """They are no attributes: the answers are those of an archive without them."""
    path, annotations = source(tmp_path, EVENTS), parse_annotations(SAID)
    parsed = parse_query(SourceText("q.chi", text), prefixes_of(annotations))

    def answers(name: str, asked: Materialise | None) -> list[str]:
        ingest(Archive(tmp_path / name), form(), path, materialise=asked)
        history = history_of([parsed], Archive.open(tmp_path / name), known(), annotations, now=0)
        return [each.to_json() for each in past_matches(history, strategy)]

    found = answers("A", wanted(PATTERNS, known()))
    assert found == answers("P", None)
    assert found
    assert not any("roomClass" in each for each in found)


def test_an_attribute_that_is_called_so_as_well_is_refused(tmp_path: Path) -> None:
    """Whichever of the two comes first."""
    path, archive = source(tmp_path, [{"ts": 1, "sensor": "s1"}]), Archive(tmp_path / "A")
    with pytest.raises(Mistake, match="the column kw of what is known cannot be told from another"):
        ingest(archive, form(), path, materialise=wanted({"kw": "?e x:from/x:in ?kw"}, known()))
    assert archive.streams() == []
    ingest(archive, form(), path, materialise=wanted({"room": PATTERNS["room"]}, known()))
    source(tmp_path, [{"ts": 1, "sensor": "s1"}, {"ts": 2, "sensor": "s1", "Room": "x"}])
    said = {**SAID, "types": {**SAID["types"], "Room": "string"}}
    with pytest.raises(Mistake, match="the column room of what is known cannot be told from another"):
        ingest(archive, form(said), path)
    assert archive.stream("meter").positions == {0: 1}


# --- as one types it ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source(tmp_path, EVENTS)
    (tmp_path / "known.ttl").write_text(KNOWN)
    (tmp_path / "meter.json").write_text(json.dumps(SAID))
    return tmp_path


def kaicep(*words: str) -> Result:
    return CliRunner().invoke(app, ["ingest", "--stream", "meter=meter.jsonl", "--archive", "A", *words])


def test_the_command_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltalake
    import pyarrow

    page = (ROOT / "docs" / "archive.md").read_text("utf-8")
    (shown,) = [
        each for each in re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S) if "--materialise" in each
    ]
    command, _, printed = shown.replace("\\\n", "").partition("\n")
    shutil.copytree(ROOT / "examples" / "campus" / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[2:])
    assert (done.exit_code, done.stderr) == (0, printed)
    rows = pyarrow.table(deltalake.DeltaTable("A/airflowReport").to_pyarrow_table()).to_pylist()
    (belongs,) = {tuple(each["department"]) for each in rows if each["sensorID"] == "RTH102VOL"}
    assert [each.rpartition("#")[2] for each in belongs] == ["EEDepartment"]
    assert all(each["room"] for each in rows if each["sensorID"].startswith("RTH"))


SAYS = ("--annotation", "meter.json")
KNOWS = ("--knowledge", "known.ttl")


def test_the_command(place: Path) -> None:
    done = kaicep(*SAYS, *KNOWS, "--materialise", "room = ?e x:from/x:in ?room", "--reasoning", "none")
    assert done.exit_code == 0, done.output
    assert columns(place / "A")["room"][1] == ["urn:x:r2"], "without reasoning, near is not in"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*SAYS, "--materialise", "room=?e x:from ?room"), "--knowledge is not given"),
        ((*SAYS, *KNOWS), "--materialise is not given"),
        (
            (*SAYS, *KNOWS, "--materialise", "?e x:from ?room"),
            "a column and a PATH from ?e to ?COLUMN are needed",
        ),
        ((*SAYS, *KNOWS, "--materialise", "r=?e x:from ?room"), "?r"),
        ((*SAYS, *KNOWS, "--materialise", "r=?e y:from ?r"), "prefix y"),
        ((*SAYS, *KNOWS, "--materialise", "r=?s x:in ?r"), "the PATH is not about ?e"),
        ((*KNOWS, "--materialise", "r=?e x:from ?r"), "no annotation speaks of the stream meter"),
        ((*SAYS, *KNOWS, "--materialise", "r=?e x:to ?r"), "no event of meter has what the PATH asks for"),
        (("--materialise", "r=?e x:to ?r", "--reasoning", "much"), "--reasoning much"),
    ],
)
def test_what_cannot_be_meant_is_told(place: Path, words: tuple[str, ...], told: str) -> None:
    done = kaicep(*words)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert not (place / "A").exists()
