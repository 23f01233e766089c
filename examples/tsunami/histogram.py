"""How far the readings of a buoy were from what was expected: a histogram, as in figure 4 of the paper.

    kaicep match ... | python examples/tsunami/histogram.py

Reads matches of the query `difference`, one JSON object a line, and leaves the others out. A bar is as long
as the logarithm of its count, so that a single reading is seen beside forty thousand.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable

BIN = 5  # millimetres
THRESHOLD = 30


def bins(lines: Iterable[str]) -> Counter[int]:
    """How many differences there are from each multiple of 5 mm up to the next, by the lower one."""
    found: Counter[int] = Counter()
    for line in lines:
        match = json.loads(line)
        if match["query"] == "difference":
            found[math.floor(match["select"]["difference"] * 1_000 / BIN) * BIN] += 1
    return found


def drawn(found: Counter[int]) -> Iterable[str]:
    """A line for each bin; those beyond the threshold are marked."""
    for low in range(min(found), max(found) + BIN, BIN):
        beyond = low >= THRESHOLD or low + BIN <= -THRESHOLD
        bar = "#" * round(4 * math.log2(1 + found[low]))
        yield f"{low:>5} to {low + BIN:>3} mm {found[low]:>7,} {'!' if beyond else ' '} {bar}".rstrip()


if __name__ == "__main__":
    counted = bins(sys.stdin)
    print("\n".join(drawn(counted)) if counted else "no match of the query difference")
