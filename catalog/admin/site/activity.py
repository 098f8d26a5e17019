"""Panels of the overview: storage by namespace, and the tables that are read and written most.

Each panel reads a bounded number of rows, and has only tables that the user may browse, or read.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, timedelta
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
from catalog.models import Table, TableState, TableSummary, TableUse

DAYS = 7
"""The period of reads and commits."""
LARGEST = 1_000
"""Maximum number of tables in the treemap; the largest are used."""
MAX_ROWS = 20_000
"""Maximum number of commits, or of counts of reads, that a panel reads; the newest are used."""
_GROUPS = 40  # rectangles
_CANDIDATES = 200  # tables, of which those that the user may read are shown
_SHOWN = 5

_COMMITS = """
    SELECT table_id, count(*) FROM (
        SELECT table_id, created_at FROM catalog_tableversion ORDER BY id DESC LIMIT %(limit)s
    ) newest
    WHERE created_at > %(since)s GROUP BY table_id
"""


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
    newest = list(
        TableUse.objects.filter(day__gt=today - timedelta(days=DAYS))
        .order_by("-day")
        .only("table_id", "loads", "scans", "queries")[:MAX_ROWS]
    )
    reads: Counter[int] = Counter()
    for row in newest:
        reads[row.table_id] += row.reads
    return _panel(
        "Most read tables",
        "Reads",
        request,
        reads,
        empty=f"No reads of tables that you may read in the last {DAYS} days. Reads are loads by clients, scans of engines and queries over HTTP.",
        note=f"Of the newest {MAX_ROWS:,} counts." if len(newest) == MAX_ROWS else "",
    )


def most_written(request: HttpRequest) -> Panel:
    """The tables with the most commits of the last days. Three statements at most."""
    since = timezone.now() - timedelta(days=DAYS)
    with connection.cursor() as cursor:
        cursor.execute(_COMMITS, {"limit": MAX_ROWS, "since": since})
        commits = Counter(dict(cursor.fetchall()))
    return _panel(
        "Most written tables",
        "Commits",
        request,
        commits,
        empty=f"No commits in the last {DAYS} days to tables that you may read.",
        note=f"Of the newest {MAX_ROWS:,} commits." if commits.total() == MAX_ROWS else "",
    )


def _panel(
    title: str, column: str, request: HttpRequest, counts: Counter[int], *, empty: str, note: str
) -> Panel:
    few = few_tables(request) if counts else None
    if few is not None:
        counts = Counter({pk: counts[pk] for pk in few if counts[pk]})
    candidates = [pk for pk, count in counts.most_common(_CANDIDATES) if count]
    readable = access.readable_tables(actor(request), candidates) if candidates else set()
    shown = [pk for pk in candidates if pk in readable][: 2 * _SHOWN]
    tables = Table.objects.present().select_related("namespace").in_bulk(shown) if shown else {}
    rows = [tables[pk] for pk in shown if pk in tables][:_SHOWN]
    most = counts[rows[0].pk] if rows else 0
    return Panel(
        title=title,
        columns=("Table", f"{column} in {DAYS} days"),
        rows=[
            (cells.link(row), cells.meter(counts[row.pk], most, f"{counts[row.pk]:,}"))
            for row in rows
        ],
        empty=empty,
        note=note if rows else "",
    )
