"""Values of the knowledge base count exactly, whatever their digits are; days and times have an order."""

from __future__ import annotations

import pytest

ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":value"},
    "types": {"x": "float64"},
    "entities": {
        "k": {"property": ":of", "iri": ":{value}"},
        "tag": {"property": ":by", "lookup": ":tag"},
    },
}
KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :a :m 0.0000000000000000000000000000000001 ; :big 1234567890123456789012345678901234.5 ;
       :long 123456789012345678901234567890 ; :day "2020-02-03"^^xsd:date ; :at "10:00:00"^^xsd:time ;
       :month "2020-02"^^xsd:gYearMonth ; :year "2020"^^xsd:gYear ; :yearly "--02-03"^^xsd:gMonthDay ;
       :monthly "---03"^^xsd:gDay ; :may "--05"^^xsd:gMonth ; :term "P1Y2M"^^xsd:yearMonthDuration ;
       :life "P1D"^^xsd:dayTimeDuration ; :tag 1 , 0.12345678901234567890123456789 , "2020-02-03"^^xsd:date .
    :b :m 0.0000000000000000000000000000000002 ; :tag 1 .
"""
EVENTS = """
    event | ts | k | x   | tag
    a     | 0  | a | 5.0 | 1
    b     | 1  | b | 7.0 | 2
"""
HOLDING = {
    "?s :m ?m . FILTER (?m < 0.00000000000000000000000000000000015)": "a",
    "?s :m ?m . BIND (?m * 10 AS ?n) FILTER (?n = 0.000000000000000000000000000000002)": "b",
    "?s :m ?m . ?e :value ?v . FILTER (?v > ?m)": "a b",
    "?s :big ?m . FILTER (?m > 1234567890123456789012345678901234)": "a",
    "?s :long ?m . FILTER (?m - 1 = 123456789012345678901234567889)": "a",
    '?s :day ?d . FILTER (?d > "2019-12-31"^^xsd:date && ?d < "2020-02-03-01:00"^^xsd:date)': "a",
    '?s :at ?d . FILTER (?d >= "09:59:59"^^xsd:time)': "a",
    '?s :month ?d . FILTER (?d < "2020-03"^^xsd:gYearMonth)': "a",
    '?s :year ?d . FILTER (?d != "2021"^^xsd:gYear)': "a",
    '?s :yearly ?d . FILTER (?d < "--02-04"^^xsd:gMonthDay)': "a",
    '?s :monthly ?d . FILTER (?d > "---02"^^xsd:gDay)': "a",
    '?s :may ?d . FILTER (?d > "--04"^^xsd:gMonth)': "a",
    '?s :term ?d . FILTER (?d = "P14M"^^xsd:yearMonthDuration)': "a",
    '?s :life ?d . FILTER (?d > "PT23H"^^xsd:dayTimeDuration)': "a",
    '?s :day ?d . FILTER (?d > "2019"^^xsd:gYear)': "",
}


@pytest.mark.parametrize("path", HOLDING)
def test_a_filter_sees_the_exact_value(check, path):
    check(
        f"SELECT ?e.k PATH {{?e :of ?s . {path}}}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="\n".join(["?e", *HOLDING[path].split()]),
    )


def test_a_lookup_with_several_answers_matters_only_to_who_asks_for_it(check):
    check(
        "SELECT ?e.k PATH {?e :of ?s . ?s :m ?m}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="?e\na\nb",
    )
