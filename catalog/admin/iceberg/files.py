"""The files of a snapshot of an Iceberg table: its manifests, and the files of a manifest."""

from collections.abc import Sequence

from django.http import HttpRequest
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Panel
from catalog.admin.paging import paginate, query, word
from catalog.errors import CatalogError
from catalog.formats.iceberg import describe
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.reading import Document
from catalog.models import Table
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg.files import TableFileIO

_CONTENTS = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position deletes",
    DataFileContent.EQUALITY_DELETES: "equality deletes",
}
_NONE = "The table has no snapshot yet."


def tab(request: HttpRequest, row: Table, document: Document) -> list[Panel]:
    """Manifests of the requested snapshot, by default the current one, and files of a requested manifest."""
    snapshot_id = word(request, "snapshot")
    snapshot = next(
        (
            candidate
            for candidate in describe.snapshots(document)
            if describe.snapshot_key(candidate) == snapshot_id
        ),
        None if snapshot_id else describe.current_snapshot(document),
    )
    if snapshot is None:
        return [
            Panel(
                (),
                (),
                f"The table has no snapshot '{cells.clipped(snapshot_id)}'."
                if snapshot_id
                else _NONE,
            )
        ]
    files = iceberg_contents.reader(actor(request), row)
    try:
        manifests = iceberg_contents.manifests_of(files, snapshot)
        chosen = next(
            (
                candidate
                for candidate in manifests
                if candidate.manifest_path == word(request, "manifest")
            ),
            None,
        )
        panels = [_manifests(request, describe.snapshot_key(snapshot), manifests)]
        return panels if chosen is None else [_files(request, files, chosen, document), *panels]
    except CatalogError as error:
        return [Panel((), (), error.message)]


def _manifests(request: HttpRequest, snapshot: str, manifests: Sequence[ManifestFile]) -> Panel:
    page = paginate(request, manifests, lambda manifest: str(manifest.manifest_path), "after")
    return Panel(
        title=f"Manifests of snapshot {snapshot}",
        columns=("Manifest", "Content", "Files", "Rows", "Deleted entries", "Size"),
        rows=[
            (
                cells.anchor(
                    query(request, manifest=manifest.manifest_path, file=None),
                    manifest.manifest_path.rpartition("/")[2],
                ),
                "deletes" if manifest.content == ManifestContent.DELETES else "data",
                _sum(manifest.added_files_count, manifest.existing_files_count),
                _sum(manifest.added_rows_count, manifest.existing_rows_count),
                _sum(manifest.deleted_files_count),
                cells.size(manifest.manifest_length),
            )
            for manifest in page.items
        ],
        empty="The snapshot has no manifests, and so no files.",
        first=page.first,
        following=page.following,
        note="Select a manifest to list its files." if manifests else "",
    )


def _files(
    request: HttpRequest, files: TableFileIO, manifest: ManifestFile, document: Document
) -> Panel:
    entries = iceberg_contents.files_of(files, manifest)
    page = paginate(request, entries, lambda entry: str(entry.file.file_path), "file")
    return Panel(
        title=f"Files of {manifest.manifest_path.rpartition('/')[2]}",
        columns=("File", "Content", "Partition", "Rows", "Size", "Added by snapshot"),
        rows=[_file(entry, document) for entry in page.items],
        empty="All files of the manifest were deleted.",
        first=page.first,
        following=page.following,
    )


def _file(entry: Entry, document: Document) -> Sequence[object]:
    path = entry.file.file_path
    kind = _CONTENTS.get(entry.file.content, "?")
    return (
        cells.code(path.rpartition("/")[2], path),
        f"{kind}, {entry.file.file_format.name.lower()}",
        cells.code(cells.clipped(iceberg_contents.partition_text(entry, document))),
        f"{entry.file.record_count:,}",
        cells.size(entry.file.file_size_in_bytes),
        cells.NOTHING if entry.snapshot_id is None else cells.exact(entry.snapshot_id),
    )


def _sum(*counts: int | None) -> object:
    """Sum of counts; empty if one is missing, as in old manifests."""
    return cells.NOTHING if None in counts else f"{sum(count or 0 for count in counts):,}"
