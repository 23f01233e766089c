"""Regular expressions are RE2's: in linear time, and the same for both languages and in a PATH."""

from __future__ import annotations

import time

import pytest

from kaicep.errors import Mistake, SourceText
from kaicep.knowledge.queries import select
from kaicep.knowledge.store import Knowledge
from kaicep.language import parse_chi
from kaicep.plan.expressions import Call, TermConst
from kaicep.plan.functions import SolutionScope, evaluate_expression
from kaicep.plan.regex import BadPattern, matcher
from kaicep.plan.sparql import Group
from kaicep.plan.terms import Literal


def path(text: str) -> Group:
    """The group of the PATH of a query."""
    return parse_chi(SourceText("q", text)).paths[0][0].group


CASES = [
    ("b$", "ab\n", False),  # the end of the text, not of a line
    (r"^\d$", "\u0663", False),  # digits are ASCII
    (r"^\w$", "é", False),
    (r"\pL", "é", True),
    ("(?i)STRASSE", "strasse", True),
    ("a.c", "a\nc", False),
    ("(?s)a.c", "a\nc", True),
    ("", "", True),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), CASES)
def test_a_pattern_matches_the_same_everywhere(pattern: str, text: str, matches: bool) -> None:
    assert matcher(pattern)(text) is matches
    call = Call("regex", (TermConst(Literal(text)), TermConst(Literal(pattern))))
    assert evaluate_expression(call, SolutionScope({})) == Literal(
        str(matches).lower(), "http://www.w3.org/2001/XMLSchema#boolean"
    )
    knowledge = Knowledge.parse(f"<urn:a> <urn:text> {Literal(text)} .")
    # OPTIONAL keeps the condition in the store.
    found = path(
        f"SELECT * FROM (?e, s) PATH {{ ?x <urn:text> ?t OPTIONAL {{ ?x <urn:text> ?u FILTER (REGEX(?u, "
        f"{Literal(pattern)})) }} }}"
    )
    assert select(knowledge, found, ["u"]) == [(Literal(text) if matches else None,)]


def test_a_pattern_takes_linear_time() -> None:
    begin = time.process_time()
    assert not matcher("(a*)*c$")("a" * 1_000_000)
    assert not matcher("(x+x+)+y")("x" * 1_000_000)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("pattern", [r"(a)\1", "a(?=b)", "(?<!a)b", "a{2000}", "(", "*", "\ud800"])
def test_what_re2_lacks_is_no_pattern(pattern: str) -> None:
    with pytest.raises(BadPattern):
        matcher(pattern)


@pytest.mark.parametrize("pattern", [r"(a)\\1", "a(?=b)"])
def test_a_literal_that_is_no_pattern_is_a_mistake_of_the_query(pattern: str) -> None:
    with pytest.raises(Mistake, match=r"(?s)not a regular expression.*RE2"):
        path(f"SELECT * FROM (?e, s) PATH {{ ?e <urn:p> ?x FILTER (REGEX(?x, '{pattern}')) }}")


@pytest.mark.parametrize(
    ("flags", "pattern", "text"),
    [
        ("i", "AbC", "xabcx"),
        ("s", "a.c", "a\nc"),
        ("m", "^b$", "a\nb\nc"),
        ("x", "a b\t[ ]c", "ab c"),
        ("q", "a.c", "xa.cx"),
        ("iq", "A.C", "xa.cx"),
        ("ims", "^B.C$", "a\nb\nc"),
    ],
)
def test_the_flags_of_sparql(flags: str, pattern: str, text: str) -> None:
    assert matcher(pattern, flags)(text)


def test_an_unknown_flag_is_no_pattern() -> None:
    with pytest.raises(BadPattern, match="unknown flag z"):
        matcher("a", "z")


def test_replace_takes_groups() -> None:
    knowledge = Knowledge.parse('<urn:a> <urn:text> "2012-05-07" .')
    found = path(
        "SELECT * FROM (?e, s) PATH { ?x <urn:text> ?t "
        "BIND (REPLACE(?t, '([0-9]+)-([0-9]+)-.*', '$2/$1') AS ?m) }"
    )
    assert select(knowledge, found, ["m"]) == [(Literal("05/2012"),)]


def test_half_of_a_pair_is_no_character() -> None:
    assert matcher("^a.c$")("a\ud800c")
