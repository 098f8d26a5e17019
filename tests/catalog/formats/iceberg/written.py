"""Tables whose manifests are real files, written with PyIceberg's Avro writer, of any format version.

Data files do not exist: manifests contain the metrics of the rows that a test names.
"""

import copy
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_bytes
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import Record

from catalog.formats.iceberg.manifests import CheckedIO

Row = dict[str, Any]


class AnyIO(CheckedIO):
    """File access that reads any path."""

    def contents(self, locations: Sequence[str]) -> Iterator[bytes]:
        for location in locations:
            with load_file_io({}, location).new_input(location).open() as stream:
                yield stream.read()

    def require(self, locations: Iterable[str]) -> None:
        for location in locations:
            assert location

    def canonical(self, locations: Iterable[str]) -> dict[str, str]:
        return {location: os.path.realpath(location) for location in locations}


DATA, POSITION, EQUALITY = (
    DataFileContent.DATA,
    DataFileContent.POSITION_DELETES,
    DataFileContent.EQUALITY_DELETES,
)


class Written:
    """A table under a directory; each commit adds a snapshot."""

    def __init__(
        self,
        directory: Path,
        schema: dict[str, Any],
        *specs: dict[str, Any],
        version: int = 2,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.version = version
        self.manifests: list[ManifestFile] = []
        self.files = 0
        self.next_row_id = 0
        self.document: dict[str, Any] = {
            "format-version": version,
            "table-uuid": "8a4a0b1e-58e5-4f4c-9d0c-6f1f9f3f7a11",
            "location": f"file://{directory}",
            "last-sequence-number": 0,
            "last-updated-ms": 1000,
            "last-column-id": 100,
            "schemas": [{"schema-id": 0, "type": "struct", **copy.deepcopy(schema)}],
            "current-schema-id": 0,
            "partition-specs": [
                {"spec-id": i, **copy.deepcopy(spec)} for i, spec in enumerate(specs)
            ]
            or [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 1100,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {},
            "snapshots": [],
            "refs": {},
            "next-row-id": 0,
        }

    @property
    def metadata(self) -> TableMetadata:
        """The manifests for PyIceberg, which reads manifests of any version as v2."""
        return TableMetadataUtil.parse_obj({**copy.deepcopy(self.document), "format-version": 2})

    @property
    def schema(self) -> Schema:
        return Schema.model_validate(self.document["schemas"][-1])

    def spec(self, spec_id: int) -> PartitionSpec:
        return PartitionSpec.model_validate(self.document["partition-specs"][spec_id])

    # -- files

    def partition(self, row: Row, spec_id: int = 0) -> Record:
        """The partition of a row."""
        schema = self.schema
        values = []
        for field in self.spec(spec_id).fields:
            source = schema.find_field(field.source_id)
            value = row[source.name]
            values.append(field.transform.transform(source.field_type)(value))
        return Record(*values)

    def file(
        self,
        rows: Sequence[Row],
        *,
        spec_id: int = 0,
        content: DataFileContent = DATA,
        metrics: bool = True,
        partition: Record | None = None,
        **more: Any,
    ) -> DataFile:
        """A file with rows of one partition."""
        self.files += 1
        if partition is None:
            partition = self.partition(rows[0], spec_id) if self.spec(spec_id).fields else Record()
        arguments: dict[str, Any] = {
            "content": content,
            "file_path": f"file://{self.directory}/data/{self.files:05}.parquet",
            "file_format": FileFormat.PARQUET,
            "partition": partition,
            "record_count": len(rows),
            "file_size_in_bytes": 1000 + self.files,
            **(self._metrics(rows) if metrics else {}),
            **more,
        }
        file = DataFile.from_args(_table_format_version=3, **arguments)
        file.spec_id = spec_id
        return file

    def _metrics(self, rows: Sequence[Row]) -> dict[str, Any]:
        metrics: dict[str, dict[int, Any]] = {
            "column_sizes": {},
            "value_counts": {},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
        }
        for field in self.schema.fields:
            if not field.field_type.is_primitive:
                continue
            values = [row[field.name] for row in rows]
            present = [value for value in values if value is not None]
            numbers = [
                value for value in present if not (isinstance(value, float) and math.isnan(value))
            ]
            id_ = field.field_id
            metrics["column_sizes"][id_] = 10 * len(rows)
            metrics["value_counts"][id_] = len(rows)
            metrics["null_value_counts"][id_] = len(rows) - len(present)
            if str(field.field_type) in {"float", "double"}:
                metrics["nan_value_counts"][id_] = len(present) - len(numbers)
            if numbers:
                metrics["lower_bounds"][id_] = to_bytes(field.field_type, min(numbers))
                metrics["upper_bounds"][id_] = to_bytes(field.field_type, max(numbers))
        return metrics

    # -- commits

    def commit(
        self,
        *groups: Iterable[DataFile],
        operation: str = "append",
        removed: Iterable[str] = (),
        existing: Iterable[tuple[DataFile, int, int]] = (),
    ) -> int:
        """Add a snapshot, with a manifest for each group of files and without some manifests.

        ``existing`` are files that are carried over, with their sequence number and snapshot.
        """
        number = len(self.document["snapshots"]) + 1
        snapshot_id = 1000 + number
        removed_paths = set(removed)
        self.manifests = [
            manifest for manifest in self.manifests if manifest.manifest_path not in removed_paths
        ]
        for group in groups:
            files = list(group)
            entries = [
                ManifestEntry.from_args(
                    _table_format_version=3,
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=None if self.version > 1 else snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                for file in files
            ]
            self._add_manifest(entries, snapshot_id, number)
        carried = [
            ManifestEntry.from_args(
                _table_format_version=3,
                status=ManifestEntryStatus.EXISTING,
                snapshot_id=owner,
                sequence_number=sequence,
                file_sequence_number=sequence,
                data_file=file,
            )
            for file, sequence, owner in existing
        ]
        if carried:
            self._add_manifest(carried, snapshot_id, number)
        snapshots = self.document["snapshots"]
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": 1000 + number,
            "manifest-list": self._write_list(snapshot_id),
            "summary": {"operation": operation},
            "schema-id": self.document["current-schema-id"],
            "sequence-number": number,
        }
        if snapshots:
            snapshot["parent-snapshot-id"] = snapshots[-1]["snapshot-id"]
        snapshots.append(snapshot)
        self.document["last-sequence-number"] = number
        self.document["current-snapshot-id"] = snapshot_id
        self.document["refs"] = {"main": {"snapshot-id": snapshot_id, "type": "branch"}}
        return snapshot_id

    def _add_manifest(
        self, entries: list[ManifestEntry], snapshot_id: int, sequence: int
    ) -> ManifestFile:
        files = [entry.data_file for entry in entries]
        spec_id = files[0].spec_id
        spec, schema = self.spec(spec_id), self.schema
        deletes = files[0].content != DATA
        path = f"file://{self.directory}/metadata/m{len(self.manifests)}-{snapshot_id}.avro"
        partition = spec.partition_type(schema)

        def entry_schema(version: int) -> Schema:
            return manifest_entry_schema_with_data_file(
                format_version=version, data_file=data_file_with_partition(partition, version)
            )

        output = load_file_io({}, path).new_output(path)
        with AvroOutputFile[ManifestEntry](
            output_file=output,
            file_schema=entry_schema(self.version),
            record_schema=entry_schema(3),
            schema_name="manifest_entry",
            metadata={
                "schema": schema.model_dump_json(),
                "partition-spec": json.dumps(self.document["partition-specs"][spec_id]["fields"]),
                "partition-spec-id": str(spec_id),
                "format-version": str(self.version),
                "content": "deletes" if deletes else "data",
            },
        ) as writer:
            writer.write_block(entries)
        rows = sum(file.record_count for file in files)
        added = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED]
        sequences = [
            entry.sequence_number for entry in entries if entry.sequence_number is not None
        ]
        manifest = ManifestFile.from_args(
            _table_format_version=3,
            manifest_path=path,
            manifest_length=len(output),
            partition_spec_id=spec_id,
            content=ManifestContent.DELETES if deletes else ManifestContent.DATA,
            sequence_number=sequence if self.version > 1 else 0,
            min_sequence_number=min(sequences, default=sequence) if self.version > 1 else 0,
            added_snapshot_id=snapshot_id,
            added_files_count=len(added),
            existing_files_count=len(entries) - len(added),
            deleted_files_count=0,
            added_rows_count=rows,
            existing_rows_count=0,
            deleted_rows_count=0,
            partitions=construct_partition_summaries(spec, schema, [f.partition for f in files]),
            key_metadata=None,
            first_row_id=self.next_row_id if self.version == 3 and not deletes else None,
        )
        if not deletes:
            self.next_row_id += rows
            self.document["next-row-id"] = self.next_row_id
        self.manifests.append(manifest)
        return manifest

    def _write_list(self, snapshot_id: int) -> str:
        path = f"file://{self.directory}/metadata/snap-{snapshot_id}.avro"
        with AvroOutputFile[ManifestFile](
            output_file=load_file_io({}, path).new_output(path),
            file_schema=MANIFEST_LIST_FILE_SCHEMAS[self.version],
            record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
            schema_name="manifest_file",
            metadata={"format-version": str(self.version)},
        ) as writer:
            writer.write_block(self.manifests)
        return path
