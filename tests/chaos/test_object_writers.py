"""Stock clients append to one table in an object store that fails, while the web server is killed.

No append is lost or doubled, and every object is one of a version or is accounted for: the sweep removes
the server's own, and the removal of orphans those of clients.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import lance
import pytest
from lance_namespace import CreateNamespaceRequest
from psycopg.rows import dict_row

from tests.chaos import object_judgement, object_writers
from tests.chaos.object_judgement import Lake
from tests.chaos.object_writers import HttpInsert, LanceDb, PyIceberg, Pylance, Report, Writer
from tests.clients import spark as spark_client
from tests.clients.test_iceberg_maintenance import DAY
from tests.live import LiveServer
from tests.shares import nightly
from tests.stores.faults import KINDS, FaultProxy, Faults
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Proxied, Versitygw

TABLE = ("many", "rows")
FAULTS = Faults(
    slow_down=0.02,
    reset=0.01,
    lost_answer=0.01,
    delay=0.01,
    # Longer than the patience of clients and of the server: they repeat the request, and the first
    # one arrives at the store afterwards.
    delay_seconds=9,
)
# By default PyIceberg gives up after four attempts within 1.5 s, too soon for 16 writers.
_RETRIES = {
    "commit.retry.num-retries": "10",
    "commit.retry.min-wait-ms": "500",
    "commit.retry.max-wait-ms": "8000",
}
pytestmark = [
    # LanceDB calls its own deprecated functions, and leaves event loops to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # PySpark forks to start the JVM, and the child does not use Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


@dataclass(frozen=True)
class Size:
    writers: int
    appends: int


SMALL, FULL = Size(4, 5), Size(16, 20)
KILLS = 6
"""Kills of the server in the full size."""


@pytest.fixture
def proxy(versitygw: Versitygw) -> Iterator[FaultProxy]:
    with FaultProxy(versitygw.endpoint) as proxy:
        yield proxy


@pytest.fixture
def store(versitygw: Versitygw, proxy: FaultProxy) -> Proxied:
    return Proxied(versitygw, proxy.url)


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """A server with one worker process, because a second one would rarely start before the next kill."""
    with LiveServer(workers=1, threads=16) as server:
        yield server


@pytest.fixture
def spark_server(
    live_template: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server with two worker processes, and what its jobs on Iceberg tables need."""
    settings = spark_client.settings_with_s3(tmp_path_factory.mktemp("java"))
    with LiveServer(workers=2, threads=16, **settings) as server:
        yield server


MakeLake = Any


@pytest.fixture
def make_lake(store: Proxied, versitygw: Versitygw, make_live_profile: MakeLiveProfile) -> MakeLake:
    """Create an empty table of a format, whose files server and clients reach through the proxy."""

    def make(server: LiveServer, table_format: str) -> Lake:
        namespace = server.client()
        namespace.create_namespace(CreateNamespaceRequest(id=[TABLE[0]]))
        profile, root = make_live_profile(server, store)
        bind(server, [TABLE[0]], profile)
        time.sleep(1.1)  # the server may have read the profiles within the last second
        lake = Lake(server, versitygw, root, TABLE)
        empty = object_writers.SCHEMA.empty_table()
        if table_format == "lance":
            lance.write_dataset(empty, namespace_client=namespace, table_id=list(TABLE))
        else:
            lake.catalog().create_table(TABLE, empty.schema, properties=_RETRIES)
        return lake

    return make


@pytest.mark.timeout(900)  # about 40 s, and several times that on a busy machine
@pytest.mark.parametrize("table_format", ["lance", nightly("iceberg")])
def test_nothing_is_lost_or_doubled(
    server: LiveServer, make_lake: MakeLake, proxy: FaultProxy, table_format: str
) -> None:
    lake = make_lake(server, table_format)
    _append_despite(lake, table_format, SMALL, proxy, faults=FAULTS, kills=1)
    _sweep(lake)
    if table_format == "lance":  # the job on an Iceberg table needs Spark
        _only_references_remain(lake, table_format)
    else:
        orphans = lake.objects() - _references(lake, table_format)
        assert [path for path in orphans if path.endswith(".metadata.json")] == []


@pytest.mark.engines
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("spark maintenance")
@pytest.mark.parametrize("trouble", ["none", "kills", "faults", "kills and faults"])
@pytest.mark.parametrize("table_format", ["lance", "iceberg"])
def test_sixteen_writers_lose_and_double_nothing(
    spark_server: LiveServer,
    make_lake: MakeLake,
    proxy: FaultProxy,
    table_format: str,
    trouble: str,
) -> None:
    lake = make_lake(spark_server, table_format)
    faults = FAULTS if "faults" in trouble else Faults()
    kills = KILLS if "kills" in trouble else 0
    _append_despite(lake, table_format, FULL, proxy, faults=faults, kills=kills)
    _sweep(lake)
    _only_references_remain(lake, table_format)


def _append_despite(
    lake: Lake, table_format: str, size: Size, proxy: FaultProxy, *, faults: Faults, kills: int
) -> None:
    """Append, and compare the table, the ledger and the objects with what the writers report."""
    proxy.faults = faults
    if faults.slow_down:
        for kind in KINDS:  # each at least once
            proxy.inject(kind)
    begin = time.monotonic()
    reports = _append_at_once(lake, _writers(lake, table_format, size.writers), size, kills)
    seconds = time.monotonic() - begin
    counts = dict(proxy.counts)
    proxy.faults = Faults()
    proxy.wait_until_idle()
    lake.server.wait_ready()
    lake.server.wait_until_idle()
    assert not faults.slow_down or all(counts.get(kind) for kind in KINDS), counts

    rows = _rows(lake, table_format)
    object_judgement.require_each_once(reports, rows, size.appends)
    object_judgement.require_trail(lake, rows)
    lake.server.settle()
    referenced = _references(lake, table_format)
    objects = lake.objects()
    assert referenced <= objects, "a version has lost an object"
    notes = lake.notes()
    orphans = objects - referenced
    assert {path for path in orphans if path.endswith(".metadata.json")} <= notes
    assert not referenced & notes, "what is current is about to be swept"
    outcomes = {
        name: sum(len(getattr(report, name)) for report in reports)
        for name in ("acknowledged", "landed", "refused", "unknown")
    }
    late = {name for name, _ in rows} & {name for report in reports for name in report.unknown}
    print(
        f"{table_format}, {size}, {kills} kills, {seconds:.0f} s: {outcomes}, {len(late)} landed late;"
        f" requests {counts}; objects {object_judgement.by_kind(referenced)},"
        f" orphans {object_judgement.by_kind(orphans)}, {len(notes)} notes,"
        f" {len(lake.uploads())} incomplete uploads"
    )
    for error in sorted({_kind(e) for report in reports for e in report.errors}):
        print("  ", error)


def _kind(error: str) -> str:
    return error.partition(": ")[2][:200]


def _writers(lake: Lake, table_format: str, count: int) -> list[Writer]:
    kinds = [Pylance, LanceDb, HttpInsert] if table_format == "lance" else [PyIceberg]
    return [kinds[number % len(kinds)](lake.server, lake.table) for number in range(count)]


def _append_at_once(lake: Lake, writers: Sequence[Writer], size: Size, kills: int) -> list[Report]:
    """Run the writers, and kill the server at numbers of versions that are evenly apart."""
    total = size.writers * size.appends
    with ThreadPoolExecutor(size.writers) as threads:
        running = [
            threads.submit(object_writers.append_all, writer, number, size.appends)
            for number, writer in enumerate(writers)
        ]
        for number in range(1, kills + 1):
            if _wait_for_versions(lake, total * number // (kills + 1), running):
                lake.server.kill()
                lake.server.start(wait=False)
        return [future.result() for future in running]


def _wait_for_versions(lake: Lake, count: int, running: Sequence[Future[Report]]) -> bool:
    """Wait until the table has this number of versions; False if the writers ended before."""
    with lake.server.database() as connection:
        query = "SELECT count(*) FROM catalog_tableversion"
        while connection.execute(query).fetchone()[0] < count:  # type: ignore[index]
            if all(future.done() for future in running):
                return False
            time.sleep(0.01)
    return True


def _rows(lake: Lake, table_format: str) -> object_judgement.Rows:
    if table_format == "lance":
        return object_judgement.lance_rows(lake)
    return object_judgement.iceberg_rows(lake)


def _references(lake: Lake, table_format: str) -> set[str]:
    if table_format == "lance":
        return object_judgement.lance_references(lake)
    return object_judgement.iceberg_references(lake)


# --- orphans -----------------------------------------------------------------------------------


def _sweep(lake: Lake) -> None:
    """Remove the metadata files that the server wrote for commits that failed."""
    with lake.server.database() as connection:
        connection.execute("UPDATE catalog_stagedfile SET created_at = created_at - interval '1 h'")
    lake.server.manage(
        "from catalog.services.iceberg import metadata_files as m\nwhile m.sweep(): pass"
    )
    assert lake.notes() == set()


def _only_references_remain(lake: Lake, table_format: str) -> None:
    """After the removal of orphans, the objects are those of the versions."""
    referenced, rows = _references(lake, table_format), _rows(lake, table_format)
    _make_old(lake)
    orphans = lake.objects() - referenced
    removed = _remove_orphans(lake, table_format)
    assert lake.objects() == referenced, object_judgement.by_kind(lake.objects() ^ referenced)
    assert removed.get("files", 0) == len(orphans)
    assert _rows(lake, table_format) == rows
    assert _references(lake, table_format) == referenced


def _make_old(lake: Lake) -> None:
    """Set the time of every object back by four days."""
    assert isinstance(lake.store, Versitygw)
    for path in lake.objects():
        bucket, _, key = path.removeprefix("s3://").partition("/")
        lake.store.make_old(bucket, key, days=4)


def _remove_orphans(lake: Lake, table_format: str) -> dict[str, Any]:
    """Run the job, in the server's worker if it needs Spark, and return its result."""
    if table_format == "iceberg":
        lake.server.start_worker()
    lake.server.manage(
        "from catalog.access import SYSTEM\n"
        "from catalog.services.engine.commit import commit\n"
        "from catalog.services.tables import job_operations as ops\n"
        f"commit([ops.StartMaintenance(table={lake.table!r}, format={table_format!r},"
        f" kind_of_job='remove_orphans', parameters={{'policy': {{'orphan_age': {3 * DAY}}}}})],"
        " actor=SYSTEM)"
    )
    if table_format == "lance":
        lake.server.manage(
            "from catalog.models import Job\n"
            "from catalog.services.maintenance import job_runner\n"
            "job_runner.run_job(Job.objects.latest('id').pk)"
        )
    deadline = time.monotonic() + 600
    with lake.server.database() as connection:
        cursor = connection.cursor(row_factory=dict_row)
        while True:
            job = cursor.execute("SELECT * FROM catalog_job ORDER BY id DESC LIMIT 1").fetchone()
            assert job is not None
            if job["status"] in {"succeeded", "failed", "canceled"}:
                break
            assert time.monotonic() < deadline, (job, lake.server.log)
            time.sleep(0.1)
    assert job["status"] == "succeeded", (job, lake.server.log)
    result: dict[str, Any] = job["result"]
    return result
