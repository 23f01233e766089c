"""Whole queries as one Spark SQL query over an archive: what the reference finds, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.archive.test_strategies import EVENTS, KIND, LETTERS, SAYABLE, THINGS, archived, letters, shown

from kaicep.api import build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import SourceText, Unsupported
from kaicep.history import strategies
from kaicep.history.hybrid import spark_history
from kaicep.history.rewrite import sql_matches, sql_of
from kaicep.history.strategies import History, history_of, past_matches
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event

pytestmark = pytest.mark.spark

# What SPARQL can say and Spark SQL would answer differently.
NOT_IN_SQL = ("round(", "upper(")
MORE = (
    "SELECT ?a.x FROM (?a, s) FILTER (?a.x % 2 = 1 && dayOfWeek(?a.ts) = 4)",
    "SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) FILTER (?b.x > 3) SEQ (?a, !?b, ?c) WINDOW (?a, ?c, 2s)",
    "SELECT MIN(?a.y) AS m, ?a.k FROM (?a, s) WINDOW (?a, batch, 2s) GROUP BY ?a.k PARTITION BY ?a.x",
)
TEXTS = [each for each in (*SAYABLE, *MORE) if not any(word in each for word in NOT_IN_SQL)]


def asked(folder: Path, texts: list[str], events: list[Event]) -> tuple[History, list[str]]:
    """The queries over an archive of the events, and what the reference finds."""
    queries = [parse_query(SourceText(f"q{number}.chi", text), {}) for number, text in enumerate(texts)]
    knowledge = Knowledge.parse(THINGS)
    run = build_run(queries, [StreamData("s", LETTERS, events)], KIND, knowledge, now=0)
    history = history_of(queries, archived(folder, events), knowledge, KIND, now=0)
    return history, shown(run.matches("reference"))


def by_sql(history: History) -> list[str]:
    snapshot = history.archive.snapshot()
    return shown(sql_matches(history, snapshot))


def test_what_spark_sql_can_say(spark: Any, tmp_path: Path) -> None:
    history, wanted = asked(tmp_path, TEXTS, EVENTS)
    found = by_sql(history)
    assert found == wanted
    answered = {line.split('"')[3] for line in wanted}
    assert len(answered) == len(TEXTS), "a query without a match says nothing"


def test_random_events(spark: Any, tmp_path: Path) -> None:
    chance = random.Random(11)
    rows = [
        (
            chance.randrange(0, 12) * 500_000,
            chance.choice(["a", "b", "c", "x", None]),
            chance.choice([None, *range(-3, 6)]),
            chance.choice([None, -2.5, -0.0, 0.0, 0.1, 0.5, 2.5, 1e9]),
        )
        for _ in range(18)
    ]
    history, wanted = asked(tmp_path, TEXTS, letters(rows))
    assert by_sql(history) == wanted
    # Hybrid on Spark is the third way.
    snapshot = history.archive.snapshot()
    assert shown(spark_history(history, snapshot)) == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b+)", "a loop without a fixed number of rounds"),
        ("SELECT ?a.x FROM (?a, s) FILTER (regex(?a.k, 'a'))", "cannot express regex"),
        ("SELECT ?a.x FROM (?a, s) FILTER (round(?a.y) = 3)", "cannot express round"),
        ("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) MATCH next", "MATCH next"),
        ("SELECT ?a.x FROM (?a, s) PATH {?a ?p <urn:t:a>}", "lead back to events"),
    ],
)
def test_what_spark_sql_cannot_say_is_told_with_the_way_out(text: str, reason: str, tmp_path: Path) -> None:
    history, _ = asked(tmp_path, [text], EVENTS)
    with pytest.raises(Unsupported) as refused:
        sql_of(history.program.queries[0], history.catalog, history.knowledge)
    assert reason in str(refused.value)
    assert "replay and hybrid can" in str(refused.value)


def test_the_size_decides_where_a_strategy_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, wanted = asked(tmp_path, [SAYABLE[0], SAYABLE[9]], EVENTS)
    for small, large in ((100, 100), (0, 0)):
        monkeypatch.setattr(strategies, "SMALL", small)
        monkeypatch.setattr(strategies, "SPARK_FROM", large)
        for strategy in ("auto", "replay", "rewrite", "hybrid"):
            assert shown(past_matches(history, strategy)) == wanted, (strategy, small)
