"""Every construct of chi-CEP: a text, and what it says."""

import pytest

from kaicep.errors import SourceText
from kaicep.language import parse_chi
from kaicep.plan.chi import (
    Absent,
    AggregateWindow,
    Bound,
    Choice,
    From,
    Loop,
    Place,
    SelectColumn,
    Skip,
    SpanWindow,
    Together,
    Within,
)
from kaicep.plan.expressions import Aggregate, Attribute, Call, Concept, Const, Previous, VariableRef
from kaicep.plan.terms import Iri
from kaicep.plan.text import chi_text
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type

HVC = "http://h.org/"
X, Y = Attribute("e", "x"), Attribute("e", "y")


def number(value):
    return Const(value, Type.INT64)


def query(text, select="SELECT *"):
    found = parse_chi(SourceText("test", f"{select} {text}"), prefixes={"hvc": HVC})
    assert parse_chi(SourceText("printed", chi_text(found))) == found
    return found


def condition(text):
    return query(f"FILTER ({text})").conditions[0].expr


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("?e.x", X),
        ("?e.`flow rate`", Attribute("e", "flow rate")),
        ("?e.`a``b`", Attribute("e", "a`b")),
        ("?e.select", Attribute("e", "select")),
        ("?e.hvc:airflow", Concept("e", Iri(HVC + "airflow"), "hvc:airflow")),
        ("?e.hvc:air-flow", Concept("e", Iri(HVC + "air-flow"), "hvc:air-flow")),
        ("?e.<urn:a>", Concept("e", Iri("urn:a"), "<urn:a>")),
        ("?e.<http://h.org/#a> # so\n", Concept("e", Iri("http://h.org/#a"), "<http://h.org/#a>")),
        ("5", number(5)),
        ("-5", number(-5)),
        ("-9223372036854775808", number(-(2**63))),
        ("5min", number(300_000_000)),
        ("1.5 s", number(1_500_000)),
        ("1.5", Const(1.5, Type.FLOAT64)),
        (".5", Const(0.5, Type.FLOAT64)),
        ("1e3", Const(1000.0, Type.FLOAT64)),
        ("'a\"b'", Const('a"b', Type.STRING)),
        (r'"tab\t \u00e9 \\"', Const("tab\t é \\", Type.STRING)),
        ('"# no comment"', Const("# no comment", Type.STRING)),
        ("TRUE", Const(True, Type.BOOL)),
        ("Null", Const(None, None)),
        ("?e.x-?e.y", Call("-", (X, Y))),
        ("?e.x -5", Call("-", (X, number(5)))),
        ("?e.hvc:a-?e.y", Call("-", (Concept("e", Iri(HVC + "a"), "hvc:a"), Y))),
        ("?e.hvc:a-abs(?e.y)", Call("-", (Concept("e", Iri(HVC + "a"), "hvc:a"), Call("abs", (Y,))))),
        ("- ?e.x", Call("neg", (X,))),
        ("-(5)", Call("neg", (number(5),))),
        ("?e.x - ?e.y - 1", Call("-", (Call("-", (X, Y)), number(1)))),
        ("?e.x - (?e.y - 1)", Call("-", (X, Call("-", (Y, number(1)))))),
        ("?e.x + ?e.y * 2 % 3", Call("+", (X, Call("%", (Call("*", (Y, number(2))), number(3)))))),
        ("?e.x<?e.y&&?e.y>3", Call("and", (Call("<", (X, Y)), Call(">", (Y, number(3)))))),
        ("?e.x or ?e.y AND NOT ?e.x", Call("or", (X, Call("and", (Y, Call("not", (X,))))))),
        ("not ?e.x = 1", Call("not", (Call("=", (X, number(1))),))),
        ("(!?e.x) = 1", Call("=", (Call("not", (X,)), number(1)))),
        ("?e.x IN (1, 2)", Call("in", (X, number(1), number(2)))),
        ("?e.x not in (1)", Call("not", (Call("in", (X, number(1))),))),
        ("STARTSWITH(?e.x, 'a')", Call("startsWith", (X, Const("a", Type.STRING)))),
        ("DayOfWeek(?e.ts) >= 6", Call(">=", (Call("dayOfWeek", (Attribute("e", "ts"),)), number(6)))),
        ("if(?e.x, 1, 2)", Call("if", (X, number(1), number(2)))),
        ("count(?e) > 1", Call(">", (Aggregate("COUNT", None, variable="e"), number(1)))),
        ("COUNT(DISTINCT ?e.x)", Aggregate("COUNT", X, True, "e")),
        ("FIRST(?e.x)", Aggregate("FIRST", X, variable="e")),
        ("PREV(?e.x) < ?e.x", Call("<", (Previous(X), X))),
        ("?loc", VariableRef("loc")),
    ],
)
def test_expressions(text, expr):
    assert condition(text) == expr


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("?a, ?b", (Place("a"), Place("b"))),
        ("?a+, ?b*, ?c?", (Loop("a", 1, None), Loop("b", 0, None), Loop("c", 0, 1))),
        ("?a{2}, ?b{2,}", (Loop("a", 2, 2), Loop("b", 2, None))),
        ("?a{,3}, ?b{2,3}, ?c{0,}", (Loop("a", 0, 3), Loop("b", 2, 3), Loop("c", 0, None))),
        ("?a, !?b, ?c", (Place("a"), Absent(Place("b")), Place("c"))),
        (
            "(?a | ?b), (?c & ?d+)",
            (Choice((Place("a"), Place("b"))), Together((Place("c"), Loop("d", 1, None)))),
        ),
        ("(?a | (?b & (?c)))", (Choice((Place("a"), Together((Place("b"), Place("c"))))),)),
        ("?a, !(?b | ?c)", (Place("a"), Absent(Choice((Place("b"), Place("c")))))),
    ],
)
def test_patterns(text, elements):
    assert query(f"SEQ ({text})").sequence == elements


@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("[now, )", Within(Bound(), None)),
        ("[now - 1h, now]", Within(Bound(None, -3_600_000_000), Bound())),
        ("(NOW+5min,)", Within(Bound(None, 300_000_000, False), None)),
        ("(, 2012-05-07)", Within(None, Bound(parse_time("2012-05-07"), 0, False))),
        ("[2012-05-07T09:00, 2012-05-07T11:30:00.25+02:00]", Within(
            Bound(parse_time("2012-05-07T09:00")), Bound(parse_time("2012-05-07T09:30:00.25")))),
        ("[ , ]", Within(None, None)),
    ],
)  # fmt: skip
def test_within(text, within):
    assert query(f"WITHIN {text}").within == within


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("(?a, ?b, 5min)", SpanWindow(("a", "b"), 300_000_000)),
        ("(?a, 1d)", SpanWindow(("a",), 86_400_000_000)),
        ("(?e, SLIDING, 5 min)", AggregateWindow("e", "sliding", 300_000_000, None)),
        ("(?e, batch, 100)", AggregateWindow("e", "batch", None, 100)),
    ],
)
def test_windows(text, window):
    assert query(f"WINDOW {text}").windows == (window,)


@pytest.mark.parametrize(
    ("text", "skip"),
    [
        ("NO SKIP", Skip("none")),
        ("skip to next", Skip("next")),
        ("SKIP PAST LAST", Skip("past_last")),
        ("SKIP TO FIRST ?b", Skip("first", "b")),
        ("SKIP TO LAST ?b", Skip("last", "b")),
    ],
)
def test_after_match(text, skip):
    assert query(f"AFTER MATCH {text}").skip == skip


def test_streams_classes_and_odd_names():
    (given,) = query("FROM (?e, airflowReport, `campus.air-flow`, hvc:Report, <urn:c>)").froms
    assert given == From("e", ("airflowReport", "campus.air-flow", Iri(HVC + "Report"), Iri("urn:c")))


def test_columns():
    found = query("FROM (?e, s), (?f, t)", "SELECT ?e.x, ?e.y AS `the y`, ?loc, ?e.x + 1 AS more")
    assert found.select == (
        SelectColumn(X),
        SelectColumn(Y, "the y"),
        SelectColumn(VariableRef("loc")),
        SelectColumn(Call("+", (X, number(1))), "more"),
    )
    assert len(found.froms) == 2


@pytest.mark.parametrize(
    ("text", "latest", "optional"),
    [("(?s, t)", False, False), ("LATEST (?s, t)", True, False), ("latest(?s?, t)", True, True)],
)
def test_the_latest_event_of_a_stream(text, latest, optional):
    assert query(f"FROM (?e, s), {text}").froms[1] == From("s", ("t",), latest, optional)


def test_what_is_absent():
    assert query("FROM absent (?e, s, t)").froms == (From("e", ("s", "t"), absent=True),)


def test_keys_are_attributes_and_variables_of_the_path():
    found = query("GROUP BY ?room, ?e.x PARTITION BY ?room")
    assert (found.group_by, found.partition) == ((VariableRef("room"), X), (VariableRef("room"),))


def test_the_clauses_stand_in_any_order():
    text = "HAVING (COUNT(?b) > 1) GROUP BY ?e.x PARTITION BY ?e.x, ?e.hvc:a MATCH Strict where SEQ (?a)"
    found = query(f"{text} WITHIN (,)")
    assert found.within == Within(None, None)
    assert (found.match, found.group_by, len(found.partition), len(found.having)) == ("strict", (X,), 2, 1)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("PATH {?a a ?b}", [1]),
        ("PATH {?a a ?b} PATH {?c a ?d}", [2]),
        ("PATH {?a a ?b} AND PATH {?c a ?d} OR PATH {?e a ?f}", [2, 1]),
        ("PATH {?a a ?b} FILTER (?e.x > 1) or PATH {?c a ?d} PATH {?e a ?f}", [1, 2]),
    ],
)
def test_and_binds_closer_than_or(text, shape):
    assert [len(blocks) for blocks in query(text).paths] == shape


def test_the_query_holds_every_prefix_that_it_needs():
    text = "PREFIX a: <urn:a:> SELECT ?e.hvc:x PATH {?e rdf:type a:B}"
    found = parse_chi(SourceText("test", text), prefixes={"hvc": HVC, "unused": "urn:u:"})
    assert found.prefixes == (("a", "urn:a:"), ("hvc", HVC))
    assert parse_chi(SourceText("printed", chi_text(found))) == found


def test_a_position_of_every_part():
    text = "SELECT ?e.x FILTER (?e.x > 500) SEQ (?e, ?f+)"
    found = parse_chi(SourceText("test", text))
    spans = [found.conditions[0].span, found.conditions[0].expr.span, found.sequence[1].span]
    assert [text[span.start : span.end] for span in spans] == ["FILTER (?e.x > 500)", "?e.x > 500", "?f+"]
