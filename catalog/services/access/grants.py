"""Grants: setting them, who may do what and why, and what somebody would lose with one.

set_grant      exactly these privileges of one principal on one namespace or table
list_grants    what is granted on this very place
explain        who may do what here, with every source of it
what_if        who would lose what by a change of a grant: tried, and taken back
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import On
from catalog.errors import (
    NamespaceNotFound,
    PermissionDenied,
    PrincipalNotFound,
    TableNotFound,
    ViewNotFound,
)
from catalog.identifiers import label
from catalog.models import (
    ApiKey,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
)
from catalog.privileges import NOTHING, READ_ONLY, Privilege, closure
from catalog.services.access import grant_operations
from catalog.services.engine.commit import commit

PAGE_SIZE = 100
MAX_PAGE = 1_000

Because = Literal["level", "superuser", "owner", "grant"]


@dataclass(frozen=True, slots=True)
class Source:
    """One reason why somebody holds something."""

    because: Because
    privileges: Privilege
    on: str = ""
    """The namespace or table that is owned, or on which it is granted; a level is everywhere."""
    is_here: bool = False
    """Whether that is the very place that was asked about, and not one above it."""
    through: str = ""
    """The group that has it; empty: the principal itself."""

    def __str__(self) -> str:
        where = f" of {self.on}" if self.because == "owner" else f" on {self.on}" if self.on else ""
        return f"{self.because}{where}" + (f", through {self.through}" if self.through else "")


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """What may be done here with one of somebody's keys."""

    name: str
    privileges: Privilege
    scopes: Privilege
    """What the key lets through at most."""
    within: str | None
    """The namespace that it is for; None: everywhere."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a principal holds on a place, and why."""

    principal: Principal
    held: Privilege
    is_active: bool
    """Who is not active holds nothing, whatever the sources say."""
    sources: list[Source] = field(default_factory=list)
    keys: list[KeyLimit] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a principal would lose by a change of a grant, with all its other sources counted."""

    principal: Principal
    before: Privilege
    """What it holds on the place now."""
    after: Privilege
    namespaces: int
    """How many namespaces it would not see any more, here, below, and on the way here."""
    tables: int
    """The same for tables and views."""

    @property
    def lost(self) -> Privilege:
        return self.before & ~self.after


# --- setting and listing -------------------------------------------------------------------------


def set_grant(
    *, actor: access.Principal, on: On, principal: str, privileges: Privilege
) -> Privilege:
    """Let a principal have exactly these privileges, and what they include, by a grant here.

    Nothing removes the grant. Returns what is granted now. Raises NamespaceNotFound, TableNotFound,
    PrincipalNotFound, and PermissionDenied for who lacks GRANT, or a privilege that would change.
    """
    operation = grant_operations.SetGrant(on=on, principal=principal, privileges=privileges)
    granted: Privilege = commit([operation], actor=actor).results[0]
    return granted


def list_grants(
    *, actor: access.Principal, on: On, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Grant], str | None]:
    """A page of what is granted on this very place, by the principals' names.

    Needs GRANT or MANAGE. Raises NamespaceNotFound, TableNotFound, PermissionDenied.
    """
    place = _place(actor, on)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    rows = Grant.objects.on(place.row).filter(principal__name__gt=page_token or "")
    found = list(rows.select_related("principal").order_by("principal__name")[: size + 1])
    return found[:size], found[size - 1].principal.name if len(found) > size else None


# --- who may do what -----------------------------------------------------------------------------


class _Place(NamedTuple):
    """A namespace or a table, with all namespaces from the root down to it."""

    row: Namespace | Table
    above: list[Namespace]

    @property
    def table(self) -> Table | None:
        return self.row if isinstance(self.row, Table) else None

    @property
    def owned(self) -> list[Namespace | Table]:
        """All of which the owner holds everything here."""
        return [*self.above, self.row] if self.table is not None else [*self.above]

    @property
    def granted(self) -> Q:
        return Q(namespace__in=self.above) | Q(table=self.table, table__isnull=False)


def explain(
    *,
    actor: access.Principal,
    on: On,
    principal: str | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Holder], str | None]:
    """Who holds what on a namespace or a table and why, a page by name; or one principal's part.

    Needs GRANT or MANAGE there; what one holds oneself, everybody may ask who browses it. Raises
    NamespaceNotFound, TableNotFound, PermissionDenied, PrincipalNotFound. A fixed number of
    statements.
    """
    place = _place(actor, on, own=principal is not None and principal == actor.name)
    rows = Principal.objects.select_related("user").order_by("name")
    if principal is not None:
        found = list(rows.filter(name=principal.replace("\x00", "")))
        if not found:
            raise PrincipalNotFound(principal)
        return _holders(place, found), None
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    direct = _direct(place)
    through = Q(groups__in=direct.filter(kind=PrincipalKind.GROUP, is_active=True))
    concerned = Principal.objects.filter(Q(pk__in=direct) | through).values("pk")
    found = list(rows.filter(pk__in=concerned, name__gt=page_token or "")[: size + 1])
    following = found[size - 1].name if len(found) > size else None
    return _holders(place, found[:size]), following


def _direct(place: _Place) -> QuerySet[Principal, Principal]:
    """The principals that hold something on a place by themselves, not through a group."""
    owners = {row.owner for row in place.owned if row.owner}
    return Principal.objects.filter(
        Q(pk__in=Grant.objects.filter(place.granted).values("principal"))
        | Q(name__in=owners)
        | ~Q(level=PrincipalLevel.GRANTED)
        | Q(user__is_superuser=True)
    )


def _place(actor: access.Principal, on: On, *, own: bool = False) -> _Place:
    """The rows that decide, once the actor may know. Raises what ``explain`` raises."""
    if not actor.holds_everywhere(Privilege.MANAGE):
        held = access.held_on(actor, on)
        wanted = Privilege.BROWSE if own else Privilege.GRANT | Privilege.MANAGE
        if not held & wanted:
            raise PermissionDenied(
                f"'{actor.name}' may not see who may do what with '{label(on.identifier)}'"
            )
    paths = [on.namespace_path[:depth] for depth in range(len(on.namespace_path) + 1)]
    found = Namespace.objects.named(*paths)
    above = sorted(found, key=lambda row: len(row.path))
    if len(above) < len(paths):
        raise NamespaceNotFound(on.namespace_path)
    if not on.is_table:
        return _Place(above[-1], above)
    table = Table.objects.named(on.identifier).first()
    if table is None:
        raise TableNotFound(on.identifier)
    table.namespace = above[-1]
    return _Place(table, above)


def _holders(place: _Place, rows: Collection[Principal]) -> list[Holder]:
    groups = _groups_of(rows)
    everybody = {row.pk: row for row in rows} | {
        group.pk: group for found in groups.values() for group in found
    }
    granted: dict[int, list[Grant]] = {}
    grants = Grant.objects.filter(place.granted, principal__in=everybody)
    for grant in grants.select_related("namespace", "table__namespace").order_by("pk"):
        granted.setdefault(grant.principal_id, []).append(grant)
    moment = timezone.now()
    keys: dict[int, list[ApiKey]] = {}
    valid = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=moment), revoked_at=None)
    for key in valid.filter(principal__in=rows).select_related("namespace").order_by("name"):
        keys.setdefault(key.principal_id, []).append(key)
    found = []
    for row in rows:
        sources = _sources(place, row, "", granted)
        for group in groups.get(row.pk, []):
            sources += _sources(place, group, group.name, granted)
        is_active = _is_active(row)
        held = NOTHING
        for source in sources:
            held |= source.privileges
        held = held if is_active else NOTHING
        limits = [_limit(place, key, held) for key in keys.get(row.pk, [])]
        found.append(Holder(row, held, is_active, sources, limits))
    return found


def _groups_of(rows: Iterable[Principal]) -> Mapping[int, list[Principal]]:
    found: dict[int, list[Principal]] = {}
    membership = Principal.groups.through.objects.filter(
        from_principal__in=rows, to_principal__is_active=True
    )
    for each in membership.select_related("to_principal__user").order_by("to_principal__name"):
        found.setdefault(each.from_principal_id, []).append(each.to_principal)
    return found


def _is_active(row: Principal) -> bool:
    return row.is_active and (row.user is None or row.user.is_active)


def _sources(
    place: _Place, row: Principal, through: str, granted: Mapping[int, list[Grant]]
) -> list[Source]:
    found = []
    if row.level == PrincipalLevel.ADMIN:
        found.append(Source("level", Privilege.ALL, through=through))
    elif row.level == PrincipalLevel.READ:
        found.append(Source("level", READ_ONLY, through=through))
    if not through and row.user is not None and row.user.is_superuser:
        found.append(Source("superuser", Privilege.ALL))
    found += [
        Source("owner", Privilege.ALL, str(owned), owned == place.row, through)
        for owned in place.owned
        if owned.owner == row.name
    ]
    found += [
        Source("grant", grant.privileges, str(grant.target), grant.target == place.row, through)
        for grant in granted.get(row.pk, [])
    ]
    return found


def _limit(place: _Place, key: ApiKey, held: Privilege) -> KeyLimit:
    is_inside = key.namespace is None or key.namespace in place.above
    return KeyLimit(
        name=key.name,
        privileges=held & key.ceiling if is_inside else NOTHING,
        scopes=key.ceiling,
        within=None if key.namespace is None else str(key.namespace),
    )


# --- what if -------------------------------------------------------------------------------------


def what_if(
    *,
    actor: access.Principal,
    on: On,
    principal: str,
    privileges: Privilege = NOTHING,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[Loss], str | None]:
    """What would be lost if a principal were granted only this here, or nothing: a page by name.

    Of a group, for each of its members. The grant is changed, looked at, and the change taken back:
    nothing stays of it, and no other reader sees it. Needs GRANT or MANAGE. Raises
    NamespaceNotFound, TableNotFound, PermissionDenied, PrincipalNotFound.
    """
    place = _place(actor, on)
    row = Principal.objects.filter(name=principal.replace("\x00", "")).first()
    if row is None:
        raise PrincipalNotFound(principal)
    size = min(limit or PAGE_SIZE, MAX_PAGE)
    concerned = Principal.objects.filter(Q(pk=row.pk) | Q(groups=row))
    if row.kind == PrincipalKind.GROUP:
        concerned = Principal.objects.filter(groups=row)
    found = list(
        concerned.filter(name__gt=page_token or "")
        .select_related("user")
        .order_by("name")[: size + 1]
    )
    following = found[size - 1].name if len(found) > size else None
    rows = found[:size]
    with transaction.atomic():
        before = [_view(place, each) for each in rows]
        grant = Grant.objects.on(place.row).filter(principal=row)
        if privileges:
            grant.update(mask=(closure(privileges)).value)
        else:
            grant.delete()
        after = [_view(place, each) for each in rows]
        transaction.set_rollback(True)
    return [
        Loss(
            each,
            was.held,
            will_be.held,
            was.namespaces - will_be.namespaces,
            was.tables - will_be.tables,
        )
        for each, was, will_be in zip(rows, before, after, strict=True)
    ], following


class _View(NamedTuple):
    held: Privilege
    namespaces: int
    tables: int


def _view(place: _Place, row: Principal) -> _View:
    """What a principal holds on a place, and how much it sees of the whole catalog."""
    if not _is_active(row):
        return _View(NOTHING, 0, 0)
    actor = access.of_row(row)
    try:
        held = access.held_on(actor, place.row)
    except (NamespaceNotFound, TableNotFound, ViewNotFound):
        held = NOTHING
    if actor.holds_everywhere(Privilege.BROWSE):
        return _View(held, 0, 0)  # sees all, before and after
    return _View(
        held,
        Namespace.objects.live().filter(access.visible_namespaces(actor)).count(),
        Table.objects.present().filter(access.visible_tables(actor)).count(),
    )
