"""Columns of the newest version of a table or view of either format."""

from dataclasses import dataclass
from itertools import islice

from catalog.access import SYSTEM
from catalog.formats.iceberg import describe_schemas, describe_views
from catalog.formats.lance import columns as lance_columns
from catalog.identifiers import Identifier
from catalog.models import IcebergMetadata, Table, TableFormat, TableKind, TableVersion
from catalog.services.iceberg import metadata_files
from catalog.services.lance import contents as lance_contents

MAX_COLUMNS = 2_000
"""Maximum number of columns per table; further columns are not searchable."""
_COMMENTS = ("comment", "description", "doc")
_MAX_CHARACTERS = 500  # characters of a comment or path


@dataclass(frozen=True, slots=True)
class ColumnNote:
    """A column at any depth, with the attributes that search uses."""

    path: str
    """Name with the names of the enclosing fields: ``point.x``."""
    type: str
    comment: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one version."""

    version: str
    """Cache key, unique per table version."""
    columns: tuple[ColumnNote, ...]


def newest_version(table: Table) -> str:
    """The ``version`` that ``read`` would return; empty if the table has none yet. One statement."""
    if table.format == TableFormat.ICEBERG:
        of_this = IcebergMetadata.objects.filter(table=table)
        return of_this.values_list("metadata_location", flat=True).first() or ""
    newest = TableVersion.objects.visible().on("").filter(table=table).order_by("-version")
    row = newest.values_list("version", "created_at").first()
    return "" if row is None else f"{row[0]} {row[1].isoformat()}"


def read(table: Table) -> Columns:
    """Read the columns of the newest version, from storage for a Lance table.

    Raises Unreadable, and a CatalogError if the table was dropped or has no version.
    """
    if table.format == TableFormat.ICEBERG:
        return _read_iceberg(table)
    return _read_lance(table)


def find(identifier: Identifier) -> Table | None:
    """The table or view of this name, with its namespace, or None."""
    return Table.objects.named(identifier).select_related("namespace").first()


def _read_iceberg(table: Table) -> Columns:
    row = IcebergMetadata.objects.filter(table=table).first()
    if row is None:
        return Columns("", ())
    document = metadata_files.read_answer(bytes(row.answer))
    current = describe_schemas.current_schema_id(document)
    if table.kind == TableKind.VIEW:
        version = describe_views.current_version(document)
        current = describe_views.version(version).schema_id if version else current
    schema = describe_schemas.schema(document, current)
    fields = iter(()) if schema is None else describe_schemas.fields(schema)
    notes = [_note(field.path, field.type, field.doc) for field in islice(fields, MAX_COLUMNS)]
    return Columns(row.metadata_location, tuple(notes))


def _read_lance(table: Table) -> Columns:
    # Read before the table is opened: if a version is committed in between, the table is read again.
    version = newest_version(table)
    dataset = lance_contents.open_table(actor=SYSTEM, table=table)
    with lance_contents.reading():
        columns = lance_columns.columns(dataset.schema)
        notes = [
            _note(
                column.path,
                column.type,
                next((column.metadata[key] for key in _COMMENTS if key in column.metadata), ""),
            )
            for column in islice(columns, MAX_COLUMNS)
        ]
    return Columns(version, tuple(notes))


def _note(path: str, type_: str, comment: str) -> ColumnNote:
    # PostgreSQL stores no NUL.
    path, type_, comment = (text.replace("\0", "") for text in (path, type_, comment))
    return ColumnNote(path[:_MAX_CHARACTERS], type_, comment[:_MAX_CHARACTERS])
