"""Rebuilds of Lance indexes: the parameters an index was built with, and the job that rebuilds it.

Incremental updates degrade an index: new rows add segments, each of which every search reads, and a
vector index keeps the centroids and codes of the rows it was trained on. A rebuilt index has one
segment and covers all rows. Lance replaces the index in one version, so readers use either the old
index or the new one; older versions keep the old one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance import IndexProgress
from lance.dataset import LanceDataset

from catalog.access import SYSTEM
from catalog.errors import CatalogError, CommitConflict, IndexNotFound, InvalidInput
from catalog.identifiers import Identifier, label
from catalog.models import Job, JobEvent
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.errors import refusing
from catalog.services.lance.indexes import index_plans as lance_index_plans
from catalog.services.lance.indexes.index_plans import Plan, rehearse
from catalog.services.lance.indexes.index_types import Kind, find_kind
from catalog.services.lance.indexes.indexes import IndexSummary, find_index, index_summaries

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

# Only the number of partitions is read from the statistics; centroids can take megabytes.
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")

_SINCE_VERSION = "since_version"
"""Key in the result of an unfinished job: the newest version at the start of its first attempt."""
_NOT_COMPARED = {"runtime_hints", "target_partition_size"}
"""Details that may differ: hints for the build, and those a rehearsal on a few rows leaves out."""


def resolve_names(*, table: Identifier, names: Sequence[str] | None = None) -> list[str]:
    """Canonical names of the given indexes, or of all indexes of the table.

    Raises IndexNotFound for an unknown name, and InvalidInput if the table has no index.
    """
    indexes = _indexes(table)
    if names is None:
        if not indexes:
            raise _without_indexes(table)
        return [index.name for index in indexes]
    return list(dict.fromkeys(find_index(table, indexes, name).name for name in names))


def index_names(*, table: Identifier) -> list[str]:
    """Names of all indexes of the newest version. Raises TableNotFound, TableHasNoData."""
    return [index.name for index in _indexes(table)]


def _indexes(table: Identifier) -> list[IndexSummary]:
    dataset = lance_datasets.read(actor=SYSTEM, table=table)
    with refusing(table):
        return index_summaries(dataset)


def plan_rebuild(dataset: LanceDataset, index: IndexSummary) -> Plan:
    """Plan the rebuild of an index with the same type, column and parameters.

    A vector index keeps its number of partitions; one that was built by partition size gets as many
    partitions as the current rows require. Raises InvalidInput for an index that cannot be rebuilt:
    an unknown type, parameters that Lance does not report or accept, too few vectors for training.
    """
    kind = find_kind(index.type)
    if kind is None or len(index.columns) != 1:
        unsupported = index.type if kind is None else "index of several columns"
        raise _refused(index, f"the catalog builds no {unsupported}")
    details = dict(index.details or {})
    if kind.is_vector and "metric_type" not in details:
        raise _refused(
            index, "it is too old: Lance does not report the parameters it was built with"
        )
    column = public_path(dataset, index.columns[0])
    cost = dataset.count_rows() * kind.cost
    if kind.is_vector:
        options = _vector_options(dataset, index.name, details)
        lance_index_plans.require_vectors(dataset, column, kind, options)
        plan = Plan(index.name, column, kind.name, options, cost)
    else:
        options, config = _scalar_options(dataset, index.name, kind, details)
        plan = Plan(index.name, column, kind.name, options, cost, config)
    _compare(index, dataset, plan)
    return plan


def rebuild_indexes(job: Job, report: Report) -> Mapping[str, Any]:
    """Rebuild the indexes that the job names, or all indexes, each in a version of its own.

    An index that cannot be rebuilt is left as it is, and the result gives the reason. Concurrent
    appends do not conflict; the new index does not cover those rows yet. Raises IndexNotFound if
    none of the named indexes exists, and the refusal if none of the existing ones can be rebuilt.
    """
    return _Rebuild(job, jobs.identify(job), report).run()


@dataclass(slots=True)
class _Rebuild:
    job: Job
    table: Identifier
    report: Report
    completed: int = 0
    """Rows of the finished indexes."""
    total: int = 0

    def run(self) -> dict[str, Any]:
        dataset = lance_datasets.read(actor=jobs.principal(self.job), table=self.table)
        with refusing(self.table):
            rows, before = dataset.count_rows(), index_summaries(dataset)
            chosen = self._chosen(before)
            plans, skipped = self._plan(dataset, chosen)
        state = dict(self.job.result or {})
        since = state.get(_SINCE_VERSION, dataset.version)
        if _SINCE_VERSION in state:  # rebuilt by an earlier attempt or by another job
            rebuilt = {index.name for index in chosen if (index.trained_version or 0) >= since}
        else:
            rebuilt = set()
        outcome_so_far = {
            "plan": {"indexes": [_plan_json(plan, index) for plan, index in plans], "rows": rows},
            "before": figures(before),
            **({"left": skipped} if skipped else {}),
        }
        expected = _expected(before, {plan.name for plan, _ in plans})
        if self.job.is_dry_run:
            return {**outcome_so_far, "after": expected}
        outcome_so_far["planned"] = {"segments": expected["segments"]}
        if rebuilt:  # report the figures of the whole job, from before the first attempt
            outcome_so_far |= {"plan": state["plan"], "before": state["before"]}
        self.job.result = {**outcome_so_far, _SINCE_VERSION: since}
        jobs.save_result(self.job)
        waiting = [plan for plan, index in plans if index.name not in rebuilt]
        self.total = rows * len(waiting)
        self.report(0, self.total)
        outcome = dict(outcome_so_far)
        after = before
        for plan in waiting:
            written = self._build(plan, rows)
            after = written.result
            outcome |= {"version": written.version, "transaction_id": written.transaction_id}
        self.report(self.total, self.total)
        if rebuilt:
            outcome["note"] = "rebuilt since the job began: " + ", ".join(sorted(rebuilt))
        elif skipped:
            outcome["note"] = "not rebuilt: " + ", ".join(sorted(skipped))
        return {**outcome, "after": figures(after)}

    def _chosen(self, indexes: Sequence[IndexSummary]) -> list[IndexSummary]:
        requested = self.job.parameters.get("indexes")
        chosen = [index for index in indexes if requested is None or index.name in requested]
        if not chosen:
            raise (
                IndexNotFound(self.table, requested[0])
                if requested
                else _without_indexes(self.table)
            )
        return chosen

    def _plan(
        self, dataset: LanceDataset, chosen: Sequence[IndexSummary]
    ) -> tuple[list[tuple[Plan, IndexSummary]], dict[str, str]]:
        """Plans, and the reason for each index without one. Raises InvalidInput without any plan."""
        plans: list[tuple[Plan, IndexSummary]] = []
        existing = {index.name for index in chosen}
        skipped = {
            name: IndexNotFound(self.table, name).message
            for name in self.job.parameters.get("indexes") or ()
            if name not in existing
        }
        for index in chosen:
            try:
                with refusing(self.table):
                    plans.append((plan_rebuild(dataset, index), index))
            except CatalogError as refused:
                if len(chosen) == 1 and not skipped:
                    raise
                skipped[index.name] = refused.message
                jobs.log_event(self.job, refused.message, JobEvent.Level.WARNING)
        if not plans:
            raise InvalidInput("; ".join(skipped.values()))
        return plans, skipped

    def _build(self, plan: Plan, rows: int) -> lance_commits.Written[list[IndexSummary]]:
        self.table = jobs.identify(self.job)  # it may have been renamed
        jobs.log_event(self.job, f"rebuilding index '{plan.name}'", data=plan.summary)
        written = lance_commits.write(
            actor=jobs.principal(self.job),
            table=self.table,
            operation=data_operations.RebuildIndex,
            work=partial(self._work, plan=plan),
            summary={**plan.summary, "job": self.job.pk},
            may_commit=partial(self._may_commit, plan),
        )
        self.completed += rows
        self.report(self.completed, self.total)
        jobs.log_event(self.job, f"committed version {written.version}", data={"index": plan.name})
        return written

    def _work(self, newest: LanceDataset, plan: Plan) -> list[IndexSummary]:
        """Build the index on the newest version. Raises CommitConflict if its definition changed."""
        indexes = index_summaries(newest)
        index = next((candidate for candidate in indexes if candidate.name == plan.name), None)
        if index is None:
            raise IndexNotFound(self.table, plan.name)
        again = plan_rebuild(newest, index)
        if again.summary != plan.summary:
            raise CommitConflict(
                f"Index '{plan.name}' of table '{label(self.table)}' was changed concurrently"
            )

        def progress(event: IndexProgress) -> None:
            # Other stages count in other units.
            rows = (event.completed or 0) if event.unit == "rows" else 0
            self.report(max(self.job.progress, min(self.completed + rows, self.total)), None)

        lance_index_plans.build(newest, plan, progress, replace=True)
        return index_summaries(newest)

    def _may_commit(self, plan: Plan) -> None:
        self.report(self.job.progress, None)
        # Lance would recreate an index whose column was dropped meanwhile.
        newest = lance_datasets.read(actor=jobs.principal(self.job), table=self.table)
        if all(index.name != plan.name for index in newest.describe_indices()):
            raise IndexNotFound(self.table, plan.name)


def figures(indexes: Sequence[IndexSummary]) -> dict[str, int]:
    """Figures of a table's indexes for the result of a job."""
    return {
        "indexes": len(indexes),
        "stale_indexes": sum(bool(index.unindexed_rows) for index in indexes),
        "unindexed_rows": sum(index.unindexed_rows or 0 for index in indexes),
        "segments": sum(index.segments or 0 for index in indexes),
        "index_bytes": sum(index.size_bytes or 0 for index in indexes),
    }


def _expected(before: Sequence[IndexSummary], rebuilt: set[str]) -> dict[str, int]:
    """Expected figures after the job, without the size, which is unknown."""
    unchanged = [index for index in before if index.name not in rebuilt]
    expected = figures(unchanged)
    del expected["index_bytes"]
    return {
        **expected,
        "indexes": len(before),
        "segments": expected["segments"] + len(before) - len(unchanged),
    }


def _plan_json(plan: Plan, index: IndexSummary) -> dict[str, Any]:
    """Build parameters and present state of an index, for the job's plan."""
    return {
        **plan.summary,
        "segments": index.segments,
        "unindexed_rows": index.unindexed_rows,
        "size_bytes": index.size_bytes,
    }


# --- parameters an index was built with ------------------------------------------------------------


def _vector_options(dataset: LanceDataset, name: str, details: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"metric": str(details["metric_type"]).lower()}
    size = details.get("target_partition_size")
    if size:
        options["target_partition_size"] = size
    else:
        options["num_partitions"] = max(
            segment["num_partitions"] for segment in dataset.stats.index_stats(name)["indices"]
        )
    compression, graph = details.get("compression") or {}, details.get("hnsw") or {}
    options |= {key: compression[key] for key in _COMPRESSION if key in compression}
    options |= {name: graph[key] for key, name in _GRAPH.items() if key in graph}
    hints = details.get("runtime_hints") or {}
    options |= {name: int(hints[key]) for key, name in _HINTS.items() if key in hints}
    return options


_COMPRESSION = ("num_bits", "num_sub_vectors")
_GRAPH = {"max_connections": "m", "construction_ef": "ef_construction", "max_level": "max_level"}
_HINTS = {"lance.ivf.sample_rate": "sample_rate", "lance.ivf.max_iters": "max_iters"}


def _scalar_options(
    dataset: LanceDataset, name: str, kind: Kind, details: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Keyword arguments, and the configuration that Lance takes as one object."""
    if kind.name == "INVERTED":
        # The details leave out the stop words.
        config = dict(dataset.stats.index_stats(name)["indices"][0]["params"])
        return {"document_granularity": details.get("document_granularity", "row")}, config
    if kind.name == "MINHASH_LSH":
        return {}, {key: details[key] for key in _MINHASH if key in details}
    if kind.name in _IN_STATISTICS:
        first = dataset.stats.index_stats(name)["indices"][0]
        return {}, {key: first[key] for key in _IN_STATISTICS[kind.name] if key in first}
    return {}, None


_MINHASH = ("num_hashes", "num_bands", "shingle_size", "tokenizer")
_IN_STATISTICS = {
    "ZONEMAP": ("rows_per_zone",),
    "BLOOM_FILTER": ("number_of_items", "probability"),
}


def public_path(dataset: LanceDataset, path: str) -> str:
    """The path to request an index by; the path that Lance reports includes list items."""
    fields = dataset.lance_schema.fields()
    return next((public for lance_path, public in _paths(fields) if lance_path == path), path)


def _paths(
    fields: "Sequence[LanceField]",
    lance_prefix: str = "",
    public_prefix: str = "",
    *,
    is_list: bool = False,
) -> Iterator[tuple[str, str]]:
    for field in fields:
        name = lance_index_plans.quoted_name(field.name())
        lance_path = f"{lance_prefix}.{name}" if lance_prefix else name
        public_path = (
            public_prefix if is_list else (f"{public_prefix}.{name}" if public_prefix else name)
        )
        yield lance_path, public_path
        kind = field.to_arrow().type  # type: ignore[attr-defined]
        is_nested = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        yield from _paths(field.children(), lance_path, public_path, is_list=is_nested)


def _compare(index: IndexSummary, dataset: LanceDataset, plan: Plan) -> None:
    """Raise InvalidInput if a build on a few rows in memory gives an index of other parameters."""
    (built,) = rehearse(dataset, plan).describe_indices()
    would = built.details or {}
    lost = sorted(
        name
        for name, value in (index.details or {}).items()
        if name not in _NOT_COMPARED and would.get(name) != value
    )
    if lost:
        raise _refused(index, f"Lance would not build it with the same {', '.join(lost)}")


def _refused(index: IndexSummary, why: str) -> InvalidInput:
    return InvalidInput(f"Index '{index.name}' cannot be rebuilt: {why}")


def _without_indexes(table: Identifier) -> InvalidInput:
    return InvalidInput(f"Table '{label(table)}' has no indexes")
