"""Servers for all engines: one whose warehouse has a path with a space, and one without spaces."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import LiveServer, live_template

__all__ = ["live_template"]


@contextmanager
def serving(warehouse: Path) -> Iterator[LiveServer]:
    # Tables dropped by the engines stay in the trash, as by default.
    settings = {"MONODON_WAREHOUSE": str(warehouse), "MONODON_TRASH_SECONDS": "604800"}
    with LiveServer(**settings) as server:
        server.warehouse = warehouse
        yield server


@pytest.fixture(scope="session")
def server(live_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("ware house")) as server:
        yield server


@pytest.fixture(scope="session")
def server_without_spaces(
    live_template: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """For engines that encode a space in a path, which other clients do not."""
    with serving(tmp_path_factory.mktemp("warehouse")) as server:
        yield server
