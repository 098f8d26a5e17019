"""Creating a table or a namespace in one statement, which locks the parent and writes all rows.

A commit with locks takes six round trips for this, and Django compiles most of its statements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, models
from django.utils import timezone

from catalog.models import IcebergMetadata, Namespace, Table
from catalog.postgresql.cursors import hot_cursor
from catalog.services.engine.statements import (
    NewVersion,
    Record,
    Shapes,
    documents_of,
    insert_text,
    shapes_of,
)


@dataclass(frozen=True, slots=True)
class Creation:
    """A table or namespace to create, with the rows that belong to it."""

    parent: Namespace
    row: Table | Namespace
    metadata: IcebergMetadata | None = None
    versions: Sequence[NewVersion] = ()
    staged_path: str | None = None
    """The staging record of its metadata file, which must exist and is deleted."""


_UNDER_LOCK = """
    WITH locked AS MATERIALIZED (
        SELECT n.id FROM catalog_namespace n
        WHERE n.id = %s::bigint AND n.digest = %s AND n.dropped_at IS NULL {in_local_files}
            AND NOT EXISTS (SELECT FROM {table} taken WHERE taken.digest = %s AND {is_live})
        FOR NO KEY UPDATE OF n
    ),
"""
_IN_LOCAL_FILES = """
    AND n.storage_profile_id IS NULL AND (n.location IS NULL OR n.location NOT LIKE '%%://%%')
    AND NOT EXISTS (
        SELECT FROM catalog_namespace above
        WHERE above.id = ANY(n.ancestors)
            AND (above.storage_profile_id IS NOT NULL OR above.location LIKE '%%://%%')
    )
"""
_IS_LIVE: dict[type[models.Model], str] = {
    Table: "taken.state <> 'dropped'",
    Namespace: "taken.dropped_at IS NULL",
}
# The record is missing once the sweep has given up the commit.
_READY = "ready AS MATERIALIZED (SELECT id FROM locked),"
_READY_IF_STAGED = """
    note AS MATERIALIZED (
        SELECT s.path FROM catalog_stagedfile s, locked
        WHERE s.path = %s AND NOT s.is_condemned FOR UPDATE OF s
    ),
    ready AS MATERIALIZED (SELECT id FROM locked, note),
"""
_UNSTAGE = "unstaged AS (DELETE FROM catalog_stagedfile s USING child WHERE s.path = %s),"
_METADATA = """
    metadata AS (
        INSERT INTO catalog_icebergmetadata (table_id, metadata_location, sequence, answer, etag)
        SELECT id, %s, %s::bigint, %s::bytea, %s FROM child
    ),
"""


def insert(creation: Creation, *records: Sequence[models.Model | Record]) -> datetime | None:
    """Create the row, and insert the records of its commit, if the parent is live.

    The parent of a table must have no object storage, since the table's location is in local files.

    All of it is one statement, which waits for the lock of the parent and then re-evaluates its
    conditions. Sets the primary key of the row and of its rows, and returns their time. None: the
    parent has changed, the name is taken, or the file is not staged; then nothing is written. Raises
    IntegrityError.
    """
    row, metadata = creation.row, creation.metadata
    row.updated_at = timezone.now()
    row_shape = shapes_of([[row]])
    versions = [creation.versions] if creation.versions else []
    groups = [*versions, *records]
    shapes = shapes_of(groups)
    values: list[Any] = [creation.parent.pk, creation.parent.digest, row.digest]
    values += [creation.staged_path] if creation.staged_path is not None else []
    values += documents_of([[row]], row_shape)
    if metadata is not None:
        values += [
            metadata.metadata_location,
            metadata.sequence,
            metadata.answer,
            metadata.etag,
        ]
    values += [creation.staged_path] if creation.staged_path is not None else []
    values += documents_of(groups, shapes)
    cursor = hot_cursor()
    text = _text(
        row_shape,
        shapes,
        has_metadata=metadata is not None,
        is_staged=creation.staged_path is not None,
    )
    cursor.execute(text, values)
    created = cursor.fetchone()
    if created is None:
        return None
    moment: datetime
    pk, moment = created
    _set_generated(creation, pk, moment)
    return moment


def complete(creation: Creation, moment: datetime) -> None:
    """Read the primary key of a row that was created although the answer was lost."""
    model = type(creation.row)
    _set_generated(creation, model._default_manager.get(uuid=creation.row.uuid).pk, moment)


def _set_generated(creation: Creation, pk: int, moment: datetime) -> None:
    row = creation.row
    row.pk, row._state.adding, row._state.db = pk, False, DEFAULT_DB_ALIAS
    row.created_at = moment
    if isinstance(row, Table):
        row.located_at = moment
    if creation.metadata is not None:
        creation.metadata.table_id = pk
    for version in creation.versions:
        version.table_id, version.created_at = pk, moment


@lru_cache(maxsize=16)
def _text(row_shape: Shapes, shapes: Shapes, *, has_metadata: bool, is_staged: bool) -> str:
    ((model, columns),) = row_shape
    under_lock = _UNDER_LOCK.format(
        table=model._meta.db_table,
        is_live=_IS_LIVE[model],
        in_local_files=_IN_LOCAL_FILES if model is Table else "",
    )
    child = insert_text(model, columns, source="ready")
    inserts = [
        f"g{number} AS ({_belonging(group_model, group_columns)})"
        for number, (group_model, group_columns) in enumerate(shapes)
    ]
    return f"""
        {under_lock}
        {_READY_IF_STAGED if is_staged else _READY}
        child AS ({child} RETURNING id),
        {_METADATA if has_metadata else ""}
        {_UNSTAGE if is_staged else ""}
        {", ".join(inserts)}
        SELECT id, statement_timestamp() FROM child
    """  # noqa: S608 -- names of our own models


def _belonging(model: type[models.Model], columns: tuple[str, ...]) -> str:
    refers = "table_id" in {field.attname for field in model._meta.concrete_fields}
    parent = {"table_id": "child.id"} if refers else {}
    return insert_text(model, columns, source="child", computed=parent)
