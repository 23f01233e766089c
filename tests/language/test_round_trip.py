"""A query that is printed and parsed again is the same query, whatever it holds."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kaicep.errors import Mistake, SourceText
from kaicep.language import parse_chi, parse_ep
from kaicep.plan import chi, sparql
from kaicep.plan.expressions import (
    Aggregate,
    Attribute,
    Call,
    Concept,
    Const,
    Exists,
    Previous,
    TermConst,
    VariableRef,
)
from kaicep.plan.terms import XSD, Blank, Iri, Literal, Variable
from kaicep.plan.text import chi_text, ep_text, expression_text, iri_text
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type
from kaicep.plan.values import normalise

PREFIXES = (("u", "urn:u:"), ("h", "http://h.org/"))

words = st.sampled_from(["a", "e1", "x_y", "select", "in", "count", "größe"])
odd_names = st.one_of(words, st.text("ab `.-'\"?#<{", min_size=1, max_size=6))
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
iris = st.sampled_from(["urn:u:p", "urn:u:a-b", "http://h.org/x#y", "http://h.org/", "urn:kaicep:p"]).map(Iri)
casts = st.sampled_from([f"{XSD}{each}" for each in ("boolean", "dateTime", "duration", "integer", "string")])
micros = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


def sealed(strategy):
    """The same strategy, with a name in place of its long description."""

    @st.composite
    def drawn(draw):
        return draw(strategy)

    return drawn()


def rows(of, least=0, most=3):
    return st.lists(of, min_size=least, max_size=most).map(tuple)


def calls(of, tightly_bound):
    """Operators and functions over `of`, of which both languages have these."""
    operators = ["or", "and", "=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/"]
    return st.one_of(
        st.builds(lambda op, left, right: Call(op, (left, right)), st.sampled_from(operators), of, of),
        st.builds(lambda op, each: Call(op, (each,)), st.sampled_from(["not", "neg", "abs", "floor"]), of),
        st.builds(lambda args: Call("in", args), rows(of, 2)),
        tightly_bound,
    )


# chi-CEP.

references = st.one_of(
    st.builds(Attribute, words, odd_names),
    st.sampled_from(["p", "air-flow"]).flatmap(
        lambda local: st.builds(Concept, words, st.just(Iri(f"urn:u:{local}")), st.just(f"u:{local}"))
    ),
    st.builds(lambda variable, iri: Concept(variable, iri, str(iri)), words, iris),
)
constants = st.one_of(
    st.integers(INT64_MIN, INT64_MAX).map(lambda value: Const(value, Type.INT64)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Const(value, Type.FLOAT64)),
    strings.map(lambda value: Const(value, Type.STRING)),
    st.sampled_from([Const(True, Type.BOOL), Const(False, Type.BOOL), Const(None, None)]),
)
aggregates = st.one_of(
    words.map(lambda variable: Aggregate("COUNT", None, variable=variable)),
    st.builds(
        lambda op, of: Aggregate(op, of, variable=of.variable),
        st.sampled_from(["SUM", "AVG", "STDDEV", "FIRST", "LAST"]),
        references,
    ),
    references.map(lambda of: Aggregate("COUNT", of, True, of.variable)),
)
chi_expressions = st.recursive(
    st.one_of(references, constants, aggregates, words.map(VariableRef), references.map(Previous)),
    lambda of: calls(
        of,
        st.one_of(
            st.builds(lambda a, b: Call("%", (a, b)), of, of),
            st.builds(lambda args: Call("coalesce", args), rows(of, 1)),
            st.builds(lambda a, b, c: Call("if", (a, b, c)), of, of, of),
        ),
    ),
    max_leaves=8,
)
rounds = st.one_of(
    st.tuples(st.integers(0, 9), st.none()),
    st.tuples(st.integers(0, 5), st.integers(5, 9)),
    st.just((0, 1)),
)
elements = st.recursive(
    st.one_of(words.map(chi.Place), st.builds(lambda name, many: chi.Loop(name, *many), words, rounds)),
    lambda of: st.one_of(of.map(chi.Absent), rows(of, 2).map(chi.Choice), rows(of, 2).map(chi.Together)),
    max_leaves=6,
)
bounds = st.one_of(
    st.none(),
    st.builds(chi.Bound, micros, st.just(0), st.booleans()),
    st.builds(chi.Bound, st.none(), st.integers(-(10**15), 10**15), st.booleans()),
)
windows = st.one_of(
    st.builds(chi.SpanWindow, rows(words, 1), st.integers(0, 10**15)),
    st.builds(
        chi.AggregateWindow, words, st.sampled_from(["sliding", "batch"]), st.integers(1, 10**15), st.none()
    ),
    st.builds(
        chi.AggregateWindow, words, st.sampled_from(["sliding", "batch"]), st.none(), st.integers(1, 10**6)
    ),
)
skips = st.one_of(
    st.sampled_from(["none", "next", "past_last"]).map(chi.Skip),
    st.builds(chi.Skip, st.sampled_from(["first", "last"]), words),
)

# SPARQL.

variables = words.map(Variable)
pattern_nodes = st.one_of(variables, st.sampled_from(["_:b", "_:7"]).map(Variable))
literals = st.one_of(
    strings.map(Literal),
    st.builds(lambda text, tag: Literal(text, language=tag), strings, st.sampled_from(["en", "de-at"])),
    st.integers().map(lambda value: Literal(str(value), XSD + "integer")),
    st.floats(-1e9, 1e9).map(lambda value: Literal(f"{value:.3f}", XSD + "decimal")),
    st.floats().map(lambda value: Literal(repr(value), XSD + "double")),
    st.builds(lambda text, iri: Literal(text, iri.value), strings, iris),
).map(normalise)
terms = st.one_of(iris, literals)
paths = st.recursive(
    iris,
    lambda of: st.one_of(
        of.map(sparql.Inverse),
        rows(of, 2).map(sparql.Steps),
        rows(of, 2).map(sparql.Alternative),
        st.builds(
            lambda path, many: sparql.Repeat(path, *many),
            of,
            st.sampled_from([(0, True), (1, True), (0, False)]),
        ),
        st.builds(sparql.Negated, rows(iris), rows(iris)),
    ),
    max_leaves=5,
)
patterns = st.builds(
    sparql.TriplePattern,
    st.one_of(pattern_nodes, terms),
    st.one_of(variables, paths),
    st.one_of(pattern_nodes, terms),
)
triples = rows(patterns, 1).map(sparql.TripleBlock)


@st.composite
def values(draw):
    names = draw(rows(words))
    row = st.tuples(*[st.one_of(st.none(), terms) for _ in names])
    return sparql.Values(names, draw(rows(row)))


def sparql_expressions(groups, functions):
    found = st.recursive(
        st.one_of(
            words.map(VariableRef),
            terms.map(TermConst),
            st.builds(Exists, groups, st.booleans()),
            st.sampled_from(functions).map(lambda name: Call(name, ())),
        ),
        lambda of: calls(
            of,
            st.one_of(
                st.builds(lambda args: Call("notin", args), rows(of, 1)),
                st.builds(lambda args: Call("concat", args), rows(of)),
                st.builds(lambda cast, each: Call(cast, (each,)), casts, of),
            ),
        ),
        max_leaves=5,
    )
    return sealed(found)


def merged(parts):
    """No two blocks of triples side by side: in a text they would be one."""
    kept = []
    for part in parts:
        if kept and isinstance(part, sparql.TripleBlock) and isinstance(kept[-1], sparql.TripleBlock):
            continue
        kept.append(part)
    return tuple(kept)


def group_of(parts, operators):
    groups = rows(parts, 0, 4).map(lambda found: sparql.Group(merged(found)))
    chains = st.builds(
        lambda first, rest: _chain(first, rest),
        groups,
        rows(st.tuples(st.sampled_from(operators), groups), 1),
    )
    return groups, chains


def _chain(first, rest):
    for op, group in rest:
        first = sparql.GroupOperation(op, first, group)
    return first


def groups(operators, functions):
    def larger(smaller):
        exprs = sparql_expressions(smaller, functions)
        inner, chains = group_of(
            st.one_of(
                triples,
                values(),
                exprs.map(sparql.Filter),
                smaller.map(sparql.Optional),
                smaller.map(sparql.MinusGroup),
                st.builds(sparql.Bind, exprs, words),
                smaller,
            ),
            operators,
        )
        chained = st.builds(
            lambda chain, more: sparql.Group((chain, *merged(more))), chains, rows(triples, 0, 1)
        )
        subselect = selects(inner, exprs).map(lambda select: sparql.Group((sparql.SubSelect(select),)))
        return sealed(st.one_of(inner, chained, subselect))

    plain = rows(st.one_of(triples, values()), 0, 2).map(lambda found: sparql.Group(merged(found)))
    return larger(plain)


def selects(where, exprs):
    totals = st.builds(
        lambda op, of, distinct: Aggregate(op, of, distinct),
        st.sampled_from(["COUNT", "SUM", "SAMPLE", "GROUP_CONCAT"]),
        exprs,
        st.booleans(),
    )
    columns = st.one_of(
        words.map(sparql.Projection), st.builds(sparql.Projection, words, st.one_of(exprs, totals))
    )
    keys = st.one_of(words.map(sparql.Projection), st.builds(sparql.Projection, words, exprs))
    grouped = st.builds(
        sparql.Select,
        rows(columns, 1),
        where,
        rows(keys, 1),
        rows(st.one_of(exprs, totals), 0, 2),
        st.booleans(),
    )
    plain = st.builds(sparql.Select, st.one_of(st.none(), rows(columns, 1)), where, distinct=st.booleans())
    return sealed(st.one_of(grouped, plain))


path_blocks = groups(["UNION"], ["bnode"]).map(chi.PathBlock)
ep_groups = groups(["UNION", *sparql.TEMPORAL_OPERATORS], ["getduration", "bnode"])
templates = rows(
    st.builds(
        sparql.TriplePattern,
        st.one_of(variables, iris, st.just(Blank("b"))),
        st.one_of(variables, iris),
        st.one_of(variables, terms, st.just(Blank("b"))),
    )
)
ep_queries = st.builds(
    sparql.EpQuery,
    st.one_of(
        selects(ep_groups, sparql_expressions(ep_groups, ["getendtime"])),
        st.builds(sparql.Construct, templates, ep_groups),
    ),
    st.sampled_from(["unrestricted", "recent", "chronological"]),
    st.just(PREFIXES),
    st.sampled_from([None, "http://h.org/"]),
)
froms = st.builds(
    lambda variable, sources, marks: chi.From(variable, sources, *marks),
    words,
    rows(st.one_of(odd_names, iris), 1),
    st.sampled_from([(False, False), (True, False), (True, True), (False, False, True)]),
)
keys = st.one_of(references, words.map(VariableRef))
chi_queries = st.builds(
    chi.ChiQuery,
    st.one_of(
        st.none(), rows(st.builds(chi.SelectColumn, chi_expressions, st.one_of(st.none(), odd_names)), 1)
    ),
    rows(froms, 0, 2),
    st.one_of(st.none(), st.builds(chi.Within, bounds, bounds)),
    rows(st.builds(chi.Condition, chi_expressions, st.sampled_from(["FILTER", "JOIN"]))),
    st.one_of(st.none(), rows(elements, 1)),
    rows(windows, 0, 2),
    rows(rows(path_blocks, 1, 2), 0, 2),
    st.sampled_from([None, "any", "next", "strict"]),
    st.one_of(st.none(), skips),
    rows(keys, 0, 2),
    rows(keys, 0, 2),
    rows(chi_expressions, 0, 1),
    st.just(PREFIXES),
)


def sound(within):
    """The bounds in an order that the parser accepts, and as it reads them."""
    if within is None or within.low is None or within.high is None:
        return within
    low, high = within.low, within.high
    if (low.at is None) == (high.at is None) and (low.at or 0, low.offset) > (high.at or 0, high.offset):
        return chi.Within(replace(high, inclusive=True), low)
    return within


def parsed(parse, text):
    """The query of a text; not of one with a blank node in two groups, which is not a query."""
    try:
        return parse(SourceText("printed", text))
    except Mistake as mistake:
        assume(not all("is already used in another group" in each.message for each in mistake.diagnostics))
        raise


@pytest.mark.slow
@given(chi_queries)
def test_chi(query):
    query = replace(query, within=sound(query.within))
    assert parsed(parse_chi, chi_text(query)) == query


@pytest.mark.slow
@given(ep_queries)
def test_ep(query):
    assert parsed(parse_ep, ep_text(query)) == query


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((?e.x) + ((?e.y) * 2))", "?e.x + ?e.y * 2"),
        ("(?e.x + ?e.y) * 2", "(?e.x + ?e.y) * 2"),
        ("(?e.x - ?e.y) - (2 - 1)", "?e.x - ?e.y - (2 - 1)"),
        ("(?e.x and ?e.y) or (?e.y and ?e.x)", "?e.x && ?e.y || ?e.y && ?e.x"),
        ("?e.x and (?e.y or ?e.x)", "?e.x && (?e.y || ?e.x)"),
        ("not (?e.x = 1)", "!(?e.x = 1)"),
        ("not not (?e.x)", "!!?e.x"),
        ("-(-(?e.x))", "--?e.x"),
        ("-(5) - (-5)", "-(5) - -5"),
        ("(?e.x = 1) = true", "(?e.x = 1) = true"),
        ("(?e.x + 1) in ((1), (2 + 3))", "?e.x + 1 IN (1, 2 + 3)"),
        ("-(?e.x + 1)", "-(?e.x + 1)"),
        ("- abs(-(?e.x))", "-abs(-?e.x)"),
    ],
)
def test_parentheses_stand_where_they_are_needed(text, printed):
    expr = parse_chi(SourceText("test", f"SELECT * FILTER ({text})")).conditions[0].expr
    assert expression_text(expr) == printed


def test_names_are_shortened_by_the_longest_namespace_that_fits():
    prefixes = {"a": "http://h.org/", "ab": "http://h.org/b#"}
    assert [
        iri_text(Iri(each), prefixes) for each in ("http://h.org/b#c", "http://h.org/c", "http://h.org/c/d")
    ] == [
        "ab:c",
        "a:c",
        "<http://h.org/c/d>",
    ]
