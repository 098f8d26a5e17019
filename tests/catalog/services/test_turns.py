"""Commits to one table queue up across processes once they have met."""

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection

from catalog.errors import CommitConflict
from catalog.identifiers import digest
from catalog.models import TableVersion
from catalog.services import iceberg_commits, turns
from catalog.services.access import SYSTEM
from catalog.services.iceberg_commits import TableChange
from tests.factories import make_iceberg_table, make_root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")
NAME = digest(T)
KEY = NAME.int >> 65


@pytest.fixture
def other(transactional_db) -> Iterator[psycopg.Connection]:
    """The session of another process."""
    make_root()
    make_iceberg_table(*T)
    connection.ensure_connection()
    with psycopg.connect(connection.connection.info.dsn, autocommit=True) as session:
        yield session


def commit(value: str) -> None:
    updates = [{"action": "set-properties", "updates": {"key": value}}]
    change = TableChange(table=T, requirements=[], updates=updates)
    iceberg_commits.commit_table(actor=SYSTEM, change=change)


def is_free(session: psycopg.Connection) -> bool:
    (taken,) = session.execute("SELECT pg_try_advisory_lock(%s)", [KEY]).fetchone()
    session.execute("SELECT pg_advisory_unlock_all()")
    return taken


def test_who_met_nobody_does_not_queue_up(other):
    with turns.turns([NAME]):
        assert is_free(other)


def test_who_met_another_queues_up(other, django_assert_num_queries):
    turns.met_another([NAME])
    with turns.turns([NAME]):
        assert not is_free(other)
    assert is_free(other)
    commit("0")
    with django_assert_num_queries(5):  # the three of a commit, between entering and leaving
        commit("1")


def test_a_refusal_ends_the_turn(other):
    turns.met_another([NAME])
    with pytest.raises(CommitConflict), turns.turns([NAME]):
        raise CommitConflict("refused")
    assert is_free(other)
    with turns.turns([NAME]):
        pass


def test_who_stops_in_the_queue_is_passed_by(other, monkeypatch, caplog):
    monkeypatch.setattr(turns, "_ENTER", turns._ENTER.replace("2s", "50ms"))
    turns.met_another([NAME])
    other.execute("SELECT pg_advisory_lock(%s)", [KEY])
    commit("0")
    assert TableVersion.objects.filter(version=1).exists()
    assert "goes ahead without its turn" in caplog.text
    (timeout,) = connection.connection.execute("SHOW lock_timeout").fetchone()
    assert timeout == "30s"


def test_a_lost_session_ends_the_turn(other, caplog):
    turns.met_another([NAME])
    with turns.turns([NAME]):
        pid = connection.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert "A turn ends with its session" in caplog.text
    connection.close()
    assert is_free(other)


def test_a_turn_in_the_same_process_does_not_come(other, monkeypatch):
    monkeypatch.setattr(turns, "_WAIT_SECONDS", 0.05)
    refused = pytest.raises(CommitConflict, match="Too many commits")
    with turns.turns([NAME]), refused, turns.turns([NAME]):
        raise AssertionError("two turns at once")
