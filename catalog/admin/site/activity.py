"""Panels of the overview: storage by namespace, and the tables that are read and written most.

Each panel reads a bounded number of rows, and has only tables that the user may browse, or read.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode

from django.db import connection
from django.db.models import F
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.safestring import SafeString

from catalog import access
from catalog.admin import cells, treemap
from catalog.admin.actor import actor, browsable_tables, few_tables
from catalog.admin.pages import Panel
from catalog.identifiers import label, spelled
from catalog.models import Table, TableState, TableSummary

DAYS = 7
"""The period of reads and commits."""
LARGEST = 1_000
"""Maximum number of tables in the treemap; the largest are used."""
MAX_ROWS = 20_000
"""Maximum number of commits, or of counts of reads, that a panel reads; the newest are used."""
_GROUPS = 40  # rectangles
_CANDIDATES = 200  # tables, of which those that the user may read are shown
_SHOWN = 5

# Each gives the tables with the highest counts, and the number of rows that were read. Without `tables`, all tables count.
_READS = """
    WITH newest AS MATERIALIZED (
        SELECT table_id, GREATEST(loads, scans + queries) AS reads FROM catalog_tableuse
        WHERE day > %(since)s ORDER BY day DESC LIMIT %(limit)s
    )
    SELECT table_id, sum(reads)::bigint, (SELECT count(*) FROM newest) FROM newest
    WHERE reads > 0 AND (%(tables)s::bigint[] IS NULL OR table_id = ANY (%(tables)s))
    GROUP BY table_id ORDER BY 2 DESC, table_id LIMIT %(candidates)s
"""
_COMMITS = """
    WITH newest AS MATERIALIZED (
        SELECT table_id, created_at FROM catalog_tableversion ORDER BY id DESC LIMIT %(limit)s
    )
    SELECT table_id, count(*), (SELECT count(*) FROM newest WHERE created_at > %(since)s) FROM newest
    WHERE created_at > %(since)s AND (%(tables)s::bigint[] IS NULL OR table_id = ANY (%(tables)s))
    GROUP BY table_id ORDER BY 2 DESC, table_id LIMIT %(candidates)s
"""


@dataclass(frozen=True)
class _Highest:
    counts: dict[int, int]
    """The count of each table, the highest first."""
    is_bounded: bool
    """True if only the newest ``MAX_ROWS`` rows were read."""


@dataclass(frozen=True)
class Storage:
    chart: SafeString
    """Empty if no table was measured."""
    note: str


def storage(request: HttpRequest) -> Storage:
    """The bytes of the largest tables by namespace. Two statements at most."""
    rows = TableSummary.objects.filter(browsable_tables(request), bytes__gt=0).exclude(
        table__state=TableState.DROPPED
    )
    largest = list(
        rows.order_by(F("bytes").desc(nulls_last=True), "-table").values_list(
            "bytes", "table__namespace__path"
        )[: LARGEST + 1]
    )
    note = f"Shows the {LARGEST:,} largest tables." if len(largest) > LARGEST else ""
    sizes = _by_namespace([(size or 0, tuple(path)) for size, path in largest[:LARGEST]])
    if not sizes:
        return Storage(SafeString(""), "")
    items = [
        treemap.Item(
            label(path) or "root",
            cells.list_url(Table, urlencode({"in": spelled(path), "o": "-size"} if path else {})),
            size,
            filesizeformat(size),
        )
        for path, size in sizes.most_common(_GROUPS)
    ]
    remaining = sum(sizes.values()) - sum(item.amount for item in items)
    if remaining:
        others = f"{len(sizes) - _GROUPS:,} others"
        items.append(
            treemap.Item(others, cells.list_url(Table), remaining, filesizeformat(remaining))
        )
    return Storage(treemap.draw("Storage by namespace", items), note)


def _by_namespace(tables: list[tuple[int, tuple[str, ...]]]) -> Counter[tuple[str, ...]]:
    """Bytes by top-level namespace; below it, as long as all tables are in the same namespace."""
    sizes: Counter[tuple[str, ...]] = Counter()
    deepest = max((len(path) for _, path in tables), default=0)
    for depth in range(1, deepest + 1):
        sizes = Counter()
        for size, path in tables:
            sizes[path[:depth]] += size
        if len(sizes) > 1:
            return sizes
    return sizes or Counter({(): sum(size for size, _ in tables)} if tables else {})


def most_read(request: HttpRequest) -> Panel:
    """The tables with the most reads of the last days. Three statements at most."""
    today = timezone.now().astimezone(UTC).date()
    return _panel(
        "Most read tables",
        "Reads",
        request,
        _highest(request, _READS, today - timedelta(days=DAYS)),
        empty=f"No reads of tables that you may read in the last {DAYS} days. Reads are loads by clients, scans of engines and queries over HTTP.",
        note=f"Of the newest {MAX_ROWS:,} counts.",
    )


def most_written(request: HttpRequest) -> Panel:
    """The tables with the most commits of the last days. Three statements at most."""
    return _panel(
        "Most written tables",
        "Commits",
        request,
        _highest(request, _COMMITS, timezone.now() - timedelta(days=DAYS)),
        empty=f"No commits in the last {DAYS} days to tables that you may read.",
        note=f"Of the newest {MAX_ROWS:,} commits.",
    )


def _highest(request: HttpRequest, statement: str, since: date | datetime) -> _Highest:
    """The counts of the tables with the highest ones, among few tables of the user if there are few."""
    parameters = {
        "since": since,
        "limit": MAX_ROWS,
        "tables": few_tables(request),
        "candidates": _CANDIDATES,
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        rows = cursor.fetchall()
    return _Highest(
        {table: count for table, count, _ in rows}, any(read == MAX_ROWS for *_, read in rows)
    )


def _panel(
    title: str, column: str, request: HttpRequest, highest: _Highest, *, empty: str, note: str
) -> Panel:
    candidates = list(highest.counts)
    readable = access.readable_tables(actor(request), candidates) if candidates else set()
    shown = [pk for pk in candidates if pk in readable][: 2 * _SHOWN]
    tables = Table.objects.present().select_related("namespace").in_bulk(shown) if shown else {}
    rows = [tables[pk] for pk in shown if pk in tables][:_SHOWN]
    most = highest.counts[rows[0].pk] if rows else 0
    return Panel(
        title=title,
        columns=("Table", f"{column} in {DAYS} days"),
        rows=[
            (
                cells.link(row),
                cells.meter(highest.counts[row.pk], most, f"{highest.counts[row.pk]:,}"),
            )
            for row in rows
        ],
        empty=empty,
        note=note if rows and highest.is_bounded else "",
    )
