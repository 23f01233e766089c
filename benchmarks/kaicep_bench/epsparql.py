"""EP-SPARQL: a sequence on a key, and the two experiments of the paper's section 6 on events and on classes.

Figure 1 measures throughput against the size of a window: the running sums of the paper's queries (5) and
(6), over time, and the sum over the last sequences, by their number. Figure 2 asks of each triple whether
its subject belongs to a class with 40,080 others below it. Before anything is measured, the reference and
both modes of the kernel answer the beginning of each input, and must agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TypeVar

import numpy as np

import kaicep as kai
from kaicep.errors import Failure, SourceText
from kaicep.kernel.epsparql import EpOperator, Sent
from kaicep.kernel.epsparql.dictionary import TripleColumns
from kaicep.knowledge.store import Knowledge
from kaicep.language.parse_epsparql import parse_ep
from kaicep.plan.algebra import ep_plan
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import EpPlan
from kaicep.plan.terms import RDF, RDFS, XSD, Iri, Literal, Triple
from kaicep.reference.sparql import run_epsparql
from kaicep_bench.table import Cell, Report, Table

__all__ = ["Size", "measure"]

BASE = "urn:kaicep:"
SECOND = 1_000_000
BATCH = 65_536
Rows = list[tuple[Triple, int, int]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Size:
    """How much is run; of windows, `times` are in seconds and `counts` in sequences."""

    triples: int = 1_000_000
    single: int = 20_000
    keys: int = 1_000
    prices: int = 200
    times: tuple[int, ...] = (1, 3, 10)
    sequences: int = 120_000
    slid: int = 100_000
    windows: tuple[str, ...] = ("RANGE PT1S", "RANGE PT10S", "RANGE PT1000S", "ROWS 100", "ROWS 50000")
    edges: int = 10_000
    counts: tuple[int, ...] = (100, 500, 1_000, 50_000)
    typed: tuple[int, ...] = (5_000, 10_000, 15_000, 20_000, 1_000_000)
    classes: int = 40_080
    turns: int = 3


_SMALL_WINDOWS = ("RANGE PT10S", "ROWS 500")
QUICK = Size(
    20_000, 2_000, 100, 20, (1, 3), 1_200, 3_000, _SMALL_WINDOWS, 500, (10, 50), (5_000, 20_000), 500, 1
)


def measure(quick: bool = False) -> Report:
    """Runs everything."""
    size = QUICK if quick else Size()
    return Report(
        "epsparql",
        [
            Table("a SEQ b on a key, within 10 s", _sequence(size)),
            Table("one operator, readings of two kinds on a key", _operators(size)),
            Table("one triple at a time, microseconds from `push` to its answers (medians)", _pushes(size)),
            Table("queries (5) and (6), time windows (figure 1a)", _running_sums(size)),
            Table("mean of the prices before each price, within a duration", _means(size)),
            Table("sum over the last sequences, count windows (figure 1b)", _count_windows(size)),
            Table("sum, count and maximum in a window that slides", _windows(size)),
            Table("paths over random edges, a recursive rule", _closure(size)),
            Table(f"instances of a class with {size.classes:,} below it (figure 2)", _classes(size)),
        ],
        [
            "seconds are those of this process; kernels were compiled or loaded before",
            f"columns come in batches of {BATCH:,}; their matches are columns with ids",
            "the reference and the kernel agreed on the beginning of each input, however it was cut",
            "figure 1a: a chain of sums begins at each price: a window of n prices has n sums at a time",
            f"medians of {size.turns} runs over columns, one of what comes one at a time",
        ],
    )


# --- a sequence on a key -----------------------------------------------------------------------------------

SEQUENCE = """
SELECT ?x ?v ?w WHERE { { ?x :a ?v } SEQ { ?x :b ?w } FILTER (getDURATION() < "PT10S"^^xsd:duration) }
"""


def _sequence(size: Size) -> list[dict[str, Cell]]:
    plans = [_plan(SEQUENCE)]
    columns = _keyed(size.triples, size.keys)
    rows, objects = _rows(columns, size.single), _rows(columns, size.triples // 5)
    _agree(plans, rows[:400], Knowledge.empty())
    seconds, matches = _over_columns(plans, Knowledge.empty(), columns, size.turns)
    found = [_row("columns", size.triples, seconds, matches)]
    taken, answers = _timed(lambda: len(_run(plans, objects, Knowledge.empty())))
    found.append(_row("triples to matches", len(objects), taken, answers))
    taken, answers = _timed(lambda: len(_pushed(plans, rows, Knowledge.empty())))
    found.append(_row("triples to matches, one at a time", len(rows), taken, answers))
    return found


def _keyed(count: int, keys: int) -> TripleColumns:
    """Readings `a` and `b` of some keys, a hundred to a second."""
    random = np.random.default_rng(1)
    terms = [f"<{BASE}a>", f"<{BASE}b>", *(f"<{BASE}x{i}>" for i in range(keys))]
    terms += [f'"{i}"^^<{XSD}integer>' for i in range(1_000)]
    s, p = 2 + random.integers(0, keys, count), random.integers(0, 2, count)
    when = np.arange(count) * SECOND // 100
    return TripleColumns(terms, s, p, 2 + keys + random.integers(0, 1_000, count), when, when)


# --- operator by operator ----------------------------------------------------------------------------------

WITHIN = 'FILTER (getDURATION() < "PT10S"^^xsd:duration)'
OPERATORS = {
    "OPTIONALSEQ": f"{{ {{ ?x :a ?v }} OPTIONALSEQ {{ ?x :b ?w }} {WITHIN} }}",
    "EQUALSOPTIONAL": "{ { ?x :a ?v } EQUALSOPTIONAL { ?x :b ?w } }",
    "NOT": f"{{ {{ {{ ?x :a ?v }} SEQ {{ ?x :a ?w }} {WITHIN} }} NOT {{ ?x :b ?u }} }}",
    "OPTIONAL": f"{{ ?x :a ?v OPTIONAL {{ ?x :b ?w {WITHIN} }} }}",
    "UNION": "{ { ?x :a ?v } UNION { ?x :b ?w } }",
    "MINUS": "{ ?x :a ?v MINUS { ?x :b 7 } }",
    "EXISTS": "{ ?x :a ?v FILTER EXISTS { ?x :b ?v } }",
    "a path": f"{{ ?v ^:a/(:b|:c) ?w {WITHIN} }}",
    "GROUP BY, running": (
        "{ SELECT ?x (COUNT(*) AS ?n) (SUM(?v) AS ?s) (MAX(?v) AS ?m) WHERE { ?x :a ?v } GROUP BY ?x }"
    ),
}


RISES = "CONSTRUCT { ?x :rises ?w } WHERE { { ?x :a ?v } SEQ { ?x :b ?w } FILTER (?w > ?v + 500) WITHIN }"
RULE = (RISES.replace("WITHIN", WITHIN), "SELECT * WHERE { ?x :rises ?w }")


def _operators(size: Size) -> list[dict[str, Cell]]:
    columns = _keyed(size.triples // 5, size.keys)
    rows = _rows(columns, size.single)
    found: list[dict[str, Cell]] = []
    asked = {name: [_plan(f"SELECT * WHERE {where}")] for name, where in OPERATORS.items()}
    asked["a rule and a query"] = [_plan(text, f"q{i}") for i, text in enumerate(RULE)]
    for name, plans in asked.items():
        _agree(plans, rows[:300], Knowledge.empty())
        seconds, matches = _over_columns(plans, Knowledge.empty(), columns, size.turns)
        taken, _ = _timed(lambda: _pushed(plans, rows, Knowledge.empty()))  # noqa: B023
        row = _row(name, len(columns.end), seconds, matches)
        found.append({**row, "us a triple, one at a time": taken / len(rows) * 1e6})
    return found


PUSHED = {
    "no pattern meets it": ("SELECT * WHERE { ?x :c ?v }",),
    "a filter": ("SELECT * WHERE { ?x :a ?v FILTER (?v > 900) }",),
    "a SEQ b on a key": (SEQUENCE,),
    "OPTIONAL": (f"SELECT * WHERE {OPERATORS['OPTIONAL']}",),
    "a rule and a query": RULE,
}


def _pushes(size: Size) -> list[dict[str, Cell]]:
    """The first half of the triples only fills the state."""
    rows = _rows(_keyed(size.single, size.keys), size.single)
    events = [Event("s", 0, seq, end, start=at, triples=(of,)) for seq, (of, at, end) in enumerate(rows)]
    found: list[dict[str, Cell]] = []
    for name, texts in PUSHED.items():
        engine = kai.Engine(
            kai.compile({f"q{i}": each for i, each in enumerate(texts)}, streams={"s": "rdf"})
        )
        taken: dict[bool, list[int]] = {False: [], True: []}
        for event in events:
            started = time.perf_counter_ns()
            answers = engine.push(event)
            taken[bool(answers)].append(time.perf_counter_ns() - started)
        late = {some: each[len(each) // 2 :] for some, each in taken.items()}
        nothing, answer = (median(late[some]) / 1_000 if late[some] else None for some in (False, True))
        found.append({"query": name, "it finds nothing": nothing, "it has an answer": answer})
    return found


# --- figure 1 ----------------------------------------------------------------------------------------------

BEGIN = "CONSTRUCT { _:p :hasCount 1 ; :hasSum ?price } WHERE { :ACME :hasStockPrice ?price }"
SUMS = """
CONSTRUCT _:aaa :hasCount ?count . _:aaa :hasSum ?sum .
{{ SELECT ?count AS ?prevcount + 1
?sum AS ?prevsum + ?price
WHERE
{{{{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }}
SEQ {{ :ACME :hasStockPrice ?price . }}}}
EQUALSOPTIONAL
{{{{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }}
SEQ {{ :ACME :hasStockPrice ?inbetween . }}
SEQ {{ :ACME :hasStockPrice ?price . }}}}
FILTER ( !BOUND(?inbetween) &&
getDURATION() < "PT{0}S"^^xsd:duration )}}
"""
AVERAGE = """
SELECT (?prevsum / ?prevcount AS ?average)
WHERE {{{{ :ACME :hasStockPrice ?price . }}
SEQ {{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }}}}
EQUALSOPTIONAL
{{{{ :ACME :hasStockPrice ?price . }}
SEQ {{ :ACME :hasStockPrice ?inbetween . }}
SEQ {{ ?point :hasCount ?prevcount .
?point :hasSum ?prevsum . }}}}
FILTER ( !BOUND(?inbetween) &&
getDURATION() > "PT{0}S"^^xsd:duration )
"""


def _running_sums(size: Size) -> list[dict[str, Cell]]:
    found: list[dict[str, Cell]] = []
    for seconds in size.times:
        texts = (BEGIN, SUMS.format(seconds), AVERAGE.format(seconds))
        plans = [_plan(text, f"q{i}") for i, text in enumerate(texts)]
        rows = _prices(size.prices)
        _agree(plans, rows[:8], Knowledge.empty())
        taken, answers = _timed(lambda: _run(plans, rows, Knowledge.empty()))  # noqa: B023
        derived = sum(each.query != "q2" for each in answers)
        row = _row(f"{seconds} s", len(rows), taken, len(answers) - derived)
        found.append({**row, "sums derived": derived, "us a sum": taken / max(derived, 1) * 1e6})
    return found


def _prices(count: int) -> Rows:
    random, price = Random(2), Iri(BASE + "hasStockPrice")
    whole = (Literal(str(random.randrange(1, 100)), XSD + "integer") for _ in range(count))
    times = (i * 370_000 for i in range(count))
    return [((Iri(BASE + "ACME"), price, each), at, at) for each, at in zip(whole, times, strict=True)]


MEANS = """
SELECT (AVG(?before) AS ?mean) WHERE {{
  {{ :ACME :hasStockPrice ?before }} SEQ {{ :ACME :hasStockPrice ?price }}
  FILTER (getDURATION() < "PT{0}S"^^xsd:duration)
}} GROUP BY (getENDTIME() AS ?t)
"""


def _means(size: Size) -> list[dict[str, Cell]]:
    """A hundred prices a second, so that a window has a hundred times as many as seconds."""
    rows = [(triple, at // 37, at // 37) for triple, at, _ in _prices(size.slid)]
    found: list[dict[str, Cell]] = []
    for seconds in size.times:
        plans = [_plan(MEANS.format(seconds))]
        _agree(plans, rows[:300], Knowledge.empty())
        taken, answers = _timed(lambda: len(_run(plans, rows, Knowledge.empty())))  # noqa: B023
        found.append(_row(f"{seconds} s", len(rows), taken, answers))
    return found


SEQUENCES = '{ { ?x :a ?u } SEQ { ?x :b ?v } FILTER (getDURATION() < "PT2S"^^xsd:duration) }'
LAST_SEQUENCES = """
SELECT (?s2 - ?s1 AS ?sum) WHERE {
  { SELECT (COUNT(*) + COUNTED AS ?n) (SUM(?v) AS ?s1) WHERE SEQUENCES }
  { SELECT (COUNT(*) AS ?n) (SUM(?v) AS ?s2) WHERE SEQUENCES }
}
"""


def _last_sequences(count: int) -> EpPlan:
    """Running sums, the later minus the one that many sequences before."""
    return _plan(LAST_SEQUENCES.replace("COUNTED", str(count)).replace("SEQUENCES", SEQUENCES))


def _count_windows(size: Size) -> list[dict[str, Cell]]:
    rows = _alternating(size.sequences)
    found: list[dict[str, Cell]] = []
    first = 0.0
    for count in size.counts:
        plans = [_last_sequences(count)]
        _agree([_last_sequences(7)], rows[:60], Knowledge.empty())
        taken, answers = _timed(lambda: _run(plans, rows, Knowledge.empty()))  # noqa: B023
        row = _row(f"{count:,} sequences", len(rows), taken, len(answers))
        first = first or len(rows) / taken
        found.append({**row, "of the first": len(rows) / taken / first})
    return found


def _alternating(count: int) -> Rows:
    """`a` and then `b` of one key after the other: every triple is part of a sequence."""
    names = [Iri(BASE + each) for each in "ab"]
    return [
        ((Iri(f"{BASE}x{i // 2 % 100}"), names[i % 2], Literal(str(i * 7919 % 100), XSD + "integer")), at, at)
        for i, at in ((i, i * SECOND) for i in range(count))
    ]


# --- windows and recursion ---------------------------------------------------------------------------------

IN_WINDOW = """
SELECT (SUM(?v) AS ?s) (COUNT(*) AS ?n) (MAX(?v) AS ?m)
FROM NAMED WINDOW :w ON :prices [{0}] WHERE {{ WINDOW :w {{ :ACME :hasStockPrice ?v }} }}
"""


def _windows(size: Size) -> list[dict[str, Cell]]:
    """One answer for each price, of which there is one every 0.37 s."""
    rows: list[Sent] = [(*each, "prices") for each in _prices(size.slid)]
    found: list[dict[str, Cell]] = []
    for window in size.windows:
        plans = [_plan(IN_WINDOW.format(window))]
        _agree(plans, rows[:40], Knowledge.empty())
        taken, answers = _timed(lambda: len(_run(plans, rows, Knowledge.empty())))  # noqa: B023
        found.append(_row(window, len(rows), taken, answers))
    return found


PATHS = (
    "CONSTRUCT { ?x :path ?y } WHERE { ?x :edge ?y }",
    "CONSTRUCT { ?x :path ?z } WHERE { { ?x :path ?y } SEQ { ?y :edge ?z } }",
    "SELECT ?x ?y WHERE { ?x :path ?y }",
)


def _closure(size: Size) -> list[dict[str, Cell]]:
    """Edges among fewer nodes than there are edges, one after the other."""
    random, edge = Random(4), Iri(BASE + "edge")
    nodes = [Iri(f"{BASE}n{i}") for i in range(size.edges * 5 // 6)]
    rows = [
        ((random.choice(nodes), edge, random.choice(nodes)), i * 1_000, i * 1_000) for i in range(size.edges)
    ]
    plans = [_plan(text, f"q{i}") for i, text in enumerate(PATHS)]
    _agree(plans, rows[:60], Knowledge.empty())
    taken, answers = _timed(lambda: len(_run(plans, rows, Knowledge.empty())))
    row = _row("triples to matches", len(rows), taken, answers)
    return [{**row, "derived/s": answers / 2 / taken}]


# --- figure 2 ----------------------------------------------------------------------------------------------


def _classes(size: Size) -> list[dict[str, Cell]]:
    """Half of the triples are of the class; each class has four right below it, so that eight levels do."""
    lines = [f"<{BASE}c{i}> <{RDFS}subClassOf> <{BASE}c{(i - 1) // 4}> ." for i in range(1, size.classes + 1)]
    started = time.process_time()
    knowledge = Knowledge.parse("\n".join(lines), "nt")
    loading = time.process_time() - started
    plans = [_plan("SELECT ?x WHERE { ?x a :c0 }")]
    _agree(plans, _rows(_typed(100, size.classes), 100), knowledge)
    found: list[dict[str, Cell]] = []
    for count in size.typed:
        columns = _typed(count, size.classes)
        seconds, matches = _over_columns(plans, knowledge, columns, size.turns)
        row = _row("columns", count, seconds, matches)
        found.append({**row, "us a triple": seconds / count * 1e6, "loading, s": loading})
    return found


def _typed(count: int, classes: int) -> TripleColumns:
    random, things = np.random.default_rng(3), max(count // 20, 1)
    terms = [f"<{RDF}type>", *(f"<{BASE}x{i}>" for i in range(things))]
    terms += [f"<{BASE}c{i}>" for i in range(classes + 1)] + [f"<{BASE}d{i}>" for i in range(classes)]
    s, o = 1 + random.integers(0, things, count), 1 + things + random.integers(0, 2 * classes + 1, count)
    when = np.arange(count) * 1_000
    return TripleColumns(terms, s, np.zeros(count, np.int64), o, when, when)


# --- running and comparing ---------------------------------------------------------------------------------


def _plan(text: str, name: str = "q") -> EpPlan:
    return EpPlan(name, text, ep_plan(parse_ep(SourceText(name, text), name)))


def _rows(columns: TripleColumns, count: int) -> Rows:
    """The first triples as objects."""
    from kaicep.kernel.epsparql.reading import term_of

    terms = [term_of(each) for each in columns.terms]
    each = (columns.s, columns.p, columns.o, columns.start, columns.end)
    rows = zip(*(one[:count].tolist() for one in each), strict=True)
    return [((terms[s], terms[p], terms[o]), start, end) for s, p, o, start, end in rows]


def _run(plans: Sequence[EpPlan], rows: Sequence[Sent], knowledge: Knowledge) -> list[Match]:
    running = EpOperator(plans, knowledge)
    return [*running.feed(rows), *running.finish()]


def _pushed(plans: Sequence[EpPlan], rows: Sequence[Sent], knowledge: Knowledge) -> list[Match]:
    """The same, triple by triple."""
    running = EpOperator(plans, knowledge)
    return [*(match for row in rows for match in running.feed([row])), *running.finish()]


def _over_columns(
    plans: Sequence[EpPlan], knowledge: Knowledge, columns: TripleColumns, turns: int
) -> tuple[float, int]:
    """The seconds for all columns, and how many matches there are."""

    def once() -> int:
        running = EpOperator(plans, knowledge)
        found = sum(len(running.feed_columns(part)) for part in _batches(columns))
        return found + len(running.finish())

    taken = [_timed(once) for _ in range(turns)]
    return median(seconds for seconds, _ in taken), taken[0][1]


def _batches(columns: TripleColumns) -> Iterable[TripleColumns]:
    each = (columns.s, columns.p, columns.o, columns.start, columns.end)
    for first in range(0, len(columns.end), BATCH):
        yield TripleColumns(columns.terms, *(one[first : first + BATCH] for one in each))


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def _row(way: str, triples: int, seconds: float, matches: int) -> dict[str, Cell]:
    return {"strategy": way, "triples": triples, "triples/s": triples / seconds, "matches": matches}


def _agree(plans: Sequence[EpPlan], rows: Sequence[Sent], knowledge: Knowledge) -> None:
    """The reference and the kernel must give the same; this also compiles what is to be."""
    reference = run_epsparql(plans, rows, knowledge)
    wanted = sorted((m for each in reference.values() for m in each), key=lambda m: (m.end_us, m.id))
    for run in (_run, _pushed):
        found = sorted(run(plans, rows, knowledge), key=lambda m: (m.end_us, m.id))
        if found != wanted:
            raise Failure(f"the kernel finds {len(found)} matches, the reference {len(wanted)}, or others")
