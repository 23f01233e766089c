"""The engine: matches as early as they are certain, state that goes, queries and knowledge that change."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.hosts.letters import S, ends, engine, event

import kaicep as kai
from kaicep import testing
from kaicep.errors import Failure, Mistake
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.kernel.operator import Limits
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match

PAIR = "SELECT ?a.k FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 5min)"
SILENT = "SELECT ?a.k FROM (?a, s), (?n, s) JOIN (?a.k = ?n.k) SEQ (?a, !?n) WINDOW (?a, ?n, 10s)"


# --- as soon as it is certain ------------------------------------------------------------------------------


def test_one_stream_in_order_answers_at_the_moment_of_the_last_event():
    running = engine(PAIR)
    assert running.push([event(0, 0, "p")]) == []
    assert ends(running.push([event(1, 1, "p")])) == [1]
    assert ends(running.push([event(2, 2, "p")])) == [2, 2]


@pytest.mark.parametrize("skip", ["NO SKIP", "SKIP TO NEXT", "SKIP PAST LAST", "SKIP TO LAST ?b"])
@pytest.mark.parametrize("match", ["any", "next", "strict"])
def test_no_strategy_and_no_skipping_delays_a_match(match, skip):
    running = engine(f"{PAIR} MATCH {match} AFTER MATCH {skip}")
    running.push([event(0, 0, "p")])
    assert ends(running.push([event(1, 1, "p")])) == [1]


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ("{ ?e v:x ?n } SEQ { ?f v:x ?m } FILTER (?m > ?n)", [0, 1, 1, 1]),
        ("{ ?e v:x ?n OPTIONAL { ?e v:y ?m } }", [0, 1, 0, 2]),
    ],
)
def test_triples_answer_at_the_moment_of_the_last_one_where_nothing_can_change_that(where, counts):
    annotation = {"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"x": "v:x"}}
    query = kai.compile(
        f"PREFIX v: <urn:v:> SELECT ?n ?m WHERE {{ {where} }}",
        language="EP-SPARQL",
        streams={"s": {"x": "int64", "ts": "timestamp"}},
        annotations=[annotation],
    )
    running = kai.Engine(query, lateness="0s")
    events = [{"ts": ts, "x": x} for ts, x in ((0, 1), (1, 3), (1, 4), (2, 2))]
    assert [len(running.push(each)) for each in events] == counts
    running.finish()


def test_a_sliding_window_answers_at_once_and_a_batch_when_its_end_is_reached():
    running = engine(
        "SELECT COUNT(?e) AS n WINDOW (?e, sliding, 3s)", "SELECT COUNT(?e) AS n WINDOW (?e, batch, 3s)"
    )
    assert ends(running.push([event(0, 1)])) == [1]
    assert ends(running.push([event(1, 2)])) == [2]
    assert ends(running.push([event(2, 3)])) == [3, 3]  # what comes at 3 is in the next batch


def test_a_trailing_absence_fires_on_a_silent_key_when_time_has_passed_its_deadline():
    running = engine(SILENT)
    running.push([event(0, 0, "p")])
    assert running.push([event(1, 10, "q")]) == []  # the deadline is inside
    assert ends(running.push([event(2, 10.000001, "q")])) == [10]


def test_time_may_be_told_without_an_event():
    running = engine(SILENT)
    running.push([event(0, 0, "p")])
    assert running.advance(10 * S) == []
    assert ends(running.advance(11 * S)) == [10]


def test_what_skipping_holds_back_comes_when_the_match_before_it_falls():
    # ?a alone waits until 10 for no ?n; if it stands, it rules out ?a with ?b, which has the same ?a
    running = engine(
        """SELECT ?a.x, ?b.x AS y FROM (?a, s), (?b, s), (?n, s)
        FILTER (?a.k = 'a') FILTER (?b.k = 'b') FILTER (?n.k = 'n')
        SEQ (?a, !?n, ?b?) WINDOW (?a, ?b, ?n, 10s) AFTER MATCH SKIP PAST LAST"""
    )
    assert running.push([event(0, 0, "a", 1), event(1, 1, "b", 2)]) == []
    assert [each.select for each in running.push([event(2, 2, "n")])] == [{"x": 1, "y": [2]}]
    assert running.push([event(3, 20, "a", 3), event(4, 21, "b", 4)]) == []
    assert [each.select for each in running.finish()] == [{"x": 3, "y": []}]


def test_a_match_is_told_once_to_whoever_listens():
    heard = []
    running = engine(PAIR, on_match=heard.append)
    found = running.push([event(0, 0, "p"), event(1, 1, "p")])
    assert heard == found
    running.finish()
    assert heard == found


# --- order and lateness ------------------------------------------------------------------------------------


def test_a_late_event_is_shown_and_used_by_no_match():
    running = engine(PAIR, lateness=2 * S)
    running.push([event(0, 10, "p"), event(1, 7, "p"), event(2, 8, "p")])
    assert [(each.seq, each.late) for each in running.late] == [(1, True)]
    assert [each.start_us for each in running.finish()] == [8 * S]


def test_a_part_that_was_idle_is_late_with_what_the_others_went_past():
    running = engine("SELECT ?e.x", settings=Settings(parts={"s": (0, 1)}))
    assert running.push([event(0, 5, x=1)]) == []
    assert ends(running.idle("s", 1)) == [5]
    assert running.push([event(0, 4, x=2, part=1)]) == []
    assert [each.part for each in running.late] == [1]
    assert ends(running.push([event(1, 6, x=3, part=1)])) == []  # part 0 may still send 5
    assert ends(running.push([event(1, 7, x=4)])) == [6]


# --- one query reads another -------------------------------------------------------------------------------


def test_the_output_of_a_query_is_read_in_the_same_pass():
    running = engine(
        "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 1)",
        "SELECT ?u.x, ?v.x AS y FROM (?u, q0), (?v, q0) SEQ (?u, ?v)",
    )
    running.push([event(0, 1, x=5)])
    assert [each.query for each in running.push([event(1, 2, x=6)])] == ["q0"]
    # only now is it certain that no other match of q0 ends at 2 and comes before
    assert [each.select for each in running.push([event(2, 3, x=0)])] == [{"x": 5, "y": 6}]


def test_what_only_a_deadline_found_is_read_too():
    running = engine(SILENT, "SELECT COUNT(?u) AS n FROM (?u, q0) WINDOW (?u, batch, 20s)")
    running.push([event(0, 0, "p"), event(1, 1, "q")])
    found = running.push([event(2, 30, "r")])
    assert [(each.query, each.end_us // S) for each in found] == [("q0", 10), ("q0", 11), ("q1", 20)]


# --- state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        PAIR,
        PAIR.replace("JOIN (?a.k = ?b.k)", "") + " PARTITION BY ?a.k MATCH next",
        PAIR.replace("JOIN (?a.k = ?b.k)", "") + " PARTITION BY ?a.k MATCH strict AFTER MATCH SKIP PAST LAST",
        PAIR.replace("?b)", "?b+)").replace("FROM", ", COUNT(?b) AS n FROM"),
        SILENT,
        SILENT.replace("JOIN (?a.k = ?n.k)", "") + " PARTITION BY ?a.k AFTER MATCH SKIP TO NEXT",
        (
            "SELECT ?a.k FROM (?a, s), (?n, s), (?b, s) JOIN (?a.k = ?b.k) JOIN (?a.k = ?n.k)"
            " FILTER (?n.x > 1) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 5min)"
        ),
        "SELECT SUM(?e.x) AS n WINDOW (?e, sliding, 5min) PARTITION BY ?e.k",
        "SELECT SUM(?e.x) AS n WINDOW (?e, batch, 5min) PARTITION BY ?e.k",
    ],
)
def test_keys_that_come_once_leave_nothing_behind(query):
    running = engine(query)
    sizes = []
    largest = 0
    for number in range(1, 3_001):
        running.push([event(number, number, f"k{number}", 2)])
        largest = max(largest, running.size)
        if number % 1_000 == 0:
            sizes.append(len(running.snapshot()))
    assert 0 < largest < 1000  # 300 s fit into a window
    assert sizes[2] < 1.1 * sizes[0]  # a key leaves nothing; names get a digit longer
    running.advance((3_000 + 400) * S)
    assert running.size == 0


def test_too_much_state_is_refused_with_what_to_write_instead():
    running = engine(
        "SELECT ?a.k FROM (?a, s), (?b, s) SEQ (?a, ?b+)", settings=Settings(limits=Limits(held=100))
    )
    with pytest.raises(Failure, match=r"q0 .* WINDOW"):
        running.push([event(number, number) for number in range(50)])


def test_saved_state_is_the_same_however_the_events_came_in_batches():
    texts = PAIR + " MATCH next", SILENT, "SELECT AVG(?e.x) AS mean WINDOW (?e, sliding, 5s) GROUP BY ?e.k"
    events = [event(number, number / 2, "pqr"[number % 3], number) for number in range(40)]
    whole, single = engine(*texts), engine(*texts)
    whole.push(events)
    for each in events:
        single.push([each])
    assert whole.snapshot() == single.snapshot()


def test_saved_state_of_something_else_is_refused():
    saved = engine(PAIR).snapshot()
    with pytest.raises(Failure, match="another text of q0"):
        engine(SILENT).restore(saved)
    with pytest.raises(Failure, match="not a saved state"):
        engine(PAIR).restore(b"\x80\x04nonsense")
    with pytest.raises(Failure, match="format 99"):
        engine(PAIR).restore(saved.replace(b'"version":4', b'"version":99', 1))


# --- queries come and go -----------------------------------------------------------------------------------


def test_a_query_that_is_added_sees_what_comes_and_leaves_the_others_alone():
    running, other = engine(PAIR), engine("SELECT ?e.x", PAIR)
    added = other._queries["q0"].plans[0]
    running.push([event(0, 0, "p")])
    running.unregister("q0")
    running.register(other._queries["q1"].plans[0])
    running.register(added, other.catalog)
    assert running.queries == ("q1", "q0")
    assert [each.query for each in running.push([event(1, 1, "p", 7)])] == ["q0"]
    assert sorted(each.query for each in running.push([event(2, 2, "p", 8)])) == ["q0", "q1"]
    with pytest.raises(Mistake, match="registered already"):
        running.register(added)


def test_a_query_that_is_read_stays():
    running = engine("SELECT ?e.x FROM (?e, s)", "SELECT ?u.x FROM (?u, q0)")
    with pytest.raises(Mistake, match="read by q1"):
        running.unregister("q0")
    running.unregister("q1")
    running.unregister("q0")
    assert running.push([event(0, 1)]) == []


# --- knowledge changes -------------------------------------------------------------------------------------

CAMPUS = """
    @prefix : <urn:kaicep:> .
    :p :in :lab . :q :in :office . :lab a :Lab . :office a :Office . :limit :value 5 .
"""
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":level"},
    "entities": {"k": {"property": ":from", "iri": ":{value}"}},
}
P = "@prefix : <urn:kaicep:> . "


def test_a_sensor_moves_and_a_constant_changes_while_a_query_runs():
    knowledge = Knowledge.parse(CAMPUS)
    running = engine(
        """SELECT ?a.k, ?a.x, ?b.x AS y FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) MATCH next
        WINDOW (?a, ?b, 1min)
        PATH {?a :from ?f . ?f :in ?r . ?r a :Lab . ?a :level ?l . :limit :value ?v . FILTER (?l > ?v)}""",
        "SELECT ?e.k, ?r PATH {?e :from ?f . ?f :in ?r}",
        knowledge=knowledge,
        annotations=[ANNOTATION],
    )

    def pushed(*events):
        found = running.push(events)
        return sorted((each.query, *each.select.values(), each.to_dict().get("knowledge")) for each in found)

    lab, office = "urn:kaicep:lab", "urn:kaicep:office"
    assert pushed(event(0, 0, "p", 6), event(1, 0, "q", 6)) == [
        ("q1", "p", lab, None),
        ("q1", "q", office, None),
    ]
    knowledge.update(add=P + ":p :in :office . :q :in :lab .", remove=P + ":p :in :lab . :q :in :office .")
    # p was judged in the lab and still is: the match began there, and says under what it ended
    assert pushed(event(2, 1, "p", 7)) == [("q0", "p", 6, 7, 1), ("q1", "p", office, 1)]
    # q was not in the lab when it reported 6; now it is
    assert pushed(event(3, 2, "q", 6)) == [("q1", "q", lab, 1)]
    assert pushed(event(4, 3, "q", 1)) == [("q0", "q", 6, 1, 1), ("q1", "q", lab, 1)]
    knowledge.update(add=P + ":limit :value 8 .", remove=P + ":limit :value 5 .")
    assert pushed(event(5, 4, "q", 7), event(6, 5, "q", 9)) == [("q1", "q", lab, 2), ("q1", "q", lab, 2)]
    assert pushed(event(7, 6, "q", 0)) == [("q0", "q", 9, 0, 2), ("q1", "q", lab, 2)]
    # without the constant nothing can be compared; the query goes on, and recovers when it is back
    knowledge.update(remove=P + ":limit :value 8 .")
    assert pushed(event(8, 7, "q", 9), event(9, 8, "q", 9)) == [("q1", "q", lab, 3), ("q1", "q", lab, 3)]
    knowledge.update(add=P + ":limit :value 8 .")
    assert pushed(event(10, 9, "q", 9), event(11, 10, "q", 0))[-1] == ("q1", "q", lab, 4)
    assert running.finish() == []


def test_partial_matches_live_through_a_change_of_the_plan():
    knowledge = Knowledge.parse(CAMPUS)
    texts = [
        """SELECT SUM(?b.x) AS total FROM (?a, s), (?b, s) SEQ (?a, ?b{2}) WINDOW (?a, ?b, 1min)
        PATH {?a :level ?l . :limit :value ?v . FILTER (?l > ?v)}""",
        (
            "SELECT SUM(?e.x) AS total WINDOW (?e, batch, 10s)"
            " PATH {?e :level ?l . :limit :value ?v . FILTER (?l > ?v)}"
        ),
    ]
    running = engine(*texts, knowledge=knowledge, annotations=[ANNOTATION])
    running.push([event(0, 0, "p", 6), event(1, 1, "p", 1)])
    knowledge.update(add=P + ":limit :value 100 .", remove=P + ":limit :value 5 .")
    found = running.push([event(2, 2, "p", 50), event(3, 10, "p", 3)])
    assert sorted((each.query, each.select["total"]) for each in found) == [
        ("q0", 4),
        ("q0", 51),
        ("q0", 53),
        ("q1", 6),
    ]


def test_a_state_without_anything_absent_is_saved_as_it_is_restored():
    query = (
        "SELECT ?b.x FROM (?a, s), (?b, s), (?c, s), (?d, s) FILTER (?a.x > 1) FILTER (!(?d.y < 1))"
        " WINDOW (?a, 0s) SEQ ((?a | ?c), !?d, ?b) PARTITION BY ?a.k AFTER MATCH SKIP TO NEXT"
    )
    run = testing.prepare(query, "ts | x | y | k\n 0 | 0 | 5 | p\n 1 | 0 | 5 | p\n 2 | 0 | | p")
    events = [event for batch in run.batches for event in batch]
    engine = Engine(run, lateness=0)
    engine.push(events)
    saved = engine.snapshot()
    again = Engine(run, lateness=0)
    again.restore(saved)
    assert again.snapshot() == saved


POINTS = "@prefix : <urn:kaicep:> . :p a :Point . :q a :Point . :r a :Point ."
SILENT_POINTS = "SELECT ?p FROM ABSENT (?e, s) WINDOW (?e, batch, 10s) PATH {?e :from ?p . ?p a :Point}"


def _silent_points(*events: str) -> tuple[Engine, list[Event], Knowledge]:
    run = testing.prepare(
        {"silent.chi": SILENT_POINTS},
        "ts | id\n" + "\n".join(events),
        knowledge=POINTS,
        annotations=[
            {
                "stream": "s",
                "prefixes": {"": "urn:kaicep:"},
                "entities": {"id": {"property": ":from", "iri": ":{value}"}},
            }
        ],
    )
    return Engine(run, lateness=0), [each for batch in run.batches for each in batch], run.knowledge


def _absent(matches: Iterable[Match]) -> list[tuple[int, str]]:
    return sorted((each.end_us // 1_000_000, each.select["p"][-1]) for each in matches)


def test_what_is_absent_is_reported_when_its_window_is_over_also_after_a_restart() -> None:
    running, (p, q, later), _ = _silent_points("1 | p", "2 | q", "25 | p")
    assert _absent(running.push([p])) == []
    saved = running.snapshot()
    again, _, _ = _silent_points("1 | p", "2 | q", "25 | p")
    again.restore(saved)
    assert again.snapshot() == saved
    assert _absent(again.push([q])) == []
    assert _absent(again.push([later])) == [(10, "r"), (20, "p"), (20, "q"), (20, "r")]
    assert _absent(again.finish()) == [(30, "q"), (30, "r")]


def test_a_state_of_different_values_is_the_same_however_they_came():
    text = "SELECT COUNT(DISTINCT ?e.k) AS n FROM (?e, s) WINDOW (?e, sliding, 1h)"
    running = engine(text)
    running.push([event(seq, seq, k) for seq, k in enumerate("qpzaymbxc")])
    again = engine(text)
    again.restore(running.snapshot())
    assert again.snapshot() == running.snapshot()


def test_a_point_that_comes_into_the_model_is_expected_from_then_on() -> None:
    running, (p, q, r, later), knowledge = _silent_points("1 | p", "2 | q", "3 | r", "15 | p")
    running.push([p, q, r])
    knowledge.update(add=P + ":new a :Point .", remove=P + ":q a :Point .")
    (match,) = running.push([later])
    assert (match.select, match.version) == ({"p": "urn:kaicep:new"}, 1)
    assert _absent(running.finish()) == [(20, "r"), (20, "w")]


def test_a_time_that_is_far_off_does_not_make_windows_without_end() -> None:
    running, (p, later), _ = _silent_points("1 | p", "2000000 | p")
    running.push([p])
    with pytest.raises(Failure, match=r"silent: 199,9\d\d windows lie between two events"):
        running.push([later])


def test_a_pattern_may_shed_what_is_oldest_instead_of_giving_up() -> None:
    limits = Limits(held=20, shed=True)
    running = engine(
        "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) FILTER (?b.k = 'end')",
        lateness=0,
        settings=Settings(limits=limits),
    )
    for seq in range(100):
        assert running.push([event(seq, seq, "p", seq)]) == []
        assert running.size <= 20
    assert running.shed == {"q0": 100 - running.size}
    found = running.push([event(100, 100, "end", 0)])
    newest = {each.select["x"] for each in found}
    assert newest == set(range(100 - len(newest), 100))


def test_bytes_are_a_limit_too() -> None:
    running = engine(
        "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) FILTER (?b.k = 'end')",
        lateness=0,
        settings=Settings(limits=Limits(bytes=10_000)),
    )
    with pytest.raises(Failure, match="WINDOW"):
        running.push([event(seq, seq, "p", seq) for seq in range(100)])


def test_values_that_name_nothing_are_counted_as_often_as_they_come() -> None:
    knowledge = Knowledge.parse("@prefix v: <urn:v:> . v:p a v:Hot . v:q a v:Hot .")
    annotation = {
        "stream": "s",
        "prefixes": {"v": "urn:v:"},
        "entities": {"k": {"property": "v:of", "iri": "v:{value}"}},
    }
    query = kai.compile(
        "SELECT ?a.x FROM (?a, s) PATH {?a v:of ?o . ?o a v:Hot}",
        knowledge=knowledge,
        streams={"s": {"k": "string", "x": "int64"}},
        annotations=[annotation],
    )
    unknown = UnknownEntities()
    made = Engine(query, lateness=0, unknown=unknown)
    keys = ["p", "zz", None, "q", "yy", "zz", None, "p"] * 9
    events = [Event("s", 0, at, at, {"ts": at, "k": key, "x": at}) for at, key in enumerate(keys)]
    found = [*made.push(events[:30]), *made.push(events[30:]), *made.finish()]
    assert len(found) == 27
    assert unknown.counts == {("s.k", "zz"): 18, ("s.k", "yy"): 9}
