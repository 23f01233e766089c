"""What the MQTT source and the MQTT sink have in common: addresses, and a client that keeps trying."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kaicep.connectors.options import Variable, secret
from kaicep.errors import Diagnostic, Mistake

if TYPE_CHECKING:
    from paho.mqtt.client import Client

__all__ = ["Server", "make_client", "parse_server"]

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
        raise Mistake(Diagnostic(f"{where}: server: {server} is not an address", hint=hint))
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
