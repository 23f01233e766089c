"""The readings of a buoy that watches for tsunamis, made from a seed.

    python examples/tsunami/generate.py FOLDER [--seed 1] [--readings 44310]

`reading.jsonl` has the height of the water above the sea floor, in metres, every 15 seconds: tides, noise,
and on 23 March 2010 from 06:00 one tsunami. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

BUOY = "46073"
START = datetime(2010, 3, 18, tzinfo=UTC)
TSUNAMI = datetime(2010, 3, 23, 6, tzinfo=UTC)
READINGS = 44_310
STEP = timedelta(seconds=15)
DEPTH = 3_049.0
# Tides: amplitude in metres, period and phase in hours.
TIDES = ((0.31, 12.4206, 2.0), (0.12, 12.0, 7.5), (0.28, 23.9345, 11.0), (0.19, 25.8193, 4.0))
NOISE = 0.002
# The tsunami: a first crest of 60 mm, a wave every 24 minutes, each smaller than the one before.
HEIGHT, PERIOD, FADING = 0.09, timedelta(minutes=24), timedelta(minutes=30)


def height(moment: datetime, chance: random.Random) -> float:
    """What the buoy measures at a moment."""
    hours = (moment - START) / timedelta(hours=1)
    tide = sum(size * math.sin(2 * math.pi * (hours + phase) / period) for size, period, phase in TIDES)
    since = moment - TSUNAMI
    wave = 0.0
    if since > timedelta():
        wave = HEIGHT * math.sin(2 * math.pi * (since / PERIOD)) * math.exp(-(since / FADING))
    return DEPTH + tide + wave + chance.gauss(0, NOISE)


def readings(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Reading after reading, to the millimetre."""
    chance = random.Random(seed)
    for number in range(count):
        moment = START + number * STEP
        yield {"ts": f"{moment:%Y-%m-%dT%H:%M:%SZ}", "buoy": BUOY, "height": round(height(moment, chance), 3)}


def write(folder: Path, seed: int = 1, count: int = READINGS) -> None:
    """Writes the readings into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "reading.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in readings(count, seed))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="The readings of a buoy.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--readings", type=int, default=READINGS)
    chosen = arguments.parse_args()
    write(chosen.folder, chosen.seed, chosen.readings)
