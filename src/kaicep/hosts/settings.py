"""How an engine works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kaicep.kernel.operator import Limits
from kaicep.knowledge.runtime import Settings as PathSettings
from kaicep.optimize import RULES, Rule

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How an engine works: what its operators may keep, how PATHs are decided at run time.

    `parts` are the parts of sources to wait for, by stream; part 0 of each where nothing is said. `rules` are
    those of the optimiser.
    """

    limits: Limits = Limits()
    paths: PathSettings = field(default_factory=PathSettings)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES
