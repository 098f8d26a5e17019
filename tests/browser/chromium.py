"""Debian's Chromium, driven by Playwright. `python -m tests.browser.chromium` reports if it is missing.

Playwright's own browsers are not used: the system's browser is that of users, and needs no download.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests import optional

# The shell draws the same pages in three quarters of the CPU time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = [
    "--no-sandbox",  # root, in the containers that run tests
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]
_START = 120_000
"""Milliseconds for a cold start during other tests."""


def path() -> str | None:
    """Path of Chromium; MONODON_CHROMIUM overrides the executables on the PATH."""
    if configured := os.environ.get("MONODON_CHROMIUM"):
        return configured
    return next((executable for name in _NAMES if (executable := shutil.which(name))), None)


def missing() -> str:
    """The reason why no browser can be used; empty if one can."""
    return "" if path() else "there is no Chromium: apt-get install chromium-headless-shell"


def require() -> None:
    """Skip tests if there is no browser, or fail if MONODON_REQUIRE_BROWSER is set."""
    optional.require(missing(), "MONODON_REQUIRE_BROWSER")


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path(), args=_ARGUMENTS, timeout=_START
        )
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    reason = missing()
    sys.stderr.write(reason and f"{reason}\n")
    sys.exit(bool(reason))
