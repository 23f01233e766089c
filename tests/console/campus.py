"""A small campus as a running deployment, whose sensors report when a test lets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_port

from kaicep.demo.campus import SCALES, Campus, Folder, Morning
from kaicep.demo.morning import archive_here
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.plan.time import format_time, parse_time
from kaicep.server.service import Service

FULL, READ = "the-token-that-may-do-everything", "the-token-that-may-look"
KEPT = ("query1", "query4", "query7")
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
TOP = """\
tick = "20ms"
token_file = "token"
read_token_file = "read"
"""
SINKS = """queries = ["query7"]
[sinks.table]
kind = "delta"
path = "run/table"
queries = ["query1"]
"""


class Alive:
    """A campus at work: `report` lets a sensor say something."""

    def __init__(self, folder: Folder, deployment: Deployment, service: Service) -> None:
        self.folder = folder
        self.deployment = deployment
        self.url = service.url
        self.service = service
        self.now = parse_time("2012-05-07T08:20:00Z") or 0

    def report(self, sensor: str, flowrate: float, after: int = 10) -> None:
        """A report, so many seconds after the one before."""
        self.now += after * 1_000_000
        row = {"sensorID": sensor, "flowrate": flowrate, "timestamp": format_time(self.now)[:19] + "Z"}
        with self.folder.data("airflowReport").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Its service is down meanwhile, and then back at the same address."""
        self.service.__exit__()
        try:
            yield
        finally:
            self.service = Service(self.deployment)
            self.service.__enter__()

    def surge(self, sensor: str) -> None:
        """Above 500, and then more than 50 above that."""
        self.report(sensor, 520.0)
        self.report(sensor, 600.0)


@contextmanager
def alive(path: Path) -> Iterator[Alive]:
    """A campus with twenty minutes of its morning in the archive."""
    campus = Campus.make(SCALES["small"], 7)
    folder = Folder(path, campus)
    for reports in Morning(campus, 7).minutes(0, 20):
        folder.write(reports)
    for each in (path / "queries").iterdir():
        if each.stem not in KEPT:
            each.unlink()
    (path / "token").write_text(FULL)
    (path / "read").write_text(READ)
    label = json.dumps(HOSTILE)
    (path / "knowledge" / "hostile.ttl").write_text(
        "@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
        f"<http://cei.usc.edu/Building.owl#RTH110> rdfs:label {label} .\n"
    )
    text = (path / "kaicep.toml").read_text()
    top = f'state = "run"\n{TOP}listen = "127.0.0.1:{free_port()}"\n'
    (path / "kaicep.toml").write_text(text.replace('state = "run"\n', top) + SINKS)
    archive_here(folder)
    deployment = Deployment(load_config(path / "kaicep.toml"))
    made = Alive(folder, deployment, Service(deployment).__enter__())
    thread = threading.Thread(target=deployment.run)
    thread.start()
    try:
        yield made
    finally:
        made.service.__exit__()
        deployment.stop()
        thread.join()
