"""What a query of an engine waits for, in words, for whoever misses its matches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kaicep.hosts.queries import ChiSearch, TripleQueries
from kaicep.kernel.sort import Parts
from kaicep.plan.nodes import WindowAggregate
from kaicep.plan.time import datetime_of, format_duration

__all__ = ["awaited"]


def awaited(query: ChiSearch | TripleQueries, sources: tuple[str, ...], parts: Parts) -> str | None:
    """What a query waits for; None where it has looked at all that came, and nothing is due.

    `sources` are the streams that it needs, also through the queries that it reads.
    """
    buffered = len(query.sorter)
    kept = f"; {_counted(buffered)} buffered" if buffered else ""
    silent = parts.unheard(sources)
    if silent:
        return f"the first event of {' and of '.join(silent)}{kept}"
    endless = [each for each in sources if parts.allowed(each) is None]
    if endless:
        named = ", ".join(endless)
        return f"the end of {named} (`finish`), since without a lateness any event may be late{kept}"
    slowest = parts.slowest(sources)
    if slowest is not None and buffered:
        stream, part, ts = slowest
        which = f", source partition {part}" if len(parts.numbers(stream)) > 1 else ""
        return f"events of {stream}{which} after {_when(ts)}, which holds the others back{kept}"
    for stream in sources if buffered else ():
        late = parts.allowed(stream) or 0
        ts = max(parts.part(stream, each).max_ts for each in parts.numbers(stream))
        reason = f"since they may be {format_duration(late)} late"
        return f"events of {stream} after {_when(ts + late)}, {reason}{kept}"
    return next(_due(query), None) if isinstance(query, ChiSearch) else None


def _due(query: ChiSearch) -> Iterator[str]:
    """What time alone decides: absences that are not certain yet, windows that are still open."""
    watermark = query.sorter.watermark
    if not query.operator.size or math.isinf(watermark):
        return
    for plan in query.plans:
        body = plan.body
        if isinstance(body, WindowAggregate):
            width = body.window.width if body.window.kind == "batch" else None
            due, what = width and (watermark // width + 1) * width, "the window is complete"
        else:
            due, what = body.deadline and watermark + body.deadline, "every absence so far is decided"
        if due:
            yield f"time to pass {_when(due)}, when {what}: a later event shows it, or `advance`"


def _counted(events: int) -> str:
    return "1 is" if events == 1 else f"{events:,} are"


def _when(ts: float) -> str:
    return str(datetime_of(int(ts)).replace(tzinfo=None))
