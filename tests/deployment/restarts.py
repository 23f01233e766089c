"""Deployments started on disks as a crash left them, and on disks that fail: thousands of starts.

A worker imports everything once. Each start is a process that it forks: none sees another's memory, and it
costs a fraction of a second. `Restarts` hands folders to as many workers as there are processors.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from tests.deployment.processes import environment, matches

from kaicep.processes import bound

__all__ = ["KINDS", "Fault", "Outcome", "Restarts", "Start", "answers", "hurry"]

KINDS = {"sync": 1, "write": 2, "rename": 3, "link": 4, "mkdir": 5, "create": 6}
"""The calls that can fail, as `faults.c` numbers them."""

SECONDS = 300
PATIENCE = 5.0
_SHIM = Path(__file__).with_name("faults.c")


@dataclass(frozen=True)
class Fault:
    """From call number `first` of a kind on, each `every`-th fails with an error; with 0 only that one.

    A patient source may send more, and is opened again and again while the disk fails; another one gives up.
    """

    kind: str
    error: int
    first: int
    every: int
    patient: bool


@dataclass(frozen=True)
class Start:
    """A deployment that is run to its end, before that on a disk that fails if there is a fault."""

    folder: str
    wanted: str
    """Where the answers of the run without a crash are, as JSON."""
    fault: Fault | None = None


@dataclass(frozen=True)
class Outcome:
    """What is wrong, or nothing; how many errors the disk gave, of how many calls."""

    trouble: str = ""
    errors: int = 0


def hurry() -> None:
    """Deployments of this process save their state, make checkpoints and try again as often as they can."""
    import kaicep.deployment.sessions
    import kaicep.deployment.sinks
    import kaicep.deployment.streams
    from kaicep.storage import delta

    kaicep.deployment.sinks._QUIET = 0.01
    kaicep.deployment.sinks._RETRY = kaicep.deployment.streams._RETRY = 0.02
    kaicep.deployment.sessions._SAVE_EVERY = 0.0
    delta._EVERY = 4


def answers(folder: Path) -> dict[str, list[str]]:
    """The matches of both sinks, in no order: which query is first at a moment depends on the moment."""
    from deltalake import DeltaTable

    from kaicep.connectors.sinks.delta import match_of_row

    rows = DeltaTable(folder / "T").to_pyarrow_table().to_pylist()
    return {
        "out": sorted(json.dumps(each) for each in matches(folder / "out.jsonl")),
        "table": sorted(match_of_row(each).to_json() for each in rows),
    }


class Restarts:
    """Workers that run deployments; to be used in a `with`."""

    def __enter__(self) -> Restarts:
        self._folder = tempfile.TemporaryDirectory()
        shim = Path(self._folder.name) / "faults.so"
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(_SHIM), "-ldl"]
        subprocess.run(words, check=True, capture_output=True)
        self._workers: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        self._number = len(os.sched_getaffinity(0))
        for _ in range(self._number):
            self._workers.put(
                subprocess.Popen(
                    bound([sys.executable, "-m", __name__, str(shim)]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**environment(), "LD_PRELOAD": str(shim)},
                )
            )
        self._threads = ThreadPoolExecutor(self._number)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._workers.empty():
            worker = self._workers.get()
            worker.communicate()
        self._folder.cleanup()

    def run(self, starts: Iterable[Callable[[], Start]]) -> Iterator[tuple[Start, Outcome]]:
        """What comes of each start, in their order. A folder is made just before, and goes if all is well."""
        remaining = iter(starts)
        while some := list(islice(remaining, 16 * self._number)):
            yield from self._threads.map(self._one, some)

    def _one(self, make: Callable[[], Start]) -> tuple[Start, Outcome]:
        start = make()
        worker = self._workers.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps(asdict(start)) + "\n")
            worker.stdin.flush()
            outcome = Outcome(**json.loads(worker.stdout.readline() or '{"trouble": "the worker is gone"}'))
        finally:
            self._workers.put(worker)
        if not outcome.trouble:
            shutil.rmtree(start.folder)
        return start, outcome


def _serve(shim: str) -> None:
    """Reads starts from the input, a line each, and writes what comes of them."""
    answering = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    _prepare()
    faults = ctypes.CDLL(shim)
    for line in sys.stdin:
        given = json.loads(line)
        fault = Fault(**given["fault"]) if given["fault"] else None
        folder, outcome = Path(given["folder"]), Outcome()
        if fault is not None:
            outcome = Outcome(errors=int(_forked(partial(_fail, faults, folder, fault))))
        trouble = _forked(partial(_finish, folder, Path(given["wanted"])))
        os.write(answering, (json.dumps(asdict(Outcome(trouble, outcome.errors))) + "\n").encode())


def _prepare() -> None:
    """Imports all that a start needs, and loads the kernel, without a thread that a fork would lose."""
    import deltalake  # noqa: F401

    import kaicep as kai
    import kaicep.archive.archive
    import kaicep.deployment.running

    hurry()
    query = kai.compile(
        "SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) JOIN (?a.x = ?b.x) SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST",
        streams={"s": {"x": "int64"}},
    )
    assert len(list(kai.run(query, [{"ts": 0, "x": 6}, {"ts": 1, "x": 6}]))) == 1


def _forked(work: Callable[[Callable[[str], object]], None]) -> str:
    """What a function says in a process of its own."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            signal.alarm(SECONDS)
            os.close(reading)
            work(lambda text: os.write(writing, text.encode()[:10_000]))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"the process ended with {status}: {said}"


def _fail(faults: ctypes.CDLL, folder: Path, fault: Fault, said: Callable[[str], object]) -> None:
    """Runs the deployment of a folder on a disk that fails, as far as it comes; how many errors it gave."""
    from kaicep.deployment import running
    from kaicep.deployment.config import load_config

    def stop(*_: object) -> None:
        said(str(faults.fault_count()))
        os._exit(0)

    # A deployment may wait for its disk to become better; what is killed meanwhile is one more crash.
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    running._DRAIN = 0.5
    config = load_config(folder / "kaicep.toml")
    if fault.patient:
        form = config.streams["s"]
        config = replace(config, streams={"s": replace(form, source={**form.source, "follow": True})})
    faults.fault_plan(f"{folder}/".encode(), KINDS[fault.kind], fault.error, fault.first, fault.every)
    with suppress(Exception):
        running.Deployment(config).run(seconds=2.0 if fault.patient else None)
    said(str(faults.fault_count()))


def _finish(folder: Path, wanted: Path, said: Callable[[str], object]) -> None:
    """Runs the deployment of a folder to its end; what differs from the answers, or is damaged."""
    from kaicep.deployment.check import verify
    from kaicep.deployment.config import load_config
    from kaicep.deployment.running import Deployment

    try:
        Deployment(load_config(folder / "kaicep.toml")).run()
        damages = list(verify(load_config(folder / "kaicep.toml")))
        found = answers(folder)
    except Exception:
        said(f"it does not start: {traceback.format_exc()}")
        return
    right = json.loads(wanted.read_text())
    for sink in right:
        if found[sink] != right[sink]:
            lost = sorted(set(right[sink]) - set(found[sink]))
            said(f"{sink}: {len(found[sink])} matches instead of {len(right[sink])}, not there: {lost[:3]}\n")
    if damages:
        said(f"damaged: {damages}")


if __name__ == "__main__":
    _serve(sys.argv[1])
