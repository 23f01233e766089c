"""Real servers for tests, on loopback and ephemeral ports: Kafka (KRaft), mosquitto, and a SPARQL server.

The fixtures `kafka` and `mosquitto` start one server each for the whole run, also when several workers
share it, and only when a test asks. It ends with the run, even if the run is killed. Where a server cannot be
had, the test is skipped with the reason, or fails if KAICEP_REQUIRE_SERVERS is set. `Broker` and `Mosquitto`
can also be used alone, to be stopped and started in the middle of a test.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

from kaicep.processes import bound

_Any = TypeVar("_Any", bound="Server")

POM = Path(__file__).parent.parent / "scripts" / "kafka-pom.xml"
START_SECONDS = 180


class Missing(Exception):
    """A server that cannot be had here, with the reason."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a Kafka broker that lives as long as the run."""
    return _shared(Broker, tmp_path_factory)


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an MQTT broker that lives as long as the run."""
    return _shared(Mosquitto, tmp_path_factory)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A Kafka broker for one test alone, not yet started, which may stop and start it."""
    yield from _own(Broker(tmp_path / "kafka"))


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """How to reach an S3 store that lives as long as the run, as `[storage.options]`; it has no bucket.

    This process knows of it for the time of a test, and finds no credentials elsewhere.
    """
    from kaicep.storage import places

    address = _shared(Moto, tmp_path_factory)
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(places, "_said", {})
    options = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    return {**options, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hidden"}


@pytest.fixture
def bucket(s3: dict[str, str]) -> str:
    """An empty bucket of that store, which this process can reach; its URI."""
    from kaicep.storage.places import use_options

    name = f"kaicep-{uuid.uuid4().hex}"
    who = "AWS4-HMAC-SHA256 Credential=me/20260101/us-east-1/s3/aws4_request"
    url = f"{s3['AWS_ENDPOINT_URL']}/{name}"
    asked = urllib.request.Request(url, b"", {"Authorization": who}, method="PUT")
    urllib.request.urlopen(asked, timeout=START_SECONDS).close()
    use_options(s3)
    return f"s3://{name}"


@pytest.fixture
def fuseki(tmp_path: Path) -> Iterator[Fuseki]:
    """A SPARQL server for one test alone, not yet started, which may stop and start it."""
    yield from _own(Fuseki(tmp_path / "fuseki"))


@pytest.fixture
def own_mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """An MQTT broker for one test alone, not yet started, which may stop and start it."""
    yield from _own(Mosquitto(tmp_path / "mosquitto"))


def _own(server: _Any) -> Iterator[_Any]:
    try:
        server.prepare()
    except Missing as missing:
        without(missing)
    try:
        yield server
    finally:
        server.stop()


def without(missing: Missing) -> None:
    """The test goes without: skipped, or failed where everything must be there."""
    if os.environ.get("KAICEP_REQUIRE_SERVERS"):
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(str(missing))


def need(package: str) -> None:
    """A package that the tests of a whole file need: without it they are skipped, or fail if required."""
    try:
        import_module(package)
    except ImportError as error:
        if os.environ.get("KAICEP_REQUIRE_SERVERS"):
            raise
        pytest.skip(str(error), allow_module_level=True)


def _shared(kind: type[Server], factory: pytest.TempPathFactory) -> str:
    """The address of the run's own server of this kind; whoever comes first starts it."""
    worker = "PYTEST_XDIST_WORKER" in os.environ
    folder = (factory.getbasetemp().parent if worker else factory.getbasetemp()) / kind.__name__
    folder.mkdir(exist_ok=True)
    address = folder / "address"
    with locked(folder / "lock"):
        if not address.exists():
            server = kind(folder / "server", owner=os.getppid() if worker else None)
            try:
                server.start()
            except Missing as missing:
                without(missing)
            address.write_text(server.address)
        return address.read_text()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside, no other process is inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A port of loopback that nobody uses now, nor gets by chance before it is used.

    Those that the system gives (`bind` to port 0, and every connection that somebody makes) lie above.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(16_384, 32_768)))
            return int(probe.getsockname()[1])


class Server:
    """A server process in a folder of its own; it keeps its port and its data from start to start."""

    def __init__(self, folder: Path, owner: int | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Sees to everything that starting needs; raises `Missing`."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self.prepare()
        log = self.folder / "log.txt"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                bound(self.command(), self._owner),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop it in order
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{type(self).__name__} did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops it and waits until it is gone."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class Mosquitto(Server):
    """An MQTT broker, which keeps its sessions on disk when it is stopped."""

    def prepare(self) -> None:
        if not self._program():
            raise Missing("mosquitto is not installed (Debian: apt-get install mosquitto)")
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            "max_queued_messages 0",  # by default it drops what a subscriber is behind by a thousand
            f"persistence_location {self.folder}/",
            # Debian's mosquitto would otherwise become a user who cannot write there.
            *(["user root"] if os.getuid() == 0 else []),
        ]
        (self.folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [self._program() or "", "-c", str(self.folder / "mosquitto.conf")]

    def _program(self) -> str | None:
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Moto(Server):
    """An S3 store in memory, which is gone when it is stopped."""

    def prepare(self) -> None:
        try:
            import_module("moto.server")
        except ImportError as error:
            raise Missing(f"moto is not installed: {error}") from None
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]


class Fuseki(Server):
    """A SPARQL 1.1 server with an empty dataset `/ds`, which is gone when it is stopped."""

    def prepare(self) -> None:
        _java()
        self._jars = jars_of(POM.with_name("fuseki-pom.xml"), "a SPARQL server")
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-DFUSEKI_BASE={self.folder}"]
        main = "org.apache.jena.fuseki.main.cmds.FusekiMainCmd"
        options = ["--localhost", "--port", str(self.port), "--mem", "--update", "/ds"]
        return [_java(), *small, "-cp", f"{self._jars}/*", main, *options]

    @property
    def url(self) -> str:
        """Where it answers queries."""
        return f"http://{self.address}/ds/query"

    def update(self, text: str) -> None:
        """Changes the dataset by SPARQL UPDATE."""
        headers = {"Content-Type": "application/sparql-update"}
        asked = urllib.request.Request(f"http://{self.address}/ds/update", text.encode(), headers)
        urllib.request.urlopen(asked, timeout=START_SECONDS).close()


class Broker(Server):
    """A Kafka broker that is its own controller."""

    def __init__(self, folder: Path, owner: int | None = None) -> None:
        super().__init__(folder, owner)
        self._controller = free_port()

    def prepare(self) -> None:
        self._jars = kafka_jars()
        if self.folder.exists():
            return
        self.folder.mkdir(parents=True)
        data = self.folder / "data"
        data.mkdir()
        meta = {
            "version": 1,
            "node.id": 1,
            "cluster.id": _kafka_uuid(),
            "directory.id": _kafka_uuid(),
        }
        (data / "meta.properties").write_text(_properties(meta))
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "num.partitions": 1,
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{topic}.replication.factor"] = 1
            settings[f"{topic}.min.isr"] = 1
        (self.folder / "server.properties").write_text(_properties(settings))

    def command(self) -> list[str]:
        small = ["-Xmx256m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [
            _java(),
            *small,
            "-cp",
            f"{self._jars}/*",
            "kafka.Kafka",
            str(self.folder / "server.properties"),
        ]


def make_topics(servers: str, topics: Mapping[str, int]) -> None:
    """Makes topics with so many partitions; they are there for everybody when this returns."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    made = admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
    for each in made.values():
        each.result(START_SECONDS)
    for name, partitions in topics.items():
        wait_for_partitions(servers, name, partitions)


def wait_for_partitions(servers: str, topic: str, partitions: int) -> None:
    """The controller answers when it has made them; the broker hears of it a little later."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = admin.list_topics(topic, START_SECONDS).topics[topic]
        if len(found.partitions) >= partitions and all(
            each.leader >= 0 for each in found.partitions.values()
        ):
            return
        assert time.monotonic() < deadline, f"topic {topic} is not there yet: {found.error}"
        time.sleep(0.02)


def _kafka_uuid() -> str:
    """A random id as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")


def _properties(values: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise Missing("a Kafka broker needs Java (scripts/java.sh gets it)")
    return java


def kafka_jars() -> Path:
    """The folder with the broker's jars; the first time, Maven brings them."""
    _java()
    return jars_of(POM, "a Kafka broker")


def jars_of(pom: Path, what: str) -> Path:
    """The folder with the jars that a pom names; the first time, Maven brings them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kaicep"
    name = pom.stem.removesuffix("-pom")
    jars = cache / f"{name}-{hash_of(pom)}"
    if jars.exists():
        return jars
    with locked(cache / f"{name}.lock"):
        if jars.exists():
            return jars
        if not (mvn := shutil.which("mvn")):
            raise Missing(f"{what} comes by Maven, which is not installed (apt-get install maven)")
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
            done = subprocess.run(
                [mvn, "-B", "-q", "-f", str(pom), *goal, f"-DoutputDirectory={folder}/jars"],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Missing(f"Maven could not bring {what}: {done.stdout[-500:]}")
            (Path(folder) / "jars").rename(jars)
    return jars


def hash_of(path: Path) -> str:
    """A short name for what a file says."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
