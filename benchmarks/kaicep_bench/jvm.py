"""Engines on the Java virtual machine, which kaicep is measured beside: built by Maven, run one at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kaicep.errors import Failure, Mistake
from kaicep.processes import bound

__all__ = ["ESPER", "FLINK", "PEERS", "SIDDHI", "Peer", "Taken", "build", "missing", "run"]

FOLDER = Path(__file__).parents[1] / "peers"
_OPTIONS = ("-Xms2g", "-Xmx3g", "-XX:+UseParallelGC")
_PATIENCE = 3_600


@dataclass(frozen=True)
class Peer:
    """An engine, the folder it is built in, and the queries that it can be asked."""

    name: str
    folder: str
    queries: tuple[str, ...]
    options: tuple[str, ...] = ()


ESPER = Peer("Esper", "esper", ("1", "2", "3 any", "3 next", "loop", "absence"))
"""Esper."""
SIDDHI = Peer("Siddhi", "siddhi", ("1", "2", "3 any", "3 next"))
"""Siddhi."""
FLINK = Peer(
    "Flink CEP",
    "flink",
    ("1", "2", "3 any", "3 next", "loop", "absence"),
    tuple(f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "util", "time")),
)
"""Flink CEP."""
PEERS = (ESPER, SIDDHI, FLINK)
"""All of them."""


@dataclass(frozen=True)
class Taken:
    """What an engine said of one run; `p50` and `p99` are microseconds, where latency was asked for."""

    engine: str
    version: str
    query: str
    events: int
    matches: int
    checksum: int
    max_rss: int
    seconds: float = 0.0
    samples: int = 0
    p50: float = 0.0
    p99: float = 0.0


def missing() -> str | None:
    """What is not there that the peers need; None where all is."""
    for name in ("java", "mvn"):
        if shutil.which(name) is None:
            return f"the peers are Java programs, built by Maven, and {name} is not on the PATH"
    return None


def build() -> None:
    """Builds the peers, unless they are newer than their sources."""
    if (reason := missing()) is not None:
        raise Mistake(reason, hint="install a JDK 17 or newer, and Maven (Debian: maven)")
    sources = [each for kind in ("*.java", "pom.xml") for each in FOLDER.rglob(kind)]
    jars = [_jar(each) for each in PEERS]
    newest = max(each.stat().st_mtime for each in sources)
    if all(each.exists() and each.stat().st_mtime > newest for each in jars):
        return
    done = subprocess.run(
        bound(["mvn", "-B", "-q", "clean", "package"]),
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"the peers cannot be built: {_first_error(done.stdout)}")


def run(
    peer: Peer, mode: str, data: Path, events: int, what: Sequence[str] = (), quick: bool = False
) -> list[Taken]:
    """Runs an engine over the first events of a file of columns: `pattern`, `queries` or `latency`."""
    warm = ("-Dwarm=0",) if quick else ()
    options = [*_OPTIONS, *peer.options, *warm]
    done = subprocess.run(
        bound(["java", *options, "-jar", str(_jar(peer)), mode, str(data), str(events), *what]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Failure(f"{peer.name} failed: {lines[0] if lines else f'status {done.returncode}'}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [Taken(**{**each, "checksum": int(each["checksum"], 16)}) for each in found]


def _jar(peer: Peer) -> Path:
    return FOLDER / "target" / peer.folder / f"{peer.folder}.jar"


def _first_error(text: str) -> str:
    errors = [line for line in text.splitlines() if "ERROR" in line]
    return errors[0] if errors else text.strip()[:200]
