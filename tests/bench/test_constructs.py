"""The queries of `kaicep bench constructs`: as the reference has them, with about a match in ten events."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kaicep.errors import Failure
from kaicep_bench import constructs, jvm
from kaicep_bench.construct_queries import CONSTRUCTS, REFERENCE_ROW, Construct
from kaicep_bench.constructs import check, compiled, measure, run_construct, scaled

pytestmark = pytest.mark.slow


def named(name: str) -> Construct:
    return next(each for each in CONSTRUCTS if each.name == name)


@pytest.fixture(scope="module")
def report():
    """The quick form: every row on a few thousand events, compared with the reference on a few hundred."""
    return measure(quick=True)


RULES = "the rules of a building"
EXPECTED = Path(__file__).parents[2] / "examples" / "building" / "expected.jsonl"
PLACES = {(each.group, each.name): place for place, each in enumerate(CONSTRUCTS)}


def rows_of(report):
    return {(table.title, row["construct"]): row for table in report.tables for row in table.rows}


def test_every_construct_has_a_row_and_none_is_wrong(report):
    assert not report.failures
    assert all(row["events/s"] for row in rows_of(report).values())
    own = [each for each in rows_of(report) if each[0] != RULES]
    assert own == sorted(
        ((each.group, each.name) for each in CONSTRUCTS),
        key=lambda each: ([table.title for table in report.tables].index(each[0]), PLACES[each]),
    )


def test_the_rules_of_a_building_have_rows_with_what_the_pack_expects(report):
    rules = {name: row for (title, name), row in rows_of(report).items() if title == RULES}
    expected = Counter(each["query"] for each in map(json.loads, EXPECTED.read_text().splitlines()))
    found = {name: row["matches"] for name, row in rules.items()}
    assert found == {
        **expected,
        "all at once": expected.total(),
    }


def test_what_runs_has_about_one_match_in_ten_events(report):
    about = {name: row["per event"] for name, row in rows_of(report).items() if row["per event"] is not None}
    about = {name: each for name, each in about.items() if name[0] != RULES}
    odd = {("events", REFERENCE_ROW), ("together", "ten queries of ten shapes")}
    # So few rooms are in a quick run that those which are added to a department are many.
    odd |= {name for name in about if name[0] == "knowledge"}
    assert {name for name, each in about.items() if not 0.05 < each < 0.2} == odd


def test_the_queries_are_valid_and_have_different_texts():
    texts = [tuple(each.texts.items()) for each in CONSTRUCTS]
    assert len({(each.group, each.name) for each in CONSTRUCTS}) == len(CONSTRUCTS)
    for each in CONSTRUCTS:
        assert compiled(each, 20).names[-1] == "query"
    # A row of MATCH repeats two steps, one of the groups a window: each stands where one looks for it.
    assert len(set(texts)) >= len(texts) - 3


def test_other_matches_than_the_references_are_a_failure(monkeypatch):
    monkeypatch.setattr(constructs, "_reference", lambda construct, shape: [])
    with pytest.raises(Failure, match="the reference has 0"):
        check(named("filter"))


def test_a_row_that_fails_does_not_take_the_rest_with_it(monkeypatch):
    def fail(construct: Construct) -> int:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(constructs, "CONSTRUCTS", (named("filter"), named("at the end")))
    monkeypatch.setattr(constructs, "check", fail)
    monkeypatch.setattr(constructs, "packed_rules", lambda days: ())
    found = measure(quick=True)
    notes = [row["note"] for table in found.tables for row in table.rows]
    assert notes == ["failed: ZeroDivisionError: a fault of ours"] * 2
    assert found.failures == [
        "events, filter: ZeroDivisionError: a fault of ours",
        "absence, at the end: ZeroDivisionError: a fault of ours",
    ]


def test_a_row_that_takes_too_long_is_stopped():
    taken = run_construct(named("filter"), scaled(1_000), most=0.0)
    assert not taken.whole
    assert 0 < taken.events < 1_000


def test_knowledge_that_changes_makes_more_matches():
    steady = run_construct(named("semantic filter"), scaled(1_000)).matches
    assert run_construct(named("statements added"), scaled(1_000)).matches > steady


@pytest.mark.night
@pytest.mark.skipif(jvm.missing() is not None, reason=str(jvm.missing()))
def test_esper_has_as_many_matches(monkeypatch):
    asked = tuple(each for each in CONSTRUCTS if each.epl is not None)
    monkeypatch.setattr(constructs, "CONSTRUCTS", asked)
    monkeypatch.setattr(constructs, "packed_rules", lambda days: ())
    for row in rows_of(measure(quick=True, peers=True)).values():
        assert row["events/s"] is None or (row["Esper note"] is None and row["of Esper"] > 0)


def test_peers_are_a_choice_of_constructs_only():
    from typer.testing import CliRunner

    from kaicep.cli.main import app

    result = CliRunner().invoke(app, ["bench", "startup", "--peers"])
    assert result.exit_code == 2
    assert "--peers is for `kaicep bench constructs`" in result.stderr
