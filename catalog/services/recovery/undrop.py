"""List, restore and purge the trash; protect objects; set retention and approval rules."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import BigIntegerField, OuterRef, Q, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput, TableNotFound, TrashItemNotFound
from catalog.identifiers import Identifier, digest, label
from catalog.models import Job, JobStatus, Namespace, Table, TableHealth, TrashItem
from catalog.models.protection import TrashItemQuerySet
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.engine.database_clock import database_now
from catalog.services.recovery import purge_operations, rule_operations, undrop_operations
from catalog.services.tables import namespaces, tables, trash
from catalog.services.tables.trash import Rules

PAGE_SIZE = 100
MAX_PAGE = 1000
_DELETED_AT_ONCE = 1000
# A finished purge is no longer listed; its row stays for a while for requests by its number.
_PURGED_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """A namespace with its own rules, and the rules in effect there."""

    namespace: Namespace
    rules: Rules


# --- contents of the trash ------------------------------------------------------------------------


def list_trash(
    *,
    actor: Principal,
    namespace: Identifier | None = None,
    dropped_by: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[TrashItem], str | None]:
    """Return a page of dropped objects, newest first, and the token of the next. One statement.

    ``namespace`` selects this namespace and the objects in it or below it. Each row has its last
    measured ``size`` in bytes, or None. Raises InvalidInput.
    """
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = visible(actor)
    if namespace:
        below = f"path__0_{len(namespace)}"
        path = list(namespace)
        rows = rows.filter(
            Q(**{f"namespace__{below}": path}) | Q(**{f"table__namespace__{below}": path})
        )
    if dropped_by:
        rows = rows.filter(dropped_by=dropped_by)
    if page_token:
        if not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
            raise InvalidInput(f"Page token {page_token!r} is not one of this list")
        rows = rows.filter(pk__lt=int(page_token))
    page = list(rows.order_by("-pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def find_item(*, actor: Principal, item: int) -> TrashItem:
    """Return the trash item of this primary key, with its ``size``. Raises TrashItemNotFound."""
    row = visible(actor).filter(pk=item).first()
    if row is None:
        raise TrashItemNotFound(item)
    return row


def last_dropped(*, actor: Principal, name: Identifier, is_namespace: bool = False) -> TrashItem:
    """Return the most recently dropped object of this name. Raises TrashItemNotFound."""
    lookup = {"namespace__digest" if is_namespace else "table__digest": digest(name)}
    row = visible(actor).filter(**lookup).order_by("-pk").first()
    if row is None:
        raise TrashItemNotFound(label(name))
    return row


def visible(actor: Principal) -> TrashItemQuerySet:
    """Return the trash items that the actor may browse at their old place, with their ``size``."""
    rows = TrashItem.objects.held().select_related(
        "namespace", "table__namespace", "job", "transaction"
    )
    if not actor.holds_everywhere(Privilege.BROWSE):
        of_table = access.visible_tables(actor, "table__")
        owned = Q(table__namespace__owner__in=actor.names) | Q(namespace__owner__in=actor.names)
        of_namespace = access.visible_namespaces(actor, "namespace__")
        if actor.within is not None:
            owned &= Q(table__namespace__ancestors__contains=[actor.within]) | Q(
                namespace__ancestors__contains=[actor.within]
            )
        rows = rows.filter(
            Q(of_table, table__isnull=False) | Q(of_namespace, namespace__isnull=False) | owned
        )
    measured = TableHealth.objects.newest().filter(table=OuterRef("table"))
    size = Cast(KT("statistics__bytes"), BigIntegerField())
    return rows.annotate(size=Subquery(measured.annotate(size=size).values("size")[:1]))


def count_contents(*, actor: Principal, item: int) -> tuple[TrashItem, int, int]:
    """Return a trash item and the numbers of namespaces and tables that undrop would restore.

    Raises TrashItemNotFound.
    """
    row = find_item(actor=actor, item=item)
    items = TrashItem.objects.filter(trash.dropped_together(row))
    namespace_count = items.filter(namespace__isnull=False).count()
    return row, namespace_count, items.filter(table__isnull=False).count()


# --- changes --------------------------------------------------------------------------------


def undrop(
    *,
    actor: Principal,
    item: int,
    new: Identifier | None = None,
    with_parents: bool = False,
    without_purged: bool = False,
) -> Namespace | Table:
    """Restore a table, a view, or a namespace with everything dropped with it; return its row.

    ``new`` is another name. Raises TrashItemNotFound, PermissionDenied, NotRecoverable once the
    purge has begun, NamespaceNotFound if its namespace no longer exists, LocationTaken, and the
    error of its kind if the name is taken.
    """
    trash_item = find_item(actor=actor, item=item)
    trash.require_manage(actor, trash_item)
    operation: undrop_operations.UndropTable | undrop_operations.UndropNamespace
    if trash_item.table is None:
        operation = undrop_operations.UndropNamespace(
            item=item, new=new, with_parents=with_parents, without_purged=without_purged
        )
    else:
        operation = undrop_operations.UndropTable(item=item, new=new, with_parents=with_parents)
    row: Namespace | Table = commit([operation], actor=actor).results[0]
    return row


def purge_now(*, actor: Principal, item: int, reason: str = "") -> list[Job]:
    """Purge an item early, after MONODON_PURGE_GRACE_SECONDS; return the jobs.

    Raises TrashItemNotFound, PermissionDenied, InvalidTableState if a purge is already running, and
    ApprovalRequired.
    """
    find_item(actor=actor, item=item)
    jobs: list[Job] = commit(
        [purge_operations.PurgeNow(item=item, reason=reason)], actor=actor
    ).results[0]
    return jobs


def stop_purge(*, actor: Principal, item: int) -> TrashItem:
    """Stop a purge that has not begun and return its row; the item stays until it is purged.

    Raises TrashItemNotFound, PermissionDenied, InvalidTableState once it has begun.
    """
    find_item(actor=actor, item=item)
    commit([purge_operations.StopPurge(item=item)], actor=actor)
    return find_item(actor=actor, item=item)


def delete_expired_items() -> int:
    """Delete expired views and namespaces, and purged tables; return the number of items."""
    # The database's time: with a worker's clock that is fast, items would be purged too early.
    now = database_now()
    is_expired = Q(purge_at__lt=now, job=None) | Q(
        job__status=JobStatus.SUCCEEDED, job__finished_at__lt=now - _PURGED_FOR
    )
    expired = TrashItem.objects.filter(is_expired).values_list("pk", flat=True)
    deleted, _ = TrashItem.objects.filter(pk__in=list(expired[:_DELETED_AT_ONCE])).delete()
    return deleted


# --- protection and rules ------------------------------------------------------------------------


def set_table_protection(*, actor: Principal, table: Identifier, is_protected: bool) -> Table:
    """Protect or unprotect a table or view; return its row. Raises TableNotFound."""
    operation = rule_operations.SetProtection(
        identifier=table, is_namespace=False, is_protected=is_protected
    )
    row: Table = commit([operation], actor=actor).results[0]
    return row


def set_namespace_protection(
    *, actor: Principal, namespace: Identifier, is_protected: bool, reason: str = ""
) -> Namespace:
    """Protect or unprotect a namespace; return its row.

    Raises NamespaceNotFound, and ApprovalRequired.
    """
    operation = rule_operations.SetProtection(
        identifier=namespace, is_namespace=True, is_protected=is_protected, reason=reason
    )
    row: Namespace = commit([operation], actor=actor).results[0]
    return row


def table_protection(*, actor: Principal, table: Identifier) -> Table:
    """Return the row of a table or view. Raises NamespaceNotFound, TableNotFound."""
    access.require(actor, Privilege.BROWSE, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        tables.require_namespace(table[:-1])
        raise TableNotFound(table)
    return row


def rules_of(*, actor: Principal, namespace: Identifier) -> NamespaceRules:
    """Return a namespace's own and effective rules of retention and approval.

    Raises NamespaceNotFound.
    """
    row = namespaces.describe_namespace(actor=actor, namespace=namespace)
    return NamespaceRules(row, trash.rules([row.pk])[row.pk])


def set_retention(
    *, actor: Principal, namespace: Identifier, seconds: int | None
) -> NamespaceRules:
    """Set the retention of dropped objects; None inherits it from above, 0 disables recovery.

    Raises NamespaceNotFound, InvalidInput.
    """
    commit([rule_operations.SetRetention(namespace=namespace, seconds=seconds)], actor=actor)
    return rules_of(actor=actor, namespace=namespace)


def set_approval_rule(
    *, actor: Principal, namespace: Identifier, actions: list[str], reason: str = ""
) -> NamespaceRules:
    """Set the actions that need an approval in a namespace and below (GuardedAction).

    Raises NamespaceNotFound, InvalidInput, and ApprovalRequired when the rule becomes weaker.
    """
    operation = rule_operations.SetApprovalRule(namespace=namespace, actions=actions, reason=reason)
    commit([operation], actor=actor)
    return rules_of(actor=actor, namespace=namespace)
