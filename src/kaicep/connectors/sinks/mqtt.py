"""An MQTT topic as a sink, at least once (QoS 1); the id in the match tells a second delivery.

Matches go out in their order (semantics 2), which the queue inside of paho does not keep: what is published
while a connection is being made overtakes what waits for it. So the sink keeps the matches itself. It
publishes only on a connection that the broker has accepted, and on a new one begins with the first match
that was not acknowledged.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.mqtt import make_client, parse_server
from kaicep.connectors.options import Duration, Variable
from kaicep.errors import Diagnostic, Failure, Mistake
from kaicep.plan.events import Match

if TYPE_CHECKING:
    from paho.mqtt.client import Client

__all__ = ["MqttOptions", "MqttSink"]

# How many matches are under way at most. Some brokers take no more than a hundred on a connection.
_WINDOW = 100


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """Which topic of which broker, and for how long a commit waits for it."""

    server: str
    topic: str
    patience: Duration = Duration(300_000_000)
    username: str | None = None
    password: Variable | None = None
    tls: bool = False


class MqttSink(Sink):
    """Publishes matches. The broker has them when a commit returns."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, name: str, options: MqttOptions) -> None:
        self._where = f"sink {name}"
        # A publisher needs no session, and a broker cuts off whoever has the name of a newcomer.
        self._client_id = f"kaicep-sink-{name}-{uuid.uuid4().hex[:8]}"
        self._options = options
        self._server = parse_server(
            self._where, options.server, options.tls, options.username, options.password
        )
        if set("+#") & set(options.topic):
            hint = "matches are published under one topic, without + and #"
            message = f"{self._where}: topic: {options.topic} is not a topic to publish to"
            raise Mistake(Diagnostic(message, hint=hint))
        self._client: Client | None = None
        self._trouble: str | None = None
        self._connected = False
        self._lock = threading.Lock()  # publishing, and what is published; the client's locks come after it
        self._waiting: deque[Match] = deque()
        self._under_way: dict[int, Match] = {}  # by the number of the message, in the order of sending
        self._news: SimpleQueue[int | None] = SimpleQueue()  # what was acknowledged; None for a connection

    @property
    def trouble(self) -> str | None:
        """Why messages wait."""
        return self._trouble

    def open(self) -> None:
        """Makes a client; a broker that is down is waited for."""
        self._trouble = f"{self._server.name} has not answered yet"
        self._waiting.clear()
        self._under_way.clear()
        client = make_client(self._server, self._client_id, clean_session=True)
        client.on_pre_connect = self._on_pre_connect
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.loop_start()
        self._client = client

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches, and sends some."""
        with self._lock:
            self._waiting.extend(matches)
        self._send()

    def commit(self, mark: Mark) -> None:
        """Waits until the broker has acknowledged everything."""
        deadline = time.monotonic() + self._options.patience / 1_000_000
        while left := self._send():
            try:
                self._settle(self._news.get(timeout=0.1))
            except Empty:
                if time.monotonic() > deadline:
                    raise Failure(
                        f"{self._where}: topic {self._options.topic}: {left} matches could not be sent: "
                        f"{self._trouble or 'no answer'}"
                    ) from None

    def close(self) -> None:
        """Leaves the broker."""
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def _send(self) -> int:
        """Publishes what there is room for; returns how many matches are not acknowledged yet."""
        assert self._client is not None, "open comes first"
        with self._lock:
            while self._connected and self._waiting and len(self._under_way) < _WINDOW:
                text = self._waiting[0].to_json().encode()
                sent = self._client.publish(self._options.topic, text, qos=1)
                self._under_way[sent.mid] = self._waiting.popleft()
            return len(self._waiting) + len(self._under_way)

    def _settle(self, number: int | None) -> None:
        if number is not None:
            with self._lock:
                self._under_way.pop(number, None)

    # --- in the client's thread -----------------------------------------------------------------------

    def _on_pre_connect(self, client: Client, _data: Any) -> None:
        """Before every connection: what was under way on the last one waits again, at its old place."""
        with suppress(Empty):
            while True:
                self._settle(self._news.get_nowait())
        with self._lock:
            self._connected = False
            client.drop_out_messages()  # which the client would send again by itself
            self._waiting.extendleft(reversed(self._under_way.values()))
            self._under_way.clear()

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._trouble = f"{self._server.name} refuses the connection: {reason}"
            return
        self._trouble = None
        self._connected = True
        self._news.put(None)

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        # Without our lock, since the client may have one here. What is published into the gap waits again
        # before the next connection is made.
        self._connected = False
        if self._trouble is None:
            self._trouble = f"{self._server.name} is gone: {reason}"

    def _on_publish(self, _client: Client, _data: Any, mid: int, _reason: Any, _properties: Any) -> None:
        # By a queue: the client has a lock here that `publish` needs too.
        self._news.put(mid)
