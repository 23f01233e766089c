"""Suppliers and consumers over the network: frames on a TCP or Unix socket.

Whoever connects says in one line of JSON what it is: `{"suppliers": ["radar", "lidar"]}` or
`{"consumer": "airbag"}`; the answer is `{"ok": true}` or `{"error": ...}`. Then come frames, to us or from
us: `number of the supplier` (2 bytes), `created` (8 bytes), `length` (4 bytes), all little-endian, and the
payload. `created` is in nanoseconds of the monotonic clock, for senders on this machine; 0 is now. A
supplier of records sends JSON, any other one bytes. To consumers, arrays go as their bytes, all else as
JSON.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kaicep.errors import Failure, Mistake
from kaicep.live import priorities
from kaicep.live.bindings import Delivery
from kaicep.live.nodes import Consumer
from kaicep.live.outputs import as_json
from kaicep.live.service import Service

__all__ = ["FRAME", "Gateway", "Sender", "receive"]

FRAME = struct.Struct("<HqI")
"""The head of a frame on the wire."""
_MOST = 1 << 28
_CHUNK = 1 << 18


class Gateway:
    """Listens for suppliers and consumers of a service; `address` is a host and a port, or a path."""

    def __init__(self, service: Service, address: tuple[str, int] | str = ("127.0.0.1", 0)) -> None:
        self.service = service
        unix = isinstance(address, str)
        self._socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
        if not unix:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(address)
        self._socket.listen()
        self.address: tuple[str, int] | str = self._socket.getsockname()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._employ(self._accept)

    def close(self) -> None:
        """Stops listening, ends all connections, and waits for their threads."""
        self._closed = True
        for each in (self._socket, *tuple(self._connections)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()
        if isinstance(self.address, str):
            Path(self.address).unlink(missing_ok=True)

    def _employ(self, what: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=what, args=arguments, name="kaicep-live-gateway", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.add(connection)
            self._employ(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._greet(connection)
        except (OSError, Failure):
            pass  # the other side is gone
        finally:
            self._connections.discard(connection)

    def _greet(self, connection: socket.socket) -> None:
        reader = _Reader(connection)
        try:
            wants = json.loads(reader.line())
            names = wants.get("suppliers")
            unknown = [each for each in names or () if each not in self.service.suppliers]
            if unknown:
                raise Failure(f"no supplier is named {unknown[0]}")
            if names is None and wants.get("consumer") not in self.service.consumers:
                raise Failure(f"no consumer is named {wants.get('consumer')}")
        except (ValueError, AttributeError, Failure) as error:
            connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        if names is not None:
            connection.sendall(b'{"ok": true}\n')
            self._take_in(reader, names)
        else:
            self._give_out(connection, reader, wants["consumer"])

    def _take_in(self, reader: _Reader, names: Sequence[str]) -> None:
        if self.service.real_time:
            priorities.real_time(0, priorities.TOP)
        records = [self.service.graph.suppliers[each].type == "records" for each in names]
        while (frame := reader.frame()) is not None:
            frames = [frame]
            while reader.holds_frame and (more := reader.frame()) is not None:  # what came together
                frames.append(more)
            events: list[tuple[str, Any, int | None]] = []
            for number, created, payload in frames:
                if number >= len(names):
                    raise Failure("a frame of a supplier that was not announced")
                content = _record(names[number], payload) if records[number] else payload
                events.append((names[number], content, created or None))
            self.service.push_all(events)

    def _give_out(self, connection: socket.socket, reader: _Reader, name: str) -> None:
        """Adds a consumer beside the named one, which gets the same events with the same priority."""
        like = self.service.given.consumers[name]
        waiting: deque[bytes] = deque(maxlen=like.queue)
        ready = threading.Semaphore(0)

        def take(delivery: Delivery) -> None:
            waiting.append(_encoded(delivery))
            ready.release()

        own = f"{name}@{id(connection)}"
        self.service.add(Consumer(own, like.input, like.priority, take, like.queue))
        gone = threading.Event()
        self._employ(_until_gone, reader, gone, ready)
        connection.sendall(b'{"ok": true}\n')
        try:
            while ready.acquire() and not gone.is_set():
                with contextlib.suppress(IndexError):  # what was too much has been thrown away
                    connection.sendall(waiting.popleft())
        finally:
            with contextlib.suppress(Mistake):
                self.service.remove(own)


def _record(name: str, payload: memoryview) -> Any:
    try:
        return json.loads(bytes(payload))
    except ValueError as error:
        raise Failure(f"{name}: this is no JSON: {error}") from None


def _until_gone(reader: _Reader, gone: threading.Event, ready: threading.Semaphore) -> None:
    """Waits for the other side to leave, and wakes the thread that writes to it."""
    with contextlib.suppress(OSError, Failure):
        while reader.frame() is not None:
            pass
    gone.set()
    ready.release()


def _encoded(delivery: Delivery) -> bytes:
    payload = delivery.payload
    content: bytes
    if hasattr(payload, "tobytes"):
        content = payload.tobytes()
    else:
        content = payload if isinstance(payload, bytes) else as_json(payload).encode()
    return FRAME.pack(0, delivery.begin, len(content)) + content


class _Reader:
    """Lines and frames of a connection; a payload is a view of what was received."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._held = b""
        self._at = 0

    def line(self) -> bytes:
        while (end := self._held.find(b"\n", self._at)) < 0:
            if not self._more() or len(self._held) - self._at > _CHUNK:
                raise Failure("no line came")
        found = self._held[self._at : end]
        self._at = end + 1
        return found

    def frame(self) -> tuple[int, int, memoryview] | None:
        if not self._has(FRAME.size):
            return None
        number, created, length = FRAME.unpack_from(self._held, self._at)
        if length > _MOST:
            raise Failure(f"a frame of {length:,} bytes is too long")
        if not self._has(FRAME.size + length):
            return None
        start = self._at + FRAME.size
        self._at = start + length
        return number, created, memoryview(self._held)[start : self._at]

    @property
    def holds_frame(self) -> bool:
        """Whether a whole frame has been received already."""
        held = len(self._held) - self._at
        return held >= FRAME.size and held >= FRAME.size + int(FRAME.unpack_from(self._held, self._at)[2])

    def _has(self, count: int) -> bool:
        while len(self._held) - self._at < count:
            if not self._more():
                return False
        return True

    def _more(self) -> bool:
        received = self._connection.recv(_CHUNK)
        # A new buffer each time: views of the old one live on in the events that came in it.
        self._held = self._held[self._at :] + received
        self._at = 0
        return bool(received)


class Sender:
    """The other side: pushes events of some suppliers to a gateway."""

    def __init__(self, address: tuple[str, int] | str, suppliers: Sequence[str]) -> None:
        self._socket = connected(address, {"suppliers": list(suppliers)})[0]
        self._numbers = {name: number for number, name in enumerate(suppliers)}

    def push(self, *events: tuple[str, bytes], created: int = 0) -> None:
        """Sends events, each a supplier and a payload, together."""
        frames = [
            FRAME.pack(self._numbers[name], created, len(payload)) + payload for name, payload in events
        ]
        self._socket.sendall(b"".join(frames))

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def receive(address: tuple[str, int] | str, consumer: str) -> tuple[socket.socket, _Reader]:
    """Connects as a consumer; `frame()` of the reader gives one event after the other, None at the end."""
    return connected(address, {"consumer": consumer})


def connected(address: tuple[str, int] | str, wants: Mapping[str, Any]) -> tuple[socket.socket, _Reader]:
    """A connection to a gateway that has agreed to what is wanted."""
    made = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
    made.connect(address)
    made.sendall(json.dumps(dict(wants)).encode() + b"\n")
    reader = _Reader(made)
    answer = json.loads(reader.line())
    if "error" in answer:
        made.close()
        raise Failure(answer["error"])
    return made, reader
