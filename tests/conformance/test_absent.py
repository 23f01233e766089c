"""ABSENT: what the knowledge expects and no event of a window is about."""

from __future__ import annotations

# p1 to p3 are temperatures, p4 is a command; p1 and p2 are in one room.
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :p1 a :Temperature ; :in :r1 ; :limit 20 . :p2 a :Temperature ; :in :r1 ; :limit 30 .
    :p3 a :Temperature ; :in :r2 ; :limit 40 . :p4 a :Command ; :in :r2 .
"""
ANNOTATIONS = [
    {
        "stream": "s",
        "prefixes": {"": "urn:kaicep:"},
        "entities": {"id": {"property": ":from", "iri": ":{value}"}},
    }
]
# Of windows of 10 s, p1 is in the first, p4 in the fourth; the two between are empty.
EVENTS = """
    event | ts | id | x
    e1    | 3  | p1 | 1
    e2    | 4  | p1 | 2
    e3    | 9  | p3 | 3
    e4    | 31 | p4 | 4
    e5    | 39 | p2 | 5
"""
PATH = "PATH {?e :from ?p . ?p a :Temperature ; :in ?room}"
WINDOW = "FROM ABSENT (?e, s) WINDOW (?e, batch, 10s)"


def found(check, query, expect, events=EVENTS, knowledge=KNOWLEDGE, **options):
    return check(query, events=events, expect=expect, knowledge=knowledge, annotations=ANNOTATIONS, **options)


def test_what_has_no_event_in_a_window_is_reported(check):
    found(
        check,
        f"SELECT ?p {WINDOW} {PATH}",
        """
        p             | start | end
        urn:kaicep:p2 | 0     | 10
        urn:kaicep:p1 | 10    | 20
        urn:kaicep:p2 | 10    | 20
        urn:kaicep:p3 | 10    | 20
        urn:kaicep:p1 | 20    | 30
        urn:kaicep:p2 | 20    | 30
        urn:kaicep:p3 | 20    | 30
        urn:kaicep:p1 | 30    | 40
        urn:kaicep:p3 | 30    | 40
        """,
    )


def test_a_room_is_absent_where_none_of_its_points_came(check):
    found(
        check,
        f"SELECT ?room FROM ABSENT (?e, s) WINDOW (?e, batch, 20s) {PATH}",
        "room | start | end\n urn:kaicep:r2 | 20 | 40",
    )


def test_two_variables_are_a_pair(check):
    found(
        check,
        f"SELECT ?room, ?p FROM ABSENT (?e, s) WINDOW (?e, batch, 1min) {PATH} FILTER (?e.x < 4)",
        "room | p\n urn:kaicep:r1 | urn:kaicep:p2",
    )


def test_only_events_that_pass_the_filter_count(check):
    found(
        check,
        f"SELECT ?p FROM ABSENT (?e, s) WINDOW (?e, batch, 1min) {PATH} FILTER (?e.x > 2)",
        "p\n urn:kaicep:p1",
    )


def test_a_condition_on_the_path_alone_says_what_is_expected(check):
    query = f"SELECT ?p, ?limit {WINDOW} {PATH[:-1]} . ?p :limit ?limit}}"
    expect = "p | limit | start\n"
    expect += "".join(f"urn:kaicep:p3 | 40 | {start}\n" for start in (10, 20, 30))
    found(check, f"{query} FILTER (?limit * 2 > 70)", expect)


def test_a_condition_on_the_event_and_the_path_says_what_counts(check):
    found(
        check,
        f"SELECT ?p, ?limit FROM ABSENT (?e, s) WINDOW (?e, batch, 1min) {PATH[:-1]} . ?p :limit ?limit}} "
        "FILTER (?e.x * 10 > ?limit)",
        "p | limit\n urn:kaicep:p1 | 20\n urn:kaicep:p3 | 40",
    )


def test_nothing_came_of_the_class_at_all(check):
    # The stream tells the time, whatever comes in it.
    found(
        check,
        f"SELECT ?p FROM ABSENT (?e, s) WINDOW (?e, batch, 1min) {PATH}",
        "p\n urn:kaicep:p1\n urn:kaicep:p2\n urn:kaicep:p3",
        events="event | ts | id\n e1 | 5 | p4\n e2 | 6 | unknown",
    )


def test_without_events_there_is_no_window(check):
    found(
        check,
        f"SELECT ?p {WINDOW} {PATH} WITHIN [1970-01-01T01:00, )",
        "p",
    )


def test_within_bounds_the_windows(check):
    found(
        check,
        f"SELECT ?p {WINDOW} {PATH} WITHIN [1970-01-01T00:00:31, )",
        "p | start\n urn:kaicep:p1 | 30\n urn:kaicep:p3 | 30",
    )


def test_at_an_open_end_the_last_window_is_not_decided(check):
    found(
        check,
        f"SELECT ?p {WINDOW} {PATH} FILTER (?e.x < 2)",
        "p | end\n urn:kaicep:p2 | 10\n urn:kaicep:p3 | 10",
        events=EVENTS.split("e4 ")[0] + "e4 | 12 | p1 | 1",
        end="open",
    )


def test_a_property_path_out_of_the_event(check):
    found(
        check,
        "SELECT ?room FROM ABSENT (?e, s) WINDOW (?e, batch, 20s) PATH {?e :from/:in ?room}",
        "room | start | end",
    )
    found(
        check,
        f"SELECT ?room {WINDOW} PATH {{?e :from/:in ?room}} FILTER (?e.x < 5)",
        "room | start\n urn:kaicep:r1 | 10\n urn:kaicep:r2 | 10\n urn:kaicep:r1 | 20\n"
        "urn:kaicep:r2 | 20\n urn:kaicep:r1 | 30",
    )


def test_a_window_expects_what_is_known_at_its_last_instant(check):
    knowledge = """
        @prefix : <urn:kaicep:> . @prefix kai: <https://kaicep.org/ns#> .
        @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
        :p1 a :Temperature ; :in :r1 .
        :then { :p2 a :Temperature ; :in :r1 . }
        :then kai:validFrom "1970-01-01T00:00:15Z"^^xsd:dateTime .
        :then kai:validTo "1970-01-01T00:00:30Z"^^xsd:dateTime .
    """
    found(
        check,
        f"SELECT ?p {WINDOW} {PATH}",
        """
        p             | start
        urn:kaicep:p2 | 10
        urn:kaicep:p2 | 20
        """,
        events="event | ts | id\n e1 | 3 | p1\n e2 | 13 | p1\n e3 | 23 | p1\n e4 | 33 | p1",
        knowledge=knowledge,
    )


def test_a_query_reads_what_is_absent(check):
    found(
        check,
        {
            "silent.chi": f"SELECT ?room FROM ABSENT (?e, s) WINDOW (?e, batch, 20s) {PATH}",
            "named.chi": "SELECT ?s.room FROM (?s, silent)",
        },
        "query | room | end\n silent | urn:kaicep:r2 | 40\n named | urn:kaicep:r2 | 40",
    )


def test_several_streams_tell_the_time(check):
    check(
        "SELECT ?p FROM ABSENT (?e, s, t) WINDOW (?e, batch, 10s) PATH {?e :from ?p . ?p a :Temperature}",
        events={
            "s": "event | ts | id\n a | 2 | p1\n b | 12 | p1",
            "t": "event | ts | id\n c | 5 | p3\n d | 25 | p3",
        },
        expect="""
        p             | start
        urn:kaicep:p2 | 0
        urn:kaicep:p2 | 10
        urn:kaicep:p3 | 10
        urn:kaicep:p1 | 20
        urn:kaicep:p2 | 20
        """,
        knowledge=KNOWLEDGE,
        annotations=[*ANNOTATIONS, {**ANNOTATIONS[0], "stream": "t"}],
    )
