"""The contents of a snapshot of an Iceberg table, for the admin: its manifests and their files."""

from collections.abc import Sequence

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from catalog.access import Principal
from catalog.errors import InvalidMetadata
from catalog.formats.iceberg import lenient, manifests
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.models import Table
from catalog.services.iceberg.files import TableFileIO
from catalog.services.storage.table_files import TableFiles

MAX_BYTES = 16 * 1024 * 1024
"""A larger manifest or manifest list is not read for a page; writers produce files of 8 MB."""


def reader(actor: Principal, table: Table) -> TableFileIO:
    """A reader of the table's files, on behalf of ``actor``."""
    return TableFileIO(TableFiles(table), actor)


def manifests_of(files: TableFileIO, snapshot: Document) -> Sequence[ManifestFile]:
    """The manifests of a snapshot, in its order; empty for a snapshot without a manifest list.

    Raises InvalidMetadata for an unreadable list, and ForeignFile for files that may not be read.
    """
    location = lenient.text(snapshot.get("manifest-list"))
    if not location:
        return ()
    _check_size("Manifest list", location, files)
    return manifests.read_list(files, location)


def files_of(files: TableFileIO, manifest: ManifestFile) -> list[Entry]:
    """The live files of a manifest. Raises InvalidMetadata and ForeignFile as ``manifests_of``."""
    _check_size("Manifest", manifest.manifest_path, files)
    return manifests.read(files, manifest)


def partition_text(entry: Entry, document: Document) -> str:
    """The partition of a file, as ``day=2013-01-31/origin=JFK``; empty if it has none."""
    specs = lenient.objects(document.get("partition-specs"))
    schemas = lenient.objects(document.get("schemas"))
    schema_id = document.get("current-schema-id")
    spec = next((spec for spec in specs if spec.get("spec-id") == entry.spec_id), None)
    schema = next((schema for schema in schemas if schema.get("schema-id") == schema_id), None)
    try:
        return PartitionSpec.model_validate(spec).partition_to_path(
            entry.file.partition, Schema.model_validate(schema)
        )
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError):
        # The partition column was dropped, or the metadata is invalid.
        return str(entry.file.partition) if len(entry.file.partition) else ""


def _check_size(kind: str, location: str, files: TableFileIO) -> None:
    try:
        size = files.size(location)
    except OSError as error:
        raise InvalidMetadata(f"{kind} '{location}' cannot be read: {error.strerror}") from error
    if size > MAX_BYTES:
        raise InvalidMetadata(f"{kind} '{location}' is too large to be shown: {size:,} bytes")
