"""Write to Lance tables: Lance creates the new version, the commit engine accepts or refuses it.

    request's thread                         Lance's threads
    find the newest version
    call Lance ───────────────────────────▶  write data files, stage a manifest
                                             "create version 8": commit through the engine
                                             version 8 is taken: "describe version 8", rebase,
                                             "create version 9"
    return the result          ◀───────────  finished

Lance calls its catalog (a LanceNamespace) from its own threads. The catalog handles these calls one
at a time, with the database connection and the principal of the request, whose thread waits for
Lance (``ledger_namespace``). A managed table therefore has a single history for all writers.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from django.db import DatabaseError
from lance.dataset import LanceDataset

from catalog import access
from catalog.access import On, Principal
from catalog.errors import CatalogError, CommitConflict
from catalog.identifiers import Identifier, label, slug
from catalog.models import StagedFile
from catalog.postgresql import outcomes
from catalog.privileges import Privilege
from catalog.services.engine.commit import Commit
from catalog.services.lance import data_operations, datasets, errors
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.ledger.versions import Version
from catalog.services.lance.ledger_namespace import ForwardingNamespace, LedgerNamespace
from catalog.services.storage import object_placement
from catalog.storage import lance_options, stores

log = logging.getLogger(__name__)
T = TypeVar("T")
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Written(Generic[T]):
    """The result of a write."""

    result: T
    """The return value of Lance."""
    version: int
    """The newest version that this write saw: the one it created, if it changed anything."""
    transaction_id: str | None
    """None if the write changed nothing."""
    commit: Commit | None = None

    @property
    def operation_result(self) -> Any:
        """Return the result of the operation of the last commit."""
        if self.commit is None:
            raise LookupError("nothing was committed")
        return self.commit.results[0]


def write(
    *,
    actor: Principal,
    table: Identifier,
    operation: type[data_operations.WriteVersion],
    work: Callable[[LanceDataset], T],
    branch: str = "",
    version: int | None = None,
    summary: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    can_repeat: bool = True,
    timeout: timedelta | None = None,
    may_commit: Callable[[], None] | None = None,
    keep_open: bool = False,
) -> Written[T]:
    """Run ``work`` on a dataset of the table's newest version; its commits go to the ledger.

    ``operation`` names the change in the audit trail and in the transaction, ``summary`` adds
    details, and ``fields`` are further fields of the operation. ``work`` may not use the database,
    because its connection serves the calls of Lance. If a concurrent change prevents a rebase, the
    work runs again if ``can_repeat`` is set. ``version`` is an older version to start from
    (RestoreTable). After the timeout nothing is committed (ServiceUnavailable), nor if
    ``may_commit``, which is called before each commit, raises. ``keep_open`` states that ``work``
    leaves the dataset at the version that it created, so that the next write can reuse it.

    Raises the errors of ``find_snapshot`` and of the engine, CommitConflict if concurrent changes
    persist, and the errors of the caller (``errors.refusal``).
    """
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = datasets.find_snapshot(
            actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
        )
        if snapshot.is_materialized and not operation.suits_views:
            # The engine would refuse it too, but only after the files are written.
            raise version_operations.is_view(table)
        ledger = LedgerNamespace(actor, snapshot.table, snapshot.location, branch)
        ledger.base, ledger.deadline = snapshot.entry, deadline
        ledger.may_commit = may_commit
        may_disappear = branch or version is not None
        base = (branch, snapshot.version, snapshot.entry.created_at) if may_disappear else None
        ledger.make = partial(
            _make_operation,
            operation,
            summary=summary,
            location=snapshot.location,
            base=base,
            **(fields or {}),
        )
        try:
            opened: _OpenVersion = datasets.writers.take(
                datasets.cache_key(snapshot)
            ) or _OpenVersion(snapshot)
            opened.check(snapshot)
            result, last = ledger.run(partial(opened.change, ledger, work))
        except CommitConflict as error:
            if not can_repeat or attempt == _ATTEMPTS or not _is_retryable(error):
                raise
            continue
        except (OSError, ValueError, RuntimeError) as error:
            # Lance reports missing files by any of these.
            raise _missing_files(snapshot, actor) or error from error
        if keep_open:
            opened.keep(ledger, last)
        return _written(ledger, result, last)
    raise AssertionError("unreachable")


def write_repeatedly(**arguments: Any) -> Written[Any]:
    """Call ``write``, and repeat it if a concurrent change prevents a rebase.

    For changes that mean the same on every version: Lance does not distinguish their retryable
    conflicts from the others.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(CommitConflict):
            return write(**arguments)
    return write(**arguments)


def _missing_files(snapshot: Snapshot, actor: Principal) -> CatalogError | None:
    """Return the error for missing files if the table, branch or version no longer exists."""
    try:
        current = datasets.find_snapshot(
            actor=actor, table=snapshot.table, branch=snapshot.branch, version=snapshot.version
        )
    except CatalogError as refused:
        return refused
    if current.key == snapshot.key:
        return None
    return CommitConflict(f"Table '{label(snapshot.table)}' was changed by others meanwhile")


def change_storage(
    *,
    actor: Principal,
    table: Identifier,
    work: Callable[[LanceDataset], T],
    branch: str = "",
    version: int | None = None,
) -> T:
    """Run ``work`` on a table's storage without creating a version, for example to write a tag.

    The actor must be allowed to write. Raises the errors of ``write``.
    """
    snapshot = datasets.find_snapshot(
        actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
    )
    ledger = LedgerNamespace(actor, snapshot.table, snapshot.location, branch)
    ledger.base = snapshot.entry
    opened = _OpenVersion(snapshot)
    opened.check(snapshot)
    result, _ = ledger.run(partial(opened.change, ledger, work))
    return result


def create(
    *,
    actor: Principal,
    table: Identifier,
    work: Callable[["NewDataset"], T],
    properties: Mapping[str, str] | None = None,
    overwrite: bool = False,
    summary: Mapping[str, Any] | None = None,
    operation: type[data_operations.CreateTable] = data_operations.CreateTable,
    fields: Mapping[str, Any] | None = None,
) -> Written[T]:
    """Run ``work``, which writes the first version of a new table, and create the table.

    The table and its version become visible together when the work is done. The new location is
    recorded before (StagedFile), so that its files are removed if this process dies.
    """
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    location = object_placement.new_location(actor, table[:-1], slug(table[-1:], 60))
    note = f"{location}/"
    outcomes.repeated(
        lambda: StagedFile.objects.bulk_create([StagedFile(path=note)], ignore_conflicts=True)
    )
    ledger = LedgerNamespace(actor, table, location, "")
    ledger.note = note
    ledger.make = lambda version: operation(
        table=table,
        location=location,
        first=version,
        note=note,
        overwrite=overwrite,
        properties=properties or {},
        summary=summary or {},
        **(fields or {}),
    )
    try:
        result, last = ledger.run(partial(_start, ledger, work))
    except BaseException:
        if ledger.committed is None:
            _discard(note)
        raise
    return _written(ledger, result, last)


def create_first_version(
    *,
    actor: Principal,
    table: Identifier,
    location: str,
    operation: type[data_operations.WriteVersion],
    work: Callable[["NewDataset"], T],
    summary: Mapping[str, Any] | None = None,
) -> Written[T]:
    """Run ``work``, which writes the first version of a table declared at this location."""
    ledger = LedgerNamespace(actor, table, location, "")
    ledger.make = partial(_make_operation, operation, summary=summary, location=location)
    result, last = ledger.run(partial(_start, ledger, work))
    return _written(ledger, result, last)


def _discard(note: str) -> None:
    """Remove the files of a new table that was not created, and their note.

    Files that cannot be removed here are left to the sweep. A successful commit deletes the note.
    """
    try:
        if StagedFile.objects.filter(path=note).update(is_condemned=True):
            location = note.rstrip("/")
            for _ in stores.store_of(location).remove_tree(location):
                pass
            StagedFile.objects.filter(path=note).delete()
    except (OSError, DatabaseError):
        log.warning("The files at %s stay until the sweep", note, exc_info=True)


@dataclass(frozen=True, slots=True)
class NewDataset:
    """Target of the first version: keyword arguments of ``lance.write_dataset``."""

    options: Mapping[str, Any]


def _start(ledger: "LedgerNamespace", work: Callable[[NewDataset], T]) -> tuple[T, int]:
    options = {
        "mode": "create",
        "namespace_client": ledger,
        "table_id": list(ledger.table),
        "session": datasets.session(),
    }
    return work(NewDataset(options)), 1


class _OpenVersion:
    """A version from which one writer at a time continues; Lance opens it for the first write."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._catalog = ForwardingNamespace(snapshot.location)
        self._dataset: LanceDataset | None = None
        self._foreign: tuple[str, ...] = ()
        self._options: dict[str, Any] = {}

    def check(self, snapshot: Snapshot) -> None:
        """Check the owners of the version's files before Lance opens, uses or extends it."""
        lance_files.require_plain_directories(snapshot)
        if self._dataset is None or not lance_files.is_plain(snapshot):
            self._foreign = datasets.check(snapshot)
            # Here, and not in the threads of Lance: the profiles are in the database.
            self._options = {
                "storage_options": lance_options.storage_options(snapshot.location),
                "base_store_params": datasets.base_options(snapshot),
            }
        else:
            lance_files.require_rights(snapshot, self._foreign)

    def change(self, ledger: "LedgerNamespace", work: Callable[[LanceDataset], T]) -> tuple[T, int]:
        self._catalog.ledger = ledger
        dataset = self._dataset or self._open()
        result = work(dataset)
        self._dataset = dataset
        return result, dataset.version

    def keep(self, ledger: "LedgerNamespace", last: int) -> None:
        """Keep the dataset for the next writer that finds the new version to be the newest."""
        if ledger.committed is None or ledger.last != last:
            return
        row = ledger.committed.results[0]
        before = self._snapshot
        entry = Version(
            row.version,
            row.manifest_path,
            row.manifest_size,
            row.e_tag,
            row.metadata,
            row.created_at,
        )
        self._snapshot = replace(before, entry=entry)
        self._catalog.ledger = None
        datasets.session_for(self._snapshot)  # the session has cached the manifest
        cost = datasets.open_cost(entry.manifest_size)
        datasets.writers.put(datasets.cache_key(self._snapshot), self, cost=cost)

    def _open(self) -> LanceDataset:
        snapshot = self._snapshot
        dataset = LanceDataset(
            snapshot.location,
            None if snapshot.branch else snapshot.version,
            session=datasets.session_for(snapshot),
            namespace_client=self._catalog,
            table_id=list(snapshot.table),
            namespace_client_managed_versioning=True,
            **self._options,
        )
        if snapshot.branch:
            dataset = dataset.checkout_version((snapshot.branch, snapshot.version))
        return dataset


def _make_operation(
    operation: type[data_operations.WriteVersion],
    requested: version_operations.CreateVersion,
    *,
    summary: Mapping[str, Any] | None,
    **fields: Any,
) -> data_operations.WriteVersion:
    return operation(
        table=requested.table,
        version=requested.version,
        branch=requested.branch,
        manifest_path=requested.manifest_path,
        manifest_size=requested.manifest_size,
        e_tag=requested.e_tag,
        metadata=requested.metadata,
        naming_scheme=requested.naming_scheme,
        summary=summary or {},
        **fields,
    )


def _written(ledger: LedgerNamespace, result: T, last: int) -> Written[T]:
    version = ledger.last if ledger.last is not None else last
    transaction_id = ledger.committed.id if ledger.committed else None
    return Written(result, version, transaction_id, ledger.committed)


def _is_retryable(error: CommitConflict) -> bool:
    """True if a repetition on the newest version may succeed."""
    return errors.RETRYABLE in str(error.__cause__ or "")
