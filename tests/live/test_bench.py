"""The benchmark measures what it says: its graphs, its intervals."""

from __future__ import annotations

from collections import Counter

import pytest

from kaicep.live.graph import Consumer, Graph, Operator
from kaicep.live.sharing import separated
from kaicep_bench import live
from kaicep_bench.live_load import Run
from kaicep_bench.table import as_json


def test_figure_5_has_the_rates_and_sizes_of_the_paper():
    graph = Graph.of(*live.figure5(1, 2))
    levels = graph.priorities()
    found = Counter(
        (levels[each.name], 1_000_000 // (each.period or 1), each.source["size"])
        for each in graph.suppliers.values()
    )
    assert found == {(3, 200, 512): 2, (2, 100, 1024): 4 * 3, (1, 50, 2048): 2}


def test_figure_7_shares_two_spectra_and_what_is_before_them():
    graph = Graph.of(*live.figure7(1))
    levels = graph.priorities()
    assert (levels["g0.fft2"], levels["g0.fft4"], levels["g0.fft5"]) == (3, 2, 1)
    kinds = Counter(each.kind for each in graph.operators.values())
    alone = Counter(each.kind for each in separated(graph).operators.values())
    assert alone - kinds == {"ekf": 2, "fft": 2}
    assert all(isinstance(each, Operator) for each in graph.operators.values())


@pytest.mark.slow
def test_every_run_leaves_its_rows():
    """A run of a few events over the network: suppliers and consumers are other processes."""
    bench = live.Bench(live.Size((), (), (), 2, 0.3, 0.2))
    runs = bench.repeat({"experiment": 0}, live.figure7(1), True, real_time=False)
    assert [(each["run"], each["level"]) for each in bench.raw] == [
        (run, level) for run in (1, 2) for level in ("high", "middle", "low")
    ]
    for run, rows in zip(runs, (bench.raw[:3], bench.raw[3:]), strict=True):
        assert sum(int(each["delivered"] or 0) for each in rows) == sum(
            run.level(each)["delivered"] for each in live.LEVELS
        )
    assert sum(int(each["delivered"] or 0) for each in bench.raw) > 0


def test_the_report_has_every_experiment_and_a_row_for_every_run(monkeypatch):
    """All but the runs themselves, which give as much as the graph has consumers."""
    micros = {"p50": 1.0, "p99": 2.0, "max": 3.0}

    def ran(nodes, warm_up, seconds, discard, **settings):
        consumers = [each for each in nodes if isinstance(each, Consumer)]
        levels = {
            str(level): {
                "name": name,
                "latency_us": micros,
                **dict.fromkeys(("late", "lost", "bytes"), 0),
                **dict.fromkeys(("delivered", "timely"), sum(each.priority == level for each in consumers)),
            }
            for level, name in live.LEVELS.items()
        }
        return Run(len(consumers) / 100, 1, seconds, {"levels": levels})

    monkeypatch.setattr(live, "run_once", ran)
    report = live.measure(quick=True)
    assert [len(each.rows) for each in report.tables] == [12, 24, 8, 2, 3, 5, 10]
    points = 2 * 2 + 2 * 4 + 2 + 3 + 5
    assert len(report.raw) == 3 * points
    assert {each["experiment"] for each in report.raw} == {1, 2, 3, 4, 5}
    goals = {str(each["goal"]): each["found"] for each in report.tables[-1].rows}
    assert goals["timely deliveries with all on, of the best with one off, the worst of the overloads"] == 1.0
    assert len(as_json(report)["raw"]) == 3 * points


def test_what_all_together_gives_is_of_the_best_of_the_others():
    assert live._share("all", {"all": 9.0}, [{"all": 6.0}, {"all": 10.0}]) == pytest.approx(0.9)
    assert live._share("all", {"all": 0.0}, [{"all": 0.0}]) == 0.0


def test_the_interval_is_that_of_student():
    assert live._spread([1.0]) is None
    assert live._spread([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)
