"""Whether two knowledge bases come from the same statements, and how one catches up with the other.

The statements say what a knowledge base is; what follows from them, and the numbers of terms, do not.
"""

from __future__ import annotations

from hashlib import blake2b

from kaicep.knowledge.graph import TermTable
from kaicep.knowledge.loading import DEFAULT, InGraphs, Stated
from kaicep.knowledge.store import Edit, Knowledge
from kaicep.plan.terms import n_triples


def fingerprint(knowledge: Knowledge) -> str:
    """The same for all knowledge bases with these statements at these times and this reasoning.

    >>> one, two = (Knowledge.parse("<urn:a> <urn:p> <urn:b> . <urn:c> <urn:p> <urn:d> .") for _ in "12")
    >>> fingerprint(one) == fingerprint(two)
    True
    >>> change = two.update(remove="<urn:a> <urn:p> <urn:b> .")
    >>> fingerprint(one) == fingerprint(two)
    False
    """
    terms, stated = knowledge.by_number()[1], knowledge.stated()
    lines = sorted(
        f"{n_triples(terms.triple(ids))} {when}{_graphs(stated.placed.get(ids), terms)}"
        for ids, when in stated.held.items()
    )
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
    old, new, said = knowledge.by_number()[1], newer.by_number()[1], newer.stated()
    with knowledge.lock:
        held = {old.ids(new.triple(ids)): when for ids, when in said.held.items()}
        placed = {
            old.ids(new.triple(ids)): {
                each if each == DEFAULT else old.number(new.term(each)): when for each, when in places.items()
            }
            for ids, places in said.placed.items()
        }
        edit = Edit(knowledge)
        edit.restate(knowledge.stated().otherwise(Stated(held, placed)))
        edit.done()
        knowledge.version = newer.version


def _graphs(places: InGraphs | None, terms: TermTable) -> str:
    """The graphs of a statement, where it stands in others than the default graph."""
    if places is None:
        return ""
    return str(sorted(("" if each == DEFAULT else str(terms.term(each)), at) for each, at in places.items()))
