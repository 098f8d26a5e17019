"""Server-side scan planning: small scans are planned at once, large ones in tasks to be fetched.

A plan is stored for an hour and belongs to the table and to the principal that requested it. A plan
that was answered completely is not stored; its id shows that, and such plans need no write.
"""

import uuid
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    PlanNotFound,
    PlanTaskNotFound,
)
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans import scans
from catalog.formats.iceberg.scans.planning import Planner
from catalog.formats.iceberg.scans.scans import Scan
from catalog.identifiers import Identifier
from catalog.models import ScanPlan, Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.iceberg import tables
from catalog.services.iceberg.files import TableFileIO
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import usage
from catalog.services.tables.table_operations import not_found_but
from catalog.services.tables.usage import Read

LIFETIME = timedelta(hours=1)
"""The period in which the tasks of a plan can be fetched."""
_WHOLE = "whole-"


@dataclass(frozen=True)
class PlannedScan:
    """A planned scan: its tasks, or the names of the tasks to be fetched."""

    plan: str
    tasks: Document
    plan_tasks: list[str]


def plan_scan(*, actor: Principal, table: Identifier, request: Document) -> PlannedScan:
    """Plan a scan of an Iceberg table. ``request`` is the protocol's PlanTableScanRequest.

    One statement, and another for a plan that is stored. Raises TableNotFound, InvalidInput;
    InvalidMetadata for an unreadable manifest, ForeignFile for a file that may not be read.
    """
    loaded = tables.load_table(actor=actor, table=table)
    scan = scans.settle(loaded.document, scans.read_request(request))
    planner = Planner(scan, TableFileIO(TableFiles(loaded), actor))
    groups = planner.groups()
    usage.count(actor, table, Read.SCAN)
    if len(groups) <= 1:
        return PlannedScan(f"{_WHOLE}{uuid.uuid4()}", planner.plan(groups), [])
    plan = ScanPlan.objects.create(
        table_id=loaded.pk, actor=actor.name, request=scan.to_json(), tasks=groups
    )
    return _to_be_fetched(plan)


def fetch_plan(*, actor: Principal, table: Identifier, plan: str) -> PlannedScan:
    """A plan whose tasks are still to be fetched. Raises TableNotFound, PlanNotFound."""
    row = _named(_plans(actor, table), plan).defer("request").first()
    if row is None:
        raise PlanNotFound(plan)
    return _to_be_fetched(row)


def cancel_plan(*, actor: Principal, table: Identifier, plan: str) -> None:
    """Delete a plan. Raises TableNotFound; PlanNotFound unless it was answered completely."""
    plans = _plans(actor, table)
    if plan.startswith(_WHOLE) and _uuid(plan.removeprefix(_WHOLE)) is not None:
        return
    deleted, _ = _named(plans, plan).delete()
    if not deleted:
        raise PlanNotFound(plan)


def fetch_tasks(*, actor: Principal, table: Identifier, plan_task: str) -> Document:
    """The file scan tasks of a plan task, which may be fetched repeatedly. Two statements.

    Raises TableNotFound, PlanTaskNotFound; InvalidMetadata for an unreadable manifest, and
    ForeignFile for a file that may not be read.
    """
    plan, _, number = plan_task.rpartition("-")
    row = _named(_plans(actor, table), plan).select_related("table__namespace").first()
    if row is None or not (number.isascii() and number.isdigit() and len(number) < 9):
        raise PlanTaskNotFound(plan_task)
    if int(number) >= len(row.tasks):
        raise PlanTaskNotFound(plan_task)
    reader = TableFileIO(TableFiles(row.table), actor)
    return Planner(Scan.from_json(row.request), reader).plan([row.tasks[int(number)]])


def delete_expired_plans() -> int:
    """Delete the plans whose lifetime is over; returns their number."""
    deleted, _ = ScanPlan.objects.filter(created_at__lt=timezone.now() - LIFETIME).delete()
    return deleted


def _plans(actor: Principal, table: Identifier) -> QuerySet[ScanPlan]:
    """The plans of this table that the actor made. Raises TableNotFound."""
    access.require(actor, Privilege.READ, tables.on(table))
    row = Table.objects.named(table).only("format", "kind").first()
    if row is None or row.format != TableFormat.ICEBERG or row.kind != TableKind.TABLE:
        raise not_found_but(table, row, TableKind.TABLE)
    return ScanPlan.objects.filter(
        table_id=row.pk, actor=actor.name, created_at__gte=timezone.now() - LIFETIME
    )


def _named(plans: QuerySet[ScanPlan], plan: str) -> QuerySet[ScanPlan]:
    pk = _uuid(plan)
    return plans.none() if pk is None else plans.filter(pk=pk)


def _to_be_fetched(plan: ScanPlan) -> PlannedScan:
    names = [f"{plan.pk}-{number}" for number in range(len(plan.tasks))]
    return PlannedScan(str(plan.pk), {"file-scan-tasks": []}, names)


def _uuid(text: str) -> uuid.UUID | None:
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed if str(parsed) == text else None
