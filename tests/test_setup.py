"""The set-up's search for Java, on made-up machines."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "java.sh"
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2024-01-01' >&2"


def machine(folder: Path, **programs: str) -> dict[str, str]:
    """An environment whose path holds nothing but these programs and what the script is made of."""
    for name in ("sed", "head", "grep", "cat", "chmod", "timeout"):
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    for name, body in {"uname": "echo Linux", "id": "echo 1000", **programs}.items():
        script = folder / name.replace("_", "-")
        script.write_text(f"#!{BASH}\n{body}\n", "utf-8")
        script.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return {**kept, "PATH": str(folder)}


def run(environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [str(BASH), str(SCRIPT)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_will_do_is_left_alone(tmp_path: Path, version: str) -> None:
    assert run(machine(tmp_path, java=java(version))) == (0, "")


@pytest.mark.parametrize(
    ("programs", "command"),
    [
        ({"java": java("11.0.2"), "dnf": ""}, "sudo dnf install -y java-21-openjdk-headless"),
        ({"java": java("1.8.0_292"), "zypper": ""}, "sudo zypper install -y java-21-openjdk-headless"),
        ({"apk": "", "id": "echo 0"}, "          apk add openjdk21-jre-headless"),
        ({"uname": "echo Darwin", "java": "exit 1"}, "brew install openjdk@21"),
        ({"apt_get": "exit 9"}, "sudo apt-get install -y openjdk-17-jre-headless"),
        ({}, "version 17 or 21"),
    ],
)
def test_where_there_is_none_the_command_is_told(
    tmp_path: Path, programs: dict[str, str], command: str
) -> None:
    status, told = run(machine(tmp_path, **programs))
    assert status == 1
    assert command in told
    assert "everything else runs without" in told


def test_root_on_debian_gets_it_installed(tmp_path: Path) -> None:
    stub = f"#!{BASH}\n{java('21.0.1')}"
    installs = f"""
        if [[ "$*" == *install*openjdk-21-jre-headless* ]]; then
            cat >'{tmp_path}/java' <<'END'
{stub}
END
            chmod +x '{tmp_path}/java'
        fi"""
    candidate = "[[ $2 == openjdk-21-* ]] && echo 'Candidate: 21.0.1'; true"
    status, told = run(machine(tmp_path, id="echo 0", apt_get=installs, apt_cache=candidate))
    assert (status, told.splitlines()[-1]) == (0, "java: Java 21 is installed")


def test_root_without_a_network_is_told_the_command(tmp_path: Path) -> None:
    status, told = run(machine(tmp_path, id="echo 0", apt_get="exit 100", apt_cache="true"))
    assert status == 1
    assert "          apt-get update && apt-get install -y openjdk-17-jre-headless" in told


def test_a_wrong_java_home_is_named(tmp_path: Path) -> None:
    status, told = run({**machine(tmp_path, java=java("21")), "JAVA_HOME": "/nowhere"})
    assert status == 1
    assert "JAVA_HOME leads to no Java from 17 on: /nowhere" in told
