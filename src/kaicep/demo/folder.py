"""The demo's folder: knowledge, annotations, queries and a deployment file, and the data as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from kaicep.connectors.records import Record
from kaicep.connectors.shape import Form, Schema, Shaper
from kaicep.demo.campus import Campus
from kaicep.demo.morning import Report
from kaicep.demo.ontology import knowledge, stream_annotations
from kaicep.errors import Diagnostic, Mistake
from kaicep.knowledge.annotation import Annotation, parse_annotations
from kaicep.plan.events import Event
from kaicep.plan.types import Type

__all__ = ["QUERIES", "Folder", "check_empty"]

QUERIES = (
    *(f"query{number}" for number in range(1, 8)),
    "empty-but-cooled",
    "disagree",
    "fan-after-closing",
    "silent",
    "rising",
    "over-budget",
)
"""The queries of the demo: those of the SCEPter paper (its section 3.2), and six of our own."""

_DEPLOYMENT = """\
# The campus as a deployment: `kaicep run` in this folder, `kaicep status` in another window.
name = "campus"
state = "run"

[archive]
folder = "archive"

[knowledge]
files = ["knowledge/*.ttl"]

[queries]
folder = "queries"
"""
_STREAM = """
[streams.{name}]
annotation = "annotations/{name}.json"
lateness = "0s"
source = {{kind = "files", path = "data/{name}.jsonl", follow = true}}
"""
_SINK = """
[sinks.matches]
kind = "files"
path = "run/matches.jsonl"
"""


class Folder:
    """A folder with a campus in it, and its streams as far as they have come."""

    def __init__(self, path: Path, campus: Campus) -> None:
        check_empty(path)
        self.path = path
        self.archive = path / "archive"
        self.knowledge = path / "knowledge"
        self.queries = [path / "queries" / f"{name}.chi" for name in QUERIES]
        self.annotations: dict[str, Annotation] = {}
        self.next: dict[str, int] = {}
        texts = {f"knowledge/{name}": text for name, text in knowledge(campus).items()}
        for name, about in stream_annotations().items():
            (self.annotations[name],) = parse_annotations(about)
            self.next[name] = 0
            texts[f"annotations/{name}.json"] = json.dumps(about, indent=2) + "\n"
            texts[f"data/{name}.jsonl"] = ""
        packaged = files("kaicep.demo") / "queries"
        texts |= {f"queries/{name}.chi": (packaged / f"{name}.chi").read_text("utf-8") for name in QUERIES}
        texts["kaicep.toml"] = _DEPLOYMENT + "".join(_STREAM.format(name=n) for n in self.next) + _SINK
        for name, text in texts.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self._shapers = {name: _shaper(self.form(name)) for name in self.next}

    def form(self, stream: str) -> Form:
        """A stream as connectors want it described."""
        return Form.of(stream, self.annotations[stream])

    def data(self, stream: str) -> Path:
        """The file of a stream."""
        return self.path / "data" / f"{stream}.jsonl"

    def write(self, reports: Iterable[Report]) -> None:
        """Appends reports to the files of their streams."""
        lines: dict[str, list[str]] = {}
        for each in reports:
            lines.setdefault(each.stream, []).append(json.dumps(each.record))
        for stream, some in lines.items():
            self.next[stream] += len(some)
            with self.data(stream).open("a", encoding="utf-8") as file:
                file.write("\n".join(some) + "\n")

    def events(self, reports: Sequence[Report]) -> list[Event]:
        """The reports as the events that they will be once they are written."""
        after = dict(self.next)
        found: list[Event] = []
        for each in reports:
            seq = after[each.stream]
            after[each.stream] = seq + 1
            shaped, _ = self._shapers[each.stream].shape([Record(0, seq, seq + 1, each.stream, each.record)])
            found += shaped
        return found


def check_empty(folder: Path) -> None:
    """Refuses a folder that has something in it."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        hint = "nothing is overwritten: name a new or empty folder"
        raise Mistake(Diagnostic(f"{folder} is not empty", hint=hint))


def _shaper(form: Form) -> Shaper:
    return Shaper(form, Schema(tuple({**form.types, form.time: Type.TIMESTAMP}.items())))
