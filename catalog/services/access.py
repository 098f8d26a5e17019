"""Who asks, and whether they may.

Whoever asks has privileges (``catalog.privileges``) from four sources: what its level gives it
everywhere, what is granted to it and to its groups on a namespace or above, what is granted on a
table, and what it owns. A key may hold less than its principal. There is no denying: what is not
given is refused. What may not be browsed is told to be missing, what may be browsed is refused.

    require(actor, privilege, target)      before one thing is read or changed
    visible_tables(actor), visible_...     what a list may show: a condition of its statement

For who holds a privilege everywhere, which is most programs, nothing is asked of the database.
"""

import hashlib
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import connection
from django.db.models import F, Q
from django.db.models.expressions import RawSQL
from django.utils import timezone

from catalog import models
from catalog.errors import (
    CatalogError,
    NamespaceNotFound,
    PermissionDenied,
    TableNotFound,
    Unauthenticated,
    ViewNotFound,
)
from catalog.identifiers import Identifier, digest, label
from catalog.models import (
    ApiKey,
    Grant,
    Namespace,
    PrincipalKind,
    PrincipalLevel,
    Table,
    TableKind,
)
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from catalog.services import tokens
from catalog.services.attempts import attempts
from catalog.services.statements import hot_cursor

KEY_PREFIX = "mnd_"
# How long a process goes on trusting a key that it has looked up: so long does a revoked key live.
_TRUST_SECONDS = 4.0
_CACHE_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The key under which a request may change the catalog once; its change notes it."""

    key: uuid.UUID
    digest: Callable[[], str]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the request, so that a key is not taken for two requests.

        A body that is streamed is read to its end for it.
        """
        return self.digest()


@dataclass(slots=True)
class Progress:
    """How far a request has come."""

    committed: bool = False
    """Whether something stands already that a later failure does not undo."""


@dataclass(frozen=True)
class Principal:
    """Who asks, and through which request."""

    name: str
    everywhere: Privilege = NOTHING
    """What its level, not a grant, lets it do; with ``within`` only there."""
    request_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    idempotency: IdempotencyKey | None = None
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    ids: tuple[int, ...] = ()
    """The rows (``models.Principal``) of itself and its groups."""
    groups: tuple[str, ...] = ()
    """The names of its groups, which may own things."""
    ceiling: Privilege = Privilege.ALL
    """What its key lets it use at most."""
    within: int | None = None
    """The namespace that its key is for, with all below."""
    tables: tuple[int, ...] = ()
    """Tables that it may do everything with: a job its own."""
    door: str = ""
    """Through what it came: lance, iceberg, management, admin, job, command."""
    key: str = ""
    """The name of the API key that it presented; of an issuer's token, the client's."""
    ends_at: datetime | None = None
    """When the key or the token ends that it came in with; None: never."""
    is_vouched_for: bool = False
    """Whether it came in with an issuer's token."""
    job_kind: str = field(default="", compare=False)
    """Of a running job that comes with its token: what it does."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called as an owner: whoever is no principal, or no active one, owns nothing."""
        return (self.name, *self.groups) if self.ids else ()

    @property
    def narrowed_name(self) -> str:
        """Its name with what it came in with: the same for all keys that let it do the same.

        No principal is called so, since a name has one colon at most.
        """
        if self.ceiling == Privilege.ALL and self.within is None and not self.tables:
            return self.name
        tables = ",".join(map(str, self.tables))
        return f"{self.name}:{self.ceiling.value}:{self.within or ''}:{tables}"

    def holds_everywhere(self, privilege: Privilege) -> bool:
        return privilege in self.everywhere and self.within is None

    def through(self, **request: Any) -> "Principal":
        """The same with these facts of a request: as ``replace``, for what every request needs."""
        found = object.__new__(Principal)
        found.__dict__.update(self.__dict__, **request)
        return found


SYSTEM = Principal("system", Privilege.ALL, door="system")
"""The catalog itself: jobs, the scheduler, migrations."""
COMMAND = replace(SYSTEM, door="command")
"""Whoever runs a command in a shell of the server: nobody asks for their name there."""

_ANONYMOUS = {"none": None, "read": READ_ONLY, "admin": Privilege.ALL}
_LEVELS = {
    PrincipalLevel.GRANTED: NOTHING,
    PrincipalLevel.READ: READ_ONLY,
    PrincipalLevel.ADMIN: Privilege.ALL,
}
_VERBS = {
    Privilege.WRITE: "write to",
    Privilege.CREATE: "create anything in",
    Privilege.GRANT: "grant anything on",
    Privilege.ALL: "administer",
}
_known: dict[str, tuple[float, Principal]] = {}


# --- one thing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class On:
    """What a request names, which may be there or not."""

    identifier: Identifier
    is_table: bool
    missing: type[TableNotFound | ViewNotFound] = TableNotFound
    """What is raised where there is no such table, or where it may not be browsed."""
    tells_namespace: bool = True
    """Whether a missing namespace is told as such, rather than as a missing table."""

    @classmethod
    def namespace(cls, path: Identifier) -> Self:
        return cls(path, is_table=False)

    @classmethod
    def table(
        cls,
        identifier: Identifier,
        missing: type[TableNotFound | ViewNotFound] = TableNotFound,
        *,
        tells_namespace: bool = True,
    ) -> Self:
        return cls(identifier, True, missing, tells_namespace)

    @property
    def namespace_path(self) -> Identifier:
        return self.identifier[:-1] if self.is_table else self.identifier

    def __str__(self) -> str:
        return label(self.identifier)


Target = On | Namespace | Table


def require(actor: Principal, privilege: Privilege, target: Target | None = None) -> None:
    """Let it pass, or raise what tells why not. ``target`` None: everything, the catalog itself.

    Raises PermissionDenied for what the actor may browse, and NamespaceNotFound, or TableNotFound
    or what ``On.missing`` says, for what it may not, or is not there. One statement at most.
    """
    if actor.holds_everywhere(privilege):
        return
    held = NOTHING if target is None else held_on(actor, target)
    if privilege not in held:
        verb = _VERBS.get(privilege, privilege.word)
        facts = {"actor": actor.name, "verb": verb}
        if target is None:
            raise PermissionDenied("'{actor}' may not {verb} the catalog as a whole", **facts)
        identifier = tuple(target.identifier)
        raise PermissionDenied("'{actor}' may not {verb} '{target}'", **facts, target=identifier)


def holds(actor: Principal, privilege: Privilege, target: Target) -> bool:
    """The same as a question; False for what may not be browsed, too."""
    try:
        require(actor, privilege, target)
    except CatalogError:
        return False
    return True


def holds_somewhere(actor: Principal, privilege: Privilege) -> bool:
    """Whether there is anything on which it holds this. Three statements at most."""
    if privilege in actor.everywhere:
        return True
    if privilege not in actor.ceiling:
        return False
    grants = Grant.objects.filter(principal__in=actor.ids)
    if (
        grants.annotate(part=F("mask").bitand(privilege.value))
        .filter(part=privilege.value)
        .exists()
    ):
        return True
    names = actor.names
    return (
        Namespace.objects.live().filter(owner__in=names).exists()
        or Table.objects.present().filter(owner__in=names).exists()
    )


def is_seen(actor: Principal, target: Target) -> bool:
    """Whether it is not told to be missing: it may be browsed, or leads to what may be."""
    if actor.holds_everywhere(Privilege.BROWSE):
        return True
    try:
        held_on(actor, target)
    except (NamespaceNotFound, TableNotFound, ViewNotFound):
        return False
    return True


# One statement for both: what is asked on the way to a passage is asked only where nothing is held.
_HELD = """
    SELECT n.ancestors, above.held, t.id, mine.held,
        CASE WHEN above.held <> 0 OR mine.held <> 0 THEN true
            ELSE n.id = ANY(monodon_passages(%(ids)s::bigint[], %(names)s::text[], %(tables)s::bigint[])) END,
        n.id = ANY((SELECT ancestors FROM catalog_namespace WHERE id = %(within)s::bigint)::bigint[])
    FROM catalog_namespace n
    LEFT JOIN catalog_table t ON {table}
    CROSS JOIN LATERAL (SELECT monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors) AS held) above
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN t.id IS NULL THEN 0
            WHEN t.owner = ANY(%(names)s::text[]) OR t.id = ANY(%(tables)s::bigint[]) THEN 127
            ELSE coalesce((
                SELECT bit_or(mask) FROM catalog_grant
                WHERE table_id = t.id AND principal_id = ANY(%(ids)s::bigint[])
            ), 0) END AS held
    ) mine
    WHERE {namespace}
"""
_BY_NAME = _HELD.format(
    table="t.digest = %(table)s::uuid AND t.state <> 'dropped'",
    namespace="n.digest = %(namespace)s::uuid AND n.dropped_at IS NULL",
)
_BY_ROW = _HELD.format(table="t.id = %(table)s::bigint", namespace="n.id = %(namespace)s::bigint")


def held_on(actor: Principal, target: Target) -> Privilege:
    """What the actor may do with a namespace or a table: nothing, where it may only pass through.

    A row is looked at as that row, dropped or not, whatever bears its name by now. Raises
    NamespaceNotFound, or TableNotFound or what ``On.missing`` says. One statement.
    """
    keys: dict[str, Any]
    if isinstance(target, On):
        is_table = target.is_table
        table = digest(target.identifier) if is_table else None
        text, keys = _BY_NAME, {"namespace": digest(target.namespace_path), "table": table}
    elif target._state.adding:
        # It was made in this very batch, by the actor, in a namespace that was looked at then.
        return Privilege.ALL & actor.ceiling
    elif isinstance(target, Table):
        is_table = True
        text, keys = _BY_ROW, {"namespace": target.namespace_id, "table": target.pk}
    else:
        is_table = False
        text, keys = _BY_ROW, {"namespace": target.pk, "table": None}
    cursor = hot_cursor()
    cursor.execute(text, {**_who(actor), **keys})
    row = cursor.fetchone()
    if row is None:
        raise _missing(target, is_namespace_seen=False)
    ancestors, above, table_pk, mine, may_pass, is_on_the_way = row
    everywhere = actor.everywhere
    if actor.within is not None and actor.within not in ancestors:
        above, mine, may_pass, everywhere = 0, 0, False, NOTHING
    held = (Privilege(above | mine) & actor.ceiling) | everywhere
    if table_pk in actor.tables:
        held = Privilege.ALL  # whatever else it may not do
    is_namespace_seen = bool(held) or may_pass or is_on_the_way
    if is_table and not (table_pk and held):
        raise _missing(target, is_namespace_seen=is_namespace_seen)
    if not is_namespace_seen:
        raise _missing(target, is_namespace_seen=False)
    return held


def _on(target: Target) -> On:
    if isinstance(target, Namespace):
        return On.namespace(target.identifier)
    if isinstance(target, Table):
        kind = ViewNotFound if target.kind == TableKind.VIEW else TableNotFound
        return On.table(target.identifier, kind)
    return target


def _missing(target: Target, *, is_namespace_seen: bool) -> CatalogError:
    on = _on(target)
    if not on.is_table:
        return NamespaceNotFound(on.identifier)
    if not is_namespace_seen and on.tells_namespace:
        return NamespaceNotFound(on.namespace_path)
    return on.missing(on.identifier)


def sees_all_in(actor: Principal, namespace: Identifier) -> bool:
    """Whether it may browse everything in a namespace and below. Raises NamespaceNotFound."""
    if actor.holds_everywhere(Privilege.BROWSE):
        return True
    return Privilege.BROWSE in held_on(actor, On.namespace(namespace))


_READABLE = """
    SELECT t.id FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id
    WHERE t.id = ANY(%(asked)s::bigint[])
        AND (%(within)s::bigint IS NULL OR %(within)s::bigint = ANY(n.ancestors))
        AND (
            %(everywhere)s
            OR t.owner = ANY(%(names)s::text[])
            OR monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors) & %(read)s <> 0
            OR EXISTS (
                SELECT FROM catalog_grant g WHERE g.table_id = t.id
                    AND g.principal_id = ANY(%(ids)s::bigint[]) AND g.mask & %(read)s <> 0
            )
        )
"""


def readable_tables(actor: Principal, tables: Collection[int]) -> set[int]:
    """Those of these tables, dropped ones too, that the actor may read. One statement at most."""
    found = set(tables) & set(actor.tables)
    if not tables or actor.holds_everywhere(Privilege.READ):
        return set(tables)
    if Privilege.READ not in actor.ceiling:
        return found
    asked: dict[str, Any] = {
        "asked": list(tables),
        "everywhere": Privilege.READ in actor.everywhere,
        "read": Privilege.READ.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(_READABLE, {**_who(actor), **asked})
        return found | {pk for (pk,) in cursor.fetchall()}


_READABLE_NAMESPACES = """
    SELECT n.id FROM catalog_namespace n
    WHERE n.id = ANY(%(asked)s::bigint[])
        AND (%(within)s::bigint IS NULL OR %(within)s::bigint = ANY(n.ancestors))
        AND (
            %(everywhere)s
            OR monodon_held(%(ids)s::bigint[], %(names)s::text[], n.ancestors) & %(read)s <> 0
        )
"""


def readable_namespaces(actor: Principal, namespaces: Collection[int]) -> set[int]:
    """Those of these namespaces, dropped ones too, that the actor may read. One statement at most."""
    if not namespaces or actor.holds_everywhere(Privilege.READ):
        return set(namespaces)
    if Privilege.READ not in actor.ceiling:
        return set()
    asked: dict[str, Any] = {
        "asked": list(namespaces),
        "everywhere": Privilege.READ in actor.everywhere,
        "read": Privilege.READ.value,
    }
    with connection.cursor() as cursor:
        cursor.execute(_READABLE_NAMESPACES, {**_who(actor), **asked})
        return {pk for (pk,) in cursor.fetchall()}


# --- lists ---------------------------------------------------------------------------------------


# What is below the namespaces on which something is held, asked once for a statement: with an array
# of thousands of them, each row of a list would be compared with each.
_INSIDE = """
    SELECT id FROM catalog_namespace
    WHERE ancestors && (SELECT monodon_roots(%s::bigint[], %s::text[]))
"""


def visible_tables(actor: Principal, path: str = "") -> Q:
    """The condition by which a list shows the tables, and views, that the actor may browse.

    ``path`` is the lookup that leads to the table: ``"table__"`` in a list of jobs. Everything of
    it is decided in the list's own statement.
    """
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        granted = Grant.objects.filter(principal__in=actor.ids, table__isnull=False)
        found = (
            Q(**{f"{path}namespace__in": _rows(_INSIDE, actor)})
            | Q(**{f"{path}owner__in": actor.names})
            | Q(**{f"{path}pk__in": granted.values("table")})
        )
        if actor.tables:
            found |= Q(**{f"{path}pk__in": actor.tables})
    if Privilege.BROWSE not in actor.ceiling:
        found = Q(**{f"{path}pk__in": []})
    if actor.within is not None:
        found &= Q(**{f"{path}namespace__ancestors__contains": [actor.within]})
    return found


def visible_contents(actor: Principal, path: str = "namespace__") -> Q:
    """The same for what lies in namespaces and is no table: functions.

    ``path`` is the lookup that leads to the namespace. One that only leads on shows nothing of it.
    """
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        found = Q(**{f"{path}pk__in": _rows(_INSIDE, actor)})
    if Privilege.BROWSE not in actor.ceiling:
        found = Q(pk__in=[])
    if actor.within is not None:
        found &= Q(**{f"{path}ancestors__contains": [actor.within]})
    return found


def visible_namespaces(actor: Principal, path: str = "") -> Q:
    """The same for namespaces, with those that lead to what may be browsed."""
    pk = f"{path}pk"
    found = Q()
    if Privilege.BROWSE not in actor.everywhere:
        passages = RawSQL(
            "SELECT unnest(monodon_passages(%s::bigint[], %s::text[], %s::bigint[]))",
            [list(actor.ids), list(actor.names), list(actor.tables)],
        )
        found = Q(**{f"{pk}__in": _rows(_INSIDE, actor)}) | Q(**{f"{pk}__in": passages})
    if actor.within is not None:
        on_the_way = RawSQL(
            "SELECT unnest(ancestors) FROM catalog_namespace WHERE id = %s", [actor.within]
        )
        inside = Q(**{f"{path}ancestors__contains": [actor.within]})
        found = (found & inside) | Q(**{f"{pk}__in": on_the_way})
    return found


def _rows(text: str, actor: Principal) -> RawSQL:
    return RawSQL(text, [list(actor.ids), list(actor.names)])  # noqa: S611 -- no input in the text


def _who(actor: Principal) -> dict[str, Any]:
    return {
        "ids": list(actor.ids),
        "names": list(actor.names),
        "tables": list(actor.tables),
        "within": actor.within,
    }


# --- who -----------------------------------------------------------------------------------------


def authenticate(
    key: str | None,
    *,
    request_id: str = "",
    context: Mapping[str, str] | None = None,
    door: str = "",
) -> Principal:
    """The principal of an API key, or the anonymous one where MONODON_ANONYMOUS grants it.

    ``key`` may be an access token of a key, or the token of a running job, too. Raises
    Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    if key is not None and key.startswith(tokens.JOB_PREFIX):
        from catalog.services import jobs  # which needs this module

        # At every request: a job may lose its lease.
        found = jobs.principal_of_token(key)
    elif not key:
        anonymous = _anonymous()
        if anonymous is None:
            raise Unauthenticated("No API key was given: send it as x-api-key or as a bearer token")
        found = anonymous
    else:
        found = _lookup(key)
    return found.through(
        request_id=request_id, context=context or {}, progress=Progress(), door=door
    )


def of_user(user: AbstractBaseUser | AnonymousUser) -> Principal:
    """Who somebody is that is signed in. Superusers may do everything. One statement."""
    name = f"user:{user.get_username()}"
    if getattr(user, "is_superuser", False) and user.is_active:
        return Principal(name, Privilege.ALL)
    if not user.is_active:
        return Principal(name)
    return named(name) or Principal(name)


def named(name: str) -> Principal | None:
    """Whoever has this name, with groups; None: nobody active has. One statement."""
    row = models.Principal.objects.filter(name=name, is_active=True).select_related("user").first()
    if row is None or (row.user is not None and not row.user.is_active):
        return None
    return of_row(row)


def on_behalf_of(name: str) -> Principal:
    """The principal that a stored name stands for, with the privileges that it has now.

    Only the name of the system principal stands for the system principal. A principal that could no
    longer authenticate holds nothing. Raises PermissionDenied for an empty or unknown name.
    """
    if name == SYSTEM.name:
        return SYSTEM
    if name == "anonymous":
        return _anonymous() or Principal(name, ceiling=NOTHING)
    row = models.Principal.objects.filter(name=name).select_related("user").first()
    if row is None:
        raise PermissionDenied(
            f"Nothing is done on behalf of '{name[:200]}': no principal has this name"
            if name
            else "Nothing is done on behalf of nobody: no principal is named"
        )
    # An inactive principal gets nothing from what it owns, either.
    return of_row(row) if _may_act(row) else Principal(name, ceiling=NOTHING)


def _anonymous() -> Principal | None:
    """Who comes without a key, where MONODON_ANONYMOUS lets anybody in. What others made without
    one is not theirs to do more with."""
    may = _ANONYMOUS[settings.MONODON_ANONYMOUS]
    return None if may is None else Principal("anonymous", may, ceiling=may)


def _may_act(row: models.Principal) -> bool:
    """Whether it could still come in by itself."""
    if not row.is_active or (row.user is not None and not row.user.is_active):
        return False
    if row.kind != PrincipalKind.SERVICE or row.issuer:
        return True
    not_over = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return row.keys.filter(not_over, revoked_at=None).exists()


def of_row(row: models.Principal, key: ApiKey | None = None) -> Principal:
    """A principal with its groups, as far as a key lets it. One statement."""
    groups = list(row.groups.filter(is_active=True).values_list("pk", "name", "level"))
    everywhere = _LEVELS[PrincipalLevel(row.level)]
    for _, _, level in groups:
        everywhere |= _LEVELS[PrincipalLevel(level)]
    if row.user is not None and row.user.is_superuser:
        everywhere = Privilege.ALL
    ceiling = Privilege.ALL if key is None else key.ceiling
    return Principal(
        row.name,
        everywhere & ceiling,
        ids=(row.pk, *(pk for pk, _, _ in groups)),
        groups=tuple(name for _, name, _ in groups),
        ceiling=ceiling,
        within=None if key is None else key.namespace_id,
        key="" if key is None else key.name,
        ends_at=None if key is None else key.expires_at,
    )


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def forget_keys() -> None:
    """Make this process look every key up again."""
    _known.clear()


def find_key(secret: str, *, expired_token_too: bool = False) -> ApiKey:
    """The row of an API key, or of the one that an access token stands for.

    Raises Unauthenticated for a missing, unknown, expired or revoked key, and TokenExpired.
    """
    token = tokens.read_token(secret, expired_too=expired_token_too)
    wanted = Q(digest=key_digest(secret)) if token is None else Q(pk=token.key)
    moment = timezone.now()
    row = (
        ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=moment))
        .filter(wanted, revoked_at=None, principal__is_active=True)
        .select_related("principal__user")
        .first()
    )
    if row is None or (row.principal.user is not None and not row.principal.user.is_active):
        raise Unauthenticated("The API key is unknown, expired or revoked")
    if row.last_used_at is None or moment - row.last_used_at > timedelta(minutes=1):
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=moment)
    return row


def _lookup(key: str) -> Principal:
    digest_of_key = key_digest(key)
    now = time.monotonic()
    cached = _known.get(digest_of_key)
    if cached is not None and cached[0] > now:
        return cached[1]
    _known.pop(digest_of_key, None)
    found, seconds = _recognise(key)
    attempts.succeeded(key)
    if len(_known) >= _CACHE_LIMIT:
        _known.clear()
    _known[digest_of_key] = (now + min(seconds, _TRUST_SECONDS), found)
    return found


def _recognise(key: str) -> tuple[Principal, float]:
    """Who a key, or a token, stands for, and how many seconds it does so at most."""
    from catalog.services import oidc  # which needs this module

    if oidc.is_token(key):
        return oidc.authenticate(key)
    row = find_key(key)
    found = of_row(row.principal, row)
    token = tokens.read_token(key)
    if token is not None:
        may = token.privileges & found.ceiling
        ends_at = min(token.ends_at, found.ends_at or token.ends_at)
        found = replace(found, ceiling=may, everywhere=found.everywhere & may, ends_at=ends_at)
    if row.expires_at is None:
        return found, _TRUST_SECONDS
    return found, (row.expires_at - timezone.now()).total_seconds()
