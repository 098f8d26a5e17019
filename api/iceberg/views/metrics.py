from typing import Any

from api.iceberg.operation import IcebergOperation
from catalog.access import Principal
from catalog.services.iceberg import metrics_reports


class ReportMetrics(IcebergOperation):
    """Take an engine's report of a scan of a table, or of a commit to it."""

    verb = "POST"
    request_model = "ReportMetricsRequest"

    def handle(self, actor: Principal, body: dict[str, Any], *, namespace: str, table: str) -> None:
        identifier = self.identify(namespace, table)
        metrics_reports.report_metrics(actor=actor, table=identifier, report=body)
