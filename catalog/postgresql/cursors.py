"""Cursors of the hot path."""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.utils import CursorWrapper


def hot_cursor() -> CursorWrapper:
    """A cursor of this thread's connection, kept with it for the next statement. Do not close it.

    Making one costs as much as a small statement's way to the server and back.
    """
    own = connections[DEFAULT_DB_ALIAS]
    own.ensure_connection()
    if own.queries_logged:
        return own.cursor()
    kept: tuple[Any, CursorWrapper] | None = getattr(own, "kept_cursor", None)
    if kept is None or kept[0] is not own.connection:
        kept = (own.connection, own.cursor())
        own.kept_cursor = kept  # type: ignore[attr-defined]
    return kept[1]
