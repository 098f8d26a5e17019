"""Deciding whether a principal holds a privilege on a namespace or a table.

``require`` and ``holds`` cost no statement for a principal that holds the privilege everywhere, and
usually one otherwise (``held_on``). Cached grants can only permit: only the complete statement refuses.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from django.db.models import F, Q

from catalog.access import cached_grants
from catalog.access.principal import Principal
from catalog.errors import (
    CatalogError,
    NamespaceNotFound,
    PermissionDenied,
    TableNotFound,
    ViewNotFound,
)
from catalog.identifiers import Identifier, digest, label
from catalog.models import Grant, Namespace, Table, TableKind
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, SINGLE, Privilege

_VERBS = {
    Privilege.WRITE: "write to",
    Privilege.CREATE: "create anything in",
    Privilege.GRANT: "grant anything on",
    Privilege.ALL: "administer",
}


NEVER = datetime.max.replace(tzinfo=UTC)
"""The end of privileges without an end."""


@dataclass(frozen=True, slots=True)
class On:
    """A namespace or table by name, which may or may not exist."""

    identifier: Identifier
    is_table: bool
    missing: type[TableNotFound | ViewNotFound] = TableNotFound
    """The error for a table that does not exist or may not be browsed."""
    tells_namespace: bool = True
    """True if a missing namespace is reported as such, rather than as a missing table."""

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


def require(
    actor: Principal,
    privilege: Privilege,
    target: Target | None = None,
    *,
    uses_cache: bool = True,
) -> Privilege:
    """Require a privilege. ``target`` None stands for the catalog as a whole.

    Returns the privileges that the check found: all that the actor holds on the target, or, if it
    holds the required one everywhere, those that it holds everywhere. Raises PermissionDenied for a target that the actor may browse; NamespaceNotFound, or the error
    of ``On.missing``, for one that it may not browse or that does not exist. The statements are those of
    ``held_on``.
    """
    if actor.holds_everywhere(privilege):
        return actor.everywhere
    held = NOTHING if target is None else held_on(actor, target, uses_cache=uses_cache)
    if privilege not in held:
        verb = _VERBS.get(privilege, privilege.word)
        words = {"actor": actor.name, "verb": verb}
        if target is None:
            raise PermissionDenied("'{actor}' may not {verb} the catalog as a whole", **words)
        identifier = tuple(target.identifier)
        raise PermissionDenied("'{actor}' may not {verb} '{target}'", **words, target=identifier)
    return held


def holds(actor: Principal, privilege: Privilege, target: Target) -> bool:
    """True if the actor holds the privilege; False also if it may not browse the target."""
    try:
        require(actor, privilege, target)
    except CatalogError:
        return False
    return True


def holds_somewhere(actor: Principal, privilege: Privilege) -> bool:
    """True if the actor holds the privilege on anything. Three statements at most."""
    if privilege in actor.everywhere:
        return True
    if privilege not in actor.ceiling:
        return False
    grants = Grant.objects.valid().filter(principal__in=actor.ids)
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


def is_visible(actor: Principal, target: Target) -> bool:
    """True if the actor may see the target: it may browse it, or something below it."""
    if actor.holds_everywhere(Privilege.BROWSE):
        return True
    try:
        held_on(actor, target)
    except (NamespaceNotFound, TableNotFound, ViewNotFound):
        return False
    return True


# One statement for both: the traversable namespaces are computed only if no privilege is held.
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
                    AND (expires_at IS NULL OR expires_at > now())
            ), 0) END AS held
    ) mine
    WHERE {namespace}
"""
_NAMES = {
    "table": "t.digest = %(table)s::uuid AND t.state <> 'dropped'",
    "namespace": "n.digest = %(namespace)s::uuid AND n.dropped_at IS NULL",
}
_ROWS = {"table": "t.id = %(table)s::bigint", "namespace": "n.id = %(namespace)s::bigint"}
_BY_NAME = _HELD.format(**_NAMES)
_BY_ROW = _HELD.format(**_ROWS)

_FACTS = f"""
    SELECT {cached_grants.FACTS} FROM (SELECT) always
    LEFT JOIN (catalog_namespace n LEFT JOIN catalog_table t ON {{table}}) ON {{namespace}}
"""  # noqa: S608 -- no input
_FACTS_BY_NAME = _FACTS.format(**_NAMES)
_FACTS_BY_ROW = _FACTS.format(**_ROWS)


def held_on(actor: Principal, target: Target, *, uses_cache: bool = True) -> Privilege:
    """The privileges on a namespace or a table; none on one that the actor may only traverse.

    A row is evaluated as that row, dropped or not, whatever has its name now. Raises
    NamespaceNotFound, or the error of ``On.missing``. One statement if the actor's grants are cached and
    give it a privilege; otherwise one more to read them, and one more if it holds nothing. Without the cache,
    one statement.
    """
    keys: dict[str, Any]
    if isinstance(target, On):
        is_table = target.is_table
        table = digest(target.identifier) if is_table else None
        keys = {"namespace": digest(target.namespace_path), "table": table}
        text, facts = _BY_NAME, _FACTS_BY_NAME
    elif target._state.adding:
        # The actor created it in this batch, in a namespace whose privileges were checked then.
        return Privilege.ALL & actor.ceiling
    elif isinstance(target, Table):
        is_table = True
        keys = {"namespace": target.namespace_id, "table": target.pk}
        text, facts = _BY_ROW, _FACTS_BY_ROW
    else:
        is_table = False
        keys = {"namespace": target.pk, "table": None}
        text, facts = _BY_ROW, _FACTS_BY_ROW
    if uses_cache and cached_grants.cache.is_usable_by(actor):
        held = _held_by_cached_grants(actor, facts, keys, is_table=is_table)
        if held:
            return held
    return _held_by_statement(actor, target, text, keys, is_table=is_table)


def ends_on(actor: Principal, row: Namespace | Table) -> dict[Privilege, datetime]:
    """The time until which the actor holds each single privilege on a row; ``NEVER`` if that has no end.

    Privileges that it does not hold are missing. Raises as ``held_on``. Three statements more than that.
    """
    if actor.holds_everywhere(Privilege.ALL):
        return dict.fromkeys(SINGLE, NEVER)
    held = held_on(actor, row)
    lasting = dict.fromkeys((privilege for privilege in SINGLE if privilege in held), NEVER)
    table = row if isinstance(row, Table) else None
    if row._state.adding or (table is not None and table.pk in actor.tables):
        return lasting
    namespace = row.namespace_id if isinstance(row, Table) else row.pk
    above = Namespace.objects.filter(pk=namespace).values_list("ancestors", flat=True).get()
    owners = {*Namespace.objects.filter(pk__in=above).values_list("owner", flat=True)}
    if table is not None:
        owners.add(table.owner)
    if not owners.isdisjoint(actor.names):
        return lasting
    ends = {privilege: NEVER for privilege in lasting if privilege in actor.everywhere}
    here = Q(namespace__in=above) | Q(table=table, table__isnull=False)
    for grant in Grant.objects.valid().filter(here, principal__in=actor.ids):
        end = grant.expires_at or NEVER
        for privilege in lasting:
            if privilege in grant.privileges:
                ends[privilege] = max(end, ends.get(privilege, end))
    return ends


def held_until(actor: Principal, row: Namespace | Table, end: datetime | None) -> Privilege:
    """The privileges on a row that no expiring grant ends before this time; None: that do not end.

    Raises as ``held_on``. The statements are those of ``ends_on``.
    """
    held = NOTHING
    for privilege, until in ends_on(actor, row).items():
        if until >= (end or NEVER):
            held |= privilege
    return held


def holds_lasting(actor: Principal, privilege: Privilege, row: Namespace | Table) -> bool:
    """True if the actor holds the privilege on a row without an end; False also if it may not browse the row."""
    try:
        return privilege in held_until(actor, row, None)
    except CatalogError:
        return False


def _held_by_cached_grants(
    actor: Principal, text: str, keys: dict[str, Any], *, is_table: bool
) -> Privilege | None:
    """The privileges by the cached grants; none or None if the statement has to decide."""
    cursor = hot_cursor()
    cursor.execute(text, keys)
    facts = cached_grants.Facts(*cursor.fetchone())
    held = cached_grants.held_by(actor, facts)
    return None if is_table and facts.table is None else held


def _held_by_statement(
    actor: Principal, target: Target, text: str, keys: dict[str, Any], *, is_table: bool
) -> Privilege:
    cursor = hot_cursor()
    cursor.execute(text, {**identities(actor), **keys})
    row = cursor.fetchone()
    if row is None:
        raise _missing(target, is_namespace_visible=False)
    ancestors, above, table_pk, own, may_traverse, leads_to_key = row
    everywhere = actor.everywhere
    if actor.within is not None and actor.within not in ancestors:
        above, own, may_traverse, everywhere = 0, 0, False, NOTHING
    held = (Privilege(above | own) & actor.ceiling) | everywhere
    if table_pk in actor.tables:
        held = Privilege.ALL  # regardless of its other limits
    is_namespace_visible = bool(held) or may_traverse or leads_to_key
    if not is_namespace_visible or (is_table and not (table_pk and held)):
        raise _missing(target, is_namespace_visible=is_namespace_visible)
    return held


def _on(target: Target) -> On:
    if isinstance(target, Namespace):
        return On.namespace(target.identifier)
    if isinstance(target, Table):
        kind = ViewNotFound if target.kind == TableKind.VIEW else TableNotFound
        return On.table(target.identifier, kind)
    return target


def _missing(target: Target, *, is_namespace_visible: bool) -> CatalogError:
    on = _on(target)
    if not on.is_table:
        return NamespaceNotFound(on.identifier)
    if not is_namespace_visible and on.tells_namespace:
        return NamespaceNotFound(on.namespace_path)
    return on.missing(on.identifier)


def sees_all_in(actor: Principal, namespace: Identifier) -> bool:
    """True if the actor may browse a namespace and everything below. Raises NamespaceNotFound."""
    if actor.holds_everywhere(Privilege.BROWSE):
        return True
    return Privilege.BROWSE in held_on(actor, On.namespace(namespace))


def identities(actor: Principal) -> dict[str, Any]:
    """The parameters that represent the principal in a statement."""
    return {
        "ids": list(actor.ids),
        "names": list(actor.names),
        "tables": list(actor.tables),
        "within": actor.within,
    }
