"""Changes of the schema while servers use the database (rolling updates).

A statement such as ALTER TABLE waits for all transactions that use the table, for example those of a backup,
and every later statement on the table waits behind it. Therefore it gives up after a short time, less than
requests wait and less than PostgreSQL takes to detect a deadlock; ``manage.py bootstrap`` then repeats the
migration.
"""

from types import TracebackType
from typing import Any, Self

from django.db import DatabaseError, models
from django.db.backends.postgresql.schema import DatabaseSchemaEditor

LOCK_MILLISECONDS = 500
"""The time for which a migration waits for a lock that requests wait behind."""


class SchemaEditor(DatabaseSchemaEditor):
    def __enter__(self) -> Self:
        editor: Self = super().__enter__()
        if not self.collect_sql:
            try:
                self._limit()
            except DatabaseError as error:
                if self.atomic_migration:
                    self.atomic.__exit__(type(error), error, error.__traceback__)
                raise
        return editor

    def _limit(self) -> None:
        scope = "LOCAL" if self.atomic_migration else "SESSION"
        self.execute(f"SET {scope} lock_timeout = '{LOCK_MILLISECONDS}ms'")
        if not self.atomic_migration:
            self._session.session_locks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_of_session = not (self.collect_sql or self.atomic_migration)
        try:
            super().__exit__(kind, error, traceback)
        finally:
            if is_of_session:
                self._session.session_locks -= 1
        if is_of_session and self.connection.connection is not None and not self._session.is_lost():
            self._reset()

    def add_index(
        self, model: type[models.Model], index: models.Index, concurrently: bool = False
    ) -> None:
        """Create an index. If concurrently, without a limit of time, because nothing waits behind it.

        An index of an interrupted attempt is removed first: PostgreSQL leaves it there, but unusable.
        """
        if not concurrently or self.collect_sql:
            super().add_index(model, index, concurrently=concurrently)
            return
        self.execute("SET SESSION lock_timeout = 0")
        try:
            self.remove_index(model, index, concurrently=True)
            super().add_index(model, index, concurrently=True)
        finally:
            self._reset()

    @property
    def _session(self) -> Any:
        """Our backend. While its session has the timeout of an editor, it opens no other session."""
        return self.connection

    def _reset(self) -> None:
        self.execute("RESET lock_timeout")
