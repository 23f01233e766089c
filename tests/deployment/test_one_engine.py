"""The queries of a deployment share one engine: they come, read each other and leave; each answers alone."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tests.deployment.processes import matches, write
from tests.deployment.test_deployment import (
    HIGH,
    PAIR,
    SINCE,
    append,
    deployed,
    event,
    folder,
    look_again,
    settle,
    told,
    toml,
    wanted,
)

from kaicep.archive.archive import Archive
from kaicep.connectors.records import Record
from kaicep.connectors.registry import Count
from kaicep.connectors.shape import SAMPLE, Form, Schema
from kaicep.connectors.sources.files import FileSource, FileSourceOptions
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.history.strategies import open_history, past_matches
from kaicep.hosts.queries import ChiSearch
from kaicep.plan.events import Event, Match
from kaicep.plan.types import Type

AVERAGE = f"SELECT AVG(?e.x) AS mean FROM (?e, s) {SINCE} WINDOW (?e, sliding, 5s) PARTITION BY ?e.k"
TEN = f"SELECT COUNT(?e) AS n FROM (?e, s) {SINCE} WINDOW (?e, batch, 3)"
OF_HIGH = f"SELECT ?a.x, ?b.x FROM (?a, high), (?b, high) {SINCE} SEQ (?a, ?b) WINDOW (?a, ?b, 20s)"
QUERIES = {"pair": PAIR, "average": AVERAGE, "ten": TEN, "over": OF_HIGH, "twice": OF_HIGH, "more": HIGH}


def _seen(folder: Path, *names: str) -> list[str]:
    """The ids of all matches that the archive gives."""
    queries = [folder / "queries" / f"{each}.chi" for each in names]
    found = past_matches(open_history(queries, Archive(folder / "state" / "archive")), as_seen=True)
    return sorted(each.id for each in found)


def _told_ids(folder: Path) -> list[str]:
    return sorted(each["id"] for each in matches(folder / "out.jsonl"))


def test_queries_that_begin_together_are_one_run_that_computes_each_query_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {f"queries/{name}.chi": text for name, text in QUERIES.items()})
    asked: list[str] = []
    whole = ChiSearch.answers

    def answers(self: ChiSearch, table: object) -> object:
        if table is not None:
            asked.extend(self.names)
        return whole(self, table)  # type: ignore[arg-type]

    with deployed(folder) as made:
        settle(made)
        assert len(made.catalogue.runs) == 1
        monkeypatch.setattr(ChiSearch, "answers", answers)
        append(folder, event(2, 8))
        settle(made)
        assert sorted(set(asked)) == sorted(asked)
        assert {"high", "over", "pair"} <= {*asked}


@pytest.mark.slow
def test_a_query_that_comes_later_joins_the_engine_of_the_others(folder: Path) -> None:
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8), event(3, 9))
        settle(made)
        for name, text in QUERIES.items():
            write(folder, {f"queries/{name}.chi": text})
            look_again(made)
            append(folder, event(4 + len(name), 7))
            settle(made)
        assert len(made.catalogue.runs) == 1
        write(folder, {"kaicep.toml": toml(follow=False)})
    with deployed(folder) as made:
        settle(made)
    assert _told_ids(folder) == _seen(folder, "high", *QUERIES)


def test_a_query_that_leaves_takes_nothing_from_those_that_stay(folder: Path) -> None:
    write(folder, {"queries/pair.chi": PAIR, "queries/over.chi": OF_HIGH})
    with deployed(folder) as made:
        settle(made)
        (folder / "queries" / "pair.chi").unlink()
        look_again(made)
        (run,) = made.catalogue.runs
        assert set(run.made.engine.queries) == {"high", "over"}
        append(folder, event(2, 8), event(3, 9))
        settle(made)
        assert told(folder, query="over") == [{"a.x": 7, "b.x": 8}]


def test_who_reads_a_query_that_fails_fails_with_it_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"queries/pair.chi": PAIR, "queries/over.chi": OF_HIGH})
    whole = ChiSearch.answers

    def answers(self: ChiSearch, table: object) -> object:
        if "high" in self.names and table is not None:
            raise KeyError("a defect")
        return whole(self, table)  # type: ignore[arg-type]

    with deployed(folder) as made:
        settle(made)
        monkeypatch.setattr(ChiSearch, "answers", answers)
        append(folder, event(2, 8), event(3, 9))
        settle(made)
        states = {name: each["state"] for name, each in made.status()["queries"].items()}
        assert states == {"high": "failed", "over": "failed", "pair": "live"}
    assert told(folder, query="pair") == [each["select"] for each in wanted(folder, "pair")]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_goes_and_is_lost_each_match_is_told_once(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    late = 'lateness = "2s"'
    write(folder, {"kaicep.toml": toml(stream=late)})
    left = list(QUERIES.items())
    chance.shuffle(left)
    left.sort(key=lambda each: each[0] in ("over", "twice"))
    second = 2.0
    for _ in range(5):
        with deployed(folder, lose=chance.random() < 0.5) as made:
            for _ in range(3):
                if left and chance.random() < 0.7:
                    name, text = left.pop(0)
                    write(folder, {f"queries/{name}.chi": text})
                    made._watched = 0.0
                for _ in range(chance.randrange(4)):
                    second += chance.random()
                    early = chance.choice((0, 0.5, 1.5, 4))
                    append(folder, event(second - early, chance.randrange(12), chance.choice("pq")))
                for _ in range(chance.randrange(4)):
                    made.tick()
    write(folder, {"kaicep.toml": toml(follow=False, stream=late)})
    with deployed(folder) as made:
        settle(made)
        assert len(made.catalogue.runs) == 1
    known = [each for each in ("high", *QUERIES) if (folder / "queries" / f"{each}.chi").exists()]
    assert _told_ids(folder) == _seen(folder, *known)


def test_columns_stand_in_the_order_of_their_positions_also_where_some_records_are_odd(
    tmp_path: Path,
) -> None:
    times = ["1", "2.123456789", '"1970-01-01T00:00:03Z"', "4"]  # the second and third are read one by one
    (tmp_path / "s.jsonl").write_text("".join(f'{{"ts": {each}}}\n' for each in times))
    schema = Schema((("ts", Type.TIMESTAMP),))
    with FileSource(Form("s"), FileSourceOptions(tmp_path / "s.jsonl", batch=Count(3))) as source:
        source.open(None, schema)
        found = [[each.seq for each in source.next_batch(0).events] for _ in range(2)]
    assert found == [[0, 1, 2], [3]]


@pytest.mark.slow
def test_ep_sparql_queries_come_change_and_go_while_others_keep_what_they_hold(folder: Path) -> None:
    """A pair that is half found is found whole, whatever is registered, edited or removed meanwhile."""
    annotation = '{"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"x": "v:x"}}'
    pair = (
        "PREFIX v: <urn:v:> SELECT ?m ?n "
        "{ { ?a v:x ?m . FILTER (?m > 5) } SEQ { ?b v:x ?n . FILTER (?n > 5) } }"
    )
    other = "PREFIX v: <urn:v:> SELECT ?n { ?e v:x ?n . FILTER (?n > %d) }"
    write(folder, {"kaicep.toml": toml(stream='annotation = "s.json"'), "s.json": annotation})
    write(folder, {"queries/both.epsparql": pair})
    with deployed(folder) as made:
        settle(made)
        append(folder, event(2, 8))
        settle(made)
        for text in (other % 0, other % 3, None):
            path = folder / "queries" / "other.epsparql"
            path.unlink() if text is None else path.write_text(text)
            look_again(made)
        append(folder, event(3, 9), event(4, 0))
        settle(made)
    found = [(each["m"]["value"], each["n"]["value"]) for each in told(folder, query="both")]
    assert sorted(found) == [("7", "8"), ("7", "9"), ("8", "9")]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_no_event_is_an_object_between_its_source_and_the_sink(
    tmp_path: Path, kind: str, objects: Counter[type]
) -> None:
    count = 5_000
    rows = [{"ts": each, "k": f"k{each % 7}", "x": each % 1_000} for each in range(count)]
    if kind == "parquet":
        table = pyarrow.Table.from_pylist(rows)
        times = table["ts"].cast(pyarrow.timestamp("s", "UTC"))
        pyarrow.parquet.write_table(table.set_column(0, "ts", times), tmp_path / "s.parquet")
    else:
        lines = ["ts,k,x"] if kind == "csv" else []
        lines += [",".join(map(str, each.values())) if lines else json.dumps(each) for each in rows]
        (tmp_path / f"s.{kind}").write_text("\n".join(lines) + "\n")
    write(
        tmp_path,
        {
            "queries/high.chi": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 998)",
            "queries/mean.chi": "SELECT AVG(?e.x) > 999 AS mean FROM (?e, s) WINDOW (?e, sliding, 5s)",
            "queries/pair.chi": """SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?a.x > 990)
                JOIN (?a.k = ?b.k) JOIN (?b.x > ?a.x + 6) SEQ (?a, ?b) WINDOW (?a, ?b, 20s)""",
            "kaicep.toml": f"""[queries]
                folder = "queries"
                [streams.s]
                source = {{kind = "files", path = "s.{kind}"}}
                [sinks.out]
                kind = "files"
                path = "out.jsonl" """,
        },
    )
    Deployment(load_config(tmp_path / "kaicep.toml")).run()
    told = matches(tmp_path / "out.jsonl")
    assert Counter(each["query"] for each in told) == {"high": 5, "pair": 10}
    assert objects[Event] < 10  # the earliest of a batch, where a part wakes up
    assert objects[Record] <= 2 * SAMPLE  # which the types are inferred from
    assert objects[Match] == len(told)
