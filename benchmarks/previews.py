"""How long the admin's preview takes on a table of 1 GB of each format: pages, filters, orders and older versions.

The application runs in this process. Rows of Iceberg tables are read by its worker process, as in production.
"""

import json
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks import lists, report
from benchmarks.compare import report_progress
from benchmarks.errors import BadAnswers
from benchmarks.stack import running

GOAL_MS = 2000
_DIMENSIONS = 64
_PORTION = 250_000
_ROWS = re.compile(r"Rows? [\d,]+(?: to [\d,]+)?\.")
_STOPPED = re.compile(r"Stopped after [^<]*")


@dataclass(frozen=True)
class Size:
    rows: int
    requests: int
    """Requests of each case."""


QUICK = Size(rows=300_000, requests=2)
FULL = Size(rows=3_750_000, requests=5)
"""At least 1 GB in each format."""

CASES: dict[str, dict[str, Any]] = {
    "first page": {},
    "100 rows": {"rows": 100},
    "page from row 5,000": {"from": 5000},
    "three columns": {"column": ["id", "user", "amount"]},
    "older version": {"older": True},
    "number, one row": {"where": "id", "is": "eq", "value": "{last}"},
    "number, a tenth": {"where": "amount", "is": "lt", "value": "100"},
    "text, frequent": {"where": "user", "is": "eq", "value": "user-00042"},
    "text, no row": {"where": "note", "is": "contains", "value": "no such words"},
    "order by number": {"sort": "-amount"},
    "order by text": {"sort": "note"},
    "filter and order": {"where": "amount", "is": "lt", "value": "100", "sort": "-at"},
    "filter, order, page": {
        "where": "user",
        "is": "eq",
        "value": "user-00042",
        "sort": "amount",
        "from": 20,
    },
}


def measure(size: Size, directory: Path | None) -> bool:
    """Write a table of each format and measure its previews; whether each case reaches the goal."""
    with running(directory) as stack:
        stack.bootstrap(stack.postgres.url)
        lists.prepare(stack)
        tables = _tables(size)
        return show(list(_measured(tables, size)), tables, size)


def _portions(size: Size) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    pick = np.random.default_rng(1)
    words = np.array([f"word{number:05}" for number in range(20_000)])
    start = np.datetime64("2026-01-01", "us")
    for first in range(0, size.rows, _PORTION):
        count = min(_PORTION, size.rows - first)
        chosen = pick.integers(0, len(words), (6, count))
        note = words[chosen[0]]
        for line in chosen[1:]:
            note = np.char.add(np.char.add(note, " "), words[line])
        vectors = pick.random(count * _DIMENSIONS, dtype=np.float32)
        ids = np.arange(first, first + count)
        yield pa.table(
            {
                "id": ids,
                "at": pa.array(start + (ids * 7919 % size.rows).astype("timedelta64[s]")),
                "user": np.char.add("user-", np.char.zfill((ids * 31 % 3000).astype(str), 5)),
                "amount": pick.random(count) * 1000,
                "note": note,
                "embedding": pa.ListArray.from_arrays(
                    pa.array(np.arange(0, (count + 1) * _DIMENSIONS, _DIMENSIONS, dtype=np.int32)),
                    pa.array(vectors),
                ),
            }
        )


def _tables(size: Size) -> dict[str, tuple[int, str, float]]:
    """The key of the table of each format, a parameter for its first version, and its size in GB."""
    from catalog.access import SYSTEM
    from catalog.models import Table
    from catalog.services.lance import data
    from tests.catalog.services.iceberg.writing import open_table
    from tests.factories import make_iceberg_table, make_lance_table

    portions = _portions(size)
    first = next(portions)
    make_lance_table(("previews", "lance"), first)
    iceberg = make_iceberg_table("previews", "iceberg", schema=_schema(first.schema))
    open_table("previews", "iceberg").append(first)
    snapshot = open_table("previews", "iceberg").current_snapshot()
    for number, portion in enumerate(portions):
        data.insert(actor=SYSTEM, table=("previews", "lance"), data=portion.to_reader())
        open_table("previews", "iceberg").append(portion)
        report_progress(f"portion {number + 2}")
    lance = Table.objects.get(name="lance")
    older = {"lance": "version=1", "iceberg": f"snapshot={snapshot.snapshot_id}"}  # type: ignore[union-attr]
    places = {"lance": (lance.pk, lance.location), "iceberg": (iceberg.pk, iceberg.location)}
    return {name: (key, older[name], _gigabytes(at)) for name, (key, at) in places.items()}


def _schema(schema: Any) -> dict[str, Any]:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))
    result: dict[str, Any] = fresh.model_dump(mode="json", by_alias=True)
    return result


def _gigabytes(location: str) -> float:
    files = Path(location.removeprefix("file://")).rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e9


@dataclass(frozen=True)
class Figures:
    format: str
    case: str
    ms: Sequence[float]
    rows: str
    stopped: str


def _measured(tables: dict[str, tuple[int, str, float]], size: Size) -> Iterator[Figures]:
    client = lists.client_of("superuser")
    for name, (key, older, _) in tables.items():
        address = f"/admin/catalog/table/{key}/change/"
        client.get(address)
        for case, parameters in CASES.items():
            chosen = {k: v for k, v in parameters.items() if k != "older"}
            if "{last}" in str(chosen.get("value")):
                chosen["value"] = str(size.rows - 1)
            url = f"{address}?{urlencode({'tab': 'preview', **chosen}, doseq=True)}"
            if "older" in parameters:
                url += f"&{older}"
            times = []
            for _ in range(size.requests):
                began = time.perf_counter()
                answer = client.get(url)
                times.append((time.perf_counter() - began) * 1000)
                if answer.status_code != 200:
                    raise BadAnswers(f"{url}: {answer.status_code}")
            text = unescape(answer.content.decode())
            rows, stopped = _ROWS.search(text), _STOPPED.search(text)
            yield Figures(name, case, times, rows[0] if rows else "", stopped[0] if stopped else "")
        report_progress(name)


def show(results: Sequence[Figures], tables: dict[str, tuple[int, str, float]], size: Size) -> bool:
    rows = [
        [
            result.format,
            result.case,
            f"{statistics.median(result.ms):.0f} ms",
            f"{max(result.ms):.0f} ms",
            result.rows,
            result.stopped,
        ]
        for result in results
    ]
    sizes = ", ".join(f"{name} {gigabytes:.2f} GB" for name, (_, _, gigabytes) in tables.items())
    print(f"\n{report.machine()}, {size.rows:,} rows, {sizes}\n")
    head = ["format", "preview", "median", "longest", "rows", "stopped"]
    print(report.columns(head, rows, left_aligned={0, 1, 4, 5}))
    within = sum(max(result.ms) <= GOAL_MS for result in results)
    print(f"\n{within} of {len(results)} previews within {GOAL_MS} ms")
    report.RESULTS.mkdir(exist_ok=True)
    raw = {"machine": report.machine(), "rows": size.rows, "previews": [vars(r) for r in results]}
    (report.RESULTS / "previews.json").write_text(json.dumps(raw, indent=1) + "\n")
    return within == len(results)
