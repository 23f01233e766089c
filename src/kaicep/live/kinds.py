"""How the kinds of operators work. What each needs is imported when the first one is made."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kaicep.errors import Failure, Mistake
from kaicep.live.graph import KINDS, Operator, problem
from kaicep.live.rings import Event
from kaicep.live.sharing import LiveQuery, RunningQuery

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
