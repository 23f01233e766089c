"""A deployment in one file: `kaicep.toml`, read and checked, every mistake at its line.

Paths are relative to the folder of the file. Secrets never stand in it: it names environment variables,
or files, that hold them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from kaicep.connectors.contract import Sink
from kaicep.connectors.contract import Source as EventSource
from kaicep.connectors.http import is_loopback
from kaicep.connectors.registry import (
    SINKS,
    SOURCES,
    Anywhere,
    ConnectorKind,
    Variable,
    make_sink,
    make_source,
    read_options,
    secret,
)
from kaicep.connectors.shape import Form
from kaicep.deployment.updates import UpdateOptions, UpdateTopic
from kaicep.errors import Mistake, SourceText, did_you_mean
from kaicep.hosts.spark.session import Cluster
from kaicep.knowledge.annotation import Annotation, load_annotations
from kaicep.knowledge.loading import expanded
from kaicep.knowledge.store import check_level
from kaicep.knowledge.watching import Copy, Endpoint, Followed, KnowledgeFiles, copy_in, shapes_of
from kaicep.plan.time import is_zone, zone_names
from kaicep.plan.toml import Keys, TomlReader, read_source, read_toml
from kaicep.plan.types import Type
from kaicep.storage.places import local_path, place_of, use_options

_TOKENS = ("token_env", "token_file", "read_token_env", "read_token_file")
_SETTINGS = ("name", "time_zone", "state", "tick", "derived")
_TOP = (*_SETTINGS, "listen", *_TOKENS, "storage", "archive", "engine", "knowledge", "queries")
_TABLES = ("streams", "sinks")
_ARCHIVE = ("folder", "retention")
_REFRESH = 60_000_000
_KNOWLEDGE = (
    "files",
    "reasoning",
    "shapes",
    "violations",
    "endpoint",
    "graph",
    "construct",
    "refresh",
    "token",
    "updates",
)
_STREAM = ("annotation", "types", "lateness", "idle", "ahead", "source", "table", "identity")
_ENGINE = ("kind", "master", "remote", "conf", "buckets", "trigger", "checkpoint")
_QUERY = ("plan", "urgency", "annotation")

ENGINES = ("inprocess", "spark")
"""What may carry a deployment."""
PLANS = ("auto", "hand-off", "concurrent")
"""The plans that a query of a deployment may name."""

URGENCY = 1_000_000
"""How long live matches may wait for the past, where nobody says, in microseconds."""
_TICK, _IDLE, _AHEAD = 250_000, 30_000_000, 86_400_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Listen:
    """Where the service listens, and where its tokens are: in environment variables, or in files.

    Who shows the second one, `read_token`, may look at everything and change nothing.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_env: str | None = None
    token_file: Path | None = None
    read_token_env: str | None = None
    read_token_file: Path | None = None


@dataclass(frozen=True)
class StreamConfig:
    """A stream: what its records are, how late they may come, when it counts as silent, its source.

    Without a `lateness` nothing is ever late, and nothing certain before the end. `ahead` is how far in the
    future an event may be; None: any distance. `table` is a table that is there already, as its history: a
    folder, or a name of Spark's catalog; `identity` are its columns for part and seq, if it has them.
    """

    name: str
    source: Mapping[str, Any]
    annotation: Annotation | None = None
    types: Mapping[str, Type] = field(default_factory=dict)
    lateness: int | None = 0
    idle: int = _IDLE
    ahead: int | None = None
    table: str | None = None
    identity: tuple[str, ...] = ()

    @property
    def form(self) -> Form:
        """The stream as connectors want it described."""
        return replace(Form.of(self.name, self.annotation, self.types), ahead=self.ahead)

    def open_source(self) -> EventSource:
        """Its source, not yet opened."""
        return make_source(self.form, self.source)


@dataclass(frozen=True)
class SinkConfig:
    """A sink, and whose matches it takes; None: everybody's.

    Those of queries from outside go there only with `guests`.
    """

    name: str
    options: Mapping[str, Any]
    queries: tuple[str, ...] | None = None
    guests: bool = False

    def takes(self, query: str, outside: bool = False) -> bool:
        """Whether the matches of a query go there."""
        return (self.guests or not outside) and (self.queries is None or query in self.queries)

    def open_sink(self) -> Sink:
        """The sink, not yet opened."""
        return make_sink(self.name, self.options)


@dataclass(frozen=True)
class EngineConfig:
    """What carries the deployment: this process, or Spark, on the cluster that is named or configured.

    On Spark, a key has so many `buckets`, and a step begins a `trigger` (microseconds) after the last one.
    `checkpoint` is where the table of matches is, and what the engines keep; None: the state folder.
    """

    kind: str = "inprocess"
    cluster: Cluster = Cluster()
    buckets: int = 8
    trigger: int = _TICK
    checkpoint: Path | None = None


@dataclass(frozen=True)
class QueryConfig:
    """What is said of one query: how past and present are joined, what its output means.

    `urgency` is how long live matches may wait while the past is gone through, in microseconds.
    """

    plan: str = "auto"
    urgency: int = URGENCY
    annotation: Annotation | None = None


@dataclass(frozen=True)
class Config:
    """A deployment as its file describes it."""

    path: Path
    name: str
    state: Path
    archive: Path
    retention: int | None
    knowledge: tuple[Path, ...]  # files, folders and patterns, as they are written
    reasoning: str
    queries: Path
    tick: int
    listen: Listen
    streams: Mapping[str, StreamConfig]
    sinks: Mapping[str, SinkConfig]
    asked: Mapping[str, QueryConfig] = field(default_factory=dict)
    engine: EngineConfig = EngineConfig()
    endpoint: Endpoint | None = None  # a SPARQL server that keeps knowledge
    updates: UpdateOptions | None = None  # a topic with changes of the knowledge
    shapes: tuple[Path, ...] = ()  # files of SHACL
    violations: str = "warn"
    time_zone: str | None = None  # of `hour` and `dayOfWeek` in queries that name none
    derived: int | None = None  # how many triples the rules may derive at one instant

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """What is said of the streams, and of what queries derive."""
        found = [each.annotation for each in self.streams.values()]
        found += [each.annotation for each in self.asked.values()]
        known = tuple(each for each in found if each is not None)
        if self.time_zone is None and self.derived is None:
            return known
        # Whoever resolves a query asks the annotations.
        known = known or tuple(map(Annotation, self.streams))
        return tuple(replace(each, zone=self.time_zone, most_derived=self.derived) for each in known)

    @property
    def typed_annotations(self) -> tuple[Annotation, ...]:
        """The same, with the types that the file declares; a stream of which nothing is said has none."""
        found: dict[str, Annotation] = {each.stream: each for each in self.annotations}
        for name, each in self.streams.items():
            if each.types:
                said = found.get(name, Annotation(name))
                found[name] = replace(said, types=tuple({**dict(said.types), **each.types}.items()))
        return tuple(found.values())

    @property
    def files(self) -> dict[str, Path]:
        """The streams whose source is a file or a folder that is there."""
        paths = {
            name: Path(each.source["path"])
            for name, each in self.streams.items()
            if each.source["kind"] == "files"
        }
        return {name: path for name, path in paths.items() if path.exists()}

    @property
    def not_run(self) -> Mistake:
        """What to say where something is asked that only a deployment that has run can answer."""
        return Mistake(f"{self.name} has not run yet", hint=f"kaicep run {self.path} starts it")

    def of_query(self, name: str) -> QueryConfig:
        """What is said of a query."""
        return self.asked.get(name, QueryConfig())

    @property
    def changes(self) -> Path:
        """The folder of what was changed in the knowledge from outside, as files of updates."""
        return self.state / "knowledge"

    @property
    def known(self) -> tuple[Path, ...]:
        """Where the knowledge is: its files, the copy of an endpoint, and what was changed from outside."""
        copied = (copy_in(self.copies),) if self.endpoint is not None else ()
        changed = (self.changes,) if self.changes.is_dir() else ()
        return (*(each for each in copied if each.exists()), *self.knowledge, *changed)

    @property
    def checkpoint(self) -> Path:
        """Where a deployment on Spark has its table of matches, and the states of its engines."""
        return self.engine.checkpoint or self.state

    @property
    def copies(self) -> Path:
        """The folder of the copy of what an endpoint says."""
        return self.state / "endpoint"

    def open_knowledge(self, before: tuple[Mapping[Path, bytes], int] | None = None) -> KnowledgeFiles:
        """The knowledge, to be kept up with, or an older version of it; endpoint and topic are asked now."""
        followed: list[Followed] = []
        if self.endpoint is not None:
            followed.append(Copy.begun(self.endpoint, self.copies))
        if self.updates is not None:
            followed.append(UpdateTopic.begun(self.updates, self.changes))
        validate = shapes_of(self.shapes) if self.shapes else None
        refuse = self.violations == "refuse"
        return KnowledgeFiles(self.known, self.reasoning, followed, validate, refuse, before)

    @property
    def lateness(self) -> dict[str, int | None]:
        """How late events of each stream may come."""
        return {name: each.lateness for name, each in self.streams.items()}


def load_config(path: Path) -> Config:
    """Reads a deployment; a `Mistake` with all that is wrong with it. Nothing is opened or made."""
    source = read_source(path, "deployment")
    reader = _ConfigReader(source, path.parent)
    found = reader.config(path, read_toml(source))
    if reader.wrong:
        raise Mistake(reader.wrong)
    return found


class _ConfigReader(TomlReader):
    """Makes a configuration of what a TOML text says, and collects what is wrong with it."""

    hints: ClassVar = {"token": 'a token is never in the file: use token_env = "KAICEP_TOKEN", or token_file'}

    def __init__(self, source: SourceText, folder: Path) -> None:
        super().__init__(source)
        self.folder = folder

    def config(self, path: Path, read: Mapping[str, Any]) -> Config:
        self.known((), read, (*_TOP, *_TABLES), "a deployment")
        self.storage(self.table(read, "storage"))
        archive, knowledge, queries = (self.table(read, each) for each in ("archive", "knowledge", "queries"))
        self.known(("archive",), archive, _ARCHIVE, "archive")
        self.known(("knowledge",), knowledge, _KNOWLEDGE, "knowledge")
        asked = {name: self.query(name, each) for name, each in queries.items() if name != "folder"}
        streams = {name: self.stream(name, each) for name, each in self.tables(read, "streams").items()}
        sinks = {name: self.sink(name, each) for name, each in self.tables(read, "sinks").items()}
        if not streams:
            hint = 'such as [streams.meter] with source = {kind = "files", path = "meter.jsonl"}'
            self.say(("streams",), "a deployment has at least one stream", hint)
        state = self.path((), read, "state", "state")
        folder = self.path(("queries",), queries, "folder", "queries")
        if not folder.is_dir():
            self.say(("queries", "folder"), f"there is no folder {folder}", "make it, or name another one")
        return Config(
            path=path,
            name=self.text((), read, "name", path.resolve().parent.name),
            state=state,
            archive=self.path(("archive",), archive, "folder", str(state / "archive"), place_of),
            retention=self.duration(("archive",), archive, "retention", None),
            knowledge=self.files(knowledge, "files"),
            shapes=self.files(knowledge, "shapes"),
            violations=self.choice(("knowledge",), knowledge, "violations", ("warn", "refuse")),
            reasoning=self.reasoning(knowledge),
            endpoint=self.endpoint(knowledge),
            updates=self.updates(knowledge),
            queries=folder,
            tick=self.duration((), read, "tick", _TICK) or _TICK,
            listen=self.listen(read),
            streams={name: each for name, each in streams.items() if each},
            sinks={name: each for name, each in sinks.items() if each},
            asked=asked,
            engine=self.engine(self.table(read, "engine")),
            time_zone=self.time_zone(read),
            derived=self.derived(read),
        )

    # --- parts of it ---

    def stream(self, name: str, read: Mapping[str, Any]) -> StreamConfig | None:
        way = ("streams", name)
        self.known(way, read, _STREAM, "a stream")
        source = read.get("source")
        if not isinstance(source, Mapping):
            self.say(way, f"{name} has no source", 'such as source = {kind = "files", path = "meter.jsonl"}')
            return None
        found = StreamConfig(
            name,
            self.options(source, SOURCES),
            self.annotation(way, name, read),
            self.types(way, read),
            self.duration(way, read, "lateness", 0),
            self.duration(way, read, "idle", _IDLE) or _IDLE,
        )
        made = self.tried((*way, "source"), found.open_source)
        if made is None:
            return None
        found = replace(found, **self.history(way, read))
        # What has an end is sorted first, unless somebody says how late is too late; it may be of any time.
        if made.finite:
            return replace(found, lateness=None) if "lateness" not in read else found
        return replace(found, ahead=self.duration(way, read, "ahead", _AHEAD) or None)

    def history(self, way: Keys, read: Mapping[str, Any]) -> dict[str, Any]:
        """The table with the history of a stream, and its columns for part and seq."""
        if "table" not in read:
            if "identity" in read:
                self.say((*way, "identity"), "identity is of a table", 'such as table = "s3://lake/meter"')
            return {}
        table = self.text(way, read, "table", "")
        identity = read.get("identity", [])
        if not _are_texts(identity) or len(identity) not in (0, 2):
            hint = 'such as identity = ["partition", "offset"]; without it, a file is a part'
            if identity == "delta":
                hint = "delta-rs does not read the row ids of Delta; without identity, a file is a part"
            self.say((*way, "identity"), "identity is the columns of part and seq", hint)
            identity = []
        if "/" in table:
            place = self.tried((*way, "table"), lambda: place_of(table, "table"))
            table = str(self.folder / (place or table))
        return {"table": table, "identity": tuple(identity)}

    def query(self, name: str, read: object) -> QueryConfig:
        way = ("queries", name)
        if not isinstance(read, Mapping):
            hint = did_you_mean(name, ("folder",)) or f"what is said of a query is a table: [queries.{name}]"
            self.say(way, f"queries has no {name}", hint)
            return QueryConfig()
        self.known(way, read, _QUERY, "a query")
        return QueryConfig(
            self.choice(way, read, "plan", PLANS),
            self.duration(way, read, "urgency", URGENCY) or 0,
            self.annotation(way, name, read),
        )

    def engine(self, read: Mapping[str, Any]) -> EngineConfig:
        way = ("engine",)
        self.known(way, read, _ENGINE, "engine")
        conf = read.get("conf", {})
        if not isinstance(conf, Mapping):
            self.say((*way, "conf"), "conf is a table", 'such as conf = {"spark.executor.memory" = "2g"}')
            conf = {}
        buckets = read.get("buckets", EngineConfig.buckets)
        if not isinstance(buckets, int) or not 0 < buckets < 1 << 16:
            self.say((*way, "buckets"), f"{buckets} is not a number of buckets", "1 to 65535")
            buckets = EngineConfig.buckets
        master, remote = (self.text(way, read, key, "") or None for key in ("master", "remote"))
        if master and remote:
            self.say((*way, "remote"), "there is a master and a remote", "leave one of them out")
        kind = self.choice(way, read, "kind", ENGINES)
        given = next((key for key in _ENGINE[1:] if key in read), None)
        if kind != "spark" and given is not None:
            self.say((*way, given), f"{given} is for Spark", 'kind = "spark"')
        settings = {str(name): _conf_text(value) for name, value in conf.items()}
        trigger = self.duration(way, read, "trigger", _TICK) or 0
        checkpoint = self.path(way, read, "checkpoint", "", place_of) if "checkpoint" in read else None
        return EngineConfig(kind, Cluster(master, remote, settings), buckets, trigger, checkpoint)

    def storage(self, read: Mapping[str, Any]) -> None:
        """How stores are reached, before anything is looked for there."""
        way = ("storage",)
        self.known(way, read, ("options",), "storage")
        options = read.get("options", {})
        if not isinstance(options, Mapping):
            self.say(
                (*way, "options"), "options is a table", 'such as options = {AWS_REGION = "eu-central-1"}'
            )
            return
        found: dict[str, str] = {}
        for name, value in options.items():
            if str(name).endswith("_env"):
                variable = Variable(str(value))
                kept = self.tried((*way, "options", name), lambda: secret(variable, "storage"))  # noqa: B023
                found[str(name).removesuffix("_env")] = kept or ""
            else:
                found[str(name)] = _conf_text(value)
        use_options(found)

    def annotation(self, way: Keys, name: str, read: Mapping[str, Any]) -> Annotation | None:
        if "annotation" not in read:
            return None
        path = self.path(way, read, "annotation", "")
        found = self.tried((*way, "annotation"), lambda: load_annotations(path)) or ()
        own = [each for each in found if each.stream == name]
        if found and not own:
            spoken = ", ".join(each.stream for each in found)
            self.say((*way, "annotation"), f"{path} speaks of {spoken}, not of {name}")
        return own[0] if own else None

    def types(self, way: Keys, read: Mapping[str, Any]) -> dict[str, Type]:
        given = read.get("types", {})
        if not isinstance(given, Mapping):
            self.say((*way, "types"), "types is a table", 'such as types = {flowrate = "float64"}')
            return {}
        made: dict[str, Type] = {}
        for attribute, type in given.items():
            try:
                made[attribute] = Type(type)
            except ValueError:
                names = ", ".join(each.value for each in Type)
                self.say((*way, "types", attribute), f"unknown type {type}", f"the types are {names}")
        return made

    def sink(self, name: str, read: Mapping[str, Any]) -> SinkConfig | None:
        way = ("sinks", name)
        queries = read.get("queries")
        if queries is not None and not _are_texts(queries):
            self.say((*way, "queries"), "queries is a list of names", 'such as queries = ["rising"]')
            queries = None
        guests = read.get("guests", False)
        if not isinstance(guests, bool):
            self.say((*way, "guests"), "guests is true or false", "guests = true: also what others posted")
            guests = False
        rest = {key: value for key, value in read.items() if key not in ("queries", "guests")}
        chosen = tuple(queries) if queries is not None else None
        found = SinkConfig(name, self.options(rest, SINKS), chosen, guests)
        return found if self.tried(way, found.open_sink) else None

    def options(self, read: Mapping[str, Any], kinds: Mapping[str, ConnectorKind]) -> dict[str, Any]:
        """The options of a connector, those that are paths made relative to the file's folder."""
        kind = kinds.get(str(read.get("kind")))
        made = dict(read)
        if kind is not None:
            hints = get_type_hints(getattr(import_module(kind.module), kind.options))
            for key, value in read.items():
                hint = hints.get(key)
                if isinstance(value, str) and {Path, Anywhere} & {hint, *get_args(hint)}:
                    with suppress(Mistake):  # whoever reads the options says so
                        made[key] = str(self.folder / place_of(value, key))
        return made

    def files(self, read: Mapping[str, Any], key: str) -> tuple[Path, ...]:
        """The files of the knowledge, or of its shapes."""
        given = read.get(key, [])
        if not _are_texts(given):
            self.say(("knowledge", key), f"{key} is a list of names", f'such as {key} = ["campus/*.ttl"]')
            return ()
        places = [self.tried(("knowledge", key), lambda: place_of(each, key)) for each in given]  # noqa: B023
        paths = [self.folder / each for each in places if each is not None]
        for each in paths:
            near = self.tried(("knowledge", key), lambda: list(expanded([each])))  # noqa: B023
            if near is not None and not all(path.exists() for path in near or [each]):
                self.say(("knowledge", key), f"there is no knowledge file {each}")
        return tuple(paths)

    def endpoint(self, read: Mapping[str, Any]) -> Endpoint | None:
        way = ("knowledge",)
        if "endpoint" not in read:
            for key in ("graph", "construct", "refresh", "token"):
                if key in read:
                    self.say((*way, key), f"{key} is for an endpoint", 'such as endpoint = "http://..."')
            return None
        url, graph, construct, token = (
            self.text(way, read, key, "") for key in ("endpoint", "graph", "construct", "token")
        )
        refresh = self.duration(way, read, "refresh", _REFRESH) or _REFRESH
        made = Endpoint(url, graph, construct, refresh / 1e6, token)
        if (problem := made.problem()) is not None:
            self.say((*way, "endpoint"), problem)
        return made

    def updates(self, read: Mapping[str, Any]) -> UpdateOptions | None:
        if "updates" not in read:
            return None
        way = ("knowledge", "updates")
        given = self.table(read, "updates")
        return self.tried(way, lambda: read_options(UpdateOptions, given, "the updates of the knowledge"))

    def reasoning(self, read: Mapping[str, Any]) -> str:
        level = self.text(("knowledge",), read, "reasoning", "rdfs")
        self.tried(("knowledge", "reasoning"), lambda: check_level(level))
        return level

    def listen(self, read: Mapping[str, Any]) -> Listen:
        text = self.text((), read, "listen", "127.0.0.1:0")
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            self.say(("listen",), f"{text} is not an address", "such as 127.0.0.1:8080; port 0: any free one")
            return Listen()
        env, read_env = (self.text((), read, key, "") or None for key in _TOKENS[::2])
        file, read_file = (self.path((), read, key, "") if key in read else None for key in _TOKENS[1::2])
        host = host.strip("[]")
        if env is None and file is None and (read_env is not None or read_file is not None):
            self.say(("read_token_env",), "a token to read needs one that may do everything beside it")
        if env is None and file is None and not is_loopback(host):
            self.say(
                ("listen",),
                f"{host} can be reached by others, and there is no token",
                'name an environment variable that holds one: token_env = "KAICEP_TOKEN"; or token_file',
            )
        return Listen(host, int(port), env, file, read_env, read_file)

    # --- values ---

    def tried(self, way: Keys, make: Callable[[], T]) -> T | None:
        """What a piece of the house makes of it; what that finds wrong is told at the key."""
        try:
            return make()
        except Mistake as mistake:
            for each in mistake.diagnostics:
                if each.source is not None:
                    self.wrong.append(each)
                else:
                    option = next((key for key in self._options(way) if f" {key}" in each.message), None)
                    self.say((*way, option) if option else way, each.message, each.hint)
            return None

    def _options(self, way: Keys) -> list[str]:
        inside = (each[len(way)] for each in self.spans if len(each) == len(way) + 1 and each[:-1] == way)
        return [str(each) for each in inside]

    def table(self, read: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = read.get(key, {})
        if not isinstance(found, Mapping):
            self.say((key,), f"{key} is a table", f"such as [{key}]")
            return {}
        return found

    def tables(self, read: Mapping[str, Any], key: str) -> Mapping[str, Mapping[str, Any]]:
        found = self.table(read, key)
        for name, each in found.items():
            if not isinstance(each, Mapping):
                self.say((key, name), f"{name} is a table", f"such as [{key}.{name}]")
        return {name: each for name, each in found.items() if isinstance(each, Mapping)}

    def time_zone(self, read: Mapping[str, Any]) -> str | None:
        name = self.text((), read, "time_zone", "")
        if name and not is_zone(name):
            hint = did_you_mean(name, zone_names()) or 'such as "Europe/Berlin"'
            self.say(("time_zone",), f"no time zone is called {name}", hint)
        return name or None

    def derived(self, read: Mapping[str, Any]) -> int | None:
        found = read.get("derived")
        if found is None or (type(found) is int and found > 0):
            return found
        self.say(("derived",), f"{found} is not a number of triples", "such as derived = 100_000")
        return None

    def choice(self, way: Keys, read: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
        value = self.text(way, read, key, choices[0])
        if value not in choices:
            hint = did_you_mean(value, choices) or f"it is one of {', '.join(choices)}"
            self.say((*way, key), f"there is no {key} {value}", hint)
            return choices[0]
        return value

    def path(
        self,
        way: Keys,
        read: Mapping[str, Any],
        key: str,
        default: str,
        where: Callable[[str, str], Path] = local_path,
    ) -> Path:
        text = self.text(way, read, key, default)
        place = self.tried((*way, key), lambda: where(text, key))
        return self.folder / (place or default)


def _conf_text(value: object) -> str:
    """A setting of Spark's as it is written: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def read_token(listen: Listen, which: str = "token") -> str | None:
    """The token that whoever comes must show; a mistake, which does not show it, where there is none.

    `which` is `read_token` for the one with which nothing can be changed.
    """
    env, file = getattr(listen, f"{which}_env"), getattr(listen, f"{which}_file")
    if env is not None:
        found = os.environ.get(env, "").strip()
        if not found:
            hint = f"set it before the start, for example: export {env}=..."
            message = f"{which}_env: the environment variable {env} is not set"
            raise Mistake(message, hint=hint)
        return found
    if file is None:
        return None
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Mistake(f"{which}_file: cannot read {file}: {reason}") from None
    if not found:
        raise Mistake(f"{which}_file: {file} is empty")
    return str(found)
