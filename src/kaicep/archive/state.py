"""What a table knows besides its rows: it travels with every commit, so that it is never apart from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kaicep.errors import Diagnostic, Failure, Mistake

__all__ = ["Ranges", "State", "fresh", "moved"]

Ranges = Mapping[str, tuple[int, int]]
"""What a batch covers of each part: from its first position to the one after its last. A position without a
row is one that held nothing to keep: a bad record, a blank line."""


@dataclass(frozen=True)
class State:
    """By part: the next position, the largest `ts` so far (late marks hang on it), the name of the source.

    `expired` is the time before which events were removed. `progress` is of a table of matches: how far they
    answer, and what goes on from there.
    """

    next: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    expired: int | None = None
    progress: Mapping[str, Any] | None = None

    def text(self) -> str:
        """The state as a commit carries it."""
        return json.dumps(
            {
                "next": dict(self.next),
                "newest": dict(self.newest),
                "sources": dict(self.sources),
                "expired": self.expired,
                **({} if self.progress is None else {"progress": self.progress}),
            },
            sort_keys=True,
        )

    @classmethod
    def parse(cls, text: str) -> State:
        """The state that a commit carries."""
        found = json.loads(text)
        return cls(found["next"], found["newest"], found["sources"], found["expired"], found.get("progress"))


def fresh(name: str, state: State, ranges: Ranges) -> dict[str, tuple[int, int]]:
    """What of a batch is not there yet; a batch that begins beyond what is there leaves a hole, and fails.

    A part that has sent nothing yet is news, too: whoever goes on from here waits for it.

    >>> fresh("meter", State({"0": 5, "1": 2}), {"0": (3, 8), "1": (0, 2), "2": (0, 0)})
    {'0': (5, 8), '2': (0, 0)}
    """
    found: dict[str, tuple[int, int]] = {}
    for part, (first, after) in ranges.items():
        held = state.next.get(part, 0)
        if first > held:
            raise Failure(
                f"{name}: the archive holds part {part} up to position {held}, and this batch begins at "
                f"{first}: what lies between is missing"
            )
        if after > held or part not in state.next:
            found[part] = held, after
    return found


def moved(
    name: str,
    state: State,
    new: Ranges,
    newest: Mapping[str, int],
    sources: Mapping[str, str],
) -> State:
    """The state after a batch: `new` is what it adds, `newest` its largest times by part."""
    for part, source in sources.items():
        known = state.sources.get(part, source)
        if known != source:
            raise Mistake(
                Diagnostic(
                    f"{name}: part {part} is {known} in the archive, and {source} here",
                    hint="a file's place among the others is the part of its events: new files come after "
                    "the old ones by name, and none is renamed or removed; files beside a source of another "
                    "kind are its history: kaicep ingest --history",
                )
            )
    largest = dict(state.newest)
    for part, ts in newest.items():
        largest[part] = max(ts, largest.get(part, ts))
    positions = {**state.next, **{part: after for part, (_, after) in new.items()}}
    return replace(state, next=positions, newest=largest, sources={**state.sources, **sources})
