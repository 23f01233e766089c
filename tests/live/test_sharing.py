"""What several consumers need is run once, at the highest of their levels; or, to compare, for each."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.hosts.letters import S
from tests.live.harness import LONG, Got, python, service

from kaicep.live.graph import Consumer, Graph, Operator, Supplier
from kaicep.live.sharing import LiveQuery, shared
from kaicep.testing import prepare


def counted(calls: Counter[str], name: str):
    def run(payload):
        calls[name] += 1
        return payload + 1

    return run


@pytest.mark.parametrize(("sharing", "runs"), [(True, 1), (False, 2)])
def test_a_common_operator_runs_once_or_for_each(sharing, runs):
    calls, got = Counter(), Got()
    running = service(
        Supplier("s"),
        python("common", "s", counted(calls, "common")),
        python("left", "common", counted(calls, "left")),
        got.consumer("high", "common", 3),
        got.consumer("low", "left", 1),
        sharing=sharing,
    )
    with running:
        running.push("s", 0)
        assert running.drain(LONG)
        levels = {each.priority for name, each in running.operators.items() if name.startswith("common")}
    assert calls == {"common": runs, "left": 1}
    assert levels == ({3} if sharing else {3, 1})
    assert got.payloads("high") == [1]
    assert got.payloads("low") == [2]


def test_equal_operators_are_found_also_behind_equal_ones():
    nodes = [
        Supplier("s"),
        *(Operator(f"filter{each}", "filter", ("s",), {"low": 0.1}) for each in "ab"),
        Operator("filterc", "filter", ("s",), {"low": 0.2}),
        *(Operator(f"fft{each}", "fft", (f"filter{each}",)) for each in "abc"),
        *(Consumer(each, f"fft{each}") for each in "abc"),
    ]
    found = shared(Graph.of(*nodes))
    assert set(found.graph.operators) == {"filtera", "filterc", "ffta", "fftc"}
    assert found.instead == {"filterb": "filtera", "fftb": "ffta"}
    assert found.graph.consumers["b"].input == "ffta"


EVENTS = """
    event | ts | k | x
    one   | 0  | a | 1
    two   | 1  | a | 5
    three | 2  | b | 2
    four  | 3  | a | 9
"""
PAIR = "SELECT {} FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"
ROWS = [{"k": "a", "x": 1}, {"k": "a", "x": 5}, {"k": "b", "x": 2}, {"k": "a", "x": 9}]


def queries(*selects: str) -> list[LiveQuery]:
    """Queries for the same pattern, over the same knowledge."""
    run = prepare({f"q{n}.chi": PAIR.format(each) for n, each in enumerate(selects)}, {"s": EVENTS})
    made = []
    for plan in run.program.queries:
        one = type(run)(type(run.program)((plan,)), run.catalog, run.knowledge)
        made.append(LiveQuery.of(one))
    return made


@pytest.mark.parametrize("sharing", [True, False])
def test_queries_with_the_same_search_are_one_and_give_the_same_matches(sharing):
    got = Got()
    first, second = queries("?a.x, ?b.x AS y", "?b.x - ?a.x AS rise")
    running = service(
        Supplier("s", type="records"),
        Operator("q0", "query", ("s",), {"query": "q0.chi"}, first),
        Operator("q1", "query", ("s",), {"query": "q1.chi"}, second),
        got.consumer("c0", "q0", 1),
        got.consumer("c1", "q1", 3),
        sharing=sharing,
    )
    assert ("q0+q1" in running.operators) == sharing
    with running:
        for number, row in enumerate(ROWS):
            running.push("s", row, wall=number * S)
        assert running.drain(LONG)
    found = {name: [match.select for each in got.payloads(name) for match in each] for name in ("c0", "c1")}
    assert sorted(found["c0"], key=str) == [{"x": 1, "y": 5}, {"x": 1, "y": 9}, {"x": 5, "y": 9}]
    assert sorted(each["rise"] for each in found["c1"]) == [4, 4, 8]


def test_removing_one_of_them_leaves_the_memory_of_the_other():
    got = Got()
    first, second = queries("?a.x, ?b.x AS y", "?b.x - ?a.x AS rise")
    running = service(
        Supplier("s", type="records"),
        Operator("q0", "query", ("s",), {"query": "q0.chi"}, first),
        Operator("q1", "query", ("s",), {"query": "q1.chi"}, second),
        got.consumer("c0", "q0", 1),
        got.consumer("c1", "q1", 3),
    )
    with running:
        running.push("s", ROWS[0], wall=0)
        assert running.drain(LONG)
        running.remove("c0")
        running.push("s", ROWS[1], wall=S)
        assert running.drain(LONG)
    assert [match.select for each in got.payloads("c1") for match in each] == [{"rise": 4}]
