"""A Delta table as a sink: every match once, readable by others, several sinks on one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.matches import matches, write_and_kill

from kaicep.connectors.registry import make_sink
from kaicep.connectors.sinks.delta import DeltaSink
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match

pytest.importorskip("deltalake")


def sink_at(path: Path, name: str = "out") -> DeltaSink:
    sink = make_sink(name, {"kind": "delta", "path": str(path)})
    assert isinstance(sink, DeltaSink)
    return sink


def rows(path: Path) -> list[dict[str, object]]:
    from deltalake import DeltaTable

    found: list[dict[str, object]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


def ids(path: Path) -> list[object]:
    return [row["id"] for row in rows(path)]


def test_a_match_is_a_row(tmp_path: Path) -> None:
    chosen = Match("hot", "a", 0, 1_500_000, {"x": [1, None]}, {"e": {"stream": "s", "part": 0, "seq": 1}})
    made = Match("rule", "b", 0, 0, triples=("<a> <b> <c> .",), version=3)
    with sink_at(tmp_path / "t") as sink:
        assert sink.open() is None
        sink.write([chosen, made])
        sink.commit({"s": {"0": 2}})
    first, second = rows(tmp_path / "t")
    assert (first["query"], first["end"].isoformat()) == ("hot", "1970-01-01T00:00:01.500000+00:00")  # type: ignore[attr-defined]
    assert json.loads(str(first["select"])) == chosen.select
    assert json.loads(str(first["events"])) == chosen.events
    assert (second["select"], second["triples"], second["knowledge"]) == (None, ["<a> <b> <c> ."], 3)


def test_matches_and_mark_are_committed_together(tmp_path: Path) -> None:
    with sink_at(tmp_path / "t") as sink:
        sink.open()
        sink.write(matches(0, 1))
        sink.commit({"n": 1})
        sink.write(matches(2))
    with sink_at(tmp_path / "t") as sink:
        assert sink.open() == {"n": 1}
        assert ids(tmp_path / "t") == ["00000", "00001"]
        sink.write(matches(2))
        sink.commit({"n": 2})
        sink.commit({"n": 3})
    with sink_at(tmp_path / "t") as sink:
        assert sink.open() == {"n": 2}, "without matches there was nothing to commit"
    assert ids(tmp_path / "t") == ["00000", "00001", "00002"]


def test_two_sinks_share_a_table_and_each_knows_its_own_mark(tmp_path: Path) -> None:
    with sink_at(tmp_path / "t", "one") as one, sink_at(tmp_path / "t", "two") as two:
        one.open()
        two.open()
        one.write(matches(0))
        one.commit({"one": 1})
        two.write(matches(1))
        two.commit({"two": 1})
        one.write(matches(2))
        one.commit({"one": 2})
    with sink_at(tmp_path / "t", "one") as one, sink_at(tmp_path / "t", "two") as two:
        assert (one.open(), two.open()) == ({"one": 2}, {"two": 1})
    assert ids(tmp_path / "t") == ["00000", "00001", "00002"]


def test_two_writers_under_one_name_are_found_out(tmp_path: Path) -> None:
    with sink_at(tmp_path / "t") as one, sink_at(tmp_path / "t") as two:
        one.open()
        two.open()
        one.write(matches(0))
        one.commit({"n": 1})
        two.write(matches(1))
        with pytest.raises(Failure, match="another process writes"):
            two.commit({"n": 1})
    assert ids(tmp_path / "t") == ["00000"]


@pytest.mark.parametrize("came_through", [True, False])
def test_a_commit_without_an_answer_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, came_through: bool
) -> None:
    import deltalake

    real = deltalake.DeltaTable.create_write_transaction

    def unlucky(*arguments: Any, **named: Any) -> None:
        if came_through:
            real(*arguments, **named)
        raise OSError("the answer got lost")

    with sink_at(tmp_path / "t") as sink:
        sink.open()
        sink.write(matches(0))
        with monkeypatch.context() as patch:
            patch.setattr(deltalake.DeltaTable, "create_write_transaction", unlucky)
            with pytest.raises(Failure, match="the answer got lost"):
                sink.commit({"n": 1})
        sink.write(matches(1))
        sink.commit({"n": 2})
    with sink_at(tmp_path / "t") as sink:
        assert sink.open() == {"n": 2}
    assert ids(tmp_path / "t") == ["00000", "00001"]


def test_a_table_of_something_else_is_a_mistake(tmp_path: Path) -> None:
    import pyarrow
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", pyarrow.table({"id": ["a"]}))
    with pytest.raises(Mistake, match="is not a table of matches: it lacks end"):
        sink_at(tmp_path / "t").open()


@pytest.mark.slow
def test_killed_at_random_moments_it_has_every_match_once(tmp_path: Path) -> None:
    committed = write_and_kill("delta", tmp_path / "t", turns=4, commits=8)
    with sink_at(tmp_path / "t") as sink:
        mark = sink.open()
    assert mark is not None
    assert mark["s"]["0"] >= committed
    assert ids(tmp_path / "t") == [f"{number:05}" for number in range(mark["s"]["0"])]
