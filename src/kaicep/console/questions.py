"""Slow answers for the pages, computed in a process of their own from files and the archive alone.

Every function is given the situation and what the page asks, and answers with plain JSON. `QUESTIONS` are all
of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from kaicep.api import explanations, parse_query
from kaicep.archive.archive import Snapshot
from kaicep.assist import help
from kaicep.assist.help import OntologyWords, Situation
from kaicep.connectors.sinks.delta import match_of_row
from kaicep.errors import Mistake, SourceText, did_you_mean
from kaicep.history.strategies import History, engine_of, history_of, replayed
from kaicep.knowledge.event_graph import event_triples
from kaicep.knowledge.queries import carry_out, operations
from kaicep.knowledge.store import TYPE, Edit, Knowledge
from kaicep.knowledge.vocabulary import is_standard, path_text, summary, undeclared_prefixes, ways
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Bound, ChiQuery, Within
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.explain import explain_json
from kaicep.plan.nodes import Interval
from kaicep.plan.sparql import EpQuery
from kaicep.plan.terms import OWL, RDFS, Iri, Literal, Term, Triple, n_triples
from kaicep.plan.text import group_text
from kaicep.plan.time import format_duration, format_time, parse_time
from kaicep.storage.disk import last_rows
from kaicep.storage.places import options_of, place_of
from kaicep.why.again import Deployed, explained, match_of, searched, why_not_between
from kaicep.why.match import Statement, Why
from kaicep.why.misses import WhyNot

_MOST_MATCHES = 100
_MOST_ROWS = 200
_MOST_TABLE_ROWS = 20_000
_MOST_THINGS = 12
_MOST_STATEMENTS = 200
_TAIL = 8 << 20
_SEARCH = "search for it on the Knowledge page"
_EVENT = "urn:kaicep:event:"
_PLAIN_LABELS = {TYPE: "is a", Iri(RDFS + "subClassOf"): "is a kind of"}

Answer = dict[str, Any]


# --- words -------------------------------------------------------------------------------------------------


def _term(term: Term, words: OntologyWords) -> Answer:
    """A term as a page shows it: what it is called, how a query writes it, and where it leads."""
    if isinstance(term, Iri) and term.value.startswith(_EVENT):
        return {"label": "the event", "name": term.value, "iri": None}
    if isinstance(term, Iri):
        return {
            "label": _PLAIN_LABELS.get(term) or words.label(term),
            "name": words.names.text(term),
            "iri": term.value,
        }
    return {
        "label": term.lexical if isinstance(term, Literal) else str(term),
        "name": str(term),
        "iri": None,
    }


def _kinds(term: Term, knowledge: Knowledge, words: OntologyWords) -> list[Answer]:
    """The narrowest classes of something."""
    classes = {each for _, _, each in knowledge.match(term, TYPE, None) if isinstance(each, Iri)}
    classes = {each for each in classes if not each.value.startswith((OWL, RDFS))}
    wider = {up for each in classes for up in knowledge.classes_above(each) if up != each}
    return [_term(each, words) for each in sorted(classes - wider, key=str)]


# --- a match -----------------------------------------------------------------------------------------------


def story(situation: Situation, id: str, match: Answer | None, version: int | None = None) -> Answer:
    """All that made a match: `match` is the row of one that is remembered."""
    deployed = Deployed.of(situation.config, situation.knowledge) if situation.registered() else None
    found = match_of(match, situation.config.name) if match is not None else None
    if found is None and deployed is not None:
        found = deployed.written(id) or _searched(deployed, id)
    if found is None or deployed is None:
        hint = "neither the sinks nor the archive have it: it may have been removed there, or the id is wrong"
        raise Mistake(f"no match of {situation.config.name} has the id {id[:64]}", hint=hint)
    source = deployed.source(found.query)
    reason = explained(source, found, version)
    knowledge = situation.knowledge.at(reason.match.end_us)
    return _story(reason, source.query.catalog, knowledge, situation.vocabulary)


def _searched(deployed: Deployed, id: str) -> Match | None:
    for name in deployed.queries:
        try:
            found = searched(deployed.source(name), id)
        except Mistake:
            continue
        if found is not None:
            return found
    return None


def _story(reason: Why, catalog: Catalog, knowledge: Knowledge, words: OntologyWords) -> Answer:
    prefixes = dict(catalog.known_prefixes(reason.plan.prefixes))
    entities = _entities(reason, catalog, knowledge)
    return {
        **reason.match.to_dict(),
        "selected": [
            {"name": name, **_selected(value, words)} for name, value in (reason.match.select or {}).items()
        ],
        "readings": [
            {
                "variable": each.variable,
                "ts": each.event.ts,
                "when": format_time(each.event.ts),
                "stream": each.event.stream,
                "part": each.event.part,
                "seq": each.event.seq,
                "late": each.event.late,
                "derived": each.derived.id if each.derived else None,
                "values": _values(each.event),
                "triples": [n_triples(one) for one in each.event.triples or ()],
            }
            for each in reason.events[-50:]
        ],
        "left_out": max(0, len(reason.events) - 50),
        "conditions": [asdict(each) for each in reason.conditions],
        "windows": [
            {
                "variables": list(each.variables),
                "width": format_duration(each.width),
                "spans": format_duration(each.spans),
            }
            for each in reason.windows
        ],
        "absences": [
            {
                "variable": each.variable,
                "after": each.after.ts,
                "until": each.before.ts if each.before else each.until,
            }
            for each in reason.absences
        ],
        "paths": [
            {
                "about": list(each.condition.variables),
                "text": group_text(each.condition.alternatives[0], 0, prefixes),
                "bindings": [
                    {"variable": name, **_term(term, words)}
                    for name, term in sorted(each.proof.bindings.items())
                    if not name.startswith("_:")
                ],
                "statements": [_statement(one, words) for one in each.proof.statements],
            }
            for each in reason.paths
        ],
        "things": _things(entities, knowledge, words),
    }


def _selected(value: object, words: OntologyWords) -> Answer:
    """A selected value; an IRI with its label."""
    text = value["value"] if isinstance(value, Mapping) and "value" in value else value
    if isinstance(text, str) and Iri(text) in words.by_iri:
        return _term(Iri(text), words)
    return {"label": text if isinstance(text, str) else json.dumps(text, ensure_ascii=False), "iri": None}


def _values(event: Event) -> list[list[str | bool]]:
    return [
        [name, str(value), False]
        for name, value in event.values.items()
        if value is not None and value != event.ts
    ]


def _statement(statement: Statement, words: OntologyWords) -> Answer:
    return {
        "terms": [_term(each, words) for each in statement.triple],
        "rule": statement.rule,
        "premises": [_statement(each, words) for each in statement.premises],
    }


def _entities(reason: Why, catalog: Catalog, knowledge: Knowledge) -> list[Iri]:
    """What the match is about: the entities of its events, and what its PATHs found."""
    found: dict[Iri, None] = {}
    for each in reason.events:
        if each.event.stream in catalog.streams:
            for _, _, term in event_triples(
                each.event, catalog.streams[each.event.stream], knowledge
            ).triples:
                if (
                    isinstance(term, Iri)
                    and knowledge.knows(term)
                    and term not in (knowledge.classes() or ())
                ):
                    found[term] = None
    for shown in reason.paths:
        for term in shown.proof.bindings.values():
            if isinstance(term, Iri) and knowledge.knows(term) and not term.value.startswith("urn:kaicep"):
                found[term] = None
    return [each for each in found if each not in (knowledge.classes() or ())]


def _things(start: Sequence[Iri], knowledge: Knowledge, words: OntologyWords) -> list[Answer]:
    """Things, and those that they lead to in two steps: a sensor, its room, the room's department."""
    found: dict[Iri, Answer] = {}
    level: list[tuple[Iri, str]] = [(each, "") for each in start]
    for _ in range(3):
        following: list[tuple[Iri, str]] = []
        for thing, way in level:
            if thing in found or len(found) >= _MOST_THINGS:
                continue
            kinds = _kinds(thing, knowledge, words)
            found[thing] = {**_term(thing, words), "kinds": kinds, "way": way}
            following += [
                (value, words.label(property))
                for _, property, value in knowledge.match(thing, None, None)
                if isinstance(value, Iri)
                and isinstance(property, Iri)
                and not is_standard(property)
                and value not in (knowledge.classes() or ())
            ]
        level = following
    return list(found.values())


def written(
    situation: Situation,
    query: str = "",
    text: str = "",
    values: Sequence[str] = (),
    low: str = "",
    high: str = "",
) -> Answer:
    """The newest matches of a range that sinks wrote to files and Delta tables, or Spark to its own table.

    Only those with some text, or one of some values, in them.
    """
    begin, end = (_time(each, what) if each else None for each, what in ((low, "from"), (high, "to")))
    places = [
        *(
            place_of(each.options["path"], "a sink")
            for each in situation.config.sinks.values()
            if "path" in each.options
        ),
        situation.config.checkpoint / "matches",
    ]
    readable = [each for each in dict.fromkeys(places) if each.exists()]
    rows: dict[str, Answer] = {}
    for place in readable:
        found = _table_rows(place, query, begin, end) if place.is_dir() else _last_matches(place)
        fitting = (
            row
            for row in found
            if _fits(row, query, text.lower(), values)
            and (begin is None or (parse_time(row["end"]) or 0) >= begin)
            and (end is None or (parse_time(row["end"]) or 0) <= end)
        )
        rows |= {row["id"]: row for row in islice(fitting, _MOST_ROWS)}
    newest = sorted(rows.values(), key=_newest_first, reverse=True)[:_MOST_ROWS]
    return {"matches": newest, "readable": len(readable)}


def _table_rows(place: Path, query: str, low: int | None, high: int | None) -> Iterator[Answer]:
    """The newest matches of a Delta table, newest first."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    reached = options_of(place)
    if not DeltaTable.is_deltatable(str(place), reached):
        return
    wanted = pc.scalar(True)
    if query:
        wanted &= pc.field("query") == query
    for bound, above in ((low, True), (high, False)):
        if bound is not None:
            moment = pc.scalar(datetime.fromtimestamp(bound / 1_000_000, UTC))
            wanted &= pc.field("end") >= moment if above else pc.field("end") <= moment
    table = DeltaTable(str(place), storage_options=reached)
    rows = table.to_pyarrow_dataset().filter(wanted).sort_by([("end", "descending")])
    for row in rows.head(_MOST_TABLE_ROWS).to_pylist():
        yield match_of_row(row).to_dict()


def _newest_first(row: Answer) -> tuple[str, str]:
    return row["end"], row["id"]


def _last_matches(path: Path) -> Iterator[Answer]:
    """The matches of a file of JSON lines, from its end, as far as its last megabytes reach."""
    for row in last_rows(path, _TAIL):
        if isinstance(row.get("id"), str) and isinstance(row.get("end"), str):
            yield row


def _fits(row: Answer, query: str, text: str, values: Sequence[str]) -> bool:
    if query and row.get("query") != query:
        return False
    said = json.dumps(row, ensure_ascii=False)
    return text in said.lower() and (not values or any(f'"{each}"' in said for each in values))


def related(situation: Situation, entity: str) -> list[str]:
    """An entity and what leads to it in two steps, as the values of events and matches name them."""
    words = situation.vocabulary
    chosen = (
        Iri(entity) if Iri(entity) in words.by_iri else next((each.iri for each in words.find(entity)), None)
    )
    if chosen is None:
        raise Mistake(
            f"the knowledge has no entity that is called {entity[:80]}",
            hint="search for it on the Knowledge page",
        )
    found, level = {chosen}, {chosen}
    for _ in range(2):
        level = {
            subject
            for each in level
            for subject, property, _ in situation.knowledge.match(None, None, each)
            if isinstance(subject, Iri) and isinstance(property, Iri) and not is_standard(property)
        } - found
        found |= level
    names = {each.value for each in found}
    for stream in situation.catalog.streams.values():
        for _, entity_ in stream.entities:
            if entity_.template is not None:
                before, _, after = entity_.template.partition("{value}")
                fitting = (each for each in names if each.startswith(before) and each.endswith(after))
                names |= {each[len(before) : len(each) - len(after)] for each in tuple(fitting)}
            for way in entity_.lookup:
                pairs = situation.knowledge.pairs(way)
                names |= {
                    value.lexical for each, value in pairs if each in found and isinstance(value, Literal)
                }
    return sorted(names)


# --- why nothing -------------------------------------------------------------------------------------------


def misses(situation: Situation, query: str, low: str, high: str, key: str = "") -> Answer:
    """How far the events of a range came, and the nearest misses."""
    source = Deployed.of(situation.config, situation.knowledge).source(query)
    begin, end = _time(low, "from"), _time(high, "to")
    if end < begin:
        raise Mistake(f"the range ends before it begins: {low} to {high}")
    return _misses(why_not_between(source, query, begin, end, key or None))


def _misses(found: WhyNot) -> Answer:
    return {
        "query": found.query,
        "low": format_time(found.low),
        "high": format_time(found.high),
        "steps": [asdict(each) for each in found.steps],
        "partial": found.partial,
        "broken": found.broken,
        "matches": found.complete,
        "misses": [
            {
                "condition": each.condition,
                "filled": each.filled,
                "short": each.short,
                "events": [
                    {
                        "variable": name,
                        "stream": event.stream,
                        "when": format_time(event.ts),
                        "seq": event.seq,
                        "values": _values(event),
                    }
                    for name, event in each.events.items()
                ],
            }
            for each in found.misses
        ],
        "late": len(found.late),
        "with_late": len(found.with_late),
        "dead": [{**each.letter.to_dict(), "mended": each.event is not None} for each in found.dead[:20]],
        "with_dead": len(found.with_dead),
    }


def _time(text: str, what: str) -> int:
    found = parse_time(text)
    if found is None:
        wrong = f"{text[:40]} is not a time" if text else "a time is missing"
        raise Mistake(f"{what}: {wrong}", hint="write a time such as 2012-05-07T09:30Z")
    return found


def extent(situation: Situation) -> Answer:
    """Of each archived stream: its first and its last time, how many events, and its attributes."""
    snapshot = situation.snapshot()
    found: Answer = {}
    for name in snapshot.tables:
        files = snapshot.files(name)
        lows = [each.low for each in files if each.low is not None]
        found[name] = {
            "low": format_time(min(lows)) if lows else None,
            "high": format_time(max(snapshot.tables[name].newest.values(), default=0)) if lows else None,
            "events": sum(each.rows for each in files),
            "attributes": [
                [attribute, str(type), _carried(situation, name, attribute)]
                for attribute, type in snapshot.shape(name).attributes
            ],
        }
    return found


def _carried(situation: Situation, stream: str, attribute: str) -> str:
    known = situation.catalog.streams.get(stream)
    concepts = dict(known.concepts) if known else {}
    entities = dict(known.entities) if known else {}
    if attribute in concepts:
        return situation.vocabulary.names.text(concepts[attribute])
    return situation.vocabulary.names.text(entities[attribute].property) if attribute in entities else ""


# --- the workbench -----------------------------------------------------------------------------------------


def diagnostics(situation: Situation, text: str, language: str) -> list[Answer]:
    """What is wrong with a text."""
    return [asdict(each) for each in help.diagnose(situation, "draft", help.suffix_of(language), text)]


def completions(situation: Situation, text: str, language: str, offset: int) -> Answer:
    """What could stand at a place of a text."""
    found = help.complete(situation, help.suffix_of(language), text, offset)
    return {"start": found.start, "items": [asdict(each) for each in found.items]}


def hover(situation: Situation, text: str, language: str, offset: int) -> Answer | None:
    """What a word of a text means."""
    found = help.hover(situation, help.suffix_of(language), text, offset)
    return asdict(found) if found else None


def plan(situation: Situation, name: str, text: str, language: str) -> Answer:
    """The plan of a text: as it is written, as it is optimised, and how hosts run it."""
    made = help.resolve(situation, name, help.suffix_of(language), text)
    (found,) = (each for each in explain_json(explanations(made))["queries"] if each["name"] == name)
    streams = [each for each in _scanned(found["optimised"]) if each in made.catalog.streams]
    return {**found, "streams": streams or sorted(made.catalog.streams)}


def _scanned(card: Mapping[str, Any]) -> list[str]:
    """The streams that a plan reads, in the order of their mention."""
    if not card.get("inputs"):
        named = str(card.get("what", "")).partition(" in ")[2]
        return [each.strip() for each in named.partition(", within")[0].split(",")]
    return list(dict.fromkeys(name for each in card["inputs"] for name in _scanned(each)))


def trial(situation: Situation, text: str, language: str, low: str, high: str) -> Answer:
    """An unsaved query over a range of the archive: its first matches, how far events came, what it took."""
    name = "draft"
    query = parse_query(SourceText(f"{name}{help.suffix_of(language)}", text), situation.prefixes)
    begin, end = _time(low, "from"), _time(high, "to")
    bounds = Within(Bound(begin, 0, True), Bound(end, 0, True))
    asked = [_bounded(each, bounds) for each in help.with_upstream(query, situation.others(name))]
    started = time.perf_counter()
    history = history_of(asked, situation.archive, situation.knowledge, situation.config.annotations, end)
    snapshot = situation.snapshot()
    engine = engine_of(history, "hybrid", snapshot)
    found = [
        each
        for some in replayed(history, engine, snapshot, "hybrid", False, Interval(low=begin, high=end))
        for each in some
    ]
    found = sorted((each for each in (*found, *engine.finish()) if each.query == name), key=by_end)
    passed = engine.passed(name)
    return {
        "count": len(found),
        "matches": [each.to_dict() for each in found[-_MOST_MATCHES:][::-1]],
        "seconds": time.perf_counter() - started,
        "events": _archived_events(history, snapshot, begin, end),
        "steps": {"in": passed.came, "filter": passed.filters, "path": passed.paths} if passed else None,
        "warnings": [each.message for one in history.program.queries for each in one.warnings],
    }


def _bounded(query: ChiQuery | EpQuery, within: Within) -> ChiQuery | EpQuery:
    return query if isinstance(query, EpQuery) else replace(query, within=within)


def _archived_events(history: History, snapshot: Snapshot, low: int, high: int) -> int:
    """How many events of its streams the range has, at most: those of the files that reach into it."""
    within = Interval(low=low, high=high)
    return sum(file.rows for name in history.spans() for file in snapshot.files(name, within))


def paths(situation: Situation, start: str, end: str) -> list[Answer]:
    """How one thing leads to another, as PATHs to paste."""
    words = situation.vocabulary
    name = end
    if ":" not in end and (near := next(iter(words.find(end)), None)) is not None:
        name = near.name
    found = ways(start, name, situation.knowledge, situation.config.annotations, words.names)
    return [
        {
            "text": path_text(each, words.names),
            "prefixes": undeclared_prefixes([each], words.names),
            "holds": each.holds,
            "of": each.of,
        }
        for each in found
    ]


# --- knowledge ---------------------------------------------------------------------------------------------


def overview(situation: Situation) -> Answer:
    """What the knowledge speaks of."""
    found = summary(situation.knowledge, situation.vocabulary.names)
    words = situation.vocabulary
    return {
        "statements": found.statements,
        "closed": found.closed,
        "passing": found.passing,
        "reasoning": found.reasoning,
        "version": situation.knowledge.version,
        "classes": [
            {**_term(each.name, words), "count": each.instances}
            for each in sorted(found.classes, key=lambda one: -one.instances)[:80]
        ],
        "properties": [
            {**_term(each.name, words), "count": each.uses, "from": each.subjects[:2], "to": each.objects[:2]}
            for each in sorted(found.properties, key=lambda one: -one.uses)[:60]
            if each.uses
        ],
        "warnings": [each.message for each in found.warnings],
    }


def search(situation: Situation, text: str) -> list[Answer]:
    """Words of the knowledge by their names and labels."""
    words = situation.vocabulary
    return [
        {**_term(each.iri, words), "kind": each.kind, "kinds": _kinds(each.iri, situation.knowledge, words)}
        for each in words.find(text, most=60)
    ]


def entity(situation: Situation, iri: str) -> Answer:
    """A word with its statements, asserted and inferred, and what touches it."""
    words, knowledge, term = situation.vocabulary, situation.knowledge.whole, Iri(iri)
    if term not in words.by_iri:
        raise Mistake(f"the knowledge does not know {iri[:200]}", hint=_SEARCH)
    outgoing, incoming = _about(situation, term)
    return {
        **_term(term, words),
        "kind": words.by_iri[term].kind,
        "comment": words.comment(term),
        "kinds": _kinds(term, knowledge, words),
        "statements": outgoing[:_MOST_STATEMENTS],
        "more": max(0, len(outgoing) - _MOST_STATEMENTS),
        "incoming": incoming[:_MOST_STATEMENTS],
        "more_incoming": max(0, len(incoming) - _MOST_STATEMENTS),
        "streams": list(_streams_touching(situation, term)),
        "queries": list(_queries_touching(situation, term)),
    }


def _about(situation: Situation, term: Iri) -> tuple[list[Answer], list[Answer]]:
    """The statements with a term as their subject, and as their object, that hold at any time."""
    knowledge, words = situation.knowledge, situation.vocabulary
    outgoing: dict[Triple, list[str]] = {}
    incoming: dict[Triple, list[str]] = {}
    epochs = knowledge.epochs
    for epoch in range(len(epochs) + 1):
        then = knowledge.in_epoch(epoch)
        low = format_time(epochs[epoch - 1]) if epoch else ""
        high = format_time(epochs[epoch]) if epoch < len(epochs) else ""
        for found, pattern in ((outgoing, (term, None, None)), (incoming, (None, None, term))):
            for triple in then.match(*pattern):
                span = found.setdefault(triple, [low, high])
                span[1] = high
    return (
        [_statement_row(situation, triple, span, words, 2) for triple, span in outgoing.items()],
        [_statement_row(situation, triple, span, words, 0) for triple, span in incoming.items()],
    )


def _statement_row(
    situation: Situation, triple: Triple, span: Sequence[str], words: OntologyWords, end: int
) -> Answer:
    low, high = span
    then = situation.knowledge
    if low or high:
        instant = parse_time(low) if low else parse_time(high)
        then = then.at((instant or 0) - (0 if low else 1))
    reason = then.why(triple)
    return {
        "property": _term(triple[1], words),
        "other": _term(triple[end], words),
        "triple": n_triples(triple),
        "rule": reason.rule if reason is not None else "asserted",
        "premises": [[_term(each, words) for each in one] for one in (reason.premises if reason else ())],
        "low": low,
        "high": high,
    }


def _streams_touching(situation: Situation, term: Iri) -> Iterator[str]:
    for stream in situation.catalog.streams.values():
        own = {*stream.carried(), *({stream.event_class} if stream.event_class else ())}
        templates = [each.template for _, each in stream.entities if each.template is not None]
        fits = any(
            term.value.startswith(each.partition("{value}")[0])
            and term.value.endswith(each.partition("{value}")[2])
            for each in templates
        )
        if term in own or fits:
            yield stream.name


def _queries_touching(situation: Situation, term: Iri) -> Iterator[str]:
    """The queries whose text names a word, or one that is wider or narrower."""
    knowledge, names = situation.knowledge, situation.vocabulary.names
    near = knowledge.classes_above(term) | knowledge.properties_above(term) | {term}
    for _, _, kind in knowledge.match(term, TYPE, None):
        near |= {kind} if isinstance(kind, Iri) else set()
    texts = [names.text(each) for each in near if not is_standard(each)]
    for name, each in situation.registered().items():
        if any(f"{text}" in each.text for text in texts):
            yield name


def prefixes(situation: Situation, text: str) -> dict[str, str]:
    """The prefixes that statements use, of those that are known."""
    known = situation.vocabulary.names.prefixes
    used = {each.partition(":")[0] for each in text.split() if ":" in each and not each.startswith("<")}
    return {name: known[name] for name in sorted(used) if name in known}


def preview(situation: Situation, update: str) -> Answer:
    """What a SPARQL UPDATE would change in the knowledge, all that follows from it included."""
    words = situation.vocabulary
    knowledge = deepcopy(situation.knowledge)
    before = {each.message for each in knowledge.contradictions}
    stated: list[Triple] = []
    added: set[Triple] = set()
    removed: set[Triple] = set()
    missing: list[Triple] = []
    for each in operations(update, "<change>"):
        edit = Edit(knowledge)
        stated += carry_out(each, edit)
        change = edit.done()
        added |= set(change.added)
        removed |= set(change.removed)
        missing += change.missing
    return {
        "added": _shown(added, stated, words),
        "removed": _shown(removed, stated, words),
        "missing": [[_term(one, words) for one in each] for each in missing[:20]],
        "contradictions": [each.message for each in knowledge.contradictions if each.message not in before],
        "queries": sorted({name for each in stated for name in _touched(situation, each)}),
        "counts": {"added": len(added), "removed": len(removed)},
    }


def _touched(situation: Situation, triple: Triple) -> Iterator[str]:
    for term in triple:
        if isinstance(term, Iri) and not is_standard(term):
            yield from _queries_touching(situation, term)


def _shown(triples: Iterable[Triple], stated: Sequence[Triple], words: OntologyWords) -> list[Answer]:
    rows = sorted(triples, key=lambda each: (each not in stated, n_triples(each)))
    return [
        {"terms": [_term(one, words) for one in each], "follows": each not in stated}
        for each in rows[:_MOST_STATEMENTS]
    ]


# --- data --------------------------------------------------------------------------------------------------


def events(
    situation: Situation,
    stream: str,
    low: str,
    high: str,
    key: str = "",
    condition: str = "",
    late: bool = False,
) -> Answer:
    """The newest events of a stream in a range, with a value, for which a condition holds."""
    snapshot = situation.snapshot()
    if stream not in snapshot.tables:
        raise Mistake(f"the archive has no stream {stream}", hint=did_you_mean(stream, snapshot.tables))
    within = Interval(low=_time(low, "from") if low else None, high=_time(high, "to") if high else None)
    fits = _condition(situation, stream, condition)
    found: list[Event] = []
    count = 0
    for each in snapshot.events(stream, within):
        if (not late or each.late) and (not key or key in map(str, each.values.values())) and fits(each):
            count += 1
            found.append(each)
            if len(found) > 2 * _MOST_ROWS:
                del found[:_MOST_ROWS]
    shape = snapshot.shape(stream)
    names = [name for name, _ in shape.attributes if name != shape.time]
    return {
        "count": count,
        "names": names,
        "rows": [
            {
                "when": format_time(each.ts),
                "part": each.part,
                "seq": each.seq,
                "late": each.late,
                "values": [_plain(each.values.get(name)) for name in names],
                "triples": [n_triples(one) for one in each.triples or ()],
            }
            for each in found[-_MOST_ROWS:][::-1]
        ],
    }


def _plain(value: object) -> str:
    return "" if value is None else str(value)


def _condition(situation: Situation, stream: str, condition: str) -> Callable[[Event], bool]:
    """A condition as a FILTER writes it, about ?e."""
    if not condition.strip():
        return lambda event: True
    from kaicep.reference.expressions import Environment, evaluate

    text = f"SELECT ?e.ts FROM (?e, {stream}) FILTER ({condition})"
    made = help.resolve(situation, "condition", ".chi", text)
    body = made.program.chi_plans[0].body
    conditions = [each for chain in body.chains for each in chain.conditions]
    return lambda event: all(evaluate(each, Environment({"e": event})) is True for each in conditions)


def dead(situation: Situation, stream: str = "") -> list[Answer]:
    """The newest records that could not be read, with the reasons."""
    rows = [each for each in situation.archive.dead_letters.read() if not stream or each["stream"] == stream]
    return [{**each, "record": str(each["record"])[:500]} for each in rows[-_MOST_ROWS:][::-1]]


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        story,
        written,
        related,
        misses,
        extent,
        diagnostics,
        completions,
        hover,
        plan,
        trial,
        paths,
        overview,
        search,
        entity,
        prefixes,
        preview,
        events,
        dead,
    )
}
