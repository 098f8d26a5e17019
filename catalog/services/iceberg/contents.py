"""What is in a snapshot of an Iceberg table, for pages that show it: its manifests, and their files."""

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
"""A larger manifest, or list of them, is not read for a page; they are written of 8 MB."""


def reader(actor: Principal, table: Table) -> TableFileIO:
    """Reads files of the table for a page that ``actor`` sees."""
    return TableFileIO(TableFiles(table), actor)


def manifests_of(files: TableFileIO, snapshot: Document) -> Sequence[ManifestFile]:
    """The manifests of a snapshot, in its order; of one that keeps no list of them, none.

    Raises InvalidMetadata for a list that cannot be read, and ForeignFile for files that may not.
    """
    location = lenient.text(snapshot.get("manifest-list"))
    if not location:
        return ()
    _check_size("Manifest list", location, files)
    return manifests.read_list(files, location)


def files_of(files: TableFileIO, manifest: ManifestFile) -> list[Entry]:
    """The live files of a manifest. Raises InvalidMetadata and ForeignFile, as above."""
    _check_size("Manifest", manifest.manifest_path, files)
    return manifests.read(files, manifest)


def partition_text(entry: Entry, document: Document) -> str:
    """The partition of a file, as ``day=2013-01-31/origin=JFK``; empty where there is none."""
    specs = lenient.objects(document.get("partition-specs"))
    told = next((one for one in specs if one.get("spec-id") == entry.spec_id), None)
    schema = next(
        (
            one
            for one in lenient.objects(document.get("schemas"))
            if one.get("schema-id") == document.get("current-schema-id")
        ),
        None,
    )
    try:
        spec, fields = PartitionSpec.model_validate(told), Schema.model_validate(schema)
        return spec.partition_to_path(entry.file.partition, fields)
    except (ValueError, LookupError, TypeError, AttributeError):
        # The column that it was partitioned by is gone, or the metadata are not as they should be.
        return str(entry.file.partition) if len(entry.file.partition) else ""


def _check_size(what: str, location: str, files: TableFileIO) -> None:
    try:
        size = len(files.new_input(location))
    except OSError as error:
        raise InvalidMetadata(f"{what} '{location}' cannot be read: {error.strerror}") from error
    if size > MAX_BYTES:
        raise InvalidMetadata(f"{what} '{location}' is too large to be shown: {size:,} bytes")
