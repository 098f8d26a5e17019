"""Django's command, which waits for a busy table without blocking the servers that use it."""

import time
from typing import Any

from django.core.management import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from psycopg.errors import DeadlockDetected, LockNotAvailable

_PATIENCE_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
_REPORT_SECONDS = 30.0
_TRANSACTIONS = """
    SELECT pid, application_name, date_trunc('second', now() - xact_start)::text FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        AND backend_type = 'client backend'
    ORDER BY xact_start LIMIT 3
"""


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        """Repeat a migration that gave up a lock (``catalog.postgresql.schema``).

        Raises CommandError with the oldest transactions if a table stays in use.
        """
        began = reported = time.monotonic()
        while True:
            try:
                super().handle(*args, **options)
            except OperationalError as error:
                if not isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
                    raise
                now = time.monotonic()
                if now - began > _PATIENCE_SECONDS:
                    raise CommandError(self._explain(options["database"])) from error
                if now - reported > _REPORT_SECONDS:
                    reported = now
                    self.stderr.write(self._explain(options["database"]))
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _explain(self, database: str) -> str:
        with connections[database].cursor() as cursor:
            cursor.execute(_TRANSACTIONS)
            oldest = [
                f"process {pid} ({name or 'unnamed'}), open for {age}"
                for pid, name, age in cursor.fetchall()
            ]
        return (
            "The migration waits for a table that transactions use. The oldest ones:"
            f" {'; '.join(oldest) or 'none'}. It is applied when they have ended."
        )
