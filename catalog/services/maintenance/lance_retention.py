"""Versions of Lance tables that the maintenance policy no longer retains."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, QuerySet, Sum, Window
from django.db.models.functions import RowNumber

from catalog.access import SYSTEM
from catalog.identifiers import Identifier
from catalog.models import Job, JobKind, JobStatus, MaterializedView, Table, TableVersion
from catalog.services.engine import database_clock
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
    before = database_clock.cutoff(policy["keep_for"])
    rows = _numbered_versions(table).filter(number__gt=policy["keep_versions"], ended_at__lt=before)
    candidates = defaultdict(set)
    for branch, version in rows.values_list("branch", "version"):
        candidates[branch].add(version)
    held = held_versions(table) if candidates else {}
    removable = {branch: old - held.get(branch, set()) for branch, old in candidates.items()}
    return {branch: old for branch, old in removable.items() if old}


def _numbered_versions(table: Table) -> QuerySet[Any]:
    """The versions with their end, and with their number on the branch, the newest first."""
    newest_first = Window(RowNumber(), partition_by=F("branch"), order_by=F("version").desc())
    versions = TableVersion.objects.visible().filter(table=table).with_end()
    numbered: QuerySet[Any] = versions.annotate(number=newest_first)
    return numbered


def held_versions(table: Table) -> dict[str, set[int]]:
    """Versions that are held at any age: tagged, parents of branches, read by views or jobs."""
    held = defaultdict(set)
    for branch, version, _ in holders(table):
        held[branch].add(version)
    return held


def holders(table: Table) -> Iterator[tuple[str, int, str]]:
    """Branch and number of each version that is held at any age, with the reason."""
    for tag in pages(lance_tags.list_tags, table.identifier):
        yield tag.branch, tag.version, f"tag '{tag.name}'"
    branches = list(pages(lance_branches.list_branches, table.identifier))
    for branch in branches:
        # Lance writes the file that names the parent after the first version of the branch.
        unknown = ("", *(other.name for other in branches if other is not branch))
        for parent in (branch.parent,) if branch.has_file else unknown:
            yield parent, branch.parent_version, f"branch '{branch.name}' was created from it"
    views = MaterializedView.objects.filter(source=table)
    for view in views:
        for version in {view.source_version, view.definition.get("version")} - {None}:
            yield "", version, "a materialized view shows it"
    reading = Job.objects.filter(status__in=_ACTIVE)
    refreshes = reading.filter(
        kind=JobKind.REFRESH_VIEW, table__materialized_view__source=table
    ).values_list("pk", "parameters")
    for job, parameters in refreshes:
        if (version := parameters.get("src_version")) is not None:
            yield "", version, f"job {job} reads it"
    backfills = reading.filter(kind=JobKind.BACKFILL_COLUMN, table=table)
    for job, parameters in backfills.values_list("pk", "parameters"):
        if (version := parameters.get("read_version")) is not None:
            yield parameters.get("branch") or "", version, f"job {job} reads it"


def retention(
    table: Table, policy: Mapping[str, Any] | Any, limit: int
) -> dict[tuple[str, int], list[str]]:
    """For the newest ``limit`` versions by branch and number, the reasons why a clean-up keeps them.

    A version without a reason expires, unless other tables refer to its files.
    """
    before = database_clock.cutoff(policy["keep_for"])
    rows = _numbered_versions(table).order_by("-created_at", "-pk")
    reasons: dict[tuple[str, int], list[str]] = {}
    for branch, version, number, ended_at in rows.values_list(
        "branch", "version", "number", "ended_at"
    )[:limit]:
        reasons[branch, version] = _reasons(branch, number, policy["keep_versions"])
        if number > 1 and ended_at is not None and ended_at >= before:
            reasons[branch, version].append("was the current version within the retention time")
    for branch, version, reason in holders(table):
        if (branch, version) in reasons:
            reasons[branch, version].append(reason)
    return reasons


def _reasons(branch: str, number: int, newest: int) -> list[str]:
    name = f"branch '{branch}'" if branch else "the main branch"
    if number == 1:
        return [f"current version of {name}"]
    return [f"among the {newest} newest of {name}"] if number <= newest else []


def pages(listing: Any, table: Identifier) -> Iterator[Any]:
    token = None
    while True:
        page, token = listing(actor=SYSTEM, table=table, page_token=token)
        yield from page
        if token is None:
            return
