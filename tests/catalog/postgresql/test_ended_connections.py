"""Connections that PostgreSQL ends while they are idle."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from catalog.models import Principal as PrincipalRow
from catalog.postgresql.cursors import hot_cursor
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.services.engine.locks import advisory_lock

pytestmark = pytest.mark.django_db(transaction=True)


def backend() -> int:
    connection.ensure_connection()
    return int(connection.connection.info.backend_pid)


def end(pid: int) -> None:
    info = connection.connection.info
    with psycopg.connect(info.dsn, password=info.password, autocommit=True) as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)


def test_an_ended_connection_is_replaced_before_it_is_used():
    ended = backend()
    end(ended)
    connection.close_if_ended()
    PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended


def test_a_connection_whose_end_was_noticed_is_replaced():
    """A statement outside Django has noticed the end, so Django keeps the connection."""
    ended = lose()
    connection.begin_request()
    PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended


def lose() -> int:
    """Lose the connection, as a statement outside Django notices; returns the session that has ended."""
    ended = backend()
    end(ended)
    connection.connection.pgconn.exec_(b"SELECT 1")
    assert connection.connection.closed
    return ended


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_lost_connection_is_replaced_outside_of_requests(in_transaction):
    """Threads and jobs begin no request."""
    ended = lose()
    with transaction.atomic() if in_transaction else nullcontext():
        PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended
    assert PrincipalRow.objects.filter(name="user:ada").exists()


def test_a_transaction_begins_in_a_session_that_has_not_ended():
    """Jobs wait for Spark and storage between transactions."""
    ended = backend()
    end(ended)
    with transaction.atomic():
        PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended
    assert PrincipalRow.objects.filter(name="user:ada").exists()


def begin_under_an_ended_lock() -> None:
    with advisory_lock("test") as is_acquired:
        assert is_acquired
        end(backend())
        create_in_transaction()


def test_a_transaction_begins_under_no_lock_of_a_session_that_has_ended():
    with pytest.raises(OperationalError, match="held a lock"):
        begin_under_an_ended_lock()
    assert (connection.session_locks, connection.in_atomic_block) == (0, False)
    assert not PrincipalRow.objects.filter(name="user:bob").exists()


def test_a_lost_connection_is_replaced_for_the_cached_cursor():
    ended = lose()
    hot_cursor().execute("SELECT 1")
    assert backend() != ended


def change_under_a_lost_lock() -> None:
    with advisory_lock("test") as is_acquired:
        assert is_acquired
        lose()
        PrincipalRow.objects.create(name="user:ada")


def test_a_lost_connection_with_a_lock_of_its_session_is_not_replaced():
    """What follows would change data without the lock."""
    with pytest.raises(OperationalError):
        change_under_a_lost_lock()
    assert not PrincipalRow.objects.filter(name="user:ada").exists()


def use_after_a_lost_lock(statement: Callable[[], Any]) -> None:
    """The caller goes on after the error, as a commit does that is repeated."""
    with advisory_lock("test") as is_acquired:
        assert is_acquired
        end(backend())
        with pytest.raises(OperationalError):
            statement()
        PrincipalRow.objects.create(name="user:ada")


def create_in_transaction() -> None:
    with transaction.atomic():
        PrincipalRow.objects.create(name="user:bob")


@pytest.mark.parametrize(
    "statement",
    [
        PrincipalRow.objects.count,
        lambda: PrincipalRow.objects.create(name="user:bob"),
        create_in_transaction,
        lambda: hot_cursor().execute("SELECT 1"),
    ],
    ids=["read", "write", "transaction", "cached cursor"],
)
def test_no_other_session_continues_after_a_lost_lock(statement: Callable[[], Any]):
    with pytest.raises(OperationalError, match="held a lock"):
        use_after_a_lost_lock(statement)
    assert connection.session_locks == 0
    assert not PrincipalRow.objects.filter(name__in=["user:ada", "user:bob"]).exists()


def begin_under_a_lost_lock() -> None:
    with advisory_lock("test") as is_acquired:
        assert is_acquired
        lose()
        create_in_transaction()


def test_no_transaction_begins_under_a_lost_lock():
    with pytest.raises(OperationalError, match="held a lock"):
        begin_under_a_lost_lock()
    assert not PrincipalRow.objects.filter(name="user:bob").exists()


def fail_under_a_lost_lock() -> None:
    with advisory_lock("test"):
        lose()
        raise LookupError


def test_the_end_of_a_lost_lock_hides_no_error(monkeypatch):
    backend()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)
        with pytest.raises(LookupError):
            fail_under_a_lost_lock()
    assert connection.session_locks == 0
    with advisory_lock("test") as is_acquired:  # by another session
        assert is_acquired


def change_before_and_after_the_loss() -> None:
    with transaction.atomic():
        PrincipalRow.objects.create(name="user:ada")
        lose()
        PrincipalRow.objects.create(name="user:bob")


def test_a_lost_connection_in_a_transaction_is_not_replaced():
    with pytest.raises(TransactionLost):
        change_before_and_after_the_loss()
    assert not PrincipalRow.objects.filter(name__in=["user:ada", "user:bob"]).exists()


def refuse() -> None:
    raise OperationalError("the database is not there")


def test_the_end_of_a_request_opens_no_connection(monkeypatch):
    """A database that is away would turn the answer into a failure."""
    lose()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)
        connection.close_if_unusable_or_obsolete()
    connection.close()


def test_a_lost_write_is_reported_although_the_database_is_away(monkeypatch):
    end(backend())
    with monkeypatch.context() as patch:
        patch.setattr(connection, "connect", refuse)
        with pytest.raises(OutcomeLost):
            PrincipalRow.objects.create(name="user:ada")
    assert not PrincipalRow.objects.filter(name="user:ada").exists()


@pytest.mark.parametrize("in_transaction", [False, True])
def test_rows_that_were_read_before_the_end_are_valid(in_transaction):
    """PostgreSQL has sent them, and only the removal of the cursor fails."""
    for name in ("user:ada", "user:bob"):
        PrincipalRow.objects.create(name=name)
    lost = pytest.raises(OperationalError) if in_transaction else nullcontext()
    with lost, transaction.atomic() if in_transaction else nullcontext():
        names = PrincipalRow.objects.order_by("name").values_list("name", flat=True)
        rows = names.iterator(chunk_size=1)
        assert next(rows) == "user:ada"
        ended = backend()
        end(ended)
        rows.close()
        assert connection.connection.closed
        PrincipalRow.objects.create(name="user:eve")
    assert backend() != ended
    assert PrincipalRow.objects.filter(name="user:eve").exists() is not in_transaction


def test_a_working_connection_stays():
    pid = backend()
    for _ in range(2):
        connection.close_if_ended()
    assert backend() == pid
    connection.close()
    connection.close_if_ended()
    assert connection.connection is None


def test_a_message_to_an_idle_connection_does_not_close_it():
    pid = backend()
    with connection.cursor() as cursor:
        cursor.execute("LISTEN messages")
    info = connection.connection.info
    with psycopg.connect(info.dsn, password=info.password, autocommit=True) as other:
        other.execute("NOTIFY messages")
    connection.close_if_ended()
    assert backend() == pid
    assert not PrincipalRow.objects.filter(name="user:ada").exists()


def test_a_connection_that_ends_at_the_beginning_of_a_request_is_replaced(monkeypatch):
    ended = backend()
    end(ended)
    monkeypatch.setattr(connection, "close_if_ended", lambda: None)  # it ends just after the check
    connection.requests = 99
    connection.begin_request()
    PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended


def change_after_the_end() -> None:
    with transaction.atomic():
        end(backend())
        connection.close_if_ended()
        PrincipalRow.objects.create(name="user:ada")


def be_idle_for_too_long() -> None:
    with transaction.atomic():
        PrincipalRow.objects.create(name="user:ada")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        time.sleep(0.5)


def test_a_commit_after_the_session_was_ended_as_idle_has_a_lost_outcome():
    """So the server looks up what became of the transaction."""
    with pytest.raises(OutcomeLost):
        be_idle_for_too_long()
    connection.close()
    assert not PrincipalRow.objects.filter(name="user:ada").exists()


def write_after_being_idle() -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        time.sleep(0.5)
        PrincipalRow.objects.create(name="user:ada")


def test_a_transaction_that_was_idle_for_too_long_is_lost():
    with pytest.raises(TransactionLost):
        write_after_being_idle()
    connection.close()
    assert not PrincipalRow.objects.filter(name="user:ada").exists()


def test_a_transaction_keeps_its_connection():
    with pytest.raises(TransactionLost):
        change_after_the_end()
    assert not PrincipalRow.objects.filter(name="user:ada").exists()
