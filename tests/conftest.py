"""Fixtures for every test. tests/embedded.py starts the database and the broker."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from psycopg.pq import TransactionStatus

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


@pytest.fixture(scope="session", autouse=True)
def _connection_is_kept() -> Iterator[None]:
    """Keep the connection to the database between tests: a new one must load the descriptions of
    all tables again, and plan all statements."""
    from django.test import TestCase

    def roll_back(cls: type[TestCase]) -> None:
        if cls._databases_support_transactions():
            cls._rollback_atomics(cls.cls_atomics)
            for connection in connections.all(initialized_only=True):
                if not _is_reusable(connection):
                    connection.close()
        super(TestCase, cls).tearDownClass()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestCase, "tearDownClass", classmethod(roll_back))
        yield


@pytest.fixture(scope="session", autouse=True)
def _rows_are_deleted() -> Iterator[None]:
    """Empty the tables after tests with transactions by DELETE: TRUNCATE makes new files for each
    table and index, which takes half a second."""
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self: Any, style: Any, tables: list[str], **options: bool) -> list[str]:
        if not tables or options.get("reset_sequences"):
            return truncate(self, style, tables, **options)
        names = [self.quote_name(table) for table in tables]
        # Triggers of the audit trail and its seals refuse DELETE.
        emptied = " ".join(
            f"{'TRUNCATE' if table.startswith('catalog_audit') else 'DELETE FROM'} {name};"
            for table, name in zip(tables, names, strict=True)
        )
        statement = (
            "DO $$ BEGIN"
            " IF has_parameter_privilege('session_replication_role', 'SET') THEN"
            f" SET LOCAL session_replication_role = replica; {emptied}"
            f" ELSE TRUNCATE {', '.join(names)}; END IF;"
            " END $$"
        )
        return [statement]

    truncate = DatabaseOperations.sql_flush
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        yield


def _is_reusable(connection: Any) -> bool:
    raw = connection.connection
    return (
        raw is not None
        and not connection.in_atomic_block
        and raw.info.transaction_status is TransactionStatus.IDLE
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of tests and modules, as web processes do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _empty_caches() -> Iterator[None]:
    """Clear the caches of keys and tables, because each test has another database."""
    from catalog.postgresql import limits
    from catalog.services.audit import refusals
    from catalog.storage.outages import availability
    from tests.undo import empty_caches

    limits.requests = None  # a test that loads config.wsgi makes this a web process
    availability.does_serve_requests = False
    empty_caches()
    # The thread would write to the database of a later test. Tests of refusals write them themselves.
    refusals.ledger.deliver = lambda due: None
    yield
    empty_caches()
