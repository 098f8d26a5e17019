"""Maintenance of Iceberg tables by the real worker, each job in a Spark driver of its own."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.clients import jars, pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
    # Of the sockets by which PySpark takes results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # PySpark forks to start the JVM, and the child uses nothing of Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
ENDED = {"succeeded", "failed", "canceled"}
DAY = 86_400
POLICY = {"target_bytes": 64 * 1024**2, "min_small_files": 2, "keep_versions": 1, "keep_for": 1}


class Jobs:
    """The jobs of a server's database; its worker runs them."""

    def __init__(self, live: LiveServer) -> None:
        self._live = live

    def start(self, table: tuple[str, ...], kind: str, **asked: Any) -> int:
        is_dry_run = asked.pop("is_dry_run", False)
        self._live.manage(
            "from catalog.models import TableFormat\n"
            "from catalog.services import operations as ops\n"
            "from catalog.services.access import SYSTEM\n"
            "from catalog.services.commit import commit\n"
            f"commit([ops.StartMaintenance(table={table!r}, format=TableFormat.ICEBERG,"
            f" kind_of_job={kind!r}, is_dry_run={is_dry_run},"
            f" parameters={{'policy': {POLICY | asked!r}}})], actor=SYSTEM)"
        )
        return int(self._rows("SELECT max(id) AS id FROM catalog_job")[0]["id"])

    def run(self, table: tuple[str, ...], kind: str, **asked: Any) -> dict[str, Any]:
        """The result of a job that ends well."""
        job = self.followed(self.start(table, kind, **asked))
        assert job["status"] == "succeeded", (job, self.log(job["id"]), self._live.log)
        result: dict[str, Any] = job["result"]
        return result

    def followed(self, pk: int, within: float = 300.0) -> dict[str, Any]:
        return self.wait(pk, lambda job: job["status"] in ENDED, within)

    def wait(self, pk: int, what: Any, within: float = 120.0) -> dict[str, Any]:
        deadline = time.monotonic() + within
        while not what(job := self.get(pk)):
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
def live(live_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of its own, whose worker knows Spark and Iceberg's runtime."""
    spark_client.require()
    java = spark_client._java_home(tmp_path_factory.mktemp("java"))
    server = LiveServer(
        MONODON_SPARK_JARS=str(jars.iceberg_runtime()),
        MONODON_SPARK_CONF="spark.driver.memory=1g spark.sql.shuffle.partitions=2"
        " 'spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'",
        JAVA_HOME=java,
    )
    with server:
        server.start_worker()
        yield server


@pytest.fixture(scope="module")
def session(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    rest = {"type": "rest", "uri": live.url, "token": live.key, "cache-enabled": "false"}
    with spark_client.session(tmp_path_factory.mktemp("spark"), {"lake": rest}) as started:
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


def make_small_files(session: SparkSession, name: tuple[str, str], version: int) -> None:
    """200 data files in 4 partitions, made by two inserts, and deletes of every tenth row."""
    table = "lake." + ".".join(name)
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, part INT, text STRING) PARTITIONED BY (part)"
        f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read',"
        " 'write.distribution-mode'='none', 'write.spark.fanout.enabled'='true')"
    )
    for first in (0, 5000):
        session.sql(
            f"INSERT INTO {table} SELECT /*+ REPARTITION(25) */ id, CAST(id % 4 AS INT),"
            f" concat('row ', id) FROM range({first}, {first + 5000})"
        )
    session.sql(f"DELETE FROM {table} WHERE id % 10 = 3")


def rows(table: Table) -> list[tuple[int, int, str]]:
    found = table.refresh().scan().to_arrow().sort_by("id").to_pydict()
    return list(zip(found["id"], found["part"], found["text"], strict=True))


EXPECTED = [(n, n % 4, f"row {n}") for n in range(10_000) if n % 10 != 3]


@pytest.mark.parametrize("version", [2, 3])
def test_small_files_become_few(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str], version: int
) -> None:
    make_small_files(session, name, version)
    table = catalog.load_table(name)
    before = table.current_snapshot()
    assert before is not None
    assert before.summary is not None
    assert before.summary["total-data-files"] == "200"
    scan = table.scan()  # of a reader that began before, and reads what it planned
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
    # The reader from before finds all its files.
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [n for n, _, _ in EXPECTED]

    # Snapshots, then orphans: all that is left are the files of the newest snapshot.
    expired = jobs.run(name, "clean_up", keep_for=0)
    assert expired["planned"]["snapshots_count"] == expired["before"]["versions"] - 1
    assert expired["after"]["versions"] == 1
    assert expired["done"]["deleted_data_files_count"] == 200
    data = local(table.location()) / "data"
    old, fresh = data / "old.parquet", data / "fresh.parquet"
    for file in (old, fresh):
        file.write_bytes(b"no table has this")
    os.utime(old, (time.time() - 4 * DAY, time.time() - 4 * DAY))
    told = jobs.run(name, "remove_orphans", is_dry_run=True)
    assert told["planned"]["orphan_files_count"] == 1
    assert old.exists()
    removed = jobs.run(name, "remove_orphans")
    assert [local(file) for file in removed["done"]["orphan_files"]] == [old]
    assert removed["done"]["orphan_bytes"] == 17
    assert not old.exists()
    assert fresh.exists()
    assert len(list(data.rglob("*.parquet"))) == 4 + 1
    assert rows(table) == EXPECTED
