"""The taxonomy: classes above a species, found by following parents by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.examples.deployed import as_its_readme_says, copied, deployed, script

from kaicep.api import open_run

TAXONOMY = Path(__file__).parents[2] / "examples" / "taxonomy"
MINUTE = 60


class World(NamedTuple):
    """A taxonomy and sightings, read by our own means."""

    folder: Path
    parents: dict[str, str]
    ranks: dict[str, str]
    seen: list[tuple[str, str, int]]
    """Thing, species, second."""

    def above(self, name: str) -> list[str]:
        """The classes above, from the nearest on."""
        found = []
        while name in self.parents:
            name = self.parents[name]
            found.append(name)
        return found

    def of_rank(self, name: str, rank: str) -> str | None:
        return next((each for each in self.above(name) if self.ranks.get(each) == rank), None)

    def answers(self, query: str, reasoning: str = "rdfs") -> list[tuple[str, ...]]:
        """What kaicep says: the selected names of each match."""
        run = open_run(
            queries=[TAXONOMY / "queries" / f"{query}.epsparql"],
            streams=[("sightings", self.folder / "sightings.jsonl")],
            knowledge=[self.folder / "plants.ttl"],
            reasoning=reasoning,
        )
        assert (run.dead, run.diagnostics) == ([], ())
        found = (each.select.values() for each in run.matches())
        return sorted(tuple(term["value"].rpartition("#")[2] for term in each) for each in found)


def make(folder: Path, classes: int, count: int) -> World:
    sizes = ("--classes", str(classes), "--sightings", str(count))
    script(TAXONOMY, "generate.py", str(folder), "--seed", "1", *sizes)
    return understood(folder)


def understood(folder: Path) -> World:
    """What the script wrote into a folder."""
    lines = re.findall(
        r"^:(\w+) rdfs:subClassOf :(\w+) ; :rank :(\w+) \.$", (folder / "plants.ttl").read_text(), re.M
    )
    seen = []
    for line in (folder / "sightings.jsonl").read_text().splitlines():
        record = json.loads(line)
        thing, species = re.findall(r"plants#(\w+)>", record["triple"])
        seen.append((thing, species, record["start"]))
    return World(folder, {a: b for a, b, _ in lines}, {a: rank for a, _, rank in lines}, seen)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make(tmp_path_factory.mktemp("taxonomy"), classes=400, count=120)


def test_is_it_a_vascular_plant(small: World) -> None:
    expected = sorted((thing,) for thing, name, _ in small.seen if "Tracheobionta" in small.above(name))
    assert len(expected) == 60
    assert small.answers("vascular") == expected


def test_of_which_family_is_it(small: World) -> None:
    found = [(thing, small.of_rank(name, "Family")) for thing, name, _ in small.seen]
    expected = sorted((thing, family) for thing, family in found if family)
    assert len({family for _, family in expected}) > 3
    assert small.answers("family") == expected


def test_two_of_a_genus_within_a_minute(small: World) -> None:
    genera = [(thing, small.of_rank(name, "Genus"), when) for thing, name, when in small.seen]
    expected = [
        (one, other, genus)
        for one, genus, first in genera
        for other, same, second in genera
        if genus and genus == same and 0 < second - first <= MINUTE
    ]
    assert expected
    assert small.answers("relatives") == sorted(expected)


def test_without_reasoning_nothing_follows(small: World) -> None:
    assert small.answers("vascular", reasoning="none") == []


def test_the_same_seed_gives_the_same_bytes(small: World, tmp_path: Path) -> None:
    make(tmp_path, classes=400, count=120)
    for name in ("plants.ttl", "sightings.jsonl"):
        assert (tmp_path / name).read_bytes() == (small.folder / name).read_bytes()


@pytest.mark.slow
def test_at_its_full_size_as_the_readme_says(tmp_path: Path) -> None:
    folder, said = as_its_readme_says("taxonomy", tmp_path)
    world = understood(folder / "made")
    below = [name for name in world.parents if "Tracheobionta" in world.above(name)]
    assert len(below) == 40_080
    assert max(len(world.above(name)) for name in below) == 8
    found = [json.loads(each)["select"]["thing"]["value"].rpartition("#")[2] for each in said]
    expected = [thing for thing, name, _ in world.seen if "Tracheobionta" in world.above(name)]
    assert sorted(found) == sorted(expected)
    assert len(expected) == 1_000


@pytest.mark.slow
def test_the_deployment_answers_the_same(tmp_path: Path) -> None:
    folder = copied("taxonomy", tmp_path)
    world = make(folder / "made", classes=400, count=120)
    told = deployed(folder, "made/matches.jsonl")
    for query in ("vascular", "family", "relatives"):
        terms = (each["select"].values() for each in told if each["query"] == query)
        found = sorted(tuple(term["value"].rpartition("#")[2] for term in each) for each in terms)
        assert found == world.answers(query)
