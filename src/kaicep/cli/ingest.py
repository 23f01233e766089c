"""`kaicep ingest`: files into an archive, each record once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaicep.cli.arguments import Annotations, Streams, duration, files, named_streams
from kaicep.cli.guard import say
from kaicep.cli.progress import progress
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from kaicep.connectors.shape import Form
    from kaicep.endtoend.ingest import Ingested

__all__ = ["ingest"]


def ingest(
    stream: Streams = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", metavar="DIR", help="The folder of the archive.")
    ] = None,
    annotation: Annotations = None,
    lateness: Annotated[
        str | None,
        typer.Option(
            "--lateness",
            metavar="DURATION",
            help="How far behind its part's newest event an event may come, such as 5min, before it is "
            "marked as late. Without it, nothing is late.",
        ),
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            "--dead-letters",
            metavar="FILE",
            help="Where records go, besides the archive, that cannot be read.",
        ),
    ] = None,
) -> None:
    """Append files to an archive, each record once.

    What it holds already does not come in again. The archive is made where there is
    none. Run it again whenever files have grown or new ones have come.

    Example: kaicep ingest --stream air=air.jsonl --archive morning
    """
    streams = named_streams(stream or ())
    if not streams:
        raise Mistake(Diagnostic("no stream is given", hint="such as --stream NAME=FILE.jsonl"))
    if archive is None:
        raise Mistake(Diagnostic("no archive is given", hint="such as --archive DIR"))
    annotations = files("--annotation", annotation)
    allowed = duration("--lateness", lateness)

    from kaicep.cli.output import atomic, json_line, refuse_overwriting

    inputs = [*annotations, *(path for _, path in streams)]
    refuse_overwriting({"--dead-letters": dead_letters} if dead_letters else {}, inputs)
    with ExitStack() as stack:
        target = stack.enter_context(atomic(dead_letters, "--dead-letters")) if dead_letters else None
        started = time.monotonic()
        done = _ingested(archive, streams, annotations, allowed)
        seconds = time.monotonic() - started
        if target is not None:
            target.writelines(json_line(each.to_dict()) for some in done for each in some.dead)
    for note in _notes(done, seconds):
        say(note)


def _ingested(
    archive: Path, streams: Sequence[tuple[str, Path]], annotations: Sequence[Path], lateness: int | None
) -> list[Ingested]:
    """Reads everything, with a bar that follows the bytes of the streams."""
    from kaicep.archive.archive import Archive
    from kaicep.connectors.files import files_of
    from kaicep.connectors.records import watching
    from kaicep.endtoend.ingest import ingest as append

    total = sum(file.stat().st_size for name, path in streams for file in files_of(name, path))
    read: dict[Path, int] = {}
    with progress("ingesting", total) as advance:

        def follow(path: Path, position: int) -> None:
            read[path] = position
            advance(sum(read.values()))

        with watching(follow):
            forms = _forms([name for name, _ in streams], annotations)
            return [append(Archive(archive), forms[name], path, lateness) for name, path in streams]


def _forms(streams: Sequence[str], annotations: Sequence[Path]) -> dict[str, Form]:
    from kaicep.connectors.shape import Form
    from kaicep.knowledge.annotation import load_annotations

    known = {each.stream: each for path in annotations for each in load_annotations(path)}
    return {
        name: Form(name, known[name].time, dict(known[name].types), True) if name in known else Form(name)
        for name in streams
    }


def _notes(done: Sequence[Ingested], seconds: float) -> Iterator[str]:
    """What came in, and what did not."""
    for each in done:
        late = f", {each.late:,} late" if each.late else ""
        dead = f", {len(each.dead):,} that could not be read" if each.dead else ""
        yield f"{each.stream}: {each.rows:,} new{late}{dead}"
    rows = sum(each.rows for each in done)
    if rows and sys.stderr.isatty():
        yield f"{rows:,} events in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f}/s)"
