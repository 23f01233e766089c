"""A Kafka topic with changes of the knowledge: each message is a SPARQL UPDATE or an RDF Patch.

Every message becomes a file in the folder of changes, which is followed as any other. Its name has a number,
by which changes stand in the order in which they came here, and the partition and the offset: where to read
on is what the folder has. So a restart works while the broker does not, and nothing is applied twice.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kaicep.connectors.kafka import KafkaSource, KafkaSourceOptions, Setting
from kaicep.connectors.registry import Variable
from kaicep.connectors.shape import Form, Schema
from kaicep.errors import Failure, Mistake
from kaicep.knowledge.queries import operations
from kaicep.storage.disk import replace_file

_LOG = logging.getLogger("kaicep.knowledge")
_SUFFIXES = {"sparql-update": "ru", "rdf-patch": "rdfp"}
_CHANGE = re.compile(r"(\d{6,})(?:\.(\d+)\.(\d+))?\.(?:ru|rdfp|refused)$")
_AT_ONCE = 0.2
_PATIENCE = 10.0
_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """`[knowledge.updates]`: which topic of which servers, and what its messages are."""

    servers: str
    topic: str
    format: Literal["sparql-update", "rdf-patch"] = "sparql-update"
    settings: Mapping[str, Setting] = field(default_factory=dict)
    secrets: Mapping[str, Variable] = field(default_factory=dict)


def next_change(folder: Path) -> str:
    """The number of the next change in a folder, as its name begins."""
    return f"{max((int(found[1]) for found in _changes(folder)), default=0) + 1:06d}"


def _changes(folder: Path) -> Iterator[re.Match[str]]:
    return (found for each in folder.iterdir() if (found := _CHANGE.match(each.name)))


class UpdateTopic:
    """The messages of a topic as files in a folder (`knowledge.watching.Followed`).

    A message that is no update is told in the log, and kept beside the others as `.refused`.
    """

    def __init__(self, options: UpdateOptions, folder: Path) -> None:
        self.options = options
        self.file = folder
        self.trouble: str | None = None
        self._source: KafkaSource | None = None
        self._due = 0.0
        self._at_work: threading.Thread | None = None

    @classmethod
    def begun(cls, options: UpdateOptions, folder: Path) -> UpdateTopic:
        """The topic, read up to its end; where the servers cannot be reached, what came before counts."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(options, folder)
        made._catch_up()
        return made

    @property
    def position(self) -> dict[int, int]:
        """One past the last offset that the folder has, in every partition."""
        found: dict[int, int] = {}
        for each in _changes(self.file):
            if each[2] is not None:
                found[int(each[2])] = max(found.get(int(each[2]), 0), int(each[3]) + 1)
        return found

    def notify(self) -> None:
        """Somebody says that there is something new: it is looked for at the next look."""
        self._due = 0.0

    def look(self) -> None:
        """Sees whether something came, in a thread of its own; it does not wait for it."""
        busy = self._at_work is not None and self._at_work.is_alive()
        if not busy and time.monotonic() >= self._due:
            self._at_work = threading.Thread(target=self._read, name="kaicep-updates", daemon=True)
            self._at_work.start()

    def _opened(self, follow: bool) -> KafkaSource:
        given = self.options
        settings = {"settings": given.settings, "secrets": given.secrets}
        options = KafkaSourceOptions(given.servers, given.topic, follow, **settings)  # type: ignore[arg-type]
        made = KafkaSource(Form("the updates of the knowledge"), options)
        made.open(self.position, Schema())
        return made

    def _catch_up(self) -> None:
        try:
            with closing(self._opened(follow=False)) as source:
                while not source.ended and source.trouble is None:
                    self._keep(source.values(_PATIENCE))
                self._say(source.trouble)
        except Failure as error:
            self._say(str(error))

    def _read(self) -> None:
        try:
            if self._source is None:
                self._source = self._opened(follow=True)
            self._keep(self._source.values(_AT_ONCE))
            self._say(self._source.trouble)
        except (Failure, Mistake, OSError) as error:
            # It is opened again where the folder ends.
            if self._source is not None:
                self._source.close()
                self._source = None
            self._say(str(error))
        self._due = time.monotonic() + (_PAUSE if self.trouble is None else 5 * _PAUSE)

    def _keep(self, came: Mapping[int, tuple[Sequence[int], Sequence[bytes | None]]]) -> None:
        for part, (seq, values) in came.items():
            for at, value in zip(seq, values, strict=True):
                self._keep_one(part, at, (value or b"").decode(errors="replace"))

    def _keep_one(self, part: int, seq: int, text: str) -> None:
        suffix = _SUFFIXES[self.options.format]
        name = f"{next_change(self.file)}.{part}.{seq}"
        try:
            operations(text, f"{name}.{suffix}")
        except Mistake as mistake:
            place = f"offset {seq} of partition {part}"
            _LOG.warning("topic %s: %s is no update: %s", self.options.topic, place, mistake)
            suffix = "refused"
        replace_file(self.file / f"{name}.{suffix}", text.encode())

    def _say(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            _LOG.warning("topic %s: %s: the knowledge stays as it was", self.options.topic, trouble)
        elif trouble is None and self.trouble is not None:
            _LOG.warning("topic %s answers again", self.options.topic)
        self.trouble = trouble
