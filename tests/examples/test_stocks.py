"""The EP-SPARQL queries (1) to (6) of the paper, their solutions worked out by hand from its section 4.2.

A day alone is midnight of that day in 2012; an interval of one instant is written once.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.examples.deployed import as_its_readme_says, copied, read, script

from kaicep.api import open_run
from kaicep.plan.time import format_time

STOCKS = Path(__file__).parents[2] / "examples" / "stocks"
DATA = STOCKS / "data"


def solutions(stream: str, *names: str, knowledge: tuple[Path, ...] = ()) -> list[tuple[Any, ...]]:
    """(query, start, end, what comes out), with local names and lexical forms for the terms."""
    run = open_run(
        queries=[STOCKS / "queries" / f"{name}.epsparql" for name in names],
        streams=[("stocks", DATA / f"{stream}.jsonl")],
        knowledge=knowledge,
    )
    assert run.dead == []
    found = []
    for match in run.matches("reference"):
        out: Any = {name: term["value"].rsplit(":", 1)[-1] for name, term in match.select.items()}
        if match.triples is not None:
            out = match.triples
        found.append((match.query, day(match.start_us), day(match.end_us), out))
    return sorted(found, key=str)


def day(moment: int) -> str:
    text = format_time(moment).removesuffix(":00.000000Z")
    return text.removeprefix("2012-").removesuffix("T00:00")


def test_1_a_fall_and_a_rise() -> None:
    """Filter over SeqJoin(SeqJoin(p1, p2), p3): p2 < 0.7 p1, p3 > 1.05 p1, end - start < 30 days.

    ACME     100, 69, 106 at 2, 6, 10 January: 69 < 70 and 106 > 105. With 105 on the 12th it is no rise.
    BETA     100, 70, 120: 70 < 70 does not hold.
    GAMMA    200, 130, 211 from 2 January to 31 January 23:59, a minute short of 30 days; 220 on
             1 February makes it 30 days, which is not less.
    DELTA    100 on [2, 4], 60 on [4, 6]: SeqJoin wants end < start, and 4 < 4 does not hold.
    EPSILON  100 on [2, 4], 60 on [5, 6], 110 on [8, 9]: the solution spans [2, 9].
    """
    assert solutions("fall-and-rise", "query1") == [
        ("query1", "01-02", "01-09", {"company": "EPSILON"}),
        ("query1", "01-02", "01-10", {"company": "ACME"}),
        ("query1", "01-02", "01-31T23:59", {"company": "GAMMA"}),
    ]


def test_2_a_fall_and_who_foresaw_it() -> None:
    """Filter over SeqRightJoin(downrated, SeqJoin(p1, p2)): the agency where it spoke before p1.

    ACME   Moody on the 2nd, 100 on the 4th, 40 on the 6th, 30 on the 8th. (100, 40) and (100, 30) are
           falls, (40, 30) is none. Fitch on the 5th is not before the 4th and joins neither.
    BETA   Fitch on the 5th, between the prices: no partner, so the fall stands alone.
    GAMMA  100, 50: 50 < 50 does not hold.
    DELTA  Moody on the 2nd and Fitch on the 3rd: one solution each, each from its own start.
    """
    assert solutions("downrated", "query2") == [
        ("query2", "01-02", "01-06", {"company": "ACME", "ratingagency": "Moody"}),
        ("query2", "01-02", "01-07", {"company": "DELTA", "ratingagency": "Moody"}),
        ("query2", "01-02", "01-08", {"company": "ACME", "ratingagency": "Moody"}),
        ("query2", "01-03", "01-07", {"company": "DELTA", "ratingagency": "Fitch"}),
        ("query2", "01-04", "01-06", {"company": "BETA"}),
    ]


def test_3_as_printed() -> None:
    """SeqJoin(p1, SeqRightJoin(acquired, p2)), then p2 < 1.5 p1, no acquisition bound, < 15 days.

    ACME     100, 120, 90 at 2, 10, 17 January: (2, 10) and (10, 17) hold; (2, 17) is 15 days, not less.
    BETA     acquired on the 5th, before the price of the 8th: that price has a partner, which is bound.
    GAMMA    acquired on the 1st, before either price: by the definition it is a partner as well, so
             neither price stands alone on the right.
    DELTA    100, 150: 150 < 150 does not hold. EPSILON 100, 160: neither does 160 < 150.
    ZETA     100, 101 on the 2nd and 4th; what it acquires on the 5th comes too late to matter.

    The query calls the first price hasStockprice; the knowledge says that it is the wider property.
    """
    assert solutions("acquisitions", "query3", knowledge=(DATA / "names.ttl",)) == [
        ("query3", "01-02", "01-04", {"company": "ZETA"}),
        ("query3", "01-02", "01-10", {"company": "ACME"}),
        ("query3", "01-10", "01-17", {"company": "ACME"}),
    ]


def test_3_without_the_knowledge_its_two_names_are_two_properties() -> None:
    assert solutions("acquisitions", "query3") == []


def test_3_as_its_text_says() -> None:
    """With p2 > 1.5 p1: only EPSILON, 160 > 150; DELTA's 150 is not larger."""
    assert solutions("acquisitions", "query3-larger") == [
        ("query3-larger", "01-02", "01-06", {"company": "EPSILON"}),
    ]


def downrated(company: str, agency: str) -> tuple[str, ...]:
    return (f"<urn:kaicep:{company}> <urn:kaicep:downratedby> <urn:kaicep:{agency}> .",)


RATINGS = [
    ("query4", "01-02", "01-05", downrated("ACME", "Moody")),
    ("query4", "01-02", "01-07", downrated("BETA", "Fitch")),
    ("query4", "01-02", "01-08", downrated("ACME", "Moody")),
    ("query4", "01-04", "01-07", downrated("BETA", "Fitch")),
]


def test_4_two_ratings_make_a_downrating() -> None:
    """SeqJoin of two ratings of one agency and one company, the second score lower.

    Moody on ACME  8, 5, 6 at 2, 5, 8 January: (8, 5) and (8, 6); (5, 6) is no fall.
    Fitch on ACME  9, 9: no fall.
    Fitch on BETA  the three triples of the 7 come on the 2nd, 3rd and 4th: that rating spans [2, 4]. The 3
                   of the 4th is not after it; the 2 on [6, 7] is, and it is also after the 3.
    """
    assert solutions("ratings", "query4") == RATINGS


def test_4_feeds_2() -> None:
    """What (4) constructs is in the stream that (2) reads, with the interval of its solution.

    ACME  100 on the 6th, 20 on the 9th. Downrated on [2, 5], before the 6th; [2, 8] is not.
    BETA  100 on the 9th, 30 on the 11th. Downrated on [2, 7] and on [4, 7].
    """
    assert solutions("ratings", "query2", "query4") == [
        ("query2", "01-02", "01-09", {"company": "ACME", "ratingagency": "Moody"}),
        ("query2", "01-02", "01-11", {"company": "BETA", "ratingagency": "Fitch"}),
        ("query2", "01-04", "01-11", {"company": "BETA", "ratingagency": "Fitch"}),
        *RATINGS,
    ]


def test_2_without_4_knows_no_downrating() -> None:
    assert solutions("ratings", "query2") == [
        ("query2", "01-06", "01-09", {"company": "ACME"}),
        ("query2", "01-09", "01-11", {"company": "BETA"}),
    ]


def numbers(triples: tuple[str, ...]) -> tuple[str, str]:
    """Count and sum of a point; both triples must speak of one node."""
    (node, named, count), (other, added, total) = (each.removesuffix(" .").split(" ", 2) for each in triples)
    assert node == other
    assert node.startswith("_:")
    assert (named, added) == ("<urn:kaicep:hasCount>", "<urn:kaicep:hasSum>")
    integer = "^^<http://www.w3.org/2001/XMLSchema#integer>"
    return count.removesuffix(integer).strip('"'), total.removesuffix(integer).strip('"')


def test_5_counts_and_sums() -> None:
    """EqLeftJoin drops an extension that has a price in between: points are extended by the next price.

    From p0 (0, 0) on the 3rd: 10 on the 5th gives (1, 10) on [3, 5]; 20 on the 8th gives (2, 30) on
    [3, 8]; 30 on the 12th gives (3, 60) on [3, 12]. With 40 on the 13th the duration is ten days, not less.
    From q0 (0, 0) on the 12th at noon: 40 on the 13th gives (1, 40).
    The prices of December and of 1 January come before any point.
    """
    found = [(start, end, *numbers(out)) for _, start, end, out in solutions("average", "query5")]
    assert found == [
        ("01-03", "01-05", "1", "10"),
        ("01-03", "01-08", "2", "30"),
        ("01-03", "01-12", "3", "60"),
        ("01-12T12:00", "01-13", "1", "40"),
    ]


def test_6_after_ten_days() -> None:
    """A price, then a point, no price between them, more than ten days in all.

    Of the points from p0, which begin on the 3rd, only [3, 12] is more than ten days after the price of
    1 January; after that of 30 December there is the one of 1 January in between. The point from q0
    begins half a day after the price of the 12th and ends a day after it.

    As printed, the query divides variables that nothing binds: its solution binds nothing.
    """
    answers = [each for each in solutions("average", "query5", "query6") if each[0] == "query6"]
    assert answers == [("query6", "01-01", "01-12", {})]


def test_6_with_the_variables_that_it_binds() -> None:
    """The same interval, and 60 / 3."""
    answers = [each for each in solutions("average", "query5", "query6-bound") if each[0] == "query6-bound"]
    assert answers == [("query6-bound", "01-01", "01-12", {"average": "20.0"})]


def test_6_unbound_variables_are_told() -> None:
    query = STOCKS / "queries" / "query6.epsparql"
    run = open_run(queries=[query], streams=[("stocks", DATA / "average.jsonl")])
    said = " ".join(each.message for each in run.diagnostics)
    assert "?sum" in said
    assert "?count" in said


# --- a larger stream, and the same questions in plain Python ---------------------------------------------

DAY = 86_400
Row = tuple[str, int, int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a stream from the script: 20 companies, 60 days."""
    folder = copied("stocks", tmp_path_factory.mktemp("stocks"))
    script(folder, "generate.py", "made.jsonl", "--seed", "1")
    return folder


def told(folder: Path) -> list[tuple[int, list[list[str]]]]:
    """Moment and triples of each record, as local names and numbers."""
    records = [json.loads(line) for line in (folder / "made.jsonl").read_text().splitlines()]
    return [
        (each["start"], [_words(text) for text in each.get("triples", [each.get("triple")])])
        for each in records
    ]


def _words(triple: str) -> list[str]:
    return [
        re.sub(r'^<urn:kaicep:|>$|^"|"\^\^.*$', "", word) for word in triple.removesuffix(" .").split(" ")
    ]


def prices(folder: Path) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for moment, [(subject, predicate, value), *_] in told(folder):
        if predicate == "hasStockPrice":
            found.setdefault(subject, []).append((moment, int(value)))
    return found


def answered(folder: Path, query: str) -> list[Row]:
    """Company, start and end of each match, with the agency before where it is a downrating."""
    queries = [folder / "queries" / f"{query}.epsparql"]
    run = open_run(queries=queries, streams=[("stocks", folder / "made.jsonl")])
    assert run.dead == []
    found = []
    for each in run.matches():
        if each.triples is not None:
            company, _, agency = _words(each.triples[0])
            name = f"{agency} {company}"
        else:
            name = each.select["company"]["value"].removeprefix("urn:kaicep:")
        found.append((name, each.start_us // 1_000_000, each.end_us // 1_000_000))
    return sorted(found)


@pytest.mark.slow
def test_1_over_a_larger_stream(made: Path) -> None:
    expected = {
        (company, first, last)
        for company, known in prices(made).items()
        for (first, p1), (_, p2), (last, p3) in combinations(known, 3)
        if p2 * 10 < p1 * 7 and p3 * 100 > p1 * 105 and last - first < 30 * DAY
    }
    assert len(expected) > 20
    assert answered(made, "query1") == sorted(expected)


def test_3_over_a_larger_stream(made: Path) -> None:
    acquired: dict[str, int] = {}
    for moment, [(subject, predicate, _), *_] in told(made):
        if predicate == "hasAcquired":
            acquired.setdefault(subject, moment)
    expected = {
        (company, first, last)
        for company, known in prices(made).items()
        for (first, p1), (last, p2) in combinations(known, 2)
        if p2 * 10 > p1 * 15 and last - first < 15 * DAY and not acquired.get(company, last) < last
    }
    assert len(expected) > 20
    assert answered(made, "query3-larger") == sorted(expected)


def test_4_over_a_larger_stream(made: Path) -> None:
    ratings = [
        (f"{agency} {company}", moment, int(score))
        for moment, [(_, predicate, agency), *rest] in told(made)
        if predicate == "rater"
        for (_, _, company), (_, _, score) in [rest]
    ]
    expected = {
        (one, first, last)
        for (one, first, before), (other, last, after) in combinations(ratings, 2)
        if one == other and first < last and after < before
    }
    assert len(expected) > 10
    assert answered(made, "query4") == sorted(expected)


@pytest.mark.night
def test_as_the_readme_says(made: Path, tmp_path: Path) -> None:
    """The commands over the files made by hand, then those over the larger stream, then the deployment."""
    folder, said = as_its_readme_says("stocks", tmp_path)
    assert (folder / "made.jsonl").read_bytes() == (made / "made.jsonl").read_bytes()
    queries = ("query1", "query3-larger", "query4")
    larger = [json.loads(line) for line in said if '"2012-01' in line or '"2012-02' in line]
    told = {each["id"] for each in read(folder / "state" / "matches.jsonl") if each["query"] in queries}
    assert len(told) == sum(len(answered(made, query)) for query in queries)
    assert told < {each["id"] for each in larger}
