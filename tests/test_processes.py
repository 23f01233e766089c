"""What was started ends with whoever started it, however that ends."""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kaicep.processes import bound

SECONDS = 60.0
SLEEPER = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"]


@contextmanager
def owner(program: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a program; whatever it has started and left is killed at the end."""
    paths = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_end(pid: int) -> None:
    """Until a process that need not be ours is gone."""
    with suppress(ProcessLookupError):
        ready, _, _ = select.select([os.pidfd_open(pid)], [], [], SECONDS)
        assert ready, f"process {pid} is still there"


def started_by(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


STARTS = {
    "in the main thread": "subprocess.run(bound(SLEEPER))",
    "in another thread": """
        thread = threading.Thread(target=lambda: subprocess.run(bound(SLEEPER)))
        thread.start()
        thread.join()
    """,
    "for somebody else": "subprocess.run(bound(SLEEPER, os.getpid()))",
}


@pytest.mark.parametrize("how", STARTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_owner(how: str, number: signal.Signals) -> None:
    program = f"""
        import os, subprocess, sys, threading
        from kaicep.processes import bound
        SLEEPER = {SLEEPER}
    """
    with owner(textwrap.dedent(program) + textwrap.dedent(STARTS[how])) as process:
        started = started_by(process)
        process.send_signal(number)
        wait_for_end(started)


def test_an_engine_of_a_peer_ends_with_the_benchmark(tmp_path: Path) -> None:
    """Though nobody waits for it any more that could end it."""
    java, pid = tmp_path / "java", tmp_path / "pid"
    java.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 3600\n")
    java.chmod(0o755)
    program = """
        import os, sys
        from pathlib import Path
        from kaicep_bench import jvm
        os.environ["PATH"] = sys.argv[1] + ":" + os.environ["PATH"]
        jvm.run(jvm.ESPER, "pattern", Path("none"), 1)
    """
    with owner(program, str(tmp_path)) as process:
        deadline = time.monotonic() + SECONDS
        while not pid.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        wait_for_end(int(pid.read_text()))


@pytest.mark.parametrize("name", ["peers", "queries"])
@pytest.mark.parametrize("tool", ["mvn", "java"])
def test_what_a_benchmark_of_peers_starts_ends_with_the_command(tmp_path: Path, name: str, tool: str) -> None:
    """The whole command, with tools that do nothing for ever: the one that builds, then the one that runs."""
    for each in ("mvn", "java"):
        script = "exec sleep 3600" if each == tool else "exit 0"
        (tmp_path / each).write_text(
            f"#!/bin/sh\necho $$ > {tmp_path}/{each}.new\n"
            f"mv {tmp_path}/{each}.new {tmp_path}/{each}.pid\n{script}\n"
        )
        (tmp_path / each).chmod(0o755)
    program = """
        import os, sys
        from pathlib import Path
        from kaicep.cli.main import app
        from kaicep_bench import jvm
        os.environ["PATH"] = sys.argv[1] + ":" + os.environ["PATH"]
        jvm._jar = lambda peer: Path(sys.argv[1]) / "never.jar"
        app(["bench", sys.argv[2], "--quick"])
    """
    with owner(program, str(tmp_path), name) as process:
        deadline = time.monotonic() + 3 * SECONDS
        while not (tmp_path / f"{tool}.pid").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        wait_for_end(int((tmp_path / f"{tool}.pid").read_text()))


# What is over in a moment, or has a time after which it is ended.
BRIEF = {
    "first_steps.py": "[java, '-version']",
    "live_load.py": "['ip', *arguments]",
    "startup.py": "command",
}


def test_whatever_is_started_is_bound_to_who_starts_it() -> None:
    top = Path(__file__).parents[1]
    unbound: dict[str, str] = {}
    for path in [*(top / "src").rglob("*.py"), *(top / "benchmarks").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in (
                "subprocess.run",
                "subprocess.Popen",
            ):
                command = ast.unparse(call.args[0])
                if not command.startswith("bound("):
                    unbound[path.name] = command
    assert unbound == BRIEF


@pytest.mark.spark
@pytest.mark.slow
def test_sparks_jvm_and_its_workers_end_with_the_driver() -> None:
    program = """
        import os
        from kaicep.hosts.spark.session import own_session

        def work(rows):
            import time
            yield os.getpid()
            time.sleep(3600)

        session = own_session()
        print(session.sparkContext._gateway.proc.pid, flush=True)
        pids = session.sparkContext.parallelize([0], 1).mapPartitions(lambda rows: [os.getpid()]).collect()
        print(pids[0], flush=True)
        session.sparkContext.parallelize([0], 1).mapPartitions(work).count()
    """
    with owner(program) as process:
        jvm, worker = started_by(process), started_by(process)
        process.kill()
        wait_for_end(jvm)
        wait_for_end(worker)


def test_it_outlives_the_thread_that_started_it() -> None:
    program = f"""
        import subprocess, sys, threading
        from kaicep.processes import bound
        def start():
            global process
            process = subprocess.Popen(bound({SLEEPER}))
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        input()
        print("it runs" if process.poll() is None else "it is gone", flush=True)
        input()
    """
    with owner(program) as process:
        started = started_by(process)
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "it runs\n"
        process.kill()
        wait_for_end(started)


def test_an_owner_that_is_gone_already() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = subprocess.run(bound(SLEEPER, gone.pid), timeout=SECONDS, capture_output=True)
    assert process.returncode == -signal.SIGKILL


def test_to_whoever_starts_it_it_is_the_command() -> None:
    for to in (None, os.getpid()):
        process = subprocess.Popen(bound(SLEEPER, to), stdout=subprocess.PIPE, text=True)
        assert started_by(process) == process.pid
        process.terminate()
        assert process.wait(SECONDS) == -signal.SIGTERM
        process.communicate()
        done = subprocess.run(bound(["sh", "-c", "cat; exit 3"], to), input=b"in", capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (3, b"in", b"")


def test_a_pipe_that_breaks_ends_the_command() -> None:
    """As in a shell: Python ignores the signal, but what is started behind the launcher does not."""
    with subprocess.Popen(bound(["yes"]), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(SECONDS) == -signal.SIGPIPE


def test_a_command_that_does_not_exist() -> None:
    done = subprocess.run(bound(["no-such-command"]), capture_output=True, text=True)
    assert done.returncode == 127
    assert done.stderr == "no-such-command cannot be started: No such file or directory\n"


def test_without_help_of_the_kernel_it_is_watched_all_the_same() -> None:
    """As on systems other than Linux."""
    program = f"""
        import os, subprocess, sys
        from kaicep import processes
        del os.pidfd_open
        child = os.fork()
        if not child:
            processes._launch("watcher", os.getppid(), {SLEEPER})
        os.wait()
    """
    with owner(program) as process:
        started = started_by(process)
        process.kill()
        process.wait()
        wait_for_end(started)
