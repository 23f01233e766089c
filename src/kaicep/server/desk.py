"""Work for those who ask is done in processes of their own, so that the deployment goes on beside it.

A process is begun when something is asked for, keeps the knowledge loaded, and is ended where an answer
takes too long or too much memory, or where nobody asked for a while. It gets lines of JSON and answers with
such; nothing else passes between the two.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Failure, Mistake
from kaicep.processes import bound

__all__ = ["Desk"]

_LOADING = 120.0
_QUEUE = 16


class Desk:
    """One such process: it does one thing after another."""

    def __init__(self, deployment: Path) -> None:
        self._deployment = deployment
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._turn = threading.Lock()
        self._waiting = threading.Semaphore(_QUEUE)
        self._closed = False

    def ask(self, what: str, seconds: float, **arguments: Any) -> Any:
        """The answer; a `Mistake` with what is wrong with the question, or where it takes too long."""
        if not self._waiting.acquire(blocking=False):
            raise Failure("too many others are asking: try again")
        try:
            with self._turn:
                if self._closed:
                    raise Failure("the deployment stops")
                return self._ask(what, seconds, arguments)
        finally:
            self._waiting.release()

    def prepare(self) -> None:
        """Starts the process, if it does not run yet and is not in use; does not wait."""
        if self._process is None and not self._closed and self._turn.acquire(blocking=False):
            try:
                self._process = self._start()
            finally:
                self._turn.release()

    def _ask(self, what: str, seconds: float, arguments: dict[str, Any]) -> Any:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
            process.stdin.flush()
            begun = self._line(process, _LOADING)
            answer = self._line(process, seconds) if begun is not None else None
        except OSError:
            begun = answer = None
        if answer is None:
            in_time = begun is not None and process.poll() is None
            self._end()
            if in_time:
                hint = "ask for less: a shorter range, or triples that are tied together"
                raise Mistake(Diagnostic(f"it takes longer than {seconds:g} s", hint=hint))
            raise Failure("no answer: the process that worked on it ended; try again, or ask for less")
        read = json.loads(answer)
        if "wrong" in read:
            raise Mistake([Diagnostic(text, hint=hint) for text, hint in read["wrong"]])
        return read["answer"]

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """A line that the process writes; None where it does not within some time, or ends."""
        assert process.stdout is not None
        number, until = process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
            more = os.read(number, 1 << 16) if ready else b""
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(each for each in sys.path if each)
        return subprocess.Popen(
            bound([sys.executable, "-m", "kaicep.server.worker", str(self._deployment)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for each in (process.stdin, process.stdout):
                if each is not None:
                    each.close()
