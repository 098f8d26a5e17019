"""Compaction of Lance tables on Spark: by a live worker, and manually."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import models as m

from tests.clients import spark as spark_client
from tests.clients.rivals import stream
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Moto

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
SCRIPT = Path("tasks/jobs/lance_compact.py").resolve()
ROWS = 20 * 1024


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    spark_client.require()
    return spark_client._java_home(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def live(live_template: None, java: str) -> Iterator[LiveServer]:
    """A separate server, whose worker has Spark."""
    with LiveServer(workers=1, MONODON_SPARK_CONF=spark_client.CONF, JAVA_HOME=java) as server:
        server.start_worker()
        yield server


LOCAL = pytest.param(0, id="local")


@pytest.fixture(params=[LOCAL, pytest.param(10, id="sts", marks=pytest.mark.engines)])
def place(request: pytest.FixtureRequest, live: LiveServer) -> Callable[[str], None]:
    """Creates a namespace: in local files, or in a store whose clients get credentials for so many seconds."""

    def create(namespace: str) -> None:
        live.client().create_namespace(m.CreateNamespaceRequest(id=[namespace]))
        if request.param:
            store: Moto = request.getfixturevalue("moto_s3")
            make_live_profile: MakeLiveProfile = request.getfixturevalue("make_live_profile")
            fields = {"client_access": "sts", "role": store.role, "lifetime_seconds": request.param}
            profile, _ = make_live_profile(live, store, **fields)
            bind(live, [namespace], profile)
            time.sleep(1.1)  # the server reads its profiles once a second

    return create


def make(live: LiveServer, namespace: str) -> lance.LanceDataset:
    """A table with 20 fragments, some deleted rows, and an index."""
    catalog = live.client()
    data = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    create = m.CreateTableRequest(id=[namespace, "t"])
    catalog.create_table(create, stream(data.slice(0, 1024)))
    lance.write_dataset(
        data.slice(1024),
        namespace_client=catalog,
        table_id=[namespace, "t"],
        mode="append",
        max_rows_per_file=1024,
    )
    dataset = opened(live, namespace)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id % 20 = 3")
    assert len(dataset.get_fragments()) == 20
    return dataset


def opened(live: LiveServer, namespace: str) -> lance.LanceDataset:
    return lance.dataset(namespace_client=live.client(), table_id=[namespace, "t"])


def is_whole(dataset: lance.LanceDataset) -> bool:
    ids = sorted(dataset.to_table()["id"].to_pylist())
    filtered_ids = sorted(dataset.to_table(filter="id in (3, 4, 20000)")["id"].to_pylist())
    return ids == [i for i in range(ROWS) if i % 20 != 3] and filtered_ids == [4, 20000]


def test_the_worker_compacts_with_spark(live: LiveServer, place: Callable[[str], None]) -> None:
    namespace = f"lance_upkeep_{uuid.uuid4().hex}"
    place(namespace)
    make(live, namespace)
    policy = {"target_rows": 4096, "spark_above": 0}
    live.manage(
        "from catalog.services.tables import job_operations as ops\n"
        "from catalog.access import SYSTEM\n"
        "from catalog.services.engine.commit import commit\n"
        f"commit([ops.StartMaintenance(table=('{namespace}', 't'), kind_of_job='compact',"
        f" parameters={{'policy': {policy!r}}})], actor=SYSTEM)"
    )
    status, result, error = ended(live)
    assert (status, error) == ("succeeded", "")
    assert result["plan"]["files"] == 20
    assert result["after"]["files"] <= 5
    assert result["after"]["deleted_rows"] == 0
    assert is_whole(opened(live, namespace))
    with live.database() as database:
        log = database.execute(
            "SELECT message FROM catalog_jobevent"
            " WHERE job_id = (SELECT max(id) FROM catalog_job) ORDER BY id"
        ).fetchall()
    assert any(line.startswith("Spark 4") for (line,) in log)


def ended(live: LiveServer) -> tuple[str, dict[str, Any], str]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with live.database() as database:
            row = database.execute(
                "SELECT status, result, error FROM catalog_job ORDER BY id DESC LIMIT 1"
            ).fetchone()
        if row is not None and row[0] not in {"queued", "running"}:
            return row
        time.sleep(0.1)
    raise AssertionError(live.log)


def by_hand(live: LiveServer, java: str, *arguments: str) -> list[dict[str, Any]]:
    environment = {
        **os.environ,
        "JAVA_HOME": java,
        "MONODON_API_KEY": live.key,
        "PYSPARK_PYTHON": sys.executable,
    }
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--driver-memory", "1g"]
    submit += ["--driver-java-options", spark_client.JAVA_OPTIONS]
    completed = subprocess.run(
        [*submit, "--master", "local[2,4]", str(SCRIPT), *arguments, "--url", live.url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    lines = (line for line in completed.stdout.splitlines() if line.startswith("{"))
    return [json.loads(line) for line in lines]


@pytest.mark.engines
def test_the_script_commits_through_the_catalog(
    live: LiveServer, java: str, place: Callable[[str], None]
) -> None:
    namespace = f"lance_by_hand_{uuid.uuid4().hex}"
    place(namespace)
    before = make(live, namespace).version
    table = (f"{namespace}.t", "--target-rows", "4096")
    (report,) = [e for e in by_hand(live, java, *table, "--dry-run") if e["event"] == "result"]
    assert report["data"]["fragments"] == 20
    assert opened(live, namespace).version == before
    events = by_hand(live, java, *table)
    result = events[-1]["data"]
    assert result["committed"] == result["groups"] == report["data"]["groups"]
    assert result["left"] == 0
    progress = [e["done"] for e in events if e["event"] == "progress"]
    assert progress == sorted(progress)
    assert progress[-1] == 20
    after = opened(live, namespace)
    assert after.version == result["version"]
    assert len(after.get_fragments()) <= 5
    assert is_whole(after)
