"""How often a pattern looks for what it can forget: in proportion to the events, however many came before."""

from __future__ import annotations

import pytest

import kaicep as kai
from kaicep.kernel.pattern import Cell, PatternOperator


def test_partial_matches_that_are_used_up_at_once_are_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every ?a waits for one ?b, which comes just before its window ends, and the next ?a with it."""
    swept = 0
    sweep = PatternOperator._sweep

    def counted(self: PatternOperator, cell: Cell) -> None:
        nonlocal swept
        swept += 1
        sweep(self, cell)

    monkeypatch.setattr(PatternOperator, "_sweep", counted)
    text = "SELECT ?b.x - ?a.x AS rise FROM (?a, s), (?b, t) SEQ (?a, ?b) MATCH next WINDOW (?a, ?b, 15s)"
    query = kai.compile(text, streams={"s": {"x": "int64"}, "t": {"x": "int64"}})
    events = [{"ts": 15 * number, "x": number} for number in range(500)]
    settings = kai.Settings(kernel="interpreted")
    found = [
        match.select["rise"]
        for match in kai.run(query, {"s": events, "t": events}, lateness="0s", settings=settings)
    ]
    assert found == [1] * 499
    assert swept < 6 * len(events)
