"""Every format of saved state that was ever released still loads, and goes on with the same answers.

`states/format-4.state` is what `saved()` gave in format 4. A new format gets a file of its own; old ones
stay.
What was saved before the first release is refused, in words.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hosts.letters import engine, event

from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine
from kaicep.plan.events import Event

STATES = sorted((Path(__file__).parent / "states").glob("format-*.state"))
TEXTS = (
    (
        "SELECT ?a.x, SUM(?b.x) AS total FROM (?a, s), (?b, s) SEQ (?a, ?b+) FILTER (?b.x > PREV(?b.x))"
        " JOIN (?a.k = ?b.k) WINDOW (?a, ?b, 9s)"
    ),
    (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, s) FILTER (?n.k = 'n') JOIN (?n.x < ?b.x)"
        " SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 9s) MATCH next PARTITION BY ?a.k"
    ),
    (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?n, s) FILTER (?n.k = 'n')"
        " SEQ (?a, ?b?, !?n) WINDOW (?a, ?b, ?n, 9s) AFTER MATCH SKIP TO NEXT"
    ),
    "SELECT STDDEV(?e.x) AS spread FROM (?e, s) WINDOW (?e, sliding, 9s) GROUP BY ?e.k",
    "SELECT COUNT(?e) AS n FROM (?e, s, q3) WINDOW (?e, batch, 5)",
)
EVENTS = [event(seq, seq * 1.5, "pqpn"[seq % 4], seq * 7 % 5) for seq in range(12)]


def before() -> tuple[Engine, list[Event]]:
    running = engine(*TEXTS, lateness=2_000_000)
    running.push(EVENTS[:7])
    return running, EVENTS[7:]


def saved() -> bytes:
    return before()[0].snapshot()


def rest(running: Engine, events: list[Event]) -> list[str]:
    return [each.to_json() for each in (*running.push(events), *running.finish())]


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.stem)
def test_a_released_format_loads_and_goes_on(path: Path) -> None:
    running, left = before()
    loaded = engine(*TEXTS, lateness=2_000_000)
    loaded.restore(path.read_bytes())
    wanted = rest(running, left)
    assert len(wanted) > 20
    assert rest(loaded, left) == wanted


def test_the_newest_format_is_among_them() -> None:
    assert STATES[-1].read_bytes() == saved()


def test_a_state_of_before_the_first_release_is_refused() -> None:
    with pytest.raises(Failure, match="not a saved state of an engine"):
        engine(*TEXTS).restore(b'kaicep engine 1\n{"lateness": 0}')
