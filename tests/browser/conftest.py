"""Debian's Chromium, driven by Playwright: one instance per test session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from waiting import allow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox as root; /dev/shm of a container may be small.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=found, args=arguments, timeout=allow(60) * 1000)
        yield started
        started.close()
