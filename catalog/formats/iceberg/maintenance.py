"""Estimates of the work that Iceberg's maintenance procedures would do on a table."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import ManifestFile

from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.manifests import CheckedIO
from catalog.formats.iceberg.reading import Document
from catalog.storage import spellings

TOO_LARGE = 1.8
"""A file larger than this many times its target is split (``max-file-size-bytes``)."""
_MAX_GROUP = 10 * 1024**3
_MANIFEST_BYTES = 8 * 1024**2
_DELETE_FILE_BYTES = 64 * 1024**2
_SMALL = 0.75  # a delete file below this fraction of its target is rewritten
_MAX_REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True, slots=True)
class File:
    """A live data file and its known deletes."""

    group: tuple[Any, ...]
    """Files are rewritten together within a partition."""
    size: int
    rows: int
    deleted_rows: int = 0
    has_equality_deletes: bool = False
    """True if enough equality deletes apply to make rewriting the file worthwhile."""
    is_sorted: bool = True
    """False if the file does not have the sort order that is required."""
    is_left_out: bool = False
    """True if the job may not read the file, or a delete file that applies to it."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position delete file that is not a deletion vector."""

    group: tuple[Any, ...]
    """Delete files are rewritten together within a partition."""
    size: int
    data_file: str | None
    """The data file whose rows it deletes; None if it may delete rows of several."""
    is_left_out: bool = False
    """True if the job may not read the file."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The result of an estimated compaction."""

    small_files: int
    files: int
    bytes: int
    files_after: int


def compaction(
    files: Iterable[File],
    *,
    target: int,
    small_ratio: float,
    min_files: int,
    deleted_ratio: float,
    is_all: bool = False,
) -> Rewrite:
    """Estimate the files that Iceberg's bin-packing rewrites, and the files that replace them.

    As ``BinPackRewriteFilePlanner`` does: in each partition, files that are too small, too large or
    have too many deletes, if there are enough of them, or one of them has too many deletes. With
    ``is_all``, as with the option ``rewrite-all``, all files.
    """
    small = count = total = after = 0
    groups: dict[tuple[Any, ...], list[File]] = defaultdict(list)
    for file in files:
        is_small = file.size < small_ratio * target
        small += is_small
        if file.is_left_out:
            continue
        is_candidate = is_small or file.size > TOO_LARGE * target
        if is_all or is_candidate or _has_many_deletes(file, deleted_ratio):
            groups[file.group].append(file)
    for members in groups.values():
        size = sum(file.size for file in members)
        enough = len(members) > 1 and (len(members) >= min_files or size > target)
        deletes = any(_has_many_deletes(file, deleted_ratio) for file in members)
        if not (is_all or enough or deletes or size > TOO_LARGE * target):
            continue
        live = sum(file.rows - file.deleted_rows for file in members)
        rows = sum(file.rows for file in members)
        count += len(members)
        total += size
        if live > 0:
            after += _output_files(int(size * live / rows), target, int(small_ratio * target))
    return Rewrite(small, count, total, after)


def _output_files(size: int, target: int, least: int) -> int:
    """The number of files for so many bytes, as ``SizeBasedFileRewritePlanner.expectedOutputFiles``.

    A remainder that would be a small file is divided among the others if they exceed the target by less
    than a tenth.
    """
    whole, remainder = divmod(size, target)
    if not whole:
        return 1
    if remainder > least or size // whole >= 1.1 * target:
        return whole + bool(remainder)
    return whole


def compaction_options(
    *, target: int, small_ratio: float, min_files: int, deleted_ratio: float
) -> dict[str, str]:
    """The parameters of ``compaction`` as options of ``rewrite_data_files``."""
    return {
        "target-file-size-bytes": str(target),
        "min-file-size-bytes": str(int(small_ratio * target)),
        "max-file-size-bytes": str(int(TOO_LARGE * target)),
        "min-input-files": str(min_files),
        "delete-ratio-threshold": str(_threshold(deleted_ratio)),
        "max-file-group-size-bytes": str(max(_MAX_GROUP, 2 * target)),
        "partial-progress.enabled": "true",
        "remove-dangling-deletes": "true",
    }


def _threshold(deleted_ratio: float) -> float:
    return min(max(deleted_ratio, 0.0001), 1.0)  # it must be above 0


def _has_many_deletes(file: File, deleted_ratio: float) -> bool:
    if file.has_equality_deletes:
        return True
    return bool(file.rows) and min(file.deleted_rows / file.rows, 1.0) >= _threshold(deleted_ratio)


def rewritten_manifests(
    listed: Iterable[ManifestFile], spec: int, properties: Mapping[str, Any]
) -> int:
    """The number of manifests after ``rewrite_manifests``, which merges those of ``spec``."""
    target = _number(properties.get("commit.manifest.target-size-bytes")) or _MANIFEST_BYTES
    remaining = 0
    sizes: dict[int, int] = defaultdict(int)
    for manifest in listed:
        if manifest.partition_spec_id == spec:
            sizes[manifest.content] += manifest.manifest_length
        else:
            remaining += 1
    return remaining + sum(math.ceil(size / target) for size in sizes.values())


def rewritten_delete_files(
    delete_files: Iterable[DeleteFile],
    data_files: Mapping[str, tuple[Any, ...]],
    properties: Mapping[str, Any],
) -> int:
    """The number of delete files after ``rewrite_position_delete_files``.

    ``data_files`` maps paths to their groups. By default Iceberg writes one delete file for each data
    file, so there is little to gain. For a delete file of several data files the worst case is
    assumed: one for each data file of the group.
    """
    target = _number(properties.get("write.delete.target-file-size-bytes")) or _DELETE_FILE_BYTES
    is_by_file = str(properties.get("write.delete.granularity", "file")).lower() == "file"
    data_files_by_group = Counter(data_files.values())
    groups: dict[tuple[Any, ...], list[DeleteFile]] = defaultdict(list)
    remaining = 0
    for file in delete_files:
        if file.is_left_out or _SMALL * target <= file.size <= TOO_LARGE * target:
            remaining += 1
        else:
            groups[file.group].append(file)
    for group, files in groups.items():
        if len(files) == 1:
            after = 1
        elif not is_by_file:
            after = max(math.ceil(sum(file.size for file in files) / target), 1)
        elif any(file.data_file is None for file in files):
            after = data_files_by_group[group]
        else:
            after = len({file.data_file for file in files} & data_files.keys())
        remaining += min(after, len(files))
    return remaining


def expiring(document: Document, *, older_than: int, retain_last: int, now: int) -> list[int]:
    """The snapshots that ``expire_snapshots`` removes; times are in milliseconds."""
    reasons = retention(document, older_than=older_than, retain_last=retain_last, now=now)
    return [id_ for id_, retained in reasons.items() if not retained]


def retention(
    document: Document, *, older_than: int, retain_last: int, now: int
) -> dict[int, list[str]]:
    """For each snapshot, the reasons why ``expire_snapshots`` keeps it; none if it expires.

    A branch keeps its newest ``retain_last`` snapshots and all snapshots that are not older than
    ``older_than``. A tag keeps its snapshot. Unreferenced snapshots are kept if they are not older
    than ``older_than``. Branches and tags may override these rules. Times are in milliseconds.
    """
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots") or []}
    refs: Mapping[str, Mapping[str, Any]] = document.get("refs") or {}
    if not refs and document.get("current-snapshot-id", -1) in snapshots:
        refs = {"main": {"snapshot-id": document["current-snapshot-id"], "type": "branch"}}
    properties = document.get("properties") or {}
    max_age = _number(properties.get(_MAX_REF_AGE))
    reasons: dict[int, list[str]] = {id_: [] for id_ in snapshots}
    reachable: set[int] = set()
    for name, ref in refs.items():
        head = snapshots.get(ref["snapshot-id"])
        if head is None:
            continue
        limit = ref.get("max-ref-age-ms", max_age)
        if name != "main" and limit is not None and now - head["timestamp-ms"] > limit:
            continue
        reachable.add(head["snapshot-id"])
        if ref["type"] != "branch":
            reasons[head["snapshot-id"]].append(f"tag '{name}'")
            continue
        line = list(_line(snapshots, head))
        reachable.update(line)
        age = ref.get("max-snapshot-age-ms")
        since = older_than if age is None else now - age
        least = ref.get("min-snapshots-to-keep", retain_last)
        for number, id_ in enumerate(line):
            is_young = snapshots[id_]["timestamp-ms"] >= since
            if number and number >= least and not is_young:
                break
            reasons[id_].append(_branch_reason(name, number, least, is_young=is_young))
    for id_, snapshot in snapshots.items():
        if id_ not in reachable and snapshot["timestamp-ms"] >= older_than:
            reasons[id_].append("on no branch, younger than the retention time")
    return reasons


def _branch_reason(name: str, number: int, least: int, *, is_young: bool) -> str:
    if not number:
        return f"current snapshot of branch '{name}'"
    if number < least:
        return f"among the {least} newest of branch '{name}'"
    return f"younger than the retention time of branch '{name}'" if is_young else ""


def files_of(
    document: Document,
    snapshots: Collection[int],
    io: CheckedIO,
    limit: int,
    unreadable: Collection[str] = (),
) -> dict[str, int | None] | None:
    """The files that only these snapshots refer to, by their paths in the metadata.

    Each has its size in bytes, if the metadata records it; manifest lists have none. A file that another
    snapshot names by another path is not among them. None if more than ``limit`` files would have to be
    read, or if a v1 snapshot names its manifests itself. The files may belong to other tables: check that
    before deleting them. ``unreadable`` are lists and manifests of these snapshots that are not opened; the
    files that only they name are missing. Raises InvalidMetadata, and ForeignFile for another list or
    manifest that may not be read.
    """
    all_snapshots = document.get("snapshots") or []
    if any("manifest-list" not in snapshot for snapshot in all_snapshots):
        return None
    expired = [snapshot for snapshot in all_snapshots if snapshot["snapshot-id"] in snapshots]
    retained = [snapshot for snapshot in all_snapshots if snapshot["snapshot-id"] not in snapshots]
    needed_manifests = _manifests(retained, io)
    only_here = {
        path: manifest
        for path, manifest in _manifests(expired, io, unreadable).items()
        if path not in needed_manifests
    }
    to_read = [*only_here.values(), *needed_manifests.values()]
    if sum(map(manifests.live_files, to_read)) > limit:
        return None
    files: dict[str, int | None] = dict(_sizes(only_here.values(), io))
    needed = {*needed_manifests, *(snapshot["manifest-list"] for snapshot in retained)}
    if files:  # a manifest may have been rewritten and its files retained
        needed.update(_sizes(needed_manifests.values(), io))
    files.update((path, manifest.manifest_length) for path, manifest in only_here.items())
    files.update(dict.fromkeys(snapshot["manifest-list"] for snapshot in expired))
    for key in ("statistics", "partition-statistics"):
        for file in document.get(key) or []:
            if file["snapshot-id"] in snapshots:
                files[file["statistics-path"]] = file.get("file-size-in-bytes")
            else:
                needed.add(file["statistics-path"])
    real = io.canonical(files)
    readings = {text for path in needed for text in spellings.readings(path)}
    needed_files = set(io.canonical(readings).values())
    return {path: size for path, size in files.items() if real[path] not in needed_files}


def estimated_files_of(document: Document, snapshots: Collection[int]) -> tuple[int, int]:
    """About how many files only these snapshots refer to, and their bytes, without reading files.

    From the summaries: data and delete files that a snapshot removes belong to its predecessors, and
    go when the last of these expires. Manifests are not counted, because summaries do not name them.
    """
    files = size = 0
    for snapshot in document.get("snapshots") or []:
        summary = snapshot.get("summary") or {}
        if snapshot["snapshot-id"] in snapshots:
            files += 1  # its manifest list
        if snapshot.get("parent-snapshot-id") in snapshots:
            files += _number(summary.get("deleted-data-files")) or 0
            files += _number(summary.get("removed-delete-files")) or 0
            size += _number(summary.get("removed-files-size")) or 0
    return files, size


def _manifests(
    snapshots: Iterable[Mapping[str, Any]], io: CheckedIO, unreadable: Collection[str] = ()
) -> dict[str, ManifestFile]:
    """The manifests of snapshots by path, without ``unreadable`` lists and manifests."""
    lists = [s["manifest-list"] for s in snapshots if s["manifest-list"] not in unreadable]
    by_path = {
        manifest.manifest_path: manifest
        for listed in manifests.read_lists_unchecked(io, lists)
        for manifest in listed
        if manifest.manifest_path not in unreadable
    }
    io.require(by_path)
    return by_path


def _sizes(listed: Iterable[ManifestFile], io: CheckedIO) -> dict[str, int]:
    """The sizes in bytes of the live files of manifests, by path."""
    return {
        entry.file.file_path: entry.file.file_size_in_bytes
        for entries in manifests.read_each_unchecked(io, list(listed))
        for entry in entries
    }


def _line(snapshots: Mapping[int, Mapping[str, Any]], head: Mapping[str, Any]) -> Iterable[int]:
    """The ids of a snapshot and its ancestors."""
    visited: set[int] = set()
    id_: Any = head["snapshot-id"]
    while id_ in snapshots and id_ not in visited:
        visited.add(id_)
        yield id_
        id_ = snapshots[id_].get("parent-snapshot-id")


def _number(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None
