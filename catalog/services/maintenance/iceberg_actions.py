"""Maintenance jobs of Iceberg tables, which run Iceberg's procedures on Spark."""

from collections.abc import Callable
from typing import Any

from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.formats.iceberg import sorted_files
from catalog.formats.iceberg.reading import Document
from catalog.layouts import Layout
from catalog.models import Job
from catalog.planning import Statistics, has_many_equality_deletes, must_sort_all
from catalog.policies import EffectivePolicy
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report, Spark
from catalog.services.iceberg.jobs.files import Unreadable
from catalog.services.maintenance import iceberg_skips
from catalog.services.maintenance.iceberg_procedures import (
    outcome_of,
    policy_of,
    require_metadata,
    require_plain_directories,
    run_procedure,
    statistics_of,
)
from catalog.services.maintenance.iceberg_statistics import compaction_rules
from catalog.services.maintenance.layouts import table_layouts

_FIRST_WITH_VECTORS = 3
"""The first format version with deletion vectors."""


def compact(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Rewrite small files and deleted rows, partition by partition (rewrite_data_files).

    Delete files that apply to no data file are removed too. If the policy requires a sort order, the
    rewritten files have it; if too few files have it already, all files are rewritten. Files that may
    not be read for the table are skipped, and so are data files whose deleted rows such files name. Raises
    InvalidInput if the order does not fit the table any more.
    """
    policy = policy_of(job)
    document = require_metadata(job.table).document
    layout = table_layouts.require_layout(document, policy)
    unreadable = iceberg_skips.survey(job)
    if reason := iceberg_skips.reason_to_do_nothing(unreadable):
        return iceberg_skips.nothing(job, unreadable, "No files were rewritten", reason)
    before = statistics_of(job, policy, unreadable.files)
    skipped = iceberg_skips.left_out(
        job, unreadable, "these, and data files with rows that they delete, were not rewritten"
    )
    is_all = must_sort_all(
        files=before.files, unsorted_bytes=before.unsorted_bytes, size=before.bytes, policy=policy
    )
    facts = _facts(document, layout, is_all=is_all)
    planned: dict[str, Any] = {
        "rewritten_data_files_count": before.rewrite_files,
        "added_data_files_count": before.rewritten_files,
        "rewritten_bytes_count": before.rewrite_bytes,
        **_planned_dangling(before),
    }
    if layout.is_sorted:
        # Spark divides the rows by a sample of their values: into fewer parts if there are few values, and
        # a part that is larger than the others becomes several files.
        planned["estimates"] = ["added_data_files_count"]
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned, "layout": facts, **skipped}
    if not before.rewrite_files and not before.dangling_deletes:
        result = {"before": before.as_json(), "layout": facts, "note": "no files to rewrite"}
        return result | skipped
    require_plain_directories(job.table)
    report(0, before.rewrite_files)
    procedure_result = run_procedure(
        job,
        report,
        spark,
        options=_options(before, policy) | ({"rewrite-all": "true"} if is_all else {}),
        total=before.rewrite_files,
        **_order(layout),
        **_leaving_out(job, unreadable),
    )
    rewritten = procedure_result.get("rewritten_data_files_count", 0)
    report(rewritten, max(rewritten, 1))
    if layout.is_sorted:
        facts["snapshots"] = table_layouts.snapshots_of(require_metadata(job.table).document, job)
        job.result = {"layout": facts}
        jobs.save_result(job)  # by which the measurement after the job recognizes the sorted files
    outcome = outcome_of(job, policy, before, procedure_result, unreadable.files)
    return outcome | {"planned": planned, "layout": facts} | skipped


def _leaving_out(job: Job, unreadable: Unreadable) -> dict[str, Any]:
    """The argument of a process that leaves out files, if there are such files."""
    return {"leaves_out": True} if iceberg_skips.permit_leaving_out(job, unreadable) else {}


def _facts(document: Document, layout: Layout, *, is_all: bool) -> dict[str, Any]:
    """The layout of a job for its result, by which later jobs recognize the files that are sorted."""
    facts: dict[str, Any] = {"strategy": str(layout.strategy), "sort_order": layout.text}
    if layout.is_sorted:
        facts |= {
            "fields": sorted_files.fields(document, layout),
            "order_id": sorted_files.order_id(document, layout),
            "files": "all" if is_all else "small files, and files with deleted rows",
        }
    return facts


def _order(layout: Layout) -> dict[str, Any]:
    """The arguments of the procedure for the order of rows; none for bin-packing."""
    if not layout.is_sorted:
        return {}
    return {"strategy": "sort", "sort_order": layout.procedure_argument}


def _options(before: Statistics, policy: EffectivePolicy) -> dict[str, str]:
    options = iceberg_maintenance.compaction_options(**compaction_rules(policy))
    if has_many_equality_deletes(
        files=before.applying_equality_delete_files,
        keys=before.equality_deletes,
        rows=before.rows,
        policy=policy,
    ):
        # The procedure counts the equality delete files that apply to a data file, not their rows.
        options["delete-file-threshold"] = "1"
    return options


def rewrite_manifests(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Merge small manifests, sorted by partition (rewrite_manifests)."""
    return _rewrite(job, report, spark, _planned_manifests, effect="No manifests were rewritten")


def rewrite_position_deletes(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Merge position delete files, and drop those whose data files were removed.

    Delete files that may not be read for the table are skipped. Data files are not read. From format version 3
    on, the procedure writes deletion vectors, which replace all position deletes of their data file (spec:
    Deletion Vectors). Therefore none can be skipped there, or deleted rows would come back.
    """
    version = require_metadata(job.table).document.get("format-version", 1)
    return _rewrite(
        job,
        report,
        spark,
        _planned_deletes,
        effect="No delete files were rewritten",
        obstacle="deletion vectors would lack the deletes of files that may not be read for this table"
        if version >= _FIRST_WITH_VECTORS
        else "",
        options={"partial-progress.enabled": "true", "min-input-files": "2"},
    )


def compute_statistics(job: Job, report: Report, *, spark: Spark | None) -> dict[str, Any]:
    """Compute the number of distinct values per column into a Puffin file (compute_table_stats).

    They describe the whole snapshot. Therefore none are computed while one of its files may not be read
    for the table.
    """
    return _rewrite(
        job,
        report,
        spark,
        lambda s: {"rows": s.rows},
        effect="No statistics were computed",
        obstacle="they would lack the rows of files that may not be read for this table",
    )


def _rewrite(
    job: Job,
    report: Report,
    spark: Spark | None,
    planned: Callable[[Statistics], dict[str, Any]],
    *,
    effect: str,
    obstacle: str = "",
    **request: Any,
) -> dict[str, Any]:
    """Run a procedure. It skips files that may not be read, unless there is an ``obstacle``.

    ``effect`` says that the job did nothing.
    """
    policy = policy_of(job)
    unreadable = iceberg_skips.survey(job)
    reason = iceberg_skips.reason_to_do_nothing(unreadable)
    if unreadable.files and not reason:
        reason = obstacle
    if reason:
        return iceberg_skips.nothing(job, unreadable, effect, reason)
    before = statistics_of(job, policy, unreadable.files)
    skipped = iceberg_skips.left_out(job, unreadable, "delete files among these were not rewritten")
    if job.is_dry_run:
        return {"before": before.as_json(), "planned": planned(before), **skipped}
    if not _has_snapshots(before):
        return {"before": before.as_json(), "note": "the table is empty"}
    require_plain_directories(job.table)
    arguments = request | _leaving_out(job, unreadable)
    procedure_result = run_procedure(job, report, spark, **arguments)
    return outcome_of(job, policy, before, procedure_result, unreadable.files) | skipped


def _planned_manifests(statistics: Statistics) -> dict[str, Any]:
    return {
        "manifests": statistics.manifests,
        "rewritten_manifests": statistics.rewritten_manifests,
    }


def _planned_deletes(statistics: Statistics) -> dict[str, Any]:
    return {
        "delete_files": statistics.delete_files,
        "rewritten_delete_files": statistics.rewritten_delete_files,
        **_planned_dangling(statistics),
    }


def _planned_dangling(statistics: Statistics) -> dict[str, int]:
    dangling = statistics.dangling_deletes
    return {"removed_delete_files_count": dangling} if dangling else {}


def _has_snapshots(statistics: Statistics) -> bool:
    return statistics.versions > 0
