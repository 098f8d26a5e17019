"""Materialized views: making them, and keeping them up with their sources.

A refresh reads the source at one version. If the source has only got rows since the version that the
view shows, it adds what the query gives for those; else it writes all rows anew. Either is one
version of the view, committed together with the version of the source that it shows.
"""

import base64
import binascii
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import lance
import pyarrow as pa
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from lance.dataset import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata, LanceFragment, write_fragments

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidInput,
    InvalidTableState,
    NamespaceNotFound,
    PermissionDenied,
    SchemaMismatch,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from catalog.formats import view_queries
from catalog.formats.view_queries import ViewQuery
from catalog.identifiers import Identifier, check_table, label
from catalog.models import Job, JobStatus, MaterializedView, Table, TableState
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import JobCanceled, JobLost, Report
from catalog.services.lance import commits, datasets, view_operations
from catalog.services.lance.commits import NewDataset
from catalog.services.lance.errors import plan, refusing
from catalog.services.tables import job_operations, table_operations, tables

log = logging.getLogger(__name__)

QUERY_PROPERTY = "monodon.materialized_view.query"
"""The property of a view that shows its query to clients."""
_ROWS_PER_FILE = 1024 * 1024
_MAX_ROWS_PER_FILE = 2**31 - 1
_COOL_DOWN = timedelta(seconds=60)
_COOL_DOWN_FAILED = timedelta(hours=1)
_AT_ONCE = 100
# Of a field's metadata, what says how it is stored and what its type is; the rest is the source's.
_KEPT_METADATA = (b"ARROW:", b"lance-encoding:")


@dataclass(frozen=True, slots=True)
class CreatedView:
    """A view after CreateMaterializedView."""

    version: int
    job: str | None
    """The id of the transaction that follows the first refresh, if one was asked for."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """What is asked of a refresh (spec: RefreshMaterializedViewRequest)."""

    src_version: int | None = None
    max_rows_per_fragment: int | None = None


def create_view(
    *,
    actor: Principal,
    table: Identifier,
    kind: str,
    source_query: str,
    output_schema: str,
    with_no_data: bool = True,
    auto_refresh: bool = False,
) -> CreatedView:
    """Make a view of a query; without ``with_no_data`` a job fills it.

    Raises Unsupported for a view that runs code, InvalidInput for a query that cannot be read or
    evaluated, SchemaMismatch when it does not give the schema that was told, and the refusals of
    ``find_snapshot`` for the source.
    """
    check_table(table)
    access.require(actor, Privilege.CREATE, On.namespace(table[:-1]))
    if kind != "query":
        raise Unsupported(
            f"A materialized view of kind '{kind}' runs code that the client sends, which this server "
            "does not do",
            detail="Use kind 'query', or write the rows of a plain table from where the code runs.",
        )
    query = view_queries.parse(source_query)
    told = _decode_schema(output_schema)
    tables.require_namespace(table[:-1])
    if (holder := Table.objects.named(table).first()) is not None:
        raise table_operations.already_exists(table, holder)
    snapshot = datasets.find_snapshot(actor=actor, table=query.source, version=query.version)
    dataset = datasets.open_dataset(snapshot)
    with refusing(query.source):
        query = _with_columns(query, dataset)
        schema = _schema(query, dataset)
    _require_same(told, schema)
    written = commits.create(
        actor=actor,
        table=table,
        work=partial(_write_empty, schema),
        properties={QUERY_PROPERTY: query.to_sql()},
        summary={"source": label(query.source)},
        operation=view_operations.CreateMaterializedView,
        facts={
            "source": query.source,
            "source_uuid": snapshot.uuid,
            "source_query": source_query,
            "definition": query.to_json(),
            "auto_refresh": auto_refresh,
            "refresh": not with_no_data,
        },
    )
    return CreatedView(written.version, None if with_no_data else written.transaction_id)


def start_refresh(
    *, actor: Principal, table: Identifier, refresh: Refresh, output_limit: int | None = None
) -> str:
    """Let a job refresh a view; returns the id of the transaction, which follows the job.

    Raises TableNotFound, InvalidInput for a table that is no view, VersionNotFound for a version
    that the source does not have, InvalidTableState when it is gone or may not be read.
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
        source = _source(view)
        with _naming_no(source):
            datasets.find_snapshot(actor=actor, table=source, version=refresh.src_version)
    elif view.source.state != TableState.DROPPED:
        # The job has the rights of the principal, whose key may be narrower.
        with _naming_no(view.source.identifier):
            access.require(actor, Privilege.READ, view.source)
    parameters = {
        "src_version": refresh.src_version,
        "max_rows_per_fragment": refresh.max_rows_per_fragment,
    }
    asked = {key: value for key, value in parameters.items() if value is not None}
    return str(commit([job_operations.StartRefresh(table=table, parameters=asked)], actor=actor).id)


def find_view(table: Identifier) -> MaterializedView:
    """The definition of a view. Raises TableNotFound, InvalidInput for a table that is no view."""
    row = Table.objects.named(table).filter(is_materialized=True).first()
    if row is None:
        tables.describe_table(actor=access.SYSTEM, table=table)
        raise InvalidInput(f"Table '{label(table)}' is not a materialized view")
    return MaterializedView.objects.select_related("source__namespace").get(table=row)


def start_due_refreshes() -> int:
    """Refresh what is to be kept up and has fallen behind, as its owner; returns how many.

    A view rests a while after each refresh, and longer after one that failed.
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
        .order_by("table")[:_AT_ONCE]
    )
    started = 0
    for view in due:
        try:
            owner = _owner(view)
            commit([job_operations.StartRefresh(table=view.table.identifier)], actor=owner)
        except CatalogError as refused:  # dropped meanwhile, or the owner lost the privilege
            log.warning("View '%s' was not refreshed: %s", view, refused)
            MaterializedView.objects.filter(pk=view.pk).update(
                error=f"The automatic refresh was refused: {refused.message}",
                failed_at=timezone.now(),
            )
        else:
            started += 1
    return started


def _owner(view: MaterializedView) -> Principal:
    """The owner of a view, whose rights its automatic refreshes have. Raises PermissionDenied."""
    if not view.table.owner:
        raise PermissionDenied(
            f"View '{view.table}' has no owner, whose rights the refresh would have",
            detail="Set an owner, or refresh the view by hand.",
        )
    return access.on_behalf_of(view.table.owner)


def refresh_view(job: Job, report: Report) -> Mapping[str, Any]:
    """Do the job of a refresh, and note on the view why it failed, if it does."""
    view = MaterializedView.objects.select_related("source__namespace").get(table=job.table_id)
    try:
        return _refresh(job, view, Refresh(**job.parameters), report)
    except (JobCanceled, JobLost):
        raise
    except Exception as error:
        text = error.message if isinstance(error, CatalogError) else str(error)
        MaterializedView.objects.filter(pk=view.pk).update(error=text, failed_at=timezone.now())
        raise


def _refresh(job: Job, view: MaterializedView, asked: Refresh, report: Report) -> Mapping[str, Any]:
    actor, table, source = jobs.principal(job), jobs.identify(job), _source(view)
    query = replace(view_queries.from_json(view.definition), source=source)
    wanted = asked.src_version if asked.src_version is not None else query.version
    with _naming_no(source):
        snapshot = datasets.find_snapshot(actor=actor, table=source, version=wanted)
    outcome: dict[str, Any] = {"mode": "none", "rows": 0, "source_version": snapshot.version}
    if snapshot.version != view.source_version:
        with _naming_no(source), refusing(source):
            dataset = datasets.open_dataset(snapshot)
            added = _added(actor, view, query, dataset)
            schema = _schema(query, dataset)
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
                rows_per_file=asked.max_rows_per_fragment or _ROWS_PER_FILE,
                report=report,
            ),
            summary={"source": label(source), "job": job.pk, "mode": outcome["mode"]},
            facts={"shown": view.source_version, "source_version": snapshot.version},
        )
        if written.transaction_id is not None:
            made = {"version": written.version, "transaction_id": written.transaction_id}
            return {**outcome, "rows": written.result, **made}
    record = view_operations.RecordRefresh(
        table=table, shown=view.source_version, source_version=snapshot.version
    )
    done = commit([record], actor=actor)
    return {**outcome, "transaction_id": done.id}


def _source(view: MaterializedView) -> Identifier:
    """The present name of the source. Raises InvalidTableState when it was dropped."""
    if view.source.state == TableState.DROPPED:
        log.warning("The source of view '%s', table '%s', was dropped", view, view.source)
        raise InvalidTableState(
            "The source of the view was dropped",
            detail="Drop the view, and make it anew over another table.",
        )
    return view.source.identifier


@contextmanager
def _naming_no(source: Identifier) -> Iterator[None]:
    """Tell refusals without the present name of the source: who may see the view, and with it what
    its jobs say, may not be one who may see the source."""
    try:
        yield
    except (NamespaceNotFound, TableNotFound, PermissionDenied) as error:
        log.warning("The source of a view: %s", error)
        raise InvalidTableState(
            "The source of the view is gone, or may not be read by who refreshes it"
        ) from error
    except ForeignFile as error:  # its path may tell the name
        log.warning("The source of a view: %s", error)
        raise InvalidTableState(
            "The source of the view leads to files that may not be read for it"
        ) from error
    except CatalogError as error:
        name = f"able '{label(source)}'"
        told = error.message.replace(f"T{name}", "The source of the view")
        error.reword(told.replace(f"t{name}", "the source of the view"))
        raise


def _added(
    actor: Principal, view: MaterializedView, query: ViewQuery, dataset: LanceDataset
) -> list[LanceFragment] | None:
    """The fragments that came since the view's version of the source; None: more has changed."""
    base = view.source_version
    if base is None or query.limit is not None or base > dataset.version:
        return None
    try:
        old = datasets.read(actor=actor, table=query.source, version=base)
    except VersionNotFound:
        return None
    known = {each.fragment_id: each.metadata for each in old.get_fragments()}
    fragments = dataset.get_fragments()
    kept = {each.fragment_id: each.metadata for each in fragments if each.fragment_id in known}
    if kept != known:
        return None
    return [each for each in fragments if each.fragment_id not in known]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refresher:
    """Writes to the view what the query gives; returns the number of rows."""

    query: ViewQuery
    schema: pa.Schema
    source: LanceDataset
    fragments: tuple[LanceFragment, ...]
    is_rebuild: bool
    rows_per_file: int
    report: Report

    def __call__(self, dataset: LanceDataset) -> int:
        own = dataset.schema
        _require_same(own, self.schema, told_by="the view")
        total = sum(each.metadata.num_rows for each in self.fragments)
        self.report(0, total)
        reader = pa.RecordBatchReader.from_batches(own, self._batches(own, total))
        written: list[FragmentMetadata] = write_fragments(
            reader, dataset, mode="append", max_rows_per_file=self.rows_per_file
        )
        self.report(total, total)
        old = [each.fragment_id for each in dataset.get_fragments()]
        if self.is_rebuild and (old or written):
            # Not an overwrite, which would take the view's indexes away.
            change: LanceOperation.BaseOperation = LanceOperation.Update(
                removed_fragment_ids=old, new_fragments=written
            )
        elif written:
            change = LanceOperation.Append(written)
        else:
            return 0
        LanceDataset.commit(dataset, change, read_version=dataset.version)
        return sum(each.physical_rows for each in written)

    def _batches(self, schema: pa.Schema, total: int) -> Iterator[pa.RecordBatch]:
        seen, left = 0, self.query.limit
        for fragment in self.fragments:
            if left == 0:
                break
            for batch in _scanner(self.query, self.source, [fragment], left).to_batches():
                if left is not None:
                    left -= batch.num_rows
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                self.report(seen, total)
            seen += fragment.metadata.num_rows
            self.report(seen, total)


def _scanner(
    query: ViewQuery,
    dataset: LanceDataset,
    fragments: list[LanceFragment] | None = None,
    limit: int | None = None,
) -> lance.LanceScanner:
    return dataset.scanner(
        columns=dict(query.columns or ()), filter=query.filter, fragments=fragments, limit=limit
    )


def _with_columns(query: ViewQuery, dataset: LanceDataset) -> ViewQuery:
    """The query with the columns that ``*`` means now: a view's columns are its own for good."""
    if query.columns is not None:
        return query
    names = dataset.schema.names
    return replace(query, columns=tuple((name, view_queries.quoted(name)) for name in names))


def _schema(query: ViewQuery, dataset: LanceDataset) -> pa.Schema:
    """What the query gives. Lance plans it, so what cannot be evaluated is raised here."""
    scanner = _scanner(query, dataset)
    plan(scanner)
    return pa.schema([_without_origin(field) for field in scanner.projected_schema])


def _without_origin(field: pa.Field) -> pa.Field:
    kept = {
        key: value
        for key, value in (field.metadata or {}).items()
        if key.startswith(_KEPT_METADATA)
    }
    return field.with_metadata(kept or None)


def _decode_schema(text: str) -> pa.Schema:
    """A schema as requests carry it: in base64, as an IPC message or as a stream of no data."""
    try:
        content = pa.py_buffer(base64.b64decode(text, validate=True))
        return pa.ipc.read_schema(content)
    except (binascii.Error, ValueError, pa.ArrowException, OSError) as error:
        raise InvalidInput(f"'output_schema' is no Arrow schema in base64: {error}") from None


def _require_same(told: pa.Schema, given: pa.Schema, *, told_by: str = "'output_schema'") -> None:
    """Names and types in their order; nullability is left to the query."""
    wanted = [(field.name, field.type) for field in told]
    found = [(field.name, field.type) for field in given]
    if wanted != found:
        raise SchemaMismatch(
            f"The query gives {_spelled(found)}, but {told_by} has {_spelled(wanted)}"
        )


def _spelled(fields: list[tuple[str, pa.DataType]]) -> str:
    return "(" + ", ".join(f"{name} {type_}" for name, type_ in fields) + ")"


def _write_empty(schema: pa.Schema, new: NewDataset) -> None:
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), **new.options)
