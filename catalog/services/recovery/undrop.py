"""The trash: what is in it, bringing back, purging; protection, and the rules of namespaces."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import BigIntegerField, OuterRef, Q, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput, TableNotFound, TrashItemNotFound
from catalog.identifiers import Identifier, digest, label
from catalog.models import Job, JobStatus, Namespace, Table, TableHealth, TrashItem
from catalog.models.protection import TrashItemQuerySet
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.recovery import recovery_operations
from catalog.services.tables import namespaces, tables, trash
from catalog.services.tables.trash import Rules

PAGE_SIZE = 100
MAX_PAGE = 1000
_FORGOTTEN_AT_ONCE = 1000
# A purge that is over is shown no more; its row stays for a while, to tell who asks for it.
_PURGED_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """What a namespace says, and what holds there."""

    namespace: Namespace
    rules: Rules


# --- what is in the trash ------------------------------------------------------------------------


def list_trash(
    *,
    actor: Principal,
    namespace: Identifier | None = None,
    dropped_by: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[TrashItem], str | None]:
    """A page of what was dropped, the newest first, and the token of the next. One statement.

    ``namespace``: what was in it, or below it, or it itself. Each row tells its ``size`` in bytes
    when it was last measured, or None. Raises InvalidInput.
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
    """What is in the trash under this number, with its ``size``. Raises TrashItemNotFound."""
    row = visible(actor).filter(pk=item).first()
    if row is None:
        raise TrashItemNotFound(item)
    return row


def last_dropped(*, actor: Principal, name: Identifier, is_namespace: bool = False) -> TrashItem:
    """What bore this name and was dropped last. Raises TrashItemNotFound."""
    what = {"namespace__digest" if is_namespace else "table__digest": digest(name)}
    row = visible(actor).filter(**what).order_by("-pk").first()
    if row is None:
        raise TrashItemNotFound(label(name))
    return row


def visible(actor: Principal) -> TrashItemQuerySet:
    """What is in the trash and the actor may browse where it was, with its ``size``."""
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


def contents(*, actor: Principal, item: int) -> tuple[TrashItem, int, int]:
    """What would come back with a namespace: its row, and how many namespaces and tables.

    Raises TrashItemNotFound.
    """
    row = find_item(actor=actor, item=item)
    found = TrashItem.objects.filter(trash.with_it(row))
    of_namespaces = found.filter(namespace__isnull=False).count()
    return row, of_namespaces, found.filter(table__isnull=False).count()


# --- what changes --------------------------------------------------------------------------------


def undrop(
    *,
    actor: Principal,
    item: int,
    new: Identifier | None = None,
    with_parents: bool = False,
    without_purged: bool = False,
) -> Namespace | Table:
    """Bring back a table, a view, or a namespace with all that was dropped with it; returns its row.

    ``new`` is another name. Raises TrashItemNotFound, PermissionDenied, NotRecoverable once the purge
    has begun, NamespaceNotFound where what it was in is gone, what tells that its name is taken, and
    LocationTaken.
    """
    found = find_item(actor=actor, item=item)
    trash.require_manage(actor, found)
    operation: recovery_operations.UndropTable | recovery_operations.UndropNamespace
    if found.table is None:
        operation = recovery_operations.UndropNamespace(
            item=item, new=new, with_parents=with_parents, without_purged=without_purged
        )
    else:
        operation = recovery_operations.UndropTable(item=item, new=new, with_parents=with_parents)
    row: Namespace | Table = commit([operation], actor=actor).results[0]
    return row


def purge_now(*, actor: Principal, item: int, reason: str = "") -> list[Job]:
    """Purge before its time, in MONODON_PURGE_GRACE_SECONDS; returns the jobs.

    Raises TrashItemNotFound, PermissionDenied, InvalidTableState when it is being purged already, and
    ApprovalRequired.
    """
    find_item(actor=actor, item=item)
    jobs: list[Job] = commit(
        [recovery_operations.PurgeNow(item=item, reason=reason)], actor=actor
    ).results[0]
    return jobs


def keep(*, actor: Principal, item: int) -> TrashItem:
    """Stop a purge that has not begun: it is kept until somebody purges it; returns its row.

    Raises TrashItemNotFound, PermissionDenied, InvalidTableState once it has begun.
    """
    find_item(actor=actor, item=item)
    commit([recovery_operations.StopPurge(item=item)], actor=actor)
    return find_item(actor=actor, item=item)


def forget() -> int:
    """Forget views and namespaces whose time is over, and tables that are purged; returns how many."""
    now = timezone.now()
    is_over = Q(purge_at__lt=now, job=None) | Q(
        job__status=JobStatus.SUCCEEDED, job__finished_at__lt=now - _PURGED_FOR
    )
    over = TrashItem.objects.filter(is_over).values_list("pk", flat=True)
    gone, _ = TrashItem.objects.filter(pk__in=list(over[:_FORGOTTEN_AT_ONCE])).delete()
    return gone


# --- protection and rules ------------------------------------------------------------------------


def set_table_protection(*, actor: Principal, table: Identifier, is_protected: bool) -> Table:
    """Protect a table or view, or take its protection off; returns its row. Raises TableNotFound."""
    operation = recovery_operations.SetProtection(
        identifier=table, is_namespace=False, is_protected=is_protected
    )
    row: Table = commit([operation], actor=actor).results[0]
    return row


def set_namespace_protection(
    *, actor: Principal, namespace: Identifier, is_protected: bool, reason: str = ""
) -> Namespace:
    """The same for a namespace. Raises NamespaceNotFound, and ApprovalRequired."""
    operation = recovery_operations.SetProtection(
        identifier=namespace, is_namespace=True, is_protected=is_protected, reason=reason
    )
    row: Namespace = commit([operation], actor=actor).results[0]
    return row


def table_protection(*, actor: Principal, table: Identifier) -> Table:
    """The row of a table or view. Raises NamespaceNotFound, TableNotFound."""
    access.require(actor, Privilege.BROWSE, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        tables.require_namespace(table[:-1])
        raise TableNotFound(table)
    return row


def rules_of(*, actor: Principal, namespace: Identifier) -> NamespaceRules:
    """What a namespace says of retention and approvals, and what holds. Raises NamespaceNotFound."""
    row = namespaces.describe_namespace(actor=actor, namespace=namespace)
    return NamespaceRules(row, trash.rules([row.pk])[row.pk])


def set_retention(
    *, actor: Principal, namespace: Identifier, seconds: int | None
) -> NamespaceRules:
    """Say how long what is dropped there can be brought back; None: as above it; 0: not at all.

    Raises NamespaceNotFound, InvalidInput.
    """
    commit([recovery_operations.SetRetention(namespace=namespace, seconds=seconds)], actor=actor)
    return rules_of(actor=actor, namespace=namespace)


def set_approval_rule(
    *, actor: Principal, namespace: Identifier, actions: list[str], reason: str = ""
) -> NamespaceRules:
    """Say what needs a second person there and below (GuardedAction).

    Raises NamespaceNotFound, InvalidInput, and ApprovalRequired when it asks for less than before.
    """
    operation = recovery_operations.SetApprovalRule(
        namespace=namespace, actions=actions, reason=reason
    )
    commit([operation], actor=actor)
    return rules_of(actor=actor, namespace=namespace)
