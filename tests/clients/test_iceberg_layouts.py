"""Compaction of Iceberg tables that sorts, and jobs on engine profiles, with a live worker."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from tests.clients import jars
from tests.clients import spark as spark_client
from tests.clients.test_iceberg_maintenance import (
    Cluster,
    Jobs,
    catalog,
    java,
    jobs,
    name,
    session,
)
from tests.live import LiveServer

__all__ = ["catalog", "java", "jobs", "name", "session"]
pytestmark = [
    pytest.mark.engines,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
MB = 1024**2
ODD = "it's `odd`"
QUOTED = "`it's ``odd```"


@pytest.fixture(scope="module")
def cluster_of_profiles(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(java, tmp_path_factory.mktemp("cluster"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def live(live_template: None, java: str, cluster_of_profiles: Cluster) -> Iterator[LiveServer]:
    """A server whose worker runs jobs on its own machine, and on a cluster that profiles may name."""
    executors = (
        " spark.executor.memory=512m"
        f" 'spark.executor.extraJavaOptions={spark_client.JAVA_OPTIONS}'"
        " spark.driver.host=127.0.0.1 spark.driver.bindAddress=127.0.0.1"
    )
    with LiveServer(
        workers=1,
        MONODON_SPARK_JARS=str(jars.iceberg_runtime()),
        MONODON_SPARK_CONF=spark_client.CONF + executors,
        MONODON_SPARK_MASTERS=cluster_of_profiles.url,
        JAVA_HOME=java,
    ) as server:
        server.start_worker()
        yield server


def make_table(session: SparkSession, name: tuple[str, str]) -> None:
    """Create 6 files of random text, each with all ranges of values."""
    table = ".".join(("lake", *name))
    session.sql(f"CREATE TABLE {table} (id BIGINT, `it's` STRING, {QUOTED} STRING)")
    session.sql(
        f"INSERT INTO {table} SELECT /*+ REPARTITION(6) */ id, CAST(id % 100 AS STRING),"
        " sha2(CAST(id AS STRING), 256)"
        " FROM range(0, 120000)"
    )


def ranges(table: Table) -> list[tuple[str, str]]:
    """The least and the greatest text of each file, in order."""
    field = table.schema().find_field(ODD).field_id
    files = [task.file for task in table.refresh().scan().plan_files()]
    return sorted(
        (
            from_bytes(StringType(), file.lower_bounds[field]),
            from_bytes(StringType(), file.upper_bounds[field]),
        )
        for file in files
    )


def test_a_sorted_table_has_files_with_narrow_bounds(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    make_table(session, name)
    table = catalog.load_table(name)
    before = table.scan().to_arrow().sort_by("id")
    order = {"strategy": "sort", "sort_order": f"{QUOTED} desc, id", "target_bytes": 2 * MB}
    result = jobs.run(name, "compact", **order)
    assert result["layout"]["strategy"] == "sort"
    assert result["layout"]["sort_order"] == f"{QUOTED} desc nulls last, id"
    assert result["before"]["unsorted_files"] == result["before"]["files"]
    assert result["after"]["unsorted_files"] == 0
    bounds = ranges(table)
    assert len(bounds) > 1
    for (_, greatest), (least, _) in pairwise(bounds):
        assert greatest <= least
    assert table.scan().to_arrow().sort_by("id") == before
    location = table.refresh().metadata_location
    again = jobs.followed(jobs.start(name, "compact", **order))
    assert (again["status"], again["error"]) == ("succeeded", "no files to rewrite")
    assert table.refresh().metadata_location == location


_SUGGESTED = """
from catalog.models import Table
from catalog.services.maintenance.layouts import suggestions
suggestion = suggestions.suggest(Table.objects.named({name!r}).get(), {files})
assert suggestion is not None
assert suggestion.layout.text == "part_key", suggestion
assert suggestion.skipped < 0.1 < 0.5 < suggestion.expected, suggestion
"""


def test_the_suggested_order_halves_the_bytes_that_scans_read(
    live: LiveServer, session: SparkSession, jobs: Jobs, name: tuple[str, str]
) -> None:
    """Of a skewed workload: the filters name few keys most of the time."""
    table = ".".join(("lake", *name))
    session.sql(f"CREATE TABLE {table} (id BIGINT, part_key BIGINT, text STRING)")
    session.sql(
        f"INSERT INTO {table} SELECT /*+ REPARTITION(12) */ id, id * 7919 % 1000,"
        " sha2(CAST(id AS STRING), 256) FROM range(0, 120000)"
    )
    keys = [round(999 / (rank + 1)) for rank in range(24)]
    before = scan(session, jobs, table, keys)
    live.manage(_SUGGESTED.format(name=name, files=12))
    order = {"strategy": "sort", "sort_order": "part_key", "target_bytes": MB}
    result = jobs.run(name, "compact", **order)
    written = result["promise"]["figures"]["files_written"]
    assert written == {
        "planned": written["planned"],
        "actual": written["actual"],
        "is_estimate": True,
    }
    # Spark writes each range of keys into files of at most 1.4 times the target, the last one smaller.
    rolled = result["after"]["bytes"] // int(1.4 * MB)
    assert 4 <= written["actual"] == result["after"]["files"] <= written["planned"] + rolled
    assert before >= 2 * scan(session, jobs, table, keys) > 0


def scan(session: SparkSession, jobs: Jobs, table: str, keys: list[int]) -> int:
    """Read the rows of each key; returns the bytes of the files that Spark read, as it reports them."""
    session.sql(f"REFRESH TABLE {table}")
    (first,) = jobs._rows("SELECT coalesce(max(id), 0) AS id FROM catalog_metricsreport")
    for key in keys:
        rows = session.sql(f"SELECT id, text FROM {table} WHERE part_key = {key}").collect()
        assert len(rows) == 120
    statement = (
        "SELECT count(*), sum((report #>> '{metrics,total-file-size-in-bytes,value}')::bigint) AS bytes"
        " FROM catalog_metricsreport WHERE id > %s AND kind = 'scan-report'"
    )
    deadline = time.monotonic() + 60
    while (reports := jobs._rows(statement, first["id"])[0])["count"] < len(keys):
        assert time.monotonic() < deadline, reports
        time.sleep(0.1)
    return int(reports["bytes"])


@pytest.fixture(params=["local", "standalone"])
def profile(request: pytest.FixtureRequest, live: LiveServer, cluster_of_profiles: Cluster) -> str:
    """The name of a new engine profile, which is its kind."""
    kind: str = request.param
    master = cluster_of_profiles.url if kind == "standalone" else ""
    values = {"name": kind, "kind": kind, "master": master, "cores": 1, "memory": "512m"}
    status, answer = live.post("/management/v1/engine-profiles", values)
    assert status == 201, answer
    return kind


def test_a_zorder_on_an_engine_profile(
    live: LiveServer, session: SparkSession, jobs: Jobs, name: tuple[str, str], profile: str
) -> None:
    make_table(session, name)
    body = {
        "kind": "compact",
        "engine_profile": profile,
        "strategy": "zorder",
        "sort_order": "id, `it's`",
    }
    path = f"/management/v1/tables/{'$'.join(name)}/maintenance"
    status, job = live.post(path, body)
    assert status == 202, job
    ended = jobs.followed(job["id"])
    assert ended["status"] == "succeeded", (ended, jobs.log(job["id"]))
    assert (ended["engine"], ended["engine_profile"]) == ("spark", profile)
    prefix = "local-" if profile == "local" else "app-"
    assert any(f"runs as {prefix}" in line for line in jobs.log(job["id"]))
    assert ended["result"]["layout"]["strategy"] == "zorder"
    assert ended["result"]["after"]["unsorted_files"] == 0
    assert session.table(".".join(("lake", *name))).count() == 120_000
