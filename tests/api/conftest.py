from pathlib import Path

import pytest
from django.conf import settings as django_settings

from api import metrics
from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.client import Lance


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
