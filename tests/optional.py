"""Tests with requirements that not every machine meets."""

import os

import pytest


def require(reason: str, variable: str) -> None:
    """Skip the test if there is a reason not to run it, or fail if this environment variable is set."""
    if reason:
        if os.environ.get(variable):
            pytest.fail(reason)
        pytest.skip(reason)
