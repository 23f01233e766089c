"""Who changed what: a file of lines of JSON. Each line is on disk before the change is answered."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from kaicep.plan.time import format_time

__all__ = ["Audit"]

_READ = 1 << 20


class Audit:
    """The log of the changes to a deployment that came from outside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def add(self, role: str, address: str, what: str, name: str, detail: str = "") -> None:
        """Writes a change down."""
        row = {
            "time": format_time(time.time_ns() // 1_000),
            "role": role,
            "address": address,
            "what": what,
            "name": name,
            "detail": detail[:20_000],
        }
        with self._lock, self._path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self, most: int) -> list[dict[str, Any]]:
        """The newest changes, the newest first."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _READ))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for line in reversed(lines):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the first line may be the end of one
            if len(found) == most:
                break
        return found
