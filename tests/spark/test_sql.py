"""Matches in SQL, the archive as a table, and mistakes that are told at once."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_match import EVENTS, RISE, TYPES, frame, in_process

import kaicep as kai
from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake
from kaicep.ingest.files import ingest

pytestmark = pytest.mark.spark


def test_a_query_in_sql(spark: Any) -> None:
    kai.spark.register(spark)
    frame(spark).createOrReplaceTempView("air_events")
    call = "kaicep_match(TABLE(air_events) PARTITION BY sensor, query => :query)"
    found = spark.sql(f"SELECT * FROM {call} ORDER BY end, id", args={"query": RISE})
    assert (
        found.schema["select"].dataType.simpleString() == "struct<sensor:string,rise:double,since:timestamp>"
    )
    rows = found.collect()
    assert [row["match"] for row in rows] == in_process(kai.compile(RISE, streams=TYPES))
    assert [row["select"]["since"].replace(tzinfo=UTC).second for row in rows] == [10, 20]
    with pytest.raises(Exception, match="air has no attribute flw"):
        spark.sql(f"SELECT * FROM {call}", args={"query": "SELECT ?e.flw FROM (?e, air)"})
    with pytest.raises(Exception, match="the table has no column seq"):
        spark.sql("SELECT * FROM kaicep_match(TABLE(SELECT 1 AS x), query => 'SELECT ?e.x FROM (?e, s)')")


def test_the_archive_is_a_table(spark: Any, tmp_path: Path) -> None:
    lines = "".join(f'{{"ts": {ts}, "sensor": "{k}", "flow": {x}}}\n' for _, ts, k, x in EVENTS)
    (tmp_path / "air.jsonl").write_text(lines)
    ingest(Archive(tmp_path / "A"), Form("air"), tmp_path / "air.jsonl")
    table = kai.spark.archive(spark, f"file://{tmp_path}/A", "air")
    query = kai.compile(RISE, streams=TYPES)
    found = kai.spark.match(table, query).orderBy("end", "id").collect()
    assert [row["match"] for row in found] == in_process(query)


def test_what_is_no_query_or_no_frame_is_told(spark: Any) -> None:
    query = kai.compile(RISE, streams=TYPES)
    with pytest.raises(Mistake, match="this needs a compiled query, not a str"):
        kai.spark.match(frame(spark), RISE)  # type: ignore[arg-type]
    with pytest.raises(Mistake, match="the events are a list, and no DataFrame of Spark's"):
        kai.spark.match([{"ts": 1}], query)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://bucket/folder", "must be on a disk of this machine"),
        ("dbfs:/folder", "there is no store for dbfs"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_a_folder_is_made(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    events = spark.readStream.schema(frame(spark).schema).json(str(tmp_path))
    query = kai.compile(RISE, streams=TYPES)
    for call in (
        lambda: kai.spark.deliver(events, query, print, lateness="1s", checkpoint=place),
        lambda: kai.spark.ingest(events, "A", "air", topic="air", checkpoint=place),
        lambda: kai.spark.publish(query, place),
    ):
        with pytest.raises(Mistake, match=said):
            call()
    assert not list(tmp_path.iterdir())
