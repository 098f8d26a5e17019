"""The tables that hold a directory, by their location or by a path of an Iceberg table."""

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q

from catalog.models import IcebergPath, Job, JobKind, JobStatus, Table, TableState


@dataclass(frozen=True, slots=True)
class Claim:
    """One table's hold of one directory."""

    table_id: int
    is_present: bool
    is_location: bool
    dropped_at: float


def claims_of(in_paths: Q, in_locations: Q) -> dict[str, list[Claim]]:
    """The claims on directories. A dropped table whose files were removed has none."""
    purged = Job.objects.filter(kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)
    claims: dict[str, list[Claim]] = {}
    locations = Table.objects.filter(in_locations).exclude(
        Exists(purged.filter(table=OuterRef("pk"))), state=TableState.DROPPED
    )
    for path, pk, state, dropped_at in locations.values_list(
        "location", "pk", "state", "dropped_at"
    ):
        moment = dropped_at.timestamp() if dropped_at is not None else 0.0
        claim = Claim(pk, state != TableState.DROPPED, True, moment)
        claims.setdefault(path, []).append(claim)
    paths = IcebergPath.objects.filter(in_paths).exclude(
        Exists(purged.filter(table=OuterRef("table"))), table__state=TableState.DROPPED
    )
    for path, pk, state in paths.values_list("path", "table_id", "table__state"):
        claim = Claim(pk, state != TableState.DROPPED, False, 0.0)
        claims.setdefault(path, []).append(claim)
    return claims


def is_held_now(claims: Collection[Claim]) -> bool:
    return any(claim.is_present for claim in claims)


def winners(claims: Collection[Claim]) -> Collection[Claim]:
    """Present tables before dropped ones; of tables dropped at one location the last."""
    present = [claim for claim in claims if claim.is_present]
    if present:
        return present
    if all(claim.is_location for claim in claims):
        return [max(claims, key=lambda claim: (claim.dropped_at, claim.table_id))]
    return claims
