"""What each version of a Lance table changed, from the manifests that the ledger names.

Only manifests are read: regular files of the table, of a limited total size. No file that a manifest refers
to is opened. A version never changes, so the result is cached.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from catalog.errors import CatalogError, ManifestNotFound, ServiceUnavailable
from catalog.formats.lance import history
from catalog.formats.lance.history import NO_FRAGMENTS, Change, VersionContents
from catalog.formats.lance.manifest import NotAManifest
from catalog.models import Table, TableVersion
from catalog.services.lance.ledger import manifests

MAX_BYTES = 16 * 1024**2
"""The total size of the manifests that one call reads; the versions beyond it have no change."""
_MAX_CACHED = 20_000

_lock = threading.Lock()
_cached: OrderedDict[Hashable, Change] = OrderedDict()


def changes(table: Table, versions: Sequence[TableVersion]) -> dict[int, Change]:
    """The changes of versions of one branch, newest first, by number.

    The last one only precedes the others, unless it is the first of its table. Versions whose manifest is
    deleted, missing, too large or unreadable are left out.
    """
    reader = _Reader(table)
    result: dict[int, Change] = {}
    for index, version in enumerate(versions):
        older = versions[index + 1] if index + 1 < len(versions) else None
        key = _key(table, version, older)
        with _lock:
            change = _cached.get(key)
        if change is None:
            change = reader.change(version, older)
            if change is None:
                continue
            if older is None or change.rows_added is not None:
                _put(key, change)
        result[version.version] = change
    return result


def _put(key: Hashable, change: Change) -> None:
    with _lock:
        _cached[key] = change
        while len(_cached) > _MAX_CACHED:
            _cached.popitem(last=False)


def _key(table: Table, version: TableVersion, older: TableVersion | None) -> Hashable:
    previous = None
    if older is not None:
        previous = (older.version, older.created_at, older.deleted_at is None)
    return table.uuid, version.branch, version.version, version.created_at, previous


class _Reader:
    """Reads manifests up to the limit, each of them once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._contents: dict[int, VersionContents | None] = {}
        self._bytes_left = MAX_BYTES
        self._is_available = True

    def change(self, version: TableVersion, older: TableVersion | None) -> Change | None:
        contents = self._read(version)
        if contents is None:
            return None
        if older is not None:
            return history.change(self._read(older), contents)
        is_first = not version.branch and version.version == 1
        return history.change(NO_FRAGMENTS if is_first else None, contents)

    def _read(self, version: TableVersion) -> VersionContents | None:
        if version.version not in self._contents:
            self._contents[version.version] = self._read_file(version)
        return self._contents[version.version]

    def _read_file(self, version: TableVersion) -> VersionContents | None:
        if version.deleted_at is not None:
            return None
        # A staged manifest has either name: another process may be moving it.
        paths = [version.manifest_path, *([version.staged_path] if version.staged_path else ())]
        for path in paths:
            if not self._is_available or self._bytes_left <= 0:
                return None
            try:
                data = self._content(version, path)
                self._bytes_left -= len(data)
                return history.read(data)
            except ServiceUnavailable:
                self._is_available = False  # the other manifests are in the same store
            except ManifestNotFound:
                continue
            except (CatalogError, NotAManifest):
                return None
        return None

    def _content(self, version: TableVersion, path: str) -> bytes:
        return manifests.content(
            table=self._table.identifier,
            location=self._table.location,
            manifest_path=path,
            version=version.version,
            limit=self._bytes_left,
        )
