"""The tables that hold a directory, by their location or by a path of an Iceberg table."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from catalog.models import JobKind, JobStatus, TableState
from catalog.postgresql.cursors import hot_cursor


@dataclass(frozen=True, slots=True)
class Claim:
    """One table's hold of one directory."""

    table_id: int
    is_present: bool
    is_location: bool
    dropped_at: float
    is_purged: bool = False
    """True if only files that its purge left in place are there."""


# As constants, because the compilation of such queries takes longer than their execution. A dropped table whose files
# were all removed has no claims.
_STANDING = """
claims LEFT JOIN catalog_remainingfiles r ON r.table_id = claims.id
WHERE is_present OR r.table_id IS NOT NULL OR NOT EXISTS (
    SELECT FROM catalog_job j WHERE j.table_id = claims.id
        AND j.kind = %(purge)s AND j.status = %(succeeded)s
)
"""
_AT = f"""
SELECT path, id, is_present, is_location, dropped_at, r.table_id IS NOT NULL FROM (
    SELECT t.location AS path, t.id, t.state <> %(dropped)s AS is_present,
        true AS is_location, COALESCE(extract(epoch FROM t.dropped_at), 0)::float8 AS dropped_at
    FROM catalog_table t WHERE t.location = ANY(%(directories)s::text[])
    UNION ALL
    SELECT p.path, t.id, t.state <> %(dropped)s, false, 0
    FROM catalog_icebergpath p JOIN catalog_table t ON t.id = p.table_id
    WHERE p.path = ANY(%(directories)s::text[])
) {_STANDING}
"""  # noqa: S608 -- no input
# The operators are those of the indexes on prefixes: '0' follows '/'. UNION leaves out repetitions.
_INSIDE = f"""
WITH own AS (
    SELECT unnest(%(own)s::text[]) AS path
    UNION SELECT path FROM catalog_icebergpath WHERE table_id = %(table)s
)
SELECT path, id, is_present, is_location, dropped_at, r.table_id IS NOT NULL FROM (
    SELECT t.location AS path, t.id, t.state <> %(dropped)s AS is_present,
        true AS is_location, COALESCE(extract(epoch FROM t.dropped_at), 0)::float8 AS dropped_at
    FROM own JOIN catalog_table t ON t.location = own.path
    UNION
    SELECT t.location, t.id, t.state <> %(dropped)s,
        true, COALESCE(extract(epoch FROM t.dropped_at), 0)::float8
    FROM own JOIN catalog_table t
        ON t.location ~>=~ (own.path || '/') AND t.location ~<~ (own.path || '0')
    UNION
    SELECT p.path, t.id, t.state <> %(dropped)s, false, 0
    FROM own JOIN catalog_icebergpath p ON p.path = own.path JOIN catalog_table t ON t.id = p.table_id
    UNION
    SELECT p.path, t.id, t.state <> %(dropped)s, false, 0
    FROM own
    JOIN catalog_icebergpath p ON p.path ~>=~ (own.path || '/') AND p.path ~<~ (own.path || '0')
    JOIN catalog_table t ON t.id = p.table_id
) {_STANDING}
"""  # noqa: S608 -- no input

_VALUES = {
    "dropped": str(TableState.DROPPED),
    "purge": str(JobKind.PURGE_TABLE),
    "succeeded": str(JobStatus.SUCCEEDED),
}


def claims_of(directories: Collection[str]) -> dict[str, list[Claim]]:
    """The claims on directories. One statement."""
    return _read(_AT, {"directories": list(directories)})


def claims_inside(table: int, directories: Collection[str]) -> dict[str, list[Claim]]:
    """The claims at and inside the directories of a table: those given, and its recorded paths.

    One statement. ``table`` is 0 for a table without a row.
    """
    return _read(_INSIDE, {"own": list(directories), "table": table})


def _read(statement: str, values: Mapping[str, Any]) -> dict[str, list[Claim]]:
    claims: dict[str, list[Claim]] = {}
    cursor = hot_cursor()
    cursor.execute(statement, {**values, **_VALUES})
    for path, *claim in cursor.fetchall():
        claims.setdefault(path, []).append(Claim(*claim))
    return claims


def is_held_now(claims: Collection[Claim]) -> bool:
    return any(claim.is_present for claim in claims)


def winners(claims: Collection[Claim]) -> Collection[Claim]:
    """Present tables before dropped ones, and these before purged ones; of tables dropped at one location the last."""
    present = [claim for claim in claims if claim.is_present]
    if present:
        return present
    claims = [claim for claim in claims if not claim.is_purged] or claims
    if all(claim.is_location for claim in claims):
        return [max(claims, key=lambda claim: (claim.dropped_at, claim.table_id))]
    return claims
