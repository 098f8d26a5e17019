"""Actions that delete files of a table."""

import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from .events import emit, report_removed
from .guard import Guard
from .needed_files import NeededFiles, without_same_objects
from .paths import is_metadata_file
from .table import Table, literal

_MAX_LISTED = 1000  # files that a result lists
_MAX_SIZED = 10_000  # files whose sizes are read, each with a request
_ORPHANS_VIEW = "monodon_orphans"
_DELETE_BATCH = 500
_EXPIRED = {
    "DATA": "deleted_data_files_count",
    "POSITION_DELETES": "deleted_position_delete_files_count",
    "EQUALITY_DELETES": "deleted_equality_delete_files_count",
    "Manifest": "deleted_manifest_files_count",
    "Manifest List": "deleted_manifest_lists_count",
    "Statistics Files": "deleted_statistics_files_count",
}


def clean_up(table: Table) -> dict[str, Any]:
    """Expire snapshots, then delete those of their files that belong to the table.

    The procedure expire_snapshots is not used: it deletes all files that the metadata names, also
    files of other tables, and files that remaining snapshots name by other paths.
    """
    guard = _guard(table)
    emit("log", message=f"expire_snapshots({table.sql_name}), files below {guard.shown}")
    action = (
        table.actions()
        .expireSnapshots(table.load())
        .expireOlderThan(int(table.request["older_than_ms"]))
        .retainLast(int(table.request["retain_last"]))
    )
    _files_in_metadata(table)  # fails before the commit if this release of Iceberg cannot do it
    expired = table.frame(action.expireFiles())
    needed = NeededFiles(())
    if table.is_in_object_store:
        expired = without_same_objects(expired, _files_in_metadata(table))
    else:
        needed = _needed_files(table)
    kept_metadata = _kept_metadata(table)
    counts = dict.fromkeys(_EXPIRED.values(), 0)
    deleted: list[str] = []
    kept: list[str] = []
    for batch in _batches(expired.toLocalIterator(), _DELETE_BATCH):
        own = []
        for path, kind in batch:
            if path in needed:
                continue
            # Only the catalog removes metadata files. Whoever names one as a data file removes none.
            if guard.is_own(path) and not _is_metadata(path, kept_metadata):
                own.append(path)
                name = _EXPIRED.get(kind, "deleted_other_files_count")
                counts[name] = counts.get(name, 0) + 1
            else:
                kept.append(path)
        _delete(table, own)
        report_removed(own)
        deleted += own[: max(_MAX_LISTED - len(deleted), 0)]
    return {**counts, "deleted_files": deleted, **_kept_files(kept)}


def remove_orphans(table: Table) -> dict[str, Any]:
    """Remove orphan files of the table.

    They are listed first, to add up their sizes and to exclude metadata files that the catalog's
    ledger names.
    """
    guard = _guard(table)
    # Hadoop has no file system for object stores, so the table's own FileIO lists them.
    listing = {"prefix_listing": "true"} if table.is_in_object_store else {}
    kept_metadata = _kept_metadata(table)
    listed = [
        file
        for file in _orphans(table, is_dry_run=True, **listing)
        if not _is_kept(file, kept_metadata)
    ]
    if listed:
        listed = _without_needed(table, listed)
    orphans = [file for file in listed if guard.is_own(file)]
    kept_files_count = len(listed) - len(orphans)
    orphan_bytes = _sizes(table, orphans[:_MAX_SIZED])
    listed_files_count = len(orphans)
    if not table.request["is_dry_run"] and orphans:
        emit("log", message=f"{len(orphans)} orphans were found")
        # The procedure removes those files of the view that begin with the location. The listed
        # files may spell the location of the table differently, so their own prefix is passed.
        orphans = _orphans(
            table,
            is_dry_run=False,
            file_list_view=_view(table, orphans),
            location=literal(os.path.commonprefix(orphans)),  # noqa: RUF071 -- compared as text
        )
        for start in range(0, len(orphans), _DELETE_BATCH):
            report_removed(orphans[start : start + _DELETE_BATCH])
    result = {
        "listed_files_count": listed_files_count,
        "orphan_files_count": len(orphans),
        "orphan_bytes": orphan_bytes,
        "orphan_files": orphans[:_MAX_LISTED],
    }
    if kept_files_count:
        # Without their names: a link may lead to files that the table's owner may not list.
        result["kept_files_count"] = kept_files_count
    return result


def _guard(table: Table) -> Guard:
    """The guard for the prefixes in the request; without them, for the table's location."""
    own = table.request.get("own_prefixes")
    if own is None:
        own = [str(table.load().location())]
    return Guard(own, table.request.get("foreign_prefixes") or [])


def _without_needed(table: Table, files: list[str]) -> list[str]:
    """The files without those that the table's metadata names now, by whatever path."""
    if table.is_in_object_store:
        rows = table.spark.createDataFrame([(file,) for file in files], "path string")
        remaining = without_same_objects(rows, _files_in_metadata(table))
        return sorted(row.path for row in remaining.toLocalIterator())
    needed = _needed_files(table)
    return [file for file in files if file not in needed]


def _needed_files(table: Table) -> NeededFiles:
    """The local files that the table's metadata names now, except metadata files."""
    # Without distinct, Spark would read one manifest after the other.
    paths = _files_in_metadata(table).select("path").distinct()
    return NeededFiles(row.path for row in paths.toLocalIterator())


def _files_in_metadata(table: Table) -> DataFrame:
    """The files that the table's metadata names now, as columns ``path`` and ``type``.

    This is what the action itself compares. Metadata tables such as ``all_files`` have the types of the table's
    columns, which Spark may not support, and a table of this name may exist.
    """
    loaded = table.load()
    action = table.actions().expireSnapshots(loaded)
    internals = table.internals()
    return table.frame(internals.call(action, "fileDS", loaded.operations().current()))


def _delete(table: Table, paths: list[str]) -> None:
    if not paths:
        return
    io = table.load().io()
    java_paths = table.jvm.java.util.ArrayList()
    for path in paths:
        java_paths.add(path)
    util = table.jvm.org.apache.iceberg.CatalogUtil
    util.deleteFiles(io, java_paths, "expired", True)


def _kept_metadata(table: Table) -> frozenset[str] | None:
    """The names of the metadata files in the catalog's ledger; None without a catalog, if all must be kept."""
    names = table.request.get("kept_metadata")
    return None if names is None else frozenset(names)


def _is_kept(file: str, kept_metadata: frozenset[str] | None) -> bool:
    """True for a metadata file that the catalog's ledger names.

    The ledger may name files that are no longer in the metadata log, and those of registered tables have any name.
    """
    if kept_metadata is None:
        return is_metadata_file(file)
    return file.rpartition("/")[2] in kept_metadata


def _is_metadata(file: str, kept_metadata: frozenset[str] | None) -> bool:
    return is_metadata_file(file) or _is_kept(file, kept_metadata)


def _orphans(table: Table, *, is_dry_run: bool, **arguments: str) -> list[str]:
    rows = table.call(
        "remove_orphan_files",
        older_than=_moment(table),
        dry_run=str(is_dry_run).lower(),
        **arguments,
    )
    return sorted(row["orphan_file_location"] for row in rows)


def _view(table: Table, files: list[str]) -> str:
    """Create a view of files for the procedure, which checks each of them again; returns its name."""
    rows = [(file, datetime.fromtimestamp(0, UTC)) for file in files]
    columns = "file_path string, last_modified timestamp"
    table.spark.createDataFrame(rows, columns).createOrReplaceTempView(_ORPHANS_VIEW)
    return literal(_ORPHANS_VIEW)


def _sizes(table: Table, files: list[str]) -> int:
    io = table.load().io()
    total = 0
    for file in files:
        try:
            total += io.newInputFile(file).getLength()
        except Py4JError:  # removed concurrently
            continue
    return total


def _moment(table: Table) -> str:
    moment = datetime.fromtimestamp(table.request["older_than_ms"] / 1000, UTC)
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}Z'"


def _kept_files(paths: list[str]) -> dict[str, Any]:
    """The part of a result that lists files which were kept because they do not belong to the table."""
    return {"kept_files_count": len(paths), "kept_files": paths[:_MAX_LISTED]} if paths else {}


def _batches(rows: Iterator[Any], size: int) -> Iterator[list[tuple[str, str]]]:
    """Path and type of each file, in lists of at most ``size``."""
    while batch := [(row.path, row.type) for row in itertools.islice(rows, size)]:
        yield batch
