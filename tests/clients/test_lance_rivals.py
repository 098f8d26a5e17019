"""Writers of every kind compete in separate processes. No change may be lost."""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import lance
import pytest
from lance_namespace_urllib3_client import models as m

from tests.clients import writers
from tests.clients.rivals import SHARED, Race, WriterReport, rows, stream, work
from tests.live import LiveServer
from tests.shares import daily

pytestmark = pytest.mark.xdist_group("live")  # the writers' processes start once
OLD = 40  # initial rows
CHANGES = 12
FIRST = (1_000, 2_000)  # the ids of each writer's own rows

PAIRS = [
    ("append", "append"),
    ("append", "direct_append"),
    ("update", "append"),
    ("update", "direct_append"),
    ("update", "update"),
    ("update", "direct_update"),
    ("delete", "append"),
    ("delete", "update"),
    ("delete", "direct_update"),
    ("direct_delete", "update"),
    ("merge", "append"),
    ("merge", "merge"),
    ("merge", "direct_merge"),
    ("merge", "delete"),
    ("upsert", "upsert"),
    ("upsert", "direct_upsert"),
]
DAILY = [
    ("append", "append"),
    ("update", "direct_update"),
    ("direct_delete", "update"),
    ("merge", "direct_merge"),
    ("merge", "delete"),
    ("upsert", "upsert"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that have started."""
    with writers.pool(2) as pool:
        for future in [pool.submit(time.sleep, 1) for _ in range(2)]:
            future.result()
        yield pool


@pytest.fixture
def table(live: LiveServer, request: pytest.FixtureRequest) -> list[str]:
    table = [request.node.name, "t"]
    ns = live.client()
    ns.create_namespace(m.CreateNamespaceRequest(id=table[:1]))
    old = rows(*((number, 0, "") for number in range(OLD)))
    ns.create_table(m.CreateTableRequest(id=table), stream(old))
    return table


@pytest.mark.parametrize("pair", daily(PAIRS, *DAILY), ids=" and ".join)
def test_no_change_of_competing_writers_is_lost(
    live: LiveServer, pool: ProcessPoolExecutor, table: list[str], pair: tuple[str, str]
) -> None:
    race = Race(live.url, live.key, table, CHANGES, begin=time.time() + 0.3)
    running = [
        pool.submit(work, race, kind, first) for kind, first in zip(pair, FIRST, strict=True)
    ]
    reports = [future.result(timeout=240) for future in running]
    print(*(f"{kind}: {report}" for kind, report in zip(pair, reports, strict=True)), sep="; ")

    assert [report.changes for report in reports] == [CHANGES, CHANGES]
    dataset = lance.dataset(namespace_client=live.client(), table_id=table)
    rows = sorted(tuple(row.values()) for row in dataset.to_table().to_pylist())
    assert len({row[0] for row in rows}) == len(rows), "a row is there twice"
    # A merge restores a row that was deleted before, and a delete removes one that was merged.
    uncertain = set(range(CHANGES)) if {"merge", "delete"} == set(pair) else set()
    assert {row[0] for row in rows} | uncertain == _expected_ids(pair) | uncertain
    _assert_changes_of(pair, rows)
    _assert_history(live, table, reports)


def _expected_ids(pair: tuple[str, str]) -> set[int]:
    ids = set(range(OLD))
    for kind in pair:
        if kind.endswith("delete"):
            ids -= set(range(CHANGES))
    for kind, first in zip(pair, FIRST, strict=True):
        if kind.endswith(("append", "merge")):
            ids |= set(range(first, first + CHANGES))
        if kind.endswith("upsert"):
            ids |= set(range(SHARED, SHARED + CHANGES))
    return ids


def _assert_changes_of(pair: tuple[str, str], rows_: list[tuple[int, int, str]]) -> None:
    updates = CHANGES * sum(kind.endswith("update") for kind in pair)
    merges = {kind for kind in pair if kind.endswith("merge")}
    for number, n, writer in rows_:
        if number >= SHARED:
            assert n == 0
            assert writer in pair
        elif number >= FIRST[0]:
            assert (n, writer) == (0, pair[number // 1_000 - 1])
        elif number < CHANGES and merges:
            assert n == 0
            assert writer in merges
        else:
            assert (n, writer) == (updates, "")


def _assert_history(live: LiveServer, table: list[str], reports: list[WriterReport]) -> None:
    """One version for each change, without gaps, each readable and with its audit row."""
    status, listed = live.post(f"/v1/table/{'$'.join(table)}/version/list")
    assert status == 200, listed
    versions = [entry["version"] for entry in listed["versions"]]
    assert versions == list(range(1, 2 + sum(report.changes for report in reports)))
    with live.database() as database:
        audited = database.execute(
            "SELECT (after->>'version')::int FROM catalog_auditevent WHERE table_uuid ="
            " (SELECT uuid FROM catalog_table WHERE name = %s AND namespace_id ="
            " (SELECT id FROM catalog_namespace WHERE name = %s)) AND after ? 'version'"
            " ORDER BY id",
            (table[1], table[0]),
        ).fetchall()
    assert [version for (version,) in audited] == versions[1:]
    for version in versions:
        lance.dataset(namespace_client=live.client(), table_id=table, version=version).count_rows()
