"""Reports of engines about scans and commits."""

from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.models import MetricsReport, Table
from catalog.services.iceberg import metrics_reports
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_table

pytestmark = pytest.mark.operation("reportMetrics")
PATH = "namespaces/ws/tables/t/metrics"
METRICS = {
    "total-planning-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": 2644},
    "result-data-files": {"unit": "count", "value": 1},
}
SCAN = {
    "report-type": "scan-report",
    "table-name": "ws.t",
    "snapshot-id": 2**62 + 1,
    "filter": {"type": "eq", "term": "id", "value": 1},
    "schema-id": 0,
    "projected-field-ids": [1, 2],
    "projected-field-names": ["id", "name"],
    "metrics": METRICS,
    "metadata": {"engine-name": "spark"},
}
COMMIT = {
    "report-type": "commit-report",
    "table-name": "ws.t",
    "snapshot-id": -1,
    "sequence-number": 1,
    "operation": "append",
    "metrics": METRICS,
}


@pytest.fixture
def table(db) -> Table:
    return Table.objects.get(pk=make_iceberg_table("ws", "t").pk)


def test_reports_are_stored_unchanged(reader: Iceberg, table, django_assert_num_queries):
    reader.get("config")  # the key is in the cache now
    with django_assert_num_queries(3):
        assert reader.post(PATH, SCAN) is None
    assert reader.post(PATH, COMMIT) is None
    assert reader.post(PATH, {**SCAN, "filter": True, "snapshot-id": -1, "more": [1]}) is None
    reports = list(metrics_reports.newest_reports(table, 10))
    assert [report.kind for report in reports] == ["scan-report", "commit-report", "scan-report"]
    assert [report.report for report in reports[1:]] == [COMMIT, SCAN]
    assert [report.snapshot_id for report in reports] == [-1, -1, 2**62 + 1]
    assert {report.actor for report in reports} == {"reader"}
    assert len(metrics_reports.newest_reports(table, 2)) == 2


def without(report: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name != key}


@shared_cases(
    ("body", "text"),
    [
        ({}, "report-type must be scan-report or commit-report, not null"),
        ({**SCAN, "report-type": "other"}, "not 'other'"),
        ({**SCAN, "report-type": ["scan-report"]}, "not an array"),
        *(
            (without(SCAN, key), f"{key} is missing")
            for key in SCAN
            if key not in {"report-type", "metadata"}
        ),
        *((without(COMMIT, key), f"{key} is missing") for key in COMMIT if key != "report-type"),
        ({**SCAN, "snapshot-id": "1"}, "snapshot-id must be an integer, not a string"),
        ({**SCAN, "snapshot-id": 2**63}, "snapshot-id must be"),
        ({**SCAN, "filter": "true"}, "filter must be an object, not a string"),
        ({**SCAN, "projected-field-ids": ["1"]}, "projected-field-ids[0] must be an integer"),
        ({**SCAN, "projected-field-names": [1]}, "projected-field-names[0] must be a string"),
        ({**SCAN, "metrics": []}, "metrics must be an object"),
        ({**SCAN, "metrics": {"a": 5}}, "metrics.a must be an object"),
        ({**SCAN, "metrics": {"a": {"value": 5}}}, "metrics.a.unit is missing"),
        ({**SCAN, "metrics": {"a": {"time-unit": "ms", "count": 1}}}, "total-duration is missing"),
        ({**SCAN, "metadata": {"a": 1}}, "metadata['a'] must be a string"),
        ({**COMMIT, "operation": ""}, "operation must not be empty"),
        ({**SCAN, "table-name": "x" * 300_000}, "larger than 262144 bytes"),
    ],
)
def test_invalid_reports_are_refused(iceberg: Iceberg, table, body, text):
    iceberg.refused(400, "BadRequestException", text, f"POST {PATH}", body)


def test_a_report_for_a_missing_table_is_refused(iceberg: Iceberg, table):
    make_table("ws", "lance")
    for name in ("nothing", "lance"):
        path = f"POST namespaces/ws/tables/{name}/metrics"
        iceberg.refused(404, "NoSuchTableException", "does not exist", path, SCAN)
    Iceberg().refused(401, "NotAuthorizedException", "No API key", f"POST {PATH}", SCAN)


def test_the_oldest_reports_are_deleted(table, monkeypatch):
    monkeypatch.setattr(metrics_reports, "MAX_REPORTS", 3)
    other = make_iceberg_table("ws", "other")
    MetricsReport.objects.create(table_id=other.pk, kind="scan-report", report={})
    for number in range(5):
        metrics_reports.report_metrics(
            actor=SYSTEM, table=("ws", "t"), report={**COMMIT, "sequence-number": number}
        )
    sequence_numbers = [
        report.report["sequence-number"] for report in metrics_reports.newest_reports(table, 10)
    ]
    assert sequence_numbers == [4, 3, 2]
    assert MetricsReport.objects.count() == 4
