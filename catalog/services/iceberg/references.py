"""Reading the manifests that a commit did not read to the end, for the references in them.

A commit reads a limited part of what it brings in, and notes the snapshots of which there is more.
A periodic task reads them. Before files of a table are removed, those are read that may name its
files: snapshots committed by principals that may read the table; those committed before it had its directories
by principals that may read a former table there; and, if files in its directories may have been free once, all
committed before it had them.

One call reads a limited number of files for each principal, those with the fewest snapshots first.
Whatever is left keeps the files of the tables that it may name. So a principal delays removals from
tables that it may read, whose files it could refer to anyway, and from no others.
"""

import errno
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.db import transaction
from django.db.models import Count, QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import ForeignFile, InvalidMetadata, ServiceUnavailable
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.reading import Document
from catalog.models import IcebergMetadata, Table, TableVersion, UnreadSnapshot
from catalog.regular_files import NotRegular
from catalog.services.engine import locks
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg.files import TableFileIO, data_files, is_cherry_picked
from catalog.services.storage import file_references, recorded_references
from catalog.services.storage.file_owners import References
from catalog.services.storage.table_files import TableFiles
from catalog.storage import locations, stores

_AT_ONCE = 10_000
# What one call reads for one principal; the manifest that exceeds it is read to its end.
_MAX_FILES = 200_000
_MAX_MANIFESTS = 200_000
_MAX_SECONDS = 300
_MAX_REMEMBERED = 10_000
"""The most manifests whose references a call remembers, and the most directories of each."""

_LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}
)
"""Causes for which the owner of a file is responsible. Whoever keeps others from reading a file prevents no removals."""

Renew = Callable[[], object]
"""Called repeatedly; renews the lease of a job, and may raise to stop. The next call continues."""


def require_read(table: Table, renew: Renew) -> None:
    """Record all references to files of a table that commits left unread, before files are removed.

    Raises ServiceUnavailable if more is left than one call reads, and OSError while the storage of
    another table cannot be reached.
    """
    _read(recorded_references.unread_leading_to(table), renew)
    recorded_references.require_none_unread(table)
    recorded_references.record_claimed(table)


def read_unread(renew: Renew = lambda: None) -> int:
    """Read noted snapshots, and record the references in them; returns the number that is left.

    Raises OSError or ServiceUnavailable if the storage of a table cannot be reached; the others were
    read then.
    """
    with locks.advisory_lock("read unread snapshots") as is_acquired:
        if is_acquired:
            purged = Table.objects.exclude(pk__in=file_references.not_purged(Table.objects.all()))
            UnreadSnapshot.objects.filter(table__in=purged).delete()
            _read(UnreadSnapshot.objects.all(), renew)
    return UnreadSnapshot.objects.count()


def _read(notes: QuerySet[UnreadSnapshot], renew: Renew) -> None:
    counts = notes.values_list("principal").annotate(number=Count("pk")).order_by("number")
    cache = _Cache(renew, time.monotonic() + _MAX_SECONDS)
    unreachable: OSError | ServiceUnavailable | None = None
    for name, _ in list(counts):
        committer = access.committer(name, counts_inactive=True)
        own = notes.filter(principal=name).select_related("table__namespace")
        reading = _Reading(committer, cache)
        for row in own.order_by("table", "pk").iterator(chunk_size=100):
            if reading.is_over:
                break
            renew()
            try:
                reading.read(row)
            except (OSError, ServiceUnavailable) as error:
                unreachable = error
    if unreachable is not None:
        raise unreachable


class _Cache:
    """The references in manifests, of all tables and snapshots of a call, each read once."""

    def __init__(self, renew: Renew, ends_at: float) -> None:
        self.renew = renew
        self._ends_at = ends_at
        self._references: OrderedDict[str, _InManifest] = OrderedDict()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._ends_at

    def get(self, path: str) -> "_InManifest | None":
        return self._references.get(path)

    def read(self, path: str, reader: TableFileIO, location: str) -> tuple["_InManifest", int]:
        """The references in a manifest, and the number of files that it names.

        They are the same for every table, except that a table does not refer to itself. A manifest
        that is torn, or may not be read, names nothing: nobody reads the table by it. Raises OSError if it could not
        be read at the moment.
        """
        added = taken_over = References()
        number = 0
        for batch in _batches(reader, location):
            self.renew()
            number += len(batch)
            files = TableFiles.of_nobody(reader.files.table.identifier)
            added |= files.references(path for path, is_added in batch if is_added)
            taken_over |= files.references(path for path, is_added in batch if not is_added)
        references = _InManifest(added, taken_over)
        both = added | taken_over
        if len(both.free) + len(both.foreign) <= _MAX_REMEMBERED:
            self._references[path] = references
            if len(self._references) > _MAX_REMEMBERED:
                self._references.popitem(last=False)
        return references, number


@dataclass(frozen=True, slots=True)
class _InManifest:
    """What the files refer to that a manifest adds, and those that it takes over from older ones."""

    added: References
    taken_over: References

    def in_snapshot(self, *, is_whole: bool, is_own: bool) -> References:
        """As references of a snapshot. ``is_own``: the snapshot's writer chose the files that are added."""
        if is_whole:
            return self.added | self.taken_over
        added = self.added if is_own else self.added.as_continued()
        return added | self.taken_over.as_continued()


def _batches(reader: TableFileIO, location: str) -> Iterator[list[tuple[str, bool]]]:
    try:
        files = next(data_files(reader, [location]))
        while batch := list(islice(files, _AT_ONCE)):
            yield batch
    except (InvalidMetadata, ForeignFile) as error:
        _require_lasting(error)


def _require_lasting(refusal: InvalidMetadata | ForeignFile) -> None:
    """Raise the OSError behind a refusal to read a file, unless nobody can read the file later either."""
    cause = refusal.__cause__
    if (
        isinstance(cause, OSError)
        and cause.errno is not None
        and not isinstance(cause, NotRegular)
        and not stores.is_missing(cause)
        and cause.errno not in _LASTING
    ):
        raise cause


class _Reading:
    """Reads the snapshots that one principal committed, ordered by table."""

    def __init__(self, committer: Principal | None, cache: _Cache) -> None:
        self._committer = committer
        self._cache = cache
        self._files_read = self._manifests_listed = 0
        self._table_id = 0
        self._snapshots: dict[int, Document] = {}

    @property
    def is_over(self) -> bool:
        """True if no further snapshot may be read, not even one whose manifests were read."""
        return self._manifests_listed >= _MAX_MANIFESTS or self._cache.is_over

    def read(self, row: UnreadSnapshot) -> None:
        """Read a snapshot, or as much of it as the limits leave.

        Raises OSError, and ServiceUnavailable if an object store is unavailable.
        """
        committer = self._committer
        location = row.table.location
        # Where no table may lie any more, nobody reads one.
        if committer is None or not _may_hold_tables(location):
            row.delete()
            return
        stores.store_of(location).require_reachable(location)
        reader = TableFileIO(TableFiles(row.table), committer)
        listed, paths = self._paths(row, reader)
        references = reader.files.references([*listed, *paths])
        position = min(row.manifests_read, len(paths))
        leading = list(listed)
        for path, is_own in list(paths.items())[position:]:
            in_manifest = self._references(reader, path)
            if in_manifest is None:
                break
            in_snapshot = in_manifest.in_snapshot(is_whole=row.is_whole, is_own=is_own)
            references |= in_snapshot
            if in_snapshot.foreign:
                leading.append(path)
            position += 1
        references = references.only(references.sources - {row.table_id})
        if row.is_whole and references:
            references = recorded_references.as_registered(_former_holders(row.table), references)
        is_as_committed = not (references.foreign and _is_any_newer(row, reader, leading))
        _record(row, committer, references, is_as_committed=is_as_committed)
        if position < len(paths):
            row.manifests_read = position
            row.save(update_fields=["manifests_read"])
        else:
            row.delete()

    def _references(self, reader: TableFileIO, path: str) -> _InManifest | None:
        """The references in a manifest; None if the limits do not permit to read it."""
        try:
            real = reader.real_path(path)
        except ForeignFile:
            return _InManifest(References(), References())
        cached = self._cache.get(real)
        if cached is not None:
            return cached
        if self._files_read >= _MAX_FILES or self._cache.is_over:
            return None
        references, number = self._cache.read(real, reader, path)
        self._files_read += max(number, 1)
        return references

    def _paths(self, row: UnreadSnapshot, reader: TableFileIO) -> tuple[list[str], dict[str, bool]]:
        """The manifest list of a snapshot, if there is one, and the manifests that it brought in.

        Each manifest with whether the writer of the snapshot chose the files that the manifest adds.
        """
        snapshot = self._snapshots_of(row).get(row.snapshot_id)
        if snapshot is None:  # it was removed meanwhile
            return [], {}
        is_own = not is_cherry_picked(snapshot)
        location = snapshot.get("manifest-list")
        self._manifests_listed += 1
        if not location:
            return [], dict.fromkeys(snapshot.get("manifests") or (), is_own)
        try:
            listed = manifests.read_list(reader, location)
        except (InvalidMetadata, ForeignFile) as error:
            _require_lasting(error)
            return [location], {}
        self._manifests_listed += len(listed)
        return [location], {
            manifest.manifest_path: is_own and manifest.added_snapshot_id is not None
            for manifest in listed
            if row.is_whole or manifest.added_snapshot_id in {None, row.snapshot_id}
        }

    def _snapshots_of(self, row: UnreadSnapshot) -> dict[int, Document]:
        if self._table_id != row.table_id:
            current = IcebergMetadata.objects.get(table=row.table_id)
            document = metadata_files.read_answer(bytes(current.answer))
            self._table_id = row.table_id
            self._snapshots = {
                snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots") or []
            }
        return self._snapshots


def _former_holders(table: Table) -> set[int]:
    """The other tables that hold the file by which a table was registered."""
    versions = TableVersion.objects.filter(table=table, branch="").order_by("version")
    location = versions.values_list("manifest_path", flat=True).first() or ""
    path = TableFiles(table).classify([location])[location].path
    return set() if path is None else recorded_references.former_holders(path, table.pk)


def _may_hold_tables(location: str) -> bool:
    if locations.is_object(location):
        return stores.configuration_of(location) is not None
    return locations.is_below_any(location, locations.allowed_roots())


def _is_any_newer(row: UnreadSnapshot, reader: TableFileIO, files: Iterable[str]) -> bool:
    """True if one of the files was changed after the commit of the snapshot, or is missing.

    Raises OSError if the storage fails.
    """
    committed_at = row.created_at.timestamp()
    for path in map(reader.real_path, files):
        try:
            if stores.store_of(path).status(path).changed_at > committed_at:
                return True
        except OSError as error:
            if isinstance(error, NotRegular) or stores.is_missing(error):
                return True
            raise
    return False


def _record(
    row: UnreadSnapshot, committer: Principal, references: References, *, is_as_committed: bool
) -> None:
    """Record the references of a snapshot, before its note is changed.

    The rights of the committer open files only if it has committed the references: writers of the table
    can replace a manifest later.
    """
    sources = access.readable_tables(committer, references.sources)
    unreadable = references.sources - sources
    if unreadable:
        # The files belonged to no table when they were committed: no privilege was needed.
        free_until = file_references.was_free_before(unreadable)
        sources |= {pk for pk in free_until if row.created_at < free_until[pk]}
        # Or they belonged to tables that the committer may read, and another table has got their directory since.
        sources |= recorded_references.formerly_readable(
            committer, unreadable - sources, row.created_at
        )
    present = access.committer(committer.name) if is_as_committed else None
    shared = access.readable_tables(present, sources) if present is not None else set()
    with transaction.atomic():
        file_references.record(
            actor=committer,
            table_id=row.table_id,
            references=references.only(shared),
        )
        unshared = references.only(sources - shared)
        for foreign, opens in ((unshared.foreign, is_as_committed), (unshared.continued, False)):
            file_references.record_dependence(
                actor=committer, table_id=row.table_id, foreign=foreign, is_as_committed=opens
            )
