"""Django's backend for PostgreSQL, with seven differences.

- If the server is starting, stopping or recovering, opening a connection is retried for
  ``MONODON_CONNECT_SECONDS``, by a bounded number of threads.
- A connection that ended while it was idle is replaced before a request uses it.
- A read outside a transaction whose connection is lost runs once more on a new connection.
- Any other lost connection raises ``TransactionLost`` if the transaction was rolled back for
  certain, and ``OutcomeLost`` if it may have been committed.
- Prepared statements outlast a rollback (``prepared``).
- A connection that serves requests plans its prepared statements again as the catalog grows.
- Rows of bulk inserts are divided among statements, because parameters are bound by the server, which
  accepts at most 65,535 of them. Django does this itself only from version 6 on.
"""

import random
import re
import select
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from django.conf import settings
from django.db import (
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from django.db.backends.postgresql import base, operations
from django.db.backends.utils import CursorDebugWrapper, CursorWrapper

from catalog import tracing
from catalog.postgresql import limits, outcomes, prepared
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.postgresql.schema import SchemaEditor

_UNTRACED = nullcontext()
_LOST = (OperationalError, InterfaceError, InternalError)
"""Errors by which a connection may be lost. A session that was idle in its transaction for too long ends with the last one."""
_MOST_PARAMETERS = 65_535
_PLANNED_AGAIN_AT = frozenset({100, 1_000, 10_000})
"""Numbers of requests of one connection.

PostgreSQL keeps the plan of a prepared statement until autovacuum analyzes one of its tables, which may take a minute. A
plan for a table of one page reads the whole table, and that of a new catalog grows meanwhile.
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# Errors that waiting does not resolve. Messages in other languages do not match; the wait is bounded.
_PERMANENT = re.compile(
    r"authentication failed|does not exist|pg_hba\.conf|no password supplied|translate host name"
    r"|not permitted to log in|root certificate|certificate verify"
)


class DatabaseOperations(operations.DatabaseOperations):
    def bulk_batch_size(self, fields: Sequence[Any], objs: Sequence[Any]) -> int:
        return max(1, _MOST_PARAMETERS // max(1, len(fields)))


class DatabaseWrapper(base.DatabaseWrapper):
    ops_class = DatabaseOperations
    SchemaEditorClass = SchemaEditor
    session_locks = 0
    """The number of session-level locks and settings that are needed. While there are any, no other session is opened."""
    requests = 0
    """The number of requests of the current connection."""
    statements = 0
    """The number of statements of this thread, for the log lines of requests."""

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        if limits.requests is not None:
            options = f"{parameters.get('options') or ''} {limits.requests.session_options}"
            parameters["options"] = options.strip()
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        self.requests = 0
        connection = self._connect(conn_params)
        prepared.keep_statements(connection)
        return connection

    def _connect(self, conn_params: dict[str, Any]) -> Any:
        try:
            return super().get_new_connection(conn_params)
        except self.Database.OperationalError as error:
            first = error
        with limits.reconnect_slot() as may_wait:
            if not may_wait or _PERMANENT.search(str(first)):
                raise first
            return self._try_again(conn_params)

    def _try_again(self, conn_params: dict[str, Any]) -> Any:
        deadline = time.monotonic() + settings.MONODON_CONNECT_SECONDS
        pause = _FIRST_PAUSE
        while True:
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 -- spreads the attempts
            pause = min(pause * 2, _LONGEST_PAUSE)
            try:
                return super().get_new_connection(conn_params)
            except self.Database.OperationalError as error:
                if time.monotonic() > deadline or _PERMANENT.search(str(error)):
                    raise

    def ensure_connection(self) -> None:
        """Open a connection if there is none, or only one that is known to be lost.

        Where a transaction or a lock ended with the session, the next statement must fail: raises TransactionLost or
        OperationalError.
        """
        if self.is_lost():
            if self.in_atomic_block:
                raise TransactionLost("The connection was lost in the transaction")
            if self.autocommit and not self.session_locks:
                self.close()
        if self.session_locks and (self.connection is None or self.is_lost()):
            raise OperationalError("The session that held a lock has ended")
        super().ensure_connection()

    def get_autocommit(self) -> bool:
        """Replace no lost connection: Django asks this after a request, too, and while a loss is reported."""
        if self.connection is None:
            self.ensure_connection()
        return bool(self.autocommit)

    def make_cursor(self, cursor: Any) -> CursorWrapper:
        return _TracedCursor(cursor, self) if tracing.is_on() else _Cursor(cursor, self)

    def make_debug_cursor(self, cursor: Any) -> CursorDebugWrapper:
        return _DebugCursor(cursor, self)

    def set_autocommit(self, autocommit: bool, *args: Any, **options: Any) -> None:
        """Set autocommit without opening a connection: new connections begin in this mode.

        After a lost COMMIT, Django would reconnect here, and a failure to do so would hide the lost
        COMMIT. A transaction begins in no session that has ended while it was idle.
        """
        if not autocommit:
            self.close_if_ended()
        if autocommit and self.connection is None and self.settings_dict["AUTOCOMMIT"]:
            self.autocommit = True
        else:
            super().set_autocommit(autocommit, *args, **options)

    def _commit(self) -> None:
        try:
            with tracing.statement("COMMIT") if tracing.is_on() else _UNTRACED:
                super()._commit()  # type: ignore[misc]  # absent from the stubs
        except _LOST as error:
            if not self.is_lost():
                raise
            raise OutcomeLost(*error.args) from error.__cause__

    def begin_request(self) -> None:
        """Close a connection that has ended, and forget plans that may be those of a smaller catalog."""
        self.close_if_ended()
        self.requests += 1
        if self.requests not in _PLANNED_AGAIN_AT or self.connection is None:
            return
        try:
            self.connection.execute("DISCARD PLANS", prepare=False)
        except self.Database.Error:  # the request opens another connection
            self.close()

    def close_if_ended(self) -> None:
        """Close a connection that the server has ended, while it was idle or in the request before.

        Without this, its next statement would fail, although it may be repeated. It costs one system call.
        """
        if self.connection is None or self.in_atomic_block:
            return
        libpq = self.connection.pgconn
        readable = select.poll()
        try:
            readable.register(libpq.socket, select.POLLIN)  # a lost connection has no socket
            # The reason is read before the end. Notices may come to an idle connection, too.
            while readable.poll(0):
                libpq.consume_input()
        except self.Database.OperationalError:
            self.close()

    def is_lost(self) -> bool:
        """True if the connection was closed during the last statement."""
        return self.connection is not None and bool(self.connection.closed)


class _Cursor(CursorWrapper):
    db: DatabaseWrapper

    def _execute(self, sql: Any, params: Any, *ignored: Any) -> Any:
        self.db.statements += 1
        try:
            return super()._execute(sql, params, *ignored)  # type: ignore[misc]
        except (NotSupportedError, ProgrammingError) as error:
            if outcomes.sqlstate(error) in prepared.OUTDATED:  # so that the next request succeeds
                prepared.discard_statements(self.db.connection)
            raise
        except _LOST as error:
            if not self.db.is_lost():
                raise
            if self._is_in_transaction():
                raise TransactionLost(*error.args) from error.__cause__
            self.db.close()
            if not _is_read(sql):
                raise OutcomeLost(*error.args) from error.__cause__
            if self.db.session_locks:
                raise
        self.db.ensure_connection()
        self.cursor = self.db.create_cursor()
        try:
            return super()._execute(sql, params, *ignored)  # type: ignore[misc]
        except _LOST:
            if self.db.is_lost():
                self.db.close()
            raise

    def _executemany(self, sql: Any, param_list: Any, *ignored: Any) -> Any:
        self.db.statements += 1
        try:
            return super()._executemany(sql, param_list, *ignored)  # type: ignore[misc]
        except _LOST as error:
            if not self.db.is_lost():
                raise
            kind = TransactionLost if self._is_in_transaction() else OutcomeLost
            raise kind(*error.args) from error.__cause__

    # Django looks up these methods at each call and wraps them.

    def fetchone(self) -> Any:
        with self.db.wrap_database_errors:
            return self.cursor.fetchone()

    def fetchall(self) -> Any:
        with self.db.wrap_database_errors:
            return self.cursor.fetchall()

    def close(self) -> None:
        """Close the cursor. A connection that is lost meanwhile is no failure: its next statement is.

        Django closes cursors outside its handling of errors, which for a cursor in the server takes a statement.
        """
        try:
            self.cursor.close()
        except self.db.Database.Error:
            if not self.cursor.connection.closed:
                with self.db.wrap_database_errors:
                    raise
            self.cursor.close()  # without a statement

    def _is_in_transaction(self) -> bool:
        return self.db.in_atomic_block or not self.db.get_autocommit()


class _TracedCursor(_Cursor):
    """The cursor that records a span for each statement of a traced request or job."""

    def _execute(self, sql: Any, params: Any, *ignored: Any) -> Any:
        with tracing.statement(sql):
            return super()._execute(sql, params, *ignored)

    def _executemany(self, sql: Any, param_list: Any, *ignored: Any) -> Any:
        with tracing.statement(sql):
            return super()._executemany(sql, param_list, *ignored)


class _DebugCursor(CursorDebugWrapper, _Cursor):
    """The cursor that logs queries, with the same handling of lost connections."""


_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)


def _is_read(sql: Any) -> bool:
    """True if a statement certainly changes no data."""
    if not isinstance(sql, str):
        return False
    start = sql.lstrip()[:6].upper()
    return start == "SELECT" or (start.startswith("WITH") and not _WRITES.search(sql))
