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


def as_bytes(payload: Any) -> bytes:
    """A payload for the network: bytes and arrays as they are, all else as JSON.

    >>> as_bytes({"x": 1}), as_bytes(b"raw")
    (b'{"x": 1}', b'raw')
    """
    if hasattr(payload, "tobytes"):
        return payload.tobytes()  # type: ignore[no-any-return]
    return payload if isinstance(payload, bytes) else as_json(payload).encode()


def received_line(consumer: str, payload: bytes, timely: bool) -> str:
    """What came over the network as one line of JSON.

    >>> received_line("airbag", b'{"x": 1}', True)
    '{"consumer": "airbag", "timely": true, "payload": {"x": 1}}\\n'
    """
    try:
        content = json.loads(payload)
    except ValueError:
        content = base64.b64encode(payload).decode()
    return json.dumps({"consumer": consumer, "timely": timely, "payload": content}) + "\n"


def line(delivery: Delivery) -> str:
    """A delivery as one line of JSON."""
    about = {
        "consumer": delivery.consumer,
        "seq": delivery.seq,
        "timely": delivery.timely,
        "latency_us": delivery.latency // 1000,
    }
    return f'{json.dumps(about)[:-1]}, "payload": {as_json(delivery.payload)}}}\n'
