"""Fixtures for every test. tests/embedded.py starts the database and the broker."""

from collections.abc import Iterator

import pytest

from tests.stores.fixtures import (
    Storage,
    azurite,
    fake_gcs,
    make_live_profile,
    make_profile,
    moto_s3,
    proxied_s3,
    s3,
    s3_profile,
    s3_proxy,
    seaweedfs,
    storage,
    versitygw,
)

__all__ = [
    "azurite",
    "fake_gcs",
    "make_live_profile",
    "make_profile",
    "moto_s3",
    "proxied_s3",
    "s3",
    "s3_profile",
    "s3_proxy",
    "seaweedfs",
    "storage",
    "versitygw",
]


@pytest.fixture
def everywhere(db: None, storage: Storage) -> Storage:
    """The new tables of the test are in local files; then it runs with tables in an object store."""
    from tests.factories import make_root

    storage.bind(make_root())
    return storage


@pytest.fixture(scope="session", autouse=True)
def _admin_pages() -> None:
    """Load the admin, as web processes do before they serve: tests log in before their first
    request."""
    from django.contrib import admin

    admin.autodiscover()


@pytest.fixture(autouse=True)
def _empty_caches() -> Iterator[None]:
    """Clear the caches of keys and tables, because each test has another database."""
    from catalog.postgresql import limits
    from catalog.services.access import known_keys
    from catalog.services.access.throttle import throttle
    from catalog.services.audit import refusals
    from catalog.services.engine import table_cache
    from catalog.services.storage import credentials, profiles, s3_sessions
    from catalog.storage.outages import availability

    limits.requests = None  # a test that loads config.wsgi makes this a web process
    availability.does_serve_requests = False
    known_keys.forget_keys()
    throttle.reset()
    table_cache.tables.clear()
    table_cache.documents.clear()
    refusals.ledger.forget()
    profiles.discard_cache()
    credentials.discard_cache()
    s3_sessions.forget()
    # The thread would write to the database of a later test. Tests of refusals write them themselves.
    refusals.ledger.deliver = lambda due: None
    yield
    known_keys.forget_keys()
    table_cache.tables.clear()
    table_cache.documents.clear()
    profiles.discard_cache()
    refusals.ledger.forget()  # its database is gone when the process ends
