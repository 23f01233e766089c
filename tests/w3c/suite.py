"""The tests of SPARQL 1.0 and 1.1 by the W3C: read from their manifests, run with all data at one instant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from zipfile import ZipFile

import pyoxigraph as ox
from tests.servers import jars_of, locked

from kaicep.errors import SourceText
from kaicep.kernel.epsparql import EpOperator
from kaicep.knowledge.store import Knowledge
from kaicep.language.parse_epsparql import parse_ep
from kaicep.plan.algebra import ep_plan
from kaicep.plan.nodes import EpPlan
from kaicep.plan.rdf_text import term_of, triple_of
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple
from kaicep.plan.values import normalise
from kaicep.reference.sparql import run_epsparql

POM = Path(__file__).parent.parent.parent / "scripts" / "w3c-pom.xml"
PARTS = ("testcases-sparql-1.0-w3c/data-r2/", "testcases-sparql-1.1-w3c/")
INSTANT = 1_000_000

_MF = "http://www.w3.org/2001/sw/DataAccess/tests/test-manifest#"
_QT = "http://www.w3.org/2001/sw/DataAccess/tests/test-query#"
_RS = "http://www.w3.org/2001/sw/DataAccess/tests/result-set#"
_TYPE = ox.NamedNode("http://www.w3.org/1999/02/22-rdf-syntax-ns#type")
EVALUATION, POSITIVE, NEGATIVE = "evaluation", "positive syntax", "negative syntax"
_KINDS = {
    "QueryEvaluationTest": EVALUATION,
    "CSVResultFormatTest": EVALUATION,
    "PositiveSyntaxTest": POSITIVE,
    "PositiveSyntaxTest11": POSITIVE,
    "NegativeSyntaxTest": NEGATIVE,
    "NegativeSyntaxTest11": NEGATIVE,
}

Row = frozenset[tuple[str, str]]
"""What one solution binds: names and the text of terms."""


@dataclass(frozen=True)
class Case:
    """One test: its name in its manifest, what it is, its query, its data and what it must give."""

    name: str
    kind: str
    query: Path
    data: Path | None = None
    result: Path | None = None
    named: tuple[Path, ...] = ()


def folder_of_suite() -> Path:
    """Where the suite's files are; the first time, Maven brings the jar that they are in."""
    jars = jars_of(POM, "the W3C suite")
    files = jars.parent / f"{jars.name}-files"
    with locked(jars.parent / "w3c.lock"):
        if not files.exists():
            [jar] = jars.glob("*.jar")
            with ZipFile(jar) as archive:
                wanted = [each for each in archive.namelist() if each.startswith(PARTS)]
                archive.extractall(files.with_suffix(".part"), wanted)
            files.with_suffix(".part").rename(files)
    return files


def cases(folder: Path) -> list[Case]:
    """The tests that a folder's manifest names, but for updates and protocols."""
    graph = _Described(_quads(folder / "manifest.ttl"))
    found = [case for subject, kind in graph.typed() if (case := _case(graph, subject, kind)) is not None]
    return sorted(found, key=lambda each: each.name)


class _Described:
    """The triples of a manifest or of a result set, by subject and predicate."""

    def __init__(self, quads: Iterable[ox.Quad]) -> None:
        self._by: dict[Any, dict[str, list[Any]]] = {}
        for quad in quads:
            self._by.setdefault(quad.subject, {}).setdefault(quad.predicate.value, []).append(quad.object)

    def typed(self) -> Iterator[tuple[Any, str]]:
        for subject, about in self._by.items():
            for each in about.get(_TYPE.value, ()):
                yield subject, each.value.removeprefix(_MF)

    def all(self, subject: Any, predicate: str) -> list[Any]:
        return self._by.get(subject, {}).get(predicate, [])

    def one(self, subject: Any, predicate: str) -> Any:
        return next(iter(self.all(subject, predicate)), None)


def _case(graph: _Described, subject: Any, kind: str) -> Case | None:
    if kind not in _KINDS:
        return None
    name = re.split(r"[#/]", subject.value)[-1]
    action, result = graph.one(subject, f"{_MF}action"), graph.one(subject, f"{_MF}result")
    if isinstance(action, ox.NamedNode):
        return Case(name, _KINDS[kind], _path(action))
    data = graph.one(action, f"{_QT}data")
    query = _path(graph.one(action, f"{_QT}query"))
    named = tuple(_path(each) for each in graph.all(action, f"{_QT}graphData"))
    return Case(name, _KINDS[kind], query, data and _path(data), result and _path(result), named)


def _path(iri: ox.NamedNode) -> Path:
    return Path(unquote(urlparse(iri.value).path))


def _quads(path: Path) -> Iterator[ox.Quad]:
    kind = ox.RdfFormat.from_extension(path.suffix.removeprefix("."))
    assert kind is not None, path
    return iter(ox.parse(path.read_bytes(), format=kind, base_iri=path.as_uri()))


# --- running ---------------------------------------------------------------------------------------


def plan_of(case: Case) -> EpPlan:
    """The plan of a test's query; a `Mistake` where it is refused."""
    text = case.query.read_text("utf-8")
    base = f"BASE <{case.query.as_uri()}>\n"
    return EpPlan("q", text, ep_plan(parse_ep(SourceText(case.query.name, base + text), "q")))


def run(case: Case, host: str) -> tuple[set[Row] | set[Triple], set[Row] | set[Triple]]:
    """What a test gives on a host, and what it must give."""
    plan = plan_of(case)
    stream = [(each, INSTANT, INSTANT) for each in _triples(case.data)]
    knowledge = Knowledge.parse("\n".join(_stated(case.named)), "nq", reasoning="none")
    if host == "reference":
        matches = run_epsparql([plan], stream, knowledge)["q"]
    else:
        operator = EpOperator([plan], knowledge)
        matches = [*operator.feed(stream), *operator.finish()]
    expected = _expected(case)
    if isinstance(expected, list):
        lines = "\n".join(line for each in matches for line in each.triples)
        made = ox.parse(lines, format=ox.RdfFormat.N_TRIPLES)
        return _canonical(made), _canonical(expected)
    found = {_row({name: _of_json(each) for name, each in one.select.items()}) for one in matches}
    return _settled(found), _settled(expected)


def same(found: Any, expected: Any) -> bool:
    """Whether both are the same; another spelling of a value will do, unless it makes rows fall together."""
    if found == expected:
        return True
    plain = {_plain(each) for each in found}, {_plain(each) for each in expected}
    return plain[0] == plain[1] and len(plain[0]) == len(found) == len(expected)


def _triples(path: Path | None) -> Iterator[Triple]:
    if path is not None:
        yield from map(triple_of, _quads(path))


def _stated(graphs: Iterable[Path]) -> Iterator[str]:
    """Named graphs as N-Quads."""
    for path in graphs:
        for s, p, o in _triples(path):
            yield f"{s} {p} {o} <{path.as_uri()}> ."


def _of_json(value: Mapping[str, str]) -> Term:
    if value["type"] == "uri":
        return Iri(value["value"])
    if value["type"] == "bnode":
        return Blank(value["value"])
    if language := value.get("xml:lang"):
        return Literal(value["value"], language=language)
    return Literal(value["value"], value.get("datatype", Literal("").datatype))


# --- what must come ----------------------------------------------------------------------------------


def _expected(case: Case) -> list[ox.Quad] | set[Row]:
    """The triples of a CONSTRUCT, or the rows of a SELECT."""
    assert case.result is not None
    suffix = case.result.suffix.removeprefix(".")
    if suffix in ("srx", "srj", "tsv"):
        kind = ox.QueryResultsFormat.from_extension(suffix)
        assert kind is not None
        solutions: Any = ox.parse_query_results(case.result.read_bytes(), format=kind)
        names = [each.value for each in solutions.variables]
        return {
            _row({n: term_of(t) for n, t in zip(names, one, strict=True) if t is not None})
            for one in solutions
        }
    quads = list(_quads(case.result))
    described = _Described(quads)
    rows = [row for subject, kind in described.typed() if kind == f"{_RS}ResultSet"
            for row in described.all(subject, f"{_RS}solution")]  # fmt: skip
    if not any(kind == f"{_RS}ResultSet" for _, kind in described.typed()):
        return quads
    return {_row(dict(_bindings(described, each))) for each in rows}


def _bindings(described: _Described, row: Any) -> Iterator[tuple[str, Term]]:
    for each in described.all(row, f"{_RS}binding"):
        yield described.one(each, f"{_RS}variable").value, term_of(described.one(each, f"{_RS}value"))


def _row(bindings: Mapping[str, Term]) -> Row:
    return frozenset((name, str(term)) for name, term in bindings.items())


def _settled(rows: set[Row]) -> set[Row]:
    """The rows with blank nodes named by what is said of them: a set of rows is a graph of its own."""
    if not any(text.startswith("_:") for row in rows for _, text in row):
        return rows
    quads, labels = [], {}
    for at, row in enumerate(sorted(rows, key=sorted)):
        about = ox.BlankNode(f"row{at}")
        quads.append(ox.Quad(about, _TYPE, ox.NamedNode(f"{_RS}Row")))
        for name, text in row:
            labels[f"urn:value:{name}"] = name
            quads.append(ox.Quad(about, ox.NamedNode(f"urn:value:{name}"), _node(text)))
    dataset = ox.Dataset(quads)
    dataset.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    made: dict[str, set[tuple[str, str]]] = {}
    for quad in dataset:
        cells = made.setdefault(str(quad.subject), set())
        if quad.predicate != _TYPE:
            value = quad.object
            text = str(value) if isinstance(value, ox.BlankNode) else str(term_of(value))
            cells.add((labels[quad.predicate.value], text))
    return {frozenset(cells) for cells in made.values()}


def _node(text: str) -> Any:
    [quad] = ox.parse(f"<urn:a> <urn:b> {text} .", format=ox.RdfFormat.N_TRIPLES)
    return quad.object


def _canonical(quads: Iterable[ox.Quad]) -> set[Any]:
    dataset = ox.Dataset(quads)
    dataset.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return {(str(each.subject), str(each.predicate), str(each.object)) for each in dataset}


def _plain(row: Any) -> Any:
    """The same with every literal in the one spelling of its value."""
    if isinstance(row, frozenset):
        return frozenset((name, _plain_text(text)) for name, text in row)
    return tuple(_plain_text(each) for each in row)


def _plain_text(text: str) -> str:
    if not text.startswith('"'):
        return text
    term = term_of(_node(text))
    return str(normalise(term)) if isinstance(term, Literal) else text
