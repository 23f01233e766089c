"""States in files, one for each micro-batch: for what runs in the driver, beside Spark's own checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kaicep.errors import Failure

__all__ = ["States"]

_KEPT = 3
"""So many states are kept; Spark may ask for the last one again."""


class States:
    """The states after the last few micro-batches, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, number: int) -> bytes | None:
        """The state after a micro-batch; None before the first."""
        if number < 0:
            return None
        try:
            return (self.folder / f"{number}.state").read_bytes()
        except FileNotFoundError:
            raise Failure(
                f"the checkpoint {self.folder.parent} has no state after micro-batch {number}: it is of "
                "another kind of stream, or files of it are missing"
            ) from None

    def begun(self, number: int) -> int:
        """When a micro-batch was begun, in milliseconds; one that is taken up again is as old as it was."""
        file = self.folder / f"{number}.begun"
        if not file.exists():
            _write(file, str(time.time_ns() // 1_000_000).encode())
        return int(file.read_text())

    def save(self, number: int, state: bytes) -> None:
        """Keeps the state after a micro-batch."""
        _write(self.folder / f"{number}.state", state)
        for kind in ("state", "begun"):
            (self.folder / f"{number - _KEPT}.{kind}").unlink(missing_ok=True)


def _write(file: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    with new.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)
