"""All connectors by the name of their kind, and their options, checked against a dataclass."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar, get_args, get_origin, get_type_hints

from kaicep.connectors.contract import Sink, Source
from kaicep.connectors.shape import Form
from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.plan.time import format_duration, parse_duration
from kaicep.plan.types import show
from kaicep.storage.places import local_path, place_of

# ----------------------------------------------------------------------------------------------------------
# Options of a connector, as a table of a configuration file gives them, checked against a dataclass.
#
# Each field of the dataclass is an option; its annotation says what it takes. One without a default must be
# given.

Duration = NewType("Duration", int)
"""A duration in microseconds, written as `5min`."""

Count = NewType("Count", int)
"""A number from 1 on."""

Variable = NewType("Variable", str)
"""The name of an environment variable with a secret, which is never in the file itself."""

Anywhere = NewType("Anywhere", Path)
"""A path, or a place on a store."""

Options = TypeVar("Options")


def read_options(kind: type[Options], given: Mapping[str, object], where: str) -> Options:
    """The options as an instance of their dataclass; a mistake that names each one that is wrong.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Tap:
    ...     path: Path
    ...     every: Duration = Duration(1_000_000)
    >>> read_options(Tap, {"path": "a", "every": "2s"}, "source tap")
    Tap(path=PosixPath('a'), every=2000000)
    >>> read_options(Tap, {"pth": "a"}, "source tap")
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: source tap: unknown option pth
      = help: did you mean path?
    <BLANKLINE>
    error: source tap: the option path is missing
    """
    hints = get_type_hints(kind)
    wrong = [
        Diagnostic(f"{where}: unknown option {name}", hint=did_you_mean(name, hints))
        for name in given
        if name not in hints
    ]
    found: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in given:
            try:
                found[each.name] = _value(given[each.name], hints[each.name])
            except _Wrong as error:
                wrong.append(Diagnostic(f"{where}: {each.name}: {error}", hint=error.hint))
        elif each.default is MISSING and each.default_factory is MISSING:
            wrong.append(Diagnostic(f"{where}: the option {each.name} is missing"))
    if wrong:
        raise Mistake(wrong)
    return kind(**found)


def secret(variable: Variable | None, where: str) -> str | None:
    """What an environment variable holds; a mistake, which does not show it, where there is none.

    >>> secret(None, "sink hook") is None
    True
    """
    if variable is None:
        return None
    if not (value := os.environ.get(variable)):
        hint = f"set it before the start, for example: export {variable}=..."
        raise Mistake(f"{where}: the environment variable {variable} is not set", hint=hint)
    return value


class _Wrong(ValueError):
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _value(value: object, wanted: Any) -> Any:
    """A value of the option's type."""
    if get_origin(wanted) is Literal:
        choices = [str(each) for each in get_args(wanted)]
        if value not in choices:
            raise _Wrong(f"{show(value)} is none of {', '.join(choices)}", did_you_mean(str(value), choices))
        return value
    if get_origin(wanted) is Mapping:
        _, item = get_args(wanted)
        if not isinstance(value, Mapping):
            raise _Wrong(f"{show(value)} is not a table of names and values")
        return {str(name): _value(each, item) for name, each in value.items()}
    if type(None) in get_args(wanted):
        [inner] = [each for each in get_args(wanted) if each is not type(None)]
        return _value(value, inner)
    return _SCALARS[wanted](value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"{show(value)} is not text")
    return value


def _setting(value: object) -> str | int | float | bool:
    if not isinstance(value, str | int | float | bool):
        raise _Wrong(f"{show(value)} is neither a text nor a number nor true or false")
    return value


def _placed(place: Callable[[str, str], Path], value: object) -> Path:
    try:
        return place(_text(value), "")
    except Mistake as mistake:
        (found,) = mistake.diagnostics
        raise _Wrong(found.message.strip(), found.hint) from None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{show(value)} is neither true nor false")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong(f"{show(value)} is not a whole number")
    return value


def _count(value: object) -> int:
    if _whole(value) < 1:
        raise _Wrong(f"{show(value)} is less than 1")
    return _whole(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _Wrong(f"{show(value)} is not a number above 0")
    return float(value)


def _duration(value: object) -> int:
    micros = parse_duration(value) if isinstance(value, str) else None
    if micros is None:
        raise _Wrong(f"{show(value)} is not a duration", f"write it as {format_duration(5_000_000)} or 5min")
    return micros


_SCALARS: Mapping[Any, Callable[[object], Any]] = {
    str: _text,
    Variable: _text,
    Path: lambda value: _placed(local_path, value),
    Anywhere: lambda value: _placed(place_of, value),
    bool: _flag,
    int: _whole,
    Count: _count,
    float: _number,
    Duration: _duration,
    str | int | float | bool: _setting,
}


# ----------------------------------------------------------------------------------------------------------
# All connectors by the name of their kind, made from a table of options.
#
# Nothing but the connector that is asked for is imported, so that a package which is not installed is
# missed only by those who use it.


@dataclass(frozen=True, slots=True)
class ConnectorKind:
    """The place of a connector, and the package and extra that it needs in addition to kaicep."""

    module: str
    connector: str
    options: str
    package: str | None = None
    extra: str | None = None


_HERE = "kaicep.connectors"

SOURCES: Mapping[str, ConnectorKind] = {
    "files": ConnectorKind(f"{_HERE}.sources.files", "FileSource", "FileSourceOptions"),
    "kafka": ConnectorKind(f"{_HERE}.kafka", "KafkaSource", "KafkaSourceOptions", "confluent_kafka", "kafka"),
    "mqtt": ConnectorKind(f"{_HERE}.mqtt", "MqttSource", "MqttSourceOptions", "paho.mqtt", "mqtt"),
    "http": ConnectorKind(f"{_HERE}.http", "HttpSource", "HttpOptions", "uvicorn", "server"),
    "ldes": ConnectorKind(f"{_HERE}.sources.ldes", "LdesSource", "LdesOptions"),
    "generator": ConnectorKind(f"{_HERE}.sources.generator", "GeneratorSource", "GeneratorOptions"),
}
"""The kinds of sources."""

SINKS: Mapping[str, ConnectorKind] = {
    "files": ConnectorKind(f"{_HERE}.sinks.files", "FileSink", "FileSinkOptions"),
    "delta": ConnectorKind(f"{_HERE}.sinks.delta", "DeltaSink", "DeltaOptions", "deltalake", "delta"),
    "kafka": ConnectorKind(f"{_HERE}.kafka", "KafkaSink", "KafkaSinkOptions", "confluent_kafka", "kafka"),
    "mqtt": ConnectorKind(f"{_HERE}.mqtt", "MqttSink", "MqttSinkOptions", "paho.mqtt", "mqtt"),
    "webhook": ConnectorKind(f"{_HERE}.sinks.webhook", "WebhookSink", "WebhookOptions"),
    "console": ConnectorKind(f"{_HERE}.sinks.files", "ConsoleSink", "ConsoleOptions"),
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
    kinds: Mapping[str, ConnectorKind], what: str, where: str, options: Mapping[str, object]
) -> tuple[ConnectorKind, Any, Any]:
    """The kind that the options name, its class, and the options it gets."""
    name = options.get("kind")
    if name is None:
        hint = f"known: {', '.join(kinds)}"
        raise Mistake(f"{where}: the option kind is missing", hint=hint)
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        message = f"{where}: there is no {what} of kind {name}"
        raise Mistake(message, hint=did_you_mean(str(name), kinds))
    module = import_module(kind.module)
    rest = {option: value for option, value in options.items() if option != "kind"}
    settings = read_options(getattr(module, kind.options), rest, where)
    return kind, getattr(module, kind.connector), settings


def _insist(kind: ConnectorKind, where: str) -> None:
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
        raise Mistake(f"{where}: needs the package {package}, which is not installed", hint=hint)
