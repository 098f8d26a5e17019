"""Two tenants whose jobs run in turn on one warm Spark driver, one of them hostile."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyspark.errors import PySparkException

from tasks.jobs import iceberg as script
from tests.clients import jars, pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer
from tests.security.inotify import watched

pytestmark = [
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(600),
    # PySpark forks to start the JVM, and the child does not use Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
SECRET = "wJalrXUtnFEMI+K7MDENG"
ENDED = {"succeeded", "failed", "canceled"}
SETTINGS = {
    "gzip": {
        "write.parquet.compression-codec": "gzip",
        "zlib.compress.level": "${env.AWS_SECRET_ACCESS_KEY}",
    },
    "level": {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.compression-level": "${env.AWS_SECRET_ACCESS_KEY}",
    },
    "orc": {
        "write.format.default": "orc",
        "orc.write.format": "${env.AWS_SECRET_ACCESS_KEY}",
        "orc.encoding.strategy": "${spark.master}",
    },
}
"""Properties that Iceberg's writers copy into Hadoop's configuration, which replaces the variables."""


@dataclass(frozen=True)
class Tenant:
    """A principal with all privileges on its own namespace only."""

    live: LiveServer
    name: str
    key: str

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return request(self.live, self.key, method, path, body)

    def table(self, name: str) -> Table:
        """A table with 12 files, each with a row that has the tenant's name."""
        catalog = pyice.connect(self.live.url, token=self.key)
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        table = catalog.create_table((self.name, name), schema)
        for number in range(12):
            table.append(pa.table({"id": [number], "text": [f"of {self.name}"]}, schema=schema))
        return table

    def run(self, name: str, kind: str, **options: Any) -> dict[str, Any]:
        """Run a job to its end. Returns it with its log."""
        path = f"tables/{self.name}${name}/maintenance"
        job = self.send("POST", path, {"kind": kind, **options})
        deadline = time.monotonic() + 240
        while job["status"] not in ENDED:
            assert time.monotonic() < deadline, (job, self.live.log)
            time.sleep(0.2)
            job = self.send("GET", f"jobs/{job['id']}")
            if job["status"] == "queued" and job["attempts"]:  # it is retried later
                break
        return dict(job)


def request(
    live: LiveServer, key: str, method: str, path: str, body: Mapping[str, Any] | None
) -> Any:
    sent = urllib.request.Request(
        f"{live.url}/management/v1/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"x-api-key": key, "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        raise AssertionError((method, path, error.code, error.read())) from error


@pytest.fixture(scope="module")
def live(live_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A separate server, whose worker has Spark, and the credentials of its machine."""
    spark_client.require()
    with LiveServer(
        workers=1,
        MONODON_SPARK_JARS=str(jars.iceberg_runtime()),
        MONODON_SPARK_CONF=spark_client.CONF,
        JAVA_HOME=spark_client._java_home(tmp_path_factory.mktemp("java")),
        AWS_SECRET_ACCESS_KEY=SECRET,
    ) as server:
        server.start_worker()
        yield server


@pytest.fixture(scope="module")
def tenants(live: LiveServer) -> tuple[Tenant, Tenant]:
    made = []
    for name in ("ann", "bob"):
        live.post(f"/v1/namespace/{name}/create")
        for method, path, body in (
            ("POST", "principals", {"name": f"user:{name}", "kind": "user"}),
            (
                "PUT",
                f"namespaces/{name}/grants",
                {"principal": f"user:{name}", "privileges": ["all"]},
            ),
            ("PUT", f"namespaces/{name}/policy", {"values": {"min_small_files": 2}}),
        ):
            request(live, live.key, method, path, body)
        key = request(live, live.key, "POST", "keys", {"principal": f"user:{name}", "name": name})
        made.append(Tenant(live, name, key["key"]))
    ann, bob = made
    return ann, bob


def texts(table: Table) -> set[str]:
    return set(table.refresh().scan().to_arrow()["text"].to_pylist())


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def files(table: Table) -> list[str]:
    paths: list[str] = table.refresh().inspect.data_files()["file_path"].to_pylist()
    return paths


def applications(job: dict[str, Any]) -> set[str]:
    """The Spark on which a job ran, from its log."""
    return {entry["message"] for entry in job["log"] if " runs as " in entry["message"]}


@pytest.fixture
def web_server() -> Iterator[tuple[str, list[str]]]:
    """The address of a web server, and the first lines of what it received, one for each connection."""
    lines: list[str] = []

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            lines.append(repr(self.request.recv(1000)))
            self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", lines
        server.shutdown()


def forge(table: Table, path: str) -> None:
    """Replace a manifest of a committed snapshot by one that names a file of another table."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0]
    local(manifest.manifest_path).unlink()
    output = table.io.new_output(manifest.manifest_path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=100,
    )
    number = manifest.added_snapshot_id
    with write_manifest(2, table.spec(), table.schema(), output, number, "deflate") as writer:
        status = ManifestEntryStatus.ADDED
        writer.add_entry(ManifestEntry.from_args(status=status, snapshot_id=number, data_file=file))


def forge_list(table: Table, path: str) -> None:
    """Replace the manifest list of the current snapshot by one that names only this manifest."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0]
    manifest[0] = path
    local(snapshot.manifest_list).unlink()
    with write_manifest_list(
        format_version=2,
        output_file=table.io.new_output(snapshot.manifest_list),
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests([manifest, manifest])


def test_jobs_of_two_tenants_in_turn(live: LiveServer, tenants: tuple[Tenant, Tenant]) -> None:
    ann, bob = tenants
    hers = ann.table("t")
    tables = {name: bob.table(name) for name in SETTINGS}
    for name, table in tables.items():
        with table.transaction() as change:
            change.set_properties(SETTINGS[name])
    drivers: set[str] = set()
    for tenant, name in ((bob, "gzip"), (ann, "t"), (bob, "level"), (bob, "orc")):
        job = tenant.run(name, "compact")
        assert SECRET not in json.dumps(job)
        assert job["status"] == "succeeded", (job, live.log)
        drivers |= applications(job)
    for name, table in {**tables, "t": hers}.items():
        assert len(files(table)) == 1, name
        assert texts(table) == {"of ann" if name == "t" else "of bob"}

    forged = bob.table("forged")
    (secret,) = map(local, files(hers))
    forge(forged, f"file://{secret}")
    with watched(secret) as touched:
        job = bob.run("forged", "compact")
    assert touched.events == []
    assert job["status"] == "succeeded", job
    assert job["result"]["skipped"] == {"foreign_files": 1, "examples": [f"file://{secret}"]}
    assert "of ann" not in json.dumps(job)
    ann.table("u")
    job = ann.run("u", "compact")
    assert job["status"] == "succeeded"
    assert len(drivers | applications(job)) == 1, "the jobs ran on more than one driver"


@pytest.mark.parametrize(
    ("action", "start"),
    [
        ("compact", "http://"),
        ("compact", "hdfs://"),
        ("compact", "HTTP://"),
        ("rewrite_manifests", "webhdfs://"),
        ("rewrite_manifests", "har://http-"),
    ],
)
def test_a_job_on_local_files_makes_no_connections(  # noqa: PLR0917 -- fixtures
    tenants: tuple[Tenant, Tenant],
    web_server: tuple[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    action: str,
    start: str,
) -> None:
    """The manifest is replaced after the server has checked it, which it does for keys of jobs only."""
    bob = tenants[1]
    address, connections = web_server
    name = request.node.name.translate(str.maketrans("[]:/", "____"))
    table = bob.table(name)
    named = f"{start}{address}/x.har/data.parquet"
    if action == "compact":
        forge(table, named)
    else:
        forge_list(table, named)
    job = {
        "action": action,
        "table": [bob.name, name],
        "url": bob.live.url,
        "token": bob.key,
        "scheme": "",
        "job": 1,
        "options": {"min-input-files": "2"},
    }
    with spark_client.session(tmp_path_factory.mktemp("spark"), {}) as spark:
        jvm: Any = spark.sparkContext._jvm
        hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        uri = jvm.java.net.URI.create(f"http://{address}/")
        jvm.org.apache.hadoop.fs.FileSystem.get(uri, hadoop)  # as if Spark itself had opened it
        with pytest.raises(
            (PySparkException, Py4JError), match=r"Wrong FS|No FileSystem"
        ) as refused:
            script.run(job, spark)
    assert connections == []
    assert script.describe(refused.value)[0] == "refused"
