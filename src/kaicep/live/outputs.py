"""Deliveries as lines of JSON, for files and for the network."""

from __future__ import annotations

import base64
import json
from typing import Any

from kaicep.live.bindings import Delivery
from kaicep.plan.events import Match

__all__ = ["as_json", "line"]


def as_json(payload: Any) -> str:
    """A payload as JSON: rows as they are, matches as everywhere, bytes in base64, arrays as lists.

    >>> as_json({"x": 1})
    '{"x": 1}'
    """
    return json.dumps(payload, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Match):
        return value.to_dict()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if hasattr(value, "dtype"):
        if value.dtype.kind == "c":
            return [value.real.tolist(), value.imag.tolist()]
        return value.tolist()
    return str(value)


def line(delivery: Delivery) -> str:
    """A delivery as one line of JSON."""
    about = {
        "consumer": delivery.consumer,
        "seq": delivery.seq,
        "timely": delivery.timely,
        "latency_us": delivery.latency // 1000,
    }
    return f'{json.dumps(about)[:-1]}, "payload": {as_json(delivery.payload)}}}\n'
