"""How often tables are read: loads, scans that engines report, and queries over HTTP.

Reads must not wait for a write, so each process counts in memory, and a thread of web processes adds
the counts to the database. If a process is killed, the counts of the last seconds are lost.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import Error, connection, connections
from django.db.models import Min, Sum
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.identifiers import Identifier, digest
from catalog.models import Table, TableColumnUse, TableUse

log = logging.getLogger(__name__)

VECTOR = "vector"
"""First word of the use of a column by vector searches; the second one is the distance type."""
DAYS = 7
"""The period from which the reads per day are computed."""
_KEPT_DAYS = 90
_FLUSH_SECONDS = 15.0
_MAX_TABLES = 100_000
"""Tables to count between two writes; further tables are not counted."""
_MAX_COLUMNS = 100_000
_LONGEST_COLUMN = 500


class Read(StrEnum):
    """A kind of read."""

    LOAD = "loads"
    """A client loads the metadata of a table, to read it itself."""
    SCAN = "scans"
    """An engine reports a scan, or has one planned."""
    QUERY = "queries"
    """A query over HTTP."""


_lock = threading.Lock()
_counts: Counter[tuple[str, Read]] = Counter()
_columns: Counter[tuple[str, str, str]] = Counter()
"""Queries by table, column and use."""

_ADD = """
    INSERT INTO catalog_tableuse (table_id, day, loads, scans, queries)
    SELECT t.id, (now() AT TIME ZONE 'UTC')::date, u.loads, u.scans, u.queries
    FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[]) AS u(digest, loads, scans, queries)
    JOIN catalog_table t ON t.digest = u.digest AND t.state <> 'dropped'
    ORDER BY t.id
    ON CONFLICT (table_id, day) DO UPDATE SET
        loads = catalog_tableuse.loads + EXCLUDED.loads,
        scans = catalog_tableuse.scans + EXCLUDED.scans,
        queries = catalog_tableuse.queries + EXCLUDED.queries
"""

_ADD_COLUMNS = """
    INSERT INTO catalog_tablecolumnuse (table_id, day, "column", use, queries)
    SELECT t.id, (now() AT TIME ZONE 'UTC')::date, u.name, u.use, u.queries
    FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::bigint[]) AS u(digest, name, use, queries)
    JOIN catalog_table t ON t.digest = u.digest AND t.state <> 'dropped'
    ORDER BY t.id, u.name, u.use
    ON CONFLICT (table_id, day, "column", use) DO UPDATE SET
        queries = catalog_tablecolumnuse.queries + EXCLUDED.queries
"""


def count(actor: Principal, table: Identifier, read: Read) -> None:
    """Count a read of a table. The catalog's own reads and those of jobs do not count."""
    if _is_own(actor):
        return
    key = str(digest(table)), read
    with _lock:
        if key in _counts or len(_counts) < _MAX_TABLES:
            _counts[key] += 1


def count_columns(actor: Principal, table: Identifier, columns: Iterable[tuple[str, str]]) -> None:
    """Count a query by the columns that it compares, each with its use, as an index would serve it."""
    if _is_own(actor):
        return
    digest_ = str(digest(table))
    with _lock:
        for column, use in columns:
            key = digest_, column, use
            # PostgreSQL's text has no NUL, and no surrogates.
            is_storable = len(column) <= _LONGEST_COLUMN and column.isprintable()
            if is_storable and (key in _columns or len(_columns) < _MAX_COLUMNS):
                _columns[key] += 1


def _is_own(actor: Principal) -> bool:
    return actor.name == SYSTEM.name or actor.interface == "job" or bool(actor.job_kind)


def flush() -> int:
    """Add the counts of this process to the database; returns the number of tables.

    One statement, and another one if queries were counted by columns.
    """
    with _lock:
        counted, by_column = dict(_counts), dict(_columns)
        _counts.clear()
        _columns.clear()
    if by_column:
        keys = sorted(by_column)
        with connection.cursor() as cursor:
            cursor.execute(
                _ADD_COLUMNS,
                [*map(list, zip(*keys, strict=True)), [by_column[key] for key in keys]],
            )
    digests = sorted({key for key, _ in counted})
    if not digests:
        return 0
    columns = [[counted.get((key, read), 0) for key in digests] for read in Read]
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [digests, *columns])
        return int(cursor.rowcount)


def start() -> None:
    """Write the counts of this process to the database from time to time, in a thread."""
    threading.Thread(target=_run, name="table-use", daemon=True).start()


def _run() -> None:
    while True:
        time.sleep(_FLUSH_SECONDS)
        write()


def write() -> None:
    """Add the counts of this process to the database, and close its connection. Failures are logged."""
    try:
        flush()
    except Error:
        log.warning("Reads of tables could not be counted", exc_info=True)
    finally:
        connections.close_all()


def reads_per_day(table: Table) -> float | None:
    """The reads of a table on an average day of the last week; None if that is not known yet.

    A scan usually follows a load, so the larger of both counts. Two statements.
    """
    today = timezone.now().astimezone(UTC).date()
    rows = TableUse.objects.filter(table=table, day__gt=today - timedelta(days=DAYS))
    totals: dict[str, Any] = rows.aggregate(**{read.value: Sum(read.value) for read in Read})
    first = TableUse.objects.aggregate(day=Min("day"))["day"]
    if first is None:
        return None
    since: date = max(first, table.created_at.astimezone(UTC).date())
    days = min((today - since).days + 1, DAYS)
    reads = int(max(totals["loads"] or 0, (totals["scans"] or 0) + (totals["queries"] or 0)))
    if not reads and days < DAYS:
        return None
    rate: float = round(reads / days, 2)
    return rate


def reads_by_day(table: Table, *, since: date) -> dict[date, int]:
    """The reads of a table on each day (UTC); days without reads are left out. One statement."""
    rows = TableUse.objects.filter(table=table, day__gte=since)
    return {row.day: row.reads for row in rows}


def delete_old() -> int:
    """Delete the counts of days long past; returns their number."""
    before = datetime.now(UTC).date() - timedelta(days=_KEPT_DAYS)
    deleted: int = TableColumnUse.objects.filter(day__lt=before).delete()[0]
    return deleted + TableUse.objects.filter(day__lt=before).delete()[0]


def queries_by_column(table: Table) -> dict[tuple[str, str], int]:
    """The queries of the last week by column and use. One statement."""
    since = timezone.now().astimezone(UTC).date() - timedelta(days=DAYS)
    rows = TableColumnUse.objects.filter(table=table, day__gt=since).values_list("column", "use")
    return {(column, use): number for column, use, number in rows.annotate(Sum("queries"))}
