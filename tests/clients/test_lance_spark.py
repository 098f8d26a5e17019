"""Spark with a Lance and an Iceberg table of one catalog in one query.

Lance's connector for this Spark is not available (docs/lance-clients.md): pylance and Arrow replace
it.
"""

from collections.abc import Iterator

import lance
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client import models as m
from pyspark.sql import SparkSession

from tests.clients import guide
from tests.clients import spark as spark_client
from tests.clients.rivals import stream
from tests.live import LiveServer

pytestmark = [
    pytest.mark.xdist_group("spark"),
    # From the sockets from which PySpark reads results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # PySpark forks to start the JVM, and the child does not use Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


@pytest.fixture(scope="module")
def spark(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark_client.require()
    lake = {"type": "rest", "uri": live.url, "token": live.key}
    with spark_client.session(tmp_path_factory.mktemp("spark"), {"lake": lake}) as started:
        yield started


@pytest.fixture
def catalog(live: LiveServer) -> RestNamespace:
    """A live server with a namespace of whales."""
    catalog = live.client()
    catalog.create_namespace(m.CreateNamespaceRequest(id=["spark_sea"]))
    rows = pa.table({"id": [4, 5], "name": ["beluga", "narwhal"]})
    catalog.create_table(m.CreateTableRequest(id=["spark_sea", "whales"]), stream(rows))
    return catalog


def test_a_join_of_both_formats(
    live: LiveServer, spark: SparkSession, catalog: RestNamespace
) -> None:
    spark.sql("CREATE TABLE lake.spark_sea.sightings (whale BIGINT, place STRING)")
    spark.sql("INSERT INTO lake.spark_sea.sightings VALUES (4, 'Svalbard'), (9, 'Iceland')")
    variables = {"spark": spark, "catalog": catalog, "__name__": "__main__"}
    for block in guide.blocks("Spark", "python", live, guide="lance-clients"):
        exec(block.replace("sea.", "spark_sea.").replace('"sea"', '"spark_sea"'), variables)
    assert variables["counts"] == [2]

    dataset = lance.dataset(namespace_client=catalog, table_id=["spark_sea", "seen"])
    assert dataset.to_table().to_pylist() == [{"name": "beluga", "place": "Svalbard"}]
    count = catalog.count_table_rows(m.CountTableRowsRequest(id=["spark_sea", "seen"]))
    assert count.count == 1
