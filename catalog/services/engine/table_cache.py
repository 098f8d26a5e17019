"""What this process last saw of tables, so that the commonest write need not ask first."""

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from catalog.models import Table, TableState
from catalog.services.engine.statements import select_tables


class SeenTables:
    """Live tables as this process last saw them, by digest.

    What is kept may be out of date. It is good enough to prepare a write that locks the table and
    looks at it again (``insert_if_unchanged``): a row's location, format and uuid never change.
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._rows: dict[uuid.UUID, Table] = {}

    def get(self, wanted: set[uuid.UUID]) -> dict[uuid.UUID, Table]:
        """The live tables of these digests: those kept, the others read now."""
        found = {key: row for key in wanted if (row := self._rows.get(key)) is not None}
        if len(found) < len(wanted):
            if len(self._rows) >= self._limit:
                self._rows.clear()
            read = select_tables(wanted - found.keys())
            live = {row.digest: row for row in read if row.state == TableState.LIVE}
            self._rows.update(live)
            found.update(live)
        return found

    def kept(self, digests: set[uuid.UUID]) -> dict[uuid.UUID, Table]:
        """Those of the tables that this process has seen; nothing is read."""
        return {key: row for key in digests if (row := self._rows.get(key)) is not None}

    def forget(self, digests: set[uuid.UUID]) -> None:
        for key in digests:
            self._rows.pop(key, None)

    def clear(self) -> None:
        self._rows.clear()


@dataclass(frozen=True, slots=True)
class SeenDocument:
    """The metadata of an Iceberg table, parsed, and the answer that it was parsed from or became."""

    etag: str
    """Of the answer: no other has it."""
    answer: bytes
    document: dict[str, Any]
    size: int
    """How many bytes of JSON it is."""


class SeenDocuments:
    """The metadata that this process last committed, by the table's digest.

    Up to so many bytes of JSON, which take three times as many parsed. Nobody changes a document, as
    the next one shares what they have in common; and whoever uses one asks the database whether its
    ETag is still the table's.
    """

    def __init__(self, limit: int = 8 * 1024 * 1024) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[uuid.UUID, SeenDocument] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: uuid.UUID) -> SeenDocument | None:
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
            return found

    def put(self, name: uuid.UUID, document: SeenDocument) -> None:
        with self._lock:
            self._remove(name)
            if document.size > self._limit // 4:  # one table is not to push out all others
                return
            self._kept[name] = document
            self._size += document.size
            while self._size > self._limit:
                self._remove(next(iter(self._kept)))

    def _remove(self, name: uuid.UUID) -> None:
        old = self._kept.pop(name, None)
        if old is not None:
            self._size -= old.size

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0


tables = SeenTables()
documents = SeenDocuments()
