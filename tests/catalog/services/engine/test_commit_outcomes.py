"""Commits whose session ends: those that took effect are reported, others are repeated."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.backends.postgresql import base as django_backend

from catalog.access import SYSTEM
from catalog.errors import Busy, OutcomeUnknown
from catalog.models import (
    Namespace,
    Table,
    TableState,
    TableVersion,
    Transaction,
    TransactionStatus,
)
from catalog.postgresql import limits
from catalog.postgresql.base import DatabaseWrapper
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.services.engine import commit as engine_commit
from catalog.services.engine import commit_outcomes, locks, statements
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import version_operations
from catalog.services.tables import namespace_operations
from tests.factories import make_root, make_table

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("warehouse", "root"),
]
T = ("ns", "t")


@pytest.fixture
def root(transactional_db) -> None:
    make_root()


def _end_session() -> None:
    raw = connection.connection
    with psycopg.connect(raw.info.dsn, password=raw.info.password, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])


def make_live_table() -> None:
    make_table(*T)
    Table.objects.update(state=TableState.LIVE)


def create_version(number: int = 1) -> version_operations.CreateVersion:
    return version_operations.CreateVersion(
        table=T, version=number, manifest_path=f"elsewhere/{number}.manifest"
    )


def create_namespace() -> namespace_operations.CreateNamespace:
    """An operation that is committed with locks."""
    return namespace_operations.CreateNamespace(
        namespace=("new",), mode=namespace_operations.CreateMode.EXIST_OK
    )


# --- one statement ----------------------------------------------------------------------------


@pytest.fixture
def lost_statement(monkeypatch) -> Callable[[bool], None]:
    """The next insert of a version loses its session, before or after its execution."""

    def lose(stands: bool) -> None:
        real = statements.insert_if_unchanged

        def insert(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(engine_commit, "insert_if_unchanged", real)
            if stands:
                real(*arguments, **options)
                connection.close()
                raise OutcomeLost("lost")
            _end_session()
            return real(*arguments, **options)

        monkeypatch.setattr(engine_commit, "insert_if_unchanged", insert)

    return lose


@pytest.mark.parametrize("stands", [True, False])
def test_a_version_with_a_lost_answer_is_committed_once(lost_statement, stands):
    make_live_table()
    lost_statement(stands)
    result = commit([create_version()], actor=SYSTEM)
    row = TableVersion.objects.get()
    assert (row.version, row.transaction_id) == (1, result.transaction_id)
    assert result.results[0].created_at == row.created_at
    failed = Transaction.objects.filter(status=TransactionStatus.FAILED)
    assert [transaction.operations for transaction in failed] == ([] if stands else [[]])
    with pytest.raises(engine_commit.VersionAlreadyExists):
        commit([create_version()], actor=SYSTEM)


def test_the_outcome_is_unknown_while_the_database_is_unreachable(lost_statement, monkeypatch):
    make_live_table()
    lost_statement(stands=True)

    def decide(row: Transaction) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(commit_outcomes, "_decide", decide)
    monkeypatch.setattr(commit_outcomes, "_PATIENCE_SECONDS", 0)
    with pytest.raises(OutcomeUnknown) as refused:
        commit([create_version()], actor=SYSTEM)
    row = TableVersion.objects.get()
    assert f"Transaction '{row.transaction_id}' exists" in (refused.value.detail or "")


# --- transactions -----------------------------------------------------------------------------


def test_an_unreachable_database_makes_the_outcome_unknown(monkeypatch):
    """Django reconnects when it leaves a transaction. A failure there must not hide the loss."""
    commit_to_server = django_backend.DatabaseWrapper._commit
    connect = django_backend.DatabaseWrapper.get_new_connection
    is_away = False

    def lose(self) -> None:
        nonlocal is_away
        commit_to_server(self)
        self.connection.pgconn.finish()
        is_away = True
        raise OutcomeLost("lost at COMMIT")

    def refuse(self, parameters):
        if is_away:
            raise OperationalError("connection failed: the database system is in recovery mode")
        return connect(self, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(commit_outcomes, "_PATIENCE_SECONDS", 0.2)
        patch.setattr(DatabaseWrapper, "_commit", lose)
        patch.setattr(DatabaseWrapper, "get_new_connection", refuse)
        with pytest.raises(OutcomeUnknown):
            commit([create_namespace()], actor=SYSTEM)
    connection.close()
    assert Namespace.objects.filter(path=["new"]).count() == 1


@pytest.mark.parametrize("stands", [True, False])
def test_a_transaction_with_a_lost_answer_is_committed_once(monkeypatch, stands):
    real = django_backend.DatabaseWrapper._commit

    def lose(self: Any) -> None:
        monkeypatch.setattr(django_backend.DatabaseWrapper, "_commit", real)
        if stands:
            real(self)
            self.connection.close()
            raise OperationalError("lost")
        _end_session()
        real(self)

    monkeypatch.setattr(django_backend.DatabaseWrapper, "_commit", lose)
    result = commit([create_namespace()], actor=SYSTEM)
    assert Namespace.objects.filter(name="new").count() == 1
    assert Transaction.objects.filter(pk=result.transaction_id).exists()


def test_a_commit_is_repeated_when_its_session_ends_before_commit(monkeypatch):
    real, calls = Batch.flush_but_last, []

    def flush(self: Batch) -> Any:
        calls.append(1)
        if len(calls) == 1:
            _end_session()
        return real(self)

    monkeypatch.setattr(Batch, "flush_but_last", flush)
    commit([create_namespace()], actor=SYSTEM)
    assert len(calls) == 2
    assert Namespace.objects.filter(name="new").count() == 1
    # No look-up: without a COMMIT the outcome is clear.
    assert not Transaction.objects.filter(status=TransactionStatus.FAILED).exists()


def test_errors_after_the_commit_do_not_fail_the_request(monkeypatch):
    make_live_table()

    def broken(rows: list[Any]) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(version_operations, "_count_created", broken)
    assert commit([create_version()], actor=SYSTEM).id is not None


# --- look-up of outcomes ----------------------------------------------------------------------


def other_session() -> psycopg.Connection:
    raw = connection.connection
    return psycopg.connect(raw.info.dsn, password=raw.info.password)


_INSERT = (
    "INSERT INTO catalog_transaction (id, status, actor, request_id, operations, properties)"
    " VALUES (%s, 'Succeeded', '', '', '[{}]', '{}')"
)


def test_a_transaction_not_received_cannot_commit_later():
    row = Transaction(actor="a")
    connection.ensure_connection()
    with other_session() as late:
        assert commit_outcomes.look_up(row) is None
        with pytest.raises(psycopg.errors.UniqueViolation):
            late.execute(_INSERT, [row.pk])
        late.rollback()
    assert commit_outcomes.look_up(row) is None  # at each call


@pytest.mark.parametrize("stands", [True, False])
def test_the_check_waits_for_a_session_that_still_commits(stands):
    row = Transaction(actor="a")
    connection.ensure_connection()
    with other_session() as late:
        late.execute(_INSERT, [row.pk])
        end = threading.Timer(0.3, late.commit if stands else late.rollback)
        end.start()
        assert (commit_outcomes.look_up(row) is not None) is stands
        end.join()


# --- sessions ---------------------------------------------------------------------------------


def count() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM catalog_namespace")
        return int(cursor.fetchone()[0])


def test_a_read_is_repeated_when_its_session_ends():
    assert count() == 1
    _end_session()
    assert count() == 1
    _end_session()
    assert Namespace.objects.count() == 1


def test_a_read_is_not_repeated_inside_a_transaction():
    def read_twice() -> None:
        with transaction.atomic():
            count()
            _end_session()
            count()

    with pytest.raises(TransactionLost):
        read_twice()
    assert count() == 1


def test_a_write_is_not_repeated():
    make_live_table()
    _end_session()
    with pytest.raises(OutcomeLost):
        Table.objects.update(owner="x")
    assert not Table.objects.filter(owner="x").exists()


def test_a_read_under_a_session_lock_is_not_repeated():
    def read_alone() -> None:
        with locks.advisory_lock("work") as is_alone:
            assert is_alone
            _end_session()
            count()

    with pytest.raises(OperationalError):
        read_alone()
    assert connection.session_locks == 0


@pytest.mark.parametrize("ends", ["before", "within"])
def test_a_commit_under_a_lost_session_lock_is_not_repeated(monkeypatch, ends):
    """Another process may do the same work by now."""
    real, calls = Batch.flush_but_last, []

    def flush(self: Batch) -> Any:
        calls.append(1)
        if ends == "within":
            _end_session()
        return real(self)

    def commit_alone() -> None:
        with locks.advisory_lock("work") as is_alone:
            assert is_alone
            if ends == "before":
                _end_session()
            commit([create_namespace()], actor=SYSTEM)

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "flush_but_last", flush)
        with pytest.raises(TransactionLost if ends == "within" else OperationalError):
            commit_alone()
    assert len(calls) == (ends == "within")
    assert connection.session_locks == 0
    assert not Namespace.objects.filter(name="new").exists()
    commit([create_namespace()], actor=SYSTEM)
    assert Namespace.objects.filter(name="new").exists()


class _Starting:
    """A starting server, which refuses this number of connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int, text: str) -> None:
        self.calls, real = 0, django_backend.DatabaseWrapper.get_new_connection

        def connect(wrapper: Any, parameters: dict[str, Any]) -> Any:
            self.calls += 1
            if self.calls <= refusals:
                raise psycopg.OperationalError(text)
            return real(wrapper, parameters)

        monkeypatch.setattr(django_backend.DatabaseWrapper, "get_new_connection", connect)


@pytest.mark.parametrize(
    "text", ["FATAL:  the database system is starting up", "Connection refused"]
)
def test_reads_wait_for_a_starting_database(monkeypatch, text):
    connection.close()
    server = _Starting(monkeypatch, 3, text)
    assert count() == 1
    assert server.calls == 4


@pytest.mark.parametrize("case", ["a wrong password", "fail_fast", "no place"])
def test_reads_do_not_wait_for_a_database_in_these_cases(monkeypatch, case):
    connection.close()
    text = "password authentication failed" if case == "a wrong password" else "starting up"
    server = _Starting(monkeypatch, 3, text)
    if case == "no place":
        bounds = limits.RequestLimits(threads=4, lock_seconds=1, statement_seconds=1)
        monkeypatch.setattr(limits, "requests", bounds)
        monkeypatch.setattr(limits, "_reconnecting_count", 3)
    patience = limits.fail_fast() if case == "fail_fast" else nullcontext()
    with patience, pytest.raises((OperationalError, InterfaceError)):
        count()
    assert server.calls == 1


def test_a_web_process_opens_sessions_with_short_timeouts(monkeypatch):
    bounds = limits.RequestLimits(threads=4, lock_seconds=3, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        )
        assert cursor.fetchone() == ("3s", "30s")
    connection.close()
    monkeypatch.setattr(limits, "requests", None)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        )
        assert cursor.fetchone() == ("30s", "0")


def test_a_lock_timeout_is_reported_as_a_locked_row(monkeypatch):
    make_live_table()
    bounds = limits.RequestLimits(threads=4, lock_seconds=1, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    connection.ensure_connection()
    with other_session() as holder:
        holder.execute("SELECT FROM catalog_table FOR UPDATE")
        connection.close()
        for _ in range(2):
            with pytest.raises(Busy) as refused:
                commit([create_version()], actor=SYSTEM)
            assert refused.value.message == (
                "Another transaction has held a lock for too long that a commit to 'ns.t' needs;"
                " try again"
            )
        holder.rollback()
    connection.close()
    assert not TableVersion.objects.exists()
