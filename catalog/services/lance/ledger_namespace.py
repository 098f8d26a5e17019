"""The catalog as Lance sees it during a write: a LanceNamespace in front of the commit engine.

Lance calls it from its own threads. The calls run one at a time, with the database connection and
the principal of the request, whose thread waits for Lance meanwhile.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client import models as m

from catalog.access import Principal
from catalog.errors import (
    BranchNotFound,
    CatalogError,
    CommitConflict,
    ForeignFile,
    ServiceUnavailable,
    VersionAlreadyExists,
)
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.models import StagedFile
from catalog.services.engine.commit import Commit, commit
from catalog.services.engine.operation import Operation
from catalog.services.lance import datasets, errors, time_limits
from catalog.services.lance.containment.calls import contained
from catalog.services.lance.ledger import manifests as lance_manifests
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.ledger.versions import Version
from catalog.storage import lance_options, stores
from catalog.storage.outages.availability import serves_requests

log = logging.getLogger(__name__)
T = TypeVar("T")
_RENEW_SECONDS = 60.0
_THREADS = 8  # abandoned work may still run when the main thread starts its next work


OperationFactory = Callable[[version_operations.CreateVersion], Operation]
"""Returns the operation to commit for a version that Lance asks to create."""


def _run_work(work: Callable[[], T]) -> T:
    """Run the work in this thread, or in a pool if this is the main thread, which handles signals.

    A call of Lance may take minutes, in which Python delivers no signal, such as that of a time
    limit.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    return _threads().submit(contextvars.copy_context().run, work).result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="lance")


class ForwardingNamespace(LanceNamespace):
    """The catalog of a dataset that outlives a write; forwards to that of the current write."""

    ledger: "LedgerNamespace | None" = None

    def __init__(self, location: str) -> None:
        self._location = location
        self._id = datasets.namespace_id(location)

    def namespace_id(self) -> str:
        return self._id

    def describe_table(self, request: Any) -> m.DescribeTableResponse:
        # Not forwarded: Lance renews credentials by it, also between writes.
        return m.DescribeTableResponse(
            location=self._location,
            managed_versioning=True,
            storage_options=datasets.renewed_options(self._location),
        )

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        return self._current().list_table_versions(request)

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        return self._current().describe_table_version(request)

    def create_table_version(self, request: Any) -> m.CreateTableVersionResponse:
        return self._current().create_table_version(request)

    def _current(self) -> "LedgerNamespace":
        ledger = self.ledger
        if ledger is None:
            raise _request_ended()
        return ledger


@dataclass
class LedgerNamespace(LanceNamespace):
    """The catalog as Lance sees it while it writes to one table."""

    actor: Principal
    table: Identifier
    location: str
    branch: str
    make: OperationFactory = field(init=False)
    base: Version | None = None
    """The version that the work starts from, already loaded."""
    note: str | None = None
    """The note of a new location, which is renewed during the work."""
    committed: Commit | None = None
    refused: Exception | None = None
    deadline: float | None = None
    """Time after which nothing is committed, by time.monotonic()."""
    may_commit: Callable[[], None] | None = None
    """Raises if nothing may be committed any more."""
    last: int | None = None
    _context: contextvars.Context = field(init=False)
    _thread: int = field(init=False)
    _connection: BaseDatabaseWrapper = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False
    _options: dict[str, str] | None = None
    """The storage options of the location; None for a local one."""
    _id: str = ""

    # -- in the thread of the request

    def run(self, work: Callable[[], T], *, limited_since: Callable[[], float] | None = None) -> T:
        """Run the work and handle the calls of Lance until it ends.

        With ``limited_since``, a request gives it up after a while unless it has committed
        (``time_limits.run``).
        """
        self._context = contextvars.copy_context()
        self._thread = threading.get_ident()
        self._connection = connections[DEFAULT_DB_ALIAS]
        # Here, because the profiles are in the database.
        stores.store_of(self.location).occupy()
        self._options = lance_options.storage_options(self.location)
        self._id = datasets.namespace_id(self.location)
        try:
            with (
                contained(self.table, self.actor.name),
                errors.no_panic(),
                self._sharing_connection(),
                self._renewing_note(),
            ):
                if limited_since is None or not serves_requests():
                    return _run_work(work)
                return time_limits.run(
                    work,
                    principal=self.actor.name,
                    since=limited_since,
                    may_abandon=self._close_unless_committed,
                )
        except Exception as error:  # noqa: BLE001 -- raised again as a catalog error
            refusal = self._refusal(error)
            # An error of the engine keeps its own cause, which is more specific than Lance's text.
            raise refusal from (refusal.__cause__ if refusal is self.refused else error)

    def _close_unless_committed(self) -> bool:
        """Refuse all further calls of Lance, unless the work has committed; returns False then."""
        with self._lock:
            self._is_closed = self.committed is None
            return self._is_closed

    @contextmanager
    def _sharing_connection(self) -> Iterator[None]:
        """Share the connection with Lance's threads; finally wait for the thread that uses it."""
        self._connection.inc_thread_sharing()
        try:
            yield
        finally:
            with self._lock:
                self._is_closed = True
            self._connection.dec_thread_sharing()

    @contextmanager
    def _renewing_note(self) -> Iterator[None]:
        """Renew the note, if there is one, until the context ends."""
        if self.note is None:
            yield
            return
        is_done = threading.Event()

        def renew() -> None:
            with suppress(ServiceUnavailable):
                while not is_done.wait(_RENEW_SECONDS):
                    self._call(self._renew)

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
        except DatabaseError:  # the work continues; if the note is gone, the commit fails
            log.warning("The note of %s was not renewed", self.note, exc_info=True)

    def _refusal(self, error: Exception) -> Exception:
        """Return the error for the caller: the engine's last refusal, else the error of Lance."""
        if self.refused is not None and not isinstance(self.refused, VersionAlreadyExists):
            return self.refused
        refusal = errors.refusal(error, self.table)
        if refusal is None and self.refused is not None:
            return CommitConflict(str(self.refused))
        return refusal or error

    def _create(self, requested: version_operations.CreateVersion) -> m.CreateTableVersionResponse:
        self.refused = None
        try:
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise ServiceUnavailable(
                    "The operation took longer than its timeout; it did nothing"
                )
            if self.may_commit is not None:
                self.may_commit()
            # An idempotency key covers one commit; later commits of the request belong to it.
            is_first = self.committed is None
            actor = self.actor if is_first else replace(self.actor, idempotency=None)
            result = commit([self.make(requested)], actor=actor)
        except ForeignFile as error:
            self.refused = error
            self._discard(requested)
            raise
        except Exception as error:
            self.refused = error
            raise
        self.committed, self.last = result, requested.version
        return m.CreateTableVersionResponse(
            version=m.TableVersion(
                version=requested.version,
                manifest_path=requested.manifest_path,
                manifest_size=requested.manifest_size,
                e_tag=requested.e_tag,
                timestamp_millis=int(time.time() * 1000),
            )
        )

    def _discard(self, refused: version_operations.CreateVersion) -> None:
        """Remove the manifest that Lance wrote for a version that leads to files of others.

        Lance may have continued from a version that was replaced after its check, and copied sizes
        and numbers of rows from files that the writers of this table may not read.
        """
        with suppress(CatalogError, OSError):
            name = lance_manifests.file_of(
                table=self.table, location=self.location, manifest_path=refused.manifest_path
            )
            stores.store_of(self.location).remove(f"{self.location}/{name}")

    def _describe(self, version: int, branch: str) -> m.DescribeTableVersionResponse:
        entry = lance_versions.describe_version(
            actor=self.actor, table=self.table, version=version, branch=branch
        )
        return m.DescribeTableVersionResponse(version=self._version(entry))

    def _version(self, entry: Version) -> m.TableVersion:
        """Check an entry's manifest, which Lance opens or renames, and convert the entry."""
        lance_manifests.require_regular(
            table=self.table, location=self.location, manifest_path=entry.manifest_path
        )
        return datasets.table_version(entry)

    def _list(self, branch: str, limit: int | None, descending: bool) -> list[m.TableVersion]:
        try:
            entries, _ = lance_versions.list_versions(
                actor=self.actor,
                table=self.table,
                branch=branch,
                limit=limit,
                descending=descending,
            )
        except BranchNotFound:
            if branch == self.branch:
                raise
            return []  # the branch is being created
        return [self._version(entry) for entry in entries]

    # -- in Lance's threads

    def namespace_id(self) -> str:
        return self._id

    def declare_table(self, request: Any) -> m.DeclareTableResponse:
        return m.DeclareTableResponse(
            location=self.location, managed_versioning=True, storage_options=self._options
        )

    def describe_table(self, request: Any) -> m.DescribeTableResponse:
        options = self._options
        if datasets.expires(options):
            options = datasets.renewed_options(self.location)
        return m.DescribeTableResponse(
            location=self.location, managed_versioning=True, storage_options=options
        )

    def list_table_versions(self, request: Any) -> m.ListTableVersionsResponse:
        body = m.ListTableVersionsRequest(**request.model_dump())
        if self._is_new():
            return m.ListTableVersionsResponse(versions=[])
        branch = branch_name(body.branch)
        versions = self._call(lambda: self._list(branch, body.limit, bool(body.descending)))
        return m.ListTableVersionsResponse(versions=versions)

    def describe_table_version(self, request: Any) -> m.DescribeTableVersionResponse:
        body = m.DescribeTableVersionRequest(**request.model_dump())
        branch, base = branch_name(body.branch), self.base
        if base is not None and (body.version, branch) == (base.version, self.branch):
            return m.DescribeTableVersionResponse(version=datasets.table_version(base))
        return self._call(lambda: self._describe(body.version or 0, branch))

    def create_table_version(self, request: Any) -> m.CreateTableVersionResponse:
        body = m.CreateTableVersionRequest(**request.model_dump())
        version = version_operations.CreateVersion(
            table=self.table,
            version=body.version,
            branch=branch_name(body.branch),
            manifest_path=body.manifest_path,
            manifest_size=body.manifest_size,
            e_tag=body.e_tag,
            metadata=body.metadata,
            naming_scheme=body.naming_scheme,
        )
        return self._call(lambda: self._create(version))

    def _is_new(self) -> bool:
        return self.base is None and self.committed is None

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function in the context of the request.

        Raises ServiceUnavailable if the request has ended.
        """
        with self._lock:
            if self._is_closed:
                raise _request_ended()
            return self._context.run(self._call_connected, function)

    def _call_connected(self, function: Callable[[], T]) -> T:
        if threading.get_ident() == self._thread:
            return function()
        # Lance's threads share the connection; a connection of their own would stay open with them.
        connections[DEFAULT_DB_ALIAS] = self._connection
        try:
            return function()
        finally:
            del connections[DEFAULT_DB_ALIAS]


def _request_ended() -> ServiceUnavailable:
    return ServiceUnavailable("The request of this write has ended")
