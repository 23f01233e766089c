"""SHACL: whether the knowledge has the shape that somebody asks of it.

Shapes are files of RDF. They are tested against everything that holds, with what follows, when it is loaded
and after every change, by pyshacl (extra `shacl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Mistake, Source
from kaicep.knowledge.loading import FORMATS, files_of, read_bytes, suffix_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.terms import n_triples

__all__ = ["Validate", "shapes_of"]

Validate = Callable[[Knowledge], tuple[Diagnostic, ...]]
"""What is wrong with a knowledge base."""

_MOST = 20
# What rdflib calls the formats that it reads.
_RDFLIB = {"TURTLE": "turtle", "N_TRIPLES": "nt", "RDF_XML": "xml", "JSON_LD": "json-ld"}


def shapes_of(paths: Iterable[str | Path]) -> Validate:
    """A test for the shapes of these files, which are read now."""
    try:
        import pyshacl  # type: ignore[import-untyped, unused-ignore]
        from rdflib import Graph
        from rdflib.namespace import RDF, SH
    except ImportError:
        hint = "pip install 'kaicep[shacl]'"
        raise Mistake(
            Diagnostic("shapes need the package pyshacl, which is not installed", hint=hint)
        ) from None
    shapes = Graph()
    for path in files_of(paths):
        _parse(shapes, path)

    def validate(knowledge: Knowledge) -> tuple[Diagnostic, ...]:
        data = Graph()
        data.parse(data="\n".join(map(n_triples, knowledge.match())), format="nt")
        _, report, _ = pyshacl.validate(data, shacl_graph=shapes, advanced=False, do_owl_imports=False)
        results = list(report.subjects(RDF.type, SH.ValidationResult))
        found = sorted({_told(report, each, SH) for each in results})
        more = (f"and {len(found) - _MOST} more violations",) if len(found) > _MOST else ()
        return tuple(Diagnostic(each, severity="warning") for each in (*found[:_MOST], *more))

    return validate


def _parse(shapes: Any, path: Path) -> None:
    kind = _RDFLIB.get(FORMATS.get(suffix_of(path), ""))
    if kind is None:
        raise Mistake(Diagnostic(f"{path}: shapes are files of one graph", hint=".ttl, .nt, .rdf or .jsonld"))
    try:
        shapes.parse(data=read_bytes(path), format=kind)
    except Exception as error:  # rdflib's parsers raise what they like
        raise Mistake(Diagnostic(f"no shapes: {error}", source=Source(str(path), ""))) from None


def _told(report: Any, result: Any, sh: Any) -> str:
    """A violation in words: what is wrong with which thing."""
    node, path = report.value(result, sh.focusNode), report.value(result, sh.resultPath)
    messages: Iterator[str] = (str(each) for each in report.objects(result, sh.resultMessage))
    value = report.value(result, sh.value)
    about = f"<{node}>" + (f", <{path}>" if path is not None else "")
    said = "; ".join(sorted(messages)) or str(report.value(result, sh.sourceConstraintComponent))
    return f"{about}: {said}" + (f" (it is {value.n3()})" if value is not None and value != node else "")
