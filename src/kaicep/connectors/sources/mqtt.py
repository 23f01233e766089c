"""MQTT as a source: what is published under a topic, at least once (QoS 1).

The broker keeps a session under our client's name, so that it holds what is published while we are away.
A message is acknowledged when it is on the disk, not before; one that the broker sends again because the
acknowledgement got lost comes in again, under another number.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.connectors.log import Log
from kaicep.connectors.mqtt import make_client, parse_server
from kaicep.connectors.options import Count, Variable
from kaicep.connectors.records import Record, json_object
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.push import PushSource
from kaicep.errors import Failure

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

__all__ = ["MqttOptions", "MqttSource"]

_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """Which topic (a filter, with `+` and `#`) of which broker; where the log is.

    With `topic_as`, events get an attribute of that name that holds the topic. `client` is the name of
    the session, `kaicep-` and the stream unless said: two processes must not share one.
    """

    server: str
    topic: str
    log: Path
    topic_as: str | None = None
    client: str | None = None
    username: str | None = None
    password: Variable | None = None
    tls: bool = False
    backlog: Count = Count(100_000)
    batch: Count = Count(10_000)


class MqttSource(PushSource):
    """Messages of an MQTT broker, JSON objects."""

    def __init__(self, form: Form, options: MqttOptions) -> None:
        super().__init__(form, options.log, options.batch)
        self._options = options
        where = f"stream {form.stream}"
        self._server = parse_server(where, options.server, options.tls, options.username, options.password)
        self._client: Client | None = None
        self._writer: threading.Thread | None = None
        self._waiting: deque[tuple[int, MQTTMessage]] = deque()
        self._news = threading.Condition()
        self._connection = 0
        self._stopping = False
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why nothing comes in: no connection, or a log that cannot be written."""
        return self._trouble

    def _start(self, log: Log) -> None:
        self._stopping = False
        self._trouble = f"{self._server.name} has not answered yet"
        name = self._options.client or f"kaicep-{self.form.stream}"
        client = make_client(self._server, name, clean_session=False, manual_ack=True)
        client.on_pre_connect = self._on_pre_connect
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        self._client = client
        self._writer = threading.Thread(target=self._write, args=(client, log), daemon=True)
        self._writer.start()
        client.loop_start()

    def _stop(self) -> None:
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._writer is not None:  # first, so that what it has written is acknowledged too
            self._writer.join()
            self._writer = None
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None
        self._waiting.clear()

    # --- in the client's thread -----------------------------------------------------------------------

    def _on_pre_connect(self, _client: Client, _data: Any) -> None:
        with self._news:
            self._connection += 1

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._trouble = f"{self._server.name} refuses the connection: {reason}"
            return
        client.subscribe(self._options.topic, qos=1)

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        refused = [each for each in reasons if each.is_failure]
        self._trouble = None
        if refused:
            self._trouble = f"{self._server.name} refuses the topic {self._options.topic}: {refused[0]}"

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._trouble = f"{self._server.name} is gone: {reason}"

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        with self._news:
            # The broker waits for acknowledgements by itself, but not for those of QoS 0: then it is made to.
            self._news.wait_for(lambda: len(self._waiting) < self._options.backlog or self._stopping)
            self._waiting.append((self._connection, message))
            self._news.notify_all()

    # --- in the writer's thread -----------------------------------------------------------------------

    def _write(self, client: Client, log: Log) -> None:
        """Writes messages to the log, as many at a time as there are, and acknowledges them."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                messages = list(self._waiting)
            if self.backlog >= self._options.backlog or not self._append(log, messages):
                # Not acknowledged, so that the broker sends no more than it has under way.
                with self._news:
                    self._news.wait_for(lambda: self._stopping, _RETRY)
                continue
            with self._news:
                for _ in messages:
                    self._waiting.popleft()
                self._news.notify_all()
                for connection, message in messages:
                    # The number of a message means something only on the connection that it came by, and
                    # while we are in here no other one is made.
                    if message.qos == 1 and connection == self._connection:
                        client.ack(message.mid, message.qos)

    def _append(self, log: Log, messages: list[tuple[int, MQTTMessage]]) -> bool:
        try:
            log.append([each.topic.encode() + b"\0" + each.payload for _, each in messages])
        except Failure as failure:
            self._trouble = str(failure)
            return False
        if self._trouble and self._client is not None and self._client.is_connected():
            self._trouble = None
        return True

    # --- from the log ---------------------------------------------------------------------------------

    def _value(self, raw: bytes) -> bytes | None:
        return None if self._options.topic_as is not None else raw.partition(b"\0")[2]

    def _record(self, seq: int, raw: bytes) -> Record:
        topic, _, payload = raw.partition(b"\0")
        fields, reason = json_object(payload)
        if fields is not None and self._options.topic_as is not None:
            fields[self._options.topic_as] = topic.decode()
        text = payload.decode(errors="replace")
        return Record(0, seq, seq + 1, f"mqtt {topic.decode()}", fields, text, reason)
