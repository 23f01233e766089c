"""EP-SPARQL over DataFrames of triples with intervals: the matches of the reference, line for line."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai
from kaicep.api import open_run
from kaicep.errors import Mistake

pytestmark = pytest.mark.spark

STOCKS = Path(__file__).parents[2] / "examples" / "stocks"
EXAMPLES = {
    ("query1",): "fall-and-rise",
    ("query2",): "downrated",
    ("query3", "query3-larger"): "acquisitions",
    ("query2", "query4"): "ratings",
    ("query5", "query6"): "average",
}
TRUCK = "PREFIX : <urn:> SELECT ?truck ?place WHERE { ?truck :at ?place } SEQ { ?truck :at ?place }"
COLUMNS = "seq bigint, start timestamp, end timestamp, subject string, predicate string, object string"
ROWS = [
    (0, 10, 20, "<urn:t1>", "<urn:at>", "<urn:depot>"),
    (1, 15, None, "<urn:t2>", "<urn:at>", '"a \\"yard\\""@en'),
    (2, 30, None, "<urn:t1>", "<urn:at>", "<urn:depot>"),
    (3, 40, 45, "<urn:t2>", "<urn:at>", '"a \\"yard\\""@en'),
]


def trucks(spark: Any, rows: list[Any] = ROWS) -> Any:
    raw = spark.createDataFrame(rows, COLUMNS.replace("timestamp", "bigint"))
    return raw.selectExpr(
        "seq", *(f"timestamp_seconds({n}) AS {n}" for n in ("start", "end")), *raw.columns[3:]
    )


def at(second: int) -> str:
    return f"1970-01-01T00:00:{second}.000000Z"


def lines(found: Any) -> list[str]:
    return [row["match"] for row in found.orderBy("end", "id").collect()]


def on_stocks(spark: Any, names: tuple[str, ...], data: str) -> tuple[Any, list[str]]:
    """The matches in Spark, to be collected, and the lines of the reference."""
    queries = [STOCKS / "queries" / f"{name}.epsparql" for name in names]
    records = (STOCKS / "data" / f"{data}.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(each) for each in records]
    columns = "seq bigint, start string, end string, triple string, triples array<string>"
    given = [
        (seq, *(row.get(name) for name in ("start", "end", "triple", "triples")))
        for seq, row in enumerate(rows)
    ]
    knowledge = kai.Knowledge.load(STOCKS / "data" / "names.ttl")
    query = kai.compile(queries, knowledge=knowledge, streams={"stocks": "rdf"})
    run = open_run(queries, [("stocks", STOCKS / "data" / f"{data}.jsonl")], [STOCKS / "data" / "names.ttl"])
    wanted = sorted(run.matches("reference"), key=lambda match: (match.end_us, match.id))
    found = kai.spark.match(spark.createDataFrame(given, columns), query)
    return found.select("end", "id", "match"), [each.to_json() for each in wanted]


def test_the_stocks(spark: Any) -> None:
    asked = {data: on_stocks(spark, names, data) for names, data in EXAMPLES.items()}
    together = reduce(
        lambda left, right: left.union(right),
        [found.selectExpr(f"'{data}' AS data", "*") for data, (found, _) in asked.items()],
    )
    rows = together.orderBy("data", "end", "id").collect()
    for data, (_, wanted) in asked.items():
        assert [row["match"] for row in rows if row["data"] == data] == wanted
        assert wanted


def test_terms_in_columns_of_their_own(spark: Any) -> None:
    query = kai.compile(TRUCK, streams={"trucks": "rdf"})
    whole = trucks(spark).selectExpr(
        "seq", "start", "end", "concat_ws(' ', subject, predicate, object, '.') AS triple"
    )
    found = lines(kai.spark.match(trucks(spark), query))
    assert found == lines(kai.spark.match(whole, query))
    spans = [(json.loads(each)["start"], json.loads(each)["end"]) for each in found]
    assert spans == [(at(10), at(30)), (at(15), at(45))]


def test_short_answers_are_looked_for_slice_by_slice(spark: Any) -> None:
    bounded = TRUCK.replace("WHERE", "WHERE {") + '} FILTER (getDURATION() < "PT12S"^^xsd:duration)'
    derived = bounded.replace("SELECT ?truck ?place", "CONSTRUCT { ?truck :moved ?place }")
    texts = {"again": bounded, "moved": derived}
    query = kai.compile(texts, streams={"trucks": "rdf"})
    assert "in parallel by time, slices overlap by 11999999us" in kai.spark.explain(query)
    starts = [10 + seq * 7 // 3 for seq in range(300)]
    rows = [
        (seq, start, start + seq % 5, f"<urn:t{seq % 2}>", "<urn:at>", f"<urn:p{seq % 4 // 2}>")
        for seq, start in enumerate(starts)
    ]
    found = lines(kai.spark.match(trucks(spark, rows), query))
    events = [{"start": row[1], "end": row[2], "triple": " ".join((*row[3:], "."))} for row in rows]
    wanted = sorted(kai.run(query, {"trucks": events}), key=lambda match: (match.end_us, match.id))
    assert found == [each.to_json() for each in wanted]
    assert len(found) > 200


def test_a_stream_of_triples(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(TRUCK, streams={"trucks": "rdf"})
    folder, found = tmp_path / "events", {}
    for some in (ROWS[:2], [*ROWS[2:], (4, 100, None, "<urn:t3>", "<urn:at>", "<urn:depot>")]):
        trucks(spark, some).coalesce(1).write.mode("append").parquet(str(folder))
        events = spark.readStream.schema(trucks(spark).schema).parquet(str(folder))
        options = {"lateness": "10s", "checkpoint": tmp_path / "checkpoint", "availableNow": True}
        kai.spark.deliver(events, query, found.__setitem__, **options).awaitTermination()
    assert [each.to_json() for number in sorted(found) for each in found[number]] == lines(
        kai.spark.match(trucks(spark), query)
    )


def test_triples_are_late_by_their_end(spark: Any) -> None:
    query = kai.compile(TRUCK, streams={"trucks": "rdf"})
    late = kai.spark.late(trucks(spark), query, lateness="1s")
    assert [row["seq"] for row in late.collect()] == [1]
    assert lines(kai.spark.match(trucks(spark), query, lateness="1s")) == lines(
        kai.spark.match(trucks(spark, [each for each in ROWS if each[0] != 1]), query)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda df: df.drop("start"), "the events of trucks have no column start"),
        (lambda df: df.drop("seq"), "have no column seq"),
        (
            lambda df: df.drop("object"),
            "have no triples: there is no column triple\n.*subject, predicate, object",
        ),
        (lambda df: df.withColumn("triple", df["seq"]), "trucks.triple is bigint, and not text"),
        (lambda df: df.withColumn("end", df["seq"] > 1), "trucks.end is boolean"),
    ],
)
def test_what_is_missing_is_told(spark: Any, change: Any, message: str) -> None:
    with pytest.raises(Mistake, match=message):
        kai.spark.match(change(trucks(spark)), kai.compile(TRUCK, streams={"trucks": "rdf"}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((7, 10, 5, "<urn:t>", "<urn:at>", "<urn:x>"), r"part 0, seq 7\) cannot be read: it ends at"),
        ((7, 10, None, "urn:t", "<urn:at>", "<urn:x>"), r"seq 7\) cannot be read: triple"),
        ((7, 10, None, None, "<urn:at>", "<urn:x>"), r"seq 7\) cannot be read: it has no triple"),
        ((7, None, None, "<urn:t>", "<urn:at>", "<urn:x>"), "an event of trucks has no start: leave it out"),
    ],
)
def test_a_row_that_is_no_event_stops_the_job(spark: Any, row: Any, message: str) -> None:
    found = kai.spark.match(trucks(spark, [row]), kai.compile(TRUCK, streams={"trucks": "rdf"}))
    with pytest.raises(Exception, match=message):
        found.collect()
