"""Every query of the papers parses as printed, and means what its text says."""

import pytest
from tests.language.papers import CHI, EP, PREFIXES

from kaicep.errors import Mistake, SourceText
from kaicep.language import parse_chi, parse_ep
from kaicep.plan.chi import AggregateWindow, Place, SpanWindow
from kaicep.plan.sparql import Construct, Filter, Group, GroupOperation, Select, SubSelect
from kaicep.plan.terms import Blank
from kaicep.plan.text import chi_text, ep_text, expression_text


@pytest.mark.parametrize("number", CHI)
def test_chi_queries_survive_printing(number):
    query = parse_chi(SourceText("paper", CHI[number]), prefixes=PREFIXES)
    assert parse_chi(SourceText("printed", chi_text(query))) == query


@pytest.mark.parametrize("number", EP)
def test_ep_queries_survive_printing(number):
    query = parse_ep(SourceText("paper", EP[number]))
    assert parse_ep(SourceText("printed", ep_text(query))) == query


def test_the_sequence_query():
    query = parse_chi(SourceText("paper", CHI[7]), prefixes=PREFIXES)
    assert [(each.keyword, expression_text(each.expr)) for each in query.conditions] == [
        ("FILTER", "?e1.flowrate > 500"),
        ("JOIN", "?e2.sensorID = ?e1.sensorID"),
        ("JOIN", "?e2.flowrate - ?e1.flowrate > 50"),
    ]
    assert query.sequence == (Place("e1"), Place("e2"))
    assert query.windows == (SpanWindow(("e1", "e2"), 300_000_000),)
    assert len(query.paths[0][0].group.elements[0].patterns) == 8
    assert [prefix for prefix, _ in query.prefixes] == ["evt", "ee", "bd"]


def test_the_aggregation_query():
    query = parse_chi(SourceText("paper", CHI[2]))
    assert query.windows == (AggregateWindow("e", "sliding", 300_000_000, None),)
    assert [(expression_text(each.expr), each.alias) for each in query.select] == [
        ("AVG(?e.flowrate) > 500", "avgrate")
    ]


def test_a_where_without_braces_is_one_group():
    form = parse_ep(SourceText("paper", EP[1])).form
    assert isinstance(form, Select)
    chain, condition = form.where.elements
    assert isinstance(condition, Filter)
    assert isinstance(chain, GroupOperation)
    assert isinstance(chain.left, GroupOperation), "chains lean to the left"
    assert isinstance(chain.right, Group)


def test_a_template_without_braces_and_no_where():
    form = parse_ep(SourceText("paper", EP[5])).form
    assert isinstance(form, Construct)
    assert form.template[0].subject == form.template[1].subject == Blank("aaa")
    (inner,) = form.where.elements
    assert isinstance(inner, SubSelect)
    columns = [(each.name, expression_text(each.expr)) for each in inner.select.columns]
    assert columns == [("count", "?prevcount + 1"), ("sum", "?prevsum + ?price")]


def test_an_expression_before_its_name():
    (column,) = parse_ep(SourceText("paper", EP[6])).form.columns
    assert (column.name, expression_text(column.expr)) == ("average", "?sum / ?count")


def test_seqoptional_is_refused_with_its_reason():
    text = "SELECT ?c WHERE { ?c hasStockPrice ?p } SEQOPTIONAL { ?c downratedby ?r }"
    with pytest.raises(Mistake, match="not timewise monotone"):
        parse_ep(SourceText("paper", text))
