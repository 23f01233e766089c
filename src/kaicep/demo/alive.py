"""The campus as a deployment that goes on: its morning is archived, and then it reports as time passes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from kaicep.demo.archiving import archive_here, need_delta
from kaicep.demo.campus import SCALES, Campus
from kaicep.demo.folder import Folder
from kaicep.demo.morning import OPENING, Morning, Report
from kaicep.endtoend.config import load_config
from kaicep.endtoend.deployment import Deployment
from kaicep.server.service import Service

__all__ = ["keep_alive"]

_MORNING = 120  # minutes
_EVERY = 0.1  # seconds


def keep_alive(
    path: Path,
    scale: str,
    seed: int,
    seconds: float | None,
    say: Callable[[str], None],
    stopped_by: Callable[[Deployment], AbstractContextManager[None]],
) -> None:
    """Makes a campus in a folder and runs it; `say` is told where its console is."""
    need_delta()
    campus = Campus.make(SCALES[scale], seed)
    morning = Morning(campus, seed)
    folder = Folder(path, campus)
    for reports in morning.minutes(0, _MORNING):
        folder.write(reports)
    say(f"A campus of {len(campus.sensors):,} airflow sensors; its morning is archived ...")
    archive_here(folder)
    deployment = Deployment(load_config(path / "kaicep.toml"))
    over = threading.Event()
    pace = campus.scale.pace
    with Service(deployment) as service, stopped_by(deployment):
        say(f"It runs at {pace} times real time. The console: {service.url}/console")
        reporting = threading.Thread(target=_report, args=(morning, folder, pace, over), daemon=True)
        reporting.start()
        try:
            deployment.run(seconds)
        finally:
            over.set()
            reporting.join()


def _report(morning: Morning, folder: Folder, pace: int, over: threading.Event) -> None:
    """Writes every report into the file of its stream when it is due."""
    started = time.monotonic()
    minute = _MORNING
    waiting: deque[Report] = deque()
    while not over.wait(_EVERY):
        now = OPENING + int((_MORNING * 60 + (time.monotonic() - started) * pace) * 1_000_000)
        while not waiting or waiting[-1].ts <= now:
            waiting += morning.minute(minute)
            minute += 1
        due: list[Report] = []
        while waiting and waiting[0].ts <= now:
            due.append(waiting.popleft())
        if due:
            folder.write(due)
