"""Processes that end with the one that started them, even if that is killed.

A command goes in, a command comes out: the same one behind a launcher, which is this file. The launcher sees
to it that the process is killed when its owner is gone, and becomes the command: whoever started it has the
command's own number, status, input and output.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_EVERY = 0.5


def bound(command: Sequence[str], to: int | None = None) -> list[str]:
    """The command as one that does not outlive this process, or the process with the number `to`.

    To be called by the thread that starts it.

    >>> import subprocess
    >>> subprocess.run(bound(["echo", "here"]), capture_output=True).stdout
    b'here\\n'
    """
    # What the kernel does hangs on the thread that starts the process: with it, the process would end.
    main = threading.current_thread() is threading.main_thread()
    how = "kernel" if sys.platform == "linux" and to is None and main else "watcher"
    # -I and -S: the launcher needs nothing of what is installed, and takes ten milliseconds.
    return [sys.executable, "-I", "-S", __file__, how, str(to or os.getpid()), *command]


def _launch(how: str, owner: int, command: list[str]) -> str:
    """Becomes the command; returns why not."""
    if how == "kernel":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != owner:
            return "the process that started it is gone"
    else:
        _leave_watcher(owner)
    for each in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and what it becomes would too
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return error.strerror or str(error)


def _leave_watcher(owner: int) -> None:
    """Starts a process, of no concern to the command, that kills this one when the owner is gone."""
    watched = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()  # Ctrl-C is not meant for it
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in range(3):  # else whoever reads what the command writes would wait for the watcher too
        os.dup2(nothing, each)
    if _first_to_end(owner, watched) == owner:
        with suppress(ProcessLookupError):
            os.kill(watched, signal.SIGKILL)
    os._exit(0)


def _first_to_end(owner: int, watched: int) -> int:
    """Waits for the end of two processes; gives the one that is gone, the owner where both are."""
    if hasattr(os, "pidfd_open"):  # Linux
        try:
            ends = os.pidfd_open(owner)
        except ProcessLookupError:
            return owner
        with suppress(ProcessLookupError):
            ready, _, _ = select.select([ends, os.pidfd_open(watched)], [], [])
            return owner if ends in ready else watched
        return watched
    while _alive(owner):
        if not _alive(watched):
            return watched
        time.sleep(_EVERY)
    return owner


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    why = _launch(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    print(f"{sys.argv[3]} cannot be started: {why}", file=sys.stderr)
    raise SystemExit(127)
