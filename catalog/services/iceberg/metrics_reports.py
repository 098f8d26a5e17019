"""Metrics reports of engines for a table; the newest few hundred are stored."""

import orjson
from django.db.models import QuerySet

from catalog import access
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.iceberg import metrics_reports
from catalog.formats.iceberg.reading import Document
from catalog.identifiers import Identifier
from catalog.models import MetricsReport, Table, TableFormat, TableKind
from catalog.privileges import Privilege
from catalog.services.iceberg import tables
from catalog.services.tables import usage
from catalog.services.tables.table_operations import not_found_but
from catalog.services.tables.usage import Read

MAX_REPORTS = 500
"""The number of reports stored per table."""
_MAX_BYTES = 256 * 1024


def report_metrics(*, actor: Principal, table: Identifier, report: Document) -> None:
    """Store a report, and delete those of the table beyond MAX_REPORTS. Three statements.

    Requires READ on the table. Raises TableNotFound, InvalidInput.
    """
    access.require(actor, Privilege.READ, tables.on(table))
    row = Table.objects.named(table).only("format", "kind").first()
    if row is None or row.format != TableFormat.ICEBERG or row.kind != TableKind.TABLE:
        raise not_found_but(table, row, TableKind.TABLE)
    metrics_reports.check(report)
    if len(orjson.dumps(report)) > _MAX_BYTES:
        raise InvalidInput(f"The report is larger than {_MAX_BYTES} bytes")
    MetricsReport.objects.create(
        table_id=row.pk,
        kind=report["report-type"],
        snapshot_id=report["snapshot-id"],
        report=report,
        actor=actor.name,
    )
    if report["report-type"] == metrics_reports.SCAN:
        usage.count(actor, table, Read.SCAN)
    # At every report: an index leads to the one excess row, and no periodic task is needed.
    of_table = MetricsReport.objects.filter(table_id=row.pk)
    excess = of_table.order_by("-pk").values("pk")[MAX_REPORTS : MAX_REPORTS + 1]
    of_table.filter(pk__lte=excess).delete()


def newest_reports(table: Table, limit: int) -> QuerySet[MetricsReport]:
    """The newest reports of a table, the newest first. One statement."""
    return MetricsReport.objects.filter(table=table).order_by("-pk")[:limit]
