"""The cases that were worked out by hand, answered by the kernel in the place of the reference."""

# ruff: noqa: F403
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.conformance.test_epsparql import *
from tests.kernel.epsparql_support import run_kernel
from tests.reference import epsparql_support
from tests.reference.test_epsparql_aggregates import *
from tests.reference.test_epsparql_consumption import *
from tests.reference.test_epsparql_knowledge import *
from tests.reference.test_epsparql_operators import *
from tests.reference.test_epsparql_paper import *
from tests.reference.test_epsparql_rules import *
from tests.reference.test_epsparql_windows import *

from kaicep import reference, testing


@pytest.fixture
def check() -> Callable[..., Any]:
    return partial(testing.check, host="reference")


@pytest.fixture(autouse=True)
def kernel_in_place_of_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "run_epsparql", run_kernel)
    monkeypatch.setattr(epsparql_support, "run_epsparql", run_kernel)
