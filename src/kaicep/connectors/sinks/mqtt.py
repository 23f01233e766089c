"""An MQTT topic as a sink, at least once (QoS 1); the id in the match tells a second delivery."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.mqtt import make_client, parse_server
from kaicep.connectors.options import Duration, Variable
from kaicep.errors import Failure
from kaicep.plan.events import Match

if TYPE_CHECKING:
    from paho.mqtt.client import Client

__all__ = ["MqttOptions", "MqttSink"]

_WINDOW = 1_000


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
        self._name = f"kaicep-sink-{name}"
        self._where = f"sink {name}"
        self._options = options
        self._server = parse_server(
            self._where, options.server, options.tls, options.username, options.password
        )
        self._client: Client | None = None
        self._waiting: deque[Match] = deque()
        self._under_way: set[int] = set()
        self._acknowledged: SimpleQueue[int] = SimpleQueue()
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why messages wait."""
        return self._trouble

    def open(self) -> None:
        """Makes a client; a broker that is down is waited for."""
        self._trouble = f"{self._server.name} has not answered yet"
        client = make_client(self._server, self._name)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.loop_start()
        self._client = client

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches, and sends some."""
        self._waiting.extend(matches)
        self._send()

    def commit(self, mark: Mark) -> None:
        """Waits until the broker has acknowledged everything."""
        deadline = time.monotonic() + self._options.patience / 1_000_000
        while self._waiting or self._under_way:
            self._send()
            try:
                self._under_way.discard(self._acknowledged.get(timeout=0.1))
            except Empty:
                if time.monotonic() > deadline:
                    raise Failure(
                        f"{self._where}: topic {self._options.topic}: "
                        f"{len(self._waiting) + len(self._under_way)} matches could not be sent: "
                        f"{self._trouble or 'no answer'}"
                    ) from None

    def close(self) -> None:
        """Leaves the broker."""
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def _send(self) -> None:
        """Publishes, but never so much that the numbers of messages could come round."""
        assert self._client is not None, "open comes first"
        while self._waiting and len(self._under_way) < _WINDOW:
            sent = self._client.publish(self._options.topic, self._waiting[0].to_json().encode(), qos=1)
            self._under_way.add(sent.mid)
            self._waiting.popleft()

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._trouble = None
        if reason.is_failure:
            self._trouble = f"{self._server.name} refuses the connection: {reason}"

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._trouble = f"{self._server.name} is gone: {reason}"

    def _on_publish(self, _client: Client, _data: Any, mid: int, _reason: Any, _properties: Any) -> None:
        # By a queue: the client holds a lock here that `publish` needs too.
        self._acknowledged.put(mid)
