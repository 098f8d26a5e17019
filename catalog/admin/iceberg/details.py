"""Other panels of an Iceberg table: layouts, properties, statistics, metadata files and metrics reports."""

import json
from collections.abc import Sequence

from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.iceberg.snapshots import snapshot_link
from catalog.admin.pages import Panel
from catalog.admin.paging import paginate
from catalog.formats.iceberg import describe, lenient
from catalog.formats.iceberg.describe import ColumnNames, Layout, Metric
from catalog.formats.iceberg.reading import Document
from catalog.models import MetricsReport, Table

_ENTRIES = 100  # of a list in a cell
_REPORTS = 50
_LONGEST_REPORT = 20_000  # characters
_NANOSECONDS = {
    "nanoseconds": 1,
    "microseconds": 10**3,
    "milliseconds": 10**6,
    "seconds": 10**9,
}


# --- partitions and sorting --------------------------------------------------------------------


def layout_tab(request: HttpRequest, document: Document) -> list[Panel]:
    names = ColumnNames(document)
    specs = paginate(
        request, describe.partition_specs(document), lambda entry: str(entry.get("spec-id")), "spec"
    )
    orders = paginate(
        request, describe.sort_orders(document), lambda entry: str(entry.get("order-id")), "order"
    )
    return [
        Panel(
            title="Partition specs",
            columns=("Spec", "Partitioned by"),
            rows=[
                _layout(describe.partition_spec(entry, document, names), "not partitioned")
                for entry in specs.items
            ],
            empty="No partition specs in the metadata.",
            first=specs.first,
            following=specs.following,
        ),
        Panel(
            title="Sort orders",
            columns=("Order", "Sorted by"),
            rows=[
                _layout(describe.sort_order(entry, document, names), "not sorted")
                for entry in orders.items
            ],
            empty="No sort orders in the metadata.",
            first=orders.first,
            following=orders.following,
        ),
    ]


def _layout(layout: Layout, empty: str) -> Sequence[object]:
    mark = [cells.badge("current", "success")] if layout.is_current else []
    lines: list[object] = [
        format_html(
            "{} {}", cells.exact(cells.clipped(expression)), cells.muted(cells.clipped(note))
        )
        for expression, note in layout.fields[:_ENTRIES]
    ]
    if len(layout.fields) > _ENTRIES:
        lines.append(cells.muted(f"and {len(layout.fields) - _ENTRIES:,} more"))
    number = "?" if layout.id is None else layout.id
    return (
        cells.spaced([number, *mark]),
        cells.lines(lines) if lines else cells.muted(empty),
    )


# --- properties, files, reports ----------------------------------------------------------------


def properties(request: HttpRequest, document: Document) -> Panel:
    page = paginate(request, describe.properties(document), lambda entry: entry[0], "after")
    return Panel(
        columns=("Property", "Value"),
        rows=[(cells.exact(cells.clipped(key)), cells.brief(value)) for key, value in page.items],
        empty="No properties. Engines set properties, for example Spark with ALTER TABLE … SET TBLPROPERTIES or "
        "ALTER VIEW … SET TBLPROPERTIES.",
        first=page.first,
        following=page.following,
    )


def statistics_tab(request: HttpRequest, document: Document) -> list[Panel]:
    tables = paginate(request, describe.statistics(document), _statistics_key, "table")
    partitions = paginate(request, describe.partition_statistics(document), _statistics_key, "part")
    return [
        Panel(
            title="Table statistics",
            columns=("Snapshot", "File", "Size", "Blobs"),
            rows=[(*_statistics(request, entry), _blobs(entry)) for entry in tables.items],
            empty="No statistics files. The Spark procedure compute_table_stats writes one with the "
            "number of distinct values of each column.",
            first=tables.first,
            following=tables.following,
        ),
        Panel(
            title="Partition statistics",
            columns=("Snapshot", "File", "Size"),
            rows=[_statistics(request, entry) for entry in partitions.items],
            empty="No partition statistics files. The Spark procedure compute_partition_stats writes "
            "one.",
            first=partitions.first,
            following=partitions.following,
        ),
    ]


def _statistics_key(entry: Document) -> str:
    return f"{entry.get('snapshot-id')} {cells.clipped(lenient.text(entry.get('statistics-path')))}"


def _statistics(request: HttpRequest, entry: Document) -> tuple[object, ...]:
    snapshot = lenient.integer(entry.get("snapshot-id"))
    return (
        cells.NOTHING if snapshot is None else snapshot_link(request, snapshot),
        cells.exact(cells.clipped(lenient.text(entry.get("statistics-path")), 1000)),
        cells.size(lenient.integer(entry.get("file-size-in-bytes"))),
    )


def _blobs(entry: Document) -> SafeString:
    blobs = lenient.objects(entry.get("blob-metadata"))
    if not blobs:
        return cells.NOTHING
    return cells.fold(
        f"{len(blobs):,} {'blob' if len(blobs) == 1 else 'blobs'}",
        cells.lines(
            format_html(
                "{} {}",
                cells.clipped(lenient.text(blob.get("type"))) or "?",
                cells.muted(
                    f"fields {', '.join(map(str, lenient.integers(blob.get('fields'))[:20]))}"
                ),
            )
            for blob in blobs[:_ENTRIES]
        ),
    )


def metadata_log(request: HttpRequest, document: Document, current: str) -> Panel:
    files = [
        (current, lenient.moment(document.get("last-updated-ms"))),
        *describe.metadata_log(document),
    ]
    page = paginate(request, files, lambda entry: cells.clipped(entry[0], 1000), "after")
    return Panel(
        columns=("Metadata file", "Written"),
        rows=[
            (
                cells.spaced(
                    [
                        format_html('<span class="m-path">{}</span>', cells.clipped(file, 1000)),
                        *([cells.badge("current", "success")] if file == current else ()),
                    ]
                ),
                cells.moment(at),
            )
            for file, at in page.items
        ],
        empty="No metadata files.",
        first=page.first,
        following=page.following,
        note="The property write.metadata.previous-versions-max limits the number of earlier files."
        if len(files) > 1
        else "No earlier files. Each commit adds one.",
    )


def metrics(request: HttpRequest, row: Table) -> Panel:
    reports = list(MetricsReport.objects.filter(table=row).order_by("-id")[:_REPORTS])
    return Panel(
        columns=("Time", "Kind", "Snapshot", "Actor", "Metrics", "Report"),
        rows=[
            (
                cells.moment(report.at),
                report.get_kind_display(),
                (
                    cells.NOTHING
                    if report.snapshot_id is None
                    else snapshot_link(request, report.snapshot_id)
                ),
                cells.who(report.actor),
                _measured(report.report),
                cells.fold("Full report", cells.source(_indented(report.report), _LONGEST_REPORT)),
            )
            for report in reports
        ],
        empty="No metrics reports. Engines such as Spark report what each scan and commit read, wrote "
        "and skipped, and how long it took.",
        note=f"The newest {_REPORTS} reports." if len(reports) == _REPORTS else "",
    )


def _measured(report: object) -> SafeString:
    measurements = describe.metrics(report)[:_ENTRIES]
    return cells.lines(
        format_html("{} {}", cells.muted(cells.clipped(metric.name)), _amount(metric))
        for metric in measurements
    )


def _amount(metric: Metric) -> str:
    if metric.unit == "bytes":
        return filesizeformat(metric.number)
    if length := _NANOSECONDS.get(metric.unit):
        return f"{metric.number * length / 10**9:,.3f} s"
    return f"{metric.number:,}"


def _indented(report: object) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False)
