"""Rows about tables that a periodic task derives from the audit trail, so that commits cost nothing more."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, models, transaction

from catalog.services.engine import locks

MAX_EVENTS = 10_000  # in one transaction
_FILLED_AT_ONCE = 5_000  # tables, in one transaction


@dataclass(frozen=True)
class Follower:
    """Keeps one kind of rows. Its cursor has one row: ``models.TableFollowerCursor``."""

    name: str
    """Name of the advisory lock."""
    cursor: type[Any]
    enter: Callable[[Sequence[int]], None]
    """Inserts or updates the rows of the tables with these primary keys; ignores dropped ones."""
    remove: Callable[[Sequence[int]], None]

    def are_complete(self) -> bool:
        """True if every table that is not new has its row."""
        return bool(self.cursor.objects.filter(next_table=None).exists())

    def update(self, *, seconds: float) -> int:
        """Follow the audit trail; returns the number of processed events.

        The first pass begins to enter all tables. Processes nothing more after ``seconds``, and does
        nothing if another pass is running.
        """
        with locks.advisory_lock(self.name) as is_alone:
            if not is_alone:
                return 0
            until = time.monotonic() + seconds
            self._begin()
            while self._fill() and time.monotonic() < until:
                pass
            events = 0
            while time.monotonic() < until:
                count = self.follow()
                events += count
                if count < MAX_EVENTS:
                    break
            return events

    def _begin(self) -> None:
        """Set the cursor to the end of the audit trail, unless there is one."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                INSERT INTO {self._cursor_table} (id, xid, event, next_table)
                SELECT 1, (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8,
                    9223372036854775807, 0
                ON CONFLICT (id) DO NOTHING
                """
            )

    @property
    def _cursor_table(self) -> str:
        model: type[models.Model] = self.cursor
        return model._meta.db_table

    def _fill(self) -> int:
        """Enter the next tables of a catalog that is older than its rows; returns their number."""
        with transaction.atomic(), connection.cursor() as cursor:
            start = self.cursor.objects.values_list("next_table", flat=True).get()
            if start is None:
                return 0
            cursor.execute(
                "SELECT id FROM catalog_table WHERE id >= %s ORDER BY id LIMIT %s",
                [start, _FILLED_AT_ONCE],
            )
            tables = [pk for (pk,) in cursor.fetchall()]
            self.enter(tables)
            following = tables[-1] + 1 if len(tables) == _FILLED_AT_ONCE else None
            self.cursor.objects.update(next_table=following)
            return len(tables)

    def follow(self) -> int:
        """Update the rows of the tables of the next audit events; returns the number of events.

        One transaction, so no event is lost.
        """
        with transaction.atomic(), connection.cursor() as cursor:
            xid, event = self.cursor.objects.values_list("xid", "event").get()
            cursor.execute(
                """
                SELECT id, xid::text::bigint, table_uuid FROM catalog_auditevent
                WHERE (xid, id) > (%s::text::xid8, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
                ORDER BY xid, id LIMIT %s
                """,
                [str(xid), event, MAX_EVENTS],
            )
            events = cursor.fetchall()
            if events:
                self._refresh({uuid for _, _, uuid in events if uuid is not None})
                last, xid, _ = events[-1]
                self.cursor.objects.update(xid=xid, event=last)
            return len(events)

    def _refresh(self, uuids: Collection[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, state = 'dropped' FROM catalog_table WHERE uuid = ANY(%s)",
                [list(uuids)],
            )
            rows = cursor.fetchall()
        self.enter([pk for pk, is_dropped in rows if not is_dropped])
        self.remove([pk for pk, is_dropped in rows if is_dropped])
