"""Connectors by name: options checked, packages missed with the way to get them, guarantees written down."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from kaicep.connectors.contract import Guarantee, Sink, Source
from kaicep.connectors.registry import SINKS, SOURCES, ConnectorKind, make_sink, make_source
from kaicep.connectors.shape import Form
from kaicep.errors import Mistake

ROOT = Path(__file__).parent.parent.parent
KINDS = [("source", name, kind) for name, kind in SOURCES.items()] + [
    ("sink", name, kind) for name, kind in SINKS.items()
]
EVERY = pytest.mark.parametrize(
    ("what", "name", "kind"), KINDS, ids=[f"{what}-{name}" for what, name, _ in KINDS]
)


def make(what: str, options: dict[str, object]) -> Source | Sink:
    return make_source(Form("s"), options) if what == "source" else make_sink("out", options)


def section(what: str, name: str) -> str:
    """What the documentation says of a kind."""
    sources, sinks = (ROOT / "docs" / "connectors.md").read_text("utf-8").split("\n## Sinks\n")
    found = (sources if what == "source" else sinks).split(f"### {name}\n", 1)[1]
    return re.split(r"^##", found, maxsplit=1, flags=re.MULTILINE)[0]


def wrong(what: str, options: dict[str, object]) -> str:
    with pytest.raises(Mistake) as caught:
        make(what, options)
    return str(caught.value)


@EVERY
def test_every_kind_keeps_the_contract_and_says_what_it_guarantees(
    what: str, name: str, kind: ConnectorKind
) -> None:
    connector = getattr(import_module(kind.module), kind.connector)
    assert issubclass(connector, Source if what == "source" else Sink)
    assert isinstance(connector.guarantee, Guarantee)


@EVERY
def test_the_documentation_names_every_option_and_the_guarantee(
    what: str, name: str, kind: ConnectorKind
) -> None:
    module = import_module(kind.module)
    page = section(what, name)
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named == {each.name for each in fields(getattr(module, kind.options))}
    guarantee = getattr(module, kind.connector).guarantee.name.lower().replace("_", " ")
    assert f"**Guarantee: {guarantee}.**" in page


@EVERY
def test_the_documentation_shows_options_that_work(
    what: str, name: str, kind: ConnectorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.package:
        pytest.importorskip(kind.package)
    [shown] = re.findall(r"^```toml\n(.*?)^```$", section(what, name), re.MULTILINE | re.DOTALL)
    for variable in re.findall(r'"([A-Z_]+)"', shown):
        monkeypatch.setenv(variable, "secret")
    options = tomllib.loads(shown)
    assert options["kind"] == name
    make(what, options)


@EVERY
def test_an_unknown_option_is_a_mistake(what: str, name: str, kind: ConnectorKind) -> None:
    assert "unknown option colour" in wrong(what, {"kind": name, "colour": "red"})


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("source", {}, "stream s: the option kind is missing"),
        ("source", {"kind": "kafak"}, "did you mean kafka?"),
        ("source", {"kind": 7}, "there is no source of kind 7"),
        ("sink", {"kind": "file", "path": "x"}, "did you mean files?"),
        ("source", {"kind": "files"}, "stream s: the option path is missing"),
        ("source", {"kind": "files", "path": 7}, "path: 7 is not text"),
        ("source", {"kind": "files", "path": "x", "folow": True}, "did you mean follow?"),
        (
            "source",
            {"kind": "files", "path": "x", "follow": "yes"},
            'follow: "yes" is neither true nor false',
        ),
        ("source", {"kind": "files", "path": "x", "batch": 0}, "batch: 0 is less than 1"),
        ("source", {"kind": "files", "path": "x", "batch": True}, "batch: true is not a whole number"),
        ("source", {"kind": "generator", "rate": 0}, "rate: 0 is not a number above 0"),
        ("source", {"kind": "generator", "start": "noon"}, "start: noon is not an ISO 8601 time"),
        (
            "source",
            {"kind": "kafka", "servers": "a", "topic": "t", "expired": "skip"},
            '"skip" is none of stop, continue',
        ),
        ("source", {"kind": "kafka", "servers": "a", "topic": "t", "settings": "x"}, "not a table of names"),
        (
            "source",
            {"kind": "kafka", "servers": "a", "topic": "t", "settings": {"auto.offset.reset": "latest"}},
            "auto.offset.reset is set by kaicep",
        ),
        ("sink", {"kind": "webhook", "url": "http://a/", "patience": 5}, "write it as 5s or 5min"),
        ("sink", {"kind": "webhook", "url": "http://a/", "token": "NO_SUCH"}, "variable NO_SUCH is not set"),
        ("sink", {"kind": "mqtt", "server": "a:b", "topic": "t"}, "server: a:b is not an address"),
    ],
)
def test_wrong_options_are_mistakes_that_say_so(what: str, options: dict[str, object], message: str) -> None:
    assert message in wrong(what, options)


def test_every_wrong_option_is_said_at_once() -> None:
    said = wrong("source", {"kind": "files", "folow": True, "batch": 0})
    assert said.count("error:") == 3


@pytest.mark.parametrize(
    ("what", "options", "package", "extra"),
    [
        ("source", {"kind": "kafka", "servers": "a", "topic": "t"}, "confluent_kafka", "kafka"),
        ("source", {"kind": "mqtt", "server": "a", "topic": "t", "log": "l"}, "paho", "mqtt"),
        ("sink", {"kind": "delta", "path": "p"}, "deltalake", "delta"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_the_extra_that_brings_it(
    what: str, options: dict[str, object], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    absent = lambda name, *rest: None if name.split(".")[0] == package else real(name, *rest)  # noqa: E731
    monkeypatch.setattr("kaicep.connectors.registry.find_spec", absent)
    assert f"pip install 'kaicep[{extra}]'" in wrong(what, options)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setenv("PASSWORD", "tell nobody")
    source = make_source(
        Form("s"),
        {"kind": "kafka", "servers": "a:1", "topic": "t", "secrets": {"sasl.password": "PASSWORD"}},
    )
    assert "tell nobody" not in repr(source)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; from kaicep.connectors.registry import make_sink, make_source; "
        "from kaicep.connectors.shape import Form; "
        "make_source(Form('s'), {'kind': 'files', 'path': '.'}); make_sink('o', {'kind': 'console'}); "
        "print(sorted({'confluent_kafka', 'paho', 'deltalake', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
