"""Protecting, bringing back from the trash, purging from it, and the rules of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    CommitConflict,
    InvalidInput,
    InvalidTableState,
    NamespaceAlreadyExists,
    NamespaceNotFound,
    NotRecoverable,
    TrashItemNotFound,
)
from catalog.identifiers import Identifier, check, check_table, digest, label
from catalog.models import (
    Function,
    GuardedAction,
    Job,
    JobKind,
    JobStatus,
    Namespace,
    Table,
    TableFormat,
    TableKind,
    TableState,
    TransactionStatus,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.engine import jobs, locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.storage import iceberg_paths, namespace_claims
from catalog.services.tables import trash
from catalog.services.tables.approval_gate import Guarded
from catalog.services.tables.table_operations import already_exists, require_free_location

_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)
_AT_ONCE = 500  # rows in one statement
_NAMED = 10  # of what cannot be brought back

# --- protection and rules ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SetProtection(Guarded):
    """Protect a namespace, table or view, or take its protection off. The result is its row.

    Raises NamespaceNotFound, TableNotFound, PermissionDenied, and ApprovalRequired where a rule says
    so of a namespace whose protection is to be taken off.
    """

    name = "SetProtection"
    action = "protection.set"

    identifier: Identifier
    is_namespace: bool
    is_protected: bool

    def namespaces(self) -> Iterable[Identifier]:
        return (self.identifier,) if self.is_namespace else ()

    def tables(self) -> Iterable[Identifier]:
        return () if self.is_namespace else (self.identifier,)

    def apply(self, batch: Batch) -> Namespace | Table:
        row: Namespace | Table
        if self.is_namespace:
            row = batch.namespace(self.identifier)
            access.require(batch.actor, Privilege.MANAGE, row)
            if row.is_protected > self.is_protected or self.approved_for is not None:
                self.require_second(
                    batch,
                    action=GuardedAction.DROP_PROTECTED,
                    what="taking the protection off namespace",
                    target=row.identifier,
                    namespace=row,
                    state={"namespace": row.pk, "is_protected": row.is_protected},
                )
        else:
            row = batch.table(self.identifier)
            access.require(batch.actor, Privilege.MANAGE, row)
        if row.is_protected == self.is_protected:
            return row
        batch.flush()
        row.is_protected = self.is_protected
        row.save(update_fields=["is_protected", "updated_at"])
        batch.record(
            label(self.identifier),
            table=row if isinstance(row, Table) else None,
            before={"is_protected": not self.is_protected},
            after={"is_protected": self.is_protected},
        )
        return row


@dataclass(frozen=True, kw_only=True)
class SetRetention(Operation):
    """Say how long what is dropped in a namespace and below can be brought back. The result is its row.

    ``seconds`` None: as above it; 0: not at all. What is in the trash keeps its time.
    """

    name = "SetRetention"
    action = "retention.set"

    namespace: Identifier
    seconds: int | None

    def prepare(self) -> "SetRetention":
        if self.seconds is not None and not 0 <= self.seconds <= trash.MAX_SECONDS:
            raise InvalidInput(
                f"A retention is 0 to {trash.MAX_SECONDS} seconds, not {self.seconds}"
            )
        return self

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        before = row.retention_seconds
        if before != self.seconds:
            batch.flush()
            row.retention_seconds = self.seconds
            row.save(update_fields=["retention_seconds", "updated_at"])
            batch.record(
                str(row),
                before={"retention_seconds": before},
                after={"retention_seconds": self.seconds},
            )
        return row


@dataclass(frozen=True, kw_only=True)
class SetApprovalRule(Guarded):
    """Say what needs a second person in a namespace and below. The result is its row.

    What namespaces above say holds too. To ask for less takes a second person by itself, else who
    is alone would begin with that.
    """

    name = "SetApprovalRule"
    action = "approval_rule.set"

    namespace: Identifier
    actions: Sequence[str]

    def prepare(self) -> "SetApprovalRule":
        unknown = sorted(set(self.actions) - set(GuardedAction.values))
        if unknown:
            known = ", ".join(GuardedAction.values)
            raise InvalidInput(f"'{unknown[0]}' needs no second person; there are {known}")
        return replace(self, actions=tuple(sorted(set(self.actions))))

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        before, after = sorted(row.guarded), list(self.actions)
        above = trash.rules([row.parent_id])[row.parent_id].guarded if row.parent_id else {}
        if set(before) - set(after) - set(above) or self.approved_for is not None:
            self.require_second(
                batch,
                action=None,
                what="asking for fewer approvals in namespace",
                target=row.identifier,
                namespace=row,
                state={"namespace": row.pk, "actions": before},
            )
        if after != before:
            batch.flush()
            row.guarded = after
            row.save(update_fields=["guarded", "updated_at"])
            batch.record(str(row), before={"guarded": before}, after={"guarded": after})
        return row


# --- what is in the trash ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrashOperation(Operation):
    """An operation on what was dropped: a table, a view, or a namespace with all that went with it."""

    item: int
    """The primary key of its row in the trash."""

    def locked(self, batch: Batch, also: Iterable[int] = ()) -> tuple[TrashItem, list[TrashItem]]:
        """The item, and all that goes with it (itself too), with their namespaces and tables.

        ``also`` are further dropped namespaces to lock. Raises TrashItemNotFound, PermissionDenied.
        """
        found = trash.find(self.item)
        trash.require_manage(batch.actor, found)
        items = locks.lock_trash(trash.with_it(found), also)
        first = next((one for one in items if one.pk == self.item), None)
        if first is None:
            raise TrashItemNotFound(self.item)
        return first, items


@dataclass(frozen=True, kw_only=True)
class Undrop(TrashOperation):
    """What bringing back has in common."""

    new: Identifier | None = None
    """Another name; None: the one that it had."""
    with_parents: bool = False
    """Whether namespaces above it that are gone come back too, empty."""
    target: Identifier = ()
    """The name that it gets, from ``prepare``."""

    def namespaces(self) -> Iterable[Identifier]:
        # The root with them: so one thing comes back at a time, and what is read of the dropped
        # namespaces above it, before they are locked, is still so when they are.
        return [self.target[:depth] for depth in range(len(self.target))]

    def parent(self, batch: Batch, chain: Sequence[Namespace]) -> Namespace:
        """The live namespace that it comes back into. ``chain`` may come back, the lowest first."""
        path = self.target[:-1]
        try:
            found = batch.namespace(path)
            # Within, so that what may not be browsed is told in the same words as what is missing.
            access.require(batch.actor, Privilege.CREATE, found)
        except NamespaceNotFound as missing:
            rows = _gone(batch, chain, path)
            if not (self.with_parents and rows):
                missing.detail = (
                    "Bring it back first, or along with this (with_parents), or give a name elsewhere."
                    if rows
                    else "Give a name in a namespace that exists."
                )
                raise
            found = batch.namespace(tuple(rows[-1].path[:-1]))
            access.require(batch.actor, Privilege.CREATE, found)
            # What comes along takes what bringing it back by itself takes.
            for row in rows:
                trash.require_manage_in(batch.actor, row)
            trash.require_movable(batch.actor, rows[-1], rows[-1].parent_id or 0, found)
            for row in reversed(rows):
                before = _was(row)
                _revive(batch, row, tuple(row.path), found)
                batch.record(
                    str(row),
                    action="namespace.undrop",
                    before=before,
                    after={"brought_back_for": label(self.target)},
                )
                found = row
        return found

    def chain(self, lowest: Namespace | None) -> list[Namespace]:
        """The dropped namespaces from this one up."""
        found = []
        while lowest is not None and lowest.dropped_at is not None:
            found.append(lowest)
            lowest = lowest.parent
        return found

    def require_same(self, identifier: Identifier) -> None:
        if self.new is None and self.target != identifier:
            raise CommitConflict(f"'{label(self.target)}' was brought elsewhere meanwhile")


@dataclass(frozen=True, kw_only=True)
class UndropTable(Undrop):
    """Bring back a table or view that was dropped. The result is its row.

    Raises TrashItemNotFound, NotRecoverable once its purge has begun, NamespaceNotFound where its
    namespace is gone, TableAlreadyExists or ViewAlreadyExists, and LocationTaken.
    """

    name = "UndropTable"
    action = "table.undrop"

    def prepare(self) -> "UndropTable":
        table = trash.find(self.item).table
        if table is None:
            raise InvalidInput("This was a namespace, not a table")
        target = table.identifier if self.new is None else self.new
        check_table(target)
        return replace(self, target=target)

    def tables(self) -> Iterable[Identifier]:
        return (self.target,)

    def apply(self, batch: Batch) -> Table:
        batch.flush()
        found = trash.find(self.item)
        chain = self.chain(None if found.table is None else found.table.namespace)
        item, _ = self.locked(batch, [row.pk for row in chain])
        table = item.table
        if table is None:
            raise TrashItemNotFound(self.item)
        self.require_same(table.identifier)
        _require_whole(batch.actor, [item])
        namespace = self.parent(batch, chain)
        trash.require_movable(batch.actor, table, table.namespace_id, namespace)
        holder = batch.find_table(self.target)
        if holder is not None:
            taken = already_exists(self.target, holder)
            taken.detail = "Bring it back under another name."
            raise taken
        _require_places(batch.actor, [item])
        before, was = table.digest, {table.pk: _was(table)}
        table.namespace, table.name = namespace, self.target[-1]
        _restore_tables(batch, [item], was)
        batch.relocate_table(table, before)
        return table


@dataclass(frozen=True, kw_only=True)
class UndropNamespace(Undrop):
    """Bring back a namespace with all that was dropped with it. The result is its row.

    ``without_purged`` leaves behind what is gone. Raises TrashItemNotFound, NotRecoverable when some
    of it is gone or goes, NamespaceNotFound where its parent is gone, NamespaceAlreadyExists, and
    LocationTaken.
    """

    name = "UndropNamespace"
    action = "namespace.undrop"

    without_purged: bool = False

    def prepare(self) -> "UndropNamespace":
        namespace = trash.find(self.item).namespace
        if namespace is None:
            raise InvalidInput("This was a table or a view, not a namespace")
        target = namespace.identifier if self.new is None else self.new
        check(target)
        if not target:
            raise InvalidInput("The root namespace is there")
        return replace(self, target=target)

    def namespaces(self) -> Iterable[Identifier]:
        return [*super().namespaces(), self.target]

    def apply(self, batch: Batch) -> Namespace:
        batch.flush()
        found = trash.find(self.item)
        chain = self.chain(None if found.namespace is None else found.namespace.parent)
        first, items = self.locked(batch, [row.pk for row in chain])
        root = first.namespace
        if root is None:
            raise TrashItemNotFound(self.item)
        self.require_same(root.identifier)
        tables = [one for one in items if one.table is not None]
        if self.without_purged:
            tables = [one for one in tables if not _is_lost(one)]
        _require_whole(batch.actor, tables)
        parent = self.parent(batch, chain)
        trash.require_movable(batch.actor, root, root.parent_id or 0, parent)
        if batch.find_namespace(self.target) is not None:
            taken = NamespaceAlreadyExists(self.target)
            taken.detail = "Bring it back under another name."
            raise taken
        _require_places(batch.actor, tables)
        before = _was(root)
        were = {one.table.pk: _was(one.table) for one in tables if one.table is not None}
        revived = {root.pk: root}
        below = [one.namespace for one in items if one.namespace is not None and one is not first]
        _revive(batch, root, self.target, parent)
        for row in sorted(below, key=lambda row: len(row.path)):
            above = revived[row.parent_id or 0]
            _revive(batch, row, (*above.path, row.name), above)
            revived[row.pk] = row
        for one in tables:
            if one.table is not None:
                one.table.namespace = revived[one.table.namespace_id]
        _restore_tables(batch, tables, were)
        batch.record(
            label(self.target),
            before=before,
            after={"namespaces": len(revived), "tables": len(tables)},
        )
        return root


def _gone(batch: Batch, chain: Sequence[Namespace], path: Identifier) -> list[Namespace]:
    """Those of the chain that lead to a path, as far as they are gone, the lowest first."""
    if not chain or chain[0].identifier != path:
        return []
    return [row for row in chain if batch.find_namespace(row.identifier) is None]


def _revive(batch: Batch, row: Namespace, path: Identifier, parent: Namespace) -> None:
    """Make a locked, dropped namespace live, with its functions. Raises LocationTaken."""
    if row.location is not None:
        namespace_claims.claim(batch.actor, row.location, namespace=row.pk)
    row.path, row.name, row.digest = list(path), path[-1], digest(path)
    row.parent, row.dropped_at = parent, None
    row.ancestors = [*parent.ancestors, row.pk]
    row.save(
        update_fields=[
            *("path", "name", "digest", "parent", "ancestors", "dropped_at", "updated_at"),
        ]
    )
    item = TrashItem.objects.filter(namespace=row).first()
    if item is not None:
        Function.objects.bulk_create(trash.functions_of(row, item.content))
        item.delete()
    batch.enter_namespace(row)


def _was(row: Namespace | Table) -> dict[str, Any]:
    """What the trail tells of something that comes back, by which history knows when it was away."""
    return {"name": str(row), "dropped_at": row.dropped_at and row.dropped_at.isoformat()}


def _restore_tables(
    batch: Batch, items: Sequence[TrashItem], were: Mapping[int, dict[str, Any]]
) -> None:
    """Make locked, dropped tables present in the namespaces that they have now."""
    rows = [one.table for one in items if one.table is not None]
    jobs.cancel_jobs_of_tables(rows)
    for one in items:
        if (table := one.table) is None:
            continue
        table.state = TableState(one.content.get("state", TableState.LIVE))
        table.digest, table.dropped_at, table.updated_at = digest(table.identifier), None, batch.now
        if "materialized_view" in one.content:
            trash.view_of(table, one.content["materialized_view"]).save(force_insert=True)
        batch.record(
            str(table),
            action="table.undrop",
            table=table,
            before=were[table.pk],
            after={"location": table.location, "dropped_by": one.dropped_by},
        )
    Table.objects.bulk_update(
        rows,
        ["namespace", "name", "state", "digest", "dropped_at", "updated_at"],
        batch_size=_AT_ONCE,
    )
    TrashItem.objects.filter(pk__in=[one.pk for one in items]).delete()


def _is_lost(item: TrashItem) -> bool:
    """Whether some of its files may be gone."""
    return item.purge_begun_at is not None or _taken_by(item) is not None


def _taken_by(item: TrashItem) -> Table | None:
    """Another table that was given the location since, and purged: its files were these."""
    if item.table is None or _is_waiting(item):
        return None
    others = Table.objects.meeting(item.table.location).exclude(pk=item.table.pk)
    begun = others.filter(
        jobs__kind=JobKind.PURGE_TABLE, jobs__attempts__gt=0, jobs__created_at__gte=item.dropped_at
    )
    return begun.select_related("namespace").first()


def _is_waiting(item: TrashItem) -> bool:
    """Whether its own purge is yet to come: so long nobody else gets its location."""
    return item.job is not None and item.job.status in _ACTIVE and item.purge_begun_at is None


def _require_whole(actor: Principal, items: Iterable[TrashItem]) -> None:
    """Raises NotRecoverable, naming what is lost."""
    lost = [one for one in items if _is_lost(one)]
    if not lost:
        return
    other, cause = _taken_by(lost[0]), "its purge has begun"
    if other is not None:
        is_told = access.holds(actor, Privilege.BROWSE, other)
        name = f"table '{other}'" if is_told else "another table"
        cause = f"its files were those of {name} too, and were purged with it"
    more = [str(one) for one in lost[1 : _NAMED + 1]]
    raise NotRecoverable(
        lost[0],
        cause,
        detail=f"The same holds for {', '.join(more)}" if more else None,
    )


def _require_places(actor: Principal, items: Iterable[TrashItem]) -> None:
    """Raises LocationTaken where another table lies now. Until a table is purged nobody else can."""
    free = [one for one in items if not _is_waiting(one)]
    if free:
        locks.lock_locations()
    for one in free:
        if (table := one.table) is None:
            continue
        require_free_location(actor, table.location, apart_from=table.pk)
        if table.format == TableFormat.LANCE:
            iceberg_paths.require_free(actor, table.location)
        else:
            iceberg_paths.require_outside(actor, table)


# --- purging -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PurgeNow(Guarded, TrashOperation):
    """Purge from the trash before its time, after a while in which ``StopPurge`` still helps.

    The result is the jobs that do it, one for each table. Raises TrashItemNotFound,
    InvalidTableState when it is being purged already, and ApprovalRequired.
    """

    name = "PurgeNow"
    action = "trash.purge"

    def apply(self, batch: Batch) -> list[Job]:
        batch.flush()
        first, items = self.locked(batch)
        place = trash.place(first)
        self.require_second(
            batch,
            action=GuardedAction.PURGE,
            what=f"purging {first.kind}",
            target=first.target.identifier,
            namespace=place,
            state={"items": sorted(one.pk for one in items)},
        )
        grace = timedelta(seconds=settings.MONODON_PURGE_GRACE_SECONDS)
        due = batch.now + grace
        found = []
        for one in items:
            if one.table is not None and one.table.kind == TableKind.TABLE:
                job = self._hasten(batch, one, one.table, due if grace else None)
                if job is None:
                    if one is first:
                        raise InvalidTableState(f"'{first}' is being purged already")
                    continue
                found.append(job)
            one.purge_at = due
            one.save(update_fields=["purge_at", "job"])
            batch.record(
                str(one),
                table=one.table,
                after={"purge_at": due.isoformat(), "reason": self.reason},
            )
        return found

    def _hasten(
        self, batch: Batch, item: TrashItem, table: Table, due: datetime | None
    ) -> Job | None:
        """The job that purges a table, due now; None: it is at it."""
        job = item.job
        if job is not None and job.status in _ACTIVE:
            waits = Job.objects.filter(pk=job.pk, status=JobStatus.QUEUED)
            if item.purge_begun_at is not None or not waits.update(lease_until=due):
                return None
            job.lease_until = due
        else:
            job = Job.objects.create(
                kind=JobKind.PURGE_TABLE,
                table=table,
                transaction=batch.transaction,
                lease_until=due,
            )
            batch.transaction.status = TransactionStatus.QUEUED
            item.job = job
        if due is None:
            batch.after_commit(jobs.send_jobs, job)
        return job


@dataclass(frozen=True, kw_only=True)
class StopPurge(TrashOperation):
    """Keep what is in the trash until somebody purges it. The result is its row there.

    Raises TrashItemNotFound, and InvalidTableState once its purge has begun.
    """

    name = "StopPurge"
    action = "trash.keep"

    def apply(self, batch: Batch) -> TrashItem:
        batch.flush()
        first, items = self.locked(batch)
        begun = [one for one in items if one.purge_begun_at is not None]
        if first in begun:
            raise InvalidTableState(f"'{first}' is being purged already")
        kept = [one for one in items if one not in begun]
        jobs.cancel_jobs_of_tables([one.table for one in kept if one.table is not None])
        for one in kept:
            batch.record(
                str(one),
                table=one.table,
                before={"purge_at": one.purge_at and one.purge_at.isoformat()},
            )
            one.purge_at = None
        TrashItem.objects.filter(pk__in=[one.pk for one in kept]).update(purge_at=None)
        return first
