"""Several processes append to one table with pylance. No row may be lost or duplicated."""

import time
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest

from tests.clients import writers
from tests.clients.writers import ROWS, AppendReport
from tests.live import LiveServer

WRITERS, APPENDS = 4, 25
TABLE = ["many", "rows"]
MEGABYTE = 1024 * 1024


@pytest.fixture
def server(killable: LiveServer) -> LiveServer:
    """A live server with an empty table."""
    ns = killable.client()
    ns.create_namespace(CreateNamespaceRequest(id=TABLE[:1]))
    schema = pa.schema({"attempt": pa.string(), "row": pa.int64()})
    lance.write_dataset(schema.empty_table(), namespace_client=ns, table_id=TABLE)
    return killable


def test_appends_of_four_processes_are_committed_once(server: LiveServer) -> None:
    with writers.pool(WRITERS) as pool:
        reports = list(pool.map(writers.append, *_arguments(server)))

    for report in reports:
        assert report.errors == []
        assert len(report.acknowledged) == APPENDS
    rows = _rows(server)
    assert set(rows) == {
        (name, row) for t in reports for name in t.acknowledged for row in range(ROWS)
    }
    assert set(rows.values()) == {1}
    assert _ledger(server) == list(range(1, WRITERS * APPENDS + 2))
    _every_version_is_readable(server)
    assert max(server.resident()) < 300 * MEGABYTE


def test_acknowledged_appends_survive_a_kill_of_the_server(server: LiveServer) -> None:
    kills = (20, 45, 70)
    with writers.pool(WRITERS) as pool:
        running = [pool.submit(writers.append, *a) for a in zip(*_arguments(server), strict=True)]
        with server.database() as database:
            for commits in kills:
                _wait_for_versions(database, commits)
                server.kill()
                server.start(wait=False)
        reports = [future.result(timeout=240) for future in running]
    server.wait_ready()
    server.wait_until_idle()

    rows = _rows(server)
    for report in reports:
        assert len(report.acknowledged) + len(report.landed) == APPENDS
        for name in report.acknowledged + report.landed:
            assert [rows[name, row] for row in range(ROWS)] == [1] * ROWS, name
        for name in report.failed:
            counts = {rows[name, row] for row in range(ROWS)}
            assert counts in ({0}, {1}), name
    acknowledged = {name for t in reports for name in _names(t)}
    assert {name for name, _ in rows} <= acknowledged
    assert any(report.errors for report in reports), "no writer noticed the kills"
    versions = _ledger(server)
    assert versions == list(range(1, len(versions) + 1))
    # One version for each attempt with rows, in addition to the table's first version.
    assert len(versions) == 1 + len({name for name, _ in rows})
    _every_version_is_readable(server)
    server.settle()
    _every_version_is_readable(server)
    assert max(server.resident()) < 300 * MEGABYTE


def _arguments(server: LiveServer) -> tuple[list[object], ...]:
    arguments = [(server.url, server.key, TABLE, writer, APPENDS) for writer in range(WRITERS)]
    return tuple(list(column) for column in zip(*arguments, strict=True))


def _names(report: AppendReport) -> list[str]:
    return report.acknowledged + report.landed + report.failed


def _wait_for_versions(database: object, count: int, within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    query = "SELECT count(*) FROM catalog_tableversion"
    while database.execute(query).fetchone()[0] < count:
        assert time.monotonic() < deadline, f"no {count} versions within {within} s"
        time.sleep(0.01)


def _rows(server: LiveServer) -> Counter[tuple[str, int]]:
    table = lance.dataset(namespace_client=server.client(), table_id=TABLE).to_table()
    return Counter(zip(table["attempt"].to_pylist(), table["row"].to_pylist(), strict=True))


def _ledger(server: LiveServer) -> list[int]:
    status, answer = server.post(f"/v1/table/{'$'.join(TABLE)}/version/list")
    assert status == 200
    return [entry["version"] for entry in answer["versions"]]


def _every_version_is_readable(server: LiveServer) -> None:
    """Check that the ledger's file of every version exists and that pylance can open it."""
    ns = server.client()
    _, answer = server.post(f"/v1/table/{'$'.join(TABLE)}/version/list")
    previous = -1
    for entry in answer["versions"]:
        assert Path("/" + entry["manifest_path"]).stat().st_size == entry["manifest_size"]
        dataset = lance.dataset(namespace_client=ns, table_id=TABLE, version=entry["version"])
        rows = dataset.count_rows()
        assert rows == (previous + ROWS if previous >= 0 else 0)
        previous = rows
