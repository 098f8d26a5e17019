"""Which tables, views and columns the SQL of Iceberg views names, for the lineage.

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

from catalog.formats.iceberg import describe_schemas, describe_views
from catalog.formats.iceberg.views import columns, sources, stored_columns
from catalog.formats.iceberg.views.sources import Sources
from catalog.identifiers import Identifier, digest
from catalog.models import IcebergMetadata, Table, ViewQuery, ViewSource
from catalog.services.engine import locks
from catalog.services.iceberg import metadata_files

_SECONDS = 20.0
"""Seconds after which a pass takes no more views. A view takes twice ``sources.MAX_SECONDS``."""
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
            AND (
                q.metadata_location <> m.metadata_location OR q.within <> t.namespace_id
                OR q.columns IS NULL
            )
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
    _store(row, _parsed(metadata, row.namespace.identifier))
    return True


def _parsed(metadata: IcebergMetadata, namespace: Identifier) -> Sources:
    try:
        document = metadata_files.read_answer(bytes(metadata.answer))
    except metadata_files.UNREADABLE:
        return Sources(problems=(_UNREADABLE,))
    entry = describe_views.current_version(document)
    if entry is None:
        return Sources(problems=(_UNREADABLE,))
    version = describe_views.version(entry)
    schema = describe_schemas.schema(document, version.schema_id) or {}
    fields = describe_schemas.fields(schema)
    names = [field.name for field in fields if field.depth == 0]
    return sources.read(version, namespace, names[: columns.MAX_COLUMNS])


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
            parsed_at=timezone.now(),
            problem=" ".join(parsed.problems)[:_MAX_PROBLEM_CHARACTERS],
            columns=stored_columns.to_json(parsed),
        )
