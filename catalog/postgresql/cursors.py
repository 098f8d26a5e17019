"""Cursors of the hot path."""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.utils import CursorWrapper


def hot_cursor() -> CursorWrapper:
    """The cached cursor of this thread's connection, for frequent statements. Do not close it.

    Creating a cursor takes as long as the round trip of a small statement.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    connection.ensure_connection()
    if connection.queries_logged:
        return connection.cursor()
    cached: tuple[Any, CursorWrapper] | None = getattr(connection, "cached_cursor", None)
    if cached is None or cached[0] is not connection.connection:
        cached = (connection.connection, connection.cursor())
        connection.cached_cursor = cached  # type: ignore[attr-defined]
    return cached[1]
