"""Whether two knowledge bases come from the same statements, and how one catches up with the other.

The statements say what a knowledge base is; what follows from them, and the numbers of terms, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from kaicep.knowledge.graph import Ids
from kaicep.knowledge.loading import ALWAYS, NEVER, Validity
from kaicep.knowledge.store import Edit, Knowledge
from kaicep.plan.terms import n_triples

__all__ = ["catch_up", "fingerprint"]


def fingerprint(knowledge: Knowledge) -> str:
    """The same for all knowledge bases with these statements at these times and this reasoning.

    >>> one, two = (Knowledge.parse("<urn:a> <urn:p> <urn:b> . <urn:c> <urn:p> <urn:d> .") for _ in "12")
    >>> fingerprint(one) == fingerprint(two)
    True
    >>> change = two.update(remove="<urn:a> <urn:p> <urn:b> .")
    >>> fingerprint(one) == fingerprint(two)
    False
    """
    triple = knowledge.by_number()[1].triple
    lines = sorted(f"{n_triples(triple(ids))} {when}" for ids, when in _stated(knowledge))
    text = "\n".join((knowledge.reasoning, *lines))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def catch_up(knowledge: Knowledge, newer: Knowledge) -> None:
    """Lets a knowledge base state what a newer version of it states, and have its version.

    >>> old, new = (Knowledge.parse("<urn:a> <urn:p> <urn:b> .") for _ in "12")
    >>> change = new.update(add="<urn:c> <urn:p> <urn:d> .", remove="<urn:a> <urn:p> <urn:b> .")
    >>> catch_up(old, new)
    >>> [subject.local for subject, _, _ in old.match()], old.version
    (['c'], 1)
    """
    triple, number = newer.by_number()[1].triple, knowledge.by_number()[1].ids
    with knowledge.lock:
        wanted = {ids: NEVER for ids, _ in _stated(knowledge)}
        wanted |= {number(triple(ids)): when for ids, when in _stated(newer)}
        edit = Edit(knowledge)
        edit.restate(wanted)
        edit.done()
        knowledge.version = newer.version


def _stated(knowledge: Knowledge) -> Iterator[tuple[Ids, Validity]]:
    """What is stated, and when it holds."""
    yield from ((ids, ALWAYS) for ids in knowledge._closure.always)
    yield from knowledge._closure.sometimes.items()
