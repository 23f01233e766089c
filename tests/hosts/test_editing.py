"""An edited query goes on with what it holds where that is sound, and says why where it is not."""

from __future__ import annotations

import random

import pytest
from tests.hosts.letters import S, engine, event

from kaicep.hosts.inprocess import Engine
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan

PAIR = "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) FILTER (?a.x > {}) JOIN (?a.k = ?b.k) SEQ (?a, ?b)"
PAIR += " WINDOW (?a, ?b, {})"
MEAN = "SELECT AVG(?e.x) AS mean FROM (?e, s) FILTER (?e.x > {}) WINDOW (?e, sliding, {})"


def plan_of(text: str) -> ChiPlan:
    (found,) = engine(text)._queries.values()
    return found.plans[0]


def answers(matches: list[Match]) -> list[str]:
    return sorted(str((each.start_us, each.end_us, each.select, each.events)) for each in matches)


RISING = PAIR.format(1, "9s") + " JOIN (?b.x - ?a.x > {})"
THREE = "SELECT ?c.x FROM (?a, s), (?b, s), (?c, s) JOIN (?b.x > ?a.x) JOIN (?c.x > {}) JOIN (?c.x > ?a.x)"
THREE += " SEQ (?a, ?b, ?c) WINDOW (?a, ?b, ?c, {})"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PAIR.format(1, "9s"), PAIR.format(1, "4s")),
        (PAIR.format(1, "9s"), PAIR.format(1, "9s").replace("SELECT ?a.x,", "SELECT")),
        (PAIR.format(1, "9s") + " MATCH next", PAIR.format(1, "9s").replace("?a.x,", "") + " MATCH next"),
        (RISING.format(0), RISING.format(1)),
        (RISING.format(0), RISING.format(0).replace("9s", "4s")),
        (RISING.format(0), RISING.format(0) + " FILTER (?b.x > 2)"),
        (THREE.format(1, "9s"), THREE.format(3, "5s")),
        (MEAN.format(0, "9s"), MEAN.format(0, "9s") + " HAVING (AVG(?e.x) > 2)"),
        (MEAN.format(0, "9s"), MEAN.format(0, "4s")),
    ],
)
def test_what_asks_more_of_the_last_event_goes_on_as_if_it_had_been_there_before(
    before: str, after: str
) -> None:
    chance = random.Random(7)
    events = [event(seq, seq / 2, chance.choice("pq"), chance.randrange(5)) for seq in range(60)]
    edited, always = engine(before), engine(after)
    edited.push(events[:30])
    always.push(events[:30])
    assert edited.edit(plan_of(after)) is None
    wanted = answers(always.push(events[30:]))
    assert len(wanted) > 5
    assert answers(edited.push(events[30:])) == wanted


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (PAIR.format(2, "9s"), PAIR.format(1, "9s"), "lets more events pass"),
        (PAIR.format(1, "9s"), PAIR.format(2, "9s"), "not the last"),
        (PAIR.format(1, "9s"), PAIR.format(1, "9s").replace("?a.x, ", "?a.ts, "), "other values of earlier"),
        (PAIR.format(1, "9s"), PAIR.format(1, "9s") + " JOIN (?b.x > ?a.x)", "other values of earlier"),
        (PAIR.format(1, "4s"), PAIR.format(1, "9s"), "wider than before"),
        (PAIR.format(1, "9s"), PAIR.format(1, "9s") + " MATCH next", "MATCH is another"),
        (PAIR.format(1, "9s") + " MATCH next", PAIR.format(2, "9s") + " MATCH next", "under MATCH next"),
        (RISING.format(1), RISING.format(0), "asks for less"),
        (THREE.format(1, "9s"), THREE.format(1, "9s") + " JOIN (?b.x > ?a.x + 1)", "not the last"),
        (PAIR.format(1, "9s"), MEAN.format(1, "9s"), "was a pattern"),
        (MEAN.format(1, "4"), MEAN.format(1, "5"), "counts"),
        (MEAN.format(1, "4s"), MEAN.format(2, "4s"), "something else"),
        (MEAN.format(1, "4s"), MEAN.format(1, "4s").replace("AVG", "MAX"), "other aggregates"),
        (MEAN.format(1, "4s"), MEAN.format(1, "9s"), "wider"),
    ],
)
def test_what_asks_for_something_else_begins_anew_and_says_why(before: str, after: str, reason: str) -> None:
    running = engine(before)
    running.push([event(seq, seq, "p", 3) for seq in range(5)])
    assert reason in (running.edit(plan_of(after)) or "")
    assert running.size == 0
    later = [event(seq, 100 + seq, "p", 3 + seq) for seq in range(5, 10)]
    fresh = engine(after)
    assert answers(running.push(later)) == answers(fresh.push(later))


def test_a_query_may_be_edited_only_if_it_can_go_on() -> None:
    text, wider, narrower = (PAIR.format(1, width) for width in ("4s", "9s", "2s"))
    edited, untouched = (engine(text) for _ in range(2))
    for running in (edited, untouched):
        running.push([event(seq, seq, "p", 3) for seq in range(5)])
    assert "wider" in (edited.go_on_as(plan_of(wider)) or "")
    later = [event(seq, seq, "p", 3) for seq in range(5, 7)]
    assert [each.to_json() for each in edited.push(later)] == [
        each.to_json() for each in untouched.push(later)
    ]
    assert edited.go_on_as(plan_of(narrower)) is None
    assert {each.start_us for each in edited.push([event(7, 7, "p", 3)])} == {5 * S, 6 * S}


P = "@prefix : <urn:kaicep:> . "
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":level"},
    "entities": {"k": {"property": ":from", "iri": ":{value}"}},
}
IN_LAB = " PATH {{?{0} :from ?f . ?f :in :lab}}"


def knowing(text: str, knowledge: Knowledge) -> Engine:
    return engine(text, knowledge=knowledge, annotations=[ANNOTATION])


def test_a_query_that_asks_the_knowledge_from_now_on_shows_its_version() -> None:
    knowledge = Knowledge.parse(P + ":p :in :lab .")
    before = PAIR.format(1, "9s")
    after = before + IN_LAB.format("b")
    edited, always = (knowing(text, knowledge) for text in (before, after))
    for running in (edited, always):
        running.push([event(0, 0, "p", 2), event(1, 1, "q", 2)])
    assert edited.edit(knowing(after, knowledge)._queries["q0"].plans[0]) is None
    knowledge.update(add=P + ":q :in :lab .")
    later = [event(2, 2, "p", 2), event(3, 3, "q", 2)]
    found, wanted = ([each.to_dict() for each in running.push(later)] for running in (edited, always))
    assert found == wanted
    assert [each["knowledge"] for each in found] == [1, 1]


NARROWER = PAIR.format(1, "9s") + IN_LAB.format("a"), PAIR.format(1, "4s") + IN_LAB.format("a")
OTHER_COLUMNS = NARROWER[0], NARROWER[0].replace("?a.x, ", "")
ABOVE = PAIR.format(1, "9s") + " PATH {?a :level ?l . :limit :value ?v . FILTER (?l >= ?v)}"
ABOVE_LIMIT = ABOVE, ABOVE.replace("?a.x, ", "")  # the limit becomes a constant of the plan
KNOWN = P + ":p :in :lab . :z :in :lab . :limit :value 2 ."


@pytest.mark.parametrize("texts", [NARROWER, OTHER_COLUMNS, ABOVE_LIMIT])
@pytest.mark.parametrize("seen", [False, True])
def test_events_that_were_judged_keep_their_verdict(texts: tuple[str, str], seen: bool) -> None:
    knowledge = Knowledge.parse(KNOWN)
    edited, always = (knowing(text, knowledge) for text in texts)
    for running in (edited, always):
        running.push([event(0, 0, "p", 2)])
    knowledge.update(remove=P + ":p :in :lab . :limit :value 2 .", add=P + ":limit :value 3 .")
    for running in (edited, always) if seen else ():
        running.push([event(1, 1, "q", 2)])
    assert edited.edit(knowing(texts[1], knowledge)._queries["q0"].plans[0]) is None
    found, wanted = (
        [each.to_dict() for each in running.push([event(2, 2, "p", 2)])] for running in (edited, always)
    )
    assert found == wanted
    assert len(found) == 1


def test_the_others_are_untouched() -> None:
    running = engine(PAIR.format(1, "9s"), MEAN.format(0, "9s"))
    alone = engine(PAIR.format(1, "9s"), MEAN.format(0, "9s"))
    events = [event(seq, seq, "p", seq % 5) for seq in range(20)]

    def of_q1(pushed: Engine, some: list[Event]) -> list[str]:
        return answers([each for each in pushed.push(some) if each.query == "q1"])

    assert of_q1(running, events[:10]) == of_q1(alone, events[:10])
    running.edit(plan_of(PAIR.format(3, "9s")))
    assert of_q1(running, events[10:]) == of_q1(alone, events[10:])
