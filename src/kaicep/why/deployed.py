"""Reasons for what a deployment found, while it runs or after: its file says where everything is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.archive.archive import Archive
from kaicep.endtoend.config import Config
from kaicep.endtoend.history import history_of
from kaicep.endtoend.registered import Registry, absolute, upstream
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean
from kaicep.knowledge.annotation import prefixes_of
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.events import Match
from kaicep.storage.places import place_of
from kaicep.why.again import explained, searched
from kaicep.why.match import Why
from kaicep.why.results import match_of, only_one, seen_in
from kaicep.why.sources import Archived

if TYPE_CHECKING:
    from kaicep.knowledge.store import Knowledge
    from kaicep.plan.chi import ChiQuery
    from kaicep.plan.sparql import EpQuery
    from kaicep.server.client import Client

__all__ = ["Deployed"]


@dataclass(frozen=True)
class Deployed:
    """The queries of a deployment as they are registered, its knowledge as the files are now."""

    config: Config
    queries: dict[str, ChiQuery | EpQuery]
    knowledge: Knowledge

    @classmethod
    def of(cls, config: Config, knowledge: Knowledge | None = None) -> Deployed:
        """What is there of a deployment; a mistake where it never ran. Nothing is written or locked.

        Its knowledge is read from its files where it is not given.
        """
        registered = Registry(config.state / "registered.json").queries
        if not registered:
            raise config.not_run
        prefixes = prefixes_of(config.annotations)
        finite = all(each.open_source().finite for each in config.streams.values())
        queries = {
            name: absolute(each.parse(prefixes), each.now, finite) for name, each in registered.items()
        }
        return cls(config, queries, knowledge or KnowledgeFiles(config.known, config.reasoning).knowledge)

    def source(self, name: str) -> Archived:
        """A query, those whose output it reads, and the archive."""
        if name not in self.queries:
            hint = did_you_mean(name, self.queries)
            raise Mistake(Diagnostic(f"{self.config.name} has no query {name}", hint=hint))
        classed = [
            each for each, of in self.config.asked.items() if of.annotation and of.annotation.event_class
        ]
        needed = [self.queries[each] for each in upstream(name, self.queries, classed)]
        archive = Archive.open(self.config.archive)
        history = history_of(needed, archive, self.knowledge, self.config.annotations, 0)
        return Archived(history, archive.snapshot())

    def why(self, id: str) -> Why:
        """What made a match: it is looked for in the sinks, in the running deployment, in the archive."""
        client = self._client()
        match = self.written(id)
        if match is None and client is not None:
            remembered = [match_of(each, self.config.name) for each in client.remembered(id)]
            match = only_one(remembered, id)
        if match is None:
            match = self._searched(id)
        version = client.status()["knowledge"]["version"] if client is not None else None
        return explained(self.source(match.query), match, version)

    def written(self, id: str) -> Match | None:
        """The match of that id, or of one that begins so, in the files and tables of the sinks."""
        return only_one(seen_in(self._written(), id), id)

    def _written(self) -> list[Path]:
        """The files and tables that its sinks have written."""
        paths = [
            place_of(each.options["path"], "a sink")
            for each in self.config.sinks.values()
            if each.options["kind"] in ("files", "delta")
        ]
        return [each for each in paths if each.exists()]

    def _client(self) -> Client | None:
        """Somebody to ask; None where it does not run, or does not let us in."""
        from kaicep.server.client import Client

        try:
            client = Client(self.config)
            client.status()
        except (Failure, Mistake):
            return None
        return client

    def _searched(self, id: str) -> Match:
        for name in self.queries:
            try:
                source = self.source(name)
            except Mistake:
                continue  # it waits for the first records of a stream
            match = searched(source, id)
            if match is not None:
                return match
        where = "its sinks" if self._written() else "no file or table that it writes"
        raise Mistake(
            Diagnostic(
                f"no match of {self.config.name} has the id {id}",
                hint=f"it is neither in {where} nor found again in its archive",
            )
        )
