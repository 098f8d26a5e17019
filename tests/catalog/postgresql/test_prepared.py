"""Statements stay prepared after a rollback, and are prepared again when the schema has changed."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.utils import NotSupportedError, ProgrammingError

_READ = "SELECT name FROM catalog_namespace WHERE id = %s::bigint"


@pytest.fixture
def session(db) -> Iterator[Any]:
    """A connection of its own, which really rolls back."""
    connection = connections["default"].copy()
    connection.inc_thread_sharing()
    yield connection
    connection.close()


def run(session: Any, statement: str, *values: Any) -> list[Any]:
    with session.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def prepared(session: Any) -> dict[str, int]:
    """How often each prepared statement was executed."""
    text = "SELECT statement, generic_plans + custom_plans FROM pg_prepared_statements"
    with session.cursor() as cursor:
        cursor.cursor.execute(text, prepare=False)
        return dict(cursor.fetchall())


def read(session: Any, times: int = 4) -> int:
    """Execute a statement; returns the number of executions since it was prepared."""
    for _ in range(times):
        run(session, _READ, 1)
    return prepared(session).get(_READ.replace("%s", "$1"), 0)


def begin(session: Any) -> None:
    session.set_autocommit(False)


def roll_back(session: Any) -> None:
    session.rollback()
    session.set_autocommit(True)


def test_a_rollback_keeps_the_statements(session):
    before = read(session)
    assert before >= 1
    begin(session)
    read(session, 1)
    roll_back(session)
    assert read(session, 1) == before + 2


def test_a_failed_statement_keeps_the_others(session):
    before = read(session)
    begin(session)
    with pytest.raises(Exception, match="division by zero"):
        run(session, "SELECT 1 / %s::int", 0)
    roll_back(session)
    assert read(session, 1) == before + 1


def test_a_rollback_to_a_savepoint_keeps_the_statements(session):
    before = read(session)
    begin(session)
    savepoint = session.savepoint()
    read(session, 1)
    session.savepoint_rollback(savepoint)
    roll_back(session)
    assert read(session, 1) == before + 2


def test_a_statement_that_was_prepared_in_the_transaction_stays(session):
    session.ensure_connection()
    begin(session)
    before = read(session)
    roll_back(session)
    assert read(session, 1) == before + 1


def test_the_statements_of_a_table_that_is_rolled_back_are_discarded(session):
    """Another table may have its name later, with columns of other types."""
    session.ensure_connection()
    begin(session)
    run(session, "CREATE TEMPORARY TABLE scratch (id int)")
    for _ in range(4):
        assert run(session, "SELECT id FROM scratch WHERE id = %s", 1) == []
    assert any("scratch" in text for text in prepared(session))
    roll_back(session)
    run(session, "CREATE TEMPORARY TABLE scratch (id text)")
    run(session, "INSERT INTO scratch VALUES ('1')")
    for _ in range(4):
        assert run(session, "SELECT id FROM scratch WHERE id = %s", "1") == [("1",)]


def test_a_changed_table_discards_the_statements(session):
    read(session)
    run(session, "CREATE TEMPORARY TABLE scratch (id int)")
    assert read(session, 0)
    run(session, "DROP TABLE scratch")
    assert read(session, 0) == 0


@pytest.fixture
def other_session(session) -> Iterator[Any]:
    """Another process's connection, which may change the schema."""
    connection = session.copy()
    connection.inc_thread_sharing()
    run(connection, "CREATE TABLE scratch_of_all (id int)")
    yield connection
    run(connection, "DROP TABLE scratch_of_all")
    connection.close()


def test_a_statement_whose_columns_changed_fails_once(session, other_session):
    for _ in range(4):
        run(session, "SELECT * FROM scratch_of_all")
    run(other_session, "ALTER TABLE scratch_of_all ALTER id TYPE text")
    with pytest.raises(NotSupportedError, match="must not change result type"):
        run(session, "SELECT * FROM scratch_of_all")
    assert run(session, "SELECT * FROM scratch_of_all") == []


def test_a_statement_that_was_discarded_fails_once(session):
    assert read(session)
    session.connection.pgconn.exec_(b"DISCARD ALL")
    with pytest.raises(ProgrammingError, match="does not exist"):
        run(session, _READ, 1)
    assert run(session, _READ, -1) == []
