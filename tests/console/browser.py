"""The system's Chromium, driven by Playwright; without it tests are skipped, or fail where it is required."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.servers import Missing, without

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of one file."""
    path = next((found for each in NAMES if (found := shutil.which(each))), None)
    if path is None:
        without(Missing("no Chromium is on the path: apt-get install chromium"))
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()
