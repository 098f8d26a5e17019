"""Migrations give up locks that servers wait behind, and are repeated."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.core.management.commands import migrate as django_migrate
from django.db import OperationalError, connection, models

from catalog.management.commands import migrate
from catalog.models import Job
from tests import templates

pytestmark = pytest.mark.django_db(transaction=True)

INDEX = models.Index(fields=["kind"], name="of_the_test")


def session() -> psycopg.Connection:
    """Another session, with an application's name."""
    url = templates.url_of(connection.settings_dict["NAME"])
    return psycopg.connect(url, application_name="a backup")


@pytest.fixture
def backup() -> Iterator[psycopg.Connection]:
    """A session that reads the table of jobs in an open transaction, as pg_dump does."""
    with session() as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT FROM catalog_job")
        yield other


def add_column() -> None:
    with connection.schema_editor(atomic=True) as editor:
        editor.execute("ALTER TABLE catalog_job ADD COLUMN of_the_test integer")
        editor.execute("ALTER TABLE catalog_job DROP COLUMN of_the_test")


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


def is_valid() -> bool | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [INDEX.name]
        )
        row = cursor.fetchone()
        return row and row[0]


def test_a_migration_gives_up_a_lock_before_requests_do(backup):
    before = lock_timeout()
    assert before not in {"0", "500ms"}
    began = time.monotonic()
    refusals: list[Exception] = []

    def attempt() -> None:
        try:
            add_column()
        except OperationalError as error:
            refusals.append(error)
        connection.close()

    attempting = threading.Thread(target=attempt)
    attempting.start()
    time.sleep(0.2)
    with session() as request:
        request.execute("SET lock_timeout = '3s'")
        request.execute("SELECT FROM catalog_job")  # waits behind the migration
    attempting.join()
    assert time.monotonic() - began < 3
    assert [type(error.__cause__) for error in refusals] == [psycopg.errors.LockNotAvailable]
    backup.rollback()
    add_column()
    assert lock_timeout() == before


def test_the_command_repeats_a_migration_that_gave_up(backup, monkeypatch):
    attempts = []

    def handle(*args: Any, **options: Any) -> None:
        attempts.append(options)
        if len(attempts) == 2:
            backup.rollback()
        add_column()

    monkeypatch.setattr(django_migrate.Command, "handle", handle)
    monkeypatch.setattr(migrate, "_PAUSE_SECONDS", 0.01)
    call_command("migrate", verbosity=0)
    assert len(attempts) == 2


def test_the_command_names_the_transactions_that_it_waited_for(backup, monkeypatch):
    monkeypatch.setattr(django_migrate.Command, "handle", lambda *args, **options: add_column())
    monkeypatch.setattr(migrate, "_PATIENCE_SECONDS", 0)
    with pytest.raises(CommandError, match=rf"process {backup.info.backend_pid} \(a backup\)"):
        call_command("migrate", verbosity=0)


def test_other_errors_are_not_repeated(monkeypatch):
    attempts = []

    def handle(*args: Any, **options: Any) -> None:
        attempts.append(options)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(django_migrate.Command, "handle", handle)
    with pytest.raises(OperationalError):
        call_command("migrate", verbosity=0)
    connection.close()
    assert len(attempts) == 1


def test_an_index_replaces_that_of_an_interrupted_attempt(backup):
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
        with pytest.raises(OperationalError):
            cursor.execute(f"CREATE INDEX CONCURRENTLY {INDEX.name} ON catalog_job (kind)")
        cursor.execute("RESET lock_timeout")
    assert is_valid() is False
    before = lock_timeout()
    ending = threading.Timer(1.0, backup.rollback)  # later than the limit for other statements
    ending.start()
    try:
        with connection.schema_editor(atomic=False) as editor:
            editor.add_index(Job, INDEX, concurrently=True)
        assert is_valid() is True
        assert lock_timeout() == before
    finally:
        ending.join()
        with connection.schema_editor(atomic=False) as editor:
            editor.remove_index(Job, INDEX, concurrently=True)


def end_session() -> None:
    with session() as other:
        pid = connection.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def change_after_a_lost_read() -> None:
    with connection.schema_editor(atomic=False) as editor:
        end_session()
        with pytest.raises(OperationalError):
            Job.objects.exists()
        editor.execute("ALTER TABLE catalog_job ADD COLUMN of_the_test integer")


def test_a_migration_continues_in_no_other_session():
    """That session would wait for locks without a limit, and requests behind it."""
    before = lock_timeout()
    with pytest.raises(OperationalError):
        change_after_a_lost_read()
    assert (connection.session_locks, lock_timeout()) == (0, before)
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "catalog_job")
    assert "of_the_test" not in {column.name for column in columns}


def enter_after_the_end(monkeypatch: pytest.MonkeyPatch, *, atomic: bool) -> None:
    """The session ends just after the beginning of the transaction."""
    with monkeypatch.context() as patch:
        patch.setattr(connection, "close_if_ended", lambda: None)
        end_session()
        with connection.schema_editor(atomic=atomic):
            pytest.fail("the editor has no limit")


@pytest.mark.parametrize("atomic", [True, False])
def test_an_editor_that_cannot_be_entered_leaves_no_transaction(monkeypatch, atomic):
    before = lock_timeout()
    with pytest.raises(OperationalError):
        enter_after_the_end(monkeypatch, atomic=atomic)
    assert (connection.in_atomic_block, connection.session_locks) == (False, 0)
    add_column()
    assert lock_timeout() == before
