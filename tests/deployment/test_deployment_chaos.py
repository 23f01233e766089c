"""`kaicep run` killed at any moment, over and over: every match is there once, in order."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deployment.processes import kaicep, matches, spawn, wait_for, write

from kaicep.archive.archive import Archive

pytestmark = pytest.mark.random
KILLS = int(os.environ.get("KAICEP_KILLS", "3"))
PAUSE = 0.02 if KILLS <= 20 else 0.2
"""Between two appends: what comes while a process is killed hundreds of times must be checked in the end."""

LONG = 600.0
ANNOTATION = """{"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"k": "v:k", "x": "v:x"}}"""
FALL = """PREFIX v: <urn:v:> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
SELECT ?k ?n ?m WHERE
{ ?a v:k ?k . ?a v:x ?n . FILTER (?n > 900) } SEQ { ?b v:k ?k . ?b v:x ?m . FILTER (?m < 100) }
FILTER (getDURATION() < "PT5S"^^xsd:duration)"""
QUERIES = {
    "rise": "SELECT ?a.k, ?b.x - ?a.x AS rise FROM (?a, s), (?b, s) WITHIN [2012-01-01, ) WHERE "
    "JOIN (?b.k = ?a.k) JOIN (?b.x - ?a.x > 800) SEQ (?a, ?b) WINDOW (?a, ?b, 5s)",
    "counted": "SELECT SUM(?e.x) AS total FROM (?e, s) WITHIN [2012-01-01, ) WINDOW (?e, batch, 50)",
    "silent": "SELECT ?a.k FROM (?a, s), (?b, s) WITHIN [2012-01-01, ) WHERE FILTER (?a.x > 900) "
    "JOIN (?b.k = ?a.k) SEQ (?a, !?b) WINDOW (?a, ?b, 3s)",
    "risen": "SELECT ?r.k, COUNT(?r) AS n FROM (?r, rise) WITHIN [2012-01-01, ) "
    "WINDOW (?r, sliding, 5s) GROUP BY ?r.k",
}


def line(seq: int) -> str:
    chance = random.Random(seq)
    if seq % 97 == 13:
        return "no event\n"
    ts = 1336381200 + (seq + chance.choice((0, 0, 0, -3, -30))) * 0.05
    return json.dumps({"ts": ts, "k": f"k{chance.randrange(12)}", "x": chance.randrange(1000)}) + "\n"


def toml(source: str) -> str:
    return f"""
tick = "20ms"
[streams.s]
annotation = "s.json"
lateness = "500ms"
source = {source}
[sinks.out]
kind = "files"
path = "out.jsonl"
[sinks.table]
kind = "delta"
path = "table"
[sinks.few]
kind = "files"
path = "few.jsonl"
queries = ["counted"]
"""


@contextmanager
def load(path: Path) -> Iterator[None]:
    """Lines that are appended to a file, some at a time, while deployments come and go."""
    over = threading.Event()

    def append() -> None:
        seq = 0
        with path.open("a") as file:
            while not over.wait(PAUSE):
                file.writelines(map(line, range(seq, seq + 5)))
                file.flush()
                seq += 5

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def kill_at_random(folder: Path, chance: random.Random) -> None:
    """Starts the deployment and kills it: now and then on the way up, else some time after it went on."""
    commit = folder / ".out.jsonl.commit"
    before = commit.read_bytes() if commit.exists() else b""
    process = spawn(folder, "run")
    try:
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0.1, 1.5))
        else:
            wait_for(lambda: commit.exists() and commit.read_bytes() != before, folder, process)
            time.sleep(chance.uniform(0, 0.3))
    finally:
        process.kill()
        process.wait()


def table_ids(folder: Path) -> list[str]:
    import deltalake

    ids: list[str] = (
        deltalake.DeltaTable(folder / "table").to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    )
    return ids


@pytest.mark.slow
def test_every_match_is_told_once_and_in_order_however_often_it_is_killed(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    texts = {**{f"{name}.chi": text for name, text in QUERIES.items()}, "fall.epsparql": FALL}
    write(tmp_path, {f"queries/{name}": text for name, text in texts.items()})
    write(
        tmp_path,
        {
            "s.json": ANNOTATION,
            "s.jsonl": "",
            "kaicep.toml": toml('{kind = "files", path = "s.jsonl", follow = true}'),
        },
    )
    with load(tmp_path / "s.jsonl"):
        for _ in range(KILLS):
            kill_at_random(tmp_path, chance)
    # The last one reads to the end, and ends.
    write(tmp_path, {"kaicep.toml": toml('{kind = "files", path = "s.jsonl"}')})
    done = kaicep(tmp_path, "run", seconds=LONG)
    assert done.returncode == 0, done.stderr
    queries = [f"queries/{name}" for name in texts]
    words = ("--stream", "s=s.jsonl", "--annotation", "s.json", "--lateness", "500ms")
    wanted = kaicep(tmp_path, "match", *queries, *words, seconds=LONG)
    ids = sorted(json.loads(each)["id"] for each in wanted.stdout.splitlines())
    assert len(ids) > 100
    told = matches(tmp_path / "out.jsonl")
    assert sorted(each["id"] for each in told) == ids
    for name in (Path(each).stem for each in texts):
        assert name in {each["query"] for each in told}
        ends = [each["end"] for each in told if each["query"] == name]
        assert ends == sorted(ends), name
    assert sorted(table_ids(tmp_path)) == ids
    few = [each["id"] for each in matches(tmp_path / "few.jsonl")]
    assert few == [each["id"] for each in told if each["query"] == "counted"]
    archive = Archive(tmp_path / "state" / "archive")
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    bad = [seq for seq, each in enumerate(lines) if each == "no event"]
    held = sorted(each.seq for each in archive.snapshot().events("s"))
    assert held == [seq for seq in range(len(lines)) if seq not in set(bad)]
    assert sorted(each["seq"] for each in archive.dead_letters.read()) == bad
