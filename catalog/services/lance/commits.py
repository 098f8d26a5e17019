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
import random
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
from catalog.services.engine.commit_queue import turn
from catalog.services.lance import data_operations, datasets, errors, open_versions
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import links as lance_links
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.ledger_namespace import LedgerNamespace
from catalog.services.lance.open_versions import OpenVersion
from catalog.services.storage import object_placement
from catalog.storage import locations, stores

log = logging.getLogger(__name__)
T = TypeVar("T")
_ATTEMPTS = 11
_REPETITIONS = 4
_LONGEST_PAUSE = 0.5
"""Seconds before the last attempt, at most."""
_LISTED_SETTINGS = 10
_WAITED_SECONDS = 0.001
"""After a turn that took longer to come, the newest version is probably another one."""


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
    attempts: int = 1
    """How often the work ran; it runs again if a concurrent change prevents a rebase."""

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
    limited_since: Callable[[], float] | None = None,
    first: Snapshot | None = None,
) -> Written[T]:
    """Run ``work`` on a dataset of the table's newest version; its commits go to the ledger.

    ``operation`` names the change in the audit trail and in the transaction, ``summary`` adds
    details, and ``fields`` are further fields of the operation. ``work`` may not use the database,
    because its connection serves the calls of Lance. If a concurrent change prevents a rebase, the
    work runs again if ``can_repeat`` is set. ``version`` is an older version to start from
    (RestoreTable). If the version configures Lance's automatic clean-up, which Lance would run after the
    commit, a version of its own removes these settings first. After the timeout nothing is committed (ServiceUnavailable), nor if
    ``may_commit``, which is called before each commit, raises. ``keep_open`` states that ``work``
    leaves the dataset at the version that it created, so that the next write can reuse it, and
    ``limited_since`` that a request gives the work up after a while (``time_limits.run``). ``first`` is the
    newest version if the caller has just found it.

    Raises the errors of ``find_snapshot`` and of the engine, CommitConflict if concurrent changes
    persist, and the errors of the caller (``errors.refusal``).
    """
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = first or datasets.find_snapshot(
            actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
        )
        first = None
        if snapshot.is_materialized and not operation.suits_views:
            # The engine would refuse it too, but only after the files are written.
            raise version_operations.is_view(table)
        ledger = LedgerNamespace(actor, snapshot.table, snapshot.location, branch)
        ledger.deadline = deadline
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
            opened: OpenVersion = datasets.writers.take(
                datasets.cache_key(snapshot)
            ) or OpenVersion(snapshot)
            opened.check(snapshot, is_newest=version is None)
            settings = _settings_to_remove(snapshot, operation)
            if settings and version is None:
                _remove_auto_cleanup(actor, snapshot, settings, may_commit)
                continue
            with open_versions.base_entry(snapshot, settings) as ledger.base:
                result, last = ledger.run(
                    partial(opened.change, ledger, work), limited_since=limited_since
                )
        except CommitConflict as error:
            is_late = deadline is not None and time.monotonic() > deadline
            if not can_repeat or is_late or attempt == _ATTEMPTS or not _is_retryable(error):
                raise
            time.sleep(random.uniform(0, _LONGEST_PAUSE * attempt / _ATTEMPTS))  # noqa: S311
            continue
        except (OSError, ValueError, RuntimeError) as error:
            # Lance reports missing files by any of these.
            refused = _missing_files(snapshot, actor)
            if refused is None and ledger.committed is None:
                refused = errors.damage(error, table)
            raise refused or error from error
        if keep_open:
            opened.keep(ledger, last)
        return replace(_written(ledger, result, last), attempts=attempt)
    raise CommitConflict(f"Table '{label(table)}' was changed by others meanwhile")


def write_in_turn(
    *, actor: Principal, table: Identifier, branch: str = "", **arguments: Any
) -> Written[Any]:
    """Call ``write`` when it is the turn of this commit (``commit_queue``), so that it rarely conflicts.

    For short work only, because others wait for it; in object stores, whose requests take longer, without a
    turn. Raises Busy if the turn does not come in time.
    """
    snapshot = datasets.find_snapshot(
        actor=actor, table=table, branch=branch, action=Privilege.WRITE
    )
    call = partial(write, actor=actor, table=table, branch=branch, **arguments)
    if locations.is_object(snapshot.location):
        return call(first=snapshot)
    began = time.monotonic()
    with turn(snapshot.uuid):
        has_waited = time.monotonic() - began > _WAITED_SECONDS
        return call(first=None if has_waited else snapshot)


def _settings_to_remove(
    snapshot: Snapshot, operation: type[data_operations.WriteVersion]
) -> dict[str, str]:
    """Return the settings of the automatic clean-up that Lance would run after the operation."""
    if not operation.runs_auto_cleanup or operation is data_operations.RemoveAutoCleanup:
        return {}
    return lance_files.auto_cleanup(snapshot)


def _remove_auto_cleanup(
    actor: Principal,
    snapshot: Snapshot,
    settings: Mapping[str, str],
    may_commit: Callable[[], None] | None,
) -> None:
    """Commit a version without the settings of Lance's automatic clean-up, unless others change them."""
    with suppress(CommitConflict):
        write(
            actor=replace(actor, idempotency=None),
            table=snapshot.table,
            branch=snapshot.branch,
            operation=data_operations.RemoveAutoCleanup,
            work=lambda dataset: dataset.delete_config_keys(sorted(settings)),
            summary={"settings": dict(sorted(settings.items())[:_LISTED_SETTINGS])},
            can_repeat=False,
            may_commit=may_commit,
        )


def write_repeatedly(**arguments: Any) -> Written[Any]:
    """Call ``write``, and repeat it if a concurrent change prevents a rebase.

    For changes that mean the same on every version: Lance does not distinguish their retryable
    conflicts from the others.
    """
    for _ in range(_REPETITIONS):
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
    opened = OpenVersion(snapshot)
    opened.check(snapshot, is_newest=version is None)
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
    lance_links.require_plain_directories(table, location)
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
    """Run ``work``, which writes the first version of a table declared at this location.

    Raises ForeignFile if a link in the location would lead Lance elsewhere.
    """
    lance_links.require_plain_directories(table, location)
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
    return any(text in str(error.__cause__ or "") for text in errors.RETRYABLE)
