"""What a person is told who makes a mistake: the place, the reason, the way out."""

import pytest

from kaicep.errors import Mistake, SourceText
from kaicep.language import parse_chi, parse_ep


def complaints(parse, text):
    with pytest.raises(Mistake) as raised:
        parse(SourceText("test", text))
    return [
        (each.message, text[each.span.start : each.span.end], each.hint or "")
        for each in raised.value.diagnostics
    ]


@pytest.mark.parametrize(
    ("text", "message", "place", "hint"),
    [
        ("", "the query has no SELECT", "", "SELECT ?e.sensorID"),
        ("FILTER (?e.x > 1) SELECT *", "begins with SELECT", "FILTER", ""),
        ("SELECT * FLITER (?e.x > 1)", "FLITER is not a clause", "FLITER", "did you mean FILTER"),
        ("SELECT ?e.x ?e.y", "expected a comma", "?e", ""),
        ("SELECT ?e.x AS ?y", "expected a name after AS", "?y", "without the question mark: y"),
        ("SELECT * FILTER (?e.x > 1", "expected ) to close FILTER, found the end of the query", "", ""),
        ("SELECT * FILTER (flowrate > 1)", "expected a value", "flowrate", "?e.flowrate"),
        ("SELECT * FILTER (?e.x == 1)", "== is not an operator", "==", "equality is written ="),
        ("SELECT * FILTER (?e.x <> 1)", "<> is not an operator", "<>", "!="),
        ("SELECT * FILTER (1 < ?e.x < 5)", "comparisons do not chain", "<", "&&"),
        ("SELECT * FILTER (flor(?e.x) > 1)", "unknown function flor", "flor", "did you mean floor"),
        ("SELECT * FILTER (abs(?e.x, 1) > 1)", "abs takes 1 argument, not 2", "abs(?e.x, 1)", ""),
        ("SELECT * FILTER (?e.x > 5minutes)", "neither a number nor a duration", "5minutes", "5min"),
        ("SELECT * FILTER (?e.x > 9223372036854775808)", "too large", "9223372036854775808", "float64"),
        ("SELECT * FILTER (?e.x > 1e999)", "too large for a float64", "1e999", ""),
        ("SELECT * FILTER (?e.ts > 2012-05-07)", "in quotes", "2012-05-07", '"2012-05-07"'),
        ("SELECT * FILTER (?e.x = \"a)", "never closed", '"', ""),
        (r"SELECT * FILTER (regex(?e.x, '\d'))", "is not a character", r"\d", r"\\d"),
        ("SELECT ?e.hcv:airflow", "unknown prefix hcv:", "hcv:airflow", "PREFIX hcv:"),
        ("PREFIX hvc: <urn:> SELECT ?e.hcv:a", "unknown prefix hcv:", "hcv:a", "did you mean hvc:?"),
        ("SELECT COUNT(*) AS n", "does not say what it counts", "*", "COUNT(?e)"),
        ("SELECT * FROM (?e?, s)", "no meaning in FROM", "?", "with LATEST"),
        ("SELECT * FROM ABSENT ?s, s", "a variable after ABSENT", "?s", "FROM ABSENT (?e, airflowReport)"),
        ("SELECT * FROM LATEST ?s, s", "a variable after LATEST", "?s", "LATEST (?s, setpoint)"),
        ("SELECT * SEQ (?a{3,2})", "at least 3 and at most 2", "{3,2}", "{2,3}"),
        ("SELECT * SEQ (?a{0})", "no rounds", "{0}", "!?b"),
        ("SELECT * SEQ (?a{99999999999999999999})", "more than the 10000", "99999999999999999999", ""),
        ("SELECT * SEQ ((?a | ?b)+)", "only a single variable", "(?a | ?b)+", ""),
        ("SELECT * SEQ ((?a | ?b & ?c))", "mixed", "&", "parentheses"),
        ("SELECT * SEQ ((?a, ?b))", "expected ) to close the group", ",", "no sequence"),
        ("SELECT * SEQ (?a) SEQ (?b)", "SEQ is in the query twice", "SEQ", ""),
        ("SELECT * WINDOW (?a, ?b, 5)", "expected a duration", "5", "5min"),
        ("SELECT * WINDOW (?a, slidng, 5min)", "a kind of window", "slidng", "did you mean sliding?"),
        ("SELECT * WINDOW (?a, batch, 0)", "must have a size", "0", ""),
        ("SELECT * WITHIN [2013-02-30, )", "not a time of the calendar", "2013-02-30", ""),
        ("SELECT * WITHIN [now, now - 1h]", "ends before it begins", "WITHIN [now, now - 1h]", ""),
        ("SELECT * MATCH all", "which events a match may skip", "all", "known: any, next, strict"),
        ("SELECT * FILTER (?e.x > 1) AND FILTER (?e.x > 2)", "for two PATH blocks", "AND", "&&"),
        ("SELECT * PATH {SERVICE <urn:x> {}}", "SERVICE is not supported", "SERVICE", ""),
        ("SELECT * PATH {GRAPH {}}", "the name of a graph after GRAPH", "{", ""),
        ("SELECT * PATH {{?a a ?b} SEQ {?c a ?d}}", "SEQ belongs to EP-SPARQL", "SEQ", "SEQ (?a, ?b)"),
        ("SELECT * PATH {FILTER (getDURATION() > 1)}", "belongs to EP-SPARQL", "getDURATION", "?e.ts"),
        ("SELECT * PATH {?e hasSource ?s}", "expected a property", "hasSource", "a name has a prefix"),
        ("SELECT * PATH {?e <source> ?s}", "a relative IRI", "<source>", "BASE"),
    ],
)  # fmt: skip
def test_chi(text, message, place, hint):
    found = complaints(parse_chi, text)
    assert any(message in said and at == place and hint in way for said, at, way in found), found


@pytest.mark.parametrize(
    ("text", "message", "place", "hint"),
    [
        ("SELEC ?x { ?x p 1 }", "expected SELECT or CONSTRUCT", "SELEC", "did you mean SELECT?"),
        ("ASK { ?x p 1 }", "ASK is not possible", "ASK", "SELECT"),
        ("DESCRIBE ?x", "DESCRIBE is not supported", "DESCRIBE", "SELECT"),
        ("SELECT ?x FROM <urn:g> { ?x p 1 }", "FROM is not supported", "FROM", ""),
        ("SELECT ?x { ?x p 1 } ORDER BY ?x", "ORDER BY is not possible", "ORDER", ""),
        ("SELECT ?x { ?x p 1 } LIMIT 1", "LIMIT is not possible", "LIMIT", ""),
        ("SELECT ?x { ?x p 1 } OFFSET 1", "OFFSET is not possible", "OFFSET", ""),
        ("SELECT ?x { GRAPH { ?x p 1 } }", "the name of a graph after GRAPH", "{", ""),
        ("SELECT ?x { {?x p 1} SEQOPTIONAL {?x p 2} }", "timewise monotone", "SEQOPTIONAL", "OPTIONALSEQ"),
        ("SELECT ?x { {?x p 1} SEK {?x p 2} }", "found SEK", "SEK", "did you mean SEQ?"),
        ("SELECT ?x { ?x p 1 SEQ ?x p 2 }", "SEQ belongs between two groups", "SEQ", "braces"),
        ("SELECT ?x { ?x p 1 FLTER (?x > 1) }", "found FLTER", "FLTER", "did you mean FILTER"),
        ("SELECT ?x { FILTER (bond(?x)) }", "unknown function bond", "bond", "BOUND"),
        ("SELECT ?x { FILTER (<urn:f>(?x)) }", "unknown function <urn:f>", "<urn:f>", "xsd:integer"),
        ("SELECT ?x { FILTER (NOW() > ?x) }", "NOW() is refused", "NOW()", "getENDTIME"),
        ("SELECT ?x { FILTER (strlen(?x, 1)) }", "strlen takes 1 argument, not 2", "strlen(?x, 1)", ""),
        ("SELECT ?x { FILTER (?x > 1 AND ?x < 2) }", "expected ) to close FILTER", "AND", "&&"),
        ("SELECT ?x { FILTER (COUNT(?x) > 1) }", "can only be used in SELECT or HAVING", "COUNT", "HAVING"),
        ("SELECT ?x { VALUES (?x ?y) { (1) } }", "1 values for 2 variables", "(1)", "UNDEF"),
        ("SELECT ?x ?x + 1 { ?x p 1 }", "expected AS", "{", "(expression AS ?name)"),
        ("SELECT ?x, ?y { ?x p 1 }", "another column or WHERE", ",", "no commas"),
        ("SELECT ?x { ?x p ?y ?z p 1 }", "expected . between two triples", "?z", ""),
        ("SELECT ?x { ?x p ?y . . }", "expected a triple", ".", ""),
        ("SELECT ?x { ?x filter 1 }", "expected a property", "filter", ":filter"),
        ("SELECT ?x { ?x p 1 ", "expected } to close the group", "", ""),
        ("SELECT ?x { ?x p 1 } }", "expected the end of the query", "}", ""),
        ("CONSUMPTION recnt SELECT ?x { ?x p 1 }", "a policy", "recnt", "did you mean recent?"),
        ("CONSTRUCT { ?x p/q 1 } { ?x p 1 }", "a property path cannot stand in a template", "p/q", ""),
        ("SELECT * { ?x p 1 } GROUP BY ?x", "cannot be grouped", "*", "name the columns"),
        ("SELECT ?x { ?x p 'a'^^5 }", "a datatype after ^^", "5", ""),
        ("SELECT ?x { ?x p '\\uD800' }", "is not a character", "\\uD800", ""),
    ],
)  # fmt: skip
def test_ep(text, message, place, hint):
    found = complaints(parse_ep, text)
    assert any(message in said and at == place and hint in way for said, at, way in found), found


def test_several_mistakes_are_told_at_once_in_the_order_of_the_text():
    path = "PATH {?e ex:p ?y . FILTER (?y > ) OPTIONAL ?z}"
    text = f"SELECT ?e.x FILTER (?e.x >) JOIN (?e.y = = 1) {path} MATCH al"
    places = [place for _, place, _ in complaints(parse_chi, text)]
    assert places == [")", "=", "ex:p", ")", "?z", "al"]


def test_no_more_than_twenty():
    assert len(complaints(parse_chi, "SELECT * " + "FILTER () " * 50)) == 20


def test_the_whole_of_a_message():
    with pytest.raises(Mistake) as raised:
        parse_chi(SourceText("rise.chi", "SELECT ?e.x\nFLITER (?e.x > 1)"))
    assert str(raised.value) == (
        "error: FLITER is not a clause\n"
        " --> rise.chi:2:1\n"
        "  |\n"
        "2 | FLITER (?e.x > 1)\n"
        "  | ^^^^^^\n"
        "  = help: did you mean FILTER or AFTER?"
    )
