"""One suite for every host: a test asks for `check`, and runs once on each.

A host that cannot do something says so next to the test, with the reason:
`@pytest.mark.notimpl("spark-stream", "no skip modes without a key")`. There it must raise `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kaicep import testing
from kaicep.api import HOSTS
from kaicep.errors import Unsupported


@pytest.fixture(params=sorted(HOSTS))
def check(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`kaicep.testing.check` on one of the hosts."""
    host: str = request.param
    on_host = partial(testing.check, host=host)
    missing = {mark.args[0] for mark in request.node.iter_markers("notimpl")}
    return partial(_must_refuse, on_host) if host in missing else on_host


def _must_refuse(run: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises(Unsupported):
        run(*args, **options)
