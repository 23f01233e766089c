"""The judge with compiled knowledge: the optimised plan, its PATHs decided by lookup."""

from __future__ import annotations

from kaicep.api import FiniteRun
from kaicep.knowledge.relations import Relations, RuntimeSettings
from kaicep.optimize import RULES, optimize
from kaicep.plan.events import Match
from kaicep.reference.chicep import answers


def compiled(run: FiniteRun, rules=RULES, settings: RuntimeSettings | None = None) -> list[Match]:
    """The matches of chi-CEP queries over input streams, by optimised plans."""
    relations = Relations(run.catalog, run.knowledge, settings=settings)
    events = [event for batch in run.batches for event in batch if not event.late]
    matches: list[Match] = []
    for query in run.program.queries:
        plan, _ = optimize(query, run.catalog, run.knowledge, rules)
        mine = [event for event in events if event.stream in query.reads]
        matches += [each.match for each in answers(plan, mine, relations)]
    return sorted(matches, key=lambda match: (match.end_us, match.id))
