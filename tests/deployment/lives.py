"""A deployment that is killed and started again for a fraction of a second each: lives are forked.

One process imports everything and waits. Each life is a fork of it, which runs a deployment and does what it
is told; `kill` ends it as `kill -9` does, whatever it is doing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.deployment.processes import environment
from tests.deployment.test_deployment import look_again, settle

from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.processes import bound

_BEGIN, _GONE, _DONE = "begin", "gone", "done"


class Lives:
    """The lives of a deployment, one after the other; the first one begins with the first `tell`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = (folder / "log.txt").open("ab")
        command = [sys.executable, "-m", "tests.deployment.lives"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            bound(command), stdin=pipe, stdout=pipe, stderr=self._log, env=environment(), text=True, bufsize=1
        )
        self._life: int | None = None

    def __enter__(self) -> Lives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def tell(self, what: str) -> None:
        """Has the deployment do something: `settle`, `look` or `end`; it is not waited for."""
        if self._life is None:
            self._say(f"{_BEGIN} {self._folder}")
            self._life = int(self._heard())
        self._say(what)

    def wait(self) -> None:
        """Until that is done."""
        assert self._heard() == _DONE, (self._folder / "log.txt").read_text()[-3000:]

    def kill(self) -> None:
        """Ends the life in the middle of what it is doing."""
        if self._life is not None:
            os.kill(self._life, signal.SIGKILL)
            while self._heard() != _GONE:
                pass
            self._life = None

    def _say(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")

    def _heard(self) -> str:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, (self._folder / "log.txt").read_text()[-3000:]
        return said.strip()


def _line() -> str:
    """The next line, and not a byte more: what follows may be for another life."""
    found = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        found += byte
    return found.decode() if byte else "end"


def _say(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def _live(folder: Path) -> None:
    _say(os.getpid())
    made = Deployment(load_config(folder / "kaicep.toml"))
    made.open()
    while (what := _line()) != "end":
        {"settle": settle, "look": look_again}[what](made)
        _say(_DONE)
    made.drain()
    made.close()


def _serve() -> None:
    while (said := _line()) != "end":
        begin, _, folder = said.partition(" ")
        if begin != _BEGIN:
            continue  # a word for a life that is over
        if (life := os.fork()) == 0:
            _live(Path(folder))
            os._exit(0)
        os.waitpid(life, 0)
        _say(_GONE)


if __name__ == "__main__":
    _serve()
