"""How much memory a piece of work holds at most."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

__all__ = ["Peak"]

_STATUS = Path("/proc/self/status")


class Peak:
    """Around a piece of work: `bytes` is the most that it held beyond what was held before.

    Linux tells; elsewhere, and where the mark cannot be reset, it is 0.

    >>> with Peak() as peak:
    ...     _ = bytearray(1 << 20)
    >>> peak.bytes >= 0
    True
    """

    bytes = 0

    def __enter__(self) -> Peak:
        gc.collect()
        self._before = None
        if sys.platform == "linux":
            try:
                Path("/proc/self/clear_refs").write_text(
                    "5", "ascii"
                )  # the mark starts again from what is held
                self._before = _field("VmRSS")
            except OSError:
                pass
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self.bytes = max(_field("VmHWM") - self._before, 0)


def _field(name: str) -> int:
    for line in _STATUS.read_text("ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0
