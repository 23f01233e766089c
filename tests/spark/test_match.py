"""`kaicep.spark.match` as a user calls it: any DataFrame in, typed columns out."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import kaicep as kai
from kaicep.errors import Mistake

pytestmark = pytest.mark.spark

RISE = """SELECT ?a.sensor, ?b.flow - ?a.flow AS rise, ?a.ts AS since FROM (?a, air), (?b, air)
    WHERE JOIN (?b.sensor = ?a.sensor) JOIN (?b.flow > ?a.flow) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)"""
TYPES = {"air": {"sensor": "string", "flow": "float64"}}
EVENTS = [(0, 10, "s1", 1.0), (1, 20, "s2", 5.0), (2, 30, "s1", 4.0), (3, 100, "s1", 9.0), (4, 40, "s2", 6.0)]


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def frame(spark: Any, rows: list[tuple[int, int, str | None, float]] = EVENTS) -> Any:
    columns = "seq bigint, ts timestamp, sensor string, flow double"
    return spark.createDataFrame([(seq, at(ts), *rest) for seq, ts, *rest in rows], columns)


def lines(found: Any) -> list[str]:
    return [row["match"] for row in found.orderBy("end", "id").collect()]


def in_process(
    query: Any, rows: list[tuple[int, int, str | None, float]] = EVENTS, **options: Any
) -> list[str]:
    events = [{"ts": ts, "sensor": sensor, "flow": flow} for _, ts, sensor, flow in rows]
    found = sorted(kai.run(query, events, **options), key=lambda match: (match.end_us, match.id))
    return [match.to_json() for match in found]


def test_the_columns_are_typed(spark: Any) -> None:
    found = kai.spark.match(frame(spark), kai.compile(RISE, streams=TYPES))
    assert (
        found.schema["select"].dataType.simpleString() == "struct<sensor:string,rise:double,since:timestamp>"
    )
    row = found.orderBy("end").first()
    assert row["select"].asDict() == {"sensor": "s1", "rise": 3.0, "since": datetime.fromtimestamp(10)}
    assert row["events"] == ('{"a":{"stream":"air","part":0,"seq":0},"b":{"stream":"air","part":0,"seq":2}}')


def test_the_lines_are_those_of_every_host(spark: Any) -> None:
    query = kai.compile(RISE, streams=TYPES)
    found = lines(kai.spark.match(frame(spark), query))
    assert found == in_process(query)
    assert len(found) == 2


def test_late_events_are_left_out(spark: Any) -> None:
    query = kai.compile(RISE, streams=TYPES)
    found = lines(kai.spark.match(frame(spark), query, lateness="30s"))
    assert found == in_process(query, lateness="30s")
    assert len(found) == 1


def test_times_of_all_kinds_are_one_time(spark: Any) -> None:
    query = kai.compile("SELECT ?e.ts AS at FROM (?e, air)", streams={"air": {}})
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        frames = [
            spark.sql(f"SELECT 0L AS seq, {text} AS ts")
            for text in (
                "timestamp_micros(1336381200500000)",
                "TIMESTAMP_NTZ'2012-05-07 09:00:00.5'",
                "'2012-05-07T09:00:00.5'",
                "'2012-05-07T11:00:00.500+02:00'",
                "1336381200.5D",
                "1336381200.5",
            )
        ]
        every = reduce(DataFrame.union, (kai.spark.match(each, query).select("match") for each in frames))
        found = {row["match"] for row in every.collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(found) == 1
    assert '"at": "2012-05-07T09:00:00.500000Z"' in found.pop()


def test_numbers_count_what_the_annotation_says(spark: Any) -> None:
    counts = {"ms": "1336381200500L", "us": "1336381200500000L", "ns": "1336381200500000400L"}
    counts["excel"] = "41036.375D"
    frames = {}
    for unit, count in counts.items():
        query = kai.compile(
            "SELECT ?e.ts AS at FROM (?e, air)",
            streams={"air": {}},
            annotations=[{"stream": "air", "time_unit": unit}],
        )
        row = kai.spark.match(spark.sql(f"SELECT 0L AS seq, {count} AS ts"), query)
        frames[unit] = row.selectExpr(f"'{unit}' AS unit", "end")
    rows = reduce(DataFrame.union, frames.values()).collect()
    found = {row["unit"]: row["end"].replace(tzinfo=UTC) for row in rows}
    assert found.pop("excel") == datetime(2012, 5, 7, 9, 0, tzinfo=UTC)
    assert set(found.values()) == {datetime(2012, 5, 7, 9, 0, 0, 500_000, tzinfo=UTC)}


def test_times_and_nulls_are_read_as_the_annotation_says(spark: Any) -> None:
    said = {"stream": "s", "time_zone": "Europe/Berlin", "nulls": ["-"]}
    for frame, more in (
        ("VALUES ('2026-03-29T02:30', 'a', 0L), ('2026-07-01T12:00Z', '-', 1L)", {}),
        (
            "VALUES ('29.03.2026 02:30', 'a', 0L), ('01.07.2026 14:00', '-', 1L)",
            {"time_format": "%d.%m.%Y %H:%M"},
        ),
        (
            "VALUES (timestamp_ntz'2026-03-29 02:30', 'a', 0L), (timestamp_ntz'2026-07-01 14:00', '-', 1L)",
            {},
        ),
    ):
        query = kai.compile(
            "SELECT ?e.k", streams={"s": {"ts": "timestamp", "k": "string"}}, annotations=[{**said, **more}]
        )
        found = kai.spark.match(spark.sql(f"SELECT * FROM {frame} AS t(ts, k, seq)"), query)
        rows = found.orderBy("end").select("end", "select.k").collect()
        assert [(row["end"].isoformat()[:16], row["k"]) for row in rows] == [
            ("2026-03-29T01:30", "a"),
            ("2026-07-01T12:00", None),
        ]


def test_positions_can_be_made(spark: Any) -> None:
    query = kai.compile(RISE, streams=TYPES)
    bare = frame(spark).drop("seq")
    with pytest.raises(Mistake, match="have no column seq"):
        kai.spark.match(bare, query)
    found = kai.spark.match(kai.spark.numbered(bare), query)
    again = kai.spark.match(kai.spark.numbered(bare.orderBy("flow")), query)
    assert lines(found) == lines(again)
    assert found.count() == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda df: df.drop("ts"), "have no column ts"),
        (lambda df: df.drop("flow"), "have no column flow"),
        (
            lambda df: df.withColumn("flow", df["flow"].cast("string")),
            "air.flow is string, and the query takes",
        ),
    ],
)
def test_what_does_not_fit_is_told(spark: Any, change: Any, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        kai.spark.match(change(frame(spark)), kai.compile(RISE, streams=TYPES))


def test_several_streams_are_given_by_name(spark: Any) -> None:
    query = kai.compile(
        "SELECT ?a.x, ?b.y FROM (?a, left), (?b, right) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)",
        streams={"left": {"x": "int64"}, "right": {"y": "string"}},
    )
    left = spark.createDataFrame([(0, 1, 7)], "seq int, ts int, x short")
    right = spark.createDataFrame([(0, 2, "u"), (1, 99, "v")], "seq int, ts int, y string")
    found = kai.spark.match({"left": left, "right": right}, query).collect()
    assert [row["select"].asDict() for row in found] == [{"x": 7, "y": "u"}]
    with pytest.raises(Mistake, match="read left, right, and one DataFrame is given"):
        kai.spark.match(left, query)


def test_explain_says_how_a_query_is_spread() -> None:
    def way(text: str) -> str:
        explained = kai.spark.explain(kai.compile(text, streams={"s": {"x": "int64", "k": "string"}}))
        spread, engine = explained.split("\n  a stream: ")
        assert engine.startswith(
            "in the driver " + ("at any rate" if "by key" not in spread else "up to")
        ) or ("where it is" in spread)
        return spread

    pair = "SELECT ?a.x AS x FROM (?a, s), (?b, s) SEQ (?a, ?b)"
    assert way("SELECT ?e.x FROM (?e, s)").startswith("query: each event where it is")
    assert way(f"{pair} JOIN (?a.k = ?b.k)") == "query: in parallel by key, the key is ?a.k"
    assert way(f"{pair} WINDOW (?a, ?b, 5min)") == (
        "query: in parallel by time, slices overlap by 5min, the window"
    )
    assert way(pair).startswith("query: in one task, since there is neither a key nor a WINDOW")
    assert way(f"{pair} WINDOW (?a, ?b, 5min) AFTER MATCH SKIP PAST LAST").startswith("query: in one task")
    latest = "SELECT ?a.x FROM (?a, s), LATEST (?b, s) JOIN (?b.k = ?a.k)"
    assert way(latest).startswith("query: in one task, since LATEST looks for the last event")


# --- streams ---------------------------------------------------------------------------------------------


def written(spark: Any, rows: list[tuple[int, int, str | None, float]], folder: Path) -> None:
    frame(spark, rows).coalesce(1).write.mode("append").json(str(folder))


def advanced(spark: Any, source: Path, query: Any, work: Path, **options: Any) -> list[str]:
    """Lets the stream take what there is, and returns all matches so far."""
    events = spark.readStream.schema(frame(spark).schema).json(str(source))
    found = kai.spark.match(events, query, lateness="20s", **options)
    sink = found.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    running = sink.format("parquet").option("path", str(work / "out")).trigger(availableNow=True).start()
    running.awaitTermination()
    return lines(spark.read.schema(found.schema).parquet(str(work / "out")))


def test_a_stream_is_the_same_call_and_goes_on_after_a_restart(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(RISE, streams=TYPES)
    source = tmp_path / "events"
    written(spark, EVENTS[:2], source)
    assert advanced(spark, source, query, tmp_path, buckets=2) == []
    rest = [
        (2, 30, "s1", 4.0),
        (3, 70, "s2", 6.0),
        (4, 60, "s1", 5.0),
        (5, 40, "s1", 9.0),
        (6, 200, "s3", 0.0),
    ]
    written(spark, rest, source)
    found = advanced(spark, source, query, tmp_path, buckets=2)
    # The stream has reached 200 s, so everything that ends below 180 s is there; 40 s came too late.
    assert found == in_process(query, [*EVENTS[:2], *rest], lateness="20s")
    assert len(found) == 4
    assert advanced(spark, source, query, tmp_path, buckets=2) == found


def test_a_bucket_without_events_learns_that_time_has_passed(spark: Any, tmp_path: Path) -> None:
    silent = """SELECT ?a.sensor FROM (?a, air), (?b, air) WHERE FILTER (?a.flow > 0) SEQ (?a, !?b)
        WINDOW (?a, ?b, 1min) PARTITION BY ?a.sensor"""
    query = kai.compile(silent, streams=TYPES)
    source = tmp_path / "events"
    written(spark, [(0, 0, "s1", 1.0)], source)
    assert advanced(spark, source, query, tmp_path) == []
    written(spark, [(1, 100, "s2", -1.0)], source)  # of another sensor, and filtered out
    (found,) = advanced(spark, source, query, tmp_path)
    assert '"sensor": "s1"' in found


def test_late_events_are_shown(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(RISE, streams=TYPES)
    wanted = [(4, 40)]
    found = kai.spark.late(frame(spark), query, lateness="30s")
    assert [(row["seq"], row["ts"].second + 60 * row["ts"].minute) for row in found.collect()] == wanted
    source = tmp_path / "events"
    written(spark, EVENTS[:4], source)
    written(spark, EVENTS[4:], source)
    events = spark.readStream.schema(frame(spark).schema).option("maxFilesPerTrigger", 1).json(str(source))
    late = kai.spark.late(events, query, lateness="30s")
    sink = late.writeStream.option("checkpointLocation", str(tmp_path / "c")).format("parquet")
    sink.option("path", str(tmp_path / "late")).trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.schema(late.schema).parquet(str(tmp_path / "late")).collect()
    assert [row["seq"] for row in rows] == [4]


def test_a_silent_part_holds_nobody_back(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(RISE, streams=TYPES)
    source = tmp_path / "events"
    options = {"buckets": 2, "parts": {"air": (0, 1)}, "idle": "1ms"}
    written(spark, EVENTS[:2], source)
    assert advanced(spark, source, query, tmp_path, **options) == []
    written(spark, [(2, 30, "s1", 4.0), (3, 200, "s3", 0.0)], source)
    (found,) = advanced(spark, source, query, tmp_path, **options)  # part 1 was never heard of
    assert '"sensor": "s1"' in found


def test_the_checkpoint_of_another_query_is_refused(spark: Any, tmp_path: Path) -> None:
    source = tmp_path / "events"
    written(spark, EVENTS, source)
    advanced(spark, source, kai.compile(RISE, streams=TYPES, name="rise"), tmp_path)
    written(spark, [(5, 300, "s1", 0.0)], source)
    other = kai.compile(RISE.replace("1min", "2min"), streams=TYPES, name="longer")
    with pytest.raises(
        Exception, match="the checkpoint is not of longer as it is now, but of rise: another text"
    ):
        advanced(spark, source, other, tmp_path)


def test_a_stream_needs_a_lateness(spark: Any, tmp_path: Path) -> None:
    events = spark.readStream.schema(frame(spark).schema).json(str(tmp_path))
    with pytest.raises(Mistake, match="a stream needs a lateness"):
        kai.spark.match(events, kai.compile(RISE, streams=TYPES))
