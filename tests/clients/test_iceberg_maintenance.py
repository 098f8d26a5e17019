"""Maintenance of Iceberg tables by a live worker, whose Spark driver runs one job after another."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pyspark
import pytest
from psycopg.rows import dict_row
from pyarrow import parquet
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from server.options import PROJECT
from tests.clients import guide, jars, pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer
from tests.ports import free_port
from tests.shares import nightly

pytestmark = [
    pytest.mark.xdist_group("spark maintenance"),  # beside test_spark
    pytest.mark.timeout(600),
    # From the sockets from which PySpark reads results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # PySpark forks to start the JVM, and the child does not use Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
ENDED = {"succeeded", "failed", "canceled"}
DAY = 86_400
POLICY = {"target_bytes": 64 * 1024**2, "min_small_files": 2, "keep_versions": 1, "keep_for": 1}


class Jobs:
    """The jobs of a server's database; its worker runs them."""

    def __init__(self, live: LiveServer) -> None:
        self._live = live

    def start(self, table: tuple[str, ...], kind: str, **options: Any) -> int:
        is_dry_run = options.pop("is_dry_run", False)
        self._live.manage(
            "from catalog.models import TableFormat\n"
            "from catalog.services.tables import job_operations as ops\n"
            "from catalog.access import SYSTEM\n"
            "from catalog.services.engine.commit import commit\n"
            f"commit([ops.StartMaintenance(table={table!r}, format=TableFormat.ICEBERG,"
            f" kind_of_job={kind!r}, is_dry_run={is_dry_run},"
            f" parameters={{'policy': {POLICY | options!r}}})], actor=SYSTEM)"
        )
        return int(self._rows("SELECT max(id) AS id FROM catalog_job")[0]["id"])

    def run(self, table: tuple[str, ...], kind: str, **options: Any) -> dict[str, Any]:
        """Run a job that succeeds and does what its plan promises, and return its result."""
        job = self.followed(self.start(table, kind, **options))
        assert job["status"] == "succeeded", (job, self.log(job["id"]), self._live.log)
        result: dict[str, Any] = job["result"]
        promise = result.get("promise")
        is_promised = kind != "compute_statistics" and not options.get("is_dry_run")
        assert (promise is not None and promise["kept"]) or not is_promised, result
        return result

    def again(self, pk: int) -> None:
        """Start jobs that are due, as beat does."""
        self.execute(
            "UPDATE catalog_job SET lease_until = now() - interval '1 s' WHERE id = %s", pk
        )
        self._live.manage("from catalog.services.engine import jobs; jobs.send_waiting_jobs()")

    def cancel(self, pk: int) -> datetime:
        """Request a job to stop. Returns the time of the request by the database's clock."""
        statement = "UPDATE catalog_job SET cancel_requested = true WHERE id = %s RETURNING now()"
        moment: datetime = self._rows(statement, pk)[0]["now"]
        return moment

    def ledger(self, table: Table) -> dict[str, bool]:
        """The metadata files of a table, each with True if its version is not deleted."""
        rows = self._rows(
            "SELECT manifest_path, deleted_at FROM catalog_tableversion"
            " WHERE starts_with(manifest_path, %s)",
            table.location(),
        )
        return {row["manifest_path"]: row["deleted_at"] is None for row in rows}

    def ledger_times(self, table: Table) -> list[float]:
        """The times of the commits to a table, in seconds since 1970."""
        rows = self._rows(
            "SELECT extract(epoch FROM created_at)::float AS at FROM catalog_tableversion"
            " WHERE starts_with(manifest_path, %s)",
            table.location(),
        )
        return [row["at"] for row in rows]

    def recorded_files(self) -> set[Path]:
        """The files that the last job removed, according to the audit trail."""
        rows = self._rows(
            "SELECT jsonb_array_elements_text(after->'paths') AS path FROM catalog_auditevent"
            " WHERE action = 'table.remove_files'"
            " AND after->'job' = (SELECT to_jsonb(max(id)) FROM catalog_job)"
        )
        return {local(row["path"]) for row in rows}

    def followed(self, pk: int, within: float = 300.0) -> dict[str, Any]:
        return self.wait(pk, lambda job: job["status"] in ENDED, within)

    def wait(self, pk: int, condition: Any, within: float = 300.0) -> dict[str, Any]:
        deadline = time.monotonic() + within
        while not condition(job := self.get(pk)):
            assert time.monotonic() < deadline, (job, self.log(pk), self._live.log)
            time.sleep(0.1)
        return job

    def get(self, pk: int) -> dict[str, Any]:
        return self._rows("SELECT * FROM catalog_job WHERE id = %s", pk)[0]

    def log(self, pk: int) -> list[str]:
        rows = self._rows("SELECT message FROM catalog_jobevent WHERE job_id = %s ORDER BY id", pk)
        return [row["message"] for row in rows]

    def execute(self, statement: str, *values: Any) -> None:
        with self._live.database() as connection:
            connection.execute(statement, values)

    def _rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with (
            psycopg.connect(self._live.database_url, autocommit=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            return cursor.execute(statement, values).fetchall()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    spark_client.require()
    return spark_client._java_home(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def live(live_template: None, java: str) -> Iterator[LiveServer]:
    """A separate server, whose worker has Spark and Iceberg's runtime."""
    runtime = str(jars.iceberg_runtime())
    with LiveServer(
        workers=1, MONODON_SPARK_JARS=runtime, MONODON_SPARK_CONF=spark_client.CONF, JAVA_HOME=java
    ) as server:
        server.start_worker()
        yield server


@pytest.fixture(scope="module")
def session(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    catalog_options = {"type": "rest", "uri": live.url, "token": live.key, "cache-enabled": "false"}
    with spark_client.session(
        tmp_path_factory.mktemp("spark"), {"lake": catalog_options}
    ) as started:
        yield started


@pytest.fixture
def jobs(live: LiveServer) -> Jobs:
    return Jobs(live)


@pytest.fixture
def catalog(live: LiveServer) -> RestCatalog:
    return pyice.connect(live.url, token=live.key)


@pytest.fixture
def name(session: SparkSession, request: pytest.FixtureRequest) -> tuple[str, str]:
    namespace = "upkeep_" + re.sub(r"\W", "_", request.node.name)
    session.sql(f"CREATE NAMESPACE lake.{namespace}")
    return namespace, "t"


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def make_small_files(
    session: SparkSession, name: tuple[str, str], version: int, catalog: str = "lake"
) -> None:
    """Create 200 data files in 4 partitions by two inserts, and delete every tenth row."""
    table = ".".join((catalog, *name))
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, part INT, text STRING) PARTITIONED BY (part)"
        f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read',"
        " 'write.distribution-mode'='none', 'write.spark.fanout.enabled'='true',"
        " 'write.metadata.previous-versions-max'='1')"
    )
    for first in (0, 5000):
        session.sql(
            f"INSERT INTO {table} SELECT /*+ REPARTITION(25) */ id, CAST(id % 4 AS INT),"
            f" concat('row ', id) FROM range({first}, {first + 5000})"
        )
    session.sql(f"DELETE FROM {table} WHERE id % 10 = 3")


def rows(table: Table) -> list[tuple[int, int, str]]:
    columns = table.refresh().scan().to_arrow().sort_by("id").to_pydict()
    return list(zip(columns["id"], columns["part"], columns["text"], strict=True))


EXPECTED = [(n, n % 4, f"row {n}") for n in range(10_000) if n % 10 != 3]


# Both take minutes; `make engines` runs the older format too.
@pytest.mark.parametrize("version", [nightly(2), 3])
def test_small_files_are_compacted(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str], version: int
) -> None:
    make_small_files(session, name, version)
    table = catalog.load_table(name)
    before = table.current_snapshot()
    assert before is not None
    assert before.summary is not None
    assert before.summary["total-data-files"] == "200"
    scan = table.scan()  # of a reader that planned its scan before
    tasks = list(scan.plan_files())
    assert len(tasks) == 200

    plan = jobs.run(name, "compact", is_dry_run=True)
    assert catalog.load_table(name).metadata_location == table.metadata_location
    job = jobs.start(name, "compact")
    ended = jobs.followed(job)

    assert ended["status"] == "succeeded", (ended, jobs.log(job))
    result = ended["result"]
    assert plan["planned"] == {
        "rewritten_data_files_count": 200,
        "added_data_files_count": 4,
        "rewritten_bytes_count": plan["planned"]["rewritten_bytes_count"],
    }
    for count in ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count"):
        assert result["done"][count] == plan["planned"][count], count
    assert (result["before"]["files"], result["after"]["files"]) == (200, 4)
    assert (result["before"]["rows"], result["after"]["rows"]) == (9000, 9000)
    assert (result["before"]["deleted_rows"], result["after"]["deleted_rows"]) == (1000, 0)
    assert result["after"]["rewrite_files"] == 0
    assert (ended["progress"], ended["total"]) == (200, 200)
    assert rows(table) == EXPECTED
    after = table.current_snapshot()
    assert after is not None
    assert after.summary is not None
    assert after.summary["monodon.job-id"] == str(job)
    # The earlier reader still finds all its files.
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [n for n, _, _ in EXPECTED]

    # After snapshots and orphans are removed, only the files of the newest snapshot remain.
    sizes_after = sizes(table)
    expired = jobs.run(name, "clean_up", keep_for=0)
    assert expired["planned"]["snapshots_count"] == expired["before"]["versions"] - 1
    assert expired["after"]["versions"] == 1
    assert expired["done"]["deleted_data_files_count"] == 200
    went = sizes_after.keys() - sizes(table).keys()
    assert expired["files"] == expired["planned"]["files"] == len(went)
    assert jobs.recorded_files() == went
    assert (
        expired["bytes"] == expired["planned"]["bytes"] == sum(sizes_after[file] for file in went)
    )
    for number in range(3):  # versions that have left the log, but not the ledger
        with table.refresh().transaction() as transaction:
            transaction.set_properties(number=str(number))
    ledger = {local(file): is_known for file, is_known in jobs.ledger(table).items()}
    recorded, forgotten = (
        [file for file in ledger if ledger[file] is is_known] for is_known in (True, False)
    )
    assert len(recorded) > 3
    assert len(forgotten) > 3
    data, metadata = (local(table.location()) / folder for folder in ("data", "metadata"))
    old, fresh = data / "old.parquet", data / "fresh.parquet"
    stray = metadata / "00000-0d8b4e5c-3c1c-4b5e-9d6b-5f0c2b0c6f5e.metadata.json"
    for file in (old, fresh, stray):
        file.write_bytes(b"no table has this")
    for file in (old, stray, *ledger):
        os.utime(file, (time.time() - 4 * DAY, time.time() - 4 * DAY))
    sizes_after, orphans = sizes(table), {old, stray, *forgotten}
    report = jobs.run(name, "remove_orphans", is_dry_run=True)
    assert report["planned"]["orphan_files_count"] == len(orphans)
    assert sizes(table) == sizes_after
    removed = jobs.run(name, "remove_orphans")
    assert {local(file) for file in removed["done"]["orphan_files"]} == orphans
    assert removed["files"] == len(orphans)
    assert jobs.recorded_files() == orphans
    assert removed["bytes"] == sum(sizes_after[file] for file in orphans)
    assert sizes_after.keys() - sizes(table).keys() == orphans
    assert len(list(data.rglob("*.parquet"))) == 4 + 1
    assert rows(table) == EXPECTED


def sizes(table: Table) -> dict[Path, int]:
    """Sizes of all files at a table's location, without the checksum files that Hadoop writes."""
    files = local(table.location()).rglob("[!.]*")
    return {path: path.stat().st_size for path in files if path.is_file()}


def virtual_machines(live: LiveServer) -> list[psutil.Process]:
    return [process for process in live.drivers() if "java" in process.name()]


def wait_until_drivers_stop(live: LiveServer, within: float) -> None:
    deadline = time.monotonic() + within
    while remaining := live.drivers():
        assert time.monotonic() < deadline, remaining
        time.sleep(0.05)


def is_rewriting(jobs: Jobs, pk: int, attempt: int) -> Any:
    """True while a job's driver is running in this attempt."""

    def check(job: dict[str, Any]) -> bool:
        assert job["status"] not in ENDED, (job, jobs.log(pk))
        began = [line for line in jobs.log(pk) if line.startswith("rewrite_data_files")]
        return job["status"] == "running" and len(began) == attempt

    return check


def has_stopped(job: dict[str, Any]) -> bool:
    """True if the driver has stopped, for good or until the next attempt."""
    return job["status"] in {*ENDED, "queued"}


@pytest.mark.engines
def test_tables_are_correct_after_kills(
    live: LiveServer,
    session: SparkSession,
    jobs: Jobs,
    catalog: RestCatalog,
    name: tuple[str, str],
) -> None:
    make_small_files(session, name, 2)
    table = catalog.load_table(name)

    # Canceled: it ends within 10 s, with all its processes.
    pk = jobs.start(name, "compact")
    while len(running := live.drivers()) < 2:
        time.sleep(0.1)
    assert "mnj_" not in str([(process.cmdline(), process.environ()) for process in running])
    jobs.wait(pk, is_rewriting(jobs, pk, 1))
    for process in virtual_machines(live):
        process.suspend()  # otherwise it may succeed before it is canceled
    cancellation = jobs.cancel(pk)
    job = jobs.followed(pk)
    assert (job["finished_at"] - cancellation).total_seconds() < 10
    assert (job["status"], job["error"]) == ("canceled", "canceled on request")
    wait_until_drivers_stop(live, 10)

    # JVM killed: the attempt fails with the last output, and is retried.
    pk = jobs.start(name, "compact")
    jobs.wait(pk, is_rewriting(jobs, pk, 1))
    for process in virtual_machines(live):
        process.kill()
    job = jobs.wait(pk, lambda job: job["status"] == "queued")
    assert job["error"]
    assert job["lease_until"] is not None

    # Worker killed: the driver ends by itself, and another worker takes over the job.
    jobs.again(pk)
    jobs.wait(pk, is_rewriting(jobs, pk, 2))
    assert live._worker is not None
    live._worker.kill_group()
    live._worker.wait(10)
    live._worker.drain()
    wait_until_drivers_stop(live, 60)
    assert rows(table) == EXPECTED
    live.start_worker()
    jobs.again(pk)
    jobs.wait(pk, is_rewriting(jobs, pk, 3))
    extra = pa.table(
        {
            "id": pa.array([10_000], pa.int64()),
            "part": pa.array([0], pa.int32()),
            "text": ["written meanwhile"],
        }
    )
    table.append(extra)
    # The change may concern a file that is being rewritten: the next attempt compacts that partition.
    session.sql(f"DELETE FROM lake.{'.'.join(name)} WHERE id = 1")

    job = jobs.wait(pk, has_stopped, 300)
    while job["status"] == "queued":
        assert "were not rewritten, because others changed them" in job["error"]
        jobs.again(pk)
        jobs.wait(pk, lambda job: job["status"] != "queued")
        job = jobs.wait(pk, has_stopped, 300)
    assert job["status"] == "succeeded", (job, jobs.log(pk))
    assert rows(table) == [
        *(row for row in EXPECTED if row[0] != 1),
        (10_000, 0, "written meanwhile"),
    ]
    assert (
        table.inspect.data_files().num_rows <= 4 + 1
    )  # it began before or after the row was added


def test_manifests_deletes_and_statistics(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    table = "lake." + ".".join(name)
    session.sql(
        f"CREATE TABLE {table} (id BIGINT) TBLPROPERTIES ('format-version'='2',"
        " 'write.delete.mode'='merge-on-read')"
    )
    assert jobs.run(name, "compute_statistics")["before"]["versions"] == 0
    for first in range(0, 40, 10):
        session.sql(
            f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id FROM range({first}, {first + 10})"
        )
    for number in (5, 15, 25):
        session.sql(f"DELETE FROM {table} WHERE id = {number}")
    expected = [n for n in range(40) if n not in (5, 15, 25)]

    report = jobs.run(name, "rewrite_manifests", is_dry_run=True)
    assert report["planned"] == {"manifests": 7, "rewritten_manifests": 2}
    manifests = jobs.run(name, "rewrite_manifests")
    assert (manifests["before"]["manifests"], manifests["after"]["manifests"]) == (7, 2)
    # By default, Iceberg has one per data file: a rewrite would not reduce them, as the plan shows.
    report = jobs.run(name, "rewrite_position_deletes", is_dry_run=True)
    assert report["planned"] == {"delete_files": 3, "rewritten_delete_files": 3}
    deletes = jobs.run(name, "rewrite_position_deletes")
    assert (deletes["before"]["delete_files"], deletes["after"]["delete_files"]) == (3, 3)
    assert deletes["done"]["added_delete_files_count"] == 3
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    report = jobs.run(name, "rewrite_position_deletes", is_dry_run=True)
    assert report["planned"] == {"delete_files": 3, "rewritten_delete_files": 1}
    deletes = jobs.run(name, "rewrite_position_deletes")
    assert (deletes["before"]["delete_files"], deletes["after"]["delete_files"]) == (3, 1)
    statistics = jobs.run(name, "compute_statistics")
    loaded = catalog.load_table(name)
    assert [file.statistics_path for file in loaded.metadata.statistics] == [
        statistics["done"]["statistics_file"]
    ]
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == expected


def test_the_plan_of_skewed_partitions_is_kept(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    """A partition with 40 files, one with 9 and deleted rows, and eight with a file each."""
    table = "lake." + ".".join(name)
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, part BIGINT) USING iceberg PARTITIONED BY (part)"
        " TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read',"
        " 'write.distribution-mode'='none')"
    )
    frame = "SELECT /*+ REPARTITION({files}) */ id, {part} AS part FROM range({first}, {end})"
    files_of = {0: 40, 1: 9, **dict.fromkeys(range(2, 10), 1)}
    for part, files in files_of.items():
        rows_of_part = frame.format(
            files=files, part=part, first=1000 * part, end=1000 * part + 100 * files
        )
        session.sql(f"INSERT INTO {table} {rows_of_part}")
    session.sql(f"DELETE FROM {table} WHERE part = 1 AND id % 5 = 0")
    assert len(list(catalog.load_table(name).scan().plan_files())) == 57
    result = jobs.run(name, "compact")
    assert result["promise"]["figures"]["files_read"] == {"planned": 49, "actual": 49}
    assert result["promise"]["figures"]["files_written"] == {"planned": 2, "actual": 2}
    assert result["after"]["files"] == 10
    assert len(catalog.load_table(name).scan().to_arrow()) == 4000 + 720 + 800


def delete_by_key(
    session: SparkSession, name: tuple[str, str], file: Path, keys: list[int]
) -> None:
    """Commit an equality delete file of the column id, which Spark itself does not write."""
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    parquet.write_table(pa.table({"id": keys}, schema=schema), file)
    jvm: Any = session.sparkContext._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        session._jsparkSession, ".".join(("lake", *name))
    )
    ids = session.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = 1
    bounds = []
    for key in (min(keys), max(keys)):
        bound = jvm.java.util.HashMap()
        bound.put(1, jvm.java.nio.ByteBuffer.wrap(struct.pack("<q", key)))
        bounds.append(bound)
    metrics = jvm.org.apache.iceberg.Metrics(len(keys), None, None, None, None, *bounds)
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec())
    delete = (
        builder.ofEqualityDeletes(ids)
        .withPath(f"file://{file}")
        .withFormat("parquet")
        .withFileSizeInBytes(file.stat().st_size)
        .withMetrics(metrics)
        .build()
    )
    table.newRowDelta().addDeletes(delete).commit()


@pytest.mark.engines
def test_equality_deletes_are_applied_and_removed(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    """Upserts as Flink writes them, then keys that no row has."""
    table = ".".join(("lake", *name))
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, text STRING) TBLPROPERTIES ('format-version'='2')"
    )
    data = local(catalog.load_table(name).location()) / "data"
    for number, keys in enumerate(([1, 2, 3], [2, 4], [1, 3, 5])):
        data.mkdir(parents=True, exist_ok=True)
        delete_by_key(session, name, data / f"deletes-{number}.parquet", keys)
        values = ", ".join(f"({key}, 'version {number}')" for key in keys)
        session.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    live = [
        (1, "version 2"),
        (2, "version 1"),
        (3, "version 2"),
        (4, "version 1"),
        (5, "version 2"),
    ]
    assert [
        tuple(row) for row in session.sql(f"SELECT * FROM {table} ORDER BY id").collect()
    ] == live

    plan = jobs.run(name, "compact", is_dry_run=True)
    assert (plan["before"]["min_rows"], plan["before"]["rows"]) == (3, 8)
    assert plan["before"]["equality_delete_files"] == 3
    result = jobs.run(name, "compact")
    assert result["done"]["rewritten_data_files_count"] == 3
    assert (result["after"]["min_rows"], result["after"]["rows"]) == (None, 5)
    assert (
        result["after"]["equality_delete_files"],
        result["after"]["dangling_equality_deletes"],
    ) == (
        0,
        0,
    )
    assert [
        tuple(row) for row in session.sql(f"SELECT * FROM {table} ORDER BY id").collect()
    ] == live

    delete_by_key(session, name, data / "deletes-9.parquet", [70, 71])
    for kind in ("rewrite_position_deletes", "compact"):
        dangling = jobs.run(name, kind, is_dry_run=True)
        assert dangling["before"]["dangling_equality_deletes"] == 1
        assert dangling["planned"]["removed_delete_files_count"] == 1
        removed = jobs.run(name, kind)
        assert removed["done"]["removed_delete_files_count"] == 1
        assert removed["after"]["equality_delete_files"] == 0
        delete_by_key(session, name, data / f"deletes-{kind}.parquet", [80, 81])
    assert [
        tuple(row) for row in session.sql(f"SELECT * FROM {table} ORDER BY id").collect()
    ] == live


def test_clean_up_keeps_files_of_other_tables(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    """Files named by a snapshot are removed only if they are inside the table's own directories."""
    victim, mine = f"lake.{name[0]}.victim", f"lake.{name[0]}.t"
    session.sql(f"CREATE TABLE {victim} (id BIGINT)")
    session.sql(f"INSERT INTO {victim} SELECT /*+ COALESCE(1) */ id FROM range(0, 10)")
    of_victim = catalog.load_table((name[0], "victim"))
    sizes_before = sizes(of_victim)
    session.sql(f"CREATE TABLE {mine} (id BIGINT)")
    data = local(of_victim.location()) / "data"
    session.sql(
        f"CALL lake.system.add_files(table => '{name[0]}.t', source_table => '`parquet`.`{data}`')"
    )
    session.sql(f"INSERT INTO {mine} SELECT /*+ COALESCE(1) */ id FROM range(20, 30)")
    session.sql(f"DELETE FROM {mine} WHERE id < 15")
    session.sql(f"INSERT INTO {mine} SELECT /*+ COALESCE(1) */ id FROM range(30, 40)")
    table = catalog.load_table(name)
    expected = [*range(20, 40)]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == expected
    before = sizes(table)

    result = jobs.run(name, "clean_up", keep_for=0)

    (kept,) = result["done"]["kept_files"]
    assert local(kept).parent == data
    assert result["done"]["kept_files_count"] == 1
    assert result["planned"]["foreign_files"] == 1
    assert result["done"]["deleted_data_files_count"] == 0
    went = before.keys() - sizes(table).keys()
    assert {local(file) for file in result["done"]["deleted_files"]} == went
    assert jobs.recorded_files() == went
    assert result["files"] == result["planned"]["files"] == len(went) > 0
    assert sizes(of_victim) == sizes_before
    assert sorted(of_victim.scan().to_arrow()["id"].to_pylist()) == [*range(10)]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == expected


# --- a cluster ---------------------------------------------------------------------------------


class Cluster:
    """A master and two workers on the loopback; each worker with its executors is a group."""

    def __init__(self, java: str, directory: Path, **environment: str) -> None:
        home = Path(pyspark.__file__).parent
        self._command = [str(home / "bin" / "spark-class")]
        self._environment = os.environ | environment
        self._environment |= {
            "JAVA_HOME": java,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark_client.JAVA_OPTIONS,
        }
        self._directory = directory
        self._all: list[subprocess.Popen[bytes]] = []
        self.log = directory / "cluster.log"
        self.url = f"spark://127.0.0.1:{free_port()}"
        deploy = "org.apache.spark.deploy"
        port = self.url.rpartition(":")[2]
        self._start(f"{deploy}.master.Master", "--port", port, "--webui-port", "0")
        self._wait("I have been elected leader", 1)
        for number in (1, 2):
            work_dir = str(directory / f"worker-{number}")
            self._start(
                f"{deploy}.worker.Worker", "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", work_dir, self.url,
            )  # fmt: skip
        self._wait("Successfully registered with master", 2)

    def kill_worker(self) -> None:
        """Kill a worker whose executor is running."""
        worker = self._all[1]
        deadline = time.monotonic() + 180
        while not psutil.Process(worker.pid).children():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for process in self._all:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self._all.append(
                subprocess.Popen(
                    [*self._command, arguments[0], "--host", "127.0.0.1", *arguments[1:]],
                    env=self._environment,
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, words: str, times: int) -> None:
        deadline = time.monotonic() + 180
        while self.log.read_text().count(words) < times:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


@pytest.fixture
def cluster(java: str, tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(java, tmp_path)
    try:
        yield started
    finally:
        started.stop()


# That a cluster replaces a lost executor is Spark's own work.
@pytest.mark.engines
def test_compaction_survives_a_killed_worker(
    session: SparkSession, cluster: Cluster, live_template: None, java: str
) -> None:
    executors = (
        " spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
        f" spark.executor.memory=512m 'spark.executor.extraJavaOptions={spark_client.JAVA_OPTIONS}'"
    )
    with LiveServer(
        workers=1,
        MONODON_SPARK_JARS=str(jars.iceberg_runtime()),
        MONODON_SPARK_CONF=spark_client.CONF + executors,
        SPARK_MASTER=cluster.url,
        JAVA_HOME=java,
    ) as server:
        server.start_worker()
        prefix = "spark.sql.catalog.on_cluster"
        session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {"type": "rest", "uri": server.url, "token": server.key}.items():
            session.conf.set(f"{prefix}.{key}", value)
        session.sql("CREATE NAMESPACE on_cluster.big")
        make_small_files(session, ("big", "t"), 2, "on_cluster")
        jobs = Jobs(server)

        pk = jobs.start(("big", "t"), "compact")
        jobs.wait(pk, is_rewriting(jobs, pk, 1))
        cluster.kill_worker()
        job = jobs.followed(pk)

        assert job["status"] == "succeeded", (job, jobs.log(pk), cluster.log.read_text())
        assert job["attempts"] == 1, "the other worker did what was left"
        assert job["result"]["after"]["files"] == 4
        table = pyice.connect(server.url, token=server.key).load_table(("big", "t"))
        assert rows(table) == EXPECTED


# --- without the worker --------------------------------------------------------------------------


def test_the_script_runs_from_the_command_line(
    live: LiveServer, session: SparkSession, java: str, tmp_path: Path
) -> None:
    """Run the command of docs/maintenance.md, with the jar instead of its coordinates."""
    session.sql("CREATE NAMESPACE lake.sales")
    make_small_files(session, ("sales", "orders"), 2)
    blocks = guide.blocks("Iceberg tables", "sh", live, guide="maintenance")
    (command,) = (block for block in blocks if "spark-submit" in block)
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": java,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": spark_client.JAVA_OPTIONS,
        "PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    assert jars.NAME.removesuffix(f"-{jars.ICEBERG}.jar") + f":{jars.ICEBERG}" in command
    here = re.sub(r"--packages \S+", f"--jars '{jars.iceberg_runtime()}'", command)

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-c", text],
            check=False,
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
        )

    def last_event(text: str) -> dict[str, Any]:
        """spark-submit writes the script's standard error there too."""
        lines = [line for line in text.splitlines() if line.startswith('{"event"')]
        event: dict[str, Any] = json.loads(lines[-1])
        return event

    ran = run(here)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert last_event(ran.stdout)["event"] == "result"
    assert last_event(ran.stdout)["data"]["rewritten_data_files_count"] == 200
    assert live.key not in ran.stdout + ran.stderr
    table = pyice.connect(live.url, token=live.key).load_table(("sales", "orders"))
    assert rows(table) == EXPECTED
    again = run(here.replace("sales.orders", "sales.missing"))
    assert again.returncode == 1
    assert last_event(again.stdout)["kind"] == "refused"
