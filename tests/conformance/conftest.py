"""One suite for every host: a test asks for `check`, and runs once on each.

A host that cannot do something says so next to the test, with the reason:
`@pytest.mark.notimpl("spark-stream", "no skip modes without a key")`. There it must raise `Unsupported`.

A job of Spark takes as long for twenty small runs as for one. So for the Spark hosts the tests are walked
through twice: first to see which runs they ask for, all of which Spark then answers together, and then to
check the answers. Of a test with several cases, a stream of Spark gets one by day and all at night: what a
case means is decided by the kernel, which the other three hosts run on every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.spark.many import answers

from kaicep import testing
from kaicep.api import HOSTS, FiniteRun
from kaicep.errors import Unsupported
from kaicep.plan.events import Match

SPARK = ("spark-batch", "spark-stream")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves all but one case of a test on a stream of Spark to the night."""
    seen: set[tuple[object, str]] = set()
    for item in items:
        if _host(item) == "spark-stream":
            test = (item.path, item.originalname)  # type: ignore[attr-defined]
            if test in seen:
                item.add_marker("night")
            seen.add(test)


@pytest.fixture(params=[pytest.param(each, marks=[pytest.mark.spark] * (each in SPARK)) for each in HOSTS])
def check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`kaicep.testing.check` on one of the hosts."""
    host: str = request.param
    on_host = partial(testing.check, host=host)
    if host in _refusing(request.node):
        return partial(_must_refuse, on_host)
    if host in SPARK:
        request.getfixturevalue("spark")
        # The order of arrival is cheap to test elsewhere.
        monkeypatch.setattr(testing, "_ORDERS", 0)
        found: Iterator[list[Match]] = iter(request.getfixturevalue("at_once")(host)[request.node.nodeid])
        monkeypatch.setitem(HOSTS, host, lambda run: next(found))
    return on_host


def _refusing(item: Any) -> set[str]:
    """The hosts that must refuse what a test asks for."""
    return {mark.args[0] for mark in item.iter_markers("notimpl")}


@pytest.fixture(scope="session")
def at_once(request: pytest.FixtureRequest) -> Callable[[str], dict[str, list[list[Match]]]]:
    """The answers of a Spark host to all tests of this session, by test."""
    kept: dict[str, dict[str, list[list[Match]]]] = {}

    def of(host: str) -> dict[str, list[list[Match]]]:
        if host not in kept:
            items = [item for item in request.session.items if _host(item) == host]
            asked = {item.nodeid: _asked(item) for item in items if host not in _refusing(item)}
            found = iter(answers([run for some in asked.values() for run in some], host))
            kept[host] = {name: [next(found) for _ in some] for name, some in asked.items()}
        return kept[host]

    return of


def _host(item: pytest.Item) -> object:
    return getattr(item, "callspec", None) and item.callspec.params.get("check")  # type: ignore[attr-defined]


def _asked(item: Any) -> list[FiniteRun]:
    """The runs that a test asks for."""
    runs: list[FiniteRun] = []

    def note(run: FiniteRun) -> list[Match]:
        runs.append(run)
        return HOSTS["inprocess"](run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_ORDERS", 0)
        patch.setitem(HOSTS, "asked", note)
        given = {name: value for name, value in item.callspec.params.items() if name != "check"}
        item.obj(check=partial(testing.check, host="asked"), **given)
    return runs


def _must_refuse(run: Callable[..., Any], *args: Any, **options: Any) -> None:
    with pytest.raises(Unsupported):
        run(*args, **options)
