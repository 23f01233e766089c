"""From groups to operators, substitution, and the two questions that a PATH asks."""

from __future__ import annotations

import pytest

from kaicep.errors import Mistake, SourceText
from kaicep.language.parse_epsparql import parse_ep
from kaicep.plan.algebra import element_variables, ep_plan, substitute, translate, visible_variables
from kaicep.plan.expressions import Exists
from kaicep.plan.nodes import Bgp, Extend, FilterSolutions, Grouping, LeftJoin, Node, Solutions, Temporal
from kaicep.plan.sparql import Element, Group, Select
from kaicep.plan.terms import Iri, Term, Triple
from kaicep.plan.text import group_text
from kaicep.reference.sparql import TimedGraph, bindings, evaluate, exists


def group(text: str) -> Group:
    form = parse_ep(SourceText("q", f"SELECT * WHERE {text}")).form
    assert isinstance(form, Select)
    return form.where


def root(text: str) -> Node:
    return ep_plan(parse_ep(SourceText("q", text)))


def iri(name: str) -> Iri:
    return Iri(f"urn:kaicep:{name}")


def graph(text: str) -> TimedGraph:
    triples: list[Triple] = []
    for line in text.strip().splitlines():
        s, p, o = line.split()
        triples.append((iri(s), iri(p), iri(o)))
    return TimedGraph(None, [(each, None) for each in triples])


# --- translation -------------------------------------------------------------------------------------


def test_a_filter_judges_its_whole_group_and_does_not_part_its_triples() -> None:
    plan = translate(group("{ ?x p ?y FILTER (?z = 1) ?y q ?z }"))
    assert isinstance(plan, FilterSolutions)
    assert isinstance(plan.input, Bgp)
    assert len(plan.input.patterns) == 2


def test_the_filter_of_an_optional_group_is_its_condition() -> None:
    plan = translate(group("{ ?x p ?y OPTIONAL { ?x q ?z FILTER (?z != ?y) FILTER (BOUND(?z)) } }"))
    assert isinstance(plan, LeftJoin)
    assert isinstance(plan.right, Bgp)
    assert plan.condition is not None
    nested = translate(group("{ ?x p ?y OPTIONAL { { ?x q ?z FILTER (?z != ?y) } } }"))
    assert isinstance(nested, LeftJoin)
    assert nested.condition is None


@pytest.mark.parametrize(
    ("op", "side"), [("OPTIONALSEQ", "left"), ("EQUALSOPTIONAL", "right"), ("SEQ", None)]
)
def test_the_filter_of_the_optional_side_of_a_temporal_operator(op: str, side: str | None) -> None:
    plan = translate(group(f"{{ {{ ?x p ?y FILTER (?y = 1) }} {op} {{ ?x q ?z FILTER (?z = 2) }} }}"))
    assert isinstance(plan, Temporal)
    kept = {"left": isinstance(plan.left, FilterSolutions), "right": isinstance(plan.right, FilterSolutions)}
    assert kept == {"left": side != "left", "right": side != "right"}
    assert (plan.condition is None) == (side is None)


def test_the_policy_reaches_every_temporal_operator() -> None:
    plan = root("CONSUMPTION recent SELECT ?x { { ?x p ?y } SEQ { { ?x q ?z } EQUALS { ?x r ?z } } }")
    assert {each.consumption for each in plan.walk() if isinstance(each, Temporal)} == {"recent"}


def test_exists_holds_operators() -> None:
    plan = translate(group("{ ?x p ?y FILTER NOT EXISTS { ?x q ?z } }"))
    assert isinstance(plan, FilterSolutions)
    assert isinstance(plan.condition, Exists)
    assert isinstance(plan.condition.group, Bgp)


def test_aggregates_move_into_the_grouping() -> None:
    plan = root(
        "SELECT ?x (SUM(?y) / COUNT(?y) AS ?v) (SUM(?y) AS ?s) { ?x p ?y } GROUP BY ?x HAVING (COUNT(?y) > 1)"
    )
    assert isinstance(plan, Solutions)
    assert plan.names == ("x", "v", "s")
    assert [type(each) for each in plan.walk()] == [Solutions, Extend, Extend, FilterSolutions, Grouping, Bgp]
    grouping = next(each for each in plan.walk() if isinstance(each, Grouping))
    assert [each.op for _, each in grouping.aggregates] == ["COUNT", "SUM"]


def test_a_star_selects_what_is_visible_in_the_order_of_the_text() -> None:
    plan = root("SELECT * { ?b p [] . ?a q ?b OPTIONAL { ?c r ?a } MINUS { ?d r ?a } FILTER (?e = 1) }")
    assert isinstance(plan, Solutions)
    assert plan.names == ("b", "a", "c")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("NOW()", r"NOW\(\) is refused"),
        ("RAND()", r"RAND\(\) is refused"),
        ("STRUUID()", r"STRUUID\(\) is refused"),
        ("<urn:f>(?x)", "unknown function <urn:f>"),
    ],
)
def test_functions_that_are_refused_are_pointed_at(expression: str, message: str) -> None:
    with pytest.raises(Mistake, match=message) as caught:
        root(f"SELECT ?x {{ ?x p ?y FILTER ({expression} = 1) }}")
    assert "q:1:" in str(caught.value)


# --- variables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bound", "mentioned"),
    [
        ("{ ?x p ?y }", "x y", "x y"),
        ("{ ?x ?p 1 FILTER (?z = ?x) }", "x p", "x p z"),
        ("{ ?x p 1 OPTIONAL { ?x q ?y } MINUS { ?x q ?z } }", "x y", "x y z"),
        ("{ ?x p 1 FILTER NOT EXISTS { ?x q ?y } }", "x", "x y"),
        ("{ { ?x p 1 } NOT { ?x q ?y } }", "x", "x y"),
        ("{ ?x p 1 BIND (?y AS ?z) }", "x z", "x y z"),
        ("{ VALUES (?x ?y) { (1 2) } }", "x y", "x y"),
        ("{ { SELECT ?x (COUNT(?y) AS ?n) WHERE { ?x p ?y } GROUP BY ?x } }", "x n", "x n"),
    ],
)
def test_the_variables_of_a_group(text: str, bound: str, mentioned: str) -> None:
    assert visible_variables(group(text)) == tuple(bound.split())
    assert element_variables(group(text)) == frozenset(mentioned.split())


def test_blank_nodes_are_variables_that_nobody_can_name() -> None:
    assert any(each.startswith("_:") for each in element_variables(group("{ ?x p [ q ?y ] }")))


# --- substitution ------------------------------------------------------------------------------------


def one_line(element: Element) -> str:
    assert isinstance(element, Group)
    return " ".join(group_text(element).split()).replace("urn:kaicep:", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{ ?x p ?y }", "{ <a> <p> ?y . }"),
        ("{ ?y ?x ?x }", "{ ?y <a> <a> . }"),
        (
            "{ ?y p 1 OPTIONAL { ?x q ?y } MINUS { ?y r ?x } }",
            "{ ?y <p> 1 . OPTIONAL { <a> <q> ?y . } MINUS { ?y <r> <a> . } }",
        ),
        ("{ ?y p 1 FILTER (?x = ?y && BOUND(?x)) }", "{ ?y <p> 1 . FILTER (<a> = ?y && true) }"),
        ("{ ?y p 1 FILTER EXISTS { ?y q ?x } }", "{ ?y <p> 1 . FILTER EXISTS { ?y <q> <a> . } }"),
        ("{ { ?x p ?y } SEQ { ?y q ?x } }", "{ { <a> <p> ?y . } SEQ { ?y <q> <a> . } }"),
        ("{ BIND (?x AS ?y) }", "{ BIND (<a> AS ?y) }"),
        ("{ BIND (?y AS ?x) }", "{ FILTER (COALESCE(sameTerm(?y, <a>), true)) }"),
    ],
)
def test_substitution_reaches_everything(text: str, expected: str) -> None:
    assert one_line(substitute(group(text), {"x": iri("a")})).lower() == expected.lower()


GRAPH = graph(
    """
    a p b
    a q c
    b p c
    c p a
    """
)


@pytest.mark.parametrize(
    "text",
    [
        "{ ?x p ?y . ?y p ?z }",
        "{ ?x p ?y OPTIONAL { ?x q ?z } }",
        "{ ?x p ?y FILTER NOT EXISTS { ?x q ?z } }",
        "{ ?y p ?z BIND (?y AS ?x) }",
        "{ ?y p ?z VALUES (?x ?y) { (a a) (b b) (UNDEF c) } }",
        "{ { SELECT ?x (COUNT(*) AS ?n) WHERE { ?x p|q ?y } GROUP BY ?x } }",
        "{ { SELECT (?y AS ?x) ?z WHERE { ?y p ?z } } }",
        "{ { SELECT ?x ?y WHERE { ?x p ?y } } }",
        "{ ?x p+ ?y }",
        "{ { ?x p ?y } UNION { ?y q ?x } }",
    ],
)
def test_to_substitute_is_to_be_given(text: str) -> None:
    names = [each for each in visible_variables(group(text)) if each != "x"]
    for value in ("a", "b", "c", "d"):
        known: dict[str, Term] = {"x": iri(value)}
        everything = bindings(group(text), GRAPH, ["x", *names])
        chosen = {row[1:] for row in everything if row[0] in (None, known["x"])}
        assert bindings(group(text), GRAPH, names, known) == chosen
        assert bindings(substitute(group(text), known), GRAPH, names) == chosen


# --- what a PATH asks --------------------------------------------------------------------------------


def test_whether_there_is_a_solution() -> None:
    assert exists(group("{ ?x q ?y }"), GRAPH)
    assert exists(group("{ ?x q ?y }"), GRAPH, {"x": iri("a")})
    assert not exists(group("{ ?x q ?y }"), GRAPH, {"x": iri("b")})
    assert exists(group("{ }"), GRAPH)


def test_the_values_of_some_variables() -> None:
    assert bindings(group("{ ?x p ?y OPTIONAL { ?x q ?z } }"), GRAPH, ["x", "z"]) == {
        (iri("a"), iri("c")),
        (iri("b"), None),
        (iri("c"), None),
    }


def test_an_alternative_counts_each_of_its_branches() -> None:
    # SPARQL translates `p|q` to a UNION, and `p/q` to two patterns with a variable between.
    both = graph("a p b\na q b\nb p c\nb q c")
    assert len(evaluate(translate(group("{ :a p|q ?y }")), both)) == 2
    assert len(evaluate(translate(group("{ :a (p|q)/(p|q) ?y }")), both)) == 4
    assert len(evaluate(translate(group("{ :a (p|q)+ ?y }")), both)) == 2


def test_an_empty_path_from_a_named_node_needs_no_triple() -> None:
    assert bindings(group("{ nowhere p* ?y }"), GRAPH, ["y"]) == {(iri("nowhere"),)}
    assert not exists(group("{ VALUES ?x { nowhere } ?x p* ?y }"), GRAPH)
    # Between two variables only nodes of the graph are joined; p and q are none.
    assert not exists(group("{ :a ?w ?z . ?w p* ?y }"), GRAPH)


def test_without_time_the_one_group_may_be_empty() -> None:
    counted = group("{ { SELECT (COUNT(*) AS ?n) WHERE { ?x none ?y } } }")
    ((count,),) = bindings(counted, GRAPH, ["n"])
    assert count is not None
    assert "0" in str(count)
