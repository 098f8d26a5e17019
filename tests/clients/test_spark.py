"""Spark with Iceberg's runtime against a live server, with one JVM for all tests."""

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest
from py4j.protocol import Py4JError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.clients import conftest, duck, guide, jars, pyice
from tests.clients import spark as spark_client
from tests.live import LiveServer

pytestmark = [
    pytest.mark.xdist_group("spark"),
    # From the sockets from which PySpark reads results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    # PySpark forks to start the JVM, and the child does not use Lance.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
Rows = list[tuple[Any, ...]]


LOCAL = pytest.mark.parametrize("place", ["local"], indirect=True)
"""For tests that look at the files of a table."""


@pytest.fixture(scope="module")
def session(
    live: LiveServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SparkSession]:
    spark_client.require()
    own = [item for item in request.session.items if item.nodeid.startswith(request.node.nodeid)]
    if any(item.get_closest_marker("engines") for item in own):
        spark_client.require_s3()
    live.client().create_namespace(CreateNamespaceRequest(id=["spark prod"], mode="ExistOk"))
    catalog_options = {
        "type": "rest",
        "uri": live.url,
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
    }
    catalogs = {
        "lake": catalog_options | {"token": live.key},
        "by_credential": catalog_options | {"credential": f"tests:{live.key}"},
        "prod": catalog_options | {"header.x-api-key": live.key, "warehouse": "spark prod"},
        "stranger": catalog_options | {"token": "mnd_wrong"},
    }
    with spark_client.session(tmp_path_factory.mktemp("spark"), catalogs) as started:
        yield started


class Sql:
    """Statements in a namespace of the test. `{ns}` is its name, including the catalog."""

    def __init__(self, session: SparkSession, name: str) -> None:
        self.session = session
        self.name = name

    def __call__(self, statement: str, **names: object) -> Rows:
        text = statement.format(ns=f"lake.{self.name}", name=self.name, **names)
        return [tuple(row) for row in self.session.sql(text).collect()]

    def value(self, statement: str, **names: object) -> Any:
        ((value,),) = self(statement, **names)
        return value

    def call(self, statement: str, **names: object) -> dict[str, Any]:
        text = statement.format(ns=f"lake.{self.name}", name=self.name, **names)
        (row,) = self.session.sql(text).collect()
        return dict(row.asDict())


@pytest.fixture(params=conftest.LOCAL_THEN_S3)
def place(request: pytest.FixtureRequest) -> conftest.Place:
    return conftest.place_of(request)


@pytest.fixture
def sql(
    session: SparkSession, live: LiveServer, request: pytest.FixtureRequest, place: conftest.Place
) -> Sql:
    run = Sql(session, "spark_" + re.sub(r"\W", "_", request.node.name))
    run("CREATE NAMESPACE {ns}")
    place(live, [run.name])
    return run


@pytest.fixture
def catalog(live: LiveServer) -> RestCatalog:
    return pyice.connect(live.url, token=live.key)


def local(uri: str) -> Path:
    assert re.match(r"file:(//)?/[^/]", uri), uri
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


# --- credentials -------------------------------------------------------------------------------


def test_keys_and_warehouses(sql: Sql) -> None:
    sql("CREATE TABLE {ns}.t (id BIGINT)")
    sql("INSERT INTO {ns}.t VALUES (1)")

    assert sql("SELECT * FROM by_credential.{name}.t") == [(1,)]
    with pytest.raises((PySparkException, Py4JError), match=r"NotAuthorized|Not authorized"):
        sql("SHOW NAMESPACES IN stranger")
    sql("CREATE NAMESPACE prod.sales")
    sql("CREATE TABLE prod.sales.`new orders` AS SELECT 2L AS id")
    assert sql("SELECT * FROM lake.`spark prod`.sales.`new orders`") == [(2,)]
    assert sql("SHOW NAMESPACES IN prod") == [("sales",)]


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_insert_merge_update_delete(sql: Sql, catalog: RestCatalog, mode: str) -> None:
    sql(
        "CREATE TABLE {ns}.t (id BIGINT NOT NULL, s STRING, ts TIMESTAMP)"
        " PARTITIONED BY (days(ts), bucket(2, id)) TBLPROPERTIES ('write.delete.mode'='{mode}',"
        " 'write.update.mode'='{mode}', 'write.merge.mode'='{mode}')",
        mode=mode,
    )
    sql(
        "INSERT INTO {ns}.t SELECT id, concat('row ', id), TIMESTAMP '2026-01-01 00:00:00'"
        " + make_interval(0, 0, 0, CAST(id % 2 AS INT)) FROM range(10)"
    )
    sql(
        "MERGE INTO {ns}.t t USING (SELECT id, concat('new ', id) AS s FROM range(8, 12)) u"
        " ON t.id = u.id WHEN MATCHED THEN UPDATE SET s = u.s"
        " WHEN NOT MATCHED THEN INSERT (id, s, ts) VALUES (u.id, u.s, TIMESTAMP '2026-01-03')"
    )
    sql("UPDATE {ns}.t SET s = 'updated' WHERE id = 3")
    sql("DELETE FROM {ns}.t WHERE id IN (0, 5)")

    expected = [(n, f"row {n}") for n in (1, 2, 3, 4, 6, 7)] + [
        (n, f"new {n}") for n in (8, 9, 10, 11)
    ]
    expected[2] = (3, "updated")
    assert sql("SELECT id, s FROM {ns}.t ORDER BY id") == expected
    table = catalog.load_table((sql.name, "t"))
    rows = table.scan().to_arrow().sort_by("id")
    assert list(zip(rows["id"].to_pylist(), rows["s"].to_pylist(), strict=True)) == expected
    has_deletes = table.inspect.delete_files().num_rows > 0
    assert has_deletes == (mode == "merge-on-read")


def test_create_as_select_and_replace(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t USING iceberg AS SELECT id, id * 2 AS twice FROM range(5)")
    uuid = catalog.load_table((sql.name, "t")).metadata.table_uuid
    sql(
        "CREATE OR REPLACE TABLE {ns}.t PARTITIONED BY (part) AS"
        " SELECT id % 2 AS part, CAST(id AS STRING) AS text FROM range(3)"
    )

    assert sql("SELECT * FROM {ns}.t ORDER BY text") == [(0, "0"), (1, "1"), (0, "2")]
    table = catalog.load_table((sql.name, "t"))
    assert table.metadata.table_uuid == uuid
    first = table.snapshots()[0].snapshot_id
    assert sql("SELECT sum(twice) FROM {ns}.t VERSION AS OF {first}", first=first) == [(20,)]
    with pytest.raises(PySparkException):
        sql("CREATE TABLE {ns}.broken AS SELECT CAST(raise_error('no') AS INT) AS n")
    assert not catalog.table_exists((sql.name, "broken"))
    with pytest.raises(PySparkException, match="already exists"):
        sql("CREATE TABLE {ns}.t (id BIGINT)")


def test_writers_at_the_same_time(sql: Sql, catalog: RestCatalog) -> None:
    sql(
        "CREATE TABLE {ns}.t (writer BIGINT, number BIGINT)"
        " TBLPROPERTIES ('commit.retry.num-retries'='40')"
    )

    def write(writer: int) -> None:
        for number in range(3):
            sql("INSERT INTO {ns}.t VALUES ({writer}, {number})", writer=writer, number=number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    assert sql("SELECT * FROM {ns}.t ORDER BY 1, 2") == [(w, n) for w in range(4) for n in range(3)]
    assert len(catalog.load_table((sql.name, "t")).snapshots()) == 12


# --- tables ------------------------------------------------------------------------------------


def test_alter_table(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t (id INT NOT NULL, s STRING, gone STRING, at TIMESTAMP)")
    sql("INSERT INTO {ns}.t VALUES (1, 'a', 'x', TIMESTAMP '2026-01-01')")
    for change in (
        "ADD COLUMNS (extra STRUCT<a: INT, b: ARRAY<STRING>> COMMENT 'nested')",
        "ADD COLUMN extra.c DOUBLE AFTER a",
        "RENAME COLUMN s TO text",
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN text FIRST",
        "ALTER COLUMN text COMMENT 'words'",
        "DROP COLUMN gone",
        "ADD PARTITION FIELD bucket(4, id)",
        "ADD PARTITION FIELD days(at) AS day",
        "REPLACE PARTITION FIELD day WITH months(at) AS month",
        "DROP PARTITION FIELD bucket(4, id)",
        "WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY id DESC NULLS LAST, text",
        "SET IDENTIFIER FIELDS id",
        "SET TBLPROPERTIES ('team'='tests', 'passing'='1')",
        "UNSET TBLPROPERTIES ('passing')",
    ):
        sql("ALTER TABLE {ns}.t " + change)
    sql(
        "INSERT INTO {ns}.t VALUES"
        " ('b', 2, TIMESTAMP '2026-02-01', named_struct('a', 1, 'c', 1.5D, 'b', array('z')))"
    )

    table = catalog.load_table((sql.name, "t"))
    assert [field.name for field in table.schema().fields] == ["text", "id", "at", "extra"]
    assert str(table.schema().find_type("id")) == "long"
    assert table.schema().find_field("text").field_id == 2
    assert table.schema().identifier_field_names() == {"id"}
    assert [field.name for field in table.schema().find_type("extra").fields] == ["a", "c", "b"]
    assert [(f.name, str(f.transform)) for f in table.spec().fields] == [("month", "month")]
    assert [str(field) for field in table.sort_order().fields] == [
        "1 DESC NULLS LAST",
        "2 ASC NULLS FIRST",
    ]
    assert table.properties["team"] == "tests"
    assert "passing" not in table.properties
    assert sql("SELECT id, text, extra.c FROM {ns}.t ORDER BY id") == [
        (1, "a", None),
        (2, "b", 1.5),
    ]


def test_time_travel_branches_and_tags(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t (id BIGINT)")
    sql("INSERT INTO {ns}.t VALUES (1)")
    first = catalog.load_table((sql.name, "t")).current_snapshot()
    time.sleep(0.01)
    sql("INSERT INTO {ns}.t VALUES (2)")
    sql(
        "ALTER TABLE {ns}.t CREATE TAG beginning AS OF VERSION {id} RETAIN 30 DAYS",
        id=first.snapshot_id,
    )
    sql("ALTER TABLE {ns}.t CREATE BRANCH dev AS OF VERSION {id}", id=first.snapshot_id)
    sql("INSERT INTO {ns}.t.branch_dev VALUES (30)")
    sql("ALTER TABLE {ns}.t CREATE BRANCH audit")
    sql("INSERT INTO {ns}.t.branch_audit VALUES (40)")

    assert sql("SELECT * FROM {ns}.t VERSION AS OF 'beginning'") == [(1,)]
    assert sql("SELECT * FROM {ns}.t VERSION AS OF 'dev' ORDER BY id") == [(1,), (30,)]
    assert sql("SELECT * FROM {ns}.t VERSION AS OF {id}", id=first.snapshot_id) == [(1,)]
    at = first.timestamp_ms / 1000
    assert sql("SELECT * FROM {ns}.t TIMESTAMP AS OF {at}", at=at) == [(1,)]
    assert sql("SELECT * FROM {ns}.t ORDER BY id") == [(1,), (2,)]
    sql("CALL lake.system.fast_forward('{name}.t', 'main', 'audit')")
    assert sql("SELECT * FROM {ns}.t ORDER BY id") == [(1,), (2,), (40,)]
    sql("ALTER TABLE {ns}.t DROP TAG beginning")
    sql("ALTER TABLE {ns}.t DROP BRANCH dev")
    assert {name for (name,) in sql("SELECT name FROM {ns}.t.refs")} == {"main", "audit"}
    sql("CALL lake.system.rollback_to_snapshot('{name}.t', {id})", id=first.snapshot_id)
    assert sql("SELECT * FROM {ns}.t") == [(1,)]
    assert set(catalog.load_table((sql.name, "t")).refs()) == {"main", "audit"}


def test_metadata_tables(sql: Sql) -> None:
    sql("CREATE TABLE {ns}.t (id BIGINT, part STRING) PARTITIONED BY (part)")
    sql("INSERT INTO {ns}.t VALUES (1, 'a'), (2, 'b')")
    sql("INSERT INTO {ns}.t VALUES (3, 'a')")

    counts = {
        name: sql.value(f"SELECT count(*) FROM {{ns}}.t.{name}")
        for name in (
            *("files", "data_files", "all_data_files", "delete_files", "entries", "manifests"),
            *("snapshots", "history", "metadata_log_entries", "partitions", "refs"),
        )
    }

    assert counts == {
        "files": 3,
        "data_files": 3,
        "all_data_files": 3,
        "delete_files": 0,
        "entries": 3,
        "manifests": 2,
        "snapshots": 2,
        "history": 2,
        "metadata_log_entries": 3,
        "partitions": 2,
        "refs": 1,
    }
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM {ns}.absent.files")


def test_names(sql: Sql) -> None:
    sql("CREATE NAMESPACE {ns}.`below this` WITH DBPROPERTIES ('team'='tests')")
    sql("CREATE NAMESPACE {ns}.`below this`.deeper")
    sql("ALTER NAMESPACE {ns}.`below this` SET PROPERTIES ('comment'='a comment')")
    described = dict(sql("DESCRIBE NAMESPACE EXTENDED {ns}.`below this`"))
    assert described["Comment"] == "a comment"
    assert sql("SHOW NAMESPACES IN {ns}") == [(f"{sql.name}.`below this`",)]
    sql("CREATE TABLE {ns}.`below this`.deeper.`a table` AS SELECT 1 AS id")
    assert sql("SELECT * FROM {ns}.`below this`.deeper.`a table`") == [(1,)]
    sql("ALTER TABLE {ns}.`below this`.deeper.`a table` RENAME TO {name}.renamed")
    assert sql("SELECT * FROM {ns}.renamed") == [(1,)]
    assert sql("SHOW TABLES IN {ns}.`below this`.deeper") == []
    assert [row[1] for row in sql("SHOW TABLES IN {ns}")] == ["renamed"]
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)not empty"):
        sql("DROP NAMESPACE {ns}")
    sql("DROP NAMESPACE {ns}.`below this`.deeper")
    sql("DROP NAMESPACE {ns}.`below this`")
    with pytest.raises(PySparkException, match="SCHEMA_NOT_FOUND"):
        sql("DROP NAMESPACE {ns}.`below this`")


def test_lance_tables_are_not_visible(sql: Sql, live: LiveServer) -> None:
    lance.write_dataset(
        pa.table({"n": [1]}), namespace_client=live.client(), table_id=[sql.name, "arrows"]
    )

    assert sql("SHOW TABLES IN {ns}") == []
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM {ns}.arrows")
    with pytest.raises(PySparkException, match="already exists"):
        sql("CREATE TABLE {ns}.arrows (n BIGINT)")


@LOCAL
@pytest.mark.parametrize("purge", ["", "PURGE"])
def test_drop(sql: Sql, live: LiveServer, catalog: RestCatalog, purge: str) -> None:
    sql("CREATE TABLE {ns}.t AS SELECT id FROM range(3)")
    table = catalog.load_table((sql.name, "t"))

    sql(f"DROP TABLE {{ns}}.t {purge}")

    assert sql("SHOW TABLES IN {ns}") == []
    if not purge:
        assert local(table.metadata_location).is_file()
        sql(
            "CALL lake.system.register_table(table => '{name}.back', metadata_file => '{file}')",
            file=table.metadata_location,
        )
        assert sql("SELECT count(*) FROM {ns}.back") == [(3,)]
        return
    deadline = time.monotonic() + 120
    while remaining := [path for path in local(table.location()).rglob("*.*") if path.is_file()]:
        assert time.monotonic() < deadline, f"{remaining} are still there:\n{live.log}"
        time.sleep(0.1)


# --- views -------------------------------------------------------------------------------------


def test_views(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t AS SELECT id, concat('row ', id) AS s FROM range(5)")
    sql(
        "CREATE VIEW {ns}.v (id COMMENT 'the number', s) COMMENT 'few'"
        " TBLPROPERTIES ('k'='v') AS SELECT id, s FROM {ns}.t WHERE id > 2"
    )

    assert sql("SELECT * FROM {ns}.v ORDER BY id") == [(3, "row 3"), (4, "row 4")]
    assert [row[1] for row in sql("SHOW VIEWS IN {ns}")] == ["v"]
    assert [row[1] for row in sql("SHOW TABLES IN {ns}")] == ["t"]
    with pytest.raises(PySparkException, match=r"(?i)already exists"):
        sql("CREATE VIEW {ns}.v AS SELECT 1 AS one")
    with pytest.raises(PySparkException, match=r"(?i)already exists"):
        sql("CREATE VIEW {ns}.t AS SELECT 1 AS one")
    sql("CREATE OR REPLACE VIEW {ns}.v AS SELECT count(*) AS rows FROM {ns}.t")
    assert sql("SELECT * FROM {ns}.v") == [(5,)]
    sql("ALTER VIEW {ns}.v SET TBLPROPERTIES ('k'='w', 'l'='1')")
    sql("ALTER VIEW {ns}.v UNSET TBLPROPERTIES ('l')")
    view = catalog.load_view((sql.name, "v"))
    assert view.properties["k"] == "w"
    assert "l" not in view.properties
    assert len(view.versions) == 2
    assert "count(*)" in view.sql_for("spark").sql
    sql("ALTER VIEW {ns}.v RENAME TO lake.{name}.w")
    assert sql("SELECT * FROM {ns}.w") == [(5,)]
    with pytest.raises(PySparkException, match=r"(?i)already exists"):
        sql("ALTER VIEW {ns}.w RENAME TO lake.{name}.t")
    sql("DROP VIEW {ns}.w")
    assert sql("SHOW VIEWS IN {ns}") == []


def test_a_view_of_another_client(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t AS SELECT id FROM range(5)")
    version = ViewVersion(
        version_id=1,
        timestamp_ms=int(time.time() * 1000),
        schema_id=0,
        summary={},
        default_namespace=[sql.name],
        representations=[
            SQLViewRepresentation(type="sql", dialect="spark", sql="SELECT max(id) AS top FROM t")
        ],
    )
    schema = Schema(NestedField(1, "top", LongType(), required=False))
    catalog.create_view((sql.name, "v"), schema, version)

    assert sql("SELECT * FROM {ns}.v") == [(4,)]


# --- maintenance -------------------------------------------------------------------------------


@LOCAL
def test_maintenance_procedures(sql: Sql, catalog: RestCatalog) -> None:
    sql(
        "CREATE TABLE {ns}.t (id BIGINT, s STRING) TBLPROPERTIES ('write.delete.mode'='merge-on-read',"
        " 'write.update.mode'='merge-on-read', 'format-version'='2')"
    )
    for first in (0, 10, 20, 30):
        sql(
            "INSERT INTO {ns}.t SELECT /*+ COALESCE(1) */ id, concat('row ', id)"
            " FROM range({first}, {last})",
            first=first,
            last=first + 10,
        )
    for number in (5, 15, 25):
        sql("DELETE FROM {ns}.t WHERE id = {each}", each=number)
    expected = [(n,) for n in range(40) if n not in (5, 15, 25)]

    manifests = sql.call("CALL lake.system.rewrite_manifests('{name}.t')")
    deletes = sql.call(
        "CALL lake.system.rewrite_position_delete_files(table => '{name}.t',"
        " options => map('rewrite-all', 'true'))"
    )
    files = sql.call(
        "CALL lake.system.rewrite_data_files(table => '{name}.t', options =>"
        " map('min-input-files', '2', 'delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
    )
    statistics = sql.call("CALL lake.system.compute_table_stats(table => '{name}.t')")

    assert manifests["rewritten_manifests_count"] > 1
    assert deletes["rewritten_delete_files_count"] >= 1
    assert files["rewritten_data_files_count"] == 4
    assert files["added_data_files_count"] == 1
    assert local(statistics["statistics_file"]).is_file()
    table = catalog.load_table((sql.name, "t"))
    assert [local(s.statistics_path) for s in table.metadata.statistics] == [
        local(statistics["statistics_file"])
    ]
    assert sql("SELECT id FROM {ns}.t ORDER BY id") == expected
    data = local(table.location()) / "data"
    stray, fresh = data / "stray.parquet", data / "fresh.parquet"
    two_days_ago = time.time() - 2 * 86_400
    for file in (stray, fresh):
        file.write_bytes(b"no table has this")
    os.utime(stray, (two_days_ago, two_days_ago))

    expired = sql.call(
        "CALL lake.system.expire_snapshots(table => '{name}.t', older_than => TIMESTAMP"
        " '2100-01-01 00:00:00', retain_last => 1)"
    )
    orphans = sql(
        "CALL lake.system.remove_orphan_files(table => '{name}.t', older_than => TIMESTAMP"
        " '{yesterday}')",
        yesterday=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 90_000)),
    )

    assert expired["deleted_data_files_count"] == 4
    assert [local(file) for (file,) in orphans] == [stray]
    assert not stray.exists()
    assert fresh.exists()
    assert sql("SELECT id FROM {ns}.t ORDER BY id") == expected
    again = catalog.load_table((sql.name, "t"))
    assert len(again.snapshots()) == 1
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [n for (n,) in expected]


# --- version 3, and other engines --------------------------------------------------------------


def test_version_3_has_deletion_vectors_and_row_ids(
    sql: Sql, live: LiveServer, catalog: RestCatalog
) -> None:
    sql(
        "CREATE TABLE {ns}.t (id BIGINT, s STRING) TBLPROPERTIES ('format-version'='3',"
        " 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')"
    )
    sql("INSERT INTO {ns}.t SELECT /*+ COALESCE(1) */ id, concat('row ', id) FROM range(5)")
    sql("INSERT INTO {ns}.t SELECT /*+ COALESCE(1) */ id, concat('row ', id) FROM range(5, 8)")
    before = dict(sql("SELECT id, _row_id FROM {ns}.t"))
    sql("DELETE FROM {ns}.t WHERE id = 2")
    sql("UPDATE {ns}.t SET s = 'updated' WHERE id = 6")

    assert before == {n: n for n in range(8)}
    rows = sql("SELECT id, s, _row_id, _last_updated_sequence_number FROM {ns}.t ORDER BY id")
    assert [(row[0], row[2]) for row in rows] == [(n, n) for n in range(8) if n != 2]
    assert {row[0]: row[3] for row in rows} == {0: 1, 1: 1, 3: 1, 4: 1, 5: 2, 6: 4, 7: 2}
    formats = {kind for (kind,) in sql("SELECT file_format FROM {ns}.t.delete_files")}
    assert formats == {"PUFFIN"}
    sql(
        "CALL lake.system.rewrite_data_files(table => '{name}.t', options => map('rewrite-all','true'))"
    )
    row_ids = sql("SELECT id, _row_id FROM {ns}.t ORDER BY id")
    assert row_ids == [(n, n) for n in range(8) if n != 2]
    assert sorted(catalog.load_table((sql.name, "t")).scan().to_arrow()["id"].to_pylist()) == [
        n for n in range(8) if n != 2
    ]
    with duck.attached(live) as duckdb:
        ids = duckdb.sql(f"SELECT id FROM lake.{sql.name}.t ORDER BY id").fetchall()
    assert ids == [(n,) for n in range(8) if n != 2]


def test_version_2_is_upgraded_to_3(sql: Sql, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t TBLPROPERTIES ('format-version'='2') AS SELECT id FROM range(3)")
    sql("ALTER TABLE {ns}.t SET TBLPROPERTIES ('format-version'='3')")
    sql("INSERT INTO {ns}.t SELECT id FROM range(3, 5)")

    assert catalog.load_table((sql.name, "t")).format_version == 3
    ids = [row_id for (row_id,) in sql("SELECT _row_id FROM {ns}.t")]
    assert sorted(ids) == [0, 1, 2, 3, 4]


def test_engines_read_each_others_data(sql: Sql, live: LiveServer, catalog: RestCatalog) -> None:
    sql("CREATE TABLE {ns}.t (engine STRING) TBLPROPERTIES ('format-version'='2')")
    sql("INSERT INTO {ns}.t VALUES ('spark')")
    catalog.load_table((sql.name, "t")).append(pa.table({"engine": ["pyiceberg"]}))
    with duck.attached(live) as duckdb:
        duckdb.execute(f"INSERT INTO lake.{sql.name}.t VALUES ('duckdb')")
        by_duckdb = duckdb.sql(f"SELECT engine FROM lake.{sql.name}.t ORDER BY 1").fetchall()

    expected = [("duckdb",), ("pyiceberg",), ("spark",)]
    assert by_duckdb == expected
    sql("REFRESH TABLE {ns}.t")
    assert sql("SELECT engine FROM {ns}.t ORDER BY 1") == expected
    rows = catalog.load_table((sql.name, "t")).scan().to_arrow()
    assert sorted(rows["engine"].to_pylist()) == ["duckdb", "pyiceberg", "spark"]


def test_the_guide(sql: Sql, live: LiveServer) -> None:
    (block,) = guide.blocks("Spark", "sql", live)
    sql("CREATE TABLE {ns}.orders AS SELECT 2L AS id, 'lance' AS item")

    for statement in guide.statements(block):
        sql(statement.replace("sales", sql.name))

    assert sql("SELECT * FROM {ns}.orders ORDER BY id") == [(2, "lance"), (7, "tusk")]
    assert sql("SELECT * FROM {ns}.orders VERSION AS OF 'audited' ORDER BY id") == [
        (2, "lance"),
        (7, "tusk"),
    ]
    (command,) = guide.blocks("Spark", "sh", live)
    settings = dict(re.findall(r"--conf (\S+?)=(\S+)", command))
    ours = sql.session.conf
    assert {name: ours.get(name) for name in settings} == settings
    assert jars.NAME.removesuffix(f"-{jars.ICEBERG}.jar") + f":{jars.ICEBERG}" in command
