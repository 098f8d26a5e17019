"""Indexes that the queries of a Lance table lack: their suggestion, and the job that creates them.

Queries over HTTP are counted by the columns that they compare (``catalog.services.tables.usage``).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from lance import IndexProgress
from lance.dataset import LanceDataset

from catalog.errors import CatalogError
from catalog.formats.lance.filters import Comparison
from catalog.models import Job, Table
from catalog.planning import MissingIndex
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.errors import refusing
from catalog.services.lance.indexes import index_plans as lance_index_plans
from catalog.services.lance.indexes.index_plans import NewIndex, Plan
from catalog.services.lance.indexes.index_types import find_kind
from catalog.services.lance.indexes.indexes import IndexSummary, index_summaries
from catalog.services.maintenance.lance_compaction import policy_values
from catalog.services.maintenance.lance_rebuilds import public_path
from catalog.services.tables import usage

_SERVING: Mapping[str, frozenset[str]] = {
    Comparison.VALUE: frozenset({"BTREE", "BITMAP", "ZONEMAP", "BLOOM_FILTER"}),
    Comparison.LABELS: frozenset({"LABEL_LIST"}),
    Comparison.SUBSTRING: frozenset({"NGRAM"}),
}
"""The types of scalar indexes that serve a use of a column."""
_TEXT_BYTES = 32
"""Assumed size of a value without a fixed size."""


@dataclass(frozen=True, slots=True)
class Missing:
    """An index that queries lack, with the plan of its build."""

    index: MissingIndex
    plan: Plan


def find(
    table: Table,
    dataset: LanceDataset,
    indexes: Sequence[IndexSummary],
    policy: Mapping[str, Any] | Any,
) -> list[Missing]:
    """The indexes that the policy's number of queries lacked, the most used first.

    One statement, and none for a table with few rows.
    """
    rows = dataset.count_rows()
    if rows < policy["index_rows"]:
        return []
    by_use: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    spellings: dict[str, str] = {}
    for (column, use), number in usage.queries_by_column(table).items():
        name, _, distance = use.partition(" ")
        spellings[column.lower()] = column
        by_use[column.lower(), name][distance] += number
    existing = {index.name: (index.type, index.columns) for index in indexes}
    missing = []
    for (folded, use), by_distance in by_use.items():
        column, queries = spellings[folded], by_distance.total()
        if queries < policy["index_queries"] or _is_served(dataset, indexes, column, use):
            continue
        distance = max(by_distance, key=by_distance.__getitem__)
        index_type = _index_type(dataset, column, use)
        if index_type is None:
            continue
        requested = NewIndex(column=column, index_type=index_type, distance_type=distance)
        plan = _plan(table, dataset, requested, existing)
        if plan is not None:
            metric = plan.options.get("metric", "")
            size = rows * _width(dataset, plan.column)
            index = MissingIndex(plan.column, plan.index_type, queries, size, metric)
            missing.append(Missing(index, plan))
    return sorted(missing, key=lambda entry: -entry.index.queries)


def _is_served(
    dataset: LanceDataset, indexes: Sequence[IndexSummary], column: str, use: str
) -> bool:
    for index in indexes:
        kind = find_kind(index.type)
        serves = (
            index.type in _SERVING.get(use, ())
            if use != usage.VECTOR
            else kind is not None and kind.is_vector
        )
        if serves and any(
            public_path(dataset, path).lower() == column.lower() for path in index.columns
        ):
            return True
    return False


def _plan(
    table: Table,
    dataset: LanceDataset,
    requested: NewIndex,
    existing: Mapping[str, tuple[str, tuple[str, ...]]],
) -> Plan | None:
    """The build of an index; None if the column does not suit it, or exists no more."""
    try:
        with refusing(table.identifier):
            plan = lance_index_plans.plan_index(
                table.identifier, dataset, requested, existing=existing
            )
            lance_index_plans.rehearse(dataset, plan)
    except (CatalogError, OSError, ValueError, RuntimeError):
        return None
    return plan


def _index_type(dataset: LanceDataset, column: str, use: str) -> str | None:
    if use == usage.VECTOR:
        return "IVF_PQ"
    if use == Comparison.LABELS:
        return "LABEL_LIST"
    if use == Comparison.SUBSTRING:
        return "NGRAM"
    if use != Comparison.VALUE:
        return None  # of another release
    kind = _type(dataset, column)
    return "BITMAP" if kind is not None and pa.types.is_boolean(kind) else "BTREE"


def _type(dataset: LanceDataset, column: str) -> pa.DataType | None:
    field = dataset.lance_schema.field_case_insensitive(column)
    return None if field is None else field.to_arrow().type  # type: ignore[attr-defined]


def _width(dataset: LanceDataset, column: str) -> int:
    """About the number of bytes of a value."""
    kind = _type(dataset, column)
    if kind is None:
        return _TEXT_BYTES
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * (_bits(kind.value_type) // 8 or 4)
    return max(_bits(kind) // 8, 1) if _bits(kind) else _TEXT_BYTES


def _bits(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0


def create_indexes(job: Job, report: Report) -> Mapping[str, Any]:
    """Create the indexes that queries lack now, each in a version of its own.

    A second attempt creates those that are still missing.
    """
    actor, table = jobs.principal(job), jobs.identify(job)
    dataset = lance_datasets.read(actor=actor, table=table)
    with refusing(table):
        indexes, rows = index_summaries(dataset), dataset.count_rows()
        missing = find(job.table, dataset, indexes, policy_values(job))
    outcome: dict[str, Any] = {
        "plan": {"indexes": [asdict(entry.index) for entry in missing], "rows": rows},
        "planned": {"indexes": len(missing)},
        "before": {"indexes": len(indexes)},
    }
    if job.is_dry_run:
        return {**outcome, "after": {"indexes": len(indexes) + len(missing)}}
    if not missing:
        return {**outcome, "after": outcome["before"], "note": "no index is missing"}
    report(0, rows * len(missing))
    created: list[str] = []
    for number, entry in enumerate(missing):
        jobs.log_event(job, f"creating index '{entry.plan.name}'", data=entry.plan.summary)
        written = lance_commits.write(
            actor=actor,
            table=jobs.identify(job),  # it may have been renamed
            operation=data_operations.CreateMissingIndex,
            work=partial(_build, plan=entry.plan, report=report, rows_before=number * rows),
            summary={**entry.plan.summary, "job": job.pk},
            may_commit=lambda: report(job.progress, None),
        )
        created.append(entry.plan.name)
        outcome |= {"version": written.version, "transaction_id": written.transaction_id}
        report((number + 1) * rows, None)
    return {
        **outcome,
        "created": created,
        "done": {"indexes": len(created)},
        "after": {"indexes": len(indexes) + len(created)},
    }


def _build(newest: LanceDataset, *, plan: Plan, report: Report, rows_before: int) -> None:
    def progress(event: IndexProgress) -> None:
        # Other stages count in other units.
        if event.unit == "rows":
            report(rows_before + (event.completed or 0), None)

    lance_index_plans.build(newest, plan, progress)
