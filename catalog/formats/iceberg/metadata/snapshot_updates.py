"""Updates of snapshots, references, statistics and encryption keys."""

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.metadata import snapshots
from catalog.formats.iceberg.metadata.draft import Draft
from catalog.formats.iceberg.reading import (
    LONG_MAX,
    Document,
    at,
    filled_text_at,
    integer_at,
    integers_at,
    object_at,
    optional_integer_at,
    text_at,
)

_CLOCK_TOLERANCE_MS = 60_000
_MAX_SEQUENCE_STEP = 1_000_000
"""Clients use the next number. A number near the largest one would leave none for later commits."""
_MAX_ROW_ID_STEP = 2**48


def add_snapshot(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "snapshot")
    snapshot = object_at(update, "snapshot", path)
    if not draft.items("schemas"):
        raise InvalidMetadata(f"{here}: add a schema before the first snapshot")
    snapshot = snapshots.with_operation(snapshot)
    snapshots.check_new(snapshot, draft.version, here)
    _check_clock(draft, snapshot["timestamp-ms"], at(here, "timestamp-ms"))
    id_: int = snapshot["snapshot-id"]
    if draft.snapshot(id_) is not None:
        raise InvalidMetadata(f"{at(here, 'snapshot-id')}: snapshot already exists for id: {id_}")
    if draft.version > 1:
        _check_sequence(draft, snapshot)
        draft.put("last-sequence-number", snapshot["sequence-number"])
    if draft.version >= 3:
        _take_row_ids(draft, snapshot, here)
    draft.append("snapshots", snapshot)
    draft.snapshot_timestamp_ms = snapshot["timestamp-ms"]
    draft.added_snapshots.add(id_)


def _check_clock(draft: Draft, timestamp: int, path: str) -> None:
    """Refuse a time in the past or the future: clean-up determines a snapshot's age by its time.

    A time far ahead would apply to all later commits until it is reached. A table that was
    registered with such a time continues from it.
    """
    last = draft.document["last-updated-ms"]
    if timestamp < last - _CLOCK_TOLERANCE_MS:
        raise InvalidMetadata(
            f"{path}: Invalid snapshot timestamp {timestamp}: before last updated timestamp {last}"
        )
    log = draft.items("snapshot-log")
    if log and timestamp < log[-1]["timestamp-ms"] - _CLOCK_TOLERANCE_MS:
        raise InvalidMetadata(
            f"{path}: Invalid snapshot timestamp {timestamp}: before last snapshot log entry at"
            f" {log[-1]['timestamp-ms']}"
        )
    if timestamp > max(draft.now_ms, last) + _CLOCK_TOLERANCE_MS:
        raise InvalidMetadata(
            f"{path}: Invalid snapshot timestamp {timestamp}: more than a minute ahead of the server's"
            f" clock at {draft.now_ms}"
        )


def _check_sequence(draft: Draft, snapshot: Document) -> None:
    """Check the order of sequence numbers: a lower number is based on an older state of the table.

    A snapshot without a parent may have the last number: Java's concurrent transactions that replace
    a table all begin with the same number.
    """
    number, last = snapshot["sequence-number"], draft.document["last-sequence-number"]
    is_parentless = snapshot.get("parent-snapshot-id") is None
    if number > last + _MAX_SEQUENCE_STEP:
        raise InvalidMetadata(
            f"Cannot add snapshot with sequence number {number}: more than {_MAX_SEQUENCE_STEP:,} above"
            f" the last sequence number {last}"
        )
    if number > last or (is_parentless and number == last):
        return
    raise RequirementFailed(
        f"Cannot add snapshot with sequence number {number} older than last sequence number {last}"
    )


def _take_row_ids(draft: Draft, snapshot: Document, path: str) -> None:
    """Assign row ids (row lineage): ids below next-row-id are taken, even unused ones."""
    first, next_ = snapshot["first-row-id"], draft.document["next-row-id"]
    if first < next_:
        raise RequirementFailed(
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_}"
        )
    following = first + snapshot["added-rows"]
    if following > min(next_ + _MAX_ROW_ID_STEP, LONG_MAX):
        raise InvalidMetadata(
            f"{at(path, 'added-rows')}: the row ids would pass {following:,}, too far above the next row"
            f" id {next_:,}"
        )
    draft.put("next-row-id", following)


def set_snapshot_ref(draft: Draft, update: Document, path: str) -> None:
    name = filled_text_at(update, "ref-name", path)
    reference = snapshots.reference(update, name, path)
    if draft.entries("refs").get(name) == reference:
        return
    id_ = reference["snapshot-id"]
    if draft.snapshot(id_) is None:
        raise InvalidMetadata(
            f"{at(path, 'snapshot-id')}: cannot set {name} to unknown snapshot: {id_}"
        )
    draft.change("refs")[name] = reference
    if name == snapshots.MAIN:
        draft.set_main(id_)


def remove_snapshot_ref(draft: Draft, update: Document, path: str) -> None:
    draft.remove_reference(filled_text_at(update, "ref-name", path))


def remove_snapshots(draft: Draft, update: Document, path: str) -> None:
    """Remove snapshots with their references and statistics."""
    ids = set(integers_at(update, "snapshot-ids", path))
    if not draft.remove("snapshots", "snapshot-id", ids):
        return
    draft.removed_snapshots = True
    for name, reference in list(draft.entries("refs").items()):
        if reference["snapshot-id"] in ids:
            draft.remove_reference(name)
    draft.remove("statistics", "snapshot-id", ids)
    draft.remove("partition-statistics", "snapshot-id", ids)


def set_statistics(draft: Draft, update: Document, path: str) -> None:
    file = object_at(update, "statistics", path)
    id_ = snapshots.check_statistics(file, at(path, "statistics"))
    snapshot_id = optional_integer_at(update, "snapshot-id", path)
    if snapshot_id is not None and snapshot_id != id_:
        raise InvalidMetadata(f"{at(path, 'snapshot-id')} is not that of the statistics: {id_}")
    _put_file(draft, "statistics", file, id_)


def set_partition_statistics(draft: Draft, update: Document, path: str) -> None:
    file = object_at(update, "partition-statistics", path)
    id_ = snapshots.check_partition_statistics(file, at(path, "partition-statistics"))
    _put_file(draft, "partition-statistics", file, id_)


def _put_file(draft: Draft, key: str, file: Document, snapshot: int) -> None:
    if file not in draft.items(key):
        draft.remove(key, "snapshot-id", {snapshot})
        draft.append(key, file)


def remove_statistics(draft: Draft, update: Document, path: str) -> None:
    draft.remove("statistics", "snapshot-id", {integer_at(update, "snapshot-id", path)})


def remove_partition_statistics(draft: Draft, update: Document, path: str) -> None:
    id_ = integer_at(update, "snapshot-id", path)
    draft.remove("partition-statistics", "snapshot-id", {id_})


def add_encryption_key(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "encryption-key")
    key = object_at(update, "encryption-key", path)
    id_ = snapshots.check_encryption_key(key, here)
    if draft.version < 3:
        raise InvalidMetadata(f"{here}: encryption keys are not supported until v3")
    if all(existing["key-id"] != id_ for existing in draft.items("encryption-keys")):
        draft.append("encryption-keys", key)


def remove_encryption_key(draft: Draft, update: Document, path: str) -> None:
    draft.remove("encryption-keys", "key-id", {text_at(update, "key-id", path)})
