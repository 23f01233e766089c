"""The data sets, the checksum of matches, and the benchmarks that use them; how fast is not asked here."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kaicep.errors import Failure, Mistake
from kaicep.hosts.queries import Listed
from kaicep.kernel.columns import Refs
from kaicep.plan.events import Match
from kaicep_bench import jvm, latency, peers, queries, run
from kaicep_bench.data import SETS, Shape, arrow_batches, events, make, write
from kaicep_bench.engine import Result, Tally, compiled, run_columns, run_reference
from kaicep_bench.pattern import QUERIES, Case, query3
from kaicep_bench.queries import SHAPES, levels

pytestmark = pytest.mark.slow

DENSE = Shape("dense", 300, 4, 1)

needs_jvm = pytest.mark.skipif(jvm.missing() is not None, reason=str(jvm.missing()))


def answer(result: Result) -> tuple[int, int]:
    return result.matches, result.checksum


# --- the data --------------------------------------------------------------------------------------------


def test_a_data_set_is_the_same_every_time_and_its_beginning_too():
    shape = SETS["B"]
    data, shorter = make(shape), make(replace(shape, events=1_000))
    assert np.array_equal(data.first(1_000).flowrate, shorter.flowrate)
    assert np.array_equal(data.first(1_000).sensor, shorter.sensor)
    # The numbers themselves: another version of NumPy must not change them.
    assert data.sensor[:3].tolist() == [5, 17, 9]
    assert data.flowrate[:2].tolist() == pytest.approx([895.23554799, 11.79114121])


def test_times_increase_by_the_rate():
    data = make(SETS["C"]).first(100)
    assert set(np.diff(data.ts).tolist()) == {100}


def test_one_pair_in_ten_is_a_rise_so_that_b_has_thirty_matches_an_event():
    flowrate = make(SETS["B"]).flowrate
    pairs = np.random.default_rng(1).permutation(flowrate)
    share = np.mean((flowrate > 500) & (pairs - flowrate > 50))
    assert 300 * share == pytest.approx(30, rel=0.03)


def test_arrow_and_events_say_the_same():
    data = make(DENSE)
    rows = [row for batch in arrow_batches(data, 70) for row in batch.to_pylist()]
    for row, event in zip(rows, events(data), strict=True):
        assert row["sensorID"] == event.values["sensorID"]
        assert row["flowrate"] == event.values["flowrate"]
        assert row["ts"].timestamp() == event.ts / 1e6


def test_a_file_has_the_columns_one_after_the_other(tmp_path):
    data = make(DENSE)
    write(data, tmp_path / "columns")
    words = (tmp_path / "columns").read_bytes()
    assert words[:8] == b"KAICOLS1"
    assert np.frombuffer(words, "<i8", 2, 8).tolist() == [300, 4]
    assert np.array_equal(np.frombuffer(words, "<i8", 300, 24), data.ts)
    assert np.array_equal(np.frombuffer(words, "<f8", 300, 24 + 2_400), data.flowrate)
    assert np.array_equal(np.frombuffer(words, "<i4", 300, 24 + 4_800), data.sensor)


# --- the checksum ----------------------------------------------------------------------------------------


def pair(first: int, second: int) -> Match:
    return Match("q", "", 0, 0, {}, {"a": {"seq": first}, "b": {"seq": second}})


def tallied(*matches: Match) -> tuple[int, int]:
    tally = Tally(make(DENSE))
    tally.take(Listed("q", matches))
    return tally.matches, tally.checksum


def test_the_order_of_matches_makes_no_difference_that_of_events_does():
    assert tallied(pair(1, 2), pair(3, 4)) == tallied(pair(3, 4), pair(1, 2))
    assert tallied(pair(1, 2)) != tallied(pair(2, 1))
    assert tallied(pair(1, 2), pair(3, 4)) != tallied(pair(1, 4), pair(3, 2))


def test_matches_in_columns_have_the_checksum_of_matches_one_by_one():
    loops = [
        Match("q", "", 0, 0, {}, {"a": {"seq": 1}, "b": [{"seq": 2}, {"seq": 3}]}),
        Match("q", "", 0, 0, {}, {"a": {"seq": 4}, "b": [{"seq": 5}]}),
    ]
    there = np.zeros(2, np.int64)
    rounds = np.zeros(3, np.int64)
    tally = Tally(make(DENSE))
    tally._columns(
        [
            Refs(there, there, np.array([1, 4])),
            Refs(rounds, rounds, np.array([2, 3, 5]), np.array([0, 2, 3])),
        ]
    )
    assert (tally.matches, tally.checksum) == tallied(*loops)


# --- kaicep ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_the_matches_of_the_reference_in_batches_of_any_size(name):
    data, query = make(DENSE), compiled(QUERIES[name])
    truth = run_reference(query, data)
    assert truth.matches > 0
    assert answer(run_columns(query, data)) == answer(truth)
    assert answer(run_columns(query, data, 7)) == answer(truth)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_matches(name):
    assert run_columns(compiled(SHAPES[name]), make(DENSE)).matches > 0


def test_a_thousand_levels_are_a_thousand_queries():
    assert len(set(levels(1_000).values())) == 1_000
    assert levels(10)["level 0"] == query3(500.0)


def test_query_7_has_the_matches_of_query_3():
    data = make(DENSE)
    assert answer(run_columns(latency.query7(data.names()), data)) == answer(
        run_columns(compiled(query3()), data)
    )


# --- the peers -------------------------------------------------------------------------------------------


def test_without_maven_one_is_told(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else f"/bin/{name}")
    with pytest.raises(Mistake, match="mvn is not on the PATH"):
        jvm.build()


def test_a_peer_with_other_matches_stops_it():
    own = Result(10, 77, 1.0)
    other = jvm.Taken("Esper", "9.0.0", "1", 100, 10, 78, 0, 1.0)
    with pytest.raises(Failure, match="they are others"):
        peers._compared(Case("1", "A"), 100, own, [other])
    assert peers._compared(Case("1", "A"), 100, own, [replace(other, checksum=77)])


@pytest.mark.night
@needs_jvm
@pytest.mark.parametrize("peer", jvm.PEERS, ids=lambda each: each.name)
def test_a_peer_has_our_matches(peer, tmp_path: Path):
    jvm.build()
    data = make(Shape("dense", 2_000, 4, 2))  # long enough for windows to slide
    write(data, tmp_path / "columns")
    found = jvm.run(peer, "pattern", tmp_path / "columns", len(data), peer.queries, quick=True)
    for name, taken in zip(peer.queries, found, strict=True):
        own = run_columns(compiled(QUERIES[name]), data)
        assert (name, taken.matches, taken.checksum) == (name, *answer(own))


@pytest.mark.night
@needs_jvm
def test_many_queries_beside_esper():
    rows = run("queries", quick=True).tables[0].rows
    assert [row["queries"] for row in rows] == [*queries.QUICK_NUMBERS, len(SHAPES)]
    assert all(row["of Esper"] > 0 for row in rows if row["kind"] == "levels")
