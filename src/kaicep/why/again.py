"""A match found again: looked up by its id, recomputed from the events around it, and explained.

It reads the events from the match's start to its end, and what the queries before it need. If they do not
give the match, something has changed since, and the message says what, as far as that can be found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kaicep.api import Run
from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, EpPlan, QueryPlan
from kaicep.plan.time import format_time
from kaicep.why.match import Reading, Why, why
from kaicep.why.misses import path_text
from kaicep.why.proof import prove
from kaicep.why.results import only_one
from kaicep.why.sources import Source, events_of, needed, unmarked, upstream_of
from kaicep.why.support import supporting

__all__ = ["explained", "searched"]


def searched(source: Source, id: str) -> Match | None:
    """The match with an id, or with the beginning of it, among all that the queries give."""
    every: list[Match] = []
    for as_seen in (True, False) if source.uses_late else (True,):
        every = source.search(as_seen)
        match = only_one([each for each in every if each.id.startswith(id.lower())], id)
        if match is not None:
            return match
    return None


def explained(source: Source, match: Match, version: int | None = None) -> Why:
    """What made a match, which was seen somewhere: its query, its id, its start and its end are known.

    `version` is that of the knowledge of a running deployment.
    """
    names = [each.name for each in source.program.queries]
    if match.query not in names:
        hint = did_you_mean(match.query, names)
        raise Mistake(
            Diagnostic(
                f"the match {match.id} is one of {match.query}, which is not among the queries", hint=hint
            )
        )
    program = upstream_of(source.program, match.query)
    run = source.part(program, needed(program, match))
    given = run
    for given in (run, unmarked(run)) if _has_late(source, run) else (run,):
        matches = given.matches()
        found = next((each for each in matches if each.id == match.id), None)
        if found is not None:
            events = [each for each in events_of(run) if given is not run or not each.late]
            reason = why(found, run, events, matches)
            if isinstance(reason.plan, ChiPlan):
                return reason
            return replace(reason, events=tuple(Reading("", each) for each in supporting(given, found)))
    raise Mistake(_gone(source, match, given, version))


def _has_late(source: Source, run: Run) -> bool:
    return source.uses_late and any(each.late for each in events_of(run))


# --- a match that is not found again --------------------------------------------------------------------


def _gone(source: Source, match: Match, run: Run, version: int | None) -> Diagnostic:
    plan = next(each for each in run.program.queries if each.name == match.query)
    reason, hint = next(_reasons(source, match, plan, run, version))
    where = f"{match.query}, {format_time(match.start_us)} to {format_time(match.end_us)}"
    return Diagnostic(f"recomputing does not give the match {match.id} ({where}): {reason}", hint=hint)


def _reasons(
    source: Source, match: Match, plan: QueryPlan, run: Run, version: int | None
) -> Iterator[tuple[str, str]]:
    """What has changed, the surest first, and what to do about it."""
    chains = plan.body.all_chains if isinstance(plan, ChiPlan) else ()
    if chains and not any(match.start_us in each.within for each in chains):
        yield (
            "it lies outside the bounds of WITHIN",
            "`now` is the time of this command: pass --now TIME with the time of the run",
        )
    for stream, ts in source.expired().items():
        if match.start_us < ts:
            message = f"events of {stream} before {format_time(ts)} have been removed from the archive"
            yield message, "removed events cannot be explained; `retention` says how long events are kept"
    alike = [each for each in run.matches() if _alike(each, match)]
    for name, now in _other_values(match, alike):
        said = f"the same events match, but {name} is {now} now, and was {match.select.get(name)}"
        yield f"{said}: {_versions(match, version)}", "give the knowledge as it was when the match was seen"
    if alike and not match.select and _selects_known(plan):
        said = "the same events match, but under another id: the knowledge gives other values"
        yield (
            f"{said}, or the text of the query has changed",
            "give both as they were when the match was seen",
        )
    if alike:
        yield (
            "the same events match, but under another id: the text of the query has changed since",
            "give the query as it was when the match was seen",
        )
    events = {(each.stream, each.part, each.seq): each for each in events_of(run)}
    bound = {name: list(_identities(shown)) for name, shown in (match.events or {}).items()}
    own = {name: [key for each in found if (key := _key(each)) is not None] for name, found in bound.items()}
    lost = [key for found in own.values() for key in found if key not in events]
    if lost:
        stream, part, seq = lost[0]
        yield (
            f"the event {seq} of part {part} of {stream} is missing",
            "give the streams, or the archive, in which it was seen",
        )
    rounds = {name: [events[key] for key in found] for name, found in own.items() if found}
    for path in _unproved(plan, rounds, source):
        yield (
            f"{path} no longer holds for its events: {_versions(match, version)}",
            "give the knowledge as it was when the match was seen",
        )
    yield (
        f"the query, the annotations or the knowledge have changed; {_versions(match, version)}",
        "give them as they were when the match was seen",
    )


def _alike(one: Match, other: Match) -> bool:
    same = (one.query, one.start, one.end) == (other.query, other.start, other.end)
    return same and other.events is not None and dict(one.events or {}) == dict(other.events)


def _selects_known(plan: QueryPlan) -> bool:
    """Whether values of the knowledge are selected: they are part of the id."""
    return isinstance(plan, ChiPlan) and any(each.selected for each in plan.body.all_semantics)


def _other_values(match: Match, alike: list[Match]) -> Iterator[tuple[str, object]]:
    """Columns that none of the matches of the same events has as this one: the knowledge gives others."""
    names = [name for each in alike[:1] for name in each.select if name in match.select]
    for name in names:
        if all(each.select[name] != match.select[name] for each in alike):
            yield name, alike[0].select[name]


def _identities(shown: Any) -> Iterator[Mapping[str, Any]]:
    for each in shown if isinstance(shown, list) else (shown,):
        yield from (each["first"], each["last"]) if "first" in each else (each,)


def _key(identity: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """The place of an event; None for one that another query derived."""
    return None if "id" in identity else (identity["stream"], identity["part"], identity["seq"])


def _unproved(plan: QueryPlan, rounds: Mapping[str, list[Event]], source: Source) -> Iterator[str]:
    """The PATHs that do not hold for the events of a match."""
    if isinstance(plan, EpPlan):
        return
    paths = (path for each in (*plan.body.chains, plan.body) for path in each.semantics)
    for path in paths:
        if set(path.variables) <= rounds.keys():
            binding = {name: rounds[name][0] for name in path.variables}
            if prove(path, binding, source.catalog, source.knowledge) is None:
                yield path_text(path, dict(source.catalog.known_prefixes(plan.prefixes)))


def _versions(match: Match, version: int | None) -> str:
    then = f"the match used version {match.version or 0} of the knowledge"
    if version is not None:
        return f"{then}, and the deployment has version {version}"
    return f"{then}, and the files that are loaded now have today's"
