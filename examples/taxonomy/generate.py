"""A taxonomy of plants and a stream of sightings, made from a seed.

    python examples/taxonomy/generate.py FOLDER [--seed 1] [--classes 40080] [--sightings 2000]

`plants.ttl` has 40,080 classes below :Tracheobionta, the vascular plants, on eight levels from
superdivisions to species, and some animals beside them. `sightings.jsonl` says of one thing after the
other which species it is: every other one is a plant. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

BASE = "http://example.org/plants#"
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
CLASSES = 40_080
# How many classes there are on each level of the whole; species are the rest.
RANKS = {
    "Superdivision": 3,
    "Division": 12,
    "Class": 30,
    "Subclass": 95,
    "Order": 340,
    "Family": 1_200,
    "Genus": 8_400,
}
ANIMALS = 500
START = 1_293_840_000  # 2011-01-01


def taxonomy(classes: int, chance: random.Random) -> Iterator[tuple[str, str, str]]:
    """Every class with the one right above it and its rank; those above come first."""
    above = ["Tracheobionta"]
    left = classes
    for rank, share in RANKS.items():
        count = max(1, share * classes // CLASSES)
        named = [f"{rank}{number}" for number in range(count)]
        yield from ((name, chance.choice(above), rank) for name in named)
        above, left = named, left - count
    yield from ((f"Species{number}", chance.choice(above), "Species") for number in range(left))


def sightings(species: list[str], count: int, chance: random.Random) -> Iterator[dict[str, object]]:
    """What was seen, one thing a second: a plant, an animal, a plant, ..."""
    for number in range(count):
        seen = chance.choice(species) if number % 2 == 0 else f"Animal{chance.randrange(ANIMALS)}"
        triple = f"<{BASE}seen{number}> <{TYPE}> <{BASE}{seen}> ."
        yield {"triple": triple, "start": START + number}


def write(folder: Path, seed: int = 1, classes: int = CLASSES, count: int = 2_000) -> None:
    """Writes both files into a folder."""
    chance = random.Random(seed)
    lines = [
        f"@prefix : <{BASE}> .",
        "@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .",
        "",
    ]
    species = []
    for name, parent, rank in taxonomy(classes, chance):
        lines.append(f":{name} rdfs:subClassOf :{parent} ; :rank :{rank} .")
        if rank == "Species":
            species.append(name)
    lines += [f":Animal{number} rdfs:subClassOf :Animal ; :rank :Species ." for number in range(ANIMALS)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plants.ttl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (folder / "sightings.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in sightings(species, count, chance))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A taxonomy of plants, and sightings.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--classes", type=int, default=CLASSES)
    arguments.add_argument("--sightings", type=int, default=2_000)
    chosen = arguments.parse_args()
    write(chosen.folder, chosen.seed, chosen.classes, chosen.sightings)
