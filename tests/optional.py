"""Tests that need more than every machine has."""

import os

import pytest


def require(reason: str, variable: str) -> None:
    """Skip the test if there is a reason not to run it; fail where this environment variable is set."""
    if reason:
        if os.environ.get(variable):
            pytest.fail(reason)
        pytest.skip(reason)
