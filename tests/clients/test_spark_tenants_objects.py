"""Two tenants whose jobs run in turn on one warm Spark driver, each with the credentials of its own bucket."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
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

from tests.clients import pyice
from tests.clients.spark import live_with_s3 as live
from tests.clients.test_spark_tenants import Tenant, applications, request
from tests.live import LiveServer
from tests.security.inotify import watched
from tests.stores.faults import DELAY, FaultProxy, Request
from tests.stores.fixtures import MakeLiveProfile, bind
from tests.stores.s3 import Moto, Proxied

__all__ = ["live"]
# It takes minutes, so `make engines` runs it.
pytestmark = [
    pytest.mark.engines,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(1200),
]
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_KEY_ID = re.compile(r"Credential=([^/]+)/")


@pytest.fixture
def proxy(moto_s3: Moto) -> Iterator[FaultProxy]:
    with FaultProxy(moto_s3.endpoint) as started:
        yield started


@pytest.fixture
def tenants(
    live: LiveServer, moto_s3: Moto, proxy: FaultProxy, make_live_profile: MakeLiveProfile
) -> tuple[Tenant, Tenant]:
    """Each with all privileges on its namespace, which has a profile and a bucket of its own."""
    made = []
    for name in (f"{word}_{uuid.uuid4().hex[:6]}" for word in ("ann", "bob")):
        profile, _ = make_live_profile(
            live, Proxied(moto_s3, proxy.url), client_access="sts", role=moto_s3.role
        )
        live.post(f"/v1/namespace/{name}/create")
        bind(live, (name,), profile)
        principal = {"principal": f"user:{name}"}
        for method, path, body in (
            ("POST", "principals", {"name": f"user:{name}", "kind": "user"}),
            ("PUT", f"namespaces/{name}/grants", {**principal, "privileges": ["all"]}),
            ("PUT", f"namespaces/{name}/policy", {"values": {"min_small_files": 2}}),
        ):
            request(live, live.key, method, path, body)
        key = request(live, live.key, "POST", "keys", {**principal, "name": name})
        made.append(Tenant(live, name, key["key"]))
    ann, bob = made
    return ann, bob


def make_table(tenant: Tenant, name: str) -> Table:
    """A table with 3 files, each with a row that has the tenant's name."""
    catalog = pyice.connect(tenant.live.url, token=tenant.key)
    table = catalog.create_table((tenant.name, name), SCHEMA)
    for number in range(3):
        rows = pa.table({"id": [number], "text": [f"of {tenant.name}"]}, schema=SCHEMA)
        table.append(rows)
    return table


def place(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def of_spark(requests: list[Request]) -> list[Request]:
    return [sent for sent in requests if "java" in sent.headers.get("user-agent", "").lower()]


def key_ids(requests: list[Request], bucket: str) -> set[str]:
    """The ids of the keys that signed the requests of Spark for a bucket."""
    headers = [
        sent.headers["authorization"] for sent in of_spark(requests) if sent.bucket == bucket
    ]
    return {match[1] for header in headers if (match := _KEY_ID.search(header))}


def forged_list(table: Table, path: str) -> bytes:
    """A manifest list for the newest snapshot, with a manifest that names this file of another table."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    number, directory = snapshot.snapshot_id, f"{table.location()}/metadata"
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1000,
    )
    manifest = table.io.new_output(f"{directory}/forged.avro")
    with write_manifest(2, table.spec(), table.schema(), manifest, number, "deflate") as writer:
        for _ in range(3):
            status = ManifestEntryStatus.ADDED
            entry = ManifestEntry.from_args(status=status, snapshot_id=number, data_file=file)
            writer.add_entry(entry)
    output = table.io.new_output(f"{directory}/forged-list.avro")
    sequence = snapshot.sequence_number
    with write_manifest_list(2, output, number, None, sequence, "deflate") as lists:
        lists.add_manifests([writer.to_manifest_file()])
    with table.io.new_input(f"{directory}/forged-list.avro").open() as content:
        return bytes(content.read())


def replace_when_read(proxy: FaultProxy, moto_s3: Moto, file: str, content: bytes) -> None:
    """Replace an object when Spark requests it, which is after the server has checked it."""
    bucket, key = place(file)

    def replace(sent: Request) -> bool:
        if sent.key != key or not of_spark([sent]):
            return False
        moto_s3.client().put_object(Bucket=bucket, Key=key, Body=content)
        return True

    proxy.inject(DELAY, replace, times=1)


def test_credentials_of_two_tenants(
    live: LiveServer, tenants: tuple[Tenant, Tenant], proxy: FaultProxy, moto_s3: Moto
) -> None:
    ann, bob = tenants
    hers, his, forged = make_table(ann, "t"), make_table(bob, "t"), make_table(bob, "forged")
    drivers: set[str] = set()
    with proxy.recording() as requests:
        for tenant in (ann, bob):
            job = tenant.run("t", "compact")
            assert job["status"] == "succeeded", (job, live.log)
            drivers |= applications(job)
        her_bucket, his_bucket = place(hers.location())[0], place(his.location())[0]
        her_keys, his_keys = key_ids(requests, her_bucket), key_ids(requests, his_bucket)
        assert her_keys
        assert his_keys
        assert not her_keys & his_keys
        assert moto_s3.access_key not in her_keys | his_keys

    # Replaced after the server's check, when Spark asks for it: documented for the directory's writers.
    snapshot = forged.current_snapshot()
    assert snapshot is not None
    (secret, *_) = pyice.connect(live.url, token=ann.key).load_table((ann.name, "t")).inspect.data_files()[
        "file_path"
    ].to_pylist()  # fmt: skip
    replacement = forged_list(forged, secret)
    replace_when_read(proxy, moto_s3, snapshot.manifest_list, replacement)
    with proxy.recording() as requests:
        job: dict[str, Any] = bob.run("forged", "compact")
    attempts = [sent for sent in of_spark(requests) if sent.bucket == her_bucket]
    assert attempts, "Spark did not read the forged manifest"
    assert not key_ids(requests, her_bucket) & her_keys
    assert key_ids(requests, her_bucket) <= key_ids(requests, his_bucket)
    assert job["status"] != "succeeded"
    assert f"of {ann.name}" not in json.dumps(job)
    table = pyice.connect(live.url, token=bob.key).load_table((bob.name, "forged"))
    assert table.current_snapshot() == snapshot
    make_table(ann, "u")
    job = ann.run("u", "compact")
    assert job["status"] == "succeeded", (job, live.log)
    assert len(drivers | applications(job)) == 1, "the jobs ran on more than one driver"


def test_a_job_on_a_bucket_opens_no_local_files(
    live: LiveServer,
    tenants: tuple[Tenant, Tenant],
    proxy: FaultProxy,
    moto_s3: Moto,
    tmp_path: Path,
) -> None:
    """Writers of a bucket can replace a manifest list after the server's check, when Spark asks for it."""
    _, bob = tenants
    table = make_table(bob, "local")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    secret = tmp_path / "secret.parquet"
    with table.io.new_input(table.inspect.data_files()["file_path"][0].as_py()).open() as content:
        secret.write_bytes(content.read())
    replacement = forged_list(table, f"file://{secret}")
    replace_when_read(proxy, moto_s3, snapshot.manifest_list, replacement)
    with watched(secret) as seen:
        job = bob.run("local", "compact")
    assert seen.events == []
    assert job["status"] != "succeeded"
    assert table.refresh().current_snapshot() == snapshot
