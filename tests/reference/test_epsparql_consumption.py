"""Consumption policies: which partner a right side takes, and whether it is used up."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers

TABLE = """
1 a1 p x
2 a2 p x
3 b1 q x
4 b2 q x
5 b3 q x
"""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            "unrestricted",
            [
                "a=a1 b=b1 [1-3]",
                "a=a1 b=b2 [1-4]",
                "a=a1 b=b3 [1-5]",
                "a=a2 b=b1 [2-3]",
                "a=a2 b=b2 [2-4]",
                "a=a2 b=b3 [2-5]",
            ],
        ),
        # The latest partner, which stays.
        ("recent", ["a=a2 b=b1 [2-3]", "a=a2 b=b2 [2-4]", "a=a2 b=b3 [2-5]"]),
        # The earliest partner, and both are used up: b3 finds none.
        ("chronological", ["a=a1 b=b1 [1-3]", "a=a2 b=b2 [2-4]"]),
    ],
)
def test_which_partners_a_right_side_takes(policy: str, expected: list[str]) -> None:
    query = f"CONSUMPTION {policy} SELECT ?a ?b WHERE {{ ?a p ?x }} SEQ {{ ?b q ?x }}"
    assert answers(TABLE, query) == expected


def test_recent_goes_by_end_then_start_then_text() -> None:
    query = "CONSUMPTION recent SELECT ?a WHERE { ?a p ?x } SEQ { ?b q ?x }"
    assert answers("1-3 long p x\n2-3 short p x\n9 b q x", query) == ["a=short [2-9]"]
    assert answers("2-3 one p x\n2-3 two p x\n9 b q x", query) == ["a=one [2-9]"]


def test_only_compatible_partners_are_candidates() -> None:
    query = "CONSUMPTION recent SELECT ?a WHERE { ?a p ?x } SEQ { ?b q ?x }"
    assert answers("1 a1 p x\n2 a2 p other\n3 b q x", query) == ["a=a1 [1-3]"]


def test_a_mandatory_side_whose_partners_are_used_up_stands_alone() -> None:
    query = "CONSUMPTION chronological SELECT ?a ?b WHERE { ?a p ?x } OPTIONALSEQ { ?b q ?x }"
    assert answers(TABLE, query) == ["a=a1 b=b1 [1-3]", "a=a2 b=b2 [2-4]", "b=b3 [5]"]


def test_with_a_policy_nothing_waits_for_a_partner_that_ends_later() -> None:
    # Unrestricted, PAR joins both; with a policy only what has ended by the end of the right side.
    table = "1-3 early p x\n1-9 late p x\n2-5 b q x"
    query = "CONSUMPTION {} SELECT ?a WHERE {{ ?a p ?x }} PAR {{ ?b q ?x }}"
    assert answers(table, query.format("unrestricted")) == ["a=early [1-5]", "a=late [1-9]"]
    assert answers(table, query.format("recent")) == ["a=early [1-5]"]
