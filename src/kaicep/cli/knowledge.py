"""`kaicep knowledge`: what a knowledge base contains, and how to use it in a query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaicep.cli.arguments import Annotations, KnowledgeFiles, Reasoning, files, group, reasoning_level, warn
from kaicep.errors import Failure, Mistake
from kaicep.plan.terms import Variable
from kaicep.plan.text import predicate_text

if TYPE_CHECKING:
    from kaicep.knowledge.annotation import Annotation
    from kaicep.knowledge.store import Knowledge
    from kaicep.knowledge.vocabulary import ClassUse, Concepts, KnowledgeNames, PropertyUse, Summary, Way
    from kaicep.plan.catalog import Entity
    from kaicep.plan.terms import Iri

_MOST_ROWS = 60

Json = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]
From = Annotated[str, typer.Argument(metavar="FROM", help="A stream, a class or a thing.")]
To = Annotated[str, typer.Argument(metavar="TO", help="A class, a thing or a property.")]


def summary(
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = None,
    as_json: Json = False,
) -> None:
    """List classes and properties, as the data uses them.

    Example: kaicep knowledge summary --knowledge campus.ttl
    """
    known, _, names = _open(knowledge, annotation, reasoning)

    from kaicep.knowledge.vocabulary import summary as summarise

    found = summarise(known, names)
    warn(found.warnings)
    _print(_summary_json(found, names) if as_json else _summary_text(found, names))


def concepts(
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = None,
    as_json: Json = False,
) -> None:
    """Say which attributes of the streams carry which concepts.

    Example: kaicep knowledge concepts --annotation air.json --knowledge campus.ttl
    """
    known, annotations, names = _open(knowledge, annotation, reasoning, annotated=True)

    from kaicep.knowledge.vocabulary import concepts as find

    found = find(known, annotations)
    _print(_concepts_json(found, names) if as_json else _concepts_text(found, names))


def path(
    start: From,
    end: To,
    knowledge: KnowledgeFiles = None,
    annotation: Annotations = None,
    reasoning: Reasoning = None,
    as_json: Json = False,
) -> None:
    """Find how one thing leads to another, as a PATH.

    Example: kaicep knowledge path airflowReport bd:MeetingRoom --knowledge campus.ttl --annotation air.json
    """
    known, annotations, names = _open(knowledge, annotation, reasoning)

    from kaicep.knowledge.vocabulary import MOST_STEPS, ways

    found = ways(start, end, known, annotations, names)
    if not found:
        raise Failure(f"there is no way from {start} to {end} in {MOST_STEPS} steps")
    _print(_ways_json(found, names) if as_json else _ways_text(found, names))


def _open(
    paths: Sequence[Path] | None,
    annotations: Sequence[Path] | None,
    reasoning: str | None,
    annotated: bool = False,
) -> tuple[Knowledge, tuple[Annotation, ...], KnowledgeNames]:
    """The knowledge, the annotations, and the names of both."""
    level = reasoning_level(reasoning)
    known, given = files("--knowledge", paths, folders=True), files("--annotation", annotations)
    if annotated and not given:
        raise Mistake("nothing is annotated", hint="name annotation files with --annotation")
    if not known and not annotated:
        raise Mistake("no knowledge is given", hint="name its files with --knowledge")

    from kaicep.knowledge.annotation import load_annotations
    from kaicep.knowledge.store import Knowledge
    from kaicep.knowledge.vocabulary import KnowledgeNames

    read = tuple(each for one in given for each in load_annotations(one))
    base = Knowledge.load(*known, reasoning=level)
    return base, read, KnowledgeNames(base, read)


def _print(what: str | Mapping[str, Any] | Sequence[Any]) -> None:
    typer.echo(what if isinstance(what, str) else json.dumps(what, indent=2, ensure_ascii=False))


# --- summary ---------------------------------------------------------------------------------------


def _summary_text(found: Summary, names: KnowledgeNames) -> str:
    closed = f"{found.closed:,} with what follows from them ({found.reasoning})"
    rows = [f"{found.statements:,} statements, {closed}, in {found.seconds:.2f} s"]
    if found.passing:
        rows.append(f"{found.passing:,} of them hold for a time only")
    rows += ["", "classes and their instances"]
    rows += _indented(_class_rows(found.classes, names)) or ["  none"]
    rows += ["", "properties, how often they are used, and between what"]
    rows += _indented(_property_rows(found.properties, names)) or ["  none"]
    return "\n".join(rows)


def _class_rows(classes: Sequence[ClassUse], names: KnowledgeNames) -> list[tuple[str, ...]]:
    """The tree of classes, each below the first class above it; of very many, those in use."""
    by_name = {each.name: each for each in classes}
    parents = {each.name: next((up for up in each.above if up in by_name), None) for each in classes}
    depths = {each.name: len(_upwards(each.name, parents)) for each in classes}

    def order(each: ClassUse) -> tuple[int, int, str]:
        return -each.instances, depths[each.name], names.text(each.name)

    ranked = sorted(classes, key=order)
    shown = {up for each in ranked[:_MOST_ROWS] for up in _upwards(each.name, parents)}
    below: dict[Iri | None, list[ClassUse]] = {}
    for each in reversed(ranked):
        if each.name in shown:
            parent = parents[each.name] if depths[each.name] > 1 else None
            below.setdefault(parent, []).append(each)
    rows: list[tuple[str, ...]] = []
    left = below.get(None, [])
    while left:
        each = left.pop()
        indent = "  " * (depths[each.name] - 1)
        rows.append((indent + names.text(each.name), f"{each.instances:,}"))
        left += below.get(each.name, [])
    if len(classes) > len(rows):
        rows.append((f"... and {len(classes) - len(rows):,} more, see --json",))
    return rows


def _upwards(name: Iri, parents: Mapping[Iri, Iri | None]) -> list[Iri]:
    """The class and those above it, up to the top; of a circle, only itself."""
    found = [name]
    while (parent := parents[found[-1]]) is not None:
        if parent in found:
            return [name]
        found.append(parent)
    return found


def _property_rows(properties: Sequence[PropertyUse], names: KnowledgeNames) -> list[tuple[str, ...]]:
    ranked = sorted(properties, key=lambda each: (-each.uses, names.text(each.name)))
    shown = sorted(ranked[:_MOST_ROWS], key=lambda each: names.text(each.name))
    rows: list[tuple[str, ...]] = []
    for each in shown:
        ends = f"{' or '.join(each.subjects)} -> {' or '.join(each.objects)}" if each.uses else ""
        rows.append((names.text(each.name), f"{each.uses:,}", ends))
    if len(properties) > len(rows):
        rows.append((f"... and {len(properties) - len(rows):,} more, see --json",))
    return rows


def _summary_json(found: Summary, names: KnowledgeNames) -> dict[str, Any]:
    return {
        "statements": found.statements,
        "closed": found.closed,
        "passing": found.passing,
        "reasoning": found.reasoning,
        "seconds": round(found.seconds, 3),
        "classes": [
            {
                "name": names.text(each.name),
                "iri": each.name.value,
                "instances": each.instances,
                "above": [names.text(one) for one in each.above],
            }
            for each in found.classes
        ],
        "properties": [
            {
                "name": names.text(each.name),
                "iri": each.name.value,
                "uses": each.uses,
                "subjects": list(each.subjects),
                "objects": list(each.objects),
            }
            for each in found.properties
        ],
        "warnings": [each.message for each in found.warnings],
    }


# --- concepts --------------------------------------------------------------------------------------


def _concepts_text(found: Concepts, names: KnowledgeNames) -> str:
    rows: list[str] = []
    for each in found.annotations:
        kind = f" ({names.text(each.event_class)})" if each.event_class else ""
        rows += [f"{each.stream}{kind}", *_indented(_attributes(each, found, names)), ""]
    read = [
        (
            f"?e.{names.text(concept)}",
            "; ".join(f"{stream}: {', '.join(some)}" for stream, some in by.items()),
        )
        for concept, by in found.carriers.items()
    ]
    rows += ["what is read from where", *_indented(sorted(read))]
    for title, some in (("no stream carries", found.missing), ("no stream has events of", found.silent)):
        if some:
            rows += ["", title, *sorted(f"  {names.text(each)}" for each in some)]
    return "\n".join(rows)


def _attributes(annotation: Annotation, found: Concepts, names: KnowledgeNames) -> Iterator[tuple[str, ...]]:
    for attribute, concept in annotation.concepts:
        yield attribute, names.text(concept)
    for attribute, entity in annotation.entities:
        by = [predicate_text(each, names.prefixes) for each in entity.lookup]
        how = f"by {' and '.join(by)}" if by else names.template(entity.template or "")
        number = found.entities[annotation.stream, attribute]
        yield attribute, f"{names.text(entity.property)} -> {how}, {number:,} known"


def _lookup_json(entity: Entity, names: KnowledgeNames) -> dict[str, Any]:
    by = [predicate_text(each, names.prefixes) for each in entity.lookup]
    return {"lookup": by[0] if len(by) == 1 else by} if by else {}


def _concepts_json(found: Concepts, names: KnowledgeNames) -> dict[str, Any]:
    return {
        "streams": {
            each.stream: {
                "class": names.text(each.event_class) if each.event_class else None,
                "attributes": {name: names.text(concept) for name, concept in each.concepts},
                "entities": {
                    name: {
                        "property": names.text(entity.property),
                        **_lookup_json(entity, names),
                        **({"iri": entity.template} if entity.template else {}),
                        "known": found.entities[each.stream, name],
                    }
                    for name, entity in each.entities
                },
            }
            for each in found.annotations
        },
        "carriers": {names.text(concept): by for concept, by in found.carriers.items()},
        "missing": [names.text(each) for each in found.missing],
        "silent": [names.text(each) for each in found.silent],
    }


# --- ways ------------------------------------------------------------------------------------------


def _ways_text(found: Sequence[Way], names: KnowledgeNames) -> str:
    """PATHs to copy, with comments that may be copied along."""
    from kaicep.knowledge.vocabulary import path_text, undeclared_prefixes

    prefixes = [f"PREFIX {name}: <{iri}>" for name, iri in undeclared_prefixes(found, names).items()]
    blocks = ["\n".join(prefixes)] if prefixes else []
    blocks += [f"{_holds(each)}\n{path_text(each, names)}" for each in found]
    return "\n\n".join(blocks)


def _holds(way: Way) -> str:
    if isinstance(way.start, Variable):
        return f"# holds for {way.holds:,} of the {way.of:,} that {way.start} may be"
    return "# holds" if way.start else "# holds for every event"


def _ways_json(found: Sequence[Way], names: KnowledgeNames) -> list[dict[str, Any]]:
    from kaicep.knowledge.vocabulary import path_text, undeclared_prefixes

    return [
        {
            "path": path_text(each, names),
            "prefixes": undeclared_prefixes((each,), names),
            "holds": each.holds,
            "of": each.of,
        }
        for each in found
    ]


def _indented(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows in columns, two places from the left; a column of numbers stands to the right."""
    cells = list(rows)
    full = [each for each in cells if len(each) > 1]
    widths = [max(len(row[at]) for row in full) for at in range(len(full[0]))] if full else []
    right = [at > 0 and all(row[at].replace(",", "").isdigit() for row in full) for at in range(len(widths))]
    lines: list[str] = []
    for row in cells:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=False)
        ]
        lines.append(("  " + "  ".join(padded if len(row) > 1 else row)).rstrip())
    return lines


knowledge = group(
    "knowledge",
    "Explore the knowledge, and how streams connect to it.\n\n"
    "Example: kaicep knowledge summary --knowledge campus.ttl",
    summary,
    concepts,
    path,
)
