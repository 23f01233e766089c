"""A query from outside is tried out before it is let in: in a process of its own, which can be ended.

What its PATHs ask of the knowledge is asked there, within a limit of time and memory. The process gets
the query's text on its input and answers with a line of JSON; nothing else passes between the two.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from pathlib import Path

from kaicep.errors import Diagnostic, Failure, KaicepError, Mistake, Unsupported
from kaicep.processes import bound
from kaicep.server.patterns import patterns_of, why_slow

__all__ = ["PATIENCE", "try_out"]

PATIENCE = 5.0
"""So many seconds the PATHs of a query from outside may take."""

_LOADING = 120.0
_MEMORY = 4 << 30


def try_out(deployment: Path, name: str, suffix: str, text: str) -> None:
    """Raises what is wrong with a query that somebody wants to register."""
    paths = os.pathsep.join(each for each in sys.path if each)
    command = [sys.executable, "-m", "kaicep.server.trial", str(deployment), f"{name}{suffix}"]
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        bound(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(text.encode())
            process.stdin.close()
            if _line(process, _LOADING) is not None:
                answer = _line(process, PATIENCE)
                if answer is None:
                    raise Mistake(
                        Diagnostic(
                            f"{name}: what its PATH asks of the knowledge takes longer than {PATIENCE:g} s",
                            hint="tie its triples together, so that fewer combinations have to be tried",
                        )
                    )
                _judge(answer)
                return
            raise Failure(f"{name} could not be tried out: try again")
        finally:
            process.kill()


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """A line that the process writes; None where it does not within some time, or ends."""
    assert process.stdout is not None
    found, until = b"", time.monotonic() + seconds
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        more = os.read(process.stdout.fileno(), 1) if ready else b""
        if not more:
            return None
        found += more
    return found


def _judge(answer: bytes) -> None:
    read = json.loads(answer)
    if read["wrong"]:
        raise Mistake([Diagnostic(each) for each in read["wrong"]])


def _refuse(deployment: Path, source: str, text: str) -> None:
    """In the process of its own: raises what is wrong with a query."""
    from kaicep.api import parse_query, prefixes_of
    from kaicep.endtoend.checking import catalog_of
    from kaicep.endtoend.config import load_config
    from kaicep.endtoend.registered import Registry, upstream
    from kaicep.errors import Source
    from kaicep.knowledge.store import Knowledge
    from kaicep.optimize import optimize
    from kaicep.plan.program import build_program

    config = load_config(deployment)
    knowledge = Knowledge.load(*config.knowledge, reasoning=config.reasoning)
    prefixes = prefixes_of(config.annotations)
    others = {
        name: each.parse(prefixes)
        for name, each in Registry(config.state / "registered.json").queries.items()
        if name != Path(source).stem
    }
    streams = catalog_of(config, knowledge)
    print("ready", flush=True)
    query = parse_query(Source(source, text), prefixes)
    for pattern in patterns_of(query):
        reason = why_slow(pattern) if pattern is not None else "it is not written down in the query"
        if reason is not None:
            raise Mistake(Diagnostic(f"a regular expression is not let in from outside: {reason}"))
    needed = upstream(query.name, {**others, query.name: query})
    queries = [query, *(others[each] for each in needed if each != query.name)]
    program, catalog = build_program(queries, streams, 0)
    for plan in program.chi_plans:
        optimized, _ = optimize(plan, catalog, knowledge)
        if any(each.relation is None for each in optimized.body.all_semantics):
            message = "a PATH that has to be asked for every event is not let in from outside"
            hint = "lead from the event to the knowledge by annotated properties alone"
            raise Mistake(Diagnostic(message, hint=hint))


def _main(deployment: str, source: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    text = sys.stdin.buffer.read().decode()
    wrong: list[str] = []
    try:
        _refuse(Path(deployment), source, text)
    except Mistake as mistake:
        wrong = [each.render().removeprefix("error: ") for each in mistake.diagnostics]
    except (Unsupported, KaicepError) as error:
        wrong = [str(error)]
    except (MemoryError, RecursionError):
        wrong = ["it asks for too much"]
    print(json.dumps({"wrong": wrong}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
