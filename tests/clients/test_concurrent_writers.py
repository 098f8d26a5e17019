"""Several processes append to one table with pylance. No row may be lost or duplicated."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import lance
import obstore
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest
from obstore.store import S3Store

from tests.clients import conftest, writers
from tests.clients.writers import ROWS, AppendReport
from tests.live import LiveServer
from tests.stores.s3 import S3Store as Store

WRITERS = 4
TABLE = ["many", "rows"]
MEGABYTE = 1024 * 1024


def _make_table(server: LiveServer, store: Store | None = None) -> None:
    """Create an empty table in local files, or in an object store."""
    ns = server.client()
    ns.create_namespace(CreateNamespaceRequest(id=TABLE[:1]))
    if store is not None:
        conftest.bind_to(server, store, TABLE[:1])
    schema = pa.schema({"attempt": pa.string(), "row": pa.int64()})
    lance.write_dataset(schema.empty_table(), namespace_client=ns, table_id=TABLE)


def test_appends_of_four_processes_are_committed_once(killable: LiveServer) -> None:
    _make_table(killable)
    _append_at_once(killable, append_count=12)


@pytest.mark.engines
@pytest.mark.parametrize("storage", ["local", "s3"])
def test_more_appends_of_four_processes_are_committed_once(
    killable: LiveServer, request: pytest.FixtureRequest, storage: str
) -> None:
    _make_table(killable, request.getfixturevalue("s3") if storage == "s3" else None)
    _append_at_once(killable, append_count=25)


def _append_at_once(server: LiveServer, append_count: int) -> None:
    with writers.pool(WRITERS) as pool:
        reports = list(pool.map(writers.append, *_arguments(server, append_count)))

    for report in reports:
        assert report.errors == []
        assert len(report.acknowledged) == append_count
    rows = _rows(server)
    assert set(rows) == {
        (name, row) for t in reports for name in t.acknowledged for row in range(ROWS)
    }
    assert set(rows.values()) == {1}
    assert _ledger(server) == list(range(1, WRITERS * append_count + 2))
    _every_version_is_readable(server)
    assert max(server.resident()) < 300 * MEGABYTE


@pytest.fixture
def restarted(live_template: None) -> Iterator[LiveServer]:
    """A server with one web process, because a second one would rarely start before the next kill."""
    with LiveServer(workers=1) as server:
        yield server


def test_acknowledged_appends_survive_a_kill_of_the_server(
    restarted: LiveServer, s3: Store
) -> None:
    _make_table(restarted, s3)
    _append_despite_kills(restarted, append_count=8, kills=(10,))


@pytest.mark.engines
@pytest.mark.parametrize("storage", ["local", "s3"])
def test_more_acknowledged_appends_survive_kills(
    killable: LiveServer, request: pytest.FixtureRequest, storage: str
) -> None:
    _make_table(killable, request.getfixturevalue("s3") if storage == "s3" else None)
    _append_despite_kills(killable, append_count=25, kills=(20, 45, 70))


def _append_despite_kills(server: LiveServer, append_count: int, kills: Sequence[int]) -> None:
    """Kill the web server each time the table has one of these numbers of versions."""
    with writers.pool(WRITERS) as pool:
        arguments = zip(*_arguments(server, append_count), strict=True)
        running = [pool.submit(writers.append, *a) for a in arguments]
        with server.database() as database:
            for commits in kills:
                _wait_for_versions(database, commits)
                server.kill()
                server.start(wait=False)
        reports = [future.result(timeout=240) for future in running]
    server.wait_ready()
    server.wait_until_idle()

    rows = _rows(server)
    _require_each_once(reports, rows, append_count)
    assert any(report.errors for report in reports), "no writer noticed the kills"
    versions = _ledger(server)
    assert versions == list(range(1, len(versions) + 1))
    # One version for each attempt with rows, in addition to the table's first version.
    assert len(versions) == 1 + len({name for name, _ in rows})
    _every_version_is_readable(server)
    server.settle()
    _every_version_is_readable(server)
    assert max(server.resident()) < 300 * MEGABYTE


def _require_each_once(
    reports: Sequence[AppendReport], rows: Counter[tuple[str, int]], append_count: int
) -> None:
    """Each successful append is in the table once, and each failed one as a whole or not at all."""
    for report in reports:
        assert len(report.acknowledged) + len(report.landed) == append_count
        for name in report.acknowledged + report.landed:
            assert [rows[name, row] for row in range(ROWS)] == [1] * ROWS, name
        for name in report.failed:
            counts = {rows[name, row] for row in range(ROWS)}
            assert counts in ({0}, {1}), name
    assert {name for name, _ in rows} <= {name for t in reports for name in _names(t)}


def _arguments(server: LiveServer, append_count: int) -> tuple[list[object], ...]:
    arguments = [(server.url, server.key, TABLE, writer, append_count) for writer in range(WRITERS)]
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


def _size(server: LiveServer, manifest_path: str) -> int:
    """The size of a manifest in storage, whose path is relative to the store."""
    _, answer = server.post(f"/v1/table/{'$'.join(TABLE)}/describe")
    location = answer["location"]
    if location.startswith("/"):
        return Path("/" + manifest_path).stat().st_size
    options = answer["storage_options"]
    store = S3Store(
        location.removeprefix("s3://").partition("/")[0],
        endpoint=options["aws_endpoint"],
        region=options["aws_region"],
        access_key_id=options["aws_access_key_id"],
        secret_access_key=options["aws_secret_access_key"],
        client_options={"allow_http": True},
    )
    return obstore.head(store, manifest_path)["size"]


def _every_version_is_readable(server: LiveServer) -> None:
    """Check that the ledger's file of every version exists and that pylance can open it."""
    ns = server.client()
    _, answer = server.post(f"/v1/table/{'$'.join(TABLE)}/version/list")
    previous = -1
    for entry in answer["versions"]:
        assert _size(server, entry["manifest_path"]) == entry["manifest_size"]
        dataset = lance.dataset(namespace_client=ns, table_id=TABLE, version=entry["version"])
        rows = dataset.count_rows()
        assert rows == (previous + ROWS if previous >= 0 else 0)
        previous = rows
