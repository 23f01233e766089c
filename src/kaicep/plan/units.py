"""Units of measurement: what is compared is brought into one unit first (semantics 2.2).

An annotation says in which QUDT unit an attribute is; the knowledge says it of a threshold, by the
`qudt:hasUnit` of the thing that has it, and by how much units differ (`qudt:conversionMultiplier`,
`conversionOffset`). The plan then has the arithmetic that converts, and no host knows of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from kaicep.plan.catalog import QUDT, Stream, Vocabulary
from kaicep.plan.chi import PathBlock
from kaicep.plan.expressions import (
    Aggregate,
    Call,
    Const,
    Expr,
    Field,
    Previous,
    VariableRef,
    rewrite,
    type_of,
    walk,
)
from kaicep.plan.sparql import Group, Node, Optional, Steps, TripleBlock, TriplePattern
from kaicep.plan.terms import Iri, Variable
from kaicep.plan.types import Type
from kaicep.plan.typing import Problems, retyped

__all__ = ["Units"]

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_HAS_UNIT = Iri(QUDT + "hasUnit")
_MULTIPLIER, _OFFSET = Iri(QUDT + "conversionMultiplier"), Iri(QUDT + "conversionOffset")

Paths = tuple[tuple[PathBlock, ...], ...]


@dataclass
class Units:
    """The units of one query's attributes and thresholds."""

    streams: Mapping[str, Stream]
    vocabulary: Vocabulary
    paths: Paths
    problems: Problems
    asked: dict[str, tuple[PathBlock, Node]] = field(default_factory=dict)
    """The variables of the PATH whose units must be known, each with the block and the thing that has it."""

    def in_one_unit(self, condition: Expr) -> Expr:
        """The condition; in a comparison, all is in the unit of the first attribute that has one."""
        if not any(each.units for each in self.streams.values()):
            return condition
        return rewrite(condition, self._compared)

    def _compared(self, expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in _COMPARISONS:
            return expr
        parts = (part for each in expr.args for part in walk(each) if isinstance(part, Field))
        unit = next((unit for each in parts for _, _, unit in self._runs(each) if unit is not None), None)
        if unit is None:
            return expr

        made = tuple(self._converted(each, unit) for each in expr.args)
        return expr if made == expr.args else retyped(replace(expr, args=made))

    def _converted(self, part: Expr, unit: Iri) -> Expr:
        match part:
            case Field():
                return self._attribute(part, lambda given: given, unit)
            case Previous():
                given = part
                return self._attribute(part.of, lambda of: replace(given, of=of), unit)
            case VariableRef():
                return self._threshold(part, unit)
            case Call():
                made = tuple(self._converted(each, unit) for each in part.args)
                return part if made == part.args else retyped(replace(part, args=made))
            case Aggregate() if part.of is not None:
                of = self._converted(part.of, unit)
                same = of == part.of or part.op in ("COUNT", "AVG", "STDDEV")
                return replace(part, of=of, type=part.type if same else type_of(of))
        return part

    # --- attributes ---

    def _runs(self, attribute: Field) -> Iterator[tuple[int, tuple[str, tuple[str, ...]], Iri | None]]:
        """The attributes of each stream that carry it, neighbours of one unit together, in their order."""
        for stream, names in attribute.sources:
            units = dict(self.streams[stream].units) if stream in self.streams else {}
            runs: list[tuple[list[str], Iri | None]] = []
            for name in names:
                if not runs or runs[-1][1] != units.get(name):
                    runs.append(([], units.get(name)))
                runs[-1][0].append(name)
            yield from ((at, (stream, tuple(some)), unit) for at, (some, unit) in enumerate(runs))

    def _attribute(self, attribute: Expr, read: Callable[[Field], Expr], wanted: Iri) -> Expr:
        """An attribute in the wanted unit, as it is `read`; what has no unit is in it already."""
        if not isinstance(attribute, Field) or attribute.type not in (Type.INT64, Type.FLOAT64):
            return read(attribute)  # type: ignore[arg-type]
        runs = list(self._runs(attribute))
        if all(unit in (None, wanted) for _, _, unit in runs):
            return read(attribute)
        parts: dict[tuple[int, Iri], list[tuple[str, tuple[str, ...]]]] = {}
        for at, source, unit in sorted(runs, key=lambda each: each[0]):
            parts.setdefault((at, unit or wanted), []).append(source)
        made: list[Expr] = []
        for (_, unit), some in parts.items():
            sources = tuple((stream, dict(some).get(stream, ())) for stream, _ in attribute.sources)
            made.append(self._scaled(replace(attribute, sources=sources), read, unit, wanted))
        return made[0] if len(made) == 1 else _call("coalesce", *made)

    def _scaled(self, attribute: Field, read: Callable[[Field], Expr], unit: Iri, wanted: Iri) -> Expr:
        if unit == wanted:
            return read(attribute)
        given, target = self.vocabulary.unit(unit), self.vocabulary.unit(wanted)
        if given is None or target is None:
            unknown = unit if given is None else wanted
            self.problems.error(
                f"?{attribute.variable}.{attribute.name} is in {unit.local} and is compared with "
                f"{wanted.local}, but the knowledge has no qudt:conversionMultiplier of {unknown.local}",
                attribute.span,
                "load QUDT's units with --knowledge, or state it in a file of your own",
            )
            return read(attribute)
        if given.dimension != target.dimension and given.dimension and target.dimension:
            self.problems.error(
                f"{unit.local} and {wanted.local} do not measure the same",
                attribute.span,
                'see "units" in the annotation',
            )
            return read(attribute)
        factor = given.multiplier / target.multiplier
        scaled = _call("*", read(attribute), _number(factor))
        shift = given.offset * factor - target.offset
        return scaled if not shift else _call("+", scaled, _number(shift))

    # --- thresholds ---

    def _threshold(self, of: VariableRef, wanted: Iri) -> Expr:
        """A variable of the PATH in the wanted unit, where its solution says in which unit it is."""
        target = self.vocabulary.unit(wanted)
        found = next(self._having(of.name), None)
        if found is None:
            return of
        if target is None:
            self.problems.warn(
                f"?{of.name} is compared with {wanted.local}, of which the knowledge has no "
                "qudt:conversionMultiplier: it is not converted",
                of.span,
                "load QUDT's units with --knowledge, or state it in a file of your own",
            )
            return of
        self.asked[of.name] = found
        multiplier, offset = (VariableRef(each) for each in _names(of.name))
        base = _number(target.multiplier)
        shift = _call("coalesce", offset, _number(Fraction(0)))
        same = _call("and", _call("=", multiplier, base), _call("=", shift, _number(target.offset)))
        converted = _call("/", _call("*", _call("+", of, shift), multiplier), base)
        if target.offset:
            converted = _call("-", converted, _number(target.offset))
        return _call("if", same, of, _call("coalesce", converted, of))

    def _having(self, name: str) -> Iterator[tuple[PathBlock, Node]]:
        """The things that have a variable for a value, by a pattern at the top of a block."""
        for block in self.paths[0] if len(self.paths) == 1 else ():
            for element in block.group.elements:
                for pattern in element.patterns if isinstance(element, TripleBlock) else ():
                    if pattern.object == Variable(name) and isinstance(pattern.predicate, Iri):
                        yield block, pattern.subject

    @property
    def with_asked(self) -> Paths:
        """The PATHs, which also ask for the units that must be known."""

        def added(block: PathBlock) -> PathBlock:
            more: list[Optional] = []
            for name, (where, thing) in self.asked.items():
                ways = zip(_names(name), (_MULTIPLIER, _OFFSET), strict=True)
                more += [_optional(thing, way, each) for each, way in ways if where is block]
            return replace(block, group=Group((*block.group.elements, *more))) if more else block

        return tuple(tuple(added(each) for each in blocks) for blocks in self.paths)

    def helpers_of(self, keys: Iterable[Expr]) -> Iterator[VariableRef]:
        """What the thresholds that are grouped by are grouped by besides: another unit is another group."""
        names = [each.name for each in keys if isinstance(each, VariableRef) and each.name in self.asked]
        yield from (VariableRef(helper) for name in names for helper in _names(name))


def _names(variable: str) -> Sequence[str]:
    return f"kaicep_multiplier_{variable}", f"kaicep_offset_{variable}"


def _optional(thing: Node, way: Iri, name: str) -> Optional:
    return Optional(Group((TripleBlock((TriplePattern(thing, Steps((_HAS_UNIT, way)), Variable(name)),)),)))


def _call(op: str, *args: Expr) -> Expr:
    return retyped(Call(op, args))


def _number(value: Fraction) -> Const:
    return Const(float(value), Type.FLOAT64)
