"""A morning of airflow reports of ../campus, 08:30 to 12:30, appended to a file as time passes.

    python morning.py events/airflowReport.jsonl --speed 600     # ten minutes of it in a second

The same reports in every run. Some lecture halls are cooled too much from 09:10 on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGIN = datetime(2012, 5, 7, 8, 30, tzinfo=UTC)
END = datetime(2012, 5, 7, 12, 30, tzinfo=UTC)
HALLS = ("RTH101VOL", "RTH102VOL", "EEB101VOL", "EEB102VOL", "OHE101VOL", "OHE102VOL")
OFFICES = ("RTH105VOL", "EEB105VOL", "OHE105VOL", "RTH110VOL")
COOLED = {"RTH101VOL", "EEB102VOL"}  # and as cold as the office of OHE105, which is no lecture hall


def reports() -> Iterator[dict[str, Any]]:
    """All reports in the order of arrival, one of every sensor a minute."""
    chance = random.Random(7)
    moment = BEGIN
    while moment < END:
        for number, sensor in enumerate((*HALLS, *OFFICES)):
            overcooled = sensor in COOLED and moment >= BEGIN + timedelta(minutes=40)
            level = 520 if overcooled or sensor == "OHE105VOL" else 380
            yield {
                "sensorID": sensor,
                "timestamp": (moment + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "flowrate": round(chance.gauss(level, 30), 1),
            }
        moment += timedelta(minutes=1)


def replay(path: Path, speed: float) -> None:
    """Appends the reports to a file when they are due."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with path.open("a", encoding="utf-8") as file:
        for each in reports():
            due = (datetime.fromisoformat(each["timestamp"].replace("Z", "+00:00")) - BEGIN).total_seconds()
            time.sleep(max(0.0, begun + due / speed - time.monotonic()))
            file.write(json.dumps(each) + "\n")
            file.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Append a morning of airflow reports to a file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--speed", type=float, default=600.0, help="seconds of the morning in a second")
    given = parser.parse_args()
    replay(given.file, given.speed)
