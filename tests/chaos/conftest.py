"""Fixtures for storms of requests and killed servers."""

import os
import random
from collections.abc import Iterator

import pytest

from tests.live import LiveServer, live_template

__all__ = ["live_template"]


@pytest.fixture
def seed() -> int:
    """The seed, which is printed if the test fails. CHAOS_SEED repeats the choices, but not the
    races."""
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CHAOS_SEED={seed}")
    return seed


@pytest.fixture
def rounds() -> int:
    """Number of rounds in the long form; `make chaos N=…` sets it."""
    return int(os.environ.get("MONODON_CHAOS_ROUNDS") or 20)


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """A server with as many threads as the storm: all its requests may hold locks at the same
    time."""
    with LiveServer(workers=2, threads=16) as server:
        yield server
