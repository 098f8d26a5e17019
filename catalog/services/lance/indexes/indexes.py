"""Build, drop, list and describe the indexes of Lance tables.

A build is planned first (``index_plans``), which refuses builds that cannot succeed. A small build
then runs in the request; a large one runs in a job that receives the plan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.conf import settings
from lance import IndexProgress
from lance.dataset import LanceDataset

from catalog import access
from catalog.access import On, Principal
from catalog.errors import IndexNotFound, InvalidInput
from catalog.identifiers import Identifier, fold
from catalog.models import Job, JobKind, JobStatus, Table
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import Report
from catalog.services.lance import commits, data_operations, datasets, time_limits
from catalog.services.lance.errors import refusing
from catalog.services.lance.indexes import index_plans
from catalog.services.lance.indexes.index_plans import OWN_PREFIX, NewIndex, Plan
from catalog.services.lance.indexes.index_types import type_name
from catalog.services.tables import job_operations

_OPERATION: Mapping[bool, type[data_operations.WriteVersion]] = {
    False: data_operations.CreateTableIndex,
    True: data_operations.CreateTableScalarIndex,
}
"""The commit operation of a build, by whether a scalar index was requested."""


class IndexStatus(StrEnum):
    """Build status of an index; SUCCEEDED is the value of the reference server."""

    PENDING = "PENDING"
    BUILDING = "BUILDING"
    SUCCEEDED = "SUCCEEDED"


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """An index of one version of a table (spec: IndexContent)."""

    name: str
    uuid: str
    columns: tuple[str, ...]
    type: str
    status: IndexStatus = IndexStatus.SUCCEEDED
    type_url: str | None = None
    indexed_rows: int | None = None
    unindexed_rows: int | None = None
    size_bytes: int | None = None
    segments: int | None = None
    created_at: datetime | None = None
    format_version: int | None = None
    details: Mapping[str, Any] | None = None
    trained_version: int | None = None
    """The table version from whose rows the oldest segment was trained. Optimizing the index keeps
    this value, and so does a compaction."""

    @property
    def distance_type(self) -> str | None:
        """Distance type of a vector index, else None."""
        metric = (self.details or {}).get("metric_type")
        return str(metric).lower() if metric else None


def create_index(
    *,
    actor: Principal,
    table: Identifier,
    index: NewIndex,
    branch: str = "",
    scalar_only: bool = False,
    replace: bool = False,
) -> str | None:
    """Build an index on a column of the newest version; return the transaction's id.

    If the build would take too long for a request, a job runs it and the transaction follows the
    job. With ``replace`` the new index replaces the index of the same name, by default that of the same type
    on the column. Raises IndexAlreadyExists, ColumnNotFound, and InvalidInput for a type that does not fit the
    column, a parameter out of range or too few rows to train with.
    """
    access.require(actor, Privilege.WRITE, On.table(table))
    dataset = datasets.read(actor=actor, table=table, branch=branch)
    with refusing(table):
        existing = [*index_summaries(dataset), *_in_jobs(table, branch, rows=0)]
        plan = index_plans.plan_index(
            table,
            dataset,
            index,
            existing={summary.name: (summary.type, summary.columns) for summary in existing},
            scalar_only=scalar_only,
            replaces=replace,
        )
        is_large = plan.cost > settings.MONODON_INDEX_IN_REQUEST_ROWS
        if is_large:
            index_plans.rehearse(dataset, plan)
    if is_large:
        start = (
            job_operations.StartBuildScalarIndex if scalar_only else job_operations.StartBuildIndex
        )
        parameters = {**asdict(plan), "branch": branch, "scalar_only": scalar_only}
        return commit([start(table=table, parameters=parameters)], actor=actor).id
    written = commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=_OPERATION[scalar_only],
        work=lambda newest: index_plans.build(newest, plan),
        summary=plan.summary,
        limited_since=time_limits.of_write(),
    )
    return written.transaction_id


def build_index(job: Job, report: Report) -> Mapping[str, Any]:
    """Run the job of an index build. Raises the errors of ``create_index`` that occur only now."""
    parameters = dict(job.parameters)
    branch, scalar_only = parameters.pop("branch"), parameters.pop("scalar_only")
    plan = Plan(**parameters)
    actor, table = jobs.principal(job), jobs.identify(job)
    result = _earlier_result(job, plan, actor, table, branch)
    if result is not None:
        return result

    def progress(event: IndexProgress) -> None:
        # Other stages count units other than rows.
        report(event.completed or 0 if event.unit == "rows" else job.progress, None)

    def work(newest: LanceDataset) -> int:
        rows = newest.count_rows()
        report(0, rows)
        index_plans.build(newest, plan, progress)
        report(rows, rows)
        return rows

    written = commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=_OPERATION[scalar_only],
        work=work,
        summary={**plan.summary, "job": job.pk},
        may_commit=lambda: report(job.progress, None),
    )
    return {
        "rows": written.result,
        "version": written.version,
        "transaction_id": written.transaction_id,
    }


def _earlier_result(
    job: Job, plan: Plan, actor: Principal, table: Identifier, branch: str
) -> Mapping[str, Any] | None:
    """Return the result of an earlier attempt whose worker died after the commit, else None."""
    if job.attempts == 1:
        return None
    dataset = datasets.read(actor=actor, table=table, branch=branch)
    with refusing(table):
        built = {summary.name: summary for summary in index_summaries(dataset)}.get(plan.name)
    if built is None or built.created_at is None or built.created_at < job.created_at:
        return None
    return {"rows": built.indexed_rows, "note": "an earlier attempt built the index"}


def drop_index(*, actor: Principal, table: Identifier, index: str, branch: str = "") -> str | None:
    """Drop an index and return the transaction's id. A later cleanup removes its files.

    Raises IndexNotFound.
    """
    access.require(actor, Privilege.WRITE, On.table(table))

    def find_newest() -> IndexSummary:
        dataset = datasets.read(actor=actor, table=table, branch=branch)
        return find_index(table, _all(table, dataset, branch, with_jobs=False), index)

    def require_unchanged() -> None:
        # Lance rebases a drop on another drop of the same index, as if there were two indexes.
        if find_newest().uuid != summary.uuid:
            raise IndexNotFound(table, index)

    summary = find_newest()
    written = commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.DropTableIndex,
        work=lambda newest: newest.drop_index(summary.name),
        summary={"name": summary.name},
        may_commit=require_unchanged,
    )
    return written.transaction_id


def prewarm_index(*, actor: Principal, table: Identifier, index: str) -> None:
    """Load an index of the newest version into this process's cache. Raises IndexNotFound."""
    dataset = datasets.read(actor=actor, table=table)
    with refusing(table):
        dataset.prewarm_index(find_index(table, index_summaries(dataset), index).name)


def list_indexes(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[IndexSummary], str | None]:
    """Return a page of the indexes of a version by name, and the token of the next page.

    For the newest version the list includes the indexes that jobs are building.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"The limit is {limit}; use a positive number")
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    summaries = _all(table, dataset, branch, with_jobs=version is None)
    if page_token:
        summaries = [index for index in summaries if index.name > page_token]
    page = summaries[:limit]
    return page, page[-1].name if len(summaries) > len(page) else None


def describe_index(
    *,
    actor: Principal,
    table: Identifier,
    index: str,
    version: int | None = None,
    branch: str = "",
) -> IndexSummary:
    """Return an index of a version, or one that a job is building. Raises IndexNotFound."""
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    return find_index(table, _all(table, dataset, branch, with_jobs=version is None), index)


def index_summaries(dataset: LanceDataset) -> list[IndexSummary]:
    """Return the indexes of a version by name, without those that Lance manages itself."""
    described = [
        index for index in dataset.describe_indices() if not index.name.startswith(OWN_PREFIX)
    ]
    if not described:
        return []
    rows = dataset.count_rows()
    return sorted((_summary(index, rows) for index in described), key=lambda index: index.name)


def _summary(described: Any, rows: int) -> IndexSummary:
    segments = described.segments
    created = [segment.created_at for segment in segments if segment.created_at is not None]
    return IndexSummary(
        name=described.name,
        uuid=segments[0].uuid if segments else "",
        # A forged schema may have columns without a name, which no answer may contain.
        columns=tuple(filter(None, described.field_names)),
        type=type_name(described.index_type),
        type_url=described.type_url,
        indexed_rows=described.num_rows_indexed,
        unindexed_rows=max(rows - described.num_rows_indexed, 0),
        size_bytes=described.total_size_bytes,
        segments=len(segments),
        created_at=min(created, default=None),
        format_version=max((segment.index_version for segment in segments), default=None),
        details=described.details,
        trained_version=min(
            (segment.dataset_version_at_last_update for segment in segments), default=None
        ),
    )


def _all(
    table: Identifier, dataset: LanceDataset, branch: str, *, with_jobs: bool
) -> list[IndexSummary]:
    with refusing(table):
        summaries = index_summaries(dataset)
        if not with_jobs:
            return summaries
        built = {summary.name for summary in summaries}
        pending = _in_jobs(table, branch, rows=dataset.count_rows())
    summaries += (summary for summary in pending if summary.name not in built)
    return sorted(summaries, key=lambda summary: summary.name)


def _in_jobs(table: Identifier, branch: str, *, rows: int) -> list[IndexSummary]:
    """Return the indexes that jobs are building or will build. One statement."""
    active = Job.objects.filter(
        table__in=Table.objects.named(table),
        kind=JobKind.BUILD_INDEX,
        status__in=(JobStatus.QUEUED, JobStatus.RUNNING),
        parameters__branch=branch,
    )
    return [
        IndexSummary(
            name=job.parameters["name"],
            uuid=str(job.transaction_id),
            columns=(job.parameters["column"],),
            type=job.parameters["index_type"],
            status=(
                IndexStatus.BUILDING if job.status == JobStatus.RUNNING else IndexStatus.PENDING
            ),
            indexed_rows=0,
            unindexed_rows=rows,
            segments=0,
        )
        for job in active.order_by("pk")
    ]


def find_index(table: Identifier, indexes: Iterable[IndexSummary], name: str) -> IndexSummary:
    """Return the index of this name. In a path '+' may stand for a space, so both match.

    Raises IndexNotFound.
    """
    by_name = {index.name: index for index in indexes}
    if name in by_name:
        return by_name[name]
    for other, index in by_name.items():
        if fold((other,)) == fold((name,)):
            return index
    raise IndexNotFound(table, name)
