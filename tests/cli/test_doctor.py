"""What `kaicep doctor` says of a machine."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kaicep.cli import first_steps as doctor


def finding(name: str) -> doctor.Checkup:
    [found] = [each for each in doctor.examine() if each.name == name]
    return found


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes it look as if packages were not installed."""
    real = importlib.metadata.version

    def hide(*names: str) -> None:
        def version(name: str) -> str:
            if name in names:
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(doctor, "version", version)

    return hide


def java_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    done = subprocess.CompletedProcess(["java"], 0, "", text)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **settings: done)


def test_every_line_has_a_mark(run: Callable[..., Any]) -> None:
    result = run("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-1] == "kaicep has everything it needs."
    for line in lines[:-2]:
        assert line[:9].strip() in ("ok", "missing", "old", "")
    names = [line[9:].split()[0] for line in lines[:-2] if line[0] != " "]
    assert names == [
        "python", "google-re2", "numba", "pyoxigraph", "typer",
        "java", "pyspark", "cluster", "pyarrow", "deltalake", "uvicorn", "pygls", "pandas",
        "confluent-kafka", "paho-mqtt", "cryptography", "scipy", "dot", "mosquitto", "mvn",
        "cores", "real-time", "memory", "cache",
    ]  # fmt: skip


def test_knowledge_is_weighed(run: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "k.ttl"
    file.write_text(
        "<urn:A> <http://www.w3.org/2000/01/rdf-schema#subClassOf> <urn:B> . <urn:x> a <urn:A> .\n"
        "<urn:o> <http://www.w3.org/2002/07/owl#imports> <urn:elsewhere> ."
    )
    said = run("doctor", "--knowledge", str(file)).stdout
    assert (
        "ok       knowledge        3 statements, 4 with what follows under rdfs; loaded and reasoned over in"
        in said
    )
    assert "odd      knowledge        <urn:o> imports <urn:elsewhere>, which is not loaded" in said


def test_what_is_optional_may_be_missing(run: Callable[..., Any], without: Callable[..., None]) -> None:
    without("pyspark", "pyarrow", "deltalake", "confluent-kafka")
    result = run("doctor")
    assert result.exit_code == 0
    assert "missing  pyarrow          for Arrow, Parquet files\n" in result.stdout
    for extra in ("parquet", "spark", "delta", "kafka"):
        assert f"to get it: pip install 'kaicep[{extra}]'\n" in result.stdout


def test_what_the_core_needs_may_not(run: Callable[..., Any], without: Callable[..., None]) -> None:
    without("pyoxigraph")
    result = run("doctor")
    assert result.exit_code == 1
    assert "missing  pyoxigraph" in result.stdout
    assert result.stdout.endswith("kaicep cannot run until this is mended.\n")


@pytest.mark.parametrize(
    ("said", "mark", "seen"),
    [
        ('openjdk version "21.0.2" 2024-01-16', "ok", "21 (/usr/bin/java)"),
        ('openjdk version "17" 2021-09-14', "ok", "17 (/usr/bin/java)"),
        ('java version "1.8.0_402"', "old", "8 (/usr/bin/java); the Spark hosts need 17 or later"),
        ("what?", "missing", "/usr/bin/java does not tell its version; the Spark hosts need 17 or later"),
    ],
)
def test_java(monkeypatch: pytest.MonkeyPatch, said: str, mark: str, seen: str) -> None:
    java_says(monkeypatch, said)
    found = finding("java")
    assert (found.mark, found.seen) == (mark, seen)
    assert bool(found.remedy) == (mark != "ok")


@pytest.mark.parametrize(
    ("platform", "tool", "command"),
    [
        ("darwin", "", "brew install openjdk@21"),
        ("win32", "", "winget install Microsoft.OpenJDK.21"),
        ("linux", "apt-get", "jre-headless"),
        ("linux", "dnf", "dnf install -y java-21-openjdk-headless"),
        ("linux", "apk", "apk add openjdk21-jre-headless"),
        ("linux", "", "install a Java runtime, version 17 or 21, and set JAVA_HOME to it"),
    ],
)
def test_no_java(monkeypatch: pytest.MonkeyPatch, platform: str, tool: str, command: str) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(doctor.sys, "platform", platform)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path=None: name if name == tool else None)
    found = finding("java")
    assert found.mark == "missing"
    assert found.remedy.endswith(command)


@pytest.mark.parametrize(("version", "mark"), [("4.3.0", "ok"), ("4.4.1", "ok"), ("3.5.1", "old")])
def test_spark(monkeypatch: pytest.MonkeyPatch, version: str, mark: str) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: version)
    assert finding("pyspark").mark == mark


@pytest.mark.parametrize(
    ("platform", "tool", "command"),
    [
        ("darwin", "", "brew install graphviz"),
        ("win32", "", "winget install Graphviz.Graphviz"),
        ("linux", "apt-get", "apt-get install -y graphviz"),
        ("linux", "pacman", "pacman -S --noconfirm graphviz"),
        ("linux", "", "install graphviz"),
    ],
)
def test_a_program(monkeypatch: pytest.MonkeyPatch, platform: str, tool: str, command: str) -> None:
    monkeypatch.setattr(doctor.sys, "platform", platform)
    here = {tool}
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path=None: name if name in here else None)
    found = finding("dot")
    assert (found.mark, found.seen) == ("missing", "for pictures of live graphs")
    assert found.remedy.endswith(command)
    here.add("dot")
    assert finding("dot") == doctor.Checkup("ok", "dot", "dot (pictures of live graphs)")


def test_a_server_is_found_where_servers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path="": looked.append(path))
    finding("mosquitto")
    assert any("/usr/sbin" in path.split(doctor.os.pathsep) for path in looked)


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KAICEP_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert finding("cache").seen == f"{tmp_path}/kaicep/kernels (the kernel is compiled on first use)"
    assert not (tmp_path / "kaicep").exists()
    (tmp_path / "kaicep").touch()
    assert finding("cache").mark == "missing"
    monkeypatch.setenv("KAICEP_CACHE_DIR", str(tmp_path / "other"))
    assert finding("cache").mark == "ok"


@pytest.mark.parametrize(("allowed", "mark"), [(True, "ok"), (False, "missing")])
def test_real_time_priorities(monkeypatch: pytest.MonkeyPatch, allowed: bool, mark: str) -> None:
    monkeypatch.setattr("kaicep.live.ticking.allowed", lambda: allowed)
    found = finding("real-time")
    assert found.mark == mark
    assert ("ulimit -r" in found.remedy) is not allowed
