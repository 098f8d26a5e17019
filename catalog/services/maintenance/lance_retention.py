"""Versions of Lance tables that the maintenance policy no longer retains."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Sum, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.identifiers import Identifier
from catalog.models import Job, JobKind, JobStatus, MaterializedView, Table, TableVersion
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags

_ACTIVE = (JobStatus.QUEUED, JobStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class LedgerCount:
    """Number of versions in the ledger, on all branches."""

    versions: int
    old_versions: int
    manifest_bytes: int

    def figures(self) -> dict[str, int]:
        return {
            "versions": self.versions,
            "old_versions": self.old_versions,
            "manifest_bytes": self.manifest_bytes,
        }


def count_versions(table: Table, policy: Mapping[str, Any] | Any) -> LedgerCount:
    """Count a table's versions, and those that the policy no longer retains."""
    of_table = TableVersion.objects.visible().filter(table=table)
    totals = of_table.aggregate(number=Count("pk"), size=Sum("manifest_size"))
    old = sum(map(len, old_versions(table, policy).values()))
    return LedgerCount(totals["number"], old, totals["size"] or 0)


def old_versions(table: Table, policy: Mapping[str, Any] | Any) -> dict[str, set[int]]:
    """Versions that the policy no longer retains and nothing else holds, by branch."""
    before = timezone.now() - timedelta(seconds=policy["keep_for"])
    rows = (
        TableVersion.objects.visible()
        .filter(table=table)
        .with_end()
        .annotate(
            number=Window(RowNumber(), partition_by=F("branch"), order_by=F("version").desc()),
        )
        .filter(number__gt=policy["keep_versions"], ended_at__lt=before)
    )
    candidates = defaultdict(set)
    for branch, version in rows.values_list("branch", "version"):
        candidates[branch].add(version)
    held = held_versions(table) if candidates else {}
    removable = {branch: old - held.get(branch, set()) for branch, old in candidates.items()}
    return {branch: old for branch, old in removable.items() if old}


def held_versions(table: Table) -> dict[str, set[int]]:
    """Versions that are held at any age: tagged, parents of branches, read by views or jobs."""
    held = defaultdict(set)
    for tag in pages(lance_tags.list_tags, table.identifier):
        held[tag.branch].add(tag.version)
    for branch in pages(lance_branches.list_branches, table.identifier):
        held[branch.parent].add(branch.parent_version)
    for view in MaterializedView.objects.filter(source=table):
        held[""].update({view.source_version, view.definition.get("version")} - {None})
    reading = Job.objects.filter(status__in=_ACTIVE)
    refreshes = reading.filter(
        kind=JobKind.REFRESH_VIEW, table__materialized_view__source=table
    ).values_list("parameters", flat=True)
    for parameters in refreshes:
        held[""].update({parameters.get("src_version")} - {None})
    backfills = reading.filter(kind=JobKind.BACKFILL_COLUMN, table=table)
    for parameters in backfills.values_list("parameters", flat=True):
        held[parameters.get("branch") or ""].update({parameters.get("read_version")} - {None})
    return held


def pages(listing: Any, table: Identifier) -> Iterator[Any]:
    token = None
    while True:
        page, token = listing(actor=SYSTEM, table=table, page_token=token)
        yield from page
        if token is None:
            return
