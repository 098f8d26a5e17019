"""Operations that create, rename and drop tables and views, and checks of their locations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from django.db.models import Exists, OuterRef, Q

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    TableAlreadyExists,
    TableNotFound,
    ViewAlreadyExists,
    ViewNotFound,
)
from catalog.identifiers import Identifier, check_table, digest, label
from catalog.models import (
    Job,
    JobKind,
    JobStatus,
    MaterializedView,
    Namespace,
    Table,
    TableFormat,
    TableKind,
    TableState,
    TransactionStatus,
)
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.engine import jobs, locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.engine.prepared.new_rows import new_row
from catalog.services.storage import iceberg_paths, namespace_locations, object_placement
from catalog.services.storage.location_checks import LocationChecks
from catalog.services.tables import trash


@dataclass(frozen=True, kw_only=True)
class TableOperation(Operation):
    """An operation on one table of one format, or on one view."""

    table: Identifier
    privilege: ClassVar[Privilege] = Privilege.WRITE
    """The privilege that the actor must hold on the table."""

    format: TableFormat = TableFormat.LANCE
    kind: TableKind = TableKind.TABLE

    def prepare(self) -> "TableOperation":
        check_table(self.table)
        return self

    def tables(self) -> Iterable[Identifier]:
        return (self.table,)

    def locked(self, batch: Batch) -> Table:
        """Return the locked table; it must have this format and grant the actor ``privilege``."""
        row = batch.table(self.table)
        access.require(batch.actor, self.privilege, row)
        self.require_own(row)
        return row

    def require_own(self, row: Table) -> None:
        """Raise a not-found error, with the reason, for a table of another format or kind."""
        if not self.is_own(row):
            raise not_found_but(self.table, row, self.kind)

    def is_own(self, row: Table) -> bool:
        return row.format == self.format and row.kind == self.kind


@dataclass(frozen=True, kw_only=True)
class NewTableOperation(TableOperation):
    """An operation that creates a table; its name must be free."""

    properties: Mapping[str, str] = field(default_factory=dict)
    is_materialized: ClassVar[bool] = False

    def namespaces(self) -> Iterable[Identifier]:
        # The lock of the namespace prevents a concurrent table of this name, and a concurrent drop
        # of the namespace.
        return (self.table[:-1],)

    def add_table(
        self,
        batch: Batch,
        location: str,
        state: TableState,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> Table:
        namespace = batch.namespace(self.table[:-1])
        object_placement.require_usable_in(batch, namespace, location)
        row = new_row(
            Table,
            {"namespace": namespace},
            name=self.table[-1],
            digest=digest(self.table),
            format=self.format,
            kind=self.kind,
            state=state,
            location=location,
            properties=dict(self.properties),
            owner=batch.actor.name,
            is_materialized=self.is_materialized,
        )
        batch.add(row)
        batch.record(
            label(self.table),
            table=row,
            after={"location": location, "properties": row.properties, **facts},
        )
        return row


@dataclass(frozen=True, kw_only=True)
class DeregisterTable(TableOperation):
    """Remove a table from the catalog and keep its data. The row stays for undrop."""

    name = "DeregisterTable"
    action = "table.deregister"
    privilege = Privilege.MANAGE

    def keeps_locations(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Table:
        row = self.locked(batch)
        mark_dropped(batch, [row])
        batch.record(label(self.table), table=row, before={"location": row.location})
        return row


@dataclass(frozen=True, kw_only=True)
class DropTable(TableOperation):
    """Drop a table. With ``purge`` a job removes its data after the commit. The row stays."""

    name = "DropTable"
    action = "table.drop"
    privilege = Privilege.MANAGE

    purge: bool = True

    def keeps_locations(self) -> bool:
        return True

    def apply(self, batch: Batch) -> Table:
        row = self.locked(batch)
        if self.purge:
            drop_tables(batch, [row], {row.namespace_id: batch.parent(row, self.table[:-1])})
        else:
            mark_dropped(batch, [row])
            batch.record(label(self.table), table=row, before={"location": row.location})
        return row


_RENAME = """
    UPDATE catalog_table
    SET namespace_id = %s::bigint, name = %s, digest = %s,
        updated_at = statement_timestamp()
    WHERE id = %s::bigint
"""


@dataclass(frozen=True, kw_only=True)
class RenameTable(TableOperation):
    """Give a table another name, in the same or in another namespace. Its data stays in place."""

    name = "RenameTable"
    action = "table.rename"
    privilege = Privilege.MANAGE

    new: Identifier

    def prepare(self) -> "RenameTable":
        check_table(self.table)
        check_table(self.new)
        return self

    def namespaces(self) -> Iterable[Identifier]:
        return (self.table[:-1], self.new[:-1])

    def tables(self) -> Iterable[Identifier]:
        return (self.table, self.new)

    def apply(self, batch: Batch) -> Table:
        row = self.locked(batch)
        namespace = batch.namespace(self.new[:-1])
        access.require(batch.actor, Privilege.CREATE, namespace)
        trash.require_movable(batch.actor, row, row.namespace_id, namespace)
        holder = batch.find_table(self.new)
        # A rename may change only the spelling: 'a b' and 'a+b' are the same name.
        if holder is not None and (holder is not row or self.new == self.table):
            raise already_exists(self.new, holder)
        batch.flush()
        old = row.digest
        row.namespace, row.name, row.digest = namespace, self.new[-1], digest(self.new)
        hot_cursor().execute(_RENAME, [row.namespace_id, row.name, row.digest, row.pk])
        batch.relocate_table(row, old)
        batch.record(
            label(self.new),
            table=row,
            before={"name": label(self.table)},
            after={"name": label(self.new)},
        )
        return row


class Holder(Protocol):
    """The table or view that has a name."""

    @property
    def format(self) -> str: ...
    @property
    def kind(self) -> str: ...


def not_found_but(
    identifier: Identifier, holder: Holder | None, kind: TableKind
) -> TableNotFound | ViewNotFound:
    """Return the not-found error for a table or a view.

    Its detail says so if an object of another kind or format has the name.
    """
    if holder is None:
        detail = None
    elif holder.kind == TableKind.VIEW:
        detail = "A view of this name exists."
    else:
        protocol = holder.format.capitalize()
        detail = f"A table of this name exists, but its format is {holder.format}: use the {protocol} protocol"
    if kind == TableKind.VIEW:
        return ViewNotFound(identifier, detail=detail)
    return TableNotFound(identifier, detail=detail)


def already_exists(
    identifier: Identifier, holder: Holder, requested: str = TableKind.TABLE
) -> TableAlreadyExists | ViewAlreadyExists:
    """Return the error for a new object of kind ``requested`` whose name ``holder`` has."""
    if holder.kind == TableKind.VIEW:
        return ViewAlreadyExists(identifier, requested=requested)
    return TableAlreadyExists(identifier, requested=requested)


def mark_dropped(batch: Batch, rows: list[Table], *, purge: bool = False) -> None:
    """Mark locked tables and views as dropped and put them into the trash.

    With ``purge``, a job removes the data of tables when their retention ends. Raises Protected.
    """
    trash.require_unprotected(rows)
    for row in rows:
        batch.forget_table(row)
        if not purge:
            batch.deregistered.add(row.pk)
    batch.defer(_drop_with_purge if purge else _drop, rows)


_MARK_DROPPED = """
    UPDATE catalog_table SET state = 'dropped',
        dropped_at = statement_timestamp(), updated_at = statement_timestamp() WHERE id = {}
"""


def _drop_with_purge(batch: Batch, rows: list[Table]) -> None:
    _drop(batch, rows, purge=True)


def _drop(batch: Batch, rows: list[Table], *, purge: bool = False) -> None:
    jobs.cancel_jobs_of_tables(rows)
    rules = trash.rules({row.namespace_id for row in rows})
    times = {row.pk: rules[row.namespace_id].purge_at(batch.now) for row in rows}
    purges = {}
    for row in rows if purge else ():
        if row.kind == TableKind.TABLE:  # a view has no data
            purges[row.pk] = _add_purge_job(batch, row, times[row.pk])
    for item in trash.build_table_items(rows, batch.transaction, batch.now, purges, times):
        batch.add(item)
    if any(row.is_materialized for row in rows):
        MaterializedView.objects.filter(table__in=[row.pk for row in rows]).delete()
    # For a list of unknown length PostgreSQL would plan each execution.
    keys = "%s::bigint" if len(rows) == 1 else "ANY(string_to_array(%s, ',')::bigint[])"
    hot_cursor().execute(_MARK_DROPPED.format(keys), [",".join(str(row.pk) for row in rows)])


def replace_table(batch: Batch, row: Table) -> None:
    """Deregister a locked table that another registration replaces. Raises Protected."""
    mark_dropped(batch, [row])
    batch.record(
        str(row),
        table=row,
        before={"location": row.location},
        action=DeregisterTable.action,
    )


def _add_purge_job(batch: Batch, row: Table, due: datetime | None) -> Job:
    """Add a purge job that no worker takes before it is due."""
    job = Job(
        kind=JobKind.PURGE_TABLE, table=row, transaction_id=batch.transaction.id, lease_until=due
    )
    batch.add(job)
    batch.transaction.status = TransactionStatus.QUEUED
    if due is None:
        batch.after_commit(jobs.send_jobs, job)
    return job


def drop_tables(
    batch: Batch,
    rows: list[Table],
    namespaces: Mapping[int, Namespace],
    action: str = DropTable.action,
) -> None:
    """Mark tables as dropped and schedule the removal of their data. Raises Protected.

    ``action`` is the action that the audit trail records for each table.
    """
    if not rows:
        return
    for row in rows:
        row.namespace = namespaces[row.namespace_id]
    mark_dropped(batch, rows, purge=True)
    for row in rows:
        batch.record(str(row), table=row, before={"location": row.location}, action=action)


def claim_location(
    batch: Batch, location: str, namespace: Namespace, *, format: TableFormat, pk: int = 0
) -> None:
    """Refuse a location that overlaps another table's: equal to it, inside it, or around it.

    Otherwise dropping one would remove files of the other, and of a Lance table all at its location. A dropped table counts
    until its data is removed. If some of its data stays, or if it is a view, only actors who may manage it without an end can have its location, in
    namespaces with at least the same approval rules. Other directories of Iceberg tables are checked in the same way.
    """
    if batch.location_checks is None:
        batch.flush()
        locks.lock_locations()
        if not pk:
            requested = batch.locations | {location}
            batch.location_checks = LocationChecks(batch.actor, requested, batch.deregistered)
    checks: LocationChecks | None = batch.location_checks
    if pk or checks is None or not checks.is_free_for(namespace.pk, location):
        batch.flush()
        if pk or checks is None or not checks.is_free(location):
            require_free_location(batch.actor, location, pk=pk)
            if format == TableFormat.LANCE:
                iceberg_paths.require_free(batch.actor, location)
        # The last check, as its error names the other table.
        trash.require_rules_kept_at([location], namespace, pk=pk, is_location=True)
    if checks is not None:
        checks.take(location)


def require_free_location(
    actor: Principal, location: str, *, apart_from: int | None = None, pk: int = 0
) -> None:
    """Check a location like ``claim_location`` before anything is written there, without a lock.

    The commit checks again under the lock. ``apart_from`` is the table that is being restored from the trash and may have the
    location. ``pk`` is the table that moves there, or is replaced there: it may have paths there, and exactly this location.
    """
    if apart_from is None:
        iceberg_paths.require_unheld(actor, pk, [location], is_location=True)
    has_job = Job.objects.filter(table=OuterRef("pk"))
    is_purged = Exists(has_job.purges())
    held = (
        ~Q(state=TableState.DROPPED)
        | Exists(has_job.filter(status__in=[JobStatus.QUEUED, JobStatus.RUNNING]))
        # A deregistered table and a dropped view may be restored. Their exact location may be
        # registered again, but no other table may be around their files or inside it.
        | (~Q(location=location) & ~is_purged)
    )
    others = Table.objects.meeting(location).exclude(pk=pk, location=location)
    others = others.select_related("namespace")
    if apart_from is not None:
        others = others.exclude(pk=apart_from)
    holder = others.filter(held).first()
    if holder is not None:
        raise iceberg_paths.taken(actor, location, holder, holder.location)
    if apart_from is None:
        namespace_locations.require_place(actor, location)
    if apart_from is not None or actor.holds_everywhere(Privilege.MANAGE):
        return
    has_files = (Q(location=location) & ~is_purged) | Q(remaining_files__isnull=False)
    with_files = set(others.filter(has_files).values_list("pk", flat=True))
    manageable = access.tables_with(actor, Privilege.MANAGE, with_files, lasting=True)
    dropped = others.filter(pk__in=with_files - manageable).first()
    if dropped is not None:
        refused = iceberg_paths.taken(actor, location, dropped)
        refused.detail = (
            "It was dropped, and files of it remain: only a principal that may manage its former"
            " namespace without an end can create a table there."
        )
        raise refused
