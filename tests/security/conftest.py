from pathlib import Path

import pytest

from catalog.access import SYSTEM
from catalog.models import UnreadSnapshot
from catalog.privileges import Privilege
from catalog.services.access import api_keys
from tests.access.protocols import KEY, give, make_requester
from tests.api.conftest import _static_files, lance, warehouse
from tests.api.iceberg.client import Iceberg
from tests.factories import make_namespace, make_root
from tests.recall import recall, recalled_warehouse
from tests.security.foreign import World

__all__ = ["_static_files", "lance", "recalled_warehouse", "warehouse"]


@pytest.fixture
def iceberg(db) -> Iceberg:
    """A client of the Iceberg protocol with all privileges."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="iceberg-tester")
    return Iceberg(key)


@pytest.fixture
def held_jobs(settings, monkeypatch) -> None:
    """Jobs wait until the test runs them, and the files of dropped tables for an hour."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = settings.MONODON_PURGE_GRACE_SECONDS = 3600


@pytest.fixture
def world(db, recalled_warehouse: Path, settings, monkeypatch) -> World:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 86_400

    def make() -> World:
        make_root()
        made = World(recalled_warehouse, recalled_warehouse.parent)
        requester = make_requester()
        give(requester, Privilege.ALL, make_namespace("mine"))
        assert not UnreadSnapshot.objects.exists(), "a test has limited what the commits read"
        return made

    return recall("foreign files", make)


@pytest.fixture
def attacker() -> Iceberg:
    return Iceberg(KEY)
