"""The thirteen queries of the demo: each finds something on the small campus, and what the judge finds."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kaicep.api import open_run
from kaicep.archive.archive import Archive
from kaicep.demo.campus import OPENING, QUERIES, SCALES, Campus, Folder, Morning
from kaicep.demo.morning import TITLES, DemoQuery, Recent, archive_here, opened, place_of, places, reasons
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Match

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "campus" / "queries"
MINUTES = 80  # until a building has closed, and the boxes of vendor A were flushed
CAMPUS = Campus.make(SCALES["small"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    made = Folder(tmp_path_factory.mktemp("demo") / "campus", CAMPUS)
    for some in Morning(CAMPUS).minutes(0, MINUTES):
        made.write(some)
    return made


def matches(folder: Folder, query: Path, host: str = "inprocess", streams: Sequence[str] = ()) -> list[Match]:
    names = streams or list(folder.next)
    run = open_run(
        queries=[query],
        streams=[(name, folder.data(name)) for name in names],
        knowledge=[folder.knowledge],
        annotations=[folder.path / "annotations" / f"{name}.json" for name in names],
    )
    assert (run.dead, run.diagnostics) == ([], ())
    return run.matches(host)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_every_query_finds_what_the_judge_finds(folder: Folder, name: str) -> None:
    query = folder.path / "queries" / f"{name}.chi"
    found = matches(folder, query)
    assert found
    assert found == matches(folder, query, "reference")


ALSO_EXAMPLES = [each for each in QUERIES if (EXAMPLES / f"{each}.chi").exists() and each != "silent"]


@pytest.mark.parametrize("name", ALSO_EXAMPLES)
def test_what_is_an_example_too_means_the_same_here(folder: Folder, name: str) -> None:
    """The paper names no stream and no time; the demo has several streams, and looks back.

    The example `silent` knows of the end of its morning, which the demo goes beyond.
    """
    ours = matches(folder, folder.path / "queries" / f"{name}.chi")
    streams = ["airflowReport"] if name.startswith("query") else ["airflowReport", "roomOccupancy"]
    examples = matches(folder, EXAMPLES / f"{name}.chi", streams=streams)
    columns = ours[0].select.keys()  # an example may select the room as well
    assert without_ids(ours, columns) == without_ids(examples, columns)


def test_the_examples_are_among_them() -> None:
    assert {f"query{number}" for number in range(1, 8)} | {"disagree", "rising", "empty-but-cooled"} == set(
        ALSO_EXAMPLES
    )


def without_ids(found: Sequence[Match], columns: Collection[str]) -> list[tuple[Any, ...]]:
    """What there is of matches beside their ids, which hang on the text of the query, and their order."""
    return sorted(
        (each.end_us, each.start_us, str(each.events), str({name: each.select[name] for name in columns}))
        for each in found
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_every_query_finds_something_on_other_campuses_too(tmp_path: Path, seed: int) -> None:
    campus = Campus.make(SCALES["small"], seed)
    made = Folder(tmp_path / "campus", campus)
    for some in Morning(campus, seed).minutes(0, MINUTES):
        made.write(some)
    assert [name for name in QUERIES if not matches(made, made.path / "queries" / f"{name}.chi")] == []


def test_every_query_has_a_title() -> None:
    assert list(TITLES) == list(QUERIES)


# --- back in time, and on -----------------------------------------------------------------------------


@functools.cache
def _knowledge(path: Path) -> Knowledge:
    return Knowledge.load(path)


def found(queries: Sequence[DemoQuery]) -> Iterator[Match]:
    for query in queries:
        for some in query.past():
            yield from some


@pytest.mark.slow
def test_past_and_live_together_find_what_one_run_over_everything_finds(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "campus", CAMPUS)
    morning = Morning(CAMPUS)
    for some in morning.minutes(0, 40):
        folder.write(some)
    archive_here(folder)
    annotations = list(folder.annotations.values())
    queries = opened(folder.queries, Archive(folder.archive), _knowledge(folder.knowledge), annotations)
    told = list(found(queries))
    for some in morning.minutes(40, MINUTES):
        events = folder.events(some)
        folder.write(some)
        told += [match for query in queries for match in query.live(events)]
    whole = [each for query in folder.queries for each in matches(folder, query)]
    ids = [each.id for each in told]
    assert len(ids) == len(set(ids))
    assert set(ids) <= {each.id for each in whole}
    assert {each.query for each in told} == set(QUERIES)
    # Only what ends in the last minutes may still wait for a stream that has less to say, or for the end.
    end = OPENING + MINUTES * 60_000_000
    assert all(each.end_us > end - 600_000_000 for each in whole if each.id not in ids)


@pytest.mark.slow
def test_a_match_tells_its_room_its_department_and_why(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "campus", CAMPUS)
    for some in Morning(CAMPUS).minutes(0, MINUTES):
        folder.write(some)
    archive_here(folder)
    archive = Archive(folder.archive)
    annotations = list(folder.annotations.values())
    queries = opened(folder.queries, archive, _knowledge(folder.knowledge), annotations)
    known, recent = places(CAMPUS), Recent(archive)
    said: dict[str, list[str]] = {}
    for query in queries:
        match = next(found([query]))
        place = place_of(match, recent.event, known)
        assert place is not None
        assert place.department in {each.label for each in CAMPUS.departments}
        said[query.name] = reasons(match, query.history, recent.event)
    assert said["query1"] == ["527.4 > 500"]
    assert said["query7"] == [
        "527.4 > 500",
        "615.4 - 527.4 = 88 > 50",
        "3 min 16 s apart",
        "RTH212 is a ConferenceRoom, hence a MeetingRoom",
        "RTH212VOL2 is an AirflowSensor",
        "RTH212VOL2 hasLocation RTH212",
    ]
    assert said["silent"][0] == "nothing since 08:20:27, for 10 min"
    assert "?gaf is 500" in said["query5"]
    assert "OHE-FAN1 serves OHE" in said["fan-after-closing"]
    assert "CE-ACCOUNT paidBy CEDepartment" in said["over-budget"]
    assert said["query2"][0].startswith("AVG(?e.flowrate) > 500.0 is 50")
    assert all(said.values())
