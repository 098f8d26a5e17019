"""Which tables and views the SQL of Iceberg views names, for the lineage.

A periodic task parses the SQL of views that were created, replaced or moved to another namespace
since. Parsing is Python code that takes seconds for some SQL, so it is never part of a request, and
ends after a few seconds. A view whose parser was killed is parsed again after an hour, changed or
not, so it does not stop the others.
"""

import time
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from catalog.formats.iceberg import describe_views
from catalog.formats.iceberg.describe_views import ViewVersion
from catalog.formats.iceberg.views import sources
from catalog.formats.iceberg.views.sources import Sources
from catalog.identifiers import digest
from catalog.models import IcebergMetadata, Table, ViewQuery, ViewSource
from catalog.services.engine import locks
from catalog.services.iceberg import metadata_files

_SECONDS = 20.0
"""Seconds after which a pass takes no more views. A view takes ``sources.MAX_SECONDS`` of CPU time."""
_BATCH = 100
_MAX_PROBLEM_CHARACTERS = 1_000
_RETRY_AFTER = timedelta(hours=1)
_UNFINISHED = "The SQL is being parsed, or the parser did not end."
_UNREADABLE = "The stored metadata of the view cannot be read."

_DUE = """
    SELECT t.id FROM catalog_table t
    JOIN catalog_icebergmetadata m ON m.table_id = t.id
    LEFT JOIN catalog_viewquery q ON q.view_id = t.id
    WHERE t.kind = 'view' AND t.state <> 'dropped' AND (
        q.view_id IS NULL
        OR q.parsed_at IS NULL AND q.taken_at < %s
        OR q.parsed_at IS NOT NULL
            AND (q.metadata_location <> m.metadata_location OR q.within <> t.namespace_id)
    )
    ORDER BY q.taken_at NULLS FIRST, t.id LIMIT %s
"""


def read_due() -> int:
    """Parse the SQL of changed views, and store the names in it; returns the number of views."""
    until = time.monotonic() + _SECONDS
    count = 0
    with locks.advisory_lock("sources of views") as is_acquired:
        while is_acquired and time.monotonic() < until and (batch := _due()):
            for pk in batch:
                if time.monotonic() >= until:
                    break
                count += _read(pk)
    return count


def _due() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(_DUE, [timezone.now() - _RETRY_AFTER, _BATCH])
        return [pk for (pk,) in cursor.fetchall()]


def _read(pk: int) -> bool:
    """Parse a view. It is marked as taken before, so a killed worker does not start with it again."""
    row = Table.objects.select_related("namespace", "iceberg_metadata").filter(pk=pk).first()
    if row is None:
        return False
    metadata = row.iceberg_metadata
    ViewQuery.objects.update_or_create(
        view=row,
        defaults={
            "metadata_location": metadata.metadata_location,
            "within": row.namespace_id,
            "taken_at": timezone.now(),
            "parsed_at": None,
            "problem": _UNFINISHED,
        },
    )
    version = _current(metadata)
    if version is None:
        parsed = Sources(problems=(_UNREADABLE,))
    else:
        parsed = sources.read(version, row.namespace.identifier)
    _store(row, parsed)
    return True


def _current(metadata: IcebergMetadata) -> ViewVersion | None:
    try:
        document = metadata_files.read_answer(bytes(metadata.answer))
    except metadata_files.UNREADABLE:
        return None
    entry = describe_views.current_version(document)
    return None if entry is None else describe_views.version(entry)


def _store(row: Table, parsed: Sources) -> None:
    names: dict[UUID, str] = {}
    for name in parsed.names:
        # No object has an empty name: a name that cannot be an identifier is stored as never found.
        for identifier in name.identifiers or (("", name.text),):
            names.setdefault(digest(identifier), name.text)
    with transaction.atomic():
        ViewSource.objects.filter(view=row).delete()
        ViewSource.objects.bulk_create(
            [ViewSource(view=row, digest=key, name=name) for key, name in names.items()]
        )
        ViewQuery.objects.filter(view=row).update(
            parsed_at=timezone.now(), problem=" ".join(parsed.problems)[:_MAX_PROBLEM_CHARACTERS]
        )
