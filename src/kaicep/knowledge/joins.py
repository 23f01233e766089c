"""Plain triple patterns, answered from the closure itself: one join after the other, all rows at a time.

Most of what is left of a PATH is no more than that, and the closure has every index that it takes. So
the usual relation needs no second copy of the knowledge (`queries` has one for the rest of SPARQL).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from kaicep.knowledge.graph import Known, Terms
from kaicep.plan.sparql import Group, TriplePattern, Triples, Values
from kaicep.plan.terms import Iri, Term, Triple, Variable

__all__ = ["Plain", "meeting", "plain", "solve", "solve_numbers"]

Row = tuple[int, ...]

# How many rows one row is expected to become; only the order of the joins depends on it.
_FORWARD, _BACKWARD, _ANYWHERE = 2, 20, 1 << 60


@dataclass(frozen=True)
class Plain:
    """Patterns whose properties are given, and tables of values: what can be joined here."""

    patterns: tuple[TriplePattern, ...]
    tables: tuple[Values, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """All variables; each of them has a value in every solution."""
        places = (place for each in self.patterns for place in (each.subject, each.object))
        named = {place.name for place in places if isinstance(place, Variable)}
        return frozenset(named.union(*(each.variables for each in self.tables)))


def plain(group: Group) -> Plain | None:
    """The group as something that can be joined here, or None where it has more in it."""
    patterns: list[TriplePattern] = []
    tables: list[Values] = []
    for element in group.elements:
        if isinstance(element, Triples) and all(isinstance(each.predicate, Iri) for each in element.patterns):
            patterns += element.patterns
        elif isinstance(element, Values) and all(None not in row for row in element.rows):
            tables.append(element)
        else:
            return None
    return Plain(tuple(patterns), tuple(tables))


def meeting(pattern: TriplePattern, triple: Triple) -> Values | None:
    """The values that the pattern's variables have where it is met by that triple; None where it is not.

    >>> meeting(TriplePattern(Variable("s"), Iri("urn:in"), Iri("urn:r")),
    ...         (Iri("urn:s1"), Iri("urn:in"), Iri("urn:r"))).rows
    ((Iri(value='urn:s1'),),)
    """
    bound: dict[str, Term] = {}
    for place, term in zip((pattern.subject, pattern.predicate, pattern.object), triple, strict=True):
        if isinstance(place, Variable):
            if bound.setdefault(place.name, term) != term:
                return None
        elif place != term:
            return None
    return Values(tuple(bound), (tuple(bound.values()),))


def solve(asked: Plain, facts: Known, known: Terms, names: Sequence[str]) -> list[tuple[Term, ...]]:
    """The distinct values of these variables, each of which must be one of `asked.variables`."""
    rows, terms = solve_numbers(asked, facts, known, names)
    if not rows or not names:
        return [()] * bool(rows)
    return list(zip(*(terms.terms(column) for column in zip(*rows, strict=True)), strict=True))


def solve_numbers(
    asked: Plain, facts: Known, known: Terms, names: Sequence[str]
) -> tuple[Collection[Row], Terms]:
    """The same by numbers, and the terms that these stand for."""
    # A table of values may have terms that nobody knows.
    terms = Terms(known) if asked.tables else known
    if not all(_is_known(each, terms) for each in asked.patterns):
        return [], terms
    steps = [_step(each, terms) for each in asked.patterns]
    columns = list(dict.fromkeys(place for step in steps for place in step.places if isinstance(place, int)))
    rows: Collection[Row] = [tuple(columns)]
    at: dict[int | str, int] = {constant: index for index, constant in enumerate(columns)}
    for table in asked.tables:
        rows = list(_with_table(rows, at, table, terms))
    while steps and rows:
        step = min(steps, key=lambda each: _growth(each, at, facts))
        steps.remove(step)
        rows = _joined(rows, at, step, facts)
        needed = {place for each in steps for place in each.places} | set(names)
        if steps and not needed.issuperset(at):
            kept = [each for each in at if each in needed]
            rows, at = _only(rows, at, kept), {each: index for index, each in enumerate(kept)}
    return (_only(rows, at, names) if rows else []), terms


@dataclass(frozen=True)
class _Step:
    """A pattern by numbers; a variable is its name."""

    subject: int | str
    predicate: int
    object: int | str

    @property
    def places(self) -> tuple[int | str, int | str]:
        return self.subject, self.object


def _is_known(pattern: TriplePattern, terms: Terms) -> bool:
    """Whether all that the pattern names occurs anywhere."""
    places = (pattern.subject, pattern.predicate, pattern.object)
    return all(isinstance(each, Variable) or terms.known(each) is not None for each in places)  # type: ignore[arg-type]


def _step(pattern: TriplePattern, terms: Terms) -> _Step:
    def place(of: Term | Variable) -> int | str:
        return of.name if isinstance(of, Variable) else terms.number(of)

    assert isinstance(pattern.predicate, Iri)
    return _Step(place(pattern.subject), terms.number(pattern.predicate), place(pattern.object))


def _growth(step: _Step, at: dict[int | str, int], facts: Known) -> int:
    if step.subject in at:
        return 0 if step.object in at else _FORWARD
    if isinstance(step.object, int):
        return len(facts.subjects(step.predicate, step.object))
    return _BACKWARD if step.object in at else _ANYWHERE


def _joined(rows: Iterable[Row], at: dict[int | str, int], step: _Step, facts: Known) -> list[Row]:
    """The rows with what the pattern adds to them; new variables get their places."""
    p, s, o = step.predicate, at.get(step.subject), at.get(step.object)
    if s is not None and o is not None:
        return [row for row in rows if facts.has(row[s], p, row[o])]
    if s is not None:
        at[step.object] = len(at)
        return [(*row, each) for row in rows for each in facts.objects(row[s], p)]
    at[step.subject] = len(at)
    if o is not None:
        return [(*row, each) for row in rows for each in facts.subjects(p, row[o])]
    if step.subject == step.object:
        same = [one for one, other in facts.pairs(p) if one == other]
        return [(*row, each) for row in rows for each in same]
    at[step.object] = len(at)
    pairs = list(facts.pairs(p))
    return pairs if rows == [()] else [(*row, *pair) for row in rows for pair in pairs]  # type: ignore[return-value]


def _with_table(rows: Iterable[Row], at: dict[int | str, int], table: Values, terms: Terms) -> Iterator[Row]:
    """The rows joined with a table of values."""
    old = [(index, at[name]) for index, name in enumerate(table.variables) if name in at]
    new = [index for index, name in enumerate(table.variables) if name not in at]
    at.update({table.variables[index]: len(at) + place for place, index in enumerate(new)})
    values = dict.fromkeys(
        tuple(terms.number(term) for term in row if term is not None) for row in table.rows
    )
    for row in rows:
        for each in values:
            if all(each[index] == row[place] for index, place in old):
                yield (*row, *(each[index] for index in new))


def _only(rows: Iterable[Row], at: Mapping[int | str, int], wanted: Sequence[int | str]) -> Collection[Row]:
    """These columns of the rows, and every such row once."""
    places = [at[each] for each in wanted]
    if places == list(range(len(at))):
        return list(rows)  # all of them in their order: joins make no row twice
    if len(places) > 1:
        return dict.fromkeys(map(itemgetter(*places), rows))
    return dict.fromkeys(tuple([row[each] for each in places]) for row in rows)
