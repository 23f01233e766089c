"""The greeting, the version, and how a command ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kaicep import __version__
from kaicep.cli.arguments import guarded
from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported

HEAVY = ("pyarrow", "numpy", "pandas", "pyspark", "pyoxigraph", "rich")
DEFECT = "this is a defect of kaicep; with KAICEP_DEBUG=1 it shows where it happened"


def ending(error: BaseException) -> tuple[int, str]:
    """The exit status and the message of a command that ends with an error."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    def command() -> None:
        raise error

    app.command()(guarded(command))
    result = CliRunner().invoke(app, [])
    assert result.stdout == ""
    return result.exit_code, result.stderr


def test_bare(run: Callable[..., Any]) -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    sentence, _, *commands = result.stdout.splitlines()
    assert sentence.count(".") == 1
    assert [each.split()[:2] for each in commands[:3]] == [
        ["kaicep", "demo"],
        ["kaicep", "match"],
        ["kaicep", "doctor"],
    ]


def test_version(run: Callable[..., Any]) -> None:
    assert run("--version").stdout == f"kaicep {__version__}\n"


def test_help_names_every_command_and_nothing_is_cut_off(run: Callable[..., Any]) -> None:
    result = run("--help")
    assert result.exit_code == 0
    commands = re.findall(r"^  (\w+)  +\S", result.stdout, re.M)
    first = [
        "match",
        "check",
        "explain",
        "ingest",
        "query",
        "demo",
        "init",
        "run",
        "status",
        "follow",
        "console",
        "doctor",
        "bench",
        "why",
        "lsp",
    ]
    assert commands == [*first, "knowledge", "live", "archive"]
    assert "..." not in result.stdout.split("Commands:")[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("mtch",), "No such command 'mtch'. Did you mean 'match'?"),
        (("match",), "no query is given"),
        (("match", "rise.chi", "--strem", "x"), "No such option: --strem"),
    ],
)
def test_usage(run: Callable[..., Any], args: tuple[str, ...], said: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Mistake(Diagnostic("no", hint="yes")), 2, "error: no\n  = help: yes\n"),
        (Unsupported("spark-batch cannot; reference can"), 2, "error: spark-batch cannot; reference can\n"),
        (Failure("the rule grow never ends"), 1, "error: the rule grow never ends\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (MemoryError(), 1, "error: this does not fit into memory\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (TypeError("odd"), 1, f"internal error: TypeError: odd\n  = help: {DEFECT}\n"),
    ],
)
def test_an_error_is_a_message_and_an_exit_status(error: BaseException, status: int, said: str) -> None:
    assert ending(error) == (status, said)


def test_the_traceback_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in ending(Failure("no"))[1]
    monkeypatch.setenv("KAICEP_DEBUG", "1")
    status, said = ending(Failure("no"))
    assert status == 1
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("\nerror: no\n")


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, kaicep.cli.main; print([each for each in {HEAVY} if each in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_control_c(folder: object) -> None:
    code = (
        "import time, typer\n"
        "from kaicep.cli.arguments import guarded\n"
        "app = typer.Typer()\n"
        "def command() -> None:\n"
        "    print('started', flush=True)\n"
        "    time.sleep(3600)\n"
        "app.command()(guarded(command))\n"
        "app()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "interrupted\n")
