"""Stock PyIceberg against the real server, with tables in an object store."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from tests.clients import pyice
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile
from tests.stores.s3 import S3Store

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "s", StringType(), required=False),
)
WRITERS, APPENDS = 4, 5


@dataclass(frozen=True)
class Lake:
    """A profile of the live server with a new bucket, and PyIceberg's settings for it."""

    root: str
    store: S3Store
    properties: dict[str, str]

    def objects(self) -> list[str]:
        bucket, _, prefix = self.root.removeprefix("s3://").partition("/")
        return self.store.keys(bucket, f"{prefix}/")


@pytest.fixture
def lake(live: LiveServer, s3: S3Store, make_live_profile: MakeLiveProfile) -> Lake:
    _, root = make_live_profile(live, s3)
    time.sleep(1.1)  # the server may have read the profiles within the last second
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.region": s3.region,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
    }
    return Lake(root, s3, properties)


@pytest.fixture
def catalog(live: LiveServer, lake: Lake) -> RestCatalog:
    return pyice.connect(live.url, token=live.key, **lake.properties)


@pytest.fixture
def space(catalog: RestCatalog, request: pytest.FixtureRequest) -> str:
    name = f"objects {request.node.name}"
    catalog.create_namespace(name)
    return name


def rows(*numbers: int) -> pa.Table:
    names = [f"{number}/100%" for number in numbers]
    return pa.table({"n": pa.array(numbers, pa.int64()), "s": pa.array(names, pa.string())})


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_table_lives_and_ends_in_a_bucket(catalog: RestCatalog, lake: Lake, space: str):
    partitions = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
    table = catalog.create_table(
        (space, "t"), SCHEMA, location=f"{lake.root}/t", partition_spec=partitions
    )
    assert table.metadata_location.startswith(f"{lake.root}/t/metadata/00000-")
    table.append(rows(1, 2))
    table.append(rows(3))
    table.delete("n = 1")
    with table.update_schema() as update:
        update.add_column("extra", LongType())
    loaded = catalog.load_table((space, "t"))
    assert sorted(loaded.scan().to_arrow()["n"].to_pylist()) == [2, 3]
    assert loaded.schema().find_field("extra").field_type == LongType()
    assert any("s=3%2F100%25/" in key for key in lake.objects())
    catalog.rename_table((space, "t"), (space, "u"))
    catalog.drop_table((space, "u"))
    registered = catalog.register_table((space, "again"), loaded.metadata_location)
    assert sorted(registered.scan().to_arrow()["n"].to_pylist()) == [2, 3]
    assert len(lake.objects()) > 10


def test_locations_outside_the_root_are_refused(catalog: RestCatalog, lake: Lake, space: str):
    bucket = lake.root.rpartition("/")[0]
    locations = (f"{bucket}/elsewhere", f"{lake.root}2/t", lake.root.replace("s3:", "s3a:") + "/t")
    for location in locations:
        with pytest.raises(Exception, match=r"outside the object storage|write s3://"):
            catalog.create_table((space, "t"), SCHEMA, location=location)
    assert catalog.list_tables(space) == []
    assert lake.objects() == []


def test_appends_of_several_writers_are_kept(
    live: LiveServer, catalog: RestCatalog, lake: Lake, space: str
):
    schema = Schema(
        NestedField(1, "writer", LongType(), required=False),
        NestedField(2, "number", LongType(), required=False),
    )
    catalog.create_table((space, "t"), schema, location=f"{lake.root}/t")

    def write(writer: int) -> int:
        table = (space, "t")
        return pyice.append(live.url, live.key, table, writer, APPENDS, **lake.properties)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    read = catalog.load_table((space, "t")).scan().to_arrow().to_pylist()
    assert sorted((row["writer"], row["number"]) for row in read) == [
        (writer, number) for writer in range(WRITERS) for number in range(APPENDS)
    ]
