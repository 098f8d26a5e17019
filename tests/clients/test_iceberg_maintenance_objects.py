"""Maintenance of Iceberg tables in an object store: Spark opens the files with vended credentials."""

import io
import time
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.clients import pyice
from tests.clients.spark import live_with_s3 as live
from tests.clients.test_iceberg_maintenance import Jobs
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile
from tests.stores.s3 import Moto, S3Store, Versitygw

__all__ = ["live"]
# It takes minutes, so `make engines` runs it.
pytestmark = [
    pytest.mark.engines,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(1200),
]
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))
APPENDS = 6


@pytest.fixture
def root(store: S3Store, live: LiveServer, make_live_profile: MakeLiveProfile) -> str:
    """The root of a profile whose key clients get, or temporary credentials."""
    fields: dict[str, object] = {}
    if isinstance(store, Moto):
        # A job takes longer, and the server's answers say when to renew them.
        fields = {"client_access": "sts", "role": store.role, "lifetime_seconds": 10}
    _, root = make_live_profile(live, store, **fields)
    time.sleep(1.1)  # the server may have read the profiles within the last second
    return root


@pytest.fixture(params=["s3", "moto_s3"])
def store(request: pytest.FixtureRequest) -> S3Store:
    return cast(S3Store, request.getfixturevalue(request.param))


def objects(store: S3Store, root: str) -> set[str]:
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    return set(store.keys(bucket, f"{prefix}/"))


def make_old(store: S3Store, key: str, root: str) -> bool:
    """Change the time of an object; False if the store does not allow that."""
    if not isinstance(store, Versitygw):
        return False
    store.make_old(root.removeprefix("s3://").partition("/")[0], key, days=4)
    return True


def test_every_action_runs_on_a_bucket(live: LiveServer, root: str, store: S3Store) -> None:
    catalog: RestCatalog = pyice.connect(live.url, token=live.key)
    namespace = f"objects_{root[5:].partition('/')[0]}"
    catalog.create_namespace(namespace)
    name = (namespace, "t")
    catalog.create_table(name, SCHEMA, location=f"{root}/t")
    for number in range(APPENDS):
        table = catalog.load_table(name)  # PyIceberg does not renew credentials
        table.append(pa.table({"n": pa.array([number], pa.int64())}))
    jobs = Jobs(live)
    bucket = root.removeprefix("s3://").partition("/")[0]
    for orphan in ("root/t/data/old.parquet", "root/t/data/fresh.parquet"):
        store.client().put_object(Bucket=bucket, Key=orphan, Body=b"no table has this")
    can_age = make_old(store, "root/t/data/old.parquet", root)

    compacted = jobs.run(name, "compact")
    assert (compacted["before"]["files"], compacted["after"]["files"]) == (APPENDS, 1)
    jobs.run(name, "rewrite_manifests")
    jobs.run(name, "compute_statistics")
    jobs.run(name, "rewrite_position_deletes")
    before = objects(store, root)
    expired = jobs.run(name, "clean_up", keep_for=0)
    assert expired["done"]["deleted_data_files_count"] == APPENDS
    assert expired["after"]["versions"] == 1
    expired_objects = before - objects(store, root)
    assert expired["files"] == len(expired_objects)
    assert expired["bytes"] > 0
    before = objects(store, root)
    removed = jobs.run(name, "remove_orphans")
    orphans = {"root/t/data/old.parquet"} if can_age else set()
    assert before - objects(store, root) == orphans
    assert removed["files"] == len(orphans)
    assert removed["bytes"] == 17 * len(orphans)
    read = catalog.load_table(name).scan().to_arrow()["n"].to_pylist()
    assert sorted(read) == list(range(APPENDS))


def test_an_object_is_no_orphan_that_iceberg_opens_by_a_path_with_a_query(
    live: LiveServer, root: str, store: S3Store
) -> None:
    catalog: RestCatalog = pyice.connect(live.url, token=live.key)
    namespace = f"queries_{root[5:].partition('/')[0]}"
    catalog.create_namespace(namespace)
    name = (namespace, "t")
    table = catalog.create_table(name, SCHEMA, location=f"{root}/t")
    content = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), content)
    bucket = root.removeprefix("s3://").partition("/")[0]
    key = "root/t/data/added.parquet"
    store.client().put_object(Bucket=bucket, Key=key, Body=content.getvalue())
    table.add_files([f"{root}/t/data/added.parquet"])
    with table.transaction() as change:
        change.delete(AlwaysTrue())
        change.add_files([f"{root}/t/data/added.parquet?v=1"])
    make_old(store, key, root)
    jobs = Jobs(live)

    jobs.run(name, "clean_up", keep_for=0)
    jobs.run(name, "remove_orphans")

    assert key in objects(store, root)
    assert catalog.load_table(name).scan().to_arrow()["n"].to_pylist() == [1]
