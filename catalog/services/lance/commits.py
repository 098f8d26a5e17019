"""Writing to Lance tables: Lance makes the new version, the commit engine decides whether it stands.

    request's thread                         Lance's threads
    find the newest version
    call Lance ───────────────────────────▶  write data files, stage a manifest
                                             "create version 8": commit through the engine
                                             another has 8: "describe version 8", rebase on it,
                                             "create version 9"
    return what it did         ◀───────────  finished

Lance asks its catalog (a LanceNamespace) from threads of its own. There the questions are answered,
one at a time, with the database connection and the caller of the request, whose thread waits for
Lance meanwhile. So a managed table has one history, whoever wrote it.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from lance.dataset import LanceDataset
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client import models as m

from catalog import access, storage
from catalog.access import On, Principal
from catalog.errors import (
    BranchNotFound,
    CatalogError,
    CommitConflict,
    ServiceUnavailable,
    VersionAlreadyExists,
)
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier, label, slug
from catalog.models import StagedFile
from catalog.postgresql import outcomes
from catalog.privileges import Privilege
from catalog.services.engine.commit import Commit, Operation, commit
from catalog.services.lance import data_operations, datasets, errors
from catalog.services.lance.ledger import files as lance_files
from catalog.services.lance.ledger import manifests as lance_manifests
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.ledger.versions import Version

log = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS = 5
_RENEW_SECONDS = 60.0
_THREADS = 8  # what was given up may still run when the main thread does its next work

_Make = Callable[[version_operations.CreateVersion], Operation]
"""Makes of a version, as Lance asks to create it, the operation to commit."""


@dataclass(frozen=True, slots=True)
class Written(Generic[T]):
    """What a write came to."""

    result: T
    """What Lance returned."""
    version: int
    """The table's newest version that this write saw: the one it made, if it changed anything."""
    transaction_id: str | None
    """None when nothing had to change."""
    commit: Commit | None = None

    @property
    def operation_result(self) -> Any:
        """What the operation of the last commit returned."""
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
    facts: Mapping[str, Any] | None = None,
    can_repeat: bool = True,
    timeout: timedelta | None = None,
    may_commit: Callable[[], None] | None = None,
    goes_on: bool = False,
) -> Written[T]:
    """Let ``work`` change a dataset of the table's newest version; its commits go to the ledger.

    ``operation`` names what is done in the audit trail and in the transaction, ``summary`` tells
    more of it; ``facts`` are further fields of the operation. ``work`` may use nothing of the
    database, whose connection serves what Lance asks meanwhile. When others change the table
    meanwhile in a way that Lance cannot rebase on, the work is done again, if it can be repeated.
    ``version`` is an older one to begin from (RestoreTable). After the timeout nothing is committed
    any more (ServiceUnavailable); nor when ``may_commit`` raises, which is asked before each commit.
    ``goes_on`` says that ``work`` leaves the dataset at the version that it made, so that the next
    write to the table may go on with it.

    Raises the refusals of ``find_snapshot`` and of the engine, CommitConflict when others kept
    changing the table, and whatever is the caller's mistake (``lance_errors``).
    """
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = datasets.find_snapshot(
            actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
        )
        if snapshot.is_materialized and not operation.suits_views:
            raise version_operations.is_view(
                table
            )  # as the engine will, before anything is written
        ledger = _Ledger(actor, snapshot.table, snapshot.location, branch)
        ledger.known, ledger.deadline = snapshot.entry, deadline
        ledger.may_commit = may_commit
        may_go = branch or version is not None
        base = (branch, snapshot.version, snapshot.entry.created_at) if may_go else None
        ledger.make = partial(
            _as,
            operation,
            summary=summary,
            location=snapshot.location,
            base=base,
            **(facts or {}),
        )
        try:
            opened: _Opened = datasets.writers.take(snapshot.key) or _Opened(snapshot)
            opened.check(snapshot)
            result, last = ledger.carry(partial(opened.change, ledger, work))
        except CommitConflict as error:
            if not can_repeat or attempt == _ATTEMPTS or not _may_heal(error):
                raise
            continue
        except (OSError, ValueError, RuntimeError) as error:
            # Of files that are gone Lance tells by any of these.
            raise _if_gone(snapshot, actor) or error from error
        if goes_on:
            opened.keep(ledger, last)
        return ledger.written(result, last)
    raise AssertionError("unreachable")


def _if_gone(snapshot: Snapshot, actor: Principal) -> CatalogError | None:
    """Why the files of a version could not be used: its table, branch or the version is gone."""
    try:
        found = datasets.find_snapshot(
            actor=actor, table=snapshot.table, branch=snapshot.branch, version=snapshot.version
        )
    except CatalogError as gone:
        return gone
    if found.key == snapshot.key:
        return None
    return CommitConflict(f"Table '{label(snapshot.table)}' was changed by others meanwhile")


def visit(
    *,
    actor: Principal,
    table: Identifier,
    work: Callable[[LanceDataset], T],
    branch: str = "",
    version: int | None = None,
) -> T:
    """Let ``work`` do to a table's storage what makes no version, such as to name one.

    The actor must be allowed to write. Raises as ``write`` does.
    """
    snapshot = datasets.find_snapshot(
        actor=actor, table=table, branch=branch, version=version, action=Privilege.WRITE
    )
    ledger = _Ledger(actor, snapshot.table, snapshot.location, branch)
    ledger.known = snapshot.entry
    opened = _Opened(snapshot)
    opened.check(snapshot)
    result, _ = ledger.carry(partial(opened.change, ledger, work))
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
    facts: Mapping[str, Any] | None = None,
) -> Written[T]:
    """Let ``work`` write the first version of a new table, which then gets its name.

    Table and version become visible at once, when the work is done. What is written before is noted,
    so that nothing of it stays if this process dies.
    """
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    location = storage.new_location(slug(table[-1:], 60))
    note = f"{location}/"
    outcomes.repeated(
        lambda: StagedFile.objects.bulk_create([StagedFile(path=note)], ignore_conflicts=True)
    )
    ledger = _Ledger(actor, table, location, "")
    ledger.note = note
    ledger.make = lambda asked: operation(
        table=table,
        location=location,
        first=asked,
        note=note,
        overwrite=overwrite,
        properties=properties or {},
        summary=summary or {},
        **(facts or {}),
    )
    try:
        result, last = ledger.carry(partial(_begin, ledger, work))
    except BaseException:
        if ledger.committed is None:
            _discard(note)
        raise
    return ledger.written(result, last)


def begin(
    *,
    actor: Principal,
    table: Identifier,
    location: str,
    operation: type[data_operations.WriteVersion],
    work: Callable[["NewDataset"], T],
    summary: Mapping[str, Any] | None = None,
) -> Written[T]:
    """Let ``work`` write the first version of a table that is declared at this location."""
    ledger = _Ledger(actor, table, location, "")
    ledger.make = partial(_as, operation, summary=summary, location=location)
    result, last = ledger.carry(partial(_begin, ledger, work))
    return ledger.written(result, last)


def _discard(note: str) -> None:
    """Remove the files of a new table that did not come to be, and their note.

    What fails here is left to the sweep. A commit that stands took the note with it.
    """
    try:
        if StagedFile.objects.filter(path=note).update(is_condemned=True):
            for _ in storage.remove_tree(note.rstrip("/")):
                pass
            StagedFile.objects.filter(path=note).delete()
    except (OSError, DatabaseError):
        log.warning("The files at %s stay until the sweep", note, exc_info=True)


@dataclass(frozen=True, slots=True)
class NewDataset:
    """Where the first version is to be written: keyword arguments of ``lance.write_dataset``."""

    options: Mapping[str, Any]


def _begin(ledger: "_Ledger", work: Callable[[NewDataset], T]) -> tuple[T, int]:
    options = {
        "mode": "create",
        "namespace_client": ledger,
        "table_id": list(ledger.table),
        "session": datasets.session(),
    }
    return work(NewDataset(options)), 1


class _Opened:
    """A version that one writer at a time goes on from; Lance opens it when that writer begins."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._catalog = _Catalog()
        self._dataset: LanceDataset | None = None
        self._foreign: tuple[str, ...] = ()

    def check(self, snapshot: Snapshot) -> None:
        """Check whose files the version leads to, before Lance opens, uses or adds to it."""
        lance_files.require_plain_directories(snapshot)
        if self._dataset is None or not lance_files.is_plain(snapshot):
            self._foreign = datasets.check(snapshot)
        else:
            lance_files.require_rights(snapshot, self._foreign)

    def change(self, ledger: "_Ledger", work: Callable[[LanceDataset], T]) -> tuple[T, int]:
        self._catalog.ledger = ledger
        dataset = self._dataset or self._open()
        result = work(dataset)
        self._dataset = dataset
        return result, dataset.version

    def keep(self, ledger: "_Ledger", last: int) -> None:
        """Keep it for who finds the version that was made to be the newest."""
        if ledger.committed is None or ledger.last != last:
            return
        entered = ledger.committed.results[0]
        before = self._snapshot
        entry = Version(
            entered.version,
            entered.manifest_path,
            entered.manifest_size,
            entered.e_tag,
            entered.metadata,
            entered.created_at,
        )
        self._snapshot = replace(before, entry=entry)
        self._catalog.ledger = None
        datasets.session_for(self._snapshot)  # which has the manifest by now
        cost = datasets.open_cost(entry.manifest_size)
        datasets.writers.put(self._snapshot.key, self, cost=cost)

    def _open(self) -> LanceDataset:
        snapshot = self._snapshot
        dataset = LanceDataset(
            snapshot.location,
            None if snapshot.branch else snapshot.version,
            session=datasets.session_for(snapshot),
            namespace_client=self._catalog,
            table_id=list(snapshot.table),
            namespace_client_managed_versioning=True,
        )
        if snapshot.branch:
            dataset = dataset.checkout_version((snapshot.branch, snapshot.version))
        return dataset


def _as(
    operation: type[data_operations.WriteVersion],
    asked: version_operations.CreateVersion,
    *,
    summary: Mapping[str, Any] | None,
    **facts: Any,
) -> data_operations.WriteVersion:
    return operation(
        table=asked.table,
        version=asked.version,
        branch=asked.branch,
        manifest_path=asked.manifest_path,
        manifest_size=asked.manifest_size,
        e_tag=asked.e_tag,
        metadata=asked.metadata,
        naming_scheme=asked.naming_scheme,
        summary=summary or {},
        **facts,
    )


def _may_heal(error: CommitConflict) -> bool:
    """Whether doing the work again on the newest version may succeed."""
    return errors.RETRYABLE in str(error.__cause__ or "")


def _run(work: Callable[[], T]) -> T:
    """Do the work here; for the main thread, beside it: signals, such as of a time limit, are for it.

    A call of Lance may take minutes, in which Python hands on no signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    return _threads().submit(contextvars.copy_context().run, work).result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="lance")


class _Catalog(LanceNamespace):
    """What a dataset that outlives a write asks: the ledger of the write that is under way."""

    ledger: "_Ledger | None" = None

    def namespace_id(self) -> str:
        return "monodon"

    def describe_table(self, request: Any) -> m.DescribeTableResponse:
        return self._present().describe_table(request)

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        return self._present().list_table_versions(request)

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        return self._present().describe_table_version(request)

    def create_table_version(self, request: Any) -> m.CreateTableVersionResponse:
        return self._present().create_table_version(request)

    def _present(self) -> "_Ledger":
        ledger = self.ledger
        if ledger is None:
            raise _has_ended()
        return ledger


@dataclass
class _Ledger(LanceNamespace):
    """The catalog as Lance sees it while it writes to one table."""

    actor: Principal
    table: Identifier
    location: str
    branch: str
    make: _Make = field(init=False)
    known: Version | None = None
    """A version that need not be looked up."""
    note: str | None = None
    """The note of a new location, to be renewed while the work goes on."""
    committed: Commit | None = None
    refused: Exception | None = None
    deadline: float | None = None
    """When it is too late to commit, by time.monotonic()."""
    may_commit: Callable[[], None] | None = None
    """Raises when nothing may be committed any more."""
    last: int | None = None
    _context: contextvars.Context = field(init=False)
    _thread: int = field(init=False)
    _connection: BaseDatabaseWrapper = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_left: bool = False

    # -- in the request's thread

    def carry(self, work: Callable[[], T]) -> T:
        """Run the work, and answer what it asks meanwhile."""
        self._context = contextvars.copy_context()
        self._thread = threading.get_ident()
        self._connection = connections[DEFAULT_DB_ALIAS]
        try:
            with errors.no_panic(), self._answering(), self._renewing():
                return _run(work)
        except Exception as error:  # noqa: BLE001 -- raised again, as what it means
            refusal = self._refusal(error)
            # What the engine raised keeps its own cause, which tells more than Lance's text.
            raise refusal from (refusal.__cause__ if refusal is self.refused else error)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Lend the connection to Lance's threads, and wait at the end for who has it."""
        self._connection.inc_thread_sharing()
        try:
            yield
        finally:
            with self._lock:
                self._is_left = True
            self._connection.dec_thread_sharing()

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the note, if there is one, until this is left."""
        if self.note is None:
            yield
            return
        is_done = threading.Event()

        def renew() -> None:
            with suppress(ServiceUnavailable):
                while not is_done.wait(_RENEW_SECONDS):
                    self._ask(self._renew)

        threading.Thread(target=renew, name="note", daemon=True).start()
        try:
            yield
        finally:
            is_done.set()

    def _renew(self) -> None:
        if self.note is None:
            return
        try:
            StagedFile.objects.filter(path=self.note).update(created_at=Now())
        except DatabaseError:  # the work goes on; should the note be gone, the commit will tell
            log.warning("The note of %s was not renewed", self.note, exc_info=True)

    def written(self, result: T, last: int) -> Written[T]:
        version = self.last if self.last is not None else last
        transaction_id = self.committed.id if self.committed else None
        return Written(result, version, transaction_id, self.committed)

    def _refusal(self, error: Exception) -> Exception:
        """What the caller is told: what the engine refused last, else what Lance says."""
        if self.refused is not None and not isinstance(self.refused, VersionAlreadyExists):
            return self.refused
        found = errors.refusal(error, self.table)
        if found is None and self.refused is not None:
            return CommitConflict(str(self.refused))
        return found or error

    def _create(self, asked: version_operations.CreateVersion) -> m.CreateTableVersionResponse:
        self.refused = None
        try:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise ServiceUnavailable(
                    "The operation took longer than its timeout; it did nothing"
                )
            if self.may_commit is not None:
                self.may_commit()
            # A key is for one commit; what follows it in one request is a part of the same.
            is_first = self.committed is None
            actor = self.actor if is_first else replace(self.actor, idempotency=None)
            done = commit([self.make(asked)], actor=actor)
        except Exception as error:
            self.refused = error
            raise
        self.committed, self.last = done, asked.version
        return m.CreateTableVersionResponse(
            version=m.TableVersion(
                version=asked.version,
                manifest_path=asked.manifest_path,
                manifest_size=asked.manifest_size,
                e_tag=asked.e_tag,
                timestamp_millis=int(time.time() * 1000),
            )
        )

    def _describe(self, version: int, branch: str) -> m.DescribeTableVersionResponse:
        entry = lance_versions.describe_version(
            actor=self.actor, table=self.table, version=version, branch=branch
        )
        return m.DescribeTableVersionResponse(version=self._version(entry))

    def _version(self, entry: Version) -> m.TableVersion:
        """An entry whose manifest Lance may open, and would otherwise give its final name."""
        lance_manifests.require_regular(
            table=self.table, location=self.location, manifest_path=entry.manifest_path
        )
        return datasets.table_version(entry)

    def _list(self, branch: str, limit: int | None, descending: bool) -> list[m.TableVersion]:
        try:
            found, _ = lance_versions.list_versions(
                actor=self.actor,
                table=self.table,
                branch=branch,
                limit=limit,
                descending=descending,
            )
        except BranchNotFound:
            if branch == self.branch:
                raise
            return []  # it is about to begin
        return [self._version(entry) for entry in found]

    # -- in Lance's threads

    def namespace_id(self) -> str:
        return "monodon"

    def declare_table(self, request: Any) -> m.DeclareTableResponse:
        return m.DeclareTableResponse(location=self.location, managed_versioning=True)

    def describe_table(self, request: Any) -> m.DescribeTableResponse:
        return m.DescribeTableResponse(location=self.location, managed_versioning=True)

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        asked = m.ListTableVersionsRequest(**request.model_dump())
        if self._is_new():
            return m.ListTableVersionsResponse(versions=[])
        branch = branch_name(asked.branch)
        found = self._ask(lambda: self._list(branch, asked.limit, bool(asked.descending)))
        return m.ListTableVersionsResponse(versions=found)

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        asked = m.DescribeTableVersionRequest(**request.model_dump())
        branch, known = branch_name(asked.branch), self.known
        if known is not None and (asked.version, branch) == (known.version, self.branch):
            return m.DescribeTableVersionResponse(version=datasets.table_version(known))
        return self._ask(lambda: self._describe(asked.version or 0, branch))

    def create_table_version(self, request: Any) -> m.CreateTableVersionResponse:
        asked = m.CreateTableVersionRequest(**request.model_dump())
        version = version_operations.CreateVersion(
            table=self.table,
            version=asked.version,
            branch=branch_name(asked.branch),
            manifest_path=asked.manifest_path,
            manifest_size=asked.manifest_size,
            e_tag=asked.e_tag,
            metadata=asked.metadata,
            naming_scheme=asked.naming_scheme,
        )
        return self._ask(lambda: self._create(version))

    def _is_new(self) -> bool:
        return self.known is None and self.committed is None

    def _ask(self, question: Callable[[], T]) -> T:
        """Answer it with what the request has. Raises ServiceUnavailable when that has ended."""
        with self._lock:
            if self._is_left:
                raise _has_ended()
            return self._context.run(self._answer, question)

    def _answer(self, question: Callable[[], T]) -> T:
        if threading.get_ident() == self._thread:
            return question()
        # Lance's threads have no connection of their own, which would stay open with them.
        connections[DEFAULT_DB_ALIAS] = self._connection
        try:
            return question()
        finally:
            del connections[DEFAULT_DB_ALIAS]


def _has_ended() -> ServiceUnavailable:
    return ServiceUnavailable("The request that this was done for has ended")
