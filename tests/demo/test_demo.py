"""`kaicep demo` as somebody sees it for the first time."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app
from kaicep.demo.campus import QUERIES
from kaicep.demo.morning import ShownMatch, Terminal
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent.parent
HEAD = ["query", "matches", "one", "of", "them", "where", "why"]


def environment(path: str) -> dict[str, str]:
    """The environment with this PATH, and without Java beside it."""
    paths = os.pathsep.join(each for each in sys.path if each)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PYTHONPATH": paths, "PATH": path}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder that a demo without Java has left, and what it printed."""
    folder = tmp_path_factory.mktemp("kept") / "my campus"
    nowhere = tmp_path_factory.mktemp("path")
    done = subprocess.run(
        [sys.executable, "-m", "kaicep", "demo", "--scale", "small", "--seconds", "3", "--keep", str(folder)],
        env=environment(str(nowhere)), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return folder, done.stdout.splitlines()


@pytest.mark.slow
def test_without_java_it_says_what_is_missing_and_goes_on(kept: tuple[Path, list[str]]) -> None:
    _, lines = kept
    assert any("no Java was found" in each and "kaicep doctor" in each for each in lines)
    assert any(each.startswith("The morning is archived in this process: ") for each in lines)


@pytest.mark.slow
def test_what_was_found_is_a_table_with_room_department_and_why(kept: tuple[Path, list[str]]) -> None:
    _, lines = kept
    heads = [number for number, each in enumerate(lines) if each.split() == HEAD]
    assert len(heads) == 3  # the first minutes, the past, and what came live
    for head in heads:
        rows = lines[head + 1 : head + 1 + len(QUERIES)]
        assert [each.split()[0] for each in rows] == list(QUERIES)
        where, why = lines[head].index("where"), lines[head].index("why")
        assert all(each[where - 1] == each[why - 1] == " " for each in rows if len(each) > why)
    last = {each.split()[0]: each for each in lines[heads[-1] :] if each.startswith("  ")}
    shape = re.compile(r"  [\w-]+ +[\d,]+  \d\d:\d\d:\d\d(-\d\d:\d\d:\d\d)? +.+ of .+  .+")
    assert all(shape.fullmatch(last[name]) for name in QUERIES)
    told = "\n".join(lines)
    assert "RTH 212, conference room of Computer Science" in told
    assert "is a ConferenceRoom, hence a MeetingRoom" in told


@pytest.mark.slow
def test_the_summary_has_rates_and_latencies(kept: tuple[Path, list[str]]) -> None:
    _, lines = kept
    end = "\n".join(lines[lines.index("Summary") :])
    assert re.search(r"first match +after \d+\.\d s", end)
    assert re.search(r"live +[\d,]+ events in [\d.]+ s, [\d,]+ a second", end)
    assert re.search(r"push to match: p50 [\d.]+ ms, p99 [\d.]+ ms, of \d+ matches", end)
    assert all(re.search(rf"{name} [\d,]+", end) for name in QUERIES)


@pytest.mark.slow
def test_the_commands_at_the_end_work(kept: tuple[Path, list[str]]) -> None:
    folder, lines = kept
    commands = lines[lines.index("Try next:") + 1 :]
    query, why, run, console = map(shlex.split, commands)
    assert console[-2:] == ["demo", "--console"]
    assert "RTH212VOL2" in done(query)
    assert "bd:RTH212 rdf:type bd:MeetingRoom  (by the rule" in done(why)
    assert run[-4] == "run"
    with subprocess.Popen(
        run, env=environment(os.environ["PATH"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        waited_for = {f"{name}: up to date" for name in QUERIES}
        for line in process.stdout:
            waited_for -= {each for each in waited_for if each in line}
            if not waited_for:
                process.send_signal(signal.SIGINT)  # it has shown what it does: no need for all its seconds
                break
        process.stdout.read()
        assert process.wait(300) == 0
    assert not waited_for
    assert (folder / "run" / "matches.jsonl").stat().st_size > 0


def done(command: list[str]) -> str:
    settings = environment(os.environ["PATH"])
    return subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=300, check=True
    ).stdout


def test_without_a_folder_the_first_command_makes_one() -> None:
    from kaicep.demo.morning import Options, commands

    first, second, *_ = list(commands(Options(seed=9), None))[1:]
    assert first.strip() == "kaicep demo --scale campus --seed 9 --seconds 5 --keep kaicep-demo"
    assert "--archive kaicep-demo/archive" in second


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_it_with_what_there_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        bound([sys.executable, "-m", "kaicep", "demo", "--scale", "small", "--seconds", "100"]),
        env=environment(str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("The same queries live"):
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.stdout.read(), process.stderr.read()
        assert (process.wait(300), errors) == (0, "")
    assert "Stopped. So far:" in rest
    assert "Summary" in rest


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--scale", "huge"), "small, campus, city"),
        (("--seconds", "0"), "--seconds"),
        (("--keep", str(ROOT)), "is not empty"),
    ],
)
def test_mistakes(args: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["demo", *args], prog_name="kaicep")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_on_a_terminal_the_table_is_drawn_in_place() -> None:
    console = pytest.importorskip("rich.console", reason="the terminal view needs rich")
    screen = io.StringIO()
    view = Terminal(console.Console(file=screen, force_terminal=True, width=100, height=40))
    view.say("A campus")
    view.found("query7", 4_321, ShownMatch("08:02:06", "RTH 212 [1]", "527.4 > 500"))
    view.status("10:02 on the campus", 0.5)
    view._live.refresh()
    view.close()
    view.say("Summary")
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue())
    for each in ("A campus", "08:02:06", "RTH 212 [1]", "527.4 > 500", "4,321", "10:02 on the campus", "━"):
        assert each in shown
    assert shown.rstrip().endswith("Summary")
    assert "\x1b[1A" in screen.getvalue()  # it goes up and draws over what was there
