"""The number and size of the tables below the roots of storage profiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import BigIntegerField, Count, Q, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from catalog.models import StorageProfile, Table, TableHealth


@dataclass(frozen=True, slots=True)
class Size:
    """What is below the roots of a profile."""

    tables: int
    """Tables and views, without those in the trash."""
    bytes: int
    """Size of the tables that have been measured."""


def sizes(profiles: Sequence[StorageProfile]) -> dict[int, Size]:
    """The sizes of profiles, by primary key. Two statements."""
    if not profiles:
        return {}
    tables = Table.objects.present().filter(_below_any("location", profiles))
    counts = tables.aggregate(
        **{f"of_{row.pk}": Count("pk", filter=_below("location", row)) for row in profiles}
    )
    size = Cast(KeyTextTransform("bytes", "statistics"), BigIntegerField())
    measured = TableHealth.objects.newest().filter(
        _below_any("table__location", profiles), table__in=tables
    )
    totals = measured.aggregate(
        **{f"of_{row.pk}": Sum(size, filter=_below("table__location", row)) for row in profiles}
    )
    return {row.pk: Size(counts[f"of_{row.pk}"], totals[f"of_{row.pk}"] or 0) for row in profiles}


def _below_any(column: str, profiles: Sequence[StorageProfile]) -> Q:
    return reduce(or_, (_below(column, row) for row in profiles))


def _below(column: str, profile: StorageProfile) -> Q:
    return reduce(or_, (Q(**{f"{column}__startswith": root + "/"}) for root in profile.roots))
