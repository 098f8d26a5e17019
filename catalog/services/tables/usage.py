"""How often tables are read: loads, scans that engines report, and queries over HTTP.

Reads must not wait for a write, so each process counts in memory, and a thread of web processes adds
the counts to the database. If a process is killed, the counts of the last seconds are lost.
"""

import logging
import threading
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import DatabaseError, connection, connections
from django.db.models import Min, Sum
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.identifiers import Identifier, digest
from catalog.models import Table, TableUse

log = logging.getLogger(__name__)

DAYS = 7
"""The period from which the reads per day are computed."""
_KEPT_DAYS = 90
_FLUSH_SECONDS = 15.0
_MAX_TABLES = 100_000
"""Tables to count between two writes; further tables are not counted."""


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


def count(actor: Principal, table: Identifier, read: Read) -> None:
    """Count a read of a table. The catalog's own reads and those of jobs do not count."""
    if actor.name == SYSTEM.name or actor.interface == "job" or actor.job_kind:
        return
    key = str(digest(table)), read
    with _lock:
        if key in _counts or len(_counts) < _MAX_TABLES:
            _counts[key] += 1


def flush() -> int:
    """Add the counts of this process to the database; returns the number of tables. One statement."""
    with _lock:
        counted = dict(_counts)
        _counts.clear()
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
    except DatabaseError:
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
    return TableUse.objects.filter(day__lt=before).delete()[0]
