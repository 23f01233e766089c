"""Graphs from files and from Python: what they say, and how what is wrong with them is told."""

from __future__ import annotations

import re

import pytest

from kaicep.errors import Mistake, SourceText
from kaicep.live.graph import (
    Consumer,
    Graph,
    Operator,
    Supplier,
    as_dot,
    as_text,
    consumer,
    load_graph,
    operator,
    parse_rows,
    parse_toml,
    supplier,
)

GOOD = """\
name = "car"
outdated = "mark"
cores = 3

[[supplier]]
name = "radar"
validity = "10ms"
period = "4ms"

[[operator]]
name = "track"
kind = "EKF"
inputs = ["radar"]
measurement = 2

[[operator]]
name = "spectrum"
kind = "fft"
inputs = ["track"]

[[consumer]]
name = "airbag"
input = "track"
priority = "high"

[[consumer]]
name = "screen"
input = "spectrum"
priority = 1
"""

FIGURE1 = """\
# kind, number of followers, their numbers, and a priority where a consumer gets the events
EKF 3 5 6 7
EKF 2 3 6
EKF 1 7
EKF 1 7
EKF 1 7 high
CAT 0 middle
CAT 0 low
"""


def test_a_graph_in_toml():
    graph = parse_toml(SourceText("car.toml", GOOD))
    assert (graph.name, graph.discard, graph.cores) == ("car", False, 3)
    assert graph.suppliers["radar"] == Supplier("radar", 10_000, 4_000)
    assert graph.operators["track"] == Operator("track", "ekf", ("radar",), {"measurement": 2})
    assert graph.consumers["airbag"] == Consumer("airbag", "track", 3)
    assert graph.capacity("spectrum") == 3
    assert graph.types() == {"radar": "samples", "track": "samples", "spectrum": "spectrum"}


def test_figure_1_of_the_paper_has_three_groups():
    graph = parse_rows(SourceText("figure1.rows", FIGURE1))
    groups: dict[int, set[str]] = {}
    for name, priority in graph.priorities().items():
        if name in graph.operators:
            groups.setdefault(priority, set()).add(name)
    assert groups == {3: {"o1", "o5"}, 2: {"o2", "o6"}, 1: {"o3", "o4", "o7"}}
    # A supplier's event has the highest priority of the operators that use it.
    assert [graph.priorities()[each] for each in graph.suppliers] == [3, 2, 1]


def test_the_same_graph_from_python_and_from_toml():
    radar = supplier("radar", validity="10ms", period="4ms")

    @operator(radar)
    def louder(samples):
        return samples * 2

    @consumer(louder, priority="high")
    def airbag(delivery):
        pass

    graph = Graph.of(radar, louder, airbag)
    assert graph.priorities() == {"radar": 3, "louder": 3, "airbag": 3}
    assert graph.operators["louder"].function(3) == 6


@pytest.mark.parametrize(
    ("old", "new", "message", "place", "hint"),
    [
        ('"fft"', '"fftt"', "no kind of operator is named fftt", "18:1", "did you mean fft?"),
        ('inputs = ["track"]', 'inputs = ["trak"]', "reads trak, which does not exist", "19:1", "track"),
        ('inputs = ["track"]', "inputs = []", "spectrum has no inputs", "19:1", 'inputs = ["radar"]'),
        (
            'inputs = ["radar"]',
            'inputs = ["spectrum"]',
            "form a circle: track -> spectrum -> track",
            "13:1",
            "",
        ),
        ('inputs = ["track"]', 'inputs = ["airbag"]', "is a consumer, which gives no events", "19:1", ""),
        ('kind = "EKF"', 'kind = "fft"', "fft has no setting measurement", "14:1", ""),
        ("measurement = 2", "measurment = 2", "ekf has no setting measurment", "14:1", "measurement"),
        ("measurement = 2", 'measurement = "2"', "measurement must be a number", "14:1", ""),
        ("measurement = 2", "measurement = -1", "measurement must be above 0", "14:1", ""),
        ('validity = "10ms"', "validity = 10", "validity is not a duration", "7:1", '"10ms"'),
        ('validity = "10ms"', 'valid = "10ms"', "a supplier has no valid", "7:1", "validity"),
        ('priority = "high"', 'priority = "hihg"', "'hihg' is not a priority", "24:1", "high"),
        ('name = "spectrum"', 'name = "track"', "two nodes are named track", "17:1", ""),
        ('name = "radar"', "", "this supplier has no name", "5:1", ""),
        ("cores = 3", "cores = 0", "cores is a whole number above 0", "3:1", ""),
        ('outdated = "mark"', 'outdated = "drop"', "outdated is mark or discard", "2:1", ""),
        ("[[operator]]", "[[oprator]]", "a graph has no oprator", "10:3", "operator"),
        ("cores = 3", "cores = ", "this is not TOML", "3:9", ""),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(old, new, message, place, hint):
    with pytest.raises(Mistake) as caught:
        parse_toml(SourceText("car.toml", GOOD.replace(old, new, 1)))
    said = str(caught.value)
    assert message in said
    assert f"car.toml:{place}" in said
    assert hint in said


def test_types_must_fit():
    wrong = GOOD.replace(
        'kind = "EKF"\ninputs = ["radar"]\nmeasurement = 2', 'kind = "fft"\ninputs = ["radar"]'
    )
    with pytest.raises(Mistake, match="spectrum reads samples, and track gives spectrum"):
        parse_toml(SourceText("car.toml", wrong))
    nodes = [Supplier("a"), Supplier("b", type="bytes"), Operator("c", "cat", ("a", "b"))]
    with pytest.raises(Mistake, match="joins bytes and samples, which differ"):
        Graph.of(*nodes)


def test_all_mistakes_are_told_at_once():
    text = GOOD.replace('"fft"', '"fftt"').replace("measurement = 2", "measurment = 2")
    with pytest.raises(Mistake) as caught:
        parse_toml(SourceText("car.toml", text))
    assert len(caught.value.diagnostics) == 2


def test_rows_may_state_a_supplier_that_operators_share():
    graph = parse_rows(SourceText("g.rows", "SUPPLIER 2 2 3 10ms 5ms\nEKF 1 3\nCAT 0 high\nFFT 0 low\n"))
    (shared, own) = graph.suppliers.values()
    assert (shared.name, shared.validity, shared.period) == ("s1", 10_000, 5_000)
    assert (own.name, own.validity) == ("s2", None)
    assert [each.inputs for each in graph.operators.values()] == [("s1",), ("s1", "o2"), ("s2",)]


def test_operators_have_a_queue_and_may_be_parallel():
    text = GOOD.replace('kind = "fft"', 'kind = "fft"\nqueue = 8\nparallel = true')
    (made,) = [
        each for each in parse_toml(SourceText("car.toml", text)).operators.values() if each.kind == "fft"
    ]
    assert (made.queue, made.parallel) == (8, True)
    for wrong in ("queue = 0", 'parallel = "yes"'):
        with pytest.raises(Mistake, match=wrong.split()[0]):
            parse_toml(SourceText("car.toml", GOOD.replace('kind = "fft"', f'kind = "fft"\n{wrong}')))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("EKF", "a row is a kind"),
        ("EKF 2 1", "2 followers are announced"),
        ("EKF 1 9", "no operator has the number 9"),
        ("EKF 0 urgent", "'urgent' is not a priority"),
        ("EKFF 0 high", "no kind of operator is named ekff"),
        ("EKF 1 1", "form a circle"),
        ("EKF 0 high 3", "after the followers comes a priority, and there are 2 words"),
        ("SUPPLIER 1 2 soon\nEKF 0 high", "soon is not a duration"),
        ("SUPPLIER 1 2 10ms 5ms 1\nEKF 0 high", "a validity and a period, and nothing after them"),
        ("SUPPLIER 1 2\nSUPPLIER 1 3\nEKF 0 high", "a supplier follows nothing"),
        ("SUPPLIER 0", "there is no operator in this graph"),
    ],
)
def test_wrong_rows(row, message):
    with pytest.raises(Mistake, match=re.escape(message)):
        parse_rows(SourceText("g.rows", f"# a comment\n{row}\n"))


def test_a_key_never_stands_in_a_graph():
    with pytest.raises(Mistake, match="aes has no setting key"):
        Graph.of(Supplier("s"), Operator("o", "aes", ("s",), {"key": "00" * 16}))


def test_files(tmp_path):
    (tmp_path / "car.toml").write_text(GOOD, "utf-8")
    (tmp_path / "figure1.rows").write_text(FIGURE1, "utf-8")
    assert load_graph(tmp_path / "car.toml").name == "car"
    assert len(load_graph(tmp_path / "figure1.rows").operators) == 7
    with pytest.raises(Mistake, match="cannot read the graph"):
        load_graph(tmp_path / "no.toml")


def test_it_is_drawn():
    graph = parse_toml(SourceText("car.toml", GOOD))
    assert "level 1 (high)" in as_text(graph)
    assert re.search(r"track .* -> airbag, spectrum\*", as_text(graph))
    assert '"track" -> "spectrum" [style=dashed];' in as_dot(graph)
