"""Open versions of Lance tables for reading.

Only the ledger knows the newest version. A read therefore queries the ledger (one statement) and
opens exactly that version. A version never changes, so open datasets are cached for later readers.
"""

import re
import threading
import uuid
from collections.abc import Hashable, Mapping
from datetime import datetime
from functools import cache, cached_property
from typing import Any

import pyarrow as pa
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from lance import Session
from lance.dataset import LanceDataset
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client import models as m

from catalog import access, sized_cache
from catalog.access import On, Principal
from catalog.errors import BranchNotFound, ManifestNotFound, TableHasNoData
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import vectors
from catalog.identifiers import Identifier, digest
from catalog.models import Branch, TableFormat
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.lance.errors import refusing
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import reconcile as lance_reconcile
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.ledger.versions import Version
from catalog.services.tables import tables
from catalog.sized_cache import SizedCache
from catalog.storage import lance_options, locations, stores

# Lance caches manifests and indexes in a session, by size; a dataset itself is little more than its
# manifest. Half of the budget is for indexes, which are the most expensive to read again.
_INDEX_SHARE, _METADATA_SHARE, _ANSWER_SHARE = 0.5, 0.3125, 0.0625
_DATASET_SHARE, _WRITER_SHARE = 0.09375, 0.03125
_DATASET_COST = 64 * 1024
_MANIFEST_FACTOR = 8  # size of a parsed manifest relative to its file

_lock = threading.Lock()
_entered: dict[tuple[str, int], tuple[uuid.UUID, datetime]] = {}
"""Table and creation time of each version whose manifest the session may have cached."""
_MOST_ENTERED = 100_000

_FIND = f"""
    SELECT t.uuid, t.location, t.format, t.is_materialized, v.version, t.id, {lance_versions.COLUMNS}
    FROM catalog_table t
    LEFT JOIN LATERAL (
        SELECT * FROM catalog_tableversion v
        WHERE v.table_id = t.id AND v.branch = %s AND v.deleted_at IS NULL AND v.version <= %s
        ORDER BY v.version DESC LIMIT 1
    ) v ON true
    WHERE t.digest = %s AND t.state <> 'dropped'
"""  # noqa: S608 -- fixed columns


class OpenVersion(LanceDataset):
    """A version that is open for reading, and never changes."""

    has_only_own_files = False
    """True if it refers only to files of its own table."""

    @cached_property
    def schema(self) -> pa.Schema:
        return super().schema

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        return super().count_rows(filter, **options) if filter or options else self._rows

    @cached_property
    def vector_columns(self) -> dict[str, pa.DataType]:
        """The types of the columns of vectors by their paths."""
        return dict(vectors.columns_of(self.schema))

    @cached_property
    def index_types(self) -> frozenset[str]:
        """The types of the indexes in Lance's names, such as ``IVF_PQ``."""
        return frozenset(index.index_type for index in self.describe_indices())

    @cached_property
    def _rows(self) -> int:
        return int(super().count_rows())


def find_snapshot(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    action: Privilege = Privilege.READ,
) -> Snapshot:
    """Find a version of a table, by default its newest. One statement.

    Raises NamespaceNotFound, TableNotFound, TableHasNoData, BranchNotFound, VersionNotFound.
    """
    access.require(actor, action, On.table(table))
    cursor = hot_cursor()
    highest = lance_naming.MAX_VERSION if version is None else version
    cursor.execute(_FIND, [branch, highest, digest(table)])
    row = cursor.fetchone()
    if row is None or row[2] != TableFormat.LANCE:
        raise tables.not_found(table)
    if row[4] is None or (version is not None and row[4] != version):
        raise _missing(table, row[0], version, branch)
    entry = lance_versions.from_row(row[6:], row[1])
    return Snapshot(table, row[0], row[1], branch, entry, row[5], actor, is_materialized=row[3])


def open_dataset(snapshot: Snapshot) -> OpenVersion:
    """Open the version for reading. The dataset may be shared: do not call methods that change it.

    Raises ForeignFile for a version that refers to files of others that may not be read for the
    table, ManifestNotFound, InvalidManifestPath, StorageUnavailable, and the catalog error for a
    failure of Lance.
    """
    stores.store_of(snapshot.location).occupy()
    key = cache_key(snapshot)
    cached = _opened.get(key)
    if cached is not None:
        dataset, foreign = cached
        if not lance_files.is_unchanged(snapshot, foreign):
            check(snapshot)
            require_checked(snapshot, dataset)
        return dataset
    foreign = check(snapshot)
    with refusing(snapshot.table):
        dataset = _open(snapshot)
    require_checked(snapshot, dataset)
    dataset.has_only_own_files = not foreign
    cost = open_cost(snapshot.entry.manifest_size)
    _opened.put(key, (dataset, foreign), cost=cost)
    return dataset


def cache_key(snapshot: Snapshot) -> Hashable:
    """Return the key of an open version: of the version, and of the access to its object store.

    A dataset keeps the credentials that it was opened with, so a change of the storage profile opens
    it again.
    """
    if not locations.is_object(snapshot.location):
        return snapshot.key
    configuration = stores.configuration_of(snapshot.location)
    return snapshot.key, configuration and (configuration.profile, configuration.version)


def check(snapshot: Snapshot) -> tuple[str, ...]:
    """Check the files of a version before it is opened (``ledger.files.check``).

    A version whose manifest is missing is removed from the ledger, unless it is the newest.
    """
    try:
        return lance_files.check(snapshot)
    except ManifestNotFound as refused:
        raise lance_reconcile.retired(refused, snapshot.location, snapshot.branch) from None


def require_checked(snapshot: Snapshot, dataset: LanceDataset) -> None:
    """Require that a dataset leads to the files that ``check`` has found in the manifest in storage.

    Raises InvalidManifestPath.
    """
    lance_files.require_checked(snapshot, dataset._ds.serialized_manifest())  # noqa: SLF001


def open_cost(manifest_size: int | None) -> int:
    """Return the approximate memory size of an open dataset in bytes."""
    return _DATASET_COST + _MANIFEST_FACTOR * (manifest_size or 0)


def read(
    *, actor: Principal, table: Identifier, version: int | None = None, branch: str = ""
) -> LanceDataset:
    """Find and open a version, by default the newest.

    Raises the errors of ``find_snapshot`` and ``open_dataset``.
    """
    return open_dataset(find_snapshot(actor=actor, table=table, version=version, branch=branch))


def session_for(snapshot: Snapshot) -> Session:
    """Return the session with the cached manifests and indexes to open this version with.

    Lance identifies a manifest by location and number only. If a table was registered at the
    location of another table, or another process created a branch again, the whole cache is
    discarded.
    """
    key = (snapshot.uri, snapshot.version)
    entered = (snapshot.uuid, snapshot.entry.created_at)
    with _lock:
        if _entered.setdefault(key, entered) != entered or len(_entered) > _MOST_ENTERED:
            session.cache_clear()
            _entered.clear()
            _entered[key] = entered
        return session()


@cache
def session() -> Session:
    """Return the session for a dataset that does not exist yet."""
    budget = settings.MONODON_LANCE_CACHE_BYTES
    return Session(
        index_cache_size_bytes=int(budget * _INDEX_SHARE),
        metadata_cache_size_bytes=int(budget * _METADATA_SHARE),
    )


def clear_caches() -> None:
    """Close the open datasets and discard the cached answers."""
    _opened.clear()
    writers.clear()
    answers.clear()


def _open(snapshot: Snapshot) -> OpenVersion:
    access_options = (
        store_access(snapshot.location, snapshot.table)
        if snapshot.is_in_place
        else {
            "storage_options": lance_options.storage_options(snapshot.location),
            "namespace_client": _OneVersion(snapshot),
            "table_id": list(snapshot.table),
            "namespace_client_managed_versioning": True,
        }
    )
    return OpenVersion(
        snapshot.uri,
        snapshot.version,
        session=session_for(snapshot),
        base_store_params=base_options(snapshot),
        **access_options,
    )


def store_access(location: str, table: Identifier) -> dict[str, Any]:
    """Return the keyword arguments with which Lance opens a version of a table by its location.

    They renew credentials that expire.
    """
    options = lance_options.storage_options(location)
    if not expires(options):
        return {"storage_options": options}
    return {
        "storage_options": options,
        "namespace_client": _Credentials(location),
        "table_id": list(table),
    }


def base_options(snapshot: Snapshot) -> dict[str, dict[str, str]] | None:
    """Return the storage options of a checked version's base paths in other stores than its table.

    By base path, for Lance's ``base_store_params``; None if there are no such base paths.
    """
    bases = lance_files.object_bases(snapshot)
    if not bases:
        return None
    own = stores.configuration_of(snapshot.location)
    return {
        base_path: lance_options.storage_options(directory) or {}
        for base_path, directory in bases
        if stores.configuration_of(directory) != own
    } or None


def expires(options: Mapping[str, str] | None) -> bool:
    """True if storage options hold credentials that Lance must renew during its work."""
    return options is not None and lance_options.EXPIRES_AT in options


def _missing(
    table: Identifier, table_uuid: uuid.UUID, version: int | None, branch: str
) -> Exception:
    if branch:
        branch_exists = Branch.objects.filter(table__uuid=table_uuid, name=branch).exists()
        if not branch_exists:
            return BranchNotFound(table, branch)
        return lance_versions.not_found(table, version, branch)
    return (
        TableHasNoData(table) if version is None else lance_versions.not_found(table, version, "")
    )


def renewed_options(location: str) -> dict[str, str] | None:
    """Return the present storage options of a location, in a thread of Lance.

    Lance's threads never end, so a connection to the database that is opened here is closed.
    """
    own_connection = connections[DEFAULT_DB_ALIAS]
    was_open = own_connection.connection is not None
    try:
        return lance_options.storage_options(location)
    finally:
        if not was_open:
            own_connection.close()


def namespace_id(location: str) -> str:
    """Return the id of the catalog, as Lance sees it, for a table's location.

    Datasets with the same id and table share a connection to the object store, and its credentials.
    So the id differs after a change of the storage profile.
    """
    if not locations.is_object(location):
        return "monodon"
    configuration = stores.configuration_of(location)
    if configuration is None:
        return "monodon"
    return f"monodon {configuration.profile} {configuration.version}"


class _Credentials(LanceNamespace):
    """The catalog as Lance sees it when it renews credentials."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._id = namespace_id(location)

    def namespace_id(self) -> str:
        return self._id

    def describe_table(self, request: Any) -> m.DescribeTableResponse:
        return m.DescribeTableResponse(
            location=self._location, storage_options=renewed_options(self._location)
        )


class _OneVersion(_Credentials):
    """The catalog of a single version whose manifest does not have its final name yet."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.location)
        self._entry = table_version(snapshot.entry)

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        return m.DescribeTableVersionResponse(version=self._entry)

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        return m.ListTableVersionsResponse(versions=[self._entry])


def table_version(entry: Version) -> m.TableVersion:
    """Convert an entry of the ledger to the Lance protocol."""
    return m.TableVersion(
        version=entry.version,
        manifest_path=entry.manifest_path,
        manifest_size=entry.manifest_size,
        e_tag=entry.e_tag,
        timestamp_millis=entry.timestamp_millis,
        metadata=entry.metadata,
    )


_opened: SizedCache[tuple[OpenVersion, tuple[str, ...]]] = SizedCache("datasets", _DATASET_SHARE)
"""Open datasets with the files of other tables that they refer to, one file per directory."""
writers: SizedCache[Any] = SizedCache("writers", _WRITER_SHARE)
"""Datasets that a writer left open at the version that it created, for the next writer."""
answers: SizedCache[bytes] = SizedCache("answers", _ANSWER_SHARE)
"""Answers to queries, by version and request."""


_MAX_CACHED_BYTES = 256 << 10
_CACHE_ENTRY_BYTES = 1024
# Functions whose value changes. A false match in a text only costs a repeated query.
_CHANGING = re.compile(r"random|rand\b|uuid|now|today|current|date|time", re.IGNORECASE)


def cached_answer(snapshot: Snapshot, request: bytes) -> bytes | None:
    """Return the cached answer to the same request on the same version, else None."""
    return answers.get((snapshot.key, request))


def cache_answer(snapshot: Snapshot, request: bytes, answer: bytes, *, expressions: str) -> None:
    """Cache an answer from a table's own files, if it is small and repeatable. ``expressions``: all those of the query.

    They are those of the parsed request, since JSON may escape any letter.
    """
    if len(answer) > _MAX_CACHED_BYTES or (expressions and _CHANGING.search(expressions)):
        return
    cost = len(answer) + len(request) + _CACHE_ENTRY_BYTES
    answers.put((snapshot.key, request), answer, cost=cost)


def _session_sizes() -> dict[str, int]:
    """The sizes of Lance's own caches, which grow while datasets are read."""
    indexes: int = session().index_cache_size_bytes()
    return {"indexes": indexes, "metadata": session().size_bytes() - indexes}


sized_cache.SIZES.append(_session_sizes)
