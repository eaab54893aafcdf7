"""A real Chromium, Debian's, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def require_chromium() -> str:
    """Path of the browser. Skips where there is none; fails there in continuous integration."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    reason = "chromium not found: run scripts/install-servers"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def running_browser() -> Iterator[Browser]:
    """One browser; each page of a test has a profile of its own."""
    path = require_chromium()
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that a container's root does not have; it opens our page only.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
