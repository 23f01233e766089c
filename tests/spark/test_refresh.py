"""Knowledge that changes while a stream runs: wherever its engines are, micro-batches are judged alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai
from kaicep.hosts.spark.stream import Published, folder_of
from kaicep.knowledge.store import fingerprint

KNOWN = "@prefix : <urn:> . :p :in :r1 . :q :in :r2 . :limit :is 3 ."
ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:"},
    "attributes": {"x": ":value"},
    "entities": {"k": {"property": ":from", "iri": ":{value}"}},
}
QUERIES = {
    "pair": """SELECT ?a.x AS x, ?b.x AS y FROM (?a, s), (?b, s)
        WHERE JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 100s) PATH {?a :from ?k . ?k :in :r1}""",
    "high": "SELECT ?e.x FROM (?e, s) WHERE PATH {?e :value ?v . :limit :is ?l . FILTER (?v > ?l)}",
}
SCHEMA = "seq bigint, ts bigint, x bigint, k string"
# The last event of each micro-batch lets those before it be judged, and fits nothing.
ROWS = [
    [(0, 0, 1, "p"), (1, 10, 5, "q"), (2, 20, 2, "p"), (3, 30, 0, "z")],
    [(4, 40, 2, "q"), (5, 50, 6, "q"), (6, 60, 0, "z")],
    [(7, 70, 2, "p"), (8, 80, 0, "z")],
    [(9, 82, 9, "r"), (10, 90, 7, "p"), (11, 95, 0, "z")],
    [(12, 96, 11, "q"), (13, 97, 0, "z")],
]
WANTED = [
    [("high", {"x": 5}, 0), ("pair", {"x": 1, "y": 2}, 0)],
    # What is lower than the old limit counts now, and q is in the room from here on.
    [("high", {"x": 2}, 1), ("high", {"x": 6}, 1), ("pair", {"x": 2, "y": 6}, 1)],
    # It failed, and is run again after the next update.
    [("high", {"x": 2}, 1), ("pair", {"x": 1, "y": 2}, 1), ("pair", {"x": 2, "y": 2}, 1)],
    # The new limit holds from second 85 on: 9 came before that, 7 after it.
    [
        ("high", {"x": 9}, 2),
        ("pair", {"x": 1, "y": 7}, 2),
        ("pair", {"x": 2, "y": 7}, 2),
        ("pair", {"x": 2, "y": 7}, 2),
    ],
    # The knowledge was loaded from its files once more: the updates stay.
    [("high", {"x": 11}, 2), ("pair", {"x": 2, "y": 11}, 2), ("pair", {"x": 6, "y": 11}, 2)],
]


def compiled() -> Any:
    return kai.compile(
        QUERIES,
        knowledge=kai.Knowledge.parse(KNOWN),
        annotations=[ANNOTATION],
        streams={"s": {"x": "int64", "k": "string"}},
    )


class Scenario:
    """A stream that fails in its third micro-batch and begins again, twice, with two updates in between."""

    def __init__(self, spark: Any, folder: Path, engine: str) -> None:
        self.spark, self.folder, self.engine = spark, folder, engine
        self.batches: dict[int, list[str]] = {}
        self.fails_at = 2
        self.running: Any = None

    def sink(self, number: int, lines: list[str]) -> None:
        assert self.batches.setdefault(number, lines) == lines, "it comes again as it was"
        if number == self.fails_at:
            raise OSError("the disk is full")

    def start(self, query: Any) -> None:
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "events"))
        checkpoint = self.folder / "checkpoint"
        if self.engine != "match":
            self.running = kai.spark.deliver(
                events,
                query,
                lambda number, matches: self.sink(number, [each.to_json() for each in matches]),
                lateness=0,
                checkpoint=checkpoint,
                engine=self.engine,
            )
            return
        found = kai.spark.match(events, query, lateness=0, refresh=checkpoint)

        def take(rows: Any, number: int) -> None:
            lines = rows.orderBy("end", "id").select("match").toArrow()["match"].to_pylist()
            self.sink(number, lines)

        writer = found.writeStream.foreachBatch(take)
        self.running = writer.option("checkpointLocation", str(checkpoint)).start()

    def update(self, query: Any, add: str, remove: str, valid_from: int | None = None) -> None:
        query.knowledge.update(f"@prefix : <urn:> . {add}", f"@prefix : <urn:> . {remove}", valid_from)
        if self.engine == "match":
            kai.spark.publish(query, self.folder / "checkpoint")

    def add(self, number: int) -> None:
        rows = self.spark.createDataFrame(ROWS[number], SCHEMA).coalesce(1)
        rows.write.mode("append").parquet(str(self.folder / "events"))

    def run(self) -> dict[int, list[str]]:
        query = compiled()
        self.add(0)
        self.start(query)
        self.running.processAllAvailable()
        self.update(query, ":limit :is 1 . :q :in :r1 .", ":limit :is 3 .")
        self.add(1)
        self.running.processAllAvailable()
        self.add(2)
        with pytest.raises(Exception, match="the disk is full"):
            self.running.processAllAvailable()
        self.fails_at = -1
        self.update(query, ":limit :is 10 .", ":limit :is 1 .", 85_000_000)
        self.start(query)
        self.running.processAllAvailable()
        self.add(3)
        self.running.processAllAvailable()
        self.running.stop()
        again = compiled()
        self.start(again)
        self.add(4)
        self.running.processAllAvailable()
        self.running.stop()
        assert again.knowledge.version == 2
        return self.batches


def summary(line: str) -> tuple[str, dict[str, int], int]:
    found = json.loads(line)
    return found["query"], found["select"], found.get("knowledge", 0)


@pytest.mark.spark
def test_an_update_judges_from_the_next_micro_batch_on_wherever_the_engines_are(
    spark: Any, tmp_path: Path
) -> None:
    found: dict[str, dict[int, list[str]]] = {}
    for engine in ("driver", "workers", "match"):
        scenario = Scenario(spark, tmp_path / engine, engine)
        try:
            found[engine] = scenario.run()
        finally:
            if scenario.running is not None:
                scenario.running.stop()
    in_driver = [sorted(map(summary, found["driver"][number]), key=str) for number in range(len(ROWS))]
    assert in_driver == [sorted(some, key=str) for some in WANTED]
    assert found["workers"] == found["driver"]
    assert found["match"] == found["driver"]


@pytest.mark.spark
def test_without_refresh_workers_keep_what_they_started_with(spark: Any, tmp_path: Path) -> None:
    query = compiled()
    found: dict[int, list[kai.Match]] = {}
    scenario = Scenario(spark, tmp_path, "workers")
    scenario.add(0)
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "events"))
    options: dict[str, Any] = {"lateness": 0, "checkpoint": tmp_path / "c", "engine": "workers"}
    running = kai.spark.deliver(events, query, found.__setitem__, refresh=False, **options)
    try:
        running.processAllAvailable()
        query.knowledge.update("@prefix : <urn:> . :limit :is 1 . :q :in :r1 .", "<urn:limit> <urn:is> 3 .")
        scenario.add(1)
        running.processAllAvailable()
    finally:
        running.stop()
    assert [summary(each.to_json()) for each in found[1]] == [("high", {"x": 6}, 0)]
    assert not folder_of(tmp_path / "c").exists()


def parsed(text: str = KNOWN) -> kai.Knowledge:
    return kai.Knowledge.parse(text)


def test_all_who_ask_for_a_micro_batch_get_the_version_of_the_first(tmp_path: Path) -> None:
    knowledge = parsed()
    driver = Published(tmp_path)
    driver.begin(knowledge)
    workers = [Published(tmp_path) for _ in range(3)]
    assert workers[0].chosen(100) == 0
    knowledge.update("<urn:a> <urn:in> <urn:r1> .")
    driver.publish(knowledge)
    driver.publish(knowledge)  # nothing new
    assert [each.chosen(100) for each in workers] == [0, 0, 0]
    assert [each.chosen(200) for each in workers] == [1, 1, 1]
    assert [workers[0].read(number).version for number in (0, 1)] == [0, 1]
    assert workers[0].read(1) is workers[1].read(1)


def test_many_who_ask_at_once_get_one_answer(tmp_path: Path) -> None:
    knowledge = parsed()
    Published(tmp_path).begin(knowledge)
    together = threading.Barrier(5)  # micro-batches come one after the other
    answers: list[list[int]] = [[] for _ in range(4)]

    def ask(own: list[int]) -> None:
        for batch in range(20):
            together.wait()
            own.append(Published(tmp_path).chosen(batch))

    threads = [threading.Thread(target=ask, args=(own,)) for own in answers]
    for each in threads:
        each.start()
    for number in range(20):
        together.wait()
        knowledge.update(f"<urn:a{number}> <urn:in> <urn:r1> .")
        Published(tmp_path).publish(knowledge)
    for each in threads:
        each.join()
    assert answers == [answers[0]] * 4
    assert answers[0] == sorted(answers[0])
    assert answers[0][-1] >= 19


def test_what_is_of_micro_batches_long_ago_is_forgotten(tmp_path: Path) -> None:
    knowledge = parsed()
    published = Published(tmp_path)
    published.begin(knowledge)
    for batch in range(30):
        knowledge.update(f"<urn:a{batch}> <urn:in> <urn:r1> .")
        published.publish(knowledge)
        assert published.read(published.chosen(batch)).version == batch + 1
    assert published.chosen(25) == 26
    assert len(list(tmp_path.iterdir())) == 16


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (lambda: parsed(), "the updates"),
        (lambda: parsed(KNOWN + " :s :in :r1 ."), "what is given"),
    ],
)
def test_a_stream_goes_on_with_its_updates_unless_the_files_say_something_else(
    tmp_path: Path, given: Callable[[], kai.Knowledge], counts: str
) -> None:
    knowledge = parsed()
    published = Published(tmp_path)
    published.begin(knowledge)
    knowledge.update("<urn:a> <urn:in> <urn:r1> .", "<urn:p> <urn:in> <urn:r1> .", 5_000_000)
    published.publish(knowledge)
    again = given()
    before = fingerprint(again)
    later = Published(tmp_path)
    later.begin(again)
    went_on = counts == "the updates"
    assert fingerprint(again) == (fingerprint(knowledge) if went_on else before)
    assert again.version == (1 if went_on else 0)
    newest = later.read(later.chosen(7))
    assert fingerprint(newest) == fingerprint(again)
    # Whoever has caught up goes on from there.
    again.update("<urn:b> <urn:in> <urn:r1> .")
    later.publish(again)
    assert later.read(later.chosen(8)).version == again.version


def test_a_folder_that_a_worker_does_not_reach_is_told(tmp_path: Path) -> None:
    with pytest.raises(kai.KaicepError, match="no knowledge is published in"):
        Published(tmp_path / "elsewhere").chosen(0)


def test_an_update_waits_for_whoever_reads_the_knowledge() -> None:
    knowledge = parsed()
    with knowledge.lock:
        thread = threading.Thread(target=knowledge.update, args=("<urn:a> <urn:in> <urn:r1> .",))
        thread.start()
        thread.join(0.2)
        assert knowledge.version == 0
    thread.join()
    assert knowledge.version == 1
