"""Maintenance of Lance tables: measurement and index optimization."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lance.dataset import LanceDataset

from catalog import planning
from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    ColumnNotFound,
    IndexNotFound,
    InvalidInput,
    SchemaMismatch,
    TableHasNoData,
)
from catalog.identifiers import Identifier
from catalog.models import Job, JobEvent, Table, TableHealth
from catalog.planning import BuiltIndex, StaleIndex, Statistics
from catalog.policies import EffectivePolicy
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.commits import Written
from catalog.services.lance.errors import refusing
from catalog.services.lance.indexes import index_plans as lance_index_plans
from catalog.services.lance.indexes.index_types import find_kind
from catalog.services.lance.indexes.indexes import IndexSummary, index_summaries
from catalog.services.maintenance import (
    lance_compaction,
    lance_rebuilds,
    lance_retention,
)
from catalog.services.maintenance.indexes import missing_indexes, recall
from catalog.services.maintenance.plans import lance_removals
from catalog.services.maintenance.plans.lance_removals import Removable
from catalog.storage import locations


def measure(table: Table, policy: EffectivePolicy) -> Statistics | None:
    """Measure a table from the newest manifest and the ledger, without listing storage.

    Returns None for a table without data.
    """
    identifier = table.identifier
    try:
        dataset = lance_datasets.read(actor=SYSTEM, table=identifier)
    except TableHasNoData:
        return None
    with refusing(identifier):
        layout = lance_compaction.lay_out(dataset, policy)
        plan = lance_compaction.plan(dataset, layout, policy)
        indexes = index_summaries(dataset)
        rows = dataset.count_rows()
    measured = recall.last_searches(table, indexes)
    searches = {search.name: search for search in measured if search.is_current(layout.rows)}
    built = tuple(
        replace(built_index, obstacle=_obstacle(identifier, dataset, index))
        if planning.rebuild_reason(built_index, layout.rows, policy, searches.get(built_index.name))
        else built_index
        for built_index, index in zip(_built(table, indexes, rows), indexes, strict=True)
    )
    ledger = lance_retention.count_versions(table, policy)
    removable = Removable()
    if ledger.old_versions:
        removable = lance_removals.removable(table, lance_retention.old_versions(table, policy))
    return Statistics(
        format=table.format,
        version=layout.version,
        rows=layout.rows,
        deleted_rows=layout.deleted_rows,
        files=layout.files,
        bytes=layout.bytes,
        small_files=layout.small_files,
        rewrite_files=plan.files,
        rewrite_bytes=plan.bytes,
        rewritten_files=plan.new_files,
        file_sizes=planning.count_by_size(layout.sizes),
        is_in_object_store=locations.is_object(table.location),
        versions=ledger.versions,
        old_versions=ledger.old_versions,
        removable_files=removable.files,
        removable_bytes=removable.bytes,
        removable_is_estimate=removable.is_estimate,
        metadata_bytes=ledger.manifest_bytes,
        stale_indexes=tuple(
            StaleIndex(index.name, index.unindexed_rows)
            for index in indexes
            if index.unindexed_rows
        ),
        indexes=len(indexes),
        built_indexes=built,
        index_searches=measured,
        missing_indexes=tuple(
            missing.index for missing in missing_indexes.find(table, dataset, indexes, policy)
        ),
    )


def _built(table: Table, indexes: Sequence[IndexSummary], rows: int) -> tuple[BuiltIndex, ...]:
    """The indexes, with the number of rows at the time each was trained.

    The number is read from the version that the index was trained on and carried over from one
    measurement to the next. If that version no longer exists, the current number of rows is used.
    """
    versions = {index.name: index.trained_version for index in indexes if _is_trained(index)}
    trained_rows = _recorded_trained_rows(table) if versions else {}

    def built(index: IndexSummary) -> BuiltIndex:
        version, trained = versions.get(index.name), 0
        if version is not None:
            recorded = trained_rows.get((index.name, version))
            trained = _rows_of(table, version, rows) if recorded is None else recorded
        return BuiltIndex(index.name, index.segments or 0, index.size_bytes or 0, version, trained)

    return tuple(map(built, indexes))


def _recorded_trained_rows(table: Table) -> dict[tuple[str, int], int]:
    """Row counts at training from the last measurement, by index name and trained version."""
    measured = TableHealth.objects.filter(table=table, statistics__has_key="built_indexes")
    last = measured.order_by("-measured_at").values_list("statistics", flat=True).first() or {}
    return {
        (index["name"], index["trained_version"]): index["trained_rows"]
        for index in last.get("built_indexes", ())
    }


def _obstacle(table: Identifier, dataset: LanceDataset, index: IndexSummary) -> str:
    """The reason why an index cannot be rebuilt, so that no job is planned that fails every time."""
    try:
        with refusing(table):
            lance_rebuilds.plan_rebuild(dataset, index)
    except CatalogError as refused:
        return refused.message
    except (OSError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _is_trained(index: IndexSummary) -> bool:
    kind = find_kind(index.type)
    return kind is not None and kind.is_vector


def _rows_of(table: Table, version: int, otherwise: int) -> int:
    """The number of rows of a version, or ``otherwise`` if it cannot be read any more."""
    try:
        dataset = lance_datasets.read(actor=SYSTEM, table=table.identifier, version=version)
        with refusing(table.identifier):
            return dataset.count_rows()
    except (CatalogError, OSError, ValueError):
        return otherwise


def optimize_indexes(job: Job, report: Report) -> Mapping[str, Any]:
    """Add unindexed rows to the indexes that the job names, or to all stale indexes.

    The training of an index is kept. An index that Lance refuses to optimize is left as it is, and
    the result gives the reason. Raises IndexNotFound if none of the named indexes exists, and the
    refusal if none of the stale ones can be optimized.
    """
    actor, table = jobs.principal(job), jobs.identify(job)
    dataset = lance_datasets.read(actor=actor, table=table)
    with refusing(table):
        before = index_summaries(dataset)
    requested = job.parameters.get("indexes")
    selected = [index for index in before if requested is None or index.name in requested]
    if requested and not selected:
        raise IndexNotFound(table, requested[0])
    stale = [index for index in selected if index.unindexed_rows]
    names = [index.name for index in stale]
    total = sum(index.unindexed_rows or 0 for index in stale)
    outcome = {"plan": {"indexes": names, "rows": total}, "before": _figures(before)}
    if job.is_dry_run:
        optimized = [IndexSummary(index.name, "", (), "", unindexed_rows=0) for index in stale]
        unchanged = [index for index in before if index.name not in names]
        return {**outcome, "after": _figures([*unchanged, *optimized])}
    if not names:
        return {**outcome, "after": outcome["before"], "note": "all indexes are up to date"}
    report(0, total)
    return {**outcome, **_Optimizer(job, table, report, total).run(stale)}


@dataclass(slots=True)
class _Optimizer:
    job: Job
    table: Identifier
    report: Report
    total: int
    completed: int = 0
    """Rows of the finished indexes."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The reason for each index that is left as it is."""

    def run(self, stale: Sequence[IndexSummary]) -> dict[str, Any]:
        """Optimize plain indexes in one version, and trained or empty ones in one version each."""
        together = [index for index in stale if not (_is_trained(index) or _is_empty(index))]
        separate = [index for index in stale if index not in together]
        outcome: dict[str, Any] = {}
        for group in filter(None, [together, *([index] for index in separate)]):
            for written in self._optimize(group):
                outcome["after"] = _figures(written.result)
                outcome["version"] = written.version
                outcome["transaction_id"] = written.transaction_id
        if not outcome:
            raise InvalidInput("; ".join(self.skipped.values()))
        self.report(self.total, self.total)
        outcome["done"] = {"rows": self.completed}
        if self.skipped:
            outcome["left"] = self.skipped
            outcome["note"] = "not optimized: " + ", ".join(sorted(self.skipped))
        return outcome

    def _optimize(self, group: Sequence[IndexSummary]) -> Iterator[Written[list[IndexSummary]]]:
        """Optimize a group in one version, or one by one if Lance refuses the group."""
        try:
            yield self._write(group)
        except (InvalidInput, SchemaMismatch, ColumnNotFound, IndexNotFound) as refused:
            if len(group) > 1:
                for member in group:
                    yield from self._optimize([member])
                return
            (index,) = group
            self.skipped[index.name] = f"Index '{index.name}' was not optimized: {refused.message}"
            jobs.log_event(self.job, self.skipped[index.name], JobEvent.Level.WARNING)

    def _write(self, group: Sequence[IndexSummary]) -> Written[list[IndexSummary]]:
        names = [index.name for index in group]
        written = lance_commits.write(
            actor=jobs.principal(self.job),
            table=self.table,
            operation=data_operations.OptimizeIndexes,
            work=partial(self._run, names=names),
            summary={"job": self.job.pk, "indexes": names},
            may_commit=lambda: self.report(self.job.progress, None),
        )
        self.completed += sum(index.unindexed_rows or 0 for index in group)
        self.report(min(self.completed, self.total), None)
        version = f"committed version {written.version}"
        jobs.log_event(self.job, version, data={"indexes": names})
        return written

    def _run(self, newest: LanceDataset, names: list[str]) -> list[IndexSummary]:
        indexes = {existing.name: existing for existing in index_summaries(newest)}
        index = indexes.get(names[0]) if len(names) == 1 else None
        if index is not None and _is_empty(index):
            # Lance cannot optimize an index of a nested field that was built without rows.
            plan = lance_rebuilds.plan_rebuild(newest, index)
            lance_index_plans.build(newest, plan, replace=True)
        else:
            merged = None if index is None else _segments_to_merge(newest, index)
            newest.optimize.optimize_indices(index_names=names, num_indices_to_merge=merged)
        return index_summaries(newest)


def _is_empty(index: IndexSummary) -> bool:
    """True if the index covers no row. A vector index is never empty, because it has its training."""
    return not index.indexed_rows and not _is_trained(index)


def _segments_to_merge(dataset: LanceDataset, index: IndexSummary) -> int | None:
    """Number of the index's newest segments to merge with the unindexed rows; None: Lance decides.

    If Lance decides, it may split vector partitions that have grown too large, and it joins those
    that it considers too small, whatever number was requested: 50 partitions of 400 rows become
    two. So it may decide only if no partition is small enough to be joined, or if the index was
    built by partition size, which Lance then keeps.
    """
    kind = find_kind(index.type)
    if kind is None or not kind.is_vector:
        return None
    is_plain = "`" not in index.columns[0]  # else Lance does not find the vectors to split or join
    if is_plain and (index.details or {}).get("target_partition_size"):
        return None
    segments = [
        [partition["size"] for partition in segment["partitions"]]
        for segment in dataset.stats.index_stats(index.name)["indices"]
    ]
    smallest = min(map(sum, zip(*segments, strict=False)), default=0)
    if is_plain and not kind.is_graph and smallest >= _MAX_JOINED_PARTITION:
        return None
    return planning.segments_to_merge(
        [sum(partition_sizes) for partition_sizes in segments], index.unindexed_rows or 0
    )


_MAX_JOINED_PARTITION = 8192
"""Largest partition that Lance would create by itself; with a graph it would be a million rows."""


def _figures(indexes: list[IndexSummary]) -> dict[str, int]:
    return {
        "indexes": len(indexes),
        "stale_indexes": sum(bool(index.unindexed_rows) for index in indexes),
        "unindexed_rows": sum(index.unindexed_rows or 0 for index in indexes),
    }
