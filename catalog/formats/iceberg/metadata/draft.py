"""The next version of a table's metadata while a commit's updates are applied to it.

Copy on write: a list or map of the base is copied when it is first changed, and its items are
shared. With thousands of snapshots a deep copy would cost more than the rest of a commit.
"""

import re
from typing import Any
from uuid import uuid4

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata.snapshots import MAIN
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.schema import partitioning, schemas, sorting
from catalog.formats.iceberg.schema.schemas import Columns

DEFAULT_VERSION = 2
MAX_VERSION = 3
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")


def empty(version: int) -> Document:
    """The document from which updates alone create a table (create transaction)."""
    document: Document = {
        "format-version": version,
        "table-uuid": str(uuid4()),
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": partitioning.FIRST_FIELD_ID - 1,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version > 1:
        document["last-sequence-number"] = 0
    if version >= 3:
        document["next-row-id"] = 0
    set_current_snapshot(document, None)
    return document


def set_current_snapshot(document: Document, id_: int | None) -> None:
    """Set or clear the current snapshot.

    Cleared as in Java: -1 in v1 and v2, as older readers require; in v3 no field.
    """
    if id_ is None and document["format-version"] >= 3:
        document.pop("current-snapshot-id", None)
    else:
        document["current-snapshot-id"] = -1 if id_ is None else id_


class Draft:
    """The changes of one request. ``changed`` is False while nothing differs from the base."""

    def __init__(self, base: Document | None, *, version: int, now_ms: int) -> None:
        self.base = base
        self.document: Document = empty(version) if base is None else dict(base)
        self.now_ms = now_ms
        self.changed = base is None
        self.layout_changed = base is None  # schema, spec or order: do they still fit together?
        self.snapshot_timestamp_ms: int | None = None
        self.added_snapshots: set[int] = set()
        self.former_mains: set[int] = set()
        self.removed_snapshots = False
        self.is_replaced = base is None
        """True if no existing data is read with the schemas that are added next."""
        self.last_schema: int | None = None
        self.last_spec: int | None = None
        self.last_order: int | None = None
        self._owned: set[str] = set()
        self._by_id: dict[int, Document] | None = None

    # -- reads

    @property
    def version(self) -> int:
        version: int = self.document["format-version"]
        return version

    def columns(self) -> Columns:
        """The columns of the current schema."""
        current = self.document["current-schema-id"]
        for schema in self.document["schemas"]:
            if schema.get("schema-id", 0) == current:
                return schemas.index(schema, "schema")
        raise InvalidMetadata(f"There is no schema {current}: add one first")

    def snapshot(self, id_: int) -> Document | None:
        if self._by_id is None:
            self._by_id = {s["snapshot-id"]: s for s in self.items("snapshots")}
        return self._by_id.get(id_)

    def items(self, key: str) -> list[Document]:
        """A list of the document, which callers must not change."""
        return self.document.get(key) or []

    def entries(self, key: str) -> Document:
        """A map of the document, which callers must not change."""
        return self.document.get(key) or {}

    # -- changes

    def put(self, key: str, value: Any) -> None:
        if key not in self.document or self.document[key] != value:
            self.document[key] = value
            self.changed = True

    def replace(self, key: str, values: list[Document]) -> None:
        self.document[key] = values
        self._owned.add(key)
        self.changed = True
        if key == "snapshots":
            self._by_id = None

    def append(self, key: str, value: Document) -> None:
        if key not in self._owned:
            self.document[key] = list(self.items(key))
            self._owned.add(key)
        self.document[key].append(value)
        self.changed = True
        if key == "snapshots" and self._by_id is not None:
            self._by_id[value["snapshot-id"]] = value

    def remove(self, key: str, id_key: str, ids: set[int] | set[str]) -> bool:
        """Remove items by id; missing ids are not an error. Returns True if any was removed."""
        remaining = [item for item in self.items(key) if item.get(id_key, 0) not in ids]
        if len(remaining) == len(self.items(key)):
            return False
        self.replace(key, remaining)
        return True

    def change(self, key: str) -> Document:
        """A map of the document, which callers may change."""
        if key not in self._owned:
            self.document[key] = dict(self.entries(key))
            self._owned.add(key)
        self.changed = True
        own: Document = self.document[key]
        return own

    def set_main(self, snapshot: int) -> None:
        """Set main's snapshot and add an entry to the snapshot log, which `finish` may remove."""
        set_current_snapshot(self.document, snapshot)
        self.former_mains.add(snapshot)
        timestamp = self.updated_ms()
        self.append("snapshot-log", {"timestamp-ms": timestamp, "snapshot-id": snapshot})

    def remove_reference(self, name: str) -> None:
        if name == MAIN:
            set_current_snapshot(self.document, None)
            self.is_replaced = True
        if name in self.entries("refs"):
            del self.change("refs")[name]

    def updated_ms(self) -> int:
        """The time of this change: that of its last snapshot, otherwise the present.

        Never before the base's time: a client's clock may be behind the previous client's, and Java
        refuses to read logs that run backwards by more than a minute.
        """
        timestamp = (
            self.now_ms if self.snapshot_timestamp_ms is None else self.snapshot_timestamp_ms
        )
        before: int = self.document["last-updated-ms"]
        return max(timestamp, before)

    # -- the end

    def finish(self, previous_location: str | None) -> Document:
        """The document after all updates; the base itself when nothing changed."""
        if not self.changed and self.base is not None:
            return self.base
        if self.base is None:
            self._complete()
        if self.layout_changed:
            self._check_layout()
        self._correct_snapshot_log()
        if self.version == 1:
            self._write_legacy()
        if self.base is not None and previous_location is not None:
            self._append_metadata_log(previous_location, self.base["last-updated-ms"])
        self.document["last-updated-ms"] = self.updated_ms()
        return self.document

    def _complete(self) -> None:
        """Complete a created table: without a spec it is unpartitioned, without an order unsorted."""
        if not self.items("schemas"):
            raise InvalidMetadata("A table needs a schema: add-schema is missing")
        if "location" not in self.document:
            raise InvalidMetadata("A table needs a location: set-location is missing")
        if not self.items("partition-specs"):
            self.append("partition-specs", {"spec-id": 0, "fields": []})
        if not self.items("sort-orders"):
            self.append("sort-orders", sorting.unsorted())

    def _check_layout(self) -> None:
        columns = self.columns()
        spec = self._default("partition-specs", "spec-id", "default-spec-id")
        partitioning.check_fit(spec, columns, "Default partition spec")
        order = self._default("sort-orders", "order-id", "default-sort-order-id")
        sorting.check_fit(order, columns, "Default sort order")

    def _default(self, key: str, id_key: str, default_key: str) -> Document:
        for item in self.items(key):
            if item[id_key] == self.document[default_key]:
                return item
        raise InvalidMetadata(f"{default_key} {self.document[default_key]} is not in {key}")

    def _correct_snapshot_log(self) -> None:
        """Remove entries of snapshots that were main only between two updates of this request.

        The entries before that of a removed snapshot are removed as well: with a gap the log would
        say that the previous snapshot was current for longer than it was.
        """
        current = self.document.get("current-snapshot-id")
        passing = (self.former_mains & self.added_snapshots) - {current}
        if not passing and not self.removed_snapshots:
            return
        log: list[Document] = []
        for entry in self.items("snapshot-log"):
            if self.snapshot(entry["snapshot-id"]) is None:
                log.clear()
            elif entry["snapshot-id"] not in passing:
                log.append(entry)
        self.replace("snapshot-log", log)

    def _write_legacy(self) -> None:
        """Write the two fields that only readers of v1 use."""
        current = self.document["current-schema-id"]
        self.document["schema"] = next(
            s for s in self.items("schemas") if s.get("schema-id", 0) == current
        )
        spec = self._default("partition-specs", "spec-id", "default-spec-id")
        self.document["partition-spec"] = spec["fields"]

    def _append_metadata_log(self, location: str, timestamp_ms: int) -> None:
        configured = self.entries("properties").get(_PREVIOUS_VERSIONS, "")
        is_number = _INTEGER.fullmatch(configured) is not None
        keep = max(1, int(configured) if is_number else _PREVIOUS_VERSIONS_DEFAULT)
        entry = {"timestamp-ms": timestamp_ms, "metadata-file": location}
        self.replace("metadata-log", [*self.items("metadata-log"), entry][-keep:])
