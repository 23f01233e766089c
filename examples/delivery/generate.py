"""A city, its traffic, and agents who deliver goods in it, made from a seed.

    python examples/delivery/generate.py FOLDER [--seed 1] [--agents 10] [--locations 20]

`city.ttl` has the crossings of a grid, eight by eight, and roads between neighbours, also diagonal ones, each
in both directions; one road in ten is a footpath, on which nobody drives. `city.jsonl` has what happens:
visits, each with the time from arrival to departure and the location that comes next, and every minute the
roads that are blocked. In the ten minutes of a visit that is more than half of them. The same seed gives
the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

BASE = "http://example.org/city#"
SIZE = 8
START = 1_293_872_400  # 2011-01-01T09:00:00Z
MINUTE, VISIT = 60, 600
BLOCKED = 0.1  # of the roads, every minute
KINDS = ("Street",) * 6 + ("Avenue",) * 3 + ("Footpath",)

Crossing = tuple[int, int]


def crossings() -> list[Crossing]:
    return [(column, row) for column in range(SIZE) for row in range(SIZE)]


def named(crossing: Crossing) -> str:
    return f"c{crossing[0]}{crossing[1]}"


def roads() -> dict[str, tuple[Crossing, Crossing]]:
    """The roads by name, with the crossings that they lead from and to."""
    found = {}
    for column, row in crossings():
        for right, down in product((-1, 0, 1), repeat=2):
            other = (column + right, row + down)
            if other != (column, row) and other in crossings():
                found[f"road{len(found)}"] = ((column, row), other)
    return found


def city(chance: random.Random) -> Iterator[str]:
    """What is known of the city, in Turtle."""
    yield f"@prefix : <{BASE}> ."
    yield "@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
    yield ":Street rdfs:subClassOf :Driveable ."
    yield ":Avenue rdfs:subClassOf :Street .\n"
    for name, (one, other) in roads().items():
        yield f":{name} a :{chance.choice(KINDS)} ; :from :{named(one)} ; :to :{named(other)} ."


def triple(subject: str, predicate: str, thing: str) -> str:
    return f"<{BASE}{subject}> <{BASE}{predicate}> <{BASE}{thing}> ."


def visits(agent: str, locations: int, chance: random.Random) -> Iterator[dict[str, object]]:
    """The visits of an agent, one right after the other: the way between two takes no time here."""
    here = chance.choice(crossings())
    arrival = START + chance.randrange(VISIT)
    for _ in range(locations):
        there = chance.choice([each for each in crossings() if each != here])
        said = [triple(agent, "visits", named(here)), triple(agent, "next", named(there))]
        yield {"triples": said, "start": arrival, "end": arrival + VISIT}
        here, arrival = there, arrival + VISIT + 1


def traffic(minutes: int, chance: random.Random) -> Iterator[dict[str, object]]:
    """The roads that are blocked, every minute."""
    names = list(roads())
    for minute in range(minutes):
        blocked = [triple(each, "is", "Blocked") for each in names if chance.random() < BLOCKED]
        if blocked:
            yield {"triples": blocked, "start": START + minute * MINUTE}


def write(folder: Path, seed: int = 1, agents: int = 10, locations: int = 20) -> None:
    """Writes both files into a folder. The city and the traffic are the same for any number of agents."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "city.ttl").write_text("\n".join(city(random.Random(f"{seed}/city"))) + "\n", encoding="utf-8")
    minutes = (locations + 2) * VISIT // MINUTE
    records = list(traffic(minutes, random.Random(f"{seed}/traffic")))
    for number in range(agents):
        records += visits(f"agent{number}", locations, random.Random(f"{seed}/agent{number}"))
    records.sort(key=lambda each: each.get("end", each["start"]))  # type: ignore[arg-type, return-value]
    with (folder / "city.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in records)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A city, its traffic, and agents.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--agents", type=int, default=10)
    arguments.add_argument("--locations", type=int, default=20)
    chosen = arguments.parse_args()
    write(chosen.folder, chosen.seed, chosen.agents, chosen.locations)
