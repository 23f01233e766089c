"""Where an event stands in its source: derived, checked, and counted once, in tables and in streams."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_match import EVENTS, RISE, TYPES, at, frame, in_process, lines

import kaicep as kai
from kaicep.errors import Mistake
from kaicep.hosts.spark import source as sources

pytestmark = pytest.mark.spark

SCHEMA = "part bigint, seq bigint, ts timestamp, sensor string, flow double"
ANY = "SELECT ?e.sensor FROM (?e, air)"


def rows(spark: Any, some: list[tuple[Any, ...]], schema: str = SCHEMA) -> Any:
    return spark.createDataFrame([(part, seq, at(ts), *rest) for part, seq, ts, *rest in some], schema)


def identities(found: Any) -> list[tuple[int, int]]:
    events = [json.loads(row["events"])["e"] for row in found.collect()]
    return sorted((each["part"], each["seq"]) for each in events)


def test_positions_are_those_of_kafka_or_of_columns(spark: Any) -> None:
    query = kai.compile(ANY, streams=TYPES)
    some = rows(spark, [(3, 7, 1, "s", 1.0), (4, 7, 2, "s", 1.0)])
    topic = some.withColumnsRenamed({"part": "partition", "seq": "offset"})
    assert identities(kai.spark.match(kai.spark.events(topic, "kafka"), query)) == [(3, 7), (4, 7)]
    named = some.withColumnsRenamed({"part": "shard", "seq": "number"})
    assert identities(kai.spark.match(kai.spark.events(named, ("shard", "number")), query)) == [
        (3, 7),
        (4, 7),
    ]
    alone = kai.spark.events(named.where("shard = 3"), ["number"])
    assert identities(kai.spark.match(alone, query)) == [(0, 7)]
    with pytest.raises(Mistake, match="there is no identity kafa"):
        kai.spark.events(named, "kafa")
    with pytest.raises(Mistake, match="the events have no column numbr"):
        kai.spark.events(named, ["numbr"])


def test_row_ids_are_positions_where_a_table_has_them(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(ANY, streams=TYPES)
    some = rows(spark, [(0, 7, 1, "s", 1.0), (0, 9, 2, "s", 1.0)])
    tracked = some.selectExpr("ts", "sensor", "flow", "named_struct('row_id', seq) AS _metadata")
    found = kai.spark.match(kai.spark.events(tracked, "delta").drop("_metadata"), query)
    assert identities(found) == [(0, 7), (0, 9)]
    some.drop("part", "seq").write.parquet(str(tmp_path / "plain"))
    with pytest.raises(Mistake, match="the events have no row ids") as refused:
        kai.spark.events(spark.read.parquet(str(tmp_path / "plain")), "delta")
    assert "delta.enableRowTracking" in str(refused.value)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_positions_in_files_are_those_of_this_process(spark: Any, tmp_path: Path, form: str) -> None:
    """Files in pieces, in tasks by size: the part is the place of the name, the position the row."""
    folder = tmp_path / "a b"
    folder.mkdir()
    for name, first, count in (("b", 0, 5), ("a", 5, 40), ("c", 45, 1)):
        made = spark.range(first, first + count, 1, 1).selectExpr(
            "id as ts", "'s' as sensor", "id * 1.0D as flow"
        )
        made.write.format(form).option("header", True).save(str(tmp_path / name))
        (written,) = (each for each in (tmp_path / name).iterdir() if each.name.startswith("part-"))
        written.rename(folder / f"{name}.{form}")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "200")
    try:
        reader = spark.read.schema("ts bigint, sensor string, flow double").option("header", True)
        told = kai.spark.events(reader.format(form).load(str(folder)), "files")
        found = {(row["part"], row["seq"]): row["ts"] for row in told.collect()}
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert found == {
        **{(0, at): 5 + at for at in range(40)},
        **{(1, at): at for at in range(5)},
        (2, 0): 45,
    }


@pytest.mark.parametrize(
    ("position", "said"),
    [("CAST(NULL AS BIGINT)", "seq null"), ("-1L", "seq -1"), ("1.5D", "seq 1.5"), ("1.5", "seq 1.5")],
)
def test_positions_are_whole_numbers(spark: Any, position: str, said: str) -> None:
    query = kai.compile(ANY, streams=TYPES)
    wrong = frame(spark).selectExpr(f"{position} as seq", "ts", "sensor", "flow")
    with pytest.raises(Exception, match=f"an event of air has {said}: a position is a whole number"):
        kai.spark.match(wrong, query).collect()


def test_a_position_is_no_text(spark: Any) -> None:
    wrong = frame(spark).selectExpr("string(seq) as seq", "ts", "sensor", "flow")
    with pytest.raises(Mistake, match=r"air\.seq is string, and a position is a whole number"):
        kai.spark.match(wrong, kai.compile(ANY, streams=TYPES))
    whole = frame(spark).selectExpr("double(seq) as seq", "ts", "sensor", "flow")
    query = kai.compile(RISE, streams=TYPES)
    assert lines(kai.spark.match(whole, query)) == in_process(query)


def test_numbered_is_for_small_data(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MANY", 4)
    with pytest.warns(UserWarning, match="there are more than 4: kaicep.spark.events takes"):
        kai.spark.numbered(frame(spark))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kai.spark.numbered(frame(spark).limit(4))


@pytest.mark.parametrize("text", [ANY, RISE])
def test_the_same_event_twice_counts_once(spark: Any, text: str) -> None:
    query = kai.compile(text, streams=TYPES)
    twice = frame(spark, [*EVENTS, *EVENTS[1:4]])
    assert lines(kai.spark.match(twice, query)) == in_process(query)
    other = (2, 30, "s9", 4.0)  # of another key: no bucket sees both
    with pytest.raises(Exception, match="position 2 of part 0 of air comes several times, with different"):
        kai.spark.match(frame(spark, [*EVENTS, other]), query).collect()


def streamed(spark: Any, folder: Path, query: Any, some: Any, engine: str) -> list[str]:
    """What `deliver` finds in one micro-batch of rows, which stand in several files in any order."""
    some.write.parquet(str(folder / "events"))
    source = spark.readStream.schema(some.schema).parquet(str(folder / "events"))
    found: list[str] = []
    running = kai.spark.deliver(
        source,
        query,
        lambda number, matches: found.extend(each.to_json() for each in matches),
        lateness="20s",
        checkpoint=folder / engine,
        engine=engine,
        availableNow=True,
    )
    running.awaitTermination()
    return found


@pytest.mark.parametrize("engine", ["driver", "workers"])
def test_a_stream_takes_rows_in_any_order_and_once(spark: Any, tmp_path: Path, engine: str) -> None:
    query = kai.compile(RISE, streams=TYPES)
    some = [(seq, seq + seq * 7 % 3 * 10, f"s{seq % 3}", float(seq * 5 % 7)) for seq in range(40)]
    last = (40, 1_000, "s1", 0.0)
    scattered = frame(spark, [*some, last, *some[::3]]).repartition(3, "flow")
    assert streamed(spark, tmp_path, query, scattered, engine) == in_process(
        query, [*some, last], lateness="20s"
    )
    other = (4, 4, "s1", 99.0)
    with pytest.raises(Exception, match="position 4 of part 0 of air comes several times, with different"):
        streamed(spark, tmp_path / "2", query, frame(spark, [*some, other]).repartition(3, "flow"), engine)
