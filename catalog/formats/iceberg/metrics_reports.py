"""Validation of the metrics reports of engines (spec: ReportMetricsRequest)."""

from catalog.errors import InvalidInput
from catalog.formats.iceberg.reading import (
    INT_MAX,
    LONG_MAX,
    Document,
    array_at,
    as_object,
    as_text,
    at,
    filled_text_at,
    integer_at,
    integers_at,
    kind,
    object_at,
    required,
    shown,
    strings_by_name_at,
    text_at,
)

SCAN, COMMIT = "scan-report", "commit-report"


def check(report: Document) -> None:
    """Raise InvalidInput for an unknown report type, or with the path to the first fault."""
    name = report.get("report-type")
    if name == SCAN:
        _check_scan(report)
    elif name == COMMIT:
        _check_commit(report)
    else:
        spelled = shown(name) if isinstance(name, str) else kind(name)
        raise InvalidInput(f"report-type must be {SCAN} or {COMMIT}, not {spelled}")
    text_at(report, "table-name", "")
    _check_metrics(object_at(report, "metrics", ""))
    if report.get("metadata") is not None:
        strings_by_name_at(report, "metadata", "")


def _check_scan(report: Document) -> None:
    # Java's library reports -1 for a table that has no snapshot yet.
    integer_at(report, "snapshot-id", "", low=-1)
    integer_at(report, "schema-id", "", low=-1, high=INT_MAX)
    predicate = required(report, "filter", "")
    if not isinstance(predicate, bool):
        # The rest of the filter is not checked: it is only displayed.
        filled_text_at(as_object(predicate, "filter"), "type", "filter")
    integers_at(report, "projected-field-ids", "", high=INT_MAX)
    for i, field in enumerate(array_at(report, "projected-field-names", "")):
        as_text(field, f"projected-field-names[{i}]")


def _check_commit(report: Document) -> None:
    integer_at(report, "snapshot-id", "", low=-1)
    integer_at(report, "sequence-number", "")
    filled_text_at(report, "operation", "")


def _check_metrics(metrics: Document) -> None:
    for name, value in metrics.items():
        path = at("metrics", name)
        metric = as_object(value, path)
        if "time-unit" in metric:
            filled_text_at(metric, "time-unit", path)
            integer_at(metric, "count", path)
            integer_at(metric, "total-duration", path)
        else:
            filled_text_at(metric, "unit", path)
            integer_at(metric, "value", path, low=-LONG_MAX)
