"""A server for the readers of all pages. Each reader has a database of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import PROGRAMS, Manage
from tests.docs.reader import Reader, renew_database
from tests.live import LiveServer, live_template

__all__ = ["live_template"]
SETTINGS = {
    "MONODON_TRASH_SECONDS": "604800",
    "MONODON_SPARK_MASTERS": "spark://spark.example.com:7077",
    "MONODON_OIDC_ISSUERS": "https://id.example.com",
    "MONODON_OIDC_AUDIENCES": "monodon",
}
"""What the pages presuppose."""


@pytest.fixture(scope="session")
def server(live_template: None) -> Iterator[LiveServer]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"the commands of the pages need {', '.join(missing)}")
    with LiveServer(workers=1, **SETTINGS) as server:
        server.start_worker()
        yield server


@pytest.fixture(scope="session")
def manage(server: LiveServer) -> Iterator[Manage]:
    with tempfile.TemporaryDirectory() as directory:  # the path of a socket has few characters
        manage = Manage(Path(directory, "socket"), server._environment)
        yield manage
        manage.close()


@pytest.fixture
def reader(server: LiveServer, manage: Manage, tmp_path: Path) -> Reader:
    renew_database(server)
    return Reader(server, manage, tmp_path)
