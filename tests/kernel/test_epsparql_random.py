"""Random queries and streams: the kernel answers as the reference, however the input is cut and saved."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from tests.effort import FEWER
from tests.kernel.epsparql_support import Rows, both
from tests.reference.epsparql_support import SECOND, term

from kaicep.plan.sparql import TEMPORAL_OPERATORS

KNOWN = ":a :p :b . :p rdfs:subPropertyOf :q . :c :r :a . :b :r 2 . :c :s :b ."
GRAPHS = KNOWN + " :b { :a :r :c . :c :r 2 . :a :p 1 . } :c { :a :r :b . :b :q :b . }"
PREDICATES = [":p", ":q", ":r", ":p", ":q", ":p+", ":q*", "(:p/:r)", "^:r", "(:p|:r)", "!:p", "?w"]
PREDICATES += ["(:p|:r)+", "(:p/:r)+", ":p?", ":p/:q*", ":p*/:r?", "(:p*|^:r)+", "(:p?/:r)*"]
AGGREGATES = ["COUNT(*)", "COUNT(DISTINCT ?y)", "SUM(?y)", "AVG(?y)", "MIN(?y)", "MAX(?z)", "SAMPLE(?y)"]
AGGREGATES += ["GROUP_CONCAT(STR(?y))", "SUM(DISTINCT ?y)", "COUNT(DISTINCT *)"]

GROWING = ["SEQ", "PAR", "MEETS", "EQUALS", "STARTS"]


class Maker:
    """Makes streams and queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names, self.graphs = 0, False

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def stream(self, most: int, until: int) -> Rows:
        rows: Rows = []
        for _ in range(self.random.randrange(2, most)):
            s, p, o = self.random.choice("abc"), self.random.choice("pqrs"), self.random.choice("abc12")
            start = self.random.randrange(until)
            end = start + self.random.choice([0, 0, 0, 1, 2, 5])
            rows.append(((term(s), term(p), term(o)), start * SECOND, end * SECOND))
        return rows

    def triple(self) -> str:
        ends = ["?x", "?y", "?z", "?x", "?y", ":a"]
        return f"{self.random.choice(ends)} {self.random.choice(PREDICATES)} {self.random.choice(ends)} ."

    def duration(self) -> str:
        sign = self.pick("<", "<=", "<", ">")
        return f'getDURATION() {sign} "PT{self.random.randrange(1, 6)}S"^^xsd:duration'

    def condition(self, depth: int) -> str:
        choices = ["?x != ?y", "BOUND(?z)", "!BOUND(?y)", self.duration(), "?y = 1", "?y + 1 > ?z"]
        if depth:
            exists = f"{self.pick('', 'NOT ')}EXISTS {self.group(depth - 1)}"
            choices += [exists, exists, f"?x = ?y || {exists}"]
        return self.random.choice(choices)

    def element(self, depth: int) -> str:
        kinds = ["triple", "triple", "filter", "values", "bind"]
        if depth:
            kinds += ["graph"] if self.graphs else []
            kinds += ["optional", "minus", "union", "temporal", "temporal", "temporal", "select", "sub"]
        self.names += 1
        match self.random.choice(kinds):
            case "filter":
                return f"FILTER ({self.condition(depth)})"
            case "values":
                return self.pick("VALUES ?x { :a :b }", "VALUES (?x ?y) { (:a UNDEF) (UNDEF 1) }")
            case "bind":
                values = ["?y + 1", "STR(?x)", "getSTARTTIME()", "?z"]
                if depth:
                    values.append(f"IF (EXISTS {self.group(depth - 1)}, ?x, 0)")
                return f"BIND ({self.random.choice(values)} AS ?n{self.names})"
            case "graph":
                inner = self.pick("", self.triple(), f"OPTIONAL {{ {self.triple()} }}", "FILTER (?x != ?y)")
                return f"GRAPH {self.pick('?z', '?g', ':b')} {{ {self.triple()} {inner} }}"
            case "optional":
                return f"OPTIONAL {self.group(depth - 1)}"
            case "minus":
                return f"MINUS {self.group(depth - 1)}"
            case "union":
                return f"{self.group(depth - 1)} UNION {self.group(depth - 1)}"
            case "temporal":
                op = self.random.choice(TEMPORAL_OPERATORS)
                return f"{{ {self.group(depth - 1)} {op} {self.group(depth - 1)} }}"
            case "select":
                of = self.random.choice(AGGREGATES)
                keys = self.pick("?x", "?x", "?x ?z", "(STR(?y) AS ?k)")
                shown = keys if "(" not in keys else "?k"
                having = self.pick("", "", "HAVING (COUNT(*) > 1)")
                inner = self.group(depth - 1)
                return f"{{ SELECT {shown} ({of} AS ?n{self.names}) WHERE {inner} GROUP BY {keys} {having} }}"
            case "sub":
                return f"{{ SELECT {self.pick('DISTINCT ', '')}?x ?y WHERE {self.group(depth - 1)} }}"
            case _:
                return self.triple()

    def group(self, depth: int) -> str:
        parts = [self.element(depth) for _ in range(self.random.choice([1, 1, 2]))]
        return f"{{ {self.triple() if self.random.random() < 0.8 else ''} {' '.join(parts)} }}"

    def bounded(self, depth: int) -> str:
        """A group with a bound on its duration, by which the operators below may forget."""
        return f'{{ {self.group(depth)} FILTER (getDURATION() < "PT4S"^^xsd:duration) }}'

    def select(self, where: str) -> str:
        policy = self.pick("unrestricted", "unrestricted", "recent", "chronological")
        return f"CONSUMPTION {policy} SELECT * WHERE {where}"

    def rule_on_earlier(self) -> str:
        """It reads only what ended strictly before, so it settles whatever the group says."""
        return f"CONSTRUCT {{ ?x :r ?y }} WHERE {{ {self.group(1)} SEQ {{ ?x :q ?y }} }}"

    def growing_rule(self) -> str:
        """It makes no new terms, so it ends, and may read what it derives at the same instant."""
        ends = ["?x", "?y", "?z"]
        pick = self.random.choice
        triples = [f"{pick(ends)} {pick([':p', ':q', ':p+', '?w'])} {pick(ends)} ." for _ in range(3)]
        body = pick(
            [
                f"{{ {triples[0]} {triples[1]} }}",
                f"{{ {{ {triples[0]} }} {pick(GROWING)} {{ {triples[1]} }} }}",
                f"{{ {{ {triples[0]} }} UNION {{ {triples[1]} {triples[2]} }} }}",
                f"{{ {{ SELECT ?x ?y WHERE {{ {triples[0]} FILTER (?x != ?y) }} }} {{ {triples[1]} }} }}",
            ]
        )
        return f"CONSTRUCT {{ ?x {pick([':p', ':q', ':r'])} ?y }} WHERE {body}"

    def recursive_rule(self) -> str:
        """The same with what runs over columns alone: paths as long wherever they lead, and bounds."""
        pick, names = self.random.choice, [":p", ":q", ":r", "(:p|:r)", "(:p/:q)"]
        ends = ["?x", "?y", "?z"]
        a, b, c = (f"{{ {pick(ends)} {pick(names)} {pick(ends)} }}" for _ in range(3))
        ops = [*GROWING, "DURING", "FINISHES"]
        body = pick(
            [
                f"{a} {b}",
                f"{a} {pick(ops)} {b}",
                f"{{ {a} {pick(ops)} {b} }} {pick(ops)} {c}",
                f"{a} UNION {b}",
            ]
        )
        within = pick(["", "", 'FILTER (getDURATION() < "PT4S"^^xsd:duration)'])
        return f"CONSTRUCT {{ ?x {pick([':p', ':q', ':r'])} ?y }} WHERE {{ {body} {within} }}"

    def rule_that_takes_back(self) -> str:
        """What is made is read before SEQ alone, so that at its own instant nothing hangs on it."""
        pick, ends = self.random.choice, ["?x", "?y", "?z"]

        def group() -> str:
            read, other = (
                f"{{ {pick(ends)} {pick(names)} {pick(ends)} }}" for names in ([":r", ":s"], [":p", ":q"])
            )
            return pick([other, f"{{ {read} SEQ {other} }}", f"{{ {read} SEQ {other} }}"])

        a, b = group(), group()
        body = pick(
            [
                f"{a} OPTIONAL {b}",
                f"{a} MINUS {b}",
                f"{a} FILTER {pick(['', 'NOT '])}EXISTS {b}",
                f"{{ {a} {pick(['NOT', 'OPTIONALSEQ', 'EQUALSOPTIONAL'])} {b} }}",
                f"CONSUMPTION {a} SEQ {b}",
                f"{{ SELECT ?x ?y (COUNT(*) AS ?n) WHERE {{ {a} {b} }} GROUP BY ?x ?y }} FILTER (?n != 2)",
            ]
        )
        policy = ""
        if body.startswith("CONSUMPTION"):
            policy, body = (
                f"CONSUMPTION {pick(['recent', 'chronological'])} ",
                body.removeprefix("CONSUMPTION "),
            )
        return f"{policy}CONSTRUCT {{ ?x {pick([':r', ':s'])} ?y }} WHERE {{ {body} }}"


def agree(rows: Rows, queries: list[str], seed: int | None = None, known: str = KNOWN) -> None:
    note("\n".join(queries))
    expected, found = both(rows, *queries, knowledge=known, seed=seed)
    assert found == expected


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_query(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(9, 6), [maker.select(maker.group(2))])


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_query_of_named_graphs(seed: int) -> None:
    maker = Maker(seed)
    maker.graphs = True
    asked = f"{{ {maker.triple()} GRAPH {maker.pick('?g', ':b')} {{ {maker.triple()} }} {maker.element(2)} }}"
    agree(maker.stream(9, 6), [maker.select(asked), maker.select(maker.group(2))], seed, GRAPHS)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_any_cut_and_a_state_that_is_saved(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(14, 8), [maker.select(maker.group(2)), maker.select(maker.group(1))], seed)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
@example(817879810)  # a path whose links are more than they were after the last sweep
def test_what_is_forgotten_is_never_missed(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(25, 40), [maker.select(maker.bounded(2))], seed)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_rules_on_what_came_earlier(seed: int) -> None:
    maker = Maker(seed)
    agree(maker.stream(9, 6), [maker.rule_on_earlier(), maker.select(maker.group(1))], seed)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_rules_that_only_grow(seed: int) -> None:
    maker = Maker(seed)
    rules = [maker.growing_rule(), maker.growing_rule()]
    agree(maker.stream(7, 4), [*rules, maker.select(maker.group(1))], seed)


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_rules_that_read_what_they_make_over_columns(seed: int) -> None:
    maker = Maker(seed)
    rules = [maker.recursive_rule() for _ in range(maker.random.choice([1, 2, 3]))]
    queries = [*rules, "SELECT * WHERE { { ?x :p ?y } SEQ { ?y :q ?z } }"]
    agree(maker.stream(14, 8), queries, maker.random.choice([None, seed]))


@pytest.mark.random
@settings(max_examples=FEWER, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_rules_that_take_back_and_are_read_later(seed: int) -> None:
    maker = Maker(seed)
    rules = [maker.rule_that_takes_back() for _ in range(maker.random.choice([1, 2]))]
    queries = [*rules, maker.select(maker.group(1))]
    agree(maker.stream(14, 8), queries, maker.random.choice([None, seed]))


def test_a_rule_comes_after_those_that_it_reads_although_they_read_themselves() -> None:
    rules = [
        "CONSTRUCT { ?x :r ?y } WHERE { ?x :q ?y }",
        "CONSTRUCT { ?x :q ?z } WHERE { { ?x :q ?y } { ?y :q ?z } }",
    ]
    expected, found = both("1 a q b\n2 b q c\n3 c q d", *rules, "SELECT * { ?x :r ?y }")
    assert len(expected["q2"]) == 6
    assert found == expected
