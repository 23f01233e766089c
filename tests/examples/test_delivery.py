"""The city: which crossings an agent can reach, found once more by a search in plain Python."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.examples.deployed import as_its_readme_says, copied, deployed, read, script

from kaicep.api import open_run

DELIVERY = Path(__file__).parents[2] / "examples" / "delivery"
RULES = ("here", "onward")
SECOND = 1_000_000


class Visit(NamedTuple):
    """An agent at a crossing, from its arrival to its departure, and where it wants to go."""

    agent: str
    here: str
    there: str
    start: int
    end: int


class City(NamedTuple):
    """The roads, the visits and the traffic, read by our own means."""

    folder: Path
    roads: dict[str, tuple[str, str, str]]
    """Kind, from, to."""
    visits: list[Visit]
    blocked: dict[str, list[int]]

    def is_open(self, road: str, visit: Visit) -> bool:
        kind = self.roads[road][0]
        return kind != "Footpath" and not any(visit.start <= at <= visit.end for at in self.blocked[road])

    def reached(self, visit: Visit) -> set[str]:
        """The crossings that open roads lead to."""
        found, waiting = {visit.here}, [visit.here]
        while waiting:
            place = waiting.pop()
            for name, (_, one, other) in self.roads.items():
                if one == place and other not in found and self.is_open(name, visit):
                    found.add(other)
                    waiting.append(other)
        return found

    def answers(self, *names: str) -> list[tuple[str, ...]]:
        """What kaicep says, as (query, start, end, names)."""
        run = open_run(
            queries=[DELIVERY / "queries" / f"{name}.epsparql" for name in (*RULES, *names)],
            streams=[("city", self.folder / "city.jsonl")],
            knowledge=[self.folder / "city.ttl"],
        )
        assert run.dead == []
        found = []
        for match in run.matches():
            words = [term["value"] for term in match.select.values()]
            words += [word for each in match.triples or () for word in re.findall(r"<([^>]*)>", each)]
            span = (match.start_us // SECOND, match.end_us // SECOND)
            found.append((match.query, *span, *(word.rpartition("#")[2] for word in words)))
        return found


def make(folder: Path, agents: int, locations: int) -> City:
    sizes = ("--agents", str(agents), "--locations", str(locations))
    script(DELIVERY, "generate.py", str(folder), *sizes)
    return understood(folder)


def understood(folder: Path) -> City:
    """What the script wrote into a folder."""
    roads = {
        name: (kind, one, other)
        for name, kind, one, other in re.findall(
            r"^:(road\d+) a :(\w+) ; :from :(\w+) ; :to :(\w+) \.$", (folder / "city.ttl").read_text(), re.M
        )
    }
    visits, blocked = [], defaultdict(list)
    for line in (folder / "city.jsonl").read_text().splitlines():
        record = json.loads(line)
        said = [re.findall(r"#(\w+)>", each) for each in record["triples"]]
        if said[0][1] == "visits":
            (agent, _, here), (_, _, there) = said
            visits.append(Visit(agent, here, there, record["start"], record["end"]))
        else:
            for road, _, _ in said:
                blocked[road].append(record["start"])
    return City(folder, roads, visits, blocked)


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> City:
    return make(tmp_path_factory.mktemp("city"), agents=3, locations=6)


def test_more_than_half_of_the_roads_are_blocked_in_a_visit(city: City) -> None:
    closed = [not city.is_open(road, visit) for visit in city.visits for road in city.roads]
    assert 0.5 < sum(closed) / len(closed) < 0.8


def test_the_rules_find_what_a_search_finds(city: City) -> None:
    """One visit has one interval, so agent and interval tell the visits apart."""
    found = {row[1:] for row in city.answers() if row[0] in RULES}
    assert found == {
        (visit.start, visit.end, visit.agent, "canReach", place)
        for visit in city.visits
        for place in city.reached(visit)
    }


def test_who_gets_there_and_who_does_not(city: City) -> None:
    found = sorted(row for row in city.answers("reachable", "stranded") if row[0] not in RULES)
    expected = sorted(
        (
            "reachable" if visit.there in city.reached(visit) else "stranded",
            visit.start, visit.end, visit.agent, visit.here, visit.there,
        )
        for visit in city.visits
    )  # fmt: skip
    assert found == expected
    assert {row[0] for row in expected} == {"reachable", "stranded"}


def test_the_city_is_the_same_for_one_agent(city: City, tmp_path: Path) -> None:
    alone = make(tmp_path, agents=1, locations=6)
    assert (alone.roads, alone.blocked) == (city.roads, city.blocked)
    assert alone.visits == [each for each in city.visits if each.agent == "agent0"]


@pytest.mark.night
def test_ten_agents_and_twenty_locations_as_the_readme_says(tmp_path: Path) -> None:
    folder, said = as_its_readme_says("delivery", tmp_path)
    city = understood(folder / "made")
    assert len(city.visits) == 200
    matches = [each for each in read(folder / "made" / "matches.jsonl") if each["query"] == "reachable"]
    found = [[term["value"].rpartition("#")[2] for term in each["select"].values()] for each in matches]
    assert sorted(found) == sorted([*each[:3]] for each in city.visits if each.there in city.reached(each))
    assert [json.loads(each) for each in said] == matches[:3]


@pytest.mark.slow
def test_the_deployment_answers_the_same(tmp_path: Path) -> None:
    folder = copied("delivery", tmp_path)
    city = make(folder / "made", agents=2, locations=4)
    told = deployed(folder, "made/matches.jsonl")
    found = sorted((each["query"], each["select"]["agent"]["value"], each["end"][:19]) for each in told)
    assert {each[0] for each in found} <= {"reachable", "stranded"}
    assert found == sorted(
        (
            "reachable" if visit.there in city.reached(visit) else "stranded",
            f"http://example.org/city#{visit.agent}",
            datetime.fromtimestamp(visit.end, UTC).isoformat()[:19],
        )
        for visit in city.visits
    )
