"""A morning in a cold store, made from a seed: the temperatures of four freezers, and their doors.

    python generate.py [--seed 1] [--folder data]

A freezer stands at -20 degrees; an open door warms it by about one degree a minute. Doors are opened for
a minute or two, except for what is planted below. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 12, 6, 0, tzinfo=UTC)
MINUTES = 180
# Thermometers of two makers: each has a name of its own for the temperature.
FREEZERS = {"F1": "celsius", "F2": "celsius", "F3": "temp_c", "F4": "temp_c"}

# Planted: the door of F3 stays open for twelve minutes, and F4 stops cooling for a quarter of an hour.
LEFT_OPEN = {"F3": range(70, 82)}
BROKEN = {"F4": range(120, 135)}


def write(folder: Path, seed: int = 1) -> None:
    """Writes `temperature.jsonl` and `door.jsonl` into a folder."""
    chance = random.Random(seed)
    temperatures: list[tuple[datetime, dict[str, object]]] = []
    doors: list[tuple[datetime, dict[str, object]]] = []
    for freezer, name in FREEZERS.items():
        warm, was_open = -20.0, False
        for minute in range(MINUTES):
            is_open = minute in LEFT_OPEN.get(freezer, ()) or (not was_open and chance.random() < 0.03)
            if is_open != was_open:
                moment = START + timedelta(minutes=minute, seconds=chance.randrange(5, 25))
                doors.append((moment, {"freezer": freezer, "state": "open" if is_open else "closed"}))
            was_open = is_open
            rising = is_open or minute in BROKEN.get(freezer, ())
            warm += chance.uniform(0.8, 1.0) if rising else (-20.0 - warm) * 0.15
            moment = START + timedelta(minutes=minute, seconds=chance.randrange(30, 50))
            temperatures.append((moment, {"freezer": freezer, name: round(warm + chance.gauss(0, 0.1), 2)}))
    folder.mkdir(parents=True, exist_ok=True)
    for stream, records in (("temperature", temperatures), ("door", doors)):
        lines = [
            json.dumps({"ts": f"{moment:%Y-%m-%dT%H:%M:%SZ}", **record})
            for moment, record in sorted(records, key=lambda each: each[0])
        ]
        (folder / f"{stream}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A morning in a cold store.")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--folder", type=Path, default=Path(__file__).parent / "data")
    chosen = arguments.parse_args()
    write(chosen.folder, chosen.seed)
