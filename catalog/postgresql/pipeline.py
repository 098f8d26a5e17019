"""A connection of an event loop, which sends statements without waiting for the results of earlier ones.

It serves reads whose answers need no thread. The statements of one turn of the loop are sent with one system call, and
PostgreSQL executes them one after the other. Nothing here retries: whoever gets no row takes a connection of a
thread, which knows how to wait for a database that restarts (``catalog.postgresql.base``).
"""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.pq.abc import PGconn, PGresult

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
Parameters = Sequence[bytes | None]

_MAX_PENDING = 1_000
_PATIENCE_SECONDS = 0.25
"""The time for a result, after which the connection is given up. The statements read a few rows by their keys."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""The time between two attempts to connect, which doubles until a connection has proved useful."""
_USEFUL = 1_000
"""The number of statements after which it has."""
_PLANNED_AGAIN_AT = (100, 1_000, 10_000)
"""Numbers of statements, as of the requests of ``DatabaseWrapper``."""
_PLANS = b"DISCARD PLANS"
SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
"""Settings of the session. The statements read a few rows by their keys, in the order of an index.

A plan that reads and sorts all versions of a table is cheaper if PostgreSQL expects fewer than the statement reads. The table
may have any number of them.
"""
_MOST_BYTES = 1_000
"""Of the values of a row that clients write (``are_small``)."""


class NoRow(Exception):
    """Nothing is known about the result of a statement."""


def numbered(text: str, *names: str) -> str:
    """A statement with psycopg's named parameters, ``%(name)s``, as a statement of a pipeline, with ``$1``."""
    for number, name in enumerate(names, 1):
        text = text.replace(f"%({name})s", f"${number}")
    return text


def are_small(*columns: str) -> str:
    """The condition that columns of a row have few bytes together, and are not compressed.

    A statement of a pipeline must not read other values: whoever writes them would keep all other statements waiting
    while they are decompressed and sent, and the event loop while they are parsed.
    """
    are_plain = " AND ".join(f"pg_column_compression({column}) IS NULL" for column in columns)
    return f"({size_of(*columns)} <= {_MOST_BYTES} AND {are_plain})"


def size_of(*columns: str) -> str:
    """The expression for the bytes of columns of a row together, as they are stored."""
    return " + ".join(f"coalesce(pg_column_size({column}), 0)" for column in columns)


class Pipeline:
    """Prepared statements of one event loop. It connects when the first statement is executed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, statements: Mapping[str, str]) -> None:
        """``statements`` are reads by name, with the parameters ``$1``, ``$2``."""
        self._loop = loop
        self._statements = {name.encode(): text.encode() for name, text in statements.items()}
        self._connection: psycopg.Connection[Any] | None = None
        self._libpq: PGconn | None = None
        self._rows: abc.Transformer | None = None
        self._pending: deque[asyncio.Future[Row | None] | None] = deque()
        """In the order in which they were sent; None for a statement whose result nobody needs."""
        self._answered = self._answered_at_last_look = 0
        self._executed = 0
        self._plan_again_at: deque[int] = deque()
        self._sends = False
        self._watches = False
        self._socket = -1
        """A duplicate of the connection's."""
        self._is_closed = False
        self._may_connect = True
        self._pause = _PAUSE_SECONDS

    def execute(self, name: bytes, parameters: Parameters) -> "asyncio.Future[Row | None] | None":
        """Execute a statement, and return the future of its first row, or of None if it returns no row.

        None: there is no connection, or too many statements wait. The future raises NoRow if the connection is lost,
        or the result takes too long, or the statement fails.
        """
        libpq = self._libpq
        if libpq is None:
            self._connect()
            return None
        if len(self._pending) >= _MAX_PENDING:
            return None
        try:
            libpq.send_query_prepared(name, parameters)
        except psycopg.Error as error:
            self._give_up(error)
            return None
        future: asyncio.Future[Row | None] = self._loop.create_future()
        self._pending.append(future)
        self._executed += 1
        if not self._sends:
            self._sends = True
            self._loop.call_soon(self._send)
        return future

    def close(self) -> None:
        """Close the connection for good."""
        self._is_closed = True
        self._may_connect = False
        self._give_up(None)

    # -- connecting

    def _connect(self) -> None:
        """Open a connection in a thread, and use it as soon as it is open."""
        if not self._may_connect:
            return
        self._may_connect = False
        try:
            threading.Thread(target=self._open, name="pipeline", daemon=True).start()
        except RuntimeError as error:
            self._report_failure(error)
            self._use(None)

    def _open(self) -> None:
        connection = None
        try:
            connection = self._prepared_connection()
        except psycopg.Error as error:
            self._report_failure(error)
        except Exception:
            # The thread's outermost frame. The loop connects again only after ``_use``.
            log.exception("No connection for reads in the event loop")
        try:
            self._loop.call_soon_threadsafe(self._use, connection)
        except RuntimeError:  # the loop has ended
            if connection is not None:
                connection.close()

    def _prepared_connection(self) -> "psycopg.Connection[Any]":
        connection: psycopg.Connection[Any] = psycopg.connect(**_parameters())
        try:
            for name, text in self._statements.items():
                result = connection.pgconn.prepare(name, text)
                if result.status != ExecStatus.COMMAND_OK:
                    raise psycopg.OperationalError(result.get_error_message())
        except BaseException:
            connection.close()
            raise
        return connection

    def _use(self, connection: "psycopg.Connection[Any] | None") -> None:
        self._loop.call_later(self._pause, self._allow_connecting)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        if connection is None:
            return
        if self._is_closed:
            connection.close()
            return
        libpq = connection.pgconn
        try:
            libpq.nonblocking = 1
            libpq.enter_pipeline_mode()
            # libpq closes its own when it notices that the connection is lost, and another file may get the number.
            self._socket = os.dup(libpq.socket)
        except (psycopg.Error, OSError) as error:
            self._report_failure(error)
            connection.close()
            return
        self._loop.add_reader(self._socket, self._receive)
        self._connection, self._libpq, self._rows = connection, libpq, Transformer(connection)
        self._executed, self._plan_again_at = 0, deque(_PLANNED_AGAIN_AT)

    @staticmethod
    def _report_failure(error: Exception) -> None:
        log.warning("No connection for reads in the event loop: %s", error)

    def _allow_connecting(self) -> None:
        self._may_connect = not self._is_closed

    def _give_up(self, error: Exception | None) -> None:
        """Close the connection. What waits for rows gets none."""
        connection, pending = self._connection, self._pending
        self._connection = self._libpq = self._rows = None
        self._pending = deque()
        if self._executed >= _USEFUL:
            self._pause = _PAUSE_SECONDS
        if connection is None:
            return
        if error is not None:
            log.warning("The connection for reads in the event loop is closed: %s", error)
        self._loop.remove_reader(self._socket)
        os.close(self._socket)
        connection.close()
        for future in pending:
            if future is not None and not future.done():
                future.set_exception(NoRow())

    # -- statements and their results

    def _send(self) -> None:
        """Send the statements of this turn of the loop."""
        self._sends = False
        libpq = self._libpq
        if libpq is None:
            return
        try:
            if self._plan_again_at and self._executed >= self._plan_again_at[0]:
                self._plan_again_at.popleft()
                libpq.send_query_params(_PLANS, None)
                self._pending.append(None)
            libpq.pipeline_sync()
            self._pending.append(None)
            if libpq.flush():
                self._loop.call_soon(self._flush)
        except psycopg.Error as error:
            self._give_up(error)
            return
        if not self._watches:
            self._watches = True
            self._answered_at_last_look = self._answered
            self._loop.call_later(_PATIENCE_SECONDS, self._watch)

    def _flush(self) -> None:
        """Send what the socket did not take."""
        libpq = self._libpq
        try:
            if libpq is not None and libpq.flush():
                self._loop.call_later(0.001, self._flush)
        except psycopg.Error as error:
            self._give_up(error)

    def _watch(self) -> None:
        """Give the connection up if a result has not come for too long."""
        self._watches = False
        self._receive()  # if the loop itself was late, the results have arrived
        if not self._pending:
            return
        if self._answered == self._answered_at_last_look:
            self._give_up(TimeoutError("a result takes too long"))
            return
        self._watches = True
        self._answered_at_last_look = self._answered
        self._loop.call_later(_PATIENCE_SECONDS, self._watch)

    def _receive(self) -> None:
        """Take the results that have arrived."""
        libpq = self._libpq
        if libpq is None:
            return
        try:
            libpq.consume_input()
            while self._pending and not libpq.is_busy():
                result = libpq.get_result()
                if result is None:  # the end of the results of one statement
                    continue
                self._take(result)
                if result.status == ExecStatus.FATAL_ERROR:
                    # For instance a column with another type than when the statement was prepared.
                    self._give_up(psycopg.OperationalError(result.get_error_message()))
                    return
        except psycopg.Error as error:
            self._give_up(error)

    def _take(self, result: "PGresult") -> None:
        self._answered += 1
        future = self._pending.popleft()
        if future is None or future.done():
            return
        if result.status != ExecStatus.TUPLES_OK or self._rows is None:
            future.set_exception(NoRow())
            return
        self._rows.set_pgresult(result)
        try:
            row = self._rows.load_row(0, tuple) if result.ntuples else None
        except (psycopg.Error, ValueError) as error:  # such as text in another encoding
            log.warning("A row cannot be read in the event loop: %s", error)
            future.set_exception(NoRow())
        else:
            future.set_result(row)


def _parameters() -> dict[str, Any]:
    """Those of the connections of threads, whose sessions have the timeouts of requests."""
    wrapper: Any = connections[DEFAULT_DB_ALIAS]
    parameters: dict[str, Any] = wrapper.get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "server_side_binding"):
        parameters.pop(name, None)
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    options = f"{parameters.get('options') or ''} {settings}".strip()
    return {**parameters, "options": options, "autocommit": True}
