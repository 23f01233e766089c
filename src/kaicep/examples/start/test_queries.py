"""What the queries of this folder must find, each with a few events made for it: `python -m pytest`."""

from __future__ import annotations

import json
from pathlib import Path

from kaicep.testing import check

HERE = Path(__file__).parent
ANNOTATIONS = [json.loads(path.read_text("utf-8")) for path in sorted((HERE / "annotations").glob("*.json"))]
KNOWLEDGE = (HERE / "knowledge.ttl").read_text("utf-8")


def query(name: str) -> str:
    """The text of a query."""
    return (HERE / "queries" / f"{name}.chi").read_text("utf-8")


def test_a_door_that_stays_open_is_told_after_five_minutes() -> None:
    """F1 is closed after four minutes, F2 after six; F1 closing does not close F2."""
    check(
        query("left-open"),
        events={
            "door": """
                event  | ts                   | freezer | state
                short  | 2026-01-12T06:00:00Z | F1      | open
                long   | 2026-01-12T06:01:00Z | F2      | open
                shut   | 2026-01-12T06:04:00Z | F1      | closed
                late   | 2026-01-12T06:07:00Z | F2      | closed
            """
        },
        expect="""
            ?opened | freezer | end
            long    | F2      | 2026-01-12T06:06:00Z
        """,
        annotations=ANNOTATIONS,
    )


def test_only_what_holds_a_vaccine_is_a_vaccine_at_risk() -> None:
    """F1 holds peas. F2 and F3 hold vaccines, of which the readings say nothing; F3 is cold enough."""
    check(
        query("vaccine-at-risk"),
        events={
            "temperature": """
                event | ts                   | freezer | celsius | temp_c
                peas  | 2026-01-12T06:00:00Z | F1      | -10     |
                warm  | 2026-01-12T06:00:10Z | F2      | -14.5   |
                cold  | 2026-01-12T06:00:20Z | F3      |         | -15
            """
        },
        expect="""
            ?r   | freezer | temperature | goods
            warm | F2      | -14.5       | http://example.org/cold-store#lot23
        """,
        annotations=ANNOTATIONS,
        knowledge=KNOWLEDGE,
    )
