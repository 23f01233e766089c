"""Suppliers and consumers over the network: frames on a TCP or Unix socket.

Whoever connects says in one line of JSON what it is: `{"suppliers": ["radar", "lidar"]}` or
`{"consumer": "airbag"}`, with a `"token"` where the gateway wants one. The answer is `{"ok": true}` or
`{"error": ...}`. Then come frames, all numbers little-endian:

* of a supplier: the `number` of the supplier (2 bytes), `created` and `sent` (8 bytes each, nanoseconds of
  its own monotonic clock; a `created` of 0 is `sent`), `length` (4 bytes), and the payload. A supplier of
  records sends JSON, any other one bytes.
* to a consumer: the `number` of the frame (8 bytes), the `begin` and the `end` of its validity (8 bytes each,
  by the consumer's clock), whether it was timely when it left (1 byte), `length` (4 bytes), and the payload:
  arrays as their bytes, all else as JSON. The consumer acknowledges each with its number and the time by its
  clock.

The other side's clock may run on another machine and is not trusted. The gateway asks for it again and again,
and knows its offset up to half of the time that the answer took. Creation times that lie in the future by
more than that are refused. A time of receipt is taken to lie between sending and acknowledgement.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaicep.errors import Failure
from kaicep.live.bindings import FOR_EVER, Delivery, as_bytes
from kaicep.live.event_service import Service
from kaicep.live.processor import EventProcessor

_WELCOME = b'{"ok": true}\n'
_GIVEN = struct.Struct("<HqqI")
_OUT = struct.Struct("<Qqq?I")
_ACKNOWLEDGED = struct.Struct("<Qq")
_CLOCK = 0xFFFF
"""The number of a frame that asks for the other side's clock, or answers, with the question in `created`."""
_MOST = 1 << 28
_CHUNK = 1 << 18
_ASKED = 5
_AGAIN = 10_000_000_000
_DRIFT = 1e-4
"""How far two clocks may go apart, more than any quartz does."""


class Offset:
    """How far another machine's clock is ahead of ours, and how sure that is, in nanoseconds.

    >>> offset = Offset()
    >>> offset.observe(asked=1_000, answer=1_000_550, answered=1_100)
    >>> offset.ahead, offset.bound, offset.here(2_000_500)
    (999500, 50, 1001000)
    """

    def __init__(self) -> None:
        self.ahead = 0
        self.bound = FOR_EVER
        self._at = 0

    def observe(self, asked: int, answer: int, answered: int) -> None:
        """Takes an answer: the other clock stood at `answer` between two moments of ours.

        It replaces what is known where it is surer. A clock that may be ours is taken for ours.
        """
        bound = (answered - asked + 1) // 2
        if bound > self.bound + (answered - self._at) * _DRIFT:
            return
        ahead = answer - (asked + answered) // 2
        self.ahead = 0 if abs(ahead) <= bound else ahead
        self.bound, self._at = bound, answered

    def here(self, there: int) -> int:
        """A time of the other clock by ours."""
        return there - self.ahead


@dataclass(frozen=True)
class _Sent:
    """A delivery that left for a consumer, and when."""

    delivery: Delivery
    at: int


class Gateway:
    """Listens for suppliers and consumers of a service; `address` is a host and a port, or a path.

    With a `token`, whoever connects must show it.
    """

    def __init__(
        self, service: Service, address: tuple[str, int] | str = ("127.0.0.1", 0), token: str | None = None
    ) -> None:
        self.service = service
        self._token = token
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
        self._threads = [each for each in self._threads if each.is_alive()]
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
                if connection.family == socket.AF_INET:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._greet(connection)
        except (OSError, Failure):
            pass  # the other side is gone
        finally:
            self._connections.discard(connection)

    def _greet(self, connection: socket.socket) -> None:
        reader = _FrameReader(connection)
        try:
            wants = json.loads(reader.line())
            if self._token is not None and not _same(wants.get("token"), self._token):
                raise Failure("the token is missing or wrong")
            names = wants.get("suppliers")
            unknown = [each for each in names or () if each not in self.service.suppliers]
            if unknown:
                raise Failure(f"no supplier is named {unknown[0]}")
            if names is None and wants.get("consumer") not in self.service.consumers:
                raise Failure(f"no consumer is named {wants.get('consumer')}")
        except (ValueError, AttributeError, Failure) as error:
            connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        offset = self._offset(connection, reader)
        if names is not None:
            _Intake(self.service, connection, reader, names, offset).run()
        else:
            _Output(self.service, connection, reader, wants["consumer"], offset).run()

    def _offset(self, connection: socket.socket, reader: _FrameReader) -> Offset:
        """Asks for the other side's clock a few times."""
        found = Offset()
        for _ in range(_ASKED):
            asked = self.service.clock()
            connection.sendall(b'{"clock": true}\n')
            try:
                answer = int(json.loads(reader.line())["clock"])
            except (ValueError, KeyError, TypeError):
                raise Failure("it does not say what time it is") from None
            found.observe(asked, answer, self.service.clock())
        return found


def _same(given: object, token: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), token.encode())


class _Intake:
    """Takes events of suppliers from a connection, at the thread priority of the most urgent of them."""

    def __init__(
        self,
        service: Service,
        connection: socket.socket,
        reader: _FrameReader,
        names: Sequence[str],
        offset: Offset,
    ) -> None:
        self.service = service
        self._connection = connection
        self._reader = reader
        self._names = names
        self._offset = offset
        self._records = [service.graph.suppliers[each].type == "records" for each in names]
        self._asked = service.clock()

    def run(self) -> None:
        """Takes what comes until the other side leaves."""
        leave = self.service.crew.take_in(self._level)
        self.service.connected[id(self)] = ("+".join(self._names), self._offset)
        try:
            self._connection.sendall(_WELCOME)
            while (frame := self._reader.frame(_GIVEN)) is not None:
                frames = [frame]
                while self._reader.has_frame(_GIVEN) and (more := self._reader.frame(_GIVEN)) is not None:
                    frames.append(more)  # what came together
                self._take(frames)
        finally:
            del self.service.connected[id(self)]
            leave()

    def _level(self) -> EventProcessor:
        return max(
            (self.service.suppliers[each].processor for each in self._names), key=lambda it: it.priority
        )

    def _take(self, frames: Sequence[tuple[tuple[Any, ...], memoryview]]) -> None:
        now = self.service.clock()
        by_time: dict[int, list[tuple[str, Any, int | None]]] = {}
        for (number, created, sent, _), payload in frames:
            if number == _CLOCK:
                self._offset.observe(created, sent, now)
                continue
            if number >= len(self._names):
                raise Failure("a frame of a supplier that was not announced")
            name = self._names[number]
            here = self._offset.here(created or sent)
            if here > now + self._offset.bound:
                ahead, bound = (here - now) / 1e6, self._offset.bound / 1e6
                reason = f"created {ahead:.3f} ms in the future; its clock is known to {bound:.3f} ms"
                self.service.refuse(name, bytes(payload), reason)
                continue
            content = _record(name, payload) if self._records[number] else payload
            event = (name, content, min(here, now))
            by_time.setdefault(min(self._offset.here(sent), now), []).append(event)
        for moment, events in by_time.items():
            self.service.push_all(events, sent=moment)
        if now - self._asked > _AGAIN:
            self._asked = now
            self._connection.sendall(_GIVEN.pack(_CLOCK, self.service.clock(), 0, 0))


class _Output:
    """Brings a consumer's events to a connection: a few are on their way, the others wait in its queue."""

    def __init__(
        self, service: Service, connection: socket.socket, reader: _FrameReader, name: str, offset: Offset
    ) -> None:
        self.service = service
        self._connection = connection
        self._reader = reader
        self._like = name
        self._offset = offset
        self._room = threading.Semaphore(service.given.consumers[name].queue)
        self._sent: dict[int, _Sent] = {}
        self._number = 0
        self._gone = False
        self._welcomed = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Takes acknowledgements until the other side leaves.

        It is welcome once it is attached: whoever connected before an event was pushed gets that event.
        """
        name = self.service.attach(self._like, self._send)
        self.service.connected[id(self)] = (name, self._offset)
        try:
            self._connection.sendall(_WELCOME)
            self._welcomed.set()
            while (frame := self._reader.fixed(_ACKNOWLEDGED)) is not None:
                self._acknowledged(name, *frame)
        finally:
            self._welcomed.set()
            del self.service.connected[id(self)]
            self.service.detach(name)
            with self._lock:
                self._gone = True
                self.service.give_up(name, len(self._sent))
            self._room.release()

    def _send(self, delivery: Delivery) -> None:
        """Called by the thread of the consumer, at the priority of its level."""
        self._welcomed.wait()
        self._room.acquire()
        content = as_bytes(delivery.payload)
        ahead = self._offset.ahead
        end = delivery.end if delivery.end >= FOR_EVER else delivery.end + ahead
        head = _OUT.pack(self._number, delivery.begin + ahead, end, delivery.timely, len(content))
        with self._lock:
            if self._gone:
                self.service.give_up(delivery.consumer, 1)
                return
            self._sent[self._number] = _Sent(delivery, self.service.clock())
            self._number += 1
        with contextlib.suppress(OSError):  # the reader notices that the other side is gone
            self._connection.sendall(head + content)

    def _acknowledged(self, name: str, number: int, there: int) -> None:
        now = self.service.clock()
        with self._lock:
            sent = self._sent.pop(number, None)
        if sent is None:
            raise Failure("an acknowledgement of what was never sent")
        self._room.release()
        self._offset.observe(sent.at, there, now)
        received = min(max(self._offset.here(there), sent.at), now)
        self.service.acknowledge(name, sent.delivery, received)


def _record(name: str, payload: memoryview) -> Any:
    try:
        return json.loads(bytes(payload))
    except ValueError as error:
        raise Failure(f"{name}: this is not JSON: {error}") from None


class _FrameReader:
    """Lines and frames of a connection; a payload is a view of what was received."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._kept = b""
        self._at = 0

    def line(self) -> bytes:
        while (end := self._kept.find(b"\n", self._at)) < 0:
            if not self._more() or len(self._kept) - self._at > _CHUNK:
                raise Failure("no line came")
        found = self._kept[self._at : end]
        self._at = end + 1
        return found

    def fixed(self, form: struct.Struct) -> tuple[Any, ...] | None:
        """The next numbers of a form, None at the end."""
        if not self._has(form.size):
            return None
        found = form.unpack_from(self._kept, self._at)
        self._at += form.size
        return found

    def frame(self, form: struct.Struct) -> tuple[tuple[Any, ...], memoryview] | None:
        """The next head, whose last number is a length, and so many bytes; None at the end."""
        if not self._has(form.size):
            return None
        head = form.unpack_from(self._kept, self._at)
        if head[-1] > _MOST:
            raise Failure(f"a frame of {head[-1]:,} bytes is too long")
        if not self._has(form.size + head[-1]):
            return None
        start = self._at + form.size
        self._at = start + head[-1]
        return head, memoryview(self._kept)[start : self._at]

    def has_frame(self, form: struct.Struct) -> bool:
        """Whether a whole frame has been received already."""
        left = len(self._kept) - self._at - form.size
        return left >= 0 and left >= int(form.unpack_from(self._kept, self._at)[-1])

    def _has(self, count: int) -> bool:
        while len(self._kept) - self._at < count:
            if not self._more():
                return False
        return True

    def _more(self) -> bool:
        received = self._connection.recv(_CHUNK)
        # A new buffer each time: views of the old one live on in the events that came in it.
        self._kept = self._kept[self._at :] + received
        self._at = 0
        return bool(received)


# --- the other side ----------------------------------------------------------------------------------------


class Sender:
    """Pushes events of some suppliers to a gateway, perhaps on another machine."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        suppliers: Sequence[str],
        token: str | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._socket, reader = _connect(address, {"suppliers": list(suppliers)}, token, clock)
        self._numbers = {name: number for number, name in enumerate(suppliers)}
        self._writing = threading.Lock()
        self._answering = threading.Thread(target=self._answer, args=(reader,), daemon=True)
        self._answering.start()

    def push(self, *events: tuple[str, bytes], created: int = 0) -> None:
        """Sends events, each a supplier and a payload, together; `created` is by this side's clock."""
        sent = self._clock()
        self._write(
            b"".join(
                _GIVEN.pack(self._numbers[name], created, sent, len(payload)) + payload
                for name, payload in events
            )
        )

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._answering.join()

    def _write(self, content: bytes) -> None:
        with self._writing:
            self._socket.sendall(content)

    def _answer(self, reader: _FrameReader) -> None:
        """Says what time it is whenever the gateway asks."""
        with contextlib.suppress(OSError):
            while (frame := reader.frame(_GIVEN)) is not None:
                self._write(_GIVEN.pack(_CLOCK, frame[0][1], self._clock(), 0))


@dataclass(frozen=True)
class Received:
    """What a consumer got, valid on [begin, end) of its own clock; `timely` when it left the service."""

    payload: bytes
    begin: int
    end: int
    timely: bool


class Receiver:
    """The events of a consumer from a gateway, one after the other, each acknowledged when it has come."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        consumer: str,
        token: str | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._socket, self._reader = _connect(address, {"consumer": consumer}, token, clock)

    def __iter__(self) -> Iterator[Received]:
        while (found := self.next()) is not None:
            yield found

    def next(self) -> Received | None:
        """The next event; None when the service has ended."""
        frame = self._reader.frame(_OUT)
        if frame is None:
            return None
        (number, begin, end, timely, _), payload = frame
        with contextlib.suppress(OSError):  # the service may have ended; this came all the same
            self._socket.sendall(_ACKNOWLEDGED.pack(number, self._clock()))
        return Received(bytes(payload), begin, end, timely)

    @property
    def has_next(self) -> bool:
        """Whether `next` gives something without waiting for the network."""
        return self._reader.has_frame(_OUT)

    def fileno(self) -> int:
        """The number of the socket, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def _connect(
    address: tuple[str, int] | str,
    wants: Mapping[str, Any],
    token: str | None,
    clock: Callable[[], int],
) -> tuple[socket.socket, _FrameReader]:
    """A connection to a gateway that has agreed to what is wanted, and has asked for the time."""
    made = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
    made.connect(address)
    if made.family == socket.AF_INET:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(json.dumps({**wants, **({"token": token} if token else {})}).encode() + b"\n")
    reader = _FrameReader(made)
    while "ok" not in (answer := json.loads(reader.line())):
        if "error" in answer:
            made.close()
            raise Failure(answer["error"])
        made.sendall(json.dumps({"clock": clock()}).encode() + b"\n")
    return made, reader
