"""Prepared statements that outlast a rollback.

psycopg discards the prepared statements of a connection at each rollback, also to a savepoint, because they may use a
table that the transaction has created. Requests create no tables, but each refused commit rolls back. PostgreSQL keeps
prepared statements after a rollback, and analyzes them again when a table has changed; so they are discarded only after
a transaction that changed the schema.
"""

import re
from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg._preparing import PrepareManager

_CREATES = re.compile(rb"CREATE\b")
_DISCARDS = re.compile(rb"(DROP|ALTER|DISCARD ALL|DEALLOCATE ALL)\b")
_ROLLS_BACK = re.compile(rb"ROLLBACK\b")

OUTDATED = frozenset({"0A000", "26000"})
"""Errors of a statement whose columns have changed their types, and of one that somebody has discarded."""


class PreparedStatements(PrepareManager):
    """The prepared statements of one connection."""

    _has_created = False
    """True if a transaction that may be rolled back has created a table."""

    def clear(self) -> bool:
        """Keep the statements, unless they may use a table that is rolled back. psycopg calls this after a rollback."""
        return self.discard() if self._has_created else False

    def discard(self) -> bool:
        """Prepare all statements again; True if there were any."""
        self._has_created = False
        return super().clear()

    def _should_discard(self, prep: Any, results: Sequence[Any], *ignored: Any) -> bool:
        for result in results:
            command = result.command_status or b""
            if _DISCARDS.match(command):
                return self.discard()
            if _ROLLS_BACK.match(command):
                return self.clear()
            self._has_created |= _CREATES.match(command) is not None
        return False


def keep_statements(connection: "Connection[Any]") -> None:
    """Let the prepared statements of a new connection outlast its rollbacks."""
    statements, before = PreparedStatements(), connection._prepared  # noqa: SLF001 -- psycopg has no setting
    statements.prepare_threshold = before.prepare_threshold
    statements.prepared_max = before.prepared_max
    connection._prepared = statements  # noqa: SLF001


def discard_statements(connection: "Connection[Any] | None") -> None:
    """Discard the prepared statements of a connection after an error that is OUTDATED."""
    statements = getattr(connection, "_prepared", None)
    if isinstance(statements, PreparedStatements):
        statements.discard()
