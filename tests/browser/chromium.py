"""Debian's Chromium, driven by Playwright. `python -m tests.browser.chromium` tells whether it is here.

Playwright's own browsers are not used: what the system has is what people have, and needs no download.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests import optional

_NAMES = ("chromium", "chromium-browser", "google-chrome")
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
"""Milliseconds: a cold start beside other tests."""


def path() -> str | None:
    """Path of Chromium; MONODON_CHROMIUM overrides the executables on the PATH."""
    if configured := os.environ.get("MONODON_CHROMIUM"):
        return configured
    return next((executable for name in _NAMES if (executable := shutil.which(name))), None)


def missing() -> str:
    """Why no browser can be driven here; empty if one can."""
    return "" if path() else "there is no Chromium: apt-get install chromium"


def require() -> None:
    """Skip what needs a browser where there is none; fail where MONODON_REQUIRE_BROWSER is set."""
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
