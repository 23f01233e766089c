"""MQTT topics as a source and as a sink, and what both have in common."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.documents import value_record
from kaicep.connectors.log import Log, PushSource
from kaicep.connectors.records import Record
from kaicep.connectors.registry import Count, Duration, Variable, secret
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

# ----------------------------------------------------------------------------------------------------------
# What the MQTT source and the MQTT sink have in common: addresses, and a client that keeps trying.

_PORT, _TLS_PORT = 1883, 8883


@dataclass(frozen=True, slots=True)
class Server:
    """A broker, and who we are to it."""

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None = field(repr=False)

    @property
    def name(self) -> str:
        """The broker as messages call it."""
        return f"{self.host}:{self.port}"


def parse_server(
    where: str, server: str, tls: bool = False, username: str | None = None, password: Variable | None = None
) -> Server:
    """The broker that options name.

    >>> parse_server("stream s", "broker.lan").name, parse_server("stream s", "::1", tls=True).name
    ('broker.lan:1883', '::1:8883')
    >>> parse_server("stream s", "broker.lan:mqtt")
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: stream s: server: broker.lan:mqtt is not an address
      = help: write it as host:port, such as 127.0.0.1:1883
    """
    host, colon, port = server.rpartition(":")
    if not colon or ":" in host:
        host, port = server, str(_TLS_PORT if tls else _PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        hint = "write it as host:port, such as 127.0.0.1:1883"
        raise Mistake(f"{where}: server: {server} is not an address", hint=hint)
    return Server(host, int(port), tls, username, secret(password, where))


def make_client(server: Server, name: str, clean_session: bool, manual_ack: bool = False) -> Client:
    """A client that connects again whenever the broker is there; unless clean, its session outlives it."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    version = CallbackAPIVersion.VERSION2
    client = Client(version, client_id=name, clean_session=clean_session, manual_ack=manual_ack)
    client.max_inflight_messages_set(0)  # no queue beside that of the sink
    client.reconnect_delay_set(1, 2)
    if server.username is not None:
        client.username_pw_set(server.username, server.password)
    if server.tls:
        client.tls_set()
    client.connect_async(server.host, server.port)
    return client


# ----------------------------------------------------------------------------------------------------------
# MQTT as a source: what is published under a topic, at least once (QoS 1).
#
# The broker keeps a session under our client's name, so that it holds what is published while we are away.
# A message is acknowledged when it is on the disk, not before; one that the broker sends again because the
# acknowledgement got lost comes in again, under another number.

_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class MqttSourceOptions:
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
    """Messages of an MQTT broker, JSON objects or documents of RDF."""

    def __init__(self, form: Form, options: MqttSourceOptions) -> None:
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
        record = value_record(0, seq, f"mqtt {topic.decode()}", payload, self.form.notation)
        if record.fields is not None and self._options.topic_as is not None:
            return replace(record, fields={**record.fields, self._options.topic_as: topic.decode()})
        return record


# ----------------------------------------------------------------------------------------------------------
# An MQTT topic as a sink, at least once (QoS 1); the id in the match tells a second delivery.
#
# Matches go out in their order (semantics 2), which the queue inside of paho does not keep: what is
# published while a connection is being made overtakes what waits for it. So the sink keeps the matches
# itself. It publishes only on a connection that the broker has accepted, and on a new one begins with the
# first match that was not acknowledged.

# How many matches are under way at most. Some brokers take no more than a hundred on a connection.
_WINDOW = 100


@dataclass(frozen=True, slots=True)
class MqttSinkOptions:
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

    def __init__(self, name: str, options: MqttSinkOptions) -> None:
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
            raise Mistake(message, hint=hint)
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
