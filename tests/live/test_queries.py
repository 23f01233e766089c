"""Queries as operators find what they find anywhere else, and let others go first between batches."""

from __future__ import annotations

import threading

from tests.hosts.letters import S
from tests.live.harness import LONG, Got, python, service

from kaicep.live.graph import Operator, Supplier
from kaicep.live.sharing import CLOCK, LiveQuery, rows_of
from kaicep.testing import prepare

EVENTS = """
    event | ts | k | x
    one   | 0  | a | 1
    two   | 1  | a | 5
    three | 2  | b | 2
    four  | 3  | a | 9
"""
ROWS = [
    {"ts": 0, "k": "a", "x": 1},
    {"ts": 1, "k": "a", "x": 5},
    {"ts": 2, "k": "b", "x": 2},
    {"ts": 3, "k": "a", "x": 9},
]
PAIR = "SELECT ?a.x, ?b.x AS y FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"


def compiled(text: str, name: str = "q.chi", batch: int = 64) -> LiveQuery:
    return LiveQuery.of(prepare({name: text}, {"s": EVENTS}), batch=batch)


def found(got: Got) -> list[str]:
    return [match.to_json() for each in got.payloads("c") for match in each]


def test_the_matches_are_those_of_the_query_alone():
    got = Got()
    running = service(
        Supplier("s", type="records"),
        Operator("q", "query", ("s",), {"query": "q.chi"}, compiled(PAIR)),
        got.consumer("c", "q"),
    )
    with running:
        for row in ROWS:
            running.push("s", row)
        assert running.drain(LONG)
    alone = prepare({"q.chi": PAIR}, {"s": EVENTS}).matches()
    assert found(got) == [each.to_json() for each in alone]
    assert len(alone) == 3


def test_many_records_in_one_event_give_the_same():
    got = Got()
    running = service(
        Supplier("s", type="records"),
        Operator("q", "query", ("s",), {"query": "q.chi"}, compiled(PAIR, batch=2)),
        got.consumer("c", "q"),
    )
    with running:
        running.push("s", ROWS)
        assert running.drain(LONG)
    assert found(got) == [each.to_json() for each in prepare({"q.chi": PAIR}, {"s": EVENTS}).matches()]


def test_ep_sparql_is_an_operator_too():
    text = "PREFIX : <urn:> SELECT ?truck { ?truck :at :depot } SEQ { ?truck :at :harbour }"
    triples = """
        event | triple                         | start
        one   | <urn:t> <urn:at> <urn:depot>   | 0
        two   | <urn:t> <urn:at> <urn:harbour> | 5
    """
    run = prepare({"q.epsparql": text}, {"s": triples})
    query = LiveQuery.of(run)
    assert query.search is None  # EP-SPARQL queries are together already, in one engine
    got = Got()
    running = service(
        Supplier("s", type="records"),
        Supplier(CLOCK, type="any"),
        Operator("q", "query", ("s", CLOCK), {"query": "q.epsparql"}, query),
        got.consumer("c", "q"),
    )
    with running:
        for event in run.data[0].events:
            running.push("s", event)
        running.push(CLOCK, None, wall=6 * S)  # what else might end at 5 would have come by now
        assert running.drain(LONG)
    assert found(got) == [each.to_json() for each in run.matches()] != []


def test_what_is_urgent_goes_between_two_batches_of_a_query():
    started, pushed, order = threading.Event(), threading.Event(), []
    got = Got()

    class Rows(list):
        """Records that are taken one by one, and tell when."""

        def __iter__(self):
            for number, row in enumerate(super().__iter__()):
                yield row
                if number == 0:
                    started.set()
                    assert pushed.wait(LONG)

    running = service(
        Supplier("s", type="records"),
        Supplier("t"),
        Operator("q", "query", ("s",), {"query": "q.chi"}, compiled(PAIR, batch=1)),
        python("urgent", "t", lambda each: order.append("urgent") or each),
        python("after", "q", lambda each: order.append("query") or each),
        got.consumer("c", "after", 1),
        got.consumer("d", "urgent", 3),
        cores=1,
    )
    with running:
        running.push("s", Rows(ROWS))
        assert started.wait(LONG)
        running.push("t", 1)
        pushed.set()
        assert running.drain(LONG)
    assert order == ["urgent", "query", "query"]


def test_a_clock_lets_an_absence_fire_on_a_silent_stream():
    got = Got()
    silent = "SELECT ?a.k FROM (?a, s), (?n, s) JOIN (?a.k = ?n.k) SEQ (?a, !?n) WINDOW (?a, ?n, 10s)"
    running = service(
        Supplier("s", type="records"),
        Supplier(CLOCK, type="any"),
        Operator("q", "query", ("s", CLOCK), {"query": "q.chi"}, compiled(silent)),
        got.consumer("c", "q"),
    )
    with running:
        running.push("s", {"k": "a"}, wall=0)
        running.push(CLOCK, None, wall=10 * S)
        assert running.drain(LONG)
        assert found(got) == []
        running.push(CLOCK, None, wall=11 * S)
        assert running.drain(LONG)
    assert [match.select for each in got.payloads("c") for match in each] == [{"k": "a"}]


def test_a_table_of_arrow_is_rows():
    import pyarrow as pa

    assert list(rows_of(pa.table({"x": [1, 2]}))) == [{"x": 1}, {"x": 2}]
