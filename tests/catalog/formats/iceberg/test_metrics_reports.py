"""Metrics reports of engines: accepted reports, and the path to the first error."""

import pytest

from catalog.errors import InvalidInput, InvalidMetadata
from catalog.formats.iceberg import metrics_reports

SCAN = {
    "report-type": "scan-report",
    "table-name": "ws.t",
    "snapshot-id": -1,
    "schema-id": -1,
    "filter": {"type": "eq", "whatever": 1},
    "projected-field-ids": [1, 2],
    "projected-field-names": ["a", "b"],
    "metrics": {
        "total-planning-duration": {"time-unit": "nanoseconds", "count": 0, "total-duration": 0},
        "result-data-files": {"unit": "count", "value": -(2**63 - 1)},
    },
    "metadata": {"engine": "spark"},
}
COMMIT = {
    "report-type": "commit-report",
    "table-name": "ws.t",
    "snapshot-id": -1,
    "sequence-number": 0,
    "operation": "append",
    "metrics": {},
}
ABSENT = object()


def changed(report, change):
    return {name: value for name, value in (report | change).items() if value is not ABSENT}


@pytest.mark.parametrize(
    ("report", "change"),
    [
        (SCAN, {}),
        (SCAN, {"filter": True}),
        (SCAN, {"filter": False, "metadata": None}),
        (SCAN, {"metadata": ABSENT, "metrics": {}, "projected-field-ids": []}),
        (SCAN, {"snapshot-id": 2**63 - 1, "schema-id": 2**31 - 1}),
        (COMMIT, {}),
    ],
)
def test_reports_are_accepted(report, change):
    metrics_reports.check(changed(report, change))


def metric(**keys):
    return {"metrics": {"m": {name.replace("_", "-"): value for name, value in keys.items()}}}


@pytest.mark.parametrize(
    ("report", "change", "message"),
    [
        (
            SCAN,
            {"report-type": "x"},
            "report-type must be scan-report or commit-report, not 'x'",
        ),
        (
            SCAN,
            {"report-type": ABSENT},
            "report-type must be scan-report or commit-report, not null",
        ),
        (
            SCAN,
            {"report-type": []},
            "report-type must be scan-report or commit-report, not an array",
        ),
        (SCAN, {"table-name": ABSENT}, "table-name is missing"),
        (SCAN, {"table-name": 1}, "table-name must be a string, not an integer"),
        (SCAN, {"metrics": ABSENT}, "metrics is missing"),
        (SCAN, {"metadata": {"a": 1}}, "metadata['a'] must be a string, not an integer"),
        (SCAN, {"snapshot-id": ABSENT}, "snapshot-id is missing"),
        (SCAN, {"snapshot-id": -2}, "snapshot-id must be between -1 and 9223372036854775807"),
        (SCAN, {"schema-id": ABSENT}, "schema-id is missing"),
        (SCAN, {"schema-id": -2}, "schema-id must be between -1 and 2147483647"),
        (SCAN, {"schema-id": 2**31}, "schema-id must be between -1 and 2147483647"),
        (SCAN, {"filter": ABSENT}, "filter is missing"),
        (SCAN, {"filter": "x"}, "filter must be an object, not a string"),
        (SCAN, {"filter": {}}, "filter.type is missing"),
        (SCAN, {"filter": {"type": ""}}, "filter.type must not be empty"),
        (SCAN, {"projected-field-ids": ABSENT}, "projected-field-ids is missing"),
        (
            SCAN,
            {"projected-field-ids": [2**31]},
            "projected-field-ids[0] must be between 0 and 2147483647",
        ),
        (SCAN, {"projected-field-names": ABSENT}, "projected-field-names is missing"),
        (
            SCAN,
            {"projected-field-names": ["a", 1]},
            "projected-field-names[1] must be a string, not an integer",
        ),
        (COMMIT, {"snapshot-id": ABSENT}, "snapshot-id is missing"),
        (COMMIT, {"snapshot-id": -2}, "snapshot-id must be between -1 and 9223372036854775807"),
        (COMMIT, {"sequence-number": ABSENT}, "sequence-number is missing"),
        (
            COMMIT,
            {"sequence-number": -1},
            "sequence-number must be between 0 and 9223372036854775807",
        ),
        (COMMIT, {"operation": ""}, "operation must not be empty"),
        (COMMIT, {"operation": ABSENT}, "operation is missing"),
        (COMMIT, {"metrics": {"m": 1}}, "metrics.m must be an object, not an integer"),
        (COMMIT, metric(unit="", value=1), "metrics.m.unit must not be empty"),
        (COMMIT, metric(value=1), "metrics.m.unit is missing"),
        (COMMIT, metric(unit="count"), "metrics.m.value is missing"),
        (
            COMMIT,
            metric(unit="count", value=-(2**63)),
            "metrics.m.value must be between -9223372036854775807 and 9223372036854775807",
        ),
        (COMMIT, metric(time_unit=""), "metrics.m.time-unit must not be empty"),
        (COMMIT, metric(time_unit="s", total_duration=1), "metrics.m.count is missing"),
        (COMMIT, metric(time_unit="s", count=1), "metrics.m.total-duration is missing"),
        (
            COMMIT,
            metric(time_unit="s", count=-1, total_duration=1),
            "metrics.m.count must be between 0 and 9223372036854775807",
        ),
        (
            COMMIT,
            metric(time_unit="s", count=1, total_duration=-1),
            "metrics.m.total-duration must be between 0 and 9223372036854775807",
        ),
    ],
)
def test_other_reports_are_refused(report, change, message):
    with pytest.raises((InvalidInput, InvalidMetadata)) as refusal:
        metrics_reports.check(changed(report, change))
    assert refusal.value.message == message
