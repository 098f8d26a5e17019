"""Refresh materialized views from their sources.

A refresh reads the source at one version. If the source has only gained rows since the version that
the view shows, the refresh appends the result of the query for the new rows; otherwise it rewrites
all rows. Either creates one version of the view, committed together with the version of the source
that it shows.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from lance.dataset import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata, LanceFragment, write_fragments

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    InvalidInput,
    PermissionDenied,
    TableNotFound,
    VersionNotFound,
)
from catalog.formats import view_queries
from catalog.formats.view_queries import ViewQuery
from catalog.identifiers import Identifier, label
from catalog.models import Job, JobStatus, MaterializedView, Table
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import JobCanceled, JobLost, Report
from catalog.services.lance import commits, datasets
from catalog.services.lance.errors import refusing
from catalog.services.lance.materialized_views import view_operations
from catalog.services.lance.materialized_views.materialized_views import find_view
from catalog.services.lance.materialized_views.view_sources import (
    hiding_source_name,
    require_same_fields,
    result_schema,
    scan,
    source_of,
)
from catalog.services.tables import job_operations

log = logging.getLogger(__name__)

_ROWS_PER_FILE = 1024 * 1024
_MAX_ROWS_PER_FILE = 2**31 - 1
_COOL_DOWN = timedelta(seconds=60)
_COOL_DOWN_FAILED = timedelta(hours=1)
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Refresh:
    """A requested refresh (spec: RefreshMaterializedViewRequest)."""

    src_version: int | None = None
    max_rows_per_fragment: int | None = None


def start_refresh(
    *, actor: Principal, table: Identifier, refresh: Refresh, output_limit: int | None = None
) -> str:
    """Start a job that refreshes a view; return the id of its transaction.

    Raises TableNotFound, InvalidInput for a table that is not a view, VersionNotFound for a missing
    version of the source, and InvalidTableState if the source is missing or may not be read.
    """
    access.require(actor, Privilege.WRITE, On.table(table))
    if output_limit is not None:
        raise InvalidInput("'output_limit' is for views of kind chunker")
    rows = refresh.max_rows_per_fragment
    if rows is not None and not 1 <= rows <= _MAX_ROWS_PER_FILE:
        raise InvalidInput(
            f"'max_rows_per_fragment' is {rows}; it must be from 1 to {_MAX_ROWS_PER_FILE}"
        )
    view = find_view(table)
    if refresh.src_version is not None:
        if view.definition.get("version") not in {None, refresh.src_version}:
            raise InvalidInput(
                f"View '{label(table)}' shows version {view.definition['version']} of its source"
            )
        source = source_of(view, actor)
        with hiding_source_name(source):
            datasets.find_snapshot(actor=actor, table=source, version=refresh.src_version)
    else:
        # The job has the rights of the principal, whose key may be narrower.
        with hiding_source_name(view.source.identifier):
            access.require(actor, Privilege.READ, view.source)
    parameters = {
        "src_version": refresh.src_version,
        "max_rows_per_fragment": refresh.max_rows_per_fragment,
    }
    requested = {key: value for key, value in parameters.items() if value is not None}
    return str(
        commit([job_operations.StartRefresh(table=table, parameters=requested)], actor=actor).id
    )


def start_due_refreshes() -> int:
    """Start due automatic refreshes, each as the owner of the view; return their number.

    A view has a pause after each refresh, and a longer one after a failed refresh.
    """
    started = 0
    for view in islice(_due(), _AT_ONCE):
        try:
            owner = _owner(view)
            commit([job_operations.StartRefresh(table=view.table.identifier)], actor=owner)
        except CatalogError as refused:  # the view was dropped, or the owner lost the privilege
            log.warning("View '%s' was not refreshed: %s", view, refused)
            MaterializedView.objects.filter(pk=view.pk).update(
                error=f"The automatic refresh was refused: {refused.message}",
                failed_at=timezone.now(),
            )
        else:
            started += 1
    return started


def _due() -> Iterator[MaterializedView]:
    """The views that are due, without those whose owners may not read the source.

    A job, or an error, after each commit to a source would reveal the commits.
    """
    now = timezone.now()
    active = Job.objects.filter(
        table=OuterRef("table"), status__in=[JobStatus.QUEUED, JobStatus.RUNNING]
    )
    due = (
        MaterializedView.objects.behind()
        .filter(auto_refresh=True)
        .filter(Q(refreshed_at=None) | Q(refreshed_at__lt=now - _COOL_DOWN))
        .filter(Q(failed_at=None) | Q(failed_at__lt=now - _COOL_DOWN_FAILED))
        .exclude(Exists(active))
        .select_related("table__namespace")
        .order_by("table")
    )
    last = 0
    # Views that are left out remain due, so they must not fill the page for ever.
    while page := list(due.filter(table__gt=last)[:_AT_ONCE]):
        last = page[-1].pk
        left_out = _of_hidden_sources(page)
        yield from (view for view in page if view.pk not in left_out)


def _of_hidden_sources(views: Sequence[MaterializedView]) -> set[int]:
    """The views that their owners may refresh, but whose sources they may not read. Few statements for each owner."""
    by_owner: dict[str, list[MaterializedView]] = defaultdict(list)
    for view in views:
        by_owner[view.table.owner].append(view)
    hidden: set[int] = set()
    for owned in by_owner.values():
        with suppress(PermissionDenied):  # there is no such owner
            owner = _owner(owned[0])
            written = access.tables_with(owner, Privilege.WRITE, [view.pk for view in owned])
            readable = access.readable_tables(owner, {view.source_id for view in owned})
            hidden |= {
                view.pk for view in owned if view.pk in written and view.source_id not in readable
            }
    return hidden


def _owner(view: MaterializedView) -> Principal:
    """Return the owner of a view, as whom automatic refreshes run. Raises PermissionDenied."""
    if not view.table.owner:
        raise PermissionDenied(
            f"View '{view.table}' has no owner to run the automatic refresh",
            detail="Set an owner, or refresh the view by hand.",
        )
    return access.on_behalf_of(view.table.owner)


def refresh_view(job: Job, report: Report) -> Mapping[str, Any]:
    """Run the job of a refresh; on failure, record the error on the view."""
    view = MaterializedView.objects.select_related("source__namespace").get(table=job.table_id)
    try:
        return _refresh(job, view, Refresh(**job.parameters), report)
    except (JobCanceled, JobLost):
        raise
    except Exception as error:
        text = error.message if isinstance(error, CatalogError) else str(error)
        MaterializedView.objects.filter(pk=view.pk).update(error=text, failed_at=timezone.now())
        raise


def _refresh(
    job: Job, view: MaterializedView, request: Refresh, report: Report
) -> Mapping[str, Any]:
    actor, table = jobs.principal(job), jobs.identify(job)
    source = source_of(view, actor)
    query = replace(view_queries.from_json(view.definition), source=source)
    source_version = request.src_version if request.src_version is not None else query.version
    with hiding_source_name(source):
        snapshot = datasets.find_snapshot(actor=actor, table=source, version=source_version)
    outcome: dict[str, Any] = {"mode": "none", "rows": 0, "source_version": snapshot.version}
    if snapshot.version != view.source_version:
        with hiding_source_name(source), refusing(source):
            dataset = datasets.open_dataset(snapshot)
            added = _added(actor, view, query, dataset)
            schema = result_schema(query, dataset)
        outcome["mode"] = "rebuild" if added is None else "append"
        written = commits.write(
            actor=actor,
            table=table,
            operation=view_operations.RefreshMaterializedView,
            work=_Refresher(
                query=query,
                schema=schema,
                source=dataset,
                fragments=tuple(dataset.get_fragments() if added is None else added),
                is_rebuild=added is None,
                rows_per_file=request.max_rows_per_fragment or _ROWS_PER_FILE,
                report=report,
            ),
            summary={"source": label(source), "job": job.pk, "mode": outcome["mode"]},
            fields={"previous_version": view.source_version, "source_version": snapshot.version},
            may_commit=partial(_require_source, job, view),
        )
        if written.transaction_id is not None:
            commit_result = {"version": written.version, "transaction_id": written.transaction_id}
            return {**outcome, "rows": written.result, **commit_result}
    record = view_operations.RecordRefresh(
        table=table, previous_version=view.source_version, source_version=snapshot.version
    )
    transaction = commit([record], actor=actor)
    return {**outcome, "transaction_id": transaction.id}


def _require_source(job: Job, view: MaterializedView) -> None:
    """Require that the requester may still read the source, which may have taken hours. Raises InvalidTableState."""
    source = Table.objects.select_related("namespace").filter(pk=view.source_id).first()
    actor = jobs.principal(job)
    name = source_of(view, actor)
    with hiding_source_name(name):
        if source is None:
            raise TableNotFound(name)
        access.require(actor, Privilege.READ, source)


def _added(
    actor: Principal, view: MaterializedView, query: ViewQuery, dataset: LanceDataset
) -> list[LanceFragment] | None:
    """Return the fragments added since the view's version of the source.

    None if the source has other changes, so that the view needs a rebuild.
    """
    base = view.source_version
    if base is None or query.limit is not None or base > dataset.version:
        return None
    try:
        old = datasets.read(actor=actor, table=query.source, version=base)
    except VersionNotFound:
        return None
    old_metadata = {fragment.fragment_id: fragment.metadata for fragment in old.get_fragments()}
    fragments = dataset.get_fragments()
    unchanged = {
        fragment.fragment_id: fragment.metadata
        for fragment in fragments
        if fragment.fragment_id in old_metadata
    }
    if unchanged != old_metadata:
        return None
    return [fragment for fragment in fragments if fragment.fragment_id not in old_metadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refresher:
    """Write the result of the query to the view; return the number of rows."""

    query: ViewQuery
    schema: pa.Schema
    source: LanceDataset
    fragments: tuple[LanceFragment, ...]
    is_rebuild: bool
    rows_per_file: int
    report: Report

    def __call__(self, dataset: LanceDataset) -> int:
        own = dataset.schema
        require_same_fields(own, self.schema, expected_by="the view")
        total = sum(fragment.metadata.num_rows for fragment in self.fragments)
        self.report(0, total)
        reader = pa.RecordBatchReader.from_batches(own, self._batches(own, total))
        written: list[FragmentMetadata] = write_fragments(
            reader, dataset, mode="append", max_rows_per_file=self.rows_per_file
        )
        self.report(total, total)
        old = [fragment.fragment_id for fragment in dataset.get_fragments()]
        if self.is_rebuild and (old or written):
            # Not an overwrite, which would remove the view's indexes.
            change: LanceOperation.BaseOperation = LanceOperation.Update(
                removed_fragment_ids=old, new_fragments=written
            )
        elif written:
            change = LanceOperation.Append(written)
        else:
            return 0
        LanceDataset.commit(dataset, change, read_version=dataset.version)
        return sum(fragment.physical_rows for fragment in written)

    def _batches(self, schema: pa.Schema, total: int) -> Iterator[pa.RecordBatch]:
        rows, remaining = 0, self.query.limit
        for fragment in self.fragments:
            if remaining == 0:
                break
            for batch in scan(self.query, self.source, [fragment], remaining).to_batches():
                if remaining is not None:
                    remaining -= batch.num_rows
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                self.report(rows, total)
            rows += fragment.metadata.num_rows
            self.report(rows, total)
