"""Grants: setting them, explaining the resulting privileges, and previewing a change.

set_grant      replace a principal's grant on a namespace or table
list_grants    the direct grants on a namespace or table
explain        the principals that hold privileges on it, with every source of each privilege
what_if        the privileges that a change of a grant would revoke: applied and rolled back
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import On
from catalog.errors import NamespaceNotFound, PermissionDenied, TableNotFound, ViewNotFound
from catalog.identifiers import label
from catalog.models import ApiKey, Grant, Namespace, Principal, PrincipalKind, PrincipalLevel, Table
from catalog.privileges import NOTHING, READ_ONLY, Privilege, closure
from catalog.services.access import grant_operations, similar_names
from catalog.services.access.grant_operations import GrantChange
from catalog.services.access.grant_reports import Holder, KeyLimit, Loss, Source
from catalog.services.access.pages import page_of
from catalog.services.engine.commit import commit

PAGE_SIZE = 100
MAX_PAGE = 1_000


# --- setting and listing -------------------------------------------------------------------------


def set_grant(
    *,
    actor: access.Principal,
    on: On,
    principal: str,
    privileges: Privilege,
    expires_at: datetime | None = None,
) -> GrantChange:
    """Replace a principal's grant by these privileges and those that they include.

    Without privileges the grant is revoked. From ``expires_at`` on it permits nothing. Raises
    NamespaceNotFound, TableNotFound, PrincipalNotFound, InvalidInput for an end in the past, and
    PermissionDenied for an actor that lacks GRANT or a privilege that would change.
    """
    operation = grant_operations.SetGrant(
        on=on, principal=principal, privileges=privileges, expires_at=expires_at
    )
    change: GrantChange = commit([operation], actor=actor).results[0]
    return change


def list_grants(
    *,
    actor: access.Principal,
    on: On,
    principal: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Grant], str | None]:
    """A page of the direct grants, by the principals' names; with ``principal``, only its own.

    Requires GRANT or MANAGE. Raises NamespaceNotFound, TableNotFound, PermissionDenied.
    """
    scope = _scope(actor, on)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = Grant.objects.valid().on(scope.row).filter(principal__name__gt=page_token or "")
    if principal is not None:
        rows = rows.filter(principal__name=principal)
    page, last = page_of(rows.select_related("principal").order_by("principal__name"), size)
    return page, last.principal.name if last else None


# --- explaining privileges -----------------------------------------------------------------------


class _Scope(NamedTuple):
    """A namespace or a table, with all namespaces from the root down to it."""

    row: Namespace | Table
    above: list[Namespace]

    @property
    def table(self) -> Table | None:
        return self.row if isinstance(self.row, Table) else None

    @property
    def owned(self) -> list[Namespace | Table]:
        """The rows whose owners hold all privileges here."""
        return [*self.above, self.row] if self.table is not None else [*self.above]

    @property
    def granted(self) -> Q:
        """The condition for the grants that apply here."""
        return Q(namespace__in=self.above) | Q(table=self.table, table__isnull=False)


def explain(
    *,
    actor: access.Principal,
    on: On,
    principal: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Holder], str | None]:
    """The principals with privileges on a namespace or table and their sources, a page by name.

    With ``principal`` only that one. Requires GRANT or MANAGE; BROWSE is sufficient for the actor's
    own privileges. Raises NamespaceNotFound, TableNotFound, PermissionDenied, PrincipalNotFound. A
    fixed number of statements.

    Only administrators see who is in a group. For others, groups are principals of their own, and the
    privileges that another principal holds through a group are left out.
    """
    scope = _scope(actor, on, own=principal is not None and principal == actor.name)
    rows = Principal.objects.select_related("user").order_by("name")
    if principal is not None:
        selected = list(rows.filter(name=principal.replace("\x00", "")))
        if not selected:
            raise similar_names.not_found(principal)
        return _holders(actor, scope, selected), None
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    direct = _direct_holders(scope)
    through = Q(groups__in=direct.filter(kind=PrincipalKind.GROUP, is_active=True))
    if not _sees_all_groups(actor):
        through &= Q(name=actor.name)
    holders = Principal.objects.filter(Q(pk__in=direct) | through).values("pk")
    page, last = page_of(rows.filter(pk__in=holders, name__gt=page_token or ""), size)
    return _holders(actor, scope, page), last.name if last else None


def _direct_holders(scope: _Scope) -> QuerySet[Principal, Principal]:
    """The principals that hold privileges here themselves, not through a group."""
    owners = {row.owner for row in scope.owned if row.owner}
    return Principal.objects.filter(
        Q(pk__in=Grant.objects.valid().filter(scope.granted).values("principal"))
        | Q(name__in=owners)
        | ~Q(level=PrincipalLevel.GRANTED)
        | Q(user__is_superuser=True)
    )


def _scope(actor: access.Principal, on: On, *, own: bool = False) -> _Scope:
    """The rows that determine the privileges, if the actor may see them.

    Raises the exceptions of ``explain``.
    """
    if not actor.holds_everywhere(Privilege.MANAGE):
        held = access.held_on(actor, on)
        required = Privilege.BROWSE if own else Privilege.GRANT | Privilege.MANAGE
        if not held & required:
            raise PermissionDenied(
                f"'{actor.name}' may not see the privileges on '{label(on.identifier)}'"
            )
    paths = [on.namespace_path[:depth] for depth in range(len(on.namespace_path) + 1)]
    rows = Namespace.objects.named(*paths)
    above = sorted(rows, key=lambda row: len(row.path))
    if len(above) < len(paths):
        raise NamespaceNotFound(on.namespace_path)
    if not on.is_table:
        return _Scope(above[-1], above)
    table = Table.objects.named(on.identifier).first()
    if table is None:
        raise TableNotFound(on.identifier)
    table.namespace = above[-1]
    return _Scope(table, above)


def _holders(actor: access.Principal, scope: _Scope, rows: Collection[Principal]) -> list[Holder]:
    groups = _groups_of(row for row in rows if _sees_groups(actor, row))
    everybody = {row.pk: row for row in rows} | {
        group.pk: group for members_groups in groups.values() for group in members_groups
    }
    granted: dict[int, list[Grant]] = {}
    grants = Grant.objects.valid().filter(scope.granted, principal__in=everybody)
    for grant in grants.select_related("namespace", "table__namespace").order_by("pk"):
        granted.setdefault(grant.principal_id, []).append(grant)
    sees_all = actor.holds_everywhere(Privilege.MANAGE)
    moment = timezone.now()
    keys: dict[int, list[ApiKey]] = {}
    valid = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=moment), revoked_at=None)
    for key in valid.filter(principal__in=rows).select_related("namespace").order_by("name"):
        keys.setdefault(key.principal_id, []).append(key)
    holders = []
    for row in rows:
        sources = _sources(scope, row, "", granted)
        for group in groups.get(row.pk, []):
            sources += _sources(scope, group, group.name, granted)
        is_active = _is_active(row)
        held = NOTHING
        for source in sources:
            held |= source.privileges
        held = held if is_active else NOTHING
        limits = [_limit(scope, key, held) for key in keys.get(row.pk, [])]
        if row.name != actor.name and not sees_all:  # others may be limited to hidden namespaces
            limits = [limit for limit in limits if limit.privileges]
        holders.append(Holder(row, held, is_active, sources, limits))
    return holders


def _sees_all_groups(actor: access.Principal) -> bool:
    """True for those who may list the members of groups: whoever may grant could name any group."""
    return actor.holds_everywhere(Privilege.ALL)


def _sees_groups(actor: access.Principal, row: Principal) -> bool:
    return row.name == actor.name or _sees_all_groups(actor)


def _groups_of(rows: Iterable[Principal]) -> Mapping[int, list[Principal]]:
    groups: dict[int, list[Principal]] = {}
    memberships = Principal.groups.through.objects.filter(
        from_principal__in=[row.pk for row in rows], to_principal__is_active=True
    )
    related = memberships.select_related("to_principal__user").order_by("to_principal__name")
    for membership in related:
        groups.setdefault(membership.from_principal_id, []).append(membership.to_principal)
    return groups


def _is_active(row: Principal) -> bool:
    return row.is_active and (row.user is None or row.user.is_active)


def _sources(
    scope: _Scope, row: Principal, through: str, granted: Mapping[int, list[Grant]]
) -> list[Source]:
    sources = []
    if row.level == PrincipalLevel.ADMIN:
        sources.append(Source("level", Privilege.ALL, through=through))
    elif row.level == PrincipalLevel.READ:
        sources.append(Source("level", READ_ONLY, through=through))
    if not through and row.user is not None and row.user.is_superuser:
        sources.append(Source("superuser", Privilege.ALL))
    sources += [
        Source("owner", Privilege.ALL, str(owned), owned == scope.row, through)
        for owned in scope.owned
        if owned.owner == row.name
    ]
    sources += [
        Source(
            "grant",
            grant.privileges,
            str(grant.target),
            grant.target == scope.row,
            through,
            grant.expires_at,
        )
        for grant in granted.get(row.pk, [])
    ]
    return sources


def _limit(scope: _Scope, key: ApiKey, held: Privilege) -> KeyLimit:
    is_inside = key.namespace is None or key.namespace in scope.above
    return KeyLimit(
        name=key.name,
        privileges=held & key.ceiling if is_inside else NOTHING,
        scopes=key.ceiling,
        within=None if key.namespace is None else str(key.namespace),
    )


# --- previewing a change -------------------------------------------------------------------------


def what_if(
    *,
    actor: access.Principal,
    on: On,
    principal: str,
    privileges: Privilege = NOTHING,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Loss], str | None]:
    """The losses if a principal's grant were replaced by these privileges, a page by name.

    For a group, those of each member, which only administrators see; for others, those of the group
    itself, and those of another principal without what it holds through groups. The grant is changed, the privileges are read, and the change
    is rolled back: nothing remains of it, and no other transaction sees it. Requires GRANT or MANAGE.
    Raises NamespaceNotFound, TableNotFound, PermissionDenied, PrincipalNotFound.
    """
    scope = _scope(actor, on)
    row = Principal.objects.filter(name=principal.replace("\x00", "")).first()
    if row is None:
        raise similar_names.not_found(principal)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    affected = Principal.objects.filter(Q(pk=row.pk) | Q(groups=row))
    if not _sees_all_groups(actor):
        affected = Principal.objects.filter(pk=row.pk)
    elif row.kind == PrincipalKind.GROUP:
        affected = Principal.objects.filter(groups=row)
    ordered = affected.filter(name__gt=page_token or "").select_related("user").order_by("name")
    rows, last = page_of(ordered, size)
    with transaction.atomic():
        before = [_view(actor, scope, holder) for holder in rows]
        grant = Grant.objects.on(scope.row).filter(principal=row)
        grant.delete()
        if privileges:
            namespace = None if scope.table is not None else scope.above[-1]
            mask = closure(privileges).value
            Grant.objects.create(principal=row, namespace=namespace, table=scope.table, mask=mask)
        after = [_view(actor, scope, holder) for holder in rows]
        transaction.set_rollback(True)
    return [
        Loss(
            holder,
            old.held,
            new.held,
            max(old.namespaces - new.namespaces, 0),
            max(old.tables - new.tables, 0),
        )
        for holder, old, new in zip(rows, before, after, strict=True)
    ], last.name if last else None


class _View(NamedTuple):
    held: Privilege
    namespaces: int
    tables: int


def _view(actor: access.Principal, scope: _Scope, row: Principal) -> _View:
    """The privileges of a principal here, and the number of objects that it sees in the catalog."""
    if not _is_active(row):
        return _View(NOTHING, 0, 0)
    holder = access.of_row(row, with_groups=_sees_groups(actor, row))
    try:
        held = access.held_on(holder, scope.row)
    except (NamespaceNotFound, TableNotFound, ViewNotFound):
        held = NOTHING
    if holder.holds_everywhere(Privilege.BROWSE):
        return _View(held, 0, 0)  # it sees everything before and after the change
    return _View(
        held,
        Namespace.objects.live().filter(access.visible_namespaces(holder)).count(),
        Table.objects.present().filter(access.visible_tables(holder)).count(),
    )
