"""Thousands of tests in one database: PostgreSQL removes their rows, and plans a statement once.

Almost every test rolls back. The rows that it wrote stay in the tables until VACUUM removes them, and each
statement reads past them: after a few hundred tests, requests took PostgreSQL two to eight times as long.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections
from psycopg import sql
from psycopg._connection_base import BaseConnection
from psycopg._preparing import PrepareManager

_MOST_DEAD_ROWS = 200
_DISCARDING = re.compile(rb"(DROP|ALTER|DISCARD ALL|DEALLOCATE ALL)\b")
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
def statements_stay_prepared() -> Iterator[None]:
    """Keep prepared statements after a rollback, as after a commit.

    psycopg discards them, because they may refer to a table that the transaction has created.
    """
    roll_back, should_discard = BaseConnection._rollback_gen, PrepareManager._should_discard

    def keep(connection: BaseConnection[Any]) -> Any:
        prepared, connection._prepared = connection._prepared, PrepareManager()
        try:
            yield from roll_back(connection)
        finally:
            connection._prepared = prepared

    def discards(manager: PrepareManager, prepare: Any, results: Any) -> bool:
        return should_discard(manager, prepare, results, _DISCARDING.match)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseConnection, "_rollback_gen", keep)
        patch.setattr(PrepareManager, "_should_discard", discards)
        patch.setattr(PrepareManager, "prepared_max", _MOST_STATEMENTS)
        yield
