"""How fast the pages of the admin appear in Chromium at 1,000,000 tables: largest contentful paint, and time to first byte.

Each visit is a new page of a browser whose cache has the static files, as for a user who works with the admin; the
first visit of each principal, without them, is shown by itself.
"""

import json
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import lists, report
from benchmarks.compare import report_progress
from benchmarks.errors import BadAnswers, BenchmarkError
from benchmarks.lists import Size
from benchmarks.stack import running
from tests.browser import chromium

GOAL_PAINT_MS = 1000
GOAL_BYTE_MS = 200
PRINCIPALS = ("superuser", "one namespace")
QUICK = Size(namespaces=20, tables=500, requests=3)
FULL = Size(namespaces=1_000, tables=1_000, requests=20)
_TIMES = """
() => new Promise((resolve) => {
  let paint = 0;
  new PerformanceObserver((entries) => {
    for (const entry of entries.getEntries()) paint = entry.startTime;
  }).observe({ type: "largest-contentful-paint", buffered: true });
  const [navigation] = performance.getEntriesByType("navigation");
  setTimeout(() => resolve([paint, navigation.responseStart - navigation.requestStart]), 300);
})
"""


@dataclass
class Visits:
    """The times of a page for a principal, in milliseconds."""

    principal: str
    page: str
    url: str
    first_paint: float = 0.0
    """Of the visit with an empty cache; only for the first page of a principal."""
    paints: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)

    @property
    def is_within(self) -> bool:
        return max(self.paints) < GOAL_PAINT_MS and _p95(self.bytes) <= GOAL_BYTE_MS


def measure(size: Size, directory: Path | None) -> bool:
    """Fill a catalog and visit its pages; whether each reaches both goals."""
    if reason := chromium.missing():
        raise BenchmarkError(reason)
    with running(directory) as stack:
        stack.bootstrap(stack.postgres.url)
        lists.prepare(stack)
        lists.seed(stack.postgres.url, size)
        _, port = stack.start_web(stack.postgres.url)
        return show(list(_visited(f"http://127.0.0.1:{port}", size.requests)), size)


def _pages() -> dict[str, str]:
    from catalog.models import Table

    table = Table.objects.filter(kind="table", state="live").order_by("pk")[1000:1001].get()
    return {
        "overview": "/admin/",
        "tree of namespaces": "/admin/catalog/namespace/",
        "list of tables": "/admin/catalog/table/",
        "list by rows": "/admin/catalog/table/?o=-rows",
        "namespace": f"/admin/catalog/namespace/{table.namespace_id}/change/",
        "table": f"/admin/catalog/table/{table.pk}/change/",
        "search": f"/admin/catalog/labeldefinition/search/?q={table.name.split('_')[0]}",
    }


def _visited(address: str, visits: int) -> Iterator[Visits]:
    from django.conf import settings

    pages = _pages()
    sessions = {
        name: lists.client_of(name).cookies[settings.SESSION_COOKIE_NAME].value
        for name in PRINCIPALS
    }
    with chromium.launched() as browser:
        for principal, session in sessions.items():
            context = browser.new_context(base_url=address, viewport={"width": 1440, "height": 900})
            context.add_cookies(
                [{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": address}]
            )
            first_paint, _ = _times(context, pages["overview"])
            for name, url in pages.items():
                result = Visits(principal, name, url, first_paint if name == "overview" else 0.0)
                _times(context, url)  # fills the caches of the server
                for _ in range(visits):
                    paint, first_byte = _times(context, url)
                    result.paints.append(paint)
                    result.bytes.append(first_byte)
                report_progress(f"{principal}: {name}")
                yield result
            context.close()


def _times(context: Any, url: str) -> tuple[float, float]:
    page = context.new_page()
    try:
        answer = page.goto(url, wait_until="load")
        # Users of a single namespace may not open the page of another one.
        if answer is None or answer.status not in {200, 404}:
            raise BadAnswers(f"{url}: {answer and answer.status}")
        paint, first_byte = page.evaluate(_TIMES)
        return float(paint), float(first_byte)
    finally:
        page.close()


def _p95(values: Sequence[float]) -> float:
    """The smallest of the values that at least 95 % of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * 0.95) - 1]


_HEAD = ["principal", "page", "paint", "longest paint", "first byte p95", "first visit"]


def show(results: Sequence[Visits], size: Size) -> bool:
    rows = [
        [
            result.principal,
            result.page,
            f"{statistics.median(result.paints):.0f} ms",
            f"{max(result.paints):.0f} ms",
            f"{_p95(result.bytes):.0f} ms",
            f"{result.first_paint:.0f} ms" if result.first_paint else "",
        ]
        for result in results
    ]
    print(f"\n{report.machine()}, {size.all_tables:,} tables, Chromium\n")
    print(report.columns(_HEAD, rows, left_aligned={0, 1}))
    within = sum(result.is_within for result in results)
    print(
        f"\n{within} of {len(results)} pages within {GOAL_PAINT_MS} ms to the largest contentful paint"
        f" and {GOAL_BYTE_MS} ms to the first byte"
    )
    report.RESULTS.mkdir(exist_ok=True)
    raw = {
        "machine": report.machine(),
        "tables": size.all_tables,
        "load_average": os.getloadavg(),
        "pages": [vars(result) for result in results],
    }
    (report.RESULTS / "paint.json").write_text(json.dumps(raw, indent=1) + "\n")
    return within == len(results)
