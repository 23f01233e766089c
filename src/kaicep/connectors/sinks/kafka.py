"""A Kafka topic as a sink, at least once: the key of a message is the match's id, its value the match."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.kafka import Setting, client_settings
from kaicep.connectors.options import Duration, Variable
from kaicep.errors import Failure
from kaicep.plan.events import Match

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

__all__ = ["KafkaOptions", "KafkaSink"]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Which topic of which servers, and for how long a commit waits for them."""

    servers: str
    topic: str
    patience: Duration = Duration(300_000_000)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    secrets: Mapping[str, Variable] = field(default_factory=dict)


class KafkaSink(Sink):
    """Sends matches to a topic. All replicas have them when a commit returns."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, name: str, options: KafkaOptions) -> None:
        self._where = f"sink {name}"
        self._options = options
        own = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
        self._settings = client_settings(self._where, options.servers, options.settings, options.secrets, own)
        self._producer: Producer | None = None
        self._waiting: deque[Match] = deque()
        self._under_way = 0
        self._returned: list[Match] = []
        self._refused: str | None = None
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why messages wait."""
        return self._trouble

    def open(self) -> None:
        """Makes a client; a broker that is down is waited for."""
        from confluent_kafka import Producer

        self._waiting.clear()
        self._returned.clear()
        self._under_way = 0
        self._producer = Producer({**self._settings, "error_cb": self._on_error})

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches, and sends as many as the client takes."""
        self._waiting.extend(matches)
        self._send()

    def commit(self, mark: Mark) -> None:
        """Waits until the broker has everything."""
        assert self._producer is not None, "open comes first"
        deadline = time.monotonic() + self._options.patience / 1_000_000
        self._refused = None
        while self._left:
            self._send()
            self._producer.poll(0.1)
            if not self._under_way and self._refused:
                raise Failure(f"{self._where}: {self._refused}")
            if self._left and time.monotonic() > deadline:
                raise Failure(
                    f"{self._where}: topic {self._options.topic}: {self._left} "
                    f"matches could not be sent: {self._trouble or 'no answer'}"
                )

    def close(self) -> None:
        """Leaves the broker."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None

    @property
    def _left(self) -> int:
        return len(self._waiting) + self._under_way + len(self._returned)

    def _send(self) -> None:
        from confluent_kafka import KafkaException

        assert self._producer is not None, "open comes first"
        # Not while some were refused and others are under way: those that are refused go first again.
        while self._waiting and not self._returned:
            match = self._waiting[0]

            def delivered(error: KafkaError | None, message: Message, match: Match = match) -> None:
                self._delivered(error, match)

            try:
                self._producer.produce(
                    self._options.topic, match.to_json().encode(), match.id.encode(), on_delivery=delivered
                )
            except BufferError:  # the client has enough for now
                return
            except KafkaException as error:  # such as one that is too large: the client itself refuses it
                self._refuse(error.args[0])
                return
            self._under_way += 1
            self._waiting.popleft()

    def _delivered(self, error: KafkaError | None, match: Match) -> None:
        self._under_way -= 1
        if error is None:
            self._trouble = None
        else:
            self._returned.append(match)
            self._refuse(error)
        if not self._under_way:
            self._waiting.extendleft(reversed(self._returned))
            self._returned.clear()

    def _refuse(self, error: KafkaError) -> None:
        self._refused = f"topic {self._options.topic} on {self._options.servers}: {error.str()}"

    def _on_error(self, error: Any) -> None:
        self._trouble = f"{self._options.servers} cannot be reached: {error.str()}"
