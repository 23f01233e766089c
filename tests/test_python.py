"""The Python surface: `kai.compile`, `kai.run`, `kai.Engine`, whatever the events come as."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest

import kaicep as kai
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.plan.types import Type

RISE = """
SELECT ?a.sensor, ?b.flow - ?a.flow AS rise FROM (?a, air), (?b, air)
JOIN (?a.sensor = ?b.sensor) JOIN (?b.flow - ?a.flow > 50) SEQ (?a, ?b) WINDOW (?a, ?b, 5min)
"""
STREAMS = {"air": {"sensor": "string", "flow": "float64"}}
ROWS: list[dict[str, Any]] = [
    {"ts": 0, "sensor": "s1", "flow": 500.0},
    {"ts": 60, "sensor": "s2", "flow": 100.0},
    {"ts": 120, "sensor": "s1", "flow": 560.0},
    {"ts": 180, "sensor": "s2", "flow": 120.0},
    {"ts": 240, "sensor": "s1", "flow": 700.0},
]
RISES = [("s1", 60.0), ("s1", 140.0), ("s1", 200.0)]


def rises(matches: Any) -> list[tuple[str, float]]:
    return sorted((each.select["sensor"], each.select["rise"]) for each in matches)


def arrow() -> pa.Table:
    times = pa.array([row["ts"] * 1_000_000 for row in ROWS], pa.timestamp("us", tz="UTC"))
    others = {name: [row[name] for row in ROWS] for name in ("sensor", "flow")}
    return pa.table({"ts": times, **others})


def instant(seconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)


def query(**given: Any) -> kai.Query:
    return kai.compile(RISE, streams=STREAMS, **given)


def parquet(folder: Path) -> Path:
    pyarrow.parquet.write_table(arrow(), folder / "air.parquet")
    return folder / "air.parquet"


def csv(folder: Path) -> Path:
    lines = ["ts,sensor,flow", *(f"{row['ts']},{row['sensor']},{row['flow']}" for row in ROWS)]
    (folder / "air.csv").write_text("\n".join(lines))
    return folder / "air.csv"


def json_lines(folder: Path) -> Path:
    (folder / "air.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return folder / "air.jsonl"


FORMS: dict[str, Callable[[Path], Any]] = {
    "dicts": lambda folder: ROWS,
    "an iterator of dicts": lambda folder: iter(ROWS),
    "an Arrow table": lambda folder: arrow(),
    "Arrow batches": lambda folder: iter(arrow().to_batches(max_chunksize=2)),
    "an Arrow reader": lambda folder: arrow().to_reader(max_chunksize=2),
    "a dictionary column": lambda folder: arrow().set_column(
        1, "sensor", arrow().column("sensor").dictionary_encode()
    ),
    "pandas": lambda folder: arrow().to_pandas(),
    "polars": lambda folder: polars.from_arrow(arrow()),
    "times of Python": lambda folder: [{**row, "ts": instant(row["ts"])} for row in ROWS],
    "times of Python with a zone": lambda folder: [
        {**row, "ts": instant(row["ts"]).replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=9)))}
        for row in ROWS
    ],
    "records of pandas": lambda folder: arrow().to_pandas().to_dict("records"),
    "nanoseconds of pandas": lambda folder: arrow().to_pandas().astype({"ts": "datetime64[ns, UTC]"}),
    "scalars of NumPy": lambda folder: [
        {"ts": numpy.datetime64(row["ts"], "s"), "sensor": row["sensor"], "flow": numpy.float32(row["flow"])}
        for row in ROWS
    ],
    "decimals": lambda folder: [{**row, "flow": Decimal(str(row["flow"]))} for row in ROWS],
    "Parquet": parquet,
    "CSV": csv,
    "JSON Lines": json_lines,
    "events": lambda folder: [
        kai.Event("air", 0, seq, row["ts"] * 1_000_000, row) for seq, row in enumerate(ROWS)
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_events_come_in_any_form_and_the_matches_are_the_same(form: str, tmp_path: Path) -> None:
    found = list(kai.run(query(), FORMS[form](tmp_path)))
    assert rises(found) == RISES
    wanted = list(kai.run(query(), ROWS))
    assert [each.id for each in found] == [each.id for each in wanted]


def test_pandas_is_what_it_says() -> None:
    assert isinstance(FORMS["pandas"](Path()), pandas.DataFrame)


@pytest.mark.parametrize("form", ["times of Python", "scalars of NumPy"])
def test_single_records_with_values_of_python_are_events_too(form: str) -> None:
    engine = kai.Engine(query(), lateness="0s")
    assert rises([match for row in FORMS[form](Path()) for match in engine.push(row)]) == RISES


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BEGIN = 1_336_381_200  # 2012-05-07T09:00Z


def in_unit(unit: str) -> list[dict[str, Any]]:
    if unit == "excel":
        return [{**row, "ts": (BEGIN + row["ts"]) / 86_400 + 25_569} for row in ROWS]
    return [{**row, "ts": (BEGIN + row["ts"]) * UNITS[unit]} for row in ROWS]


def unit_files(unit: str, folder: Path) -> Iterator[Any]:
    rows = in_unit(unit)
    yield rows
    yield pa.Table.from_pylist(rows)
    (folder / "air.jsonl").write_text("\n".join(map(json.dumps, rows)))
    yield folder / "air.jsonl"
    (folder / "air.csv").write_text(
        "\n".join(["ts,sensor,flow", *(",".join(map(str, r.values())) for r in rows)])
    )
    yield folder / "air.csv"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "air.parquet")
    yield folder / "air.parquet"


@pytest.mark.parametrize("unit", [*UNITS, "excel"])
def test_an_annotation_says_what_a_time_counts(unit: str, tmp_path: Path) -> None:
    annotation = {"stream": "air", "time_unit": unit}
    made = query(annotations=[annotation])
    wanted = [(each.id, each.end_us) for each in kai.run(query(), in_unit("s"))]
    for each in unit_files(unit, tmp_path):
        assert [(match.id, match.end_us) for match in kai.run(made, each)] == wanted
    engine = kai.Engine(made, lateness="0s")
    assert rises([match for row in in_unit(unit) for match in engine.push(row)]) == RISES


def test_an_unknown_unit_of_time_is_a_mistake() -> None:
    with pytest.raises(kai.Mistake, match="it is one of s, ms, us, ns, excel"):
        query(annotations=[{"stream": "air", "time_unit": "minutes"}])


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_time_that_makes_no_sense_in_seconds_says_what_it_may_be(unit: str) -> None:
    dead: list[Any] = []
    kai.Engine(query(), lateness="0s", on_dead=dead.append).push(in_unit(unit)[0])
    assert f'"time_unit": "{unit}"' in dead[0].reason
    with pytest.raises(kai.Mistake, match=f'"time_unit": "{unit}"'):
        list(kai.run(query(), pa.Table.from_pylist(in_unit(unit))))


def test_a_fraction_widens_what_was_taken_for_whole_numbers() -> None:
    made = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 1)", annotations=[{"stream": "s"}])
    engine = kai.Engine(made, lateness="0s")
    found = [engine.push({"ts": ts, "x": x}) for ts, x in enumerate((1, 2, 2.5, 3))]
    assert [[each.select["x"] for each in some] for some in found] == [[], [2], [2.5], [3]]
    assert engine.dead_count == 0


def test_a_missing_value_of_pandas_is_null_and_a_date_is_its_midnight() -> None:
    made = kai.compile(
        "SELECT * FROM (?e, s)", streams={"s": {"day": "timestamp", "n": "int64", "x": "string"}}
    )
    row = {"ts": date(1970, 1, 2), "day": pandas.NaT, "n": pandas.NA, "x": numpy.str_("a")}
    [match] = kai.run(made, [row])
    assert match.end_us == 86_400_000_000
    assert match.select == {"day": None, "n": None, "x": "a"}


def test_matches_come_out_as_arrow_too() -> None:
    batches = list(kai.run_arrow(query(), arrow()))
    rows = [row for each in batches for row in each.to_pylist()]
    assert sorted((row["select"]["sensor"], row["select"]["rise"]) for row in rows) == RISES
    wanted = {each.id for each in kai.run(query(), ROWS)}
    assert {row["id"].hex() for row in rows} == wanted


def test_a_match_comes_at_once_where_nothing_can_be_late() -> None:
    engine = kai.Engine(query(), lateness="0s")
    assert [rises(engine.push(row)) for row in ROWS] == [[], [], RISES[:1], [], RISES[1:]]


def test_what_comes_too_late_is_counted_and_shown() -> None:
    engine = kai.Engine(query(), lateness="1min")
    engine.push(ROWS)
    assert engine.push({"ts": 100, "sensor": "s1", "flow": 0}) == []
    assert engine.late_count == 1
    assert [each.seq for each in engine.late] == [5]


def test_a_record_that_is_no_event_stops_nothing() -> None:
    dead: list[Any] = []
    engine = kai.Engine(query(), lateness="0s", on_dead=dead.append)
    engine.push([{"ts": 0, "sensor": "s1", "flow": "much"}, {"sensor": "s1"}])
    assert [each.seq for each in dead] == [0, 1]
    assert engine.dead_count == 2
    assert "flow" in dead[0].reason


def test_asynchronous_events() -> None:
    async def readings() -> Any:
        for row in ROWS:
            await asyncio.sleep(0)
            yield row

    async def collect() -> list[kai.Match]:
        return [match async for match in kai.run_async(query(), readings())]

    assert rises(asyncio.run(collect())) == RISES


def test_several_streams_are_given_by_name() -> None:
    made = kai.compile(
        "SELECT ?a.x, ?b.y FROM (?a, s), (?b, t) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)",
        streams={"s": {"x": "int64"}, "t": {"y": "string"}},
    )
    events = {"s": [{"ts": 0, "x": 1}], "t": [{"ts": 1, "y": "b"}, {"ts": 99, "y": "c"}]}
    assert [each.select for each in kai.run(made, events)] == [{"x": 1, "y": "b"}]
    with pytest.raises(kai.Mistake, match="there are no events for t"):
        list(kai.run(made, {"s": []}))


def test_queries_come_and_go_while_others_run() -> None:
    engine = kai.Engine(query(), lateness="0s")
    engine.push(ROWS[:2])
    engine.register(
        kai.compile("SELECT ?e.flow FROM (?e, air) FILTER (?e.flow > 600)", name="high", streams=STREAMS)
    )
    found = engine.push(ROWS[2:])
    assert [each.query for each in found].count("high") == 1
    assert [each.query for each in found].count("query") == 3
    engine.unregister("query")
    assert engine.queries == ("high",)


def test_an_engine_goes_on_from_where_another_stopped() -> None:
    first = kai.Engine(query(), lateness="0s")
    before = first.push(ROWS[:3])
    second = kai.Engine(query(), lateness="0s")
    second.restore(first.snapshot())
    assert rises([*before, *second.push(ROWS[3:])]) == RISES


def test_the_language_is_seen_from_the_text() -> None:
    made = kai.compile("SELECT ?c WHERE { { ?c :price ?p } SEQ { ?c :price ?q } }", streams={"s": "rdf"})
    triples = [{"triple": "<urn:c> <urn:kaicep:price> <urn:low> .", "start": start} for start in (0, 1)]
    assert len(list(kai.run(made, triples))) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": {"air": {"sensor": "text"}}}, "no type is called text"),
        ({"language": "SQL"}, "no language is called SQL"),
        ({"now": "yesterday"}, "yesterday is not a time"),
        ({"streams": {"ait": {}}}, "air"),
    ],
)
def test_a_mistake_names_the_way_out(given: dict[str, Any], message: str) -> None:
    with pytest.raises(kai.Mistake, match=message):
        kai.compile(RISE, **{"streams": STREAMS, **given})


NO_EVENTS: dict[str, tuple[Any, str]] = {
    "one event": (ROWS[0], r"there are no events for air(.|\n)*a list with one dict: \[event\]"),
    "events of another stream": ({"ait": ROWS}, r"there are no events for air(.|\n)*the name air"),
    "rows that are no dicts": (
        pandas.DataFrame(ROWS).itertuples(),
        r"an event is a dict, not a Pandas(.|\n)*a data frame is taken as it is",
    ),
    "a number": (5, "not an int"),
    "a list of texts": (["s1"], "not a str"),
}


@pytest.mark.parametrize("given", NO_EVENTS)
def test_what_is_no_event_says_what_is_one(given: str) -> None:
    events, message = NO_EVENTS[given]
    with pytest.raises(kai.Mistake, match=message):
        list(kai.run(query(), events))


def test_a_text_is_no_query_yet() -> None:
    with pytest.raises(kai.Mistake, match=r"needs a compiled query, not a str(.|\n)*kai\.compile"):
        list(kai.run(RISE, ROWS))  # type: ignore[arg-type]


def test_a_stream_whose_attributes_nobody_named_cannot_be_run() -> None:
    made = kai.compile(RISE)
    assert "reads air" in repr(made)
    message = r'the attributes of air are not known(.|\n)*streams={"air": {"sensor": "string", '
    for take in (kai.Engine, lambda query: list(kai.run(query, ROWS)), kai.spark.explain):
        with pytest.raises(kai.Mistake, match=message):
            take(made)


def test_types_of_python_name_types_too() -> None:
    made = kai.compile(RISE, streams={"air": {"ts": datetime, "sensor": str, "flow": float}})
    assert rises(kai.run(made, ROWS)) == RISES
    for wrong in (["sensor"], "sensor", 5):
        with pytest.raises(kai.Mistake, match=r'air(.|\n)*{"sensor": "string", "flow": "float64"}'):
            kai.compile(RISE, streams={"air": wrong})


TIMES: dict[str, Callable[[datetime], Any]] = {
    "text": str,
    "a datetime": lambda time: time,
    "pandas": pandas.Timestamp,
    "NumPy": lambda time: numpy.datetime64(time.replace(tzinfo=None)),
    "epoch seconds": datetime.timestamp,
}


@pytest.mark.parametrize("form", TIMES)
def test_time_passes_to_what_an_event_could_have_for_its_time(form: str) -> None:
    text = "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?b.x > 5) SEQ (?a, !?b) WINDOW (?a, ?b, 2s)"
    engine = kai.Engine(kai.compile(text, streams={"s": {"x": "int64"}}), lateness=timedelta(seconds=1))
    assert engine.push({"ts": instant(60), "x": 1}) == []
    before, after = (TIMES[form](instant(seconds).replace(tzinfo=UTC)) for seconds in (62, 63))
    assert (engine.advance(before), len(engine.advance(after))) == ([], 1)
    with pytest.raises(kai.Mistake, match="tomorrow is not a time"):
        engine.advance("tomorrow")
    engine.finish()
    with pytest.raises(kai.Mistake, match="this engine has finished"):
        engine.advance("1970-01-01T00:10")


def test_kaicep_is_imported_without_what_it_does_not_need() -> None:
    script = (
        "import kaicep, sys; print([each for each in sys.modules if each in {'numpy', 'pyarrow', 'numba'}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_offered_is_there() -> None:
    def missing() -> Iterator[str]:
        for name in kai.__all__:
            if name != "spark" and not hasattr(kai, name):
                yield name

    assert list(missing()) == []


def test_single_events_take_a_short_way_with_the_same_answers() -> None:
    chance = random.Random(11)
    rows: list[dict[str, Any]] = []
    for number in range(400):
        row: dict[str, Any] = {"ts": number * 20, "sensor": chance.choice(("s1", "s2", None)), "flow": 0.0}
        row["flow"] = chance.choice((chance.randrange(900), 450.5, None, math.inf, "much", True))
        if chance.random() < 0.1:
            row["ts"] = chance.choice((None, "1970-01-01T00:00:01Z", number * 20 - 30, number * 20 + 0.5))
        rows.append(row)
    by_one, at_once = (kai.Engine(query(), lateness="0s") for _ in range(2))
    short = 0
    found = []
    for row in rows:
        before = by_one._host._lane
        found += by_one.push(row)
        short += before is not None and by_one._host._lane is before
    wanted = at_once.push(rows)
    assert short > 300
    assert [each.to_json() for each in found] == [each.to_json() for each in wanted]
    assert len(found) > 20
    assert (by_one.dead_count, by_one.late_count) == (at_once.dead_count, at_once.late_count)
    assert by_one.late_count > 5
    assert by_one.dead_count > 50


TYPES = {"k": "string", "n": "int64", "x": "float64", "b": "bool", "at": "timestamp"}
SHAPES = [
    "SELECT * FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 9s)",
    """SELECT ?a.n, ?b.x AS bx, ?c.b AS cb FROM (?a, s), (?b, s), (?c, s)
       FILTER (?b.x > 5) FILTER (?c.n > 5) SEQ (?a, (?b | ?c)) WINDOW (?a, ?b, ?c, 3s)""",
    "SELECT ?a.n FROM (?a, s), (?b, s) FILTER (?b.x > 5) SEQ (?a, !?b) WINDOW (?a, ?b, 2s)",
    """SELECT ?a.n, COUNT(?b) AS c FROM (?a, s), (?b, s) FILTER (?b.x > 3)
       SEQ (?a, ?b+) MATCH next WINDOW (?a, ?b, 4s)""",
    "SELECT SUM(?e.x) AS total, ?e.k FROM (?e, s) WINDOW (?e, sliding, 5s) PARTITION BY ?e.k",
]


@pytest.mark.parametrize("shapes", [*([each] for each in SHAPES), SHAPES, [SHAPES[0]] * 12])
def test_the_short_path_knows_all_types_and_shapes(shapes: list[str]) -> None:
    chance = random.Random(len(shapes))
    texts = {f"q{number}": text for number, text in enumerate(shapes)}
    if len(shapes) == 12:  # many that differ in one threshold are found in one pass
        texts = {
            name: f"{text} FILTER (?a.x > {number})" for number, (name, text) in enumerate(texts.items())
        }
    query = kai.compile(texts, streams={"s": TYPES})
    rows = [
        {
            "ts": number + chance.choice((0.0, 0.25)),
            "k": chance.choice(("a", "b", None)),
            "n": chance.choice((chance.randrange(9), None)),
            "x": chance.choice((chance.randrange(9) + 0.5, chance.randrange(9), None)),
            "b": chance.choice((True, False, None)),
        }
        for number in range(120)
    ]
    one, other = (kai.Engine(query, lateness="0s") for _ in range(2))
    short = [[each.to_json() for each in one.push(row)] for row in rows]
    long = [[each.to_json() for each in other.push([row])] for row in rows]
    assert one._host._lane is not None
    assert other._host._lane is None
    assert short == long
    assert sum(map(len, short)) > 20


def test_a_match_of_the_short_path_is_like_any_other() -> None:
    one, other = (kai.Engine(query(), lateness="0s") for _ in range(2))
    found = [match for row in ROWS for match in one.push(row)]
    wanted = [match for row in ROWS for match in other.push([row])]
    assert found == wanted
    assert [pickle.loads(pickle.dumps(each)) for each in found] == wanted
    assert [repr(each) for each in found] == [repr(each) for each in wanted]
    with pytest.raises(AttributeError, match="no attribute colour"):
        found[0].colour  # noqa: B018


def test_the_short_path_gives_chunks_of_one_query_each() -> None:
    chunks: list[tuple[str, set[str]]] = []
    texts = {f"q{number}": RISE.replace("> 50", f"> {number}") for number in range(12)}
    engine = kai.Engine(
        kai.compile(texts, streams=STREAMS),
        lateness="0s",
        on_matches=lambda some: chunks.append((some.query, {each.query for each in some})),
    )
    for row in ROWS:
        assert engine.push(row) == []
    assert {name for name, _ in chunks} == set(texts)
    assert all(inside == {name} for name, inside in chunks)


def test_the_short_path_follows_the_knowledge_and_the_queries() -> None:
    knowledge = kai.Knowledge.parse("@prefix : <urn:k:> . :s1 a :Loud .")
    annotation = {
        "stream": "air",
        "prefixes": {"k": "urn:k:"},
        "class": "k:Report",
        "entities": {"sensor": {"property": "k:from", "iri": "k:{value}"}},
    }
    loud = kai.compile(
        "SELECT ?e.flow FROM (?e, air) PATH {?e k:from ?s . ?s a k:Loud}",
        streams=STREAMS,
        annotations=[annotation],
        knowledge=knowledge,
    )
    engine = kai.Engine(loud, lateness="0s")
    knowledge.update(add="@prefix : <urn:k:> . :s2 a :Quiet .")
    assert [len(engine.push({"ts": ts, "sensor": "s2", "flow": 1})) for ts in (0, 1)] == [0, 0]
    knowledge.update(add="@prefix : <urn:k:> . :s2 a :Loud .")
    assert len(engine.push({"ts": 2, "sensor": "s2", "flow": 1})) == 1
    engine.register(kai.compile("SELECT ?e.flow FROM (?e, air)", name="all", streams=STREAMS))
    assert len(engine.push({"ts": 3, "sensor": "s2", "flow": 1})) == 2


def test_an_engine_without_lateness_gives_matches_at_once() -> None:
    engine = kai.Engine(query())
    assert [rises(engine.push(row)) for row in ROWS] == [[], [], RISES[:1], [], RISES[1:]]


def test_a_source_without_an_end_is_not_waited_for(tmp_path: Path) -> None:
    types = {name: Type(type) for name, type in STREAMS["air"].items()}
    options = {"kind": "files", "path": str(json_lines(tmp_path)), "follow": True}
    (tmp_path / "air.jsonl").open("a").write("\n")
    with make_source(Form("air", types=types), options) as source:
        source.open()
        found = kai.run(query(), source)
        assert rises(next(found) for _ in RISES) == RISES


def test_what_is_pushed_after_the_end_is_refused() -> None:
    engine = kai.Engine(query())
    engine.push(ROWS)
    engine.finish()
    for late in (ROWS[0], ROWS, arrow()):
        with pytest.raises(kai.Mistake, match="this engine has finished"):
            engine.push(late)


def test_an_engine_says_what_it_waits_for() -> None:
    streams = {"s": {"x": "int64"}, "t": {"x": "int64"}}
    follows = "SELECT ?a.x FROM (?a, s), (?b, t) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)"
    engine = kai.Engine(kai.compile(follows, streams=streams), lateness="5s")
    assert engine.waiting == {"query": "the first event of s and of t"}
    engine.push({"ts": 60, "x": 1}, "s")
    assert engine.waiting == {"query": "the first event of t; 1 is buffered"}
    engine.push([{"ts": 70, "x": 1}, {"ts": 80, "x": 1}], "t")
    assert engine.waiting["query"].startswith("events of s after 1970-01-01 00:01:00, which holds")
    engine.push([{"ts": 80, "x": 1}], "s")
    assert "since they may be 5s late" in engine.waiting["query"]
    engine.finish()
    assert engine.waiting == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?b.x > 5) SEQ (?a, !?b) WINDOW (?a, ?b, 2s)",
            "00:01:02, when every absence so far is decided",
        ),
        (
            "SELECT COUNT(?e.x) AS n FROM (?e, s) WINDOW (?e, batch, 1min)",
            "00:02:00, when the window is complete",
        ),
    ],
)
def test_what_time_decides_is_waited_for(text: str, what: str) -> None:
    engine = kai.Engine(kai.compile(text, streams={"s": {"x": "int64"}}))
    assert engine.push({"ts": 60, "x": 1}) == []
    assert what in engine.waiting["query"]
    assert len(engine.advance("1970-01-01T00:03")) == 1
    assert engine.waiting == {}


def test_without_a_lateness_the_end_is_waited_for() -> None:
    engine = kai.Engine(query(), lateness=None)
    assert engine.push(ROWS) == []
    assert engine.waiting["query"].startswith("the end of air (`finish`)")
    assert rises(engine.finish()) == RISES


def test_matches_are_tables() -> None:
    found = list(kai.run(query(), ROWS))
    table = kai.to_arrow(found)
    assert table.column_names == ["query", "id", "start", "end", "sensor", "rise"]
    assert table["end"].to_pylist() == [each.end for each in found]
    assert list(kai.to_pandas(found)["rise"]) == [60.0, 140.0, 200.0]
    assert kai.to_polars(found)["rise"].sum() == 400.0
    assert kai.to_arrow([]).column_names == ["query", "id", "start", "end"]


def test_tables_of_terms_of_loops_and_of_names_that_are_taken() -> None:
    term = {"type": "literal", "value": "7", "datatype": "http://www.w3.org/2001/XMLSchema#integer"}
    found = [
        kai.Match("q", "1", 0, 0, {"start": 5, "t": term, "l": [1, 2], "m": 1}),
        kai.Match("q", "2", 0, 0, {"t": {"type": "bnode", "value": "b"}, "m": "a"}),
    ]
    rows = kai.to_arrow(found).to_pylist()
    assert [row["select.start"] for row in rows] == [5, None]
    assert [row["t"] for row in rows] == ["7", "_:b"]
    assert [row["l"] for row in rows] == [[1, 2], None]
    assert [row["m"] for row in rows] == ["1", "a"]
    assert kai.to_arrow(found[:1])["t"].to_pylist() == [7]
    triples = [kai.Match("q", "3", 0, 0, triples=("<urn:a> <urn:b> <urn:c> .",))]
    assert kai.to_arrow(triples)["triples"].to_pylist() == [["<urn:a> <urn:b> <urn:c> ."]]


def test_what_a_notebook_shows_is_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    found = [
        kai.Match("q", "1", 0, 0, {"x": hostile, "n": 1}, {"e": {"stream": hostile, "part": 0, "seq": 1}})
    ]
    knowledge = kai.Knowledge.parse(f'@prefix x: <urn:x:> . x:a x:b "{hostile}" .')
    for each in (found[0], kai.MatchList(found), query(), knowledge):
        shown = each._repr_html_()
        assert "script>" not in shown.replace("&lt;script&gt;", "").replace("&lt;/script&gt;", "")
        assert len(repr(each)) < 400
    assert "&lt;script&gt;" in kai.MatchList(found)._repr_html_()
    assert repr(query()) == "<Query query: chi-CEP, reads air>"
    assert repr(knowledge) == "<Knowledge: 1 statements, 1 with what follows (rdfs)>"


def test_widening_is_the_same_however_late_the_fraction_comes(tmp_path: Path) -> None:
    made = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", annotations=[{"stream": "s"}])
    rows = [{"ts": ts, "x": 2.5 if ts == 1_500 else 2} for ts in range(1_600)]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for form in (rows, tmp_path / "s.jsonl"):
        assert [(each.end_us, each.select) for each in kai.run(made, form)] == [(1_500_000_000, {"x": 2.5})]


def test_text_that_is_compared_with_a_number_is_a_mistake_that_says_what_to_declare() -> None:
    annotation = {
        "stream": "air",
        "time": "ts",
        "prefixes": {"h": "urn:h:"},
        "attributes": {"flow": "h:flow"},
    }
    query = kai.compile("SELECT ?e.flow FROM (?e, air) FILTER (?e.h:flow > 5)", annotations=[annotation])
    assert [each.select["flow"] for each in kai.run(query, [{"ts": 0, "flow": 7}])] == [7]
    with pytest.raises(kai.Mistake, match=r">: a str and an int do not go together(.|\n)*declare the types"):
        list(kai.run(query, [{"ts": 0, "flow": "7"}]))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 1) PARTITION BY ?e.k",
        "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) JOIN (?a.k = ?b.k) WINDOW (?a, ?b, 9s)",
        "SELECT ?e.k, SUM(?e.x) AS total FROM (?e, s) WINDOW (?e, sliding, 9s) PARTITION BY ?e.k",
        "SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 3) GROUP BY ?e.k",
    ],
)
def test_a_match_that_is_read_late_says_what_it_said_at_once(text: str) -> None:
    query = kai.compile(text, streams={"s": {"x": "float64", "k": "string"}})
    records = [{"ts": seq, "x": seq * 7 % 5 + 0.5, "k": "pq"[seq % 2]} for seq in range(12)]
    one_by_one, at_once = kai.Engine(query), kai.Engine(query)
    kept = [match for each in records for match in one_by_one.push(each)] + one_by_one.finish()
    wanted = at_once.push(records) + at_once.finish()
    assert len(wanted) > 3
    assert sorted(each.to_json() for each in kept) == sorted(each.to_json() for each in wanted)
