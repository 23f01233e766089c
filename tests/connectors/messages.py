"""The same three records as messages in every format of RDF, and what a source must make of them."""

from __future__ import annotations

from collections.abc import Iterable

import pyoxigraph

from kaicep.connectors.contract import SourceBatch
from kaicep.connectors.shape import Form
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.types import Notation, RdfTimes

PREFIXES = "@prefix : <urn:> . @prefix sosa: <http://www.w3.org/ns/sosa/> .\n"
GOOD = [f':o{at} :has [ :v "{at}" ] ; sosa:resultTime "2026-01-01T00:00:0{at}Z" .' for at in (1, 2)]
WITHOUT_TIME = ":o3 :v 3 ."
PREDICATES = ["<http://www.w3.org/ns/sosa/resultTime>", "<urn:has>", "<urn:v>"]


def form(format: str) -> Form:
    """The stream `s` of messages in a format."""
    return Form("s", notation=Notation(rdf=RdfTimes(format=format)))


def messages(format: str) -> list[bytes]:
    """Two records, one without a time, and no document at all."""
    kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
    made: list[bytes] = []
    for text in (*GOOD, WITHOUT_TIME):
        quads = pyoxigraph.parse(PREFIXES + text, format=pyoxigraph.RdfFormat.TURTLE)
        data = pyoxigraph.serialize(quads, format=kind)
        assert data is not None
        made.append(data)
    return [*made, b"oops"]


def check(batches: Iterable[SourceBatch]) -> None:
    """The records are there, by their numbers, and the two that are none."""
    every = list(batches)
    events = [each for batch in every for each in batch.events]
    starts = [(each.seq, each.start) for each in events]
    assert starts == [(0, 1_767_225_601_000_000), (1, 1_767_225_602_000_000)]
    assert [sorted(str(p) for _, p, _ in each.triples) for each in events] == [PREDICATES, PREDICATES]
    dead = [each for batch in every for each in batch.dead]
    assert [each.seq for each in dead] == [2, 3]
    assert "no time" in dead[0].reason
    assert dead[1].record_text == "oops"
