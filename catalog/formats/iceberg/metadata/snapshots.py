"""Validation of snapshots, references, statistics files and encryption keys.

Spec: Snapshots, Snapshot References, Row Lineage, Table Statistics, Encryption Keys.
"""

import base64
import binascii

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    at,
    filled_text_at,
    integer_at,
    integers_at,
    objects_at,
    optional_integer_at,
    optional_text_at,
    shown,
    strings_by_name,
    strings_by_name_at,
    text_at,
    texts_at,
)

MAIN = "main"
_OPERATIONS = ("append", "replace", "overwrite", "delete")
_FIRST_ROW_LINEAGE = 3
_AGES = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")


def check_structure(snapshot: Document, path: str) -> None:
    """Check the fields that readers need, in every format version."""
    integer_at(snapshot, "snapshot-id", path)
    optional_integer_at(snapshot, "parent-snapshot-id", path, low=-1)
    optional_integer_at(snapshot, "sequence-number", path)
    integer_at(snapshot, "timestamp-ms", path)
    optional_integer_at(snapshot, "schema-id", path, high=INT_MAX)
    optional_integer_at(snapshot, "first-row-id", path)
    optional_integer_at(snapshot, "added-rows", path)
    optional_text_at(snapshot, "key-id", path)
    if snapshot.get("manifest-list") is None and "manifests" in snapshot:
        texts_at(snapshot, "manifests", path)  # v1 may embed the list
    else:
        filled_text_at(snapshot, "manifest-list", path)
    if snapshot.get("summary") is not None:
        strings_by_name_at(snapshot, "summary", path)


def check_new(snapshot: Document, version: int, path: str) -> None:
    """Check a snapshot that is added to a table of this format version."""
    check_structure(snapshot, path)
    if version == 1:
        if optional_integer_at(snapshot, "sequence-number", path):
            raise InvalidMetadata(f"{at(path, 'sequence-number')} must be 0 in a v1 table")
    else:
        integer_at(snapshot, "sequence-number", path)
        filled_text_at(snapshot, "manifest-list", path)
    if snapshot.get("summary"):
        here = at(path, "summary")
        if text_at(snapshot["summary"], "operation", here) not in _OPERATIONS:
            raise InvalidMetadata(
                f"{at(here, 'operation')} must be one of {', '.join(_OPERATIONS)}"
            )
    if version >= _FIRST_ROW_LINEAGE:
        integer_at(snapshot, "first-row-id", path)
        integer_at(snapshot, "added-rows", path)


def with_operation(snapshot: Document) -> Document:
    """The snapshot as Java's library reads it: a summary without an operation is an overwrite."""
    summary = snapshot.get("summary")
    if not isinstance(summary, dict) or "operation" in summary:
        return snapshot
    plain = {key: value for key, value in snapshot.items() if key != "summary"}
    return {**plain, "summary": {"operation": "overwrite", **summary}} if summary else plain


def reference(source: Document, name: str, path: str) -> Document:
    """A snapshot reference with only its own fields. ``source`` may be the update that sets it."""
    type_ = text_at(source, "type", path).lower()
    if type_ not in {"branch", "tag"}:
        raise InvalidMetadata(f"{at(path, 'type')} must be branch or tag")
    if name == MAIN and type_ != "branch":
        raise InvalidMetadata(f"{at(path, 'type')}: {MAIN} must be a branch")
    document: Document = {"snapshot-id": integer_at(source, "snapshot-id", path), "type": type_}
    for key in _AGES:
        high = INT_MAX if key == "min-snapshots-to-keep" else 2**63 - 1
        value = optional_integer_at(source, key, path, low=1, high=high)
        if value is None:
            continue
        if type_ == "tag" and key != "max-ref-age-ms":
            raise InvalidMetadata(f"{at(path, key)}: tags do not support it, branches do")
        document[key] = value
    return document


def check_statistics(file: Document, path: str) -> int:
    """Check a statistics file and return the id of its snapshot."""
    snapshot = check_partition_statistics(file, path)
    integer_at(file, "file-footer-size-in-bytes", path)
    optional_text_at(file, "key-metadata", path)
    for i, blob in enumerate(objects_at(file, "blob-metadata", path)):
        here = f"{at(path, 'blob-metadata')}[{i}]"
        text_at(blob, "type", here)
        integer_at(blob, "snapshot-id", here)
        integer_at(blob, "sequence-number", here)
        integers_at(blob, "fields", here, high=INT_MAX)
        if blob.get("properties") is not None:
            strings_by_name_at(blob, "properties", here)
    return snapshot


def check_partition_statistics(file: Document, path: str) -> int:
    """Check a partition statistics file and return the id of its snapshot."""
    filled_text_at(file, "statistics-path", path)
    integer_at(file, "file-size-in-bytes", path)
    return integer_at(file, "snapshot-id", path)


def check_encryption_key(key: Document, path: str) -> str:
    """Check an encryption key and return its id."""
    text = text_at(key, "encrypted-key-metadata", path)
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidMetadata(
            f"{at(path, 'encrypted-key-metadata')} must be Base64, not {shown(text)}"
        ) from None
    optional_text_at(key, "encrypted-by-id", path)
    if key.get("properties") is not None:
        strings_by_name(key["properties"], at(path, "properties"))
    return filled_text_at(key, "key-id", path)
