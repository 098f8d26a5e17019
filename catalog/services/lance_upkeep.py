"""Keeping Lance tables well: measuring them, and what the jobs of their maintenance do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lance.dataset import LanceDataset

from catalog.errors import CatalogError, IndexNotFound, TableHasNoData
from catalog.models import Job, JobKind, Table, TableHealth
from catalog.planning import BuiltIndex, StaleIndex, Statistics
from catalog.policies import EffectivePolicy
from catalog.services import (
    jobs,
    lance_cleanup,
    lance_commits,
    lance_compaction,
    lance_datasets,
    lance_orphans,
    lance_rebuilds,
)
from catalog.services import operations as ops
from catalog.services.access import SYSTEM
from catalog.services.jobs import Report, Spark
from catalog.services.lance_errors import refusing
from catalog.services.lance_index_plans import find_kind
from catalog.services.lance_indexes import IndexSummary, index_summaries


def measure(table: Table, policy: EffectivePolicy) -> Statistics | None:
    """What the newest version's manifest and the ledger say of a table; nothing is listed.

    None for a table that has no data.
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
    built = _built(table, indexes, rows)
    ledger = lance_cleanup.count_versions(table, policy)
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
        versions=ledger.versions,
        old_versions=ledger.old_versions,
        metadata_bytes=ledger.manifest_bytes,
        stale_indexes=tuple(
            StaleIndex(each.name, each.unindexed_rows) for each in indexes if each.unindexed_rows
        ),
        indexes=len(indexes),
        built_indexes=built,
    )


def _built(table: Table, indexes: Sequence[IndexSummary], rows: int) -> tuple[BuiltIndex, ...]:
    """The indexes, with how many rows there were when they were trained.

    That is asked of the version that they were trained on, as long as it is there, and kept from
    one measurement to the next. If it was gone before, the count begins with the rows of today.
    """
    versions = {each.name: each.trained_version for each in indexes if _is_trained(each)}
    known = _measured_before(table) if versions else {}

    def built(index: IndexSummary) -> BuiltIndex:
        version, trained = versions.get(index.name), 0
        if version is not None:
            kept = known.get((index.name, version))
            trained = _rows_of(table, version, rows) if kept is None else kept
        return BuiltIndex(index.name, index.segments or 0, index.size_bytes or 0, version, trained)

    return tuple(map(built, indexes))


def _measured_before(table: Table) -> dict[tuple[str, int], int]:
    """The rows that indexes were trained on, by their names and that version."""
    measured = TableHealth.objects.filter(table=table, statistics__has_key="built_indexes")
    last = measured.order_by("-measured_at").values_list("statistics", flat=True).first() or {}
    return {
        (each["name"], each["trained_version"]): each["trained_rows"]
        for each in last.get("built_indexes", ())
    }


def _is_trained(index: IndexSummary) -> bool:
    kind = find_kind(index.type)
    return kind is not None and kind.is_vector


def _rows_of(table: Table, version: int, otherwise: int) -> int:
    """How many rows a version has; if it cannot be read any more, what the caller says."""
    try:
        dataset = lance_datasets.read(actor=SYSTEM, table=table.identifier, version=version)
        with refusing(table.identifier):
            return dataset.count_rows()
    except (CatalogError, OSError, ValueError):
        return otherwise


def optimize_indexes(job: Job, report: Report) -> Mapping[str, Any]:
    """Bring the indexes that the job names, or all that are behind, up to date with the rows.

    What an index was trained with stays. Raises IndexNotFound when none of those named is there.
    """
    actor, table = jobs.principal(job), jobs.identify(job)
    dataset = lance_datasets.read(actor=actor, table=table)
    with refusing(table):
        before = index_summaries(dataset)
    asked = job.parameters.get("indexes")
    there = [each for each in before if asked is None or each.name in asked]
    if asked and not there:
        raise IndexNotFound(table, asked[0])
    stale = [each for each in there if each.unindexed_rows]
    names = [each.name for each in stale]
    total = sum(each.unindexed_rows or 0 for each in stale)
    outcome = {"plan": {"indexes": names, "rows": total}, "before": _figures(before)}
    if job.is_dry_run:
        done = [IndexSummary(each.name, "", (), "", unindexed_rows=0) for each in stale]
        kept = [each for each in before if each.name not in names]
        return {**outcome, "after": _figures([*kept, *done])}
    if not names:
        return {**outcome, "after": outcome["before"], "note": "every index was up to date"}
    report(0, total)

    def work(newest: LanceDataset) -> list[IndexSummary]:
        newest.optimize.optimize_indices(index_names=names)
        return index_summaries(newest)

    written = lance_commits.write(
        actor=actor,
        table=table,
        operation=ops.OptimizeIndexes,
        work=work,
        summary={"job": job.pk, "indexes": names},
        may_commit=lambda: report(job.progress, None),
    )
    report(total, total)
    jobs.log_event(job, f"committed version {written.version}", data={"indexes": names})
    return {
        **outcome,
        "after": _figures(written.result),
        "version": written.version,
        "transaction_id": written.transaction_id,
    }


def _figures(indexes: list[IndexSummary]) -> dict[str, int]:
    return {
        "indexes": len(indexes),
        "stale_indexes": sum(bool(each.unindexed_rows) for each in indexes),
        "unindexed_rows": sum(each.unindexed_rows or 0 for each in indexes),
    }


def _in_process(
    work: Callable[[Job, Report], Mapping[str, Any]],
) -> Callable[..., Mapping[str, Any]]:
    def run(job: Job, report: Report, *, spark: Spark | None) -> Mapping[str, Any]:
        del spark  # such work touches little more than metadata
        return work(job, report)

    return run


WORK: Mapping[JobKind, Callable[..., Mapping[str, Any]]] = {
    JobKind.COMPACT: lance_compaction.compact,
    JobKind.CLEAN_UP: _in_process(lance_cleanup.clean_up),
    JobKind.REMOVE_ORPHANS: _in_process(lance_orphans.remove_orphans),
    JobKind.OPTIMIZE_INDEXES: _in_process(optimize_indexes),
    JobKind.REBUILD_INDEXES: _in_process(lance_rebuilds.rebuild_indexes),
}
"""What the jobs of Lance tables do: functions of the job, ``report`` and ``spark``."""
