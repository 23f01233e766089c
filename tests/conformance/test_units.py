"""Units: what is compared is brought into one unit first."""

from __future__ import annotations

import pytest

from kaicep import testing
from kaicep.errors import Mistake

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix qudt: <http://qudt.org/schema/qudt/> .
    @prefix unit: <http://qudt.org/vocab/unit/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    unit:L-PER-SEC qudt:conversionMultiplier 0.001 ; qudt:hasDimensionVector :flow .
    unit:FT3-PER-MIN qudt:conversionMultiplier 0.0004719474432000000000000000000 ;
        qudt:hasDimensionVector :flow .
    unit:K qudt:conversionMultiplier 1.0 ; qudt:hasDimensionVector :heat .
    unit:DEG_C qudt:conversionMultiplier 1.0 ; qudt:conversionOffset 273.15 ; qudt:hasDimensionVector :heat .
    unit:DEG_F qudt:conversionMultiplier 0.5555555555555555555555555555555556 ;
        qudt:conversionOffset 459.67 ; qudt:hasDimensionVector :heat .
    :s1 :max :m1 . :m1 :value 500 ; qudt:hasUnit unit:FT3-PER-MIN .
    :s2 :max :m2 . :m2 :value 240.5 ; qudt:hasUnit unit:L-PER-SEC .
    :s3 :max :m3 . :m3 :value 600 .
    :s4 :max :m4 . :m4 :value 600 ; qudt:hasUnit unit:unheard-of .
    :s1 :most 77.9 . :s1 qudt:hasUnit unit:DEG_F . :s2 :most 25 . :s2 qudt:hasUnit unit:DEG_C .
    :vendorFlow rdfs:subPropertyOf :flow .
"""
PREFIXES = {"": "urn:kaicep:", "unit": "http://qudt.org/vocab/unit/"}
FROM = {"id": {"property": ":from", "iri": ":{value}"}}
METRIC = {
    "stream": "s",
    "prefixes": PREFIXES,
    "entities": FROM,
    "attributes": {"flow": ":flow", "temp": ":temperature"},
    "units": {"flow": "unit:L-PER-SEC", "temp": "unit:DEG_C"},
}
IMPERIAL = {
    **METRIC,
    "stream": "t",
    "attributes": {"flow": ":vendorFlow", "temp": ":temperature"},
    "units": {"flow": "unit:FT3-PER-MIN", "temp": "unit:DEG_F"},
}
LIMIT = "PATH {?e :from ?s . ?s :max ?m . ?m :value ?limit}"


def found(check, query, events, expect, annotations=(METRIC, IMPERIAL), knowledge=KNOWLEDGE):
    check(query, events=events, expect=expect, knowledge=knowledge, annotations=annotations)


def test_a_threshold_is_converted_into_the_unit_of_the_attribute(check):
    # 500 cubic feet a minute are 235.97 litres a second; what has no unit, or one nobody knows, is as it is.
    found(
        check,
        f"SELECT ?e.flow, ?limit FROM (?e, s) FILTER (?e.flow > ?limit) {LIMIT}",
        """
        event | ts | id | flow
        e1    | 0  | s1 | 235
        e2    | 1  | s1 | 236
        e3    | 2  | s2 | 240
        e4    | 3  | s2 | 241
        e5    | 4  | s3 | 599
        e6    | 5  | s3 | 601
        e7    | 6  | s4 | 599
        e8    | 7  | s4 | 601
        """,
        "?e | flow | limit\n e2 | 236 | 500\n e4 | 241 | 240.5\n e6 | 601 | 600\n e8 | 601 | 600",
    )


def test_a_unit_that_both_have_changes_no_bit(check):
    events = "event | ts | id | flow\n e1 | 0 | s2 | 240.5\n e2 | 1 | s2 | 240.50000000000003"
    found(check, f"SELECT ?e.flow FROM (?e, s) FILTER (?e.flow = ?limit) {LIMIT}", events, "?e\n e1")


def test_one_concept_in_two_units(check):
    found(
        check,
        f"SELECT ?e.:flow AS flow FROM (?e, s, t) FILTER (?e.:flow > ?limit) {LIMIT}",
        {
            "s": "event | ts | id | flow\n a | 0 | s1 | 236\n b | 1 | s1 | 235",
            "t": """
                event | ts | id | flow
                c     | 0  | s1 | 500.1
                d     | 1  | s1 | 499.9
                e     | 2  | s2 | 505
                f     | 3  | s2 | 510
                """,
        },
        "?e | flow\n a | 236\n c | 500.1\n f | 510",
    )


def test_two_events_in_two_units(check):
    found(
        check,
        "SELECT ?a.temp AS c, ?b.temp AS f FROM (?a, s), (?b, t) WINDOW (?a, ?b, 1h)"
        " JOIN (?a.temp > ?b.temp)",
        {
            "s": "event | ts | temp\n a | 0 | 20\n b | 1 | 26",
            "t": "event | ts | temp\n c | 2 | 75\n d | 3 | 90",
        },
        "?a | ?b | c | f\n b | c | 26 | 75",
    )


def test_temperatures_have_an_offset(check):
    # 77.9 degrees Fahrenheit are 25.5 degrees Celsius.
    found(
        check,
        "SELECT ?e.temp FROM (?e, s) FILTER (?e.temp > ?most) PATH {?e :from ?s . ?s :most ?most}",
        "event | ts | id | temp\n a | 0 | s1 | 25.4\n b | 1 | s1 | 25.6\n"
        "c | 2 | s2 | 24.9\n d | 3 | s2 | 25.1",
        "?e\n b\n d",
    )


def test_inside_an_expression_and_a_loop(check):
    found(
        check,
        "SELECT COUNT(?e) AS n FROM (?e, s), (?f, t) SEQ (?e+, ?f) WINDOW (?e, ?f, 1min) MATCH next "
        "JOIN (?e.flow * 2 > PREV(?e.flow) + ?limit) JOIN (?f.flow > LAST(?e.flow)) "
        "PATH {?e :from ?s . ?s :max ?m . ?m :value ?limit}",
        {
            "s": "event | ts | id | flow\n a | 0 | s1 | 300\n b | 1 | s1 | 270",
            "t": "event | ts | id | flow\n c | 2 | s1 | 571\n d | 3 | s1 | 573",
        },
        "?e | ?f | n\n a b | d | 2\n b | d | 1",
    )


def test_having_over_a_window(check):
    found(
        check,
        "SELECT AVG(?e.flow) AS mean FROM (?e, s) WINDOW (?e, batch, 10s) GROUP BY ?limit "
        f"HAVING (AVG(?e.flow) > ?limit) {LIMIT.replace('?m . ?m', '?m . ?m')}",
        "event | ts | id | flow\n a | 0 | s1 | 230\n b | 1 | s1 | 242.5\n c | 12 | s1 | 235",
        "mean | end\n 236.25 | 10",
    )


def test_without_units_nothing_changes(check):
    plain = {**METRIC, "units": {}}
    events = "event | ts | id | flow\n e1 | 0 | s1 | 236\n e2 | 1 | s1 | 501"
    found(
        check, f"SELECT ?e.flow FROM (?e, s) FILTER (?e.flow > ?limit) {LIMIT}", events, "?e\n e2", (plain,)
    )


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("unit:unheard-of", "the knowledge has no qudt:conversionMultiplier of unheard-of"),
        ("unit:K", "K and L-PER-SEC do not measure the same"),
    ],
)
def test_what_cannot_be_converted_is_a_mistake(unit, said):
    with pytest.raises(Mistake, match=said):
        testing.prepare(
            "SELECT ?a.flow FROM (?a, s), (?b, t) JOIN (?a.flow > ?b.flow) WINDOW (?a, ?b, 1min)",
            {"s": "ts | flow\n 0 | 1", "t": "ts | flow\n 0 | 1"},
            knowledge=KNOWLEDGE,
            annotations=[METRIC, {**IMPERIAL, "units": {"flow": unit}}],
        )


# A wide export: what is in a column is in the unit of its point.
POINTS = """
    @prefix brick: <https://brickschema.org/schema/Brick#> .
    :t1 qudt:hasUnit unit:DEG_F ; :of :room1 . :t2 brick:hasUnit unit:DEG_C ; :of :room2 .
    :t3 :of :room3 . :sp1 qudt:hasUnit unit:DEG_C ; :sets :room1 .
    :sp2 qudt:hasUnit unit:DEG_F ; :sets :room2 .
    :room1 :limit :l1 . :l1 :value 25 ; qudt:hasUnit unit:DEG_C .
    :room2 :limit :l2 . :l2 :value 77 ; qudt:hasUnit unit:DEG_F .
    :room3 :limit :l3 . :l3 :value 25 ; qudt:hasUnit unit:DEG_C .
"""
TREND = {
    "stream": "trend",
    "prefixes": PREFIXES,
    "entities": {"name": {"property": ":from", "iri": ":{value}"}},
    "attributes": {"reading": ":temperature"},
    "units": {"reading": {"of": "name"}},
}
LIMITS = "PATH {?e :from ?p . ?p :of ?room . ?room :limit ?m . ?m :value ?limit}"


def test_a_reading_is_in_the_unit_of_its_point(check):
    # 77 degrees Fahrenheit are 25 degrees Celsius; what has no unit is taken as it is.
    found(
        check,
        f"SELECT ?e.name, ?e.reading FROM (?e, trend) FILTER (?e.reading > ?limit) {LIMITS}",
        {
            "trend": """
        event | ts | name | reading
        a     | 0  | t1   | 76.9
        b     | 1  | t1   | 77.1
        c     | 2  | t2   | 24.9
        d     | 3  | t2   | 25.1
        e     | 4  | t3   | 24.9
        f     | 5  | t3   | 25.1
        """
        },
        "?e | name | reading\n b | t1 | 77.1\n d | t2 | 25.1\n f | t3 | 25.1",
        (TREND,),
        KNOWLEDGE + POINTS,
    )


def test_two_points_in_two_units(check):
    found(
        check,
        """SELECT ?a.name, ?b.name AS other FROM (?a, trend), (?b, trend) WINDOW (?a, ?b, 1min)
        JOIN (?a.reading > ?b.reading)
        PATH {?a :from ?p . ?p :of ?room . ?b :from ?q . ?q :sets ?room}""",
        {
            "trend": """
        event | ts | name | reading
        a     | 0  | t1   | 69
        b     | 1  | sp1  | 21
        c     | 2  | sp1  | 20
        d     | 3  | t2   | 21
        e     | 4  | sp2  | 69
        f     | 5  | sp2  | 70
        """
        },
        "?a | ?b | name | other\n a | c | t1 | sp1\n d | e | t2 | sp2",
        (TREND,),
        KNOWLEDGE + POINTS,
    )


def test_a_point_with_a_unit_against_an_attribute_with_one(check):
    found(
        check,
        """SELECT ?e.name FROM (?e, trend), (?f, s) WINDOW (?e, ?f, 1min)
        JOIN (?e.reading > ?f.temp)""",
        {
            "trend": "event | ts | name | reading\n a | 0 | t1 | 76\n b | 1 | t2 | 26\n c | 2 | t1 | 78",
            "s": "event | ts | temp\n d | 3 | 25",
        },
        "?e | ?f | name\n b | d | t2\n c | d | t1",
        (TREND, METRIC),
        KNOWLEDGE + POINTS,
    )


def test_a_filter_inside_a_path(check):
    found(
        check,
        "SELECT ?e.flow FROM (?e, s) PATH {?e :from ?s . ?e :flow ?v . ?s :max ?m . ?m :value ?limit"
        " FILTER (?v > ?limit)}",
        """
        event | ts | id | flow
        e1    | 0  | s1 | 235
        e2    | 1  | s1 | 236
        e3    | 2  | s2 | 240
        e4    | 3  | s2 | 241
        e5    | 4  | s3 | 599
        e6    | 5  | s3 | 601
        """,
        "?e\n e2\n e4\n e6",
    )


def test_a_filter_inside_a_path_about_two_points(check):
    found(
        check,
        """SELECT ?a.name FROM (?a, trend), (?b, trend) WINDOW (?a, ?b, 1min)
        PATH {?a :from ?p ; :temperature ?x . ?p :of ?room . ?b :from ?q ; :temperature ?y . ?q :sets ?room
              FILTER (?x > ?y && bound(?room))}""",
        {
            "trend": """
        event | ts | name | reading
        a     | 0  | t1   | 69
        b     | 1  | sp1  | 21
        c     | 2  | sp1  | 20
        d     | 3  | t2   | 21
        e     | 4  | sp2  | 69
        f     | 5  | sp2  | 70
        """
        },
        "?a | ?b\n a | c\n d | e",
        (TREND,),
        KNOWLEDGE + POINTS,
    )


@pytest.mark.parametrize(
    ("query", "annotation", "said"),
    [
        (
            f"""SELECT AVG(?e.reading) AS mean FROM (?e, trend) WINDOW (?e, batch, 10s) GROUP BY ?limit
            HAVING (AVG(?e.reading) > ?limit) {LIMITS}""",
            TREND,
            "an aggregate over points",
        ),
        (
            f"SELECT ?e.name FROM (?e, trend) FILTER (?e.reading > ?limit) {LIMITS}",
            {**TREND, "units": {"reading": {"of": "reading"}}},
            "names no entity",
        ),
        (
            f"SELECT ?e.name FROM (?e, trend) FILTER (?e.reading > ?limit) {LIMITS}",
            {**TREND, "units": {"reading": {"from": "name"}}},
            'unknown key "from"',
        ),
    ],
)
def test_units_of_points_that_cannot_be_converted(query, annotation, said):
    with pytest.raises(Mistake, match=said):
        testing.prepare(
            query,
            {"trend": "ts | name | reading\n 0 | t1 | 1"},
            knowledge=KNOWLEDGE + POINTS,
            annotations=[annotation],
        )
