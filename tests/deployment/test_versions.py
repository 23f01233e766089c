"""What is processed again after a crash is judged by the knowledge that judged it the first time."""

# ruff: noqa: F401 (fixtures)

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.deployment.lives import Lives
from tests.deployment.processes import SECONDS, matches, write
from tests.deployment.test_deployment import (
    SINCE,
    _impatient,
    append,
    deployed,
    event,
    look_again,
    settle,
    told,
    toml,
)

from kaicep.archive.archive import Cut
from kaicep.deployment.running import Deployment

RUNS = int(os.environ.get("KAICEP_VERSIONS", "1"))
"""So many random runs, each of which is lost several times."""
KILLS = int(os.environ.get("KAICEP_KILLS", "2"))
"""At least so many kills of a process."""

ANNOTATION = {
    "stream": "s",
    "prefixes": {"v": "urn:v:"},
    "entities": {"k": {"property": "v:of", "iri": "v:{value}"}},
}
HOT = "PATH {?a v:of ?o . ?o a v:Hot}"
QUERIES = {
    "hot": f"SELECT ?a.x FROM (?a, s) {SINCE} {HOT}",
    "hot-pair": f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} SEQ (?a, ?b) WINDOW (?a, ?b, 5s) {HOT}",
    "unbounded": f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} FILTER (?a.x > 9) SEQ (?a, ?b) "
    f"MATCH next {HOT}",
    "mean": f"SELECT AVG(?a.x) AS mean FROM (?a, s) {SINCE} WINDOW (?a, sliding, 4s) {HOT}",
    "alone": f"SELECT ?a.x FROM (?a, s), (?b, s) {SINCE} JOIN (?a.k = ?b.k) SEQ (?a, !?b) "
    f"WINDOW (?a, ?b, 3s) {HOT}",
    "of-hot": f"SELECT ?f.x, ?g.x FROM (?f, hot), (?g, hot) {SINCE} SEQ (?f, ?g) WINDOW (?f, ?g, 3s)",
    "rooms": f"SELECT ?a.x, ?r FROM (?a, s) {SINCE} PATH {{?a v:of ?o . ?o v:in ?r}}",
    "near": f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} SEQ (?a, ?b) WINDOW (?a, ?b, 4s) "
    "PATH {?a v:of ?o . ?b v:of ?p . ?o v:in ?r . ?p v:in ?r}",
}


def prepared(folder: Path, stream: str = "", **files: str) -> Path:
    (folder / "queries").mkdir(parents=True, exist_ok=True)
    write(
        folder,
        {
            "kaicep.toml": toml(
                stream=f'annotation = "s.json"\n{stream}',
                sinks='[sinks.few]\nkind = "files"\npath = "few.jsonl"\nqueries = ["hot-pair", "of-hot"]\n'
                '[knowledge]\nfiles = ["k/*.ttl"]\n',
            ),
            "s.json": json.dumps(ANNOTATION),
            "s.jsonl": "",
            **files,
        },
    )
    return folder


def hot(*names: str) -> str:
    return "@prefix v: <urn:v:> . v:n v:in v:nowhere . " + " ".join(f"v:{each} a v:Hot ." for each in names)


def test_an_event_is_judged_again_by_the_knowledge_that_judged_it_first(tmp_path: Path) -> None:
    folder = prepared(tmp_path, **{"k/a.ttl": hot("p"), "queries/hot-pair.chi": QUERIES["hot-pair"]})
    with deployed(folder) as made:
        settle(made)
        append(folder, event(0, 1, "p"), event(1, 2, "q"))
        settle(made)
        write(folder, {"k/a.ttl": hot("q")})
        look_again(made)
        append(folder, event(2, 3, "p"))
        settle(made)
    with deployed(folder) as made:
        settle(made)
        append(folder, event(3, 4, "q"))
        settle(made)
    # The 1 was hot when it came, and the 2 was not: so it is after the restart too.
    assert told(folder) == [{"a.x": 1, "b.x": 2}, {"a.x": 1, "b.x": 3}, {"a.x": 1, "b.x": 4}]


def test_what_changed_while_nothing_ran_counts_from_where_it_goes_on(tmp_path: Path) -> None:
    folder = prepared(tmp_path, **{"k/a.ttl": hot("p"), "queries/hot-pair.chi": QUERIES["hot-pair"]})
    with deployed(folder) as made:
        settle(made)
        append(folder, event(0, 1, "p"), event(1, 2, "q"))
        settle(made)
    write(folder, {"k/a.ttl": hot("q")})
    with deployed(folder) as made:
        look_again(made)
        append(folder, event(2, 3, "p"), event(3, 4, "q"), event(4, 5, "p"))
        settle(made)
    found = {(each["a.x"], each["b.x"]) for each in told(folder)}
    assert found == {(1, 2), (1, 3), (1, 4), (1, 5), (4, 5)}
    assert [each.get("knowledge") for each in matches(folder / "out.jsonl")] == [None, 1, 1, 1, 1]


def up_to_date(made: Deployment) -> None:
    """Ticks until posted queries have found what there is to find, too."""
    settle(made)
    at = {name: each.positions for name, each in made.feeds.items()}
    until = time.monotonic() + 10 * SECONDS
    for guest in made.catalogue.guests.running.values():
        while (entry := guest.entry()) is None or Cut.parse(json.dumps(entry["mark"]["cut"])) != Cut(at):
            assert not guest.over, guest.problem
            assert time.monotonic() < until
            time.sleep(0.02)
            settle(made)


@pytest.mark.slow
def test_a_posted_query_is_judged_again_by_the_knowledge_that_judged_it_first(tmp_path: Path) -> None:
    folder = prepared(tmp_path, **{"k/a.ttl": hot("p"), "queries/rooms.chi": QUERIES["rooms"]})
    (file := folder / "kaicep.toml").write_text(
        file.read_text().replace("[sinks.few]", "guests = true\n[sinks.few]")
    )
    with deployed(folder) as made:
        made.register("posted", "chi-cep", QUERIES["hot-pair"])
        append(folder, event(0, 1, "p"), event(1, 2, "q"))
        up_to_date(made)
        write(folder, {"k/a.ttl": hot("q")})
        look_again(made)
        append(folder, event(2, 3, "p"))
        up_to_date(made)
    write(folder, {"k/a.ttl": hot("p", "q")})
    with deployed(folder) as made:
        up_to_date(made)
        look_again(made)
        append(folder, event(3, 4, "q"))
        up_to_date(made)
        for number in range(5):
            write(folder, {"k/a.ttl": hot(f"p{number}")})
            look_again(made)
            append(folder, event(20 * number + 20, number, "p"))
            up_to_date(made)
        kept = [path for path in (folder / "state" / "versions").iterdir() if path.suffix != ".json"]
        assert len(kept) <= 4
    # The 1 was hot when it came; the 2 was not, and neither was the 3.
    found = told(folder, query="posted")
    assert found == [{"a.x": 1, "b.x": 2}, {"a.x": 1, "b.x": 3}, {"a.x": 1, "b.x": 4}]


def test_versions_that_nobody_goes_back_to_are_let_go_of(tmp_path: Path) -> None:
    folder = prepared(tmp_path, **{"k/a.ttl": hot(), "queries/hot-pair.chi": QUERIES["hot-pair"]})
    with deployed(folder) as made:
        for number in range(6):
            append(folder, event(20 * number, number, "p"))
            settle(made)
            write(folder, {"k/a.ttl": hot(f"p{number}")})
            look_again(made)
        assert made._versions.last == 6
        kept = [path for path in (folder / "state" / "versions").iterdir() if path.suffix != ".json"]
        assert len(kept) <= 3


def _story(chance: random.Random) -> Iterator[tuple[str, object]]:
    """What happens: events come, files of the knowledge change, queries come."""
    left = list(QUERIES.items())
    chance.shuffle(left)
    left.sort(key=lambda each: each[0] == "of-hot")  # which reads another
    for name, text in [left.pop(0) for _ in range(4)]:
        yield "query", (name, text)
    second = 0.0
    for _ in range(14):
        lines = []
        for _ in range(chance.randrange(1, 6)):
            second += chance.random()
            early = chance.choice((0, 0, 0.5, 1.5, 4))
            lines.append(event(second - early, chance.randrange(12), chance.choice("pqrs")))
        yield "events", lines
        if chance.random() < 0.6:
            names = [each for each in "pqrs" if chance.random() < 0.5]
            yield "file", (f"k/{chance.choice('ab')}.ttl", hot(*names))
        if chance.random() < 0.5:
            rooms = " ".join(f"v:{each} v:in v:r{chance.randrange(2)} ." for each in "pqrs")
            yield "file", ("k/rooms.ttl", f"@prefix v: <urn:v:> . {rooms}")
        if chance.random() < 0.15:
            yield "gone", f"k/{chance.choice('ab')}.ttl"
        if left and chance.random() < 0.4:
            yield "query", left.pop(0)


def _lived(folder: Path, seed: int, kills: float) -> None:
    """A deployment to which the story of a seed happens; it is lost now and then, if it is to be."""
    chance = random.Random(-seed)
    late = f'lateness = "{seed % 3}s"'
    prepared(folder, late, **{"k/a.ttl": hot("p"), "k/b.ttl": hot("q")})
    with ExitStack() as stack:
        made = stack.enter_context(deployed(folder))

        def lost() -> Deployment:
            if chance.random() >= kills:
                return made
            stack.pop_all().close()
            return stack.enter_context(deployed(folder, lose=chance.random() < 0.8))

        for kind, what in _story(random.Random(seed)):
            if kind == "events":
                for line in what:  # type: ignore[attr-defined]
                    append(folder, line)
                    if chance.random() < kills:
                        made.tick()
                    made = lost()
            elif kind == "query":
                name, text = what  # type: ignore[misc]
                write(folder, {f"queries/{name}.chi": text})
            elif kind == "file":
                name, text = what  # type: ignore[misc]
                write(folder, {name: text})
            else:
                (folder / str(what)).unlink(missing_ok=True)
            settle(made)
            look_again(made)
            made = lost()
        write(folder, {"kaicep.toml": (folder / "kaicep.toml").read_text().replace("true", "false")})
        stack.pop_all().close()
    with deployed(folder) as made:
        settle(made)


@pytest.mark.slow
@pytest.mark.random
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_that_was_lost_tells_what_one_tells_that_was_not(tmp_path: Path, seed: int) -> None:
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    for folder, kills in ((whole, 0.0), (lost, 0.25)):
        _lived(folder, seed, kills)
    for name in ("out.jsonl", "few.jsonl"):
        assert (lost / name).read_bytes() == (whole / name).read_bytes()
    assert len(matches(whole / "out.jsonl")) > 20


def _killed(folder: Path, seed: int, chance: random.Random) -> int:
    """The same story happens to processes that are killed in the middle of what they do; how often."""
    prepared(folder, f'lateness = "{seed % 3}s"', **{"k/a.ttl": hot("p"), "k/b.ttl": hot("q")})
    kills = 0
    with Lives(folder) as lives:
        for kind, what in _story(random.Random(seed)):
            if kind == "events":
                append(folder, *what)  # type: ignore[misc]
            elif kind == "gone":
                (folder / str(what)).unlink(missing_ok=True)
            else:
                name, text = what  # type: ignore[misc]
                write(folder, {f"queries/{name}.chi" if kind == "query" else name: text})
            for word in ("settle", "look"):
                while chance.random() < (0.5 if KILLS > 20 else 0.1):
                    lives.tell(word)
                    time.sleep(chance.expovariate(10))
                    lives.kill()
                    kills += 1
                lives.tell(word)
                lives.wait()
    return kills


@pytest.mark.slow
@pytest.mark.random
def test_killed_at_any_moment_its_sinks_are_those_of_a_run_that_was_not(tmp_path: Path) -> None:
    """`KAICEP_KILLS=200 pytest tests/deployment/test_versions.py -k killed` kills two hundred times."""
    kills, chance = 0, random.Random(KILLS)
    for seed in itertools.count():
        if kills >= KILLS:
            break
        whole, killed = tmp_path / f"whole-{seed}", tmp_path / f"killed-{seed}"
        _lived(whole, seed, 0.0)
        kills += _killed(killed, seed, chance)
        write(killed, {"kaicep.toml": (killed / "kaicep.toml").read_text().replace("true", "false")})
        with deployed(killed) as made:
            settle(made)
        for name in ("out.jsonl", "few.jsonl"):
            assert (killed / name).read_bytes() == (whole / name).read_bytes(), (seed, name)
    print(f"{kills} kills")
