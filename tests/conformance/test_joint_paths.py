"""A PATH about several events: they are found by what ties them, and every host finds the same ones."""

from __future__ import annotations

import pytest
from tests.hosts.letters import engine, event

from kaicep import testing
from kaicep.hosts.inprocess import Engine
from kaicep.kernel.shape import Roots
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize

ANNOTATION = {
    "stream": "s",
    "class": ":Reading",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":value"},
    "entities": {"k": {"property": ":of", "iri": ":{value}"}},
}
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :h1 a :Heating ; :part :u1 . :c1 a :Cooling ; :part :u1 . :h2 a :Heating ; :part :u2 .
    :c2 a :Cooling ; :part :u2 . :f a :Fan ; :part :ahu . :ahu :feeds :box . :box :feeds :u1 .
    :u1 :maximum 3 .
    :u2 :maximum 9 . :t a :Thermometer .
"""
EVENTS = """
    event | ts | k  | x
    a     | 0  | h1 | 5
    b     | 1  | c2 | 6
    c     | 2  | c1 | 7
    d     | 3  | h2 | 8
    e     | 4  | f  | 1
    f     | 5  | t  | 2
    g     | 6  | c1 | 2
"""
PAIR = "?h :of ?p . ?p a :Heating ; :part ?u . ?c :of ?q . ?q a :Cooling ; :part ?u"
CASES = {
    "a sequence": (f"SELECT ?u FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c)", "a c | a g"),
    "in any order": (f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}}", "a c | a g | d b"),
    "next": (f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c) MATCH next", "a c"),
    "strict": (f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c) MATCH strict", ""),
    "a value of the PATH": (
        f"SELECT ?h.x FROM (?h, s), (?c, s) FILTER (?c.x < ?m) PATH {{{PAIR} . ?u :maximum ?m}}",
        "a g | d b",
    ),
    "an absence": (
        f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, !?c) WINDOW (?h, ?c, 2s)",
        "b | c | d | e | f | g",
    ),
    "the last one": (f"SELECT ?h.x FROM (?h, s), LATEST (?c, s) PATH {{{PAIR}}}", "d b"),
    "two and the last one": (
        f"SELECT ?h.x FROM (?h, s), (?d, s), LATEST (?c, s) PATH {{{PAIR} . ?d :of ?r . ?r :part ?u}}",
        "a c g",
    ),
    "upstream": (
        (
            "SELECT ?h.x FROM (?h, s), (?c, s) SEQ (?h, ?c)"
            " PATH {?h :of ?p . ?p a :Heating ; :part ?u . ?c :of ?q . ?q a :Fan ; :part ?a . ?a :feeds+ ?u}"
        ),
        "a e",
    ),
    "three": (
        (
            "SELECT ?h.x FROM (?h, s), (?c, s), (?d, s) SEQ (?h, ?c, ?d)"
            " PATH {?h :of ?p . ?c :of ?q . ?d :of ?r . ?p :part ?u . ?q :part ?u . ?r :part ?u}"
        ),
        "a c g",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_path_about_several_events(check, name):
    query, expected = CASES[name]
    rows = [each.split() for each in expected.split("|") if each.strip()]
    names = ("?h", "?c", "?d")[: max(map(len, rows), default=1)]
    expect = "\n".join([" | ".join(names), *(" | ".join(row) for row in rows)])
    check(query, events=EVENTS, knowledge=KNOWLEDGE, annotations=[ANNOTATION], expect=expect)


def test_a_way_of_any_length_is_a_table_where_no_event_says_a_step_of_it():
    run = testing.prepare(CASES["upstream"][0], EVENTS, knowledge=KNOWLEDGE, annotations=[ANNOTATION])
    plan, _ = optimize(run.program.queries[0], run.catalog, run.knowledge)
    assert [each.relation is not None for each in plan.body.semantics] == [True]


@pytest.mark.parametrize(
    "more", ["", "SEQ (?h, ?d) MATCH next", "SEQ (?h, ?d) MATCH strict", "AFTER MATCH SKIP TO NEXT"]
)
@pytest.mark.parametrize("last", ["?c", "?c?"])
def test_what_two_share_with_the_last_one_is_found_early_only_where_it_may_be(more, last):
    path = f"PATH {{{PAIR} . ?d :of ?r . ?r :part ?u}}"
    run = testing.prepare(
        f"SELECT ?h.x FROM (?h, s), (?d, s), LATEST ({last}, s) {path} {more}",
        EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
    )
    assert run.matches() == run.matches("reference")


def test_events_without_a_partner_are_not_compared():
    """One key for each piece of equipment: what waits is looked at where it may be tied to what comes."""
    run = testing.prepare(
        f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}}",
        EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
    )
    (query,) = Engine(run, lateness=0)._steps
    shape = query.operator.shape
    assert all(row >= 0 for row in shape.tables.front[:, 6])
    assert sum(isinstance(each, Roots) for each in shape.columns) == 2


def test_what_was_no_pair_becomes_one_when_a_point_moves():
    knowledge = Knowledge.parse(KNOWLEDGE)
    running = engine(
        f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c)",
        knowledge=knowledge,
        annotations=[ANNOTATION],
    )
    assert running.push([event(0, 0, "h1", 1), event(1, 1, "t", 1), event(2, 2, "h2", 2)]) == []
    prefix = "@prefix : <urn:kaicep:> . "
    knowledge.update(
        add=prefix + ":c1 :part :u2 . :t a :Heating ; :part :u2 .", remove=prefix + ":c1 :part :u1 ."
    )
    assert sorted(each.events["h"]["seq"] for each in running.push([event(3, 3, "c1", 3)])) == [1, 2]
    knowledge.update(add=prefix + ":c1 :part :u1 .", remove=prefix + ":c1 :part :u2 .")
    assert sorted(each.events["h"]["seq"] for each in running.push([event(4, 4, "c1", 3)])) == [0]


def test_a_pair_is_judged_at_the_time_of_its_last_event():
    dated = KNOWLEDGE.replace(":c1 a :Cooling ; :part :u1 .", ":c1 a :Cooling .")
    knowledge = Knowledge.parse(dated)
    prefix = "@prefix : <urn:kaicep:> . "
    knowledge.update(add=prefix + ":c1 :part :u1 .", valid_from=2_000_000)
    knowledge.update(add=prefix + ":c1 :part :u2 .", remove=prefix + ":c1 :part :u1 .", valid_from=5_000_000)
    running = engine(
        f"SELECT ?h.x FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c)",
        knowledge=knowledge,
        annotations=[ANNOTATION],
    )
    found = running.push(
        [event(0, 0, "h1"), event(1, 0.5, "h2"), event(2, 1, "c1"), event(3, 3, "c1"), event(4, 6, "c1")]
    )
    assert [(each.events["h"]["seq"], each.events["c"]["seq"]) for each in found] == [(0, 3), (1, 4)]


def test_a_joint_path_beside_other_queries_of_the_stream(check):
    """They share what was worked out of the events, but for the columns that are another query's own."""
    check(
        {
            "all.chi": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 7) PARTITION BY ?e.k",
            "one.chi": f"SELECT ?u FROM (?h, s), (?c, s) PATH {{{PAIR}}} SEQ (?h, ?c)",
            "other.chi": f"SELECT ?u FROM (?c, s), (?h, s) PATH {{{PAIR}}} SEQ (?c, ?h)",
        },
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="""
            query | ?e | ?h | ?c
            all   | d  |    |
            one   |    | a  | c
            one   |    | a  | g
            other |    | d  | b
        """,
    )
