"""How the kinds of operators work, in this process or in one of their own."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import GeneratorType
from typing import IO, Any

from kaicep.errors import Failure, Mistake
from kaicep.live.bindings import Event
from kaicep.live.graph import KINDS, Operator, problem
from kaicep.live.sharing import LiveQuery, RunningQuery
from kaicep.processes import bound

# ----------------------------------------------------------------------------------------------------------
# How the kinds of operators work. What each needs is imported when the first one is made.

Function = Callable[..., Any]


def function_of(operator: Operator) -> Function:
    """What an operator does with the payloads of its inputs; a new one, with a memory of its own."""
    settings = {name: each.default for name, each in KINDS[operator.kind].settings.items()}
    try:
        return _MAKERS[operator.kind](operator, {**settings, **operator.settings})
    except ModuleNotFoundError as error:
        raise Mistake(
            problem(
                operator,
                f"{operator.name}: {operator.kind} needs the package {error.name}",
                ("kind",),
                hint="pip install 'kaicep[live]'",
            )
        ) from None


def _ekf(operator: Operator, settings: dict[str, Any]) -> Function:
    import numpy as np

    from kaicep.live.ekf import new_state, step

    state, spread = new_state(settings["frequency"], settings["process"])
    process, noise = float(settings["process"]), float(settings["measurement"])
    step(state.copy(), spread.copy(), np.zeros((len(operator.inputs), 1)), process, noise, np.zeros(1))

    def run(*inputs: Any) -> Any:
        arrays = [_array(each) for each in inputs]
        sensors = np.empty((len(arrays), min(len(each) for each in arrays)))
        for row, each in zip(sensors, arrays, strict=True):
            row[:] = each[: len(row)]
        out = np.empty(sensors.shape[1])
        step(state, spread, sensors, process, noise, out)
        kind = arrays[0].dtype
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            np.rint(out, out=out)
            np.clip(out, limits.min, limits.max, out=out)
        return out.astype(kind)

    return run


def _fft(operator: Operator, settings: dict[str, Any]) -> Function:
    import numpy as np
    import scipy.fft

    def run(samples: Any) -> Any:
        array = _array(samples)
        exact = np.float64 if array.dtype in (np.float64, np.int64, np.uint64) else np.float32
        return scipy.fft.fft(array.astype(exact, copy=False))

    return run


def _cat(operator: Operator, settings: dict[str, Any]) -> Function:
    import numpy as np

    def run(*inputs: Any) -> Any:
        return np.concatenate([_array(each) for each in inputs])

    return run


def _aes(operator: Operator, settings: dict[str, Any]) -> Function:
    """AES-GCM: a nonce of twelve bytes, then the encrypted bytes and the mark that they are untouched."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher = AESGCM(_key(operator, settings))

    def run(payload: Any) -> bytes:
        plain = payload if isinstance(payload, bytes | bytearray) else _encoded(payload)
        nonce = os.urandom(12)
        return nonce + cipher.encrypt(nonce, plain, None)

    return run


def _encoded(payload: Any) -> Any:
    """Rows are encrypted as JSON, arrays as their bytes."""
    if hasattr(payload, "dtype"):
        return memoryview(_array(payload)).cast("B") if payload.flags.c_contiguous else payload.tobytes()
    from kaicep.live.bindings import as_json

    return as_json(payload).encode()


def _key(operator: Operator, settings: dict[str, Any]) -> bytes:
    """The key: 16, 24 or 32 bytes in hexadecimal, from the environment or a file."""
    if settings["key_env"] is not None:
        where, text = f"the variable {settings['key_env']}", os.environ.get(settings["key_env"])
        if text is None:
            hint = f"such as export {settings['key_env']}=$(openssl rand -hex 32)"
            raise Mistake(problem(operator, f"{operator.name}: {where} has no key", ("key_env",), hint=hint))
    else:
        where = f"the file {settings['key_file']}"
        try:
            text = Path(settings["key_file"]).read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise Mistake(
                problem(operator, f"{operator.name}: cannot read {where}: {error}", ("key_file",))
            ) from None
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) not in (16, 24, 32):
        hint = "16, 24 or 32 bytes in hexadecimal: openssl rand -hex 32"
        raise Mistake(
            problem(operator, f"{operator.name}: {where} holds no key", ("key_env", "key_file"), hint=hint)
        )
    return key


def _filter(operator: Operator, settings: dict[str, Any]) -> Function:
    import numpy as np
    from scipy.signal import butter, sosfilt

    low, high = settings["low"], settings["high"]
    if low is not None and high is not None:
        parts = butter(settings["order"], (low, high), "bandpass", output="sos")
    elif low is not None:  # what is above `low` passes
        parts = butter(settings["order"], low, "highpass", output="sos")
    else:
        parts = butter(settings["order"], high, "lowpass", output="sos")
    memory = np.zeros((parts.shape[0], 2))

    def run(samples: Any) -> Any:
        nonlocal memory
        found, memory = sosfilt(parts, _array(samples), zi=memory)
        return found

    return run


def _window(operator: Operator, settings: dict[str, Any]) -> Function:
    """The last `size` events together, on every `step`-th event."""
    kept: deque[Any] = deque(maxlen=settings["size"])
    seen = 0

    def run(payload: Any) -> Any:
        nonlocal seen
        kept.append(payload)
        seen += 1
        if len(kept) < settings["size"] or (seen - settings["size"]) % settings["step"]:
            return None
        if hasattr(kept[0], "dtype"):
            import numpy as np

            return np.concatenate(list(kept))
        return list(kept)

    return run


def _resample(operator: Operator, settings: dict[str, Any]) -> Function:
    from scipy.signal import resample_poly

    def run(samples: Any) -> Any:
        return resample_poly(_array(samples).astype(float), settings["up"], settings["down"])

    return run


def _query(operator: Operator, settings: dict[str, Any]) -> Function:
    if not isinstance(operator.function, LiveQuery):
        hint = "`kaicep live` compiles the queries of a file; in Python, Query.of(open_run(...)) does"
        raise Mistake(problem(operator, f"{operator.name}: its query is not compiled", ("query",), hint=hint))
    running = RunningQuery(operator.function, operator.inputs)

    def run(input: int, event: Event) -> Iterator[Any]:
        for matches in running.steps(input, event.payload, event.wall):
            yield matches or None

    return run


def _pick(operator: Operator, settings: dict[str, Any]) -> Function:
    def run(matches: Sequence[Any]) -> Any:
        return [each for each in matches if each.query == settings["query"]] or None

    return run


def _python(operator: Operator, settings: dict[str, Any]) -> Function:
    if operator.function is not None:
        return operator.function  # type: ignore[no-any-return]
    module, _, name = settings["function"].partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Mistake(
            problem(
                operator,
                f"{operator.name}: cannot load {settings['function']}: {error}",
                ("function",),
                hint="package.module:name, where Python finds it (PYTHONPATH)",
            )
        ) from None
    return found  # type: ignore[no-any-return]


_MAKERS: dict[str, Callable[[Operator, dict[str, Any]], Function]] = {
    "ekf": _ekf,
    "fft": _fft,
    "cat": _cat,
    "aes": _aes,
    "filter": _filter,
    "window": _window,
    "resample": _resample,
    "query": _query,
    "pick": _pick,
    "python": _python,
}


def _array(payload: Any) -> Any:
    """A payload as an array; what has a buffer is looked at, not copied."""
    import numpy as np

    if isinstance(payload, np.ndarray):
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return np.frombuffer(payload, np.uint8)
    if hasattr(payload, "to_numpy"):
        return payload.to_numpy(zero_copy_only=False)
    try:
        return np.frombuffer(payload, np.uint8) if hasattr(payload, "__buffer__") else np.asarray(payload)
    except (TypeError, ValueError) as error:
        raise Failure(f"{type(payload).__name__} is not an array of numbers: {error}") from None


# ----------------------------------------------------------------------------------------------------------
# Operators in processes of their own, so that their interpreter lock delays no urgent ones.
#
# A worker still takes the task, holds its core and waits, so order, validity and shedding are as for any
# other operator; the process has the thread priority of its level. Requests and answers go through a pipe,
# and large payloads through memory that both sides map: the sender copies a payload into it once, and the
# function reads it where it is.

_LENGTH = struct.Struct("<Q")
_FIRST = 1 << 20
_CALL, _NEXT = "call", "next"
_VALUE, _STEP, _END, _ERROR = "value", "step", "end", "error"


@dataclass(frozen=True)
class _Work:
    """What a process needs to know of its operator: a Python function goes by its name."""

    operator: Operator
    function: str | None
    path: tuple[str, ...]


def check_isolable(operator: Operator) -> None:
    """Raises a mistake where an operator cannot run in a process of its own."""
    if KINDS[operator.kind].each or operator.kind == "pick":
        message = f"{operator.name}: a query releases the interpreter lock, and runs in the service"
        raise Mistake(problem(operator, message, ("isolate",)))
    if operator.function is not None:
        _name(operator)


def _name(operator: Operator) -> str:
    """The name by which another process finds the function of an operator."""
    function = operator.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<locals>")
    if module in (None, "__main__") or "<" in name:
        hint = "write it as a function of a module that can be imported"
        message = f"{operator.name}: another process cannot import {name}"
        raise Mistake(problem(operator, message, ("isolate", "function"), hint=hint))
    return f"{module}:{name}"


class _Area:
    """Memory that two processes share, as long as it has to be; its file is gone once both have it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        """The first bytes; it grows where it is too small."""
        if self._map is None or len(self._map) < size:
            size = max(size, _FIRST, 0 if self._map is None else 2 * len(self._map))
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            # Arrays may still look at the old one, which ends with the last of them.
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._map)

    def close(self) -> None:
        """Lets go of the file; what is mapped goes with the last that looks at it."""
        os.close(self._file)


def _send(pipe: IO[bytes], area: _Area, what: str, value: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [each.raw() for each in buffers]
    sizes = [len(each) for each in views]
    if sizes:
        place, at = area.view(sum(sizes)), 0
        for each, size in zip(views, sizes, strict=True):
            place[at : at + size] = each
            at += size
    head = pickle.dumps((what, sizes, content))
    pipe.write(_LENGTH.pack(len(head)) + head)
    pipe.flush()


def _receive(pipe: IO[bytes], area: _Area, copied: bool) -> tuple[str, Any] | None:
    """What was sent, None at the end; arrays look into the shared memory unless they are copied."""
    length = pipe.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    what, sizes, content = pickle.loads(pipe.read(_LENGTH.unpack(length)[0]))
    buffers: list[Any] = []
    if sizes:
        place, at = area.view(sum(sizes)), 0
        for size in sizes:
            part = place[at : at + size]
            buffers.append(bytearray(part) if copied else part)
            at += size
    return what, pickle.loads(content, buffers=buffers)


class _Child:
    """A process that works for an operator, one call at a time."""

    def __init__(self, work: _Work, ranked: Callable[[int], None]) -> None:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        paths = []
        for _ in range(2):
            handle, path = tempfile.mkstemp(prefix="kaicep-", dir=folder)
            os.close(handle)
            paths.append(path)
        self.given, self.made = (_Area(each) for each in paths)
        command = [sys.executable, "-c", "from kaicep.live.kinds import serve; serve()", *paths]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in work.path if each)}
        self.process = subprocess.Popen(
            bound(command, to=os.getpid()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        _send(self._to, self.given, _CALL, work)
        try:
            ready = self.ask(None)
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        if ready[0] == _ERROR:
            raise ready[1]
        ranked(self.process.pid)

    def ask(self, request: tuple[str, Any] | None) -> tuple[str, Any]:
        """Sends a request, if there is one, and waits for the answer without the interpreter lock."""
        with suppress(BrokenPipeError):
            if request is not None:
                _send(self._to, self.given, *request)
        answer = _receive(self._from, self.made, copied=True)
        if answer is None:
            raise Failure(f"its process ended with status {self.process.wait()}")
        return answer

    def end(self) -> None:
        for each in (self._to, self._from):
            with suppress(OSError):
                each.close()
        self.process.kill()
        self.process.wait()
        self.given.close()
        self.made.close()


class Isolated:
    """The function of an operator, in as many processes as are called at once."""

    def __init__(self, operator: Operator, ranked: Callable[[int], None] = lambda pid: None) -> None:
        check_isolable(operator)
        name = None if operator.function is None else _name(operator)
        plain = Operator(operator.name, operator.kind, operator.inputs, dict(operator.settings))
        self._work = _Work(plain, name, tuple(sys.path))
        self._ranked = ranked
        self._lock = threading.Lock()
        self._all: list[_Child] = []
        self._idle: list[_Child] = []
        self.close = weakref.finalize(self, _end, self._all)
        """Ends the processes; this also happens when nobody needs them any more."""
        self._free(self._taken())

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [each.process.pid for each in tuple(self._all)]

    def __call__(self, *payloads: Any) -> Any:
        """Calls the function; what it yields step by step comes so."""
        given = tuple(
            pickle.PickleBuffer(each) if isinstance(each, memoryview) else each for each in payloads
        )
        child = self._taken()
        what, value = self._ask(child, (_CALL, given))
        if what == _STEP:
            return self._steps(child, value)
        self._free(child)
        if what == _ERROR:
            raise value
        return value

    def _steps(self, child: _Child, value: Any) -> Iterator[Any]:
        what = _STEP
        while what == _STEP:
            yield value
            what, value = self._ask(child, (_NEXT, None))
        self._free(child)
        if what == _ERROR:
            raise value

    def _ask(self, child: _Child, request: tuple[str, Any]) -> tuple[str, Any]:
        try:
            return child.ask(request)
        except BaseException:
            with self._lock:
                self._all.remove(child)
            child.end()
            raise

    def _taken(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        made = _Child(self._work, self._ranked)
        with self._lock:
            self._all.append(made)
        return made

    def _free(self, child: _Child) -> None:
        with self._lock:
            self._idle.append(child)


def _end(children: Sequence[_Child]) -> None:
    for each in children:
        each.end()


# --- in the process ----------------------------------------------------------------------------------------


def serve() -> None:
    """Works for an operator until there is nothing more to read."""
    given, made = (_Area(each) for each in sys.argv[1:3])
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no answer
    first = _receive(source, given, copied=True)
    if first is None:
        return
    try:
        function = _function(first[1])
        _send(target, made, _VALUE, None)
    except Exception as error:
        _send_error(target, made, error)
        return
    while (request := _receive(source, given, copied=False)) is not None:
        try:
            found = function(*request[1])
            if not isinstance(found, GeneratorType):
                _send(target, made, _VALUE, found)
                continue
            for each in found:
                _send(target, made, _STEP, each)
                if _receive(source, given, copied=False) is None:
                    return
            _send(target, made, _END, None)
        except Exception as error:
            _send_error(target, made, error)


def _send_error(target: IO[bytes], made: _Area, error: Exception) -> None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = Failure(f"{type(error).__name__}: {error}")
    _send(target, made, _ERROR, error)


def _function(work: _Work) -> Callable[..., Any]:
    if work.function is None:
        return function_of(work.operator)
    module, _, name = work.function.partition(":")
    found: Any = import_module(module)
    for each in name.split("."):
        found = getattr(found, each)
    # A decorated function has become an operator.
    return found.function if isinstance(found, Operator) else found  # type: ignore[no-any-return]
