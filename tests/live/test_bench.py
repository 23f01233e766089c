"""The benchmark measures what it says: its graphs, its intervals."""

from __future__ import annotations

from collections import Counter

import pytest

from kaicep.live.graph import Graph
from kaicep.live.nodes import Operator
from kaicep.live.sharing import separated
from kaicep_bench import live


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


def test_every_run_leaves_its_rows():
    """A run of a few events over the network: suppliers and consumers are other processes."""
    bench = live.Bench(live.Size((), (), 2, 0.3, 0.2))
    runs = bench.repeat({"experiment": 0}, live.figure7(1), True, real_time=False)
    assert [(each["run"], each["level"]) for each in bench.raw] == [
        (run, level) for run in (1, 2) for level in ("high", "middle", "low")
    ]
    for run, rows in zip(runs, (bench.raw[:3], bench.raw[3:]), strict=True):
        assert sum(int(each["delivered"] or 0) for each in rows) == sum(
            run.level(each)["delivered"] for each in live.LEVELS
        )
    assert sum(int(each["delivered"] or 0) for each in bench.raw) > 0


def test_what_all_together_gives_is_of_the_best_of_the_others():
    assert live._share("all", {"all": 9.0}, [{"all": 6.0}, {"all": 10.0}]) == pytest.approx(0.9)
    assert live._share("all", {"all": 0.0}, [{"all": 0.0}]) == 0.0


def test_the_interval_is_that_of_student():
    assert live._spread([1.0]) is None
    assert live._spread([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)
