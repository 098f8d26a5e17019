"""Files that do not belong to an attacker's table, and all fields of metadata that may name one."""

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.io import OutputFile, load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.typedef import Record

from catalog.access import SYSTEM
from catalog.models import Table
from catalog.services.iceberg import tables as iceberg_tables
from tests.catalog.services.iceberg.writing import io_properties, open_table, rows
from tests.factories import make_iceberg_table

MINE = ("mine", "t")
SLOTS = ("list", "manifest", "data")
KINDS = (
    "hidden",
    "dropped",
    "twin",
    "system",
    "missing",
    "link",
    "link to a directory",
    "pipe",
    "device",
    "climbing",
    "encoded",
)


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file://").lstrip("/"))


@dataclass(frozen=True)
class Files:
    """One real file of each slot."""

    list: Path
    manifest: Path
    data: Path

    def all(self) -> tuple[Path, ...]:
        return (self.list, self.manifest, self.data)


def write_table(*identifier: str, **create: Any) -> Files:
    """A table with rows, and its files."""
    make_iceberg_table(*identifier, **create)
    table = open_table(*identifier)
    table.append(rows(1, 2, 3))
    snapshot = open_table(*identifier).current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    return Files(
        local(snapshot.manifest_list),
        local(manifest.manifest_path),
        local(entry.data_file.file_path),
    )


class World:
    """The attacker's table, and its neighbours."""

    def __init__(self, warehouse: Path, tmp_path: Path) -> None:
        self.mine = warehouse / "tables" / "mine"
        make_iceberg_table(*MINE, location=f"file://{self.mine}")
        self.victims = {
            "hidden": write_table("secret", "t"),
            "dropped": write_table("secret", "gone"),
            "twin": write_table("secret", "twin", location=f"file://{self.mine}2"),
        }
        iceberg_tables.unregister_table(actor=SYSTEM, table=("secret", "gone"))
        outside = tmp_path / "outside"
        outside.mkdir()
        self.victims["system"] = Files(
            *(
                Path(shutil.copyfile(path, outside / path.name))
                for path in self.victims["hidden"].all()
            )
        )
        metadata = self.mine / "metadata"
        os.mkfifo(metadata / "pipe")
        (metadata / "device").symlink_to("/dev/zero")
        (metadata / "directory").symlink_to(self.victims["hidden"].list.parent)
        (metadata / "data").symlink_to(self.victims["hidden"].data.parent)

    def path(self, kind: str, slot: str) -> str:
        """The attacker's notation for a file."""
        metadata = self.mine / "metadata"
        hidden: Path = getattr(self.victims["hidden"], slot)
        match kind:
            case "missing":
                return f"file://{hidden}-not-there"
            case "link":
                link = metadata / f"link-{slot}"
                if not link.is_symlink():
                    link.symlink_to(hidden)
                return f"file://{link}"
            case "link to a directory":
                name = "data" if slot == "data" else "directory"
                return f"file://{metadata / name / hidden.name}"
            case "pipe" | "device":
                return f"file://{metadata / kind}"
            case "climbing":
                return f"file://{metadata}/../../../{hidden.relative_to(self.mine.parents[1])}"
            case "encoded":
                return (
                    f"file://{metadata}/..%2f..%2f..%2f{hidden.relative_to(self.mine.parents[1])}"
                )
        return f"file://{getattr(self.victims[kind], slot)}"

    def canaries(self) -> list[Path]:
        pipe = self.mine / "metadata" / "pipe"
        return [*(path for files in self.victims.values() for path in files.all()), pipe]


# --- metadata ----------------------------------------------------------------------------------


def registrable(location: Path, manifest_list: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A metadata document of a new table at this location, and its only snapshot, which has this manifest list."""
    added = snapshot("list", f"file://{manifest_list}")
    document = open_table(*MINE).metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    document |= {
        "table-uuid": str(uuid.uuid4()),
        "location": f"file://{location}",
        "last-updated-ms": added["timestamp-ms"],
        "last-sequence-number": added["sequence-number"],
        "snapshots": [added],
    }
    return document, added


def snapshot(slot: str, path: str, **changed: Any) -> dict[str, Any]:
    """An update that adds a snapshot to the attacker's table that names ``path`` in one slot.

    The files that refer to it are real files of the attacker.
    """
    table = open_table(*MINE)
    number = int(time.time_ns() % 2**53)
    folder = f"{table.location()}/metadata"
    own = f"{folder}/{number}.avro"
    named = path if slot in {"data", "deletes"} else None
    added = _write_manifest(own, table, number, named, slot)
    if slot == "manifest":
        added[0] = path
    manifests = [added]
    if slot == "deletes":  # it must refer to rows of a data file, or it is not read
        manifests.append(
            _write_manifest(f"{folder}/{number}-data.avro", table, number, None, "data")
        )
    listed = f"{folder}/snap-{number}.avro"
    sequence = table.metadata.last_sequence_number + 1
    with write_manifest_list(
        format_version=2,
        output_file=_output(listed),
        snapshot_id=number,
        parent_snapshot_id=None,
        sequence_number=sequence,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests(manifests)
    return {
        "snapshot-id": number,
        "sequence-number": sequence,
        "timestamp-ms": max(table.metadata.last_updated_ms, time.time_ns() // 1_000_000),
        "manifest-list": path if slot == "list" else listed,
        "summary": {"operation": "append"},
        "schema-id": 0,
    } | changed


def updates(added: dict[str, Any]) -> list[dict[str, Any]]:
    main = {"ref-name": "main", "type": "branch", "snapshot-id": added["snapshot-id"]}
    return [
        {"action": "add-snapshot", "snapshot": added},
        {"action": "set-snapshot-ref", **main},
    ]


def _write_manifest(at: str, table: Any, number: int, path: str | None, slot: str) -> ManifestFile:
    writer = _Writer(at, table, number, is_deletes=slot == "deletes")
    content = DataFileContent.POSITION_DELETES if slot == "deletes" else DataFileContent.DATA
    with writer:
        file = DataFile.from_args(
            content=content,
            file_path=path or f"{table.location()}/data/own.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=3,
            file_size_in_bytes=100,
        )
        writer.add_entry(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file
            )
        )
    return writer.to_manifest_file()


def _output(location: str) -> OutputFile:
    return load_file_io(io_properties(location), location).new_output(location)


class _Writer(ManifestWriterV2):
    def __init__(self, path: str, table: Any, number: int, *, is_deletes: bool) -> None:
        output = _output(path)
        super().__init__(UNPARTITIONED_PARTITION_SPEC, table.schema(), output, number, "deflate")
        self._is_deletes = is_deletes

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES if self._is_deletes else ManifestContent.DATA


def row() -> Table:
    return Table.objects.select_related("namespace").named(MINE).get()


# --- refusals ----------------------------------------------------------------------------------

COMMIT = "namespaces/mine/tables/t"


def refusal(path: str) -> str:
    return f"File '{path}' does not belong to table 'mine.t', and may not be read for it"


def message_of(response: Any) -> str:
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert error["type"] == "BadRequestException"
    message: str = error["message"]
    return message
