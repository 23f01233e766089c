"""A job whose Python process came too late begins again: Spark gives it ten seconds, however busy it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kaicep.endtoend import spark_following
from kaicep.errors import Failure

LATE = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


@dataclass
class Job:
    """A job that has ended as it says, or runs."""

    error: str | None = None
    isActive: bool = False  # noqa: N815
    recentProgress: list[Any] = field(default_factory=list)  # noqa: N815

    def exception(self) -> Exception | None:
        return RuntimeError(self.error) if self.error is not None else None


def watched(jobs: list[Any], *later: Job) -> list[int]:
    """The numbers of the jobs that were begun again, until one ends for good."""
    coming, begun = list(later), []

    def begin(number: int) -> Any:
        begun.append(number)
        return coming.pop(0)

    spark_following._watch(jobs, begin)
    return begun


def test_one_that_was_late_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_following, "_POLL", 0)
    assert watched([Job(isActive=True), Job(LATE)], Job(LATE), Job()) == [1, 1]


def test_it_does_not_try_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_following, "_POLL", 0)
    with pytest.raises(Failure, match="too few, 6 times in a row"):
        watched([Job(LATE)], *[Job(LATE)] * 9)


def test_what_has_begun_does_not_begin_again() -> None:
    for job in (Job("a disk is full"), Job(LATE, recentProgress=[{}])):
        with pytest.raises(RuntimeError):
            watched([job])
