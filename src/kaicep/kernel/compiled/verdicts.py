"""PATHs that one string of an event decides: the answer of the knowledge, by the code of the string."""

from __future__ import annotations

import numpy as np

from kaicep.kernel.columns import Array, Strings
from kaicep.kernel.compiled.expressions import Inputs, NotCompiled
from kaicep.kernel.operator import Semantics
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.types import Type

__all__ = ["Verdict", "VerdictTable"]


class VerdictTable:
    """Whether a PATH holds for the events of a stream, by the code of the attribute that decides, plus 1.

    Where the knowledge changes with time there is an answer for each of its epochs, one after the other.
    """

    type = Type.BOOL

    def __init__(self, condition: Semantic, variable: str, stream: str, attribute: str) -> None:
        self.condition = condition
        self.variable = variable
        self.stream = stream
        self.attribute = attribute
        self.semantics: Semantics | None = None
        self.epochs: tuple[int, ...] = ()
        self.array: Array = np.zeros(1, np.int8)

    def grow(self, strings: Strings) -> bool:
        """Asks about the strings that have come; whether there were any."""
        known = len(self.array) // (len(self.epochs) + 1)
        if known > len(strings):
            return False
        moments = (self.epochs[0] - 1, *self.epochs) if self.epochs else (0,)
        more = [self._holds(each, ts) for each in strings.texts[known - 1 :] for ts in moments]
        self.array = np.concatenate([self.array, np.array(more, np.int8)])
        return True

    def reset(self, epochs: tuple[int, ...]) -> None:
        """Forgets the answers, because the knowledge is another one; `epochs` is when it changes."""
        self.epochs = epochs
        self.array = np.zeros(len(epochs) + 1, np.int8)

    def _holds(self, text: str, ts: int) -> bool:
        assert self.semantics is not None
        event = Event(self.stream, 0, 0, ts, {self.attribute: text})
        return bool(self.semantics.solutions(self.condition, {self.variable: event}))


class Verdict:
    """How a PATH is decided: by which attribute, on each stream of its variable that has one."""

    def __init__(self, condition: Semantic, variable: str, inputs: Inputs) -> None:
        self.condition = condition
        self.variable = variable
        self.attributes: dict[str, str] = {}
        if condition.relation is None:
            if condition.alternatives:
                raise NotCompiled("a PATH that is asked at run time")
            return  # nothing fulfils it
        if condition.variables != (variable,) or len(condition.relation.roots) != 1:
            raise NotCompiled("a PATH that is not decided by one attribute")
        root = condition.relation.roots[0]
        for stream in inputs.streams:
            names = [*dict(root.literals).get(stream, ()), *dict(root.entities).get(stream, ())]
            if len(names) > 1:
                raise NotCompiled("a PATH that is not decided by one attribute")
            if names:
                if inputs.catalog.streams[stream].type_of(names[0]) is not Type.STRING:
                    raise NotCompiled("a PATH that is decided by something other than a string")
                self.attributes[stream] = names[0]

    def table(self, stream: str) -> VerdictTable:
        """The table of one stream."""
        return VerdictTable(self.condition, self.variable, stream, self.attributes[stream])
