"""An MQTT broker that does what a test tells it to, packet by packet: late to accept, gone in the middle."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SECONDS = 120.0
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x80, 0x90


@dataclass(frozen=True)
class Packet:
    kind: int
    flags: int
    body: bytes

    @property
    def number(self) -> bytes:
        """The two bytes that the acknowledgement repeats."""
        if self.kind == PUBLISH:
            after = 2 + int.from_bytes(self.body[:2])
            return self.body[after : after + 2]
        return self.body[:2]

    @property
    def payload(self) -> bytes:
        """What was published, with QoS 1."""
        return self.body[4 + int.from_bytes(self.body[:2]) :]


class Connection:
    """One client's connection."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        raw.settimeout(SECONDS)

    def read(self, kind: int) -> Packet:
        """The next packet, which must be of this kind."""
        [head] = self._exactly(1)
        length, shift = 0, 0
        while True:
            [digit] = self._exactly(1)
            length |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                break
        packet = Packet(head & 0xF0, head & 0x0F, self._exactly(length))
        assert packet.kind == kind, packet
        return packet

    def silent(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes: time can only make a wrong client look right, never a right one wrong."""
        return not select.select([self._raw], [], [], seconds)[0]

    def accept(self) -> None:
        self._raw.sendall(bytes((CONNACK, 2, 0, 0)))

    def subscribe(self) -> None:
        self._raw.sendall(bytes((SUBACK, 3)) + self.read(SUBSCRIBE).number + b"\1")

    def acknowledge(self, packet: Packet) -> None:
        self._raw.sendall(bytes((PUBACK, 2)) + packet.number)

    def publish(self, topic: str, number: int, payload: bytes) -> None:
        body = len(topic).to_bytes(2) + topic.encode() + number.to_bytes(2) + payload
        assert len(body) < 128
        self._raw.sendall(bytes((PUBLISH | 2, len(body))) + body)

    def close(self) -> None:
        self._raw.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            some = self._raw.recv(count - len(data))
            assert some, "the client hung up"
            data += some
        return data


class BrokerByHand:
    """Listens; the test takes connections one by one."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """The next one, up to its CONNECT; it is cut off at the end."""
        raw, _ = self._listener.accept()
        connection = Connection(raw)
        try:
            connection.read(CONNECT)
            yield connection
        finally:
            connection.close()

    def close(self) -> None:
        self._listener.close()
