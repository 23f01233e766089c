"""What the Kafka source and the Kafka sink have in common: settings, secrets, the words for errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kaicep.connectors.options import Variable, secret
from kaicep.connectors.records import Record, json_object
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["Setting", "client_settings", "is_gone", "is_passing", "kafka_record"]

Setting = str | int | float | bool
"""A setting of librdkafka."""


def client_settings(
    where: str,
    servers: str,
    settings: Mapping[str, Setting],
    secrets: Mapping[str, Variable],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a client: those of the user, then those that the promises of kaicep rest on.

    >>> client_settings("stream s", "a:9092", {"security.protocol": "ssl"}, {}, {"acks": "all"})["acks"]
    'all'
    >>> client_settings("stream s", "a:9092", {"acks": 0}, {}, {"acks": "all"})
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: stream s: settings: acks is set by kaicep, whose promises rest on it
      = help: leave it out
    """
    own = {"bootstrap.servers": servers, **own}
    for name in (*settings, *secrets):
        if name in own:
            message = f"{where}: settings: {name} is set by kaicep, whose promises rest on it"
            raise Mistake(Diagnostic(message, hint="leave it out"))
    hidden = {name: secret(variable, where) for name, variable in secrets.items()}
    # Errors come by callback; librdkafka would also print them.
    return {"log_level": 0, "reconnect.backoff.max.ms": 2_000, **settings, **hidden, **own}


def kafka_record(topic: str, part: int, seq: int, value: bytes | None) -> Record:
    """The record of a message, good or bad.

    >>> kafka_record("t", 0, 7, None).reason
    'it has no value, only a key'
    """
    file = f"{topic}/{part}"
    if value is None:
        return Record(part, seq, seq + 1, file, None, "", "it has no value, only a key")
    fields, reason = json_object(value)
    return Record(part, seq, seq + 1, file, fields, value.decode(errors="replace"), reason)


def is_gone(error: KafkaError) -> bool:
    """Whether an error says that there is no such topic or partition."""
    from confluent_kafka import KafkaError

    gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
    return error.code() in gone


def is_passing(error: KafkaError) -> bool:
    """Whether an error may be over the next time: a broker that is down, or that is busy electing."""
    from confluent_kafka import KafkaError

    passing = (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    )
    return bool(error.retriable()) or error.code() in passing
