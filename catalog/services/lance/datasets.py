"""Opening the versions of Lance tables to read them.

Which version is the newest, only the ledger knows. So a read asks it (one statement) and opens
exactly that version; a version never changes, so what is open is kept for the next reader.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Hashable
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar

from django.conf import settings
from lance.dataset import LanceDataset
from lance.lance import _Session as Session
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client import models as m

from catalog import access
from catalog.access import On, Principal
from catalog.errors import BranchNotFound, ManifestNotFound, TableHasNoData
from catalog.formats.lance import naming as lance_naming
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

# Lance keeps what it read of manifests and indexes in a session, by size; a dataset itself is
# little more than its manifest. Half of the budget is for indexes, which cost most to read again.
_INDEX_SHARE, _METADATA_SHARE, _ANSWER_SHARE = 0.5, 0.3125, 0.0625
_DATASET_SHARE, _WRITER_SHARE = 0.09375, 0.03125
_DATASET_COST = 64 * 1024
_MANIFEST_FACTOR = 8  # parsed, against its bytes in the file

_lock = threading.Lock()
_entered: dict[tuple[str, int], tuple[uuid.UUID, datetime]] = {}
"""The tables, and the times in the ledger, of the versions of which the session may keep manifests."""
_MOST_ENTERED = 100_000

T = TypeVar("T")

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


def find_snapshot(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    action: Privilege = Privilege.READ,
) -> Snapshot:
    """A version of a table, by default its newest. One statement.

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


def open_dataset(snapshot: Snapshot) -> LanceDataset:
    """A dataset to read the version from. It may be shared: take nothing from it that changes it.

    Raises ForeignFile for a version that leads to files which are not the table's and may not be
    read for it, ManifestNotFound, InvalidManifestPath, and the refusal behind what Lance cannot open.
    """
    kept = _opened.get(snapshot.key)
    if kept is not None:
        dataset, foreign = kept
        if lance_files.is_plain(snapshot):
            lance_files.require_rights(snapshot, foreign)
        else:
            check(snapshot)
        return dataset
    foreign = check(snapshot)
    with refusing(snapshot.table):
        dataset = _open(snapshot)
    cost = open_cost(snapshot.entry.manifest_size)
    _opened.put(snapshot.key, (dataset, foreign), cost=cost)
    return dataset


def check(snapshot: Snapshot) -> tuple[str, ...]:
    """Check the files of a version before it is opened (``lance_files.check``).

    A version whose manifest was removed is taken out of the ledger, unless it is the newest.
    """
    try:
        return lance_files.check(snapshot)
    except ManifestNotFound as refused:
        raise lance_reconcile.retired(refused, snapshot.location, snapshot.branch) from None


def has_only_own_files(snapshot: Snapshot) -> bool:
    """Whether a version that is open leads to files of its table alone."""
    kept = _opened.get(snapshot.key)
    return kept is not None and not kept[1]


def open_cost(manifest_size: int | None) -> int:
    """About how many bytes a dataset takes that is open."""
    return _DATASET_COST + _MANIFEST_FACTOR * (manifest_size or 0)


def read(
    *, actor: Principal, table: Identifier, version: int | None = None, branch: str = ""
) -> LanceDataset:
    """The same for a version that is named, by default the newest. Raises as ``find_snapshot``."""
    return open_dataset(find_snapshot(actor=actor, table=table, version=version, branch=branch))


def session_for(snapshot: Snapshot) -> Session:
    """What this process keeps of manifests and indexes, to open this version with.

    Lance knows a manifest by its place and number alone. A table may be registered anew at the place
    of another, and a branch be made again by another process: then all that is kept is forgotten.
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
    """The same for what is not there yet."""
    budget = settings.MONODON_LANCE_CACHE_BYTES
    return Session(
        index_cache_size_bytes=int(budget * _INDEX_SHARE),
        metadata_cache_size_bytes=int(budget * _METADATA_SHARE),
    )


def forget_opened() -> None:
    """Close what is kept open, and forget what was answered."""
    _opened.clear()
    writers.clear()
    answers.clear()


def _open(snapshot: Snapshot) -> LanceDataset:
    if snapshot.is_in_place:
        return LanceDataset(snapshot.uri, snapshot.version, session=session_for(snapshot))
    return LanceDataset(
        snapshot.uri,
        snapshot.version,
        session=session_for(snapshot),
        namespace_client=_OneVersion(snapshot),
        table_id=list(snapshot.table),
        namespace_client_managed_versioning=True,
    )


def _missing(
    table: Identifier, table_uuid: uuid.UUID, version: int | None, branch: str
) -> Exception:
    if branch:
        known = Branch.objects.filter(table__uuid=table_uuid, name=branch).exists()
        if not known:
            return BranchNotFound(table, branch)
        return lance_versions.not_found(table, version, branch)
    return (
        TableHasNoData(table) if version is None else lance_versions.not_found(table, version, "")
    )


class _OneVersion(LanceNamespace):
    """Tells Lance where the manifest of one version lies that has not its final name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._entry = table_version(snapshot.entry)

    def namespace_id(self) -> str:
        return "monodon"

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        return m.DescribeTableVersionResponse(version=self._entry)

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        return m.ListTableVersionsResponse(versions=[self._entry])


def table_version(entry: Version) -> m.TableVersion:
    """An entry of the ledger in the form of the Lance protocol."""
    return m.TableVersion(
        version=entry.version,
        manifest_path=entry.manifest_path,
        manifest_size=entry.manifest_size,
        e_tag=entry.e_tag,
        timestamp_millis=int(entry.created_at.timestamp() * 1000),
        metadata=entry.metadata,
    )


class Kept(Generic[T]):
    """What was used last, as far as its part of the budget goes."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._cost = 0

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def take(self, key: Hashable) -> T | None:
        """The same, and it is kept no more."""
        with self._lock:
            value, cost = self._kept.pop(key, (None, 0))
            self._cost -= cost
            return value

    def put(self, key: Hashable, value: T, *, cost: int) -> None:
        limit = settings.MONODON_LANCE_CACHE_BYTES * self._share
        with self._lock:
            if key not in self._kept:
                self._cost += cost
                self._kept[key] = (value, cost)
            while self._cost > limit and self._kept:
                _, (_, freed) = self._kept.popitem(last=False)
                self._cost -= freed

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._cost = 0


_opened: Kept[tuple[LanceDataset, tuple[str, ...]]] = Kept(_DATASET_SHARE)
"""Datasets, with the files of other tables that they lead to: one for each directory."""
writers: Kept[Any] = Kept(_WRITER_SHARE)
"""What a writer left open at the version that it made, for the next one."""
answers: Kept[bytes] = Kept(_ANSWER_SHARE)
"""Answers to queries, by version and request."""
