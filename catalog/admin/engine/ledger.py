"""Tabs of all tables and views, from the ledger: versions, transactions, audit events and jobs."""

from django.http import HttpRequest

from catalog.admin import cells, transaction_links
from catalog.admin.audit import trail as audit_trail
from catalog.admin.engine import transactions
from catalog.admin.maintenance import jobs
from catalog.admin.pages import Panel, Tab
from catalog.admin.paging import PANEL_SIZE, number, query
from catalog.models import AuditEvent, Table, TableKind, TableVersion, Transaction
from catalog.storage import locations

_EVENTS = 100  # events scanned for a page of transactions


def tabs(request: HttpRequest, row: Table) -> tuple[Tab, ...]:
    """The last tabs of each table's page."""
    shared = (
        Tab("transactions", "Transactions", lambda: _transactions(request, row)),
        Tab("audit", "Audit events", lambda: _events(request, row)),
    )
    if row.kind == TableKind.VIEW:  # a view has no data, and so no jobs
        return shared
    return (*shared, Tab("jobs", "Jobs", lambda: _jobs(request, row)))


def versions(request: HttpRequest, row: Table) -> Panel:
    """The metadata files of an Iceberg table or view, newest first."""
    before = number(request, "before")
    rows = TableVersion.objects.filter(table=row).on("")
    if before is not None:
        rows = rows.filter(version__lt=before)
    entries = list(rows.select_related("transaction").order_by("-version")[: PANEL_SIZE + 1])
    inside = [locations.store_path(row.location, ""), f"{locations.iceberg_uri(row.location)}/"]
    return Panel(
        columns=(
            "Version",
            "Committed",
            "Actor",
            "Metadata file",
            "Size",
            "Transaction",
        ),
        rows=[
            (
                version.version
                if version.deleted_at is None
                else cells.lines([version.version, cells.muted("deleted")]),
                cells.when(version.created_at),
                cells.who(version.transaction.actor if version.transaction else ""),
                cells.code(_below(inside, version.manifest_path), version.manifest_path),
                cells.size(version.manifest_size),
                transaction_links.link(request, version.transaction),
            )
            for version in entries[:PANEL_SIZE]
        ],
        empty="No versions in the ledger.",
        first=query(request, before=None) if before is not None else None,
        following=(
            query(request, before=entries[PANEL_SIZE - 1].version)
            if len(entries) > PANEL_SIZE
            else None
        ),
    )


def _below(directories: list[str], path: str) -> str:
    for directory in directories:
        path = path.removeprefix(directory)
    return path


def _transactions(request: HttpRequest, row: Table) -> Panel:
    """Transactions of the table, looked up through audit events, which are indexed by table."""
    before = number(request, "before")
    events = AuditEvent.objects.filter(table_uuid=row.uuid)
    if before is not None:
        events = events.filter(pk__lt=before)
    ids = list(events.order_by("-pk").values_list("pk", "transaction_id")[: _EVENTS + 1])
    transaction_ids = {transaction for _, transaction in ids[:_EVENTS] if transaction}
    rows = Transaction.objects.filter(pk__in=transaction_ids).order_by("-pk")
    return transactions.panel(
        request,
        rows,
        "No transactions.",
        first=query(request, before=None) if before is not None else None,
        following=query(request, before=ids[_EVENTS - 1][0]) if len(ids) > _EVENTS else None,
    )


def _events(request: HttpRequest, row: Table) -> Panel:
    return audit_trail.panel(request, AuditEvent.objects.filter(table_uuid=row.uuid), table=row)


def _jobs(request: HttpRequest, row: Table) -> Panel:
    return jobs.panel(
        request,
        row.jobs.select_related("table__namespace").order_by("-pk")[:PANEL_SIZE],
        "No jobs.",
    )
