"""What is handed out: the wheel and its metadata, the help of every command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import typer.main

import kaicep
from kaicep.cli.main import app
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent


# --- the wheel ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run([sys.executable, "-m", *build], cwd=ROOT, check=True, timeout=300)
    [made] = folder.glob("*.whl")
    return made


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        [name] = [each for each in file.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(name).decode())


@pytest.mark.slow
def test_everything_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    package = ROOT / "src" / "kaicep"
    own = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {each for each in names(wheel) if each.startswith("kaicep/")} == own
    assert {"kaicep/py.typed", "kaicep/examples/start/kaicep.toml"} <= own


@pytest.mark.slow
def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    tops = {each.split("/")[0] for each in names(wheel)}
    assert tops == {"kaicep", f"kaicep-{kaicep.__version__}.dist-info"}
    assert any(each.endswith("/licenses/LICENSE") for each in names(wheel))
    assert wheel.stat().st_size < 2_000_000, "the core installs small"


@pytest.mark.slow
def test_the_metadata(wheel: Path) -> None:
    told = metadata(wheel)
    assert (told["Name"], told["Version"]) == ("kaicep", kaicep.__version__)
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == "<3.14,>=3.11"
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert {"spark", "kafka", "mqtt", "delta", "live", "all"} <= set(told.get_all("Provides-Extra", []))
    assert told.get_payload().startswith("# kaicep")


@pytest.mark.slow
def test_the_core_needs_little(wheel: Path) -> None:
    needed = [each for each in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {re.split(r"[<>=!~\[ ]", each)[0] for each in needed} == {
        "google-re2",
        "numba",
        "pyoxigraph",
        "typer",
    }


@dataclass(frozen=True)
class Fresh:
    """An environment of its own: the packages of this one, the wheel's kaicep, and not the repository's."""

    python: Path
    env: dict[str, str]


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", with_pip=False)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    here = [str(folder / "site"), *(each for each in sys.path if each.endswith("site-packages"))]
    return Fresh(folder / "venv" / "bin" / "python", {**os.environ, "PYTHONPATH": os.pathsep.join(here)})


@pytest.mark.slow
def test_it_works_where_the_repository_is_not(fresh: Fresh, tmp_path: Path) -> None:
    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(fresh.python), "-m", "kaicep", *arguments],
            cwd=cwd, env=fresh.env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def kaicep_says(*arguments: str, cwd: Path = tmp_path) -> str:
        done = run(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert kaicep_says("--version") == f"kaicep {kaicep.__version__}\n"
    command = kaicep_says("init", "new").splitlines()[3].strip()
    assert "lot17" in kaicep_says(*shlex.split(command)[1:], cwd=tmp_path / "new")
    missing = run("bench", "startup", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "error: the benchmarks are not installed" in missing.stderr
    assert "clone the repository" in missing.stderr


@pytest.mark.slow
def test_quick_starts_and_recipes_run_from_the_wheel(fresh: Fresh, tmp_path: Path) -> None:
    """The tests of these pages once more, where the pages are and the package's source is not."""
    for name in ("docs", "examples", "benchmarks", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests").mkdir()
    for name in ("test_docs.py", "test_recipes.py"):
        (tmp_path / "tests" / name).write_text((ROOT / "tests" / name).read_text("utf-8"), "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    site = fresh.env["PYTHONPATH"].split(os.pathsep)[0]
    (tmp_path / "conftest.py").write_text(f"import kaicep\nassert kaicep.__file__.startswith({site!r})\n")
    done = subprocess.run(
        [str(fresh.python), "-m", "pytest", "-q", "-k", "docs/start or recipe", "tests"],
        cwd=tmp_path, env=fresh.env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 60, done.stdout


@pytest.mark.spark
def test_the_quick_start_of_spark_runs_from_the_wheel(fresh: Fresh, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    page = (ROOT / "docs" / "start-spark.md").read_text("utf-8")
    script = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    origin = "import kaicep\nprint(kaicep.__file__)\n"
    done = subprocess.run(
        bound([str(fresh.python), "-c", origin + script]),
        cwd=tmp_path, env=fresh.env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(fresh.env["PYTHONPATH"].split(os.pathsep)[0])
    assert done.stdout.count("VOL") > 1


# --- the core alone ---------------------------------------------------------------------------------------


@pytest.fixture
def core_alone(tmp_path: Path) -> dict[str, str]:
    """An environment in which the packages for tables are not installed."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for package in ("deltalake", "pyarrow"):
        (hidden / f"{package}.py").write_text("raise ImportError('as if it were not installed')\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), *filter(None, sys.path)])}


def test_a_source_of_files_reads_them_without_arrow(core_alone: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "air.jsonl").write_text('{"ts": 0, "flow": 1}\n{"ts": 1, "flow": 2}\n')
    script = """
import kaicep as kai
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
source = make_source(Form("air"), {"kind": "files", "path": "air.jsonl"})
query = kai.compile("SELECT ?e.flow FROM (?e, air)", streams={"air": {"ts": "timestamp", "flow": "int64"}})
print([each.select["flow"] for each in kai.run(query, {"air": source})])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=core_alone, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr


def test_tables_say_which_package_they_need(core_alone: dict[str, str]) -> None:
    script = """
import kaicep as kai, pandas
query = kai.compile("SELECT ?e.flow FROM (?e, air)", streams={"air": {"flow": "int64"}})
events = [{"ts": 0, "flow": 1}]
for take in (
    lambda: kai.to_pandas(kai.run(query, events)),
    lambda: list(kai.run(query, pandas.DataFrame(events))),
    lambda: list(kai.run(query, "air.parquet")),
):
    try:
        take()
    except kai.Mistake as mistake:
        print(mistake)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=core_alone,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("needs the package pyarrow, which is not installed") == 3, done.stdout
    assert done.stdout.count("pip install 'kaicep[parquet]'") == 3


@pytest.mark.parametrize("command", ["ingest --stream air=air.jsonl --archive new", "run kaicep.toml"])
def test_what_an_archive_needs_is_named(command: str, core_alone: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "air.jsonl").write_text('{"ts": 0, "flow": 1}\n')
    (tmp_path / "queries").mkdir()
    (tmp_path / "kaicep.toml").write_text('[streams.air]\nsource = {kind = "files", path = "air.jsonl"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", *command.split()],
        env=core_alone,
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "error: an archive needs the package" in done.stderr
    assert "pip install 'kaicep[delta]'" in done.stderr


def test_queries_are_explained_and_files_ingested_without_spark(
    core_alone: dict[str, str], tmp_path: Path
) -> None:
    """`explain` needs neither Arrow nor Spark, and what runs in this process does not need Spark."""
    (tmp_path / "air.jsonl").write_text('{"ts": 0, "flow": 1}\n')
    (tmp_path / "all.chi").write_text("SELECT ?e.flow FROM (?e, air)")
    (tmp_path / "hidden" / "pyspark.py").write_text("raise ImportError('as if it were not installed')\n")

    def kaicep(command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kaicep", *command.split()],
            env=core_alone, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "archive: hybrid" in kaicep("explain all.chi --stream air=air.jsonl")
    for package in ("deltalake", "pyarrow"):
        (tmp_path / "hidden" / f"{package}.py").unlink()
    kaicep("ingest --stream air=air.jsonl --archive new")
    assert '"flow": 1' in kaicep("query all.chi --archive new --strategy hybrid")


# --- the help ----------------------------------------------------------------------------------------------


def commands(group: Any, path: tuple[str, ...] = ("kaicep",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, with the words that call it."""
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        else:
            yield (*path, name), each


COMMANDS = [
    pytest.param(path, each, id=" ".join(path)) for path, each in commands(typer.main.get_command(app))
]


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_the_help_of_every_command_shows_an_example(path: tuple[str, ...], command: Any) -> None:
    """The example calls the command, with arguments and options that it has."""
    call = " ".join(path)
    examples = re.findall(rf"^(?:Example: )?{call}\b(.*)$", command.help or "", re.MULTILINE)
    assert examples, f"the docstring of {call} wants a line such as: Example: {call} ..."
    for each in examples:
        command.make_context(call, shlex.split(each))
