"""`kaicep explain` on queries of the papers: golden files, renewed with KAICEP_RENEW=1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kaicep.api import explanations, open_run
from kaicep.plan.explain import explain_json, explain_text

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
CAMPUS = EXAMPLES / "campus"


def explained(name: str):
    if name != "stocks2":
        run = open_run(
            [CAMPUS / "queries" / f"{name}.chi"],
            [("airflowReport", CAMPUS / "data" / "airflowReport.jsonl")],
            sorted((CAMPUS / "data" / "knowledge").glob("*.ttl")),
            [CAMPUS / "data" / "annotations" / "airflowReport.json"],
        )
    else:
        run = open_run([EXAMPLES / "stocks" / "queries" / "query2.epsparql"])
    return explanations(run)


@pytest.mark.parametrize("name", ["query3", "query5", "query7", "stocks2"])
def test_golden(name):
    text = explain_text(explained(name))
    golden = HERE / f"{name}.txt"
    if os.environ.get("KAICEP_RENEW"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_json_says_what_the_tree_says():
    plan = explain_json(explained("query7"))["queries"][0]["logical"]
    assert plan["operator"] == "Project"
    pattern = plan["inputs"][0]
    assert pattern["window"] == ["(?e1, ?e2) 5min"]
    assert [each["operator"] for each in pattern["inputs"]] == ["Scan", "Scan"]
    json.dumps(plan)
