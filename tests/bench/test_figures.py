"""The figures of the papers are drawn from whatever the benchmarks give, and one that fails is told."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app
from kaicep.errors import Failure
from kaicep_bench import figures
from kaicep_bench.figures import FIGURES, Figure, cpep, etalis, scepter
from kaicep_bench.figures.claim import Claim, Drawing
from kaicep_bench.plot import Line, Panel, Point, draw
from kaicep_bench.table import Report, Table

pytest.importorskip("matplotlib")

RECOVERY = [
    {
        "query": query,
        "archive": archive,
        "outage min": 10,
        "strategy": strategy,
        "events": 360_000,
        "matches": 4,
        "first match s": 0.5,
        "caught up s": 2.0,
        "events/s": 180_000.0,
    }
    for query in ("query 5", "query 7")
    for archive in ("60 min", "120 min")
    for strategy in ("hybrid", "replay", "rewrite")
]


def test_all_figures_of_the_three_papers_are_there():
    assert [each.name for each in FIGURES] == [
        "scepter-8",
        "scepter-9",
        "etalis-1",
        "etalis-2",
        "etalis-3",
        "etalis-4",
        "cpep-6",
        "cpep-8",
        "cpep-9",
    ]


def test_figure_8_of_scepter_is_throughput_over_the_rate_of_the_input():
    rated = [
        {"strategy": name, "input/s": rate, "output/s": min(rate, most)}
        for name, most in (("query 1", 200_000.0), ("query 5, bare", 150.0), ("query 5, buffer 1 s", 900.0))
        for rate in (100.0, 500.0, 1_000.0, 100_000.0)
    ]
    spent = {"annotate": 90.0, "cache": 0.0, "evaluate": 900.0, "match": 10.0}
    modules = [{"host": "reference", "strategy": "query 5, bare", **spent}]
    tables = [
        Table("throughput", []),
        Table("throughput over the rate of the input (figure 8a)", rated),
        Table("microseconds an event, by module (figure 8b)", modules),
    ]
    drawing = scepter.figure8(Report("semantic", tables))
    panel = drawing.panels[0]
    assert (panel.across, panel.up, panel.log) == ("input, events/s", "output, events/s", "xy")
    drawn = {each.label: [(point.x, point.y, point.paper) for point in each.points] for each in panel.lines}
    assert drawn["query 5, bare"] == [
        (100, 100, 80),
        (500, 150, None),
        (1_000, 150, None),
        (100_000, 150, None),
    ]
    assert [paper for _, _, paper in drawn["query 5, buffer 1 s"]] == [None, 500, None, None]
    assert drawn["query 1"][-1] == (100_000, 100_000, 100_000)
    assert {each.what: each.here for each in drawing.claims}[
        "(a) query 5, buffer 1 s, the most that comes out"
    ] == "900 events/s"


def test_the_paper_s_numbers_stand_beside_ours_where_its_text_says_them():
    drawing = scepter.figure9(Report("recovery", [Table("back after an outage", RECOVERY)]))
    said = {
        (panel.title, line.label): point.paper
        for panel in drawing.panels
        for line in panel.lines
        for point in line.points
        if point.paper is not None
    }
    assert said == {
        ("(a) first match", "replay, archive of 60 min"): 9,
        ("(a) first match", "replay, archive of 120 min"): 15,
        ("(b) caught up", "replay, archive of 120 min"): 36,
    }
    assert all(claim.here for claim in drawing.claims)


def test_a_drawing_of_agents_has_time_and_memory_with_the_paper_s():
    row = {"agents": 1, "locations": 5, "ms": 400, "paper ms": 3, "kB": 1_400, "paper kB": 35}
    time, memory = etalis.figure3(Report("delivery", [Table("t", [row])])).panels
    assert time.lines[0].points == [Point(5.0, 400.0, paper=3.0)]
    assert memory.lines[0].points == [Point(5.0, 1400.0, paper=35.0)]


def test_timely_throughput_is_compared_at_the_most_copies():
    rows = [
        {"copies": copies, "sharing": sharing, "shedding": shedding, "timely Mbps": rate, "+-": None}
        for copies in (2, 9)
        for sharing in ("yes", "no")
        for shedding, rate in (("yes", 250.0), ("no", 150.0))
    ]
    drawing = cpep.figure9(Report("live", [Table("throughput (figure 9)", rows)]))
    assert [each.here for each in drawing.claims] == ["250 Mbps", "100 Mbps"]


@pytest.mark.parametrize("kind", ["lines", "bars", "stacked"])
def test_a_picture_is_a_small_png(kind, tmp_path):
    lines = [Line(name, [Point(1, 2.0, paper=3.0), Point(2, 4.0, error=0.5)]) for name in "ab"]
    draw(tmp_path / "p.png", [Panel("p", "x", "y", lines, kind, "y")], "title", "footer")
    written = (tmp_path / "p.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert len(written) < 60_000


def test_one_that_fails_is_told_and_the_others_are_drawn(monkeypatch, tmp_path):
    def broken(report: Report) -> Drawing:
        raise Failure("no such thing")

    def drawn(report: Report) -> Drawing:
        (table,) = report.tables
        panel = Panel("p", "x", "y", [Line("a", [Point(1, float(len(table.rows)))])])
        return Drawing([panel], [Claim("rows", "1", "2", "7")])

    monkeypatch.setattr(
        figures,
        "FIGURES",
        (Figure("one", "One", "startup", broken), Figure("two", "Two", "startup", drawn)),
    )
    asked = []
    monkeypatch.setattr(
        figures,
        "_measured",
        lambda name, quick: asked.append((name, quick)) or Report(name, [Table("t", [{"a": 1}])]),
    )
    result = CliRunner().invoke(app, ["bench", "figures", "--quick", "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "one: no such thing" in result.stderr
    assert asked == [("startup", True)]
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["numbers.md", "two.csv", "two.png"]
    page = (tmp_path / "out" / "numbers.md").read_text("utf-8")
    assert "| rows | 1 | 2 | 7 |" in page
    assert "- one: no such thing" in page
    [row] = csv.DictReader((tmp_path / "out" / "two.csv").open())
    assert (row["x"], row["y"], row["paper"]) == ("1", "1.0", "")


def test_output_is_for_the_figures_alone():
    result = CliRunner().invoke(app, ["bench", "startup", "--output", "here"])
    assert result.exit_code == 2
    assert "leaves no files" in result.stderr
