"""The entry for files: queries and streams in, a run with its plans and matches out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.connectors.files import StreamData, mark_late, read_stream
from kaicep.connectors.shape import DeadLetter, Form, mostly_bad
from kaicep.errors import Diagnostic, Mistake, SourceText, Unsupported, did_you_mean
from kaicep.knowledge.annotation import Annotation, build_catalog, load_annotations, prefixes_of
from kaicep.language.parse_chicep import parse_chi
from kaicep.language.parse_epsparql import parse_ep, parse_rules
from kaicep.plan.catalog import Stream
from kaicep.plan.chi import ChiQuery
from kaicep.plan.events import Event, Match
from kaicep.plan.explain import Explanation
from kaicep.plan.nodes import EpPlan, Program, QueryPlan, WindowAggregate
from kaicep.plan.program import is_undecided, open_ends
from kaicep.plan.sparql import EpQuery
from kaicep.plan.terms import Triple, n_triples
from kaicep.plan.toml import read_source
from kaicep.plan.types import Type, guess_text, show
from kaicep.query import FiniteQuery, Query, resolve_queries

if TYPE_CHECKING:
    from kaicep.knowledge.store import Knowledge

_LANGUAGES: Mapping[str, Callable[..., ChiQuery | EpQuery]] = {".chi": parse_chi, ".epsparql": parse_ep}


@dataclass(frozen=True, repr=False)
class FiniteRun(FiniteQuery):
    """Queries over finite streams, resolved and ready to be answered."""

    data: tuple[StreamData, ...] = ()
    late: list[Event] = field(default_factory=list)
    unknown: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often a value of (stream, value) had no entity in the knowledge base; filled by `matches`."""
    end: str = "closed"
    """Whether the streams are over, or may go on (`plan.program`)."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What the queries and the knowledge give reason to say, and what stops nothing."""
        unread = (Diagnostic(each, severity="warning") for each in self.unread)
        own = (*self.knowledge.warnings, *self.knowledge.contradictions, *unread)
        return (*own, *self.said())

    @property
    def unread(self) -> list[str]:
        """What to say of streams of which most records could not be read: the answer says little."""
        found = (mostly_bad(each.name, each.dead, len(each.events)) for each in self.data)
        return [each for each in found if each is not None]

    @property
    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        return [each for stream in self.data for each in stream.dead]

    def matches(self, host: str = "inprocess") -> list[Match]:
        """All matches, in the order of their end, then of their id."""
        if host not in HOSTS:
            raise Mistake(f"no host is named {host}", hint=did_you_mean(host, HOSTS))
        given = {each.name for each in self.data}
        for query in self.program.queries:
            for name in query.reads:
                if name not in given and not self.catalog.streams[name].derived:
                    raise Mistake(
                        f"{query.name} reads {name}, but there is no data for it",
                        hint=f"pass it with --stream {name}=FILE",
                    )
        found = HOSTS[host](self)
        return found if host == "reference" or self.end == "closed" else self._decided(found)

    def _decided(self, matches: list[Match]) -> list[Match]:
        """The matches that nothing to come could take back; the hosts take every end for a closed one."""
        newest = {each.name: max(event.ts for event in each.events) for each in self.data if each.events}
        ends = open_ends(self.program, newest)
        plans = {each.name: each for each in self.program.queries}
        undecided = [each for each in matches if is_undecided(plans[each.query], each, ends[each.query])]
        names = {each.query for each in undecided}
        for query in self.program.queries:
            if names.intersection(query.reads):
                raise Unsupported(
                    f"{query.name}: it reads matches that are undecided at the open end; --host reference can"
                )
        return [each for each in matches if each not in undecided]


def explanations(query: Query) -> list[Explanation]:
    """What each query means, and what the optimiser makes of it."""
    from kaicep.optimize import optimize, share_subplans

    plans = query.program.queries
    found = [(plan, *optimize(plan, query.catalog, query.knowledge)) for plan in plans]
    shared = share_subplans([optimised for _, optimised, _ in found])
    made: list[Explanation] = []
    for plan, optimised, notes in found:
        shown = [(note.rule, note.text + _because(note.depends)) for note in notes]
        if plan.name in shared:
            shown.append(("share_subplans", f"it is found together with {shared[plan.name]}, in one search"))
        kept: tuple[tuple[str, str], ...] = ()
        if isinstance(plan, EpPlan):
            from kaicep.hosts.queries import explained_triples

            optimised, kept = explained_triples(plan, query.knowledge)
            if optimised != plan:
                shown.append(("pushed", "conditions are tested where all that they mention is bound"))
        made.append(Explanation(plan, optimised, tuple(shown), tuple(_physical(query, plan)), kept))
    return made


def _physical(query: Query, plan: QueryPlan) -> Iterator[tuple[str, str]]:
    """How each host runs a query."""
    from kaicep.deployment.sessions import explained as joined
    from kaicep.history.strategies import explained as archived
    from kaicep.hosts.spark.physical import explained, physical, streamed

    if isinstance(plan, EpPlan):
        yield (
            "inprocess",
            "operators over columns; joins of a SEQ within a duration are put in order as it runs",
        )
    else:
        machine = "window" if isinstance(plan.body, WindowAggregate) else "pattern"
        yield "inprocess", f"the {machine} machine, over columns"
    for part in physical(query):
        if plan.name in {each.name for each in part.queries}:
            yield "spark", explained(part)
            yield "spark-stream", streamed(part)
    yield "archive", archived(plan, query.catalog, query.knowledge)
    needed = [each for each in query.program.queries if each.name in (plan.name, *plan.reads)]
    yield "end to end", joined(Program(tuple(needed)))


def _because(triples: Sequence[Triple]) -> str:
    return f" (because {' '.join(n_triples(each) for each in triples)})" if triples else ""


def _on_reference(run: FiniteRun) -> list[Match]:
    from kaicep.knowledge.event_graph import UnknownEntities
    from kaicep.reference import evaluate

    unknown = UnknownEntities()
    found = evaluate(run, run.batches, unknown, run.end)
    run.unknown.update(unknown.counts)
    return found


def _in_process(run: FiniteRun) -> list[Match]:
    from kaicep.hosts.inprocess import run_inprocess
    from kaicep.knowledge.event_graph import UnknownEntities

    unknown = UnknownEntities()
    found = run_inprocess(run, run.batches, unknown)
    run.unknown.update(unknown.counts)
    return found


def _on_spark_batch(run: FiniteRun) -> list[Match]:
    from kaicep.hosts.spark.batch import run_batch

    return run_batch(run)


def _on_spark_stream(run: FiniteRun) -> list[Match]:
    from kaicep.hosts.spark.deliver import run_stream

    return run_stream(run)


HOSTS: Mapping[str, Callable[[FiniteRun], list[Match]]] = {
    "inprocess": _in_process,
    "reference": _on_reference,
    "spark-batch": _on_spark_batch,
    "spark-stream": _on_spark_stream,
}


def open_run(
    queries: Sequence[Path],
    streams: Sequence[tuple[str, Path]] = (),
    knowledge: Sequence[Path] = (),
    annotations: Sequence[Path | Annotation] = (),
    reasoning: str = "rdfs",
    lateness: int | None = None,
    now: int | None = None,
    end: str = "closed",
    ahead: int | None = None,
    derived: int | None = None,
) -> FiniteRun:
    """Reads everything, resolves the queries, and raises `Mistake` with whatever is wrong.

    At an `open` end the streams may go on; an event that is more than `ahead` later than the clock on the
    wall is a bad record (semantics 1). Rules that derive more than `derived` triples at one instant are
    stopped; they are among the queries, or in `.epsparql` files of the knowledge.
    """
    known = read_annotations(annotations)
    data = _read_streams(streams, known, time.time_ns() // 1_000 + ahead if ahead else None)
    parsed = read_queries(queries, prefixes_of(known))
    for path in knowledge:
        if path.suffix == ".epsparql":
            parsed += read_rules(path, prefixes_of(known))
    knowledge = [path for path in knowledge if path.suffix != ".epsparql"]
    taken = {name for name, _ in streams}
    for query in parsed:
        if query.name in taken:
            raise Mistake(f"the query {query.name} has the name of a stream", hint="rename the query's file")
    from kaicep.knowledge.store import Knowledge

    base = Knowledge.load(*knowledge, reasoning=reasoning)
    return build_run(parsed, data, known, base, lateness, now, end, derived)


def read_annotations(given: Sequence[Path | Annotation]) -> tuple[Annotation, ...]:
    """Annotations, those of the files among them read."""
    found = (load_annotations(each) if isinstance(each, Path) else (each,) for each in given)
    return tuple(each for some in found for each in some)


def build_run(
    queries: Sequence[ChiQuery | EpQuery],
    streams: Sequence[StreamData],
    annotations: Sequence[Annotation],
    knowledge: Knowledge,
    lateness: int | None = None,
    now: int | None = None,
    end: str = "closed",
    derived: int | None = None,
) -> FiniteRun:
    """A run of parsed queries over streams that have been read."""
    given = (
        Stream(each.name, each.attributes, rdf=each.rdf, open=not (each.events or each.rdf))
        for each in streams
    )
    own = {each.name for each in queries} if streams else None
    catalog = build_catalog(given, annotations, knowledge, own)
    catalog = replace(catalog, most_derived=derived or catalog.most_derived)
    try:
        query = resolve_queries(queries, catalog, knowledge, now)
    except Mistake as mistake:
        raise Mistake([_with_look_at(streams, each) for each in mistake.diagnostics]) from None
    marked = [event for each in streams for event in mark_late(each.events, lateness)]
    late = [event for event in marked if event.late]
    return FiniteRun(query.program, query.catalog, knowledge, (marked,), tuple(streams), late, end=end)


def _with_look_at(streams: Sequence[StreamData], said: Diagnostic) -> Diagnostic:
    """A mistake about an attribute that is text, with what there is in the data, where that says more."""
    found = _IS_TEXT.match(said.hint or "")
    if found is None:
        return said
    name = found[1]
    some = [event.values.get(name) for each in streams for event in each.events[:1_000]]
    texts = [each.strip() for each in some if isinstance(each, str)]
    odd = [each for each in texts if guess_text(each) is Type.STRING]
    declared = f'"types": {{"{name}": "float64"}} in the annotation'
    if texts and not odd:
        hint = f"{found[0]} has numbers as text, such as {show(texts[0])}: declare them, {declared}"
    elif odd and all(_COMMA.fullmatch(each) for each in odd):
        dialect = '"csv": {"decimal": ","} in the annotation'
        hint = f"{found[0]} has decimal commas, such as {show(odd[0])}: {dialect}"
    elif odd and len(odd) * 2 < len(texts):
        because = f"{found[0]} is text because of values such as {show(odd[0])}"
        hint = f'{because}; with {declared} those are bad records, with "nulls": [{show(odd[0])}] null'
    else:
        return said
    return replace(said, hint=hint)


_IS_TEXT = re.compile(r"\?\w+\.(\w+)(?= is text: )")
_COMMA = re.compile(r"[+-]?\d+(?:\.\d{3})*,\d+")


def read_query(path: Path, prefixes: Mapping[str, str]) -> ChiQuery | EpQuery:
    """Reads and parses a query file."""
    return parse_query(read_source(path, "query"), prefixes)


def read_rules(path: Path, prefixes: Mapping[str, str]) -> list[EpQuery]:
    """Reads and parses a file of CONSTRUCT rules, which are knowledge: all queries read what they derive."""
    return parse_rules(read_source(path, "rules"), path.stem, prefixes)


def parse_query(source: SourceText, prefixes: Mapping[str, str]) -> ChiQuery | EpQuery:
    """Parses a query; the ending of its name says the language, its stem is what it is called."""
    name = Path(source.name)
    parse = _LANGUAGES.get(name.suffix)
    if parse is None:
        raise Mistake(
            f"{name} is not a query: its name must end in .chi or .epsparql",
            hint="repeat options such as --stream, --annotation and --knowledge for each file",
        )
    return parse(source, name.stem, prefixes)


def read_queries(paths: Sequence[Path], prefixes: Mapping[str, str]) -> list[ChiQuery | EpQuery]:
    """Reads and parses query files; what is wrong with any of them is told in one go."""
    parsed: list[ChiQuery | EpQuery] = []
    wrong: list[Diagnostic] = []
    for path in paths:
        try:
            parsed.append(read_query(path, prefixes))
        except Mistake as mistake:
            wrong.extend(mistake.diagnostics)
    if wrong:
        raise Mistake(wrong)
    return parsed


def _read_streams(
    streams: Sequence[tuple[str, Path]], annotations: Sequence[Annotation], latest: int | None = None
) -> list[StreamData]:
    by_stream: dict[str, Annotation] = {}
    for annotation in annotations:
        if annotation.stream in by_stream:
            raise Mistake(f"the stream {annotation.stream} is annotated twice")
        by_stream[annotation.stream] = annotation
    names = [name for name, _ in streams]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            raise Mistake(f"the stream {name} is given twice", hint="put all its files into one folder")
    data: list[StreamData] = []
    for name, path in streams:
        form = Form.of(name, by_stream.get(name))
        data.append(read_stream(name, path, form.time, form.types, form.explicit_time, latest, form.notation))
    return data
