"""Files that a purge left in the directories of its table.

A purge removes the files that an Iceberg table's metadata refers to. Others stay, such as those of commits that
failed, and files that a client writes meanwhile. They are still the dropped table's (``RemainingFiles``): only
principals that may manage it get these directories. A periodic review frees directories that have become empty.

Directories also stay taken while clients have credentials for them, which they got before the table was dropped.
"""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice

from django.db import transaction
from django.db.models import F, Max, Q
from django.db.models.functions import Now

from catalog.models import Job, RemainingFiles, Table
from catalog.services.audit import issued_credentials
from catalog.services.engine.database_clock import after, database_now, read_clock
from catalog.services.storage.client_sessions import late_writes
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations, stores
from catalog.storage.configuration import ClientAccess

log = logging.getLogger(__name__)

_MAX_FILES = 20_000
"""Files that are looked at for a table. A directory with more files counts as not empty."""
_MAX_LISTED = 100_000
"""Files that are listed for a table, with those that were written later, such as those of a new table."""
_AT_ONCE = 500
_REVIEW_AFTER = timedelta(hours=1)
_CLOCK_DIFFERENCE = timedelta(hours=1)
"""Maximum difference between the clocks of the database and of the storage."""
_LONGEST_SIGNATURE = timedelta(minutes=31)
"""The time after the drop of a table until which a store accepts signatures, of which there is no record.

It accepts them from 15 minutes before their time until 15 minutes after it, and the server's clock may be wrong.
"""


def record(table: Table, renew: Callable[[], object]) -> bool:
    """Record whether files of a table or credentials for them remain, before its purge ends; returns True if files do.

    ``renew`` is called repeatedly and may raise to stop.
    """
    try:
        has_files = _has_files(table, None, renew=renew)
    except OSError as error:
        log.warning("The directories of '%s' cannot be listed after its purge: %s", table, error)
        has_files = True
    with transaction.atomic():
        renew()  # locks the job: no other worker takes it over and decides otherwise
        if has_files or _is_open(_access_end(table)):
            RemainingFiles.objects.update_or_create(table=table, defaults={"checked_at": Now()})
        else:
            RemainingFiles.objects.filter(table=table).delete()
    return has_files


def review(seconds: float) -> int:
    """List the directories of purged tables again, and free the empty ones; returns the number of tables.

    Those that have waited longest come first, until the time is over.
    """
    until = time.monotonic() + seconds
    reviewed = 0
    while time.monotonic() < until and (row := _next_due()) is not None:
        reviewed += 1
        purges = Job.objects.purges().filter(table=row.table_id)
        purged_at = purges.aggregate(at=Max("finished_at"))["at"]
        access_end = _access_end(row.table)
        try:
            has_files = _has_files(row.table, purged_at, access_end)
        except OSError as error:
            log.warning("The directories of '%s' cannot be listed: %s", row.table, error)
            continue
        if not has_files and not _is_open(access_end):
            log.info("The directories of '%s' are free: no files remain", row.table)
            row.delete()
    return reviewed


def _next_due() -> RemainingFiles | None:
    """A row whose review is due. It is not due again for an hour, even if its review fails."""
    due = Q(checked_at=None) | Q(checked_at__lt=after(database_now(), -_REVIEW_AFTER))
    rows = RemainingFiles.objects.filter(due).select_related("table__namespace")
    while (row := rows.order_by(F("checked_at").asc(nulls_first=True)).first()) is not None:
        same = RemainingFiles.objects.filter(pk=row.pk, checked_at=row.checked_at)
        if same.update(checked_at=Now()):
            return row  # otherwise another worker has taken it
    return None


def _access_end(table: Table) -> datetime | None:
    """The time until which clients can write to directories of a dropped table in object stores; None: never.

    They do so with credentials or signatures that they got before the drop.
    """
    directories = [path for path in _directories(table) if locations.is_object(path)]
    if not directories or table.dropped_at is None:
        return None
    issued_until = issued_credentials.last_end(table)
    end = max(filter(None, (issued_until, table.dropped_at)))
    for configuration in map(stores.configuration_of, directories):
        if configuration is None:
            continue
        if configuration.client_access is ClientAccess.SIGNING:
            end = max(end, table.dropped_at + _LONGEST_SIGNATURE)
        if issued_until is not None:
            end = max(end, issued_until + late_writes.after_expiry(configuration))
    return end


def _is_open(end: datetime | None) -> bool:
    return end is not None and end > read_clock()


def _has_files(
    table: Table,
    purged_at: datetime | None,
    access_end: datetime | None = None,
    renew: Callable[[], object] = lambda: None,
) -> bool:
    """True if files that no other table has are in the directories of a dropped table.

    Of a purge that has ended, only files count that are older, or that clients of the table may have written.
    Raises OSError.
    """
    looked_at = 0
    if purged_at is not None:
        purged_at = max(purged_at, access_end or purged_at)
    listed = _paths(table, purged_at)
    while paths := list(islice(listed, _AT_ONCE)):
        renew()
        owners = TableFiles(table).classify(paths).values()
        if any(o.belonging != Belonging.OTHER or table.pk in o.table_ids for o in owners):
            return True
        looked_at += len(paths)
        if looked_at >= _MAX_FILES:
            return True
    return False


def _directories(table: Table) -> set[str]:
    return {table.location, *table.paths.values_list("path", flat=True)}


def _paths(table: Table, purged_at: datetime | None) -> Iterator[str]:
    latest = None if purged_at is None else (purged_at + _CLOCK_DIFFERENCE).timestamp()
    listed = 0
    for directory in _directories(table):
        store = stores.store_of(directory)
        store.require_reachable(directory)
        if not store.is_free_of_links(directory):
            raise OSError(f"a link is on the way to {directory}")  # files behind it are not listed
        for file in store.list_tree(directory, with_foreign=True):
            listed += 1
            if listed > _MAX_LISTED:
                raise OSError(f"they contain more than {_MAX_LISTED} files")
            if latest is None or min(file.modified_at, file.changed_at) <= latest:
                yield f"{directory}/{file.name}"
