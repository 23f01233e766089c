"""The process in which questions about a deployment are answered: `python -m kaicep.server.worker TOML`.

It reads the deployment's file, its registered queries, its knowledge and its archive, and writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kaicep.api import parse_query
from kaicep.assist.help import Situation, with_upstream
from kaicep.console.questions import QUESTIONS
from kaicep.errors import KaicepError, Mistake, SourceText, Unsupported
from kaicep.optimize import optimize
from kaicep.query import resolve_queries

_MEMORY = 4 << 30


def _admit(situation: Situation, name: str, suffix: str, text: str) -> None:
    """Raises the mistakes of a query that is to be registered."""
    query = parse_query(SourceText(f"{name}{suffix}", text), situation.prefixes)
    queries = with_upstream(query, situation.others(query.name))
    made = resolve_queries(queries, situation.catalog, situation.knowledge, 0)
    for plan in made.program.chi_plans:
        optimized, _ = optimize(plan, made.catalog, situation.knowledge)
        if any(each.relation is None for each in optimized.body.all_semantics):
            message = "a query from outside may not have a PATH that must be evaluated for every event"
            hint = "lead from the event to the knowledge by annotated properties alone"
            raise Mistake(message, hint=hint)


_QUESTIONS: dict[str, Callable[..., Any]] = {"admit": _admit, **QUESTIONS}


def _answer(situation: Situation, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": _QUESTIONS[question.pop("what")](situation, **question)}
    except Mistake as mistake:
        shown = [(replace(each, hint=None).render(), each.hint) for each in mistake.diagnostics]
        return {"wrong": [(text.removeprefix("error: "), hint) for text, hint in shown]}
    except (Unsupported, KaicepError) as error:
        return {"wrong": [(str(error), None)]}
    except (MemoryError, RecursionError):
        return {"wrong": [("this needs too much memory", "ask for less: a shorter range, fewer variables")]}


def _main(deployment: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anybody prints is no answer
    situation = Situation(Path(deployment))
    for line in sys.stdin:
        with contextlib.suppress(Mistake):  # the streams may be unreadable for a moment
            situation.refresh()
        print("{}", file=answers, flush=True)
        print(json.dumps(_answer(situation, json.loads(line)), ensure_ascii=False), file=answers, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
