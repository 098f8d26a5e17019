"""What a drop leaves behind: rows by which it can be undone, until its time is over.

    dropped, to be purged      a row here, and a queued job that no worker takes before ``purge_at``
    dropped, files stay        a row here that has no end
    views, namespaces          a row here that is forgotten after ``purge_at``: they have no files

Nothing here takes a lock or opens a transaction: the operations that drop have the rows locked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Q

from catalog import access
from catalog.access import Principal
from catalog.errors import PermissionDenied, Protected, TrashItemNotFound
from catalog.identifiers import Identifier, label
from catalog.models import (
    Function,
    Grant,
    GuardedAction,
    Job,
    MaterializedView,
    Namespace,
    Table,
    TableKind,
    Transaction,
    TrashItem,
)
from catalog.privileges import NOTHING, Privilege, essence

GUARDED_SECONDS = 86_400
"""Where a purge needs a second person, what is dropped stays for this long at least: else a short
retention would be a way around."""
MAX_SECONDS = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in a namespace, and where it is said; nothing is said by the installation."""

    retention_seconds: int
    retention_source: str = ""
    guarded: Mapping[GuardedAction, Identifier] = field(default_factory=dict)
    """Each action that needs a second person, and the highest namespace that says so."""

    @property
    def seconds(self) -> int:
        """How long what is dropped stays; 0: it is purged at once."""
        if GuardedAction.PURGE in self.guarded:
            return max(self.retention_seconds, GUARDED_SECONDS)
        return self.retention_seconds

    def purge_at(self, now: datetime) -> datetime | None:
        """When something that is dropped now is purged at the earliest; None: at once.

        The time in which a purge can still be stopped comes on top of the retention.
        """
        if not self.seconds:
            return None
        return now + timedelta(seconds=self.seconds + settings.MONODON_PURGE_GRACE_SECONDS)


_SAID = """
    SELECT n.id, above.path, above.retention_seconds, above.guarded
    FROM catalog_namespace n JOIN catalog_namespace above ON above.id = ANY(n.ancestors)
    WHERE n.id = ANY(%s) AND (above.retention_seconds IS NOT NULL OR above.guarded <> '{}')
    ORDER BY n.id, cardinality(above.path)
"""


def rules(namespaces: Collection[int]) -> dict[int, Rules]:
    """What holds in namespaces, by primary key, dropped ones too. One statement."""
    found = {pk: Rules(settings.MONODON_TRASH_SECONDS) for pk in namespaces}
    with connection.cursor() as cursor:
        cursor.execute(_SAID, [list(found)])
        for pk, path, seconds, guarded in cursor.fetchall():
            before = found[pk]
            found[pk] = Rules(
                before.retention_seconds if seconds is None else seconds,
                before.retention_source if seconds is None else label(path),
                {**{GuardedAction(one): tuple(path) for one in guarded}, **before.guarded},
            )
    return found


def require_movable(actor: Principal, row: Namespace | Table, old: int, new: Namespace) -> None:
    """Refuse a move by which something leaves a rule that asks for a second person, or by which who
    moves it may do more with it than before: else a move would be the way around both.

    ``old`` is the namespace that it comes from. Raises PermissionDenied.
    """
    if new.pk == old:
        return
    both = rules([old, new.pk])
    left = set(both[old].guarded) - set(both[new.pk].guarded)
    if left:
        source = both[old].guarded[min(left)]
        raise PermissionDenied(
            "'{row}' may not be moved to '{new}': what takes a second person in '{source}' does"
            " not there",
            row=row.identifier,
            new=new.identifier,
            source=source,
        )
    if actor.holds_everywhere(Privilege.ALL):
        return
    gained = access.held_on(actor, new) & ~access.held_on(actor, row)
    if gained:
        raise PermissionDenied(
            "'{actor}' may not move '{row}' to '{new}', where they would hold more on it: {gained}",
            actor=actor.name,
            row=row.identifier,
            new=new.identifier,
            gained=", ".join(essence(gained)),
        )


def require_unprotected(things: Iterable[Namespace | Table]) -> None:
    """Raises Protected, naming all that is; tables need their namespaces loaded."""
    found = [
        ("namespace" if isinstance(one, Namespace) else one.kind, one.identifier)
        for one in things
        if one.is_protected
    ]
    if found:
        raise Protected(found)


# --- throwing away -----------------------------------------------------------------------------


def throw_tables(
    rows: Sequence[Table],
    transaction: Transaction,
    now: datetime,
    jobs: Mapping[int, Job],
    times: Mapping[int, datetime | None],
) -> list[TrashItem]:
    """Rows for tables and views that are about to be marked dropped, to be inserted.

    ``jobs`` are those that purge, by the table's primary key, and ``times`` when tables and views are
    to go: at once, where None.
    """
    views = {
        view.table_id: view
        for view in MaterializedView.objects.filter(
            table__in=[row.pk for row in rows if row.is_materialized]
        )
    }
    items = []
    for row in rows:
        content: dict[str, Any] = {"state": row.state}
        if row.pk in views:
            content["materialized_view"] = _as_content(views[row.pk])
        purge_at = times[row.pk]
        if row.kind == TableKind.VIEW and purge_at is None:
            continue  # it has no files, so it is gone
        item = TrashItem(
            table=row,
            job=jobs.get(row.pk),
            transaction=transaction,
            dropped_by=transaction.actor,
            dropped_at=now,
            purge_at=now if purge_at is None else purge_at,
            content=content,
        )
        if row.pk not in jobs and row.kind == TableKind.TABLE:
            item.purge_at = None
        items.append(item)
    return items


def throw_namespaces(
    rows: Sequence[Namespace],
    transaction: Transaction,
    now: datetime,
    purge_at: datetime | None,
    functions: Mapping[int, Sequence[Mapping[str, Any]]],
) -> list[TrashItem]:
    """The same for namespaces, with the functions that they held; none where they go at once."""
    if purge_at is None:
        return []
    return [
        TrashItem(
            namespace=row,
            transaction=transaction,
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


def view_of(table: Table, content: Mapping[str, Any]) -> MaterializedView:
    """The materialized view that a dropped table was."""
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


def functions_of(namespace: Namespace, content: Mapping[str, Any]) -> list[Function]:
    """The functions that a dropped namespace held."""
    return [
        Function(
            namespace=namespace,
            name=one["name"],
            metadata=one["metadata"],
            owner=one["owner"],
            created_at=datetime.fromisoformat(one["created_at"]),
        )
        for one in content.get("functions", ())
    ]


# --- what is in it -----------------------------------------------------------------------------


def find(pk: int) -> TrashItem:
    """What is in the trash under this number, as it is now. Raises TrashItemNotFound."""
    item = (
        TrashItem.objects.held()
        .select_related("namespace", "table__namespace", "job", "transaction")
        .filter(pk=pk)
        .first()
    )
    if item is None:
        raise TrashItemNotFound(pk)
    return item


def place(item: TrashItem) -> Namespace:
    """The namespace itself, or that of a table: who managed that may bring it back."""
    found = item.namespace if item.table is None else item.table.namespace
    if found is None:
        raise AssertionError("the database has a constraint for this")
    return found


def with_it(item: TrashItem) -> Q:
    """What was dropped in the same transaction as a namespace, at it or below it."""
    if item.namespace is None:
        return Q(pk=item.pk)
    path = list(item.namespace.path)
    below = f"path__0_{len(path)}"
    return Q(transaction=item.transaction_id) & (
        Q(**{f"namespace__{below}": path}) | Q(**{f"table__namespace__{below}": path})
    )


def require_manage(actor: Principal, item: TrashItem) -> None:
    """Let pass who may manage it where it was: what they own and are granted there counts still.

    Raises TrashItemNotFound for who may not even browse there, and PermissionDenied.
    """
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    held = _held_in(actor, place(item), item.table)
    if not held:
        raise TrashItemNotFound(item.pk)
    if Privilege.MANAGE not in held:
        raise PermissionDenied(f"'{actor.name}' may not manage '{item}'")


def require_manage_in(actor: Principal, namespace: Namespace) -> None:
    """The same of a dropped namespace that leads to what is asked for. Raises PermissionDenied."""
    if actor.holds_everywhere(Privilege.MANAGE):
        return
    if Privilege.MANAGE not in _held_in(actor, namespace, None):
        raise PermissionDenied(f"'{actor.name}' may not manage '{namespace}'")


def may_manage(actor: Principal, table: Table) -> bool:
    """Whether the actor may manage a dropped table, where it was, as ``require_manage`` asks."""
    if actor.holds_everywhere(Privilege.MANAGE):
        return True
    return Privilege.MANAGE in _held_in(actor, table.namespace, table)


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
        for grant in Grant.objects.on(table).filter(principal__in=actor.ids):
            held |= grant.privileges
    return held & actor.ceiling
