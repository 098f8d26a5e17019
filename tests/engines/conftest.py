"""One server for all engines, with a worker; its warehouse has a path without spaces."""

from collections.abc import Iterator

import pytest

from tests.live import LiveServer, live_template

__all__ = ["live_template"]


@pytest.fixture(scope="session")
def server(live_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    # The engines read locations as URIs. What they drop stays in the trash, as it does by default.
    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {"MONODON_WAREHOUSE": str(warehouse), "MONODON_TRASH_SECONDS": "604800"}
    with LiveServer(**settings) as server:
        server.warehouse = warehouse
        server.start_worker()
        yield server
