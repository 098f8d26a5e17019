"""The trash: rows from which dropped objects can be restored until their retention ends.

    dropped, to be purged      a trash row and a queued job that no worker takes before ``purge_at``
    dropped, files stay        a trash row without an end
    views, namespaces          a trash row that is deleted after ``purge_at``: they have no files

This module takes no lock and opens no transaction: the drop operations hold the locks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from catalog import access
from catalog.access import Principal
from catalog.errors import PermissionDenied, Protected, TrashItemNotFound
from catalog.identifiers import Identifier, label
from catalog.models import (
    Function,
    Grant,
    GuardedAction,
    IcebergPath,
    Job,
    MaterializedView,
    Namespace,
    Table,
    TableKind,
    TableState,
    TrashItem,
)
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, Privilege, essence
from catalog.services.engine.statements import NewTransaction
from catalog.storage import locations

GUARDED_SECONDS = 86_400
"""Minimum retention where a purge needs an approval; a shorter one would bypass the approval."""
MAX_SECONDS = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Rules:
    """The effective rules of a namespace and their source; an empty source is the installation."""

    retention_seconds: int
    retention_source: str = ""
    guarded: Mapping[GuardedAction, Identifier] = field(default_factory=dict)
    """The actions that need an approval, each with the highest namespace whose rule requires it."""

    @property
    def seconds(self) -> int:
        """Retention of dropped objects in seconds; 0 means that they are purged at once."""
        if GuardedAction.PURGE in self.guarded:
            return max(self.retention_seconds, GUARDED_SECONDS)
        return self.retention_seconds

    def purge_at(self, now: datetime) -> datetime | None:
        """Return the earliest purge time of an object dropped at ``now``; None means at once.

        The grace period in which a purge can still be stopped is added to the retention.
        """
        if not self.seconds:
            return None
        return now + timedelta(seconds=self.seconds + settings.MONODON_PURGE_GRACE_SECONDS)


_RULES = """
    SELECT n.id, above.path, above.retention_seconds, above.guarded
    FROM catalog_namespace n JOIN catalog_namespace above ON above.id = ANY(n.ancestors)
    WHERE n.id = ANY(string_to_array(%s, ',')::bigint[]) AND (above.retention_seconds IS NOT NULL OR above.guarded <> '{}')
    ORDER BY n.id, cardinality(above.path)
"""


def rules(namespaces: Collection[int]) -> dict[int, Rules]:
    """Return the effective rules of live and dropped namespaces by primary key. One statement."""
    result = {pk: Rules(settings.MONODON_TRASH_SECONDS) for pk in namespaces}
    cursor = hot_cursor()
    cursor.execute(_RULES, [",".join(map(str, result))])
    for pk, path, seconds, guarded in cursor.fetchall():
        before = result[pk]
        result[pk] = Rules(
            before.retention_seconds if seconds is None else seconds,
            before.retention_source if seconds is None else label(path),
            {**{GuardedAction(action): tuple(path) for action in guarded}, **before.guarded},
        )
    return result


def require_movable(actor: Principal, row: Namespace | Table, old: int, new: Namespace) -> None:
    """Refuse a move that would bypass an approval rule or extend the actor's privileges.

    The new namespace must require at least the approvals of ``old``, and the actor may not gain
    privileges on the moved object, nor hold some for longer, with whatever key. Others gain those that they hold on
    the new namespace, without an end, so the actor must manage the object without an end. Raises PermissionDenied.
    """
    if new.pk == old:
        return
    require_rules_kept(row, old, new)
    if actor.holds_everywhere(Privilege.ALL):
        return
    present = access.without_limits(actor)
    before, gained = access.ends_on(present, row), NOTHING
    for privilege, end in access.ends_on(present, new).items():
        if privilege not in before or end > before[privilege]:
            gained |= privilege
    if gained:
        raise PermissionDenied(
            "'{actor}' may not move '{row}' to '{new}', where they would hold more on it: {gained}",
            actor=actor.name,
            row=row.identifier,
            new=new.identifier,
            gained=", ".join(essence(gained)),
        )
    if before.get(Privilege.MANAGE) != access.NEVER:
        raise PermissionDenied(
            "'{actor}' manages '{row}' for a limited time, so they may not move it to '{new}'",
            actor=actor.name,
            row=row.identifier,
            new=new.identifier,
        )


def require_rules_kept(row: Namespace | Table, old: int, new: Namespace) -> None:
    """Require that the new namespace requires at least the approvals of ``old``. Raises PermissionDenied."""
    by_namespace = rules([old, new.pk])
    lost_rules = set(by_namespace[old].guarded) - set(by_namespace[new.pk].guarded)
    if lost_rules:
        source = by_namespace[old].guarded[min(lost_rules)]
        raise PermissionDenied(
            "'{row}' may not be moved to '{new}': what takes a second person in '{source}' does"
            " not there",
            row=row.identifier,
            new=new.identifier,
            source=source,
        )


def require_rules_kept_at(
    directories: Collection[str], namespace: Namespace, *, pk: int, is_location: bool
) -> None:
    """The same of the tables whose files a table of the namespace gets with directories.

    Those are dropped tables at or above a directory, and tables that have a directory of their own at or above
    it; around a location, also those inside, as a purge may remove everything there. ``pk`` is the table itself.
    """
    above = {parent for path in directories for parent in (path, *locations.parents(path))}
    holding = Q(location__in=above, state=TableState.DROPPED)
    has_directory = Q(path__in=above)
    if is_location:
        for directory in directories:
            has_directory |= Q(path__startswith=directory + "/")
    holding |= Q(pk__in=IcebergPath.objects.filter(has_directory).values("table"))
    purged = Job.objects.complete_purges().filter(table=OuterRef("pk"))
    others = Table.objects.filter(holding).exclude(pk=pk).exclude(namespace=namespace)
    with_files = others.exclude(Exists(purged), state=TableState.DROPPED)
    for row in with_files.order_by("namespace").distinct("namespace"):
        require_rules_kept(row, row.namespace_id, namespace)


def require_unprotected(rows: Iterable[Namespace | Table]) -> None:
    """Require that none of the rows is protected; tables need their namespaces loaded.

    Raises Protected, which names all protected rows.
    """
    protected = [
        ("namespace" if isinstance(row, Namespace) else row.kind, row.identifier)
        for row in rows
        if row.is_protected
    ]
    if protected:
        raise Protected(protected)


# --- dropping -----------------------------------------------------------------------------


def build_table_items(
    rows: Sequence[Table],
    transaction: NewTransaction,
    now: datetime,
    jobs: Mapping[int, Job],
    times: Mapping[int, datetime | None],
) -> list[TrashItem]:
    """Return unsaved trash rows for tables and views that are about to be dropped.

    ``jobs`` are the purge jobs and ``times`` the purge times, by the table's primary key; None
    means at once.
    """
    materialized = [row.pk for row in rows if row.is_materialized]
    views = {
        view.table_id: view
        for view in (
            MaterializedView.objects.filter(table__in=materialized) if materialized else ()
        )
    }
    items = []
    for row in rows:
        content: dict[str, Any] = {"state": row.state}
        if row.pk in views:
            content["materialized_view"] = _as_content(views[row.pk])
        purge_at = times[row.pk]
        if row.kind == TableKind.VIEW and purge_at is None:
            continue  # a view has no files, so nothing of it remains
        item = TrashItem(
            table=row,
            job=jobs.get(row.pk),
            transaction_id=transaction.id,
            dropped_by=transaction.actor,
            dropped_at=now,
            purge_at=now if purge_at is None else purge_at,
            content=content,
        )
        if row.pk not in jobs and row.kind == TableKind.TABLE:
            item.purge_at = None
        items.append(item)
    return items


def build_namespace_items(
    rows: Sequence[Namespace],
    transaction: NewTransaction,
    now: datetime,
    purge_at: datetime | None,
    functions: Mapping[int, Sequence[Mapping[str, Any]]],
) -> list[TrashItem]:
    """Return unsaved trash rows for namespaces with their functions; none without a retention."""
    if purge_at is None:
        return []
    return [
        TrashItem(
            namespace=row,
            transaction_id=transaction.id,
            dropped_by=transaction.actor,
            dropped_at=now,
            purge_at=purge_at,
            content={"functions": list(functions.get(row.pk, ()))},
        )
        for row in rows
    ]


_OF_VIEW = (
    *("source_id", "definition", "source_query", "source_version", "auto_refresh"),
    "error",
)
_MOMENTS_OF_VIEW = ("refreshed_at", "failed_at", "created_at")


def _as_content(view: MaterializedView) -> dict[str, Any]:
    moments = {name: getattr(view, name) for name in _MOMENTS_OF_VIEW}
    return {name: getattr(view, name) for name in _OF_VIEW} | {
        name: None if moment is None else moment.isoformat() for name, moment in moments.items()
    }


def restore_view(table: Table, content: Mapping[str, Any]) -> MaterializedView:
    """Return the unsaved materialized view of a dropped table."""
    moments = {
        name: None if content[name] is None else datetime.fromisoformat(content[name])
        for name in _MOMENTS_OF_VIEW
    }
    return MaterializedView(table=table, **{name: content[name] for name in _OF_VIEW}, **moments)


def function_content(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "metadata": function.metadata,
        "owner": function.owner,
        "created_at": function.created_at.isoformat(),
    }


def restore_functions(namespace: Namespace, content: Mapping[str, Any]) -> list[Function]:
    """Return the unsaved functions of a dropped namespace."""
    return [
        Function(
            namespace=namespace,
            name=saved["name"],
            metadata=saved["metadata"],
            owner=saved["owner"],
            created_at=datetime.fromisoformat(saved["created_at"]),
        )
        for saved in content.get("functions", ())
    ]


# --- contents -----------------------------------------------------------------------------


def find(pk: int) -> TrashItem:
    """Return the current trash item of this primary key. Raises TrashItemNotFound."""
    item = (
        TrashItem.objects.held()
        .select_related("namespace", "table__namespace", "job", "transaction")
        .filter(pk=pk)
        .first()
    )
    if item is None:
        raise TrashItemNotFound(pk)
    return item


def containing_namespace(item: TrashItem) -> Namespace:
    """Return the dropped namespace, or the namespace of a dropped table.

    An actor who may manage this namespace may restore the item.
    """
    namespace = item.namespace if item.table is None else item.table.namespace
    if namespace is None:
        raise AssertionError("the database has a constraint for this")
    return namespace


def dropped_together(item: TrashItem) -> Q:
    """Return a filter for a namespace and all items in or below it of the same transaction."""
    if item.namespace is None:
        return Q(pk=item.pk)
    path = list(item.namespace.path)
    below = f"path__0_{len(path)}"
    return Q(transaction=item.transaction_id) & (
        Q(**{f"namespace__{below}": path}) | Q(**{f"table__namespace__{below}": path})
    )


def require_manage(actor: Principal, item: TrashItem) -> None:
    """Require MANAGE on a dropped object; ownership and grants at its old place still count.

    Raises PermissionDenied, and TrashItemNotFound if the actor may not browse there.
    """
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    held = _held_in(actor, containing_namespace(item), item.table)
    if not held:
        raise TrashItemNotFound(item.pk)
    if Privilege.MANAGE not in held:
        raise PermissionDenied(f"'{actor.name}' may not manage '{item}'")


def require_manage_in(actor: Principal, namespace: Namespace) -> None:
    """Require MANAGE on a dropped namespace above a restored object. Raises PermissionDenied."""
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    if Privilege.MANAGE not in _held_in(actor, namespace, None):
        raise PermissionDenied(f"'{actor.name}' may not manage '{namespace}'")


def _held_in(actor: Principal, namespace: Namespace, table: Table | None) -> Privilege:
    if actor.within is not None and actor.within not in namespace.ancestors:
        return NOTHING
    return actor.everywhere | _held(actor, namespace, table)


def _held(actor: Principal, namespace: Namespace, table: Table | None) -> Privilege:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT monodon_held(%s, %s, %s)",
            [list(actor.ids), list(actor.names), namespace.ancestors],
        )
        (mask,) = cursor.fetchone()
    held = Privilege(mask)
    if table is not None and table.owner in actor.names:
        held = Privilege.ALL
    elif table is not None:
        for grant in Grant.objects.valid().on(table).filter(principal__in=actor.ids):
            held |= grant.privileges
    return held & actor.ceiling
