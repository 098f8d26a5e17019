"""The grants of principals, cached in this process with the version of all grants.

Triggers replace the version with every change of a grant (``models.GrantVersion``). A statement that reads
``FACTS`` returns the version of its own snapshot. Cached grants of the same version are those that the
statement would have read, so a revoked grant counts for no statement that begins after its commit. Owners are
not cached: ``FACTS`` contains them.
"""

import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catalog.access.principal import Principal
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, Privilege

FACTS = """
    n.ancestors,
    ARRAY(SELECT a.owner FROM catalog_namespace a WHERE a.id = ANY(n.ancestors) AND a.owner <> ''),
    t.id, t.owner, (SELECT version FROM catalog_grantversion), date_part('epoch', now())
"""
"""The columns that ``held_by`` evaluates, of a namespace ``n`` and a table ``t`` in it.

A statement returns them also without such a namespace or table, so that grants are read then too: the number
of statements must not distinguish a missing object from a hidden one.
"""
_MOST_GRANTS = 10_000
"""Of a principal and its groups; those of a principal with more are not cached."""
_RETRY_SECONDS = 60.0
"""The time until the grants of such a principal are counted again."""


class Facts(NamedTuple):
    """The columns of ``FACTS``."""

    ancestors: Sequence[int] | None
    """None: there is no such namespace."""
    owners: Sequence[str]
    table: int | None
    owner: str | None
    version: uuid.UUID | None
    now: float


@dataclass(frozen=True, slots=True)
class Grants:
    """The masks of privileges by the keys of namespaces and tables."""

    version: uuid.UUID | None = None
    namespaces: Mapping[int, int] = field(default_factory=dict)
    tables: Mapping[int, int] = field(default_factory=dict)
    until: float = math.inf
    """The time of the database at which the first of them expires."""
    retry_at: float = 0.0
    """If they are too many: the time of this process until which they are not read."""

    def are_of(self, version: uuid.UUID | None, now: float) -> bool:
        return version is not None and self.version == version and now < self.until


class GrantCache:
    """The grants by the keys of a principal and its groups (``Principal.ids``)."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._size = 0
        self._entries: dict[tuple[int, ...], Grants] = {}
        self._lock = threading.Lock()

    def is_usable_by(self, actor: Principal) -> bool:
        """True if a statement should read ``FACTS`` for this principal."""
        grants = self._entries.get(actor.ids)
        is_full = grants is not None and grants.retry_at > time.monotonic()
        return bool(actor.ids) and not is_full

    def at(
        self, ids: tuple[int, ...], version: uuid.UUID | None, now: float, *, may_read: bool = True
    ) -> Grants | None:
        """The grants of this version, which are read if others are cached; None: they have changed.

        Without ``may_read`` also None if they are not cached.
        """
        grants = self._entries.get(ids)
        if may_read and (grants is None or not grants.are_of(version, now)):
            grants = _read(ids)
            self._put(ids, grants)
        return grants if grants is not None and grants.are_of(version, now) else None

    def _put(self, ids: tuple[int, ...], grants: Grants) -> None:
        with self._lock:
            self._size += _size(ids, grants) - self._size_of(ids)
            if self._size > self._limit:
                self._entries.clear()
                self._size = _size(ids, grants)
            self._entries[ids] = grants

    def _size_of(self, ids: tuple[int, ...]) -> int:
        grants = self._entries.get(ids)
        return 0 if grants is None else _size(ids, grants)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size = 0


def _size(ids: tuple[int, ...], grants: Grants) -> int:
    return len(ids) + len(grants.namespaces) + len(grants.tables)


_READ = f"""
    SELECT v.version, g.namespace_id, g.table_id, g.mask, g.until
    FROM catalog_grantversion v LEFT JOIN LATERAL (
        SELECT namespace_id, table_id, mask, date_part('epoch', expires_at) AS until
        FROM catalog_grant
        WHERE principal_id = ANY(%s::bigint[]) AND (expires_at IS NULL OR expires_at > now())
        LIMIT {_MOST_GRANTS + 1}
    ) g ON true
"""  # noqa: S608 -- a constant


def _read(ids: tuple[int, ...]) -> Grants:
    cursor = hot_cursor()
    cursor.execute(_READ, [list(ids)])
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    if len(rows) > _MOST_GRANTS or not rows:
        return Grants(retry_at=time.monotonic() + _RETRY_SECONDS)
    namespaces: dict[int, int] = {}
    tables: dict[int, int] = {}
    until = math.inf
    for _, namespace, table, mask, ends_at in rows:
        if namespace is not None:
            namespaces[namespace] = namespaces.get(namespace, 0) | mask
        elif table is not None:
            tables[table] = tables.get(table, 0) | mask
        if ends_at is not None:
            until = min(until, ends_at)
    return Grants(rows[0][0], namespaces, tables, until)


cache = GrantCache()


def held_by(actor: Principal, columns: Sequence[Any], *, may_read: bool = True) -> Privilege | None:
    """The privileges on the table, or without a table on the namespace, of these ``FACTS``.

    None: there is no such namespace, or the grants have changed meanwhile, or are not cached. ``may_read``: read them
    then, in one statement.
    """
    ancestors, owners, table, owner, version, now = columns
    grants = cache.at(actor.ids, version, now, may_read=may_read)
    if grants is None or ancestors is None:
        return None
    if table is not None and table in actor.tables:
        return Privilege.ALL  # regardless of its other limits
    if actor.within is not None and actor.within not in ancestors:
        return NOTHING
    names = actor.names
    if owner in names or any(name in names for name in owners):
        return actor.ceiling | actor.everywhere
    mask = 0 if table is None else grants.tables.get(table, 0)
    for namespace in ancestors:
        mask |= grants.namespaces.get(namespace, 0)
    # As numbers, because each operator of an IntFlag takes a microsecond.
    return Privilege((mask & actor.ceiling.value) | actor.everywhere.value)
