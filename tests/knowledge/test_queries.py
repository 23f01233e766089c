"""SPARQL over the closed knowledge, as PATHs that are decided at run time ask it."""

from __future__ import annotations

import pytest

from kaicep.testing import check

KNOWLEDGE = "@prefix : <urn:kaicep:> . :s1 :in :r1 . :r1 a :Lab ."


@pytest.mark.parametrize("name", ["one", "x", "kaicep_one"])
def test_a_variable_of_a_path_may_have_any_name(name: str) -> None:
    check(
        f"PREFIX : <urn:kaicep:> SELECT ?e.s FROM (?e, s) PATH {{?e :from ?{name} . ?{name} :in ?r . "
        f"FILTER (str(?e) != str(?r))}}",
        events="""
            ts | s
            0  | s1
            60 | s2
        """,
        expect="""
            s
            s1
        """,
        knowledge=KNOWLEDGE,
        host="inprocess",
        annotations=[
            {
                "stream": "s",
                "prefixes": {"k": "urn:kaicep:"},
                "entities": {"s": {"property": "k:from", "iri": "k:{value}"}},
            }
        ],
    )
