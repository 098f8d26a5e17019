"""The tables that hold a directory, by their location or by a path of an Iceberg table."""

from collections.abc import Collection
from dataclasses import dataclass

from django.db import connection
from django.db.models import Exists, OuterRef, Q

from catalog.models import IcebergPath, Job, JobKind, JobStatus, Table, TableState


@dataclass(frozen=True, slots=True)
class Claim:
    """One table's hold of one directory."""

    table_id: int
    is_present: bool
    is_location: bool
    dropped_at: float
    is_purged: bool = False
    """True if only files that its purge left in place are there."""


def claims_of(in_paths: Q, in_locations: Q) -> dict[str, list[Claim]]:
    """The claims on directories. A dropped table whose files were all removed has none."""
    purged = Job.objects.complete_purges()
    claims: dict[str, list[Claim]] = {}
    locations = Table.objects.filter(in_locations).exclude(
        Exists(purged.filter(table=OuterRef("pk"))), state=TableState.DROPPED
    )
    for path, pk, state, dropped_at, remaining in locations.values_list(
        "location", "pk", "state", "dropped_at", "remaining_files"
    ):
        moment = dropped_at.timestamp() if dropped_at is not None else 0.0
        claim = Claim(pk, state != TableState.DROPPED, True, moment, remaining is not None)
        claims.setdefault(path, []).append(claim)
    paths = IcebergPath.objects.filter(in_paths).exclude(
        Exists(purged.filter(table=OuterRef("table"))), table__state=TableState.DROPPED
    )
    for path, pk, state, remaining in paths.values_list(
        "path", "table_id", "table__state", "table__remaining_files"
    ):
        claim = Claim(pk, state != TableState.DROPPED, False, 0.0, remaining is not None)
        claims.setdefault(path, []).append(claim)
    return claims


# As a constant, because the compilation of such queries takes longer than their execution. The operators
# are those of the indexes on prefixes: '0' follows '/'. UNION leaves out repetitions.
_INSIDE = """
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
) claims LEFT JOIN catalog_remainingfiles r ON r.table_id = claims.id
WHERE is_present OR r.table_id IS NOT NULL OR NOT EXISTS (
    SELECT FROM catalog_job j WHERE j.table_id = claims.id
        AND j.kind = %(purge)s AND j.status = %(succeeded)s
)
"""

_VALUES = {
    "dropped": str(TableState.DROPPED),
    "purge": str(JobKind.PURGE_TABLE),
    "succeeded": str(JobStatus.SUCCEEDED),
}


def claims_inside(table: int, directories: Collection[str]) -> dict[str, list[Claim]]:
    """The claims at and inside the directories of a table: those given, and its recorded paths.

    One statement. ``table`` is 0 for a table without a row.
    """
    claims: dict[str, list[Claim]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_INSIDE, {"own": list(directories), "table": table, **_VALUES})
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
