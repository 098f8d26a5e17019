"""Metrics: reports of scans and commits from engines."""

from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.services.iceberg import metrics_reports


class ReportMetrics(IcebergOperation):
    """Store an engine's report of a scan or a commit.

    The newest reports of each table are stored and shown in the admin.
    """

    verb = "POST"
    request_model = "ReportMetricsRequest"

    def handle(self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str) -> None:
        identifier = self.identify(namespace, table)
        metrics_reports.report_metrics(actor=actor, table=identifier, report=body)
