"""What is known of a deployment by whoever works out answers about it, as it is at the moment."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from kaicep.archive.archive import Archive
from kaicep.archive.snapshot import Snapshot
from kaicep.archive.stream import StreamTable
from kaicep.assist.vocabulary import Vocabulary
from kaicep.endtoend.checking import catalog_of
from kaicep.endtoend.config import Config, load_config
from kaicep.endtoend.registered import Registered, Registry
from kaicep.knowledge.annotation import prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.chi import ChiQuery
from kaicep.plan.sparql import EpQuery

__all__ = ["Situation"]


class Situation:
    """The file of a deployment, its knowledge, its streams and its registered queries; nothing is written."""

    def __init__(self, path: Path) -> None:
        self.config: Config = load_config(path)
        self.prefixes = prefixes_of(self.config.annotations)
        self._files = KnowledgeFiles(self.config.known, self.config.reasoning)
        self._tables: dict[str, StreamTable] = {}
        self.catalog = catalog_of(self.config, self.knowledge, self.snapshot())

    def snapshot(self) -> Snapshot:
        """The archive as it is now; of tables that are open already, only what is new is read."""
        archive = self.archive
        for name in archive.streams():
            if name in self._tables:
                self._tables[name].table.refresh()
            else:
                self._tables[name] = archive.stream(name)
        return Snapshot(dict(self._tables))

    def refresh(self) -> None:
        """Keeps up with the knowledge and the streams."""
        before = self.knowledge.version
        self._files.poll()
        if self.knowledge.version != before:
            self.__dict__.pop("vocabulary", None)
        self.catalog = catalog_of(self.config, self.knowledge, self.snapshot())

    @property
    def knowledge(self) -> Knowledge:
        """The knowledge as it is now."""
        return self._files.knowledge

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its words, by their names and labels."""
        return Vocabulary(self.knowledge, self.config.annotations)

    @property
    def archive(self) -> Archive:
        """Its archive."""
        return Archive(self.config.archive)

    def registered(self) -> dict[str, Registered]:
        """The registered queries."""
        return Registry(self.config.state / "registered.json").queries

    def others(self, name: str) -> dict[str, ChiQuery | EpQuery]:
        """The registered queries besides one, as written."""
        queries = self.registered().values()
        return {each.name: each.parse(self.prefixes) for each in queries if each.name != name}
