"""Plans of statements whose values vary.

The statements of the APIs are prepared, and PostgreSQL soon plans them for any values. A list with filters needs a
plan for its values: for any values PostgreSQL uses no partial index whose condition is a value, and assumes
that a page of unknown position is a tenth of the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def planned_for_values() -> Iterator[None]:
    """Prepare no statements, so that each is planned for its values.

    A connection that opens meanwhile is not affected: its first statements are not prepared in any case.
    """
    session = connection.connection
    if session is None:
        yield
        return
    threshold = session.prepare_threshold
    session.prepare_threshold = None
    try:
        yield
    finally:
        session.prepare_threshold = threshold
