"""How an engine works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kaicep.kernel.operator import Limits
from kaicep.knowledge.runtime import Settings as PathSettings
from kaicep.optimize import RULES, Rule

__all__ = ["MANY", "Settings"]

MANY = 20_000
"""From so many events on it pays to compile, or to load what was compiled before."""


@dataclass(frozen=True)
class Settings:
    """How an engine works: what its operators may hold, how PATHs are decided at run time.

    `parts` are the parts of sources to wait for, by stream; part 0 of each where nothing is said. `kernel`
    is "compiled" or "interpreted", the answers being the same; "auto" compiles at once where `events`, the
    number of events that are expected, makes it worth while, and else beside the work, when so many have
    come. What cannot be compiled is interpreted. `rules` are those of the optimiser.
    """

    limits: Limits = Limits()
    kernel: str = "auto"
    events: int | None = None
    paths: PathSettings = field(default_factory=PathSettings)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
