"""Operations that restore dropped tables, views and namespaces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    CommitConflict,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotFound,
    NotRecoverable,
    TrashItemNotFound,
)
from catalog.identifiers import Identifier, check, check_table, digest, label
from catalog.models import (
    Function,
    IcebergPath,
    JobKind,
    Namespace,
    Table,
    TableFormat,
    TableState,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, jobs, locks
from catalog.services.engine.batch import Batch
from catalog.services.recovery.purge_operations import ACTIVE, TrashOperation
from catalog.services.storage import iceberg_paths, namespace_claims, namespace_locations
from catalog.services.tables import trash
from catalog.services.tables.table_operations import already_exists, require_free_location

_AT_ONCE = 500  # rows in one statement
_NAMED = 10  # lost items that the error names


@dataclass(frozen=True, kw_only=True)
class Undrop(TrashOperation):
    """Base class of the operations that restore a dropped object."""

    new: Identifier | None = None
    """Another name; None restores the old name."""
    with_parents: bool = False
    """True to restore dropped namespaces above it too, without their other contents."""
    target: Identifier = ()
    """The name of the restored object, set by ``prepare``."""

    def namespaces(self) -> Iterable[Identifier]:
        # The lock of the root lets one restore run at a time: the dropped namespaces above the item
        # are read before they are locked, and do not change in between.
        return [self.target[:depth] for depth in range(len(self.target))]

    def parent(self, batch: Batch, chain: Sequence[Namespace]) -> Namespace:
        """Return the live namespace to restore into.

        ``chain`` lists the dropped namespaces that may be restored too, the lowest first.
        """
        path = self.target[:-1]
        try:
            parent = batch.namespace(path)
            # Inside the try block, so that a hidden namespace reads like a missing one.
            access.require(batch.actor, Privilege.CREATE, parent)
        except NamespaceNotFound as missing:
            rows = _dropped_in(batch, chain, path)
            if not (self.with_parents and rows):
                missing.detail = (
                    "Restore it first, restore it together with this item (with_parents), or choose a"
                    " name in another namespace."
                    if rows
                    else "Choose a name in an existing namespace."
                )
                raise
            parent = batch.namespace(tuple(rows[-1].path[:-1]))
            access.require(batch.actor, Privilege.CREATE, parent)
            # Each namespace needs the same privileges as if it were restored by itself.
            for row in rows:
                trash.require_manage_in(batch.actor, row)
            trash.require_movable(batch.actor, rows[-1], rows[-1].parent_id or 0, parent)
            for row in reversed(rows):
                before = _audit_before(row)
                _restore_namespace(batch, row, tuple(row.path), parent)
                batch.record(
                    str(row),
                    action="namespace.undrop",
                    before=before,
                    after={"brought_back_for": label(self.target)},
                )
                parent = row
        return parent

    def chain(self, lowest: Namespace | None) -> list[Namespace]:
        """Return the dropped namespaces from this one up."""
        namespaces = []
        while lowest is not None and lowest.dropped_at is not None:
            namespaces.append(lowest)
            lowest = lowest.parent
        return namespaces

    def require_same(self, identifier: Identifier) -> None:
        if self.new is None and self.target != identifier:
            raise CommitConflict(
                f"'{label(self.target)}' was restored under another name by a concurrent request"
            )


@dataclass(frozen=True, kw_only=True)
class UndropTable(Undrop):
    """Restore a dropped table or view. The result is its row.

    Raises TrashItemNotFound, NotRecoverable once its purge has begun, NamespaceNotFound if its
    namespace no longer exists, TableAlreadyExists or ViewAlreadyExists, and LocationTaken.
    """

    name = "UndropTable"
    action = "table.undrop"

    def prepare(self) -> "UndropTable":
        table = trash.find(self.item).table
        if table is None:
            raise InvalidInput(f"Trash item {self.item} is a namespace, not a table")
        target = table.identifier if self.new is None else self.new
        check_table(target)
        return replace(self, target=target)

    def tables(self) -> Iterable[Identifier]:
        return (self.target,)

    def apply(self, batch: Batch) -> Table:
        batch.flush()
        trash_item = trash.find(self.item)
        chain = self.chain(None if trash_item.table is None else trash_item.table.namespace)
        item, _ = self.locked(batch, [row.pk for row in chain])
        table = item.table
        if table is None:
            raise TrashItemNotFound(self.item)
        self.require_same(table.identifier)
        _require_recoverable(batch.actor, [item])
        namespace = self.parent(batch, chain)
        trash.require_movable(batch.actor, table, table.namespace_id, namespace)
        holder = batch.find_table(self.target)
        if holder is not None:
            taken = already_exists(self.target, holder)
            taken.detail = "Restore it under another name."
            raise taken
        _require_free_locations(batch.actor, [item])
        before, audit_before = table.digest, {table.pk: _audit_before(table)}
        table.namespace, table.name = namespace, self.target[-1]
        _restore_tables(batch, [item], audit_before)
        batch.relocate_table(table, before)
        return table


@dataclass(frozen=True, kw_only=True)
class UndropNamespace(Undrop):
    """Restore a namespace with everything that was dropped with it. The result is its row.

    ``without_purged`` skips purged tables. Raises TrashItemNotFound, NotRecoverable if some tables
    are purged or being purged, NamespaceNotFound if its parent no longer exists,
    NamespaceAlreadyExists, and LocationTaken.
    """

    name = "UndropNamespace"
    action = "namespace.undrop"

    without_purged: bool = False

    def prepare(self) -> "UndropNamespace":
        namespace = trash.find(self.item).namespace
        if namespace is None:
            raise InvalidInput(f"Trash item {self.item} is a table or a view, not a namespace")
        target = namespace.identifier if self.new is None else self.new
        check(target)
        if not target:
            raise InvalidInput("The root namespace cannot be restored, because it always exists")
        return replace(self, target=target)

    def namespaces(self) -> Iterable[Identifier]:
        return [*super().namespaces(), self.target]

    def apply(self, batch: Batch) -> Namespace:
        batch.flush()
        trash_item = trash.find(self.item)
        chain = self.chain(None if trash_item.namespace is None else trash_item.namespace.parent)
        first, items = self.locked(batch, [row.pk for row in chain])
        root = first.namespace
        if root is None:
            raise TrashItemNotFound(self.item)
        self.require_same(root.identifier)
        tables = [item for item in items if item.table is not None]
        if self.without_purged:
            tables = [item for item in tables if not _is_lost(item)]
        _require_recoverable(batch.actor, tables)
        parent = self.parent(batch, chain)
        trash.require_movable(batch.actor, root, root.parent_id or 0, parent)
        if batch.find_namespace(self.target) is not None:
            taken = NamespaceAlreadyExists(self.target)
            taken.detail = "Restore it under another name."
            raise taken
        _require_free_locations(batch.actor, tables)
        before = _audit_before(root)
        tables_before = {
            item.table.pk: _audit_before(item.table) for item in tables if item.table is not None
        }
        revived = {root.pk: root}
        below = [
            item.namespace for item in items if item.namespace is not None and item is not first
        ]
        _restore_namespace(batch, root, self.target, parent)
        for row in sorted(below, key=lambda row: len(row.path)):
            above = revived[row.parent_id or 0]
            _restore_namespace(batch, row, (*above.path, row.name), above)
            revived[row.pk] = row
        for item in tables:
            if item.table is not None:
                item.table.namespace = revived[item.table.namespace_id]
        _restore_tables(batch, tables, tables_before)
        batch.record(
            label(self.target),
            before=before,
            after={"namespaces": len(revived), "tables": len(tables)},
        )
        return root


def _dropped_in(batch: Batch, chain: Sequence[Namespace], path: Identifier) -> list[Namespace]:
    """Return the namespaces of the chain that still do not exist if it leads to ``path``.

    The lowest comes first.
    """
    if not chain or chain[0].identifier != path:
        return []
    return [row for row in chain if batch.find_namespace(row.identifier) is None]


def _restore_namespace(batch: Batch, row: Namespace, path: Identifier, parent: Namespace) -> None:
    """Restore a locked, dropped namespace with its functions. Raises LocationTaken."""
    if row.location is not None:
        namespace_claims.claim(batch.actor, row.location, within=None, namespace=row.pk)
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
        Function.objects.bulk_create(trash.restore_functions(row, item.content))
        item.delete()
    batch.enter_namespace(row)


def _audit_before(row: Namespace | Table) -> dict[str, Any]:
    """Return the audit state of a dropped object, from which history knows when it was dropped."""
    return {"name": str(row), "dropped_at": row.dropped_at and row.dropped_at.isoformat()}


def _restore_tables(
    batch: Batch, items: Sequence[TrashItem], audit_before: Mapping[int, dict[str, Any]]
) -> None:
    """Restore locked, dropped tables in their current namespaces."""
    rows = [item.table for item in items if item.table is not None]
    jobs.cancel_jobs_of_tables(rows)
    # After all locks: until then, files in their directories may have been named as those of other tables.
    restored_at = database_clock.read_clock()
    for item in items:
        if (table := item.table) is None:
            continue
        table.state = TableState(item.content.get("state", TableState.LIVE))
        table.digest, table.dropped_at, table.updated_at = digest(table.identifier), None, batch.now
        table.restored_at = restored_at
        if "materialized_view" in item.content:
            trash.restore_view(table, item.content["materialized_view"]).save(force_insert=True)
        batch.record(
            str(table),
            action="table.undrop",
            table=table,
            before=audit_before[table.pk],
            after={"location": table.location, "dropped_by": item.dropped_by},
        )
    Table.objects.bulk_update(
        rows,
        ["namespace", "name", "state", "digest", "dropped_at", "restored_at", "updated_at"],
        batch_size=_AT_ONCE,
    )
    TrashItem.objects.filter(pk__in=[item.pk for item in items]).delete()


def _is_lost(item: TrashItem) -> bool:
    """True if some of its files may have been removed."""
    return item.purge_begun_at is not None or _purged_with(item) is not None


def _purged_with(item: TrashItem) -> Table | None:
    """Return a table that got the location or a directory of it later and was purged, which removed these files."""
    if item.table is None or _is_waiting(item):
        return None
    location = item.table.location
    # While it was present, no other table could have a directory there.
    inside = IcebergPath.objects.filter(path__startswith=location + "/").values("table")
    meeting = Table.objects.meeting(location) | Table.objects.filter(pk__in=inside)
    begun = meeting.exclude(pk=item.table.pk).filter(
        jobs__kind=JobKind.PURGE_TABLE, jobs__attempts__gt=0, jobs__created_at__gte=item.dropped_at
    )
    return begun.select_related("namespace").first()


def _is_waiting(item: TrashItem) -> bool:
    """True if the purge that began to wait with the drop still waits; until then no other table gets its location.

    A purge that was requested later may have begun to wait when another table had the location.
    """
    job = item.job
    if job is None or job.status not in ACTIVE or item.purge_begun_at is not None:
        return False
    return job.transaction_id == item.transaction_id


def _require_recoverable(actor: Principal, items: Iterable[TrashItem]) -> None:
    """Require that all files still exist. Raises NotRecoverable, which names the lost items."""
    lost = [item for item in items if _is_lost(item)]
    if not lost:
        return
    other, cause = _purged_with(lost[0]), "its purge has begun"
    if other is not None:
        is_visible = access.holds(actor, Privilege.BROWSE, other)
        name = f"table '{other}'" if is_visible else "another table"
        cause = f"its files also belonged to {name} and were purged with it"
    more = [str(item) for item in lost[1 : _NAMED + 1]]
    raise NotRecoverable(
        lost[0],
        cause,
        detail=f"The same applies to {', '.join(more)}" if more else None,
    )


def _require_free_locations(actor: Principal, items: Sequence[TrashItem]) -> None:
    """Require that the locations are free; before its purge, no other table can take a table's location.

    Raises LocationTaken.
    """
    tables = [item.table for item in items if item.table is not None]
    if not tables:
        return
    locks.lock_locations()
    namespace_locations.require_none_inside(actor, [table.location for table in tables])
    paths = IcebergPath.objects.filter(table__in=[table.pk for table in tables])
    with_paths = set(paths.values_list("table", flat=True))
    for item in items:
        table = item.table
        if table is None:
            continue
        if table.pk in with_paths:
            iceberg_paths.require_no_later_paths_in_paths(actor, table)
        if _is_waiting(item):
            continue
        require_free_location(actor, table.location, apart_from=table.pk)
        if table.format == TableFormat.LANCE:
            iceberg_paths.require_free(actor, table.location)
        else:
            iceberg_paths.require_outside(actor, table)
            iceberg_paths.require_no_later_paths(actor, table)
