"""Clients that let the server plan their scans."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from tests.clients import pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer
from tests.shares import nightly

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
SERVER = {"scan-planning-mode": "server"}


@pytest.fixture(scope="module")
def session(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    spark_client.require()
    catalog_options = {"type": "rest", "uri": live.url, "token": live.key, "cache-enabled": "false"}
    catalogs = {"plain": catalog_options, "planned": catalog_options | SERVER}
    with spark_client.session(tmp_path_factory.mktemp("spark"), catalogs) as started:
        yield started


@pytest.fixture
def namespace(session: SparkSession, request: pytest.FixtureRequest) -> str:
    name = "planned_" + re.sub(r"\W", "_", request.node.name)
    session.sql(f"CREATE NAMESPACE plain.{name}")
    return name


def rows(session: SparkSession, statement: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.sql(statement).collect())


FILTERS = [
    "true",
    "id > 4",
    "id IN (1, 3, 99)",
    "ts < TIMESTAMP '2024-01-02 12:00:00'",
    "day = DATE '2024-01-03'",
    "name LIKE 'name 1%'",
    "name IS NULL OR amount > 30.25",
    "NOT (id BETWEEN 2 AND 8)",
    "size > 1.5",
    "place.city = 'Graz'",
    "id = 4 AND name = 'changed'",
]


# `make engines` runs the older format too.
@pytest.mark.parametrize("version", [nightly(2), 3])
def test_spark_reads_server_side_plans(session, namespace, live, version):
    table = f"{namespace}.t"
    session.sql(
        f"CREATE TABLE plain.{table} (id bigint, name string, ts timestamp, day date, "
        "amount decimal(9,2), size float, place struct<city: string>) USING iceberg "
        "PARTITIONED BY (days(ts), bucket(2, id)) TBLPROPERTIES "
        f"('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
        "'write.update.mode'='merge-on-read')"
    )
    for batch in range(3):
        values = ", ".join(
            f"({n}, {'NULL' if n == 5 else repr(f'name {n}')}, "
            f"TIMESTAMP '2024-01-0{batch + 1} {n:02}:00:00', DATE '2024-01-0{batch + 1}', "
            f"{n * 4}.25, {n / 4}, named_struct('city', '{'Graz' if n % 2 else 'Linz'}'))"
            for n in range(batch * 4, batch * 4 + 4)
        )
        session.sql(f"INSERT INTO plain.{table} VALUES {values}")
    session.sql(f"DELETE FROM plain.{table} WHERE id IN (1, 6)")
    session.sql(f"UPDATE plain.{table} SET name = 'changed' WHERE id = 4")
    for text in FILTERS:
        query = f"SELECT * FROM {{}}.{table} WHERE {text}"
        planned_rows = rows(session, query.format("planned"))
        assert planned_rows == rows(session, query.format("plain")), text
    assert len(rows(session, f"SELECT id FROM planned.{table}")) == 10
    if version == 3:
        # Spark's Iceberg does not read a planned file's sequence number yet, only its row ids.
        lineage = f"SELECT _row_id, id FROM {{}}.{table}"
        assert rows(session, lineage.format("planned")) == rows(session, lineage.format("plain"))
    old = min(rows(session, f"SELECT committed_at, snapshot_id FROM plain.{table}.snapshots"))[1]
    assert len(rows(session, f"SELECT id FROM planned.{table} VERSION AS OF {old}")) == 4


def test_pyiceberg_reads_server_side_plans(live: LiveServer):
    plain: RestCatalog = pyice.connect(live.url, token=live.key)
    planned = pyice.connect(live.url, token=live.key, **SERVER)
    assert planned.supports_server_side_planning()
    plain.create_namespace("planned_pyiceberg")
    content = pa.table(
        {
            "id": pa.array(range(10), pa.int64()),
            "name": pa.array([None if n == 5 else f"name {n}" for n in range(10)]),
            "day": pa.array(range(19_000, 19_010), pa.date32()),
        }
    )
    made = plain.create_table(("planned_pyiceberg", "t"), content.schema)
    for start in range(0, 10, 2):
        made.append(content.slice(start, 2))
    table = planned.load_table(("planned_pyiceberg", "t"))
    for text in ("id > 4", "name is null", "day < '2022-01-12'", "id in (1, 3, 99)", "id < 0"):
        theirs = table.scan(text).to_arrow().sort_by("id")
        assert theirs == made.scan(text).to_arrow().sort_by("id"), text
        assert table.scan(text).count() == theirs.num_rows
    assert table.scan().to_arrow().sort_by("id") == content
    assert table.scan(selected_fields=("name",)).to_arrow().column_names == ["name"]
