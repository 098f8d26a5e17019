"""What else the metadata of an Iceberg table holds: layouts, properties, files; and engines' reports."""

import json
from collections.abc import Sequence

from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.iceberg.snapshots import snapshot_link
from catalog.admin.pages import Panel, part
from catalog.formats.iceberg import describe, lenient
from catalog.formats.iceberg.describe import ColumnNames, Layout, Metric
from catalog.formats.iceberg.reading import Document
from catalog.models import MetricsReport, Table

_ENTRIES = 100  # told of one thing
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
    specs = part(
        request, describe.partition_specs(document), lambda one: str(one.get("spec-id")), "spec"
    )
    orders = part(
        request, describe.sort_orders(document), lambda one: str(one.get("order-id")), "order"
    )
    return [
        Panel(
            title="Partition specs",
            columns=("Spec", "Partitioned by"),
            rows=[
                _layout(describe.partition_spec(one, document, names), "not partitioned")
                for one in specs.items
            ],
            empty="The metadata holds no partition spec.",
            first=specs.first,
            following=specs.following,
        ),
        Panel(
            title="Sort orders",
            columns=("Order", "Sorted by"),
            rows=[
                _layout(describe.sort_order(one, document, names), "not sorted")
                for one in orders.items
            ],
            empty="The metadata holds no sort order.",
            first=orders.first,
            following=orders.following,
        ),
    ]


def _layout(layout: Layout, empty: str) -> Sequence[object]:
    mark = [cells.badge("current", "success")] if layout.is_current else []
    told: list[object] = [
        format_html(
            "{} {}", cells.exact(cells.clipped(expression)), cells.muted(cells.clipped(note))
        )
        for expression, note in layout.fields[:_ENTRIES]
    ]
    if len(layout.fields) > _ENTRIES:
        told.append(cells.muted(f"and {len(layout.fields) - _ENTRIES:,} more"))
    number = "?" if layout.id is None else layout.id
    return (
        cells.spaced([number, *mark]),
        cells.lines(told) if told else cells.muted(empty),
    )


# --- properties, files, reports ----------------------------------------------------------------


def properties(request: HttpRequest, document: Document) -> Panel:
    shown = part(request, describe.properties(document), lambda entry: entry[0], "after")
    return Panel(
        columns=("Property", "Value"),
        rows=[(cells.exact(cells.clipped(key)), cells.brief(found)) for key, found in shown.items],
        empty="No property is set. Engines set them: Spark with ALTER TABLE … SET TBLPROPERTIES or "
        "ALTER VIEW … SET TBLPROPERTIES.",
        first=shown.first,
        following=shown.following,
    )


def statistics_tab(request: HttpRequest, document: Document) -> list[Panel]:
    tables = part(request, describe.statistics(document), _statistics_key, "table")
    partitions = part(request, describe.partition_statistics(document), _statistics_key, "part")
    return [
        Panel(
            title="Table statistics",
            columns=("Snapshot", "File", "Size", "Blobs"),
            rows=[(*_statistics(request, one), _blobs(one)) for one in tables.items],
            empty="No statistics file. Spark's procedure compute_table_stats writes one, with the "
            "number of distinct values of each column.",
            first=tables.first,
            following=tables.following,
        ),
        Panel(
            title="Partition statistics",
            columns=("Snapshot", "File", "Size"),
            rows=[_statistics(request, one) for one in partitions.items],
            empty="No partition statistics file. Spark's procedure compute_partition_stats writes "
            "one.",
            first=partitions.first,
            following=partitions.following,
        ),
    ]


def _statistics_key(told: Document) -> str:
    return f"{told.get('snapshot-id')} {cells.clipped(lenient.text(told.get('statistics-path')))}"


def _statistics(request: HttpRequest, told: Document) -> tuple[object, ...]:
    snapshot = lenient.integer(told.get("snapshot-id"))
    return (
        cells.NOTHING if snapshot is None else snapshot_link(request, snapshot),
        cells.exact(cells.clipped(lenient.text(told.get("statistics-path")), 1000)),
        cells.size(lenient.integer(told.get("file-size-in-bytes"))),
    )


def _blobs(told: Document) -> SafeString:
    blobs = lenient.objects(told.get("blob-metadata"))
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
    shown = part(request, files, lambda entry: cells.clipped(entry[0], 1000), "after")
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
            for file, at in shown.items
        ],
        empty="The metadata names no metadata file.",
        first=shown.first,
        following=shown.following,
        note="Earlier files are kept as write.metadata.previous-versions-max says."
        if len(files) > 1
        else "No earlier file yet: each commit adds one.",
    )


def metrics(request: HttpRequest, row: Table) -> Panel:
    found = list(MetricsReport.objects.filter(table=row).order_by("-id")[:_REPORTS])
    return Panel(
        columns=("At", "Kind", "Snapshot", "By", "Measured", "Report"),
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
                cells.fold("whole", cells.source(_indented(report.report), _LONGEST_REPORT)),
            )
            for report in found
        ],
        empty="No engine has reported anything yet. Those that do, such as Spark, tell after each scan "
        "and commit what it read, wrote and skipped, and how long it took.",
        note=f"The newest {_REPORTS} reports." if len(found) == _REPORTS else "",
    )


def _measured(report: object) -> SafeString:
    found = describe.metrics(report)[:_ENTRIES]
    return cells.lines(
        format_html("{} {}", cells.muted(cells.clipped(metric.name)), _amount(metric))
        for metric in found
    )


def _amount(metric: Metric) -> str:
    if metric.unit == "bytes":
        return filesizeformat(metric.number)
    if length := _NANOSECONDS.get(metric.unit):
        return f"{metric.number * length / 10**9:,.3f} s"
    return f"{metric.number:,}"


def _indented(report: object) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False)
