"""A sort order for an Iceberg table, from the filters of the scans that engines have reported."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from catalog.errors import InvalidInput
from catalog.formats.iceberg import sorted_files
from catalog.formats.iceberg.metrics_reports import SCAN
from catalog.formats.iceberg.reading import Document
from catalog.layouts import Layout, SortColumn, Strategy
from catalog.models import MetricsReport, Table
from catalog.services.iceberg import metrics_reports
from catalog.services.maintenance.layouts import table_layouts

_LEAST_SCANS = 20
_MAX_COLUMNS = 3
_OFTEN = 0.2
"""Share of the scans that must filter by a column, so that the order has it."""
_LEADING = 0.8
"""Share of the scans that filter by one column, from which rows are sorted by it alone."""
_EQUALITY = frozenset({"eq", "in"})
_RANGES = frozenset({"lt", "lt-eq", "gt", "gt-eq", "starts-with"})
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A layout, and the share of data files that scans would skip."""

    layout: Layout
    scans: int
    """Number of the reported scans."""
    filtered: Mapping[str, int]
    """Number of scans that filter by each column."""
    skipped: float
    """Share of the data files that the scans skip on average now."""
    expected: float
    """The least share that they would skip: only comparisons with single values are considered,
    because reports do not contain the bounds of ranges."""


def suggest(table: Table, files: int) -> Suggestion | None:
    """A layout by which scans skip more of a table's files; None if none is known.

    ``files`` is the number of data files. Two statements.
    """
    rows = metrics_reports.newest_reports(table, metrics_reports.MAX_REPORTS)
    reports = [report for report in rows if report.kind == SCAN]
    document = table_layouts.document_of(table)
    if len(reports) < _LEAST_SCANS or files < 2 or document is None:
        return None
    predicates = [_values_by_column(report) for report in reports]
    counts = Counter(column for scan in predicates for column in scan)
    often = [
        column
        for column, number in counts.most_common()
        if number >= _OFTEN * len(reports) and _fits(document, column)
    ][:_MAX_COLUMNS]
    if not often:
        return None
    is_leading = counts[often[0]] >= _LEADING * len(reports) or len(often) == 1
    columns = often[:1] if is_leading else often
    layout = _layout(columns, is_sort=is_leading)
    if not _is_possible(document, layout):
        layout, columns = _layout(often[:1], is_sort=True), often[:1]
    now = [_skipped(report, files) for report in reports]
    expected = [
        max(share, _expected(scan, columns, files))
        for share, scan in zip(now, predicates, strict=True)
    ]
    return Suggestion(
        layout, len(reports), dict(counts), sum(now) / len(now), sum(expected) / len(expected)
    )


def _layout(columns: Sequence[str], *, is_sort: bool) -> Layout:
    strategy = Strategy.SORT if is_sort else Strategy.ZORDER
    return Layout(strategy, tuple(SortColumn(tuple(name.split("."))) for name in columns))


def _fits(document: Document, column: str) -> bool:
    return _is_possible(document, _layout([column], is_sort=True))


def _is_possible(document: Document, layout: Layout) -> bool:
    try:
        sorted_files.check(document, layout)
    except InvalidInput:
        return False
    return True


def _expected(scan: Mapping[str, int], columns: Sequence[str], files: int) -> float:
    """The share of files that a scan would skip. With several columns on a curve, a value of one of
    them is in the files of one range of that column, of which there are fewer."""
    ranges = files ** (1 / len(columns))
    shares = [1 - min(scan[name] / ranges, 1) for name in columns if scan.get(name)]
    return max(shares, default=0.0)


def _skipped(report: MetricsReport, files: int) -> float:
    """The share of the data files that a scan has skipped, with those in skipped manifests."""
    read = _metric(report, "result-data-files")
    return 1 - min(read / files, 1)


def _metric(report: MetricsReport, name: str) -> int:
    metric = (report.report.get("metrics") or {}).get(name) or {}
    value = metric.get("value", 0)
    return value if isinstance(value, int) and value >= 0 else 0


def _values_by_column(report: MetricsReport) -> dict[str, int]:
    """For each column that every row of the scan must match, the number of values that it may have; 0
    for a range."""
    values: dict[str, int] = {}
    for name, number in _conjuncts(report.report.get("filter"), 0):
        values[name] = min(filter(None, (values.get(name), number)), default=0)
    return values


def _conjuncts(predicate: Any, depth: int) -> Iterator[tuple[str, int]]:
    """The columns of comparisons that are joined by "and", each with the number of its values."""
    if not isinstance(predicate, Mapping) or depth > _MAX_DEPTH:
        return
    kind = predicate.get("type")
    if kind == "and":
        yield from _conjuncts(predicate.get("left"), depth + 1)
        yield from _conjuncts(predicate.get("right"), depth + 1)
        return
    term = predicate.get("term")
    if not isinstance(term, str):
        return
    if kind in _EQUALITY:
        several = predicate.get("values")
        yield term, max(len(several), 1) if isinstance(several, list) else 1
    elif kind in _RANGES:
        yield term, 0
