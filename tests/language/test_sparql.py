"""Every construct of SPARQL groups, as PATH and EP-SPARQL share them."""

import pytest

from kaicep.errors import SourceText
from kaicep.language import parse_ep
from kaicep.language.lexer import absolute
from kaicep.plan.expressions import Aggregate, Call, Exists, TermConst, VariableRef
from kaicep.plan.functions import SPARQL_FUNCTIONS
from kaicep.plan.sparql import (
    Alternative,
    Bind,
    Construct,
    Filter,
    Group,
    GroupOperation,
    Inverse,
    MinusGroup,
    Negated,
    Optional,
    Projection,
    Repeat,
    Steps,
    SubSelect,
    TripleBlock,
    TriplePattern,
    Values,
)
from kaicep.plan.terms import RDF, XSD, Blank, Iri, Literal, Variable
from kaicep.plan.text import ep_text

P, Q, TYPE = Iri("urn:p"), Iri("urn:q"), Iri(RDF + "type")
S, O, A = Variable("s"), Variable("o"), Variable("a")  # noqa: E741
PROLOGUE = "PREFIX u: <urn:> "


def query(text):
    found = parse_ep(SourceText("test", PROLOGUE + text))
    assert parse_ep(SourceText("printed", ep_text(found))) == found
    return found


def elements(text):
    return query(f"SELECT * WHERE {{ {text} }}").form.where.elements


def triples(text):
    (block,) = elements(text)
    return [(each.subject, each.predicate, each.object) for each in block.patterns]


def expression(text):
    (found,) = elements(f"FILTER ({text})")
    return found.condition


def integer(text):
    return Literal(text, XSD + "integer")


FIRST, REST, NIL = Iri(RDF + "first"), Iri(RDF + "rest"), Iri(RDF + "nil")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("?s u:p ?o", [(S, P, O)]),
        ("?s u:p ?o, ?a ; a u:q ; . ?a u:q $o .", [(S, P, O), (S, P, A), (S, TYPE, Q), (A, Q, O)]),
        ("_:x u:p _:x", [(Variable("_:x"), P, Variable("_:x"))]),
        ("[] u:p ?o", [(Variable("_:0"), P, O)]),
        ("_:0 u:p []", [(Variable("_:0"), P, Variable("_:1"))]),
        ("[ u:p ?o ]", [(Variable("_:0"), P, O)]),
        ("?s u:p [ u:q ?o ]", [(Variable("_:0"), Q, O), (S, P, Variable("_:0"))]),
        ("?s u:p ()", [(S, P, NIL)]),
        ("?s u:p (?o)", [(Variable("_:0"), FIRST, O), (Variable("_:0"), REST, NIL), (S, P, Variable("_:0"))]),
        ("?s ?a ?o", [(S, A, O)]),
        ("p q true", [(Iri("urn:kaicep:p"), Iri("urn:kaicep:q"), Literal("true", XSD + "boolean"))]),
    ],
)
def test_triples(text, expected):
    assert triples(text) == expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("u:p/u:q", Steps((P, Q))),
        ("(u:p/u:q)/a", Steps((Steps((P, Q)), TYPE))),
        ("u:p|^u:q", Alternative((P, Inverse(Q)))),
        ("^(u:p/u:q)", Inverse(Steps((P, Q)))),
        ("u:p*/u:q+", Steps((Repeat(P, 0, True), Repeat(Q, 1, True)))),
        ("u:p?", Repeat(P, 0, False)),
        ("(u:p|u:q)*", Repeat(Alternative((P, Q)), 0, True)),
        ("^u:p*", Inverse(Repeat(P, 0, True))),
        ("(^u:p)*", Repeat(Inverse(P), 0, True)),
        ("(u:p*)*", Repeat(Repeat(P, 0, True), 0, True)),
        ("!u:p", Negated((P,), ())),
        ("!(u:p|^u:q|a)", Negated((P, TYPE), (Q,))),
        ("!()", Negated((), ())),
    ],
)
def test_paths(text, path):
    assert triples(f"?s {text} ?o") == [(S, path, O)]


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("5", integer("5")),
        ("+5", integer("+5")),
        ("-5", integer("-5")),
        ("1.50", Literal("1.50", XSD + "decimal")),
        ("1e3", Literal("1e3", XSD + "double")),
        ("1.e3", Literal("1.e3", XSD + "double")),
        ("false", Literal("false", XSD + "boolean")),
        ("'a'", Literal("a")),
        ('"""a\n"b" \\" c"""', Literal('a\n"b" " c')),
        ("'''it's'''", Literal("it's")),
        (r"'\u00e9\U0001F600\n'", Literal("é😀\n")),
        ("'a'@en-GB", Literal("a", language="en-gb")),
        ("'007'^^xsd:integer", integer("007")),
        ("'P1D'^^<http://www.w3.org/2001/XMLSchema#duration>", Literal("P1D", XSD + "duration")),
    ],
)
def test_literals(text, literal):
    assert triples(f"?s u:p {text}") == [(S, P, literal)]
    assert triples(f"?s u:p {text}.") == [(S, P, literal)]


X, Y = VariableRef("x"), VariableRef("y")
ONE = TermConst(integer("1"))


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("?x<?y&&?y>1", Call("and", (Call("<", (X, Y)), Call(">", (Y, ONE))))),
        ("!?x = ?y", Call("=", (Call("not", (X,)), Y))),
        ("!(?x = ?y)", Call("not", (Call("=", (X, Y)),))),
        ("?x -1", Call("-", (X, ONE))),
        ("?x * -1", Call("*", (X, TermConst(integer("-1"))))),
        ("- ?x", Call("neg", (X,))),
        ("?x IN ()", Call("in", (X,))),
        ("?x NOT IN (1, ?y)", Call("notin", (X, ONE, Y))),
        ("xsd:integer(?x)", Call(XSD + "integer", (X,))),
        ("isURI(?x)", Call("isiri", (X,))),
        ("?x = ACME", Call("=", (X, TermConst(Iri("urn:kaicep:ACME"))))),
        ("getENDTIME()", Call("getendtime", ())),
        (
            "EXISTS { ?x u:p ?y }",
            Exists(Group((TripleBlock((TriplePattern(Variable("x"), P, Variable("y")),)),))),
        ),
    ],
)
def test_expressions(text, expr):
    assert expression(text) == expr


@pytest.mark.parametrize(
    "name", [n for n, own in SPARQL_FUNCTIONS.items() if ":" not in n and not own.refused]
)
def test_every_function_with_its_least_and_most_arguments(name):
    own = SPARQL_FUNCTIONS[name]
    for given in {own.least, own.least + 2 if own.most is None else own.most}:
        arguments = ", ".join(["?x"] * given)
        assert expression(f"{name.upper()}({arguments})") == Call(name, (X,) * given)


INNER = Group((TripleBlock((TriplePattern(S, P, O),)),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FILTER bound(?x)", (Filter(Call("bound", (X,))),)),
        ("FILTER xsd:integer(?x)", (Filter(Call(XSD + "integer", (X,))),)),
        ("FILTER NOT EXISTS { ?s u:p ?o }", (Filter(Exists(INNER, True)),)),
        ("OPTIONAL { ?s u:p ?o }", (Optional(INNER),)),
        ("MINUS { ?s u:p ?o }", (MinusGroup(INNER),)),
        ("{ ?s u:p ?o }", (INNER,)),
        ("{ ?s u:p ?o } { ?s u:p ?o }", (INNER, INNER)),
        ("BIND (?x + 1 AS ?y)", (Bind(Call("+", (X, ONE)), "y"),)),
        ("VALUES ?x { 1 u:p UNDEF }", (Values(("x",), ((integer("1"),), (P,), (None,))),)),
        ("VALUES (?x ?y) { (1 'a') (UNDEF u:p) }", (
            Values(("x", "y"), ((integer("1"), Literal("a")), (None, P))),)),
        ("VALUES () { () }", (Values((), ((),)),)),
    ],
)  # fmt: skip
def test_groups(text, expected):
    assert elements(text) == expected


def test_operators_are_equally_tight_and_lean_to_the_left():
    (found,) = elements("{?s u:p ?o} UNION {?s u:p ?o} SEQ {?s u:p ?o} NOT {?s u:p ?o}")
    union = GroupOperation("UNION", INNER, INNER)
    assert found == GroupOperation("NOT", GroupOperation("SEQ", union, INNER), INNER)


def test_a_subselect():
    text = """{ SELECT DISTINCT ?x (SUM(?y) AS ?sum) (GROUP_CONCAT(DISTINCT ?y ; separator=', ') AS ?all)
        WHERE { ?x u:p ?y } GROUP BY ?x (?y + 1) STR(?y) (?y AS ?z) HAVING (COUNT(*) > 1) (?x > 1) }"""
    ((inner,),) = (each.elements for each in elements(text))
    assert isinstance(inner, SubSelect)
    select = inner.select
    assert select.distinct
    assert select.columns[1:] == (
        Projection("sum", Aggregate("SUM", Y)),
        Projection("all", Aggregate("GROUP_CONCAT", Y, True, separator=", ")),
    )
    assert [each.name for each in select.group_by] == ["x", "_:0", "_:1", "z"]
    assert select.having[0] == Call(">", (Aggregate("COUNT", None), ONE))
    assert len(select.having) == 2


def test_templates():
    form = query("CONSTRUCT { _:a u:p [ u:q ?o ] } WHERE { ?s u:p ?o }").form
    assert [each.subject for each in form.template] == [Blank("0"), Blank("a")]
    short = query("CONSTRUCT WHERE { ?s u:p _:o }").form
    assert short == Construct(
        (TriplePattern(S, P, Blank("o")),), Group((TripleBlock((TriplePattern(S, P, Variable("_:o")),)),))
    )


@pytest.mark.parametrize("policy", ["recent", "chronological", "unrestricted"])
def test_consumption(policy):
    assert query(f"CONSUMPTION {policy.upper()} SELECT ?x {{ ?x u:p 1 }}").consumption == policy


def test_columns_in_every_layout():
    text = "SELECT ?a (?x + 1 AS ?b) ?c AS ?x * 2 ?x / ?y AS ?d ?x AS ?e (?x) + 1 AS ?f { ?x u:p ?y }"
    assert [each.name for each in query(text).form.columns] == ["a", "b", "c", "d", "e", "f"]


def test_names_with_dots_dashes_and_escapes():
    found = triples(r"u:a.b u:c-d u:e\,f%20:g .")
    assert found == [(Iri("urn:a.b"), Iri("urn:c-d"), Iri("urn:e,f%20:g"))]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("d", "http://a.org/b/d"),
        ("../d?x#y", "http://a.org/d?x#y"),
        ("../../../d", "http://a.org/d"),
        ("./d/.", "http://a.org/b/d/"),
        ("/d", "http://a.org/d"),
        ("//h/d", "http://h/d"),
        ("#x", "http://a.org/b/c?q#x"),
        ("?x", "http://a.org/b/c?x"),
        ("urn:z", "urn:z"),
    ],
)
def test_relative_names(reference, expected):
    assert absolute(reference, "http://a.org/b/c?q#f") == expected


def test_base():
    found = query("BASE <http://a.org/b/c> PREFIX d: <d/> SELECT * { <../e> d:f 1 }")
    (pattern,) = found.form.where.elements[0].patterns
    assert (pattern.subject, pattern.predicate) == (Iri("http://a.org/e"), Iri("http://a.org/b/d/f"))
