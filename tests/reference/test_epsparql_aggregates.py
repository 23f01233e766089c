"""GROUP BY over a stream: running aggregates, one result for each end."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers

from kaicep.errors import Mistake

PRICES = """
1 acme price 10
2 bolt price 7
4 acme price 20
9 acme price 20
"""


def test_one_result_for_each_end_of_a_group() -> None:
    query = "SELECT ?c (COUNT(*) AS ?n) (SUM(?p) AS ?sum) { ?c price ?p } GROUP BY ?c"
    assert answers(PRICES, query) == [
        "c=acme n=1 sum=10 [1]",
        "c=acme n=2 sum=30 [1-4]",
        "c=acme n=3 sum=50 [1-9]",
        "c=bolt n=1 sum=7 [2]",
    ]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("AVG(?p)", ["v=10.0 [1]", "v=15.0 [1-4]", "v=16.666666666666666666 [1-9]"]),
        ("MIN(?p)", ["v=10 [1-4]", "v=10 [1-9]", "v=10 [1]"]),
        ("MAX(?p)", ["v=10 [1]", "v=20 [1-4]", "v=20 [1-9]"]),
        ("SAMPLE(?p)", ["v=10 [1-4]", "v=10 [1-9]", "v=10 [1]"]),
        ("SUM(DISTINCT ?p)", ["v=10 [1]", "v=30 [1-4]", "v=30 [1-9]"]),
        ("COUNT(DISTINCT ?p)", ["v=1 [1]", "v=2 [1-4]", "v=2 [1-9]"]),
        ('GROUP_CONCAT(STR(?p); SEPARATOR = "+")', ["v=10 [1]", "v=10+20 [1-4]", "v=10+20+20 [1-9]"]),
        ("SUM(?p) / COUNT(?p)", ["v=10.0 [1]", "v=15.0 [1-4]", "v=16.666666666666666666 [1-9]"]),
    ],
)
def test_aggregates(aggregate: str, expected: list[str]) -> None:
    assert answers(PRICES, f"SELECT ({aggregate} AS ?v) {{ acme price ?p }}") == expected


def test_having_judges_each_result() -> None:
    query = "SELECT ?c (COUNT(*) AS ?n) { ?c price ?p } GROUP BY ?c HAVING (COUNT(*) > 1 && SUM(?p) < 40)"
    assert answers(PRICES, query) == ["c=acme n=2 [1-4]"]


def test_the_duration_is_that_of_the_group() -> None:
    query = 'SELECT (COUNT(*) AS ?n) { acme price ?p } HAVING (getDURATION() >= "PT3S"^^xsd:duration)'
    assert answers(PRICES, query) == ["n=2 [1-4]", "n=3 [1-9]"]


def test_an_error_in_a_sum_leaves_it_out_and_a_count_skips_it() -> None:
    query = "SELECT (SUM(?p) AS ?s) (COUNT(?p + 0) AS ?n) { acme price ?p }"
    assert answers("1 acme price 5\n2 acme price none", query) == ["n=1 [1-2]", "s=5 n=1 [1]"]


def test_groups_by_an_expression() -> None:
    query = "SELECT ?big (COUNT(*) AS ?n) { ?c price ?p } GROUP BY (?p > 9 AS ?big)"
    assert answers("1 acme price 10\n2 bolt price 7", query) == ["big=false n=1 [2]", "big=true n=1 [1]"]


def test_what_knowledge_alone_gives_counts_in_every_result_and_is_none() -> None:
    query = "SELECT (COUNT(*) AS ?n) { acme price ?p }"
    assert answers("3 acme price 5", query, knowledge=":acme :price 1 .") == ["n=2 [3]"]


def test_an_empty_group_is_no_answer() -> None:
    assert answers("1 bolt price 5", "SELECT (COUNT(*) AS ?n) { acme price ?p }") == []


def test_a_distinct_subquery_counts_each_solution_once() -> None:
    table = "1 a p b\n1 a p c"
    query = "SELECT (COUNT(*) AS ?n) {{ {{ SELECT {} ?x WHERE {{ ?x p ?y }} }} }}"
    assert answers(table, query.format("")) == ["n=2 [1]"]
    assert answers(table, query.format("DISTINCT")) == ["n=1 [1]"]


def test_a_column_without_a_single_value_is_refused() -> None:
    with pytest.raises(Mistake, match=r"\?p has no single value in a group"):
        answers(PRICES, "SELECT ?p (COUNT(*) AS ?n) { ?c price ?p } GROUP BY ?c")
