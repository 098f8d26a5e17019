from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from api import metrics
from api.front.frequent import Reads
from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.client import Lance
from tests.api.event_loop import Asker


@pytest.fixture(scope="session", autouse=True)
def _static_files() -> None:
    """Disable hashed static files: the admin's middleware looks for the collected files."""
    Path(django_settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)


@pytest.fixture(autouse=True)
def warehouse(tmp_path: Path, settings) -> Path:
    """An empty warehouse for each test."""
    directory = tmp_path / "warehouse"
    directory.mkdir()
    settings.MONODON_WAREHOUSE = str(directory)
    settings.MONODON_ALLOWED_ROOTS = []
    settings.MONODON_MANIFEST_PATHS = ["elsewhere/", "x/"]
    return directory


@pytest.fixture
def lance(db) -> Lance:
    """A client with all privileges."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return Lance(key)


@pytest.fixture
def reader(db) -> Lance:
    """A client with the privilege to read, and no other."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="reader", level=PrincipalLevel.READ)
    return Lance(key)


@pytest.fixture(autouse=True)
def _fresh_metrics() -> None:
    """Figures in /metrics are reused for some seconds, and each test has another database."""
    metrics.forget()


@pytest.fixture
def make_asker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Asker]]:
    """A function that asks Django and the event loop, with the frequent reads of these protocols."""
    monkeypatch.setattr("config.wsgi.close_old_connections", lambda: None)
    askers: list[Asker] = []

    def make(*protocols: Reads) -> Asker:
        askers.append(Asker(*protocols))
        return askers[-1]

    yield make
    for asker in askers:
        asker.close()


@pytest.fixture
def admin(db) -> str:
    """The key of an administrator."""
    return api_keys.create_api_key(actor=SYSTEM, name="admin", level=PrincipalLevel.ADMIN)[1]


@pytest.fixture
def tenant(db) -> str:
    """The key of a principal without grants."""
    return api_keys.create_api_key(actor=SYSTEM, name="tenant", level=PrincipalLevel.GRANTED)[1]
