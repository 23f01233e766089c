"""A deployment, tick by tick: past, present and future, whatever comes and goes while it runs."""

from __future__ import annotations

import json
import logging
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.connectors.pages import Pages, chain
from tests.deployment.processes import SECONDS, matches, write
from tests.servers import Broker, Fuseki, free_port, make_topics
from typer.testing import CliRunner

from kaicep.api import open_run
from kaicep.archive.archive import Archive
from kaicep.archive.stream_table import expire
from kaicep.cli.main import app
from kaicep.connectors.contract import Guarantee, Position, Source, SourceBatch
from kaicep.connectors.shape import Schema
from kaicep.connectors.sinks.files import FileSink
from kaicep.deployment.check import check_deployment
from kaicep.deployment.config import StreamConfig, load_config
from kaicep.deployment.running import Deployment
from kaicep.deployment.sessions import SessionRun
from kaicep.errors import Mistake
from kaicep.errors import SourceText as Text
from kaicep.history.strategies import open_history, past_matches
from kaicep.knowledge.annotation import build_catalog
from kaicep.language import parse_ep
from kaicep.plan.catalog import Vocabulary
from kaicep.plan.events import Event, Match
from kaicep.plan.program import resolve_ep
from kaicep.plan.terms import RDF, Iri
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type

pytestmark = pytest.mark.slow

START = 1336381200  # 2012-05-07T09:00:00Z
SINCE = "WITHIN [2012-05-07T09:00, )"
PAIR = f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"
HIGH = f"SELECT ?e.x FROM (?e, s) {SINCE} FILTER (?e.x > 5)"


def event(second: float, x: int, k: str = "p") -> str:
    return json.dumps({"ts": START + second, "x": x, "k": k}) + "\n"


def toml(follow: bool = True, sinks: str = "", stream: str = "", top: str = "") -> str:
    return f"""{top}
[streams.s]
{stream}
source = {{kind = "files", path = "s.jsonl", follow = {str(follow).lower()}}}
[sinks.out]
kind = "files"
path = "out.jsonl"
{sinks}"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark without a match is made final soon, so that no test waits for it."""
    monkeypatch.setattr("kaicep.deployment.sinks._QUIET", 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, {"kaicep.toml": toml(), "s.jsonl": event(0, 1) + event(1, 7), "queries/high.chi": HIGH})
    return tmp_path


@contextmanager
def deployed(folder: Path, lose: bool = False) -> Iterator[Deployment]:
    """A deployment that was opened; with `lose` it is lost at the end, as by a crash."""
    made = Deployment(load_config(folder / "kaicep.toml"))
    try:
        made.open()
        yield made
        if not lose:
            made.drain()
    finally:
        for outlet in made.outlets.values():
            outlet._trouble = outlet._trouble or "lost"  # its thread makes nothing final any more
            outlet.close(20)
        made.close()


def settle(made: Deployment) -> None:
    """Ticks until there is nothing to do, everybody is up to date, and the sinks have it."""
    while made.tick():
        pass
    for outlet in made.outlets.values():
        assert outlet.wait(made._moment, SECONDS)


def append(folder: Path, *lines: str) -> None:
    with (folder / "s.jsonl").open("a") as file:
        file.writelines(lines)


def look_again(made: Deployment) -> None:
    """The folders are watched once a second; a test does not wait for that."""
    made._watched = 0.0
    settle(made)


def told(folder: Path, name: str = "out.jsonl", query: str | None = None) -> list[dict[str, Any]]:
    return [each["select"] for each in matches(folder / name) if query in (None, each["query"])]


def wanted(folder: Path, query: str) -> list[dict[str, Any]]:
    run = open_run([folder / "queries" / f"{query}.chi"], [("s", folder / "s.jsonl")], lateness=0)
    return [json.loads(each.to_json()) for each in run.matches()]


# --- past, present, future --------------------------------------------------------------------------


def test_a_finite_deployment_waits_for_a_slow_sink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, {"kaicep.toml": toml(follow=False)})
    monkeypatch.setattr("kaicep.deployment.running._DRAIN", 0.05)
    write_them = FileSink.write

    def slowly(self: FileSink, found: Sequence[Match]) -> None:
        time.sleep(0.5)
        write_them(self, found)

    monkeypatch.setattr(FileSink, "write", slowly)
    Deployment(load_config(folder / "kaicep.toml")).run()
    assert told(folder) == [{"x": 7}]


def test_a_finite_deployment_ends_and_tells_nothing_twice(folder: Path) -> None:
    write(folder, {"kaicep.toml": toml(follow=False), "queries/pair.chi": PAIR})
    for _ in range(2):
        Deployment(load_config(folder / "kaicep.toml")).run()
        assert sorted(map(json.dumps, matches(folder / "out.jsonl"))) == sorted(
            map(json.dumps, wanted(folder, "high") + wanted(folder, "pair"))
        )


def test_a_query_that_comes_later_answers_as_if_it_had_been_there(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8), event(3, 2))
        settle(made)
        write(folder, {"queries/pair.chi": PAIR})
        look_again(made)
        append(folder, event(4, 9), event(20, 3))
        settle(made)
        assert [each["state"] for each in made.catalogue.status().values()] == ["live", "live"]
    found = [each for each in matches(folder / "out.jsonl") if each["query"] == "pair"]
    assert found == wanted(folder, "pair")


def test_hours_are_those_of_the_zone_that_the_deployment_names(folder: Path) -> None:
    text = "SELECT hour(?e.ts) AS here, hour(?e.ts, 'UTC') AS utc, dayOfWeek(?e.ts) AS day FROM (?e, s)"
    zone = 'time_zone = "America/Los_Angeles"\n'
    write(folder, {"kaicep.toml": zone + toml(follow=False), "queries/local.chi": text})
    Deployment(load_config(folder / "kaicep.toml")).run()
    expected = {"here": 2, "utc": 9, "day": 1}
    assert told(folder, query="local") == [expected, expected]
    given = [str(folder / "queries" / "local.chi"), "--deployment", str(folder / "kaicep.toml")]
    for command in (["match"], ["match", "--host", "reference"], ["query"]):
        done = CliRunner().invoke(app, [command[0], *given, *command[1:]])
        assert [json.loads(line)["select"] for line in done.stdout.splitlines()] == [expected, expected]
    write(folder, {"kaicep.toml": zone.replace("Los_Angeles", "Los_Angelos") + toml()})
    with pytest.raises(Mistake, match="did you mean America/Los_Angeles"):
        load_config(folder / "kaicep.toml")


def test_how_much_rules_may_derive_is_said_in_the_file(folder: Path) -> None:
    write(folder, {"kaicep.toml": "derived = 20\n" + toml()})
    catalog = build_catalog([], load_config(folder / "kaicep.toml").annotations, Vocabulary())
    assert resolve_ep(parse_ep(Text("up", "SELECT ?x { ?x p 1 }")), catalog).most_derived == 20
    write(folder, {"kaicep.toml": 'derived = "many"\n' + toml()})
    with pytest.raises(Mistake, match="many is not a number of triples"):
        load_config(folder / "kaicep.toml")


def test_now_is_the_time_of_the_newest_event(folder: Path) -> None:
    """The wall clock decides nothing: recorded events of long ago are answered like any others."""
    write(folder, {"queries/first.chi": "SELECT ?e.x FROM (?e, s)"})
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8))
        settle(made)
        write(folder, {"queries/new.chi": "SELECT ?e.x FROM (?e, s)"})
        write(folder, {"queries/over.chi": "SELECT ?e.x FROM (?e, first)"})
        write(folder, {"queries/near.chi": "SELECT ?e.x FROM (?e, s) WITHIN [now - 1s, now]"})
        look_again(made)
        append(folder, event(3, 4), event(4, 5))
        settle(made)
    assert told(folder, query="first") == [{"x": each} for each in (1, 7, 8, 4, 5)]
    assert told(folder, query="new") == [{"x": 8}, {"x": 4}, {"x": 5}]
    assert told(folder, query="over") == [{"x": 8}, {"x": 4}]  # at the same instant more may still come
    assert told(folder, query="near") == [{"x": 7}, {"x": 8}]


def test_now_may_be_given(folder: Path) -> None:
    now = parse_time("2012-05-07T09:00:02Z")
    write(folder, {"queries/new.chi": "SELECT ?e.x FROM (?e, s)"})
    made = Deployment(load_config(folder / "kaicep.toml"), now)
    made.open()
    append(folder, event(2, 8), event(3, 4))
    settle(made)
    made.drain()
    made.close()
    assert told(folder, query="new") == [{"x": 8}, {"x": 4}]


def test_a_query_that_begins_after_the_newest_event_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, {"queries/later.chi": "SELECT ?e.x FROM (?e, s) WITHIN [2030-01-01, )"})
    with deployed(folder) as made:
        settle(made)
        assert "after the newest event of its streams" in made.status()["queries"]["later"]["note"]
    assert "later: begins at 2030-01-01T00:00:00.000000Z, after the newest event" in caplog.text


def test_when_within_is_over_the_query_is_complete_and_stays_so(folder: Path) -> None:
    write(folder, {"queries/pair.chi": PAIR.replace(", )", ", 2012-05-07T09:00:05)")})
    for _ in range(2):
        with deployed(folder) as made:
            append(folder, event(4, 9), event(30, 3))
            settle(made)
            assert made.catalogue.status()["pair"]["state"] == "complete"
            assert made.catalogue.status()["high"]["state"] == "live"
    assert told(folder, query="pair") == [{"a.x": 1, "b.x": 7}, {"a.x": 1, "b.x": 9}, {"a.x": 7, "b.x": 9}]


def test_a_query_for_the_future_waits_for_it(folder: Path) -> None:
    write(folder, {"queries/later.chi": "SELECT ?e.x FROM (?e, s) WITHIN [2012-05-07T10:00, )"})
    with deployed(folder) as made:
        settle(made)
        append(folder, event(3600, 6))
        settle(made)
    assert told(folder, query="later") == [{"x": 6}]


def test_the_archive_says_where_it_begins(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kaicep.run")
    write(folder, {"queries/old.chi": "SELECT ?e.x FROM (?e, s) WITHIN [1999-01-01, )"})
    with deployed(folder) as made:
        settle(made)
    assert "old: reads from 1999-01-01" in caplog.text
    assert "the archive has s only from 2012-05-07T09:00:00" in caplog.text


def test_queries_of_both_languages_read_each_other(folder: Path) -> None:
    write(
        folder,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"'),
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"x": "v:x"}}',
            "queries/big.epsparql": "PREFIX v: <urn:v:> SELECT ?n { ?e v:x ?n . FILTER (?n > 5) }",
            "queries/bigger.chi": f"SELECT ?e.n FROM (?e, big) {SINCE}",
        },
    )
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 9), event(3, 2))
        settle(made)
    assert told(folder, query="bigger") == [{"n": "7"}, {"n": "9"}]
    assert [each["n"]["value"] for each in told(folder, query="big")] == ["7", "9"]


def test_a_concurrent_query_is_followed_at_once_and_written_down_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(folder, event(2, 8), event(3, 2))
    (folder / "queries" / "high.chi").unlink()
    write(folder, {"kaicep.toml": toml(sinks='[queries.pair]\nplan = "concurrent"\n')})
    with deployed(folder) as made:
        settle(made)
    write(folder, {"queries/pair.chi": PAIR})
    followed: list[Any] = []
    for second, lost in ((20, True), (40, False)):
        with deployed(folder, lose=lost) as made:
            with monkeypatch.context() as patched:
                patched.setattr("kaicep.deployment.running._SLICE", -1.0)  # the past is not done soon
                made.listeners.append(lambda told: followed.extend(match.select for _, match in told))
                append(folder, event(second, 5), event(second + 1, 6))
                while not followed:
                    made.tick()
                assert followed.pop() == {"a.x": 5, "b.x": 6}
                shown = made.catalogue.status()["pair"]
                assert (shown["state"], shown["plan"]) == ("catching up", "concurrent")
            assert told(folder) == []
            if not lost:
                settle(made)
                assert len(told(folder)) == shown["matches"] + 8
                append(folder, event(42, 7))
                settle(made)
    append(folder, event(43, 8))  # it goes on from where the plan stood
    with deployed(folder) as made:
        settle(made)
        assert made.catalogue.status()["pair"]["plan"] == "hand-off"
    assert matches(folder / "out.jsonl") == wanted(folder, "pair")


def test_the_output_of_a_query_may_be_annotated(folder: Path) -> None:
    prefixes = '"prefixes": {"v": "urn:v:"}'
    known = '[knowledge]\nfiles = ["k.ttl"]\n[queries.high]\nannotation = "high.json"\n'
    write(
        folder,
        {
            "kaicep.toml": toml(sinks=known, stream='types = {x = "int64"}'),
            "k.ttl": "<urn:v:High> <http://www.w3.org/2000/01/rdf-schema#subClassOf> <urn:v:Alarm> .",
            "high.json": f'{{"stream": "high", {prefixes}, "class": "v:High", "attributes": {{"x": "v:x"}}}}',
            "queries/alarm.chi": f"SELECT ?a.v:x FROM (?a, v:Alarm) {SINCE} FILTER (?a.v:x > 7)",
        },
    )
    assert list(check_deployment(load_config(folder / "kaicep.toml")))[-1].endswith(": ok")
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8), event(3, 9), event(4, 1))
        settle(made)
    assert told(folder, query="alarm") == [{"x": 8}, {"x": 9}]


def test_each_query_counts_its_own_matches(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kaicep.run")
    annotation = '{"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"x": "v:x"}}'
    ask = "PREFIX v: <urn:v:> SELECT ?n {{ ?e v:x ?n . FILTER (?n > {}) }}"
    write(folder, {"kaicep.toml": toml(stream='annotation = "s.json"'), "s.json": annotation})
    write(folder, {"queries/some.epsparql": ask.format(5), "queries/all.epsparql": ask.format(0)})
    counts = {"all": 2, "high": 1, "some": 1}
    for _ in range(2):
        with deployed(folder) as made:
            settle(made)
            shown = made.catalogue.status()
            assert {name: each["matches"] for name, each in shown.items()} == counts
    last = [each for each in caplog.messages if "up to date" in each][-3:]
    assert sorted(last) == [f"{name}: up to date, {count} matches" for name, count in counts.items()]


def test_a_source_that_goes_back_to_old_positions_doubles_nothing(folder: Path) -> None:
    """As a broker may that was started again before it had written everything down."""
    write(folder, {"queries/pair.chi": PAIR})
    with deployed(folder) as made:
        settle(made)
        feed = made.feeds["s"]
        feed._source.close()
        feed._source = feed.config.open_source()
        feed._source.open({0: 0}, None)
        append(folder, event(2, 8))
        settle(made)
        assert feed.status()["positions"] == {"0": 3}
    held = Archive(folder / "state" / "archive").snapshot()
    assert [each.seq for each in held.events("s")] == [0, 1, 2]
    for name in ("pair", "high"):
        found = [each for each in matches(folder / "out.jsonl") if each["query"] == name]
        assert found == wanted(folder, name)


# --- queries and knowledge change -------------------------------------------------------------------


def test_a_query_that_asks_for_more_goes_on_with_what_it_holds(folder: Path) -> None:
    write(folder, {"queries/pair.chi": PAIR})
    with deployed(folder) as made:
        settle(made)
        write(folder, {"queries/pair.chi": PAIR.replace("10s", "9s")})
        look_again(made)
        append(folder, event(2, 8))
        settle(made)
    found = sorted((each["a.x"], each["b.x"]) for each in told(folder, query="pair"))
    assert found == [(1, 7), (1, 8), (7, 8)]


def test_a_query_that_asks_for_something_else_begins_anew(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        write(folder, {"queries/high.chi": HIGH.replace("> 5", "> 0")})
        look_again(made)
    assert told(folder) == [{"x": 7}, {"x": 1}, {"x": 7}]


def test_a_text_that_is_wrong_changes_nothing_and_is_shown(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        write(folder, {"queries/high.chi": "SELECT ?e.x FROM"})
        look_again(made)
        append(folder, event(2, 8))
        settle(made)
        shown = made.catalogue.status()["high"]
        assert shown["state"] == "live"
        assert "high.chi:1:" in shown["problem"]
    assert told(folder) == [{"x": 7}, {"x": 8}]


def test_a_query_that_is_removed_says_no_more(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        (folder / "queries" / "high.chi").unlink()
        look_again(made)
        append(folder, event(2, 8))
        settle(made)
        assert made.catalogue.status() == {}
    assert told(folder) == [{"x": 7}]


def test_a_query_edited_while_nothing_ran_catches_up_under_its_old_text_first(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
    append(folder, event(2, 8))
    write(folder, {"queries/high.chi": HIGH.replace("> 5", "> 7")})
    with deployed(folder) as made:
        settle(made)
        look_again(made)
        append(folder, event(3, 6), event(4, 9))
        settle(made)
    assert told(folder) == [{"x": 7}, {"x": 8}, {"x": 9}]


def test_knowledge_is_watched(folder: Path) -> None:
    write(
        folder,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"', sinks='[knowledge]\nfiles = ["k.ttl"]\n'),
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"},'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}}',
            "k.ttl": "<urn:v:p> a <urn:v:Hot> . <urn:v:q> a <urn:v:Cold> .",
            "queries/high.chi": f"SELECT ?e.x FROM (?e, s) {SINCE} PATH {{?e v:of ?o . ?o a v:Hot}}",
        },
    )
    with deployed(folder) as made:
        settle(made)
        write(folder, {"k.ttl": "<urn:v:q> a <urn:v:Hot> . <urn:v:p> a <urn:v:Cold> ."})
        look_again(made)
        append(folder, event(2, 8), event(3, 9, "q"))
        settle(made)
    assert told(folder) == [{"x": 1}, {"x": 7}, {"x": 9}]


@pytest.mark.servers
def test_knowledge_of_an_endpoint_is_followed_and_outlives_it(folder: Path, fuseki: Fuseki) -> None:
    fuseki.start()
    fuseki.update("INSERT DATA { <urn:v:p> a <urn:v:Hot> . <urn:v:q> a <urn:v:Cold> }")
    endpoint = f'[knowledge]\nendpoint = "{fuseki.url}"\n'
    write(
        folder,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"', sinks=endpoint),
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"},'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}}',
            "queries/high.chi": f"SELECT ?e.x FROM (?e, s) {SINCE} PATH {{?e v:of ?o . ?o a v:Hot}}",
        },
    )
    assert any("2 statements" in line for line in check_deployment(load_config(folder / "kaicep.toml")))
    with deployed(folder) as made:
        settle(made)
        fuseki.update("DELETE WHERE { ?s ?p ?o } ; INSERT DATA { <urn:v:q> a <urn:v:Hot> }")
        made.knowledge.notify()
        deadline = time.monotonic() + 60
        while made.status()["knowledge"]["version"] == 0 and time.monotonic() < deadline:
            look_again(made)
            time.sleep(0.01)
        append(folder, event(2, 8), event(3, 9, "q"))
        settle(made)
    fuseki.stop()
    with deployed(folder) as made:
        settle(made)
        look_again(made)
        assert "cannot be reached" in made.status()["knowledge"]["trouble"]
        append(folder, event(4, 2, "q"))
        settle(made)
    assert told(folder) == [{"x": 1}, {"x": 7}, {"x": 9}, {"x": 2}]


@pytest.mark.servers
def test_knowledge_follows_a_topic_of_updates_and_outlives_it(
    folder: Path, own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    own_broker.start()
    make_topics(own_broker.address, {"changes": 1})
    send = partial(_send, own_broker.address, "changes")
    send("PREFIX v: <urn:v:> INSERT DATA { v:p a v:Hot . v:q a v:Cold }")
    updates = f'[knowledge.updates]\nservers = "{own_broker.address}"\ntopic = "changes"\n'
    write(
        folder,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"', sinks=updates),
            "s.json": '{"stream": "s", "prefixes": {"v": "urn:v:"},'
            ' "entities": {"k": {"property": "v:of", "iri": "v:{value}"}}}',
            "queries/high.chi": f"SELECT ?e.x FROM (?e, s) {SINCE} PATH {{?e v:of ?o . ?o a v:Hot}}",
        },
    )
    with deployed(folder) as made:
        settle(made)
        send("CLEAR ALL")  # which is no update that can be followed
        send("PREFIX v: <urn:v:> DELETE { ?o a v:Hot } INSERT { ?o a v:Warm } WHERE { ?o a v:Hot }")
        send("PREFIX v: <urn:v:> INSERT DATA { v:q a v:Hot }")
        _until(made, lambda: "urn:v:q" in _hot(made) and "urn:v:p" not in _hot(made))
        append(folder, event(2, 8), event(3, 9, "q"))
        settle(made)
        own_broker.stop()
        _until(made, lambda: "cannot be reached" in (made.status()["knowledge"]["trouble"] or ""))
        append(folder, event(4, 2, "q"))
        settle(made)
    with deployed(folder) as made:  # without the broker, and nothing is applied twice
        settle(made)
        assert _hot(made) == {"urn:v:q"}
        append(folder, event(5, 3, "q"), event(6, 4))
        settle(made)
        own_broker.start()
        send("PREFIX v: <urn:v:> INSERT DATA { v:p a v:Hot }")
        _until(made, lambda: "urn:v:p" in _hot(made))
        append(folder, event(7, 5))
        settle(made)
    assert told(folder) == [{"x": 1}, {"x": 7}, {"x": 9}, {"x": 2}, {"x": 3}, {"x": 5}]
    assert "offset 1 of partition 0 is no update" in caplog.text
    assert sorted(each.name for each in (folder / "state" / "knowledge").iterdir()) == [
        "000001.0.0.ru",
        "000002.0.1.refused",
        "000003.0.2.ru",
        "000004.0.3.ru",
        "000005.0.4.ru",
    ]


def _send(servers: str, topic: str, text: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(topic, text.encode(), partition=0)
    assert producer.flush(60) == 0


def _hot(made: Deployment) -> set[str]:
    found = made.knowledge.knowledge.match(None, Iri(RDF + "type"), Iri("urn:v:Hot"))
    return {row[0].value for row in found if isinstance(row[0], Iri)}


def _until(made: Deployment, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, made.status()["knowledge"]
        look_again(made)
        made.knowledge.notify()
        time.sleep(0.02)


# --- lost and found ---------------------------------------------------------------------------------


def test_a_sink_that_is_behind_is_told_what_it_lacks_and_no_other(folder: Path) -> None:
    sinks = '[sinks.two]\nkind = "files"\npath = "two.jsonl"\n'
    write(folder, {"kaicep.toml": toml(sinks=sinks), "queries/pair.chi": PAIR})
    with deployed(folder) as made:
        settle(made)
    kept = folder / "kept"
    kept.mkdir()
    shutil.copy(folder / "two.jsonl", kept)
    shutil.copy(folder / ".two.jsonl.commit", kept)
    append(folder, event(2, 8), event(3, 2))
    with deployed(folder) as made:
        settle(made)
    shutil.copy(kept / "two.jsonl", folder)
    shutil.copy(kept / ".two.jsonl.commit", folder)
    append(folder, event(4, 9))
    with deployed(folder) as made:
        settle(made)
    everything = wanted(folder, "high") + wanted(folder, "pair")
    for name in ("out.jsonl", "two.jsonl"):
        assert sorted(each["id"] for each in matches(folder / name)) == sorted(
            each["id"] for each in everything
        )


def test_a_sink_that_is_new_is_told_everything(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
    write(folder, {"kaicep.toml": toml(sinks='[sinks.two]\nkind = "files"\npath = "two.jsonl"\n')})
    append(folder, event(2, 8))
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == told(folder, "two.jsonl") == [{"x": 7}, {"x": 8}]


@pytest.mark.parametrize(
    "query", ["SELECT SUM(?e.x) AS n FROM (?e, s) " + SINCE + " WINDOW (?e, sliding, 2)", PAIR]
)
def test_what_was_not_told_when_it_was_lost_is_told_next_time(
    folder: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaicep.deployment.sessions._SAVE_EVERY", 0.0)
    write(folder, {"queries/q.chi": query})
    with deployed(folder) as made:
        settle(made)
    with deployed(folder, lose=True) as made:
        for outlet in made.outlets.values():
            monkeypatch.setattr(outlet, "_deliver", lambda *_: time.sleep(0.02))
        append(folder, event(2, 8), event(3, 2))
        while made.tick():
            pass
    append(folder, event(4, 9))
    with deployed(folder) as made:
        settle(made)
    found = [each for each in matches(folder / "out.jsonl") if each["query"] == "q"]
    assert found == wanted(folder, "q")


def test_what_the_archive_has_let_go_of_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder, {"queries/pair.chi": PAIR})
    with deployed(folder) as made:
        settle(made)
    expire(Archive(folder / "state" / "archive").stream("s"), (START + 1) * 1_000_000)
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8))
        settle(made)
    assert "pair: events of s from" in caplog.text
    assert "to 2012-05-07T09:00:01.000000Z are no longer in the archive" in caplog.text
    assert told(folder, query="pair")[-1] == {"a.x": 7, "b.x": 8}


def test_a_part_that_is_silent_holds_nobody_up_and_is_late_when_it_wakes(folder: Path) -> None:
    (folder / "s.jsonl").unlink()
    (folder / "s.jsonl").mkdir()
    write(
        folder, {"kaicep.toml": toml(stream='idle = "50ms"'), "queries/high.chi": HIGH.replace("> 5", "> 0")}
    )
    write(folder, {"s.jsonl/a.jsonl": event(0, 1) + event(5, 2), "s.jsonl/b.jsonl": event(1, 3)})
    with deployed(folder) as made:
        while len(told(folder)) < 3:  # b falls silent, and a's second event is certain without it
            made.tick()
        write(folder, {"s.jsonl/b.jsonl": event(1, 3) + event(2, 4) + event(6, 5)})
        while not made.feeds["s"].counts.late:
            made.tick()
        settle(made)
    assert [each["x"] for each in told(folder)][:3] == [1, 3, 2]
    held = Archive(folder / "state" / "archive").snapshot()
    assert [each.values["x"] for each in held.events("s") if each.late] == [4]


class Topic(Source):
    """A topic of two partitions whose client connects with the first batch: until then it knows of none."""

    guarantee = Guarantee.REPLAYABLE
    finite = False
    schema = Schema((("x", Type.INT64), ("k", Type.STRING)))

    def __init__(self, records: dict[int, list[float]]) -> None:
        self._records = records
        self._next: dict[int, int] = {}

    @property
    def position(self) -> dict[int, int]:
        return dict(self._next)

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        self._next = dict(position or {})

    def next_batch(self, timeout: float) -> SourceBatch:
        events = [
            Event("s", part, seq, int((START + second) * 1_000_000), {"x": 9, "k": "p"})
            for part, seconds in self._records.items()
            for seq, second in enumerate(seconds)
            if seq >= self._next.get(part, 0)
        ]
        self._next = {part: len(seconds) for part, seconds in self._records.items()}
        return SourceBatch(self.position, events)

    def close(self) -> None: ...


def test_a_part_without_records_before_a_crash_is_waited_for_after_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is late depends on the source alone: not on who had sent something when a process was lost."""
    records: dict[int, list[float]] = {0: [0, 1], 1: []}
    monkeypatch.setattr(StreamConfig, "open_source", lambda _: Topic(records))
    for part, second in ((0, 20), (1, 5), (1, 30)):
        with deployed(folder, lose=True) as made:
            settle(made)
            records[part].append(second)
            settle(made)
    held = [(each.part, each.seq) for each in Archive(folder / "state" / "archive").snapshot().events("s")]
    assert sorted(held) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    ends = [parse_time(each["end"]) for each in matches(folder / "out.jsonl")]
    assert ends == [(START + second) * 1_000_000 for second in (0, 1, 5, 20)]


def test_a_part_that_never_sends_anything_holds_nobody_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamConfig, "open_source", lambda _: Topic({0: [0, 1], 1: []}))
    write(folder, {"kaicep.toml": toml(stream='idle = "50ms"')})
    with deployed(folder) as made:
        while len(told(folder)) < 2:
            made.tick()


def test_a_record_that_is_no_event_is_kept_beside_the_others(folder: Path) -> None:
    append(folder, "oops\n", event(2, 9))
    with deployed(folder) as made:
        settle(made)
        assert made.feeds["s"].status()["dead"] == 1
    with deployed(folder) as made:
        settle(made)
    assert [each["seq"] for each in Archive(folder / "state" / "archive").dead_letters.read()] == [2]
    assert told(folder) == [{"x": 7}, {"x": 9}]


def test_an_archive_of_another_schema_is_refused(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
    write(folder, {"kaicep.toml": toml(stream='types = {x = "string"}')})
    with pytest.raises(Mistake, match="x is int64 in the archive, and string here"), deployed(folder):
        pass


def test_one_process_at_a_time(folder: Path) -> None:
    with deployed(folder), pytest.raises(Mistake, match="another process runs this deployment"):
        Deployment(load_config(folder / "kaicep.toml"))


def test_a_sink_that_is_down_is_waited_for_while_the_others_go_on(folder: Path) -> None:
    port = free_port()
    hook = f'[sinks.hook]\nkind = "webhook"\nurl = "http://127.0.0.1:{port}/"\npatience = "100ms"\n'
    write(folder, {"kaicep.toml": toml(sinks=hook)})
    seen: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = json.loads(body)
            seen.extend(each["id"] for each in (found if isinstance(found, list) else [found]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with deployed(folder) as made:
        while not told(folder) or made.outlets["hook"].trouble is None:
            made.tick()
        server = HTTPServer(("127.0.0.1", port), Hook)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            settle(made)
        finally:
            server.shutdown()
            server.server_close()
    assert list(dict.fromkeys(seen)) == [each["id"] for each in matches(folder / "out.jsonl")]


def test_a_sink_further_behind_than_the_saved_state_is_told_everything_that_it_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaicep.deployment.sessions._SAVE_EVERY", 0.0)
    counted = f"SELECT SUM(?e.x) AS n FROM (?e, s) {SINCE} WINDOW (?e, sliding, 2)"
    both = toml(sinks='[sinks.two]\nkind = "files"\npath = "two.jsonl"\n')
    write(folder, {"kaicep.toml": both, "queries/high.chi": counted})
    with deployed(folder) as made:
        settle(made)
    write(folder, {"kaicep.toml": toml()})  # two is left out for a while
    append(folder, event(2, 8), event(3, 2))
    with deployed(folder) as made:
        settle(made)
        settle(made)
    write(folder, {"kaicep.toml": both})
    append(folder, event(4, 9))
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == told(folder, "two.jsonl") == [{"n": n} for n in (1, 8, 15, 10, 11)]


class _OneStep:
    """A moment that is over after one look at the clock."""

    def __init__(self) -> None:
        self.looks = 0

    def __gt__(self, now: object) -> bool:
        self.looks += 1
        return self.looks == 1


def test_what_comes_while_one_sink_is_told_the_past_reaches_the_one_that_knows_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The past is gone through a step at a tick, so that an event comes between any two of them."""
    follow = toml().replace('path = "s.jsonl"', 'path = "s.jsonl", batch = 1')
    write(folder, {"kaicep.toml": follow})
    with deployed(folder) as made:
        settle(made)
    write(folder, {"kaicep.toml": follow + '[sinks.two]\nkind = "files"\npath = "two.jsonl"\n'})
    append(folder, *(event(second, second + 5) for second in range(2, 30)))
    whole = SessionRun.work
    monkeypatch.setattr(SessionRun, "work", lambda self, until, *of: whole(self, _OneStep(), *of))  # type: ignore[arg-type]
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == told(folder, "two.jsonl") == [{"x": 7}, *({"x": n} for n in range(7, 35))]


def test_upkeep_removes_what_is_old_and_puts_small_files_together(folder: Path) -> None:
    write(folder, {"kaicep.toml": toml(sinks='[archive]\nretention = "5s"\n')})
    with deployed(folder) as made:
        for second in range(2, 12):
            append(folder, event(second, 6))
            settle(made)
        table = made.feeds["s"].table
        assert table is not None
        assert len(table.table.files()) > 5
        for _ in range(20):  # a share at once
            made._kept = -1e9
            settle(made)
        assert len(table.table.files()) == 1
        append(folder, event(12, 9))
        settle(made)
    held = Archive(folder / "state" / "archive").snapshot()
    assert [each.ts // 1_000_000 - START for each in held.events("s")] == [6, 7, 8, 9, 10, 11, 12]
    assert [each["x"] for each in told(folder)] == [7, *[6] * 10, 9]


@pytest.mark.slow
def test_much_history_gives_the_same(folder: Path) -> None:
    chance = random.Random(3)
    lines = [event(n / 10, chance.randrange(1000), f"k{n % 50}") for n in range(25_000)]
    rise = (
        f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} FILTER (?a.x > 950) JOIN (?a.k = ?b.k) "
        "JOIN (?b.x > ?a.x) SEQ (?a, ?b) WINDOW (?a, ?b, 60s)"
    )
    (folder / "s.jsonl").write_text("".join(lines[:24_000]))
    with deployed(folder) as made:
        settle(made)
        write(folder, {"queries/rise.chi": rise})
        look_again(made)
        append(folder, *lines[24_000:24_500])
        settle(made)
    append(folder, *lines[24_500:])
    with deployed(folder) as made:
        settle(made)
    found = [each for each in matches(folder / "out.jsonl") if each["query"] == "rise"]
    assert found == wanted(folder, "rise")
    assert len(found) > 100


def test_what_was_posted_and_acknowledged_is_not_lost(folder: Path) -> None:
    import urllib.request

    http = toml().replace('{kind = "files", path = "s.jsonl", follow = true}', '{kind = "http", log = "log"}')
    write(folder, {"kaicep.toml": http})
    with deployed(folder, lose=True) as made:
        address = made.feeds["s"].status()["address"]
        for number, each in enumerate((event(0, 7), event(1, 8))):
            if number:  # the second is acknowledged, and nobody has looked at it
                settle(made)
            request = urllib.request.Request(address, each.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 200
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == [{"x": 7}, {"x": 8}]


@pytest.mark.parametrize(("before", "after"), [("0s", "3s"), ("3s", "0s")])
def test_another_lateness_counts_from_the_next_event_on(folder: Path, before: str, after: str) -> None:
    write(
        folder,
        {
            "kaicep.toml": toml(stream=f'lateness = "{before}"'),
            "queries/high.chi": HIGH.replace("> 5", "> 0"),
        },
    )
    with deployed(folder) as made:
        append(folder, event(2, 3), event(3, 4))
        settle(made)
    write(folder, {"kaicep.toml": toml(stream=f'lateness = "{after}"')})
    append(folder, event(20, 5), event(40, 6))
    with deployed(folder) as made:
        settle(made)
    write(folder, {"kaicep.toml": toml(follow=False)})
    Deployment(load_config(folder / "kaicep.toml")).run()
    assert [each["x"] for each in told(folder)] == [1, 7, 3, 4, 5, 6]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_falls_silent_or_is_lost_the_answer_is_that_of_the_archive_as_seen(
    folder: Path, seed: int
) -> None:
    """The wall clock may decide which events are late; the archive records them, and everybody follows it."""
    chance = random.Random(seed)
    (folder / "s.jsonl").unlink()
    files = [folder / "s.jsonl" / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    files[0].parent.mkdir()
    quick = 'lateness = "1s"\nidle = "20ms"'
    write(folder, {"kaicep.toml": toml(stream=quick), "queries/pair.chi": PAIR, "queries/high.chi": HIGH})
    second = 0.0
    for _ in range(8):
        with deployed(folder, lose=chance.random() < 0.6) as made:
            for _ in range(chance.randrange(1, 6)):
                with chance.choice(files).open("a") as file:
                    for _ in range(chance.randrange(1, 4)):
                        second += chance.random()
                        late = chance.choice((0, 0, 0, 0.5, 3, 8))
                        file.write(event(second - late, chance.randrange(10), chance.choice("pq")))
                for _ in range(chance.randrange(3)):
                    made.tick()
                time.sleep(chance.choice((0, 0.03)))
    write(folder, {"kaicep.toml": toml(follow=False, stream=quick)})
    Deployment(load_config(folder / "kaicep.toml")).run()
    archive = Archive(folder / "state" / "archive")
    queries = [folder / "queries" / "pair.chi", folder / "queries" / "high.chi"]
    seen = past_matches(open_history(queries, archive), as_seen=True)
    told_once = sorted(each["id"] for each in matches(folder / "out.jsonl"))
    assert told_once == sorted(each.id for each in seen)


# --- time moves on ------------------------------------------------------------------------------------


@pytest.fixture
def daily(folder: Path) -> Path:
    """A stream of daily files, and an idle time that no test waits for."""
    (folder / "s.jsonl").unlink()
    (folder / "s.jsonl").mkdir()
    write(folder, {"kaicep.toml": toml(stream='idle = "1h"'), "queries/high.chi": HIGH.replace("> 5", "> 0")})
    return folder


@pytest.mark.parametrize("rotated", [False, True])
def test_a_file_that_is_over_holds_nobody_back(daily: Path, rotated: bool) -> None:
    write(daily, {"s.jsonl/monday.jsonl": event(0, 1) + event(1, 2)})
    with deployed(daily) as made:
        settle(made)
        if rotated:
            (daily / "s.jsonl" / "monday.jsonl").unlink()
        write(daily, {"s.jsonl/tuesday.jsonl": event(2, 3)})
        settle(made)
        write(daily, {"s.jsonl/tuesday.jsonl": event(2, 3) + event(3, 4)})
        settle(made)
        assert [each["x"] for each in told(daily)] == [1, 2, 3, 4]
    with deployed(daily) as made:  # and after a restart neither
        write(daily, {"s.jsonl/wednesday.jsonl": event(4, 5)})
        settle(made)
    assert [each["x"] for each in told(daily)] == [1, 2, 3, 4, 5]


def test_files_that_are_written_side_by_side_are_waited_for(daily: Path) -> None:
    write(daily, {"s.jsonl/a.jsonl": event(0, 1) + event(5, 2), "s.jsonl/b.jsonl": event(1, 3)})
    with deployed(daily) as made:
        settle(made)
        assert [each["x"] for each in told(daily)] == [1, 3]
        write(daily, {"s.jsonl/b.jsonl": event(1, 3) + event(2, 4)})
        settle(made)
        assert [each["x"] for each in told(daily)] == [1, 3, 4]
        assert not made.feeds["s"].counts.late


def test_the_end_of_a_recording_holds_nobody_back(folder: Path) -> None:
    text = toml(stream='idle = "1h"') + '[streams.old]\nsource = {kind = "files", path = "old.jsonl"}\n'
    both = f"SELECT ?e.x FROM (?e, s, old) {SINCE}"
    write(folder, {"kaicep.toml": text, "old.jsonl": event(-9, 3) + event(-8, 4), "queries/both.chi": both})
    with deployed(folder) as made:
        settle(made)
    assert told(folder, query="both") == [{"x": 1}, {"x": 7}]


def test_an_event_of_the_far_future_is_a_bad_record(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(folder, event(32_000_000_000, 9), event(2, 8))
    with deployed(folder) as made:
        settle(made)
        assert made.feeds["s"].counts.dead == 1
        assert made.feeds["s"].counts.late == 0
    assert told(folder) == [{"x": 7}, {"x": 8}]
    assert "too far ahead" in caplog.text


def test_how_far_ahead_an_event_may_be_can_be_said(folder: Path) -> None:
    write(folder, {"kaicep.toml": toml(stream='ahead = "0s"')})
    append(folder, event(32_000_000_000, 9))
    with deployed(folder) as made:
        settle(made)
    assert told(folder) == [{"x": 7}, {"x": 9}]


# --- watched means watched ------------------------------------------------------------------------------


def test_knowledge_files_that_are_new_changed_and_removed_count(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kaicep.run")
    path = "PATH {?e <urn:k> ?k . ?k <urn:in> <urn:room>}"
    write(
        folder,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"') + '[knowledge]\nfiles = ["world/*.ttl"]\n',
            "s.json": '{"stream": "s", "entities": {"k": {"property": "urn:k", "iri": "urn:{value}"}}}',
            "world/a.ttl": "<urn:p> <urn:in> <urn:room> .",
            "queries/high.chi": f"SELECT ?e.x FROM (?e, s) {SINCE} {path}",
        },
    )
    with deployed(folder) as made:
        settle(made)
        write(folder, {"world/b.ttl": "<urn:q> <urn:in> <urn:room> ."})
        look_again(made)
        append(folder, event(2, 8, "q"))
        settle(made)
        (folder / "world" / "a.ttl").unlink()
        look_again(made)
        append(folder, event(3, 9, "p"), event(4, 10, "q"))
        settle(made)
        assert made.status()["knowledge"]["statements"] == 1
        shutil.move(folder / "world", folder / "gone")
        look_again(made)
        append(folder, event(5, 11, "q"))
        settle(made)
    assert [each["x"] for each in told(folder)] == [1, 7, 8, 10, 11]
    assert "b.ttl is new" in caplog.text
    assert "a.ttl is removed" in caplog.text
    assert f"there is no folder {folder / 'world'}" in caplog.text


def test_a_folder_of_queries_that_is_gone_is_trouble_and_not_emptiness(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        shutil.move(folder / "queries", folder / "elsewhere")
        look_again(made)
        assert "no folder" in made.status()["trouble"]
        append(folder, event(2, 8))
        settle(made)
        shutil.move(folder / "elsewhere", folder / "queries")
        look_again(made)
        append(folder, event(3, 9))
        settle(made)
        assert made.status()["trouble"] is None
    assert told(folder) == [{"x": 7}, {"x": 8}, {"x": 9}]


# --- it says why there is nothing -----------------------------------------------------------------------


def test_the_status_says_how_far_events_came_and_who_is_waited_for(daily: Path) -> None:
    path = "PATH {?e <urn:k> ?k . ?k <urn:in> <urn:room>}"
    write(
        daily,
        {
            "kaicep.toml": toml(stream='annotation = "s.json"\nidle = "1h"')
            + '[knowledge]\nfiles = ["a.ttl"]\n',
            "s.json": '{"stream": "s", "entities": {"k": {"property": "urn:k", "iri": "urn:{value}"}}}',
            "a.ttl": "<urn:p> <urn:in> <urn:room> . <urn:q> <urn:in> <urn:hall> .",
            "queries/high.chi": f"SELECT ?e.x FROM (?e, s) {SINCE} FILTER (?e.x > 1) {path}",
            "s.jsonl/a.jsonl": event(0, 1),
            "s.jsonl/b.jsonl": event(0, 2, "q"),
        },
    )
    with deployed(daily) as made:
        settle(made)
        more = event(5, 2) + event(6, 3, "q") + event(7, 4, "nobody")
        write(daily, {"s.jsonl/a.jsonl": event(0, 1) + more})
        write(daily, {"s.jsonl/b.jsonl": event(0, 2, "q") + event(1, 2) + event(8, 3)})
        settle(made)
        shown = made.catalogue.status()["high"]
        assert shown["from"] == "2012-05-07T09:00:00.000000Z"
        assert shown["behind"]["part"] == 0
        assert shown["behind"]["reached"] == "2012-05-07T09:00:07.000000Z"
        write(daily, {"s.jsonl/a.jsonl": (daily / "s.jsonl" / "a.jsonl").read_text() + event(9, 1)})
        settle(made)
        shown = made.catalogue.status()["high"]
        # of the archive, those that waited for their turn; the others would be looked through there
        assert shown["steps"] == {"in": 7, "filter": 6, "path": 3}
        assert shown["matches"] == 3
        assert shown["dropped"] == {"late": 0, "unknown": 1, "shed": 0}
        assert shown["behind"]["part"] == 1


# --- history joined to a live source ---

DAY = 86400


def _history(folder: Path, **seconds: list[tuple[float, int]]) -> None:
    """Days of Parquet, ingested one by one beside the live source, and deleted."""
    import pyarrow
    import pyarrow.parquet

    for name, rows in seconds.items():
        path = folder / f"{name}.parquet"
        times = [int((START + second) * 1_000_000) for second, _ in rows]
        table = pyarrow.table(
            {
                "ts": pyarrow.array(times, pyarrow.timestamp("us", "UTC")),
                "x": [x for _, x in rows],
                "k": ["p"] * len(rows),
            }
        )
        pyarrow.parquet.write_table(table, path)
        words = [
            "ingest",
            "--stream",
            f"s={path}",
            "--archive",
            str(folder / "state" / "archive"),
            "--history",
        ]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        path.unlink()


def _days() -> dict[str, list[tuple[float, int]]]:
    return {
        "today": [(-9, 1), (-4, 9)],
        "yesterday": [(-DAY, 7), (-DAY + 5, 8), (-DAY + 30, 9)],
    }


PAST = PAIR.replace(SINCE, "WITHIN [2012-05-01, )")


def _pairs(folder: Path) -> set[tuple[int, int]]:
    return {(each["a.x"], each["b.x"]) for each in told(folder, query="past")}


def test_days_of_parquet_are_joined_to_a_file_that_is_followed(folder: Path) -> None:
    _history(folder, **_days())
    write(folder, {"queries/past.chi": PAST})
    with deployed(folder) as made:
        settle(made)
        status = made.status()
        assert status["streams"]["s"]["positions"] == {"0": 2}
        assert status["queries"]["past"]["state"] == "live"
        append(folder, event(2, 8))
        settle(made)
        # No day that is over holds anybody back: the 8 is joined to the 9 of four seconds before.
        assert _pairs(folder) == {(7, 8), (1, 9), (1, 1), (9, 1), (1, 7), (9, 7)} | {(9, 8), (1, 8), (7, 8)}
    _history(folder, **{"the-day-before": [(-2 * DAY, 3), (-2 * DAY + 1, 4)]})
    with deployed(folder) as made:  # its time is over, and the query goes on from where it stood
        settle(made)
        append(folder, event(3, 5))
        settle(made)
    assert (3, 4) not in _pairs(folder)
    assert {(1, 5), (7, 5), (8, 5)} <= _pairs(folder)
    write(folder, {"queries/later.chi": PAST})
    with deployed(folder) as made:  # who asks now, sees it
        settle(made)
    assert {"a.x": 3, "b.x": 4} in told(folder, query="later")


@pytest.mark.servers
@pytest.mark.slow
def test_days_of_parquet_are_joined_to_a_topic(folder: Path, kafka: str) -> None:
    from confluent_kafka import Producer

    topic = f"events-{uuid.uuid4().hex[:8]}"
    make_topics(kafka, {topic: 2})
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})

    def send(part: int, *lines: str) -> None:
        for each in lines:
            producer.produce(topic, each, partition=part)
        producer.flush(30)

    _history(folder, **_days())
    config = toml(stream='idle = "1s"').replace(
        'kind = "files", path = "s.jsonl", follow = true',
        f'kind = "kafka", servers = "{kafka}", topic = "{topic}"',
    )
    write(folder, {"kaicep.toml": config, "queries/past.chi": PAST})
    send(0, event(0, 1))
    send(1, event(1, 7))

    def until(wanted: set[tuple[int, int]]) -> None:
        deadline = time.monotonic() + 60
        while not wanted <= _pairs(folder) and time.monotonic() < deadline:
            made.tick()
            time.sleep(0.02)
        assert wanted <= _pairs(folder)

    with deployed(folder) as made:
        until({(7, 8), (1, 9), (9, 1), (1, 7), (9, 7)})
        send(0, event(2, 8))
        send(1, event(3, 5))
        until({(9, 8), (8, 5)})
        assert made.status()["streams"]["s"]["positions"] == {"0": 2, "1": 2}
    path = folder / "plain.jsonl"
    path.write_text(event(0, 1))
    words = ["ingest", "--stream", f"s={path}", "--archive", str(folder / "state" / "archive")]
    done = CliRunner().invoke(app, words)  # taken for the topic's first partition, it would be skipped
    assert done.exit_code == 2
    assert "--history" in done.stderr


def test_members_of_an_event_stream_come_once_whatever_restarts(tmp_path: Path) -> None:
    """From the pages into the archive and to the queries, by a process that is lost in between."""
    pages = Pages()
    chain(pages)
    config = f"""
[streams.feed]
source = {{kind = "ldes", url = "{pages.url}/feed", log = "feed", every = "50ms"}}
[sinks.out]
kind = "files"
path = "out.jsonl"
"""
    query = "SELECT ?a ?b WHERE { { ?a prov:generatedAtTime ?t } SEQ { ?b prov:generatedAtTime ?u } }"
    query = f"PREFIX prov: <http://www.w3.org/ns/prov#> {query}"
    write(tmp_path, {"kaicep.toml": config, "queries/pairs.epsparql": query})

    def until(made: Deployment, count: int) -> None:
        deadline = time.monotonic() + SECONDS
        while made.feeds["feed"].positions != {0: count}:
            made.tick()
            assert time.monotonic() < deadline, made.feeds["feed"].status()
        settle(made)

    try:
        with deployed(tmp_path, lose=True) as made:
            until(made, 4)
        on = "<urn:feed> tree:member :m3, :m4, :m5 . :m5 prov:generatedAtTime 5 ."
        pages.put("/3", on)
        with deployed(tmp_path) as made:
            until(made, 5)
    finally:
        pages.close()
    found = [each["select"] for each in matches(tmp_path / "out.jsonl")]
    pairs = sorted((each["a"]["value"][-2:], each["b"]["value"][-2:]) for each in found)
    assert pairs == [("m3", "m4"), ("m3", "m5"), ("m4", "m5")]
