"""Operations on materialized views: tables whose rows come from a query over another table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from catalog.errors import CommitConflict, VersionNotFound
from catalog.identifiers import Identifier, label
from catalog.models import Job, JobKind, MaterializedView, Table, TransactionStatus
from catalog.services.engine import jobs
from catalog.services.engine.batch import Batch
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.data_operations import CreateTable, WriteVersion
from catalog.services.lance.ledger.versions import has_version
from catalog.services.tables.table_operations import TableOperation


@dataclass(frozen=True, kw_only=True)
class CreateMaterializedView(CreateTable):
    """Create an empty view. With ``refresh``, a job fills it after the commit."""

    name = "CreateMaterializedView"
    action = "materialized_view.create"
    is_materialized = True

    source: Identifier
    source_uuid: UUID
    """UUID of the table that the query was checked against."""
    source_query: str
    definition: Mapping[str, Any]
    auto_refresh: bool = False
    refresh: bool = False

    def tables(self) -> Iterable[Identifier]:
        return (self.table, self.source)

    def apply(self, batch: Batch) -> Table:
        source = batch.table(self.source)
        if source.uuid != self.source_uuid:
            raise CommitConflict(f"Table '{label(self.source)}' was replaced meanwhile")
        self._require_version(source)
        row = super().apply(batch)
        batch.add(
            MaterializedView(
                table=row,
                source=source,
                source_query=self.source_query,
                definition=dict(self.definition),
                auto_refresh=self.auto_refresh,
            )
        )
        if self.refresh:
            batch.transaction.status = TransactionStatus.QUEUED
            job = Job(kind=JobKind.REFRESH_VIEW, table=row, transaction_id=batch.transaction.id)
            batch.add(job)
            batch.after_commit(jobs.send_jobs, job)
        return row

    def _require_version(self, source: Table) -> None:
        """Require that the version of the query still exists: from now on a clean-up keeps it."""
        version = self.definition.get("version")
        if version is not None and not has_version(source, "", version):
            raise VersionNotFound(self.source, version)


@dataclass(frozen=True, kw_only=True)
class RefreshMaterializedView(WriteVersion):
    """Enter the version that a refresh wrote, with the source version that it shows."""

    name = "RefreshMaterializedView"
    action = "materialized_view.refresh"
    suits_views = True

    previous_version: int | None
    """The version of the source that the view showed when the refresh began."""
    source_version: int

    def only_adds(self) -> bool:
        return False

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "source_version": self.source_version}

    def enter(self, batch: Batch, row: Table) -> NewVersion:
        _advance(row, self.previous_version, self.source_version)
        return super().enter(batch, row)


@dataclass(frozen=True, kw_only=True)
class RecordRefresh(TableOperation):
    """Record a refresh that changed no rows, so that the view has no new version."""

    name = "RefreshMaterializedView"
    action = "materialized_view.refresh"

    previous_version: int | None
    source_version: int

    def apply(self, batch: Batch) -> None:
        row = self.locked(batch)
        _advance(row, self.previous_version, self.source_version)
        batch.record(label(self.table), table=row, after={"source_version": self.source_version})


def _advance(row: Table, previous_version: int | None, source_version: int) -> None:
    rows = MaterializedView.objects.filter(table=row, source_version=previous_version)
    if not rows.update(source_version=source_version, refreshed_at=Now(), failed_at=None, error=""):
        raise CommitConflict(f"View '{row}' was refreshed by others meanwhile")
