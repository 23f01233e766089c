"""Whatever happens to a deployment, in any order: at the end the sink has what the reference says, once."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.deployment.processes import matches, write
from tests.deployment.test_deployment import HIGH, PAIR, SINCE, event, settle

from kaicep.archive.archive import Archive
from kaicep.deployment.config import load_config
from kaicep.deployment.guests import Allowance
from kaicep.deployment.running import Deployment
from kaicep.history.strategies import open_history
from kaicep.reference import evaluate

pytestmark = pytest.mark.random

EFFORT = max(1, int(os.environ.get("KAICEP_EXAMPLES", "200")) // 100)
TOML = """tick = "1ms"
[streams.s]
lateness = "2s"
types = {x = "int64"}
source = {kind = "files", path = "s.jsonl", follow = true}
[sinks.out]
kind = "files"
path = "out.jsonl"
guests = true
"""
TEXTS = {
    "high": HIGH,
    "pair": PAIR,
    "ever": f"SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE} JOIN (?a.k = ?b.k) FILTER (?a.x > ?b.x + 3) "
    "SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST",
}


class AnyHistory(RuleBasedStateMachine):
    """Events in order, late and from the future; queries that come, go and are posted; crashes; rotations."""

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="kaicep-any-"))
        write(self.folder, {"kaicep.toml": TOML, "s.jsonl": "", "queries/high.chi": HIGH})
        self.second = 0
        self.removed: set[str] = set()
        self.posted: set[str] = set()
        self.made = self._start()

    def _start(self) -> Deployment:
        made = Deployment(load_config(self.folder / "kaicep.toml"))
        made.catalogue.guests.allowed = Allowance(nice=0)
        made.open()
        return made

    def _go_on(self) -> None:
        self.made._watched = 0.0
        settle(self.made)

    @rule(count=st.integers(1, 12), late=st.sampled_from([0, 1, 2, 3, 8]))
    def events_come(self, count: int, late: int) -> None:
        with (self.folder / "s.jsonl").open("a") as file:
            for _ in range(count):
                self.second += self.chosen.randrange(3)
                behind = self.chosen.randrange(late + 1)
                file.write(event(self.second - behind, self.chosen.randrange(10), self.chosen.choice("pq")))
        self._go_on()

    @rule()
    def one_comes_from_the_future(self) -> None:
        with (self.folder / "s.jsonl").open("a") as file:
            file.write(event(self.second + 31_000_000_000, 9))
        self._go_on()

    @rule(name=st.sampled_from(["pair", "ever"]))
    def a_query_comes(self, name: str) -> None:
        if name not in self.posted | self.removed:
            write(self.folder, {f"queries/{name}.chi": TEXTS[name]})
            self._go_on()

    @rule(name=st.sampled_from(["pair", "ever"]))
    def a_query_is_posted(self, name: str) -> None:
        if not (self.folder / f"queries/{name}.chi").exists() and name not in self.removed:
            self.made.register(name, "chi-cep", TEXTS[name])
            self.posted.add(name)
            self._go_on()

    @rule(name=st.sampled_from(["pair", "ever"]))
    def a_query_goes(self, name: str) -> None:
        if (self.folder / f"queries/{name}.chi").exists():
            (self.folder / f"queries/{name}.chi").unlink()
            self.removed.add(name)
            self._go_on()

    @rule(at_once=st.booleans())
    def it_is_lost_and_starts_again(self, at_once: bool) -> None:
        if not at_once:
            self._go_on()
        for outlet in self.made.outlets.values():
            outlet._trouble = outlet._trouble or "lost"  # its thread makes nothing final any more
            outlet.close(20)
        self.made.close()
        self.made = self._start()

    @rule()
    def the_log_is_rotated(self) -> None:
        self._go_on()
        (self.folder / "s.jsonl").rename(self.folder / "s.jsonl.1")
        (self.folder / "s.jsonl").write_text("")
        self._go_on()

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        with (self.folder / "s.jsonl").open("a") as file:
            file.write(event(self.second + 1_000, 0, "z"))  # with it, all before it is certain
        self._go_on()
        expected = {name: self._expected(name) for name in TEXTS}
        until = time.monotonic() + 120
        while any(self._found()[name] != expected[name] for name in self.posted):
            assert time.monotonic() < until, (self.made.status()["queries"], self._found(), expected)
            time.sleep(0.02)
            settle(self.made)
        self.made.drain()
        self.made.close()
        found = self._found()
        for name in TEXTS:
            if name in self.removed:  # what was found until then, each once
                assert not found[name] - expected[name], name
            else:
                assert found[name] == expected[name], (name, self.folder)
        shutil.rmtree(self.folder)

    def _found(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {name: Counter() for name in TEXTS}
        for each in matches(self.folder / "out.jsonl"):
            found[each["query"]][each["id"]] += 1
        return found

    def _expected(self, name: str) -> Counter[str]:
        """By the reference, over what was archived and not late."""
        present = (self.folder / f"queries/{name}.chi").exists() or name in self.posted | self.removed
        archive = Archive(self.folder / "state" / "archive")
        if not present or "s" not in archive.streams():
            return Counter()
        write(self.folder, {f"asked/{name}.chi": TEXTS[name]})
        history = open_history([self.folder / f"asked/{name}.chi"], archive)
        events = list(archive.snapshot().events("s", as_seen=True))
        return Counter(each.id for each in evaluate(history, [events]))


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=EFFORT,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
