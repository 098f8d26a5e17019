"""Indexes of Lance tables: building them, dropping them, and what there is.

A build is first planned (``lance_index_plans``), and what cannot work is refused. A small one is
then done at once, a large one by a job, which gets the plan.
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
from catalog.services.lance import commits, data_operations, datasets, index_plans
from catalog.services.lance.errors import refusing
from catalog.services.lance.index_plans import OWN_PREFIX, NewIndex, Plan
from catalog.services.tables import job_operations

_OPERATION: Mapping[bool, type[data_operations.WriteVersion]] = {
    False: data_operations.CreateTableIndex,
    True: data_operations.CreateTableScalarIndex,
}
"""Of a commit, by whether a scalar index was asked for."""


class IndexStatus(StrEnum):
    """How far an index is; the last one in the word of the reference server."""

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
    """The version of the table whose rows its oldest part was built from. Bringing it up to date
    keeps it, and a compaction too."""

    @property
    def distance_type(self) -> str | None:
        """Of a vector index."""
        metric = (self.details or {}).get("metric_type")
        return str(metric).lower() if metric else None


def create_index(
    *,
    actor: Principal,
    table: Identifier,
    index: NewIndex,
    branch: str = "",
    scalar_only: bool = False,
) -> str | None:
    """Build an index on a column of the newest version; returns the transaction's id.

    Where it would take longer than a request should, a job builds it, and the transaction is the
    one that follows the job. Raises IndexAlreadyExists, ColumnNotFound, InvalidInput for a type
    that does not fit the column, for a parameter out of its range and for too few rows to train
    with.
    """
    access.require(actor, Privilege.WRITE, On.table(table))
    dataset = datasets.read(actor=actor, table=table, branch=branch)
    with refusing(table):
        there = [*index_summaries(dataset), *_in_jobs(table, branch, rows=0)]
        plan = index_plans.plan_index(
            table,
            dataset,
            index,
            there={each.name: (each.type, each.columns) for each in there},
            scalar_only=scalar_only,
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
    )
    return written.transaction_id


def build_index(job: Job, report: Report) -> Mapping[str, Any]:
    """Do the job. Raises the refusals of ``create_index``, as far as they come up only now."""
    parameters = dict(job.parameters)
    branch, scalar_only = parameters.pop("branch"), parameters.pop("scalar_only")
    plan = Plan(**parameters)
    actor, table = jobs.principal(job), jobs.identify(job)
    done = _done_before(job, plan, actor, table, branch)
    if done is not None:
        return done

    def progress(event: IndexProgress) -> None:
        # Other stages count other things.
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


def _done_before(
    job: Job, plan: Plan, actor: Principal, table: Identifier, branch: str
) -> Mapping[str, Any] | None:
    """What an earlier attempt of the job did, if its worker died after the commit."""
    if job.attempts == 1:
        return None
    dataset = datasets.read(actor=actor, table=table, branch=branch)
    with refusing(table):
        built = {each.name: each for each in index_summaries(dataset)}.get(plan.name)
    if built is None or built.created_at is None or built.created_at < job.created_at:
        return None
    return {"rows": built.indexed_rows, "note": "an earlier attempt had built it"}


def drop_index(*, actor: Principal, table: Identifier, index: str, branch: str = "") -> str | None:
    """Drop an index; its files stay until a cleanup. Returns the transaction's id.

    Raises IndexNotFound.
    """
    access.require(actor, Privilege.WRITE, On.table(table))

    def look() -> IndexSummary:
        dataset = datasets.read(actor=actor, table=table, branch=branch)
        return find_index(table, _all(table, dataset, branch, with_jobs=False), index)

    def look_again() -> None:
        # Lance rebases a drop on another drop of the same index, as if there were two to drop.
        if look().uuid != found.uuid:
            raise IndexNotFound(table, index)

    found = look()
    written = commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.DropTableIndex,
        work=lambda newest: newest.drop_index(found.name),
        summary={"name": found.name},
        may_commit=look_again,
    )
    return written.transaction_id


def list_indexes(
    *,
    actor: Principal,
    table: Identifier,
    version: int | None = None,
    branch: str = "",
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[IndexSummary], str | None]:
    """The indexes of a version by their names, and the token of the next page.

    Those of the newest version include what jobs are building.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"The limit is {limit}; use a positive number")
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    found = _all(table, dataset, branch, with_jobs=version is None)
    if page_token:
        found = [index for index in found if index.name > page_token]
    page = found[:limit]
    return page, page[-1].name if len(found) > len(page) else None


def describe_index(
    *,
    actor: Principal,
    table: Identifier,
    index: str,
    version: int | None = None,
    branch: str = "",
) -> IndexSummary:
    """One index of a version, or one that a job is building. Raises IndexNotFound."""
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    return find_index(table, _all(table, dataset, branch, with_jobs=version is None), index)


def index_summaries(dataset: LanceDataset) -> list[IndexSummary]:
    """All indexes of the version by their names, without those that Lance keeps for itself."""
    described = [
        each for each in dataset.describe_indices() if not each.name.startswith(OWN_PREFIX)
    ]
    if not described:
        return []
    rows = dataset.count_rows()
    return sorted((_summary(each, rows) for each in described), key=lambda each: each.name)


def _summary(described: Any, rows: int) -> IndexSummary:
    segments = described.segments
    created = [each.created_at for each in segments if each.created_at is not None]
    return IndexSummary(
        name=described.name,
        uuid=segments[0].uuid if segments else "",
        columns=tuple(described.field_names),
        type=index_plans.type_name(described.index_type),
        type_url=described.type_url,
        indexed_rows=described.num_rows_indexed,
        unindexed_rows=max(rows - described.num_rows_indexed, 0),
        size_bytes=described.total_size_bytes,
        segments=len(segments),
        created_at=min(created, default=None),
        format_version=max((each.index_version for each in segments), default=None),
        details=described.details,
        trained_version=min(
            (each.dataset_version_at_last_update for each in segments), default=None
        ),
    )


def _all(
    table: Identifier, dataset: LanceDataset, branch: str, *, with_jobs: bool
) -> list[IndexSummary]:
    with refusing(table):
        found = index_summaries(dataset)
        if not with_jobs:
            return found
        built = {each.name for each in found}
        coming = _in_jobs(table, branch, rows=dataset.count_rows())
    found += (each for each in coming if each.name not in built)
    return sorted(found, key=lambda each: each.name)


def _in_jobs(table: Identifier, branch: str, *, rows: int) -> list[IndexSummary]:
    """The indexes that jobs are building or will build. One statement."""
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
    """The index of this name. In a path '+' may stand for a space, so both are looked for.

    Raises IndexNotFound.
    """
    found = {index.name: index for index in indexes}
    if name in found:
        return found[name]
    for other, index in found.items():
        if fold((other,)) == fold((name,)):
            return index
    raise IndexNotFound(table, name)
