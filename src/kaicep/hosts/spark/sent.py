"""What the driver sends to Spark's workers: packed once, and unpacked once in each process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar, cast

_MOST = 16

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Sent(Generic[_Content]):
    """Something as bytes, for the way; a worker that has opened it knows it by its fingerprint."""

    payload: bytes
    fingerprint: str

    def opened(self) -> _Content:
        """What was sent; the last few are kept, so that whoever asks again gets the same object."""
        found = _OPEN.pop(self.fingerprint, None)
        if found is None:
            found = pickle.loads(self.payload)
        while len(_OPEN) >= _MOST:
            del _OPEN[next(iter(_OPEN))]
        _OPEN[self.fingerprint] = found
        return cast("_Content", found)


_OPEN: dict[str, object] = {}


def sent(content: _Content) -> Sent[_Content]:
    """Packs something for the way.

    >>> sent({"a": 1}).opened()
    {'a': 1}
    """
    payload = pickle.dumps(content, protocol=5)
    return Sent(payload, blake2b(payload, digest_size=16).hexdigest())
