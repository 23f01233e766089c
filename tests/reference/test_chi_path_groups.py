"""GROUP BY and PARTITION BY a variable of the PATH in windows of aggregates (semantics 2)."""

from __future__ import annotations

import pytest

from kaicep.errors import Mistake
from kaicep.testing import check, prepare

# s1 is in two rooms, s4 in none; of r1 and r2 one knows the floor.
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :s1 :in :r1, :r2 . :s2 :in :r2 . :s3 :in :r3 . :s4 :kind :Mobile .
    :r1 :floor 1 . :r2 :floor 2 .
"""
ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:kaicep:"},
    "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
}
EVENTS = """
    event | ts | sensor | x
    e1    | 0  | s1     | 1
    e2    | 1  | s2     | 2
    e3    | 2  | s3     | 4
    e4    | 3  | s1     | 8
    e5    | 4  | s4     | 16
    e6    | 12 | s2     | 32
"""
ROOM = "PATH {?e :from/:in ?room}"


def found(query: str, expect: str) -> None:
    check(query, EVENTS, expect, knowledge=KNOWLEDGE, annotations=[ANNOTATION])


def test_an_event_is_in_the_group_of_each_of_its_values():
    found(
        f"SELECT ?room, SUM(?e.x) AS total {ROOM} WINDOW (?e, batch, 10s) GROUP BY ?room",
        """
        room          | total
        urn:kaicep:r1 | 9
        urn:kaicep:r2 | 11
        urn:kaicep:r3 | 4
        urn:kaicep:r2 | 32
        """,
    )


def test_a_sliding_window_answers_for_each_group_of_the_event_that_triggers():
    found(
        f"SELECT ?room, SUM(?e.x) AS total {ROOM} WINDOW (?e, sliding, 10s) GROUP BY ?room",
        """
        ?e | room          | total
        e1 | urn:kaicep:r1 | 1
        e1 | urn:kaicep:r2 | 1
        e2 | urn:kaicep:r2 | 3
        e3 | urn:kaicep:r3 | 4
        e4 | urn:kaicep:r1 | 9
        e4 | urn:kaicep:r2 | 11
        e6 | urn:kaicep:r2 | 40
        """,
    )


def test_the_groups_of_a_trigger_are_matches_of_their_own_also_where_the_group_is_not_selected():
    found(
        f"SELECT SUM(?e.x) AS total FILTER (?e.sensor = 's1') {ROOM} WINDOW (?e, batch, 10s) GROUP BY ?room",
        "total\n 9\n 9",
    )


def test_what_is_selected_beside_the_group_belongs_to_it():
    found(
        """SELECT ?room, ?floor, COUNT(?e) AS n PATH {?e :from/:in ?room . ?room :floor ?floor}
           WINDOW (?e, sliding, 2) GROUP BY ?room""",
        """
        ?e | room          | floor | n
        e1 | urn:kaicep:r1 | 1     | 1
        e1 | urn:kaicep:r2 | 2     | 1
        e2 | urn:kaicep:r2 | 2     | 2
        e4 | urn:kaicep:r1 | 1     | 1
        e4 | urn:kaicep:r2 | 2     | 2
        e6 | urn:kaicep:r2 | 2     | 2
        """,
    )


def test_null_is_a_group():
    found(
        """SELECT ?room, COUNT(?e) AS n PATH {?e :from ?s OPTIONAL {?s :in ?room}}
           FILTER (?e.sensor IN ('s3', 's4')) WINDOW (?e, batch, 10s) GROUP BY ?room""",
        "room | n\n urn:kaicep:r3 | 1\n | 1",
    )


def test_an_attribute_may_stand_beside_it():
    found(
        f"""SELECT ?room, ?e.sensor, COUNT(?e) AS n {ROOM}
            WINDOW (?e, batch, 10s) GROUP BY ?room, ?e.sensor HAVING (COUNT(?e) > 1)""",
        "room | sensor | n\n urn:kaicep:r1 | s1 | 2\n urn:kaicep:r2 | s1 | 2",
    )


def test_having_may_speak_of_what_is_grouped_by():
    found(
        """SELECT ?floor, SUM(?e.x) AS total PATH {?e :from/:in/:floor ?floor}
           WINDOW (?e, batch, 10s) GROUP BY ?floor HAVING (SUM(?e.x) > ?floor * 5)""",
        "floor | total\n 1 | 9\n 2 | 11\n 2 | 32",
    )


def test_of_a_sliding_window_having_may_speak_of_what_is_known_of_the_newest_event():
    # One of the rooms' floors is enough; and it is one answer, since the floor is not selected.
    found(
        """SELECT SUM(?e.x) > ?floor * 5 AS total PATH {?e :from/:in/:floor ?floor}
           WINDOW (?e, sliding, 10s)""",
        "?e | total\n e4 | 11\n e6 | 40",
    )


def test_windows_are_per_value_of_a_partition():
    found(
        f"SELECT ?room, SUM(?e.x) AS total {ROOM} WINDOW (?e, batch, 2) PARTITION BY ?room",
        """
        ?e     | room          | total
        e1..e4 | urn:kaicep:r1 | 9
        e1..e2 | urn:kaicep:r2 | 3
        e4..e6 | urn:kaicep:r2 | 40
        """,
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"SELECT ?room, COUNT(?e) AS n {ROOM} WINDOW (?e, batch, 1s)", "add GROUP BY ?room"),
        (f"SELECT COUNT(?e) AS n {ROOM} WINDOW (?e, batch, 1s) HAVING (?room != 'a')", "add GROUP BY ?room"),
        (f"SELECT COUNT(?e) AS n {ROOM} WINDOW (?e, batch, 1s) GROUP BY ?rom", "unknown event variable ?rom"),
        (f"SELECT COUNT(?e) AS n {ROOM} WINDOW (?e, batch, 1s) GROUP BY ?e", "?e is an event, not a value"),
    ],
)
def test_errors(query, message):
    with pytest.raises(Mistake, match="(?s)" + message.replace("?", r"\?")):
        prepare(query, EVENTS, knowledge=KNOWLEDGE, annotations=[ANNOTATION])
