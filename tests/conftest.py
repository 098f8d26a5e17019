"""Fixtures for every test. tests/embedded.py starts the database and the broker."""

import gc
import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from tests import long_sessions, templates
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


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_keepdb: bool
) -> None:
    """Make the test database of each process a copy of one migrated database.

    Django would migrate the copy: to find that nothing is left takes two seconds.
    """
    if django_db_keepdb:
        return
    from catalog.management.commands import migrate

    connections["default"].settings_dict["TEST"]["TEMPLATE"] = templates.migrated()
    creation = connections["default"].creation
    create = creation.create_test_db

    def copy(*arguments: Any, **options: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrate.Command, "handle", lambda *_, **__: None)
            return create(*arguments, **options)

    creation.create_test_db = copy


@pytest.fixture(scope="session", autouse=True)
def _passwords_are_hashed_quickly() -> Iterator[None]:
    """Hash passwords once. The hundreds of thousands of rounds for users of a server take 0.3 s."""
    from django.contrib.auth.hashers import PBKDF2PasswordHasher

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PBKDF2PasswordHasher, "iterations", 1)
        yield


_EMPTY = """
DO $$
DECLARE
    name text;
    has_rows boolean;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN
        SELECT relname FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
        AND relname NOT IN ('auth_permission', 'django_content_type', 'django_migrations')
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO has_rows;
        IF has_rows THEN
            -- Triggers of the audit trail and its seals refuse DELETE.
            EXECUTE format(
                CASE WHEN name LIKE 'catalog_audit%' THEN 'TRUNCATE %I' ELSE 'DELETE FROM %I' END,
                name
            );
        END IF;
    END LOOP;
END $$
"""
"""Without triggers, which check foreign keys. Content types and permissions describe the models: to
create them again takes longer than most tests."""


@pytest.fixture(scope="session", autouse=True)
def _whole_pages_are_recorded(django_test_environment: None) -> Iterator[None]:
    """Record the context of a page for its test, without those of all templates that it includes."""
    from django.template import Context, Template
    from django.test.signals import template_rendered
    from django.utils.safestring import SafeString

    def render(self: Template, context: Context) -> SafeString:
        if context.template is self:
            template_rendered.send(sender=self, template=self, context=context)
        return self.nodelist.render(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "_render", render)
        yield


@pytest.fixture(scope="session", autouse=True)
def _rows_are_deleted() -> Iterator[None]:
    """Empty the tables after tests with transactions by DELETE: TRUNCATE makes new files for each
    table and index, which takes half a second.

    The root namespace is added again, because the migrations create it: groups of tests run before
    the tests whose transactions are rolled back.
    """
    from django.test import TransactionTestCase

    from tests.factories import make_root

    def empty(self: TransactionTestCase) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT has_parameter_privilege('session_replication_role', 'SET')")
            (may_skip_triggers,) = cursor.fetchone()
            if may_skip_triggers:
                cursor.execute(_EMPTY)
        if not may_skip_triggers:
            flush(self)
        make_root()

    flush = TransactionTestCase._fixture_teardown
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty)
        yield


@pytest.fixture(scope="session", autouse=True)
def _more_statements_are_prepared() -> Iterator[None]:
    with long_sessions.more_statements_are_prepared():
        yield


_BETWEEN_VACUUMS = 50
"""Number of tests with the database."""
_tests = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Vacuum now and then, after the test has rolled back."""
    uses_database = "_django_db_helper" in getattr(item, "fixturenames", ())
    if uses_database and nextitem is not None and next(_tests) % _BETWEEN_VACUUMS == 0:
        long_sessions.remove_dead_rows()


_LONG = tuple(
    f"tests/{directory}/"
    for directory in (
        *("chaos", "clients", "server", "browser", "security", "docs", "ci", "config", "stores"),
        *("tasks", "catalog/row_reader", "catalog/storage/outages"),
    )
)
_DATABASE = {"db", "transactional_db"}
# Processes that collect in different seconds would not agree on such a name.
_THIS_MONTH = re.compile(rf"{int(time.time()) // 1_000_000}[0-9]{{6}}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that start processes: the longest would otherwise run alone at the end.

    Tests with the database of this process stay behind in the order of pytest-django: those that
    empty the database are the last.
    """
    if changing := [item.nodeid for item in items if _THIS_MONTH.search(item.nodeid)]:
        raise pytest.UsageError(f"The names of these tests contain the current time: {changing}")
    for item in items:
        uses_server = "live" in getattr(item, "fixturenames", ())
        if uses_server and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("live"))  # one process starts the server
    items.sort(key=lambda item: not _is_long(item))


def _is_long(item: pytest.Item) -> bool:
    uses_database = item.get_closest_marker("django_db") is not None
    fixtures = getattr(item, "fixturenames", ())
    return item.nodeid.startswith(_LONG) and not uses_database and _DATABASE.isdisjoint(fixtures)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of tests and modules, as web processes do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _leases_last(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew no lease of a job in a test whose transaction is rolled back.

    The thread that renews it does not see the job of that transaction, and would end it as taken over.
    """
    marker = request.node.get_closest_marker("django_db")
    if marker is not None and not marker.kwargs.get("transaction"):
        from catalog.services.engine import jobs

        monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 3600.0)


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
