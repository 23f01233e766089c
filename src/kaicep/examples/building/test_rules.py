"""What the rules find in the export: `python -m pytest`."""

from __future__ import annotations

import json
from pathlib import Path

import kaicep as kai

HERE = Path(__file__).parent


def test_the_rules_find_what_is_expected() -> None:
    """Each match, with its time and its values."""
    knowledge = kai.Knowledge.load(HERE / "knowledge.ttl")
    annotations = [json.loads((HERE / "annotations" / "trend.json").read_text("utf-8"))]
    rules = kai.compile(
        sorted((HERE / "queries").glob("*.chi")), knowledge=knowledge, annotations=annotations
    )
    found = [match.to_json() for match in kai.run(rules, HERE / "data" / "trend.csv")]
    assert sorted(found) == sorted((HERE / "expected.jsonl").read_text("utf-8").splitlines())
