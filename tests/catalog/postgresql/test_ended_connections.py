"""Connections that PostgreSQL ends while they are idle."""

import time

import psycopg
import pytest
from django.db import connection, transaction

from catalog.models import Principal as PrincipalRow
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost

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
    ended = backend()
    end(ended)
    connection.connection.pgconn.exec_(b"SELECT 1")
    assert connection.connection.closed
    connection.begin_request()
    PrincipalRow.objects.create(name="user:ada")
    assert backend() != ended


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
