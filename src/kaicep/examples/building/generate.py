"""Makes the building and one day of it: `knowledge.ttl`, a model in the words of Brick, and `data/trend.csv`.

Two air handlers, four terminal units, four rooms, 54 points, one row every quarter of an hour. The same seed
gives the same files. Into a building that works, the function `plant` puts one fault for each rule.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import pi, sin
from pathlib import Path

DAY = datetime(2026, 3, 2)
ROWS = 96
SEED = 36

AHU = {
    "SA-T": "Supply_Air_Temperature_Sensor",
    "SA-T SP": "Supply_Air_Temperature_Setpoint",
    "MA-T": "Mixed_Air_Temperature_Sensor",
    "RA-T": "Return_Air_Temperature_Sensor",
    "OA-T": "Outside_Air_Temperature_Sensor",
    "HTG": "Heating_Command",
    "CLG": "Cooling_Command",
    "OAD": "Damper_Position_Command",
    "SF": "Fan_Status",
}
VAV = {
    "ZN-T": "Zone_Air_Temperature_Sensor",
    "ZN-T SP": "Zone_Air_Temperature_Setpoint",
    "DA-T": "Discharge_Air_Temperature_Sensor",
    "FLOW": "Supply_Air_Flow_Sensor",
    "FLOW SP": "Supply_Air_Flow_Setpoint",
    "DMPR": "Damper_Position_Command",
    "DMPR POS": "Damper_Position_Sensor",
    "RHT": "Heating_Command",
    "OCC": "Occupancy_Status",
}
UNITS = {"AHU-1": ("VAV-1-1", "VAV-1-2"), "AHU-2": ("VAV-2-1", "VAV-2-2")}

HEAD = """@prefix brick: <https://brickschema.org/schema/Brick#> .
@prefix ref: <https://brickschema.org/schema/Brick/ref#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix k: <urn:kaicep:building#> .
@prefix b: <urn:building:> .

brick:Air_Temperature_Sensor rdfs:subClassOf brick:Temperature_Sensor .
brick:Temperature_Sensor rdfs:subClassOf brick:Sensor .
brick:Outside_Air_Temperature_Sensor k:lowest -40 ; k:highest 60 .
brick:Zone_Air_Temperature_Sensor k:lowest 5 ; k:highest 45 .
brick:Supply_Air_Flow_Sensor rdfs:subClassOf brick:Sensor ; k:lowest 0 ; k:highest 5000 .
brick:AHU rdfs:subClassOf brick:Equipment . brick:VAV rdfs:subClassOf brick:Equipment .
"""


def write(folder: Path) -> None:
    """Writes the model and the day into a folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "knowledge.ttl").write_text(HEAD + "\n".join(model()) + "\n", "utf-8")
    names = list(points())
    with (folder / "data" / "trend.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["Timestamp", *names])
        for row in day():
            at = DAY + timedelta(minutes=15 * row.number)
            rows.writerow([at.strftime("%m/%d/%Y %I:%M %p"), *(written(row.values[each]) for each in names)])


def written(value: float | None) -> str:
    """A value as the building's software exports it."""
    return "No Data" if value is None else f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}"


# --- the model ---------------------------------------------------------------------------------------------


def points() -> Iterator[str]:
    """The names of the points, which are the columns of the export."""
    for ahu, units in UNITS.items():
        yield from (f"{ahu} {each}" for each in AHU)
        yield from (f"{unit} {each}" for unit in units for each in VAV)


def model() -> Iterator[str]:
    """The statements about the building."""
    for kind in sorted({*AHU.values(), *VAV.values()}):
        parent = "Air_Temperature_Sensor" if kind.endswith("Temperature_Sensor") else kind.rsplit("_", 1)[-1]
        yield f"brick:{kind} rdfs:subClassOf brick:{parent} ."
    for ahu, units in UNITS.items():
        yield f"b:{ahu} a brick:AHU ."
        yield from described(ahu, AHU)
        for unit in units:
            room = unit.replace("VAV", "Room")
            yield f"b:{ahu} brick:feeds b:{unit} . b:{unit} a brick:VAV ; brick:feeds b:{room} ."
            yield f"b:{room} a brick:Room ."
            yield from described(unit, VAV)


def described(equipment: str, kinds: dict[str, str]) -> Iterator[str]:
    """The points of a piece of equipment: of which class each is, and its name in the export."""
    for name, kind in kinds.items():
        point = f"b:{equipment}.{name.replace(' ', '_')}"
        yield f"{point} a brick:{kind} ; brick:isPointOf b:{equipment} ; ref:hasExternalReference [ "
        yield f'    ref:hasTimeseriesId "{equipment} {name}" ] .'


# --- the day -----------------------------------------------------------------------------------------------


class Row:
    """What all points have at one time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.hour = number / 4
        self.values: dict[str, float | None] = {}

    def between(self, first: float, last: float) -> bool:
        """Whether it is in a range of hours, bounds included."""
        return first <= self.hour <= last


def day() -> Iterator[Row]:
    """The rows of the day, faults included."""
    draw = random.Random(SEED)
    for number in range(ROWS):
        row = Row(number)
        for ahu, units in UNITS.items():
            handled(row, ahu, draw)
            for unit in units:
                served(row, ahu, unit, draw)
        plant(row)
        # What was not recorded; the rules about these points look for the last known value.
        if draw.random() < 0.2:
            row.values["AHU-1 RA-T"] = None
        yield row


def handled(row: Row, ahu: str, draw: random.Random) -> None:
    """An air handler: off at night; by day it mixes in outside air, so that it need not cool."""
    runs = row.between(6, 19.5) or (ahu == "AHU-2" and row.between(21, 22.5))  # a schedule override
    made = {
        "SA-T SP": 13.0,
        "SA-T": 13.0 + draw.uniform(-0.4, 0.4) if runs else 19.0 + draw.uniform(-0.4, 0.4),
        "MA-T": 13.0 + draw.uniform(-0.4, 0.4) if runs else 19.0 + draw.uniform(-0.4, 0.4),
        "RA-T": 22.0 + draw.uniform(-0.4, 0.4),
        "OA-T": 9.0 + 5 * sin((row.hour - 9) / 12 * pi) + draw.uniform(-0.3, 0.3),
        "HTG": 0.0,
        "CLG": 0.0,
        "OAD": 60.0 + draw.uniform(-5, 5) if runs else 0.0,
        "SF": 1.0 if runs else 0.0,
    }
    row.values |= {f"{ahu} {name}": round(value, 1) for name, value in made.items()}


def served(row: Row, ahu: str, unit: str, draw: random.Random) -> None:
    """A terminal unit and its room."""
    runs = row.values[f"{ahu} SF"] == 1
    opened = 45 + draw.uniform(-8, 8) if runs else 0.0
    wanted = 1250.0 if runs else 0.0
    made = {
        "ZN-T SP": 22.0,
        "ZN-T": 22.0 + draw.uniform(-0.6, 0.6),
        "DA-T": (row.values[f"{ahu} SA-T"] or 0) + draw.uniform(0, 1),
        "FLOW SP": wanted,
        "FLOW": wanted * draw.uniform(0.94, 1.06),
        "DMPR": opened,
        "DMPR POS": opened + draw.uniform(-2, 2) if runs else 0.0,
        "RHT": 0.0,
        "OCC": 1.0 if row.between(8, 18) else 0.0,
    }
    row.values |= {f"{unit} {name}": round(value, 1) for name, value in made.items()}


def plant(row: Row) -> None:
    """One fault for each rule; the README says which."""
    values = row.values
    if row.between(10, 11):  # supply air off setpoint
        values["AHU-1 SA-T"] = 18.2
    if row.between(13, 13.5):  # heating and cooling
        values |= {"AHU-2 HTG": 40.0, "AHU-2 CLG": 55.0}
    if row.between(9, 9.75):  # leaking reheat valve
        values["VAV-1-2 DA-T"] = 21.5
    if row.between(8, 8.75):  # leaking cooling valve
        values["AHU-2 MA-T"] = 17.6
    if row.between(11, 12):  # stuck damper
        values |= {"VAV-2-1 DMPR": 80.0, "VAV-2-1 DMPR POS": 25.0}
    if row.between(12, 17):  # flat sensor
        values["VAV-1-1 ZN-T"] = 22.4
    if row.between(15, 15.25):  # out of range
        values["VAV-2-2 ZN-T"] = 131.0
    if row.between(14, 15.5):  # hunting
        values["VAV-1-2 RHT"] = 60.0 if row.number % 2 == 0 else 0.0
    if row.between(15, 15.75):  # economizer not used
        values |= {"AHU-1 CLG": 45.0, "AHU-1 OAD": 10.0}
    if row.between(10, 11.5):  # missing data
        values["VAV-2-2 DA-T"] = None
    if row.between(16, 17):  # room too warm
        values["VAV-2-1 ZN-T"] = 25.5 + row.number % 3 / 10
    if row.between(16, 16.5):  # low airflow
        values |= {"VAV-1-1 FLOW": 520.0, "VAV-1-1 DMPR": 100.0, "VAV-1-1 DMPR POS": 99.0}
    if row.between(11, 11.5):  # reheat while warm
        values |= {"VAV-1-1 ZN-T": 23.9, "VAV-1-1 RHT": 50.0}
    if row.between(5, 5.5):  # sensors disagree
        values["AHU-2 OA-T"] = 15.5


if __name__ == "__main__":
    write(Path(__file__).parent)
