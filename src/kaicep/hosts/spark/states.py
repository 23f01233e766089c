"""States in files, one for each micro-batch: for what runs in the driver, beside Spark's own checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

from kaicep.errors import Failure
from kaicep.storage.disk import read_sealed, replace_sealed

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
            return read_sealed(self.folder / f"{number}.state")
        except FileNotFoundError:
            raise Failure(
                f"the checkpoint {self.folder.parent} has no state after micro-batch {number}: it is of "
                "another kind of stream, or files of it are missing"
            ) from None

    def begun(self, number: int) -> int:
        """When a micro-batch was begun, in milliseconds; one that is taken up again is as old as it was."""
        file = self.folder / f"{number}.begun"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_sealed(file, str(time.time_ns() // 1_000_000).encode())
        return int(read_sealed(file))

    def save(self, number: int, state: bytes) -> None:
        """Keeps the state after a micro-batch."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_sealed(self.folder / f"{number}.state", state)
        for kind in ("state", "begun"):
            (self.folder / f"{number - _KEPT}.{kind}").unlink(missing_ok=True)
