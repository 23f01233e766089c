"""All connectors by the name of their kind, made from a table of options.

Nothing but the connector that is asked for is imported, so that a package which is not installed is
missed only by those who use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kaicep.connectors.contract import Sink, Source
from kaicep.connectors.options import read_options
from kaicep.connectors.shape import Form
from kaicep.errors import Diagnostic, Mistake, did_you_mean

__all__ = ["SINKS", "SOURCES", "Kind", "make_sink", "make_source"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The place of a connector, and the package and extra that it needs in addition to kaicep."""

    module: str
    connector: str
    options: str
    package: str | None = None
    extra: str | None = None


_HERE = "kaicep.connectors"

SOURCES: Mapping[str, Kind] = {
    "files": Kind(f"{_HERE}.sources.files", "FileSource", "FileOptions"),
    "kafka": Kind(f"{_HERE}.sources.kafka", "KafkaSource", "KafkaOptions", "confluent_kafka", "kafka"),
    "mqtt": Kind(f"{_HERE}.sources.mqtt", "MqttSource", "MqttOptions", "paho.mqtt", "mqtt"),
    "http": Kind(f"{_HERE}.sources.http", "HttpSource", "HttpOptions", "uvicorn", "server"),
    "generator": Kind(f"{_HERE}.sources.generator", "GeneratorSource", "GeneratorOptions"),
}
"""The kinds of sources."""

SINKS: Mapping[str, Kind] = {
    "files": Kind(f"{_HERE}.sinks.files", "FileSink", "FileOptions"),
    "delta": Kind(f"{_HERE}.sinks.delta", "DeltaSink", "DeltaOptions", "deltalake", "delta"),
    "kafka": Kind(f"{_HERE}.sinks.kafka", "KafkaSink", "KafkaOptions", "confluent_kafka", "kafka"),
    "mqtt": Kind(f"{_HERE}.sinks.mqtt", "MqttSink", "MqttOptions", "paho.mqtt", "mqtt"),
    "webhook": Kind(f"{_HERE}.sinks.webhook", "WebhookSink", "WebhookOptions"),
    "console": Kind(f"{_HERE}.sinks.console", "ConsoleSink", "ConsoleOptions"),
}
"""The kinds of sinks."""


def make_source(form: Form, options: Mapping[str, object]) -> Source:
    """A source for a stream, not yet opened. `options` has its `kind` and what that kind takes.

    >>> make_source(Form("meter"), {"kind": "generator", "count": 3}).finite
    True
    >>> make_source(Form("meter"), {"kind": "kafak"})
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: stream meter: there is no source of kind kafak
      = help: did you mean kafka?
    """
    where = f"stream {form.stream}"
    kind, connector, settings = _find(SOURCES, "source", where, options)
    _insist(kind, where)
    source: Source = connector(form, settings)
    return source


def make_sink(name: str, options: Mapping[str, object]) -> Sink:
    """A sink, not yet opened. `options` has its `kind` and what that kind takes; `name` is for messages.

    >>> make_sink("screen", {"kind": "console", "colour": True})
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: sink screen: unknown option colour
    """
    where = f"sink {name}"
    kind, connector, settings = _find(SINKS, "sink", where, options)
    _insist(kind, where)
    sink: Sink = connector(name, settings)
    return sink


def _find(
    kinds: Mapping[str, Kind], what: str, where: str, options: Mapping[str, object]
) -> tuple[Kind, Any, Any]:
    """The kind that the options name, its class, and the options it gets."""
    name = options.get("kind")
    if name is None:
        hint = f"known: {', '.join(kinds)}"
        raise Mistake(Diagnostic(f"{where}: the option kind is missing", hint=hint))
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        message = f"{where}: there is no {what} of kind {name}"
        raise Mistake(Diagnostic(message, hint=did_you_mean(str(name), kinds)))
    module = import_module(kind.module)
    rest = {option: value for option, value in options.items() if option != "kind"}
    settings = read_options(getattr(module, kind.options), rest, where)
    return kind, getattr(module, kind.connector), settings


def _insist(kind: Kind, where: str) -> None:
    """A mistake where the package that the kind needs is not installed."""
    if kind.package is None:
        return
    try:
        there = find_spec(kind.package) is not None
    except ModuleNotFoundError:  # of a dotted name, the first part
        there = False
    if not there:
        package = kind.package.replace(".", "-").replace("_", "-")
        hint = f"pip install 'kaicep[{kind.extra}]'"
        raise Mistake(Diagnostic(f"{where}: needs the package {package}, which is not installed", hint=hint))
