"""Caches of namespaces, tables and metadata in this process, which save a read before common writes."""

import copy
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeVar

from catalog.models import Namespace, Table, TableState
from catalog.services.engine.prepared.selects import select_namespaces_in_storage, select_tables

_Row = TypeVar("_Row", Namespace, Table)


def _without_properties(row: _Row) -> _Row:
    """A copy without the properties, which may take megabytes. Their first use reads them."""
    small = copy.copy(row)
    vars(small).pop("properties", None)
    return small


class NamespaceCache:
    """Live namespaces as this process last read them, by digest.

    The rows may be out of date. They are sufficient to prepare the creation of an object in them, which
    locks the namespace and checks it again (``prepared.creation``): a row's path never changes.
    """

    def __init__(self, limit: int = 5_000) -> None:
        self._limit = limit
        self._rows: dict[uuid.UUID, Namespace] = {}

    def get(self, name: uuid.UUID) -> Namespace | None:
        """The live namespace of this digest, which is read if it is not cached."""
        row = self.cached(name)
        if row is None and (rows := select_namespaces_in_storage([name])):
            (row,) = rows
            self.put(row)
        return row

    def cached(self, name: uuid.UUID) -> Namespace | None:
        return self._rows.get(name)

    def put(self, row: Namespace) -> None:
        if len(self._rows) >= self._limit:
            self._rows.clear()
        self._rows[row.digest] = _without_properties(row)

    def discard(self, name: uuid.UUID) -> None:
        self._rows.pop(name, None)

    def clear(self) -> None:
        self._rows.clear()


class TableCache:
    """Live tables as this process last read them, by digest.

    The rows may be out of date. They are sufficient to prepare a write that locks the table and
    checks it again (``insert_if_unchanged``): a row's location, format and uuid never change.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._rows: dict[uuid.UUID, Table] = {}

    def get(self, digests: set[uuid.UUID]) -> dict[uuid.UUID, Table]:
        """The live tables of these digests; those that are not cached are read."""
        rows = self.cached(digests)
        if len(rows) < len(digests):
            if len(self._rows) >= self._limit:
                self._rows.clear()
            read = select_tables(digests - rows.keys())
            live = {
                row.digest: _without_properties(row) for row in read if row.state == TableState.LIVE
            }
            self._rows.update(live)
            rows.update(live)
        return rows

    def cached(self, digests: set[uuid.UUID]) -> dict[uuid.UUID, Table]:
        """The cached tables of these digests; reads nothing."""
        return {key: row for key in digests if (row := self._rows.get(key)) is not None}

    def discard(self, digests: set[uuid.UUID]) -> None:
        for key in digests:
            self._rows.pop(key, None)

    def clear(self) -> None:
        self._rows.clear()


@dataclass(frozen=True, slots=True)
class CachedDocument:
    """The parsed metadata of an Iceberg table, with the answer that holds it."""

    etag: str
    """The unique ETag of the answer."""
    answer: bytes
    document: dict[str, Any]
    size: int
    """The size of the document as JSON, in bytes."""
    table: Any = None
    """The table as the commit left it."""


class DocumentCache:
    """The metadata that this process last committed, by the table's digest.

    Limited by the bytes of JSON; parsed, a document takes three times as many. Documents are never
    modified, because successive ones share their common parts. The user of a document checks in the
    database that its ETag is still that of the table.
    """

    def __init__(self, limit: int = 8 * 1024 * 1024) -> None:
        self._limit = limit
        self._size = 0
        self._documents: OrderedDict[uuid.UUID, CachedDocument] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: uuid.UUID) -> CachedDocument | None:
        with self._lock:
            document = self._documents.get(name)
            if document is not None:
                self._documents.move_to_end(name)
            return document

    def put(self, name: uuid.UUID, document: CachedDocument) -> None:
        with self._lock:
            self._remove(name)
            if document.size > self._limit // 4:  # one table must not evict all others
                return
            self._documents[name] = document
            self._size += document.size
            while self._size > self._limit:
                self._remove(next(iter(self._documents)))

    def _remove(self, name: uuid.UUID) -> None:
        old = self._documents.pop(name, None)
        if old is not None:
            self._size -= old.size

    def clear(self) -> None:
        with self._lock:
            self._documents.clear()
            self._size = 0


namespaces = NamespaceCache()
unplaced_namespaces = NamespaceCache()
"""Those whose new Iceberg tables lie in the warehouse: no location and no storage profile applies to them."""
tables = TableCache()
documents = DocumentCache()
