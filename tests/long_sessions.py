"""Thousands of tests in one database: PostgreSQL removes their rows, and plans a statement once.

Almost every test rolls back. The rows that it wrote stay in the tables until VACUUM removes them, and each
statement reads past them: after a few hundred tests, requests took PostgreSQL two to eight times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connections
from psycopg import sql
from psycopg._preparing import PrepareManager

_MOST_DEAD_ROWS = 200
_MOST_STATEMENTS = 500


def remove_dead_rows() -> None:
    """Vacuum the tables with many dead rows.

    The session ends here, because some tests need to be alone in their database.
    """
    parameters = connections["default"].get_connection_params()
    with psycopg.connect(**parameters, autocommit=True) as session:
        query = "SELECT relname FROM pg_stat_user_tables WHERE n_dead_tup > %s"
        names = [name for (name,) in session.execute(query, [_MOST_DEAD_ROWS])]
        if names:
            tables = sql.SQL(", ").join(map(sql.Identifier, names))
            session.execute(sql.SQL("VACUUM (SKIP_LOCKED) {}").format(tables))


@contextmanager
def more_statements_are_prepared() -> Iterator[None]:
    """Let connections keep the prepared statements of many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrepareManager, "prepared_max", _MOST_STATEMENTS)
        yield
