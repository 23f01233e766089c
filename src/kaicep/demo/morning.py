"""What happens on a campus, minute by minute: noise around what is usual, and what was put there on purpose.

The events of a minute are a function of campus, seed and minute alone, so that a morning can be made in any
pieces. In every block of twenty minutes some rooms, sensors and departments have an incident each: that is
what the queries find.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from kaicep.demo.campus import VENDORS, Building, Campus, Room, Sensor
from kaicep.plan.time import format_time

__all__ = ["OPENING", "Morning", "SensorReport"]

OPENING = 1_336_377_600_000_000
"""2012-05-07T08:00:00Z, a Monday, in microseconds: minute 0."""

_MINUTE = 60_000_000
_BLOCK = 20
_SHARE = 0.005
_MOST = 8
_HIGH = 740.0

T = TypeVar("T")


class SensorReport(NamedTuple):
    """A record on a stream, and its time in microseconds."""

    ts: int
    stream: str
    record: dict[str, Any]


@dataclass
class Incidents:
    """What was put into a block: readings and counts by minute, and who is silent from when until when."""

    readings: dict[int, list[tuple[Sensor, float]]] = field(default_factory=dict)
    counts: dict[int, list[tuple[Room, int]]] = field(default_factory=dict)
    silent: dict[str, tuple[int, int]] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()

    def say(self, minute: int, sensor: Sensor, value: float) -> None:
        """Has a sensor report at some minute."""
        self.readings.setdefault(minute, []).append((sensor, value))

    def hush(self, name: str, start: int, end: int) -> None:
        """Keeps a sensor or a room from reporting of its own accord, from one minute to before another."""
        self.silent[name] = (start, end)

    def is_silent(self, name: str, minute: int) -> bool:
        """Whether it does not report then."""
        start, end = self.silent.get(name, (0, 0))
        return start <= minute < end


class Morning:
    """The events of a campus by minute.

    >>> from kaicep.demo.campus import SCALES
    >>> morning = Morning(Campus.make(SCALES["small"]))
    >>> morning.minute(0) == Morning(Campus.make(SCALES["small"])).minute(0)
    True
    """

    def __init__(self, campus: Campus, seed: int = 7) -> None:
        self.campus = campus
        self.seed = seed
        self._due: dict[tuple[int, int], list[Sensor]] = {}
        for each in campus.sensors:
            self._due.setdefault((each.period, each.phase), []).append(each)
        self._lectures = {(each.room.name, each.hour) for each in campus.classes}
        self._meetings = [each for each in campus.rooms if each.holds_meetings]
        self._counted = [each for each in campus.rooms if each.holds_meetings or each.kind == "LectureHall"]
        self._doubled = [each for each in self._counted if len(campus.by_room[each.name]) > 1]
        self._offices = [
            each for each in campus.sensors if each.room.is_office and each.room.department.code == "EE"
        ]
        self._block = lru_cache(4)(self._make_block)

    def minutes(self, start: int, end: int) -> Iterator[list[SensorReport]]:
        """The events from one minute to before another, a list for each, in the order of their time."""
        return (self.minute(each) for each in range(start, end))

    def minute(self, minute: int) -> list[SensorReport]:
        """The events of one minute, in the order of their time."""
        dice = random.Random(f"{self.seed} minute {minute}")
        incidents = self._block(minute // _BLOCK)
        found: list[SensorReport] = []
        for stream, records in (
            ("airflowReport", self._airflow(minute, incidents, dice)),
            ("roomOccupancy", self._occupancy(minute, incidents, dice)),
            ("fanStatus", self._fans(minute, incidents)),
            ("buildingStatus", self._buildings(minute)),
            ("meterReading", self._meters(minute, incidents, dice)),
            ("weather", self._weather(minute, dice)),
        ):
            for record in records:
                ts = OPENING + minute * _MINUTE + dice.randrange(60) * 1_000_000
                found.append(SensorReport(ts, stream, {**record, "timestamp": format_time(ts)[:19] + "Z"}))
        return sorted(found, key=lambda each: each.ts)

    # --- the streams ---

    def _airflow(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        low, high = self.campus.scale.periods
        for period in range(low, high + 1):
            for sensor in self._due.get((period, minute % period), ()):
                if not incidents.is_silent(sensor.name, minute):
                    yield _reading(sensor, self._level(sensor, minute) + dice.uniform(-10, 10))
        for sensor, value in incidents.readings.get(minute, ()):
            yield _reading(sensor, value)

    def _level(self, sensor: Sensor, minute: int) -> float:
        """About how much a sensor reads; now and then many are high together."""
        block, into = divmod(minute, _BLOCK)
        if block % 3 == 0:
            if block and sensor.vendor == "A" and 2 <= into < 6 and not sensor.room.holds_meetings:
                return _HIGH  # boxes of vendor A are flushed
            if sensor.room.is_office and sensor.room.department.code == "EE" and 8 <= into < 15:
                return 540.0
        return sensor.room.usual

    def _occupancy(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        for place, room in enumerate(self._counted):
            if (minute + place) % 10 == 0 and not incidents.is_silent(room.name, minute):
                yield {"room": room.sign, "people": self._people(room, minute, dice)}
        for room, people in incidents.counts.get(minute, ()):
            yield {"room": room.sign, "people": people}

    def _people(self, room: Room, minute: int, dice: random.Random) -> int:
        if room.kind == "LectureHall":
            return dice.randrange(20, 120) if (room.name, 8 + minute // 60) in self._lectures else 0
        taken = random.Random(f"{self.seed} {room.name} {minute // 30}").random() < 0.6
        return dice.randrange(2, 12) if taken else 0

    def _fans(self, minute: int, incidents: Incidents) -> Iterator[dict[str, Any]]:
        for place, (fan, building) in enumerate(self.campus.fans.items()):
            if (minute + place) % 10 == 0:
                running = _is_open(building, minute) or fan in incidents.running
                yield {"fan": fan, "building": building.code, "running": running}

    def _buildings(self, minute: int) -> Iterator[dict[str, Any]]:
        for place, building in enumerate(self.campus.buildings):
            if (minute + place) % 5 == 0:
                yield {"building": building.code, "open": _is_open(building, minute)}

    def _meters(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        if minute % 5:
            return
        for each in self.campus.departments:
            share = 1.1 if each.code in incidents.over and minute % _BLOCK in (5, 10) else 0.8
            drawn = round(each.budget * (share + dice.uniform(-0.05, 0.05)), 1)
            yield {"meter": each.meter, "kind": "account", "kw": drawn}
        for meter in self.campus.meters:
            yield {"meter": meter, "kind": "building", "kw": round(dice.uniform(80, 120), 1)}

    def _weather(self, minute: int, dice: random.Random) -> Iterator[dict[str, Any]]:
        if minute % 5 == 0:
            celsius = 17 + minute / 40 + dice.uniform(-0.2, 0.2)
            yield {"celsius": round(celsius, 1), "sun": round(300 + minute + dice.uniform(-20, 20), 1)}

    # --- what is put there on purpose ---

    def _make_block(self, block: int) -> Incidents:
        dice = random.Random(f"{self.seed} block {block}")
        made = Incidents(
            running=frozenset(_some(dice, [each for each, at in self.campus.fans.items() if at.closes < 12])),
            over=frozenset(each.code for each in dice.sample(self.campus.departments, 1)),
        )
        first = block * _BLOCK
        taken: set[str] = set()
        for room in _free(_some(dice, self._meetings), taken):
            self._surge(made, first, room, dice)
        for room in _free(_some(dice, self._meetings), taken):
            self._empty(made, first, room, dice)
        for room in _free(_some(dice, self._doubled), taken):
            self._disagree(made, first, room, dice)
        for sensor in _free_sensors(_some(dice, self._offices), taken):
            made.hush(sensor.name, first + 2, first + 5)
            made.say(first + 3, sensor, dice.uniform(520, 560))
        for sensor in _free_sensors(_some(dice, self.campus.sensors), taken):
            made.hush(sensor.name, first + 1, first + 17)
        for sensor in _free_sensors(_some(dice, self.campus.sensors), taken):
            made.hush(sensor.name, first, first + 10)
            for step in range(3):
                made.say(first + 1 + 3 * step, sensor, sensor.room.usual + step * dice.uniform(30, 40))
        return made

    def _surge(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """Above 500, and a few minutes later more than 50 above that."""
        sensor = self._of_vendor_a(room)
        begin = dice.uniform(505, 530)
        made.hush(sensor.name, first, first + 8)
        made.say(first + 2, sensor, begin)
        made.say(first + 5, sensor, begin + dice.uniform(55, 90))

    def _empty(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """Nobody is there, and the air is on."""
        sensor = self._of_vendor_a(room)
        made.hush(room.name, first, first + 8)
        made.hush(sensor.name, first, first + 8)
        made.counts.setdefault(first + 1, []).append((room, 0))
        made.say(first + 4, sensor, dice.uniform(460, 490))

    def _disagree(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """One sensor of a room is high, the other one low."""
        high, low = self.campus.by_room[room.name][:2]
        for sensor in (high, low):
            made.hush(sensor.name, first, first + 8)
        made.say(first + 3, high, dice.uniform(550, 580))
        made.say(first + 4, low, dice.uniform(180, 210))

    def _of_vendor_a(self, room: Room) -> Sensor:
        return next(each for each in self.campus.by_room[room.name] if each.vendor == "A")


def _is_open(building: Building, minute: int) -> bool:
    return building.opens <= 8 + minute // 60 < building.closes


def _reading(sensor: Sensor, value: float) -> dict[str, Any]:
    shown = round(value) if sensor.vendor == "B" else round(value, 1)
    return {"sensorID": sensor.name, VENDORS[sensor.vendor]: shown}


def _some(dice: random.Random, every: Sequence[T]) -> list[T]:
    """A few of many, but one at least."""
    return dice.sample(every, max(1, min(_MOST, int(len(every) * _SHARE))))


def _free(rooms: Iterable[Room], taken: set[str]) -> Iterator[Room]:
    """The rooms where nothing else happens in this block."""
    for room in rooms:
        if room.name not in taken:
            taken.add(room.name)
            yield room


def _free_sensors(sensors: Iterable[Sensor], taken: set[str]) -> Iterator[Sensor]:
    for sensor in sensors:
        if sensor.room.name not in taken:
            taken.add(sensor.room.name)
            yield sensor
