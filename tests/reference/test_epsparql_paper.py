"""The queries of section 4.1 of the EP-SPARQL paper, as printed, over small streams."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers, plan

from kaicep.errors import Mistake

DAY = 86_400

FALL_AND_RISE = """
SELECT ?company WHERE
{ ?company hasStockPrice ?price1 }
SEQ { ?company hasStockPrice ?price2 }
SEQ { ?company hasStockPrice ?price3 }
FILTER ( ?price2 < ?price1 * 0.7 && ?price3 > ?price1 * 1.05
&& getDURATION() < "P30D"^^xsd:duration)
"""

DROP = """
SELECT ?company ?ratingagency WHERE
{ ?company downratedby ?ratingagency}
OPTIONALSEQ
{ { ?company hasStockPrice ?price1 }
SEQ { ?company hasStockPrice ?price2 }}
FILTER (?price2 < ?price1 * 0.5)
"""

RATING = """
CONSTRUCT ?company downratedby ?ratingagency
WHERE
{ ?rating1 rater ?ratingagency ;
rated ?company ; score ?score1 }
SEQ { ?rating2 rater ?ratingagency ;
rated ?company ; score ?score2 }
FILTER ( ?score2 < ?score1 )
"""

# Query (3) with the sign that its text asks for.
RISE_WITHOUT_ACQUISITION = """
SELECT ?company WHERE
{ ?company hasStockPrice ?price1 }
SEQ { { ?company hasAcquired ?othercompany }
OPTIONALSEQ
{ ?company hasStockPrice ?price2 } }
FILTER ( ?price2 > ?price1 * 1.5 && !BOUND(?othercompany) &&
getDURATION() < "P15D"^^xsd:duration )
"""

RUNNING = """
CONSTRUCT _:aaa :hasCount ?count . _:aaa :hasSum ?sum .
{ SELECT ?count AS ?prevcount + 1
?sum AS ?prevsum + ?price
WHERE
{{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }
SEQ { :ACME :hasStockPrice ?price . }}
EQUALSOPTIONAL
{{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }
SEQ { :ACME :hasStockPrice ?inbetween . }
SEQ { :ACME :hasStockPrice ?price . }}
FILTER ( !BOUND(?inbetween) &&
getDURATION() < "P10D"^^xsd:duration )}
"""


def days(*rows: str) -> str:
    """Rows of a stream whose times are days."""
    return "\n".join(f"{int(row.split()[0]) * DAY} {' '.join(row.split()[1:])}" for row in rows)


def test_query_1_fall_and_rise_within_30_days() -> None:
    rows = days("1 acme hasStockPrice 100", "5 acme hasStockPrice 60", "9 acme hasStockPrice 110")
    assert answers(rows, FALL_AND_RISE) == [f"company=acme [{DAY}-{9 * DAY}]"]
    late = days("1 acme hasStockPrice 100", "5 acme hasStockPrice 60", "31 acme hasStockPrice 110")
    assert answers(late, FALL_AND_RISE) == []


def test_query_2_and_4_a_drop_with_the_rating_before_it() -> None:
    drop = "5 acme hasStockPrice 100\n6 acme hasStockPrice 40\n"
    assert answers(drop, DROP) == ["company=acme [5-6]"]
    ratings = """
    1 r1 rater moody
    1 r1 rated acme
    1 r1 score 9
    2 r2 rater moody
    2 r2 rated acme
    2 r2 score 4
    """
    # Downrated during [1-2], and the drop [5-6] comes after it.
    assert answers(drop + ratings.strip(), RATING, DROP) == ["company=acme ratingagency=moody [1-6]"]


def test_query_3_a_rise_without_an_acquisition() -> None:
    rise = days("1 acme hasStockPrice 10", "5 acme hasStockPrice 20")
    assert answers(rise, RISE_WITHOUT_ACQUISITION) == [f"company=acme [{DAY}-{5 * DAY}]"]
    bought = rise + "\n" + days("3 acme hasAcquired bolt")
    assert answers(bought, RISE_WITHOUT_ACQUISITION) == []


def test_query_5_running_count_and_sum() -> None:
    seed = days("0 start hasCount 0", "0 start hasSum 0")
    rows = days("1 ACME hasStockPrice 10", "2 ACME hasStockPrice 20", "4 ACME hasStockPrice 5")
    query = "SELECT ?n ?sum { ?point hasCount ?n . ?point hasSum ?sum }"
    assert answers(seed + "\n" + rows, RUNNING, query) == [
        "n=0 sum=0 [0]",
        f"n=1 sum=10 [0-{DAY}]",
        f"n=2 sum=30 [0-{2 * DAY}]",
        f"n=3 sum=35 [0-{4 * DAY}]",
    ]


def test_query_7_is_refused_with_the_reason() -> None:
    with pytest.raises(Mistake, match="monoton"):
        plan("SELECT ?x ?y WHERE ?x ?x ?x . SEQOPTIONAL ?y ?y ?y .")
